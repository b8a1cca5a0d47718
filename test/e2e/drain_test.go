package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// setOnUnschedulable changes what nodes that take no new pods do with their addresses, until the spec ends.
func setOnUnschedulable(ctx context.Context, policy v1.UnschedulablePolicy) {
	GinkgoHelper()
	set := func(ctx context.Context, policy v1.UnschedulablePolicy) {
		retryKubectl(ctx, "-n", purelbNamespace, "patch", "lbnodeagent", "default", "--type=merge",
			"-p", fmt.Sprintf(`{"spec":{"onUnschedulable":%q}}`, policy))
	}
	DeferCleanup(func(ctx SpecContext) { set(ctx, v1.UnschedulableIgnore) }, NodeTimeout(waitLimit))
	set(ctx, policy)
}

// refuseEvictions lets nobody evict an echo server of the space, until the returned function is called.
func (s *space) refuseEvictions(ctx context.Context) (allow func()) {
	GinkgoHelper()
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "all"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: ptr.To(intstr.FromString("100%")),
			Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": "echo"}},
		},
	}
	Expect(kubeClient.Create(ctx, budget)).To(Succeed())
	return func() { Expect(kubeClient.Delete(ctx, budget)).To(Succeed()) }
}

// startDraining starts kubectl drain, and returns a function that waits until it has ended. The node is
// schedulable again when the spec ends.
func startDraining(ctx context.Context, node string) (wait func()) {
	GinkgoHelper()
	DeferCleanup(func(ctx SpecContext) { kubectl(ctx, "uncordon", node) }, NodeTimeout(waitLimit))
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, *kubectlProgram, "--kubeconfig", testLab.Kubeconfig(),
		"drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force")
	cmd.Stdout, cmd.Stderr = &out, &out
	Expect(cmd.Start()).To(Succeed())
	return func() {
		GinkgoHelper()
		err := cmd.Wait()
		Expect(err).NotTo(HaveOccurred(), "%s", out.String())
	}
}

// waitUntilMovedFrom waits until a node has none of a group's addresses, and other nodes announce as many as
// there are. It returns which node announces which address.
func waitUntilMovedFrom(ctx context.Context, node, group string, count int) (nodeByAddress map[string]string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		var counts map[string]int
		counts, nodeByAddress = countHolders(ctx, g, group)
		g.Expect(nodeByAddress).To(HaveLen(count))
		g.Expect(counts[node]).To(BeZero(), "addresses of %s", node)
		for address, holder := range nodeByAddress {
			places, err := findPlaces(ctx, netip.MustParseAddr(address))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(places).To(HaveExactElements(HavePrefix(holder+"/")), "places of %s", address)
		}
	}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
	return nodeByAddress
}

// countLocalIPv4 returns how many Local IPv4 addresses each node is to announce.
func countLocalIPv4(ctx context.Context) map[string]int {
	GinkgoHelper()
	counts := map[string]int{}
	for _, name := range nodeNames() {
		counts[name] = 0
	}
	list := &v1.AnnouncementList{}
	Expect(kubeClient.List(ctx, list, client.InNamespace(purelbNamespace))).To(Succeed())
	for _, a := range list.Items {
		for _, e := range a.Spec.Addresses {
			if e.Type == v1.AnnounceLocal && netip.MustParseAddr(e.Address).Is4() {
				counts[a.Spec.NodeName]++
			}
		}
	}
	return counts
}

var _ = Describe("Draining nodes", func() {
	It("hands addresses over before pods go, moves none back, and spreads them again when asked", func(ctx SpecContext) {
		setOnUnschedulable(ctx, v1.UnschedulableHandOver)
		s := newSpace(ctx)
		const count = 5 // the other addresses are for waitForManager, once for each node
		group := s.createLocalGroup(ctx, "drained", v1.PoolSet{V4Pools: []v1.AddressPool{s.v4Range(0, count-1)}})
		for i := range count {
			svc := s.createService(ctx, fmt.Sprintf("drained-%d", i), group, singleStack)
			waitForAddresses(ctx, svc, 1)
			waitUntilAnnounced(ctx, svc)
		}
		virtual := waitForAddresses(ctx, s.createService(ctx, "virtual", s.virtualGroup(ctx), singleStack), 1)[0]
		waitForPlaces(ctx, virtual, len(nodeNames()))
		waitForServers(ctx, s.namespace)
		_, before := countHolders(ctx, Default, group)

		for _, node := range nodeNames() {
			By("draining " + node)
			allowEvictions := s.refuseEvictions(ctx)
			waitForDrain := startDraining(ctx, node)
			drained := waitUntilMovedFrom(ctx, node, group, count)
			Eventually(func() ([]string, error) { return findPlaces(ctx, virtual) }).WithContext(ctx).WithTimeout(waitLimit).
				WithPolling(pollInterval).
				Should(And(HaveLen(len(nodeNames())-1), Not(ContainElement(HavePrefix(node+"/")))), "places of %s", virtual)
			for address, holder := range before {
				if holder != node {
					Expect(drained[address]).To(Equal(holder), "%s is not on the node that is drained", address)
				}
			}
			Expect(s.nodesOf(ctx, Default, "echo")).To(HaveKey(node), "its pods are there still")
			allowEvictions()
			waitForDrain()
			kubectl(ctx, "-n", purelbNamespace, "wait", "announcements", "-l", v1.LabelNode+"="+node,
				"--for=jsonpath={.status.announced}=0", "--timeout=60s")

			By("restarting its agent, and uncordoning it")
			Expect(killProgram(ctx, node, "agent")).To(BeTrue())
			kubectl(ctx, "uncordon", node)
			waitUntilReady(ctx)
			waitForPlaces(ctx, virtual, len(nodeNames()))
			s.waitForManager(ctx)
			_, before = countHolders(ctx, Default, group)
			Expect(before).To(Equal(drained), "nothing moves back")
		}

		By("spreading the addresses again")
		out, code := runPlugin(ctx, "rebalance")
		Expect(code).To(BeZero(), out)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		Expect(len(lines)).To(BeNumerically(">=", 3), "it moves something:\n%s", out)
		for i, line := range lines[:len(lines)-1] { // each address arrives before the next one leaves
			want := "leaves"
			if i%2 == 1 {
				want = "is on"
			}
			Expect(line).To(MatchRegexp(`^%d of \d+: \S+ .*%s`, i/2+1, want), out)
		}
		counts := countLocalIPv4(ctx)
		var loads []int
		for _, n := range counts {
			loads = append(loads, n)
		}
		Expect(slices.Max(loads)-slices.Min(loads)).To(BeNumerically("<=", 1), "%v after\n%s", counts, out)
		node := &corev1.Node{}
		for _, name := range nodeNames() {
			Expect(kubeClient.Get(ctx, client.ObjectKey{Name: name}, node)).To(Succeed())
			Expect(node.Annotations).NotTo(HaveKey(v1.AnnotationHandover), "annotations of %s", name)
		}
		out, code = runPlugin(ctx, "rebalance")
		Expect(code).To(BeZero(), out)
		Expect(out).To(HavePrefix("0 addresses moved"), "it is done")
	}, SpecTimeout(functionalLimit))

	It("moves nothing unless the LBNodeAgent says so", func(ctx SpecContext) {
		s := newSpace(ctx)
		svc := s.createService(ctx, "cordoned", s.localGroup(ctx), singleStack)
		address := waitForAddresses(ctx, svc, 1)[0]
		waitUntilAnnounced(ctx, svc)
		holder, place := waitForSolePlace(ctx, address)
		startDraining(ctx, holder)()
		s.waitForManager(ctx)
		at, after := waitForSolePlace(ctx, address)
		Expect([]string{at, after}).To(Equal([]string{holder, place}))
	}, SpecTimeout(functionalLimit))
})
