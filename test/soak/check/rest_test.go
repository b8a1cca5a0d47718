package check

import (
	"net/netip"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

var virtualAddr = netip.MustParseAddr("172.30.2.16")

// good returns a cluster with nothing wrong: two nodes, a Service with a Local address on
// node1, which node2 watches, and one with a Virtual address on both, which is a shared entry.
func good() Snapshot {
	announcement := func(node string, local ...v1.AnnouncedAddress) v1.Announcement {
		a := v1.Announcement{ObjectMeta: metav1.ObjectMeta{Name: node, Generation: 3}}
		a.Spec = v1.AnnouncementSpec{
			NodeName: node, LBNodeAgent: "default", IncludeCommonAnnouncements: true, Addresses: local,
		}
		a.Status = v1.AnnouncementStatus{ObservedGeneration: 3, Announced: int32(1 + len(local)),
			Desired:    int32(1 + len(local)),
			Conditions: []metav1.Condition{{Type: v1.ConditionReady, Status: metav1.ConditionTrue}}}
		for _, e := range local {
			a.Status.Addresses = append(
				a.Status.Addresses, v1.AddressStatus{Address: e.Address, State: v1.StateAnnounced, Epoch: e.Epoch},
			)
		}
		return a
	}
	successors := []v1.Successor{{NodeName: "node2", Epoch: 3}}
	standby := v1.Announcement{ObjectMeta: metav1.ObjectMeta{Name: "node2-standby"}}
	standby.Spec = v1.AnnouncementSpec{NodeName: "node2", LBNodeAgent: "default", Standby: &v1.Standby{
		Watched:   v1.StandbyNode{NodeName: "node1"},
		Addresses: []v1.StandbyAddress{{Address: addr.String(), Epoch: 2, Successors: successors}},
	}}
	dummy := Held{"kube-lb0", netip.MustParsePrefix("172.30.2.16/32")}
	done := Condition{Status: "True"}
	return Snapshot{
		Nodes: []Node{
			{Name: "node1", HasEndpoint: true, Held: []Held{{"eth0", netip.MustParsePrefix("10.77.0.100/32")}, dummy}},
			{Name: "node2", HasEndpoint: true, Held: []Held{dummy}},
		},
		Services: []Service{
			{
				Name: "s1", IsBalancer: true, Port: 80, Families: []string{"IPv4"}, Ingress: []netip.Addr{addr}, Branded: true,
				Allocated: done, Announced: done,
			},
			{
				Name: "s2", IsBalancer: true, Port: 80, Families: []string{"IPv4"}, Ingress: []netip.Addr{virtualAddr},
				Branded: true, Allocated: done, Announced: done,
			},
			{Name: "s3"},
		},
		Groups: []Group{
			{Name: "lan", Ready: true, AllocatedIPv4: 1, Ranges: []Range{{addr, addr.Next()}}},
			{Name: "remote", Ready: true, AllocatedIPv4: 1, Ranges: []Range{{virtualAddr, virtualAddr}}},
		},
		Announcements: []v1.Announcement{
			announcement(
				"node1",
				v1.AnnouncedAddress{
					Address: addr.String(), PrefixLength: 32, Interface: "eth0", Type: v1.AnnounceLocal, Epoch: 2,
					Successors: successors,
				},
			),
			announcement("node2"), standby,
		},
		Watched: true,
		Commons: []v1.CommonAnnouncement{{Spec: v1.CommonAnnouncementSpec{LBNodeAgent: "default",
			Addresses: []v1.AnnouncedAddress{
				{Address: virtualAddr.String(), PrefixLength: 32, Interface: "kube-lb0", Type: v1.AnnounceVirtual},
			}}}},
		Wanted: []string{"s1", "s2", "s3"},
		Asked:  map[netip.AddrPort]map[string]string{netip.AddrPortFrom(addr, 80): {"client": "", "far": ""}},
	}
}

func TestRestFindsNothingInAGoodCluster(t *testing.T) {
	if found := Rest(good()); len(found) > 0 {
		t.Errorf("found %q", found)
	}
}

// Each violation is planted into a good cluster, and found.
func TestRestFindsViolations(t *testing.T) {
	local := func(s *Snapshot) *v1.Announcement { return &s.Announcements[0] }
	for _, c := range []struct {
		name, want string
		plant      func(*Snapshot)
	}{
		{"a Service is gone", "s1 is gone", func(s *Snapshot) { s.Services = s.Services[1:] }},
		{"a Service is not deleted", "s3 was deleted and is still there", func(s *Snapshot) { s.Wanted = s.Wanted[:2] }},
		{
			"a forgotten Service", "s1 is forgotten",
			func(s *Snapshot) { s.Services[0].Allocated, s.Services[0].Ingress = Condition{}, nil },
		},
		{"a lost address", "s1 says Allocated, wants [IPv4] and has []", func(s *Snapshot) { s.Services[0].Ingress = nil }},
		{"a family is missing", "wants [IPv4 IPv6]", func(s *Snapshot) { s.Services[0].Families = []string{"IPv4", "IPv6"} }},
		{
			"no reason", "waits for no good reason",
			func(s *Snapshot) { s.Services[0].Allocated = Condition{"False", "Whatever", "x"} },
		},
		{"not exhausted", "is exhausted, and it is not", func(s *Snapshot) {
			s.Services[0].Ingress, s.Services[0].Allocated = nil, Condition{
				"False", v1.ReasonExhausted, "lan has no free address",
			}
		}},
		{
			"not announced", "is not announced, though [node1 node2] could",
			func(s *Snapshot) { s.Services[0].Announced = Condition{"False", "NotAnnounced", "x"} },
		},
		{
			"no answer", "does not answer far: timeout",
			func(s *Snapshot) { s.Asked[netip.AddrPortFrom(addr, 80)]["far"] = "timeout" },
		},
		{
			"addresses of a ClusterIP", "s3 is no LoadBalancer",
			func(s *Snapshot) { s.Services[2].Ingress = []netip.Addr{addr} },
		},
		{"marks of a ClusterIP", "s3 is no LoadBalancer", func(s *Snapshot) { s.Services[2].Branded = true }},
		{
			"an address of two Services", "shares with none",
			func(s *Snapshot) { s.Services[1].Ingress = []netip.Addr{addr}; s.Services[1].Port = 81 },
		},
		{"a port of two Services", "port 80 is of", func(s *Snapshot) {
			s.Services[0].ShareKey, s.Services[1].ShareKey, s.Services[1].Ingress = "k", "k", []netip.Addr{addr}
		}},
		{"an agent that is behind", "generation 4, and its agent has seen 3", func(s *Snapshot) { local(s).Generation = 4 }},
		{
			"status is not spec", "is to be announced with epoch 2, and is not",
			func(s *Snapshot) { local(s).Status.Addresses[0].Epoch = 1 },
		},
		{"Waiting", "is to be announced", func(s *Snapshot) { local(s).Status.Addresses[0].State = v1.StateWaiting }},
		{"status has more than spec", "which is not in spec", func(s *Snapshot) {
			s.Announcements[1].Status.Addresses = []v1.AddressStatus{{Address: "10.77.0.101", State: v1.StateAnnounced}}
		}},
		{"not all announced", "1 of 2 are announced", func(s *Snapshot) { local(s).Status.Announced = 1 }},
		{"not Ready", "is not Ready", func(s *Snapshot) { local(s).Status.Conditions[0].Status = metav1.ConditionFalse }},
		{"handed over", "still being handed over", func(s *Snapshot) { local(s).Spec.Addresses[0].HandingOver = true }},
		{"a leftover", "node2 has 10.77.0.100/32 on eth0, left over", func(s *Snapshot) {
			s.Nodes[1].Held = append(s.Nodes[1].Held, Held{"eth0", netip.MustParsePrefix("10.77.0.100/32")})
		}},
		{
			"the wrong interface", "and is to have 172.30.2.16/32 on kube-lb0",
			func(s *Snapshot) { s.Nodes[1].Held[0].Link = "eth0" },
		},
		{
			"the wrong mask", "node1 has 10.77.0.100/24",
			func(s *Snapshot) { s.Nodes[0].Held[0].Prefix = netip.MustParsePrefix("10.77.0.100/24") },
		},
		{
			"twice", "has 172.30.2.16 twice",
			func(s *Snapshot) { s.Nodes[1].Held = append(s.Nodes[1].Held, s.Nodes[1].Held[0]) },
		},
		{
			"not in the kernel", "node1 is to have 10.77.0.100, and has not",
			func(s *Snapshot) { s.Nodes[0].Held = s.Nodes[0].Held[1:] },
		},
		{"of no Service", "which no Service has", func(s *Snapshot) { s.Services, s.Wanted = s.Services[1:], s.Wanted[1:] }},
		{"on an excluded node", "is excluded or out of service", func(s *Snapshot) { s.Nodes[0].Refusing = true }},
		{
			"two holders", "Local address 10.77.0.100 is on [node1 node2]",
			func(s *Snapshot) { s.Announcements[1].Spec.Addresses = local(s).Spec.Addresses },
		},
		{
			"not on all nodes", "Virtual address 172.30.2.16 is not on node2",
			func(s *Snapshot) { s.Announcements[1].Spec.IncludeCommonAnnouncements = false },
		},
		{
			"a holder without a successor", "no node follows node1 as the holder of 10.77.0.100, though [node2] could",
			func(s *Snapshot) { local(s).Spec.Addresses[0].Successors = nil },
		},
		{
			"a successor that is not told", "node2 is to follow node1 as the holder of 10.77.0.100, and is not told so",
			func(s *Snapshot) { s.Announcements = s.Announcements[:2] },
		},
		{
			"a successor that knows another epoch", "node2 is to follow node1 as the holder of 10.77.0.100, and is not told so",
			func(s *Snapshot) { s.Announcements[2].Spec.Standby.Addresses[0].Epoch = 1 },
		},
		{
			"a watcher that is no successor", "node2 watches node1 because of 10.77.0.101, and is not to follow it",
			func(s *Snapshot) { s.Announcements[2].Spec.Standby.Addresses[0].Address = "10.77.0.101" },
		},
		{"a wrong count", "lan counts 2 and 0", func(s *Snapshot) { s.Groups[0].AllocatedIPv4 = 2 }},
		{"a group is not Ready", "lan is not Ready", func(s *Snapshot) { s.Groups[0].Ready = false }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := good()
			c.plant(&s)
			if found := strings.Join(Rest(s), "\n"); !strings.Contains(found, c.want) {
				t.Errorf("found %q, want %q", found, c.want)
			}
		})
	}
}

// What is as it should be, though it looks like a violation.
func TestRestAccepts(t *testing.T) {
	for name, change := range map[string]func(*Snapshot){
		"an exhausted pool": func(s *Snapshot) {
			s.Groups[0].Ranges = []Range{{addr, addr}}
			s.Services[2] = Service{
				Name: "s3", IsBalancer: true, Families: []string{"IPv4"},
				Allocated: Condition{"False", v1.ReasonExhausted, "lan has no free address"},
			}
		},
		"no other node could follow": func(s *Snapshot) {
			s.Nodes[1].Refusing, s.Announcements = true, s.Announcements[:2]
			local := &s.Announcements[0]
			local.Spec.Addresses[0].Successors = nil
		},
		"no node is to watch": func(s *Snapshot) {
			s.Watched, s.Announcements = false, s.Announcements[:2]
			local := &s.Announcements[0]
			local.Spec.Addresses[0].Successors = nil
		},
		"policy Local without an endpoint": func(s *Snapshot) {
			s.Nodes[0].HasEndpoint, s.Nodes[1].HasEndpoint = false, false
			s.Services[0].PolicyLocal, s.Services[0].Announced = true, Condition{
				"False", v1.ReasonNoEligibleNode, "no node has an endpoint",
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := good()
			change(&s)
			if found := Rest(s); len(found) > 0 {
				t.Errorf("found %q", found)
			}
		})
	}
}
