package ipam_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/ipam"
	"github.com/purelb/purelb-operator/controllers/ipam/ipamtest"
)

func TestCheckInstallationID(t *testing.T) {
	for id, isOne := range map[string]bool{
		"a": true, "0": true, "staging": true, "staging-2": true, "a--b": true, string(ipamtest.Installation): true,
		strings.Repeat("a", 36): true, strings.Repeat("a", 37): false, strings.Repeat("a", 1<<20): false,
		"": false, "-": false, "-a": false, "a-": false, "Staging": false,
		"a_b": false, "a.b": false, "a b": false, "a/b": false, "ä": false, "a\n": false, "\na": false, "a\nb": false,
	} {
		err := ipam.CheckInstallationID(id)
		if (err == nil) != isOne {
			t.Errorf("%.50q: %v", id, err)
		}
		if err != nil && len(err.Error()) > 300 {
			t.Errorf("%.50q: an error of %d bytes", id, len(err.Error()))
		}
	}
}

var errOther = &ipam.Error{
	Reason: v1.ReasonOtherInstallation, Message: "the cluster is another one's", Scope: ipam.ScopeEndpoint,
}

// all counts the requests to all systems.
func (w *brokerWorld) all() (n int) {
	w.lock(func() {
		for _, asked := range w.asked {
			n += asked
		}
	})
	return n
}

// The cluster turns out to be of another installation: within a minute no system is asked for
// anything any more, whatever there is to do, and Services keep what they have. When the cluster
// is of this installation again, all goes on within a minute.
func TestFaultBrokerOtherInstallation(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		system := w.systems[urlOf(groupA)]
		w.broker.SetRequests(web(0), []allocation.IPAMRequest{requestOf(groupA)})
		w.pass(0)
		a := w.wantAddress(web(0))
		w.hold(groupA, a, web(0))
		released, deleted := a.Next(), a.Next().Next()
		system.SetMark(released, web(1).Mark(ipamtest.Installation))
		w.hold(groupA, deleted, web(2))

		w.lock(func() { w.installationError = errOther })
		w.pass(2 * time.Minute)
		before := w.all()
		w.lock(func() { w.installationReads = 0 })
		w.broker.QueueRelease(groupA, released)
		w.broker.SetRequests(web(3), []allocation.IPAMRequest{requestOf(groupA)})
		w.broker.SetRequests(web(4), []allocation.IPAMRequest{requestOf(groupB)})
		changed := configOf(groupB)
		changed.Status = "reserved"
		w.broker.Configure(groupB, changed)
		w.pass(25 * time.Minute)
		if n := w.all() - before; n != 0 {
			t.Errorf("%d questions of another installation", n)
		}
		w.lock(func() { // for two endpoints, each at least every minute, and at most every 10 s
			if n := w.installationReads; n < 2*25 || n > 2*25*6 {
				t.Errorf("the installation was read %d times in 25 minutes", n)
			}
		})
		for _, owner := range []ipam.Owner{web(3), web(4)} {
			w.wantReason(owner, errOther.Reason, errOther.Message)
		}
		for _, group := range []string{groupA, groupB} {
			if o := w.broker.Observation(group); o.Reason != errOther.Reason || o.Message != errOther.Message {
				t.Errorf("%s: %s: %s", group, o.Reason, o.Message)
			}
		}
		if got := w.wantAddress(web(0)); got != a {
			t.Errorf("the Service that had %s has %s", a, got)
		}
		// Nothing is known of the installation for a time: that is no reason to go on.
		w.lock(func() { w.installationError = errUnreadable })
		w.pass(2 * time.Minute)
		if n := w.all() - before; n != 0 {
			t.Errorf("%d questions while nothing is known of the installation", n)
		}
		if marks := system.Marks(); len(marks) != 2 {
			t.Errorf("recorded: %v", marks)
		}

		w.lock(func() { w.installationError = nil })
		w.pass(time.Minute)
		for _, owner := range []ipam.Owner{web(3), web(4)} {
			w.wantAddress(owner)
		}
		marks := system.Marks()
		if marks[released] == web(1).Mark(ipamtest.Installation) || marks[deleted] != web(2).Mark(ipamtest.Installation) {
			t.Errorf("neither released nor recorded again: %v", marks)
		}
	})
}

// An API server that is away does not make the cluster another one. A new leader has to ask it
// first. This test shows the row "the ConfigMap cannot be read" of docs/trust.md.
func TestFaultBrokerInstallationUnreadable(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		w.pass(time.Minute)
		w.lock(func() { w.installationError = errors.New("the API server is away") })
		w.pass(2 * time.Minute)
		w.broker.SetRequests(web(0), []allocation.IPAMRequest{requestOf(groupA)})
		w.pass(0)
		w.wantAddress(web(0))

		w.resetCounts()
		stop := w.start()
		defer stop()
		w.broker.SetRequests(web(1), []allocation.IPAMRequest{requestOf(groupB)})
		w.pass(time.Second)
		w.wantReason(web(1), v1.ReasonIPAMUnavailable, "find out which installation this is: the API server is away")
		if n := w.all(); n != 0 {
			t.Errorf("%d questions before a new leader knows of the installation", n)
		}
		w.lock(func() { w.installationError = nil })
		w.pass(1500 * time.Millisecond)
		w.wantAddress(web(1))
	})
}

// A copy of another cluster has that cluster's Services, and an id of its own. The Services keep
// their addresses; those that the other cluster has recorded are reported, and stay recorded as
// they are, also when a Service of the copy goes.
func TestFaultBrokerRecordsOfOtherInstallation(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		system := w.systems[urlOf(groupA)]
		addrs := w.holdAll(groupA)
		for i, a := range addrs {
			system.SetMark(a, web(byte(i)).Mark(ipamtest.OtherInstallation))
		}
		before := system.Marks()
		gone := addrs[0]
		w.pass(11 * time.Minute)
		w.hold(groupA, gone)
		w.broker.QueueRelease(groupA, gone)
		w.broker.SetRequests(web(20), []allocation.IPAMRequest{requestOf(groupA)})
		w.pass(time.Hour)
		if after := system.Marks(); len(after) != len(before) {
			t.Errorf("recorded: %v, before: %v", after, before)
		} else {
			for a, mark := range before {
				if after[a] != mark {
					t.Errorf("%s is recorded as %q, and was as %q", a, after[a], mark)
				}
			}
		}
		differences := w.broker.Observation(groupA).Differences
		for _, a := range addrs[1:] {
			if !strings.Contains(differences[a], string(ipamtest.OtherInstallation)) {
				t.Errorf("%s: reported as %q", a, differences[a])
			}
		}
		if _, isReported := differences[gone]; isReported {
			t.Errorf("%s, which nobody here has, is reported", gone)
		}
		w.lock(func() {
			if n := len(w.found); n < len(addrs)-1 || slices.Contains(w.found, "") {
				t.Errorf("%d events: %v", n, w.found)
			}
		})
		w.wantReason(web(20), v1.ReasonExhausted, "the memory has no free IPv4 address")
	})
}
