// Package textlimit keeps texts within the bounds that the API server sets.
package textlimit

import "strings"

// ellipsis ends a text that was cut.
const ellipsis = "..."

// Shorten cuts s to at most maxBytes, which must be 3 or more, and never within a letter:
// the API server would replace the rest of the letter, and the next comparison would see a
// change.
func Shorten(s string, maxBytes int) string {
	if len(s) <= maxBytes {
		return s
	}
	return strings.ToValidUTF8(s[:maxBytes-len(ellipsis)], "") + ellipsis
}
