package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const diff = `diff --git a/nodeagent/apply.go b/nodeagent/apply.go
--- a/nodeagent/apply.go
+++ b/nodeagent/apply.go
@@ -1,2 +1,1 @@
 package nodeagent
-// Test: is no header here
`

func TestParseRegression(t *testing.T) {
	for _, row := range []struct {
		name, content string
		want          regression
		complaints    []string
	}{
		{
			"complete", "Clients go on sending\nto the dead node.\n\nStep: race\nPackage: ./nodeagent\nTest: TestAnnounce\n\n" +
				diff,
			regression{
				name: "x", suffers: "Clients go on sending to the dead node.", step: "race", pkg: "./nodeagent",
				test:  "TestAnnounce",
				paths: []string{"nodeagent/apply.go"},
			}, nil,
		},
		{
			"a spec", "Nothing works.\nStep: smoke\nPackage: smoke\nTest: a Service: gets an address\n" +
				strings.TrimPrefix(diff, "diff --git a/nodeagent/apply.go b/nodeagent/apply.go\n"),
			regression{
				name: "x", suffers: "Nothing works.", step: "smoke", pkg: "smoke", test: "a Service: gets an address",
				paths: []string{"nodeagent/apply.go"},
			}, nil,
		},
		{"nothing", "", regression{name: "x"}, []string{
			"x.patch does not say what a user would suffer", "needs a line Step:", "needs a line Package:", "needs a line Test:",
			"has no diff",
		}},
		{
			"wrong values", "Nothing works.\nStep: fast\nPackage: smoke\nTest: TestA/part\nTest: TestB\n" + diff,
			regression{
				name: "x", suffers: "Nothing works.", step: "fast", pkg: "smoke", test: "TestA/part",
				paths: []string{"nodeagent/apply.go"},
			},
			[]string{"has two lines Test", "needs a line Step:", "needs a line Package:", "needs a line Test:"},
		},
		{
			"a test is changed",
			"Nothing works.\nStep: race\nPackage: ./nodeagent\nTest: TestA\n" +
				strings.ReplaceAll(diff, "apply.go", "apply_test.go"),
			regression{
				name: "x", suffers: "Nothing works.", step: "race", pkg: "./nodeagent", test: "TestA",
				paths: []string{"nodeagent/apply_test.go"},
			},
			[]string{"changes nodeagent/apply_test.go, which is no part of the product"},
		},
		{
			"a file is made", "Nothing works.\nStep: race\nPackage: ./nodeagent\nTest: TestA\n--- /dev/null\n+++ " +
				"b/nodeagent/new.go\n",
			regression{
				name: "x", suffers: "Nothing works.", step: "race", pkg: "./nodeagent", test: "TestA",
				paths: []string{"nodeagent/new.go"},
			}, nil,
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, err := parseRegression("x", row.content)
			if !reflect.DeepEqual(got, row.want) {
				t.Errorf("%+v\nand not\n%+v", got, row.want)
			}
			if len(row.complaints) == 0 && err != nil {
				t.Errorf("refused: %v", err)
			}
			for _, complaint := range row.complaints {
				if err == nil || !strings.Contains(err.Error(), complaint) {
					t.Errorf("%q is missing in: %v", complaint, err)
				}
			}
		})
	}
}

func TestJudge(t *testing.T) {
	inAgent := regression{step: "race", pkg: "./nodeagent", test: "TestAnnounce"}
	inModule := regression{step: "modules", pkg: "test/gitops", test: "TestTrust"}
	spec := regression{step: smoke, pkg: smoke, test: "a Service: gets an address"}
	for _, row := range []struct {
		name   string
		of     regression
		output string
		isRed  bool
		want   string
	}{
		{"green", inAgent, "race 12 s\n", false, "the gate stays green"},
		{
			"green, whatever it prints", inAgent, "FAILED race ./nodeagent TestAnnounce x_test.go:1\n", false,
			"the gate stays green",
		},
		{"red", inAgent, "race 12 s\nFAILED race ./nodeagent TestAnnounce nodeagent/agent_test.go:30\n", true, ""},
		{"with a message", inAgent, "FAILED race nodeagent TestAnnounce agent_test.go:30 probes (-want +got): …\n", true, ""},
		{
			"a message that names the test", inAgent, "FAILED race nodeagent TestB agent_test.go:30 as TestAnnounce has it\n",
			true, "not in this test",
		},
		{"the build", inAgent, "FAILED build compile tests of .: exit status 1\n", true, "not in this test: build compile"},
		{
			"named as Go does", inAgent,
			"FAILED race github.com/purelb/purelb-operator/nodeagent TestAnnounce nodeagent/agent_test.go:30\n", true, "",
		},
		{"without the dot", inAgent, "FAILED race nodeagent TestAnnounce nodeagent/agent_test.go:30\n", true, ""},
		{"a part of the test", inAgent, "FAILED race ./nodeagent TestAnnounce/IPv6 nodeagent/agent_test.go:30\n", true, ""},
		{"without a place", inAgent, "FAILED race ./nodeagent TestAnnounce\n", true, ""},
		{
			"one of several", inAgent,
			"FAILED race ./nodeagent TestB b_test.go:1\nFAILED race ./nodeagent TestAnnounce a_test.go:1\n", true, "",
		},
		{
			"another test", inAgent, "FAILED race ./nodeagent TestAnnounceTwice b_test.go:1\n", true,
			"not in this test: race ./nodeagent TestAnnounceTwice b_test.go:1",
		},
		{"another package", inAgent, "FAILED race ./controllers TestAnnounce b_test.go:1\n", true, "not in this test"},
		{"another step", inAgent, "FAILED pure ./nodeagent TestAnnounce b_test.go:1\n", true, "not in this test"},
		{"a package below", inAgent, "FAILED race ./nodeagent/plan TestAnnounce b_test.go:1\n", true, "not in this test"},
		{
			"does not build", inAgent, "FAILED race ./nodeagent (build) nodeagent/agent.go:7\n", true,
			"not in this test: race ./nodeagent (build) nodeagent/agent.go:7",
		},
		{"says nothing", inAgent, "make: *** [test] Error 2\n", true, "it names no failure"},
		{
			"the test prints such a line", inAgent, "    FAILED race ./nodeagent\nFAILED to start\n", true,
			"not in this test: race ./nodeagent",
		},
		{"a module", inModule, "FAILED modules test/gitops TestTrust trust_test.go:40\n", true, ""},
		{"a spec", spec, "FAILED smoke smoke a Service: gets an address test/e2e/service_test.go:12\n", true, ""},
		{"a spec without a package", spec, "FAILED smoke a Service: gets an address test/e2e/service_test.go:12\n", true, ""},
		{
			"another spec", spec, "FAILED smoke smoke a Service: keeps its address test/e2e/service_test.go:12\n", true,
			"not in this test",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := judge(row.of, row.output, row.isRed)
			if !strings.Contains(got, row.want) || row.want == "" && got != "" {
				t.Errorf("%q, and not %q", got, row.want)
			}
		})
	}
}

func TestSelections(t *testing.T) {
	all := selectionsOf([]regression{
		{step: "race", pkg: "./nodeagent", test: "TestB"},
		{step: "pure", pkg: "./nodeagent/plan", test: "TestA"},
		{step: "race", pkg: "./nodeagent", test: "TestA"},
		{step: "race", pkg: "./nodeagent", test: "TestB"},
		{step: smoke, pkg: smoke, test: "the node's address (IPv4)"},
	})
	want := []selection{
		{"race", "./nodeagent", []string{"TestB", "TestA"}}, {"pure", "./nodeagent/plan", []string{"TestA"}},
		{smoke, smoke, []string{"the node's address (IPv4)"}},
	}
	if !reflect.DeepEqual(all, want) {
		t.Errorf("%v", all)
	}
	for i, want := range []string{
		`-package './nodeagent' -run '^(TestB|TestA)\b'`, `-package './nodeagent/plan' -run '^(TestA)\b'`,
		`-focus 'the node'\''s address \(IPv4\)'`,
	} {
		if got := gateArguments(all[i]); got != want {
			t.Errorf("%s, and not %s", got, want)
		}
	}
	for i, want := range []string{"race-.-nodeagent", "pure-.-nodeagent-plan", "smoke-smoke"} {
		if got := all[i].fileName(); got != strings.ReplaceAll(want, "-.-", "-") {
			t.Errorf("file %s", got)
		}
	}
}

func TestReadable(t *testing.T) {
	const events = `# a build complains
{"Action":"run","Test":"TestA"}
{"Action":"output","Test":"TestA/part","Output":"    a_test.go:3: wrong\n"}
{"Action":"fail","Test":"TestA/part"}
{"Action":"fail","Test":"TestA"}
{"Action":"pass","Test":"TestB"}
{"Action":"fail"}
`
	const want = `# a build complains
    a_test.go:3: wrong
FAILED race ./nodeagent TestA/part
FAILED race ./nodeagent TestA
`
	if got := readable(events, selection{step: "race", pkg: "./nodeagent"}); got != want {
		t.Errorf("%s", got)
	}
}

func TestMatches(t *testing.T) {
	for _, row := range []struct {
		patterns []string
		want     bool
	}{
		{nil, true}, {[]string{"no-arp"}, true}, {[]string{"no-*"}, true}, {[]string{"test/regressions/no-arp.patch"}, true},
		{[]string{"arp"}, false}, {[]string{"epoch", "no-arp"}, true},
	} {
		if got, err := matches(row.patterns, "no-arp"); got != row.want || err != nil {
			t.Errorf("%v: %t, %v", row.patterns, got, err)
		}
	}
	if _, err := matches([]string{"[a"}, "no-arp"); err == nil {
		t.Error("a wrong pattern is accepted")
	}
}

// TestTree makes copies of a small repository, with changes that are not committed, and applies
// patches there.
func TestTree(t *testing.T) {
	root := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	inGit := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git",
			append([]string{"-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"}, args...)...)
		cmd.Dir = root
		if output, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, output)
		}
	}
	inGit("init", "--quiet")
	write(".gitignore", "/bin/\n/dist/\n")
	write("go.mod", "module example.com/a\n\ngo 1.24\n")
	write("a.go", "package a\n\nfunc two() int { return 2 }\n")
	write("edited", "before\n")
	write("removed", "before\n")
	inGit("add", ".")
	inGit("commit", "--quiet", "-m", "first")
	write("edited", "after\n")
	write("new/file", "after\n")
	write("bin/kustomize", "a tool")
	write("bin/purelb", "a product")
	if err := os.Remove(filepath.Join(root, "removed")); err != nil {
		t.Fatal(err)
	}

	for range 2 { // the second in place of the first
		copied, err := newTree(t.Context(), root, filepath.Join(root, "dist"))
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{
			"edited": "after\n", "new/file": "after\n", "removed": "", "bin/kustomize": "a tool", "bin/purelb": "",
			"a.go": "package a\n\nfunc two() int { return 2 }\n",
		} {
			got, err := os.ReadFile(filepath.Join(copied.folder, name))
			if string(got) != want || (err == nil) != (want != "") {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		}
		if log, err := git(t.Context(), copied.folder, "log", "--format=%s"); err != nil || log != "first\n" {
			t.Errorf("history: %q, %v", log, err)
		}

		patch := func(after string) string {
			t.Helper()
			file := filepath.Join(t.TempDir(), "one.patch")
			text := "A header.\n\n--- a/a.go\n+++ b/a.go\n@@ -1,3 +1,3 @@\n package a\n \n-func two() int { return 2 }\n+" +
				after + "\n"
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			return file
		}
		compile := func(file string) (complaint string, err error) {
			err = copied.withPatch(t.Context(), file, func() (err error) {
				complaint, err = copied.compile(t.Context(), []string{"a.go", "edited"})
				return err
			})
			return complaint, err
		}
		if complaint, err := compile(patch("func two() int { return 3 }")); complaint != "" || err != nil {
			t.Errorf("a patch that compiles: %q, %v", complaint, err)
		}
		if complaint, err := compile(patch("func two() int { return three }")); !strings.Contains(complaint, "three") ||
			err != nil {
			t.Errorf("a patch that does not compile: %q, %v", complaint, err)
		}
		if got, err := os.ReadFile(filepath.Join(copied.folder, "a.go")); err != nil ||
			!strings.Contains(string(got), "return 2") {
			t.Errorf("a patch stays: %q, %v", got, err)
		}
		stale := patch("x")
		content, err := os.ReadFile(stale)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(stale, []byte(strings.ReplaceAll(string(content), "return 2", "return 7")),
			0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := compile(stale); err == nil || !strings.Contains(err.Error(), "does not apply") {
			t.Errorf("a patch that does not apply: %v", err)
		}
	}
}

// TestPatches reads the patches of this project, and fails for one that does not apply any
// more, so that a change of the code which a patch breaks changes the patch as well.
func TestPatches(t *testing.T) {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	regressions, err := readRegressions(options{root: root})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range regressions {
		t.Run(r.name, func(t *testing.T) {
			output, hasFailed, err := combinedOutput(command(
				t.Context(), root, "git", "apply", "--check", "--whitespace=nowarn", r.file,
			))
			if err != nil || hasFailed {
				t.Errorf("%v\n%s", err, output)
			}
		})
	}
}
