package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/purelb/purelb-operator/test/proof/trial"
)

// runScript runs a script as run runs a program. $RESULTS is the file of results.
func runScript(t *testing.T, file, wants, script string) (trial.Result, error) {
	t.Helper()
	t.Setenv("RESULTS", file)
	var out bytes.Buffer
	failure := run(
		t.Context(),
		[]string{"-results", file, "-command", "make soak", "-commit", "abc1234", "-wants", wants, "--", "sh", "-c", script},
		&out,
	)
	r, err := trial.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Check(); err != nil {
		t.Error(err)
	}
	return r, failure
}

func TestRun(t *testing.T) {
	const experiments = `echo '{"experiments": [{"name": "x", "wanted": 1, "bounds": [{"figure": "failed", "atMost": ` +
		`0}], "trials": [{"figures": {"failed": FAILED}}]}]}' >"$RESULTS"`
	for _, row := range []struct {
		name, wants, script string
		count               int    // experiments, with the whole command
		broken              string // of the whole command; empty if all is green
		isRed               bool
	}{
		{name: "succeeds", script: "true", count: 1},
		{name: "fails", script: "exit 3", count: 1, broken: "exit status 3"},
		{
			name: "writes a green experiment", wants: wantsExperiments, script: strings.ReplaceAll(experiments, "FAILED", "0"),
			count: 2,
		},
		{
			name: "writes a red experiment", wants: wantsExperiments, script: strings.ReplaceAll(experiments, "FAILED", "1"),
			count: 2, isRed: true,
		},
		{
			name: "writes a green experiment and fails", wants: wantsExperiments,
			script: strings.ReplaceAll(experiments, "FAILED", "0") + "; exit 1", count: 2, broken: "exit status 1",
		},
		{name: "writes none", wants: wantsExperiments, script: "true", count: 1, broken: "no experiment was made"},
		{name: "writes half of one", script: `echo '{"experiments": [' >"$RESULTS"`, count: 1, broken: "read a result"},
		{name: "runs tests", wants: wantsTests, script: "echo '--- PASS: TestX (0.00s)'", count: 1},
		{name: "runs none", wants: wantsTests, script: "echo 'ok  	x	0.1s'", count: 1, broken: "no test has passed"},
		{
			name: "hides that one failed", wants: wantsTests,
			script: "echo '--- PASS: TestX (0.00s)'; echo '--- FAIL: TestY (0.00s)'", count: 1, broken: "1 tests have failed",
		},
		{name: "wants what does not exist", wants: "luck", script: "true", count: 1, broken: "there is no such thing"},
	} {
		t.Run(row.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "new", "soak.json")
			r, err := runScript(t, file, row.wants, row.script)
			if (err != nil) != (row.broken != "" || row.isRed) {
				t.Errorf("%v", err)
			}
			if len(r.Experiments) != row.count {
				t.Fatalf("%+v", r)
			}
			whole := r.Experiments[row.count-1]
			broken := strings.Join(whole.Trials[0].Broken, "\n")
			if whole.Name != wholeRun || broken == "" != (row.broken == "") || !strings.Contains(broken, row.broken) {
				t.Errorf("%+v, want %q", whole, row.broken)
			}
			if log, err := os.ReadFile(strings.TrimSuffix(file, "json") + "log"); err != nil ||
				strings.Contains(row.script, "TestX") != strings.Contains(string(log), "TestX") {
				t.Errorf("the log: %v, %q", err, log)
			}
		})
	}
}

// TestRunRemovesOldResults checks that a program that ends at once leaves nothing of an earlier
// run.
func TestRunRemovesOldResults(t *testing.T) {
	file := filepath.Join(t.TempDir(), "soak.json")
	for range 2 {
		if r, err := runScript(t, file, "", "true"); err != nil || len(r.Experiments) != 1 {
			t.Errorf("%v: %+v", err, r)
		}
	}
	if err := run(t.Context(), []string{"-results", file, "true"}, &bytes.Buffer{}); err == nil {
		t.Error("without -command and -commit: no error")
	}
}

func TestRunInterrupted(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	file := filepath.Join(t.TempDir(), "soak.json")
	out := writerFunc(func(p []byte) { stop() })
	err := run(
		ctx,
		[]string{
			"-results", file, "-command", "make soak", "-commit", "abc", "--", "sh", "-c",
			"trap 'echo cleaned up; exit 1' TERM; echo begun; while :; do sleep 0.05; done",
		},
		out,
	)
	if err == nil {
		t.Error("no error")
	}
	if log, err := os.ReadFile(strings.TrimSuffix(file, "json") + "log"); err != nil ||
		string(log) != "begun\ncleaned up\n" {
		t.Errorf("%v: %q", err, log)
	}
	if r, err := trial.Load(file); err != nil || r.IsGreen() {
		t.Errorf("%v: %+v", err, r)
	}
}

type writerFunc func(p []byte)

func (f writerFunc) Write(p []byte) (int, error) { f(p); return len(p), nil }

func TestCounter(t *testing.T) {
	const text = "=== RUN   TestA\n--- PASS: TestA (0.00s)\n    --- FAIL: TestA/x (0.00s)\n--- SKIP: TestB (0.00s)\n" +
		"\x1b[1mRan 7 of 60 Specs in 1.0 seconds\x1b[0m\n\x1b[38;5;9m\x1b[1mFAIL!\x1b[0m -- \x1b[38;5;10m\x1b[1m5 " +
		"Passed\x1b[0m | \x1b[38;5;9m\x1b[1m2 Failed\x1b[0m | 0 Pending | 53 Skipped\n" +
		"SUCCESS! -- 3 Passed | 0 Failed | 0 Pending | 0 Skipped\nnot at the end: SUCCESS! -- 9 Passed | 0 Failed |\n--- " +
		"PASS: Tes"
	for _, size := range []int{1, 7, len(text)} {
		c := &testCounter{}
		for rest := []byte(text); len(rest) > 0; rest = rest[min(size, len(rest)):] {
			if n, err := c.Write(rest[:min(size, len(rest))]); err != nil || n == 0 {
				t.Fatal(n, err)
			}
		}
		if c.passed != 9 || c.failed != 3 {
			t.Errorf("%d at a time: %+v", size, c)
		}
	}
}

func TestWriteTable(t *testing.T) {
	folder := t.TempDir()
	page, green, red, half := folder+"/proof.md", folder+"/green.json", folder+"/red.json", folder+"/half.json"
	for file, script := range map[string]string{green: "true", red: "false"} {
		_, _ = runScript(t, file, "", script)
	}
	if err := os.WriteFile(half, []byte(`{"experiments": [{"name": "x", "wanted": 1, "trials": [{}]}]}`),
		0o600); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name  string
		files []string
		errs  []string
		rows  int
	}{
		{"green", []string{green}, nil, 1},
		{"red", []string{green, red}, []string{"make soak is not green"}, 2},
		{"one is missing", []string{green, folder + "/none.json"}, []string{"none.json"}, 1},
		{"one has no command", []string{half, green}, []string{"half.json", "did not end"}, 1},
		{"none", nil, []string{"want files"}, 0},
	} {
		if err := os.WriteFile(page, []byte("<!-- results: begin -->\n<!-- results: end -->\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		err := writeTable(append([]string{"-page", page}, row.files...), &bytes.Buffer{})
		if (err == nil) != (len(row.errs) == 0) {
			t.Errorf("%s: %v", row.name, err)
		}
		for _, part := range row.errs {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v, want %s", row.name, err, part)
			}
		}
		text, err := os.ReadFile(page)
		if err != nil || strings.Count(string(text), "| "+wholeRun+" | ") != row.rows {
			t.Errorf("%s: %v\n%s", row.name, err, text)
		}
	}
}
