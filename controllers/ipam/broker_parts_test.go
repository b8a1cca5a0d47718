package ipam_test

import (
	"net/netip"
	"testing"
	"time"

	"go4.org/netipx"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/ipam"
	"github.com/purelb/purelb-operator/controllers/ipam/ipamtest"
)

// manyParts is of how many parts an inspection of a large group is.
const manyParts = 128

// The inspection of a group with many prefixes gives way to requests and releases, of that group and
// of others. This test shows the row "a group has many prefixes, which are compared with it" of
// docs/trust.md.
func TestFaultBrokerInspectionGivesWay(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		addrs := w.holdAll(groupA)
		w.pass(time.Second)
		w.lock(func() {
			w.parts[urlOf(groupA)], w.delay[urlOf(groupA)] = manyParts, time.Second
		})
		w.broker.Configure("large", configOf(groupA))
		w.pass(2 * time.Second)
		w.releaseHeld(groupA, addrs[0])
		w.releaseHeld(groupA, addrs[1])
		w.pass(5 * time.Second)
		if n := w.count(groupA + " release"); n != 2 {
			t.Errorf("%d releases", n)
		}
		w.broker.SetRequests(web(0), []allocation.IPAMRequest{requestOf(groupA)})
		w.broker.SetRequests(web(1), []allocation.IPAMRequest{requestOf("large")})
		w.pass(5 * time.Second)
		w.wantAddress(web(0))
		w.wantAddress(web(1))
		if n := w.count("large inspect"); n < 2 || n > 12 {
			t.Errorf("%d parts in the first twelve seconds", n)
		}
		if w.broker.Observation("large").Report != nil {
			t.Error("the report is there before the last part")
		}
		w.pass(manyParts * time.Second)
		if n := w.count("large inspect"); n != manyParts || w.broker.Observation("large").Report == nil {
			t.Errorf("%d parts, %+v", n, w.broker.Observation("large"))
		}
	})
}

// While an inspection is in parts, others of the same system take turns with it.
func TestFaultBrokerInspectionsTakeTurns(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		w.lock(func() {
			w.parts[urlOf(groupA)], w.delay[urlOf(groupA)] = 10, time.Second
		})
		w.broker.Configure("one", configOf(groupA))
		w.broker.Configure("two", configOf(groupA))
		w.pass(10*time.Second + time.Millisecond)
		if one, two := w.count("one inspect"), w.count("two inspect"); one < 5 || two < 5 {
			t.Errorf("%d and %d parts", one, two)
		}
	})
}

// An inspection that fails half-way begins anew, and so does one of a system that was away meanwhile.
func TestFaultBrokerInspectionFails(t *testing.T) {
	for name, fault := range map[string]func(w *brokerWorld){
		"one part": func(w *brokerWorld) {
			w.fault = func(q question) error {
				if q.method != "inspect" {
					return nil
				}
				return &ipam.Error{Reason: v1.ReasonIPAMUnavailable, Message: "it answers 500"}
			}
		},
		"away": func(w *brokerWorld) {
			w.fault = func(question) error {
				return &ipam.Error{Reason: v1.ReasonIPAMUnavailable, Message: "no route", Scope: ipam.ScopeEndpoint}
			}
		},
		"away for a request": func(w *brokerWorld) {
			w.fault = func(q question) error {
				if q.method == "inspect" {
					return nil
				}
				return &ipam.Error{Reason: v1.ReasonIPAMUnavailable, Message: "no route", Scope: ipam.ScopeEndpoint}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBrokerWorld(t, func(w *brokerWorld) {
				w.lock(func() {
					w.parts[urlOf(groupA)], w.delay[urlOf(groupA)] = 10, time.Second
				})
				w.broker.Configure("large", configOf(groupA))
				w.pass(3500 * time.Millisecond)
				w.broker.SetRequests(web(0), []allocation.IPAMRequest{requestOf("large")})
				w.lock(func() { fault(w) })
				w.pass(5 * time.Second)
				w.lock(func() { w.fault = nil })
				w.pass(5 * time.Second)
				w.lock(func() { w.delay[urlOf(groupA)] = 0 })
				w.pass(time.Minute)
				if w.broker.Observation("large").Report == nil {
					t.Fatalf("observation: %+v", w.broker.Observation("large"))
				}
				if n := w.count("large inspect"); n < 13 {
					t.Errorf("%d parts", n)
				}
			})
		})
	}
}

// What an inspection has found by an earlier configuration is dropped, and the new one's begins anew.
func TestBrokerConfiguredBetweenParts(t *testing.T) {
	const other = "https://other"
	inBrokerWorld(t, func(w *brokerWorld) {
		w.lock(func() {
			w.systems[other] = &ipamtest.Memory{
				Pool: netipx.MustParseIPRange("10.9.9.1-10.9.9.9"), Subnet: netip.MustParsePrefix("10.9.9.0/24"),
			}
			w.byTenant = map[string]string{"new": other}
			for _, url := range []string{urlOf(groupA), other} {
				w.parts[url], w.delay[url] = 10, time.Second
			}
		})
		w.broker.Configure("large", configOf(groupA))
		w.pass(5500 * time.Millisecond) // within a part
		config := configOf(groupA)
		config.Tenant = "new"
		w.broker.Configure("large", config)
		w.pass(30 * time.Second)
		o := w.broker.Observation("large")
		if o.Report == nil || o.Report.Ranges[0].Addrs.From() != netip.MustParseAddr("10.9.9.1") {
			t.Errorf("observation: %+v", o)
		}
		if n := w.count("large inspect"); n != 16 { // six of the earlier one, and ten
			t.Errorf("%d parts", n)
		}
	})
}

// An inspection that began with another token is dropped, and begins anew with the new one.
func TestBrokerTokenChangedBetweenParts(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		w.pass(2 * time.Minute)
		w.lock(func() {
			w.parts[urlOf(groupA)], w.delay[urlOf(groupA)] = manyParts, time.Second
		})
		w.broker.Configure("large", configOf(groupA))
		w.pass(30 * time.Second)
		w.lock(func() { w.token = "rotated" })
		w.pass(manyParts * time.Second)
		if w.broker.Observation("large").Report != nil {
			t.Error("the parts that were asked for with two tokens make a report")
		}
		w.pass(time.Minute)
		if n := w.count("large inspect"); n <= manyParts || w.broker.Observation("large").Report == nil {
			t.Errorf("%d parts, %+v", n, w.broker.Observation("large"))
		}
	})
}
