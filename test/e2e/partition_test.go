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

// ipv6 makes a Service ask for an IPv6 address.
func ipv6(svc *corev1.Service) { svc.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol} }

var _ = Describe("A part of the network that fails", func() {
	// Other than with a link that is cut, the holder sees nothing but silence: it
	// has its carrier, and its kernel answers again at once when it is back.
	It("costs seconds, and its holder gives way when it is back", func(ctx SpecContext) {
		disturb(ctx, "holder off the switch", trials(), func(m *measured) {
			plug := func(ctx SpecContext) { Expect(bed.PlugPort(ctx, m.holder)).To(Succeed()) }
			DeferCleanup(plug, NodeTimeout(soon))
			Expect(bed.UnplugPort(ctx, m.holder)).To(Succeed())
			m.moved()
			next := m.places(Default)
			m.last(time.Second)
			Expect(places(ctx, m.addr)).To(HaveLen(2), "the holder does not know")
			back, err := bed.Measure(ctx, lab.Client, m.addr)
			Expect(err).NotTo(HaveOccurred())
			plug(ctx)
			where(ctx, m.addr, 1)
			m.last(3 * time.Second)
			record, err := back.Stop()
			Expect(err).NotTo(HaveOccurred())
			figures := record.Figures()
			fmt.Fprintf(os.Stdout, "holder back on the switch: %s\n", figures)
			Expect(figures.Silence).To(BeNumerically("<", silent), "ARP silence")
			Expect(figures.Duplicate).To(BeNumerically("<", 2*time.Second), "two nodes answer")
			Expect(m.places(Default)).To(Equal(next), "it does not move back")
		}, func(f lab.Figures) {
			Expect(f.Silence).To(BeNumerically("<", 8*time.Second))
			Expect(f.Outage).To(BeNumerically("<", 8*time.Second))
		})
	}, SpecTimeout(30*time.Minute))
})

var _ = Describe("An IPv6 address", func() {
	It("is back in seconds when its holder is dead", func(ctx SpecContext) {
		disturb(ctx, "IPv6, holder dead", trials(), func(m *measured) {
			heal := func(ctx SpecContext) { Expect(bed.HealLink(ctx, m.holder)).To(Succeed()) }
			DeferCleanup(heal, NodeTimeout(soon))
			Expect(bed.CutLink(ctx, m.holder)).To(Succeed())
			m.moved()
			heal(ctx)
		}, func(f lab.Figures) {
			Expect(f.Silence).To(BeNumerically("<", 8*time.Second))
			Expect(f.Outage).To(BeNumerically("<", 8*time.Second))
		}, ipv6)
	}, SpecTimeout(30*time.Minute))

	It("loses nothing when its holder is excluded", func(ctx SpecContext) {
		disturb(ctx, "IPv6, holder excluded", trials(), func(m *measured) { m.exclude() }, nothingLost, ipv6)
	}, SpecTimeout(30*time.Minute))
})

var _ = Describe("Agents that start while the API server is away", func() {
	It("know what to announce, and mend it", func(ctx SpecContext) {
		disturb(ctx, "agents killed, API server away", longTrials(), func(m *measured) {
			DeferCleanup(func(ctx SpecContext) { Expect(bed.StartControlPlane(ctx)).To(Succeed()) }, NodeTimeout(time.Minute))
			Expect(bed.StopControlPlane(ctx)).To(Succeed())
			for _, node := range nodes() {
				Expect(kill(ctx, node, "agent")).To(BeTrue(), "an agent on %s", node)
			}
			for _, node := range nodes() {
				Eventually(func() error {
					_, err := bed.NodeExec(ctx, node, "pgrep", "-f", "^/purelb agent")
					return err
				}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(poll).Should(Succeed(), "the next agent on %s", node)
			}
			By("taking the address off the holder's interface")
			_, err := bed.Exec(ctx, m.holder, "ip", "address", "delete", m.addr.String()+"/24", "dev", "eth0")
			Expect(err).NotTo(HaveOccurred())
			where(ctx, m.addr, 1)
			m.last(3 * time.Second)
			Expect(bed.StartControlPlane(ctx)).To(Succeed())
			atRest(ctx, m.svc)
			m.stayed()
		}, func(f lab.Figures) {
			Expect(f.Failed).To(BeZero(), "failed requests: %s", f)
			Expect(f.Silence).To(BeNumerically("<", 5*time.Second), "ARP silence, for the address that was taken off")
			Expect(f.Duplicate).To(BeZero(), "two nodes answer")
			Expect(f.Changes).To(BeZero(), "changes of MAC")
		})
	}, SpecTimeout(30*time.Minute))
})
