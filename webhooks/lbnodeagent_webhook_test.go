package webhooks_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// agentRow is an LBNodeAgent that is made beside others: "default", which
// selects all nodes, and "m-rack-a", which selects node1 and node2.
type agentRow struct {
	name, object, spec string
	want               answer
}

func agentRows() []agentRow {
	const (
		rule       = " (a selector comes before none, then the first by name)"
		expression = `must be "default" or a regular expression (RE2) for the whole name, such as en.*|eth0: `
		all        = "z-all"  // selects all: shadowed by all others
		rack       = "z-rack" // has a selector
		localIf    = "spec.local.localInterface"
		iface      = "cannot be the name of a network interface: at most 15 bytes, not . or .."
		label      = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an " +
			"alphanumeric character "
	)
	shadowed := "spec.nodeSelector: LBNodeAgent %s comes before this one on %s" + rule
	shadows := "spec.nodeSelector: this LBNodeAgent comes before %s on %s" + rule
	byBoth := warns(
		fmt.Sprintf(shadowed, "default", "node node3"), fmt.Sprintf(shadowed, "m-rack-a", "nodes node1, node2"),
	)
	quiet := "nodeSelector: {rack: b}" // takes node3 from default
	fromDefault := warns(fmt.Sprintf(shadows, "default", "node node3"))
	number := func(path string, value, least, most int) answer {
		if value < least {
			return refusedAt(path, "", fmt.Sprintf("%d: %s in body should be greater than or equal to %d", value, path, least))
		}
		return refusedAt(path, "", fmt.Sprintf("%d: %s in body should be less than or equal to %d", value, path, most))
	}
	local := func(s string) string { return quiet + "\nlocal: {" + s + "}" }
	lifetimes := func(where string, pairs string) string {
		return local("addressConfig: {" + where + ": {" + pairs + "}}")
	}
	const onLocal, onDummy = "spec.local.addressConfig.localInterface", "spec.local.addressConfig.dummyInterface"
	return []agentRow{
		// Which nodes.
		{"behind all others", all, "{}", byBoth},
		{"before a catch-all", rack, "nodeSelector: {rack: b}", fromDefault},
		{
			"before another catch-all by name", "a-all", "{}",
			warns(fmt.Sprintf(shadows, "default", "node node3"), fmt.Sprintf(shadowed, "m-rack-a", "nodes node1, node2")),
		},
		{
			"behind another with a selector", rack, "nodeSelector: {rack: a}",
			warns(fmt.Sprintf(shadowed, "m-rack-a", "nodes node1, node2")),
		},
		{
			"before another with a selector", "a-rack", "nodeSelector: {rack: a}",
			warns(fmt.Sprintf(shadows, "m-rack-a", "nodes node1, node2")),
		},
		{"no node", rack, "nodeSelector: {rack: c}", warns("spec.nodeSelector: selects none of the cluster's nodes, now")},
		{"a label that cannot be", rack, "nodeSelector: {'not a label': c}", refusedAt("spec.nodeSelector", "not a label",
			"no node can have this label: name part "+label+
				`(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is `+
				`'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')`)},
		{"the manager's own label", rack, "nodeSelector: {purelb.io/agent: default}", refusedAt(
			"spec.nodeSelector", "purelb.io/agent",
			"the manager gives nodes this label, by the nodeSelectors of LBNodeAgents: select other labels",
		)},
		{"a value that cannot be", rack, "nodeSelector: {rack: 'a,b'}", refusedAt("spec.nodeSelector[rack]", "a,b",
			"no node can have this value: a valid label must be an empty string or consist of alphanumeric characters, '-', "+
				"'_' or '.', and must start and end with an alphanumeric character "+
				`(e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is `+
				`'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')`)},
		{"a long value", rack, "nodeSelector: {rack: " + strings.Repeat("a", 64) + "}",
			refusedAt("spec.nodeSelector[rack]", strings.Repeat("a", 64),
				"no node can have this value: must be no more than 63 bytes")},
		{"name of 63", strings.Repeat("z", 63), quiet, fromDefault},
		{
			"name of 64", strings.Repeat("z", 64), quiet,
			refusedAt("<nil>", "", "the name must be at most 63 characters: it becomes a label of Nodes"),
		},

		// Interfaces.
		{"default interface", rack, local("localInterface: default"), fromDefault},
		{"expression", rack, local("localInterface: 'en.*|eth0'"), fromDefault},
		{
			"open bracket", rack, local("localInterface: 'en('"),
			refusedAt(localIf, "en(", expression+"missing closing ): `en(`"),
		},
		{
			"brackets turned about", rack, local("localInterface: 'a)|(b'"),
			refusedAt(localIf, "a)|(b", expression+"unexpected ): `a)|(b`"),
		},
		{
			"a glob", rack, local("localInterface: '*eth'"),
			refusedAt(localIf, "*eth", expression+"missing argument to repetition operator: `*`"),
		},
		{
			"lookahead", rack, local("localInterface: '(?!eth).*'"),
			refusedAt(localIf, "(?!eth).*", expression+"invalid or unsupported Perl syntax: `(?!`"),
		},
		{"names", rack, local("interfaces: [eth0, bond0.100]"), fromDefault},
		{"a dot", rack, local("interfaces: [eth0, .]"), refusedAt("spec.local.interfaces[1]", ".", iface)},
		{"two dots", rack, local("dummyInterface: .."), refusedAt("spec.local.dummyInterface", "..", iface)},
		{
			"16 bytes", rack, local("interfaces: [ümläutünterfäc]"),
			refusedAt("spec.local.interfaces[0]", "ümläutünterfäc", iface),
		},
		{
			"a slash", rack, local("interfaces: [a/b]"),
			refusedAt("spec.local.interfaces[0]", "a/b", `spec.local.interfaces[0] in body should match '^[^/\s:]+$'`),
		},
		{
			"a virtual interface with a space", rack, local("dummyInterface: 'a b'"),
			refusedAt("spec.local.dummyInterface", "a b", `spec.local.dummyInterface in body should match '^[^/\s:]+$'`),
		},
		{
			"a virtual interface by a template", rack, local("dummyInterface: lb%d"),
			refusedAt("spec.local.dummyInterface", "lb%d",
				"must not have a %: Linux makes an interface of another name from it"),
		},
		{
			"a virtual interface for Local addresses", rack, local("interfaces: [eth0, eth1], dummyInterface: eth1"),
			refusedAt("spec.local.dummyInterface", "eth1",
				"is one of spec.local.interfaces: an interface is for Local addresses or for Virtual ones"),
		},
		{
			"the default virtual interface for Local addresses", rack, local("interfaces: [kube-lb0]"),
			refusedAt("spec.local.dummyInterface", "kube-lb0",
				"is one of spec.local.interfaces: an interface is for Local addresses or for Virtual ones"),
		},
		{
			"a virtual interface that a node reports", "a-all", "local: {dummyInterface: eth0}",
			refusedAt("spec.local.dummyInterface", "eth0",
				"is for Local addresses on node node1: name an interface that the agents make, such as kube-lb0"),
		},
		{"a virtual interface that other nodes report", rack, local("dummyInterface: eth0"), fromDefault},

		// Lifetimes.
		{"60 seconds", rack, lifetimes("localInterface", "validLifetime: 60, preferredLifetime: 60"), fromDefault},
		{"for ever", rack, lifetimes("localInterface", "validLifetime: 0, preferredLifetime: 60"), fromDefault},
		{
			"valid for 59", rack, lifetimes("localInterface", "validLifetime: 59"),
			refusedAt(onLocal+".validLifetime", "", "must be 0 (forever) or at least 60 seconds"),
		},
		{
			"preferred for 59", rack, lifetimes("dummyInterface", "preferredLifetime: 59"),
			refusedAt(onDummy+".preferredLifetime", "", "must be 0 (same as validLifetime) or at least 60 seconds"),
		},
		{
			"preferred longer", rack, lifetimes("dummyInterface", "validLifetime: 100, preferredLifetime: 101"),
			refusedAt(onDummy+".preferredLifetime", "", "must not be longer than validLifetime"),
		},
		{"preferred longer than the default", rack, lifetimes("localInterface", "preferredLifetime: 301"),
			answer{refused: []cause{
				{onLocal + ".preferredLifetime", "Invalid value: 301: must not be longer than validLifetime, which is 300"}}}},
		{"preferred as long as the default", rack, lifetimes("localInterface", "preferredLifetime: 300"), fromDefault},
		{"preferred, valid for ever by default", rack, lifetimes("dummyInterface", "preferredLifetime: 301"), fromDefault},

		// Counts and intervals.
		{
			"GARP counts", rack,
			local("garpConfig: {count: 10, interval: 10s, initialDelay: 10s}, probeConfig: {count: 10, interval: 5s}"),
			fromDefault,
		},
		{"GARP 0 times", rack, local("garpConfig: {count: 0}"), number("spec.local.garpConfig.count", 0, 1, 10)},
		{"GARP 11 times", rack, local("garpConfig: {count: 11}"), number("spec.local.garpConfig.count", 11, 1, 10)},
		{
			"GARP too often", rack, local("garpConfig: {interval: 99ms}"),
			refusedAt("spec.local.garpConfig.interval", "99ms", "must be from 100ms to 10s"),
		},
		{
			"GARP too late", rack, local("garpConfig: {initialDelay: 11s}"),
			refusedAt("spec.local.garpConfig.initialDelay", "11s", "must be from 0s to 10s"),
		},
		{"probes 0 times", rack, local("probeConfig: {count: 0}"), number("spec.local.probeConfig.count", 0, 1, 10)},
		{"probes 11 times", rack, local("probeConfig: {count: 11}"), number("spec.local.probeConfig.count", 11, 1, 10)},
		{
			"probes too fast", rack, local("probeConfig: {interval: 9ms}"),
			refusedAt("spec.local.probeConfig.interval", "9ms", "must be from 10ms to 5s"),
		},
	}
}

func otherAgents(t *testing.T) {
	t.Helper()
	create(t, manifest("LBNodeAgent", "default", "{}"))
	create(t, manifest("LBNodeAgent", "m-rack-a", "nodeSelector: {rack: a}"))
}

func TestLBNodeAgentCreate(t *testing.T) {
	begin(t)
	otherAgents(t)
	for _, row := range agentRows() {
		t.Run(row.name, func(t *testing.T) { checkCreate(t, manifest("LBNodeAgent", row.object, row.spec), row.want) })
	}
	t.Run("elsewhere", func(t *testing.T) {
		a := manifest("LBNodeAgent", "x", "{}")
		a.SetNamespace(elsewhere)
		checkCreate(t, a, answer{refused: []cause{agentNotHere}})
	})
}

var agentNotHere = refusedAt(
	"metadata.namespace", elsewhere, "only LBNodeAgents in namespace purelb-system count: move it there",
).refused[0]

func TestLBNodeAgentUpdate(t *testing.T) {
	g := begin(t)
	ctx := context.Background()
	otherAgents(t)
	a := manifest("LBNodeAgent", "x", "local: {localInterface: 'en('}")
	stray := manifest("LBNodeAgent", "stray", "local: {localInterface: 'en('}")
	stray.SetNamespace(elsewhere)
	withoutWebhooks(t)
	create(t, a)
	create(t, stray)
	withWebhooks(t)

	write := func(a *unstructured.Unstructured, mutate func(*unstructured.Unstructured), want answer) {
		t.Helper()
		check(t, update(ctx, a, mutate, client.DryRunAll), want)
		check(t, update(ctx, a, mutate), want)
	}
	write(a, func(u *unstructured.Unstructured) { u.SetLabels(map[string]string{"a": "b"}) }, answer{})
	const reason = "must be \"default\" or a regular expression (RE2) for the whole name, such as en.*|eth0: missing " +
		"closing ): "
	write(a, func(u *unstructured.Unstructured) {
		g.Expect(unstructured.SetNestedField(u.Object, "debug", "spec", "logLevel")).To(Succeed())
	}, refusedAt("spec.local.localInterface", "en(", reason+"`en(`"))
	g.Eventually(func(g Gomega) string {
		live := &v1.LBNodeAgent{}
		g.Expect(api.Get(ctx, client.ObjectKeyFromObject(a), live)).To(Succeed())
		ready, stalled := meta.FindStatusCondition(live.Status.Conditions, v1.ConditionReady),
			meta.FindStatusCondition(live.Status.Conditions, v1.ConditionStalled)
		g.Expect(stalled).NotTo(BeNil())
		g.Expect(stalled.Message).To(Equal(ready.Message))
		return fmt.Sprintf("%s %s: %s", ready.Status, ready.Reason, ready.Message)
	}).Should(Equal(
		"False Invalid: spec.local.localInterface: " + refusedAt("", "en(", reason+"`en(`").refused[0].message,
	))

	write(a, func(u *unstructured.Unstructured) {
		g.Expect(unstructured.SetNestedField(u.Object, "en.*", "spec", "local", "localInterface")).To(Succeed())
	}, agentRows()[0].want)
	g.Eventually(func(g Gomega) {
		live := &v1.LBNodeAgent{}
		g.Expect(api.Get(ctx, client.ObjectKeyFromObject(a), live)).To(Succeed())
		g.Expect(meta.FindStatusCondition(live.Status.Conditions, v1.ConditionStalled)).To(BeNil())
	}).Should(Succeed())

	write(stray, func(u *unstructured.Unstructured) {
		g.Expect(unstructured.SetNestedField(u.Object, "b(", "spec", "local", "localInterface")).To(Succeed())
	}, answer{warnings: []string{agentNotHere.String()}})
}
