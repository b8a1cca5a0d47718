package plugin

import (
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// explain says of a Virtual address which node advertises it to which neighbour, and why others do not.
func TestExplainAdvertised(t *testing.T) {
	routed := func(bgp v1.ServiceGroupBGP) change {
		return func(o *Objects) {
			for i := range o.NodeRoutings {
				o.NodeRoutings[i].Spec.Groups = []v1.RoutingGroup{{Name: "routed", ServiceGroupBGP: bgp}}
			}
		}
	}
	ofNode1 := func(change func(*v1.NodeRouting)) change {
		return func(o *Objects) { change(&o.NodeRoutings[0]) }
	}
	for name, row := range map[string]struct {
		change change
		want   []string // what BGP says, then each row
	}{
		"a session is down": {func(*Objects) {}, []string{
			"1 of 2 sessions carries it", "node1 router 192.168.1.1 yes",
			"node2 router 192.168.1.1 no the session is Idle: the neighbour does not answer on the link (no route to host)",
		}},
		"no BGPPeer": {func(o *Objects) { o.BGPPeers, o.NodeRoutings = nil, nil }, []string{
			"there is no BGPPeer: PureLB does not know whether routers reach it",
		}},
		"no session": {func(o *Objects) { o.NodeRoutings = nil }, []string{"no node has a session"}},
		"not advertised": {routed(v1.ServiceGroupBGP{Advertise: new(bool)}), []string{
			"0 of 2 sessions carry it", "node1 router 192.168.1.1 no ServiceGroup routed has bgp.advertise: false",
			"node2 router 192.168.1.1 no ServiceGroup routed has bgp.advertise: false",
		}},
		"advertised to others": {routed(v1.ServiceGroupBGP{Peers: []string{"other"}}), []string{
			"0 of 2 sessions carry it", "node1 router 192.168.1.1 no bgp.peers of ServiceGroup routed does not name the BGPPeer",
			"node2 router 192.168.1.1 no bgp.peers of ServiceGroup routed does not name the BGPPeer",
		}},
		"advertised to the neighbour by name": {routed(v1.ServiceGroupBGP{Peers: []string{"router"}}), []string{
			"1 of 2 sessions carries it", "node1 router 192.168.1.1 yes",
			"node2 router 192.168.1.1 no the session is Idle: the neighbour does not answer on the link (no route to host)",
		}},
		"another family": {ofNode1(func(r *v1.NodeRouting) {
			r.Status.Sessions[0].Families = []v1.IPFamily{"IPv6"}
		}), []string{
			"0 of 2 sessions carry it", "node1 router 192.168.1.1 no the session carries no IPv4",
			"node2 router 192.168.1.1 no the session is Idle: the neighbour does not answer on the link (no route to host)",
		}},
		"no networks": {ofNode1(func(r *v1.NodeRouting) { r.Status.Networks = 0 }), []string{
			"0 of 2 sessions carry it", "node1 router 192.168.1.1 no the speaker has no network to advertise",
			"node2 router 192.168.1.1 no the session is Idle: the neighbour does not answer on the link (no route to host)",
		}},
		"no route sent": {ofNode1(func(r *v1.NodeRouting) {
			r.Status.Sessions[0].Unsent = []string{"0.0.0.0-255.255.255.255"}
		}), []string{
			"0 of 2 sessions carry it", "node1 router 192.168.1.1 no the node has sent the neighbour no route to it: see " +
				"the condition Ready of its NodeRouting",
			"node2 router 192.168.1.1 no the session is Idle: the neighbour does not answer on the link (no route to host)",
		}},
		"no route sent to others": {ofNode1(func(r *v1.NodeRouting) {
			r.Status.Sessions[0].Unsent = []string{"192.0.2.1-192.0.2.1"}
		}), []string{
			"1 of 2 sessions carries it", "node1 router 192.168.1.1 yes",
			"node2 router 192.168.1.1 no the session is Idle: the neighbour does not answer on the link (no route to host)",
		}},
		"draining": {ofNode1(func(r *v1.NodeRouting) { r.Spec.DrainSince = &metav1.Time{Time: time.Unix(0, 0)} }), []string{
			"1 of 2 sessions carries it",
			"node1 router 192.168.1.1 yes the node is drained: the neighbour is asked to prefer others",
			"node2 router 192.168.1.1 no the session is Idle: the neighbour does not answer on the link (no route to host)",
		}},
		"drained": {ofNode1(func(r *v1.NodeRouting) {
			r.Spec.DrainSince, r.Status.Drained = &metav1.Time{Time: time.Unix(0, 0)}, true
		}), []string{
			"0 of 2 sessions carry it", "node1 router 192.168.1.1 no the node is drained",
			"node2 router 192.168.1.1 no the session is Idle: the neighbour does not answer on the link (no route to host)",
		}},
		"not on the node": {func(o *Objects) { o.Announcements[0].Status.CommonAnnouncementsRevision = nil }, []string{
			"0 of 2 sessions carry it", "node1 router 192.168.1.1 no the node does not have it",
			"node2 router 192.168.1.1 no the session is Idle: the neighbour does not answer on the link (no route to host)",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			a := must(ExplainService(clusterOf(t, row.change), "shop", "edge"))(t).Addresses[0]
			got := []string{a.BGP}
			for _, s := range a.Sessions {
				yes := "no"
				if s.IsAdvertised {
					yes = "yes"
				}
				got = append(got, strings.TrimRight(strings.Join([]string{s.Node, s.Peer, s.Neighbor, yes, s.Why}, " "), " "))
			}
			if !slices.Equal(got, row.want) {
				t.Errorf("got  %q\nwant %q", got, row.want)
			}
		})
	}
	if a := must(ExplainService(clusterOf(t), "shop", "web"))(t).Addresses[0]; a.BGP != "" || len(a.Sessions) > 0 {
		t.Errorf("of a Local address: %q, %v", a.BGP, a.Sessions)
	}
	for _, kind := range []string{kindBGPPeers, kindNodeRoutings} {
		c := clusterOf(t, func(o *Objects) { forget(o, kind) })
		e := must(ExplainService(c, "shop", "edge"))(t)
		if len(e.Unread) != 1 || !strings.Contains(e.Summary, kind+" cannot be read") || e.Addresses[0].BGP != "" {
			t.Errorf("%v: %s: %s", e.Unread, e.Summary, e.Addresses[0].BGP)
		}
		if e := must(ExplainService(c, "shop", "web"))(t); len(e.Unread) > 0 {
			t.Errorf("of a Local address: %v", e.Unread)
		}
	}
}

// TestServiceCommunities shows the communities that a Service asks for: with its address, and with all of them.
func TestServiceCommunities(t *testing.T) {
	c := clusterOf(t, func(o *Objects) {
		for i := range o.NodeRoutings {
			o.NodeRoutings[i].Spec.ServiceCommunities = []v1.ServiceCommunities{
				{Addresses: []string{"192.0.2.1"}, RouteCommunities: v1.RouteCommunities{Communities: []v1.Community{"65000:9"}}},
				{Addresses: []string{"172.30.0.0-172.30.0.3"}, RouteCommunities: v1.RouteCommunities{
					Communities: []v1.Community{"no-export"}, LargeCommunities: []v1.LargeCommunity{"65000:1:1"},
				}},
			}
		}
	})
	for service, want := range map[string]string{
		"edge": "Communities that its Service asks for: no-export, 65000:1:1\n", "web": "",
	} {
		var out strings.Builder
		if err := must(ExplainService(c, "shop", service))(t).WriteText(&out, Style{}); err != nil {
			t.Fatal(err)
		}
		if got := out.String(); want == "" && strings.Contains(got, "Communities") || !strings.Contains(got, want) {
			t.Errorf("%s: %s", service, got)
		}
	}
	var out strings.Builder
	if err := BGPStateOf(c).WriteText(&out, Style{}); err != nil {
		t.Fatal(err)
	}
	const want = "\nSERVICES ASK FOR      ADDRESSES\n65000:9               192.0.2.1\n" +
		"no-export,65000:1:1   172.30.0.0-172.30.0.3\n"
	if got := out.String(); !strings.HasSuffix(got, want) {
		t.Errorf("bgp: %s", got)
	}
}
