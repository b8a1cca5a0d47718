package nodeagent

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

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
		gateways: newGatewayCache(a.Kernel, a.Tasks.Now), defence: plan.NewDefence(),
		stopListening: map[string]context.CancelFunc{}, isUp: map[string]bool{}, wakes: pacing.Batch{Gap: wakeGap},
	}
}

// NeedLeaderElection is false: every node has neighbours.
func (d *defender) NeedLeaderElection() bool { return false }

// Start listens, and asks for the held addresses while the agent is not fresh, until ctx ends.
func (d *defender) Start(ctx context.Context) error {
	d.mu.Lock()
	d.ctx = ctx
	d.syncListeners()      //nolint:contextcheck // it is d.ctx
	d.beginContestChecks() //nolint:contextcheck // as above
	d.mu.Unlock()
	d.tasks.Go(func() { d.keepAskingYielded(ctx) })
	d.tasks.Go(func() { d.watchLinks(ctx) })
	d.keepAskingHeld(ctx)
	return nil
}

// watchLinks has all changes of links noted, until ctx ends. A watch that could not begin, as when each listing was
// interrupted because pods start, is tried again.
func (d *defender) watchLinks(ctx context.Context) {
	watchAgainAndAgain(
		ctx, d.tasks, "Links are not watched: until they are, no carrier is noticed that comes back",
		func() error { return d.kernel.WatchLinks(ctx, d.noteLinks) }, func() {},
	)
}

// noteLinks replaces what is known of the links. On a link that has come up another station may
// have the node's addresses.
func (d *defender) noteLinks(links []plan.NetworkInterface) {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.isUp
	d.isUp = make(map[string]bool, len(links))
	for _, l := range links {
		if wasUp, isKnown := before[l.Name]; isKnown && l.IsUp && !wasUp {
			pacing.Signal(d.carrierReturned)
		}
		d.isUp[l.Name] = l.IsUp
	}
}

// isLinkUpLocked reports whether an interface has a carrier, as far as the defender knows. The caller
// holds the lock.
func (d *defender) isLinkUpLocked(iface string) bool {
	isUp, isKnown := d.isUp[iface]
	return isUp || !isKnown
}

// noteObserved makes the defender use the node's addresses and gateways that the agent has just observed.
func (d *defender) noteObserved(observed plan.Observed) {
	d.gateways.setGateways(plan.Gateways(observed))
	d.mu.Lock()
	defer d.mu.Unlock()
	d.defence.NodeAddresses = observed.Addresses
}

// updateYields forgets the yields that do not matter any more, by what is desired.
func (d *defender) updateYields(desired []plan.Desired) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.defence.UpdateYields(desired)
	if len(d.defence.Yields) > 0 {
		d.syncListeners()
		pacing.Signal(d.yielded)
	}
}

// forgetYieldsAboveListedEpochs forgets the yields that Announcements which the API server has
// just listed know nothing of.
func (d *defender) forgetYieldsAboveListedEpochs(listed []purelbv1.Announcement) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.defence.ForgetYieldsAboveListedEpochs(listed)
}

// setHeld replaces what the node holds.
func (d *defender) setHeld(held []plan.Held) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.defence.SetHeld(held)
	for i := range held {
		// Of an address that is not defended, the next holder is to be the last one that neighbours hear.
		if h := &held[i]; h.IsUndefended {
			d.announcer.cancel(h.Interface, h.Prefix.Addr())
		}
	}
	d.syncListeners()
	d.beginContestChecks()
}

// beginContestChecks begins to check the claims that the manager asks to check. The caller holds the
// lock.
func (d *defender) beginContestChecks() {
	if d.ctx == nil {
		return
	}
	for _, r := range d.defence.BeginContestChecks(d.tasks.Now()) {
		d.carryOut(d.ctx, r)
	}
}

// checkedContestEpochs returns the epochs of the claims that were checked, by address.
func (d *defender) checkedContestEpochs() map[netip.Addr]int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.defence.CheckedContestEpochs()
}

// heldAndYields returns copies of what the node holds and has yielded, by address.
func (d *defender) heldAndYields() (map[netip.Addr]plan.Held, map[netip.Addr]plan.YieldedAddress) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.defence.Held), maps.Clone(d.defence.Yields)
}

// yields returns a copy of what the node has yielded, by address.
func (d *defender) yields() map[netip.Addr]plan.YieldedAddress {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.defence.Yields)
}

// restoreYields takes over what an earlier process of the agent had yielded.
func (d *defender) restoreYields(yields map[netip.Addr]plan.YieldedAddress) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.defence.RestoreYields(yields, d.tasks.Now())
}

// changeUnlessYielded changes an address that the node is to have or keeps, unless the agent has yielded it:
// then it returns the Result. Nothing yields the address meanwhile.
func (d *defender) changeUnlessYielded(
	desired *plan.Desired, isReclaim bool, change func() error,
) (result plan.Result, isAllowed bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if result, isAllowed = d.defence.AllowChange(desired, isReclaim, d.tasks.Now()); !isAllowed {
		return result, false, nil
	}
	return plan.Result{}, true, change()
}

// noteAdded notes that an address was added and is announced.
func (d *defender) noteAdded(desired *plan.Desired) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.defence.NoteAdded(desired, d.tasks.Now())
}

// noteProbeAnswers notes that stations have answered probes for yielded addresses.
func (d *defender) noteProbeAnswers(answers map[netip.Addr]plan.ProbeState) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for addr, answer := range answers {
		d.defence.NoteProbeAnswer(addr, answer)
	}
}

// rivals returns the claims of held addresses that were heard lately.
func (d *defender) rivals() map[netip.Addr]plan.Rival {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.defence.Rivals(d.tasks.Now())
}

// syncListeners makes the defender listen on the interfaces of what is held or yielded, and on no others. The
// caller holds the lock.
func (d *defender) syncListeners() {
	if d.ctx == nil {
		return
	}
	wanted := d.defence.ListenInterfaces()
	for iface, stop := range order.ByKey(d.stopListening, strings.Compare) {
		if !wanted[iface] {
			stop()
			delete(d.stopListening, iface)
		}
	}
	for iface := range order.ByKey(wanted, strings.Compare) {
		if d.stopListening[iface] != nil {
			continue
		}
		ctx, stop := context.WithCancel(d.ctx)
		d.stopListening[iface] = stop
		d.tasks.Go(func() { d.listenOn(ctx, iface) })
	}
}

func (d *defender) listenOn(ctx context.Context, iface string) {
	for ctx.Err() == nil {
		err := d.neighbours.Listen(ctx, iface, d.isListenedFor, func(m neigh.Message) { d.hear(ctx, iface, m) })
		if err != nil {
			log.FromContext(ctx).V(1).Info("Listening again shortly", "interface", iface, "error", err.Error())
		}
		d.tasks.Wait(ctx, relistenAfter)
	}
}

func (d *defender) isListenedFor(addr netip.Addr) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.defence.IsListenedFor(addr)
}

// hear does what a station's message about a held or yielded address asks for. The address is
// gone from the interface when the agent has yielded it and hear returns.
func (d *defender) hear(ctx context.Context, iface string, m neigh.Message) {
	isGateway := slices.Contains(d.gateways.macsOf(iface), m.MAC)
	isFresh, now := d.freshness.isFresh(), d.tasks.Now()
	frame := plan.Frame{
		Addr: m.Addr, MAC: m.MAC.String(), IsRequest: m.Kind == neigh.ARPRequest,
		IsAdvertisement: m.Kind == neigh.NeighbourAdvertisement,
		IsGratuitous:    m.IsGratuitous, IsDirect: m.IsDirect,
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	reaction := d.defence.Hear(iface, frame, isFresh, isGateway, now)
	if reaction.IsContested {
		d.freshness.confirm()
	}
	d.carryOut(ctx, reaction)
}

// carryOut does what a Reaction says. The caller holds the lock.
func (d *defender) carryOut(ctx context.Context, r plan.Reaction) {
	addr, iface := r.Held.Prefix.Addr(), r.Held.Interface
	if r.NewRivalMAC != "" {
		d.metrics.conflicts.Inc()
		if r.MayLog {
			log.FromContext(ctx).Info(
				"Another station claims an address of this node", "address", addr, "interface", iface, "mac", r.NewRivalMAC,
			)
		}
		d.wakeWorker(ctx)
	}
	if r.Announce {
		d.announcer.announceOnce(iface, addr)
	}
	if r.YieldToMAC != "" {
		d.withdrawYielded(ctx, r)
	}
	if r.Check != nil {
		within := d.tasks.Random(r.CheckWithin)
		d.tasks.Go(func() {
			d.tasks.Wait(ctx, within)
			d.runCheck(ctx, r.Check, iface)
		})
	}
	if r.Report {
		d.wakeWorker(ctx)
	}
}

// withdrawYielded removes an address that the agent yields to a station whose kernel has it.
func (d *defender) withdrawYielded(ctx context.Context, r plan.Reaction) {
	addr, iface := r.Held.Prefix.Addr(), r.Held.Interface
	d.announcer.cancel(iface, addr)
	err := d.kernel.Remove(r.Held.Address)
	if err == nil {
		d.metrics.yields.Inc()
		d.metrics.withdrawals.Inc()
	}
	switch logger := log.FromContext(ctx); {
	case !r.MayLog:
	case err != nil:
		logger.Error(err, "An address could not be yielded to another station, which claims it and answers for it")
	default:
		logger.Info(
			"Yielded an address to another station, which claims it and answers for it", "address", addr, "interface", iface,
			"mac", r.YieldToMAC,
		)
	}
	pacing.Signal(d.yielded)
	d.wakeWorker(ctx)
}

// runCheck asks a station by itself for a held address, a few times.
func (d *defender) runCheck(ctx context.Context, c *plan.Check, iface string) {
	for ctx.Err() == nil {
		d.mu.Lock()
		step := d.defence.AdvanceCheck(c, d.tasks.Now())
		d.carryOut(ctx, step.Reaction)
		question := d.questionCountingGatewaysLocked(iface, c.Addr, nil)
		d.mu.Unlock()
		if macs := neigh.ParseMACs([]string{c.MAC}); step.Ask && len(macs) > 0 {
			_ = d.neighbours.AskStation(question, macs[0]) // what is not sent is not answered
		}
		if len(step.AloneProbeAddrs) > 0 {
			isAlone := d.probeWhetherAlone(ctx, iface, step.AloneProbeAddrs)
			d.mu.Lock()
			d.carryOut(ctx, d.defence.EndContest(c, isAlone, d.tasks.Now()))
			d.mu.Unlock()
		}
		if step.Next == 0 {
			return
		}
		d.tasks.Wait(ctx, step.Next)
	}
}

// probeWhetherAlone asks nodes and gateways on the link of an interface, and reports whether none answers. What
// could not be asked proves nothing.
func (d *defender) probeWhetherAlone(ctx context.Context, iface string, nodes []netip.Addr) bool {
	var questions []neigh.Question
	for _, addr := range slices.Concat(nodes, d.gateways.gatewaysByInterface()[iface]) {
		isAsked := slices.ContainsFunc(questions, func(q neigh.Question) bool { return q.Addr == addr })
		if !isAsked && d.hasSenderFor(iface, addr) {
			questions = append(questions, d.questionCountingGateways(iface, addr))
		}
	}
	answers := d.neighbours.Probe(ctx, questions, aloneProbes, aloneInterval)
	return len(questions) > 0 && len(answers) == 0 && ctx.Err() == nil
}

// wakeWorker wakes the worker, wakeGap after the last time at the earliest. The caller holds
// the lock.
func (d *defender) wakeWorker(ctx context.Context) {
	if d.isWaking {
		return
	}
	d.isWaking = true
	wait := d.wakes.Delay(d.tasks.Now())
	d.tasks.Go(func() {
		d.tasks.Wait(ctx, wait)
		d.mu.Lock()
		d.isWaking = false
		d.wakes.Note(d.tasks.Now())
		d.mu.Unlock()
		pacing.Signal(d.wake)
	})
}
