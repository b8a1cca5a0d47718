package ipam_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/ipam"
)

// What a system may answer instead of what it is asked for.
var (
	errServer    = &ipam.Error{Reason: v1.ReasonIPAMUnavailable, Message: "it answers 500"}
	errForbidden = &ipam.Error{
		Reason: v1.ReasonIPAMRefused, Message: "the token may not view ranges", Scope: ipam.ScopeGroup,
	}
	errTooLong = &ipam.Error{Reason: v1.ReasonIPAMUnavailable, Message: "the list is too long", Scope: ipam.ScopeGroup}
	errRefused = &ipam.Error{Reason: v1.ReasonIPAMRefused, Message: "the token may not delete it"}
)

// failFor makes the systems fail for the questions that match.
func (w *brokerWorld) failFor(err error, matches func(question) bool) {
	w.lock(func() {
		w.fault = func(q question) error {
			if matches(q) {
				return err
			}
			return nil
		}
	})
}

// resetCounts forgets what has been asked and said.
func (w *brokerWorld) resetCounts() {
	w.lock(func() {
		clear(w.asked)
		clear(w.questions)
		clear(w.changed)
		clear(w.observed)
		w.found = nil
	})
}

func (w *brokerWorld) answersChanged() (n int) {
	w.lock(func() {
		for _, changes := range w.changed {
			n += changes
		}
	})
	return n
}

func (w *brokerWorld) count(question string) (n int) {
	w.lock(func() { n = w.questions[question] })
	return n
}

// releaseHeld makes a Service give an address up.
func (w *brokerWorld) releaseHeld(group string, a netip.Addr) {
	w.hold(group, a)
	w.broker.QueueRelease(group, a)
}

// holdAll makes Services hold all nine addresses of a group.
func (w *brokerWorld) holdAll(group string) (addrs []netip.Addr) {
	w.t.Helper()
	for n := range byte(9) {
		w.broker.SetRequests(web(n), []allocation.IPAMRequest{requestOf(group)})
	}
	w.pass(time.Second)
	for n := range byte(9) {
		a := w.wantAddress(web(n))
		w.hold(group, a, web(n))
		w.broker.SetRequests(web(n), nil)
		addrs = append(addrs, a)
	}
	return addrs
}

func noisy(n int) ipam.Owner {
	return ipam.Owner{Namespace: "noisy", Name: fmt.Sprint("web", n), UID: types.UID(fmt.Sprint("noisy-", n))}
}

// A group that cannot be compared for the first time keeps no other group of its system
// waiting, is asked less and less often, and says so alone.
func TestFaultBrokerGroupNotLearnt(t *testing.T) {
	for _, err := range []*ipam.Error{errForbidden, errTooLong, errServer} {
		t.Run(err.Message, func(t *testing.T) {
			inBrokerWorld(t, func(w *brokerWorld) {
				w.failFor(err, func(q question) bool { return q.group == "bad" && q.method == "inspect" })
				w.broker.Configure("bad", configOf(groupA))
				w.pass(time.Second)
				w.broker.SetRequests(web(0), []allocation.IPAMRequest{requestOf(groupA)})
				w.pass(time.Second)
				w.wantAddress(web(0))
				w.pass(time.Hour)
				if o := w.broker.Observation("bad"); o.Reason != err.Reason || o.Message != err.Message || o.Report != nil {
					t.Errorf("the group says %+v", o)
				}
				if o := w.broker.Observation(groupA); o.Reason != v1.ReasonReachable {
					t.Errorf("the other group says %+v", o)
				}
				if n := w.observed[groupA]; n > 10 {
					t.Errorf("the other group has changed %d times in an hour", n)
				}
				w.resetCounts()
				w.pass(time.Hour)
				if n := w.count("bad inspect"); n < 25 || n > 40 {
					t.Errorf("asked %d times in an hour", n)
				}
				if n := w.count(groupA + " inspect"); n != 6 {
					t.Errorf("the other group is compared %d times in an hour", n)
				}
				// Somebody mends it.
				w.failFor(nil, func(question) bool { return false })
				w.pass(2*time.Minute + time.Second)
				if o := w.broker.Observation("bad"); o.Reason != v1.ReasonReachable || o.Report == nil {
					t.Errorf("mended, the group says %+v", o)
				}
			})
		})
	}
}

// A record that cannot be deleted, by an error of the server or by a refusal, holds up no
// other, and is reported once.
func TestFaultBrokerPoisonedRelease(t *testing.T) {
	for _, row := range []struct {
		err  *ipam.Error
		want string
	}{
		{errServer, "its record cannot be deleted: it answers 500"},
		{errRefused, "its record cannot be deleted: the token may not delete it"},
	} {
		t.Run(row.err.Message, func(t *testing.T) {
			inBrokerWorld(t, func(w *brokerWorld) {
				addrs := w.holdAll(groupA)
				poisoned := addrs[0]
				w.failFor(row.err, func(q question) bool { return q.method == "release" && q.address == poisoned })
				w.releaseHeld(groupA, poisoned)
				w.pass(time.Second)
				w.releaseHeld(groupA, addrs[1])
				w.pass(time.Second)
				if w.systems[urlOf(groupA)].Marks()[addrs[1]] != "" {
					t.Error("the other record waits")
				}
				w.pass(time.Hour)
				if !slices.Equal(w.found, []string{row.want}) {
					t.Errorf("found %q", w.found)
				}
				w.resetCounts()
				w.pass(24 * time.Hour)
				if len(w.found) > 0 {
					t.Errorf("found again: %q", w.found)
				}
				o := w.broker.Observation(groupA)
				if o.Reason != v1.ReasonReachable || o.Differences[poisoned] != row.want {
					t.Errorf("observation: %+v", o)
				}
				if n := w.count(groupA + " inspect"); n != 24*6 {
					t.Errorf("%d comparisons in a day", n)
				}
				if n := w.count(groupA + " release"); n > 200 {
					t.Errorf("asked %d times in a day", n)
				}
				// Somebody deletes it.
				w.systems[urlOf(groupA)].SetMark(poisoned, "")
				w.failFor(nil, func(question) bool { return false })
				w.pass(11 * time.Minute)
				if o := w.broker.Observation(groupA); len(o.Differences) > 0 {
					t.Errorf("differences: %v", o.Differences)
				}
			})
		})
	}
}

// A request for which the system always fails keeps no other waiting, of whatever namespace. This test
// shows the row "it fails for one group, one Service or one record, and not for others" of
// docs/trust.md.
func TestFaultBrokerPoisonedRequest(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		w.failFor(errServer, func(q question) bool { return q.method == "allocate" && q.owner == web(0) })
		w.broker.SetRequests(web(0), []allocation.IPAMRequest{requestOf(groupA)})
		w.pass(time.Second)
		w.broker.SetRequests(web(1), []allocation.IPAMRequest{requestOf(groupA)})
		w.pass(time.Second)
		w.wantAddress(web(1))
		w.pass(time.Hour)
		w.wantReason(web(0), v1.ReasonIPAMUnavailable, errServer.Message)
		if o := w.broker.Observation(groupA); o.Reason != v1.ReasonReachable {
			t.Errorf("observation: %+v", o)
		}
		w.resetCounts()
		w.pass(time.Hour)
		if n := w.count(groupA + " allocate"); n < 25 || n > 40 {
			t.Errorf("asked %d times in an hour", n)
		}
	})
}

// A repair that always fails holds up no other, and is reported once.
func TestFaultBrokerPoisonedRepair(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		addrs := w.holdAll(groupA)
		w.failFor(errServer, func(q question) bool { return q.method == "allocate" && q.address == addrs[0] })
		for _, a := range addrs[:3] {
			w.systems[urlOf(groupA)].SetMark(a, "")
		}
		w.pass(11 * time.Minute)
		if marks := w.systems[urlOf(groupA)].Marks(); marks[addrs[1]] == "" || marks[addrs[2]] == "" {
			t.Error("the others wait")
		}
		w.resetCounts()
		w.pass(24 * time.Hour)
		if len(w.found) > 0 || w.broker.Observation(groupA).Differences[addrs[0]] != errServer.Message {
			t.Errorf("found again %q, observation %+v", w.found, w.broker.Observation(groupA))
		}
		w.failFor(nil, func(question) bool { return false })
		w.pass(11 * time.Minute)
		if o := w.broker.Observation(groupA); w.systems[urlOf(groupA)].Marks()[addrs[0]] == "" || len(o.Differences) > 0 {
			t.Errorf("observation: %+v", o)
		}
	})
}

// A system whose status is well, and which answers nothing else, is away: it is asked often
// enough for Services to be served soon after its return. This test shows the row "it says that it is
// well, and answers nothing else; or what stands before it keeps its status back" of docs/trust.md.
func TestFaultBrokerNothingAnswered(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		w.failFor(errServer, func(q question) bool { return q.method != "check" })
		for n := range byte(3) {
			w.broker.SetRequests(web(n), []allocation.IPAMRequest{requestOf(groupA)})
		}
		w.pass(10 * time.Minute)
		if o := w.broker.Observation(groupA); o.Reason != v1.ReasonIPAMUnavailable || o.Message != errServer.Message {
			t.Errorf("observation: %+v", o)
		}
		w.failFor(nil, func(question) bool { return false })
		w.pass(1900 * time.Millisecond)
		for n := range byte(3) {
			w.wantAddress(web(n))
		}
	})
}

// What stands before a system may keep the question for its status back. The system is used
// all the same.
func TestFaultBrokerStatusKeptBack(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		w.failFor(errServer, func(q question) bool { return q.method == "check" || q.owner == web(0) })
		w.broker.SetRequests(web(0), []allocation.IPAMRequest{requestOf(groupA)})
		w.pass(time.Second)
		w.broker.SetRequests(web(1), []allocation.IPAMRequest{requestOf(groupA)})
		w.pass(5 * time.Minute)
		w.wantAddress(web(1)) // and keeps it
		w.pass(time.Hour)
		w.wantAddress(web(1))
	})
}

// A system whose answers fail in turn in two ways: Services say the first one, their group
// the last one now and then. This test shows the row "it fails in several ways by turns" of
// docs/trust.md.
func TestFaultBrokerAlternatingErrors(t *testing.T) {
	for _, isAway := range []bool{false, true} {
		t.Run(fmt.Sprint("away ", isAway), func(t *testing.T) {
			inBrokerWorld(t, func(w *brokerWorld) {
				n := 0
				w.lock(func() {
					w.fault = func(q question) error {
						if q.group != groupA || !isAway && q.method != "allocate" {
							return nil
						}
						n++
						return &ipam.Error{Reason: v1.ReasonIPAMUnavailable, Message: fmt.Sprintf("it answers %d", 502+2*(n%2))}
					}
				})
				w.resetCounts()
				for n := range 200 {
					w.broker.SetRequests(noisy(n), []allocation.IPAMRequest{requestOf(groupA)})
				}
				w.pass(10 * time.Minute)
				if n := w.answersChanged(); n != 200 {
					t.Errorf("%d changes of 200 answers", n)
				}
				w.lock(func() { clear(w.observed) })
				w.pass(10 * time.Minute)
				if n := w.observed[groupA]; n > 12 {
					t.Errorf("%d changes of the group in ten minutes", n)
				}
			})
		})
	}
}

// A system that is away for two reasons in turn.
func TestFaultBrokerAlternatingReasons(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		n := 0
		w.lock(func() {
			w.fault = func(q question) error {
				if q.group != groupA {
					return nil
				}
				n++
				return []*ipam.Error{errServer, errForbidden}[n/2%2]
			}
		})
		for n := range 200 {
			w.broker.SetRequests(noisy(n), []allocation.IPAMRequest{requestOf(groupA)})
		}
		w.pass(10 * time.Minute)
		if n := w.answersChanged(); n > 200*11 {
			t.Errorf("%d changes of 200 answers", n)
		}
	})
}
