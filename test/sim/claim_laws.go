package sim

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/purelb/purelb-operator/internal/order"
)

// answersFor is how long a station has answered for an address before nobody claims it any more: who claims an
// address asks for it twice before, a tenth of a second apart.
const answersFor = 500 * time.Millisecond

// claimLaws are what laws 10 and 11 need to know, of Local addresses.
type claimLaws struct {
	// given says whether a node has an entry of an address, or when it last had one.
	given map[entryOf]*givenEntry
	// answersSince is since when a node answers for an address.
	answersSince map[netip.Addr]map[*Node]time.Time
	// isManaged means that a manager works, and count is how often an address was claimed since one last did.
	isManaged bool
	count     map[netip.Addr]int
	// outages counts how often something was wrong with nodes or links since then, with the lasting ones that were
	// wrong already, and are.
	outages, lasting int
}

type entryOf struct {
	addr netip.Addr
	node string
}

type givenEntry struct {
	isThere bool
	endedAt time.Time
}

func newClaimLaws() claimLaws {
	return claimLaws{
		given: map[entryOf]*givenEntry{}, answersSince: map[netip.Addr]map[*Node]time.Time{}, count: map[netip.Addr]int{},
	}
}

// beginOutage notes that nodes cannot be reached, and endOutage that this is over.
func (c *claimLaws) beginOutage() {
	c.outages++
	c.lasting++
}

func (c *claimLaws) endOutage() { c.lasting-- }

// forget forgets an address that is of no Service any more, or of another one.
func (c *claimLaws) forget(addr netip.Addr) {
	delete(c.answersSince, addr)
	delete(c.count, addr)
}

// wasGiven reports whether a manager has given an address to a node, now or a moment ago.
func (c *claimLaws) wasGiven(addr netip.Addr, n *Node) bool {
	given := c.given[entryOf{addr, n.Name}]
	return given != nil && (given.isThere || time.Since(given.endedAt) < maxBoth)
}

// noteEntries notes which nodes have entries.
func (l *laws) noteEntries() {
	isThere := map[entryOf]bool{}
	for _, ann := range l.announcements() {
		for i := range ann.Spec.Addresses {
			if addr, err := netip.ParseAddr(ann.Spec.Addresses[i].Address); err == nil {
				isThere[entryOf{addr, ann.Spec.NodeName}] = true
			}
		}
	}
	for entry, given := range l.claims.given {
		if given.isThere && !isThere[entry] {
			given.isThere, given.endedAt = false, time.Now()
		}
	}
	for entry := range isThere {
		l.claims.given[entry] = &givenEntry{isThere: true}
	}
}

// noteManagers begins to count anew when no manager works any more.
func (l *laws) noteManagers() {
	works := func(r *Replica) bool { return r.IsLeading() && !r.isPaused() && !r.isCut }
	c := &l.claims
	if c.isManaged = slices.ContainsFunc(l.cluster.Replicas, works); c.isManaged {
		clear(c.count)
		c.outages = c.lasting
	}
}

// inspectClaims is laws 10 and 11.
func (l *laws) inspectClaims(addr netip.Addr, holders []*Node) {
	c, since := &l.claims, map[*Node]time.Time{}
	for _, n := range holders {
		var had bool
		if since[n], had = c.answersSince[addr][n]; !had {
			since[n] = time.Now()
		}
		if had || slices.Contains(l.holders[addr], n) || c.wasGiven(addr, n) {
			continue
		}
		if answers := l.answerer(addr, n); answers != "" {
			l.broken("%s claims %s, for which %s answers", n.Name, addr, answers)
		}
		if c.isManaged {
			continue
		}
		if c.count[addr]++; c.count[addr] > 2*c.outages {
			l.broken("%s is claimed by %s, the %d. time without a manager", addr, n.Name, c.count[addr])
		}
	}
	c.answersSince[addr] = since
}

// answerer returns the name of a station that answers for an address, and that a node hears and has heard for
// long enough; empty if there is none.
func (l *laws) answerer(addr netip.Addr, n *Node) string {
	on := l.cluster.SegmentOf(addr)
	isSteady := func(n *Node) bool {
		return !l.unreached.on(on.Link).wasWithin(n, 2*answersFor) && !l.rewired.isLately(n)
	}
	if !isSteady(n) {
		return ""
	}
	if since, has := on.stranger.has[addr]; has && time.Since(since) >= answersFor {
		return on.stranger.port.name
	}
	for other, since := range order.ByKey(l.claims.answersSince[addr], compareNodes) {
		if other != n && other.Holds(addr) && time.Since(since) >= answersFor && isSteady(other) &&
			on.hears(n, other) && on.hears(other, n) {
			return other.Name
		}
	}
	return ""
}

func compareNodes(a, b *Node) int { return strings.Compare(a.Name, b.Name) }
