package partialwrite_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/partialwrite"
)

// refused is the outcome of a write of which these entries were refused.
func refused(why string, entries []v1.AnnouncedAddress) partialwrite.Outcome {
	return partialwrite.Outcome{Refused: entries, Refusal: errors.New(why)}
}

// TestFaultRefusals checks when what was refused is tried again.
func TestFaultRefusals(t *testing.T) {
	var r partialwrite.Refusals
	now := time.Unix(1000, 0)
	bad := []v1.AnnouncedAddress{{Address: "10.0.0.1", ServiceGroup: "bad"}}
	held := func(wanted ...v1.AnnouncedAddress) bool { return len(r.WithoutRefused("a", wanted, nil, now)) == 0 }
	for _, wait := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
		if held(bad...) {
			t.Fatalf("it is held back, although %s have passed", wait)
		}
		r.NoteWrite("a", bad, refused("invalid", bad), now)
		if got := r.UntilRetry(now); got != wait || !held(bad...) {
			t.Errorf("it is tried again in %s, want %s", got, wait)
		}
		now = now.Add(wait)
	}
	addr := netip.MustParseAddr("10.0.0.1")
	if why := r.Explanations()[addr]; why.Reason != v1.ReasonRefused || !strings.Contains(why.Message, "invalid") {
		t.Errorf("why: %+v", why)
	}
	now = now.Add(-time.Second)
	other := bad[0]
	if other.ServiceGroup = "good"; held(other) {
		t.Error("another entry for the address is held back")
	}
	if held(bad...) || len(r.Explanations()) > 0 {
		t.Error("what was not wanted any more is remembered")
	}
	r.NoteWrite("a", bad, refused("invalid", bad), now)
	if r.NoteWrite("a", bad, partialwrite.Outcome{}, now); len(r.Explanations()) > 0 || held(bad...) {
		t.Error("what was accepted counts as refused")
	}
	r.NoteWrite("a", bad, refused("invalid", bad), now)
	stored := []v1.AnnouncedAddress{other} // what is written meanwhile
	r.NoteWrite("a", r.WithoutRefused("a", bad, stored, now), partialwrite.Outcome{}, now)
	if !held(bad...) {
		t.Error("it is tried again at once, although only what was stored has been written")
	}
	r.NoteWrite("a", bad, partialwrite.Outcome{Err: errors.New("timeout")}, now)
	if len(r.Explanations()) == 0 || !held(bad...) {
		t.Error("it is forgotten, although nothing is known of the next write")
	}
	if r.Prune(func(string) bool { return false }); len(r.Explanations()) > 0 {
		t.Error("an owner that is gone is remembered")
	}
}

// TestFirstRetry takes the soonest of all refusals.
func TestFirstRetry(t *testing.T) {
	var r partialwrite.Refusals
	now := time.Unix(1000, 0)
	refuse := func(owner string, times int) {
		for range times {
			bad := []v1.AnnouncedAddress{{Address: "10.0.0.1", ServiceGroup: "bad"}}
			r.NoteWrite(owner, bad, refused("invalid", bad), now)
		}
	}
	refuse("a", 3)
	refuse("b", 1)
	refuse("c", 2)
	if got := r.UntilRetry(now); got != time.Second {
		t.Errorf("the first is tried again in %s", got)
	}
}

// TestRefusalsOfOwners keeps the refusals of what is an owner still, and cuts long reasons.
func TestRefusalsOfOwners(t *testing.T) {
	var r partialwrite.Refusals
	bad := []v1.AnnouncedAddress{{Address: "10.0.0.1", ServiceGroup: "bad"}}
	r.NoteWrite("a", bad, refused(strings.Repeat("x", 1000), bad), time.Unix(1000, 0))
	r.Prune(func(owner string) bool { return owner == "a" })
	why, exists := r.Explanations()[netip.MustParseAddr("10.0.0.1")]
	if _, reason, _ := strings.Cut(why.Message, ": "); !exists || len(reason) != 256 {
		t.Errorf("after pruning: %d bytes of %q", len(reason), why.Message)
	}
}
