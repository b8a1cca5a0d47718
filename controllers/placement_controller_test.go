package controllers_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/agents"
)

// announcement is what a node is to announce, or nil.
func announcement(g Gomega, node string) *v1.Announcement {
	a := &v1.Announcement{}
	err := api.Get(context.Background(), client.ObjectKey{Namespace: namespace, Name: node}, a)
	if apierrors.IsNotFound(err) {
		return nil
	}
	g.Expect(err).NotTo(HaveOccurred())
	return a
}

// asked is what a node is to announce, by own and by shared entries.
func asked(g Gomega, node string) []v1.AnnouncedAddress {
	a := announcement(g, node)
	if a == nil {
		return nil
	}
	addresses := a.Spec.Addresses
	for _, c := range commonsOf(g, a) {
		addresses = append(addresses, c.Spec.Addresses...)
	}
	return addresses
}

// commonsOf is the CommonAnnouncements by which a node announces something.
func commonsOf(g Gomega, a *v1.Announcement) []v1.CommonAnnouncement {
	if !a.Spec.IncludeCommonAnnouncements {
		return nil
	}
	var list v1.CommonAnnouncementList
	g.Expect(api.List(
		context.Background(), &list, client.InNamespace(namespace),
		client.MatchingFields{"spec.lbNodeAgent": a.Spec.LBNodeAgent},
	)).To(Succeed())
	return list.Items
}

// entries is the addresses that nodes are to announce, as node address
// interface type, and the epoch of Local ones.
func entries(nodes ...string) func(Gomega) []string {
	return func(g Gomega) []string {
		var out []string
		for _, n := range nodes {
			for _, e := range asked(g, n) {
				line := fmt.Sprintf("%s %s/%d %s %s", n, e.Address, e.PrefixLength, e.Interface, e.Type)
				if e.Type == v1.AnnounceLocal {
					line += fmt.Sprintf(" %d", e.Epoch)
				}
				out = append(out, line)
			}
		}
		return out
	}
}

// waitUntilFollowed waits until the entry of a Local address names as many successors, and each of them is told to
// follow it. Their reserved epochs decide which one the next holder has.
func waitUntilFollowed(t *testing.T, address string, successors int) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega) {
		var all v1.AnnouncementList
		g.Expect(api.List(context.Background(), &all)).To(Succeed())
		named, told := map[string]int64{}, map[string]int64{}
		for i := range all.Items {
			for _, e := range all.Items[i].Spec.Addresses {
				for _, s := range e.Successors {
					if e.Address == address {
						named[s.NodeName] = e.Epoch
					}
				}
			}
			if standby := all.Items[i].Spec.Standby; standby != nil {
				for _, e := range standby.Addresses {
					if e.Address == address {
						told[all.Items[i].Spec.NodeName] = e.Epoch
					}
				}
			}
		}
		g.Expect(named).To(HaveLen(successors))
		g.Expect(told).To(Equal(named))
	}).Should(Succeed())
}

func TestAgentsRun(t *testing.T) {
	g := begin(t)
	ctx := context.Background()
	node(t, "plain", nil)
	node(t, "special", map[string]string{"rack": "a"})
	agentLabel := func(name string) func(Gomega) string {
		return func(g Gomega) string {
			return fetch(g, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}).Labels[v1.LabelAgent]
		}
	}
	daemonSet := func(name string) *appsv1.DaemonSet {
		return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	}

	everywhere := lbNodeAgent(t, "everywhere", nil)
	t.Cleanup(func() { remove(t, daemonSet("purelb-agent-everywhere")) })
	g.Eventually(agentLabel("plain")).Should(Equal("everywhere"))
	g.Eventually(agentLabel("special")).Should(Equal("everywhere"))
	ds := daemonSet("purelb-agent-everywhere")
	g.Eventually(func(g Gomega) { fetch(g, ds) }).Should(Succeed())
	g.Expect(ds.Spec.Template.Spec.NodeSelector).To(HaveKeyWithValue(v1.LabelAgent, "everywhere"))
	g.Expect(ds.Spec.Template.Spec.Containers[0].Image).To(Equal("purelb.io/purelb:test"))
	g.Expect(metav1.IsControlledBy(ds, everywhere)).To(BeTrue())

	// Each node gets an empty Announcement and a Lease.
	for _, name := range []string{"plain", "special"} {
		g.Eventually(func(g Gomega) {
			n := fetch(g, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
			owner := ConsistOf(SatisfyAll(HaveField("Kind", "Node"), HaveField("UID", n.UID)))
			a := announcement(g, name)
			g.Expect(a).NotTo(BeNil())
			g.Expect(a.Spec).To(Equal(v1.AnnouncementSpec{
				NodeName: name, LBNodeAgent: "everywhere", HeartbeatSeconds: 10, IncludeCommonAnnouncements: true,
			}))
			g.Expect(a.OwnerReferences).To(BeEmpty(), "it outlives the Node object until its addresses have gone on")
			g.Expect(a.Labels).To(HaveKeyWithValue(v1.LabelNode, name))
			lease := fetch(g, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "purelb-" + name}})
			g.Expect(lease.OwnerReferences).To(owner)
			g.Expect(lease.Spec.RenewTime).To(BeNil())
		}).Should(Succeed())
	}

	// Its status follows the DaemonSet's, and the Leases.
	fetch(g, ds)
	ds.Status = appsv1.DaemonSetStatus{
		ObservedGeneration: ds.Generation, DesiredNumberScheduled: 2, UpdatedNumberScheduled: 2, NumberReady: 1,
	}
	g.Expect(api.Status().Update(ctx, ds)).To(Succeed())
	state := func(g Gomega) string {
		fetch(g, everywhere)
		return fmt.Sprint(everywhere.Status.DesiredNodes, everywhere.Status.ReadyNodes, " ",
			everywhere.Status.Conditions[0].Status, everywhere.Status.Conditions[0].Reason, " ",
			everywhere.Status.Conditions[0].Message)
	}
	g.Eventually(state).Should(Equal(
		"2 0 FalseProgressing 0 of 2 agents are ready; the Lease is not renewed by the agent of plain, special: " +
			"see the log of that agent",
	))
	runAgent(t, "plain")
	g.Eventually(state).Should(Equal(
		"2 1 FalseProgressing 1 of 2 agents are ready; the Lease is not renewed by the agent of special: see the log of " +
			"that agent",
	))
	ds.Status.NumberReady = 2
	g.Expect(api.Status().Update(ctx, ds)).To(Succeed())
	g.Eventually(state).
		Should(Equal(
			"2 1 FalseDegraded 1 of 2 agents are ready; the Lease is not renewed by the agent of special: see the log of that " +
				"agent",
		))
	runAgent(t, "special")
	g.Eventually(state).Should(Equal("2 2 TrueAccepted 2 of 2 agents are ready"))

	// One with a selector beats one without, whatever its name.
	rack := lbNodeAgent(t, "rack-a", map[string]string{"rack": "a"})
	t.Cleanup(func() { remove(t, daemonSet("purelb-agent-rack-a")) })
	g.Eventually(agentLabel("special")).Should(Equal("rack-a"))
	g.Eventually(func(g Gomega) string { return announcement(g, "special").Spec.LBNodeAgent }).Should(Equal("rack-a"))
	g.Eventually(func(g Gomega) { fetch(g, daemonSet("purelb-agent-rack-a")) }).Should(Succeed())
	g.Expect(agentLabel("plain")(g)).To(Equal("everywhere"))

	// Its end gives the node back to the other.
	remove(t, rack)
	g.Eventually(agentLabel("special")).Should(Equal("everywhere"))
	remove(t, everywhere)
	g.Eventually(agentLabel("special")).Should(BeEmpty())
	g.Eventually(agentLabel("plain")).Should(BeEmpty())

	// Nothing is left of what was made for the nodes.
	for _, name := range []string{"plain", "special"} {
		g.Expect(announcement(g, name)).To(BeNil())
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "purelb-" + name}}
		g.Expect(apierrors.IsNotFound(api.Get(ctx, client.ObjectKeyFromObject(lease), lease))).To(BeTrue())
	}
}

// TestFaultServiceAccount deletes the agents' service account, and makes it again: the agents,
// whose tokens the API server refuses then, are replaced, but not before. This test shows the row "its
// agent's token is refused, as the service account was deleted and made again" of docs/trust.md.
func TestFaultServiceAccount(t *testing.T) {
	g := begin(t)
	ctx := context.Background()
	node(t, "node1", nil)
	runAgent(t, "node1") // it ends after the LBNodeAgent has gone
	everywhere := lbNodeAgent(t, "accounts", nil)
	ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "purelb-agent-accounts"}}
	account := fetch(g, agentAccount())
	first := account.UID
	accountOfPods := func(g Gomega) types.UID { return agents.ServiceAccountUIDOf(fetch(g, ds)) }
	g.Eventually(accountOfPods).Should(Equal(first))
	reportRun := func() {
		g.Eventually(func(g Gomega) {
			fetch(g, ds)
			ds.Status = appsv1.DaemonSetStatus{
				ObservedGeneration: ds.Generation, DesiredNumberScheduled: 1, UpdatedNumberScheduled: 1, NumberReady: 1,
			}
			g.Expect(api.Status().Update(ctx, ds)).To(Succeed())
		}).Should(Succeed())
	}
	message := func(g Gomega) string {
		c := meta.FindStatusCondition(fetch(g, everywhere).Status.Conditions, v1.ConditionReady)
		return fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message)
	}
	reportRun()
	g.Eventually(message).Should(Equal("True Accepted 1 of 1 agents are ready"))

	remove(t, account)
	t.Cleanup(func() { _ = api.Create(ctx, agentAccount()) })
	g.Eventually(message).
		Should(ContainSubstring("False Degraded 1 of 1 agents are ready; the service account of the agents does not exist"))
	fetch(g, ds)
	ds.Status.NumberReady = 0
	g.Expect(api.Status().Update(ctx, ds)).To(Succeed())
	g.Eventually(message).
		Should(ContainSubstring("False Degraded 0 of 1 agents are ready; the service account of the agents does not exist"))
	g.Expect(accountOfPods(g)).To(Equal(first), "no new pod could start")

	again := agentAccount()
	g.Expect(api.Create(ctx, again)).To(Succeed())
	g.Eventually(accountOfPods).Should(Equal(again.UID))
	g.Eventually(message).Should(ContainSubstring("False Progressing"))
	reportRun()
	g.Eventually(message).Should(Equal("True Accepted 1 of 1 agents are ready"))
}

func TestLocalAddress(t *testing.T) {
	g := begin(t)
	ctx := context.Background()
	nodes := []string{"node1", "node2"}
	lbNodeAgent(t, "default", nil)
	running := map[string]*agent{}
	for i, name := range nodes {
		node(t, name, nil)
		running[name] = runAgent(t, name, eth("eth0", fmt.Sprintf("10.40.0.%d/24", 101+i)))
	}
	sg := serviceGroup(t, "lan", "local: {pool: 10.40.0.101-10.40.0.110, subnet: 10.40.0.0/24}")
	for _, name := range nodes {
		g.Eventually(func(g Gomega) int32 {
			a := announcement(g, name)
			g.Expect(a).NotTo(BeNil())
			return a.Spec.HeartbeatSeconds
		}).Should(BeEquivalentTo(1), "a node in a local subnet renews each second")
	}
	g.Eventually(func(g Gomega) v1.AnnounceType {
		fetch(g, sg)
		g.Expect(sg.Status.Pools).To(HaveLen(1))
		return sg.Status.Pools[0].Announce
	}).Should(Equal(v1.AnnounceLocal))

	svc := service(t, "local", ofGroup("lan"))
	g.Eventually(ingress(svc)).Should(Equal([]string{"10.40.0.103"}), "not the nodes' own addresses")
	g.Eventually(entries(nodes...)).Should(ConsistOf(MatchRegexp(`^node[12] 10\.40\.0\.103/32 eth0 Local 1$`)))
	holder, other := "node1", "node2"
	if len(announcement(g, holder).Spec.Addresses) == 0 {
		holder, other = other, holder
	}
	g.Expect(announcement(g, holder).Spec.Addresses[0].Services).To(Equal([]string{"test/local"}))
	announcedBy := func(node string) {
		t.Helper()
		g.Eventually(func(g Gomega) {
			fetch(g, svc)
			g.Expect(svc.Annotations).To(HaveKeyWithValue(v1.AnnotationAnnouncingIPv4, node+",eth0,10.40.0.103"))
			g.Expect(svc.Annotations).To(HaveKeyWithValue(v1.AnnotationAddedTo, node+"/eth0"))
			g.Expect(svc.Annotations).NotTo(HaveKey(v1.AnnotationAnnouncingIPv6))
			g.Expect(svc.Annotations).To(HaveKeyWithValue(v1.AnnotationAllocatedBy, v1.Brand), "the other controller's stay")
		}).Should(Succeed())
		g.Eventually(condition(svc, v1.ConditionAnnounced)).Should(Equal("True Announced: 1 of 1 announcements are made"))
		g.Eventually(eventsOf(svc, v1.EventAnnouncingLocal)).Should(ContainElement(
			"purelb-lbnodeagent: Announcing 10.40.0.103 from node " + node + " interface eth0"))
	}
	announcedBy(holder)
	waitUntilFollowed(t, "10.40.0.103", 1)

	// Settled, none of this is written any more, although the manager decides again and again.
	waitUntilPlaced(t)
	written.take()
	waitUntilPlaced(t)
	g.Expect(written.take()).NotTo(ContainElement(Or(
		ContainSubstring("/services/local"), ContainSubstring("/servicegroups/lan"), ContainSubstring("/announcements/"))))

	// The holder is excluded: it hands over.
	exclude := func(name, value string) {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		g.Expect(api.Patch(ctx, n, client.RawPatch("application/merge-patch+json",
			[]byte(`{"metadata":{"labels":{"`+corev1.LabelNodeExcludeBalancers+`":`+value+`}}}`)))).To(Succeed())
	}
	exclude(holder, `""`)
	g.Eventually(entries(nodes...)).Should(Equal([]string{other + " 10.40.0.103/32 eth0 Local 3"}))
	g.Expect(announcement(g, other).Spec.Addresses[0].ClaimPolicy).To(Equal(v1.ClaimTakeover))
	announcedBy(other)

	// A node that is back pulls nothing back.
	exclude(holder, "null")
	waitUntilPlaced(t)
	waitUntilFollowed(t, "10.40.0.103", 1)
	g.Expect(entries(nodes...)(g)).To(Equal([]string{other + " 10.40.0.103/32 eth0 Local 3"}))

	// The holder's agent dies: the address fails over, by probe.
	running[other].stop()
	g.Eventually(entries(nodes...)).Should(Equal([]string{holder + " 10.40.0.103/32 eth0 Local 5"}))
	g.Expect(announcement(g, holder).Spec.Addresses[0].ClaimPolicy).To(Equal(v1.ClaimProbe))
	g.Expect(announcement(g, holder).Spec.Addresses[0].PreviousMACs).To(Equal([]string{"02:00:00:00:00:01"}))
	announcedBy(holder)
	failovers := ConsistOf(HavePrefix(
		"purelb-placement: Moved 10.40.0.103 from node " + other + " to " + holder + ", as nobody answered for it: ",
	))
	g.Eventually(eventsOf(svc, v1.EventFailover)).Should(failovers)

	// The holder's agent is replaced, for longer than its Lease lasts, and the node's kernel
	// answers meanwhile: the address is back where it was, and no failover is recorded.
	standby := runAgent(t, other, eth("eth0", "10.40.0.100/24"))
	standby.findsAnother.Store(true)
	running[holder].stop()
	g.Eventually(entries(nodes...)).Should(ContainElement(HavePrefix(other + " 10.40.0.103/32 ")))
	runAgent(t, holder, eth("eth0", "10.40.0.99/24"))
	g.Eventually(entries(nodes...)).Should(ConsistOf(HavePrefix(holder + " 10.40.0.103/32 ")))
	announcedBy(holder)
	waitUntilPlaced(t)
	g.Expect(eventsOf(svc, v1.EventFailover)(g)).To(failovers)

	// Without its Service the address goes.
	remove(t, svc)
	g.Eventually(entries(nodes...)).Should(BeEmpty())
}

func TestVirtualAddress(t *testing.T) {
	g := begin(t)
	nodes := []string{"node1", "node2"}
	lbNodeAgent(t, "default", nil)
	serviceGroup(t, "routed", `
remote:
  v4pool: {pool: 172.16.0.1-172.16.0.9, subnet: 172.16.0.0/24, aggregation: /32}
  v6pool: {pool: 'fd41::1', subnet: 'fd41::/64'}`)
	svc := service(t, "virtual", ofGroup("routed"), dualStack)
	g.Eventually(condition(svc, v1.ConditionAnnounced)).Should(Equal(
		"False NotAnnounced: 0 of 0 announcements are made; 172.16.0.1 has no node: there are no nodes; fd41::1 has no " +
			"node: there are no nodes"))
	for _, name := range nodes {
		node(t, name, nil)
	}
	g.Eventually(entries(nodes...)).Should(Equal([]string{
		"node1 172.16.0.1/32 kube-lb0 Virtual", "node1 fd41::1/64 kube-lb0 Virtual",
		"node2 172.16.0.1/32 kube-lb0 Virtual", "node2 fd41::1/64 kube-lb0 Virtual"}))
	for _, name := range nodes {
		g.Expect(announcement(g, name).Spec.Addresses).To(BeEmpty(), "it is asked of all nodes at once")
	}
	g.Eventually(condition(svc, v1.ConditionAnnounced)).
		Should(HavePrefix("False Announcing: 0 of 4 announcements are made; 172.16.0.1 on node1 is Pending"))
	for _, name := range nodes {
		runAgent(t, name, eth("eth0", "10.41.0.1/24"))
	}
	g.Eventually(condition(svc, v1.ConditionAnnounced)).Should(Equal("True Announced: 4 of 4 announcements are made"))
	g.Eventually(eventsOf(svc, v1.EventAnnouncingNonLocal)).Should(Equal([]string{
		"purelb-lbnodeagent: Announcing 172.16.0.1 from node node1 interface kube-lb0",
		"purelb-lbnodeagent: Announcing 172.16.0.1 from node node2 interface kube-lb0",
		"purelb-lbnodeagent: Announcing fd41::1 from node node1 interface kube-lb0",
		"purelb-lbnodeagent: Announcing fd41::1 from node node2 interface kube-lb0"}))
	g.Expect(fetch(g, svc).Annotations).NotTo(HaveKey(v1.AnnotationAnnouncingIPv4), "only Local addresses are listed")

	// A CommonAnnouncement that a user deletes is created anew.
	before := entries(nodes...)(g)
	g.Expect(api.Delete(
		context.Background(), &v1.CommonAnnouncement{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}},
	)).To(Succeed())
	g.Eventually(entries(nodes...)).Should(Equal(before))
	g.Eventually(condition(svc, v1.ConditionAnnounced)).Should(Equal("True Announced: 4 of 4 announcements are made"))

	// Once released, the Service says nothing of it any more.
	g.Expect(api.Patch(context.Background(), svc, client.RawPatch("application/merge-patch+json",
		[]byte(`{"spec":{"type":"ClusterIP","allocateLoadBalancerNodePorts":null}}`)))).To(Succeed())
	g.Eventually(entries(nodes...)).Should(BeEmpty())
	g.Eventually(func(g Gomega) int { return len(fetch(g, svc).Status.Conditions) }).Should(BeZero())
}

// TestFurtherAnnouncements checks that a node with many addresses has several
// Announcements, and that one is empty before it is deleted: its agent would take it
// for a mistake else.
func TestFurtherAnnouncements(t *testing.T) {
	g := begin(t)
	const fit = 25
	lbNodeAgent(t, "default", nil)
	node(t, "node1", nil)
	runAgent(t, "node1", eth("eth0", "10.49.0.101/24"))
	serviceGroup(t, "lan", "local: {pool: 10.49.0.1-10.49.0.50, subnet: 10.49.0.0/24}")
	var services []*corev1.Service
	for i := range fit + 1 {
		services = append(services, service(t, fmt.Sprintf("many-%d", i), ofGroup("lan")))
	}
	all := func(g Gomega) (sizes []int, further *v1.Announcement) {
		var list v1.AnnouncementList
		g.Expect(api.List(context.Background(), &list, client.InNamespace(namespace))).To(Succeed())
		for i := range list.Items {
			if sizes = append(sizes, len(list.Items[i].Spec.Addresses)); list.Items[i].Name != "node1" {
				further = &list.Items[i]
			}
		}
		return sizes, further
	}
	var further *v1.Announcement
	g.Eventually(func(g Gomega) {
		var sizes []int
		sizes, further = all(g)
		g.Expect(sizes).To(Equal([]int{fit, 1}))
	}).Should(Succeed())

	watching, err := client.NewWithWatch(serverConfig, client.Options{Scheme: api.Scheme()})
	g.Expect(err).NotTo(HaveOccurred())
	versions, err := watching.Watch(context.Background(), &v1.AnnouncementList{}, client.InNamespace(namespace))
	g.Expect(err).NotTo(HaveOccurred())
	defer versions.Stop()
	for _, svc := range services {
		if slices.Contains(further.Spec.Addresses[0].Services, "test/"+svc.Name) {
			remove(t, svc)
		}
	}
	deleted := func() *v1.Announcement {
		for {
			select {
			case e := <-versions.ResultChan():
				if a, ok := e.Object.(*v1.Announcement); ok && e.Type == watch.Deleted {
					return a
				}
			default:
				return nil
			}
		}
	}
	var last *v1.Announcement
	g.Eventually(func() *v1.Announcement { last = deleted(); return last }).ShouldNot(BeNil())
	g.Expect(last.Name).To(Equal(further.Name))
	g.Expect(last.Spec.Addresses).To(BeEmpty())
}

// waitUntilReported waits until a node's agent has reported its interface, and renewed its Lease.
func waitUntilReported(g *WithT, node string) {
	g.Eventually(func(g Gomega) []v1.NodeInterface {
		ann := announcement(g, node)
		g.Expect(ann).NotTo(BeNil())
		return ann.Status.Interfaces
	}).Should(HaveLen(1))
	g.Eventually(func(g Gomega) {
		lease := fetch(g, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "purelb-" + node}})
		g.Expect(lease.Spec.RenewTime).NotTo(BeNil())
	}).Should(Succeed())
}

func TestAddressConflict(t *testing.T) {
	g := begin(t)
	ctx := context.Background()
	lbNodeAgent(t, "default", nil)
	node(t, "node1", nil)
	a := runAgent(t, "node1", eth("eth0", "10.42.0.101/24"))
	serviceGroup(t, "lan", "local: {pool: 10.42.0.1, subnet: 10.42.0.0/24}")
	waitUntilReported(g, "node1")
	a.pause(true) // it renews its Lease: the address stays with the node for as long as the test looks
	svc := service(t, "conflict", ofGroup("lan"))
	g.Eventually(entries("node1")).Should(Equal([]string{"node1 10.42.0.1/32 eth0 Local 1"}))
	ann := announcement(g, "node1")
	ann.Status.Addresses = []v1.AddressStatus{{Address: "10.42.0.1", Epoch: 1, State: v1.StateConflict,
		MAC:     "02:00:00:00:00:ff",
		Message: "02:00:00:00:00:ff answers", LastTransitionTime: metav1.Unix(1, 0)}}
	g.Expect(api.Status().Update(ctx, ann)).To(Succeed())
	g.Eventually(eventsOf(svc, v1.EventAddressConflict)).Should(Equal([]string{
		"purelb-lbnodeagent: Node node1 cannot announce 10.42.0.1: 02:00:00:00:00:ff answers for it"}))
	g.Eventually(condition(svc, v1.ConditionAnnounced)).Should(Equal(
		"False Announcing: 0 of 1 announcements are made; 10.42.0.1 on node1 is Conflict (02:00:00:00:00:ff answers)"))
	g.Eventually(func(g Gomega) float64 {
		return valueOf(g, registry, "purelb_addresses", "state", string(v1.StateConflict))
	}).Should(BeEquivalentTo(1))
}

// TestWithoutOtherNodeMetric excludes the node that could take another one's address, and includes it again.
func TestWithoutOtherNodeMetric(t *testing.T) {
	g := begin(t)
	ctx := context.Background()
	lbNodeAgent(t, "default", nil)
	node(t, "node1", nil)
	runAgent(t, "node1", eth("eth0", "10.71.0.101/24"))
	serviceGroup(t, "lan", "local: {pool: 10.71.0.1, subnet: 10.71.0.0/24}")
	svc := service(t, "alone", ofGroup("lan"))
	g.Eventually(condition(svc, v1.ConditionAnnounced)).Should(HavePrefix("True"))
	expect := func(want int) {
		t.Helper()
		g.Eventually(func(g Gomega) float64 {
			return valueOf(g, registry, "purelb_addresses_without_other_node", "node", "node1")
		}).Should(BeEquivalentTo(want))
	}
	expect(1)
	other := node(t, "node2", nil)
	runAgent(t, "node2", eth("eth0", "10.71.0.102/24"))
	expect(0)
	for _, row := range []struct {
		value string
		want  int
	}{{`""`, 1}, {"null", 0}} {
		g.Expect(api.Patch(ctx, other, client.RawPatch(types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"`+corev1.LabelNodeExcludeBalancers+`":`+row.value+`}}}`)))).To(Succeed())
		expect(row.want)
	}
}

// TestSilentHolder has the only node of an address, whose agent ends, which is then not Ready either, and whose
// agent runs again.
func TestSilentHolder(t *testing.T) {
	g := begin(t)
	lbNodeAgent(t, "default", nil)
	node(t, "node1", nil)
	first := runAgent(t, "node1", eth("eth0", "10.73.0.101/24"))
	serviceGroup(t, "lan", "local: {pool: 10.73.0.1, subnet: 10.73.0.0/24}")
	waitUntilReported(g, "node1")
	svc := service(t, "alone", ofGroup("lan"))
	g.Eventually(condition(svc, v1.ConditionAnnounced)).Should(HavePrefix("True"))
	eventsBefore := eventsOf(svc, v1.ReasonNotAnnounced)(g)
	first.stop()
	const why = "node1 has an agent that does not renew its Lease"
	g.Eventually(condition(svc, v1.ConditionAnnounced)).Should(Equal(
		"Unknown HolderSilent: 0 of 1 announcements are made; whether node1 still announces 10.73.0.1 is not known: " + why))
	g.Expect(svc.Annotations).To(HaveKeyWithValue(v1.AnnotationAddedTo, "node1/eth0"))
	g.Expect(eventsOf(svc, v1.ReasonNotAnnounced)(g)).To(Equal(eventsBefore), "the node's kernel may answer on")
	setReady(t, "node1", corev1.ConditionUnknown)
	g.Eventually(condition(svc, v1.ConditionAnnounced)).Should(Equal(
		"False NotAnnounced: 0 of 0 announcements are made; 10.73.0.1 has no node: " + why))
	g.Eventually(eventsOf(svc, v1.ReasonNotAnnounced)).Should(HaveLen(len(eventsBefore) + 1))
	setReady(t, "node1", corev1.ConditionTrue)
	runAgent(t, "node1", eth("eth0", "10.73.0.101/24"))
	g.Eventually(condition(svc, v1.ConditionAnnounced)).Should(Equal("True Announced: 1 of 1 announcements are made"))
}

// TestLabelMovesLast checks that a node withdraws what it has before its label, and with it
// its agent, goes; and that an LBNodeAgent stays until then.
func TestLabelMovesLast(t *testing.T) {
	g := begin(t)
	ctx := context.Background()
	label := func(name string) func(Gomega) string {
		return func(g Gomega) string {
			return fetch(g, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}).Labels[v1.LabelAgent]
		}
	}
	for _, name := range []string{"purelb-agent-one", "purelb-agent-two"} {
		t.Cleanup(func() { remove(t, &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}) })
	}
	running := map[string]*agent{}
	node(t, "node1", nil)
	node(t, "node2", nil)
	one := lbNodeAgent(t, "one", nil)
	for i, name := range []string{"node1", "node2"} {
		running[name] = runAgent(t, name, eth("eth0", fmt.Sprintf("10.47.0.%d/24", 101+i)))
	}
	serviceGroup(t, "lan", "local: {pool: 10.47.0.1, subnet: 10.47.0.0/24}")
	serviceGroup(t, "routed", "remote: {pool: 172.16.47.1, subnet: 172.16.47.0/24}")
	local, virtual := service(t, "on-lan", ofGroup("lan")), service(t, "on-routes", ofGroup("routed"))
	for _, svc := range []*corev1.Service{local, virtual} {
		g.Eventually(condition(svc, v1.ConditionAnnounced)).Should(HavePrefix("True"))
	}
	at := holders("10.47.0.1", "node1", "node2")
	holder := at(g)[0]
	other := map[string]string{"node1": "node2", "node2": "node1"}[holder]

	// Another LBNodeAgent is to have the holder, whose agent does not see it yet.
	running[holder].pause(true)
	lbNodeAgent(t, "two", map[string]string{"rack": "a"})
	patch(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: holder}}, `{"metadata":{"labels":{"rack":"a"}}}`)
	g.Eventually(func(g Gomega) bool { return announcement(g, holder).Spec.AgentLeaving }).Should(BeTrue())
	g.Eventually(func(g Gomega) string {
		fetch(g, one)
		return meta.FindStatusCondition(one.Status.Conditions, v1.ConditionReady).Message
	}).Should(Equal("nodes that have yet to withdraw their addresses: 1 (" + holder + ")"))
	waitUntilNodesHandled(t, nil, "one")
	g.Expect(label(holder)(g)).To(Equal("one"))
	running[holder].pause(false)
	g.Eventually(label(holder)).Should(Equal("two"))
	g.Eventually(at).Should(Equal([]string{other}))
	g.Eventually(holders("172.16.47.1", "node1", "node2")).Should(
		Equal([]string{"node1", "node2"}), "the new agent has what is Virtual again",
	)
	g.Expect(announcement(g, holder).Spec.AgentLeaving).To(BeFalse())

	// The first one is deleted while its last node is busy.
	running[other].pause(true)
	g.Expect(api.Delete(ctx, one)).To(Succeed())
	g.Eventually(func(g Gomega) bool { return announcement(g, other).Spec.AgentLeaving }).Should(BeTrue())
	waitUntilNodesHandled(t, map[string]string{"rack": "a"}, "two")
	fetch(g, one)
	g.Expect(label(other)(g)).To(Equal("one"))
	running[other].pause(false)
	g.Eventually(func() bool { return apierrors.IsNotFound(api.Get(ctx, client.ObjectKeyFromObject(one), one)) }).
		Should(BeTrue())
	g.Expect(label(other)(g)).To(BeEmpty())
	g.Eventually(at).Should(Equal([]string{holder}))
	g.Eventually(func(g Gomega) *v1.Announcement { return announcement(g, other) }).Should(
		BeNil(), "a node without an agent announces nothing",
	)
}

// TestNodesLeaveOneAfterAnother makes an LBNodeAgent that takes over both nodes of another one: the second keeps
// what it has until the first one's new agent has reported.
func TestNodesLeaveOneAfterAnother(t *testing.T) {
	g := begin(t)
	label := func(name string) func(Gomega) string {
		return func(g Gomega) string {
			return fetch(g, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}).Labels[v1.LabelAgent]
		}
	}
	for _, name := range []string{"purelb-agent-one", "purelb-agent-two"} {
		t.Cleanup(func() { remove(t, &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}) })
	}
	running := map[string]*agent{}
	one := lbNodeAgent(t, "one", nil) // first, so that it goes last, when no node is there any more
	node(t, "node1", map[string]string{"rack": "a"})
	node(t, "node2", map[string]string{"rack": "a"})
	for i, name := range []string{"node1", "node2"} {
		running[name] = runAgent(t, name, eth("eth0", fmt.Sprintf("10.48.0.%d/24", 101+i)))
	}
	serviceGroup(t, "lan", "local: {pool: 10.48.0.1, subnet: 10.48.0.0/24}")
	svc := service(t, "on-lan", ofGroup("lan"))
	g.Eventually(condition(svc, v1.ConditionAnnounced)).Should(HavePrefix("True"))
	at := holders("10.48.0.1", "node1", "node2")

	running["node1"].pause(true)
	lbNodeAgent(t, "two", map[string]string{"rack": "a"})
	g.Eventually(func(g Gomega) bool { return announcement(g, "node1").Spec.AgentLeaving }).Should(BeTrue())
	g.Eventually(func(g Gomega) string {
		fetch(g, one)
		return meta.FindStatusCondition(one.Status.Conditions, v1.ConditionReady).Message
	}).Should(Equal("nodes that have yet to withdraw their addresses: 2 (node1, node2); those that go to another " +
		"LBNodeAgent do so one after another"))
	waitUntilNodesHandled(t, nil, "one")
	g.Expect(announcement(g, "node2").Spec.AgentLeaving).To(BeFalse())
	running["node1"].pause(false)
	g.Eventually(func(g Gomega) {
		// In this order: once node2 is told to leave, node1 is not any more.
		if announcement(g, "node2").Spec.AgentLeaving && announcement(g, "node1").Spec.AgentLeaving {
			StopTrying("both nodes are to withdraw what they have").Now()
		}
		g.Expect([]string{label("node1")(g), label("node2")(g)}).To(Equal([]string{"two", "two"}))
	}).Should(Succeed())
	g.Eventually(at).Should(HaveLen(1))
	g.Eventually(condition(svc, v1.ConditionAnnounced)).Should(HavePrefix("True"))
}

// TestFaultDeletedAnnouncement has an administrator delete the Announcement of a node that
// has an address, past the policy that refuses that: the manager makes it again, and one
// node announces the address in the end.
func TestFaultDeletedAnnouncement(t *testing.T) {
	g := begin(t)
	startNodes(t, g, "10.50.0", "node1", "node2")
	serviceGroup(t, "lan", "local: {pool: 10.50.0.1, subnet: 10.50.0.0/24}")
	svc := service(t, "on-lan", ofGroup("lan"))
	g.Eventually(condition(svc, v1.ConditionAnnounced)).Should(HavePrefix("True"))
	at := holders("10.50.0.1", "node1", "node2")
	holder := at(g)[0]
	old := announcement(g, holder)
	g.Expect(api.Delete(context.Background(), old)).To(Succeed())
	g.Eventually(func(g Gomega) {
		a := announcement(g, holder)
		g.Expect(a).NotTo(BeNil())
		g.Expect(a.UID).NotTo(Equal(old.UID))
		g.Expect(a.Spec.IncludeCommonAnnouncements).To(BeTrue())
		g.Expect(at(g)).To(HaveLen(1))
	}).Should(Succeed())
	now := at(g)
	g.Eventually(condition(svc, v1.ConditionAnnounced)).Should(HavePrefix("True"))
	waitUntilPlaced(t)
	g.Expect(at(g)).To(Equal(now))
}

// TestFaultDeletedNode has a user delete the Node object of a node that has an
// address, and whose kernel answers on: the next node knows by which MAC addresses, and
// the Announcement goes when the address has gone on. This test shows the row "its Node object is
// deleted while it runs" of docs/trust.md.
func TestFaultDeletedNode(t *testing.T) {
	g := begin(t)
	ctx := context.Background()
	lbNodeAgent(t, "default", nil)
	running := map[string]*agent{}
	for i, name := range []string{"node1", "node2"} {
		node(t, name, nil)
		running[name] = runAgent(t, name, eth("eth0", fmt.Sprintf("10.51.0.%d/24", 101+i)))
		running[name].interfaces[0].MAC = fmt.Sprintf("02:00:00:00:00:%02d", 1+i)
		running[name].macs.Store(&[]string{fmt.Sprintf("06:00:00:00:00:%02d", 1+i)})
		g.Eventually(func(g Gomega) {
			a := announcement(g, name)
			g.Expect(a).NotTo(BeNil())
			g.Expect(a.Status.MACs).NotTo(BeEmpty())
		}).Should(Succeed())
	}
	serviceGroup(t, "lan", "local: {pool: 10.51.0.1, subnet: 10.51.0.0/24}")
	svc := service(t, "on-lan", ofGroup("lan"))
	g.Eventually(condition(svc, v1.ConditionAnnounced)).Should(HavePrefix("True"))
	holder := holders("10.51.0.1", "node1", "node2")(g)[0]
	other := map[string]string{"node1": "node2", "node2": "node1"}[holder]
	// Its Lease goes with it; there is no garbage collector here.
	running[holder].stop()
	running[other].pause(true)
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: holder}}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1.LeasePrefix + holder}}
	g.Expect(api.Delete(ctx, n)).To(Succeed())
	g.Expect(api.Delete(ctx, lease)).To(Succeed())
	i := holder[len(holder)-1:]
	g.Eventually(func(g Gomega) {
		entries := asked(g, other)
		g.Expect(entries).To(HaveLen(1))
		g.Expect(entries[0].PreviousMACs).To(Equal([]string{"02:00:00:00:00:0" + i, "06:00:00:00:00:0" + i}))
	}).Should(Succeed())
	g.Expect(announcement(g, holder)).NotTo(BeNil(), "what is known of the node is still needed")
	running[other].pause(false)
	g.Eventually(func(g Gomega) *v1.Announcement { return announcement(g, holder) }).Should(BeNil())
	g.Expect(holders("10.51.0.1", "node1", "node2")(g)).To(Equal([]string{other}))
}

// TestFaultIdleAgents has agents that renew their Leases and do nothing else: a
// claimant that does not claim is passed over, and a holder that does not react to a
// handover is not waited for. This test shows the row "its agent renews and does nothing else" of
// docs/trust.md.
func TestFaultIdleAgents(t *testing.T) {
	g := begin(t)
	lbNodeAgent(t, "default", nil)
	nodes, running := []string{"node1", "node2", "node3"}, map[string]*agent{}
	for i, name := range nodes {
		node(t, name, nil)
		running[name] = runAgent(t, name, eth("eth0", fmt.Sprintf("10.52.0.%d/24", 101+i)))
		g.Eventually(func(g Gomega) {
			a := announcement(g, name)
			g.Expect(a).NotTo(BeNil())
			g.Expect(a.Status.Interfaces).NotTo(BeEmpty())
		}).Should(Succeed())
	}
	for _, name := range nodes {
		running[name].pause(true)
	}
	serviceGroup(t, "lan", "local: {pool: 10.52.0.1, subnet: 10.52.0.0/24}")
	svc := service(t, "on-lan", ofGroup("lan"))
	at := holders("10.52.0.1", nodes...)
	// While no agent claims, the address goes from one to the next: one of them is the first.
	var first []string
	g.Eventually(func() []string { first = at(g); return first }).Should(HaveLen(1))
	for _, name := range nodes {
		running[name].pause(name == first[0])
	}
	var second []string
	g.Eventually(func(g Gomega) {
		second = at(g)
		g.Expect(second).To(HaveLen(1))
		g.Expect(condition(svc, v1.ConditionAnnounced)(g)).To(HavePrefix("True"))
		g.Expect(svc.Annotations[v1.AnnotationAddedTo]).To(Equal(second[0]+"/eth0"), "the same as when the Service was read")
	}).Should(Succeed())
	g.Expect(second).NotTo(ContainElement(first[0]), "the first claimant does not react")

	running[second[0]].pause(true)
	patch(
		t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: second[0]}},
		`{"metadata":{"labels":{"`+corev1.LabelNodeExcludeBalancers+`":""}}}`,
	)
	var third []string
	g.Eventually(func(g Gomega) {
		third = at(g)
		g.Expect(third).To(And(HaveLen(1), Not(Equal(second))))
		g.Expect(condition(svc, v1.ConditionAnnounced)(g)).To(HavePrefix("True"))
		g.Expect(svc.Annotations[v1.AnnotationAddedTo]).To(Equal(third[0] + "/eth0"))
	}).Should(Succeed())
	g.Expect(third).NotTo(ContainElement(first[0]), "nor does it now")
}
