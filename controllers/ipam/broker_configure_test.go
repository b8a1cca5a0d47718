package ipam_test

import (
	"testing"
	"time"

	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/ipam/ipamtest"
)

// What has failed for a group is tried at once when the group is configured otherwise: the new
// configuration may be the cure. What has failed for other groups waits for its time.
func TestBrokerConfigureHastensOneGroup(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		a, b := w.holdAll(groupA), w.holdAll(groupB)
		w.failFor(errServer, func(q question) bool { return q.method == "allocate" || q.method == "release" })
		w.releaseHeld(groupA, a[0])
		w.releaseHeld(groupB, b[0])
		w.broker.SetRequests(web(20), []allocation.IPAMRequest{requestOf(groupA)})
		w.broker.SetRequests(web(21), []allocation.IPAMRequest{requestOf(groupB)})
		w.pass(time.Hour)
		w.resetCounts()
		changed := configOf(groupA)
		changed.Status = "reserved"
		w.broker.Configure(groupA, changed)
		w.pass(0)
		for question, want := range map[string]int{"a allocate": 1, "a release": 1, "b allocate": 0, "b release": 0} {
			if n := w.count(question); n != want {
				t.Errorf("%s: asked %d times, want %d", question, n, want)
			}
		}
	})
}

// A group that takes its addresses from the system no more takes with it what was to be done there
// for it. What is to be done for other groups is.
func TestBrokerConfigureRemovesOneGroup(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		a, b := w.holdAll(groupA), w.holdAll(groupB)
		w.failFor(errServer, func(q question) bool { return q.method == "allocate" || q.method == "release" })
		w.systems[urlOf(groupA)].SetMark(a[0], "")
		w.systems[urlOf(groupB)].SetMark(b[0], "")
		w.pass(10*time.Minute + time.Second) // a comparison finds what is missing
		w.releaseHeld(groupA, a[1])
		w.releaseHeld(groupB, b[1])
		w.pass(time.Second)
		w.broker.Configure(groupA, nil)
		w.failFor(nil, func(question) bool { return false })
		w.resetCounts()
		w.pass(time.Minute)
		if n := w.count("b release"); n != 1 || w.systems[urlOf(groupB)].Marks()[b[1]] != "" {
			t.Errorf("%d releases of the other group", n)
		}
		if mark := w.systems[urlOf(groupB)].Marks()[b[0]]; mark != web(0).Mark(ipamtest.Installation) {
			t.Errorf("the other group's record is not repaired: %q", mark)
		}
		// It is not done when the group is there again: the next comparisons find it.
		w.broker.Configure(groupA, configOf(groupA))
		w.pass(time.Minute)
		if n := w.count("a release"); n != 0 {
			t.Errorf("%d releases of the group that was removed", n)
		}
	})
}
