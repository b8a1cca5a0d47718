package e2e

import (
	"context"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/purelb/purelb-operator/test/proof/trial"
)

const (
	// usualOutage is the most that the median of outages may be when one node dies, and longestOutage
	// the most that any may be.
	usualOutage   = 700 * time.Millisecond
	longestOutage = time.Second
	// longestOutageOfTwo is the most that an outage may be when a second node dies.
	longestOutageOfTwo = 1500 * time.Millisecond
)

// outageBounds are those of an outage, as requests and as the link see it, with at most one move.
func outageBounds(prefix string, limit time.Duration) []trial.Bound {
	oneMove := trial.Bound{Figure: prefix + changesFigure, AtMost: 1}
	return []trial.Bound{atMost(prefix+silenceFigure, limit), atMost(prefix+outageFigure, limit), oneMove}
}

// usualOutageBounds are those of the medians.
func usualOutageBounds() []trial.Bound {
	return []trial.Bound{atMost(silenceFigure, usualOutage), atMost(outageFigure, usualOutage)}
}

// returnBounds are those of the return of a node that was dead.
func (d death) returnBounds() []trial.Bound {
	limit := time.Second
	if d.isNoticed {
		limit = 100 * time.Millisecond
	}
	return []trial.Bound{atMost(backPrefix+duplicateFigure, limit), atMost(backPrefix+silenceFigure, silenceThatCounts)}
}

var _ = Describe("An address whose holder is watched", func() {
	for _, d := range deaths {
		specifyWatched("is claimed within a second when its holder dies: "+d.name, func(ctx SpecContext) {
			measureWatched(ctx, watchedFault{
				name: "holder dead, " + d.name,
				do: func(m *watchedService) {
					m.kill(d, m.holder)
					next := m.waitUntilClaimed(m.holder)
					m.pause(time.Second)
					m.stopMeters("")
					m.trial.stopMeasuring()
					m.waitUntilAdopted(next)
					m.trial.measureFromNow()
					m.measureNext(backPrefix, func() { m.revive(d, m.holder) })
					m.trial.stopMeasuring()
					m.expectKept(next)
					m.waitUntilAdopted(next)
				},
				bounds: append(outageBounds("", longestOutage), d.returnBounds()...), medians: usualOutageBounds(),
			})
		})

		specifyWatched("is claimed within a second when its holder dies, API server away: "+d.name, func(ctx SpecContext) {
			measureWatched(ctx, watchedFault{
				name: "holder dead, " + d.name + ", API server away",
				do: func(m *watchedService) {
					m.stopControlPlane()
					m.kill(d, m.holder)
					next := m.waitUntilClaimed(m.holder)
					m.pause(time.Second)
					m.measureNext(backPrefix, func() { m.revive(d, m.holder) })
					m.startControlPlane()
					m.expectKept(next)
					m.waitUntilAdopted(next)
				},
				bounds:  slices.Concat(outageBounds("", longestOutage), d.returnBounds(), nothingHappens(apiBackPrefix)),
				medians: usualOutageBounds(),
			})
		})
	}

	specifyWatched("is claimed within a second when its holder dies with the leading manager", func(ctx SpecContext) {
		measureWatched(ctx, watchedFault{
			name:         "holder and leading manager dead",
			chooseHolder: func() string { return leaderNode(ctx) },
			do:           func(m *watchedService) { m.dieAndReturn(noCarrier, m.holder) },
			bounds:       append(outageBounds("", longestOutage), noCarrier.returnBounds()...), medians: usualOutageBounds(),
		})
	})

	specifyWatched("is claimed within a second when its holder dies with all managers", func(ctx SpecContext) {
		measureWatched(ctx, watchedFault{
			name:    "holder and all managers dead",
			prepare: func(m *watchedService) { m.gatherManagers(m.holder) },
			do:      func(m *watchedService) { m.dieAndReturn(noCarrier, m.holder) },
			bounds:  append(outageBounds("", longestOutage), noCarrier.returnBounds()...), medians: usualOutageBounds(),
		})
	})

	specifyWatched("is claimed by its second successor when the first one dies with the holder", func(ctx SpecContext) {
		measureWatched(ctx, watchedFault{
			name: "holder and first successor dead",
			prepare: func(m *watchedService) {
				Expect(len(nodeNames())).To(BeNumerically(">", 3), "of three nodes the last one has no witness: LAB_NODES=4")
			},
			do:     func(m *watchedService) { m.dieAndReturn(noCarrier, m.holder, m.firstSuccessor()) },
			bounds: append(outageBounds("", longestOutageOfTwo), noCarrier.returnBounds()...),
		})
	})

	specifyWatched("is claimed by the next successor when who claimed it dies, API server away", func(ctx SpecContext) {
		const (
			between      = 5 * time.Second
			secondPrefix = "when the second node dies: "
		)
		measureWatched(ctx, watchedFault{
			name: "holder dead and then who claimed, API server away",
			do: func(m *watchedService) {
				m.stopControlPlane()
				m.kill(noCarrier, m.holder)
				died := time.Now()
				next := m.waitUntilClaimed(m.holder)
				m.pause(time.Second)
				var second string
				m.measureNext(secondPrefix, func() {
					// Requests that were under way when the first measurement ended took three seconds.
					m.pause(max(500*time.Millisecond, between-time.Since(died)))
					second = next[m.anyAddress()]
					m.kill(noCarrier, second)
					m.waitUntilClaimed(m.holder, second)
				})
				m.measureNext(backPrefix, func() { m.revive(noCarrier, m.holder, second) })
				m.startControlPlane()
				// Which of the two that claimed it keeps an address is decided by their epochs.
				waitForRest(ctx, m.svc)
			},
			bounds: slices.Concat(outageBounds("", longestOutageOfTwo), outageBounds(secondPrefix, longestOutageOfTwo),
				[]trial.Bound{atMost(backPrefix+settledFigure, time.Second)}, nothingHappens(apiBackPrefix)),
		})
	})
})

// leaderNode waits until a manager leads, and returns its node.
func leaderNode(ctx context.Context) string {
	GinkgoHelper()
	_, node := waitForLeader(ctx)
	return node
}

// dieAndReturn lets nodes die, and brings them back when others have claimed the addresses. Only
// then, the managers may have died, it waits until the claims are adopted.
func (m *watchedService) dieAndReturn(d death, nodes ...string) {
	GinkgoHelper()
	m.kill(d, nodes...)
	next := m.waitUntilClaimed(nodes...)
	m.pause(time.Second)
	m.measureNext(backPrefix, func() { m.revive(d, nodes...) })
	m.trial.stopMeasuring()
	m.expectKept(next)
	m.waitUntilAdopted(next)
}
