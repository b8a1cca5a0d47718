package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"time"

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

// v4Range returns an IPv4 range of the nodes' subnet.
func v4Range(first, last int) v1.AddressPool {
	return v1.AddressPool{Subnet: "10.77.0.0/24", Pool: fmt.Sprintf("10.77.0.%d-10.77.0.%d", first, last)}
}

// createLocalGroup creates a ServiceGroup with Local addresses, and deletes it when the test
// ends.
func createLocalGroup(ctx context.Context, name string, set v1.PoolSet) {
	GinkgoHelper()
	sg := &v1.ServiceGroup{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: purelbNamespace},
		Spec:       v1.ServiceGroupSpec{Local: &v1.LocalPools{PoolSet: set}},
	}
	Expect(kubeClient.Create(ctx, sg)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) {
		Eventually(func() error { return client.IgnoreNotFound(kubeClient.Delete(ctx, sg)) }).
			WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
	}, NodeTimeout(2*waitLimit))
}

// withPort gives a Service another port.
func withPort(port int32) func(*corev1.Service) {
	return func(svc *corev1.Service) {
		svc.Spec.Ports = []corev1.ServicePort{{Port: port, TargetPort: intstr.FromInt32(8080)}}
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
func waitForExactAddresses(ctx context.Context, svc *corev1.Service, want ...string) []netip.Addr {
	GinkgoHelper()
	var addrs []netip.Addr
	Eventually(func(g Gomega) {
		g.Expect(kubeClient.Get(ctx, client.ObjectKeyFromObject(svc), svc)).To(Succeed())
		var got []string
		addrs = nil
		for _, in := range svc.Status.LoadBalancer.Ingress {
			got = append(got, in.IP)
			addrs = append(addrs, netip.MustParseAddr(in.IP))
		}
		g.Expect(got).To(Equal(want))
	}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
	return addrs
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

// fetchPort fetches the echo page as fetch does, from any port.
func fetchPort(ctx context.Context, host string, at netip.AddrPort) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at.String()+"/", nil)
	if err != nil {
		return "", err
	}
	response, err := testLab.HTTPClient(host, fetchTimeout).Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

// waitForAnswerOnPort waits until a port of an address answers a host.
func waitForAnswerOnPort(ctx context.Context, host string, address netip.Addr, port int32) {
	GinkgoHelper()
	at := netip.AddrPortFrom(address, uint16(port))
	Eventually(func() (string, error) { return fetchPort(ctx, host, at) }).
		WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(ContainSubstring("pod=echo-"), "%s from %s", at, host)
}

// expectNoAnswerOnPort waits until a port of an address does not answer a host any more, and
// checks that it does not answer for 2 s.
func expectNoAnswerOnPort(ctx context.Context, host string, address netip.Addr, port int32) {
	GinkgoHelper()
	at := netip.AddrPortFrom(address, uint16(port))
	failed := func() error { _, err := fetchPort(ctx, host, at); return err }
	Eventually(failed).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(HaveOccurred(), "%s from %s", at, host)
	Consistently(failed).WithContext(ctx).WithTimeout(2*time.Second).WithPolling(pollInterval).Should(HaveOccurred(), "%s from %s", at, host)
}

// podOfPage returns the pod that an echo page is from.
func podOfPage(page string) string {
	pod, _, _ := strings.Cut(strings.TrimPrefix(page, "pod="), " ")
	return pod
}

var _ = Describe("Allocation", func() {
	It("lets two Services share one address, each on its own port", Label(proxyLabel), func(ctx SpecContext) {
		createLocalGroup(ctx, "shared", v1.PoolSet{V4Pools: []v1.AddressPool{v4Range(110, 112)}})
		key := withAnnotation(v1.AnnotationAllowSharedIP, "web")
		plain := createService(ctx, "shared-80", "shared", singleStack, key)
		addr := waitForExactAddresses(ctx, plain, "10.77.0.110")[0]
		other := createService(ctx, "shared-8081", "shared", singleStack, key, withPort(8081))
		waitForExactAddresses(ctx, other, "10.77.0.110")
		waitUntilAnnounced(ctx, plain)
		waitUntilAnnounced(ctx, other)
		waitForAnswerOnPort(ctx, "client", addr, 80)
		waitForAnswerOnPort(ctx, "client", addr, 8081)
		waitForPlaces(ctx, addr, 1)

		By("creating a third Service, which has to wait for its port")
		third := createService(ctx, "shared-clash", "shared", singleStack, key, withPort(8081))
		waitForRefusal(ctx, third, v1.ReasonPortConflict, "e2e/shared-8081")

		By("deleting one Service, after which the others keep the address")
		Expect(kubeClient.Delete(ctx, other)).To(Succeed())
		waitForExactAddresses(ctx, third, "10.77.0.110")
		waitForAnswerOnPort(ctx, "client", addr, 8081)
		waitForAnswerOnPort(ctx, "client", addr, 80)
	}, SpecTimeout(2*time.Minute))

	It("gives a Service the address that it asks for", func(ctx SpecContext) {
		createLocalGroup(ctx, "requested", v1.PoolSet{V4Pools: []v1.AddressPool{v4Range(113, 116)}})
		svc := createService(ctx, "requested", "requested", singleStack, withAnnotation(v1.AnnotationAddresses, "10.77.0.115"))
		waitForAnswer(ctx, "client", waitForExactAddresses(ctx, svc, "10.77.0.115")[0], waitLimit)
		second := createService(ctx, "requested-too", "requested", singleStack, withAnnotation(v1.AnnotationAddresses, "10.77.0.115"))
		waitForRefusal(ctx, second, v1.ReasonAddressInUse, "e2e/requested")
		network := createService(ctx, "requested-node", "requested", singleStack, withAnnotation(v1.AnnotationAddresses, "10.78.9.9"))
		waitForRefusal(ctx, network, v1.ReasonAddressOutsidePool, "10.78.9.9")

		By("asking for another address, and then for none")
		editService(ctx, svc, withAnnotation(v1.AnnotationAddresses, "10.77.0.116"))
		waitForAnswer(ctx, "client", waitForExactAddresses(ctx, svc, "10.77.0.116")[0], waitLimit)
		waitForExactAddresses(ctx, second, "10.77.0.115")
		editService(ctx, svc, func(svc *corev1.Service) { delete(svc.Annotations, v1.AnnotationAddresses) })
		Consistently(func(g Gomega) string {
			g.Expect(kubeClient.Get(ctx, client.ObjectKeyFromObject(svc), svc)).To(Succeed())
			return svc.Status.LoadBalancer.Ingress[0].IP
		}).WithContext(ctx).WithTimeout(2 * time.Second).WithPolling(pollInterval).Should(Equal("10.77.0.116"))
		waitForAnswer(ctx, "client", waitForExactAddresses(ctx, svc, "10.77.0.116")[0], waitLimit)
	}, SpecTimeout(2*time.Minute))

	It("adds and releases the address of a family as the Service is edited", func(ctx SpecContext) {
		createLocalGroup(ctx, "families", v1.PoolSet{
			V4Pools: []v1.AddressPool{v4Range(117, 118)},
			V6Pools: []v1.AddressPool{{Subnet: "fd00:77::/64", Pool: "fd00:77::1:117-fd00:77::1:118"}},
		})
		svc := createService(ctx, "families", "families", singleStack, func(svc *corev1.Service) {
			svc.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
		})
		waitForAnswer(ctx, "client", waitForExactAddresses(ctx, svc, "10.77.0.117")[0], waitLimit)
		editService(ctx, svc, func(svc *corev1.Service) {
			svc.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyRequireDualStack)
		})
		both := waitForExactAddresses(ctx, svc, "10.77.0.117", "fd00:77::1:117")
		waitForAnswer(ctx, "client", both[0], waitLimit)
		waitForAnswer(ctx, "client", both[1], waitLimit)
		editService(ctx, svc, func(svc *corev1.Service) {
			svc.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicySingleStack)
			svc.Spec.IPFamilies, svc.Spec.ClusterIPs = svc.Spec.IPFamilies[:1], svc.Spec.ClusterIPs[:1]
		})
		waitForExactAddresses(ctx, svc, "10.77.0.117")
		waitForPlaces(ctx, both[1], 0)
		waitForAnswer(ctx, "client", both[0], waitLimit)
	}, SpecTimeout(2*time.Minute))

	It("balances Services over the ranges of a ServiceGroup", func(ctx SpecContext) {
		createLocalGroup(ctx, "balanced", v1.PoolSet{BalancePools: true, V4Pools: []v1.AddressPool{v4Range(120, 124), v4Range(130, 134)}})
		for i, want := range []string{"10.77.0.120", "10.77.0.130", "10.77.0.121", "10.77.0.131"} {
			svc := createService(ctx, fmt.Sprintf("balanced-%d", i), "balanced", singleStack)
			waitForAnswer(ctx, "client", waitForExactAddresses(ctx, svc, want)[0], waitLimit)
		}
	}, SpecTimeout(2*time.Minute))

	It("gives a Service one address of every range that a node can announce", func(ctx SpecContext) {
		createLocalGroup(ctx, "multi", v1.PoolSet{MultiPool: true, V4Pools: []v1.AddressPool{
			v4Range(140, 141), {Subnet: "198.18.7.0/24", Pool: "198.18.7.1-198.18.7.9"}, v4Range(150, 151),
		}})
		svc := createService(ctx, "multi", "multi", singleStack)
		for _, addr := range waitForExactAddresses(ctx, svc, "10.77.0.140", "10.77.0.150") {
			waitForAnswer(ctx, "client", addr, waitLimit)
		}
		editService(ctx, svc, withAnnotation(v1.AnnotationMultiPool, "false"))
		waitForAnswer(ctx, "client", waitForExactAddresses(ctx, svc, "10.77.0.140")[0], waitLimit)
		waitForPlaces(ctx, netip.MustParseAddr("10.77.0.150"), 0)
	}, SpecTimeout(2*time.Minute))

	It("keeps the address while ports change, and releases it when the Service changes its type", func(ctx SpecContext) {
		createLocalGroup(ctx, "edited", v1.PoolSet{V4Pools: []v1.AddressPool{v4Range(160, 161)}})
		svc := createService(ctx, "edited", "edited", singleStack)
		addr := waitForExactAddresses(ctx, svc, "10.77.0.160")[0]
		waitForAnswerOnPort(ctx, "client", addr, 80)
		editService(ctx, svc, withPort(8088))
		waitForAnswerOnPort(ctx, "client", addr, 8088)
		waitForExactAddresses(ctx, svc, "10.77.0.160")

		for _, other := range []corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort} {
			editService(ctx, svc, func(svc *corev1.Service) { svc.Spec.Type = other })
			waitForExactAddresses(ctx, svc)
			waitForPlaces(ctx, addr, 0)
			Eventually(func(g Gomega) {
				g.Expect(kubeClient.Get(ctx, client.ObjectKeyFromObject(svc), svc)).To(Succeed())
				g.Expect(svc.Annotations).To(HaveLen(1), "only the user's own")
			}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
			editService(ctx, svc, func(svc *corev1.Service) { svc.Spec.Type = corev1.ServiceTypeLoadBalancer })
			waitForAnswerOnPort(ctx, "client", waitForExactAddresses(ctx, svc, "10.77.0.160")[0], 8088)
		}
	}, SpecTimeout(3*time.Minute))

	It("keeps a client at one pod with session affinity", Label(proxyLabel), func(ctx SpecContext) {
		createLocalGroup(ctx, "affine", v1.PoolSet{V4Pools: []v1.AddressPool{v4Range(165, 165)}})
		svc := createService(ctx, "affine", "affine", singleStack, func(svc *corev1.Service) {
			svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		})
		addr := waitForExactAddresses(ctx, svc, "10.77.0.165")[0]
		waitUntilAnnounced(ctx, svc)
		waitForAnswer(ctx, "client", addr, waitLimit)
		page, err := fetch(ctx, "client", addr)
		Expect(err).NotTo(HaveOccurred())
		for range 20 {
			again, err := fetch(ctx, "client", addr)
			Expect(err).NotTo(HaveOccurred())
			Expect(podOfPage(again)).To(Equal(podOfPage(page)))
		}
	}, SpecTimeout(time.Minute))

	It("lets in only the clients that loadBalancerSourceRanges names", Label(proxyLabel), func(ctx SpecContext) {
		createLocalGroup(ctx, "fenced", v1.PoolSet{V4Pools: []v1.AddressPool{v4Range(166, 166)}})
		svc := createService(ctx, "fenced", "fenced", singleStack)
		addr := waitForExactAddresses(ctx, svc, "10.77.0.166")[0]
		waitForAnswer(ctx, "client", addr, waitLimit)
		waitForAnswer(ctx, "far", addr, waitLimit)
		editService(ctx, svc, func(svc *corev1.Service) { svc.Spec.LoadBalancerSourceRanges = []string{"10.77.0.50/32"} })
		expectNoAnswerOnPort(ctx, "far", addr, 80)
		waitForAnswer(ctx, "client", addr, waitLimit)
		editService(ctx, svc, func(svc *corev1.Service) { svc.Spec.LoadBalancerSourceRanges = nil })
		waitForAnswer(ctx, "far", addr, waitLimit)
	}, SpecTimeout(2*time.Minute))

	It("serves Services without node ports, and keeps the node ports of the others", Label(proxyLabel), func(ctx SpecContext) {
		createLocalGroup(ctx, "ported", v1.PoolSet{V4Pools: []v1.AddressPool{v4Range(170, 171)}})
		without := createService(ctx, "without-ports", "ported", singleStack, func(svc *corev1.Service) {
			svc.Spec.AllocateLoadBalancerNodePorts = ptr.To(false)
		})
		waitForAnswer(ctx, "client", waitForExactAddresses(ctx, without, "10.77.0.170")[0], waitLimit)
		Expect(without.Spec.Ports[0].NodePort).To(BeZero())

		with := createService(ctx, "with-ports", "ported", singleStack)
		port := with.Spec.Ports[0].NodePort
		Expect(port).NotTo(BeZero())
		waitForAnswer(ctx, "client", waitForExactAddresses(ctx, with, "10.77.0.171")[0], waitLimit)
		waitUntilAnnounced(ctx, with)
		Expect(with.Spec.Ports[0].NodePort).To(Equal(port))
		waitForAnswerOnPort(ctx, "client", testLab.Nodes()[0].IPv4.Addr(), port)
	}, SpecTimeout(time.Minute))
})
