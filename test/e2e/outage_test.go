package e2e

import (
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

var _ = Describe("A disturbance", func() {
	It("ends within seconds when the holder dies, and moves nothing when the holder returns",
		Label(proofLabel, failoverTopic, proxyLabel), func(ctx SpecContext) {
			disturb(ctx, disturbance{
				name: "holder dead",
				do: func(m *disturbedService) {
					Expect(testLab.CutLink(ctx, m.holder)).To(Succeed())
					DeferCleanup(
						func(ctx SpecContext) { Expect(testLab.HealLink(ctx, m.holder)).To(Succeed()) }, NodeTimeout(waitLimit),
					)
					m.waitUntilMoved()
					next := m.findAnnouncers(Default)
					m.keepMeasuring(time.Second)
					By("connecting the dead node again")
					back := measureFrom(ctx, lab.Client, m.addr)
					Expect(testLab.HealLink(ctx, m.holder)).To(Succeed())
					m.keepMeasuring(3 * time.Second)
					m.trial.stopMeter(backPrefix, back)
					Expect(m.findAnnouncers(Default)).To(Equal(next), "the address does not move back")
				},
				bounds: append(failoverBounds(8*time.Second), atMost(backPrefix+duplicateFigure, time.Second)),
			})
		}, proofLimit())

	It("ends within seconds when the holder dies, and no node watches it", Label(proofLabel, failoverTopic),
		func(ctx SpecContext) {
			turnOffWatching(ctx)
			disturb(ctx, disturbance{
				name: "holder dead, by its Lease", do: func(m *disturbedService) { m.cutUntilMoved() },
				bounds: failoverBounds(8 * time.Second),
			})
		}, proofLimit())

	It("loses no request when the holder is excluded", Label(proofLabel, handoverTopic, proxyLabel),
		func(ctx SpecContext) {
			disturb(
				ctx,
				disturbance{
					name: "holder excluded", do: func(m *disturbedService) { m.excludeUntilMoved() }, bounds: plannedBounds,
				},
			)
		}, proofLimit())

	It("loses no request when the holder is cordoned", Label(proofLabel, handoverTopic), func(ctx SpecContext) {
		setOnUnschedulable(ctx, v1.UnschedulableHandOver)
		disturb(ctx, disturbance{
			name: "holder cordoned", do: func(m *disturbedService) { m.cordonUntilMoved() }, bounds: plannedBounds,
		})
	}, proofLimit())

	rebootInTurn := func(
		text, name string, policy v1.UnschedulablePolicy, bounds []trial.Bound, reboot func(*disturbedService, string),
	) {
		It(text, Label(proofLabel, handoverTopic), func(ctx SpecContext) {
			setOnUnschedulable(ctx, policy)
			disturb(ctx, disturbance{
				name: name,
				do: func(m *disturbedService) {
					for _, node := range nodeNames() {
						By("rebooting " + node)
						reboot(m, node)
					}
				},
				bounds: bounds, serversServeOn: true, isOnAnyMachine: true, // nodes boot
			})
		}, proofLimit())
	}
	rebootInTurn("loses no request when all nodes are drained and rebooted in turn", "nodes drained and rebooted in turn",
		v1.UnschedulableHandOver, plannedBounds, (*disturbedService).drainAndReboot)
	rebootInTurn("loses no request when all nodes are drained by the plugin and rebooted in turn",
		"nodes drained by the plugin and rebooted in turn",
		v1.UnschedulableIgnore, plannedBounds, (*disturbedService).drainByPluginAndReboot)
	rebootInTurn("loses no request when all nodes are drained and rebooted in turn by a shutdown that kubelets delay",
		"nodes drained and rebooted in turn, delayed by kubelets",
		v1.UnschedulableIgnore, plannedBounds, (*disturbedService).drainAndShutDown)
	// The kubelet ends the node's servers as well, while they are endpoints; what that costs is not bounded here:
	// https://github.com/kubernetes/kubernetes/issues/116965.
	rebootInTurn("keeps addresses in use when all nodes are rebooted in turn by a shutdown that kubelets delay",
		"nodes rebooted in turn, delayed by kubelets, without a drain",
		v1.UnschedulableIgnore, moveBounds, (*disturbedService).shutDown)

	It("loses no request when the holder shuts down", Label(proofLabel, handoverTopic), func(ctx SpecContext) {
		disturb(ctx, disturbance{
			name: "holder shuts down",
			do: func(m *disturbedService) {
				// The kubelet reports this when its node shuts down (KEP-2000). This kubelet
				// reports Ready again soon, at worst before the manager has seen the change.
				Eventually(func(g Gomega) []string {
					kubectl(ctx, "patch", "node", m.holder, "--subresource=status", "--type=strategic", "-p",
						`{"status":{"conditions":[{"type":"Ready","status":"False","reason":"KubeletNotReady","message":"node is `+
							`shutting down"}]}}`)
					return m.findAnnouncers(g)
				}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(time.Second).
					Should(And(HaveLen(1), Not(ContainElement(m.holder))))
				m.waitUntilMoved()
			},
			bounds: plannedBounds,
		})
	}, proofLimit())

	It("loses no request when the holder leaves its LBNodeAgent", Label(proofLabel, handoverTopic), func(ctx SpecContext) {
		disturb(ctx, disturbance{
			name: "holder leaves its LBNodeAgent",
			do: func(m *disturbedService) {
				back := func(ctx SpecContext) {
					kubectl(
						ctx, "-n", purelbNamespace, "patch", "lbnodeagent", "default", "--type=merge", "-p",
						`{"spec":{"nodeSelector":null}}`,
					)
					for _, node := range nodeNames() {
						kubectl(ctx, "label", "node", node, "lab-")
					}
				}
				DeferCleanup(back, NodeTimeout(waitLimit))
				for _, node := range nodeNames() {
					kubectl(ctx, "label", "node", node, "lab=yes", "--overwrite")
				}
				kubectl(
					ctx, "-n", purelbNamespace, "patch", "lbnodeagent", "default", "--type=merge", "-p",
					`{"spec":{"nodeSelector":{"lab":"yes"}}}`,
				)
				kubectl(ctx, "label", "node", m.holder, "lab=no", "--overwrite")
				m.waitUntilMoved()
				Eventually(func(g Gomega) map[string]string {
					node := &corev1.Node{}
					g.Expect(kubeClient.Get(ctx, client.ObjectKey{Name: m.holder}, node)).To(Succeed())
					return node.Labels
				}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).ShouldNot(HaveKey(v1.LabelAgent))
				back(ctx)
			},
			bounds: plannedBounds,
		})
	}, proofLimit())

	It("ends within seconds when the leading manager dies with the holder", Label(proofLabel, failoverTopic),
		func(ctx SpecContext) {
			disturb(ctx, disturbance{
				name: "holder and leader dead",
				do: func(m *disturbedService) {
					_, node := waitForLeader(ctx)
					Expect(killProgram(ctx, node, "manager")).To(BeTrue())
					m.cutUntilMoved()
				},
				bounds: []trial.Bound{atMost(silenceFigure, 10*time.Second)},
			})
		}, proofLimit())

	It("loses no request when the API server is away for a minute and the agents are killed meanwhile",
		Label(proofLabel, outageTopic), func(ctx SpecContext) {
			disturb(ctx, disturbance{
				name: "API server away",
				do: func(m *disturbedService) {
					DeferCleanup(
						func(ctx SpecContext) { Expect(testLab.StartControlPlane(ctx)).To(Succeed()) }, NodeTimeout(time.Minute),
					)
					Expect(testLab.StopControlPlane(ctx)).To(Succeed())
					m.keepMeasuring(20 * time.Second)
					for _, node := range nodeNames() {
						Expect(killProgram(ctx, node, "agent")).To(BeTrue())
					}
					m.keepMeasuring(40 * time.Second)
					Expect(testLab.StartControlPlane(ctx)).To(Succeed())
					waitForRest(ctx, m.svc)
					m.expectNotMoved()
				},
				bounds: noEffectBounds, check: expectNoEffect, fromFar: true,
			})
		}, proofLimit())

	It("loses no request when the holder's agent is killed again and again", Label(proofLabel, outageTopic),
		func(ctx SpecContext) {
			disturb(ctx, disturbance{
				name: "holder's agent killed",
				do: func(m *disturbedService) {
					// The kubelet restarts the agent at once the first time, and later after a while.
					const kills = 3
					killed := 0
					Eventually(func() int {
						if killProgram(ctx, m.holder, "agent") {
							killed++
						}
						return killed
					}).WithContext(ctx).WithTimeout(2*time.Minute).WithPolling(100*time.Millisecond).Should(
						Equal(kills), "kills of the agent on %s", m.holder,
					)
					m.expectNotMoved()
				},
				bounds: noEffectBounds, check: expectNoEffect, fromFar: true,
			})
		}, proofLimit())

	It("loses no request when all agents are restarted and then killed", Label(proofLabel, rolloutTopic),
		func(ctx SpecContext) {
			disturb(ctx, disturbance{
				name: "agents restarted",
				do: func(m *disturbedService) {
					kubectl(ctx, "-n", purelbNamespace, "rollout", "restart", "daemonset/purelb-agent-default")
					kubectl(ctx, "-n", purelbNamespace, "rollout", "status", "daemonset/purelb-agent-default", "--timeout=120s")
					for _, node := range nodeNames() {
						Expect(killProgram(ctx, node, "agent")).To(BeTrue())
					}
					m.keepMeasuring(time.Second)
					waitForRest(ctx, m.svc)
					m.expectNotMoved()
				},
				bounds: noEffectBounds, check: expectNoEffect, fromFar: true,
			})
		}, proofLimit())
})

var _ = Describe("A holder that is cut off the API server only", func() {
	It("goes on serving, yields to the next holder when its Node is NotReady, and takes nothing back",
		Label(proofLabel, outageTopic), func(ctx SpecContext) {
			disturb(ctx, disturbance{
				name: "holder cut off the API",
				do: func(m *disturbedService) {
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
				},
				bounds: []trial.Bound{
					none(failedFigure), atMost(outageFigure, 500*time.Millisecond), atMost(silenceFigure, silenceThatCounts),
					atMost(duplicateFigure, time.Second), {Figure: changesFigure, AtMost: 1},
				},
			})
		}, proofLimit())
})
