package seeds

import (
	"fmt"
	"strings"
	"testing"
)

// talker is a test that keeps what it logs, and whether it has failed.
type talker struct {
	testing.TB
	logged, failed string
}

func (*talker) Helper() {}

func (t *talker) Logf(format string, args ...any) { t.logged = fmt.Sprintf(format, args...) }

func (t *talker) Fatalf(format string, args ...any) { t.failed = fmt.Sprintf(format, args...) }

func TestFirst(t *testing.T) {
	for _, row := range []struct {
		variable string
		want     uint64
		fails    bool
	}{
		{"", 1, false},
		{"7", 7, false},
		{"18446744073709551615", 1<<64 - 1, false},
		{"seven", 1, true},
		{"-1", 1, true},
	} {
		t.Setenv(variable, row.variable)
		played := &talker{}
		got := First(played)
		if got != row.want || (played.failed != "") != row.fails {
			t.Errorf("%q: seed %d, failure %q", row.variable, got, played.failed)
		}
		if !strings.Contains(played.logged, fmt.Sprintf("seed %d;", row.want)) {
			t.Errorf("%q: logs %q", row.variable, played.logged)
		}
	}
}
