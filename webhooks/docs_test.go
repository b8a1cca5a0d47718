package webhooks_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestDocs compares the messages of all tables with the headings of
// docs/reference/admission.md: each is explained there, and nothing else is.
func TestDocs(t *testing.T) {
	text, err := os.ReadFile("../docs/reference/admission.md")
	if err != nil {
		t.Fatal(err)
	}
	headings := map[string]*regexp.Regexp{}
	used := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if message, ok := strings.CutPrefix(strings.TrimSpace(line), "### `"); ok {
			message = strings.TrimSuffix(message, "`")
			pattern := regexp.MustCompile(`<[^>]*>`).ReplaceAllString(regexp.QuoteMeta(message), "(?s:.+|)")
			headings[message] = regexp.MustCompile("^" + pattern + "$")
		}
	}
	for _, message := range messages() {
		found := false
		for heading, pattern := range headings {
			if pattern.MatchString(message) {
				found, used[heading] = true, true
			}
		}
		if !found {
			t.Errorf("not in docs/reference/admission.md: %s", message)
		}
	}
	for heading := range headings {
		if !used[heading] {
			t.Errorf("in docs/reference/admission.md, but in no table of messages: %s", heading)
		}
	}
}

// messages is all warnings and reasons of the tables, without the values of
// fields.
func messages() []string {
	var all []string
	add := func(a answer) {
		all = append(all, a.warnings...)
		for _, c := range a.refused {
			if message, ok := reason(c); ok {
				all = append(all, message)
			}
		}
		if a.forbidden != "" {
			all = append(all, a.forbidden)
		}
	}
	for _, row := range createRows() {
		add(row.want)
	}
	for _, row := range updateRows() {
		add(row.want)
	}
	for _, row := range deleteRows() {
		add(row.want)
	}
	for _, row := range agentRows() {
		add(row.want)
	}
	for _, a := range []answer{deletionRefused, deletionAllowed, changeRefused, changeAllowed} {
		add(a)
	}
	for _, row := range append(peerRows(), routedRows()...) {
		add(row.want)
	}
	for _, row := range serviceRows() {
		add(warns(row.warnings...))
	}
	for _, a := range seedAnswers {
		add(a)
	}
	add(warns(overrides, heldByAnother, unnamed, addsHostRoutes, notOnLink))
	add(answer{refused: []cause{notHere, agentNotHere, peerNotHere}})
	return all
}

var value = regexp.MustCompile(`^(Forbidden|Invalid value): ("(\\.|[^"\\])*": |-?[0-9]+: )?`)

// reason is the message of a cause without the value of the field, if the
// message is PureLB's.
func reason(c cause) (string, bool) {
	message := value.ReplaceAllString(c.message, "")
	foreign := strings.Contains(message, "in body should") || c.field == "metadata.name"
	return message, !foreign
}
