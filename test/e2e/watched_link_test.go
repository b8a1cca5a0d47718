package e2e

import (
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/purelb/purelb-operator/test/lab"
	"github.com/purelb/purelb-operator/test/proof/trial"
)

// holderUnharmed are the bounds of a fault that does not concern the holder. Requests may fail: the
// holder forwards some to servers on nodes that are cut off.
var holderUnharmed = []trial.Bound{
	none(changesFigure), atMost(outageFigure, 500*time.Millisecond), atMost(silenceFigure, silenceThatCounts),
}

// healedBounds are those of the time after a link is whole again: one node answers soon, and alone.
func healedBounds() []trial.Bound {
	return []trial.Bound{atMost(healedPrefix+settledFigure, time.Second), atMost(healedPrefix+silenceFigure, time.Second)}
}

// healedPrefix is that of figures of the time after a link is whole again.
const healedPrefix = "when the link is whole again: "

// isolated is how long nodes are cut off that would claim an address after less than a second, if
// they took themselves for the ones that are not.
const isolated = 15 * time.Second

var _ = Describe("A node that is cut off while it watches another", func() {
	specifyWatched("claims nothing", func(ctx SpecContext) {
		measureWatched(ctx, watchedFault{
			name: "successor cut off",
			do: func(m *watchedService) {
				cut := m.anySuccessor()
				m.watchKernels()
				m.kill(cutInside, cut)
				m.pause(isolated)
				m.revive(cutInside, cut)
				m.pause(3 * time.Second)
				m.endUnclaimed()
			},
			bounds: holderUnharmed,
		})
	})

	specifyWatched("claims nothing when its agent starts while it is cut off", func(ctx SpecContext) {
		measureWatched(ctx, watchedFault{
			name: "successor's agent starts cut off",
			do: func(m *watchedService) {
				cut := m.anySuccessor()
				m.watchKernels()
				m.kill(cutInside, cut)
				Expect(killProgram(ctx, cut, "agent")).To(BeTrue())
				Eventually(func() error {
					_, err := testLab.NodeExec(ctx, cut, "pgrep", "-f", "^/purelb agent")
					return err
				}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed(), "the next agent on %s", cut)
				m.pause(isolated)
				m.revive(cutInside, cut)
				m.pause(3 * time.Second)
				m.endUnclaimed()
			},
			bounds: holderUnharmed,
		})
	})

	specifyWatched("claims nothing when a witness dies", func(ctx SpecContext) {
		measureWatched(ctx, watchedFault{
			name: "gateway dead",
			do: func(m *watchedService) {
				m.watchKernels()
				m.kill(noCarrier, lab.Router)
				m.pause(isolated)
				m.revive(noCarrier, lab.Router)
				m.pause(3 * time.Second)
				m.endUnclaimed()
			},
			bounds: calmBounds(),
		})
	})
})

// restartSwitch lets the switch lose the ports of nodes, as when it starts: after a second they have
// carrier, and for d after that no frame gets through.
func (m *watchedService) restartSwitch(d time.Duration, nodes ...string) {
	GinkgoHelper()
	m.kill(cutInside, nodes...)
	m.kill(noCarrier, nodes...)
	m.pause(time.Second)
	m.revive(noCarrier, nodes...)
	m.pause(d)
}

// joinLink connects hosts to the switch again, at once, and measures what comes of it.
func (m *watchedService) joinLink(hosts ...string) {
	GinkgoHelper()
	m.measureNext(healedPrefix, func() { Expect(testLab.JoinLink(m.ctx, hosts...)).To(Succeed()) })
}

var _ = Describe("A switch that forwards nothing at first", func() {
	const forwardsNothing = 30 * time.Second

	specifyWatched("leaves one holder within a second after it begins to forward for the holder", func(ctx SpecContext) {
		measureWatched(ctx, watchedFault{
			name: "switch forwards nothing at the holder",
			do: func(m *watchedService) {
				m.restartSwitch(forwardsNothing, m.holder)
				next := m.waitUntilClaimed(m.holder)
				m.joinLink(m.holder)
				m.trial.stopMeasuring()
				m.expectKept(next)
				m.waitUntilAdopted(next)
			},
			bounds: append(outageBounds("", longestOutage), healedBounds()...),
		})
	})

	specifyWatched("leaves one holder within a second after it begins to forward for all nodes", func(ctx SpecContext) {
		measureWatched(ctx, watchedFault{
			name: "switch forwards nothing at all nodes",
			do: func(m *watchedService) {
				m.stopMeters("") // nobody can answer
				m.watchKernels()
				m.restartSwitch(forwardsNothing, nodeNames()...)
				m.expectNoClaims(m.others(m.holder)...)
				m.joinLink(nodeNames()...)
				m.trial.stopMeasuring()
				m.waitUntilAdopted(m.waitUntilClaimed())
			},
			bounds: healedBounds(),
		})
	})
})

var _ = Describe("A watched holder whose link flaps", func() {
	specifyWatched("loses its addresses once at the most", func(ctx SpecContext) {
		measureWatched(ctx, watchedFault{
			name: "link down for half a second",
			do: func(m *watchedService) {
				m.kill(noCarrier, m.holder)
				m.pause(500 * time.Millisecond)
				m.revive(noCarrier, m.holder)
				m.pause(5 * time.Second)
				m.stopMeters("")
				m.trial.stopMeasuring()
				m.waitUntilAdopted(m.waitUntilClaimed())
			},
			bounds: append(outageBounds("", longestOutageOfTwo), atMost(duplicateFigure, 100*time.Millisecond)),
		})
	})
})

var _ = Describe("A link that is split, with nodes on both sides", func() {
	const split = 10 * time.Second

	specifyWatched("has one holder within a second after it is whole, with clients apart from it", func(ctx SpecContext) {
		measureWatched(ctx, watchedFault{
			name: "link split, clients apart from the holder",
			do: func(m *watchedService) {
				with := m.anySuccessor()
				m.watchKernels()
				m.splitLink(m.holder, with)
				next := m.waitUntilClaimed(m.holder, with)
				m.pause(split)
				m.expectNoClaims(with) // it sees the holder
				m.joinLink(m.holder, with)
				m.trial.stopMeasuring()
				m.expectKept(next)
				m.waitUntilAdopted(next)
			},
			bounds: append(outageBounds("", longestOutageOfTwo), healedBounds()...),
		})
	})

	specifyWatched("has one holder within a second after it is whole, with clients on its side", func(ctx SpecContext) {
		measureWatched(ctx, watchedFault{
			name: "link split, clients with the holder",
			do: func(m *watchedService) {
				apart := m.anySuccessor()
				m.watchKernels()
				m.splitLink(apart, lab.Router)
				m.pause(split)
				m.expectNoClaims(m.others(m.holder, apart)...)
				// A node that reaches the gateway alone may claim or not: nobody else on its side can tell.
				claimed := m.holdersAmong(Default, []string{apart})
				m.trial.Figures["addresses claimed apart"] = float64(len(claimed))
				m.joinLink(apart, lab.Router)
				m.trial.stopMeasuring()
				m.waitUntilAdopted(m.waitUntilClaimed())
			},
			bounds: append(slices.Clone(holderUnharmed), healedBounds()...),
		})
	})
})

// splitLink parts hosts from the others on the link, until joinLink or the end of the spec.
func (m *watchedService) splitLink(hosts ...string) {
	GinkgoHelper()
	DeferCleanup(func(ctx SpecContext) { Expect(testLab.JoinLink(ctx, hosts...)).To(Succeed()) }, NodeTimeout(waitLimit))
	Expect(testLab.SplitLink(m.ctx, hosts...)).To(Succeed())
}

var _ = Describe("A station on the link that forges claims and answers", func() {
	const (
		forges       = 10 * time.Second
		forgedPrefix = "when the forgery ends: "
	)
	for _, name := range []struct {
		text string
		of   func(m *watchedService) string
	}{
		{"a successor's", func(m *watchedService) string { return m.firstSuccessor() }},
		{"the holder's", func(m *watchedService) string { return m.holder }},
	} {
		specifyWatched("keeps addresses away for a second after it ends, in "+name.text+" name", func(ctx SpecContext) {
			measureWatched(ctx, watchedFault{
				name: "forgery in " + name.text + " name",
				// The client is the station that forges.
				host: lab.ControlPlane,
				do: func(m *watchedService) {
					m.stopMeters("")
					mac, err := testLab.MAC(ctx, name.of(m))
					Expect(err).NotTo(HaveOccurred())
					var forgers []*lab.Forger
					for _, addr := range m.addrs {
						forger, err := testLab.Forge(ctx, lab.Client, mac, addr)
						Expect(err).NotTo(HaveOccurred())
						forgers = append(forgers, forger)
					}
					m.pause(forges)
					m.measureNext(forgedPrefix, func() {
						for _, forger := range forgers {
							Expect(forger.Stop()).To(Succeed())
						}
					})
					m.trial.stopMeasuring()
					m.waitUntilAdopted(m.waitUntilClaimed())
				},
				bounds: []trial.Bound{
					atMost(forgedPrefix+settledFigure, time.Second), atMost(forgedPrefix+silenceFigure, time.Second),
					atMost(forgedPrefix+outageFigure, time.Second),
				},
			})
		})
	}
})
