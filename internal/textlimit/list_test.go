package textlimit

import (
	"slices"
	"testing"
)

func TestLists(t *testing.T) {
	names := []string{"a", "b", "c", "d"}
	for _, row := range []struct {
		most  int
		list  string
		first []string
	}{
		{5, "a; b; c; d", names},
		{4, "a; b; c; d", names},
		{3, "a; b; c and 1 more", []string{"a", "b", "c", "and 1 more"}},
		{1, "a and 3 more", []string{"a", "and 3 more"}},
	} {
		if got := List(names, row.most, "; "); got != row.list {
			t.Errorf("List of %d: %q, want %q", row.most, got, row.list)
		}
		if got := First(names, row.most); !slices.Equal(got, row.first) {
			t.Errorf("First of %d: %q, want %q", row.most, got, row.first)
		}
	}
	if !slices.Equal(names, []string{"a", "b", "c", "d"}) {
		t.Errorf("the names have become %q", names)
	}
	if got := List(nil, 1, ", "); got != "" || First(nil, 1) != nil {
		t.Errorf("of nothing: %q, %q", got, First(nil, 1))
	}
}
