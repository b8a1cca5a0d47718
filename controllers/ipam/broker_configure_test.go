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
// for it, but for releases. What is to be done for other groups is.
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
		// What was to be released of the group that is gone is released, and nothing else is done.
		if n := w.count("a release"); n != 1 || w.systems[urlOf(groupA)].Marks()[a[1]] != "" {
			t.Errorf("%d releases of the group that was removed", n)
		}
		w.pass(time.Hour)
		if n := w.count("a inspect") + w.count("a allocate"); n != 0 {
			t.Errorf("%d other questions of the group that was removed", n)
		}
		w.broker.Configure(groupA, configOf(groupA))
		w.pass(time.Minute)
		if n := w.count("a release"); n != 1 {
			t.Errorf("%d releases when it is there again", n)
		}
	})
}

// TestBrokerRemovedGroupAway has a system that is away when a group is removed of which a record is to be
// released: it is released if the system is back within an hour.
func TestBrokerRemovedGroupAway(t *testing.T) {
	for away, want := range map[time.Duration]bool{30 * time.Minute: true, 2 * time.Hour: false} {
		inBrokerWorld(t, func(w *brokerWorld) {
			a := w.holdAll(groupA)
			w.systems[urlOf(groupA)].SetAway(true)
			w.pass(time.Minute)
			w.releaseHeld(groupA, a[1])
			w.broker.Configure(groupA, nil)
			w.pass(away)
			w.systems[urlOf(groupA)].SetAway(false)
			w.pass(5 * time.Minute)
			if isReleased := w.systems[urlOf(groupA)].Marks()[a[1]] == ""; isReleased != want {
				t.Errorf("away for %s: released: %t", away, isReleased)
			}
			w.resetCounts()
			w.pass(time.Hour)
			if n := w.count("a check") + w.count("a release"); n != 0 {
				t.Errorf("away for %s: %d questions when all is over", away, n)
			}
		})
	}
}

// TestBrokerRemovedWithOffer has a Service that has been offered an address when its group is removed: it is not to
// have the address, and no record is left.
func TestBrokerRemovedWithOffer(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		w.broker.SetRequests(web(0), []allocation.IPAMRequest{requestOf(groupA)})
		w.pass(0)
		w.wantAddress(web(0))
		w.broker.Configure(groupA, nil)
		if offer, isAnswered := w.offer(web(0)); isAnswered {
			t.Errorf("it is offered %+v", offer)
		}
		w.pass(time.Minute)
		if marks := w.systems[urlOf(groupA)].Marks(); len(marks) != 0 {
			t.Errorf("recorded: %v", marks)
		}
	})
}

// TestBrokerConfiguredWithOffer has a Service that has been offered an address, and not written it yet, when its
// group is configured otherwise: it is offered what the group has now, and the system has no more than that.
func TestBrokerConfiguredWithOffer(t *testing.T) {
	for name, change := range map[string]func(*brokerWorld, *allocation.Netbox){
		"a setting": func(_ *brokerWorld, config *allocation.Netbox) { config.DNSName = "{{.Name}}" },
		"the system": func(_ *brokerWorld, config *allocation.Netbox) {
			config.URL = urlOf(groupB)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBrokerWorld(t, func(w *brokerWorld) {
				w.broker.SetRequests(web(0), []allocation.IPAMRequest{requestOf(groupA)})
				w.pass(0)
				before := w.wantAddress(web(0))
				config := configOf(groupA)
				change(w, config)
				w.broker.Configure(groupA, config)
				w.pass(time.Minute)
				after := w.wantAddress(web(0))
				marks := w.systems[config.URL].Marks()
				if len(marks) != 1 || marks[after] != web(0).Mark(ipamtest.Installation) {
					t.Errorf("recorded: %v, offered %s after %s", marks, after, before)
				}
				if isSame := after == before; isSame != (config.URL == urlOf(groupA)) {
					t.Errorf("offered %s after %s", after, before)
				}
			})
		})
	}
}
