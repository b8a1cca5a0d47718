package ipam_test

import (
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go4.org/netipx"

	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/ipam"
	"github.com/purelb/purelb-operator/controllers/ipam/ipamtest"
)

// An address that is of none of the ranges of the last comparison lets the Broker compare at
// once: somebody has changed the ranges, and the ServiceGroup shows the old ones.
func TestBrokerComparesChangedRanges(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		changed := netipx.MustParseIPRange("10.0.0.20-10.0.0.29")
		w.lock(func() { w.systems[urlOf(groupA)].Pool = changed })
		request := allocation.IPAMRequest{Group: groupA, Family: allocation.IPv4}
		owner := ipamtest.NewOwner("web", 0)
		w.broker.SetRequests(owner, []allocation.IPAMRequest{request})
		synctest.Wait()
		if a := w.broker.Offers(owner.UID)[request].Address; a != changed.From() {
			t.Fatalf("offered %s", a)
		}
		if pools := w.broker.Observation(groupA).Report.Ranges; pools[0].Addrs != changed {
			t.Errorf("the ranges are known as %s", pools[0].Addrs)
		}
		// The next comparisons follow at their time.
		w.lock(func() { clear(w.asked) })
		time.Sleep(9 * time.Minute)
		synctest.Wait()
		w.lock(func() {
			if n := w.asked[urlOf(groupA)]; n != 0 {
				t.Errorf("%d requests in nine minutes", n)
			}
		})
	})
}

// A record that only looks like the cluster's is reported once, and never released.
func TestFaultBrokerForeignRecord(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		copied, orphan, ofOther := netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("192.0.2.1"),
			netip.MustParseAddr("10.0.1.5")
		system := w.systems[urlOf(groupA)]
		foreign := func(a netip.Addr, text string) ipam.Record {
			return ipam.Record{Address: a, IsForeign: true, Difference: text}
		}
		w.lock(func() {
			system.SetMark(copied, "purelb somebody else")
			w.systems[urlOf(groupB)].SetMark(ofOther, ipamtest.NewOwner("other", 1).Mark(ipamtest.Installation))
			w.foreign = map[string][]ipam.Record{
				urlOf(groupA): {foreign(copied, "a copy"), foreign(orphan, "an orphan"), foreign(ofOther, "of another")},
			}
		})
		w.hold(groupB, ofOther, ipamtest.NewOwner("other", 1))
		for range 5 {
			time.Sleep(11 * time.Minute)
		}
		synctest.Wait()
		differences := w.broker.Observation(groupA).Differences
		if len(differences) != 2 || differences[copied] != "a copy" || differences[orphan] != "an orphan" {
			t.Errorf("differences: %v", differences)
		}
		w.lock(func() {
			slices.Sort(w.found)
			if !slices.Equal(w.found, []string{"a copy", "an orphan"}) {
				t.Errorf("reported: %v", w.found)
			}
		})
		if system.Marks()[copied] == "" {
			t.Error("the copy is released")
		}
	})
}

// Foreign records do not make unused ones look few.
func TestBrokerTooManyUnusedBesideForeign(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		a := netip.MustParseAddr("10.0.0.1")
		w.lock(func() {
			for n := range byte(7) {
				w.systems[urlOf(groupA)].SetMark(a, ipamtest.NewOwner("gone", n).Mark(ipamtest.Installation))
				a = a.Next()
			}
			w.foreign = map[string][]ipam.Record{}
			for range 80 {
				w.foreign[urlOf(groupA)] = append(
					w.foreign[urlOf(groupA)], ipam.Record{Address: a, IsForeign: true, Difference: "a copy"},
				)
				a = a.Next()
			}
		})
		for range 4 {
			time.Sleep(11 * time.Minute)
		}
		synctest.Wait()
		if n := w.broker.Observation(groupA).UnusedNotReleased; n != 7 {
			t.Errorf("%d are too many, want 7", n)
		}
	})
}

// What another group on the same system has, or is about to have, is no orphan.
func TestBrokerRecordsOfOtherGroups(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		const third = "third"
		config := configOf(groupA)
		config.TokenKey = "another"
		inPool, outside := netip.MustParseAddr("10.0.0.3"), netip.MustParseAddr("192.0.2.1")
		w.lock(func() {
			w.foreign = map[string][]ipam.Record{urlOf(groupA): {
				{Address: inPool, IsForeign: true, Difference: "in the other group's range"},
				{Address: outside, IsForeign: true, Difference: "in no range"},
			}}
		})
		w.broker.Configure(third, config)
		for range 3 {
			time.Sleep(11 * time.Minute)
		}
		synctest.Wait()
		for _, group := range []string{groupA, third} {
			if differences := w.broker.Observation(group).Differences; len(differences) != 1 || differences[outside] == "" {
				t.Errorf("%s: %v", group, differences)
			}
		}
		w.broker.SetRequests(
			ipamtest.NewOwner("web", 0), []allocation.IPAMRequest{{Group: third, Family: allocation.IPv4, Address: outside}},
		)
		for range 3 {
			time.Sleep(11 * time.Minute)
		}
		synctest.Wait()
		if differences := w.broker.Observation(groupA).Differences; len(differences) != 0 {
			t.Errorf("while a Service of another group waits for it: %v", differences)
		}
	})
}
