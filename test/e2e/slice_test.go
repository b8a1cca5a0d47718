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

// where waits until an address is in as many places as wanted, and returns
// them.
func where(ctx context.Context, address netip.Addr, n int) []string {
	GinkgoHelper()
	var found []string
	Eventually(func(g Gomega) {
		var err error
		found, err = places(ctx, address)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found).To(HaveLen(n), "places of %s", address)
	}).WithContext(ctx).WithTimeout(soon).WithPolling(poll).Should(Succeed())
	return found
}

// announced waits until the Service says that its addresses are announced.
func announced(ctx context.Context, svc *corev1.Service) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(c.Get(ctx, client.ObjectKeyFromObject(svc), svc)).To(Succeed())
		g.Expect(meta.IsStatusConditionTrue(svc.Status.Conditions, v1.ConditionAnnounced)).To(BeTrue(), "conditions %v", svc.Status.Conditions)
	}).WithContext(ctx).WithTimeout(soon).WithPolling(poll).Should(Succeed())
}

// nothingAnnounced waits until no node has anything to announce, nor does.
func nothingAnnounced(ctx context.Context) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		for _, node := range nodes() {
			a, err := announcement(ctx, node)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(a.Spec.Addresses).To(BeEmpty())
			g.Expect(a.Status.Addresses).To(BeEmpty())
			g.Expect(a.Status.Announced).To(BeZero())
			g.Expect(a.Status.ObservedGeneration).To(Equal(a.Generation))
		}
	}).WithContext(ctx).WithTimeout(soon).WithPolling(poll).Should(Succeed())
}

var _ = Describe("A Service of type LoadBalancer", func() {
	It("has its local addresses on one node's interface each", func(ctx SpecContext) {
		group(ctx, "localdual.yaml")
		svc := service(ctx, "local", "localdual")
		addrs := ingress(ctx, svc, 2)
		Expect(addrs).To(ConsistOf(netip.MustParseAddr("10.77.0.100"), netip.MustParseAddr("fd00:77::100")))

		masks := map[netip.Addr]string{addrs[0]: "/24", addrs[1]: "/64"}
		if addrs[0].Is6() {
			masks = map[netip.Addr]string{addrs[0]: "/64", addrs[1]: "/24"}
		}
		for _, addr := range addrs {
			answers(ctx, "client", addr, soon)
			place := where(ctx, addr, 1)[0]
			node, rest, _ := strings.Cut(place, "/")
			Expect(rest).To(Equal("eth0 "+addr.String()+masks[addr]), "the interface, and the mask of the subnet")

			By(fmt.Sprintf("%s being %s's, as the client's neighbour table has it", addr, node))
			own, err := bed.MAC(ctx, node)
			Expect(err).NotTo(HaveOccurred())
			mac, _, err := bed.Neighbour(ctx, "client", addr)
			Expect(err).NotTo(HaveOccurred())
			Expect(mac).To(Equal(own))

			By("kubectl get announcements showing it")
			Eventually(func() string { return row(kubectl(ctx, "get", "announcements", "-n", system), node) }).
				WithContext(ctx).WithTimeout(soon).WithPolling(poll).Should(ContainSubstring(addr.String()))
		}
		announced(ctx, svc)
		Expect(svc.Annotations).To(HaveKeyWithValue(v1.AnnotationAllocatedBy, "PureLB"))
		Expect(svc.Annotations).To(HaveKeyWithValue(v1.AnnotationAllocatedFrom, "localdual"))
		Expect(svc.Annotations).To(HaveKeyWithValue(v1.AnnotationPoolType, "local"))
		Expect(svc.Annotations).To(HaveKeyWithValue(v1.AnnotationAnnouncingIPv4, MatchRegexp(`^node\d,eth0,10\.77\.0\.100$`)))
		Expect(svc.Annotations).To(HaveKeyWithValue(v1.AnnotationAnnouncingIPv6, MatchRegexp(`^node\d,eth0,fd00:77::100$`)))
		Expect(svc.Annotations).To(HaveKeyWithValue(v1.AnnotationAddedTo, MatchRegexp(`^node\d/eth0( node\d/eth0)?$`)))

		By("kubectl describe showing the events")
		Eventually(func() string { return kubectl(ctx, "describe", "service", "-n", namespace, "local") }).
			WithContext(ctx).WithTimeout(soon).WithPolling(poll).Should(And(
			MatchRegexp(`AddressAssigned +\S+ +purelb-allocator +Assigned 10\.77\.0\.100, fd00:77::100 from pool localdual`),
			MatchRegexp(`AnnouncingLocal +\S+ +purelb-lbnodeagent +Announcing 10\.77\.0\.100 from node node\d interface eth0`),
			MatchRegexp(`AnnouncingLocal +\S+ +purelb-lbnodeagent +Announcing fd00:77::100 from node node\d interface eth0`),
		))
	}, SpecTimeout(2*time.Minute))

	It("has its virtual addresses on every node, for a router to reach", func(ctx SpecContext) {
		group(ctx, "remotedual.yaml")
		svc := service(ctx, "virtual", "remotedual")
		addrs := ingress(ctx, svc, 2)
		v4, v6 := netip.MustParseAddr("172.32.100.225"), netip.MustParseAddr("fc00:370:155:0:8000::")
		Expect(addrs).To(ConsistOf(v4, v6))
		Expect(where(ctx, v4, 3)).To(ConsistOf("node1/kube-lb0 172.32.100.225/32", "node2/kube-lb0 172.32.100.225/32", "node3/kube-lb0 172.32.100.225/32"))
		Expect(where(ctx, v6, 3)).To(HaveEach(HaveSuffix("/kube-lb0 fc00:370:155:0:8000::/128")))
		announced(ctx, svc)

		By("routing the subnets to two of the nodes")
		for prefix, hops := range map[string][]string{
			"172.32.100.0/24":   {"10.77.0.11", "10.77.0.12"},
			"fc00:370:155::/64": {"fd00:77::11", "fd00:77::12"},
		} {
			p := netip.MustParsePrefix(prefix)
			Expect(bed.AddRoute(ctx, "router", p, netip.MustParseAddr(hops[0]), netip.MustParseAddr(hops[1]))).To(Succeed())
			DeferCleanup(func(ctx SpecContext) { Expect(bed.DeleteRoute(ctx, "router", p)).To(Succeed()) }, NodeTimeout(soon))
		}
		answers(ctx, "far", v4, soon)
		answers(ctx, "far", v6, soon)

		Eventually(func() string { return kubectl(ctx, "describe", "service", "-n", namespace, "virtual") }).
			WithContext(ctx).WithTimeout(soon).WithPolling(poll).Should(And(
			ContainSubstring("Announcing 172.32.100.225 from node node1 interface kube-lb0"),
			ContainSubstring("Announcing fc00:370:155:0:8000:: from node node3 interface kube-lb0"),
		))
	}, SpecTimeout(2*time.Minute))

	It("leaves nothing behind when it is deleted or no longer of that type", func(ctx SpecContext) {
		group(ctx, "localdual.yaml")
		group(ctx, "remotedual.yaml")
		deleted, changed := service(ctx, "deleted", "localdual"), service(ctx, "changed", "remotedual")
		addrs := append(ingress(ctx, deleted, 2), ingress(ctx, changed, 2)...)
		announced(ctx, deleted)
		announced(ctx, changed)

		Expect(c.Delete(ctx, deleted)).To(Succeed())
		patch := client.MergeFrom(changed.DeepCopy())
		changed.Spec.Type = corev1.ServiceTypeClusterIP
		Expect(c.Patch(ctx, changed, patch)).To(Succeed())

		for _, addr := range addrs {
			where(ctx, addr, 0)
		}
		nothingAnnounced(ctx)
		Eventually(func(g Gomega) {
			g.Expect(c.Get(ctx, client.ObjectKeyFromObject(changed), changed)).To(Succeed())
			g.Expect(changed.Status.LoadBalancer.Ingress).To(BeEmpty())
			g.Expect(changed.Annotations).To(HaveLen(1), "only the user's own")
			g.Expect(changed.Status.Conditions).To(BeEmpty())
		}).WithContext(ctx).WithTimeout(soon).WithPolling(poll).Should(Succeed())
		Eventually(func() string { return kubectl(ctx, "describe", "service", "-n", namespace, "changed") }).
			WithContext(ctx).WithTimeout(soon).WithPolling(poll).Should(ContainSubstring("AddressReleased"))
	}, SpecTimeout(2*time.Minute))

	It("is served by another node within 10 s when its node is cut off", func(ctx SpecContext) {
		group(ctx, "localdual.yaml")
		svc := service(ctx, "failover", "localdual")
		addrs := ingress(ctx, svc, 2)
		announced(ctx, svc)
		for _, addr := range addrs {
			answers(ctx, "client", addr, soon)
			holder, _, _ := strings.Cut(where(ctx, addr, 1)[0], "/")
			Expect(bed.CutLink(ctx, holder)).To(Succeed())
			cut := time.Now()
			heal := func(ctx context.Context) { Expect(bed.HealLink(ctx, holder)).To(Succeed()) }
			DeferCleanup(func(ctx SpecContext) { heal(ctx) }, NodeTimeout(soon))

			answers(ctx, "client", addr, 10*time.Second-time.Since(cut))
			AddReportEntry(fmt.Sprintf("%s answered %s after the link of %s was cut", addr, time.Since(cut).Round(time.Millisecond), holder))

			By("the node that comes back giving it up, and pulling nothing back")
			found, err := places(ctx, addr)
			Expect(err).NotTo(HaveOccurred())
			Expect(found).To(HaveLen(2), "the one that is cut off does not know yet")
			heal(ctx)
			place := where(ctx, addr, 1)[0]
			Expect(place).NotTo(HavePrefix(holder + "/"))
			answers(ctx, "client", addr, soon)
			announced(ctx, svc)
		}
		// A manager that was cut off starts anew, and for a moment the API server
		// still calls its webhooks: what comes next is not to be caught by that.
		admits(ctx)
	}, SpecTimeout(3*time.Minute))
})

// row is the line of a table that begins with name.
func row(table, name string) string {
	for line := range strings.Lines(table) {
		if strings.HasPrefix(line, name+" ") {
			return line
		}
	}
	return ""
}
