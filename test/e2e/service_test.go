package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
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
		g.Expect(meta.IsStatusConditionTrue(svc.Status.Conditions, v1.ConditionAnnounced)).To(
			BeTrue(), "conditions %v", svc.Status.Conditions,
		)
	}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
}

// waitForSolePlace waits until exactly one interface of a node has an address, and returns the
// node, and the interface and the prefix as findPlaces does.
func waitForSolePlace(ctx context.Context, address netip.Addr) (node, place string) {
	GinkgoHelper()
	node, place, _ = strings.Cut(waitForPlaces(ctx, address, 1)[0], "/")
	return node, place
}

// waitForNeighbour waits until the neighbour table of a host has the MAC of a node for an
// address.
func waitForNeighbour(ctx context.Context, host string, address netip.Addr, node string) {
	GinkgoHelper()
	own, err := testLab.MAC(ctx, node)
	Expect(err).NotTo(HaveOccurred())
	Eventually(func(g Gomega) {
		// Asking makes the kernel ask for the neighbour, too, if the entry has gone.
		_, err := fetch(ctx, host, address)
		g.Expect(err).NotTo(HaveOccurred())
		mac, _, err := testLab.Neighbour(ctx, host, address)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(mac).To(Equal(own), "the MAC that %s has for %s", host, address)
	}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
}

// waitForDescription waits until kubectl describe of a Service matches.
func waitForDescription(ctx context.Context, svc *corev1.Service, matcher gomegatypes.GomegaMatcher) {
	GinkgoHelper()
	Eventually(func() (string, error) { return tryKubectl(ctx, "describe", "service", "-n", svc.Namespace, svc.Name) }).
		WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(matcher)
}

var _ = Describe("A Service of type LoadBalancer", func() {
	It("has each of its local addresses on one node's interface", Label(smokeLabel, proxyLabel), func(ctx SpecContext) {
		s := newSpace(ctx)
		group := s.localGroup(ctx)
		svc := s.createService(ctx, "local", group)
		addrs := waitForAddresses(ctx, svc, 2)
		Expect(addrs).To(ConsistOf(s.v4(0), s.v6(0)))

		for _, addr := range addrs {
			waitForAnswer(ctx, "client", addr)
			node, place := waitForSolePlace(ctx, addr)
			Expect(place).To(
				Equal("eth0 "+netip.PrefixFrom(addr, addr.BitLen()).String()), "the interface, and the mask of a host",
			)

			By(fmt.Sprintf("finding the MAC of %[2]s for %[1]s in the client's neighbour table", addr, node))
			waitForNeighbour(ctx, "client", addr, node)

			By("finding the address in kubectl get announcements -o wide")
			Eventually(func() (string, error) {
				out, err := tryKubectl(ctx, "get", "announcements", "-n", purelbNamespace, "-o", "wide")
				return tableRow(out, node), err
			}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(ContainSubstring(addr.String()))
		}
		v4, v6 := regexp.QuoteMeta(s.v4(0).String()), regexp.QuoteMeta(s.v6(0).String())
		Eventually(func(g Gomega) map[string]string {
			g.Expect(kubeClient.Get(ctx, client.ObjectKeyFromObject(svc), svc)).To(Succeed())
			g.Expect(meta.IsStatusConditionTrue(svc.Status.Conditions, v1.ConditionAnnounced)).To(
				BeTrue(), "conditions %v", svc.Status.Conditions,
			)
			return svc.Annotations
		}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(And(
			HaveKeyWithValue(v1.AnnotationAllocatedBy, "PureLB"),
			HaveKeyWithValue(v1.AnnotationAllocatedFrom, group),
			HaveKeyWithValue(v1.AnnotationPoolType, "local"),
			HaveKeyWithValue(v1.AnnotationAnnouncingIPv4, MatchRegexp(`^node\d,eth0,`+v4+`$`)),
			HaveKeyWithValue(v1.AnnotationAnnouncingIPv6, MatchRegexp(`^node\d,eth0,`+v6+`$`)),
			HaveKeyWithValue(v1.AnnotationAddedTo, MatchRegexp(`^node\d/eth0( node\d/eth0)?$`)),
		))

		By("finding the events in kubectl describe")
		waitForDescription(ctx, svc, And(
			MatchRegexp(`AddressAssigned +\S+ +purelb-allocator +Assigned `+v4+`, `+v6+` from pool `+group),
			MatchRegexp(`AnnouncingLocal +\S+ +purelb-lbnodeagent +Announcing `+v4+` from node node\d interface eth0`),
			MatchRegexp(`AnnouncingLocal +\S+ +purelb-lbnodeagent +Announcing `+v6+` from node node\d interface eth0`),
		))
	}, SpecTimeout(smokeLimit))

	It("has its virtual addresses on every node, where a router reaches them", Label(smokeLabel, proxyLabel),
		func(ctx SpecContext) {
			s := newSpace(ctx)
			svc := s.createService(ctx, "virtual", s.virtualGroup(ctx))
			addrs := waitForAddresses(ctx, svc, 2)
			v4, v6 := s.firstVirtualV4(), s.firstVirtualV6()
			Expect(addrs).To(ConsistOf(v4, v6))
			for _, addr := range addrs {
				place := "/kube-lb0 " + netip.PrefixFrom(addr, addr.BitLen()).String()
				Expect(waitForPlaces(ctx, addr, 3)).To(ConsistOf("node1"+place, "node2"+place, "node3"+place))
			}
			waitUntilAnnounced(ctx, svc)

			By("routing the subnets to two of the nodes")
			for _, route := range []struct {
				subnet netip.Prefix
				hops   []netip.Addr
			}{
				{s.virtualV4(), []netip.Addr{netip.MustParseAddr("10.77.0.11"), netip.MustParseAddr("10.77.0.12")}},
				{s.virtualV6(), []netip.Addr{netip.MustParseAddr("fd00:77::11"), netip.MustParseAddr("fd00:77::12")}},
			} {
				Expect(testLab.AddRoute(ctx, "router", route.subnet, route.hops...)).To(Succeed())
				DeferCleanup(
					func(ctx SpecContext) { Expect(testLab.DeleteRoute(ctx, "router", route.subnet)).To(Succeed()) },
					NodeTimeout(waitLimit),
				)
			}
			waitForAnswer(ctx, "far", v4)
			waitForAnswer(ctx, "far", v6)
			waitForDescription(ctx, svc, And(
				ContainSubstring("Announcing "+v4.String()+" from node node1 interface kube-lb0"),
				ContainSubstring("Announcing "+v6.String()+" from node node3 interface kube-lb0"),
			))
		}, SpecTimeout(smokeLimit))

	It("leaves nothing behind when it is deleted or changes its type", Label(smokeLabel, proxyLabel),
		func(ctx SpecContext) {
			s := newSpace(ctx)
			deleted, changed := s.createService(ctx, "deleted", s.localGroup(ctx)),
				s.createService(ctx, "changed", s.virtualGroup(ctx))
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
			Eventually(func() ([]string, error) { return s.findAnnounced(ctx) }).
				WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(BeEmpty())
			for _, node := range nodeNames() {
				Eventually(func(g Gomega) {
					a, err := getAnnouncement(ctx, node)
					g.Expect(err).NotTo(HaveOccurred())
					g.Expect(a.Status.Announced).To(Equal(a.Status.Desired), "what the agent of %s counts", node)
					for _, addr := range addrs {
						g.Expect(a.Status.LocalAddresses + " " + a.Status.VirtualAddresses).NotTo(ContainSubstring(addr.String()))
					}
					g.Expect(a.Status.ObservedGeneration).To(Equal(a.Generation))
				}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
			}
			Eventually(func(g Gomega) {
				g.Expect(kubeClient.Get(ctx, client.ObjectKeyFromObject(changed), changed)).To(Succeed())
				g.Expect(changed.Status.LoadBalancer.Ingress).To(BeEmpty())
				g.Expect(changed.Annotations).To(HaveLen(1), "only the user's own")
				g.Expect(changed.Status.Conditions).To(BeEmpty())
			}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
			waitForDescription(ctx, changed, ContainSubstring("AddressReleased"))
		}, SpecTimeout(smokeLimit))

	It("is served by another node when its node is cut off, which yields when it is back", Label(smokeLabel),
		func(ctx SpecContext) { tryFailover(ctx, "failover") }, SpecTimeout(smokeLimit))

	It("is served by another node when its node is cut off, though none watches it", func(ctx SpecContext) {
		turnOffWatching(ctx)
		tryFailover(ctx, "unwatched")
	}, SpecTimeout(functionalLimit))
})

// tryFailover cuts off the node that holds an address of a new Service, and connects it again; then that of the
// other family.
func tryFailover(ctx SpecContext, name string) {
	GinkgoHelper()
	s := newSpace(ctx)
	svc := s.createService(ctx, name, s.localGroup(ctx))
	addrs := waitForAddresses(ctx, svc, 2)
	waitUntilAnnounced(ctx, svc)
	for _, addr := range addrs {
		waitForAnswer(ctx, "client", addr)
		holder, _ := waitForSolePlace(ctx, addr)
		heal := func(ctx SpecContext) { Expect(testLab.HealLink(ctx, holder)).To(Succeed()) }
		DeferCleanup(heal, NodeTimeout(waitLimit))
		Expect(testLab.CutLink(ctx, holder)).To(Succeed())

		By("waiting until another node has " + addr.String() + ", and answers")
		var next string
		Eventually(func(g Gomega) []string {
			found, err := findPlaces(ctx, addr)
			g.Expect(err).NotTo(HaveOccurred())
			others := slices.DeleteFunc(
				slices.Clone(found), func(place string) bool { return strings.HasPrefix(place, holder+"/") },
			)
			g.Expect(others).To(HaveLen(1))
			next = others[0]
			return found
		}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).
			Should(ContainElement(HavePrefix(holder+"/")), "the node that is cut off does not know yet")
		waitForAnswer(ctx, "client", addr)

		By("connecting " + holder + " again, which yields and takes nothing back")
		heal(ctx)
		Expect(waitForPlaces(ctx, addr, 1)).To(ConsistOf(next))
		nextNode, _, _ := strings.Cut(next, "/")
		waitForNeighbour(ctx, "client", addr, nextNode)
		waitUntilReady(ctx)
		waitUntilAnnounced(ctx, svc)
		Expect(waitForPlaces(ctx, addr, 1)).To(ConsistOf(next), "the address stays when its node is back")
	}
}

// tableRow returns the line of a table that begins with name.
func tableRow(table, name string) string {
	for line := range strings.Lines(table) {
		if strings.HasPrefix(line, name+" ") {
			return line
		}
	}
	return ""
}
