package controllers_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// bgpPeer makes a BGPPeer in the manager's namespace, with the YAML text as its spec.
func bgpPeer(t *testing.T, name, spec string) *v1.BGPPeer {
	t.Helper()
	p := &v1.BGPPeer{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := yaml.UnmarshalStrict([]byte(spec), &p.Spec); err != nil {
		t.Fatal(err)
	}
	create(t, p)
	return p
}

func verdict(p *v1.BGPPeer) string {
	if len(p.Status.Conditions) == 0 {
		return ""
	}
	return fmt.Sprint(p.Status.Sessions, " ", p.Status.Conditions[0].Status, " ", p.Status.Conditions[0].Reason)
}

// TestRouting follows a BGPPeer from its creation to its deletion: NodeRoutings, speakers, the
// password, the report of a session, its events.
func TestRouting(t *testing.T) {
	g, ctx := begin(t), context.Background()
	rack := map[string]string{"routing": "yes"}
	agents := lbNodeAgent(t, "routing", rack)
	node(t, "routed1", rack)
	node(t, "routed2", rack)
	sg := serviceGroup(t, "routing", "{remote: {pool: 198.18.5.0/28, subnet: 198.18.5.0/24}, bgp: {prepend: 2}}")
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "router"}, StringData: map[string]string{"other": "x"},
	}
	create(t, secret)
	p := bgpPeer(
		t, "p",
		"peerASN: 65000\nmyASN: 65001\npeerAddress: 192.0.2.1\nnodeSelector: {matchLabels: {routing: "+
			"'yes'}}\npasswordSecretRef: {name: router, key: password}",
	)

	g.Eventually(func(g Gomega) string { return verdict(fetch(g, p)) }).Should(Equal("0/2 False SecretMissing"))
	routing := &v1.NodeRouting{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "routed1"}}
	g.Eventually(func(g Gomega) {
		fetch(g, routing)
		g.Expect(routing.Spec.Peers).To(HaveLen(1))
		g.Expect(routing.Spec.Peers[0].PasswordFile).To(Equal("p"))
		g.Expect(routing.Spec.Groups).To(HaveLen(1))
		g.Expect(routing.Spec.Groups[0].Prepend).To(BeEquivalentTo(2))
		g.Expect(routing.OwnerReferences).To(HaveLen(1))
	}).Should(Succeed())
	speakers := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "purelb-speaker-routing"}}
	g.Eventually(func(g Gomega) { fetch(g, speakers) }).Should(Succeed())
	c := speakers.Spec.Template.Spec.Containers[0]
	g.Expect(c.Command).To(Equal([]string{"/purelb-speaker"}))
	g.Expect(c.SecurityContext.Capabilities.Add).To(Equal([]corev1.Capability{"NET_ADMIN"}))
	g.Expect(speakers.Spec.Template.Spec.ServiceAccountName).To(Equal("purelb-speaker"))

	// The LBNodeAgent shows how many speakers are ready.
	g.Eventually(func(g Gomega) string { return fetch(g, agents).Status.Speakers }).Should(Equal("0/0"))
	g.Eventually(func(g Gomega) error {
		status := &fetch(g, speakers).Status
		status.DesiredNumberScheduled, status.NumberReady = 2, 1
		return api.Status().Update(ctx, speakers)
	}).Should(Succeed())
	g.Eventually(func(g Gomega) string { return fetch(g, agents).Status.Speakers }).Should(Equal("1/2"))

	// The password comes, changes, and no pod is replaced for it.
	passwords := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "purelb-speaker-routing"}}
	for _, password := range []string{"first", "second"} {
		secret.StringData = map[string]string{"password": password}
		g.Expect(api.Update(ctx, secret)).To(Succeed())
		g.Eventually(func(g Gomega) string { return string(fetch(g, passwords).Data["p"]) }).Should(Equal(password))
	}
	g.Expect(passwords.Data).To(HaveLen(1))
	g.Expect(fetch(g, speakers).Generation).To(BeEquivalentTo(1))

	// Another service account of the same name replaces the speakers: the API server takes the tokens of the first one no
	// more. Without any they stay as they are.
	accountOfPods := func(g Gomega) string {
		return fetch(g, speakers).Spec.Template.Annotations[v1.AnnotationServiceAccountUID]
	}
	for range 2 {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "purelb-speaker"}}
		g.Expect(api.Create(ctx, account)).To(Succeed())
		g.Eventually(accountOfPods).Should(Equal(string(account.UID)))
		g.Expect(api.Delete(ctx, account)).To(Succeed())
	}

	// A session comes up, and goes down.
	report := func(state v1.SessionState, why string) {
		t.Helper()
		g.Eventually(func(g Gomega) error {
			fetch(g, routing)
			routing.Status = v1.NodeRoutingStatus{
				ObservedGeneration: routing.Generation,
				Sessions:           []v1.RoutingSession{{Peer: "p", Neighbor: "192.0.2.1", State: state, LastError: why}},
			}
			return api.Status().Update(ctx, routing)
		}).Should(Succeed())
	}
	report(v1.SessionEstablished, "")
	g.Eventually(func(g Gomega) string { return verdict(fetch(g, p)) }).Should(Equal("1/2 False SessionsDown"))
	report("Active", "the hold time is over")
	g.Eventually(func(g Gomega) string { return verdict(fetch(g, p)) }).Should(Equal("0/2 False SessionsDown"))
	g.Expect(p.Status.Conditions[0].Message).To(ContainSubstring("routed1: 192.0.2.1: the hold time is over"))
	g.Eventually(func(g Gomega) []string {
		var list eventsv1.EventList
		g.Expect(api.List(ctx, &list, client.InNamespace(namespace))).To(Succeed())
		var notes []string
		for _, e := range list.Items {
			if e.Regarding.Kind == "BGPPeer" && e.Regarding.UID == p.UID {
				notes = append(notes, e.Reason+": "+e.Note)
			}
		}
		return notes
	}).Should(ConsistOf(
		"SessionUp: The session of node routed1 with 192.0.2.1 is up",
		"SessionDown: The session of node routed1 with 192.0.2.1 is down: the hold time is over",
	))

	// A node that is excluded drains, and comes back.
	exclude := func(value *string) {
		t.Helper()
		n := fetch(g, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "routed1"}})
		patch := client.MergeFrom(n.DeepCopy())
		if n.Labels[corev1.LabelNodeExcludeBalancers] = ptr.Deref(value, ""); value == nil {
			delete(n.Labels, corev1.LabelNodeExcludeBalancers)
		}
		g.Expect(api.Patch(ctx, n, patch)).To(Succeed())
	}
	exclude(ptr.To(""))
	g.Eventually(func(g Gomega) *metav1.Time { return fetch(g, routing).Spec.DrainSince }).ShouldNot(BeNil())
	exclude(nil)
	g.Eventually(func(g Gomega) *metav1.Time { return fetch(g, routing).Spec.DrainSince }).Should(BeNil())

	// So does one that is cordoned, where its LBNodeAgent says so and another one stays; not otherwise.
	cordon := func(value bool) {
		t.Helper()
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "routed1"}}
		patch(t, n, fmt.Sprintf(`{"spec":{"unschedulable":%t}}`, value))
	}
	cordon(true)
	patch(t, agents, `{"spec":{"onUnschedulable":"HandOver"}}`)
	g.Eventually(func(g Gomega) *metav1.Time { return fetch(g, routing).Spec.DrainSince }).ShouldNot(BeNil())
	cordon(false)
	g.Eventually(func(g Gomega) *metav1.Time { return fetch(g, routing).Spec.DrainSince }).Should(BeNil())

	// What a ServiceGroup says follows, and all goes with the BGPPeer.
	g.Eventually(func(g Gomega) error {
		fetch(g, sg).Spec.BGP = nil
		return api.Update(ctx, sg)
	}).Should(Succeed())
	g.Eventually(func(g Gomega) []v1.RoutingGroup { return fetch(g, routing).Spec.Groups }).Should(BeEmpty())
	remove(t, p)
	for _, obj := range []client.Object{routing, speakers, passwords} {
		g.Eventually(func() bool { return apierrors.IsNotFound(api.Get(ctx, client.ObjectKeyFromObject(obj), obj)) }).Should(
			BeTrue(), "%T", obj,
		)
	}
	g.Eventually(func(g Gomega) string { return fetch(g, agents).Status.Speakers }).Should(BeEmpty())
}

// TestGroupAdvertised writes the condition Advertised of a ServiceGroup beside what another controller writes of
// its status, and takes it off again.
func TestGroupAdvertised(t *testing.T) {
	g := begin(t)
	sg := serviceGroup(
		t, "nobodys", "{remote: {pool: 198.18.6.0/28, subnet: 198.18.6.0/24}, bgp: {peers: [nobody]}}",
	)
	conditions := func(g Gomega) string {
		fetch(g, sg)
		var all []string
		for _, c := range sg.Status.Conditions {
			all = append(all, fmt.Sprint(c.Type, "=", c.Status, " ", c.Reason, " ", c.ObservedGeneration-sg.Generation))
		}
		slices.Sort(all)
		return strings.Join(all, ", ")
	}
	const both = "Advertised=False NoSuchPeer 0, Ready=True Accepted 0"
	g.Eventually(conditions).Should(Equal(both))
	g.Eventually(func(g Gomega) error {
		fetch(g, sg).Spec.Remote.Pool = "198.18.6.0/27"
		return api.Update(context.Background(), sg)
	}).Should(Succeed())
	g.Eventually(conditions).Should(Equal(both))
	g.Expect(sg.Status.Ranges).To(Equal("198.18.6.0-198.18.6.31"))
	bgpPeer(t, "nobody", "peerASN: 65000\nmyASN: 65001\npeerAddress: 192.0.2.9\nnodeSelector: {matchLabels: {no: node}}")
	g.Eventually(conditions).Should(Equal("Ready=True Accepted 0"))
}
