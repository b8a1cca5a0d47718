package main

import (
	"path"
	"slices"
	"strings"
)

// failure is a line of the gate's output about a test that has failed:
//
//	FAILED race ./nodeagent TestAnnounce nodeagent/agent_test.go:30
type failure struct {
	step, pkg string
	// test is the test's name, or the text of a spec, and where it failed.
	test string
}

// module is what the packages of this project begin with in Go.
const module = "github.com/purelb/purelb-operator/"

// failuresIn returns the failures of the gate's output.
func failuresIn(output string) []failure {
	var failures []failure
	for line := range strings.Lines(output) {
		fields := strings.Fields(line)
		if len(fields) < 3 || fields[0] != "FAILED" {
			continue
		}
		failures = append(failures, failure{fields[1], fields[2], strings.Join(fields[3:], " ")})
	}
	return failures
}

// isOf reports whether a failure is of the regression's test, or of a part of that test.
func (f failure) isOf(r regression) bool {
	if f.step != r.step {
		return false
	}
	if r.step == smoke { // whatever the gate calls the package
		return strings.Contains(f.pkg+" "+f.test, strings.Join(strings.Fields(r.test), " "))
	}
	folder := func(pkg string) string { return path.Clean(strings.TrimPrefix(pkg, module)) }
	rest, hasName := strings.CutPrefix(f.test, r.test)
	return folder(f.pkg) == folder(r.pkg) && hasName && (rest == "" || rest[0] == ' ' || rest[0] == '/')
}

// judge says what is wrong if the gate does not catch a regression, by the output of a run
// with the regression's patch. It is empty if the gate is red in the named test.
func judge(r regression, output string, isRed bool) (problem string) {
	failures := failuresIn(output)
	switch {
	case !isRed:
		return "the gate stays green"
	case slices.ContainsFunc(failures, func(f failure) bool { return f.isOf(r) }):
		return ""
	}
	return "the gate is red, but not in this test: " + describeFailures(failures)
}

// describeFailures lists failures.
func describeFailures(failures []failure) string {
	if len(failures) == 0 {
		return "it names no failure"
	}
	var texts []string
	for _, f := range failures {
		texts = append(texts, strings.TrimSpace(f.step+" "+f.pkg+" "+f.test))
	}
	return strings.Join(texts, "; ")
}
