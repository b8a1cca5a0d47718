package e2e

import (
	"fmt"
	"os"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/purelb/purelb-operator/test/lab"
)

// ipv6 makes a Service ask for IPv6 addresses.
func ipv6(svc *corev1.Service) { svc.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol} }

var _ = Describe("A failure inside the network", func() {
	// Unlike a holder whose link is cut, this holder keeps its carrier. So it notices
	// only that nothing comes, and its kernel answers at once when the network heals.
	It("costs seconds, and the previous holder yields when the network heals", Label(proofLabel, failoverTopic), func(ctx SpecContext) {
		disturb(ctx, "holder off the switch", trials(), func(m *disturbedService) {
			plug := func(ctx SpecContext) { Expect(testLab.PlugPort(ctx, m.holder)).To(Succeed()) }
			DeferCleanup(plug, NodeTimeout(waitLimit))
			Expect(testLab.UnplugPort(ctx, m.holder)).To(Succeed())
			m.waitUntilMoved()
			next := m.findAnnouncers(Default)
			m.keepMeasuring(time.Second)
			Expect(findPlaces(ctx, m.addr)).To(HaveLen(2), "the previous holder does not know yet")
			back, err := testLab.Measure(ctx, lab.Client, m.addr)
			Expect(err).NotTo(HaveOccurred())
			plug(ctx)
			waitForPlaces(ctx, m.addr, 1)
			m.keepMeasuring(3 * time.Second)
			record, err := back.Stop()
			Expect(err).NotTo(HaveOccurred())
			figures := record.Figures()
			fmt.Fprintf(os.Stdout, "holder back on the switch: %s\n", figures)
			Expect(figures.Silence).To(BeNumerically("<", silenceThatCounts), "ARP silence")
			Expect(figures.Duplicate).To(BeNumerically("<", 2*time.Second), "two nodes answer")
			Expect(m.findAnnouncers(Default)).To(Equal(next), "the address does not move back")
		}, func(f lab.Figures) {
			Expect(f.Silence).To(BeNumerically("<", 8*time.Second))
			Expect(f.Outage).To(BeNumerically("<", 8*time.Second))
		})
	}, SpecTimeout(30*time.Minute))
})

var _ = Describe("An IPv6 address", func() {
	It("answers again within seconds when its holder dies", Label(proofLabel, failoverTopic, proxyLabel), func(ctx SpecContext) {
		disturb(ctx, "IPv6, holder dead", trials(), func(m *disturbedService) {
			heal := func(ctx SpecContext) { Expect(testLab.HealLink(ctx, m.holder)).To(Succeed()) }
			DeferCleanup(heal, NodeTimeout(waitLimit))
			Expect(testLab.CutLink(ctx, m.holder)).To(Succeed())
			m.waitUntilMoved()
			heal(ctx)
		}, func(f lab.Figures) {
			Expect(f.Silence).To(BeNumerically("<", 8*time.Second))
			Expect(f.Outage).To(BeNumerically("<", 8*time.Second))
		}, ipv6)
	}, SpecTimeout(30*time.Minute))

	It("loses no request when its holder is excluded", Label(proofLabel, handoverTopic, proxyLabel), func(ctx SpecContext) {
		disturb(ctx, "IPv6, holder excluded", trials(), func(m *disturbedService) { m.excludeUntilMoved() }, expectNothingLost, ipv6)
	}, SpecTimeout(30*time.Minute))
})

var _ = Describe("Agents that start while the API server is away", func() {
	It("know what to announce, and repair what is missing", Label(proofLabel, outageTopic), func(ctx SpecContext) {
		disturb(ctx, "agents killed, API server away", longTrials(), func(m *disturbedService) {
			DeferCleanup(func(ctx SpecContext) { Expect(testLab.StartControlPlane(ctx)).To(Succeed()) }, NodeTimeout(time.Minute))
			Expect(testLab.StopControlPlane(ctx)).To(Succeed())
			for _, node := range nodeNames() {
				Expect(killProgram(ctx, node, "agent")).To(BeTrue(), "an agent on %s", node)
			}
			for _, node := range nodeNames() {
				Eventually(func() error {
					_, err := testLab.NodeExec(ctx, node, "pgrep", "-f", "^/purelb agent")
					return err
				}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(pollInterval).Should(Succeed(), "the next agent on %s", node)
			}
			By("removing the address from the holder's interface")
			_, err := testLab.Exec(ctx, m.holder, "ip", "address", "delete", m.addr.String()+"/32", "dev", "eth0")
			Expect(err).NotTo(HaveOccurred())
			waitForPlaces(ctx, m.addr, 1)
			m.keepMeasuring(3 * time.Second)
			Expect(testLab.StartControlPlane(ctx)).To(Succeed())
			waitForRest(ctx, m.svc)
			m.expectNotMoved()
		}, func(f lab.Figures) {
			Expect(f.Failed).To(BeZero(), "failed requests: %s", f)
			Expect(f.Silence).To(BeNumerically("<", 5*time.Second), "ARP silence of the address that was removed")
			Expect(f.Duplicate).To(BeZero(), "two nodes answer")
			Expect(f.Changes).To(BeZero(), "changes of MAC")
		})
	}, SpecTimeout(30*time.Minute))
})
