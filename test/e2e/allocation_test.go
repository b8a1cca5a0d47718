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

// v4 is an IPv4 range of the nodes' subnet.
func v4(first, last int) v1.AddressPool {
	return v1.AddressPool{Subnet: "10.77.0.0/24", Pool: fmt.Sprintf("10.77.0.%d-10.77.0.%d", first, last)}
}

// localGroup makes a local ServiceGroup, and deletes it when the test ends.
func localGroup(ctx context.Context, name string, set v1.PoolSet) {
	GinkgoHelper()
	sg := &v1.ServiceGroup{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: system},
		Spec:       v1.ServiceGroupSpec{Local: &v1.LocalPools{PoolSet: set}},
	}
	Expect(c.Create(ctx, sg)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) {
		Eventually(func() error { return client.IgnoreNotFound(c.Delete(ctx, sg)) }).
			WithContext(ctx).WithTimeout(soon).WithPolling(poll).Should(Succeed())
	}, NodeTimeout(2*soon))
}

// onPort makes the echo servers answer on another port of the Service.
func onPort(port int32) func(*corev1.Service) {
	return func(svc *corev1.Service) {
		svc.Spec.Ports = []corev1.ServicePort{{Port: port, TargetPort: intstr.FromInt32(8080)}}
	}
}

func annotated(name, value string) func(*corev1.Service) {
	return func(svc *corev1.Service) { svc.Annotations[name] = value }
}

// edit changes a Service as its author would.
func edit(ctx context.Context, svc *corev1.Service, change func(*corev1.Service)) {
	GinkgoHelper()
	Expect(c.Get(ctx, client.ObjectKeyFromObject(svc), svc)).To(Succeed())
	patch := client.MergeFrom(svc.DeepCopy())
	change(svc)
	Expect(c.Patch(ctx, svc, patch)).To(Succeed())
}

// has waits until a Service has exactly these addresses.
func has(ctx context.Context, svc *corev1.Service, want ...string) []netip.Addr {
	GinkgoHelper()
	var addrs []netip.Addr
	Eventually(func(g Gomega) {
		g.Expect(c.Get(ctx, client.ObjectKeyFromObject(svc), svc)).To(Succeed())
		var got []string
		addrs = nil
		for _, in := range svc.Status.LoadBalancer.Ingress {
			got = append(got, in.IP)
			addrs = append(addrs, netip.MustParseAddr(in.IP))
		}
		g.Expect(got).To(Equal(want))
	}).WithContext(ctx).WithTimeout(soon).WithPolling(poll).Should(Succeed())
	return addrs
}

// waits until a Service says why it has not what it asks for.
func waits(ctx context.Context, svc *corev1.Service, reason, message string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(c.Get(ctx, client.ObjectKeyFromObject(svc), svc)).To(Succeed())
		allocated := meta.FindStatusCondition(svc.Status.Conditions, v1.ConditionAllocated)
		g.Expect(allocated).NotTo(BeNil())
		g.Expect(allocated.Status).To(Equal(metav1.ConditionFalse))
		g.Expect(allocated.Reason).To(Equal(reason))
		g.Expect(allocated.Message).To(ContainSubstring(message))
	}).WithContext(ctx).WithTimeout(soon).WithPolling(poll).Should(Succeed())
}

// fetchPort is fetch of another port than 80.
func fetchPort(ctx context.Context, host string, at netip.AddrPort) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at.String()+"/", nil)
	if err != nil {
		return "", err
	}
	response, err := bed.HTTPClient(host, fetchTimeout).Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

// answersOn waits until a port of an address answers a host.
func answersOn(ctx context.Context, host string, address netip.Addr, port int32) {
	GinkgoHelper()
	at := netip.AddrPortFrom(address, uint16(port))
	Eventually(func() (string, error) { return fetchPort(ctx, host, at) }).
		WithContext(ctx).WithTimeout(soon).WithPolling(poll).Should(ContainSubstring("pod=echo-"), "%s from %s", at, host)
}

// silentOn waits until a port of an address does not answer a host, and checks
// that it stays so.
func silentOn(ctx context.Context, host string, address netip.Addr, port int32) {
	GinkgoHelper()
	at := netip.AddrPortFrom(address, uint16(port))
	failed := func() error { _, err := fetchPort(ctx, host, at); return err }
	Eventually(failed).WithContext(ctx).WithTimeout(soon).WithPolling(poll).Should(HaveOccurred(), "%s from %s", at, host)
	Consistently(failed).WithContext(ctx).WithTimeout(2*time.Second).WithPolling(poll).Should(HaveOccurred(), "%s from %s", at, host)
}

// podOf is the pod that an echo page is from.
func podOf(page string) string {
	pod, _, _ := strings.Cut(strings.TrimPrefix(page, "pod="), " ")
	return pod
}

var _ = Describe("Allocation", func() {
	It("lets two Services share one address, each on its port", func(ctx SpecContext) {
		localGroup(ctx, "shared", v1.PoolSet{V4Pools: []v1.AddressPool{v4(110, 112)}})
		key := annotated(v1.AnnotationAllowSharedIP, "web")
		plain := service(ctx, "shared-80", "shared", singleStack, key)
		addr := has(ctx, plain, "10.77.0.110")[0]
		other := service(ctx, "shared-8081", "shared", singleStack, key, onPort(8081))
		has(ctx, other, "10.77.0.110")
		announced(ctx, plain)
		announced(ctx, other)
		answersOn(ctx, "client", addr, 80)
		answersOn(ctx, "client", addr, 8081)
		where(ctx, addr, 1)

		By("a third one having to wait for its port")
		third := service(ctx, "shared-clash", "shared", singleStack, key, onPort(8081))
		waits(ctx, third, v1.ReasonPortConflict, "e2e/shared-8081")

		By("one of them going, and the address staying for the others")
		Expect(c.Delete(ctx, other)).To(Succeed())
		has(ctx, third, "10.77.0.110")
		answersOn(ctx, "client", addr, 8081)
		answersOn(ctx, "client", addr, 80)
	}, SpecTimeout(2*time.Minute))

	It("gives a Service the address that it asks for", func(ctx SpecContext) {
		localGroup(ctx, "requested", v1.PoolSet{V4Pools: []v1.AddressPool{v4(113, 116)}})
		svc := service(ctx, "requested", "requested", singleStack, annotated(v1.AnnotationAddresses, "10.77.0.115"))
		answers(ctx, "client", has(ctx, svc, "10.77.0.115")[0], soon)
		second := service(ctx, "requested-too", "requested", singleStack, annotated(v1.AnnotationAddresses, "10.77.0.115"))
		waits(ctx, second, v1.ReasonAddressInUse, "e2e/requested")
		network := service(ctx, "requested-node", "requested", singleStack, annotated(v1.AnnotationAddresses, "10.78.9.9"))
		waits(ctx, network, v1.ReasonAddressOutsidePool, "10.78.9.9")

		By("asking for another, then for none")
		edit(ctx, svc, annotated(v1.AnnotationAddresses, "10.77.0.116"))
		answers(ctx, "client", has(ctx, svc, "10.77.0.116")[0], soon)
		has(ctx, second, "10.77.0.115")
		edit(ctx, svc, func(svc *corev1.Service) { delete(svc.Annotations, v1.AnnotationAddresses) })
		Consistently(func(g Gomega) string {
			g.Expect(c.Get(ctx, client.ObjectKeyFromObject(svc), svc)).To(Succeed())
			return svc.Status.LoadBalancer.Ingress[0].IP
		}).WithContext(ctx).WithTimeout(2 * time.Second).WithPolling(poll).Should(Equal("10.77.0.116"))
		answers(ctx, "client", has(ctx, svc, "10.77.0.116")[0], soon)
	}, SpecTimeout(2*time.Minute))

	It("adds and takes away a family as the Service is edited", func(ctx SpecContext) {
		localGroup(ctx, "families", v1.PoolSet{
			V4Pools: []v1.AddressPool{v4(117, 118)},
			V6Pools: []v1.AddressPool{{Subnet: "fd00:77::/64", Pool: "fd00:77::1:117-fd00:77::1:118"}},
		})
		svc := service(ctx, "families", "families", singleStack, func(svc *corev1.Service) {
			svc.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
		})
		answers(ctx, "client", has(ctx, svc, "10.77.0.117")[0], soon)
		edit(ctx, svc, func(svc *corev1.Service) {
			svc.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyRequireDualStack)
		})
		both := has(ctx, svc, "10.77.0.117", "fd00:77::1:117")
		answers(ctx, "client", both[0], soon)
		answers(ctx, "client", both[1], soon)
		edit(ctx, svc, func(svc *corev1.Service) {
			svc.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicySingleStack)
			svc.Spec.IPFamilies, svc.Spec.ClusterIPs = svc.Spec.IPFamilies[:1], svc.Spec.ClusterIPs[:1]
		})
		has(ctx, svc, "10.77.0.117")
		where(ctx, both[1], 0)
		answers(ctx, "client", both[0], soon)
	}, SpecTimeout(2*time.Minute))

	It("balances over the ranges of a group", func(ctx SpecContext) {
		localGroup(ctx, "balanced", v1.PoolSet{BalancePools: true, V4Pools: []v1.AddressPool{v4(120, 124), v4(130, 134)}})
		for i, want := range []string{"10.77.0.120", "10.77.0.130", "10.77.0.121", "10.77.0.131"} {
			svc := service(ctx, fmt.Sprintf("balanced-%d", i), "balanced", singleStack)
			answers(ctx, "client", has(ctx, svc, want)[0], soon)
		}
	}, SpecTimeout(2*time.Minute))

	It("gives one address of every range that a node can announce", func(ctx SpecContext) {
		localGroup(ctx, "multi", v1.PoolSet{MultiPool: true, V4Pools: []v1.AddressPool{
			v4(140, 141), {Subnet: "198.18.7.0/24", Pool: "198.18.7.1-198.18.7.9"}, v4(150, 151),
		}})
		svc := service(ctx, "multi", "multi", singleStack)
		for _, addr := range has(ctx, svc, "10.77.0.140", "10.77.0.150") {
			answers(ctx, "client", addr, soon)
		}
		edit(ctx, svc, annotated(v1.AnnotationMultiPool, "false"))
		answers(ctx, "client", has(ctx, svc, "10.77.0.140")[0], soon)
		where(ctx, netip.MustParseAddr("10.77.0.150"), 0)
	}, SpecTimeout(2*time.Minute))

	It("keeps the address while ports change, and through another type gives it back", func(ctx SpecContext) {
		localGroup(ctx, "edited", v1.PoolSet{V4Pools: []v1.AddressPool{v4(160, 161)}})
		svc := service(ctx, "edited", "edited", singleStack)
		addr := has(ctx, svc, "10.77.0.160")[0]
		answersOn(ctx, "client", addr, 80)
		edit(ctx, svc, onPort(8088))
		answersOn(ctx, "client", addr, 8088)
		has(ctx, svc, "10.77.0.160")

		for _, other := range []corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort} {
			edit(ctx, svc, func(svc *corev1.Service) { svc.Spec.Type = other })
			has(ctx, svc)
			where(ctx, addr, 0)
			Eventually(func(g Gomega) {
				g.Expect(c.Get(ctx, client.ObjectKeyFromObject(svc), svc)).To(Succeed())
				g.Expect(svc.Annotations).To(HaveLen(1), "only the user's own")
			}).WithContext(ctx).WithTimeout(soon).WithPolling(poll).Should(Succeed())
			edit(ctx, svc, func(svc *corev1.Service) { svc.Spec.Type = corev1.ServiceTypeLoadBalancer })
			answersOn(ctx, "client", has(ctx, svc, "10.77.0.160")[0], 8088)
		}
	}, SpecTimeout(3*time.Minute))

	It("keeps a client at its pod by session affinity", func(ctx SpecContext) {
		localGroup(ctx, "affine", v1.PoolSet{V4Pools: []v1.AddressPool{v4(165, 165)}})
		svc := service(ctx, "affine", "affine", singleStack, func(svc *corev1.Service) {
			svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		})
		addr := has(ctx, svc, "10.77.0.165")[0]
		announced(ctx, svc)
		answers(ctx, "client", addr, soon)
		page, err := fetch(ctx, "client", addr)
		Expect(err).NotTo(HaveOccurred())
		for range 20 {
			again, err := fetch(ctx, "client", addr)
			Expect(err).NotTo(HaveOccurred())
			Expect(podOf(again)).To(Equal(podOf(page)))
		}
	}, SpecTimeout(time.Minute))

	It("lets in only the clients that loadBalancerSourceRanges names", func(ctx SpecContext) {
		localGroup(ctx, "fenced", v1.PoolSet{V4Pools: []v1.AddressPool{v4(166, 166)}})
		svc := service(ctx, "fenced", "fenced", singleStack)
		addr := has(ctx, svc, "10.77.0.166")[0]
		answers(ctx, "client", addr, soon)
		answers(ctx, "far", addr, soon)
		edit(ctx, svc, func(svc *corev1.Service) { svc.Spec.LoadBalancerSourceRanges = []string{"10.77.0.50/32"} })
		silentOn(ctx, "far", addr, 80)
		answers(ctx, "client", addr, soon)
		edit(ctx, svc, func(svc *corev1.Service) { svc.Spec.LoadBalancerSourceRanges = nil })
		answers(ctx, "far", addr, soon)
	}, SpecTimeout(2*time.Minute))

	It("serves Services without node ports, and leaves those of others alone", func(ctx SpecContext) {
		localGroup(ctx, "ported", v1.PoolSet{V4Pools: []v1.AddressPool{v4(170, 171)}})
		without := service(ctx, "without-ports", "ported", singleStack, func(svc *corev1.Service) {
			svc.Spec.AllocateLoadBalancerNodePorts = ptr.To(false)
		})
		answers(ctx, "client", has(ctx, without, "10.77.0.170")[0], soon)
		Expect(without.Spec.Ports[0].NodePort).To(BeZero())

		with := service(ctx, "with-ports", "ported", singleStack)
		port := with.Spec.Ports[0].NodePort
		Expect(port).NotTo(BeZero())
		answers(ctx, "client", has(ctx, with, "10.77.0.171")[0], soon)
		announced(ctx, with)
		Expect(with.Spec.Ports[0].NodePort).To(Equal(port))
		answersOn(ctx, "client", bed.Nodes()[0].IPv4.Addr(), port)
	}, SpecTimeout(time.Minute))
})
