package routing_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/routing"
)

var began = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// peer is a BGPPeer with the YAML text as its spec, made so many seconds after the others.
func peer(t *testing.T, name, spec string, age int) v1.BGPPeer {
	t.Helper()
	p := v1.BGPPeer{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "purelb-system", CreationTimestamp: metav1.NewTime(began.Add(time.Duration(age) * time.Second))}}
	if err := yaml.UnmarshalStrict([]byte(spec), &p.Spec); err != nil {
		t.Fatal(err)
	}
	return p
}

// node is a node with an interface eth0, in 192.0.2.0/24 and 2001:db8::/64 unless without.
func node(name string, number int, without string) routing.Node {
	n := routing.Node{
		Name: name, Labels: map[string]string{"kubernetes.io/hostname": name, "rack": "a", "asn": fmt.Sprint(65100 + number)},
		LBNodeAgent: "default", VirtualInterface: "kube-lb0",
		Addresses: []netip.Addr{netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", number))},
		Interfaces: []v1.NodeInterface{{
			Name: "eth0", Subnets: []string{fmt.Sprintf("192.0.2.%d/24", number), fmt.Sprintf("2001:db8::%d/64", number)},
			DefaultRoute: []v1.IPFamily{"IPv4", "IPv6"}, Gateways: []string{"192.0.2.1", "2001:db8::1"},
		}},
	}
	if without == "IPv6" {
		n.Interfaces[0].Subnets, n.Interfaces[0].Gateways = n.Interfaces[0].Subnets[:1], n.Interfaces[0].Gateways[:1]
	}
	return n
}

// describe says in one line what a neighbour is.
func describe(p *v1.RoutingPeer) string {
	text := fmt.Sprintf("%s: %s%%%s AS %d from %d %v", p.Name, p.Address, p.Interface, p.PeerASN, p.MyASN, p.Families)
	if p.NextHop != "" {
		text += " by " + p.NextHop
	}
	return text
}

func TestNeighbours(t *testing.T) {
	linkLocal := node("n1", 11, "")
	linkLocal.Interfaces[0].Gateways = []string{"fe80::1"}
	isolated := node("n1", 11, "")
	isolated.Interfaces[0].Gateways = nil
	unlabelled := node("n1", 11, "")
	unlabelled.Labels["asn"] = "rack 7"
	for _, row := range []struct {
		name, spec string
		node       routing.Node
		want       []string
		problems   string
	}{
		{"IPv4", "peerASN: 65000\nmyASN: 65001\npeerAddress: 192.0.2.1", node("n1", 11, ""), []string{"p: 192.0.2.1% AS 65000 from 65001 [IPv4]"}, ""},
		{"IPv6", "peerASN: 65000\nmyASN: 65001\npeerAddress: 2001:db8::1", node("n1", 11, ""), []string{"p: 2001:db8::1% AS 65000 from 65001 [IPv6]"}, ""},
		{"both families in one session", "peerASN: 65000\nmyASN: 65001\npeerAddress: 192.0.2.1\nfamilies: [IPv6, IPv4]", node("n1", 11, ""),
			[]string{"p: 192.0.2.1% AS 65000 from 65001 [IPv4 IPv6] by 2001:db8::11"}, ""},
		{"IPv4 in a session over IPv6", "peerASN: 65000\nmyASN: 65001\npeerAddress: 2001:db8::1\nfamilies: [IPv4]", node("n1", 11, ""),
			[]string{"p: 2001:db8::1% AS 65000 from 65001 [IPv4] by 192.0.2.11"}, ""},
		{"a node without IPv6", "peerASN: 65000\nmyASN: 65001\npeerAddress: 192.0.2.1\nfamilies: [IPv4, IPv6]", node("n1", 11, "IPv6"),
			[]string{"p: 192.0.2.1% AS 65000 from 65001 [IPv4]"}, "node n1 has no IPv6 address that could be the next hop of its IPv6 routes"},
		{"no family left", "peerASN: 65000\nmyASN: 65001\npeerAddress: 192.0.2.1\nfamilies: [IPv6]", node("n1", 11, "IPv6"),
			nil, "node n1 has no IPv6 address that could be the next hop of its IPv6 routes"},
		{"gateways", "peerASN: External\nmyASN: 65001\ndiscover: DefaultGateway", node("n1", 11, ""),
			[]string{"p: 192.0.2.1% AS 0 from 65001 [IPv4]", "p: 2001:db8::1% AS 0 from 65001 [IPv6]"}, ""},
		{"a gateway by its link-local address", "peerASN: Internal\nmyASN: 65001\ndiscover: DefaultGateway\nfamilies: [IPv4, IPv6]", linkLocal,
			[]string{"p: fe80::1%eth0 AS 65001 from 65001 [IPv4 IPv6]"}, ""},
		{"gateways of the source's family", "peerASN: 65000\nmyASN: 65001\ndiscover: DefaultGateway\nsourceAddress: 192.0.2.99", node("n1", 11, ""),
			[]string{"p: 192.0.2.1% AS 65000 from 65001 [IPv4]"}, ""},
		{"no gateway", "peerASN: 65000\nmyASN: 65001\ndiscover: DefaultGateway", isolated, nil, "node n1 reports no gateway of a default route"},
		{"unnumbered", "peerASN: 65000\nmyASN: 65001\ninterface: eth1", node("n1", 11, ""), []string{"p: %eth1 AS 65000 from 65001 [IPv4 IPv6]"}, ""},
		{"own ASN by label", "peerASN: 65000\nmyASNLabel: asn\npeerAddress: 192.0.2.1", node("n1", 11, ""), []string{"p: 192.0.2.1% AS 65000 from 65111 [IPv4]"}, ""},
		{"a label that is no ASN", "peerASN: 65000\nmyASNLabel: asn\npeerAddress: 192.0.2.1", unlabelled, nil, `label asn of node n1 is "rack 7", not the number of an autonomous system`},
		{"no such label", "peerASN: 65000\nmyASNLabel: as\npeerAddress: 192.0.2.1", node("n1", 11, ""), nil, "node n1 has no label as"},
	} {
		t.Run(row.name, func(t *testing.T) {
			result := routing.Render(routing.Inputs{Nodes: []routing.Node{row.node}, Peers: []v1.BGPPeer{peer(t, "p", row.spec, 0)}, Now: began})
			var got []string
			for _, p := range result.Specs["n1"].Peers {
				got = append(got, describe(&p))
			}
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Errorf("neighbours (-want +got):\n%s", diff)
			}
			if got := strings.Join(result.Peers["p"].Problems, "; "); got != row.problems {
				t.Errorf("problems: %q, not %q", got, row.problems)
			}
			if got := result.Peers["p"].SessionsByNode["n1"]; got != len(row.want) {
				t.Errorf("%d sessions, not %d", got, len(row.want))
			}
		})
	}
}

func TestSettings(t *testing.T) {
	all := peer(t, "p", `
peerASN: 65000
myASN: 65001
peerAddress: 192.0.2.1
passwordSecretRef: {name: s, key: k}
bfd: {interval: 100ms, multiplier: 5}
gracefulRestart: {restartTime: 1500ms}
holdTime: 90s
connectTime: 1s
port: 1179
sourceAddress: 192.0.2.11
ttlSecurity: true`, 0)
	in := routing.Inputs{Nodes: []routing.Node{node("n1", 11, "")}, Peers: []v1.BGPPeer{all}, HasSecret: func(v1.SecretKeyRef) bool { return true }, Now: began}
	result := routing.Render(in)
	want := []v1.RoutingPeer{{
		Name: "p", Address: "192.0.2.1", PeerASN: 65000, MyASN: 65001, Port: 1179, SourceAddress: "192.0.2.11", Families: []v1.IPFamily{"IPv4"},
		PasswordFile: "p", BFDIntervalMilliseconds: 100, BFDMultiplier: 5, RestartSeconds: 2, HoldSeconds: 90, KeepaliveSeconds: 30, ConnectSeconds: 1, TTLSecurity: true,
	}}
	if diff := cmp.Diff(want, result.Specs["n1"].Peers); diff != "" {
		t.Errorf("neighbour (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]map[string]v1.SecretKeyRef{"default": {"p": {Name: "s", Key: "k"}}}, result.Passwords); diff != "" {
		t.Errorf("passwords (-want +got):\n%s", diff)
	}
	if got := result.Specs["n1"].RouterID; got != "192.0.2.11" {
		t.Errorf("router ID %s", got)
	}
}

func TestWhoSpeaks(t *testing.T) {
	other := node("n3", 13, "")
	other.LBNodeAgent = "edge"
	other.Labels["rack"] = "b"
	agentless := node("n4", 14, "")
	agentless.LBNodeAgent = ""
	nodes := []routing.Node{node("n1", 11, ""), node("n2", 12, ""), other, agentless}
	nodes[1].Labels["rack"] = "b"
	in := routing.Inputs{Nodes: nodes, Now: began, Groups: []routing.Group{
		{Name: "z", Ranges: []string{"203.0.113.0-203.0.113.9"}, BGP: &v1.ServiceGroupBGP{Prepend: 1}}, {Name: "plain", Ranges: []string{"203.0.113.10-203.0.113.19"}},
	}}
	if result := routing.Render(in); len(result.Specs) != 0 || len(result.LBNodeAgents) != 0 {
		t.Errorf("without a BGPPeer there is routing: %+v", result)
	}
	in.Peers = []v1.BGPPeer{peer(t, "p", "peerASN: 65000\nmyASN: 65001\npeerAddress: 192.0.2.1\nnodeSelector: {matchLabels: {rack: a}}", 0)}
	result := routing.Render(in)
	if diff := cmp.Diff([]string{"default"}, result.LBNodeAgents); diff != "" {
		t.Errorf("LBNodeAgents with speakers (-want +got):\n%s", diff)
	}
	// All nodes of the DaemonSet have a NodeRouting, those without a neighbour, too.
	if len(result.Specs) != 2 || len(result.Specs["n1"].Peers) != 1 || len(result.Specs["n2"].Peers) != 0 {
		t.Errorf("specs: %+v", result.Specs)
	}
	if groups := result.Specs["n1"].Groups; len(groups) != 1 || groups[0].Name != "z" || groups[0].Prepend != 1 {
		t.Errorf("groups: %+v", groups)
	}
	if diff := cmp.Diff([]string{"n1"}, result.Peers["p"].SelectedNodes); diff != "" {
		t.Errorf("selected (-want +got):\n%s", diff)
	}
}

func TestDrain(t *testing.T) {
	n := node("n1", 11, "")
	n.IsDraining = true
	in := routing.Inputs{Nodes: []routing.Node{n}, Peers: []v1.BGPPeer{peer(t, "p", "peerASN: 1\nmyASN: 2\npeerAddress: 192.0.2.1", 0)}, Now: began}
	first := routing.Render(in).Specs["n1"]
	if first.DrainSince == nil || !first.DrainSince.Time.Equal(began) {
		t.Fatalf("drains since %v", first.DrainSince)
	}
	in.Routings, in.Now = map[string]*v1.NodeRouting{"n1": {Spec: first}}, began.Add(time.Minute)
	if again := routing.Render(in).Specs["n1"]; !again.DrainSince.Equal(first.DrainSince) {
		t.Errorf("the drain began anew at %v", again.DrainSince)
	}
	in.Nodes[0].IsDraining = false
	if back := routing.Render(in).Specs["n1"]; back.DrainSince != nil {
		t.Errorf("still drains since %v", back.DrainSince)
	}
}

func TestConflictingPeers(t *testing.T) {
	younger := peer(t, "a", "peerASN: 65009\nmyASN: 65001\npeerAddress: 192.0.2.1", 10)
	older := peer(t, "b", "peerASN: 65000\nmyASN: 65001\ndiscover: DefaultGateway\nnodeSelector: {matchLabels: {kubernetes.io/hostname: n1}}", 0)
	in := routing.Inputs{Nodes: []routing.Node{node("n1", 11, ""), node("n2", 12, "")}, Peers: []v1.BGPPeer{younger, older}, Now: began}
	result := routing.Render(in)
	if diff := cmp.Diff([]string{"n1"}, result.Peers["a"].Conflicts); diff != "" {
		t.Errorf("conflicts (-want +got):\n%s", diff)
	}
	if p := result.Specs["n1"].Peers; len(p) != 2 || p[0].Name != "b" || p[1].Name != "b" {
		t.Errorf("the older does not win: %+v", p)
	}
	if p := result.Specs["n2"].Peers; len(p) != 1 || p[0].Name != "a" {
		t.Errorf("the younger does not serve the other node: %+v", p)
	}
	status := routing.PeerStatus(&younger, result.Peers["a"], nil)
	if c := status.Conditions[0]; c.Reason != v1.ReasonPeerConflict || !strings.Contains(c.Message, "on n1") || len(status.Conditions) != 2 {
		t.Errorf("status: %+v", status)
	}
}

func TestPeerStatus(t *testing.T) {
	report := func(generation int64, sessions ...v1.RoutingSession) *v1.NodeRouting {
		return &v1.NodeRouting{Status: v1.NodeRoutingStatus{ObservedGeneration: generation, Sessions: sessions}}
	}
	up := v1.RoutingSession{Peer: "p", Neighbor: "192.0.2.1", State: v1.SessionEstablished}
	down := v1.RoutingSession{Peer: "p", Neighbor: "192.0.2.1", State: "Active", LastError: "no answer"}
	spec := "peerASN: 65000\nmyASN: 65001\npeerAddress: 192.0.2.1\n"
	for _, row := range []struct {
		name, spec string
		routings   map[string]*v1.NodeRouting
		hasSecret  bool
		want       string
	}{
		{"all up", spec, map[string]*v1.NodeRouting{"n1": report(1, up), "n2": report(1, up)}, false, "2/2 True Established 2/2 sessions are up"},
		{"one down", spec, map[string]*v1.NodeRouting{"n1": report(1, up), "n2": report(1, down)}, false,
			"1/2 False SessionsDown 1/2 sessions are up; n2: 192.0.2.1 is Active, no answer"},
		{"no report yet", spec, map[string]*v1.NodeRouting{"n1": report(1, up), "n2": report(0)}, false,
			"1/2 False SessionsDown 1/2 sessions are up; n2: the speaker has not reported yet"},
		{"another's session", spec, map[string]*v1.NodeRouting{"n1": report(1, up), "n2": report(1, v1.RoutingSession{Peer: "q", State: v1.SessionEstablished})}, false,
			"1/2 False SessionsDown 1/2 sessions are up; n2: the speaker has yet to open the session"},
		{"no node", spec + "nodeSelector: {matchLabels: {rack: z}}", nil, false, "0/0 False NoNodes spec.nodeSelector selects no node that runs an agent"},
		{"no secret", spec + "passwordSecretRef: {name: s, key: k}", nil, false,
			"0/2 False SecretMissing the Secret that spec.passwordSecretRef names does not exist in this namespace, or has no such key: without the password no session is opened"},
		{"no neighbour", "peerASN: 1\nmyASNLabel: none\npeerAddress: 192.0.2.1", nil, false,
			"0/0 False NoNeighbor no node has this neighbour; node n1 has no label none; node n2 has no label none"},
		{"invalid", "peerASN: 1\nmyASN: 2\npeerAddress: 224.0.0.1", nil, false,
			`0/0 False Invalid spec.peerAddress: Invalid value: "224.0.0.1": must be the address of one host on the network`},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := peer(t, "p", row.spec, 0)
			result := routing.Render(routing.Inputs{
				Nodes: []routing.Node{node("n1", 11, ""), node("n2", 12, "")}, Peers: []v1.BGPPeer{p}, HasSecret: func(v1.SecretKeyRef) bool { return row.hasSecret }, Now: began,
			})
			status := routing.PeerStatus(&p, result.Peers["p"], row.routings)
			c := status.Conditions[0]
			if got := fmt.Sprint(status.Sessions, " ", c.Status, " ", c.Reason, " ", c.Message); got != row.want {
				t.Errorf("got  %s\nwant %s", got, row.want)
			}
		})
	}
}

func TestSessionChanges(t *testing.T) {
	at := func(state v1.SessionState, why string) []v1.RoutingSession {
		return []v1.RoutingSession{{Peer: "p", Neighbor: "r1", State: state, LastError: why}}
	}
	for _, row := range []struct {
		name          string
		before, after []v1.RoutingSession
		want          []routing.SessionChange
	}{
		{"comes up first", nil, at(v1.SessionEstablished, ""), []routing.SessionChange{{Peer: "p", Node: "n", Neighbor: "r1", IsUp: true, Cause: "the session is gone"}}},
		{"has never been up", nil, at("Active", "x"), nil},
		{"goes down", at(v1.SessionEstablished, ""), at("Idle", "hold timer"), []routing.SessionChange{{Peer: "p", Node: "n", Neighbor: "r1", Cause: "hold timer"}}},
		{"stays down", at("Idle", ""), at("Active", ""), nil},
		{"stays up", at(v1.SessionEstablished, ""), at(v1.SessionEstablished, ""), nil},
	} {
		if diff := cmp.Diff(row.want, routing.SessionChanges("n", row.before, row.after)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.name, diff)
		}
	}
}

func TestRouterIDWithoutIPv4(t *testing.T) {
	n := node("n1", 11, "")
	n.Addresses = []netip.Addr{netip.MustParseAddr("2001:db8::11")}
	m := n
	m.Name = "n2"
	in := routing.Inputs{Nodes: []routing.Node{n, m}, Peers: []v1.BGPPeer{peer(t, "p", "peerASN: 1\nmyASN: 2\npeerAddress: 192.0.2.1", 0)}, Now: began}
	result := routing.Render(in)
	first, second := result.Specs["n1"].RouterID, result.Specs["n2"].RouterID
	if first == second || !netip.MustParseAddr(first).Is4() || netip.MustParseAddr(first).AsSlice()[0] == 0 || netip.MustParseAddr(first).IsMulticast() {
		t.Errorf("router IDs %s and %s", first, second)
	}
}

func TestAdmitGroup(t *testing.T) {
	group := func(name, pool, aggregation string, bgp *v1.ServiceGroupBGP) v1.ServiceGroup {
		return v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "purelb-system"}, Spec: v1.ServiceGroupSpec{
			Remote: &v1.RemotePools{PoolSet: v1.PoolSet{V4Pools: []v1.AddressPool{{Pool: pool, Subnet: "203.0.113.0/24", Aggregation: v1.Aggregation(aggregation)}}}}, BGP: bgp,
		}}
	}
	external := []v1.BGPPeer{peer(t, "p", "peerASN: 65000\nmyASN: 65001\npeerAddress: 192.0.2.1", 0)}
	internal := []v1.BGPPeer{peer(t, "p", "peerASN: Internal\nmyASN: 65001\npeerAddress: 192.0.2.1", 0)}
	first := func(aggregation string, bgp *v1.ServiceGroupBGP) v1.ServiceGroup {
		return group("a", "203.0.113.0/28", aggregation, bgp)
	}
	second := func(aggregation string, bgp *v1.ServiceGroupBGP) v1.ServiceGroup {
		return group("b", "203.0.113.128/28", aggregation, bgp)
	}
	preferred := &v1.ServiceGroupBGP{LocalPref: ptr.To[int64](200)}
	for _, row := range []struct {
		name           string
		sg, other      v1.ServiceGroup
		peers          []v1.BGPPeer
		refused, warns string
	}{
		{"one network, alike", first("default", nil), second("default", &v1.ServiceGroupBGP{Advertise: ptr.To(true)}), external, "", ""},
		{"one network, not alike", first("default", &v1.ServiceGroupBGP{Prepend: 1}), second("default", nil), external, "203.0.113.0/24, which is one route", ""},
		{"routes of single addresses", first("/32", &v1.ServiceGroupBGP{Prepend: 1}), second("/32", nil), external, "", ""},
		{"networks apart", first("/28", &v1.ServiceGroupBGP{Prepend: 1}), second("/28", nil), external, "", ""},
		{"preference among external neighbours", first("/32", preferred), second("/32", nil), external, "", "spec.bgp.localPref: has no effect"},
		{"preference among internal neighbours", first("/32", preferred), second("/32", nil), internal, "", ""},
		{"no such neighbour", first("/32", &v1.ServiceGroupBGP{Peers: []string{"q"}}), second("/32", nil), external, "", "spec.bgp.peers: there is no BGPPeer q"},
	} {
		t.Run(row.name, func(t *testing.T) {
			warnings, errs := routing.AdmitGroup(&row.sg, []v1.ServiceGroup{row.sg, row.other}, row.peers)
			if got := fmt.Sprint(errs.ToAggregate()); !strings.Contains(got, row.refused) || row.refused == "" && len(errs) > 0 {
				t.Errorf("refused for %q, not %q", got, row.refused)
			}
			if got := strings.Join(warnings, "; "); !strings.HasPrefix(got, row.warns) || row.warns == "" && got != "" {
				t.Errorf("warnings: %q, not %q", got, row.warns)
			}
		})
	}
}
