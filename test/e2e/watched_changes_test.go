package e2e

import (
	"context"
	"encoding/json"
	"net/netip"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/proof/trial"
)

var _ = Describe("A watched holder that dies while the manager changes something", func() {
	const longestOutageOfChange = 3 * time.Second
	bounds := []trial.Bound{atMost(silenceFigure, longestOutageOfChange), atMost(outageFigure, longestOutageOfChange)}
	// dieWhile kills the holder up to a time after a node has been excluded.
	dieWhile := func(m *watchedService, excluded string, within time.Duration) {
		GinkgoHelper()
		DeferCleanup(func(ctx SpecContext) { setExcluded(ctx, false, excluded) }, NodeTimeout(waitLimit))
		setExcluded(m.ctx, true, excluded)
		m.pause(time.Duration(m.trial.random.Int64N(int64(within))))
		m.kill(noCarrier, m.holder)
		m.waitUntilClaimed(m.holder)
		m.pause(longestOutageOfChange)
		m.stopMeters("")
		m.trial.stopMeasuring()
		m.revive(noCarrier, m.holder)
		setExcluded(m.ctx, false, excluded)
		waitForRest(m.ctx, m.svc)
	}

	specifyWatched("is followed by one node within three seconds, handover under way", func(ctx SpecContext) {
		measureWatched(ctx, watchedFault{
			name: "holder dead, handover under way", bounds: bounds,
			do: func(m *watchedService) { dieWhile(m, m.holder, 500*time.Millisecond) },
		})
	})

	specifyWatched("is followed by one node within three seconds, successors being named anew", func(ctx SpecContext) {
		measureWatched(ctx, watchedFault{
			name: "holder dead, successors being named anew", bounds: bounds,
			do: func(m *watchedService) { dieWhile(m, m.firstSuccessor(), 1500*time.Millisecond) },
		})
	})
})

var _ = Describe("A stolen token of a successor's agent", func() {
	specifyWatched("moves no address of a node that renews its Lease", func(ctx SpecContext) {
		measureWatched(ctx, watchedFault{
			name: "stolen token reports claims", bounds: calmBounds(),
			do: func(m *watchedService) {
				m.watchKernels()
				for _, addr := range m.addrs {
					m.reportClaim(addr, m.successors[addr][0], 10*time.Second)
				}
				m.endUnclaimed()
			},
		})
	})
})

// reportClaim reports again and again for a time, in the name of a successor's agent and beside it, that the node has
// claimed an address: as long as the node is a successor, which the manager may end meanwhile.
func (m *watchedService) reportClaim(addr netip.Addr, node string, d time.Duration) {
	GinkgoHelper()
	thief := clientOfAgent(m.ctx, agentPodOn(m.ctx, node).Name)
	reports := 0
	for end := time.Now().Add(d); time.Now().Before(end); m.pause(100 * time.Millisecond) {
		standby, epoch := findStandby(m.ctx, addr, node)
		if standby == nil {
			continue
		}
		claim := v1.AddressStatus{
			Address: addr.String(), State: v1.StateAnnounced, LastTransitionTime: metav1.Now(), Epoch: epoch,
		}
		body, err := json.Marshal(map[string]any{"status": map[string]any{"addresses": []any{claim}}})
		Expect(err).NotTo(HaveOccurred())
		err = thief.Status().Patch(m.ctx, standby, client.RawPatch("application/merge-patch+json", body))
		Expect(client.IgnoreNotFound(err)).To(Succeed())
		if err == nil {
			reports++
		}
	}
	Expect(reports).NotTo(BeZero(), "reports of %s that it has claimed %s", node, addr)
}

// findStandby returns what a node is to do for an address as its successor, and the epoch that is reserved for it; nil
// if the node is none.
func findStandby(ctx context.Context, addr netip.Addr, node string) (standby *v1.Announcement, epoch int64) {
	GinkgoHelper()
	for _, ann := range listStandbys(ctx, Default) {
		for _, a := range ann.Spec.Standby.Addresses {
			for _, s := range a.Successors {
				if ann.Spec.NodeName == node && a.Address == addr.String() && s.NodeName == node {
					return &ann, s.Epoch
				}
			}
		}
	}
	return nil, 0
}
