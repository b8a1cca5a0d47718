package placement_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// planOf is a plan of node1 with some addresses.
func planOf(addresses []string) placement.StandbyPlan {
	plan := placement.StandbyPlan{Watcher: "node1", LinkKey: "a/eth0/eth0"}
	for _, a := range slices.Sorted(slices.Values(addresses)) {
		plan.Standby.Addresses = append(plan.Standby.Addresses, v1.StandbyAddress{Address: a})
	}
	return plan
}

// storedAs are the objects of a plan as they are stored, among those of other plans, in any order.
func storedAs(named map[string]*v1.AnnouncementSpec) (stored []placement.StoredObject) {
	other := placement.StandbyPlan{Watcher: "node1", LinkKey: "a/eth0/eth1", Standby: planOf([]string{"10.0.0.7"}).Standby}
	for _, objects := range []map[string]*v1.AnnouncementSpec{named, other.Announcements(nil)} {
		for name, spec := range objects {
			object := placement.StoredObject{Name: name}
			for _, a := range spec.Standby.Addresses {
				object.Addresses = append(object.Addresses, a.Address)
			}
			stored = append(stored, object)
		}
	}
	return stored
}

// An address that comes or goes changes one object, wherever it is in the order of addresses.
func TestStandbyAddressesStay(t *testing.T) {
	var addresses []string
	for i := range 250 {
		addresses = append(addresses, fmt.Sprintf("10.0.1.%d", i))
	}
	plan := planOf(addresses)
	before := plan.Announcements(nil)
	for name, changed := range map[string][]string{
		"one that comes first is new": append(slices.Clone(addresses), "10.0.0.1"), "the first is gone": addresses[1:],
	} {
		t.Run(name, func(t *testing.T) {
			plan := planOf(changed)
			after := plan.Announcements(storedAs(before))
			var differ []string
			for name := range after {
				if !cmp.Equal(before[name], after[name]) {
					differ = append(differ, name)
				}
			}
			if len(differ) != 1 || len(after) != len(before) {
				t.Errorf("%v differ of %d objects, and there were %d", differ, len(after), len(before))
			}
		})
	}
}

// TestPlanHistories lets addresses of a plan come and go: none is ever asked for by another object than before.
func TestPlanHistories(t *testing.T) {
	for seed := range uint64(12) {
		rng := rand.New(rand.NewPCG(seed, 3))
		has, where := map[string]bool{}, map[string]string{}
		var stored []placement.StoredObject
		for step := range 60 {
			for range rng.IntN(200) {
				a := fmt.Sprintf("10.0.%d.%d", rng.IntN(3), rng.IntN(250))
				if delete(has, a); rng.IntN(3) > 0 {
					has[a] = true
				}
			}
			if rng.IntN(10) == 0 { // most go at once
				maps.DeleteFunc(has, func(string, bool) bool { return rng.IntN(20) > 0 })
			}
			plan := planOf(slices.Collect(maps.Keys(has)))
			named := plan.Announcements(stored)
			if again := plan.Announcements(shuffle(rng, stored)); !cmp.Equal(named, again) {
				t.Fatalf("seed %d, step %d: objects in another order give another result:\n%s", seed, step, cmp.Diff(named, again))
			}
			now := map[string]string{}
			for name, spec := range named {
				if n := len(spec.Standby.Addresses); n == 0 || n > v1.MaxAddressesPerAnnouncement {
					t.Fatalf("seed %d, step %d: %s has %d addresses", seed, step, name, n)
				}
				for _, a := range spec.Standby.Addresses {
					if now[a.Address] != "" || where[a.Address] != "" && where[a.Address] != name {
						t.Fatalf("seed %d, step %d: %s is in %s and %s, and was in %s",
							seed, step, a.Address, name, now[a.Address], where[a.Address])
					}
					now[a.Address] = name
				}
			}
			if len(now) != len(has) {
				t.Fatalf("seed %d, step %d: %d addresses of %d", seed, step, len(now), len(has))
			}
			stored, where = storedAs(named), now
			if again := plan.Announcements(stored); !cmp.Equal(named, again) {
				t.Fatalf("seed %d, step %d: once stored, it is to be otherwise:\n%s", seed, step, cmp.Diff(named, again))
			}
		}
	}
}

// An asker finds out about an address by the same object for as long as it is an asker.
func TestAskedAddressesStay(t *testing.T) {
	inputs := asked(t, "a b", v1.MaxAddressesPerAnnouncement+1)
	before := placement.PlanAsking(inputs)[0]
	var stored []placement.StoredObject
	for name, spec := range before.Announcements(nil) {
		object := placement.StoredObject{Name: name}
		for _, a := range spec.Asking.Addresses {
			object.Addresses = append(object.Addresses, a.Address)
		}
		stored = append(stored, object)
	}
	inputs.Addresses = inputs.Addresses[1:]
	after := placement.PlanAsking(inputs)[0]
	for name, spec := range after.Announcements(stored) {
		object := stored[slices.IndexFunc(stored, func(o placement.StoredObject) bool { return o.Name == name })]
		for _, a := range spec.Asking.Addresses {
			if !slices.Contains(object.Addresses, a.Address) {
				t.Errorf("%s asks for %s now", name, a.Address)
			}
		}
	}
}
