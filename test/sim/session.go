package sim

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/speaker/bfd"
	"github.com/purelb/purelb-operator/nodeagent/speaker/routes"
)

// connection is the TCP connection of a session: what one side sends gets to the other in order, or late, or, if
// one of the machines has forgotten the connection, not at all.
type connection struct {
	world  *World
	node   *Node
	router *Router
	peer   *neighbour
	// boot is the one of the node in which it was made.
	boot int
	// toRouter and toNode are what is on its way.
	toRouter, toNode []func()
	// isClosed means that nothing gets through any more, and isForgotten that the router does not know it.
	isClosed, isForgotten bool
	began                 time.Time
	// heardByRouter and heardByNode are when something came.
	heardByRouter, heardByNode time.Time
}

// How long a message is on its way, and how soon it is sent again if it is lost.
const minTransit, maxTransit, resendAfter = 100 * time.Microsecond, 2 * time.Millisecond, 200 * time.Millisecond

// sendToRouter and sendToNode send a message, which is what it does.
func (c *connection) sendToRouter(do func()) { c.send(&c.toRouter, do) }
func (c *connection) sendToNode(do func())   { c.send(&c.toNode, do) }

func (c *connection) send(queue *[]func(), do func()) {
	if *queue = append(*queue, do); len(*queue) == 1 {
		c.world.After(c.world.Between(minTransit, maxTransit), func() { c.deliver(queue) })
	}
}

// deliver lets the first message come.
func (c *connection) deliver(queue *[]func()) {
	switch {
	case c.isClosed:
		return
	case !c.router.hears(c.node):
		c.world.After(resendAfter, func() { c.deliver(queue) })
		return
	case c.isForgotten || c.node.boots != c.boot:
		// The machine that does not know the connection says so.
		c.isClosed = true
		c.router.lose(c)
		c.over("the neighbour closed the connection: it restarts, or has forgotten this node")
		return
	}
	do := (*queue)[0]
	*queue = (*queue)[1:]
	if queue == &c.toRouter {
		c.heardByRouter = time.Now()
	} else {
		c.heardByNode = time.Now()
	}
	do()
	if len(*queue) > 0 {
		c.world.After(c.world.Between(minTransit, maxTransit), func() { c.deliver(queue) })
	}
}

// over tells the node's speaker that the session is over.
func (c *connection) over(why string) {
	c.isClosed = true
	if c.peer.connection == c {
		c.peer.down(why)
	}
}

// keepAlive sends what shows that both sides work, and ends a session of which one side has heard nothing for the
// hold time.
func (c *connection) keepAlive() {
	if c.isClosed {
		return
	}
	p := c.peer
	hold := time.Duration(p.HoldSeconds) * time.Second
	if !c.isForgotten && !c.router.IsDown {
		if time.Since(c.heardByRouter) >= hold {
			c.router.end(c, "nothing came for the hold time")
			c.isClosed = false // the node does not know
			c.isForgotten = true
		}
		c.sendKeepalive(&c.toNode)
	}
	if s := p.library.speaker; !s.isKilled && !s.isPaused() && c.boot == c.node.boots {
		if time.Since(c.heardByNode) >= hold {
			c.router.lastMessage(c, "nothing came from the node for the hold time")
			c.over("nothing came from the neighbour for the hold time")
			return
		}
		c.sendKeepalive(&c.toRouter)
	}
	c.world.After(time.Duration(p.KeepaliveSeconds)*time.Second, c.keepAlive)
}

// sendKeepalive sends a message that does nothing, unless others wait to be sent.
func (c *connection) sendKeepalive(queue *[]func()) {
	if len(*queue) == 0 {
		c.send(queue, func() {})
	}
}

// lastMessage lets a router hear, if it can be reached, that a node ends a session.
func (r *Router) lastMessage(c *connection, why string) {
	if r.hears(c.node) && !c.isForgotten {
		r.end(c, why)
	}
}

// library is a BGP library in memory, which behaves as package gobgp does.
type library struct {
	speaker *speaker
	changed func()
	paths   []routes.Path
	rules   []routes.Rule
	peers   []*neighbour
	// isStopped means that all sessions have ended.
	isStopped bool
}

// neighbour is a neighbour of a speaker.
type neighbour struct {
	routes.Peer
	library    *library
	router     *Router
	connection *connection
	session    routes.Session
	sent       map[netip.Prefix]bool
	isRemoved  bool
}

var errLibrary = errors.New("the library has ended")

func (l *library) Start(context.Context, netip.Addr) error { return nil }

// Apply makes changes, in their order.
func (l *library) Apply(_ context.Context, c routes.Changes) routes.Refusals {
	refused := routes.Refusals{Paths: map[netip.Prefix]error{}, Peers: map[netip.Addr]error{}}
	if l.speaker.isKilled || l.isStopped {
		refused.Rules = errLibrary
		return refused
	}
	for _, prefix := range c.RemovePaths {
		l.paths = slices.DeleteFunc(l.paths, func(p routes.Path) bool { return p.Prefix == prefix })
		for _, p := range l.peers {
			p.withdraw(prefix)
		}
	}
	if c.ReplacesRules {
		l.rules = c.Rules
	}
	for _, path := range c.AddPaths {
		l.paths = slices.DeleteFunc(l.paths, func(p routes.Path) bool { return p.Prefix == path.Prefix })
		l.paths = append(l.paths, path)
		for _, p := range l.peers {
			p.advertise(path)
		}
	}
	for _, p := range c.RemovePeers {
		l.remove(p.Neighbour, true)
	}
	for _, p := range c.UpdatePeers {
		if at := l.peer(p.Neighbour); at != nil {
			at.Peer = p
		}
	}
	for _, p := range c.ReopenPeers {
		isGraceful := false
		if before := l.peer(p.Neighbour); before != nil && before.RestartSeconds > 0 {
			isGraceful, p.SetsRestartState = true, p.RestartSeconds > 0
		}
		l.remove(p.Neighbour, !isGraceful)
		l.add(p)
	}
	for _, p := range c.AddPeers {
		l.add(p)
	}
	if c.ResendsRoutes {
		for _, p := range l.peers {
			p.advertiseAll()
		}
	}
	return refused
}

func (l *library) peer(addr netip.Addr) *neighbour {
	i := slices.IndexFunc(l.peers, func(p *neighbour) bool { return p.Neighbour == addr })
	if i < 0 {
		return nil
	}
	return l.peers[i]
}

// How soon a neighbour is called.
const minCall, maxCall = 100 * time.Millisecond, 2 * time.Second

func (l *library) add(p routes.Peer) {
	n := &neighbour{
		Peer: p, library: l, session: routes.Session{Neighbour: p.Neighbour, State: "Active"}, sent: map[netip.Prefix]bool{},
	}
	for _, r := range l.speaker.node.routers {
		if r.Addr == p.Neighbour {
			n.router = r
		}
	}
	l.peers = append(l.peers, n)
	n.callSoon()
}

// remove ends a session, with a message or without one.
func (l *library) remove(addr netip.Addr, byMessage bool) {
	n := l.peer(addr)
	if n == nil {
		return
	}
	n.isRemoved = true
	l.peers = slices.DeleteFunc(l.peers, func(p *neighbour) bool { return p == n })
	n.close(byMessage)
}

// close closes the connection of a session.
func (n *neighbour) close(byMessage bool) {
	c := n.connection
	if c == nil || c.isClosed {
		return
	}
	n.connection = nil
	c.sendToRouter(func() {
		c.isClosed = true
		if byMessage {
			c.router.end(c, "the node ends the session")
			return
		}
		c.router.lose(c)
	})
}

func (n *neighbour) callSoon() {
	s := n.library.speaker
	s.after(s.world.Between(minCall, maxCall), n.call)
}

// call opens a session.
func (n *neighbour) call() {
	s := n.library.speaker
	switch {
	case n.isRemoved || n.library.isStopped || n.connection != nil:
		return
	case n.router == nil || n.router.isRefusing || !n.router.hears(s.node):
		n.note("the neighbour does not answer")
		s.after(time.Duration(n.ConnectSeconds)*time.Second, n.call)
		return
	case n.router.refusal != "":
		n.note(n.router.refusal)
		s.after(time.Duration(n.ConnectSeconds)*time.Second, n.call)
		return
	}
	now := time.Now()
	c := &connection{
		world: s.world, node: s.node, router: n.router, peer: n, boot: s.node.boots,
		began: now, heardByRouter: now, heardByNode: now,
	}
	n.connection = c
	opened := n.Peer
	c.sendToRouter(func() {
		c.router.open(c, opened)
		c.sendToNode(func() { n.up(c) })
	})
	s.world.After(time.Duration(n.KeepaliveSeconds)*time.Second, c.keepAlive)
}

// up notes that the session is up, and sends all routes.
func (n *neighbour) up(c *connection) {
	s := n.library.speaker
	if s.isKilled || n.connection != c {
		return
	}
	s.after(s.world.Between(minSlice, maxSlice), func() {
		if n.connection != c {
			return
		}
		n.session.State, n.session.Since = v1.SessionEstablished, time.Now()
		n.session.PeerASN, n.session.Families = uint32(n.PeerASN), n.Families //nolint:gosec // the schema bounds it
		n.SetsRestartState = false
		clear(n.sent)
		n.advertiseAll()
		c.sendToRouter(func() { c.router.confirm(c.node) })
		n.session.HasSentAll = true
		n.library.changed()
	})
}

// down notes that the session is down, and opens the next one.
func (n *neighbour) down(why string) {
	n.connection = nil
	s := n.library.speaker
	if s.isKilled {
		return
	}
	s.after(s.world.Between(minSlice, maxSlice), func() {
		n.session.State, n.session.Since, n.session.HasSentAll, n.session.Families = "Idle", time.Now(), false, nil
		n.session.LastError = why
		clear(n.sent)
		n.library.changed()
		n.callSoon()
	})
}

func (n *neighbour) note(why string) {
	if n.session.LastError != why {
		n.session.LastError = why
		n.library.changed()
	}
}

// isKept reports whether a rule keeps a route from the neighbour, or the session does not carry it.
func (n *neighbour) isKept(prefix netip.Prefix) bool {
	if !slices.Contains(n.Families, v1.FamilyOf(prefix.Addr())) {
		return true
	}
	return slices.ContainsFunc(n.library.rules, func(r routes.Rule) bool {
		return r.Reject && slices.Contains(r.Neighbours, n.Neighbour) && slices.Contains(r.Prefixes, prefix)
	})
}

func (n *neighbour) isUp() bool {
	return n.connection != nil && n.session.State == v1.SessionEstablished
}

func (n *neighbour) advertise(path routes.Path) {
	if !n.isUp() {
		return
	}
	if n.isKept(path.Prefix) {
		n.withdraw(path.Prefix)
		return
	}
	n.sent[path.Prefix] = true
	c := n.connection
	c.sendToRouter(func() { c.router.take(c.node, path) })
}

func (n *neighbour) withdraw(prefix netip.Prefix) {
	if !n.isUp() || !n.sent[prefix] {
		return
	}
	delete(n.sent, prefix)
	c := n.connection
	c.sendToRouter(func() { c.router.untake(c.node, prefix) })
}

func (n *neighbour) advertiseAll() {
	for _, path := range n.library.paths {
		n.advertise(path)
	}
}

func (l *library) TendSessions(context.Context) ([]routes.Session, error) {
	var sessions []routes.Session
	for _, p := range l.peers {
		p.session.Advertised = len(p.sent)
		sessions = append(sessions, p.session)
	}
	return sessions, nil
}

// ResetSession ends a session that is up with a message.
func (l *library) ResetSession(_ context.Context, addr netip.Addr) error {
	if n := l.peer(addr); n != nil && n.isUp() && !l.speaker.isKilled {
		c := n.connection
		n.close(true)
		n.connection = c
		n.down("BFD is down: the neighbour's BFD does not answer, or the link is dead")
	}
	return nil
}

func (l *library) Stop(_ context.Context, isGraceful bool) error {
	if l.speaker.isKilled {
		return errLibrary
	}
	l.end(!isGraceful)
	return nil
}

// end closes all connections.
func (l *library) end(byMessage bool) {
	l.isStopped = true
	for _, p := range l.peers {
		p.isRemoved = true
		p.close(byMessage)
	}
}

// watcher watches neighbours by BFD, as they watch the node.
type watcher struct {
	speaker *speaker
	changed func()
	failed  func(netip.Addr)
	watched []*watch
}

// watch is the BFD session with a neighbour.
type watch struct {
	bfd.NeighbourSettings
	addr    netip.Addr
	router  *Router
	isUp    bool
	lastly  time.Time
	isEnded bool
}

// Sync makes the neighbours that are watched those.
func (w *watcher) Sync(wanted map[netip.Addr]bfd.NeighbourSettings) {
	if w.speaker.isKilled {
		return
	}
	w.watched = slices.DeleteFunc(w.watched, func(one *watch) bool {
		if _, isWanted := wanted[one.addr]; isWanted {
			return false
		}
		w.endOne(one)
		return true
	})
	for _, r := range w.speaker.node.routers {
		how, isWanted := wanted[r.Addr]
		i := slices.IndexFunc(w.watched, func(one *watch) bool { return one.addr == r.Addr })
		switch {
		case isWanted && i >= 0:
			w.watched[i].NeighbourSettings = how
		case isWanted:
			one := &watch{NeighbourSettings: how, addr: r.Addr, router: r, lastly: time.Now()}
			w.watched = append(w.watched, one)
			w.speaker.world.After(how.Interval, func() { w.look(one) })
		}
	}
}

// endOne ends a watch: a router that still has the session drops the routes.
func (w *watcher) endOne(one *watch) {
	one.isEnded = true
	w.routerDrops(one, "BFD has ended")
}

func (w *watcher) routerDrops(one *watch, why string) {
	// A router makes its session of BFD anew when that of BGP is up: what became of the one before does not matter.
	a := one.router.neighbours[w.speaker.node]
	isOfSpeaker := a != nil && a.connection != nil && a.connection.peer.library.speaker == w.speaker
	if one.isUp && isOfSpeaker && !one.router.IsDown {
		c := a.connection
		one.router.end(c, why)
		c.isClosed = false // the node learns of it
		c.isForgotten = true
	}
	one.isUp = false
}

// look looks whether the packets of both sides get through, as often as those are sent.
func (w *watcher) look(one *watch) {
	s := w.speaker
	if one.isEnded {
		return
	}
	s.world.After(one.Interval, func() { w.look(one) })
	limit := one.Interval * time.Duration(one.Multiplier)
	switch gets := !s.isKilled && !s.isPaused() && one.router.hears(s.node); {
	case gets && !one.isUp && time.Since(one.lastly) >= time.Second:
		one.isUp, one.lastly = true, time.Now()
		s.after(0, w.changed)
	case gets && one.isUp:
		one.lastly = time.Now()
	case one.isUp && time.Since(one.lastly) > limit:
		w.routerDrops(one, "BFD is down")
		one.lastly = time.Now()
		s.after(0, func() {
			w.failed(one.addr)
			w.changed()
		})
	case !gets && !one.isUp:
		one.lastly = time.Now()
	}
	if s.isKilled && !one.isUp {
		one.isEnded = true
	}
}

func (w *watcher) State(addr netip.Addr) bfd.State {
	for _, one := range w.watched {
		if one.addr == addr && one.isUp {
			return bfd.Up
		}
	}
	return bfd.Down
}

// Wait ends all watches: their context has ended. Routers learn of the end of BGP before.
func (w *watcher) Wait() {
	if w.speaker.isKilled {
		return
	}
	for _, one := range w.watched {
		one.isEnded = true
		w.speaker.world.After(2*maxTransit, func() { w.routerDrops(one, "BFD has ended") })
	}
	w.watched = nil
}
