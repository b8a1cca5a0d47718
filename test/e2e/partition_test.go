package e2e

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/purelb/purelb-operator/test/lab"
	"github.com/purelb/purelb-operator/test/proof/trial"
)

// ipv6 makes a Service ask for IPv6 addresses.
func ipv6(svc *corev1.Service) { svc.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol} }

var _ = Describe("A failure inside the network", func() {
	// Unlike a holder whose link is cut, this holder keeps its carrier. So it notices
	// only that nothing comes, and its kernel answers at once when the network heals.
	It("costs seconds, and the previous holder yields when the network heals", Label(proofLabel, failoverTopic),
		func(ctx SpecContext) {
			disturb(ctx, disturbance{
				name: "holder off the switch",
				do: func(m *disturbedService) {
					plug := func(ctx SpecContext) { Expect(testLab.PlugPort(ctx, m.holder)).To(Succeed()) }
					DeferCleanup(plug, NodeTimeout(waitLimit))
					Expect(testLab.UnplugPort(ctx, m.holder)).To(Succeed())
					m.waitUntilMoved()
					next := m.findAnnouncers(Default)
					m.keepMeasuring(time.Second)
					Expect(findPlaces(ctx, m.addr)).To(HaveLen(2), "the previous holder does not know yet")
					back := measureFrom(ctx, lab.Client, m.addr)
					plug(ctx)
					waitForPlaces(ctx, m.addr, 1)
					m.keepMeasuring(3 * time.Second)
					m.trial.stopMeter(backPrefix, back)
					Expect(m.findAnnouncers(Default)).To(Equal(next), "the address does not move back")
				},
				bounds: append(
					failoverBounds(8*time.Second), atMost(backPrefix+silenceFigure, silenceThatCounts),
					atMost(backPrefix+duplicateFigure, 2*time.Second),
				),
			})
		}, proofLimit())
})

var _ = Describe("An IPv6 address", func() {
	It("answers again within seconds when its holder dies", Label(proofLabel, failoverTopic, proxyLabel),
		func(ctx SpecContext) {
			disturb(ctx, disturbance{
				name: "IPv6, holder dead", do: func(m *disturbedService) { m.cutUntilMoved() },
				bounds: failoverBounds(8 * time.Second), change: []func(*corev1.Service){ipv6},
			})
		}, proofLimit())

	It("loses no request when its holder is excluded", Label(proofLabel, handoverTopic, proxyLabel),
		func(ctx SpecContext) {
			disturb(ctx, disturbance{
				name: "IPv6, holder excluded", do: func(m *disturbedService) { m.excludeUntilMoved() },
				bounds: plannedBounds, change: []func(*corev1.Service){ipv6},
			})
		}, proofLimit())
})

var _ = Describe("Agents that start while the API server is away", func() {
	It("know what to announce, and repair what is missing", Label(proofLabel, outageTopic), func(ctx SpecContext) {
		disturb(ctx, disturbance{
			name: "agents killed, API server away",
			do: func(m *disturbedService) {
				DeferCleanup(
					func(ctx SpecContext) { Expect(testLab.StartControlPlane(ctx)).To(Succeed()) }, NodeTimeout(time.Minute),
				)
				Expect(testLab.StopControlPlane(ctx)).To(Succeed())
				for _, node := range nodeNames() {
					Expect(killProgram(ctx, node, "agent")).To(BeTrue(), "an agent on %s", node)
				}
				for _, node := range nodeNames() {
					Eventually(func() error {
						_, err := testLab.NodeExec(ctx, node, "pgrep", "-f", "^/purelb agent")
						return err
					}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(pollInterval).Should(
						Succeed(), "the next agent on %s", node,
					)
				}
				By("removing the address from the holder's interface")
				_, err := testLab.Exec(ctx, m.holder, "ip", "address", "delete", m.addr.String()+"/32", "dev", "eth0")
				Expect(err).NotTo(HaveOccurred())
				waitForPlaces(ctx, m.addr, 1)
				m.keepMeasuring(3 * time.Second)
				Expect(testLab.StartControlPlane(ctx)).To(Succeed())
				waitForRest(ctx, m.svc)
				m.expectNotMoved()
			},
			// The silence is that of the address that was removed.
			bounds: []trial.Bound{none(failedFigure), atMost(silenceFigure, 5*time.Second)}, check: expectNoEffect,
		})
	}, proofLimit())
})
