package main

import (
	"fmt"
	"regexp"
	"strings"
)

// widestSubject and widestLine are the longest subject and the longest line of a body, in bytes.
const widestSubject, widestLine = 100, 120

// form is that of a subject: areas, a colon, and what is so from then on.
var form = regexp.MustCompile(`^[a-z0-9][a-z0-9/.-]*( tests)?(, [a-z0-9][a-z0-9/.-]*( tests)?)*: \S`)

// temporary begins a subject of a commit that was to be joined with another one.
var temporary = regexp.MustCompile(`(?i)^(wip|tmp|fixup!|squash!|amend!)`)

// findings says what is wrong with the message of a commit, in plain words; nothing if it has the form
// that CONTRIBUTING.md asks for. The first line of message is the subject.
func findings(message string) []string {
	subject, body, hasBody := strings.Cut(strings.TrimRight(message, "\n"), "\n")
	var found []string
	if temporary.MatchString(subject) {
		found = append(found, "the subject is that of a commit to be joined with another one")
	} else if !form.MatchString(subject) {
		found = append(
			found, "the subject is not `area: what is so now`, with areas in lower case, such as `agent, speaker: …`",
		)
	}
	if strings.HasSuffix(subject, ".") {
		found = append(found, "the subject ends with a full stop")
	}
	if len(subject) > widestSubject {
		found = append(found, fmt.Sprintf("the subject has %d bytes, more than %d", len(subject), widestSubject))
	}
	if hasBody && !strings.HasPrefix(body, "\n") {
		found = append(found, "no empty line follows the subject")
	}
	for line := range strings.SplitSeq(body, "\n") {
		if len(line) > widestLine && strings.Contains(line, " ") { // a link cannot be broken
			found = append(found, fmt.Sprintf("a line of the body has %d bytes, more than %d", len(line), widestLine))
			break
		}
	}
	return found
}
