package ipam

import (
	"testing"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// After some failures the system is asked whether it is well: one request may have gone unanswered
// because none is answered, and a group may be refused because the token is.
func TestWhichFailuresLeaveInDoubt(t *testing.T) {
	for _, row := range []struct {
		name    string
		failure *Error
		want    bool
	}{
		{"none", nil, false},
		{"one request goes unanswered", errNoAnswer, true},
		{"one request is refused", &Error{Reason: v1.ReasonIPAMRefused}, false},
		{"a group is refused", &Error{Reason: v1.ReasonIPAMRefused, Scope: ScopeGroup}, true},
		{"the system is away", errAway, false},
	} {
		if got := row.failure.leavesInDoubt(); got != row.want {
			t.Errorf("%s: %v", row.name, got)
		}
	}
}
