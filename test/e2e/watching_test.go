package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/lab"
)

var _ = Describe("Nodes that are to follow another one", func() {
	It("watch it until the feature gate WireFailover is off", func(ctx SpecContext) {
		s := newSpace(ctx)
		svc := s.createService(ctx, "watched", s.localGroup(ctx))
		holders, before := map[string]bool{}, map[netip.Addr][]string{}
		for _, addr := range waitForAddresses(ctx, svc, 2) {
			holders[waitForHolder(ctx, addr)] = true
			before[addr] = waitForPlaces(ctx, addr, 1)
		}
		waitUntilWatched(ctx, s, holders)
		turnOffWireFailover(ctx)
		Eventually(func(g Gomega) {
			g.Expect(listStandbys(ctx, g)).To(BeEmpty())
			for addr, places := range before {
				for _, entry := range findEntriesOf(ctx, g, addr) {
					g.Expect(entry.Successors).To(BeEmpty())
				}
				found, err := findPlaces(ctx, addr)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(found).To(Equal(places), "nothing moves")
			}
		}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
	}, SpecTimeout(functionalLimit))

	It("claim its address when it is dead, and no manager works", Label(smokeLabel), func(ctx SpecContext) {
		_, addr, holder := createWatchedService(ctx, "claimed")
		stopManagers(ctx)

		DeferCleanup(func(ctx SpecContext) { Expect(testLab.PlugPort(ctx, holder)).To(Succeed()) }, NodeTimeout(time.Minute))
		Expect(testLab.UnplugPort(ctx, holder)).To(Succeed())
		waitForPlaces(ctx, addr, 2)
		Eventually(func(g Gomega) {
			reported := 0
			for _, ann := range listStandbys(ctx, g) {
				for _, status := range ann.Status.Addresses {
					i := slices.IndexFunc(
						ann.Spec.Standby.Addresses, func(a v1.StandbyAddress) bool { return a.Address == addr.String() },
					)
					if status.Address != addr.String() || i < 0 {
						continue
					}
					g.Expect(status.State).To(Equal(v1.StateAnnounced))
					g.Expect(ann.Spec.Standby.Addresses[i].Successors).
						To(ContainElement(v1.Successor{NodeName: ann.Spec.NodeName, Epoch: status.Epoch}))
					reported++
				}
			}
			g.Expect(reported).To(Equal(1))
		}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
		waitForAnswer(ctx, lab.Client, addr)

		Expect(testLab.PlugPort(ctx, holder)).To(Succeed())
		waitForPlaces(ctx, addr, 1)
		waitForAnswer(ctx, lab.Client, addr)
	}, SpecTimeout(functionalLimit))

	It("keep the address that they claim when the dead node is back", func(ctx SpecContext) {
		svc, addr, holder := createWatchedService(ctx, "adopted")
		reserved := findEntriesOf(ctx, Default, addr)[holder].Successors

		DeferCleanup(func(ctx SpecContext) { Expect(testLab.PlugPort(ctx, holder)).To(Succeed()) }, NodeTimeout(time.Minute))
		Expect(testLab.UnplugPort(ctx, holder)).To(Succeed())
		var next v1.Successor
		Eventually(func(g Gomega) {
			entries := findEntriesOf(ctx, g, addr)
			delete(entries, holder)
			g.Expect(entries).To(HaveLen(1))
			for name, e := range entries {
				next = v1.Successor{NodeName: name, Epoch: e.Epoch}
			}
		}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
		Expect(reserved).To(ContainElement(next), "the manager adopts a claim")
		waitForAnswer(ctx, lab.Client, addr)

		Expect(testLab.PlugPort(ctx, holder)).To(Succeed())
		Eventually(func(g Gomega) {
			entries := findEntriesOf(ctx, g, addr)
			g.Expect(entries).To(HaveLen(1))
			g.Expect(entries[next.NodeName].Epoch).To(Equal(next.Epoch))
			places, err := findPlaces(ctx, addr)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(places).To(ConsistOf(HavePrefix(next.NodeName + "/")))
		}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
		waitUntilAnnounced(ctx, svc)
		waitForAnswer(ctx, lab.Client, addr)
	}, SpecTimeout(functionalLimit))
})

// createWatchedService creates a Service, and waits until its address answers, and the other nodes watch its holder.
func createWatchedService(ctx SpecContext, name string) (svc *corev1.Service, addr netip.Addr, holder string) {
	GinkgoHelper()
	s := newSpace(ctx)
	svc = s.createService(ctx, name, s.localGroup(ctx), singleStack)
	addr = waitForAddresses(ctx, svc, 1)[0]
	holder = waitForHolder(ctx, addr)
	waitForAnswer(ctx, lab.Client, addr)
	waitUntilWatched(ctx, s, map[string]bool{holder: true})
	return svc, addr, holder
}

// findEntriesOf returns the entries of an address in the first Announcements of nodes, by node.
func findEntriesOf(ctx context.Context, g Gomega, addr netip.Addr) map[string]v1.AnnouncedAddress {
	found := map[string]v1.AnnouncedAddress{}
	for _, name := range nodeNames() {
		a, err := getAnnouncement(ctx, name)
		g.Expect(err).NotTo(HaveOccurred())
		for _, e := range a.Spec.Addresses {
			if e.Address == addr.String() {
				found[name] = e
			}
		}
	}
	return found
}

// waitUntilWatched waits until all other nodes watch the holders of a space's addresses.
func waitUntilWatched(ctx context.Context, s *space, holders map[string]bool) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		watchers := map[string]int{}
		for _, ann := range listStandbys(ctx, g) {
			if !slices.ContainsFunc(
				ann.Spec.Standby.Addresses, func(a v1.StandbyAddress) bool { return s.owns(netip.MustParseAddr(a.Address)) },
			) {
				continue
			}
			ready := meta.FindStatusCondition(ann.Status.Conditions, v1.ConditionReady)
			g.Expect(ready).NotTo(BeNil())
			g.Expect(ready.Reason).To(
				Equal("Watching"), "%s watches %s: %s", ann.Spec.NodeName, ann.Spec.Standby.Watched.NodeName, ready.Message,
			)
			watchers[ann.Spec.Standby.Watched.NodeName]++
		}
		for holder := range holders {
			g.Expect(watchers).To(HaveKeyWithValue(holder, len(nodeNames())-1))
		}
	}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
}

// stopManagers stops all managers until the spec ends.
func stopManagers(ctx context.Context) {
	GinkgoHelper()
	const deployment = "deployment/purelb-manager"
	replicas := kubectl(ctx, "-n", purelbNamespace, "get", deployment, "-o", "jsonpath={.spec.replicas}")
	DeferCleanup(func(ctx SpecContext) {
		kubectl(ctx, "-n", purelbNamespace, "scale", deployment, "--replicas="+replicas)
		kubectl(ctx, "-n", purelbNamespace, "rollout", "status", deployment, "--timeout=120s")
	}, NodeTimeout(3*time.Minute))
	kubectl(ctx, "-n", purelbNamespace, "scale", deployment, "--replicas=0")
	Eventually(func(g Gomega) {
		pods := &corev1.PodList{}
		g.Expect(kubeClient.List(
			ctx, pods, client.InNamespace(purelbNamespace), client.MatchingLabels{"app.kubernetes.io/name": "purelb-manager"},
		)).To(Succeed())
		g.Expect(pods.Items).To(BeEmpty())
	}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
}

// listStandbys returns the Announcements with standby.
func listStandbys(ctx context.Context, g Gomega) []v1.Announcement {
	var list v1.AnnouncementList
	g.Expect(kubeClient.List(ctx, &list, client.InNamespace(purelbNamespace))).To(Succeed())
	return slices.DeleteFunc(list.Items, func(a v1.Announcement) bool { return a.Spec.Standby == nil })
}

// turnOffWatching has no node watch another one until the spec ends.
func turnOffWatching(ctx context.Context) {
	GinkgoHelper()
	patch := func(ctx context.Context, failover string) {
		retryKubectl(ctx, "-n", purelbNamespace, "patch", "lbnodeagent", "default", "--type=merge", "-p",
			`{"spec":{"local":{"failover":`+failover+`}}}`)
	}
	DeferCleanup(func(ctx SpecContext) { patch(ctx, "null") }, NodeTimeout(waitLimit))
	patch(ctx, `{"enabled":false}`)
	Eventually(func(g Gomega) { g.Expect(listStandbys(ctx, g)).To(BeEmpty()) }).
		WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
}

// turnOffWireFailover turns the feature gate off until the spec ends.
func turnOffWireFailover(ctx context.Context) {
	GinkgoHelper()
	var before appsv1.Deployment
	Expect(kubeClient.Get(ctx, client.ObjectKey{Namespace: purelbNamespace, Name: managerName}, &before)).To(Succeed())
	last := len(before.Spec.Template.Spec.Containers[0].Args)
	DeferCleanup(func(ctx SpecContext) {
		patchManager(ctx, fmt.Sprintf(`[{"op": "remove", "path": "%s/%d"}]`, managerArgs, last))
	}, NodeTimeout(3*time.Minute))
	setFeatureGates(ctx, "WireFailover=false")
}

const managerArgs = "/spec/template/spec/containers/0/args"

// setFeatureGates sets feature gates of the manager, besides those that are set.
func setFeatureGates(ctx context.Context, gates string) {
	GinkgoHelper()
	patchManager(ctx, fmt.Sprintf(`[{"op": "add", "path": "%s/-", "value": "--feature-gates=%s"}]`, managerArgs, gates))
}

// patchManager changes the manager's Deployment, and waits until it has been rolled out.
func patchManager(ctx context.Context, patch string) {
	GinkgoHelper()
	kubectl(ctx, "-n", purelbNamespace, "patch", "deployment/"+managerName, "--type=json", "-p", patch)
	kubectl(ctx, "-n", purelbNamespace, "rollout", "status", "deployment/"+managerName, "--timeout=120s")
}
