package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// maxFlaky is how many tests may fail at first and pass alone in a green run.
const maxFlaky = 2

// messageLimit is how much of a failure's message stands in its line, in bytes.
const messageLimit = 200

// An outcome is what came of one test, of one spec, or of a step as a whole.
type outcome struct {
	step    string
	pkg     string // the package's path, or the suite's name; empty for a step as a whole
	test    string // the test that failed, or the text of the spec; empty for a package as a whole
	passed  bool
	skipped bool   // the test says that it cannot run here
	place   string // file:line of the first failure
	message string
	// again says that the test may be run once more, alone.
	again bool
	// flaky says that the test failed, and passed when it was run alone.
	flaky bool
}

// String returns the line of an outcome in the report.
func (o outcome) String() string {
	word := "FAILED"
	switch {
	case o.flaky:
		word = "FLAKY"
	case o.skipped:
		word = "NOT RUN"
	case o.passed:
		word = "passed"
	}
	message := strings.Join(strings.Fields(o.message), " ")
	if len(message) > messageLimit {
		message = strings.ToValidUTF8(message[:messageLimit], "") + "…"
	}
	parts := []string{word, o.step, o.pkg, o.test, o.place, message}
	return strings.Join(strings.Fields(strings.Join(parts, " ")), " ")
}

// A verdict is what came of a run.
type verdict struct {
	green  bool
	failed []outcome
	flaky  []outcome
	// notRun are tests that say that they cannot run here. They do not count as passed.
	notRun []outcome
}

// judge returns the verdict on a run.
func judge(outcomes []outcome) verdict {
	var v verdict
	ran := 0
	for _, o := range outcomes {
		switch {
		case o.flaky:
			v.flaky = append(v.flaky, o)
		case !o.passed:
			v.failed = append(v.failed, o)
		case o.skipped:
			v.notRun = append(v.notRun, o)
		case o.test != "":
			ran++
		}
	}
	v.green = len(v.failed) == 0 && len(v.flaky) <= maxFlaky && ran+len(v.flaky) > 0
	return v
}

// mergeSecondRun returns the outcomes of a first run, in which those tests that failed and passed
// in a second run are flaky. Second runs are of single tests, by package and name.
func mergeSecondRun(first []outcome, second map[[2]string]bool) []outcome {
	merged := make([]outcome, 0, len(first))
	for _, o := range first {
		if !o.passed && o.again && second[[2]string{o.pkg, o.test}] {
			o.flaky = true
		}
		merged = append(merged, o)
	}
	return merged
}

// A stepReport is what the report says of a step.
type stepReport struct {
	name           string
	took           time.Duration
	load           string
	passed, failed int
	flaky, notRun  int
}

// count counts those outcomes that are of the step.
func (r *stepReport) count(outcomes []outcome) {
	for _, o := range outcomes {
		switch {
		case o.step != r.name:
		case o.flaky:
			r.flaky++
		case o.skipped:
			r.notRun++
		case o.passed:
			r.passed++
		default:
			r.failed++
		}
	}
}

// String returns the line of a step in the report.
func (r stepReport) String() string {
	word := "passed"
	if r.failed > 0 {
		word = "FAILED"
	}
	return fmt.Sprintf(
		"%-8s %s %5.0f s  %d passed, %d failed, %d flaky, %d not run; load %s afterwards", r.name, word, r.took.Seconds(),
		r.passed, r.failed, r.flaky, r.notRun, r.load,
	)
}

// formatReport returns the last lines of a run's output.
func formatReport(steps []stepReport, v verdict, folder string, took time.Duration) string {
	var b strings.Builder
	b.WriteString("\n== summary\n")
	for _, s := range steps {
		fmt.Fprintln(&b, s)
	}
	for _, o := range slices.Concat(v.notRun, v.flaky, v.failed) {
		fmt.Fprintln(&b, o)
	}
	if len(v.flaky) > maxFlaky {
		fmt.Fprintf(&b, "more than %d tests passed only when they were run alone\n", maxFlaky)
	}
	fmt.Fprintf(&b, "all output: %s\n", folder)
	word := map[bool]string{true: "passed", false: "FAILED"}[v.green]
	fmt.Fprintf(&b, "make test: %s in %.0f s: %d failed, %d flaky\n", word, took.Seconds(), len(v.failed), len(v.flaky))
	return b.String()
}

// firstLine returns the first line of a text that is not empty.
func firstLine(text string) string {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			return line
		}
	}
	return ""
}

// describe returns a message, or a word for its absence.
func describe(message string) string { return cmp.Or(message, "without a message") }
