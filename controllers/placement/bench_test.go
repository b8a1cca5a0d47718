package placement_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// settled is a cluster in which each of the Local addresses is announced.
func settled(b testing.TB, nodes, addresses int) placement.Inputs {
	b.Helper()
	var inputs placement.Inputs
	for i := range nodes {
		name := fmt.Sprintf("node%d", i)
		inputs.Nodes = append(inputs.Nodes, placement.Node{
			Name: name, LBNodeAgent: "default", VirtualInterface: "kube-lb0", Liveness: placement.Fresh, HasReportedFacts: true,
			Interfaces: []placement.Interface{
				{Name: "eth0", MAC: name, Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}},
			},
		})
	}
	for i := range addresses {
		inputs.Addresses = append(inputs.Addresses, placement.Address{
			Addr: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), Group: "g", PoolType: v1.PoolTypeLocal, Mask: 8,
			Services: []string{fmt.Sprintf("a/s%d", i)},
		})
	}
	for name, entries := range placement.Place(inputs).Entries {
		for _, e := range entries {
			inputs.Entries = append(
				inputs.Entries,
				placement.Entry{
					Node: name, Addr: e.Addr, Spec: e.AnnouncedAddress, ReportedState: v1.StateAnnounced, IsObserved: true,
				},
			)
		}
	}
	if len(inputs.Entries) != addresses {
		b.Fatalf("%d of %d addresses are placed", len(inputs.Entries), addresses)
	}
	return inputs
}

// BenchmarkPlace is one decision on a whole cluster, of Local addresses, after
// one change: an address is new, or a node has died.
func BenchmarkPlace(b *testing.B) {
	for _, size := range []struct{ nodes, addresses int }{
		{10, 100}, {100, 1000}, {1000, 1000}, {1000, 10000}, {5000, 10000},
	} {
		inputs := settled(b, size.nodes, size.addresses)
		b.Run(fmt.Sprintf("new address/%d nodes/%d addresses", size.nodes, size.addresses), func(b *testing.B) {
			changed := inputs
			changed.Addresses = append(changed.Addresses[:size.addresses:size.addresses],
				placement.Address{
					Addr: netip.MustParseAddr("10.2.0.1"), PoolType: v1.PoolTypeLocal, Mask: 8, Services: []string{"a/new"},
				})
			for b.Loop() {
				if r := placement.Place(changed); len(r.Moves) != 1 {
					b.Fatalf("%d addresses move", len(r.Moves))
				}
			}
		})
		b.Run(fmt.Sprintf("node dies/%d nodes/%d addresses", size.nodes, size.addresses), func(b *testing.B) {
			changed := inputs
			changed.Nodes = append([]placement.Node{}, inputs.Nodes...)
			had := 0
			for i := range changed.Nodes {
				if changed.Nodes[i].Name == inputs.Entries[0].Node {
					changed.Nodes[i].Liveness = placement.Expired
				}
			}
			for _, e := range inputs.Entries {
				if e.Node == inputs.Entries[0].Node {
					had++
				}
			}
			for b.Loop() {
				if r := placement.Place(changed); len(r.Moves) != had {
					b.Fatalf("%d addresses move, of %d", len(r.Moves), had)
				}
			}
		})
	}
}

// settledWithSuccessors is a settled cluster in which each address has two successors, and each node is watched.
func settledWithSuccessors(b testing.TB, nodes, addresses int) placement.Inputs {
	b.Helper()
	inputs := settled(b, nodes, addresses)
	inputs.NamesSuccessors = true
	for i := range inputs.Nodes {
		own := netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)})
		inputs.Nodes[i].Interfaces[0].Subnets = []netip.Prefix{netip.PrefixFrom(own, 8)}
		inputs.Nodes[i].Addresses = []netip.Addr{own}
	}
	for i := range inputs.Entries {
		inputs.Entries[i].UnchangedFor = time.Minute
	}
	result := placement.Place(inputs)
	realise(&inputs, &result)
	for i := range inputs.Entries {
		if len(inputs.Entries[i].Spec.Successors) != v1.MaxSuccessorsPerAddress {
			b.Fatalf("%s has %d successors", inputs.Entries[i].Addr, len(inputs.Entries[i].Spec.Successors))
		}
	}
	return inputs
}

// BenchmarkPlanStandbys is one decision on a whole cluster whose nodes watch each other: who is to have
// which address, and who watches whom. Nothing is new, or no successors are named yet.
func BenchmarkPlanStandbys(b *testing.B) {
	for _, size := range []struct{ nodes, addresses int }{{100, 1000}, {1000, 1000}} {
		inputs := settledWithSuccessors(b, size.nodes, size.addresses)
		unnamed := inputs
		unnamed.Entries = slices.Clone(inputs.Entries)
		for i := range unnamed.Entries {
			unnamed.Entries[i].Spec.Successors = nil
		}
		name := fmt.Sprintf("%d nodes/%d addresses", size.nodes, size.addresses)
		b.Run("nothing is new/"+name, func(b *testing.B) {
			for b.Loop() {
				if r := placement.Place(inputs); len(r.Moves) != 0 || len(r.Successors) == 0 {
					b.Fatalf("%d addresses move, and %d nodes have successors", len(r.Moves), len(r.Successors))
				}
				if plans := placement.PlanStandbys(inputs); len(plans) < size.nodes {
					b.Fatalf("%d plans", len(plans))
				}
			}
		})
		b.Run("all successors are named/"+name, func(b *testing.B) {
			for b.Loop() {
				if r := placement.Place(unnamed); len(r.Moves) != 0 || len(r.Successors) == 0 {
					b.Fatalf("%d addresses move, and %d nodes have successors", len(r.Moves), len(r.Successors))
				}
			}
		})
	}
}

// settledInRacks returns a cluster whose nodes watch each other. Each rack has a subnet of its own. Only two nodes may
// have each address, as if its Service had policy Local and two pods.
func settledInRacks(b testing.TB, racks, nodesOfRack int) placement.Inputs {
	b.Helper()
	inputs := placement.Inputs{NamesSuccessors: true}
	name := func(rack, i int) string { return fmt.Sprintf("node%d-%d", rack, i%nodesOfRack) }
	for rack := range racks {
		for i := range nodesOfRack {
			own := netip.AddrFrom4([4]byte{10, byte(rack), 1, byte(i)})
			inputs.Nodes = append(inputs.Nodes, placement.Node{
				Name: name(rack, i), LBNodeAgent: "default", Liveness: placement.Fresh, HasReportedFacts: true,
				Addresses: []netip.Addr{own},
				Interfaces: []placement.Interface{
					{Name: "eth0", MAC: name(rack, i), Subnets: []netip.Prefix{netip.PrefixFrom(own, 16)}},
				},
			})
			addr := netip.AddrFrom4([4]byte{10, byte(rack), 2, byte(i)})
			inputs.Addresses = append(inputs.Addresses, placement.Address{
				Addr: addr, Group: "g", PoolType: v1.PoolTypeLocal, Mask: 16, Services: []string{"a/" + addr.String()},
				ServingNodes: map[string]bool{name(rack, i): true, name(rack, i+1): true},
			})
		}
	}
	for node, entries := range placement.Place(inputs).Entries {
		for _, e := range entries {
			inputs.Entries = append(inputs.Entries, placement.Entry{
				Node: node, Addr: e.Addr, Spec: e.AnnouncedAddress, ReportedState: v1.StateAnnounced, IsObserved: true,
				UnchangedFor: time.Minute,
			})
		}
	}
	result := placement.Place(inputs)
	realise(&inputs, &result)
	if len(inputs.Entries) != racks*nodesOfRack {
		b.Fatalf("%d of %d addresses are placed", len(inputs.Entries), racks*nodesOfRack)
	}
	return inputs
}

// BenchmarkPlaceInRacks is one decision on a cluster of many subnets, in which nothing is new.
func BenchmarkPlaceInRacks(b *testing.B) {
	inputs := settledInRacks(b, 50, 20)
	for b.Loop() {
		if r := placement.Place(inputs); len(r.Moves) != 0 || len(r.Successors) == 0 {
			b.Fatalf("%d addresses move, and %d nodes have successors", len(r.Moves), len(r.Successors))
		}
	}
}

// To find successors in one subnet, nothing is done with the nodes of others.
func TestSuccessorsInRacks(t *testing.T) {
	allocationsPerNode := func(racks int) float64 {
		inputs := settledInRacks(t, racks, 4)
		return testing.AllocsPerRun(1, func() { _ = placement.Place(inputs) }) / float64(len(inputs.Nodes))
	}
	if few, many := allocationsPerNode(5), allocationsPerNode(50); many > 2*few {
		t.Errorf("%.0f allocations for each node with 5 subnets, and %.0f with 50", few, many)
	}
}

// BenchmarkStranded asks which addresses of a large cluster would have no node, in the worst
// case: no node that is left has an interface in the subnet of any.
func BenchmarkStranded(b *testing.B) {
	before := settled(b, 1000, 10000)
	after := before
	after.Nodes = append([]placement.Node{}, before.Nodes...)
	for i := range after.Nodes {
		after.Nodes[i].Interfaces = []placement.Interface{
			{Name: "eth0", Subnets: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}},
		}
	}
	for b.Loop() {
		if stranded := placement.Stranded(before, after); len(stranded) != 10000 {
			b.Fatalf("%d addresses are stranded", len(stranded))
		}
	}
}
