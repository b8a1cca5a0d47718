package announced_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/announced"
)

// virtualOn are places of a Virtual address of ServiceGroup "far", on nodes that announce it.
func virtualOn(address string, nodes ...string) []announced.Place {
	var places []announced.Place
	for _, node := range nodes {
		places = append(places, announced.Place{
			Node: node, Address: address, Type: v1.AnnounceVirtual, ServiceGroup: "far", State: v1.StateAnnounced,
		})
	}
	return places
}

// routing is a NodeRouting with IPv4 sessions. Each is the name of a BGPPeer, then "up" or "down", then the number of
// routes that were sent.
func routing(sessions ...string) *v1.NodeRouting {
	r := &v1.NodeRouting{}
	for _, text := range sessions {
		peer, state, advertised := "", "", int32(0)
		if _, err := fmt.Sscan(text, &peer, &state, &advertised); err != nil {
			panic(err)
		}
		s := v1.RoutingSession{Peer: peer, Neighbor: "192.0.2." + peer, State: "Active"}
		if state == "up" {
			s.State, s.Families, s.Advertised = v1.SessionEstablished, []v1.IPFamily{"IPv4"}, advertised
		}
		r.Spec.Peers = append(r.Spec.Peers, v1.RoutingPeer{
			Name: peer, Address: s.Neighbor, Families: []v1.IPFamily{"IPv4"},
		})
		r.Status.Sessions = append(r.Status.Sessions, s)
	}
	return r
}

// withGroup makes a NodeRouting say how the addresses of ServiceGroup "far" are advertised.
func withGroup(r *v1.NodeRouting, bgp v1.ServiceGroupBGP) *v1.NodeRouting {
	r.Spec.Groups = []v1.RoutingGroup{{Name: "other"}, {Name: "far", ServiceGroupBGP: bgp}}
	return r
}

// withheldAt makes a NodeRouting withhold a range of addresses.
func withheldAt(r *v1.NodeRouting, withheld string) *v1.NodeRouting {
	r.Spec.Withheld = []string{withheld}
	return r
}

// unsentIn makes the first session of a NodeRouting say to which addresses no route was sent in it.
func unsentIn(r *v1.NodeRouting, unsent ...string) *v1.NodeRouting {
	r.Status.Sessions[0].Unsent = unsent
	return r
}

func TestAdvertise(t *testing.T) {
	t.Parallel()
	type routings = map[string]*v1.NodeRouting
	const four, six = "10.1.0.1", "fd01::1"
	waiting := virtualOn(four, "n1")
	waiting[0].State = v1.StatePending
	local := virtualOn(four, "n1")
	local[0].Type = v1.AnnounceLocal
	twoFamilies := routing("1 down 0", "1 up 1")
	twoFamilies.Spec.Peers[1].Address, twoFamilies.Spec.Peers[1].Families = "2001:db8::1", []v1.IPFamily{"IPv6"}
	twoFamilies.Status.Sessions[1].Neighbor = "2001:db8::1"
	twoFamilies.Status.Sessions[1].Families = []v1.IPFamily{"IPv6"}
	both := routing("1 up 2")
	both.Spec.Peers[0].Families = []v1.IPFamily{"IPv4", "IPv6"}
	for _, row := range []struct {
		name     string
		places   []announced.Place
		routings routings
		by       v1.AdvertisedBy
		want     string
	}{
		{"Local only", local, routings{"n1": routing("1 up 1")}, "", "  "},
		{"nothing placed", nil, nil, "", "  "},
		{"by all", virtualOn(four, "n1", "n2"),
			routings{"n1": routing("1 up 1", "2 up 1"), "n2": routing("1 up 3", "2 up 3")}, "",
			"True Advertised 10.1.0.1 is advertised by 2 of 2 nodes, in 4 of 4 sessions"},
		{"by the speakers, as said", virtualOn(four, "n1"), routings{"n1": routing("1 up 1")}, v1.AdvertisedBySpeakers,
			"True Advertised 10.1.0.1 is advertised by 1 of 1 nodes, in 1 of 1 sessions"},
		{"by one of three", virtualOn(four, "n1", "n2", "n3"),
			routings{"n1": routing("1 up 1", "2 down 0"), "n2": routing("1 down 0")},
			"", "True Advertised 10.1.0.1 is advertised by 1 of 3 nodes, in 1 of 3 sessions"},
		{"no speaker", virtualOn(four, "n1", "n2"), nil, "",
			"False NoRouter no BGPPeer gives one of the 2 nodes that announce 10.1.0.1 a router for it: make one or, if " +
				"routing software of your own advertises it, set spec.advertisedBy of ServiceGroup far to External"},
		{"only nodes that do not announce it have routers", virtualOn(four, "n1"),
			routings{"n1": routing(), "n2": routing("1 up 1")}, "", "False NoRouter no BGPPeer gives one of the 1 nodes"},
		{"routers are for the other family", virtualOn(six, "n1"), routings{"n1": routing("1 up 1")}, "",
			"False NoRouter no BGPPeer"},
		{"external", virtualOn(four, "n1"), nil, v1.AdvertisedByExternal, "Unknown External spec.advertisedBy of " +
			"ServiceGroup far says that routing software of your own advertises the addresses: PureLB does not see " +
			"whether it does"},
		{"external, beside speakers", virtualOn(four, "n1"), routings{"n1": routing("1 up 1")}, v1.AdvertisedByExternal,
			"Unknown External"},
		{"all sessions down", virtualOn(four, "n1", "n2"), routings{"n1": routing("1 down 0"), "n2": routing("1 down 0")},
			"", "False NoSession 10.1.0.1 is advertised by 0 of 2 nodes: 0 of 2 sessions are up"},
		{"the speaker has not reported", virtualOn(four, "n1"),
			routings{"n1": {Spec: routing("1 up 1").Spec}}, "", "False NoSession 10.1.0.1"},
		{"nothing sent", virtualOn(four, "n1"), routings{"n1": routing("1 up 0", "2 down 0")}, "",
			"False NotAdvertised 10.1.0.1 is advertised by 0 of 1 nodes: 1 of 2 sessions are up, and none has been sent a " +
				"route to it"},
		{"routes were sent to others alone", virtualOn(four, "n1"),
			routings{"n1": unsentIn(routing("1 up 7"), "10.0.0.1-10.0.0.9", "10.1.0.1-10.1.0.1")}, "",
			"False NotAdvertised 10.1.0.1 is advertised by 0 of 1 nodes: 1 of 1 sessions are up, and none has been sent a " +
				"route to it"},
		{"others were sent no route", virtualOn(four, "n1"), routings{"n1": unsentIn(routing("1 up 7"), "10.1.0.2-10.1.0.9")},
			"", "True Advertised 10.1.0.1 is advertised by 1 of 1 nodes, in 1 of 1 sessions"},
		{"one session has sent no route", virtualOn(four, "n1"),
			routings{"n1": unsentIn(routing("1 up 7", "2 up 8"), "10.1.0.0-10.1.0.9")}, "",
			"True Advertised 10.1.0.1 is advertised by 1 of 1 nodes, in 1 of 2 sessions"},
		{"one node has sent no route", virtualOn(four, "n1", "n2"),
			routings{"n1": unsentIn(routing("1 up 7"), "10.1.0.0-10.1.0.9"), "n2": routing("1 up 8")}, "",
			"True Advertised 10.1.0.1 is advertised by 1 of 2 nodes, in 1 of 2 sessions"},
		{"of two addresses one was sent a route to", append(virtualOn(four, "n1"), virtualOn("10.1.0.2", "n1")...),
			routings{"n1": unsentIn(routing("1 up 7"), "10.1.0.2-10.1.0.2")}, "",
			"False NotAdvertised 10.1.0.2 is advertised by 0 of 1 nodes: 1 of 1 sessions are up, and none has been sent a " +
				"route to it; 10.1.0.1 is advertised by 1 of 1 nodes, in 1 of 1 sessions"},
		{"the neighbour does not take the family", virtualOn(six, "n1"), routings{"n1": both}, "",
			"False NotAdvertised fd01::1"},
		{"a session of a BGPPeer that is gone", virtualOn(four, "n1"),
			routings{"n1": {Status: routing("1 up 1").Status}}, "", "False NoRouter"},
		{"the group is for other peers", virtualOn(four, "n1"),
			routings{"n1": withGroup(routing("1 up 1", "2 down 0"), v1.ServiceGroupBGP{Peers: []string{"2"}})}, "",
			"False NoSession 10.1.0.1 is advertised by 0 of 1 nodes: 0 of 1 sessions are up"},
		{"the group is for one peer", virtualOn(four, "n1"),
			routings{"n1": withGroup(routing("1 up 1", "2 down 0"), v1.ServiceGroupBGP{Peers: []string{"1"}})}, "",
			"True Advertised 10.1.0.1 is advertised by 1 of 1 nodes, in 1 of 1 sessions"},
		{"the group is not advertised", virtualOn(four, "n1"),
			routings{"n1": withGroup(routing("1 up 1"), v1.ServiceGroupBGP{Advertise: ptr.To(false)})}, "",
			"False NoRouter spec.bgp.advertise of ServiceGroup far keeps speakers from advertising 10.1.0.1"},
		{"the group is advertised, as said", virtualOn(four, "n1"),
			routings{"n1": withGroup(routing("1 up 1"), v1.ServiceGroupBGP{Advertise: ptr.To(true)})}, "", "True Advertised"},
		{"nobody says how", virtualOn(four, "n1"), routings{"n1": withheldAt(routing("1 up 1"), "10.1.0.0-10.1.0.9")}, "",
			"False NotAdvertised 10.1.0.1 is advertised to nobody, as no ServiceGroup says how"},
		{"nobody says how others are advertised", virtualOn(four, "n1"),
			routings{"n1": withheldAt(routing("1 up 1"), "10.1.0.2-10.1.0.9")}, "", "True Advertised"},
		{"only the other session of the BGPPeer is up", virtualOn(four, "n1"), routings{"n1": twoFamilies}, "",
			"False NoSession 10.1.0.1 is advertised by 0 of 1 nodes: 0 of 1 sessions are up"},
		{"not announced", waiting, routings{"n1": routing("1 up 1")}, "",
			"False NotAnnounced no node announces 10.1.0.1 yet"},
		{"one address of two", append(virtualOn(four, "n1"), virtualOn(six, "n1")...), routings{"n1": routing("1 up 1")}, "",
			"False NoRouter no BGPPeer gives one of the 1 nodes that announce fd01::1 a router"},
		{"many addresses", append(append(virtualOn(four, "n1"), virtualOn("10.1.0.2", "n1")...),
			append(virtualOn("10.1.0.3", "n1"), virtualOn("10.1.0.4", "n1")...)...), routings{"n1": routing("1 up 4")}, "",
			"True Advertised 10.1.0.1 is advertised by 1 of 1 nodes, in 1 of 1 sessions; 10.1.0.2 is advertised by 1 of 1 " +
				"nodes, in 1 of 1 sessions; 10.1.0.3 is advertised by 1 of 1 nodes, in 1 of 1 sessions; and 1 more"},
	} {
		group := &v1.ServiceGroup{Spec: v1.ServiceGroupSpec{AdvertisedBy: row.by}}
		c := announced.AdvertisedCondition(row.places, row.routings, group)
		if got := fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message); !strings.HasPrefix(got, row.want) {
			t.Errorf("%s:\n%s, want\n%s", row.name, got, row.want)
		}
		if (c.Type == "") != (c.Status == "") || c.Type != "" && c.Type != v1.ConditionAdvertised {
			t.Errorf("%s: type %q", row.name, c.Type)
		}
	}
}

// TestAdvertiseWithoutSubnet reads of a Virtual address of a group of kind local that no router is needed where the
// subnet is corrected.
func TestAdvertiseWithoutSubnet(t *testing.T) {
	group := &v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Name: "near"}}
	meta.SetStatusCondition(&group.Status.Conditions, metav1.Condition{
		Type: v1.ConditionSubnetNotFound, Status: metav1.ConditionTrue,
	})
	c := announced.AdvertisedCondition(virtualOn("10.1.0.1", "n1"), nil, group)
	const want = "ServiceGroup near is one of kind local, and no node is in its subnet: see its condition " +
		"SubnetNotFound; besides, no BGPPeer"
	if c.Reason != v1.ReasonNoRouter || !strings.HasPrefix(c.Message, want) {
		t.Errorf("%s %s", c.Reason, c.Message)
	}
}

// TestCurrentReports has three nodes of which some are unknown, or have a speaker that does not run, and an address
// on all of them.
func TestCurrentReports(t *testing.T) {
	t.Parallel()
	const none = "False NoSession 10.1.0.1 is advertised by 0 of 3 nodes: 0 of 3 sessions are up; see BGPPeer 1"
	for _, row := range []struct {
		unknown, down, want string
	}{
		{"", "", "True Advertised 10.1.0.1 is advertised by 2 of 3 nodes, in 2 of 3 sessions"},
		{"n1", "", "True Advertised 10.1.0.1 is advertised by 1 of 3 nodes, in 1 of 3 sessions"},
		{"n1 n2", "", none},
		{"", "n1", "True Advertised 10.1.0.1 is advertised by 1 of 3 nodes, in 1 of 3 sessions"},
		{"n1", "n2", none},
		{"", "n1 n2 n3", none},
		// When nodes are unknown, Kubernetes says of their pods, too, that they do not run.
		{"n1 n2 n3", "n1 n2 n3", "True Advertised 10.1.0.1 is advertised by 2 of 3 nodes, in 2 of 3 sessions"},
		{"n1 n2 n3", "", "True Advertised 10.1.0.1 is advertised by 2 of 3 nodes, in 2 of 3 sessions"},
	} {
		routings := map[string]*v1.NodeRouting{
			"n1": routing("1 up 1"), "n2": routing("1 up 1"), "n3": routing("1 down 0"),
		}
		current := announced.CurrentRoutings(
			routings, func(node string) bool { return strings.Contains(row.unknown, node) },
			func(node string) bool { return strings.Contains(row.down, node) },
		)
		c := announced.AdvertisedCondition(virtualOn("10.1.0.1", "n1", "n2", "n3"), current, nil)
		if got := fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message); got != row.want {
			t.Errorf("unknown %q, down %q: %s, want %s", row.unknown, row.down, got, row.want)
		}
		if len(routings["n1"].Status.Sessions) != 1 || routings["n1"].Status.Sessions[0].State != v1.SessionEstablished {
			t.Errorf("unknown %q, down %q: the NodeRouting of the cache has changed", row.unknown, row.down)
		}
	}
}

func TestAdvertisingChanged(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name   string
		change func(*v1.NodeRouting)
		want   bool
	}{
		{"nothing", func(*v1.NodeRouting) {}, false},
		{"a session goes down", func(r *v1.NodeRouting) { r.Status.Sessions[0].State = "Idle" }, true},
		{"a session that is down tries again", func(r *v1.NodeRouting) { r.Status.Sessions[1].State = "Connect" }, false},
		{"one more route", func(r *v1.NodeRouting) { r.Status.Sessions[0].Advertised++ }, false},
		{"no route", func(r *v1.NodeRouting) { r.Status.Sessions[0].Advertised = 0 }, true},
		{"a family", func(r *v1.NodeRouting) { r.Status.Sessions[0].Families = nil }, true},
		{"no route to some addresses", func(r *v1.NodeRouting) { unsentIn(r, "10.1.0.1-10.1.0.1") }, true},
		{"an error", func(r *v1.NodeRouting) { r.Status.Sessions[1].LastError = "x" }, false},
		{"a session more", func(r *v1.NodeRouting) { r.Status.Sessions = r.Status.Sessions[:1] }, true},
		{"a BGPPeer more", func(r *v1.NodeRouting) { r.Spec.Peers = r.Spec.Peers[:1] }, true},
		{"a group", func(r *v1.NodeRouting) { withGroup(r, v1.ServiceGroupBGP{}) }, true},
		{"withheld addresses", func(r *v1.NodeRouting) { withheldAt(r, "10.1.0.0-10.1.0.9") }, true},
		{"another LBNodeAgent", func(r *v1.NodeRouting) { r.Spec.LBNodeAgent = "b" }, true},
		{"it drains", func(r *v1.NodeRouting) { r.Spec.DrainSince = &metav1.Time{} }, false},
	} {
		before, after := routing("1 up 2", "2 down 0"), routing("1 up 2", "2 down 0")
		row.change(after)
		if got := announced.AdvertisingChanged(before, after); got != row.want {
			t.Errorf("%s: %t", row.name, got)
		}
	}
}

// TestPendingChange plays what is wanted, one step a second, and shows what is written when.
func TestPendingChange(t *testing.T) {
	t.Parallel()
	const up, down = "True Advertised 2of2", "False NoSession 0of2"
	repeat := func(n int, steps ...string) string { return strings.Repeat(strings.Join(steps, ",")+",", n) }
	for _, row := range []struct {
		name, stored string
		steps, want  string
	}{
		{"advertised at first", "", repeat(3, up), "0 " + up},
		{"not advertised at first", "", repeat(9, down), "5 " + down},
		{"advertised while it settles", "", repeat(3, down) + repeat(3, up), "3 " + up},
		{"nothing to say", "", repeat(9, ""), ""},
		{"it stays", up, repeat(40, up), ""},
		{"down", up, repeat(9, down), "5 " + down},
		{"down for a moment", up, repeat(4, down) + repeat(9, up), ""},
		{"up again", down, repeat(9, up), "5 " + up},
		{"flaps fast for ever", up, repeat(100, down, up), ""},
		{"flaps slowly", up, repeat(2, down, down, down, down, down, down, up, up, up, up, up, up),
			"5 " + down + ",11 " + up + ",17 " + down + ",23 " + up},
		{"another reason", down, repeat(9, "False NoRouter none"), "5 False NoRouter none"},
		{"the numbers change while it settles", up, repeat(3, down, "False NoSession 0of3"), "5 False NoSession 0of3"},
		{"other numbers", up, repeat(40, "True Advertised 1of2"), "30 True Advertised 1of2"},
		{"numbers that change for ever", up, repeat(50, "True Advertised 1of2", "True Advertised 2of3"), ""},
		{"no Virtual address any more", up, repeat(9, ""), "5 "},
	} {
		stored, settling := parseCondition(row.stored), announced.PendingChange{}
		var got []string
		for i, step := range strings.Split(strings.TrimSuffix(row.steps, ","), ",") {
			wanted := metav1.Condition{}
			if c := parseCondition(step); c != nil {
				wanted = *c
			}
			now := time.Unix(int64(i), 0)
			isDue, wait, next := settling.Decide(stored, wanted, now)
			settling = next
			if isDue && (wait != 0 || settling != announced.PendingChange{}) {
				t.Errorf("%s: waits %s after a write", row.name, wait)
			}
			if isDue {
				got, stored = append(got, fmt.Sprint(i, " ", step)), parseCondition(step)
			}
		}
		if text := strings.Join(got, ","); text != row.want {
			t.Errorf("%s: %q, want %q", row.name, text, row.want)
		}
	}
	_, wait, next := announced.PendingChange{}.Decide(parseCondition(up), *parseCondition(down), time.Unix(100, 0))
	if wait != 5*time.Second {
		t.Errorf("waits %s", wait)
	}
	if _, wait, _ = next.Decide(parseCondition(up), *parseCondition(down), time.Unix(0, 0)); wait != 5*time.Second {
		t.Errorf("waits %s after the clock was set back", wait)
	}
}

// parseCondition is a condition of status, reason and message; nil of an empty text.
func parseCondition(text string) *metav1.Condition {
	words := strings.Fields(text)
	if len(words) == 0 {
		return nil
	}
	return &metav1.Condition{
		Type: v1.ConditionAdvertised, Status: metav1.ConditionStatus(words[0]), Reason: words[1], Message: words[2],
	}
}
