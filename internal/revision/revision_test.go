package revision_test

import (
	"errors"
	"testing"

	"github.com/purelb/purelb-operator/internal/revision"
)

func TestIsNewer(t *testing.T) {
	for _, row := range []struct {
		a, b string
		want bool
	}{
		{"2", "1", true}, {"1", "2", false}, {"1", "1", false}, {"10", "9", true}, {"9", "10", false},
		{"18446744073709551616", "18446744073709551615", true},
		{"1", "", true}, {"", "", false}, {"x", "1", true}, {"1", "x", true}, {"x", "x", false},
	} {
		if got := revision.IsNewer(row.a, row.b); got != row.want {
			t.Errorf("%q is newer than %q: %v", row.a, row.b, got)
		}
	}
}

// TestFaultRestoredVersion follows an object whose database is restored from a backup.
func TestFaultRestoredVersion(t *testing.T) {
	for _, row := range []struct {
		name       string
		versions   []string
		isRestored bool // by the last one
	}{
		{"the first", []string{"7"}, false},
		{"written", []string{"7", "8", "10"}, false},
		{"the same", []string{"7", "7"}, false},
		{"restored", []string{"7", "1000", "999"}, true},
		{"restored, with fewer digits", []string{"1000", "999"}, true},
		{"not comparable", []string{"7", "", "x", "8"}, false},
		{"restored, after what is not comparable", []string{"7", "", "x", "3"}, true},
	} {
		var w revision.Watermark
		for i, version := range row.versions {
			if got, want := errors.Is(w.Note(version), revision.ErrRestored),
				row.isRestored && i == len(row.versions)-1; got != want {
				t.Errorf("%s: restored at %q: %v", row.name, version, got)
			}
		}
	}
}
