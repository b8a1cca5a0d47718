package e2e

import (
	"fmt"
	"os"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/lab"
)

var _ = Describe("A disturbance", func() {
	It("ends within seconds when the holder dies, and moves nothing when the holder returns", Label(proofLabel, failoverTopic, proxyLabel), func(ctx SpecContext) {
		disturb(ctx, "holder dead", trials(), func(m *disturbedService) {
			Expect(testLab.CutLink(ctx, m.holder)).To(Succeed())
			DeferCleanup(func(ctx SpecContext) { Expect(testLab.HealLink(ctx, m.holder)).To(Succeed()) }, NodeTimeout(waitLimit))
			m.waitUntilMoved()
			m.keepMeasuring(time.Second)
			By("connecting the dead node again")
			back, err := testLab.Measure(ctx, lab.Client, m.addr)
			Expect(err).NotTo(HaveOccurred())
			dead := m.holder
			Expect(testLab.HealLink(ctx, dead)).To(Succeed())
			m.keepMeasuring(3 * time.Second)
			record, err := back.Stop()
			Expect(err).NotTo(HaveOccurred())
			figures := record.Figures()
			fmt.Fprintf(os.Stdout, "holder back: %s\n", figures)
			Expect(figures.Duplicate).To(BeNumerically("<", time.Second), "two nodes answer")
			Expect(m.findAnnouncers(Default)).To(And(HaveLen(1), Not(ContainElement(dead))), "the address does not move back")
			Expect(findPlaces(ctx, m.addr)).To(HaveLen(1))
		}, func(f lab.Figures) {
			Expect(f.Silence).To(BeNumerically("<", 8*time.Second))
			Expect(f.Outage).To(BeNumerically("<", 8*time.Second))
		})
	}, SpecTimeout(30*time.Minute))

	It("loses no request when the holder is excluded", Label(proofLabel, handoverTopic, proxyLabel), func(ctx SpecContext) {
		disturb(ctx, "holder excluded", trials(), func(m *disturbedService) {
			m.excludeUntilMoved()
		}, expectNothingLost)
	}, SpecTimeout(30*time.Minute))

	It("loses no request when the holder shuts down", Label(proofLabel, handoverTopic), func(ctx SpecContext) {
		disturb(ctx, "holder shuts down", trials(), func(m *disturbedService) {
			// The kubelet reports this when its node shuts down (KEP-2000). This kubelet
			// reports Ready again soon.
			kubectl(ctx, "patch", "node", m.holder, "--subresource=status", "--type=strategic", "-p",
				`{"status":{"conditions":[{"type":"Ready","status":"False","reason":"KubeletNotReady","message":"node is shutting down"}]}}`)
			m.waitUntilMoved()
		}, expectNothingLost)
	}, SpecTimeout(30*time.Minute))

	It("loses no request when the holder leaves its LBNodeAgent", Label(proofLabel, handoverTopic), func(ctx SpecContext) {
		disturb(ctx, "holder leaves its LBNodeAgent", trials(), func(m *disturbedService) {
			back := func(ctx SpecContext) {
				kubectl(ctx, "-n", purelbNamespace, "patch", "lbnodeagent", "default", "--type=merge", "-p", `{"spec":{"nodeSelector":null}}`)
				for _, node := range nodeNames() {
					kubectl(ctx, "label", "node", node, "lab-")
				}
			}
			DeferCleanup(back, NodeTimeout(waitLimit))
			for _, node := range nodeNames() {
				kubectl(ctx, "label", "node", node, "lab=yes", "--overwrite")
			}
			kubectl(ctx, "-n", purelbNamespace, "patch", "lbnodeagent", "default", "--type=merge", "-p", `{"spec":{"nodeSelector":{"lab":"yes"}}}`)
			kubectl(ctx, "label", "node", m.holder, "lab=no", "--overwrite")
			m.waitUntilMoved()
			Eventually(func(g Gomega) map[string]string {
				node := &corev1.Node{}
				g.Expect(kubeClient.Get(ctx, client.ObjectKey{Name: m.holder}, node)).To(Succeed())
				return node.Labels
			}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).ShouldNot(HaveKey(v1.LabelAgent))
			back(ctx)
		}, expectNothingLost)
	}, SpecTimeout(30*time.Minute))

	It("ends within seconds when the leading manager dies with the holder", Label(proofLabel, failoverTopic), func(ctx SpecContext) {
		disturb(ctx, "holder and leader dead", trials(), func(m *disturbedService) {
			_, node := waitForLeader(ctx)
			Expect(killProgram(ctx, node, "manager")).To(BeTrue())
			Expect(testLab.CutLink(ctx, m.holder)).To(Succeed())
			heal := func(ctx SpecContext) { Expect(testLab.HealLink(ctx, m.holder)).To(Succeed()) }
			DeferCleanup(heal, NodeTimeout(waitLimit))
			m.waitUntilMoved()
			heal(ctx)
		}, func(f lab.Figures) { Expect(f.Silence).To(BeNumerically("<", 10*time.Second)) })
	}, SpecTimeout(30*time.Minute))

	It("loses no request when the API server is away for a minute and the agents are killed meanwhile", Label(proofLabel, outageTopic), func(ctx SpecContext) {
		disturb(ctx, "API server away", longTrials(), func(m *disturbedService) {
			DeferCleanup(func(ctx SpecContext) { Expect(testLab.StartControlPlane(ctx)).To(Succeed()) }, NodeTimeout(time.Minute))
			m.measureFromFar()
			Expect(testLab.StopControlPlane(ctx)).To(Succeed())
			m.keepMeasuring(20 * time.Second)
			for _, node := range nodeNames() {
				Expect(killProgram(ctx, node, "agent")).To(BeTrue())
			}
			m.keepMeasuring(40 * time.Second)
			Expect(testLab.StartControlPlane(ctx)).To(Succeed())
			waitForRest(ctx, m.svc)
			m.expectNotMoved()
		}, expectNoEffect)
	}, SpecTimeout(60*time.Minute))

	It("loses no request when the holder's agent is killed again and again", Label(proofLabel, outageTopic), func(ctx SpecContext) {
		disturb(ctx, "holder's agent killed", longTrials(), func(m *disturbedService) {
			m.measureFromFar()
			for killed, deadline := 0, time.Now().Add(10*time.Second); time.Now().Before(deadline); m.keepMeasuring(100 * time.Millisecond) {
				if killProgram(ctx, m.holder, "agent") {
					killed++
				}
				if time.Until(deadline) < time.Second {
					Expect(killed).NotTo(BeZero())
				}
			}
			m.expectNotMoved()
		}, expectNoEffect)
	}, SpecTimeout(30*time.Minute))

	It("loses no request when all agents are restarted and then killed", Label(proofLabel, rolloutTopic), func(ctx SpecContext) {
		disturb(ctx, "agents restarted", trials(), func(m *disturbedService) {
			m.measureFromFar()
			kubectl(ctx, "-n", purelbNamespace, "rollout", "restart", "daemonset/purelb-agent-default")
			kubectl(ctx, "-n", purelbNamespace, "rollout", "status", "daemonset/purelb-agent-default", "--timeout=120s")
			for _, node := range nodeNames() {
				Expect(killProgram(ctx, node, "agent")).To(BeTrue())
			}
			m.keepMeasuring(time.Second)
			waitForRest(ctx, m.svc)
			m.expectNotMoved()
		}, expectNoEffect)
	}, SpecTimeout(30*time.Minute))
})

var _ = Describe("A holder that is cut off the API server only", func() {
	It("goes on serving, yields to the next holder when its Node is NotReady, and takes nothing back", Label(proofLabel, outageTopic), func(ctx SpecContext) {
		disturb(ctx, "holder cut off the API", longTrials(), func(m *disturbedService) {
			heal := func(ctx SpecContext) { _ = testLab.HealAPI(ctx, m.holder) } // the test may have healed it
			DeferCleanup(heal, NodeTimeout(waitLimit))
			Expect(testLab.CutAPI(ctx, m.holder)).To(Succeed())
			Eventually(func(g Gomega) corev1.ConditionStatus {
				moved := !slices.Contains(m.findAnnouncers(g), m.holder)
				node := &corev1.Node{} // read after the Announcements
				g.Expect(kubeClient.Get(ctx, client.ObjectKey{Name: m.holder}, node)).To(Succeed())
				for _, condition := range node.Status.Conditions {
					if condition.Type != corev1.NodeReady {
						continue
					}
					if moved && condition.Status == corev1.ConditionTrue {
						StopTrying("the address has moved before the Node was NotReady").Now()
					}
					return condition.Status
				}
				return ""
			}).WithContext(ctx).WithTimeout(2 * time.Minute).WithPolling(pollInterval).Should(Equal(corev1.ConditionUnknown))
			m.waitUntilMoved()
			next := m.findAnnouncers(Default)
			m.keepMeasuring(2 * time.Second)
			Expect(findPlaces(ctx, m.addr)).To(HaveLen(1), "the node that was cut off has yielded")
			By("letting the holder reach the API server again")
			Expect(testLab.HealAPI(ctx, m.holder)).To(Succeed())
			waitForRest(ctx, m.svc)
			Expect(m.findAnnouncers(Default)).To(Equal(next), "nothing moves back")
		}, func(f lab.Figures) {
			Expect(f.Silence).To(BeNumerically("<", silenceThatCounts), "ARP silence")
			Expect(f.Duplicate).To(BeNumerically("<", time.Second), "two nodes answer")
			Expect(f.Changes).To(Equal(1), "changes of MAC")
			Expect(f.Failed).To(BeNumerically("<=", f.Requests/requestsPerStrayFailure), "failed requests: %s", f)
			Expect(f.Outage).To(BeNumerically("<", 500*time.Millisecond), "HTTP outage")
		})
	}, SpecTimeout(60*time.Minute))
})
