package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/lab"
	"github.com/purelb/purelb-operator/test/proof/trial"
)

// countHolders returns how many addresses of a ServiceGroup each node announces, and which
// node announces each address.
func countHolders(
	ctx context.Context, g Gomega, groupName string,
) (countByNode map[string]int, nodeByAddress map[string]string) {
	counts, of := map[string]int{}, map[string]string{}
	list := &v1.AnnouncementList{}
	g.Expect(kubeClient.List(ctx, list, client.InNamespace(purelbNamespace))).To(Succeed())
	for _, a := range list.Items {
		g.Expect(len(a.Spec.Addresses)).To(BeNumerically("<=", v1.MaxAddressesPerAnnouncement))
		announced := map[string]bool{}
		for _, s := range a.Status.Addresses {
			announced[s.Address] = s.State == v1.StateAnnounced
		}
		for _, e := range a.Spec.Addresses {
			if e.ServiceGroup == groupName && announced[e.Address] {
				counts[a.Spec.NodeName]++
				of[e.Address] = a.Spec.NodeName
			}
		}
	}
	return counts, of
}

// waitForEndpoints waits until the nodes with pods of servers, and no others, have a Virtual
// address.
func (s *space) waitForEndpoints(ctx context.Context, servers string, addr netip.Addr) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		var want []string
		for node := range s.nodesOf(ctx, g, servers) {
			want = append(want, fmt.Sprintf("%s/kube-lb0 %s/32", node, addr))
		}
		found, err := findPlaces(ctx, addr)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found).To(ConsistOf(want))
	}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
}

// nodesOf returns the nodes that have pods of servers which are not ending.
func (s *space) nodesOf(ctx context.Context, g Gomega, servers string) map[string]bool {
	pods := &corev1.PodList{}
	g.Expect(kubeClient.List(ctx, pods, client.InNamespace(s.namespace), client.MatchingLabels{"app": servers})).
		To(Succeed())
	nodes := map[string]bool{}
	for _, p := range pods.Items {
		if p.DeletionTimestamp == nil {
			nodes[p.Spec.NodeName] = true
		}
	}
	return nodes
}

// waitUntilServersHaveEnded waits until no pods of servers are there but those that stay.
func (s *space) waitUntilServersHaveEnded(ctx context.Context, servers string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		pods := &corev1.PodList{}
		g.Expect(kubeClient.List(ctx, pods, client.InNamespace(s.namespace), client.MatchingLabels{"app": servers})).
			To(Succeed())
		g.Expect(pods.Items).To(HaveEach(HaveField("DeletionTimestamp", BeNil())))
	}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
}

// policyLocal gives a Service the policy by which a node serves its own pods only.
func policyLocal(svc *corev1.Service) {
	svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}

// startRouting lets the lab's router follow what nodes have on their virtual interfaces, until
// the spec ends.
func startRouting(ctx context.Context) {
	GinkgoHelper()
	DeferCleanup(func(ctx SpecContext) { Expect(testLab.StopRouting(ctx)).To(Succeed()) }, NodeTimeout(waitLimit))
	Expect(testLab.StartRouting(ctx)).To(Succeed())
}

// waitForOwnAddress waits until a server sees the address of the client behind the router, as
// no node forwards the request to another.
func waitForOwnAddress(ctx context.Context, addr netip.Addr) {
	GinkgoHelper()
	// A node that has just got an endpoint may refuse until its kube-proxy has seen that, too.
	Eventually(func() (string, error) { return fetch(ctx, lab.Far, addr) }).WithContext(ctx).WithTimeout(waitLimit).
		WithPolling(pollInterval).Should(ContainSubstring("client=10.78.0.2:"), "the client's own address")
}

var _ = Describe("Placement", func() {
	It("spreads 200 addresses evenly, and moves only those of a node that dies", Label(proofLabel, failoverTopic),
		func(ctx SpecContext) {
			s := newSpace(ctx)
			group := s.createLocalGroup(
				ctx, "many", v1.PoolSet{V6Pools: []v1.AddressPool{{Subnet: "fd00:77::/64", Pool: s.manyV6().String()}}},
			)
			const many = 200
			runTrials(ctx, "200 addresses, a node dies", nil, func(t *oneTrial) {
				replaceRestartedPods(ctx)
				waitUntilReady(ctx)
				t.measureFromNow()
				begun := time.Now()
				var services []*corev1.Service
				for i := range many {
					services = append(services, s.createService(ctx, fmt.Sprintf("many-%d-%d", t.Seed, i), group, singleStack, ipv6))
				}
				var before map[string]string
				Eventually(func(g Gomega) {
					var counts map[string]int
					counts, before = countHolders(ctx, g, group)
					g.Expect(before).To(HaveLen(many))
					for _, node := range nodeNames() {
						g.Expect(counts[node]).To(BeNumerically("~", many/3, 1), "%v", counts)
					}
				}).WithContext(ctx).WithTimeout(2 * time.Minute).WithPolling(pollInterval).Should(Succeed())
				t.Figures["created and announced, ms"] = trial.Milliseconds(time.Since(begun))

				at := t.random.IntN(len(nodeNames()))
				dead, others := nodeNames()[at], slices.Delete(nodeNames(), at, at+1)
				var held []netip.Addr
				for address, node := range before {
					if node == dead {
						held = append(held, netip.MustParseAddr(address))
					}
				}
				waitUntilFollowed(ctx, dead, held)
				heal := func(ctx SpecContext) { Expect(testLab.HealLink(ctx, dead)).To(Succeed()) }
				DeferCleanup(heal, NodeTimeout(waitLimit))
				Expect(testLab.CutLink(ctx, dead)).To(Succeed())
				begun = time.Now()
				var after map[string]string
				Eventually(func(g Gomega) {
					var counts map[string]int
					counts, after = countHolders(ctx, g, group)
					g.Expect(after).To(HaveLen(many))
					g.Expect(counts[dead]).To(BeZero())
					for _, node := range others {
						g.Expect(counts[node]).To(BeNumerically("~", many/2, 1), "%v", counts)
					}
				}).WithContext(ctx).WithTimeout(2 * time.Minute).WithPolling(pollInterval).Should(Succeed())
				t.Figures["share of the dead node moved, ms"] = trial.Milliseconds(time.Since(begun))
				t.stopMeasuring()
				for address, node := range after {
					if before[address] != dead {
						Expect(node).To(Equal(before[address]), "%s has moved without a cause", address)
					}
				}

				heal(ctx)
				for _, svc := range services {
					Expect(kubeClient.Delete(ctx, svc)).To(Succeed())
				}
				Eventually(func(g Gomega) {
					_, left := countHolders(ctx, g, group)
					g.Expect(left).To(BeEmpty())
				}).WithContext(ctx).WithTimeout(2 * time.Minute).WithPolling(pollInterval).Should(Succeed())
			})
		}, proofLimit())

	It("follows the endpoints of policy Local", Label(smokeLabel, proxyLabel), func(ctx SpecContext) {
		startRouting(ctx)
		s := newSpace(ctx)
		s.startServers(ctx, "rolling", 2, servesUntilRoutesFollow)
		svc := s.createService(ctx, "rolling", s.virtualGroup(ctx), singleStack, withServers("rolling"), policyLocal)
		addr := waitForAddresses(ctx, svc, 1)[0]
		s.waitForEndpoints(ctx, "rolling", addr)
		waitForOwnAddress(ctx, addr)

		By("replacing the servers")
		s.kubectl(ctx, "rollout", "restart", "deployment/rolling")
		s.kubectl(ctx, "rollout", "status", "deployment/rolling", "--timeout=120s")
		s.waitForEndpoints(ctx, "rolling", addr)
		waitForOwnAddress(ctx, addr)

		By("scaling to zero and back")
		s.kubectl(ctx, "scale", "deployment/rolling", "--replicas=0")
		waitForPlaces(ctx, addr, 0)
		s.kubectl(ctx, "scale", "deployment/rolling", "--replicas=1")
		waitForOwnAddress(ctx, addr)
		s.waitForEndpoints(ctx, "rolling", addr)
	}, SpecTimeout(smokeLimit))

	It("fails no request while the endpoints of policy Local are replaced", Label(proofLabel, rolloutTopic, proxyLabel),
		func(ctx SpecContext) {
			startRouting(ctx)
			s := newSpace(ctx)
			s.startServers(ctx, "rolling", 2, servesUntilRoutesFollow)
			svc := s.createService(ctx, "rolling", s.virtualGroup(ctx), singleStack, withServers("rolling"), policyLocal)
			addr := waitForAddresses(ctx, svc, 1)[0]
			s.waitForEndpoints(ctx, "rolling", addr)
			waitForOwnAddress(ctx, addr)
			// Only those during a change of routes may be reset.
			const reset = "requests failed in flight, %"
			runTrials(ctx, "endpoints of policy Local replaced", []trial.Bound{none(failedFigure), {Figure: reset, AtMost: 5}},
				func(t *oneTrial) {
					// Where no endpoint is ready, kube-proxy also uses those that are terminating
					// since the trial before.
					s.waitUntilServersHaveEnded(ctx, "rolling")
					t.measureFromNow()
					meter := measureFrom(ctx, lab.Far, addr)
					s.kubectl(ctx, "rollout", "restart", "deployment/rolling")
					s.kubectl(ctx, "rollout", "status", "deployment/rolling", "--timeout=120s")
					s.waitForEndpoints(ctx, "rolling", addr)
					figures := t.stopMeter("", meter)
					t.Figures[reset] = 100 * float64(figures.InFlight) / float64(figures.Requests)
				})
		}, proofLimit())

	It("keeps policy Local on a Local address where its ServiceGroup or its annotation allows it", func(ctx SpecContext) {
		s := newSpace(ctx)
		s.startServers(
			ctx, "followed", 1, func(pod *corev1.PodSpec) { pod.TopologySpreadConstraints, pod.NodeName = nil, "node2" },
		)
		group := s.createLocalGroup(ctx, "followed", v1.PoolSet{V4Pools: []v1.AddressPool{s.v4Range(0, 2)}})
		ofServer := withServers("followed")
		policyOf := func(svc *corev1.Service) func(Gomega) corev1.ServiceExternalTrafficPolicy {
			return func(g Gomega) corev1.ServiceExternalTrafficPolicy {
				g.Expect(kubeClient.Get(ctx, client.ObjectKeyFromObject(svc), svc)).To(Succeed())
				return svc.Spec.ExternalTrafficPolicy
			}
		}
		setPolicyLocal := func(value string) {
			GinkgoHelper()
			kubectl(
				ctx, "-n", purelbNamespace, "patch", "servicegroup", group, "--type=merge", "-p",
				`{"spec":{"policyLocal":"`+value+`"}}`,
			)
		}
		eventually := func(svc *corev1.Service, policy corev1.ServiceExternalTrafficPolicy) {
			GinkgoHelper()
			Eventually(policyOf(svc)).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Equal(policy))
		}
		// The pod sees the client, as no other node forwards the request.
		seesClient := func(svc *corev1.Service, node string) {
			GinkgoHelper()
			addr := waitForAddresses(ctx, svc, 1)[0]
			Eventually(func() ([]string, error) { return findPlaces(ctx, addr) }).WithContext(ctx).WithTimeout(waitLimit).
				WithPolling(pollInterval).
				Should(ConsistOf(HavePrefix(node + "/eth0")))
			// kube-proxy follows a change of the policy in its own time.
			Eventually(func() (string, error) { return fetch(ctx, lab.Client, addr) }).WithContext(ctx).WithTimeout(waitLimit).
				WithPolling(pollInterval).
				Should(And(ContainSubstring("client=10.77.0.50:"), ContainSubstring("node="+node)))
		}

		By("overriding the policy by default, but not where the annotation allows it")
		plain := s.createService(ctx, "plain", group, singleStack, ofServer, policyLocal)
		eventually(plain, corev1.ServiceExternalTrafficPolicyCluster)
		annotated := s.createService(
			ctx, "annotated", group, singleStack, ofServer, policyLocal, withAnnotation(v1.AnnotationAllowLocal, "true"),
		)
		seesClient(annotated, "node2")

		By("allowing the policy for all Services of the ServiceGroup")
		setPolicyLocal("Allow")
		Eventually(func(g Gomega) map[string]string {
			g.Expect(kubeClient.Get(ctx, client.ObjectKeyFromObject(plain), plain)).To(Succeed())
			return plain.Annotations
		}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).ShouldNot(HaveKey(v1.AnnotationLocalOverride))
		s.kubectl(ctx, "patch", "service", "plain", "--type=merge", "-p", `{"spec":{"externalTrafficPolicy":"Local"}}`)
		allowed := s.createService(ctx, "allowed", group, singleStack, ofServer, policyLocal)
		for _, svc := range []*corev1.Service{plain, annotated, allowed} {
			seesClient(svc, "node2")
			Expect(policyOf(svc)(Default)).To(Equal(corev1.ServiceExternalTrafficPolicyLocal))
		}

		By("moving the server: the addresses follow")
		s.kubectl(
			ctx, "patch", "deployment", "followed", "--type=merge", "-p", `{"spec":{"template":{"spec":{"nodeName":"node3"}}}}`,
		)
		s.kubectl(ctx, "rollout", "status", "deployment/followed", "--timeout=120s")
		for _, svc := range []*corev1.Service{plain, annotated, allowed} {
			seesClient(svc, "node3")
		}

		By("overriding the policy again")
		setPolicyLocal("Override")
		for _, svc := range []*corev1.Service{plain, allowed} {
			eventually(svc, corev1.ServiceExternalTrafficPolicyCluster)
			waitForAnswer(ctx, lab.Client, waitForAddresses(ctx, svc, 1)[0])
		}
		seesClient(annotated, "node3")
		Expect(policyOf(annotated)(Default)).To(Equal(corev1.ServiceExternalTrafficPolicyLocal))
	}, SpecTimeout(functionalLimit))
})
