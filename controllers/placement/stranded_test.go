package placement_test

import (
	"net/netip"
	"strings"
	"testing"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// TestStranded changes which nodes run an agent.
func TestStranded(t *testing.T) {
	const local, virtual = "10.0.0.1", "172.16.0.1"
	subnet := netip.MustParsePrefix("10.0.0.0/24")
	for _, row := range []struct {
		name          string
		before, after string
		change        func(before, after *placement.Inputs)
		want          string
	}{
		{name: "nothing changes", before: "a b", after: "a b"},
		{name: "one of two goes", before: "a b", after: "a b:noagent"},
		{name: "all go", before: "a b", after: "a:noagent b:noagent", want: local + " " + virtual},
		{name: "none was there", before: "a:noagent b:noagent", after: "a:noagent b:noagent"},
		{name: "the first comes", before: "a:noagent", after: "a"},
		{name: "another takes over", before: "a b:noagent", after: "a:noagent b"},
		{
			name: "another, of which nothing is known yet, takes over", before: "a b:noagent,silent",
			after: "a:noagent b:silent",
		},
		{name: "only one of another link is left", before: "a b:elsewhere", after: "a:noagent b:elsewhere", want: local},
		{name: "the only one of another link goes", before: "a b:elsewhere", after: "a b:elsewhere,noagent"},
		{name: "an excluded one is left", before: "a b:excluded", after: "a:noagent b:excluded", want: local + " " + virtual},
		{name: "all were excluded", before: "a:excluded b:excluded", after: "a:excluded,noagent b:excluded,noagent"},
		{name: "one that is deleted is left", before: "a b:gone", after: "a:noagent b:gone", want: local + " " + virtual},

		// What comes and goes by itself.
		{name: "one that is dead is left", before: "a b:expired,notready", after: "a:noagent b:expired,notready"},
		{
			name: "a dead one goes", before: "a:expired,notready", after: "a:expired,notready,noagent",
			want: local + " " + virtual,
		},
		{name: "one out of service is left", before: "a b:out", after: "a:noagent b:out"},
		{name: "one that shuts down is left", before: "a b:shutdown", after: "a:noagent b:shutdown"},
		{name: "one without a carrier is left", before: "a b:down", after: "a:noagent b:down"},
		{name: "one without endpoints is left", before: "a b", after: "a:noagent b",
			change: func(before, after *placement.Inputs) {
				for _, inputs := range []*placement.Inputs{before, after} {
					for i := range inputs.Addresses {
						inputs.Addresses[i].ServingNodes = map[string]bool{"a": true}
					}
				}
			}},

		// Subnets.
		{name: "the LBNodeAgent allows another subnet only", before: "a b", after: "a b", want: local,
			change: func(_, after *placement.Inputs) {
				for i := range after.Nodes {
					after.Nodes[i].AllowedSubnets = []netip.Prefix{netip.MustParsePrefix("10.9.0.0/24")}
				}
			}},
		{name: "the LBNodeAgent of one node allows it", before: "a b", after: "a b",
			change: func(_, after *placement.Inputs) {
				after.Nodes[0].AllowedSubnets = []netip.Prefix{netip.MustParsePrefix("10.9.0.0/24")}
				after.Nodes[1].AllowedSubnets = []netip.Prefix{subnet}
			}},
		{name: "a node is left whose Node object is elsewhere", before: "a b", after: "a:noagent b", want: local,
			change: func(before, after *placement.Inputs) {
				for _, inputs := range []*placement.Inputs{before, after} {
					inputs.Nodes[0].Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.200")}
					inputs.Nodes[1].Addresses = []netip.Addr{netip.MustParseAddr("10.9.0.201")}
				}
			}},
		{name: "no node has reported its interfaces", before: "a:awaited", after: "a:awaited,noagent", want: virtual},
		{name: "no node has reported its interfaces any more", before: "a:silent", after: "a:silent,noagent",
			want: local + " " + virtual, change: func(before, after *placement.Inputs) {
				for _, inputs := range []*placement.Inputs{before, after} {
					inputs.Entries = []placement.Entry{entry(t, netip.MustParseAddr(local), "a 1 Announced observed")}
				}
			}},
	} {
		t.Run(row.name, func(t *testing.T) {
			inputsOf := func(s string) placement.Inputs {
				return placement.Inputs{Nodes: nodes(t, s), Addresses: []placement.Address{
					{Addr: netip.MustParseAddr(virtual), PoolType: v1.PoolTypeRemote, Mask: 32, Services: []string{"a/v"}},
					{
						Addr: netip.MustParseAddr(local), PoolType: v1.PoolTypeLocal, Mask: 24, Subnet: subnet, Services: []string{"a/l"},
					},
				}}
			}
			before, after := inputsOf(row.before), inputsOf(row.after)
			if row.change != nil {
				row.change(&before, &after)
			}
			var got []string
			for _, a := range placement.Stranded(before, after) {
				got = append(got, a.Addr.String())
			}
			if s := strings.Join(got, " "); s != row.want {
				t.Errorf("stranded: %q, want %q", s, row.want)
			}
		})
	}
}
