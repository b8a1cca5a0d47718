package routing_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
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
	p := v1.BGPPeer{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "purelb-system",
			CreationTimestamp: metav1.NewTime(began.Add(time.Duration(age) * time.Second)),
		},
	}
	if err := yaml.UnmarshalStrict([]byte(spec), &p.Spec); err != nil {
		t.Fatal(err)
	}
	return p
}

// node is a node with an interface eth0, in 192.0.2.0/24 and 2001:db8::/64 unless without.
func node(name string, number int, without string) routing.Node {
	n := routing.Node{
		Name: name, Labels: map[string]string{"kubernetes.io/hostname": name, "rack": "a", "asn": fmt.Sprint(65100 + number)},
		LBNodeAgent: "default", VirtualInterface: "kube-lb0", HasReportedFacts: true,
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

// password returns the password of all Secrets, if they exist.
func password(exists bool) func(v1.SecretKeyRef) ([]byte, bool) {
	return func(v1.SecretKeyRef) ([]byte, bool) { return []byte("x"), exists }
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
	eth1 := v1.NodeInterface{
		Name: "eth1", Subnets: []string{"198.51.100.11/24", "2001:db8:1::11/64"},
		Gateways: []string{"192.0.2.1", "198.51.100.1"},
	}
	twoLinks := node("n1", 11, "")
	twoLinks.Interfaces = append(twoLinks.Interfaces, eth1)
	twoUplinks := node("n1", 11, "")
	twoUplinks.Gateways = []v1.NodeGateway{
		{Interface: "eth0", Address: "192.0.2.1"}, {Interface: "eth0", Address: "fe80::1"},
		{Interface: "eth1", Address: "198.51.100.1"}, {Interface: "eth1", Address: "fe80::1"},
	}
	unselected := twoUplinks
	unselected.Interfaces, unselected.Gateways = nil, twoUplinks.Gateways[1:2]
	routed := node("n1", 11, "")
	routed.Interfaces[0].Subnets[1] = "2001:db8::/64"
	routed.Addresses = append(routed.Addresses, netip.MustParseAddr("2001:db8:2::11"))
	for _, row := range []struct {
		name, spec string
		node       routing.Node
		want       []string
		problems   string
	}{
		{
			"IPv4", "peerASN: 65000\nmyASN: 65001\npeerAddress: 192.0.2.1", node("n1", 11, ""),
			[]string{"p: 192.0.2.1% AS 65000 from 65001 [IPv4]"}, "",
		},
		{
			"IPv6", "peerASN: 65000\nmyASN: 65001\npeerAddress: 2001:db8::1", node("n1", 11, ""),
			[]string{"p: 2001:db8::1% AS 65000 from 65001 [IPv6]"}, "",
		},
		{"both families in one session", "peerASN: 65000\nmyASN: 65001\npeerAddress: 192.0.2.1\nfamilies: [IPv6, IPv4]",
			node("n1", 11, ""),
			[]string{"p: 192.0.2.1% AS 65000 from 65001 [IPv4 IPv6] by 2001:db8::11"}, ""},
		{"IPv4 in a session over IPv6", "peerASN: 65000\nmyASN: 65001\npeerAddress: 2001:db8::1\nfamilies: [IPv4]",
			node("n1", 11, ""),
			[]string{"p: 2001:db8::1% AS 65000 from 65001 [IPv4] by 192.0.2.11"}, ""},
		{"a node without IPv6", "peerASN: 65000\nmyASN: 65001\npeerAddress: 192.0.2.1\nfamilies: [IPv4, IPv6]",
			node("n1", 11, "IPv6"),
			[]string{"p: 192.0.2.1% AS 65000 from 65001 [IPv4]"},
			"node n1 has no IPv6 address that could be the next hop of its IPv6 routes"},
		{"no family left", "peerASN: 65000\nmyASN: 65001\npeerAddress: 192.0.2.1\nfamilies: [IPv6]", node("n1", 11, "IPv6"),
			nil, "node n1 has no IPv6 address that could be the next hop of its IPv6 routes"},
		{"gateways", "peerASN: External\nmyASN: 65001\ndiscover: DefaultGateway", node("n1", 11, ""),
			[]string{"p: 192.0.2.1% AS 0 from 65001 [IPv4]", "p: 2001:db8::1% AS 0 from 65001 [IPv6]"}, ""},
		{"a gateway by its link-local address",
			"peerASN: Internal\nmyASN: 65001\ndiscover: DefaultGateway\nfamilies: [IPv4, IPv6]", linkLocal,
			[]string{"p: fe80::1%eth0 AS 65001 from 65001 [IPv4 IPv6]"}, ""},
		{"gateways of the source's family",
			"peerASN: 65000\nmyASN: 65001\ndiscover: DefaultGateway\nsourceAddress: 192.0.2.99", node("n1", 11, ""),
			[]string{"p: 192.0.2.1% AS 65000 from 65001 [IPv4]"}, ""},
		{
			"no gateway", "peerASN: 65000\nmyASN: 65001\ndiscover: DefaultGateway", isolated, nil,
			"node n1 reports no gateway of a default route",
		},
		{"gateways of two interfaces, each once",
			"peerASN: 65000\nmyASN: 65001\ndiscover: DefaultGateway\nsourceAddress: 192.0.2.99", twoLinks,
			[]string{"p: 192.0.2.1% AS 65000 from 65001 [IPv4]", "p: 198.51.100.1% AS 65000 from 65001 [IPv4]"}, ""},
		{
			"gateways of two uplinks, of which one is selected", "peerASN: External\nmyASN: 65001\ndiscover: DefaultGateway",
			twoUplinks, []string{
				"p: 192.0.2.1% AS 0 from 65001 [IPv4]", "p: fe80::1%eth0 AS 0 from 65001 [IPv6]",
				"p: 198.51.100.1% AS 0 from 65001 [IPv4]", "p: fe80::1%eth1 AS 0 from 65001 [IPv6]",
			}, "",
		},
		{
			"a link-local gateway of an uplink that is not selected",
			"peerASN: External\nmyASN: 65001\ndiscover: DefaultGateway\nfamilies: [IPv4, IPv6]", unselected,
			[]string{"p: fe80::1%eth0 AS 0 from 65001 [IPv4 IPv6]"}, "",
		},
		{"the next hop is on the neighbour's link",
			"peerASN: 65000\nmyASN: 65001\npeerAddress: 198.51.100.1\nfamilies: [IPv4, IPv6]", twoLinks,
			[]string{"p: 198.51.100.1% AS 65000 from 65001 [IPv4 IPv6] by 2001:db8:1::11"}, ""},
		{"a route to a subnet is no address in it",
			"peerASN: 65000\nmyASN: 65001\npeerAddress: 192.0.2.1\nfamilies: [IPv4, IPv6]", routed,
			[]string{"p: 192.0.2.1% AS 65000 from 65001 [IPv4 IPv6] by 2001:db8:2::11"}, ""},
		{"the next hop to a neighbour some hops away",
			"peerASN: 65000\nmyASN: 65001\npeerAddress: 203.0.113.1\nfamilies: [IPv4, IPv6]\nebgpMultihop: 3", routed,
			[]string{"p: 203.0.113.1% AS 65000 from 65001 [IPv4 IPv6] by 2001:db8:2::11"}, ""},
		{
			"one family of an unnumbered one", "peerASN: 65000\nmyASN: 65001\ninterface: eth1\nfamilies: [IPv6]",
			node("n1", 11, ""), []string{"p: %eth1 AS 65000 from 65001 [IPv6]"}, "",
		},
		{
			"unnumbered", "peerASN: 65000\nmyASN: 65001\ninterface: eth1", node("n1", 11, ""),
			[]string{"p: %eth1 AS 65000 from 65001 [IPv4 IPv6]"}, "",
		},
		{
			"own ASN by label", "peerASN: 65000\nmyASNLabel: asn\npeerAddress: 192.0.2.1", node("n1", 11, ""),
			[]string{"p: 192.0.2.1% AS 65000 from 65111 [IPv4]"}, "",
		},
		{
			"a label that is no ASN", "peerASN: 65000\nmyASNLabel: asn\npeerAddress: 192.0.2.1", unlabelled, nil,
			`label asn of node n1 is "rack 7", not the number of an autonomous system`,
		},
		{
			"no such label", "peerASN: 65000\nmyASNLabel: as\npeerAddress: 192.0.2.1", node("n1", 11, ""), nil,
			"node n1 has no label as",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			result := routing.Render(routing.Inputs{
				Nodes: []routing.Node{row.node}, Peers: []v1.BGPPeer{peer(t, "p", row.spec, 0)}, Now: began,
			})
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
			if got := result.Peers["p"].ConflictNodes; len(got) > 0 {
				t.Errorf("it has the same neighbour twice on %v", got)
			}
			if got := result.Peers["p"].SessionsByNode["n1"]; got != len(row.want) {
				t.Errorf("%d sessions, not %d", got, len(row.want))
			}
		})
	}
}

// TestFactsAway has nodes whose facts are not known any more, as their Announcement was made anew: their
// neighbours and families stay, and settings follow the BGPPeer all the same.
func TestFactsAway(t *testing.T) {
	linkLocal := node("n1", 11, "")
	linkLocal.Interfaces[0].Gateways = []string{"fe80::1"}
	for _, row := range []struct {
		name, spec string
		node       routing.Node
		change     string
	}{
		{"gateways", "peerASN: External\nmyASN: 65001\ndiscover: DefaultGateway", node("n1", 11, ""), ""},
		{"a gateway by its link-local address", "peerASN: External\nmyASN: 65001\ndiscover: DefaultGateway", linkLocal, ""},
		{
			"both families", "peerASN: 65000\nmyASN: 65001\npeerAddress: 192.0.2.1\nfamilies: [IPv4, IPv6]",
			node("n1", 11, ""), "",
		},
		{
			"both families by a gateway", "peerASN: 65000\nmyASN: 65001\ndiscover: DefaultGateway\nfamilies: [IPv4, IPv6]",
			node("n1", 11, ""), "",
		},
		{
			"gateways, and another hold time", "peerASN: External\nmyASN: 65001\ndiscover: DefaultGateway",
			node("n1", 11, ""), "\nholdTime: 30s\nkeepaliveTime: 3s",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			in := routing.Inputs{Nodes: []routing.Node{row.node}, Peers: []v1.BGPPeer{peer(t, "p", row.spec, 0)}, Now: began}
			want := routing.Render(in).Specs["n1"]
			in.Routings = map[string]*v1.NodeRouting{"n1": {Spec: *want.DeepCopy()}}
			in.Nodes[0].Interfaces, in.Nodes[0].HasReportedFacts = nil, false
			in.Peers[0] = peer(t, "p", row.spec+row.change, 0)
			for i := range want.Peers {
				if row.change != "" {
					want.Peers[i].HoldSeconds = 30
				}
			}
			result := routing.Render(in)
			if diff := cmp.Diff(want, result.Specs["n1"]); diff != "" || len(want.Peers) == 0 {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if problems := result.Peers["p"].Problems; len(problems) > 0 {
				t.Errorf("problems %v", problems)
			}
		})
	}
	unknown := node("n1", 11, "")
	unknown.Interfaces, unknown.HasReportedFacts = nil, false
	result := routing.Render(routing.Inputs{
		Nodes: []routing.Node{unknown}, Now: began,
		Peers: []v1.BGPPeer{peer(t, "p", "peerASN: External\nmyASN: 65001\ndiscover: DefaultGateway", 0)},
	})
	want := []string{"the agent of node n1 has yet to report its gateways"}
	if got := result.Peers["p"].Problems; !slices.Equal(got, want) {
		t.Errorf("problems %v", got)
	}
}

// TestDefaultRouteAway has a node that discovered a gateway of each family, and reports others now, or none. The
// session with one stays while there is no other of its family, as long as it is up, and with all that it carries.
func TestDefaultRouteAway(t *testing.T) {
	const four, six = "192.0.2.1", "2001:db8::1"
	const noFour = "node n1 reports no IPv4 gateway any more, and keeps the session with " + four
	const noSix = "node n1 reports no IPv6 gateway any more, and keeps the session with " + six
	both := []string{four, six}
	for _, row := range []struct {
		name           string
		gateways       []string
		up             []string // whose sessions are
		change         string   // of the BGPPeer
		want, problems []string
	}{
		{"both are there", both, both, "", both, nil},
		{"none is there", nil, both, "", both, []string{noFour, noSix}},
		{"one is there", []string{six}, both, "", []string{six, four}, []string{noFour}},
		{"another one is there", []string{"192.0.2.2", six}, both, "", []string{"192.0.2.2", six}, nil},
		{
			"another one is there, and none of IPv6", []string{"192.0.2.2"}, both, "", []string{"192.0.2.2", six},
			[]string{noSix},
		},
		{"none is there, and a session is down", nil, []string{six}, "", []string{six}, []string{noSix}},
		{
			"none is there, and sessions are from an IPv4 address", nil, both, "\nsourceAddress: 192.0.2.11", []string{four},
			[]string{noFour},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			const spec = "peerASN: External\nmyASN: 65001\ndiscover: DefaultGateway\nfamilies: [IPv4, IPv6]"
			in := routing.Inputs{
				Nodes: []routing.Node{node("n1", 11, "")}, Peers: []v1.BGPPeer{peer(t, "p", spec, 0)}, Now: began,
			}
			iface := &in.Nodes[0].Interfaces[0]
			iface.Gateways = both
			stored := &v1.NodeRouting{Spec: routing.Render(in).Specs["n1"]}
			for _, neighbour := range row.up {
				stored.Status.Sessions = append(
					stored.Status.Sessions, v1.RoutingSession{Peer: "p", Neighbor: neighbour, State: v1.SessionEstablished},
				)
			}
			in.Routings = map[string]*v1.NodeRouting{"n1": stored}
			in.Peers[0] = peer(t, "p", spec+row.change, 0)
			if iface.Gateways = row.gateways; len(row.gateways) == 0 { // agents report both or none
				iface.Subnets = nil
			}
			result := routing.Render(in)
			var got []string
			for _, p := range result.Specs["n1"].Peers {
				if got = append(got, p.Address); len(p.Families) != 2 {
					t.Errorf("the session with %s carries %v", p.Address, p.Families)
				}
			}
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Errorf("neighbours (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(row.problems, result.Peers["p"].Problems); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

// TestSettings has what a BGPPeer may say of its sessions, and what a speaker is told instead of the
// defaults.
func TestSettings(t *testing.T) {
	for _, row := range []struct {
		name, spec string
		change     func(*v1.RoutingPeer)
	}{
		{"nothing", "", func(*v1.RoutingPeer) {}},
		{"another port", "port: 1179", func(p *v1.RoutingPeer) { p.Port = 1179 }},
		{"an own address", "sourceAddress: 192.0.2.11", func(p *v1.RoutingPeer) { p.SourceAddress = "192.0.2.11" }},
		{"an own interface", "sourceInterface: lo", func(p *v1.RoutingPeer) { p.SourceInterface = "lo" }},
		{"a password", "passwordSecretRef: {name: s, key: k}", func(p *v1.RoutingPeer) { p.PasswordFile = "p" }},
		{"only from the link", "ttlSecurity: true", func(p *v1.RoutingPeer) { p.TTLSecurity = true }},
		{"some hops", "ebgpMultihop: 3", func(p *v1.RoutingPeer) { p.EBGPMultihop = 3 }},
		{"how long to wait", "connectTime: 7s", func(p *v1.RoutingPeer) { p.ConnectSeconds = 7 }},
		{"less than speakers can wait", "connectTime: 1s", func(p *v1.RoutingPeer) { p.ConnectSeconds = 2 }},
		{"hold, and a third of it", "holdTime: 90s", func(p *v1.RoutingPeer) { p.HoldSeconds, p.KeepaliveSeconds = 90, 30 }},
		{"a third is a second or more", "holdTime: 2s", func(p *v1.RoutingPeer) { p.HoldSeconds, p.KeepaliveSeconds = 2, 1 }},
		{
			"hold and keepalive", "holdTime: 90s\nkeepaliveTime: 7s",
			func(p *v1.RoutingPeer) { p.HoldSeconds, p.KeepaliveSeconds = 90, 7 },
		},
		{"parts of a second are rounded up", "connectTime: 2001ms", func(p *v1.RoutingPeer) { p.ConnectSeconds = 3 }},
		{"restart", "gracefulRestart: {restartTime: 1500ms}", func(p *v1.RoutingPeer) { p.RestartSeconds = 2 }},
		{"restart, as by default", "gracefulRestart: {}", func(*v1.RoutingPeer) {}},
		{"no restart", "gracefulRestart: {restartTime: 0s}", func(p *v1.RoutingPeer) { p.RestartSeconds = 0 }},
		{"BFD", "bfd: {}", func(p *v1.RoutingPeer) { p.BFDIntervalMilliseconds, p.BFDMultiplier = 300, 3 }},
		{
			"BFD, faster", "bfd: {interval: 100ms}",
			func(p *v1.RoutingPeer) { p.BFDIntervalMilliseconds, p.BFDMultiplier = 100, 3 },
		},
		{
			"BFD, more patient", "bfd: {multiplier: 5}",
			func(p *v1.RoutingPeer) { p.BFDIntervalMilliseconds, p.BFDMultiplier = 300, 5 },
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := peer(t, "p", "peerASN: 65000\nmyASN: 65001\npeerAddress: 192.0.2.1\n"+row.spec, 0)
			in := routing.Inputs{
				Nodes: []routing.Node{node("n1", 11, "")}, Peers: []v1.BGPPeer{p},
				Password: password(true), Now: began,
			}
			want := v1.RoutingPeer{
				Name: "p", Address: "192.0.2.1", PeerASN: 65000, MyASN: 65001, Port: 179, Families: []v1.IPFamily{"IPv4"},
				RestartSeconds: 30, HoldSeconds: 9, KeepaliveSeconds: 3, ConnectSeconds: 2,
			}
			row.change(&want)
			if diff := cmp.Diff([]v1.RoutingPeer{want}, routing.Render(in).Specs["n1"].Peers); diff != "" {
				t.Errorf("neighbour (-want +got):\n%s", diff)
			}
		})
	}
}

// TestPasswordProblem says in words what is wrong with a password.
func TestPasswordProblem(t *testing.T) {
	p := peer(t, "p", "peerASN: 1\nmyASN: 2\npeerAddress: 192.0.2.1\npasswordSecretRef: {name: s, key: k}", 0)
	result := routing.Render(routing.Inputs{
		Nodes: []routing.Node{node("n1", 11, "")}, Peers: []v1.BGPPeer{p}, Now: began,
		Password: func(v1.SecretKeyRef) ([]byte, bool) { return make([]byte, 81), true },
	})
	status := routing.PeerStatus(&p, result.Peers["p"], nil)
	ready := meta.FindStatusCondition(status.Conditions, v1.ConditionReady)
	const want = "the password that spec.passwordSecretRef names has 81 bytes: TCP MD5 takes at most 80; sessions that " +
		"had another one keep that"
	if ready.Reason != v1.ReasonPasswordInvalid || ready.Message != want ||
		!meta.IsStatusConditionTrue(status.Conditions, v1.ConditionStalled) {
		t.Errorf("%+v", status.Conditions)
	}
}

// TestPasswords names the keys of Secrets that the speakers of each LBNodeAgent need, and says which
// BGPPeers lack theirs.
func TestPasswords(t *testing.T) {
	elsewhere := node("n2", 12, "")
	elsewhere.LBNodeAgent, elsewhere.Labels["rack"] = "edge", "b"
	spec := "peerASN: 65000\nmyASN: 65001\npeerAddress: 192.0.2."
	in := routing.Inputs{Nodes: []routing.Node{node("n1", 11, ""), elsewhere}, Now: began, Peers: []v1.BGPPeer{
		peer(t, "open", spec+"1", 0),
		peer(t, "closed", spec+"2\npasswordSecretRef: {name: s, key: k}", 0),
		peer(t, "twice", spec+"2\npasswordSecretRef: {name: s, key: k}", 1), // without a session
		peer(t, "lacking", spec+"3\npasswordSecretRef: {name: none, key: k}\nnodeSelector: {matchLabels: {rack: b}}", 0),
	}, Password: func(ref v1.SecretKeyRef) ([]byte, bool) { return []byte("x"), ref.Name == "s" }}
	result := routing.Render(in)
	s, none := v1.SecretKeyRef{Name: "s", Key: "k"}, v1.SecretKeyRef{Name: "none", Key: "k"}
	want := map[string]map[string]v1.SecretKeyRef{"default": {"closed": s}, "edge": {"closed": s, "lacking": none}}
	if diff := cmp.Diff(want, result.PasswordRefs); diff != "" {
		t.Errorf("passwords (-want +got):\n%s", diff)
	}
	for name, want := range map[string]bool{"open": false, "closed": false, "lacking": true} {
		if got := result.Peers[name].LacksSecret; got != want {
			t.Errorf("%s lacks its Secret: %t", name, got)
		}
	}
}

// TestBounds has more neighbours and more groups than a NodeRouting can have.
func TestBounds(t *testing.T) {
	in := routing.Inputs{Nodes: []routing.Node{node("n1", 11, "")}, Now: began}
	for i := range v1.MaxRoutingPeers + 2 {
		in.Peers = append(
			in.Peers,
			peer(t, fmt.Sprintf("p%02d", i), fmt.Sprintf("peerASN: 65000\nmyASN: 65001\npeerAddress: 192.0.2.%d", 100+i), i),
		)
	}
	for i := range v1.MaxRoutingGroups + 2 {
		in.Groups = append(
			in.Groups,
			routing.Group{
				Name: fmt.Sprintf("g%03d", i), Ranges: []string{"203.0.113.0-203.0.113.9"}, BGP: &v1.ServiceGroupBGP{},
			},
		)
	}
	in.Groups = append(in.Groups, routing.Group{Name: "a-without-ranges", BGP: &v1.ServiceGroupBGP{}})
	result := routing.Render(in)
	if got := len(result.Specs["n1"].Peers); got != v1.MaxRoutingPeers {
		t.Errorf("%d neighbours", got)
	}
	if got := result.Specs["n1"].Groups; len(got) != v1.MaxRoutingGroups || got[0].Name != "g000" {
		t.Errorf("%d groups from %s on", len(got), got[0].Name)
	}
	last := result.Peers[in.Peers[len(in.Peers)-1].Name]
	want := fmt.Sprintf("node n1 has %d neighbours already, the most that a node can have", v1.MaxRoutingPeers)
	if got := strings.Join(last.Problems, "; "); got != want || last.SessionsByNode["n1"] != 0 {
		t.Errorf("of the last BGPPeer: %q and %d sessions", got, last.SessionsByNode["n1"])
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
		{Name: "z", Ranges: []string{"203.0.113.0-203.0.113.9"}, BGP: &v1.ServiceGroupBGP{Prepend: 1}}, {
			Name: "plain", Ranges: []string{"203.0.113.10-203.0.113.19"},
		},
	}}
	if result := routing.Render(in); len(result.Specs) != 0 || len(result.LBNodeAgents) != 0 {
		t.Errorf("without a BGPPeer there is routing: %+v", result)
	}
	in.Peers = []v1.BGPPeer{
		peer(t, "p", "peerASN: 65000\nmyASN: 65001\npeerAddress: 192.0.2.1\nnodeSelector: {matchLabels: {rack: a}}", 0),
	}
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
	in := routing.Inputs{
		Nodes: []routing.Node{n}, Peers: []v1.BGPPeer{peer(t, "p", "peerASN: 1\nmyASN: 2\npeerAddress: 192.0.2.1", 0)},
		Now: began,
	}
	first := routing.Render(in).Specs["n1"]
	if first.DrainSince == nil || !first.DrainSince.Time.Equal(began) {
		t.Fatalf("drains since %v", first.DrainSince)
	}
	in.Routings, in.Now = map[string]*v1.NodeRouting{"n1": {Spec: first}}, began.Add(time.Minute)
	if again := routing.Render(in).Specs["n1"]; !again.DrainSince.Equal(first.DrainSince) {
		t.Errorf("the drain began anew at %v", again.DrainSince)
	}
	in.Now = began.Add(-time.Hour) // of a manager whose clock is right, after one whose clock was ahead
	if anew := routing.Render(in).Specs["n1"]; !anew.DrainSince.Time.Equal(in.Now) {
		t.Errorf("drains since %v, in an hour", anew.DrainSince)
	}
	in.Nodes[0].IsDraining = false
	if back := routing.Render(in).Specs["n1"]; back.DrainSince != nil {
		t.Errorf("still drains since %v", back.DrainSince)
	}
}

func TestConflictingPeers(t *testing.T) {
	younger := peer(t, "a", "peerASN: 65009\nmyASN: 65001\npeerAddress: 192.0.2.1", 10)
	older := peer(
		t, "b",
		"peerASN: 65000\nmyASN: 65001\ndiscover: DefaultGateway\nnodeSelector: {matchLabels: {kubernetes.io/hostname: n1}}",
		0,
	)
	in := routing.Inputs{
		Nodes: []routing.Node{node("n1", 11, ""), node("n2", 12, "")}, Peers: []v1.BGPPeer{younger, older}, Now: began,
	}
	result := routing.Render(in)
	if diff := cmp.Diff([]string{"n1"}, result.Peers["a"].ConflictNodes); diff != "" {
		t.Errorf("conflicts (-want +got):\n%s", diff)
	}
	if p := result.Specs["n1"].Peers; len(p) != 2 || p[0].Name != "b" || p[1].Name != "b" {
		t.Errorf("the older does not win: %+v", p)
	}
	if p := result.Specs["n2"].Peers; len(p) != 1 || p[0].Name != "a" {
		t.Errorf("the younger does not serve the other node: %+v", p)
	}
	status := routing.PeerStatus(&younger, result.Peers["a"], nil)
	if c := status.Conditions[0]; c.Reason != v1.ReasonPeerConflict || !strings.Contains(c.Message, "on n1") ||
		len(status.Conditions) != 2 {
		t.Errorf("status: %+v", status)
	}
}

// TestPeerStatusNeighbor checks that one column says how nodes find the neighbour.
func TestPeerStatusNeighbor(t *testing.T) {
	for spec, want := range map[string]string{
		"peerAddress: 192.0.2.1": "192.0.2.1", "interface: eth1": "eth1", "discover: DefaultGateway": "DefaultGateway",
	} {
		p := peer(t, "p", "peerASN: 65000\nmyASN: 65001\n"+spec, 0)
		result := routing.Render(routing.Inputs{
			Nodes: []routing.Node{node("n1", 11, "")}, Peers: []v1.BGPPeer{p}, Now: began,
		})
		if got := routing.PeerStatus(&p, result.Peers["p"], nil).Neighbor; got != want {
			t.Errorf("%s: %q", spec, got)
		}
	}
}

func TestPeerStatus(t *testing.T) {
	report := func(generation int64, sessions ...v1.RoutingSession) *v1.NodeRouting {
		return &v1.NodeRouting{Status: v1.NodeRoutingStatus{ObservedGeneration: generation, Sessions: sessions}}
	}
	up := v1.RoutingSession{Peer: "p", Neighbor: "192.0.2.1", State: v1.SessionEstablished}
	down := v1.RoutingSession{Peer: "p", Neighbor: "192.0.2.1", State: "Active", LastError: "no answer"}
	spec := "peerASN: 65000\nmyASN: 65001\npeerAddress: 192.0.2.1\n"
	var many []routing.Node
	for i := range 10 {
		many = append(many, node(fmt.Sprintf("n%d", i), 11+i, ""))
	}
	east := []routing.Node{node("n1", 11, ""), node("n2", 12, "")}
	east[0].Labels["east"] = "65200"
	for _, row := range []struct {
		name, spec string
		nodes      []routing.Node // nil for n1 and n2
		routings   map[string]*v1.NodeRouting
		hasSecret  bool
		want       string
	}{
		{"one without its number", "peerASN: 1\nmyASNLabel: east\npeerAddress: 192.0.2.1", east, map[string]*v1.NodeRouting{
			"n1": report(1, up),
		}, false,
			"1/1 False Degraded 1/1 sessions are up; node n2 has no label east"},
		{"one reports twice", spec, nil, map[string]*v1.NodeRouting{"n1": report(1, up, up), "n2": report(1, down)}, false,
			"1/2 False SessionsDown 1/2 sessions are up; n2: 192.0.2.1: no answer"},
		{"many down", spec, many, nil, false, "0/10 False SessionsDown 0/10 sessions are up; " + strings.Join([]string{
			"n0: the speaker has not reported yet", "n1: the speaker has not reported yet",
			"n2: the speaker has not reported yet", "n3: the speaker has not reported yet",
			"n4: the speaker has not reported yet", "n5: the speaker has not reported yet",
			"n6: the speaker has not reported yet", "n7: the speaker has not reported yet",
			"and 2 more"}, "; ")},
		{"its password is there", spec + "passwordSecretRef: {name: s, key: k}", nil, map[string]*v1.NodeRouting{
			"n1": report(1, up), "n2": report(1, up),
		}, true,
			"2/2 True Established 2/2 sessions are up"},
		{
			"all up", spec, nil, map[string]*v1.NodeRouting{"n1": report(1, up), "n2": report(1, up)}, false,
			"2/2 True Established 2/2 sessions are up",
		},
		{"one down", spec, nil, map[string]*v1.NodeRouting{"n1": report(1, up), "n2": report(1, down)}, false,
			"1/2 False SessionsDown 1/2 sessions are up; n2: 192.0.2.1: no answer"},
		{"no report yet", spec, nil, map[string]*v1.NodeRouting{"n1": report(1, up), "n2": report(0)}, false,
			"1/2 False SessionsDown 1/2 sessions are up; n2: the speaker has not reported yet"},
		{"another's session", spec, nil, map[string]*v1.NodeRouting{
			"n1": report(1, up), "n2": report(1, v1.RoutingSession{Peer: "q", State: v1.SessionEstablished}),
		}, false,
			"1/2 False SessionsDown 1/2 sessions are up; n2: the speaker has yet to open the session"},
		{
			"no node", spec + "nodeSelector: {matchLabels: {rack: z}}", nil, nil, false,
			"0/0 False NoNodes spec.nodeSelector selects no node that runs an agent",
		},
		{"no secret", spec + "passwordSecretRef: {name: s, key: k}", nil, nil, false,
			"0/2 False SecretMissing Secret s, which spec.passwordSecretRef names, does not exist in this namespace, or has " +
				"no key k: create it; without the password no session is opened, and sessions that are up go on as they are"},
		{"no neighbour", "peerASN: 1\nmyASNLabel: none\npeerAddress: 192.0.2.1", nil, nil, false,
			"0/0 False NoNeighbor no node has this neighbour; node n1 has no label none; node n2 has no label none"},
		{"invalid", "peerASN: 1\nmyASN: 2\npeerAddress: 224.0.0.1", nil, nil, false,
			`0/0 False Invalid spec.peerAddress: Invalid value: "224.0.0.1": must be the address of one host on the network`},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := peer(t, "p", row.spec, 0)
			p.Status.Conditions = []metav1.Condition{{Type: v1.ConditionStalled, Status: metav1.ConditionTrue}} // until now
			if row.nodes == nil {
				row.nodes = []routing.Node{node("n1", 11, ""), node("n2", 12, "")}
			}
			result := routing.Render(routing.Inputs{
				Nodes: row.nodes, Peers: []v1.BGPPeer{p}, Password: password(row.hasSecret),
				Now: began,
			})
			status := routing.PeerStatus(&p, result.Peers["p"], row.routings)
			if status.Neighbor != p.Spec.PeerAddress {
				t.Errorf("the table shows %q", status.Neighbor)
			}
			c := *meta.FindStatusCondition(status.Conditions, v1.ConditionReady)
			isStalled := slices.Contains([]string{v1.ReasonInvalid, v1.ReasonPeerConflict, v1.ReasonSecretMissing}, c.Reason)
			if got := meta.IsStatusConditionTrue(status.Conditions, v1.ConditionStalled); got != isStalled ||
				!isStalled && len(status.Conditions) > 1 {
				t.Errorf("Stalled is %t: %+v", got, status.Conditions)
			}
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
		{
			"comes up first", nil, at(v1.SessionEstablished, ""),
			[]routing.SessionChange{{Peer: "p", Node: "n", Neighbor: "r1", IsUp: true, Cause: "the session is gone"}},
		},
		{"has never been up", nil, at("Active", "x"), nil},
		{
			"goes down", at(v1.SessionEstablished, ""), at("Idle", "hold timer"),
			[]routing.SessionChange{{Peer: "p", Node: "n", Neighbor: "r1", Cause: "hold timer"}},
		},
		{"stays down", at("Idle", ""), at("Active", ""), nil},
		{
			"goes down and says nothing", at(v1.SessionEstablished, ""), at("Idle", ""),
			[]routing.SessionChange{{Peer: "p", Node: "n", Neighbor: "r1", Cause: "the session is gone"}},
		},
		{"is not reported any more", at(v1.SessionEstablished, ""), nil, nil},
		{"another neighbour comes up", at(v1.SessionEstablished, ""),
			append(at(v1.SessionEstablished, ""), v1.RoutingSession{Peer: "p", Neighbor: "r2", State: v1.SessionEstablished}),
			[]routing.SessionChange{{Peer: "p", Node: "n", Neighbor: "r2", IsUp: true, Cause: "the session is gone"}}},
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
	in := routing.Inputs{
		Nodes: []routing.Node{n, m}, Peers: []v1.BGPPeer{peer(t, "p", "peerASN: 1\nmyASN: 2\npeerAddress: 192.0.2.1", 0)},
		Now: began,
	}
	result := routing.Render(in)
	first, second := result.Specs["n1"].RouterID, result.Specs["n2"].RouterID
	if first == second || !netip.MustParseAddr(first).Is4() || netip.MustParseAddr(first).AsSlice()[0] == 0 ||
		netip.MustParseAddr(first).IsMulticast() {
		t.Errorf("router IDs %s and %s", first, second)
	}
}

func TestAdmitGroup(t *testing.T) {
	group := func(name, pool, aggregation string, rules *v1.ServiceGroupBGP) v1.ServiceGroup {
		var bgp *v1.ServiceGroupBGPSpec
		if rules != nil {
			bgp = &v1.ServiceGroupBGPSpec{ServiceGroupBGP: *rules}
		}
		return v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "purelb-system"},
			Spec: v1.ServiceGroupSpec{
				Remote: &v1.RemotePools{
					PoolSet: v1.PoolSet{
						V4Pools: []v1.AddressPool{{Pool: pool, Subnet: "203.0.113.0/24", Aggregation: v1.Aggregation(aggregation)}},
					},
				}, BGP: bgp,
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
	elsewhere := second("default", nil)
	elsewhere.Namespace = "default"
	preferred := &v1.ServiceGroupBGP{LocalPref: ptr.To[int64](200)}
	allowing := second("default", &v1.ServiceGroupBGP{})
	allowing.Spec.BGP.AllowServices = &v1.RouteCommunities{Communities: []v1.Community{"no-export"}}
	for _, row := range []struct {
		name           string
		sg, other      v1.ServiceGroup
		peers          []v1.BGPPeer
		refused, warns string
	}{
		{
			"one network, alike", first("default", nil), second("default", &v1.ServiceGroupBGP{Advertise: ptr.To(true)}),
			external, "", "",
		},
		{"one network, and Services of one may ask for more", first("default", nil), allowing, external, "", ""},
		{
			"one network, not alike", first("default", &v1.ServiceGroupBGP{Prepend: 1}), second("default", nil), external,
			"203.0.113.0/24, which is one route", "",
		},
		{"routes of single addresses", first("/32", &v1.ServiceGroupBGP{Prepend: 1}), second("/32", nil), external, "", ""},
		{"networks apart", first("/28", &v1.ServiceGroupBGP{Prepend: 1}), second("/28", nil), external, "", ""},
		{
			"preference among external neighbours", first("/32", preferred), second("/32", nil), external, "",
			"spec.bgp.localPref: has no effect",
		},
		{"preference among internal neighbours", first("/32", preferred), second("/32", nil), internal, "", ""},
		{"one network, alike in another order",
			first("default", &v1.ServiceGroupBGP{Peers: []string{"p", "q"}, Communities: []v1.Community{"1:1", "1:2"}}),
			second("default", &v1.ServiceGroupBGP{Peers: []string{"q", "p"}, Communities: []v1.Community{"1:2", "1:1"}}),
			external, "", "spec.bgp.peers: there is no BGPPeer q"},
		{
			"one network, the other of another namespace", first("default", &v1.ServiceGroupBGP{Prepend: 1}), elsewhere,
			external, "", "",
		},
		{
			"one network, of different lengths", first("/24", &v1.ServiceGroupBGP{Prepend: 1}),
			group("b", "203.0.113.16/28", "/25", nil), external, "",
			"",
		},
		{
			"one network of many", first("/29", &v1.ServiceGroupBGP{Prepend: 1}), group("b", "203.0.113.8/29", "/29", nil),
			external, "203.0.113.8/29, which is one route", "",
		},
		{"preference, and no neighbour at all", first("/32", preferred), second("/32", nil), nil, "", ""},
		{"preference, and an internal neighbour by number", first("/32", preferred), second("/32", nil),
			[]v1.BGPPeer{peer(t, "p", "peerASN: 65001\nmyASN: 65001\npeerAddress: 192.0.2.1", 0)}, "", ""},
		{"preference, and nodes know their number", first("/32", preferred), second("/32", nil),
			[]v1.BGPPeer{peer(t, "p", "peerASN: 65000\nmyASNLabel: asn\npeerAddress: 192.0.2.1", 0)}, "", ""},
		{"preference, and an external neighbour of any number", first("/32", preferred), second("/32", nil),
			[]v1.BGPPeer{peer(t, "p", "peerASN: External\nmyASNLabel: asn\npeerAddress: 192.0.2.1", 0)}, "",
			"spec.bgp.localPref: has no effect"},
		{"preference for the external one of two",
			first("/32", &v1.ServiceGroupBGP{LocalPref: ptr.To[int64](200), Peers: []string{"p"}}), second("/32", nil),
			[]v1.BGPPeer{external[0], peer(t, "i", "peerASN: Internal\nmyASN: 65001\npeerAddress: 192.0.2.2", 0)}, "",
			"spec.bgp.localPref: has no effect"},
		{
			"a pool that is none", group("a", "oops", "default", &v1.ServiceGroupBGP{Peers: []string{"q"}}),
			second("default", nil), external, "", "",
		},
		{
			"no such neighbour", first("/32", &v1.ServiceGroupBGP{Peers: []string{"q"}}), second("/32", nil), external, "",
			"spec.bgp.peers: there is no BGPPeer q",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			warnings, errs := routing.AdmitGroup(nil, &row.sg, []v1.ServiceGroup{row.sg, row.other}, row.peers, nil)
			if got := fmt.Sprint(errs.ToAggregate()); !strings.Contains(got, row.refused) || row.refused == "" && len(errs) > 0 {
				t.Errorf("refused for %q, not %q", got, row.refused)
			}
			if got := strings.Join(warnings, "; "); !strings.HasPrefix(got, row.warns) || row.warns == "" && got != "" {
				t.Errorf("warnings: %q, not %q", got, row.warns)
			}
		})
	}
}

// TestAdmitGroupSharing changes a group that shares a network with another one, and says something else of it:
// what is so already is warned of, so that one group can be changed after the other.
func TestAdmitGroupSharing(t *testing.T) {
	group := func(name, pool string, prepend int32) *v1.ServiceGroup {
		sg := &v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "purelb-system"}}
		sg.Spec.Remote = &v1.RemotePools{
			PoolSet: v1.PoolSet{V4Pools: []v1.AddressPool{{Pool: pool, Subnet: "203.0.113.0/24", Aggregation: "/28"}}},
		}
		sg.Spec.BGP = &v1.ServiceGroupBGPSpec{ServiceGroupBGP: v1.ServiceGroupBGP{Prepend: prepend}}
		return sg
	}
	const shares = "the addresses of ServiceGroup b are in the same network 203.0.113.0/28, which is one route: both " +
		"have to say the same, or set another aggregation"
	const refused, warned = "spec.bgp: Invalid value: " + shares, "spec.bgp: " + shares
	for _, row := range []struct {
		name           string
		before, other  *v1.ServiceGroup
		refused, warns string
	}{
		{"a new one", nil, group("b", "203.0.113.8-203.0.113.9", 0), refused, ""},
		{"both said the same", group("a", "203.0.113.1", 0), group("b", "203.0.113.8", 0), "", warned},
		{"they differed", group("a", "203.0.113.1", 1), group("b", "203.0.113.8", 0), "", warned},
		{"they were apart", group("a", "203.0.113.17", 2), group("b", "203.0.113.8", 0), refused, ""},
		{"they say the same at last", group("a", "203.0.113.1", 0), group("b", "203.0.113.8", 2), "", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			after := group("a", "203.0.113.1", 2)
			warnings, errs := routing.AdmitGroup(row.before, after, []v1.ServiceGroup{*row.other}, nil, nil)
			refused := ""
			if len(errs) > 0 {
				refused = errs.ToAggregate().Error()
			}
			if warns := strings.Join(warnings, "; "); refused != row.refused || warns != row.warns {
				t.Errorf("refused %q, warned of %q\nwant %q and %q", refused, warns, row.refused, row.warns)
			}
		})
	}
}

// TestAdmitGroupPolicyLocal warns of routes that lead to more addresses than one where Services have policy
// Local.
func TestAdmitGroupPolicyLocal(t *testing.T) {
	peers := []v1.BGPPeer{peer(t, "p", "peerASN: 65000\nmyASN: 65001\npeerAddress: 192.0.2.1", 0)}
	for _, row := range []struct {
		name, aggregation string
		peers             []v1.BGPPeer
		local             []string
		want              string
	}{
		{
			"with such Services", "/28", peers, []string{"a/b", "a/c"},
			"aggregation: the group's routes lead to more addresses than one, and externalTrafficPolicy of a/b, a/c is Local: " +
				"nodes advertise a route for each address besides",
		},
		{"routes of single addresses", "/32", peers, []string{"a/b"}, ""},
		{"without such Services", "/28", peers, nil, ""},
		{"without BGPPeers", "/28", nil, []string{"a/b"}, ""},
	} {
		sg := v1.ServiceGroup{Spec: v1.ServiceGroupSpec{Remote: &v1.RemotePools{PoolSet: v1.PoolSet{V4Pools: []v1.AddressPool{
			{Pool: "203.0.113.0/28", Subnet: "203.0.113.0/24", Aggregation: v1.Aggregation(row.aggregation)},
		}}}}}
		warnings, errs := routing.AdmitGroup(nil, &sg, nil, row.peers, row.local)
		if got := strings.Join(warnings, "; "); got != row.want || len(errs) > 0 {
			t.Errorf("%s: %q, not %q; %v", row.name, got, row.want, errs)
		}
	}
}
