package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// line returns an event in JSON.
func line(action, test, more string) string {
	return `{"Action":"` + action + `","Test":"` + test + `"` + more + "}\n"
}

func output(test, text string) string { return line("output", test, `,"Output":"`+text+`"`) }

func TestParseEvents(t *testing.T) {
	const attr = `,"Key":"needs","Value":"apiserver"`
	for _, row := range []struct {
		name   string
		events string
		ended  bool
		want   []string
		again  bool
	}{
		{"passed", line("run", "TestA", "") + line("pass", "TestA", ""), true, []string{"passed race ./p TestA"}, false},
		{
			"failed, with what it logged before",
			output("TestA", `    a_test.go:5: seed 7\n`) + output("TestA", `    a_test.go:9: got 1, want 2\n`) +
				line("fail", "TestA", ""), false,
			[]string{"FAILED race ./p TestA a_test.go:9 got 1, want 2"},
			false,
		},
		{
			"a message on the lines below", output("TestA", `    a_test.go:9: \n        Expected\n`) + line("fail", "TestA", ""),
			false,
			[]string{"FAILED race ./p TestA a_test.go:9 Expected"},
			false,
		},
		{
			"only the innermost test",
			output("TestA/x", `    a_test.go:3: no\n`) + line("fail", "TestA/x", "") + line("pass", "TestA/y", "") +
				line("fail", "TestA", ""), false,
			[]string{"FAILED race ./p TestA/x a_test.go:3 no", "passed race ./p TestA/y"},
			false,
		},
		{
			"needs an API server",
			line("attr", "TestA", attr) + output("TestA/x", `    a_test.go:3: no\n`) + line("fail", "TestA/x", "") +
				line("fail", "TestA", ""), false,
			[]string{"FAILED race ./p TestA/x a_test.go:3 no"},
			true,
		},
		{
			"needs an API server, and races",
			line("attr", "TestA", attr) + output("TestA", `WARNING: DATA RACE\n  /src/a.go:7 +0x1\n`) +
				line("fail", "TestA", ""), false,
			[]string{"FAILED race ./p TestA /src/a.go:7 WARNING: DATA RACE"},
			false,
		},
		{
			"needs an API server, and panics",
			line("attr", "TestA", attr) + output("TestA", `panic: oh\n`) + line("fail", "TestA", "") + line("run", "TestB", ""),
			false,
			[]string{"FAILED race ./p TestA panic: oh", "FAILED race ./p TestB did not end"},
			false,
		},
		{
			"the binary fails without a test", output("", `cannot listen\n`) + line("pass", "TestA", ""), false,
			[]string{"passed race ./p TestA", "FAILED race ./p the test binary failed: cannot listen"}, false,
		},
		{
			"cannot run here", output("TestA", `    a_test.go:3: needs root\n`) + line("skip", "TestA", ""), true,
			[]string{"NOT RUN race ./p TestA a_test.go:3 needs root"}, false,
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, err := parseEvents(strings.NewReader(row.events), "race", "./p", row.ended)
			if err != nil {
				t.Fatal(err)
			}
			var lines []string
			again := false
			for _, o := range got {
				lines = append(lines, o.String())
				again = again || o.again
			}
			// The order of failures of a panicked binary is that of the tests.
			if !slices.Equal(lines, row.want) || again != row.again {
				t.Errorf("got %q, again %t", lines, again)
			}
		})
	}
	if _, err := parseEvents(strings.NewReader("no event"), "race", "./p", true); err == nil {
		t.Error("what is no event must be an error")
	}
}

func TestParsePlain(t *testing.T) {
	text := "=== RUN   TestA\n    a_test.go:4: wrong\n--- FAIL: TestA (0.1s)\n=== RUN TestB\n--- PASS: TestB (0s)\nFAIL\n"
	got := parsePlain(text, "vm")
	if len(got) != 2 || got[0].String() != "FAILED vm TestA a_test.go:4 wrong" || !got[1].passed {
		t.Errorf("got %v", got)
	}
}

func TestParseSpecs(t *testing.T) {
	const report = `[{"SuiteSucceeded": false, "SpecReports": [
	  {"LeafNodeType": "BeforeSuite", "State": "passed"},
	  {"ContainerHierarchyTexts": ["A", "b"], "LeafNodeType": "It", "LeafNodeText": "c", "State": "passed"},
	  {"ContainerHierarchyTexts": ["A"], "LeafNodeType": "It", "LeafNodeText": "d", "State": "failed",
	    "Failure": {"Message": "no\nanswer", "Location": {"FileName": "/x/a_test.go", "LineNumber": 3}}},
	  {"ContainerHierarchyTexts": ["A"], "LeafNodeType": "It", "LeafNodeText": "e", "State": "panicked",
	    "Failure": {"Message": "oh"}},
	  {"ContainerHierarchyTexts": ["A"], "LeafNodeType": "It", "LeafNodeText": "f", "State": "skipped"},
	  {"LeafNodeType": "AfterSuite", "State": "failed", "Failure": {"Message": "left"}}]}]`
	got, err := parseSpecs([]byte(report), "smoke", "e2e")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"passed smoke e2e A b c", "FAILED smoke e2e A d a_test.go:3 failed: no answer",
		"FAILED smoke e2e A e panicked: oh", "FAILED smoke e2e [AfterSuite] failed: left",
	}
	var lines []string
	for _, o := range got {
		lines = append(lines, o.String())
	}
	if !slices.Equal(lines, want) {
		t.Errorf("got %q", lines)
	}
	if !got[1].again || got[2].again || got[3].again {
		t.Errorf("what may run again: %+v", got)
	}
	for name, report := range map[string]string{
		"no suite":                 `[]`,
		"a failure without a spec": `[{"SuiteSucceeded": false, "SpecialSuiteFailureReasons": ["timed out"]}]`,
		"a failure beside a passed": `[{"SuiteSucceeded": false, "SpecReports": [{"LeafNodeType": "It", "State": ` +
			`"passed"}]}]`,
	} {
		if got, err := parseSpecs([]byte(report), "smoke", "e2e"); err != nil || !hasFailure(got) {
			t.Errorf("%s: %v %v", name, got, err)
		}
	}
}

func TestJudge(t *testing.T) {
	passed, failed, again := outcome{test: "a", passed: true}, outcome{test: "b"}, outcome{test: "c", again: true}
	flaky := mergeSecondRun([]outcome{again}, map[[2]string]bool{{"", "c"}: true})[0]
	for name, row := range map[string]struct {
		outcomes []outcome
		green    bool
	}{
		"all passed":     {[]outcome{passed, passed}, true},
		"one failed":     {[]outcome{passed, failed}, false},
		"nothing ran":    {nil, false},
		"none could run": {[]outcome{{test: "a", passed: true, skipped: true}}, false},
		"two flaky":      {[]outcome{passed, flaky, flaky}, true},
		"three flaky":    {[]outcome{passed, flaky, flaky, flaky}, false},
		"failed twice":   {[]outcome{passed, mergeSecondRun([]outcome{again}, nil)[0]}, false},
		"a second run of what may have none": {
			[]outcome{passed, mergeSecondRun([]outcome{failed}, map[[2]string]bool{{"", "b"}: true})[0]}, false,
		},
	} {
		if got := judge(row.outcomes); got.green != row.green {
			t.Errorf("%s: green is %t", name, got.green)
		}
	}
}

func TestFormatReport(t *testing.T) {
	outcomes := []outcome{
		{step: "pure", test: "TestA", passed: true}, {step: "pure", test: "TestB", place: "b_test.go:1", message: "no"},
	}
	report := stepReport{name: "pure", load: "0.5"}
	report.count(append(outcomes, outcome{step: "race", test: "TestOfAnother", passed: true}))
	text := formatReport([]stepReport{report}, judge(outcomes), "/out", 0)
	for _, want := range []string{
		"pure     FAILED     0 s  1 passed, 1 failed", "FAILED pure TestB b_test.go:1 no", "all output: /out",
		"make test: FAILED in 0 s: 1 failed, 0 flaky",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}

func TestSplitIntoBatches(t *testing.T) {
	got := splitIntoBatches([]binary{{pkg: "a"}, {pkg: "b"}, {pkg: "x/a"}, {pkg: "y/a"}, {pkg: "x/b"}})
	if len(got) != 3 || len(got[0]) != 2 || len(got[1]) != 2 || len(got[2]) != 1 {
		t.Errorf("got %v", got)
	}
}

func TestStepOf(t *testing.T) {
	for pkg, want := range map[[2]string]string{
		{".", "controllers"}: stepRace, {".", "controllers/placement"}: stepPure, {".", "nodeagent/neigh"}: stepKernel,
		{"tools", "tools/gate"}: stepModules, {"test/e2e", "test/e2e"}: stepSmoke,
	} {
		if got, _ := stepOf(pkg[0], pkg[1]); got != want {
			t.Errorf("%v: %s", pkg, got)
		}
	}
}

// TestHistoriesWithoutRaceDetector checks that a package of the step race plays its histories in the
// step pure, too, and no other test of it runs there, whatever tests are asked for.
func TestHistoriesWithoutRaceDetector(t *testing.T) {
	got := binariesOf(".", historyPackages[0])
	if len(got) != 2 || got[0].step != stepRace || !got[0].race || got[1].step != stepPure || got[1].race {
		t.Fatalf("got %+v", got)
	}
	got[1].file = "/compiled"
	for run, want := range map[string]int{"": 1, "^TestHist": 1, "^TestDrift$": 0} {
		g := &gate{options: options{run: run}, binaries: got[1:]}
		jobs, err := g.jobsOf(t.Context(), stepPure)
		if err != nil || len(jobs) != want || want == 1 && jobs[0].pattern != "^TestHistories$" {
			t.Errorf("-run %q: %+v %v", run, jobs, err)
		}
	}
}

// TestTestEnv gives Go's garbage collector less to do in tests, and leaves the gate's own environment as it is.
func TestTestEnv(t *testing.T) {
	g := &gate{env: []string{"A=b"}}
	if got := strings.Join(g.testEnv(), " "); got != "A=b GOGC=400" || len(g.env) != 1 {
		t.Errorf("%s; the gate's own: %v", got, g.env)
	}
	if got := (&gate{}).testEnv(); len(got) != len(os.Environ())+1 {
		t.Errorf("without an environment of its own: %v", got)
	}
}

// TestPackagesExist checks that the packages that the steps name are there: one that was renamed
// would run in another step.
func TestPackagesExist(t *testing.T) {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	found, err := findBinaries(context.Background(), root, ".")
	if err != nil {
		t.Fatal(err)
	}
	named := slices.Concat(purePackages, kernelPackages, historyPackages)
	for _, slow := range slowPackages {
		if !strings.HasPrefix(slow.pkg, "test/") { // another module
			named = append(named, slow.pkg)
		}
	}
	for _, pkg := range named {
		if !slices.ContainsFunc(found, func(b binary) bool { return b.pkg == pkg }) {
			t.Errorf("there is no package %s with tests", pkg)
		}
	}
}

func TestParsePressure(t *testing.T) {
	if got, ok := parsePressure("some avg10=12.50 avg60=1.00 avg300=0.00 total=1\nfull avg10=0.00\n"); !ok || got != 12.5 {
		t.Errorf("got %f", got)
	}
	if _, ok := parsePressure(""); ok {
		t.Error("no text must not be a pressure")
	}
}

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	release, err := lock(t.Context(), io.Discard, path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var said strings.Builder
	cancel()
	if _, err := lock(ctx, &said, path); err == nil || !strings.Contains(said.String(), "another command uses the lab") {
		t.Errorf("a second lock: %v, said %q", err, said.String())
	}
	release()
	again, err := lock(t.Context(), io.Discard, path)
	if err != nil {
		t.Fatal(err)
	}
	again()
}

// TestTestsToRepeat repeats a test once, however many of its parts failed.
func TestTestsToRepeat(t *testing.T) {
	failed := func(pkg, test string, again bool) outcome {
		return outcome{step: stepRace, pkg: pkg, test: test, again: again}
	}
	var names []string
	for _, o := range testsToRepeat([]outcome{
		{step: stepRace, pkg: "a", test: "TestPassed", passed: true, again: true}, failed("a", "TestA/one", true),
		failed("a", "TestA/two", true),
		failed("a", "TestPure", false), failed("b", "TestA", true), failed("a", "TestB", true),
		failed("a", "TestA/three", true),
	}) {
		names = append(names, o.pkg+" "+o.test)
	}
	if want := []string{"a TestA/one", "b TestA", "a TestB"}; !slices.Equal(names, want) {
		t.Errorf("%v, and not %v", names, want)
	}
}

// TestDeal deals each test to exactly one part, and leaves none empty.
func TestDeal(t *testing.T) {
	for _, row := range []struct {
		tests string
		parts int
		want  string
	}{{"A B C D E", 2, "[[A C E] [B D]]"}, {"A B", 3, "[[A] [B]]"}, {"A B", 1, "[[A B]]"}, {"", 3, "[]"}} {
		if got := fmt.Sprint(deal(strings.Fields(row.tests), row.parts)); got != row.want {
			t.Errorf("%q in %d parts: %s", row.tests, row.parts, got)
		}
	}
}

// TestJobsOf lists the parts of a slow package first. Their patterns match its tests, each in one part.
func TestJobsOf(t *testing.T) {
	lister := filepath.Join(t.TempDir(), "controllers.test")
	if err := os.WriteFile(lister, []byte("#!/bin/sh\nprintf 'TestA\\nTestB\\nTestC\\nFuzzD\\n'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	g := &gate{
		options: options{root: t.TempDir()},
		binaries: []binary{
			{pkg: ".", step: stepRace, file: "a"}, {pkg: "controllers", step: stepRace, file: lister},
			{pkg: "docs", step: stepPure, file: "b"},
		},
	}
	if err := os.Mkdir(filepath.Join(g.root, "controllers"), 0o755); err != nil {
		t.Fatal(err)
	}
	describeJobs := func() string {
		jobs, err := g.jobsOf(t.Context(), stepRace)
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for _, j := range jobs {
			lines = append(lines, j.String()+" "+j.pattern)
		}
		return strings.Join(lines, "; ")
	}
	const parts = "controllers part 1 of 3 ^(TestA|FuzzD)$; controllers part 2 of 3 ^(TestB)$; " +
		"controllers part 3 of 3 ^(TestC)$; . "
	if got := describeJobs(); got != parts {
		t.Errorf("got %s", got)
	}
	g.run = "TestB"
	if got, want := describeJobs(), "controllers TestB; . TestB"; got != want {
		t.Errorf("with a pattern: %s", got)
	}
}

// TestRunSteps runs a step beside those that follow, and none beside one that runs alone.
func TestRunSteps(t *testing.T) {
	besideEnds, besideEnded := make(chan struct{}), false
	g := &gate{out: io.Discard}
	g.runSteps(t.Context(), []step{
		{
			name: "beside", beside: true,
			run: func(context.Context, *gate) error { <-besideEnds; besideEnded = true; return nil },
		},
		{name: "next", run: func(context.Context, *gate) error { close(besideEnds); return errors.New("no") }},
		{name: "alone", alone: true, run: func(_ context.Context, g *gate) error {
			if !besideEnded {
				t.Error("a step runs beside one that is to run alone")
			}
			g.add(outcome{step: "alone", test: "TestA", passed: true})
			return nil
		}},
	})
	failed := map[string]int{}
	for _, s := range g.steps {
		failed[s.name] = s.failed
	}
	if want := map[string]int{"beside": 0, "next": 1, "alone": 0}; !maps.Equal(failed, want) {
		t.Errorf("failures of the steps: %v", failed)
	}
}

// TestRunAgainBeside runs a test once more that failed in a step which runs beside others: the step does not wait for
// itself.
func TestRunAgainBeside(t *testing.T) {
	root := t.TempDir()
	fails := filepath.Join(root, "fails.test")
	script := "#!/bin/sh\n" +
		"printf '=== RUN   TestA\\n=== ATTR  TestA needs apiserver\\n--- FAIL: TestA (0.00s)\\nFAIL\\n'\nexit 1\n"
	if err := os.WriteFile(fails, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	g := &gate{
		options: options{root: root}, folder: filepath.Join(root, "out"), out: &out,
		binaries: []binary{{pkg: ".", step: stepModules, file: fails}},
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		g.runSteps(t.Context(), []step{{name: stepModules, beside: true, run: runTestsBeside(stepModules, 2)}})
	}()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the step waits for itself")
	}
	if !strings.Contains(out.String(), "once more: . TestA") || len(g.outcomes) == 0 || g.outcomes[0].passed {
		t.Errorf("the test that failed did not run once more: %s", &out)
	}
}
