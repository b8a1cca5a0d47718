package sim

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/purelb/purelb-operator/internal/order"
)

// The laws of a cluster with routers, which hold besides those of laws.go. They read as the specification.
//
//  1. A router sends what comes for a Virtual address only to nodes that have it and, with policy Local, an
//     endpoint, but for nodes that cannot be reached. That is so at every moment while speakers are replaced,
//     BGPPeers and ServiceGroups are edited and nodes are left, and whatever befalls agents, managers and the API
//     server; within a bound after an endpoint has gone, a node has booted, or the address is new. While all nodes
//     with an endpoint are in trouble, a router may send by the routes that others have to the whole network.
//  2. Once a router sends to a node what comes for a Virtual address, it does so ever after, to some node, but for
//     troubles of routers and of all the nodes. So a planned change loses no packet.
//  3. A route by way of a node leaves a router only if the node has no such address any more, is or was to be left
//     lately, or a trouble concerns the session, the speaker or the node.
//  4. Routes by way of a node that cannot be reached stay no longer than the hold time or, with BFD, the time that
//     it takes, unless the speaker was being restarted: then no longer than that may take.
//  5. No router has a route to a Local address.
//  6. What users edit ends the sessions of one node at a time, but for nodes that are to be left.
//  7. While nothing is wrong, what conditions and statuses say of sessions and routes is not false for longer than
//     statusWithin. Once all is settled, it is true, and each router sends for each Virtual address to all nodes
//     that have it.
type routingLaws struct {
	laws    *laws
	history *History
	// unspoken is when nodes had no speaker that worked, and unrouted when the session with a router was in
	// trouble.
	unspoken spans
	unrouted map[*Router]spans
	// wrongSince is since when a router sends to a node what that drops, and silentSince since when a router does
	// not reach a node.
	wrongSince  map[flow]time.Time
	silentSince map[path]time.Time
	// silentWithin is how long it takes then until the router notices.
	silentWithin map[path]time.Duration
	// had is what a router had a route for, and sent the addresses that it has sent to some node.
	had  map[flow]bool
	sent map[sentAddress]bool
	// wasUp are the sessions that were up.
	wasUp map[path]bool
	// ownedSince is since when a Service has an address.
	ownedSince map[netip.Addr]time.Time
	falsehoods lastingFalsehoods
	// calmSince is since when nothing is wrong, and freeSince since when nodes learn at once of what changes.
	calmSince, freeSince time.Time
	version              int
	lookedAt             time.Time
	readAt               time.Time
}

// path is by way of which node a router sends, flow what for, and sentAddress what a router sends.
type (
	path struct {
		router *Router
		node   *Node
	}
	flow struct {
		path
		addr netip.Addr
	}
	sentAddress struct {
		router *Router
		addr   netip.Addr
	}
)

// Bounds of the laws.
const (
	// endpointWithin is how soon no router sends any more to a node whose endpoint has gone.
	endpointWithin = 5 * time.Second
	// bootWithin is how long a router may send to a node that has booted and has no address yet: it keeps the
	// routes that long, if the node was away for less than the hold time.
	bootWithin = 65 * time.Second
	// newWithin is how soon a new address is on the nodes.
	newWithin = 10 * time.Second
	// statusWithin is for how long conditions may be false.
	statusWithin = 30 * time.Second
	// freeAfter is how long after a trouble nodes may still do what was to be done before.
	freeAfter = 20 * time.Second
	// routeSlack is how much later than at the end of the hold time a route is gone.
	routeSlack = 5 * time.Second
)

func newRoutingLaws(l *laws, h *History) *routingLaws {
	r := &routingLaws{
		laws: l, history: h, unspoken: spans{}, unrouted: map[*Router]spans{}, wrongSince: map[flow]time.Time{},
		silentSince: map[path]time.Time{}, silentWithin: map[path]time.Duration{}, had: map[flow]bool{},
		wasUp: map[path]bool{}, sent: map[sentAddress]bool{},
		ownedSince: map[netip.Addr]time.Time{},
		calmSince:  time.Now(), freeSince: time.Now(),
	}
	for _, router := range h.Routers {
		r.unrouted[router] = spans{}
	}
	return r
}

// inspect looks whether the laws hold. It comes after the inspection by the other laws.
func (r *routingLaws) inspect() {
	c := r.laws.cluster
	if r.version == c.version && time.Since(r.lookedAt) < 100*time.Millisecond {
		return
	}
	r.version, r.lookedAt = c.version, time.Now()
	for name := range r.history.troubles {
		r.calmSince = time.Now()
		if !isForRoutersOnly(name) {
			r.freeSince = time.Now()
		}
	}
	for addr := range r.laws.owners {
		if _, isKnown := r.ownedSince[addr]; !isKnown {
			r.ownedSince[addr] = time.Now()
		}
	}
	maps.DeleteFunc(r.ownedSince, func(a netip.Addr, _ time.Time) bool { return r.laws.owners[a] == nil })
	maps.DeleteFunc(r.had, func(f flow, _ bool) bool { return r.laws.owners[f.addr] == nil })
	maps.DeleteFunc(r.sent, func(a sentAddress, _ bool) bool { return r.laws.owners[a.addr] == nil })
	for _, router := range c.Routers {
		for addr, s := range order.ByKey(r.laws.owners, netip.Addr.Compare) {
			if s.isHeldByAll() {
				r.inspectAddress(router, addr, s)
				for _, n := range c.Nodes {
					r.inspectRoute(flow{path{router, n}, addr}, s)
				}
			}
		}
		r.inspectTurns(router)
		for _, n := range c.Nodes {
			r.inspectLocal(path{router, n})
			r.inspectSilence(path{router, n})
		}
	}
	if time.Since(r.readAt) >= time.Second {
		r.readAt = time.Now()
		r.inspectStatuses()
	}
}

// serves reports whether a node answers what comes for an address of a Service.
func (r *routingLaws) serves(n *Node, addr netip.Addr, s *service) bool {
	return n.Kernel.Has(VirtualInterface, addr) && (!s.IsPolicyLocal || slices.Contains(s.endpoints, n))
}

// isTroubled reports whether the routes of a node at a router are in trouble, or were lately.
func (r *routingLaws) isTroubled(p path) bool {
	return r.laws.unreached.isLately(p.node) || r.unspoken.isLately(p.node) || r.unrouted[p.router].isLately(p.node) ||
		p.router.IsDown
}

// inspectAddress is laws 1 and 2.
func (r *routingLaws) inspectAddress(router *Router, addr netip.Addr, s *service) {
	nodes := router.SendsTo(addr)
	isServed := slices.ContainsFunc(r.laws.cluster.Nodes, func(n *Node) bool {
		return r.serves(n, addr, s) && (!s.IsPolicyLocal || !r.isTroubled(path{router, n}))
	})
	for _, n := range r.laws.cluster.Nodes {
		f := flow{path{router, n}, addr}
		isWrong := slices.Contains(nodes, n) && router.hears(n) && !r.serves(n, addr, s) && isServed
		since, wasWrong := r.wrongSince[f]
		switch {
		case !isWrong:
			delete(r.wrongSince, f)
			continue
		case !wasWrong:
			since = time.Now()
			r.wrongSince[f] = since
		}
		if within := r.mayBeWrongFor(f, s); time.Since(since) > within {
			r.laws.broken("%s sends to %s, which drops it, what comes for %s", router.port.name, n.Name, addr)
			delete(r.wrongSince, f)
		}
	}
	key := sentAddress{router, addr}
	switch {
	case len(nodes) > 0:
		r.sent[key] = true
	case r.sent[key]:
		delete(r.sent, key)
		isExcused := func(n *Node) bool { return r.isTroubled(path{router, n}) || r.laws.isLeft(n, s) }
		if !slices.ContainsFunc(r.laws.cluster.Nodes, func(n *Node) bool { return !isExcused(n) && r.serves(n, addr, s) }) {
			return
		}
		r.laws.broken("%s has no route to %s any more", router.port.name, addr)
	}
}

// mayBeWrongFor returns for how long a router may send to a node that drops it.
func (r *routingLaws) mayBeWrongFor(f flow, s *service) time.Duration {
	switch {
	case r.laws.unreached.isLately(f.node):
		return bootWithin
	case s.IsPolicyLocal && r.history.isHindered():
		return time.Hour
	case r.history.isHindered() && r.laws.left.isLately(f.node), r.isTroubled(f.path):
		return time.Hour
	case time.Since(r.ownedSince[f.addr]) < newWithin, r.history.isHindered() && time.Since(r.ownedSince[f.addr]) < lately:
		return time.Hour
	case s.IsPolicyLocal && s.unserved.isLately(f.node):
		return endpointWithin
	}
	return 0
}

// isHindered reports whether something is wrong, or was lately, by which nodes learn late of what has changed.
func (h *History) isHindered() bool { return time.Since(h.routing.freeSince) < freeAfter }

// inspectRoute is law 3.
func (r *routingLaws) inspectRoute(f flow, s *service) {
	isRouted := f.router.hasRoute(f.node, f.addr)
	if r.had[f] && !isRouted && !r.isTroubled(f.path) && !r.laws.isLeft(f.node, s) && r.serves(f.node, f.addr, s) {
		r.laws.broken(
			"%s loses the route to %s by way of %s, with which nothing is wrong", f.router.port.name, f.addr, f.node.Name,
		)
	}
	if r.had[f] = isRouted; !isRouted {
		delete(r.had, f)
	}
}

// inspectLocal is law 5.
func (r *routingLaws) inspectLocal(p path) {
	if a := p.router.neighbours[p.node]; a != nil {
		for prefix := range a.routes {
			if slices.ContainsFunc(localRanges, prefix.Overlaps) {
				r.laws.broken("%s has a route to Local addresses, %s, by way of %s", p.router.port.name, prefix, p.node.Name)
			}
		}
	}
}

// localRanges are the networks of Local addresses.
var localRanges = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8:1::/64")}

// inspectTurns is law 6.
func (r *routingLaws) inspectTurns(router *Router) {
	var ended []*Node
	for _, n := range r.laws.cluster.Nodes {
		a := router.neighbours[n]
		isUp := a != nil && a.connection != nil
		hasSpeaker := len(n.speakers) == 1 && time.Since(n.speakers[0].began) > longBegun
		if wasUp := r.wasUp[path{router, n}]; isUp {
			r.wasUp[path{router, n}] = true
		} else if wasUp && hasSpeaker && !r.isTroubled(path{router, n}) && !r.laws.left.isLately(n) {
			ended = append(ended, n)
		}
	}
	if len(ended) > 1 {
		r.laws.broken("%s has no session with %v at the same time", router.port.name, namesOf(ended))
		clear(r.wasUp)
	}
}

// longBegun is how long a speaker runs that has all its sessions.
const longBegun = 10 * time.Second

// inspectSilence is law 4.
func (r *routingLaws) inspectSilence(p path) {
	if p.router.IsDown || p.router.hears(p.node) {
		delete(r.silentSince, p)
		return
	}
	since, wasSilent := r.silentSince[p]
	a := p.router.neighbours[p.node]
	if !wasSilent {
		since = time.Now()
		r.silentSince[p], r.silentWithin[p] = since, a.timeToNotice()
	}
	isSent := false
	for _, nodes := range p.router.sends {
		isSent = isSent || slices.Contains(nodes, p.node)
	}
	if a == nil || !isSent {
		return
	}
	end := since.Add(r.silentWithin[p] + routeSlack)
	if stale := a.staleSince.Add(a.restart + routeSlack); !a.staleSince.IsZero() && stale.After(end) {
		end = stale
	}
	if time.Now().After(end) {
		r.laws.broken(
			"%s sends to %s, which it does not reach since %s", p.router.port.name, p.node.Name, time.Since(since),
		)
		delete(r.silentSince, p)
	}
}
