package ipam

import (
	"testing"
	"time"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// A job that goes unanswered is tried again after a second, one that is refused after five: somebody
// has to change something first. Both wait longer and longer, up to two minutes for a request.
func TestWhenFailedJobIsTriedAgain(t *testing.T) {
	refused := &Error{Reason: v1.ReasonIPAMRefused, Message: "no", Scope: ScopeGroup}
	for _, row := range []struct {
		name    string
		failure *Error
		times   int
		atMost  time.Duration // and at least four fifths of that
	}{
		{"unanswered once", errNoAnswer, 1, time.Second},
		{"unanswered twice", errNoAnswer, 2, 2 * time.Second},
		{"unanswered for long", errNoAnswer, 100, 2 * time.Minute},
		{"refused once", refused, 1, 5 * time.Second},
		{"refused for long", refused, 100, 2 * time.Minute},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newClocked(group1)
			_, request := c.requestOf("web", group1)
			for range row.times {
				request.postpone(c.now, row.failure)
			}
			if wait := request.dueAt.Sub(c.now); wait > row.atMost || wait < row.atMost*8/10 {
				t.Errorf("tried again after %s, want about %s", wait, row.atMost)
			}
		})
	}
}
