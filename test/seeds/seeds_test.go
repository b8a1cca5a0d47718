package seeds

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// talker is a test that keeps what it logs, and why it has failed.
type talker struct {
	testing.TB
	logged, failed string
}

func (*talker) Helper() {}

func (t *talker) Logf(format string, args ...any) { t.logged = fmt.Sprintf(format, args...) }

// Fatalf ends the goroutine, as that of a real test does.
func (t *talker) Fatalf(format string, args ...any) {
	t.failed = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestFirst(t *testing.T) {
	for _, row := range []struct {
		variable string
		want     uint64
		fails    bool
	}{
		{"", 1, false},
		{"7", 7, false},
		{"0", 0, false},
		{"18446744073709551615", 1<<64 - 1, false},
		{"18446744073709551616", 0, true},
		{"seven", 0, true},
		{"-1", 0, true},
	} {
		t.Setenv(variable, row.variable)
		played := &talker{}
		var got uint64
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			got = First(played)
		}()
		<-ended
		if row.fails {
			if !strings.Contains(played.failed, fmt.Sprintf("%q", row.variable)) || got != 0 {
				t.Errorf("%q: seed %d, failure %q", row.variable, got, played.failed)
			}
			continue
		}
		if got != row.want || played.failed != "" {
			t.Errorf("%q: seed %d, failure %q", row.variable, got, played.failed)
		}
		if !strings.Contains(played.logged, fmt.Sprintf("seed %d;", row.want)) {
			t.Errorf("%q: logs %q", row.variable, played.logged)
		}
	}
}
