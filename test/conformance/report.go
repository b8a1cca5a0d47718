package main

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A verdict is what a result means.
type verdict string

const (
	passed         verdict = "pass"
	failed         verdict = "FAIL"
	failedExpected verdict = "cannot"
	passedStrange  verdict = "PASS, but the table says that it cannot"
	leftOut        verdict = "left out"
	notRun         verdict = "NOT RUN"
)

// isBad says whether the whole run fails for it.
func (v verdict) isBad() bool { return v == failed || v == passedStrange || v == notRun }

// A result is what came of a job.
type result struct {
	job     job
	verdict verdict
	took    time.Duration
	// message is the first line of how it failed.
	message string
	// requests are those that a rolling update sent, and lost those without an answer.
	requests, lost int
}

// judge returns the result of a job from the test's report and output.
func judge(j job, report testReport, output string) result {
	r := result{job: j, took: report.took, message: report.message}
	r.requests, r.lost = countRequests(output)
	cannot := j.exception.message != ""
	switch {
	case report.passed && cannot:
		r.verdict = passedStrange
	case report.passed:
		r.verdict = passed
	case cannot && regexp.MustCompile(j.exception.message).MatchString(report.details+"\n"+output):
		r.verdict = failedExpected
	default:
		r.verdict = failed
	}
	return r
}

// A testReport is what a JUnit report says of the only test that ran.
type testReport struct {
	passed  bool
	took    time.Duration
	message string
	details string
}

var errNotOne = errors.New("the report is not about one test")

// A testCase is what a JUnit report says of a test.
type testCase struct {
	Name    string  `xml:"name,attr"`
	Status  string  `xml:"status,attr"`
	Seconds float64 `xml:"time,attr"`
	Failure string  `xml:"failure"`
	Error   string  `xml:"error"`
	Skipped struct {
		Message string `xml:"message,attr"`
	} `xml:"skipped"`
}

// wasChosen says whether the test ran. The other cases are set-up of the suite, and tests
// that were not chosen. A test that skips itself says why.
func (c testCase) wasChosen() bool {
	isLeftOut := c.Status == "pending" || c.Status == "skipped" && c.Skipped.Message == "skipped"
	return strings.HasPrefix(c.Name, "[It]") && !isLeftOut
}

// parseCases returns the tests in a JUnit report that ran.
func parseCases(text []byte) ([]testCase, error) {
	var report struct {
		Suites []struct {
			Cases []testCase `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(text, &report); err != nil {
		return nil, fmt.Errorf("parse the report: %w", err)
	}
	var chosen []testCase
	for _, suite := range report.Suites {
		for _, c := range suite.Cases {
			if c.wasChosen() {
				chosen = append(chosen, c)
			}
		}
	}
	return chosen, nil
}

// parseReport reads the JUnit report of one test.
func parseReport(text []byte) (testReport, error) {
	cases, err := parseCases(text)
	if err != nil {
		return testReport{}, err
	}
	if len(cases) != 1 {
		return testReport{}, fmt.Errorf("%w but %d", errNotOne, len(cases))
	}
	c := cases[0]
	found := testReport{
		passed:  c.Status == "passed",
		took:    time.Duration(c.Seconds * float64(time.Second)),
		details: strings.TrimSpace(c.Failure + c.Error + c.Skipped.Message),
	}
	found.message, _, _ = strings.Cut(found.details, "\n")
	return found, nil
}

var (
	requestsLine = regexp.MustCompile(`Load Balancer total HTTP requests: (\d+)`)
	lostLine     = regexp.MustCompile(`(?:Network|HTTP) errors: (\d+)`)
)

// countRequests adds up what a rolling update prints after each update.
func countRequests(output string) (requests, lost int) {
	sum := func(line *regexp.Regexp) (total int) {
		for _, match := range line.FindAllStringSubmatch(output, -1) {
			n, err := strconv.Atoi(match[1])
			if err == nil {
				total += n
			}
		}
		return total
	}
	return sum(requestsLine), sum(lostLine)
}

// formatTable returns the results as a table of Markdown, with a row for each spec and a
// column for each variant and family.
func formatTable(results []result) string {
	var columns []string
	for _, v := range variants {
		for _, family := range families {
			column := job{variant: v, family: family}.column()
			if slices.ContainsFunc(results, func(r result) bool { return r.job.column() == column }) {
				columns = append(columns, column)
			}
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "| spec | %s |\n|---|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
	for _, s := range specs {
		var cells []string
		isEmpty := true
		for _, column := range columns {
			cell := ""
			for _, r := range results {
				if r.job.spec.name == s.name && r.job.column() == column {
					cell, isEmpty = r.cell(), false
				}
			}
			cells = append(cells, cell)
		}
		if !isEmpty {
			fmt.Fprintf(&b, "| %s | %s |\n", s.name, strings.Join(cells, " | "))
		}
	}
	return b.String()
}

// cell returns the verdict and the seconds.
func (r result) cell() string {
	text := string(r.verdict)
	if r.verdict != leftOut && r.verdict != notRun {
		text += fmt.Sprintf(" %.0f", r.took.Seconds())
	}
	if r.requests > 0 {
		text += fmt.Sprintf(", %d of %d lost", r.lost, r.requests)
	}
	return text
}

// formatNotes says of each result that is not a pass why, and how many results there are of
// each kind.
func formatNotes(results []result) string {
	var b strings.Builder
	count := map[verdict]int{}
	for _, r := range results {
		count[r.verdict]++
		switch {
		case r.verdict == passed:
			continue
		case r.verdict.isBad():
			fmt.Fprintf(&b, "%s: %s, %s: %s\n", r.verdict, r.job.column(), r.job.spec.name, r.message)
		default:
			fmt.Fprintf(&b, "%s: %s, %s: %s\n", r.verdict, r.job.column(), r.job.spec.name, r.job.exception.why)
		}
	}
	fmt.Fprintf(&b, "%d passed, %d cannot pass and did not, %d left out, %d not as expected\n",
		count[passed], count[failedExpected], count[leftOut], count[failed]+count[passedStrange]+count[notRun])
	return b.String()
}

// unlistedSpecs returns which of Kubernetes' tests, given by their full names, the table
// of specs does not have.
func unlistedSpecs(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return slices.ContainsFunc(specs, func(s spec) bool { return strings.Contains(name, s.text) })
	})
}

// A restObject is an object of PureLB's after the tests.
type restObject struct {
	Kind     string
	Metadata struct{ Name string }
	Spec     struct{ Addresses []json.RawMessage }
	Status   struct {
		AllocatedIPv4, AllocatedIPv6 int
		Addresses                    []json.RawMessage
		ContainerStatuses            []struct{ RestartCount int }
	}
}

// problem says what is wrong with the object if all Services have gone.
func (o restObject) problem() string {
	if n := o.Status.AllocatedIPv4 + o.Status.AllocatedIPv6; n > 0 {
		return fmt.Sprintf("has %d addresses in use", n)
	}
	if n := max(len(o.Spec.Addresses), len(o.Status.Addresses)); n > 0 && o.Kind != "Pod" {
		return fmt.Sprintf("announces %d addresses", n)
	}
	return ""
}

// restarts returns how often programs of a pod have restarted.
func (o restObject) restarts() int {
	total := 0
	for _, c := range o.Status.ContainerStatuses {
		total += c.RestartCount
	}
	return total
}
