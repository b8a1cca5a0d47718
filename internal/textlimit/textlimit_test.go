package textlimit

import "testing"

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
	} {
		if got := Shorten(row.text, row.maxBytes); got != row.want {
			t.Errorf("Shorten(%q, %d) = %q, want %q", row.text, row.maxBytes, got, row.want)
		}
	}
}
