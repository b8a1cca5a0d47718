package matrix

import (
	"slices"
	"testing"
)

// TestMatrix has each cell once. A row has a reason in all columns, or values in some.
func TestMatrix(t *testing.T) {
	columns := Columns()
	if len(columns) != 2*2*3*3 {
		t.Errorf("%d columns", len(columns))
	}
	names := map[string]bool{}
	for _, r := range Rows {
		values := 0
		for _, c := range columns {
			if names[Cell(r, c)] {
				t.Errorf("two cells are called %s", Cell(r, c))
			}
			names[Cell(r, c)] = true
			if Reason(r, c) == "" {
				values++
			}
		}
		if (values == 0) != (r.Elsewhere != "") {
			t.Errorf("%s has %d values", r.Name, values)
		}
	}
}

func TestReason(t *testing.T) {
	row := func(name string) Row { return Rows[slices.IndexFunc(Rows, func(r Row) bool { return r.Name == name })] }
	for _, one := range []struct {
		row    string
		column Column
		want   bool // a value
	}{
		{"speaker killed", Column{FRR, true, true, true, External}, true},
		{"speaker killed", Column{BIRD, false, true, false, Multihop}, true},
		{"speaker killed", Column{BIRD, true, true, false, Multihop}, false},
		{"speaker out of memory", Column{BIRD, true, true, false, External}, false},
		{"BFD lost for 3 s", Column{FRR, true, false, true, Reflected}, true},
		{"BFD lost for 3 s", Column{FRR, false, false, true, Reflected}, false},
		{rangeRow, Column{BIRD, true, true, true, External}, true},
	} {
		if got := Reason(row(one.row), one.column); (got == "") != one.want {
			t.Errorf("%s in %s: %q", one.row, one.column, got)
		}
	}
}
