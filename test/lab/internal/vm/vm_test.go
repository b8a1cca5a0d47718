package vm

import (
	"strings"
	"testing"
)

func TestJudge(t *testing.T) {
	const good = "boot\nVM-BEGIN a.test\n=== RUN   TestX\n--- PASS: TestX (0.1s)\n    --- PASS: TestX/y " +
		"(0.1s)\nPASS\nVM-END a.test 0\n"
	for _, row := range []struct{ name, text, report, err string }{
		{"passes", good, "a.test: 2 tests passed", ""},
		{"fails", strings.Replace(good, "a.test 0", "a.test 1", 1), "", "a.test has failed (1)"},
		{"runs no test", "VM-BEGIN a.test\nPASS\nVM-END a.test 0\n", "", "a.test has run no test"},
		{
			"skips one", strings.Replace(good, "PASS\nVM-END", "--- SKIP: TestZ (0.00s)\nPASS\nVM-END", 1), "",
			"a.test has skipped 1 tests",
		},
		{"does not end", "VM-BEGIN a.test\n--- PASS: TestX (0.1s)\n", "", "a.test has not come to an end"},
		{"does not begin", "panic", "", "a.test has not come to an end"},
		{
			"another's tests", "VM-BEGIN b.test\n--- PASS: TestX (0.1s)\nVM-END b.test 0\nVM-BEGIN a.test\nVM-END a.test 0\n",
			"", "a.test has run no test",
		},
	} {
		report, err := judge(row.text, []string{"/x/a.test:^Test"})
		text := ""
		if err != nil {
			text = err.Error()
		}
		if strings.Join(report, "; ") != row.report || text != row.err {
			t.Errorf("%s: %q, %q", row.name, report, text)
		}
	}
}
