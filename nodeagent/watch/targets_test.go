package watch

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// standby is an Announcement that asks node2 to watch node1 on eth0, and edits of it.
func standby(edit ...func(*v1.Standby)) v1.Announcement {
	s := &v1.Standby{
		Watched: v1.StandbyNode{
			NodeName: "node1", Addresses: []string{"2001:db8::11", "192.0.2.11"}, MACs: []string{node1MAC},
		},
		Interface: "eth0",
		Witnesses: []v1.StandbyNode{
			{NodeName: "node3", Addresses: []string{"192.0.2.13"}, MACs: []string{node3MAC}},
			{NodeName: "node4", Addresses: []string{"198.51.100.14"}, MACs: []string{node4MAC}},
			{NodeName: "node5", Addresses: []string{"192.0.2.15"}},
		},
		OtherSuccessors: []v1.StandbyNode{{NodeName: "node3", Addresses: []string{"192.0.2.13"}, MACs: []string{node3MAC}}},
		Addresses: []v1.StandbyAddress{
			{
				Address: "192.0.2.102", Epoch: 7,
				Successors: []v1.Successor{{NodeName: "node3", Epoch: 8}, {NodeName: "node2", Epoch: 9}},
			},
			{Address: "192.0.2.101", Epoch: 5, Successors: []v1.Successor{{NodeName: "node2", Epoch: 6}}},
			{Address: "192.0.2.103", Epoch: 5, Successors: []v1.Successor{{NodeName: "node3", Epoch: 6}}},
			{Address: "none", Epoch: 5, Successors: []v1.Successor{{NodeName: "node2", Epoch: 6}}},
		},
	}
	for _, e := range edit {
		e(s)
	}
	return v1.Announcement{
		ObjectMeta: metav1.ObjectMeta{Generation: 4}, Spec: v1.AnnouncementSpec{NodeName: "node2", Standby: s},
	}
}

func TestTargets(t *testing.T) {
	t.Parallel()
	hasSenderFor := func(iface string, addr netip.Addr) bool {
		return iface == "eth0" && netip.MustParsePrefix("192.0.2.0/24").Contains(addr)
	}
	next := standby(func(s *v1.Standby) {
		s.Addresses = []v1.StandbyAddress{
			{Address: "192.0.2.100", Epoch: 1, Successors: []v1.Successor{{NodeName: "node2", Epoch: 2}}},
			{Address: "192.0.2.101", Epoch: 5, Successors: []v1.Successor{{NodeName: "node2", Epoch: 6}}},
		}
	})
	gateways := map[string][]netip.Addr{
		"eth0": {gatewayAddr.Next().Next(), gatewayAddr.Next(), gatewayAddr, gatewayAddr}, "eth2": {node4Addr},
	}
	elsewhere := standby(func(s *v1.Standby) { s.Interface, s.Witnesses, s.Addresses = "eth1", nil, nil })
	got := Targets([]v1.Announcement{standby(), next, elsewhere}, "node2", hasSenderFor, gateways)
	want := map[Key]Target{
		{"eth0", "node1"}: {
			Watched:         Node{"node1", node1Addr, []string{node1MAC}},
			Witnesses:       []Node{{"node3", node3Addr, []string{node3MAC}}},
			Gateways:        []netip.Addr{gatewayAddr, gatewayAddr.Next()},
			OtherSuccessors: []Node{{"node3", node3Addr, []string{node3MAC}}},
			Addresses: []Address{
				{Addr: netip.MustParseAddr("192.0.2.100"), HolderEpoch: 1, Epoch: 2}, {Addr: first, HolderEpoch: 5, Epoch: 6},
				{Addr: second, Rank: 1, HolderEpoch: 7, Epoch: 9, OtherSuccessor: "node3"},
			},
		},
		{"eth1", "node1"}: {Watched: Node{"node1", netip.Addr{}, []string{node1MAC}}},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A node without an address on the link is not asked, and does not answer.
func TestUnreachableTarget(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(_ *Settings, target *Target) { target.Watched.Addr = netip.Addr{} })
	w.mustClaim(cold)
	w.mustBe(ReasonNoAnswer)
	if n := w.asked[question{Echo, netip.Addr{}}]; n > 0 {
		t.Errorf("an address that is none is asked %d times", n)
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	withFailover := func(f *v1.Failover) *v1.LBNodeAgent {
		return &v1.LBNodeAgent{Spec: v1.LBNodeAgentSpec{Local: &v1.LBNodeAgentLocal{Failover: f}}}
	}
	defaults := Settings{Interval: 100 * time.Millisecond, Misses: 5}
	no, few, tooFew := false, int32(3), int32(1)
	for name, c := range map[string]struct {
		agent *v1.LBNodeAgent
		want  Settings
	}{
		"none":                {nil, defaults},
		"no local settings":   {&v1.LBNodeAgent{}, defaults},
		"no failover":         {withFailover(nil), defaults},
		"nothing of failover": {withFailover(&v1.Failover{}), defaults},
		"all of it": {
			withFailover(&v1.Failover{
				Enabled: &no, Interval: &metav1.Duration{Duration: time.Second}, Misses: &few, Trust: v1.TrustEcho,
			}),
			Settings{IsDisabled: true, Interval: time.Second, Misses: 3, TrustsEchoOnly: true},
		},
		"what the API server refuses": {
			withFailover(&v1.Failover{Interval: &metav1.Duration{}, Misses: &tooFew}), Settings{
				Interval: 100 * time.Millisecond, Misses: 3,
			},
		},
	} {
		if got := SettingsOf(c.agent); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	ann, now := standby(), metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	ready := func(reason string) metav1.Condition {
		t.Helper()
		ann.Status = Status(&ann, reason, now)
		if len(ann.Status.Conditions) != 1 || ann.Status.ObservedGeneration != 4 {
			t.Fatalf("%+v", ann.Status)
		}
		return ann.Status.Conditions[0]
	}
	for reason := range readyMessages {
		want := metav1.ConditionFalse
		if reason == ReasonWatching {
			want = metav1.ConditionTrue
		}
		if c := ready(reason); c.Type != v1.ConditionReady || c.Status != want || c.Reason != reason ||
			c.ObservedGeneration != 4 || c.Message == "" {
			t.Errorf("%+v", c)
		}
	}
	if got, want := ready(ReasonNoAnswer).Message,
		"node1 has answered neither echoes nor, if they count, ARP requests or neighbour solicitations"; got != want {
		t.Errorf("message %q, want %q", got, want)
	}
	since := now
	now = metav1.NewTime(now.Add(time.Minute))
	if c := ready(ReasonLate); !c.LastTransitionTime.Equal(&since) {
		t.Errorf("Ready is False since %s, want %s", c.LastTransitionTime, since)
	}
	if c := ready(ReasonWatching); !c.LastTransitionTime.Equal(&now) {
		t.Errorf("Ready is True since %s, want %s", c.LastTransitionTime, now)
	}
}
