package controllers_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

func policyLocal(svc *corev1.Service) {
	svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}

// setEndpoints gives a Service endpoints: each is a node and a state, which is ready,
// terminating (and serving) or failing.
func setEndpoints(t *testing.T, svc *corev1.Service, endpoints ...[2]string) {
	t.Helper()
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: svc.Namespace, Name: svc.Name}}
	remove(t, slice)
	slice = &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: svc.Namespace, Name: svc.Name, Labels: map[string]string{discoveryv1.LabelServiceName: svc.Name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for i, e := range endpoints {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			NodeName: ptr.To(e[0]), Addresses: []string{fmt.Sprintf("10.200.0.%d", i+1)},
			Conditions: discoveryv1.EndpointConditions{
				Ready: ptr.To(e[1] == "ready"), Serving: ptr.To(e[1] != "failing"), Terminating: ptr.To(e[1] == "terminating"),
			},
		})
	}
	if err := api.Create(context.Background(), slice); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, slice) })
}

// holders is the nodes that are to announce an address.
func holders(address string, nodes ...string) func(Gomega) []string {
	return func(g Gomega) []string {
		var out []string
		for _, n := range nodes {
			if slices.ContainsFunc(
				asked(g, n), func(e v1.AnnouncedAddress) bool { return e.Address == address && !e.HandingOver },
			) {
				out = append(out, n)
			}
		}
		return out
	}
}

// startNodes makes nodes whose agents run, in a subnet 10.x.0.0/24 each.
func startNodes(t *testing.T, g Gomega, subnet string, names ...string) {
	t.Helper()
	lbNodeAgent(t, "default", nil)
	for i, name := range names {
		node(t, name, nil)
		runAgent(t, name, eth("eth0", fmt.Sprintf("%s.%d/24", subnet, 101+i)))
	}
	for _, name := range names {
		g.Eventually(func(g Gomega) {
			a := announcement(g, name)
			g.Expect(a).NotTo(BeNil())
			g.Expect(a.Status.Interfaces).NotTo(BeEmpty())
		}).Should(Succeed())
	}
}

func TestPolicyLocalOfVirtual(t *testing.T) {
	g := begin(t)
	nodes := []string{"node1", "node2", "node3"}
	startNodes(t, g, "10.44.0", nodes...)
	serviceGroup(t, "routed", "remote: {pool: 172.16.44.1-172.16.44.9, subnet: 172.16.44.0/24}")
	svc := service(t, "follows", ofGroup("routed"), policyLocal)
	where := holders("172.16.44.1", nodes...)
	g.Eventually(condition(svc, v1.ConditionAnnounced)).
		Should(ContainSubstring("172.16.44.1 has no node: node1 has no ready endpoint"))
	setEndpoints(t, svc, [2]string{"node1", "ready"}, [2]string{"node2", "failing"}, [2]string{"node3", "terminating"})
	g.Eventually(where).Should(Equal([]string{"node1"}))
	setEndpoints(t, svc, [2]string{"node1", "ready"}, [2]string{"node2", "ready"})
	g.Eventually(where).Should(Equal([]string{"node1", "node2"}))
	setEndpoints(t, svc, [2]string{"node3", "terminating"}, [2]string{"node2", "failing"})
	g.Eventually(where).Should(Equal([]string{"node3"}), "where none is ready, those that still serve")
	setEndpoints(t, svc)
	g.Eventually(where).Should(BeEmpty())
	setEndpoints(t, svc, [2]string{"node2", "ready"})
	g.Eventually(where).Should(Equal([]string{"node2"}))
	g.Expect(fetch(g, svc).Spec.ExternalTrafficPolicy).To(
		Equal(corev1.ServiceExternalTrafficPolicyLocal), "nobody touches it",
	)
	patch(t, svc, `{"spec":{"externalTrafficPolicy":"Cluster"}}`)
	g.Eventually(where).Should(Equal(nodes))
}

func TestPolicyLocalOfLocal(t *testing.T) {
	g := begin(t)
	nodes := []string{"node1", "node2"}
	startNodes(t, g, "10.45.0", nodes...)
	serviceGroup(t, "lan", "local: {pool: 10.45.0.1-10.45.0.9, subnet: 10.45.0.0/24}")
	policy := func(svc *corev1.Service) func(Gomega) corev1.ServiceExternalTrafficPolicy {
		return func(g Gomega) corev1.ServiceExternalTrafficPolicy { return fetch(g, svc).Spec.ExternalTrafficPolicy }
	}

	// The manager sets the policy to Cluster, once.
	svc := service(t, "overridden", ofGroup("lan"), policyLocal)
	g.Eventually(policy(svc)).Should(Equal(corev1.ServiceExternalTrafficPolicyCluster))
	g.Eventually(eventsOf(svc, v1.EventLocalOverride)).Should(ConsistOf(ContainSubstring("10.45.0.1 is Local")))
	g.Eventually(condition(svc, v1.ConditionAnnounced)).Should(HavePrefix("True"))

	// If it is set back, it stays, and the address goes where endpoints are.
	at := holders("10.45.0.1", nodes...)
	holder := at(g)
	g.Expect(holder).To(HaveLen(1))
	other := nodes[1-slices.Index(nodes, holder[0])]
	setEndpoints(t, svc, [2]string{other, "ready"})
	waitUntilPlaced(t)
	g.Expect(at(g)).To(Equal(holder), "of policy Cluster, endpoints do not matter")
	patch(t, svc, `{"spec":{"externalTrafficPolicy":"Local"}}`)
	g.Eventually(eventsOf(svc, v1.EventLocalOverrideRejected)).
		Should(ConsistOf(ContainSubstring("it stays, although 10.45.0.1 is Local")))
	g.Eventually(at).Should(Equal([]string{other}))
	waitUntilPlaced(t)
	g.Expect(policy(svc)(g)).To(Equal(corev1.ServiceExternalTrafficPolicyLocal))

	// With a new spec, the manager sets the policy again.
	patch(t, svc, `{"spec":{"sessionAffinity":"ClientIP"}}`)
	g.Eventually(policy(svc)).Should(Equal(corev1.ServiceExternalTrafficPolicyCluster))

	// An author who insists keeps the policy, with the address where endpoints are.
	meant := service(
		t, "meant", ofGroup("lan"), policyLocal,
		func(svc *corev1.Service) { svc.Annotations[v1.AnnotationAllowLocal] = "true" },
	)
	g.Eventually(ingress(meant)).Should(Equal([]string{"10.45.0.2"}))
	there := holders("10.45.0.2", nodes...)
	waitUntilPlaced(t)
	g.Expect(there(g)).To(BeEmpty(), "there is no endpoint")
	for _, n := range []string{"node2", "node1"} {
		setEndpoints(t, meant, [2]string{n, "ready"})
		g.Eventually(there).Should(Equal([]string{n}))
	}
	setEndpoints(t, meant)
	waitUntilPlaced(t)
	g.Expect(there(g)).To(Equal([]string{"node1"}), "without endpoints it stays where it is")
	g.Expect(policy(meant)(g)).To(Equal(corev1.ServiceExternalTrafficPolicyLocal))
	g.Expect(eventsOf(meant, v1.EventLocalOverride)(g)).To(BeEmpty())
}

func TestPolicyLocalOfShared(t *testing.T) {
	g := begin(t)
	startNodes(t, g, "10.46.0", "node1")
	serviceGroup(t, "routed", "remote: {pool: 172.16.46.1-172.16.46.9, subnet: 172.16.46.0/24}")
	sharing := func(svc *corev1.Service) { svc.Annotations[v1.AnnotationAllowSharedIP] = "key" }
	one := service(t, "one", ofGroup("routed"), policyLocal, sharing)
	setEndpoints(t, one, [2]string{"node1", "ready"})
	g.Eventually(condition(one, v1.ConditionAnnounced)).Should(HavePrefix("True"))
	g.Expect(one.Spec.ExternalTrafficPolicy).To(Equal(corev1.ServiceExternalTrafficPolicyLocal))
	service(t, "two", ofGroup("routed"), sharing, func(svc *corev1.Service) { svc.Spec.Ports[0].Port = 81 })
	g.Eventually(eventsOf(one, v1.EventLocalOverride)).Should(ConsistOf(ContainSubstring("172.16.46.1 is shared")))
	g.Expect(fetch(g, one).Spec.ExternalTrafficPolicy).To(Equal(corev1.ServiceExternalTrafficPolicyCluster))
}

// TestPolicyLocalOfGroup has a ServiceGroup that allows policy Local for all of its
// Services, and changes its mind.
func TestPolicyLocalOfGroup(t *testing.T) {
	g := begin(t)
	nodes := []string{"node1", "node2"}
	startNodes(t, g, "10.47.0", nodes...)
	const spec = "{local: {pool: 10.47.0.1-10.47.0.9, subnet: 10.47.0.0/24}, policyLocal: Allow}"
	group := serviceGroup(t, "allowing", spec)
	local, cluster := corev1.ServiceExternalTrafficPolicyLocal, corev1.ServiceExternalTrafficPolicyCluster
	policy := func(svc *corev1.Service) func(Gomega) corev1.ServiceExternalTrafficPolicy {
		return func(g Gomega) corev1.ServiceExternalTrafficPolicy { return fetch(g, svc).Spec.ExternalTrafficPolicy }
	}
	sharing := func(port int32) func(*corev1.Service) {
		return func(svc *corev1.Service) {
			svc.Annotations[v1.AnnotationAllowSharedIP], svc.Spec.Ports[0].Port = "key", port
		}
	}

	// The address goes where endpoints are, and the policy stays.
	kept := service(t, "kept", ofGroup("allowing"), policyLocal)
	at := holders("10.47.0.1", nodes...)
	for _, n := range []string{"node2", "node1"} {
		setEndpoints(t, kept, [2]string{n, "ready"})
		g.Eventually(at).Should(Equal([]string{n}))
	}

	// So it does for Services that share an address.
	one := service(t, "one", ofGroup("allowing"), policyLocal, sharing(80))
	two := service(t, "two", ofGroup("allowing"), policyLocal, sharing(81))
	setEndpoints(t, one, [2]string{"node1", "ready"}, [2]string{"node2", "ready"})
	setEndpoints(t, two, [2]string{"node2", "ready"})
	g.Eventually(holders("10.47.0.2", nodes...)).Should(Equal([]string{"node2"}), "the node that serves both")

	// A Service may still want to be overridden.
	refuses := service(t, "refuses", ofGroup("allowing"), policyLocal, annotated(v1.AnnotationAllowLocal, "false"))
	g.Eventually(policy(refuses)).Should(Equal(cluster))
	g.Eventually(eventsOf(refuses, v1.EventLocalOverride)).Should(ConsistOf(ContainSubstring("10.47.0.3 is Local")))
	insists := service(t, "insists", ofGroup("allowing"), policyLocal, annotated(v1.AnnotationAllowLocal, "true"))
	setEndpoints(t, insists, [2]string{"node1", "ready"})
	g.Eventually(holders("10.47.0.4", nodes...)).Should(Equal([]string{"node1"}))
	for _, svc := range []*corev1.Service{kept, one, two, insists} {
		g.Eventually(condition(svc, v1.ConditionAnnounced)).Should(HavePrefix("True"))
		g.Expect(policy(svc)(g)).To(Equal(local))
		g.Expect(svc.Annotations).NotTo(HaveKey(v1.AnnotationLocalOverride))
	}

	// While the group is away, nobody says what is to become of the policy. It stays.
	remove(t, group)
	waitUntilPlaced(t)
	for _, svc := range []*corev1.Service{kept, one, two, insists} {
		g.Expect(policy(svc)(g)).To(Equal(local))
	}
	g.Expect(at(g)).To(Equal([]string{"node1"}))
	group = serviceGroup(t, "allowing", spec)
	setEndpoints(t, kept, [2]string{"node2", "ready"})
	g.Eventually(at).Should(Equal([]string{"node2"}))
	g.Expect(policy(kept)(g)).To(Equal(local))

	// The group does not allow it any more.
	holder := at(g)
	patch(t, group, `{"spec":{"policyLocal":"Override"}}`)
	for _, svc := range []*corev1.Service{kept, one, two} {
		g.Eventually(policy(svc)).Should(Equal(cluster), svc.Name)
	}
	g.Eventually(eventsOf(kept, v1.EventLocalOverride)).Should(ConsistOf(ContainSubstring("10.47.0.1 is Local")))
	waitUntilPlaced(t)
	g.Expect(at(g)).To(Equal(holder), "no address moves")
	g.Expect(policy(insists)(g)).To(Equal(local))

	// It does again: what the manager has set to Cluster stays until its author sets it.
	patch(t, kept, `{"spec":{"externalTrafficPolicy":"Local"}}`)
	g.Eventually(eventsOf(kept, v1.EventLocalOverrideRejected)).Should(HaveLen(1))
	patch(t, group, `{"spec":{"policyLocal":"Allow"}}`)
	for _, svc := range []*corev1.Service{kept, one, two} {
		g.Eventually(func(g Gomega) map[string]string { return fetch(g, svc).Annotations }).
			ShouldNot(HaveKey(v1.AnnotationLocalOverride))
	}
	g.Expect(policy(kept)(g)).To(Equal(local))
	g.Expect(policy(one)(g)).To(Equal(cluster))
	patch(t, one, `{"spec":{"externalTrafficPolicy":"Local"}}`)
	waitUntilPlaced(t)
	g.Expect(policy(one)(g)).To(Equal(local))
	g.Expect(eventsOf(one, v1.EventLocalOverride)(g)).To(HaveLen(1))

	// The Service's own word counts more, also later.
	patch(t, kept, `{"metadata":{"annotations":{"purelb.io/allow-local":"false"}}}`)
	g.Eventually(policy(kept)).Should(Equal(cluster))
}
