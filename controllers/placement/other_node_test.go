package placement_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// TestWithoutOtherNode counts the addresses that nodes have and that no other node could take.
func TestWithoutOtherNode(t *testing.T) {
	const first, second, sixth = "10.0.0.1", "10.0.0.2", "fd00::1"
	for name, row := range map[string]struct {
		nodes   string
		held    map[string]string // entries, by address
		serving map[string]bool   // nodes with ready endpoints; nil for any
		subnet  string            // of the addresses' pool, which is a network of nodes if set
		want    map[string]int
	}{
		"nobody has an address": {nodes: "a b", want: map[string]int{}},
		"two nodes":             {nodes: "a b", want: map[string]int{"a": 0}},
		"one node":              {nodes: "a", want: map[string]int{"a": 1}},
		"one node, two addresses of both families": {
			nodes: "a", held: map[string]string{first: "a 1 Announced", sixth: "a 1 Announced"}, want: map[string]int{"a": 2},
		},
		"each node of two": {
			nodes: "a b", held: map[string]string{first: "a 1 Announced", second: "b 1 Announced"},
			want: map[string]int{"a": 0, "b": 0},
		},
		"one that is just elected": {nodes: "a", held: map[string]string{first: "a 1"}, want: map[string]int{"a": 1}},
		"a handover that has begun": {
			nodes: "a:excluded b", held: map[string]string{first: "a 1 Announced leaving observed"},
			want: map[string]int{"a": 0, "b": 1},
		},
		"the holder is dead": {
			nodes: "a:expired,notready b:excluded", held: map[string]string{first: "a 1 Announced"}, want: map[string]int{},
		},

		"beside a dead node": {
			nodes: "a:expired b c:excluded", held: map[string]string{first: "b 1 Announced"}, want: map[string]int{"b": 1},
		},

		// Of the other node.
		"it is NotReady":                 {nodes: "a b:notready", want: map[string]int{"a": 0}},
		"it is late to renew":            {nodes: "a b:late", want: map[string]int{"a": 0}},
		"it is cordoned":                 {nodes: "a b:cordoned", want: map[string]int{"a": 0}},
		"it does not renew":              {nodes: "a b:expired", want: map[string]int{"a": 1}},
		"it runs no agent":               {nodes: "a b:noagent", want: map[string]int{"a": 1}},
		"it leaves its LBNodeAgent":      {nodes: "a b:leaving", want: map[string]int{"a": 1}},
		"it is excluded":                 {nodes: "a b:excluded", want: map[string]int{"a": 1}},
		"it is out of service":           {nodes: "a b:out", want: map[string]int{"a": 1}},
		"it shuts down":                  {nodes: "a b:shutdown", want: map[string]int{"a": 1}},
		"it is on another link":          {nodes: "a b:elsewhere", want: map[string]int{"a": 1}},
		"it has no carrier":              {nodes: "a b:down", want: map[string]int{"a": 1}},
		"it has reported no interface":   {nodes: "a b:silent", want: map[string]int{"a": 1}},
		"it is deleted":                  {nodes: "a b:gone", want: map[string]int{"a": 1}},
		"it has no ready endpoint":       {nodes: "a b", serving: map[string]bool{"a": true}, want: map[string]int{"a": 0}},
		"a third one may take it":        {nodes: "a b:excluded c", want: map[string]int{"a": 0}},
		"it says that it is on the link": {nodes: "a b", subnet: "10.0.0.0/24", want: map[string]int{"a": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			inputs := placement.Inputs{Nodes: nodes(t, row.nodes)}
			if row.held == nil && name != "nobody has an address" {
				row.held = map[string]string{first: "a 1 Announced"}
			}
			for addr, text := range row.held {
				a := placement.Address{
					Addr: netip.MustParseAddr(addr), PoolType: v1.PoolTypeLocal, Services: []string{"a/b"}, ServingNodes: row.serving,
				}
				if row.subnet != "" {
					a.Subnet = netip.MustParsePrefix(row.subnet)
					inputs.Nodes[0].Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.200")}
					inputs.Nodes[1].Addresses = []netip.Addr{netip.MustParseAddr("10.9.0.201")}
				}
				inputs.Addresses = append(inputs.Addresses, a)
				inputs.Entries = append(inputs.Entries, entry(t, a.Addr, text))
			}
			result := placement.Place(inputs)
			if diff := cmp.Diff(row.want, placement.CountWithoutOtherNode(inputs, &result)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestLocalBesideVirtual counts a Local address of a node that has a Virtual one, too.
func TestLocalBesideVirtual(t *testing.T) {
	virtual, local := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	inputs := placement.Inputs{Nodes: nodes(t, "a"), Addresses: []placement.Address{
		{Addr: virtual, PoolType: v1.PoolTypeRemote}, {Addr: local, PoolType: v1.PoolTypeLocal},
	}}
	result := placement.Result{Entries: map[string][]placement.Placed{"a": {
		{Addr: virtual, AnnouncedAddress: v1.AnnouncedAddress{Address: virtual.String(), Type: v1.AnnounceVirtual}},
		{Addr: local, AnnouncedAddress: v1.AnnouncedAddress{Address: local.String(), Type: v1.AnnounceLocal}},
	}}}
	want := map[string]int{"a": 1}
	if diff := cmp.Diff(want, placement.CountWithoutOtherNode(inputs, &result)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestVirtualIsOnOtherNodes counts no Virtual address: each node has it.
func TestVirtualIsOnOtherNodes(t *testing.T) {
	addr := netip.MustParseAddr("172.16.0.1")
	inputs := placement.Inputs{Nodes: nodes(t, "a:shares"), Addresses: []placement.Address{
		{Addr: addr, PoolType: v1.PoolTypeRemote, Mask: 32, Services: []string{"a/b"}},
		{
			Addr: netip.MustParseAddr("172.16.0.2"), PoolType: v1.PoolTypeRemote, Mask: 32, Services: []string{"a/c"},
			ServingNodes: map[string]bool{"a": true},
		},
	}}
	result := placement.Place(inputs)
	if got := placement.CountWithoutOtherNode(inputs, &result); len(got) > 0 {
		t.Errorf("%v", got)
	}
}
