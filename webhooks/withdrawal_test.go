package webhooks_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

const (
	withdrawalCure = "let another LBNodeAgent select nodes that can, or annotate the LBNodeAgent with " +
		"purelb.io/allow-withdrawal=true, and their agents withdraw them"
	withdrawn = "their agents withdraw them"
	// Those that createCluster makes, and that all are Virtual.
	leavesAll = "leaves 2 addresses in use by 3 Services (other/far, test/dns, test/holder) without a node to announce " +
		"them: "
	leavesOne = "leaves 1 address in use by 1 Service (test/onlink) without a node to announce them: "
	noNode    = "spec.nodeSelector: selects none of the cluster's nodes, now"
)

var (
	deletionRefused = answer{forbidden: leavesAll + withdrawalCure}
	deletionAllowed = warns(leavesAll + withdrawn)
	changeRefused   = answer{
		warnings: []string{noNode}, refused: []cause{{"spec.nodeSelector", "Forbidden: " + leavesAll + withdrawalCure}},
	}
	changeAllowed = warns(noNode, "spec.nodeSelector: "+leavesAll+withdrawn)
)

// selecting changes which nodes an LBNodeAgent selects.
func selecting(rack string) func(*unstructured.Unstructured) {
	return func(u *unstructured.Unstructured) {
		u.Object["spec"] = manifest("LBNodeAgent", "x", "nodeSelector: {rack: "+rack+"}").Object["spec"]
	}
}

func allowWithdrawal(value string) func(*unstructured.Unstructured) {
	return func(u *unstructured.Unstructured) {
		u.SetAnnotations(map[string]string{v1.AnnotationAllowWithdrawal: value})
	}
}

// TestFaultLastLBNodeAgent deletes LBNodeAgents, and changes which nodes they select, while
// Services have addresses. This test shows the row "the last LBNodeAgent is deleted by mistake, or
// changed to select no node that can announce an address in use" of docs/trust.md.
func TestFaultLastLBNodeAgent(t *testing.T) {
	g, ctx := begin(t), context.Background()
	last := manifest("LBNodeAgent", "last", "{}")
	stray := manifest("LBNodeAgent", "stray", "{}")
	stray.SetNamespace(elsewhere)
	withoutWebhooks(t)
	create(t, last)
	create(t, stray)
	withWebhooks(t)

	check(t, api.Delete(ctx, last.DeepCopy(), client.DryRunAll), deletionRefused)
	check(t, api.Delete(ctx, last.DeepCopy()), deletionRefused)
	check(t, api.DeleteAllOf(ctx, last.DeepCopy(), client.InNamespace(namespace)), deletionRefused)
	check(t, update(ctx, last, selecting("z")), changeRefused)
	check(t, api.Delete(ctx, stray.DeepCopy(), client.DryRunAll), answer{}) // it has no effect
	check(t, update(ctx, last, selecting("a")), answer{})
	check(t, update(ctx, last, func(u *unstructured.Unstructured) {
		g.Expect(unstructured.SetNestedField(u.Object, "debug", "spec", "logLevel")).To(Succeed())
	}), answer{})

	// Beside another one. When that has been deleted the webhook knows it at once, although the
	// manager may have yet to see to its nodes, and although the cache may not show it.
	second := manifest("LBNodeAgent", "second", "nodeSelector: {rack: b}")
	create(t, second)
	check(t, api.Delete(ctx, last.DeepCopy(), client.DryRunAll), answer{})
	check(t, update(ctx, last, selecting("z"), client.DryRunAll), warns(noNode))
	g.Expect(update(
		ctx, second, func(u *unstructured.Unstructured) { u.SetFinalizers(append(u.GetFinalizers(), "example.com/a")) },
	)).To(Succeed())
	waitUntilCached(t, second)
	late := &v1.LBNodeAgentList{}
	g.Expect(cached.List(ctx, late, client.InNamespace(namespace))).To(Succeed())
	g.Expect(late.Items).To(HaveLen(2))
	lateAgents.Store(late)
	t.Cleanup(func() { lateAgents.Store(nil) })
	recorded.take()
	check(t, api.Delete(ctx, second.DeepCopy()), answer{})
	check(t, api.Delete(ctx, last.DeepCopy()), deletionRefused)
	lateAgents.Store(nil)
	check(t, api.Delete(ctx, second.DeepCopy()), answer{}) // again, while its finalizers hold it
	g.Expect(update(ctx, second, func(u *unstructured.Unstructured) { u.SetFinalizers(nil) })).To(Succeed())

	for _, value := range []string{"yes", "false", ""} {
		check(t, update(ctx, last, allowWithdrawal(value)), answer{})
		check(t, api.Delete(ctx, last.DeepCopy()), deletionRefused)
	}
	check(t, update(ctx, last, func(u *unstructured.Unstructured) {
		allowWithdrawal("true")(u)
		selecting("z")(u)
	}, client.DryRunAll), changeAllowed)
	check(t, update(ctx, last, allowWithdrawal("true")), answer{})
	check(t, api.Delete(ctx, last.DeepCopy(), client.DryRunAll), deletionAllowed)
	check(t, api.Delete(ctx, last.DeepCopy()), deletionAllowed)
	g.Eventually(func() bool {
		return apierrors.IsNotFound(api.Get(ctx, client.ObjectKeyFromObject(last), last.DeepCopy()))
	}).Should(BeTrue())
}

// TestLastLBNodeAgentOfSubnet has a Service with an address of the link of node1, to which node3 has
// no interface.
func TestLastLBNodeAgentOfSubnet(t *testing.T) {
	g, ctx := begin(t), context.Background()
	ann := &v1.Announcement{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "node3"},
		Spec:       v1.AnnouncementSpec{NodeName: "node3", LBNodeAgent: "facts"},
	}
	create(t, ann)
	ann.Status.Interfaces = []v1.NodeInterface{{Name: "eth0", MAC: "02:00:00:00:00:03", Subnets: []string{"10.8.0.3/24"}}}
	ann.Status.ObservedGeneration = ann.Generation
	g.Expect(api.Status().Update(ctx, ann)).To(Succeed())
	waitUntilCached(t, ann)
	svc := service("onlink", "local", 80)
	create(t, svc)
	g.Eventually(func(g Gomega) []string { return ingressOf(g, "onlink") }).Should(HaveLen(1))
	waitUntilCached(t, svc)
	onLink, offLink := manifest("LBNodeAgent", "on-link", "nodeSelector: {rack: a}"),
		manifest("LBNodeAgent", "off-link", "nodeSelector: {rack: b}")
	create(t, onLink)
	create(t, offLink)

	check(t, api.Delete(ctx, offLink.DeepCopy(), client.DryRunAll), answer{})
	check(t, api.Delete(ctx, onLink.DeepCopy()), answer{forbidden: leavesOne + withdrawalCure})
	refused := func(field string) []cause { return []cause{{field, "Forbidden: " + leavesOne + withdrawalCure}} }
	inSubnet := func(subnet string) func(*unstructured.Unstructured) {
		return func(u *unstructured.Unstructured) {
			g.Expect(unstructured.SetNestedStringSlice(u.Object, []string{subnet}, "spec", "local", "subnets")).To(Succeed())
		}
	}
	for _, row := range []struct {
		name   string
		change func(*unstructured.Unstructured)
		want   answer
	}{
		{"narrower subnets", inSubnet("10.8.0.0/24"), answer{refused: refused("spec.local.subnets")}},
		{"the subnet of the address", inSubnet("10.7.0.0/24"), answer{}},
		{"no node", selecting("z"), answer{warnings: []string{noNode}, refused: refused("spec.nodeSelector")}},
		{"narrower subnets and no node", func(u *unstructured.Unstructured) {
			selecting("z")(u)
			inSubnet("10.8.0.0/24")(u)
		}, answer{warnings: []string{noNode}, refused: refused("spec")}},
		{"narrower subnets, and that is meant", func(u *unstructured.Unstructured) {
			allowWithdrawal("true")(u)
			inSubnet("10.8.0.0/24")(u)
		}, warns("spec.local.subnets: " + leavesOne + withdrawn)},
	} {
		t.Run(row.name, func(t *testing.T) {
			check(t, update(ctx, onLink, row.change, client.DryRunAll), row.want)
		})
	}
	check(t, update(ctx, offLink, selecting("z"), client.DryRunAll), warns(noNode))

	// A new LBNodeAgent that takes over the nodes of the link.
	const (
		takes = "spec.nodeSelector: this LBNodeAgent comes before on-link on nodes node1, node2 (a selector comes before " +
			"none, then the first by name)"
		loses = "spec.nodeSelector: LBNodeAgent on-link comes before this one on nodes node1, node2 (a selector comes " +
			"before none, then the first by name)"
	)
	taking := func(name, subnet string) *unstructured.Unstructured {
		return manifest("LBNodeAgent", name, "{nodeSelector: {rack: a}, local: {subnets: ["+subnet+"]}}")
	}
	check(
		t, api.Create(ctx, taking("a", "10.8.0.0/24"), client.DryRunAll),
		answer{warnings: []string{takes}, refused: refused("spec.local.subnets")},
	)
	check(t, api.Create(ctx, taking("a", "10.7.0.0/24"), client.DryRunAll), warns(takes))
	check(t, api.Create(ctx, taking("z", "10.8.0.0/24"), client.DryRunAll), warns(loses))
	meant := taking("a", "10.8.0.0/24")
	allowWithdrawal("true")(meant)
	check(t, api.Create(ctx, meant, client.DryRunAll), warns(takes, "spec.local.subnets: "+leavesOne+withdrawn))
}
