package nodeagent

import (
	"context"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/purelb/purelb-operator/nodeagent/neigh"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

const (
	// defendInterval is how often an address is defended at the most (RFC 5227
	// section 2.4, DEFEND_INTERVAL).
	defendInterval = 10 * time.Second
	// askInterval is how often an agent that is not fresh asks for its own
	// addresses, and askPace how many it asks for in a second.
	askInterval = time.Second
	askPace     = 200
	// For eagerFor after a carrier came back it asks each eagerInterval: a switch may
	// not forward at once.
	eagerInterval = 50 * time.Millisecond
	eagerFor      = 5 * time.Second
	// askedLately is for how long what is heard of an address may be the answer to
	// having asked for it: an advertisement does not say.
	askedLately = 250 * time.Millisecond
	// suspicion is for how long a station that answered is suspected.
	suspicion = time.Second
	// hesitation is the most that is waited before a suspect is asked again, at
	// random: of two that suspect each other one asks first, and the other stays.
	hesitation = 100 * time.Millisecond
	// yieldFor, and up to as long again as yieldSpread, is how long nobody has to
	// answer for an address that was given up, before it is claimed again.
	yieldFor    = 3 * time.Second
	yieldSpread = time.Second
	// contestFor is for how long a claim of another station is reported.
	contestFor = 30 * time.Second
	// repeatInterval is how often a claim is repeated against a previous holder
	// that still answers, and repeatFor until when: by then its address has faded.
	repeatInterval = 5 * time.Second
	repeatFor      = 300 * time.Second
	// relisten is how long after an interface could not be listened to it is tried
	// again.
	relisten = 200 * time.Millisecond
)

// guard listens to what other stations say of the node's Local addresses, and
// defends or yields them. What it remembers may be lost: a yield is in the
// checkpoint, and all else is learnt again.
type guard struct {
	agent *Agent
	// changed says that something of the kernel has changed, and carrier that an
	// interface has got its carrier back.
	changed, carrier chan struct{}

	mu        sync.Mutex
	ctx       context.Context // of Start; nil before
	held      map[netip.Addr]plan.Held
	yields    map[netip.Addr]plan.Yielded
	watched   map[netip.Addr]*watched
	listening map[string]context.CancelFunc
	up        map[string]bool // by interface, when last seen
	gateways  gateways
}

// gateways is where the gateways are: what was looked up lately is not looked up
// again, as anybody may make a lot of noise.
type gateways struct {
	kernel Kernel
	at     map[string]time.Time
	macs   map[string][]string
}

// gatewaysFor is for how long.
const gatewaysFor = 5 * time.Second

func (g *gateways) of(iface string) []string {
	if at, known := g.at[iface]; !known || time.Since(at) > gatewaysFor {
		g.at[iface], g.macs[iface] = time.Now(), g.kernel.GatewayMACs(iface)
	}
	return g.macs[iface]
}

func newGuard(agent *Agent) *guard {
	return &guard{
		agent: agent, changed: make(chan struct{}, 1), carrier: make(chan struct{}, 1),
		held: map[netip.Addr]plan.Held{}, yields: map[netip.Addr]plan.Yielded{}, watched: map[netip.Addr]*watched{}, listening: map[string]context.CancelFunc{},
		up: map[string]bool{}, gateways: gateways{agent.Kernel, map[string]time.Time{}, map[string][]string{}},
	}
}

// NeedLeaderElection is false: every node has neighbours.
func (g *guard) NeedLeaderElection() bool { return false }

// Start listens, and asks for the node's own addresses while the agent is not
// fresh, until ctx ends.
func (g *guard) Start(ctx context.Context) error {
	g.mu.Lock()
	g.ctx = ctx
	g.listen()
	g.mu.Unlock()
	next := time.NewTimer(askInterval)
	defer next.Stop()
	repeat := time.NewTicker(repeatInterval)
	defer repeat.Stop()
	var eager time.Time // until when
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-next.C:
			g.askAll(ctx, func(*watched) bool { return !g.agent.pulse.fresh() })
			if time.Now().Before(eager) {
				next.Reset(eagerInterval)
			} else {
				next.Reset(max(askInterval, g.agent.pulse.freshFor()))
			}
		case <-g.changed:
			g.look(ctx)
		case <-g.carrier:
			eager = time.Now().Add(eagerFor)
			next.Reset(0)
		case <-repeat.C:
			g.askAll(ctx, func(w *watched) bool { return time.Now().Before(w.repeat) })
		}
	}
}

// look looks for carriers that have come back. The worker would see it, too, but
// may be waiting for the API server.
func (g *guard) look(ctx context.Context) {
	observed, err := g.agent.Kernel.Observe()
	if err != nil {
		log.FromContext(ctx).Error(err, "Cannot see which interfaces are up")
		return
	}
	g.links(observed.Links)
}

// links notes which interfaces are up. Where one has come up another may have
// what is there.
func (g *guard) links(links []plan.Link) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, l := range links {
		if was, known := g.up[l.Name]; known && l.Up && !was {
			signal(g.carrier)
		}
		g.up[l.Name] = l.Up
	}
}

// askAll asks for those of the held addresses that are picked, at askPace.
func (g *guard) askAll(ctx context.Context, pick func(*watched) bool) {
	g.mu.Lock()
	var ask []plan.Held
	for addr, h := range g.held {
		if pick(g.watched[addr]) {
			ask = append(ask, h)
		}
	}
	g.mu.Unlock()
	slices.SortFunc(ask, func(a, b plan.Held) int { return a.Prefix.Addr().Compare(b.Prefix.Addr()) })
	const each = 20
	for i, h := range ask {
		if i > 0 && i%each == 0 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Second * each / askPace):
			}
		}
		g.ask(ctx, h)
	}
}

func (g *guard) ask(ctx context.Context, h plan.Held) {
	addr := h.Prefix.Addr()
	g.mu.Lock()
	if w := g.watched[addr]; w != nil {
		w.asked = time.Now()
	}
	g.mu.Unlock()
	if err := g.agent.Neighbours.Ask(h.Interface, addr); err != nil {
		log.FromContext(ctx).V(1).Info("Cannot ask for an address", "address", addr, "error", err.Error())
	}
}

// hold replaces what is held.
func (g *guard) hold(held []plan.Held) {
	g.mu.Lock()
	defer g.mu.Unlock()
	clear(g.held)
	for _, h := range held {
		addr := h.Prefix.Addr()
		if y, given := g.yields[addr]; given && y.Epoch >= h.Epoch {
			continue // meanwhile
		}
		g.held[addr] = h
		if g.watched[addr] == nil {
			g.watched[addr] = &watched{}
		}
		if h.Leaving { // to the previous holder, it may be
			g.watched[addr].repeat = time.Time{}
		}
	}
	maps.DeleteFunc(g.watched, func(addr netip.Addr, _ *watched) bool { _, still := g.held[addr]; return !still })
	g.listen()
}

// holds is what is held, by address.
func (g *guard) holds() map[netip.Addr]plan.Held {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.held)
}

// listen listens on the interfaces of what is held, and on no others.
func (g *guard) listen() {
	if g.ctx == nil {
		return
	}
	wanted := map[string]bool{}
	for _, h := range g.held {
		wanted[h.Interface] = true
	}
	for iface, stop := range g.listening {
		if !wanted[iface] {
			stop()
			delete(g.listening, iface)
		}
	}
	for iface := range wanted {
		if g.listening[iface] != nil {
			continue
		}
		ctx, stop := context.WithCancel(g.ctx)
		g.listening[iface] = stop
		go g.listenOn(ctx, iface)
	}
}

func (g *guard) listenOn(ctx context.Context, iface string) {
	for ctx.Err() == nil {
		err := g.agent.Neighbours.Listen(ctx, iface, g.isHeld, func(m neigh.Message) { g.heard(ctx, iface, m) })
		if err != nil {
			log.FromContext(ctx).V(1).Info("Listening again shortly", "interface", iface, "error", err.Error())
		}
		select {
		case <-ctx.Done():
		case <-time.After(relisten):
		}
	}
}

func (g *guard) isHeld(addr netip.Addr) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, held := g.held[addr]
	return held
}

// heard is what another station says of an address that is held.
func (g *guard) heard(ctx context.Context, iface string, m neigh.Message) {
	g.mu.Lock()
	defer g.mu.Unlock()
	h, held := g.held[m.Addr]
	if !held || h.Interface != iface {
		return
	}
	w, now := g.watched[m.Addr], time.Now()
	fresh, previous := g.agent.pulse.fresh(), slices.Contains(h.PreviousMACs, m.MAC.String())
	known := w.knows(m.MAC, previous, now)
	if previous && (fresh || known) && now.Before(w.repeat) {
		// It is away, and its kernel goes on: tell the link again.
		g.agent.announcer.Once(iface, m.Addr)
	}
	claims := m.Gratuitous && (m.Kind != neigh.Advertisement || now.Sub(w.asked) > askedLately)
	verdict := plan.Judge(h, claims, fresh, known)
	if verdict != plan.Ignore && slices.Contains(g.gateways.of(iface), m.MAC.String()) {
		return // a proxy answers for everybody (RFC 1027)
	}
	switch verdict {
	case plan.Yield:
		g.yield(ctx, h, m.MAC)
	case plan.Defend:
		g.defend(ctx, h, w, m.MAC)
	case plan.Remember:
		w.remember(m.MAC, now)
	case plan.Suspect:
		g.suspect(ctx, h, w, m.MAC)
	}
}

// suspect asks once more, a little later, and yields if that is answered.
func (g *guard) suspect(ctx context.Context, h plan.Held, w *watched, mac neigh.MAC) {
	now := time.Now()
	if now.Sub(w.suspect) > suspicion {
		w.suspect, w.again = now, false
		time.AfterFunc(rand.N(hesitation), func() {
			if ctx.Err() != nil || g.agent.pulse.fresh() || !g.isHeld(h.Prefix.Addr()) {
				return
			}
			g.mu.Lock()
			w.again = true
			g.mu.Unlock()
			g.ask(ctx, h)
		})
		return
	}
	if w.again {
		g.yield(ctx, h, mac)
	}
}

// defend claims an address that another station claims: once, as two that both
// insist would never end.
func (g *guard) defend(ctx context.Context, h plan.Held, w *watched, mac neigh.MAC) {
	now := time.Now()
	if w.rival != mac || now.Sub(w.claimed) > contestFor {
		log.FromContext(ctx).Info("Another station claims an address of this node", "address", h.Prefix.Addr(), "interface", h.Interface, "mac", mac.String())
		g.agent.Metrics.conflicts.Inc()
		signal(g.agent.wake)
	}
	w.rival, w.claimed = mac, now
	if now.Sub(w.defended) < defendInterval {
		return
	}
	w.defended = now
	g.agent.announcer.Once(h.Interface, h.Prefix.Addr())
}

// claimed says that an address was added although its previous holder may be
// there still.
func (g *guard) claimed(d *plan.Desired) {
	if len(d.PreviousMACs) == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	w := g.watched[d.Addr]
	if w == nil {
		w = &watched{}
		g.watched[d.Addr] = w
	}
	w.repeat = time.Now().Add(repeatFor)
}

// contested is who has claimed an address of ours lately, and is to be reported.
func (g *guard) contested(addr netip.Addr) (mac string, again time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	w := g.watched[addr]
	if w == nil || w.claimed.IsZero() {
		return "", 0
	}
	if left := contestFor - time.Since(w.claimed); left > 0 {
		return w.rival.String(), left
	}
	return "", 0
}
