package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// withPort gives a Service another port.
func withPort(port int32) func(*corev1.Service) {
	return func(svc *corev1.Service) {
		svc.Spec.Ports = []corev1.ServicePort{{Port: port, TargetPort: intstr.FromInt32(echoPort)}}
	}
}

// withAnnotation gives a Service an annotation.
func withAnnotation(name, value string) func(*corev1.Service) {
	return func(svc *corev1.Service) { svc.Annotations[name] = value }
}

// editService changes a Service as its owner would.
func editService(ctx context.Context, svc *corev1.Service, change func(*corev1.Service)) {
	GinkgoHelper()
	Expect(kubeClient.Get(ctx, client.ObjectKeyFromObject(svc), svc)).To(Succeed())
	patch := client.MergeFrom(svc.DeepCopy())
	change(svc)
	Expect(kubeClient.Patch(ctx, svc, patch)).To(Succeed())
}

// waitForExactAddresses waits until a Service has exactly these addresses.
func waitForExactAddresses(ctx context.Context, svc *corev1.Service, want ...netip.Addr) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(kubeClient.Get(ctx, client.ObjectKeyFromObject(svc), svc)).To(Succeed())
		var got []netip.Addr
		for _, in := range svc.Status.LoadBalancer.Ingress {
			got = append(got, netip.MustParseAddr(in.IP))
		}
		g.Expect(got).To(Equal(want))
	}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
}

// waitForRefusal waits until the condition Allocated of a Service is False with a reason and
// a message.
func waitForRefusal(ctx context.Context, svc *corev1.Service, reason, message string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(kubeClient.Get(ctx, client.ObjectKeyFromObject(svc), svc)).To(Succeed())
		allocated := meta.FindStatusCondition(svc.Status.Conditions, v1.ConditionAllocated)
		g.Expect(allocated).NotTo(BeNil())
		g.Expect(allocated.Status).To(Equal(metav1.ConditionFalse))
		g.Expect(allocated.Reason).To(Equal(reason))
		g.Expect(allocated.Message).To(ContainSubstring(message))
	}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
}

// waitForFence waits until a port of an address does not answer one host, while it answers
// another one before and afterwards. So the host is kept out, and what does not answer is not
// just slow.
func waitForFence(ctx context.Context, out, in string, address netip.Addr) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		_, err := fetch(ctx, in, address)
		g.Expect(err).NotTo(HaveOccurred(), "from %s, before", in)
		_, err = fetch(ctx, out, address)
		g.Expect(err).To(HaveOccurred(), "from %s", out)
		_, err = fetch(ctx, in, address)
		g.Expect(err).NotTo(HaveOccurred(), "from %s, afterwards", in)
	}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).MustPassRepeatedly(2).Should(Succeed())
}

// podOfPage returns the pod that an echo page is from.
func podOfPage(page string) string {
	pod, _, _ := strings.Cut(strings.TrimPrefix(page, "pod="), " ")
	return pod
}

var _ = Describe("Allocation", func() {
	It("lets two Services share one address, each on its own port", Label(smokeLabel, proxyLabel), func(ctx SpecContext) {
		s := newSpace(ctx)
		group, addr := s.createLocalGroup(ctx, "shared", v1.PoolSet{V4Pools: []v1.AddressPool{s.v4Range(0, 2)}}), s.v4(0)
		key := withAnnotation(v1.AnnotationAllowSharedIP, "web")
		plain := s.createService(ctx, "shared-80", group, singleStack, key)
		waitForExactAddresses(ctx, plain, addr)
		other := s.createService(ctx, "shared-8081", group, singleStack, key, withPort(8081))
		waitForExactAddresses(ctx, other, addr)
		waitUntilAnnounced(ctx, plain)
		waitUntilAnnounced(ctx, other)
		waitForAnswerOnPort(ctx, "client", addr, 80)
		waitForAnswerOnPort(ctx, "client", addr, 8081)
		waitForPlaces(ctx, addr, 1)

		By("creating a third Service, which has to wait for its port")
		third := s.createService(ctx, "shared-clash", group, singleStack, key, withPort(8081))
		waitForRefusal(ctx, third, v1.ReasonPortConflict, s.namespace+"/shared-8081")

		By("deleting one Service, after which the others keep the address")
		Expect(kubeClient.Delete(ctx, other)).To(Succeed())
		waitForExactAddresses(ctx, third, addr)
		waitForAnswerOnPort(ctx, "client", addr, 8081)
		waitForAnswerOnPort(ctx, "client", addr, 80)
	}, SpecTimeout(smokeLimit))

	It("gives a Service the address that it asks for", func(ctx SpecContext) {
		s := newSpace(ctx)
		group := s.createLocalGroup(ctx, "requested", v1.PoolSet{V4Pools: []v1.AddressPool{s.v4Range(0, 3)}})
		svc := s.createService(ctx, "requested", group, singleStack, withAnnotation(v1.AnnotationAddresses, s.v4(2).String()))
		waitForExactAddresses(ctx, svc, s.v4(2))
		waitForAnswer(ctx, "client", s.v4(2))
		second := s.createService(
			ctx, "requested-too", group, singleStack, withAnnotation(v1.AnnotationAddresses, s.v4(2).String()),
		)
		waitForRefusal(ctx, second, v1.ReasonAddressInUse, s.namespace+"/requested")
		network := s.createService(
			ctx, "requested-node", group, singleStack, withAnnotation(v1.AnnotationAddresses, "10.78.9.9"),
		)
		waitForRefusal(ctx, network, v1.ReasonAddressOutsidePools, "10.78.9.9")

		By("asking for another address, and then for none")
		editService(ctx, svc, withAnnotation(v1.AnnotationAddresses, s.v4(3).String()))
		waitForExactAddresses(ctx, svc, s.v4(3))
		waitForAnswer(ctx, "client", s.v4(3))
		waitForExactAddresses(ctx, second, s.v4(2))
		editService(ctx, svc, func(svc *corev1.Service) { delete(svc.Annotations, v1.AnnotationAddresses) })
		s.waitForManager(ctx)
		waitForExactAddresses(ctx, svc, s.v4(3))
		waitForAnswer(ctx, "client", s.v4(3))
	}, SpecTimeout(functionalLimit))

	It("adds and releases the address of a family as the Service is edited", Label(smokeLabel), func(ctx SpecContext) {
		s := newSpace(ctx)
		v4, v6 := s.v4(0), s.v6(0)
		group := s.createLocalGroup(
			ctx, "families", v1.PoolSet{V4Pools: []v1.AddressPool{s.v4Range(0, 1)}, V6Pools: []v1.AddressPool{s.v6Range(0, 1)}},
		)
		svc := s.createService(ctx, "families", group, singleStack, func(svc *corev1.Service) {
			svc.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
		})
		waitForExactAddresses(ctx, svc, v4)
		waitForAnswer(ctx, "client", v4)
		editService(ctx, svc, func(svc *corev1.Service) {
			svc.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyRequireDualStack)
		})
		waitForExactAddresses(ctx, svc, v4, v6)
		waitForAnswer(ctx, "client", v4)
		waitForAnswer(ctx, "client", v6)
		editService(ctx, svc, func(svc *corev1.Service) {
			svc.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicySingleStack)
			svc.Spec.IPFamilies, svc.Spec.ClusterIPs = svc.Spec.IPFamilies[:1], svc.Spec.ClusterIPs[:1]
		})
		waitForExactAddresses(ctx, svc, v4)
		waitForPlaces(ctx, v6, 0)
		waitForAnswer(ctx, "client", v4)
	}, SpecTimeout(smokeLimit))

	It("balances Services over the ranges of a ServiceGroup", func(ctx SpecContext) {
		s := newSpace(ctx)
		group := s.createLocalGroup(
			ctx, "balanced", v1.PoolSet{BalancePools: true, V4Pools: []v1.AddressPool{s.v4Range(0, 3), s.v4Range(4, 7)}},
		)
		for i, want := range []netip.Addr{s.v4(0), s.v4(4), s.v4(1), s.v4(5)} {
			svc := s.createService(ctx, fmt.Sprintf("balanced-%d", i), group, singleStack)
			waitForExactAddresses(ctx, svc, want)
			waitForAnswer(ctx, "client", want)
		}
	}, SpecTimeout(functionalLimit))

	It("gives a Service one address of every range that a node can announce", func(ctx SpecContext) {
		s := newSpace(ctx)
		group := s.createLocalGroup(ctx, "multi", v1.PoolSet{MultiPool: true, V4Pools: []v1.AddressPool{
			s.v4Range(0, 1), {Subnet: "198.18.7.0/24", Pool: "198.18.7.1-198.18.7.9"}, s.v4Range(4, 5),
		}})
		svc := s.createService(ctx, "multi", group, singleStack)
		waitForExactAddresses(ctx, svc, s.v4(0), s.v4(4))
		waitForAnswer(ctx, "client", s.v4(0))
		waitForAnswer(ctx, "client", s.v4(4))
		editService(ctx, svc, withAnnotation(v1.AnnotationMultiPool, "false"))
		waitForExactAddresses(ctx, svc, s.v4(0))
		waitForAnswer(ctx, "client", s.v4(0))
		waitForPlaces(ctx, s.v4(4), 0)
	}, SpecTimeout(functionalLimit))

	It("keeps the address while ports change, and releases it when the Service changes its type", func(ctx SpecContext) {
		s := newSpace(ctx)
		group, addr := s.createLocalGroup(ctx, "edited", v1.PoolSet{V4Pools: []v1.AddressPool{s.v4Range(0, 1)}}), s.v4(0)
		svc := s.createService(ctx, "edited", group, singleStack)
		waitForExactAddresses(ctx, svc, addr)
		waitForAnswerOnPort(ctx, "client", addr, 80)
		editService(ctx, svc, withPort(8088))
		waitForAnswerOnPort(ctx, "client", addr, 8088)
		waitForExactAddresses(ctx, svc, addr)

		for _, other := range []corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort} {
			editService(ctx, svc, func(svc *corev1.Service) { svc.Spec.Type = other })
			waitForExactAddresses(ctx, svc)
			waitForPlaces(ctx, addr, 0)
			Eventually(func(g Gomega) {
				g.Expect(kubeClient.Get(ctx, client.ObjectKeyFromObject(svc), svc)).To(Succeed())
				g.Expect(svc.Annotations).To(HaveLen(1), "only the user's own")
			}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
			editService(ctx, svc, func(svc *corev1.Service) { svc.Spec.Type = corev1.ServiceTypeLoadBalancer })
			waitForExactAddresses(ctx, svc, addr)
			waitForAnswerOnPort(ctx, "client", addr, 8088)
		}
	}, SpecTimeout(functionalLimit))

	It("keeps a client at one pod with session affinity", Label(smokeLabel, proxyLabel), func(ctx SpecContext) {
		s := newSpace(ctx)
		group, addr := s.createLocalGroup(ctx, "affine", v1.PoolSet{V4Pools: []v1.AddressPool{s.v4Range(0, 0)}}), s.v4(0)
		svc := s.createService(ctx, "affine", group, singleStack, func(svc *corev1.Service) {
			svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		})
		waitForExactAddresses(ctx, svc, addr)
		waitUntilAnnounced(ctx, svc)
		waitForServers(ctx, s.namespace) // there are several pods to choose from
		pod := podOfPage(waitForAnswer(ctx, "client", addr))
		for range 20 {
			Expect(podOfPage(waitForAnswer(ctx, "client", addr))).To(Equal(pod))
		}
	}, SpecTimeout(smokeLimit))

	It("lets in only the clients that loadBalancerSourceRanges names", Label(smokeLabel, proxyLabel),
		func(ctx SpecContext) {
			s := newSpace(ctx)
			group, addr := s.createLocalGroup(ctx, "fenced", v1.PoolSet{V4Pools: []v1.AddressPool{s.v4Range(0, 0)}}), s.v4(0)
			svc := s.createService(ctx, "fenced", group, singleStack)
			waitForExactAddresses(ctx, svc, addr)
			waitForAnswer(ctx, "client", addr)
			waitForAnswer(ctx, "far", addr)
			editService(ctx, svc, func(svc *corev1.Service) { svc.Spec.LoadBalancerSourceRanges = []string{"10.77.0.50/32"} })
			waitForFence(ctx, "far", "client", addr)
			editService(ctx, svc, func(svc *corev1.Service) { svc.Spec.LoadBalancerSourceRanges = nil })
			waitForAnswer(ctx, "far", addr)
		}, SpecTimeout(smokeLimit))

	It("serves Services without node ports, and keeps the node ports of the others", Label(proxyLabel),
		func(ctx SpecContext) {
			s := newSpace(ctx)
			group := s.createLocalGroup(ctx, "ported", v1.PoolSet{V4Pools: []v1.AddressPool{s.v4Range(0, 1)}})
			without := s.createService(ctx, "without-ports", group, singleStack, func(svc *corev1.Service) {
				svc.Spec.AllocateLoadBalancerNodePorts = ptr.To(false)
			})
			waitForExactAddresses(ctx, without, s.v4(0))
			waitForAnswer(ctx, "client", s.v4(0))
			Expect(without.Spec.Ports[0].NodePort).To(BeZero())

			with := s.createService(ctx, "with-ports", group, singleStack)
			port := with.Spec.Ports[0].NodePort
			Expect(port).NotTo(BeZero())
			waitForExactAddresses(ctx, with, s.v4(1))
			waitForAnswer(ctx, "client", s.v4(1))
			waitUntilAnnounced(ctx, with)
			Expect(with.Spec.Ports[0].NodePort).To(Equal(port))
			waitForAnswerOnPort(ctx, "client", testLab.Nodes()[0].IPv4.Addr(), port)
		}, SpecTimeout(functionalLimit))
})
