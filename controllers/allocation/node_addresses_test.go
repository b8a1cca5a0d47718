package allocation_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

// addressesFrom lists n addresses from first on.
func addressesFrom(first string, n int) []netip.Addr {
	all := make([]netip.Addr, n)
	for i, a := 0, netip.MustParseAddr(first); i < n; i, a = i+1, a.Next() {
		all[i] = a
	}
	return all
}

func TestAcceptNodeAddresses(t *testing.T) {
	catalog := allocation.NewCatalog([]v1.ServiceGroup{
		groupMadeAt(
			t, "a", 1,
			"remote: {v4pool: {pool: 10.0.0.0/24, subnet: 10.0.0.0/24}, v6pool: {pool: 'fd00::/64', subnet: 'fd00::/64'}}",
		),
		groupMadeAt(t, "b", 2, "local: {pool: 10.0.1.0/24, subnet: 10.0.1.0/24}"),
		groupMadeAt(
			t, "c", 3,
			"local: {v4pools: [{pool: 10.0.2.8-10.0.2.15, subnet: 10.0.2.0/24}, {pool: 10.0.2.20-10.0.2.22, subnet: "+
				"10.0.2.0/24}]}",
		),
	}, namespace)
	concat := func(lists ...[]netip.Addr) []netip.Addr { return slices.Concat(lists...) }
	type nodes = []allocation.NodeAddresses
	for _, row := range []struct {
		name     string
		nodes    nodes
		reserved []netip.Addr
		excess   []allocation.ExcessAddresses
	}{
		{"nothing", nil, nil, nil},
		{"one of each", nodes{
			{
				Node: "n", Confirmed: addressesFrom("10.0.0.1", 1), Gateways: addressesFrom("10.0.0.254", 1),
				Own: concat(addressesFrom("10.0.0.1", 2), addressesFrom("fd00::1", 1)),
			},
		},
			concat(addressesFrom("10.0.0.1", 2), addressesFrom("10.0.0.254", 1), addressesFrom("fd00::1", 1)), nil},
		{"eight of each family", nodes{{Node: "n", Own: concat(addressesFrom("10.0.0.1", 8), addressesFrom("fd00::1", 8))}},
			concat(addressesFrom("10.0.0.1", 8), addressesFrom("fd00::1", 8)), nil},
		{"the ninth", nodes{{Node: "n", Own: concat(addressesFrom("10.0.0.1", 9), addressesFrom("fd00::1", 8))}},
			concat(addressesFrom("10.0.0.1", 8), addressesFrom("fd00::1", 8)), []allocation.ExcessAddresses{
				{Node: "n", Family: allocation.IPv4, Addresses: addressesFrom("10.0.0.9", 1)},
			}},
		{"the ninth of IPv6", nodes{{Node: "n", Own: addressesFrom("fd00::1", 10)}},
			addressesFrom("fd00::1", 8), []allocation.ExcessAddresses{
				{Node: "n", Family: allocation.IPv6, Addresses: addressesFrom("fd00::9", 2)},
			}},
		{"many outside pools", nodes{{Node: "n", Own: concat(addressesFrom("10.9.0.1", 100), addressesFrom("10.0.0.1", 8))}},
			concat(addressesFrom("10.0.0.1", 8), addressesFrom("10.9.0.1", 100)), nil},
		{"pools of two groups", nodes{{Node: "n", Own: concat(addressesFrom("10.0.1.1", 5), addressesFrom("10.0.0.1", 5))}},
			concat(addressesFrom("10.0.0.1", 5), addressesFrom("10.0.1.1", 3)), []allocation.ExcessAddresses{
				{Node: "n", Family: allocation.IPv4, Addresses: addressesFrom("10.0.1.4", 2)},
			}},
		{"the Node object first, then gateways", nodes{
			{
				Node: "n", Confirmed: addressesFrom("10.0.0.100", 3), Gateways: addressesFrom("10.0.0.200", 2),
				Own: concat(addressesFrom("10.0.0.99", 5), addressesFrom("10.0.0.1", 4)),
			},
		},
			concat(addressesFrom("10.0.0.1", 3), addressesFrom("10.0.0.100", 3), addressesFrom("10.0.0.200", 2)),
			[]allocation.ExcessAddresses{
				{
					Node: "n", Family: allocation.IPv4,
					Addresses: concat(addressesFrom("10.0.0.4", 1), addressesFrom("10.0.0.99", 1), addressesFrom("10.0.0.103", 1)),
				},
			}},
		{"each node by itself", nodes{
			{Node: "b", Own: addressesFrom("10.0.0.1", 9)}, {Node: "a", Own: addressesFrom("10.0.0.5", 9)},
		},
			addressesFrom("10.0.0.1", 12), []allocation.ExcessAddresses{
				{Node: "a", Family: allocation.IPv4, Addresses: addressesFrom("10.0.0.13", 1)},
				{Node: "b", Family: allocation.IPv4, Addresses: addressesFrom("10.0.0.9", 1)}}},
		{"a quarter of each range", nodes{
			{Node: "n", Own: concat(addressesFrom("10.0.2.8", 3), addressesFrom("10.0.2.20", 1), addressesFrom("10.0.0.1", 3))},
		},
			concat(addressesFrom("10.0.0.1", 3), addressesFrom("10.0.2.8", 2)), []allocation.ExcessAddresses{
				{
					Node: "n", Family: allocation.IPv4,
					Addresses: concat(addressesFrom("10.0.2.10", 1), addressesFrom("10.0.2.20", 1)),
				},
			}},
		{"more than a quarter in the Node object", nodes{
			{
				Node: "n", Confirmed: concat(addressesFrom("10.0.2.8", 3), addressesFrom("10.0.2.20", 1)),
				Own: addressesFrom("10.0.2.8", 6),
			},
		},
			concat(addressesFrom("10.0.2.8", 5), addressesFrom("10.0.2.20", 1)), []allocation.ExcessAddresses{
				{Node: "n", Family: allocation.IPv4, Addresses: addressesFrom("10.0.2.13", 1)},
			}},
		{"gateways of two nodes", nodes{
			{Node: "a", Gateways: concat(addressesFrom("10.0.2.8", 3), addressesFrom("10.0.2.20", 1))},
			{Node: "b", Gateways: concat(addressesFrom("10.0.2.8", 3), addressesFrom("10.0.2.20", 1))},
		},
			concat(addressesFrom("10.0.2.8", 3), addressesFrom("10.0.2.20", 1)), nil},
		{"gateways of one node, twice", nodes{
			{Node: "n", Gateways: concat(addressesFrom("10.0.2.20", 1), addressesFrom("10.0.2.20", 1))},
		},
			nil, []allocation.ExcessAddresses{{Node: "n", Family: allocation.IPv4, Addresses: addressesFrom("10.0.2.20", 1)}}},
	} {
		t.Run(row.name, func(t *testing.T) {
			reserved, excess := allocation.AcceptNodeAddresses(row.nodes, catalog.PoolRanges())
			got := slices.SortedFunc(maps.Keys(reserved), netip.Addr.Compare)
			if diff := cmp.Diff(row.reserved, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("reserved (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(row.excess, excess, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("excess (-want +got):\n%s", diff)
			}
		})
	}

	t.Run("names", func(t *testing.T) {
		reserved, _ := allocation.AcceptNodeAddresses(nodes{
			{Node: "b", Own: addressesFrom("10.0.0.1", 2)}, {
				Node: "a", Gateways: addressesFrom("10.0.0.1", 1), Own: addressesFrom("10.0.0.1", 1),
			},
		}, catalog.PoolRanges())
		want := map[netip.Addr]string{
			netip.MustParseAddr("10.0.0.1"): "a gateway of node a", netip.MustParseAddr("10.0.0.2"): "an address of node b",
		}
		if !maps.Equal(reserved, want) {
			t.Errorf("got %v, want %v", reserved, want)
		}
	})
	t.Run("what a group says", func(t *testing.T) {
		_, excess := allocation.AcceptNodeAddresses(
			nodes{
				{Node: "bad", Own: concat(addressesFrom("10.0.0.1", 20), addressesFrom("fd00::1", 9))},
				{Node: "good", Own: addressesFrom("10.0.0.1", 2)},
			},
			catalog.PoolRanges(),
		)
		const want = "nodes report more addresses of their own, or gateways, in pools than are reserved for one node: 8 of " +
			"each family and, of those that only its agent reports, a quarter of each range; the rest may be allocated " +
			"(node bad: IPv4 12 addresses, node bad: IPv6 1 address): take the nodes' addresses out of the pools or, if the " +
			"nodes do not have them, look into their agents"
		if got := allocation.DescribeExcess(&catalog["a"].Group, excess); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		if got := allocation.DescribeExcess(&catalog["b"].Group, excess); got != "" {
			t.Errorf("the other group: %s", got)
		}
	})
}

// TestNodeAddressWarnings warns of each range that covers addresses of nodes, wherever the range stands.
func TestNodeAddressWarnings(t *testing.T) {
	catalog := allocation.NewCatalog([]v1.ServiceGroup{groupMadeAt(t, "a", 1,
		"remote: {v4pools: [{pool: 10.0.0.0/28, subnet: 10.0.0.0/24}, "+
			"{pool: 10.0.1.0/28, subnet: 10.0.1.0/24}, {pool: 10.0.2.0/28, subnet: 10.0.2.0/24}, {pool: 10.0.3.0/28, subnet: "+
			"10.0.3.0/24}]}")}, namespace)
	reserved := map[netip.Addr]string{}
	for _, a := range addressesFrom("10.0.4.1", 100) { // in no range of the group
		reserved[a] = "an address of node n9"
	}
	for i, text := range []string{"10.0.1.5", "10.0.1.4", "10.0.3.1"} {
		reserved[netip.MustParseAddr(text)] = fmt.Sprintf("an address of node n%d", i)
	}
	want := []string{
		"spec.remote.v4pools[1].pool: range 10.0.1.0-10.0.1.15 covers what is never allocated: 10.0.1.4, an address of " +
			"node n1; 10.0.1.5, an address of node n0",
		"spec.remote.v4pools[3].pool: range 10.0.3.0-10.0.3.15 covers what is never allocated: 10.0.3.1, an address of " +
			"node n2",
	}
	if diff := cmp.Diff(want, allocation.NodeAddressWarnings(&catalog["a"].Group, reserved)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestAttackReservations lets one node report every address of a pool, as its own and as
// gateways: a Service still gets one, and another node's address is not allocated.
func TestAttackReservations(t *testing.T) {
	groups := []v1.ServiceGroup{groupMadeAt(t, "default", 1, "remote: {pool: 10.0.0.0/24, subnet: 10.0.0.0/24}")}
	catalog := allocation.NewCatalog(groups, namespace)
	honest := addressesFrom("10.0.0.9", 1)
	reports := []allocation.NodeAddresses{
		{Node: "bad", Own: addressesFrom("10.0.0.0", 256), Gateways: addressesFrom("10.0.0.0", 256)},
		{Node: "good", Own: honest},
	}
	reserved, excess := allocation.AcceptNodeAddresses(reports, catalog.PoolRanges())
	if len(excess) != 1 || len(excess[0].Addresses) != 248 {
		t.Errorf("excess %v", excess)
	}
	inUse := allocation.NewInUse()
	result := allocation.Allocate(&allocation.Request{Families: []allocation.Family{allocation.IPv4}},
		&allocation.Inputs{Catalog: catalog, InUse: inUse, NodeAddresses: reserved})
	// .0 is the network's; .0 to .7 are reported and .8 is the first that is not reserved.
	if got := fmt.Sprint(result.Addresses); got != "[10.0.0.8]" {
		t.Errorf("allocated %s: %s %s", got, result.Reason, result.Message)
	}
	if reserved[honest[0]] == "" {
		t.Errorf("%s of the other node is not reserved", honest[0])
	}
}

// TestAttackSmallPool lets one node report every address of a small pool, as its own and as
// gateways: most are left for Services, the addresses of another node and the gateway of both
// are not, and the group names the node as soon as one address is passed over. This test shows the row
// "make a pool unusable" of docs/trust.md.
func TestAttackSmallPool(t *testing.T) {
	for size := 1; size <= 32; size++ {
		first := netip.MustParseAddr("10.0.0.100")
		all := addressesFrom(first.String(), size)
		group := groupMadeAt(t, "default", 1, fmt.Sprintf("local: {pool: %s-%s, subnet: 10.0.0.0/24}", first, all[size-1]))
		catalog := allocation.NewCatalog([]v1.ServiceGroup{group}, namespace)
		for reported := range size + 1 {
			// The honest node and the gateway have the addresses that the liar reports last.
			honest := all[max(0, size-2):]
			reserved, excess := allocation.AcceptNodeAddresses([]allocation.NodeAddresses{
				{Node: "bad", Own: all[:reported], Gateways: append(slices.Clone(all[:reported/2]), honest[0])},
				{Node: "good", Confirmed: honest[len(honest)-1:], Gateways: honest[:1]},
			}, catalog.PoolRanges())
			lies := 0
			for _, a := range all {
				if reserved[a] != "" && !slices.Contains(honest, a) {
					lies++
				}
			}
			if lies > size/4 {
				t.Errorf("pool of %d: %d addresses are reserved for nobody", size, lies)
			}
			if passedOver := lies < min(reported, size-len(honest)); passedOver &&
				allocation.DescribeExcess(&catalog["default"].Group, excess) == "" {
				t.Errorf(
					"pool of %d: the group does not say that %d of %d addresses are passed over", size, reported-lies, reported,
				)
			}
			for _, a := range honest {
				if reserved[a] == "" {
					t.Errorf("pool of %d: %s of the other node is not reserved", size, a)
				}
			}
			result := allocation.Allocate(&allocation.Request{Families: []allocation.Family{allocation.IPv4}},
				&allocation.Inputs{Catalog: catalog, InUse: allocation.NewInUse(), NodeAddresses: reserved})
			if isFree := size > len(honest); isFree != (len(result.Addresses) == 1) {
				t.Errorf("pool of %d, of which %d are reported: allocated %v: %s", size, reported, result.Addresses, result.Message)
			}
		}
	}
}
