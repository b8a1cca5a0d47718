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

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/lab"
)

var _ = Describe("A successor that does not know what became of an address", func() {
	// disarmedWithin is how long a successor that is cut off the API server takes to find that the
	// holder has an address no more: it asks every 10 s, and then twice more.
	const disarmedWithin = 20 * time.Second
	// tryZombie makes an experiment about a Service of its own in each trial. The leading manager
	// runs on the holder, so that it works while others are cut off.
	tryZombie := func(ctx SpecContext, name string, tryOnce func(*space, string, *watchedService)) {
		GinkgoHelper()
		s := newSpace(ctx)
		turnOnWireFailover(ctx)
		group := s.localGroup(ctx)
		runTrials(ctx, name, nil, func(t *oneTrial) {
			replaceRestartedPods(ctx)
			waitUntilReady(ctx)
			m := &watchedService{ctx: ctx, trial: t, host: lab.Client, holder: leaderNode(ctx)}
			m.svc = s.createService(ctx, fmt.Sprintf("gone-%d", t.Seed), group)
			m.addrs = waitForAddresses(ctx, m.svc, 2)
			waitForRest(ctx, m.svc)
			gatherAddresses(ctx, m.holder, areAnnouncedBy(ctx, m.holder, m.addrs))
			m.successors = waitUntilFollowed(ctx, m.holder, m.addrs)
			m.pause(1500 * time.Millisecond)
			tryOnce(s, group, m)
			Eventually(func() error { return s.deleteServices(ctx) }).
				WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
			for _, addr := range m.addrs {
				waitForPlaces(ctx, addr, 0)
			}
		})
	}
	It("does not claim one that was deleted meanwhile", Label(proofLabel, watchingTopic), func(ctx SpecContext) {
		tryZombie(ctx, "address deleted, successors cut off the API server, then holder dead", func(s *space, _ string, m *watchedService) {
			others := m.others(m.holder)
			healAPI := m.cutAPI(others...)
			s.kubectl(ctx, "delete", "service", m.svc.Name)
			for _, addr := range m.addrs {
				waitForPlaces(ctx, addr, 0)
			}
			m.pause(disarmedWithin)
			m.watchKernels()
			m.kill(noCarrier, m.holder)
			m.pause(5 * time.Second)
			healAPI()
			m.pause(5 * time.Second)
			m.expectNoClaims(nodeNames()...)
			m.revive(noCarrier, m.holder)
		})
	}, proofLimit())

	It("does not claim one whose Service was made anew and is announced by another node", Label(proofLabel, watchingTopic), func(ctx SpecContext) {
		tryZombie(ctx, "Service made anew elsewhere, successor cut off the API server, then holder dead", func(s *space, group string, m *watchedService) {
			cut := m.anySuccessor()
			elsewhere := m.others(m.holder, cut)[0]
			healAPI := m.cutAPI(cut)
			s.kubectl(ctx, "delete", "service", m.svc.Name)
			for _, addr := range m.addrs {
				waitForPlaces(ctx, addr, 0)
			}
			DeferCleanup(func(ctx SpecContext) { setExcluded(ctx, false, m.holder) }, NodeTimeout(waitLimit))
			setExcluded(ctx, true, m.holder)
			anew := s.createService(ctx, m.svc.Name+"-anew", group, askFor(m.addrs))
			waitForAddresses(ctx, anew, 2)
			m.waitUntilAdopted(map[netip.Addr]string{m.addrs[0]: elsewhere, m.addrs[1]: elsewhere})
			m.watchKernels()
			m.startMeters()
			m.kill(noCarrier, m.holder)
			m.pause(5 * time.Second)
			for _, f := range m.stopMeters("") {
				Expect(f.Changes).To(BeZero(), "changes of MAC")
				Expect(f.Duplicate).To(BeZero(), "two nodes answer")
			}
			m.revive(noCarrier, m.holder)
			healAPI()
			m.pause(5 * time.Second)
			m.expectNoClaims(m.holder, cut)
			setExcluded(ctx, false, m.holder)
			m.expectKept(map[netip.Addr]string{m.addrs[0]: elsewhere, m.addrs[1]: elsewhere})
		})
	}, proofLimit())
})

// askFor makes a Service ask for addresses.
func askFor(addrs []netip.Addr) func(*corev1.Service) {
	return func(svc *corev1.Service) {
		var texts []string
		for _, addr := range addrs {
			texts = append(texts, addr.String())
		}
		svc.Annotations[v1.AnnotationAddresses] = strings.Join(texts, ",")
	}
}

// cutAPI cuts nodes off the API server, until heal is called or the spec ends.
func (m *watchedService) cutAPI(nodes ...string) (heal func()) {
	GinkgoHelper()
	healAll := func(ctx context.Context) {
		for _, node := range nodes {
			_ = testLab.HealAPI(ctx, node) // the trial may have done it
		}
	}
	DeferCleanup(func(ctx SpecContext) { healAll(ctx) }, NodeTimeout(waitLimit))
	for _, node := range nodes {
		Expect(testLab.CutAPI(m.ctx, node)).To(Succeed())
	}
	return func() { healAll(m.ctx) }
}
