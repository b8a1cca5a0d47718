package webhooks_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// peerRow is a BGPPeer that is made beside another: "first", which is 192.0.2.1 on all nodes.
type peerRow struct {
	name, spec string
	want       answer
}

func peerRows() []peerRow {
	const asn = "peerASN: 65000\nmyASN: 65001\n"
	at := func(address string) string { return asn + "peerAddress: '" + address + "'" }
	const source = "spec.sourceAddress"
	return []peerRow{
		{"another neighbour", at("192.0.2.2"), answer{}},
		{"the gateways", asn + "discover: DefaultGateway", answer{}},
		{
			"a neighbour that another has", at("192.0.2.1"),
			warns(
				"spec.peerAddress: BGPPeer first has this neighbour on node1, node2, node3 already: the older of the two counts " +
					"there",
			),
		},
		{
			"from multicast", at("192.0.2.2") + "\nsourceAddress: 224.0.0.1",
			refusedAt(source, "224.0.0.1", "must be the address of one host on the network"),
		},
		{
			"from link-local", asn + "discover: DefaultGateway\nsourceAddress: fe80::1",
			refusedAt(
				source, "fe80::1",
				"a link-local address of IPv6 says nothing without its interface: set spec.interface instead, or spec.discover",
			),
		},
		{
			"no node", at("192.0.2.2") + "\nnodeSelector: {matchLabels: {rack: z}}",
			warns("spec.nodeSelector: selects none of the nodes that run an agent, now"),
		},
		{
			"from the virtual interface", at("192.0.2.2") + "\nsourceInterface: kube-lb0",
			warns(
				"spec.sourceInterface: kube-lb0 is the virtual interface of node1, node2, node3: its addresses are those of " +
					"Services, and no session comes from them",
			),
		},
		{"a selector that cannot be", at("192.0.2.2") + "\nnodeSelector: {matchExpressions: [{key: rack, operator: In}]}",
			refusedAt(
				"spec.nodeSelector", "", "values: Invalid value: null: for 'in', 'notin' operators, values set can't be empty",
			)},
		{
			"no label with the ASN", "peerASN: 65000\nmyASNLabel: rack\npeerAddress: 192.0.2.2",
			warns("spec.myASNLabel: not the number of an autonomous system on node1, node2, node3"),
		},
		{"a label that cannot be", "peerASN: 65000\nmyASNLabel: a b\npeerAddress: 192.0.2.2",
			refusedAt("spec.myASNLabel", "a b",
				"no node can have this label: name part must consist of alphanumeric characters, '-', '_' or '.', and must start "+
					"and end with an alphanumeric character "+
					`(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is `+
					`'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')`)},
		{"multihop to an internal neighbour", "peerASN: 65001\nmyASN: 65001\npeerAddress: 192.0.2.2\nebgpMultihop: 3",
			refusedAt("spec.ebgpMultihop", "", "3: is for external neighbours: an internal one may be any number of hops away")},
	}
}

var peerNotHere = refusedAt(
	"metadata.namespace", elsewhere, "only BGPPeers in namespace purelb-system count: move it there",
).refused[0]

// routedRows are ServiceGroups with bgp beside "routed", which has 10.30.0.0/28 as one route for
// all of 10.30.0.0/24.
func routedRows() []peerRow {
	pool := "remote: {pool: 10.30.0.128/28, subnet: 10.30.0.0/24, aggregation: default}\nbgp: "
	return []peerRow{
		{"alike", pool + "{prepend: 1}", answer{}},
		{"not alike", pool + "{prepend: 2}", refusedAt("spec.bgp", "",
			"the addresses of ServiceGroup routed are in the same network 10.30.0.0/24, which is one route: both have to say "+
				"the same, or set another aggregation")},
		{"no such neighbour", pool + "{prepend: 1, peers: [none]}", refusedAt("spec.bgp", "",
			"the addresses of ServiceGroup routed are in the same network 10.30.0.0/24, which is one route: both have to say "+
				"the same, or set another aggregation")},
		{"preference among external neighbours",
			"remote: {pool: 10.31.0.0/28, subnet: 10.31.0.0/24}\nbgp: {localPref: 200, peers: [first, none]}", warns(
				"spec.bgp.peers: there is no BGPPeer none",
				"spec.bgp.localPref: has no effect, as all these BGPPeers are external: use med, prepend or communities")},
	}
}

const addsHostRoutes = "aggregation: the group's routes lead to more addresses than one, and externalTrafficPolicy " +
	"of test/stays is Local: nodes advertise a route for each address besides"

// TestServiceGroupHostRoutes has a Service with policy Local in a group whose routes lead to more addresses
// than one.
func TestServiceGroupHostRoutes(t *testing.T) {
	g := begin(t)
	withAgents(t, g)
	const pool = "{remote: {pool: 10.32.0.0/28, subnet: 10.32.0.0/24"
	sg := group("routed-local", pool+"}}")
	create(t, sg)
	svc := service("stays", "routed-local", 80)
	svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	create(t, svc)
	g.Eventually(func(g Gomega) []string { return ingressOf(g, "stays") }).Should(HaveLen(1))
	waitUntilCached(t, svc)
	recorded.take()
	change(t, sg, false, pool+", aggregation: /28}}", warns(addsHostRoutes))
	change(t, sg, false, pool+", aggregation: /32}}", answer{})
}

// withAgents labels the nodes as the manager does, and makes the BGPPeer "first".
func withAgents(t *testing.T, g *WithT) {
	t.Helper()
	ctx := context.Background()
	var nodes corev1.NodeList
	g.Expect(api.List(ctx, &nodes)).To(Succeed())
	label := func(value string) {
		for i := range nodes.Items {
			patch := client.RawPatch(
				"application/merge-patch+json", []byte(`{"metadata":{"labels":{"`+v1.LabelAgent+`":`+value+`}}}`),
			)
			g.Expect(api.Patch(ctx, nodes.Items[i].DeepCopy(), patch)).To(Succeed())
		}
	}
	create(t, manifest("LBNodeAgent", "default", "{}")) // which keeps the labels
	label(`"default"`)
	t.Cleanup(func() { label("null") })
	g.Eventually(func(g Gomega) {
		var seen corev1.NodeList
		g.Expect(cached.List(ctx, &seen, client.MatchingLabels{v1.LabelAgent: "default"})).To(Succeed())
		g.Expect(seen.Items).To(HaveLen(len(nodes.Items)))
	}).Should(Succeed())
	first := manifest("BGPPeer", "first", "peerASN: 65000\nmyASN: 65001\npeerAddress: 192.0.2.1")
	create(t, first)
	g.Eventually(func() error { return cached.Get(ctx, client.ObjectKeyFromObject(first), &v1.BGPPeer{}) }).
		Should(Succeed())
	recorded.take()
}

func TestBGPPeerCreate(t *testing.T) {
	g := begin(t)
	withAgents(t, g)
	for _, row := range peerRows() {
		t.Run(row.name, func(t *testing.T) { checkCreate(t, manifest("BGPPeer", "x", row.spec), row.want) })
	}
	t.Run("elsewhere", func(t *testing.T) {
		p := manifest("BGPPeer", "x", peerRows()[0].spec)
		p.SetNamespace(elsewhere)
		checkCreate(t, p, answer{refused: []cause{peerNotHere}})
	})
}

func TestBGPPeerUpdate(t *testing.T) {
	g := begin(t)
	withAgents(t, g)
	ctx := context.Background()
	p := manifest("BGPPeer", "x", "peerASN: 65000\nmyASN: 65001\npeerAddress: 192.0.2.2\nsourceAddress: 224.0.0.1")
	withoutWebhooks(t)
	create(t, p)
	withWebhooks(t)
	check(t, update(ctx, p, func(u *unstructured.Unstructured) { u.SetLabels(map[string]string{"a": "b"}) }), answer{})
	check(t, update(ctx, p, func(u *unstructured.Unstructured) {
		g.Expect(unstructured.SetNestedField(u.Object, int64(180), "spec", "port")).To(Succeed())
	}), peerRows()[3].want)
	check(t, update(ctx, p, func(u *unstructured.Unstructured) {
		g.Expect(unstructured.SetNestedField(u.Object, "192.0.2.3", "spec", "sourceAddress")).To(Succeed())
	}), answer{})
}

func TestServiceGroupBGP(t *testing.T) {
	g := begin(t)
	withAgents(t, g)
	routed := group(
		"routed",
		"remote: {pool: 10.30.0.0/28, subnet: 10.30.0.0/24, aggregation: default}\nbgp: {prepend: 1, advertise: true}",
	)
	create(t, routed)
	g.Eventually(func() error {
		return cached.Get(context.Background(), client.ObjectKeyFromObject(routed), &v1.ServiceGroup{})
	}).Should(Succeed())
	recorded.take()
	for _, row := range routedRows() {
		t.Run(row.name, func(t *testing.T) { checkCreate(t, group("x", row.spec), row.want) })
	}
}
