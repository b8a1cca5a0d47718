package textlimit

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestShorten(t *testing.T) {
	for _, row := range []struct {
		text     string
		maxBytes int
		want     string
	}{
		{"", 3, ""},
		{"abcdef", 6, "abcdef"},
		{"abcdefg", 6, "abc..."},
		{"abcd", 3, "..."},
		{"äöü", 6, "äöü"},
		{"äöüx", 6, "ä..."},
		{"€€€", 8, "€..."},
		{"ab\n\n\n\n\n\ncd", 6, "ab cd"},
		{strings.Repeat("\xff", 9), 6, "???..."},
		{strings.Repeat(" ", 1000) + "abc", 3, "abc"},
	} {
		if got := Shorten(row.text, row.maxBytes); got != row.want {
			t.Errorf("Shorten(%q, %d) = %q, want %q", row.text, row.maxBytes, got, row.want)
		}
	}
}

func TestLine(t *testing.T) {
	for text, want := range map[string]string{
		"a plain text, with Ünïcödé and 漢字":       "a plain text, with Ünïcödé and 漢字",
		"\x1b[2Jno\x1b]52;c;aGVsbG8=\x07":         "?[2Jno?]52;c;aGVsbG8=?",
		"one\r\nnode9\teth0\u0085\u2028Announced": "one node9 eth0 Announced",
		" \t around\u00a0 and  within \n":         "around and within",
		"8-bit \u009b2J, \u202eright to left":     "8-bit ?2J, ?right to left",
		"zero\u200bwidth, \ufeffmark, nul\x00":    "zero?width, ?mark, nul?",
		"not UTF-8: \xc3\x28":                     "not UTF-8: ?(",
		"\n \t":                                   "",
	} {
		if got := Line(text); got != want {
			t.Errorf("Line(%q) = %q, want %q", text, got, want)
		}
	}
}

// FuzzShorten checks, of any text, that what is shown of it is printable, of one line and of the
// length that was asked for, and stays as it is.
func FuzzShorten(f *testing.F) {
	f.Add("", 3)
	f.Add("\x1b[2J  \xff\u202e\n", 4)
	f.Add("äöüx", 6)
	f.Fuzz(func(t *testing.T, s string, maxBytes int) {
		maxBytes = 3 + (maxBytes&0xff)%100
		got := Shorten(s, maxBytes)
		if len(got) > maxBytes || !utf8.ValidString(got) ||
			strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("Shorten(%q, %d) = %q", s, maxBytes, got)
		}
		if again := Shorten(got, maxBytes); again != got {
			t.Errorf("Shorten(%q, %d) = %q, and then %q", s, maxBytes, got, again)
		}
	})
}
