package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
)

// A suiteReport is what the gate reads of Ginkgo's report in JSON.
type suiteReport struct {
	SuiteSucceeded             bool
	SpecialSuiteFailureReasons []string
	SpecReports                []specReport
}

type specReport struct {
	ContainerHierarchyTexts    []string
	LeafNodeType, LeafNodeText string
	State                      string
	RunTime                    int64 // nanoseconds
	Failure                    specFailure
	AdditionalFailures         []struct{ Failure specFailure }
	CapturedGinkgoWriterOutput string
	CapturedStdOutErr          string
}

type specFailure struct {
	Message  string
	Location struct {
		FileName   string
		LineNumber int
	}
}

// The states of Ginkgo's specs and of the nodes around them.
const (
	specPassed   = "passed"
	specSkipped  = "skipped"
	specPanicked = "panicked"
	leafIt       = "It"
)

// text returns the full text of a spec, by which Ginkgo's focus finds it.
func (s specReport) text() string {
	text := strings.Join(append(s.ContainerHierarchyTexts, s.LeafNodeText), " ")
	if s.LeafNodeType != leafIt {
		text = strings.TrimSpace("[" + s.LeafNodeType + "] " + text)
	}
	return text
}

// parseSpecs returns an outcome for each spec that ran, and for each failure around them.
func parseSpecs(data []byte, step, suite string) ([]outcome, error) {
	var reports []suiteReport
	if err := json.Unmarshal(data, &reports); err != nil {
		return nil, fmt.Errorf("read Ginkgo's report: %w", err)
	}
	var outcomes []outcome
	succeeded := len(reports) > 0
	for _, report := range reports {
		succeeded = succeeded && report.SuiteSucceeded
		for _, s := range report.SpecReports {
			o := outcome{step: step, pkg: suite, test: s.text()}
			switch {
			case s.State == specPassed && s.LeafNodeType != leafIt:
				continue
			case s.State == specPassed:
				o.passed = true
			case s.State == specSkipped && s.Failure.Message == "":
				continue // left out by the filter
			default:
				o.message = fmt.Sprintf("%s: %s", s.State, describe(s.Failure.Message))
				if s.Failure.Location.FileName != "" {
					o.place = fmt.Sprintf("%s:%d", filepath.Base(s.Failure.Location.FileName), s.Failure.Location.LineNumber)
				}
				o.again = s.LeafNodeType == leafIt && s.State != specPanicked && s.State != specSkipped
			}
			outcomes = append(outcomes, o)
		}
	}
	if !succeeded && !hasFailure(outcomes) {
		reasons := ""
		for _, report := range reports {
			reasons += strings.Join(report.SpecialSuiteFailureReasons, ", ")
		}
		outcomes = append(outcomes, outcome{step: step, pkg: suite, message: "the suite failed: " + describe(reasons)})
	}
	return outcomes, nil
}

func hasFailure(outcomes []outcome) bool {
	for _, o := range outcomes {
		if !o.passed {
			return true
		}
	}
	return false
}
