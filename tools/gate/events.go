package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"regexp"
	"slices"
	"strings"
)

// An event is a line of test2json's output: see go doc test2json.
type event struct {
	Action, Test, Output, Key, Value string
}

// needsKey is the attribute by which a test says that it needs an API server.
const needsKey, needsServer = "needs", "apiserver"

// inCode matches where a message of a Go test comes from.
var inCode = regexp.MustCompile(`(?m)^\s*([\w./-]+\.go:\d+):? ?(.*)$`)

// raceWarning and panicWarning begin what the race detector and a panic print.
const raceWarning = "WARNING: DATA RACE"

var panicWarning = regexp.MustCompile(`(?m)^(panic|fatal error): `)

// testLog is what the events say of one test.
type testLog struct {
	output strings.Builder
	result string // pass, fail or skip; empty if the test did not end
	needs  []string
}

// parseEvents reads the events of one test binary, and returns an outcome for each test that has
// no tests below it that failed. ended tells whether the binary ended with success.
func parseEvents(r io.Reader, step, pkg string, ended bool) ([]outcome, error) {
	logs := map[string]*testLog{}
	var order []string
	var rest strings.Builder // what the binary printed outside of tests
	decoder := json.NewDecoder(bufio.NewReader(r))
	for {
		var e event
		if err := decoder.Decode(&e); err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
		if e.Test == "" {
			rest.WriteString(e.Output)
			continue
		}
		log := logs[e.Test]
		if log == nil {
			log = &testLog{}
			logs[e.Test] = log
			order = append(order, e.Test)
		}
		switch e.Action {
		case "output":
			log.output.WriteString(e.Output)
		case "pass", "fail", "skip":
			log.result = e.Action
		case "attr":
			if e.Key == needsKey {
				log.needs = append(log.needs, e.Value)
			}
		}
	}
	var outcomes []outcome
	failed := false
	for _, name := range order {
		o := outcome{step: step, pkg: pkg, test: name}
		log := logs[name]
		text := log.output.String()
		switch {
		case log.result == "pass":
			o.passed = true
		case log.result == "skip":
			o.passed, o.skipped = true, true
			o.message = describe(firstMessage(text, &o.place))
		case hasFailedChild(logs, name):
			continue
		case log.result == "fail":
			o.message = describe(firstMessage(text, &o.place))
			o.again = mayRunAgain(logs, name)
		default:
			o.message = "did not end"
			if panicWarning.MatchString(text) {
				o.message = "panicked: " + describe(firstMessage(text, &o.place))
			}
		}
		failed = failed || !o.passed
		outcomes = append(outcomes, o)
	}
	if !ended && !failed {
		o := outcome{step: step, pkg: pkg}
		o.message = "the test binary failed: " + describe(firstMessage(rest.String(), &o.place))
		outcomes = append(outcomes, o)
	}
	return outcomes, nil
}

// hasFailedChild reports whether a test below the named one failed, or did not end.
func hasFailedChild(logs map[string]*testLog, name string) bool {
	for other, log := range logs {
		if strings.HasPrefix(other, name+"/") && log.result != "pass" && log.result != "skip" {
			return true
		}
	}
	return false
}

// mayRunAgain reports whether the test, or one above it, needs an API server, and nothing
// below the same top-level test met a data race or a panic.
func mayRunAgain(logs map[string]*testLog, name string) bool {
	top := topLevel(name)
	needs := false
	for other, log := range logs {
		if topLevel(other) != top {
			continue
		}
		text := log.output.String()
		if strings.Contains(text, raceWarning) || panicWarning.MatchString(text) {
			return false
		}
		if other == name || strings.HasPrefix(name, other+"/") {
			needs = needs || slices.Contains(log.needs, needsServer)
		}
	}
	return needs
}

// topLevel returns the name of the test function of a test.
func topLevel(name string) string {
	top, _, _ := strings.Cut(name, "/")
	return top
}

// firstMessage returns the first line of a test's output that says where it comes from, and
// where that is in place. Without one it returns the first line that go test does not print itself.
func firstMessage(text string, place *string) string {
	if i := strings.Index(text, raceWarning); i >= 0 {
		if m := inCode.FindStringSubmatch(text[i:]); m != nil {
			*place = m[1]
		}
		return raceWarning
	}
	matches := inCode.FindAllStringSubmatchIndex(text, -1)
	if len(matches) > 0 {
		// A test logs before it fails: the last message is the failure, and what follows it
		// belongs to it.
		m := matches[len(matches)-1]
		*place = text[m[2]:m[3]]
		message := text[m[4]:m[1]]
		if strings.TrimSpace(message) == "" {
			message = text[m[1]:]
		}
		return message
	}
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "=== ") &&
			!strings.HasPrefix(line, "--- ") {
			return line
		}
	}
	return ""
}

// plainResult matches how a test ends in the text that go test -v prints.
var plainResult = regexp.MustCompile(`^--- (PASS|FAIL|SKIP): (\S+) `)

// parsePlain returns the outcomes of the tests in the text that test binaries print with -test.v.
func parsePlain(text, step string) []outcome {
	var outcomes []outcome
	var before strings.Builder
	for line := range strings.Lines(text) {
		m := plainResult.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			before.WriteString(line)
			continue
		}
		o := outcome{step: step, test: m[2], passed: m[1] != "FAIL", skipped: m[1] == "SKIP"}
		if m[1] != "PASS" {
			o.message = describe(firstMessage(before.String(), &o.place))
		}
		outcomes = append(outcomes, o)
		before.Reset()
	}
	return outcomes
}

// extractText returns the output in events, as the test binary printed it.
func extractText(events []byte) []byte {
	var text bytes.Buffer
	decoder := json.NewDecoder(bytes.NewReader(events))
	for {
		var e event
		if decoder.Decode(&e) != nil {
			return text.Bytes()
		}
		text.WriteString(e.Output)
	}
}
