package httpserver

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
)

// TestAttackHandshakes breaks off a thousand handshakes within a minute. A line is logged for a few of
// them, and one for a panic all the same.
func TestAttackHandshakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logged := 0
		l := newErrorLog(funcr.New(func(_, _ string) { logged++ }, funcr.Options{}))
		for i := range 1000 {
			l.Printf("http: TLS handshake error from 10.0.0.%d:1234: EOF", i%250)
			time.Sleep(time.Minute / 1000)
		}
		if most := errorBurst + int(time.Minute/errorInterval); logged < errorBurst || logged > most {
			t.Errorf("%d lines are logged, want from %d to %d", logged, errorBurst, most)
		}
		before := logged
		l.Printf("http: panic serving 10.0.0.1:1234: %v", "why")
		if logged != before+1 {
			t.Error("a panic is not logged")
		}
	})
}
