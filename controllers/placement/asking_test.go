package placement_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// asked are inputs of addresses that node a holds, with all nodes asking for each other's.
func asked(t *testing.T, ns string, count int) placement.Inputs {
	t.Helper()
	inputs := held(t, ns, count)
	inputs.NamesSuccessors = false
	for i := range inputs.Nodes {
		inputs.Nodes[i].AsksOthers = true
	}
	for i := range inputs.Entries {
		inputs.Entries[i].Spec.Services = []string{"a/b"}
	}
	return inputs
}

func TestPlanAsking(t *testing.T) {
	for _, row := range []struct {
		name   string
		nodes  string
		change func(*placement.Inputs)
		want   string // askers
	}{
		{"the holder is alone", "a", nil, ""},
		{"two nodes", "a b", nil, "b"},
		{"three", "a b c", nil, "b c"},
		{"four", "a b c d", nil, "b c d"},
		{"it is off", "a b c", func(in *placement.Inputs) {
			for i := range in.Nodes {
				in.Nodes[i].AsksOthers = false
			}
		}, ""},
		{"it is off at the holder", "a b c", func(in *placement.Inputs) { in.Nodes[0].AsksOthers = false }, ""},
		{"it is off at a node", "a b c", func(in *placement.Inputs) { in.Nodes[1].AsksOthers = false }, "c"},
		{"an agent does not renew", "a b c d:expired", nil, "b c"},
		{"an agent is late", "a b:late c", nil, "b c"},
		{"most agents do not renew", "a b:expired c:expired", nil, "b c"},
		{"a node is out of service", "a b:out c d", nil, "c d"},
		{"a node shuts down", "a b:shutdown c d", nil, "c d"},
		{"a node is excluded, and has its interface", "a b:excluded c", nil, "b c"},
		{"a node has no interface in the subnet", "a b c", func(in *placement.Inputs) {
			in.Nodes[1].Interfaces[0].Subnets = []netip.Prefix{netip.MustParsePrefix("10.9.0.7/24")}
		}, "c"},
		{"a node has no address of its own there", "a b c", func(in *placement.Inputs) {
			in.Nodes[1].Interfaces[0].Subnets = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}
		}, "c"},
		{"a node has no address of that family there", "a b c", func(in *placement.Inputs) {
			in.Nodes[1].Interfaces[0].Subnets = []netip.Prefix{
				netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00::7/64"),
			}
		}, "c"},
		{"a node has no carrier", "a b c", func(in *placement.Inputs) { in.Nodes[1].Interfaces[0].IsDown = true }, "c"},
		{"the holder's interface is unknown", "a b c", func(in *placement.Inputs) { in.Nodes[0].Interfaces = nil }, ""},
		{"the holder's interface has left the subnet", "a b c", func(in *placement.Inputs) {
			in.Nodes[0].Interfaces[0].Subnets = []netip.Prefix{netip.MustParsePrefix("10.9.0.7/24")}
		}, ""},
		{"the holder has not reported", "a b c", func(in *placement.Inputs) {
			in.Entries[0].ReportedState = v1.StatePending
		}, ""},
		{"the address is handed over", "a b c", func(in *placement.Inputs) { in.Entries[0].Spec.HandingOver = true }, ""},
		{"a successor claims it", "a b c", func(in *placement.Inputs) {
			in.NamesSuccessors = true
			in.SuccessorClaims = []placement.SuccessorClaim{{
				Node: "b", Holder: "a", Addr: in.Entries[0].Addr, Epoch: 2,
			}}
		}, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			inputs := asked(t, row.nodes, 1)
			if row.change != nil {
				row.change(&inputs)
			}
			plans := placement.PlanAsking(inputs)
			var askers []string
			for i := range plans {
				askers = append(askers, plans[i].Asker)
			}
			if diff := cmp.Diff(row.want, strings.Join(askers, " ")); diff != "" {
				t.Fatalf("askers (-want +got):\n%s", diff)
			}
			for i := range plans {
				want := v1.Asking{
					Holder: reached("a"), Interface: "eth0",
					Addresses: []v1.AskedAddress{{Address: "10.0.0.1", Epoch: 1, Services: []string{"a/b"}}},
				}
				for _, name := range askers {
					want.Askers = append(want.Askers, reached(name))
				}
				if diff := cmp.Diff(want, plans[i].Asking); diff != "" {
					t.Errorf("%s (-want +got):\n%s", plans[i].Asker, diff)
				}
			}
		})
	}
}

// An address that is not announced keeps no later one from being asked for.
func TestPlanAskingOfSome(t *testing.T) {
	inputs := asked(t, "a b", 3)
	inputs.Entries[0].ReportedState = v1.StatePending
	inputs.Entries = slices.Delete(inputs.Entries, 1, 2)
	plans := placement.PlanAsking(inputs)
	if len(plans) != 1 || len(plans[0].Asking.Addresses) != 1 || plans[0].Asking.Addresses[0].Address != "10.0.0.3" {
		t.Errorf("%+v", plans)
	}
}

// An asker that asks for addresses with different others has a plan for each of these groups, by keys of their own.
func TestPlanAskingOfGroups(t *testing.T) {
	inputs := asked(t, "a b c", 2)
	addr := netip.MustParseAddr("fd00::1")
	inputs.Addresses[1].Addr, inputs.Entries[1].Addr, inputs.Entries[1].Spec.Address = addr, addr, addr.String()
	inputs.Nodes[1].Interfaces[0].Subnets[0] = netip.MustParsePrefix("10.0.0.0/24") // no IPv4 address of its own
	var got []string
	for _, p := range placement.PlanAsking(inputs) {
		text := p.Asker + " " + p.LinkKey + ":"
		for _, a := range p.Asking.Addresses {
			text += " " + a.Address
		}
		got = append(got, text)
	}
	want := []string{"b a/eth0/eth0: fd00::1", "c a/eth0/eth0: fd00::1", "c a/eth0/eth0+: 10.0.0.1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// An asker that goes is replaced, and the others keep their objects and their turns with them. All
// addresses of a holder have the same askers, however many there are.
func TestPlanAskingKeepsObjects(t *testing.T) {
	inputs := asked(t, "a b c d e f", v1.MaxAddressesPerAnnouncement+1)
	namesOf := func(plans []placement.AskingPlan) map[string]int {
		names := map[string]int{}
		for i := range plans {
			for name, spec := range plans[i].Announcements(nil) {
				names[plans[i].Asker+" "+name] += len(spec.Asking.Addresses)
			}
		}
		return names
	}
	plans := placement.PlanAsking(inputs)
	before := namesOf(plans)
	if len(plans) != v1.MaxAskersPerAddress || len(before) != 2*v1.MaxAskersPerAddress {
		t.Fatalf("%d plans, %d objects: %v", len(plans), len(before), before)
	}
	if diff := cmp.Diff(plans, placement.PlanAsking(inputs)); diff != "" {
		t.Errorf("the same inputs (-first +second):\n%s", diff)
	}
	gone := plans[0].Asker
	inputs.Nodes[slices.IndexFunc(inputs.Nodes, func(n placement.Node) bool { return n.Name == gone })].Liveness =
		placement.Expired
	after := namesOf(placement.PlanAsking(inputs))
	for name, count := range before {
		if strings.HasPrefix(name, gone+" ") == (after[name] == count) {
			t.Errorf("without %s, %s has %d addresses, and had %d", gone, name, after[name], count)
		}
	}
	if len(after) != len(before) {
		t.Errorf("%d objects, then %d", len(before), len(after))
	}
}

// The work of asking is spread: with many holders no node asks for much more than its share.
func TestPlanAskingSpreads(t *testing.T) {
	const nodeCount = 20
	var names []string
	for i := range nodeCount {
		names = append(names, fmt.Sprintf("n%02d", i))
	}
	inputs := placement.Inputs{Nodes: nodes(t, strings.Join(names, " "))}
	for i := range inputs.Nodes {
		inputs.Nodes[i].AsksOthers = true
		addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})
		inputs.Addresses = append(
			inputs.Addresses, placement.Address{Addr: addr, Group: "g", PoolType: v1.PoolTypeLocal, Services: []string{"a/b"}},
		)
		inputs.Entries = append(inputs.Entries, entry(t, addr, inputs.Nodes[i].Name+" 1 Announced observed"))
	}
	count := map[string]int{}
	for _, plan := range placement.PlanAsking(inputs) {
		count[plan.Asker] += len(plan.Asking.Addresses)
	}
	total := 0
	for name, n := range count {
		if total += n; n > 4*v1.MaxAskersPerAddress {
			t.Errorf("%s asks for %d addresses", name, n)
		}
	}
	if total != nodeCount*v1.MaxAskersPerAddress {
		t.Errorf("%d questions in all", total)
	}
}
