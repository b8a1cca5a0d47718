package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// waitForPlaces waits until n interfaces have an address, and returns them as findPlaces
// does.
func waitForPlaces(ctx context.Context, address netip.Addr, n int) []string {
	GinkgoHelper()
	var found []string
	Eventually(func(g Gomega) {
		var err error
		found, err = findPlaces(ctx, address)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found).To(HaveLen(n), "places of %s", address)
	}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
	return found
}

// waitUntilAnnounced waits until the Service says that its addresses are announced.
func waitUntilAnnounced(ctx context.Context, svc *corev1.Service) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(kubeClient.Get(ctx, client.ObjectKeyFromObject(svc), svc)).To(Succeed())
		g.Expect(meta.IsStatusConditionTrue(svc.Status.Conditions, v1.ConditionAnnounced)).To(BeTrue(), "conditions %v", svc.Status.Conditions)
	}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
}

// waitUntilNothingAnnounced waits until no Announcement has an address in spec or status.
func waitUntilNothingAnnounced(ctx context.Context) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		for _, node := range nodeNames() {
			a, err := getAnnouncement(ctx, node)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(a.Spec.Addresses).To(BeEmpty())
			g.Expect(a.Status.Addresses).To(BeEmpty())
			g.Expect(a.Status.Announced).To(BeZero())
			g.Expect(a.Status.ObservedGeneration).To(Equal(a.Generation))
		}
	}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
}

var _ = Describe("A Service of type LoadBalancer", func() {
	It("has each of its local addresses on one node's interface", Label(proxyLabel), func(ctx SpecContext) {
		applyGroup(ctx, "localdual.yaml")
		svc := createService(ctx, "local", "localdual")
		addrs := waitForAddresses(ctx, svc, 2)
		Expect(addrs).To(ConsistOf(netip.MustParseAddr("10.77.0.100"), netip.MustParseAddr("fd00:77::100")))

		for _, addr := range addrs {
			waitForAnswer(ctx, "client", addr, waitLimit)
			place := waitForPlaces(ctx, addr, 1)[0]
			node, rest, _ := strings.Cut(place, "/")
			Expect(rest).To(Equal("eth0 "+netip.PrefixFrom(addr, addr.BitLen()).String()), "the interface, and the mask of a host")

			By(fmt.Sprintf("finding the MAC of %[2]s for %[1]s in the client's neighbour table", addr, node))
			own, err := testLab.MAC(ctx, node)
			Expect(err).NotTo(HaveOccurred())
			mac, _, err := testLab.Neighbour(ctx, "client", addr)
			Expect(err).NotTo(HaveOccurred())
			Expect(mac).To(Equal(own))

			By("finding the address in kubectl get announcements")
			Eventually(func() string { return tableRow(kubectl(ctx, "get", "announcements", "-n", purelbNamespace), node) }).
				WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(ContainSubstring(addr.String()))
		}
		waitUntilAnnounced(ctx, svc)
		Expect(svc.Annotations).To(HaveKeyWithValue(v1.AnnotationAllocatedBy, "PureLB"))
		Expect(svc.Annotations).To(HaveKeyWithValue(v1.AnnotationAllocatedFrom, "localdual"))
		Expect(svc.Annotations).To(HaveKeyWithValue(v1.AnnotationPoolType, "local"))
		Expect(svc.Annotations).To(HaveKeyWithValue(v1.AnnotationAnnouncingIPv4, MatchRegexp(`^node\d,eth0,10\.77\.0\.100$`)))
		Expect(svc.Annotations).To(HaveKeyWithValue(v1.AnnotationAnnouncingIPv6, MatchRegexp(`^node\d,eth0,fd00:77::100$`)))
		Expect(svc.Annotations).To(HaveKeyWithValue(v1.AnnotationAddedTo, MatchRegexp(`^node\d/eth0( node\d/eth0)?$`)))

		By("finding the events in kubectl describe")
		Eventually(func() string { return kubectl(ctx, "describe", "service", "-n", testNamespace, "local") }).
			WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(And(
			MatchRegexp(`AddressAssigned +\S+ +purelb-allocator +Assigned 10\.77\.0\.100, fd00:77::100 from pool localdual`),
			MatchRegexp(`AnnouncingLocal +\S+ +purelb-lbnodeagent +Announcing 10\.77\.0\.100 from node node\d interface eth0`),
			MatchRegexp(`AnnouncingLocal +\S+ +purelb-lbnodeagent +Announcing fd00:77::100 from node node\d interface eth0`),
		))
	}, SpecTimeout(2*time.Minute))

	It("has its virtual addresses on every node, where a router reaches them", Label(proxyLabel), func(ctx SpecContext) {
		applyGroup(ctx, "remotedual.yaml")
		svc := createService(ctx, "virtual", "remotedual")
		addrs := waitForAddresses(ctx, svc, 2)
		v4, v6 := netip.MustParseAddr("172.32.100.225"), netip.MustParseAddr("fc00:370:155:0:8000::")
		Expect(addrs).To(ConsistOf(v4, v6))
		Expect(waitForPlaces(ctx, v4, 3)).To(ConsistOf("node1/kube-lb0 172.32.100.225/32", "node2/kube-lb0 172.32.100.225/32", "node3/kube-lb0 172.32.100.225/32"))
		Expect(waitForPlaces(ctx, v6, 3)).To(HaveEach(HaveSuffix("/kube-lb0 fc00:370:155:0:8000::/128")))
		waitUntilAnnounced(ctx, svc)

		By("routing the subnets to two of the nodes")
		for prefix, hops := range map[string][]string{
			"172.32.100.0/24":   {"10.77.0.11", "10.77.0.12"},
			"fc00:370:155::/64": {"fd00:77::11", "fd00:77::12"},
		} {
			p := netip.MustParsePrefix(prefix)
			Expect(testLab.AddRoute(ctx, "router", p, netip.MustParseAddr(hops[0]), netip.MustParseAddr(hops[1]))).To(Succeed())
			DeferCleanup(func(ctx SpecContext) { Expect(testLab.DeleteRoute(ctx, "router", p)).To(Succeed()) }, NodeTimeout(waitLimit))
		}
		waitForAnswer(ctx, "far", v4, waitLimit)
		waitForAnswer(ctx, "far", v6, waitLimit)

		Eventually(func() string { return kubectl(ctx, "describe", "service", "-n", testNamespace, "virtual") }).
			WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(And(
			ContainSubstring("Announcing 172.32.100.225 from node node1 interface kube-lb0"),
			ContainSubstring("Announcing fc00:370:155:0:8000:: from node node3 interface kube-lb0"),
		))
	}, SpecTimeout(2*time.Minute))

	It("leaves nothing behind when it is deleted or changes its type", Label(proxyLabel), func(ctx SpecContext) {
		applyGroup(ctx, "localdual.yaml")
		applyGroup(ctx, "remotedual.yaml")
		deleted, changed := createService(ctx, "deleted", "localdual"), createService(ctx, "changed", "remotedual")
		addrs := append(waitForAddresses(ctx, deleted, 2), waitForAddresses(ctx, changed, 2)...)
		waitUntilAnnounced(ctx, deleted)
		waitUntilAnnounced(ctx, changed)

		Expect(kubeClient.Delete(ctx, deleted)).To(Succeed())
		patch := client.MergeFrom(changed.DeepCopy())
		changed.Spec.Type = corev1.ServiceTypeClusterIP
		Expect(kubeClient.Patch(ctx, changed, patch)).To(Succeed())

		for _, addr := range addrs {
			waitForPlaces(ctx, addr, 0)
		}
		waitUntilNothingAnnounced(ctx)
		Eventually(func(g Gomega) {
			g.Expect(kubeClient.Get(ctx, client.ObjectKeyFromObject(changed), changed)).To(Succeed())
			g.Expect(changed.Status.LoadBalancer.Ingress).To(BeEmpty())
			g.Expect(changed.Annotations).To(HaveLen(1), "only the user's own")
			g.Expect(changed.Status.Conditions).To(BeEmpty())
		}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
		Eventually(func() string { return kubectl(ctx, "describe", "service", "-n", testNamespace, "changed") }).
			WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(ContainSubstring("AddressReleased"))
	}, SpecTimeout(2*time.Minute))

	It("is served by another node within 10 s when its node is cut off", func(ctx SpecContext) {
		applyGroup(ctx, "localdual.yaml")
		svc := createService(ctx, "failover", "localdual")
		addrs := waitForAddresses(ctx, svc, 2)
		waitUntilAnnounced(ctx, svc)
		for _, addr := range addrs {
			waitForAnswer(ctx, "client", addr, waitLimit)
			holder, _, _ := strings.Cut(waitForPlaces(ctx, addr, 1)[0], "/")
			Expect(testLab.CutLink(ctx, holder)).To(Succeed())
			cut := time.Now()
			heal := func(ctx context.Context) { Expect(testLab.HealLink(ctx, holder)).To(Succeed()) }
			DeferCleanup(func(ctx SpecContext) { heal(ctx) }, NodeTimeout(waitLimit))

			waitForAnswer(ctx, "client", addr, 10*time.Second-time.Since(cut))
			AddReportEntry(fmt.Sprintf("%s answered %s after the link of %s was cut", addr, time.Since(cut).Round(time.Millisecond), holder))

			By("connecting the node again, which yields and takes nothing back")
			found, err := findPlaces(ctx, addr)
			Expect(err).NotTo(HaveOccurred())
			Expect(found).To(HaveLen(2), "the node that is cut off does not know yet")
			heal(ctx)
			place := waitForPlaces(ctx, addr, 1)[0]
			Expect(place).NotTo(HavePrefix(holder + "/"))
			waitForAnswer(ctx, "client", addr, waitLimit)
			waitUntilAnnounced(ctx, svc)
		}
		// A manager that was cut off restarts, and for a moment the API server still calls
		// its webhooks. The next test must not meet that.
		waitUntilWebhooksAnswer(ctx)
	}, SpecTimeout(3*time.Minute))
})

// tableRow returns the line of a table that begins with name.
func tableRow(table, name string) string {
	for line := range strings.Lines(table) {
		if strings.HasPrefix(line, name+" ") {
			return line
		}
	}
	return ""
}
