package nodeagent

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/order"
	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/internal/tasks"
	"github.com/purelb/purelb-operator/nodeagent/neigh"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// defender listens to what other stations say of the node's Local addresses, asks for them, and
// does at once what plan.Defence decides: it claims an address, yields it, or asks a station.
// What to remember about addresses is in plan.Defence; what else it remembers is lost with the
// process, and learnt again from the kernel.
type defender struct {
	kernel     Kernel
	neighbours Stations
	announcer  *announcer
	freshness  *freshness
	metrics    *Metrics
	tasks      tasks.Runner
	// wake is signalled when the worker has something to do.
	wake chan<- struct{}
	// carrierReturned is signalled when an interface has got its carrier back, and yielded when
	// there are yielded addresses to ask for.
	carrierReturned, yielded chan struct{}
	gateways                 gatewayCache

	mu      sync.Mutex
	ctx     context.Context // of Start; nil before
	defence *plan.Defence
	// stopListening stops listening on an interface, by its name.
	stopListening map[string]context.CancelFunc
	// isUp says which links are up, by name.
	isUp map[string]bool
	// wakes bounds how often the worker is woken, and isWaking means that it will be.
	wakes    pacing.Batch
	isWaking bool
}

func newDefender(a *Agent) *defender {
	return &defender{
		kernel: a.Kernel, neighbours: a.Neighbours, announcer: a.announcer, freshness: a.freshness, metrics: a.Metrics,
		tasks: a.Tasks, wake: a.wake,
		carrierReturned: make(chan struct{}, 1), yielded: make(chan struct{}, 1),
		gateways: newGatewayCache(a.Kernel), defence: plan.NewDefence(),
		stopListening: map[string]context.CancelFunc{}, isUp: map[string]bool{}, wakes: pacing.Batch{Gap: wakeGap},
	}
}

// NeedLeaderElection is false: every node has neighbours.
func (g *defender) NeedLeaderElection() bool { return false }

// Start listens, and asks for the held addresses while the agent is not fresh, until ctx ends.
func (g *defender) Start(ctx context.Context) error {
	g.mu.Lock()
	g.ctx = ctx
	g.listen()          //nolint:contextcheck // it is g.ctx
	g.beginChallenges() //nolint:contextcheck // as above
	g.mu.Unlock()
	g.tasks.Go(func() { g.askYielded(ctx) })
	g.tasks.Go(func() {
		if err := g.kernel.WatchLinks(ctx, g.noteLinks); err != nil {
			log.FromContext(ctx).Error(err, "Links are not watched: the agent does not notice when a carrier comes back")
		}
	})
	g.askHeld(ctx)
	return nil
}

// noteLinks replaces what is known of the links. On a link that has come up another station may
// have the node's addresses.
func (g *defender) noteLinks(links []plan.Link) {
	g.mu.Lock()
	defer g.mu.Unlock()
	before := g.isUp
	g.isUp = make(map[string]bool, len(links))
	for _, l := range links {
		if wasUp, isKnown := before[l.Name]; isKnown && l.Up && !wasUp {
			pacing.Signal(g.carrierReturned)
		}
		g.isUp[l.Name] = l.Up
	}
}

// isNotDown reports whether an interface has a carrier, as far as the defender knows. The caller
// holds the lock.
func (g *defender) isNotDown(iface string) bool {
	isUp, isKnown := g.isUp[iface]
	return isUp || !isKnown
}

// noteObserved makes the defender use the node's addresses and gateways that the agent has just observed.
func (g *defender) noteObserved(observed plan.Observed) {
	g.gateways.note(plan.Gateways(observed))
	g.mu.Lock()
	defer g.mu.Unlock()
	g.defence.NodeAddresses = observed.Addresses
}

// forgetYields forgets the yields that do not matter any more, by what is desired.
func (g *defender) forgetYields(desired []plan.Desired) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.defence.ForgetYields(desired)
	if len(g.defence.Yields) > 0 {
		g.listen()
		pacing.Signal(g.yielded)
	}
}

// forgetYieldsOfEarlierEntries forgets the yields that Announcements which the API server has
// just listed know nothing of.
func (g *defender) forgetYieldsOfEarlierEntries(listed []purelbv1.Announcement) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.defence.ForgetYieldsOfEarlierEntries(listed)
}

// hold replaces what the node holds.
func (g *defender) hold(held []plan.Held) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.defence.Hold(held)
	g.listen()
	g.beginChallenges()
}

// beginChallenges begins to check the claims that the manager asks to check. The caller holds the
// lock.
func (g *defender) beginChallenges() {
	if g.ctx == nil {
		return
	}
	for _, r := range g.defence.BeginChallenges(time.Now()) {
		g.carryOut(g.ctx, r)
	}
}

// checkedChallenges returns the epochs of the claims that were checked, by address.
func (g *defender) checkedChallenges() map[netip.Addr]int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.defence.CheckedChallenges()
}

// heldAndYields returns copies of what the node holds and has yielded, by address.
func (g *defender) heldAndYields() (map[netip.Addr]plan.Held, map[netip.Addr]plan.YieldedAddress) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.defence.Held), maps.Clone(g.defence.Yields)
}

// restoreYields takes over what an earlier process of the agent had yielded.
func (g *defender) restoreYields(yields map[netip.Addr]plan.YieldedAddress) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.defence.RestoreYields(yields, time.Now())
}

// unlessYielded changes an address that the node is to have, unless the agent has yielded it:
// then it returns the Result. Nothing yields the address meanwhile.
func (g *defender) unlessYielded(
	d *plan.Desired, isReclaim bool, change func() error,
) (result plan.Result, isDone bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	result, isAllowed := g.defence.MayHave(d, isReclaim, time.Now())
	if !isAllowed {
		return result, false, nil
	}
	return plan.Result{}, true, change()
}

// noteAdded notes that an address was added and is announced.
func (g *defender) noteAdded(d *plan.Desired) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.defence.NoteAdded(d, time.Now())
}

// noteProbeAnswers notes that stations have answered probes for yielded addresses.
func (g *defender) noteProbeAnswers(answers map[netip.Addr]plan.Probe) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for addr, answer := range answers {
		g.defence.NoteProbeAnswer(addr, answer)
	}
}

// contests returns the claims of held addresses that were heard lately.
func (g *defender) contests() map[netip.Addr]plan.Contest {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.defence.Contests(time.Now())
}

// listen listens on the interfaces of what is held or yielded, and on no others.
func (g *defender) listen() {
	if g.ctx == nil {
		return
	}
	wanted := g.defence.Interfaces()
	for iface, stop := range order.ByKey(g.stopListening, strings.Compare) {
		if !wanted[iface] {
			stop()
			delete(g.stopListening, iface)
		}
	}
	for iface := range order.ByKey(wanted, strings.Compare) {
		if g.stopListening[iface] != nil {
			continue
		}
		ctx, stop := context.WithCancel(g.ctx)
		g.stopListening[iface] = stop
		g.tasks.Go(func() { g.listenOn(ctx, iface) })
	}
}

func (g *defender) listenOn(ctx context.Context, iface string) {
	for ctx.Err() == nil {
		err := g.neighbours.Listen(ctx, iface, g.isWatched, func(m neigh.Message) { g.hear(ctx, iface, m) })
		if err != nil {
			log.FromContext(ctx).V(1).Info("Listening again shortly", "interface", iface, "error", err.Error())
		}
		g.tasks.Wait(ctx, relistenAfter)
	}
}

func (g *defender) isWatched(addr netip.Addr) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.defence.IsWatched(addr)
}

// hear does what a station's message about a held or yielded address asks for. The address is
// gone from the interface when the agent has yielded it and hear returns.
func (g *defender) hear(ctx context.Context, iface string, m neigh.Message) {
	isGateway := slices.Contains(g.gateways.macsOf(iface), m.MAC)
	isFresh, now := g.freshness.isFresh(), time.Now()
	frame := plan.Frame{
		Addr: m.Addr, MAC: m.MAC.String(), IsRequest: m.Kind == neigh.Request, IsAdvertisement: m.Kind == neigh.Advertisement,
		IsGratuitous: m.Gratuitous, IsDirect: m.Direct,
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.carryOut(ctx, g.defence.Hear(iface, frame, isFresh, isGateway, now))
}

// carryOut does what a Reaction says. The caller holds the lock.
func (g *defender) carryOut(ctx context.Context, r plan.Reaction) {
	addr, iface := r.Held.Prefix.Addr(), r.Held.Interface
	if r.Contested != "" {
		g.metrics.conflicts.Inc()
		if r.MayLog {
			log.FromContext(ctx).Info(
				"Another station claims an address of this node", "address", addr, "interface", iface, "mac", r.Contested,
			)
		}
		g.wakeWorker(ctx)
	}
	if r.Claim {
		g.announcer.announceOnce(iface, addr)
	}
	if r.YieldTo != "" {
		g.withdrawYielded(ctx, r)
	}
	if r.Check != nil {
		within := g.tasks.Random(r.CheckWithin)
		g.tasks.Go(func() {
			g.tasks.Wait(ctx, within)
			g.check(ctx, r.Check, iface)
		})
	}
	if r.Report {
		g.wakeWorker(ctx)
	}
}

// withdrawYielded removes an address that the agent yields to a station whose kernel has it.
func (g *defender) withdrawYielded(ctx context.Context, r plan.Reaction) {
	addr, iface := r.Held.Prefix.Addr(), r.Held.Interface
	g.announcer.cancel(iface, addr)
	err := g.kernel.Remove(r.Held.Address)
	if err == nil {
		g.metrics.yields.Inc()
		g.metrics.withdrawals.Inc()
	}
	switch logger := log.FromContext(ctx); {
	case !r.MayLog:
	case err != nil:
		logger.Error(err, "An address could not be yielded to another station, which claims it and answers for it")
	default:
		logger.Info(
			"Yielded an address to another station, which claims it and answers for it", "address", addr, "interface", iface,
			"mac", r.YieldTo,
		)
	}
	pacing.Signal(g.yielded)
	g.wakeWorker(ctx)
}

// check asks a station by itself for a held address, a few times.
func (g *defender) check(ctx context.Context, c *plan.Check, iface string) {
	for ctx.Err() == nil {
		g.mu.Lock()
		step := g.defence.AskOn(c, time.Now())
		g.carryOut(ctx, step.Reaction)
		question := g.question(iface, c.Addr, nil)
		g.mu.Unlock()
		if macs := neigh.ParseMACs([]string{c.MAC}); step.Ask && len(macs) > 0 {
			_ = g.neighbours.AskStation(question, macs[0]) // what is not sent is not answered
		}
		if len(step.AskNodes) > 0 {
			isAlone := g.isAlone(ctx, iface, step.AskNodes)
			g.mu.Lock()
			g.carryOut(ctx, g.defence.EndChallenge(c, isAlone, time.Now()))
			g.mu.Unlock()
		}
		if step.Next == 0 {
			return
		}
		g.tasks.Wait(ctx, step.Next)
	}
}

// isAlone reports whether neither a node nor a gateway on the link of an interface answers. What could not
// be asked proves nothing.
func (g *defender) isAlone(ctx context.Context, iface string, nodes []netip.Addr) bool {
	var questions []neigh.Question
	for _, addr := range slices.Concat(nodes, g.gateways.all()[iface]) {
		isAsked := slices.ContainsFunc(questions, func(q neigh.Question) bool { return q.Addr == addr })
		if !isAsked && g.canAsk(iface, addr) {
			questions = append(questions, g.questionFrom(iface, addr))
		}
	}
	answers := g.neighbours.Probe(ctx, questions, aloneQuestions, aloneInterval)
	return len(questions) > 0 && len(answers) == 0 && ctx.Err() == nil
}

// wakeWorker wakes the worker, wakeGap after the last time at the earliest. The caller holds
// the lock.
func (g *defender) wakeWorker(ctx context.Context) {
	if g.isWaking {
		return
	}
	g.isWaking = true
	wait := g.wakes.Delay(time.Now())
	g.tasks.Go(func() {
		g.tasks.Wait(ctx, wait)
		g.mu.Lock()
		g.isWaking = false
		g.wakes.Note(time.Now())
		g.mu.Unlock()
		pacing.Signal(g.wake)
	})
}
