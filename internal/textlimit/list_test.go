package textlimit

import (
	"fmt"
	"slices"
	"strings"
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

func TestListWithin(t *testing.T) {
	const maxLine = 1024
	for n := range 300 {
		var items []string
		for i := range n {
			items = append(items, fmt.Sprintf("2001:db8:%x::%x", n*7919, i))
		}
		got := ListWithin(items, maxLine)
		if len(got) > maxLine {
			t.Fatalf("%d items: %d bytes", n, len(got))
		}
		listed, rest, cut := strings.Cut(got, " and ")
		shown := 0
		if listed != "" {
			shown = strings.Count(listed, ",") + 1
		}
		if cut && rest != fmt.Sprintf("%d more", n-shown) || !cut && shown != n {
			t.Fatalf("%d items: %d listed, then %q", n, shown, rest)
		}
	}
	if got := ListWithin([]string{strings.Repeat("x", 2000)}, maxLine); got != "1 more" {
		t.Errorf("an item too long for the line: %q", got)
	}
	if item := strings.Repeat("x", 1024); ListWithin([]string{item}, maxLine) != item {
		t.Error("an item that just fits into the line is cut")
	}
	long := strings.Repeat("x", 500)
	if got, want := ListWithin([]string{long, long, long, "short"}, maxLine), long+","+long+" and 2 more"; got != want {
		t.Errorf("a short item after one that does not fit: %q", got)
	}
	for _, c := range []struct{ items, length, listed int }{{400, 2, 337}, {300, 10, 91}} {
		items := slices.Repeat([]string{strings.Repeat("x", c.length)}, c.items)
		want := fmt.Sprintf("%s and %d more", strings.Join(items[:c.listed], ","), c.items-c.listed)
		if got := ListWithin(items, maxLine); got != want {
			t.Errorf("%d items of %d bytes: %q, want %q", c.items, c.length, got, want)
		}
	}
}
