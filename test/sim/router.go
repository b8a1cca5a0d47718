package sim

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/purelb/purelb-operator/nodeagent/speaker/routes"
)

// Router is a router on the link of the nodes. It takes routes from their speakers, and sends what comes for an
// address to the nodes that have the most specific route for it, to some of them by turns. It supports graceful
// restart (RFC 4724), and watches neighbours by BFD that watch it.
type Router struct {
	world *World
	Addr  netip.Addr
	// segment is the link of its port.
	segment *Segment
	port    *Port
	// neighbours are what it has of nodes.
	neighbours map[*Node]*adjacency
	// IsDown means that it restarts: nothing is sent anywhere.
	IsDown bool
	// isRefusing means that it opens no session.
	isRefusing bool
	// refusal, if set, is what the BGP library says of each session that the router does not let come up.
	refusal string
	// InstallsAfter, if set, is how long it takes until the router sends by what it has learnt.
	InstallsAfter time.Duration
	// sends are the routes by which it sends, which follow those that it takes after a while.
	sends map[netip.Prefix][]*Node
}

// adjacency is what a router has of a node.
type adjacency struct {
	connection *connection
	routes     map[netip.Prefix]*taken
	// restart is how long the node may take to restart; 0 if the routes go with the session.
	restart time.Duration
	// staleSince is since when no session has confirmed some routes; zero if all are confirmed.
	staleSince time.Time
	forget     *Happening
}

// bfdWithin is how soon after a session BFD is up.
const bfdWithin = 8 * time.Second

// timeToNotice returns how long it takes until a router notices that a node is gone.
func (a *adjacency) timeToNotice() time.Duration {
	switch {
	case a == nil || a.connection == nil:
		return 0
	case a.connection.peer.BFDIntervalMilliseconds > 0 && time.Since(a.connection.began) > bfdWithin:
		p := a.connection.peer
		return time.Duration((p.BFDMultiplier+2)*p.BFDIntervalMilliseconds) * time.Millisecond
	}
	return time.Duration(a.connection.peer.HoldSeconds) * time.Second
}

// taken is a route that a router has taken.
type taken struct {
	// isAvoided means that others are to be preferred, and isStale that no session has confirmed the route.
	isAvoided, isStale bool
}

// NewRouter connects a router to a segment.
func (w *World) NewRouter(on *Segment, name string, addr netip.Addr) *Router {
	r := &Router{
		world: w, segment: on, Addr: addr, neighbours: map[*Node]*adjacency{}, sends: map[netip.Prefix][]*Node{},
	}
	r.port = on.Connect(name, func([]byte) {})
	return r
}

// hears reports whether packets get from a node to a router and back.
func (r *Router) hears(n *Node) bool {
	port := n.portOn(r.segment)
	return !r.IsDown && !n.isOff && port != nil && !port.IsDown && !r.port.isCutFrom[port] && !port.isCutFrom[r.port]
}

func (r *Router) adjacencyOf(n *Node) *adjacency {
	if r.neighbours[n] == nil {
		r.neighbours[n] = &adjacency{routes: map[netip.Prefix]*taken{}}
	}
	return r.neighbours[n]
}

// open takes a session that a node opens. One that the node has had is over.
func (r *Router) open(c *connection, p routes.Peer) {
	a := r.adjacencyOf(c.node)
	if a.connection != nil {
		a.connection.isClosed = true
		r.keepRoutes(c.node)
	}
	a.connection, a.restart = c, time.Duration(p.RestartSeconds)*time.Second
	if a.forget != nil {
		a.forget.Cancel()
		a.forget = nil
	}
	if a.restart == 0 || !p.SetsRestartState { // its kernel may have forgotten what it forwarded
		r.dropStale(c.node)
	}
	r.world.Tell(r.port.name, "the session of %s is up", c.node.Name)
}

// take takes a route, and untake takes it back.
func (r *Router) take(n *Node, path routes.Path) {
	isAvoided := slices.Contains(path.Communities, routes.GracefulShutdownCommunity)
	r.adjacencyOf(n).routes[path.Prefix] = &taken{isAvoided: isAvoided}
	r.world.Tell(r.port.name, "has %s by way of %s, avoided %v", path.Prefix, n.Name, isAvoided)
	r.installSoon()
}

func (r *Router) untake(n *Node, prefix netip.Prefix) {
	delete(r.adjacencyOf(n).routes, prefix)
	r.world.Tell(r.port.name, "has %s by way of %s no more", prefix, n.Name)
	r.installSoon()
}

// confirm ends what a node sends first in a session: routes that were not among that are gone.
func (r *Router) confirm(n *Node) { r.dropStale(n) }

// lose notes that a session is over without a message.
func (r *Router) lose(c *connection) {
	a := r.adjacencyOf(c.node)
	if a.connection != c {
		return
	}
	a.connection = nil
	r.world.Tell(r.port.name, "the session of %s is closed", c.node.Name)
	r.keepRoutes(c.node)
}

// keepRoutes keeps the routes of a node for as long as that may take to restart.
func (r *Router) keepRoutes(n *Node) {
	a := r.adjacencyOf(n)
	if a.restart == 0 {
		r.drop(n, "without graceful restart")
		return
	}
	for _, t := range a.routes {
		t.isStale = true
	}
	if a.forget != nil {
		a.forget.Cancel()
	}
	a.staleSince = time.Now()
	a.forget = r.world.After(a.restart, func() {
		a.forget = nil
		r.dropStale(n)
	})
}

// end ends a session with a message, which says why. The routes go.
func (r *Router) end(c *connection, why string) {
	a := r.adjacencyOf(c.node)
	if a.connection != c {
		return
	}
	a.connection = nil
	c.isClosed = true
	r.drop(c.node, why)
}

// drop forgets all routes of a node.
func (r *Router) drop(n *Node, why string) {
	a := r.adjacencyOf(n)
	r.world.Tell(r.port.name, "drops the routes of %s: %s", n.Name, why)
	clear(a.routes)
	a.staleSince = time.Time{}
	r.installSoon()
}

func (r *Router) dropStale(n *Node) {
	a := r.adjacencyOf(n)
	a.staleSince = time.Time{}
	before := len(a.routes)
	maps.DeleteFunc(a.routes, func(_ netip.Prefix, t *taken) bool { return t.isStale })
	if len(a.routes) < before {
		r.world.Tell(r.port.name, "drops %d stale routes of %s", before-len(a.routes), n.Name)
		r.installSoon()
	}
}

// How long it takes until a router sends by what it has learnt, unless it says so.
const minInstall, maxInstall = 5 * time.Millisecond, 300 * time.Millisecond

func (r *Router) installSoon() {
	r.world.version++
	wait := r.InstallsAfter
	if wait == 0 {
		wait = r.world.Between(minInstall, maxInstall)
	}
	r.world.After(wait, func() {
		r.sends = r.best()
		r.world.version++
	})
}

// best returns by way of which nodes each prefix is sent, in the order of their names.
func (r *Router) best() map[netip.Prefix][]*Node {
	best, avoided := map[netip.Prefix][]*Node{}, map[netip.Prefix][]*Node{}
	for n, a := range r.neighbours {
		for prefix, t := range a.routes {
			if t.isAvoided {
				avoided[prefix] = append(avoided[prefix], n)
				continue
			}
			best[prefix] = append(best[prefix], n)
		}
	}
	for prefix, nodes := range avoided {
		if best[prefix] == nil {
			best[prefix] = nodes
		}
	}
	for _, nodes := range best {
		slices.SortFunc(nodes, func(a, b *Node) int { return strings.Compare(a.Name, b.Name) })
	}
	return best
}

// SendsTo returns the nodes to which what comes for an address is sent by turns.
func (r *Router) SendsTo(addr netip.Addr) []*Node {
	if r.IsDown {
		return nil
	}
	for bits := addr.BitLen(); bits >= 0; bits-- {
		prefix, err := addr.Prefix(bits)
		if err != nil {
			return nil
		}
		if nodes := r.sends[prefix]; len(nodes) > 0 {
			return nodes
		}
	}
	return nil
}

// hasRoute reports whether a router has a route to an address by way of a node.
func (r *Router) hasRoute(n *Node, addr netip.Addr) bool {
	a := r.neighbours[n]
	if a == nil {
		return false
	}
	for prefix := range a.routes {
		if prefix.Contains(addr) {
			return true
		}
	}
	return false
}

// Crash makes a router lose all that it knows, and do nothing until Restart.
func (r *Router) Crash() {
	r.IsDown = true
	for _, n := range r.nodes() {
		a := r.neighbours[n]
		if a.forget != nil {
			a.forget.Cancel()
		}
		if c := a.connection; c != nil {
			c.isForgotten = true
		}
	}
	clear(r.neighbours)
	clear(r.sends)
}

// Restart lets a router work that has crashed.
func (r *Router) Restart() { r.IsDown = false }

// Reset ends all sessions with a message.
func (r *Router) Reset() {
	for _, n := range r.nodes() {
		if c := r.neighbours[n].connection; c != nil {
			r.end(c, "the router ends the session")
			c.sendToNode(func() { c.over("the neighbour ended the session") })
			c.isClosed = false // until the message has come
		}
	}
}

// nodes returns those of which the router has something, in their order.
func (r *Router) nodes() []*Node {
	return slices.SortedFunc(maps.Keys(r.neighbours), func(a, b *Node) int { return strings.Compare(a.Name, b.Name) })
}

// IsUp reports whether the router has a session with a node.
func (r *Router) IsUp(n *Node) bool {
	a := r.neighbours[n]
	return a != nil && a.connection != nil
}
