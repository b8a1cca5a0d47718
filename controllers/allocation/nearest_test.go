package allocation

import (
	"strings"
	"testing"
)

func TestEditDistance(t *testing.T) {
	for _, row := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"abc", "abc", 0}, {"", "abc", 3}, {"abc", "", 3},
		{"abc", "c", 2}, {"c", "abc", 2}, {"abc", "abd", 1}, {"abcd", "bcde", 2}, {"kitten", "sitting", 3},
	} {
		if got := editDistance(row.a, row.b); got != row.want {
			t.Errorf("from %q to %q: %d letters, want %d", row.a, row.b, got, row.want)
		}
	}
}

func TestNearestWord(t *testing.T) {
	for _, row := range []struct {
		word  string
		known []string
		want  string
	}{
		{"defalt", []string{"other", "default"}, "default"},
		{"Default", []string{"default"}, "default"},
		{"defaul", []string{"default1", "default", "defaults"}, "default"},
		{"lan-1", []string{"lan-2", "lan-3"}, "lan-2"},
		{"abcdef", []string{"abcd"}, "abcd"},
		{"abcdef", []string{"abc"}, ""},
		{"lan", []string{"lan-of-the-cellar"}, ""},
		{"cellar", []string{"lan-of-the-cellar"}, "lan-of-the-cellar"},
		{"nowhere", []string{"default"}, ""},
		{strings.Repeat("x", 253), []string{strings.Repeat("x", 252)}, strings.Repeat("x", 252)},
		{strings.Repeat("x", 254), []string{strings.Repeat("x", 253)}, ""},
	} {
		got, found := nearestWord(row.word, row.known)
		if got != row.want || found != (row.want != "") {
			t.Errorf("%q among %q: %q, %t, want %q", row.word, row.known, got, found, row.want)
		}
	}
}
