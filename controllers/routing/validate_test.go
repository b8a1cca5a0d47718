package routing_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/routing"
)

// TestValidate has BGPPeers that the schema takes, and what is wrong with them.
func TestValidate(t *testing.T) {
	const at = "peerASN: 65000\nmyASN: 65001\npeerAddress: "
	const oneHost = "must be the address of one host on the network"
	for _, row := range []struct {
		name, spec string
		want       string // field: message; empty if nothing is wrong
	}{
		{"an address", at + "192.0.2.1", ""},
		{"no address", at + "router.example", "spec.peerAddress: must be an IP address"},
		{"an IPv4 address in IPv6", at + "'::ffff:192.0.2.1'", "spec.peerAddress: write it as an IPv4 address: 192.0.2.1"},
		{"no host", at + "0.0.0.0", "spec.peerAddress: " + oneHost},
		{"many hosts", at + "'ff02::1'", "spec.peerAddress: " + oneHost},
		{"the node itself", at + "'::1'", "spec.peerAddress: " + oneHost},
		{
			"an address of any link", at + "'fe80::1'",
			"spec.peerAddress: a link-local address of IPv6 says nothing without its interface: set spec.interface instead, " +
				"or spec.discover",
		},
		{"an IPv4 address of any link", at + "169.254.255.1", ""},
		{"a source", at + "192.0.2.1\nsourceAddress: 192.0.2.9", ""},
		{"a source that is no host", at + "192.0.2.1\nsourceAddress: 127.0.0.1", "spec.sourceAddress: " + oneHost},
		{"a selector", at + "192.0.2.1\nnodeSelector: {matchExpressions: [{key: rack, operator: Exists}]}", ""},
		{
			"a selector that selects by nothing",
			at + "192.0.2.1\nnodeSelector: {matchExpressions: [{key: rack, operator: In}]}",
			"spec.nodeSelector: values: Invalid value: null: for 'in', 'notin' operators, values set can't be empty",
		},
		{"a label", "peerASN: 65000\nmyASNLabel: example.com/asn\npeerAddress: 192.0.2.1", ""},
		{
			"a label that no node can have", "peerASN: 65000\nmyASNLabel: 'a b'\npeerAddress: 192.0.2.1",
			"spec.myASNLabel: no node can have this label: ",
		},
		{"some hops to an external neighbour", at + "192.0.2.1\nebgpMultihop: 3", ""},
		{
			"some hops to one of the same number", "peerASN: 65001\nmyASN: 65001\npeerAddress: 192.0.2.1\nebgpMultihop: 3",
			"spec.ebgpMultihop: is for external neighbours",
		},
		{
			"some hops to an internal one", "peerASN: Internal\nmyASN: 65001\npeerAddress: 192.0.2.1\nebgpMultihop: 3",
			"spec.ebgpMultihop: is for external neighbours",
		},
		{
			"TTL security with one of the same number",
			"peerASN: 65001\nmyASN: 65001\npeerAddress: 192.0.2.1\nttlSecurity: true",
			"spec.ttlSecurity: is for external neighbours",
		},
		{"TTL security", at + "192.0.2.1\nttlSecurity: true", ""},
		{
			"some hops, and only nodes know the number",
			"peerASN: 65001\nmyASNLabel: asn\npeerAddress: 192.0.2.1\nebgpMultihop: 3", "",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := peer(t, "p", row.spec, 0)
			got := ""
			for _, err := range routing.Validate(&p) {
				got += err.Field + ": " + err.Detail
			}
			if !strings.HasPrefix(got, row.want) || row.want == "" && got != "" {
				t.Errorf("got  %q\nwant %q", got, row.want)
			}
		})
	}
}

// TestOutOfScope refuses BGPPeers that the manager does not look at.
func TestOutOfScope(t *testing.T) {
	for namespace, want := range map[string]string{
		"purelb-system": "", "default": "only BGPPeers in namespace purelb-system count: move it there",
	} {
		got := ""
		if err := routing.OutOfScopeError(&v1.BGPPeer{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}},
			"purelb-system"); err != nil {
			got = err.Detail
		}
		if got != want {
			t.Errorf("in namespace %s: %q, want %q", namespace, got, want)
		}
	}
}

// TestPeerWarnings has what the author of a BGPPeer may not have meant, in a cluster with the nodes n1
// and n2, of which n1 has the label east and n2 is in rack b, and n3, which runs no agent.
func TestPeerWarnings(t *testing.T) {
	const at = "peerASN: 65000\nmyASN: 65001\npeerAddress: 192.0.2.1\n"
	const here = "nodeSelector: {matchLabels: {kubernetes.io/hostname: n1}}"
	const there = "nodeSelector: {matchLabels: {kubernetes.io/hostname: n2}}"
	const byLabel = "peerASN: 65000\npeerAddress: 192.0.2.9\nmyASNLabel: "
	nodes := []routing.Node{node("n1", 11, ""), node("n2", 12, ""), node("n3", 13, "")}
	nodes[0].Labels["east"] = "65200"
	nodes[1].Labels["west"], nodes[1].Labels["trans"] = "0", "23456"
	nodes[2].LBNodeAgent = ""
	for _, row := range []struct {
		name, spec, other string
		otherNamespace    string
		want              string
	}{
		{"all nodes", at, "", "", ""},
		{"some nodes", at + here, "", "", ""},
		{
			"no node", at + "nodeSelector: {matchLabels: {rack: z}}", "", "",
			"spec.nodeSelector: selects none of the nodes that run an agent, now",
		},
		{
			"only nodes without an agent", at + "nodeSelector: {matchLabels: {kubernetes.io/hostname: n3}}", "", "",
			"spec.nodeSelector: selects none of the nodes that run an agent, now",
		},
		{"from an interface", at + "sourceInterface: lo", "", "", ""},
		{
			"from the virtual interface", at + here + "\nsourceInterface: kube-lb0", "", "",
			"spec.sourceInterface: kube-lb0 is the virtual interface of n1: its addresses are those of Services, and no " +
				"session comes from them",
		},
		{"a label of all", byLabel + "asn", "", "", ""},
		{"a label of some", byLabel + "east", "", "", "spec.myASNLabel: not the number of an autonomous system on n2"},
		{"a label of all that are selected", byLabel + "east\n" + here, "", "", ""},
		{
			"a label that is no number", byLabel + "rack", "", "",
			"spec.myASNLabel: not the number of an autonomous system on n1, n2",
		},
		{
			"a label that is a reserved number", byLabel + "trans\n" + there, "", "",
			"spec.myASNLabel: not the number of an autonomous system on n2",
		},
		{
			"a label that is no autonomous system", byLabel + "west\n" + there, "", "",
			"spec.myASNLabel: not the number of an autonomous system on n2",
		},
		{
			"another has the neighbour", at, at, "",
			"spec.peerAddress: BGPPeer q has this neighbour on n1, n2 already: the older of the two counts there",
		},
		{
			"another has the neighbour on a node", at, at + there, "",
			"spec.peerAddress: BGPPeer q has this neighbour on n2 already: the older of the two counts there",
		},
		{"another has the neighbour on other nodes", at + here, at + there, "", ""},
		{"another namespace has the neighbour", at, at, "default", ""},
		{"another has another neighbour", at, "peerASN: 65000\nmyASN: 65001\npeerAddress: 192.0.2.2", "", ""},
		{
			"both take gateways", "peerASN: 1\nmyASN: 2\ndiscover: DefaultGateway",
			"peerASN: 1\nmyASN: 2\ndiscover: DefaultGateway", "",
			"spec.discover: BGPPeer q has this neighbour on n1, n2 already: the older of the two counts there",
		},
		{
			"another takes gateways, and the address is one", at + there, "peerASN: 1\nmyASN: 2\ndiscover: DefaultGateway", "",
			"spec.peerAddress: BGPPeer q has this neighbour on n2 already: the older of the two counts there",
		},
		{
			"another takes gateways, and the address is none", "peerASN: 1\nmyASN: 2\npeerAddress: 192.0.2.9",
			"peerASN: 1\nmyASN: 2\ndiscover: DefaultGateway", "", "",
		},
		{
			"another has the neighbour in another spelling", "peerASN: 1\nmyASN: 2\npeerAddress: 2001:DB8:0::9",
			"peerASN: 1\nmyASN: 2\npeerAddress: 2001:db8::9", "",
			"spec.peerAddress: BGPPeer q has this neighbour on n1, n2 already: the older of the two counts there",
		},
		{
			"another has the interface", "peerASN: 1\nmyASN: 2\ninterface: eth1", "peerASN: 1\nmyASN: 3\ninterface: eth1", "",
			"spec.interface: BGPPeer q has this neighbour on n1, n2 already: the older of the two counts there",
		},
		{
			"another has another interface", "peerASN: 1\nmyASN: 2\ninterface: eth1",
			"peerASN: 1\nmyASN: 3\ninterface: eth2", "", "",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := peer(t, "p", row.spec, 0)
			all := []v1.BGPPeer{p}
			if row.other != "" {
				q := peer(t, "q", row.other, 1)
				if row.otherNamespace != "" {
					q.Namespace = row.otherNamespace
				}
				all = append(all, q)
			}
			if got := strings.Join(routing.PeerWarnings(&p, all, nodes), "; "); got != row.want {
				t.Errorf("got  %q\nwant %q", got, row.want)
			}
		})
	}
}
