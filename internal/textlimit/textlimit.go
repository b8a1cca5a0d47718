// Package textlimit makes texts fit to be shown: in the API, in logs and on terminals. They may
// quote what comes from outside, such as the answers of an IPAM system or the reports of agents.
package textlimit

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// ellipsis ends a text that was cut.
	ellipsis = "..."
	// unprintable takes the place of what cannot be shown.
	unprintable = '?'
)

// Shorten returns s in one line of printable letters, as Line does, and cuts it to at most
// maxBytes, which must be 3 or more. It never cuts within a letter: the API server would replace
// the rest of the letter, and the next comparison would see a change. A text that it has
// returned it returns as it is.
func Shorten(s string, maxBytes int) string {
	line := printable(s, maxBytes)
	if len(line) <= maxBytes {
		return line
	}
	return strings.ToValidUTF8(line[:maxBytes-len(ellipsis)], "") + ellipsis
}

// Line returns s in one line of printable letters: one space for each run of white space within,
// and a question mark for each control or format character and whatever is not UTF-8. These could
// clear a terminal, forge another row or turn the direction of a text.
func Line(s string) string { return printable(s, len(s)) }

// printable returns as much of s, made printable, as is longer than enough bytes or is all of s.
func printable(s string, enough int) string {
	if len(s) <= enough && isPrintable(s) {
		return s
	}
	var line strings.Builder
	hasGap := false
	for _, r := range s {
		if unicode.IsSpace(r) {
			hasGap = line.Len() > 0
			continue
		}
		if hasGap {
			line.WriteByte(' ')
			hasGap = false
		}
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			r = unprintable
		}
		line.WriteRune(r)
		if line.Len() > enough {
			break
		}
	}
	return line.String()
}

// isPrintable reports whether printable has nothing to change in s.
func isPrintable(s string) bool {
	wasSpace := true // none begins the text
	for _, r := range s {
		isSpace := r == ' '
		if isSpace && wasSpace || r == utf8.RuneError || !unicode.IsPrint(r) {
			return false
		}
		wasSpace = isSpace
	}
	return s == "" || !wasSpace
}
