package placement_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// onLink is facts of one Local address.
func onLink(t *testing.T, ns string, entries ...string) (placement.Inputs, netip.Addr) {
	t.Helper()
	addr := netip.MustParseAddr("10.0.0.1")
	inputs := placement.Inputs{
		Nodes: nodes(t, ns),
		Addresses: []placement.Address{
			{Addr: addr, Group: "g", PoolType: v1.PoolTypeLocal, Services: []string{"a/b"}},
		},
		LingeringReports: map[netip.Addr][]placement.LingeringReport{},
	}
	for _, e := range entries {
		inputs.Entries = append(inputs.Entries, entry(t, addr, e))
	}
	return inputs, addr
}

// claimOf is the newest entry of a result.
func claimOf(r placement.Result) (newest v1.AnnouncedAddress) {
	for _, entries := range r.Entries {
		for _, e := range entries {
			if e.Epoch > newest.Epoch {
				newest = e.AnnouncedAddress
			}
		}
	}
	return newest
}

// TestFaultDeletedNode has Nodes deleted while their kernels answer on: the successor
// is told by which MAC addresses they may.
func TestFaultDeletedNode(t *testing.T) {
	withMACs := func(f placement.Inputs) placement.Inputs {
		for i := range f.Nodes {
			n := &f.Nodes[i]
			n.MACs = []string{"mac-" + n.Name, "other-" + n.Name}
		}
		return f
	}
	inputs, _ := onLink(t, "a:gone b", "a 3 Announced")
	if diff := cmp.Diff([]string{"mac-a", "other-a"},
		claimOf(placement.Place(withMACs(inputs))).PreviousMACs); diff != "" {
		t.Errorf("after the Node was deleted (-want +got):\n%s", diff)
	}
	inputs, _ = onLink(t, "b:expired c", "b 4 Conflict")
	inputs.Entries[0].Spec.PreviousMACs = []string{"mac-a", "other-a"}
	if diff := cmp.Diff(
		[]string{"mac-b", "mac-a", "other-a", "other-b"}, claimOf(placement.Place(withMACs(inputs))).PreviousMACs,
	); diff != "" {
		t.Errorf("after all that is known of it is in the entry of its successor (-want +got):\n%s", diff)
	}
}

// TestPreviousMACsBound checks that the MAC addresses by which a node most likely
// answers are in what the successor is told.
func TestPreviousMACsBound(t *testing.T) {
	inputs, _ := onLink(t, "a:expired b", "a 3 Announced")
	for i := range 2 * v1.MaxPreviousMACs {
		inputs.Nodes[0].MACs = append(inputs.Nodes[0].MACs, fmt.Sprintf("a-%03d", i))
	}
	got := claimOf(placement.Place(inputs)).PreviousMACs
	if len(got) != v1.MaxPreviousMACs || !slices.Contains(got, "mac-a") {
		t.Errorf("%d, of which the one in the subnet is %t", len(got), slices.Contains(got, "mac-a"))
	}
}

// TestPreviousMACsOrder lists first by which MAC addresses a node answers on the link.
func TestPreviousMACsOrder(t *testing.T) {
	inputs, _ := onLink(t, "a:expired b", "a 3 Announced")
	inputs.Nodes[0].MACs = []string{"mac-of-others"}
	inputs.Nodes[0].Interfaces = []placement.Interface{
		{Name: "eth0", MAC: "mac-elsewhere", Subnets: []netip.Prefix{netip.MustParsePrefix("10.9.9.9/24")}},
		{Name: "eth1", MAC: "mac-on-link", Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.0.200/24")}},
		{Name: "eth2", Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.0.220/24")}},
	}
	if diff := cmp.Diff(
		[]string{"mac-on-link", "mac-elsewhere", "mac-of-others"}, claimOf(placement.Place(inputs)).PreviousMACs,
	); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestAttackLingering has a node report all addresses as announced that it was never
// given. This test shows the row "choose where addresses go by reporting those that its node was not
// given" of docs/trust.md.
func TestAttackLingering(t *testing.T) {
	where := func(lies bool, since time.Duration) string {
		inputs := placement.Inputs{
			Nodes: nodes(t, "a b c d e"), LingeringReports: map[netip.Addr][]placement.LingeringReport{},
		}
		for i := range 50 {
			addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + i)})
			inputs.Addresses = append(inputs.Addresses, placement.Address{Addr: addr, PoolType: v1.PoolTypeLocal})
			if lies {
				inputs.LingeringReports[addr] = []placement.LingeringReport{{Node: "e", Age: since}}
			}
		}
		var out []string
		for name, entries := range placement.Place(inputs).Entries {
			for _, e := range entries {
				out = append(out, name+" "+e.Address+" "+string(e.ClaimPolicy))
			}
		}
		slices.Sort(out)
		return strings.Join(out, "\n")
	}
	if got := where(true, placement.LingeringTime-time.Second); got != "" {
		t.Errorf("addresses that a node may have are given to others at once:\n%s", got)
	}
	if diff := cmp.Diff(where(false, 0), where(true, placement.LingeringTime)); diff != "" {
		t.Errorf("where they are without that node's reports, and with them:\n%s", diff)
	}
}

// TestAttackInterfaces has a node report an interface in the subnet of a pool of which
// addresses are announced Virtual. This test shows the row "turn Virtual addresses into Local ones" of
// docs/trust.md.
func TestAttackInterfaces(t *testing.T) {
	subnet := netip.MustParsePrefix("10.9.9.0/24")
	address := func(s string, subnet netip.Prefix) placement.Address {
		return placement.Address{
			Addr: netip.MustParseAddr(s), Group: "g", PoolType: v1.PoolTypeLocal, Subnet: subnet, Mask: 24,
			Services: []string{"a/b"},
		}
	}
	inUse := address("10.9.9.1", subnet)
	for _, row := range []struct {
		name    string
		another placement.Address
		apart   bool // the one that is in use is in nodes' own Announcements
		want    v1.AnnounceType
	}{
		{"another of the pool", address("10.9.9.2", subnet), false, v1.AnnounceVirtual},
		{"another of the pool, the first being on some nodes only", address("10.9.9.2", subnet), true, v1.AnnounceVirtual},
		{"of another pool", address("10.9.9.2", netip.MustParsePrefix("10.9.9.0/25")), false, v1.AnnounceLocal},
	} {
		inputs := placement.Inputs{Nodes: nodes(t, "a b c:elsewhere"), Addresses: []placement.Address{inUse, row.another}}
		if row.apart {
			inputs.Entries = []placement.Entry{entry(t, inUse.Addr, "a 0 Virtual Announced")}
		} else {
			inputs.SharedEntries = []placement.SharedEntry{
				{LBNodeAgent: "default", Addr: inUse.Addr, Spec: v1.AnnouncedAddress{Address: "10.9.9.1", Epoch: 1}},
			}
		}
		result, got := placement.Place(inputs), v1.AnnounceLocal
		if slices.ContainsFunc(
			result.SharedEntries["default"], func(e placement.Placed) bool { return e.Addr == row.another.Addr },
		) {
			got = v1.AnnounceVirtual
		}
		if got != row.want {
			t.Errorf("%s: is %s, want %s", row.name, got, row.want)
		}
		var types []v1.AnnounceType // of the one that is in use, by the nodes that announce it
		for _, entries := range append(slices.Collect(maps.Values(result.Entries)), result.SharedEntries["default"]) {
			for _, e := range entries {
				if e.Addr == inUse.Addr {
					types = append(types, e.Type)
				}
			}
		}
		if len(types) == 0 || slices.Contains(types, v1.AnnounceLocal) {
			t.Errorf("%s: the address that is in use is %v", row.name, types)
		}
	}
}

// TestAttackOtherLink has node c report an interface in the subnet of nodes a and b, where it is
// not. This test shows the row "attract addresses of a link where its node is not" of
// docs/trust.md.
func TestAttackOtherLink(t *testing.T) {
	const pool, elsewhere = "10.0.0.0/24", "10.5.0.3"
	for _, row := range []struct {
		name, pool        string
		others            string // Node addresses of a and b, to which their number is appended
		own               string // Node address of c
		reported          string // by the agent of c
		allowedC, allowed string // subnets of c's LBNodeAgent, and of all
		takes             bool   // c takes addresses
	}{
		{"of the same link", pool, "10.0.0.20", "10.0.0.3", pool, "", "", true},
		{"of another one", pool, "10.0.0.20", elsewhere, pool, "", "", false},
		{"of all links", pool, "10.0.0.20", "10.0.0.3", "0.0.0.0/0", "", "", false},
		{"no Node object has an address of the link", pool, "10.7.0.20", elsewhere, pool, "", "", true},
		{"whose Node object has no IPv4 address", pool, "10.0.0.20", "fd00::3", pool, "", "", true},
		{"whose Node object has no address", pool, "10.0.0.20", "", pool, "", "", true},
		{"the group of the address is gone", "", "10.0.0.20", elsewhere, pool, "", "", true},
		{"whose LBNodeAgent names the subnet", pool, "10.0.0.20", elsewhere, pool, pool, "", true},
		{"whose LBNodeAgent names another one", pool, "10.0.0.20", "10.0.0.3", pool, "10.5.0.0/24", "", false},
		{"all are where no Node object says", pool, "10.7.0.20", elsewhere, pool, "", "10.5.0.0/24", false},
	} {
		inputs := placement.Inputs{Nodes: nodes(t, "a b c")}
		for i := range inputs.Nodes {
			n := &inputs.Nodes[i]
			address, allowed := fmt.Sprint(row.others, i), row.allowed
			if n.Name == "c" {
				address = row.own
				n.Interfaces[0].Subnets = []netip.Prefix{netip.MustParsePrefix(row.reported)}
				if row.allowedC != "" {
					allowed = row.allowedC
				}
			}
			if address != "" {
				n.Addresses = []netip.Addr{netip.MustParseAddr(address)}
			}
			if allowed != "" {
				n.AllowedSubnets = []netip.Prefix{netip.MustParsePrefix(allowed)}
			}
		}
		for i := range 60 {
			a := placement.Address{Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + i)}), Group: "g", PoolType: v1.PoolTypeLocal}
			if row.pool != "" {
				a.Subnet = netip.MustParsePrefix(row.pool)
			}
			inputs.Addresses = append(inputs.Addresses, a)
		}
		result := placement.Place(inputs)
		if got := len(result.Entries["c"]); (got > 0) != row.takes {
			t.Errorf("%s: node c takes %d of 60 addresses", row.name, got)
		}
		if row.takes {
			continue
		}
		verdict, _ := placement.ExplainAddress(inputs, inputs.Addresses[0].Addr)
		if row.allowed != "" { // then no node is on the link
			if verdict.Type != v1.AnnounceVirtual {
				t.Errorf("%s: addresses are %s", row.name, verdict.Type)
			}
			continue
		}
		if got := verdict.Nodes[2]; got.IsEligible || got.Why == "" {
			t.Errorf("%s: explained as %+v", row.name, got)
		}
	}
}

// TestFaultHolderContradicted has the holder of an address report what its Node object
// contradicts, as after an upgrade from a version that did not look: it keeps the address.
func TestFaultHolderContradicted(t *testing.T) {
	inputs, addr := onLink(t, "a b", "a 3 Announced")
	inputs.Addresses[0].Subnet = netip.MustParsePrefix("10.0.0.0/24")
	inputs.Nodes[0].Addresses = []netip.Addr{netip.MustParseAddr("10.5.0.1")}
	inputs.Nodes[1].Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.2")}
	result := placement.Place(inputs)
	if len(result.Entries["a"]) != 1 || len(result.Entries["b"]) != 0 {
		t.Errorf("%s: a has %v, b has %v", addr, result.Entries["a"], result.Entries["b"])
	}
}

// TestAttackSharers has more Services share an address than an entry may name.
func TestAttackSharers(t *testing.T) {
	inputs, addr := onLink(t, "a")
	for i := range 10 * v1.MaxServicesPerAddress {
		inputs.Addresses[0].Services = append(inputs.Addresses[0].Services, fmt.Sprintf("attacker/s%d", i))
	}
	if got := placement.Place(inputs).Entries["a"]; len(got) != 1 || len(got[0].Services) != v1.MaxServicesPerAddress {
		t.Errorf("%s: %d entries, %d Services in the first", addr, len(got), len(got[0].Services))
	}
}

// TestClocks checks what restarts a deadline.
func TestClocks(t *testing.T) {
	var clocks placement.Clocks
	now := time.Unix(1000, 0)
	waiting := func(after time.Duration, e string) time.Duration {
		now = now.Add(after)
		inputs, _ := onLink(t, "a", e)
		clocks.FillDurations(&inputs, now)
		return inputs.Entries[0].UnchangedFor
	}
	for _, step := range []struct {
		after time.Duration
		entry string
		want  time.Duration
	}{
		{0, "a 1", 0},
		{2 * time.Second, "a 1", 2 * time.Second},
		{time.Second, "a 1 Pending observed", 3 * time.Second},
		{time.Second, "a 1 Waiting", 0},
		{time.Second, "a 1 Pending", 0},
		{time.Second, "a 1 leaving", 0},
		{time.Second, "a 1 leaving observed", time.Second},
		{time.Second, "a 1 Takeover", 0},
		{time.Second, "a 2 Takeover", 0},
		{time.Hour, "a 2 Takeover", time.Hour},
	} {
		if got := waiting(step.after, step.entry); got != step.want {
			t.Errorf("%s after %s has waited for %s, want %s", step.entry, step.after, got, step.want)
		}
	}

	// What one node reports begins anew only when it was away.
	lingering := func(after time.Duration, names ...string) (since []time.Duration) {
		now = now.Add(after)
		inputs, addr := onLink(t, "a b")
		for _, name := range names {
			inputs.LingeringReports[addr] = append(inputs.LingeringReports[addr], placement.LingeringReport{Node: name})
		}
		clocks.FillDurations(&inputs, now)
		for _, l := range inputs.LingeringReports[addr] {
			since = append(since, l.Age)
		}
		return since
	}
	lingering(0, "a")
	if diff := cmp.Diff([]time.Duration{time.Second, 0}, lingering(time.Second, "a", "b")); diff != "" {
		t.Error(diff)
	}
	lingering(time.Second)
	if diff := cmp.Diff([]time.Duration{0}, lingering(time.Second, "a")); diff != "" {
		t.Error(diff)
	}

	// An agent that reports nothing gets no more time by falling silent.
	overdue := func(after time.Duration, node string) bool {
		now = now.Add(after)
		inputs, _ := onLink(t, node)
		clocks.FillDurations(&inputs, now)
		return inputs.Nodes[0].AreFactsOverdue
	}
	for i, step := range []struct {
		after time.Duration
		node  string
		want  bool
	}{
		{0, "z:expired", false}, {time.Hour, "z:silent", false}, {20 * time.Second, "z:expired", false},
		{20 * time.Second, "z:silent", true},
	} {
		if got := overdue(step.after, step.node); got != step.want {
			t.Errorf("step %d: facts are overdue: %t, want %t", i, got, step.want)
		}
	}
}

// TestNextDeadline checks when placement is to be done again.
func TestNextDeadline(t *testing.T) {
	for _, row := range []struct {
		nodes   string
		entries []string
		want    time.Duration
	}{
		{"a", []string{"a 1 Announced"}, 0},
		{"a", []string{"a 1"}, placement.ReactionTime},
		{"a:slowprobe", []string{"a 1 Pending"}, placement.ReactionTime + 10*time.Second},
		{"a", []string{"a 1 waiting"}, 0},
		{"a", []string{"a 1 Announced leaving"}, placement.ReactionTime},
		{"a", []string{"a 1 Announced leaving waiting"}, 0},
		{"a b", []string{"a 1 waiting", "b 2 Waiting"}, 0},
		{"a b", []string{"a 1", "b 2 waiting"}, placement.ReactionTime},
		{"a", []string{"a 0 Virtual Announced"}, placement.ReactionTime},
		{"a", []string{"a 0 Virtual observed"}, placement.ReactionTime},
		{"a", []string{"a 0 Virtual Announced observed"}, 0},
	} {
		inputs, _ := onLink(t, row.nodes, row.entries...)
		if got := nextDeadline(inputs); got != row.want {
			t.Errorf("%v: %s, want %s", row.entries, got, row.want)
		}
	}
	inputs, addr := onLink(t, "a")
	inputs.LingeringReports[addr] = []placement.LingeringReport{{Node: "a", Age: 4 * time.Second}}
	if got := nextDeadline(inputs); got != placement.LingeringTime-4*time.Second {
		t.Errorf("lingering: %s", got)
	}
}

// TestFaultStaleLeader checks that an epoch that was given to one node is given to no
// other by a leader that has not seen that: the entry that it decided from has changed.
func TestFaultStaleLeader(t *testing.T) {
	inputs, addr := onLink(t, "a:excluded b c", "a 1 Announced leaving observed")
	result := placement.Place(inputs)
	if !placement.ReassignedAddresses(&inputs, &result)[addr] {
		t.Error("the node that is given the address is not written last")
	}
	holder := result.Entries["a"][0]
	if holder.HighestEpoch != 2 || claimOf(result).Epoch != 2 {
		t.Errorf("the holder notes epoch %d, and the next node is given %d", holder.HighestEpoch, claimOf(result).Epoch)
	}
	inputs.Entries[0].Spec = holder.AnnouncedAddress // and the other's Announcement was lost
	if got := claimOf(placement.Place(inputs)).Epoch; got != 3 {
		t.Errorf("the next node is given epoch %d", got)
	}
	inputs, addr = onLink(t, "a b")
	result = placement.Place(inputs)
	if placement.ReassignedAddresses(&inputs, &result)[addr] {
		t.Error("a new address waits for something")
	}
}
