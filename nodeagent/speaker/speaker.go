package speaker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/internal/tasks"
	"github.com/purelb/purelb-operator/nodeagent/internal/file"
	"github.com/purelb/purelb-operator/nodeagent/internal/report"
	"github.com/purelb/purelb-operator/nodeagent/internal/watchdog"
	"github.com/purelb/purelb-operator/nodeagent/plan"
	"github.com/purelb/purelb-operator/nodeagent/speaker/routes"
)

// FieldOwner of the status of NodeRoutings.
const FieldOwner = "purelb-speaker"

const (
	// pollInterval is how often the speaker looks by itself: for passwords, for routers of
	// unnumbered sessions, and at the sessions.
	pollInterval = 5 * time.Second
	// lookAgainTime is after how long addresses that have gone are looked for again.
	lookAgainTime = 10 * time.Millisecond
	// proxyPatience is how long a speaker that starts waits for the node's service proxy.
	proxyPatience = 30 * time.Second
	// proxyInterval is how often the speaker asks the proxy meanwhile.
	proxyInterval = time.Second
	// readyPatience is after how long a speaker counts as ready although sessions are down or it has no
	// NodeRouting: a router that is away does not hold up the update of other nodes.
	readyPatience = 45 * time.Second
	// checkpointPatience is how long a speaker that starts waits for the API server before it works by the
	// checkpoint: less than neighbours keep routes.
	checkpointPatience = 2 * time.Second
	// stallTime is how long a round may take before the speaker counts as stuck.
	stallTime = 30 * time.Second
	// stopTimeout bounds the end of the sessions.
	stopTimeout = 5 * time.Second

	// reportGap is the least time between two reports, and reportTimeout how long one may take.
	reportGap     = 500 * time.Millisecond
	reportTimeout = 5 * time.Second
	// minFailureGap and maxFailureGap bound the wait before another reason why a session is down is
	// reported: reasons may alternate with each attempt.
	minFailureGap = time.Second
	maxFailureGap = 5 * time.Minute
	// minRetry and maxRetry bound the wait after a report that failed.
	minRetry = 500 * time.Millisecond
	maxRetry = 30 * time.Second
	// minRefusalRetry and maxRefusalRetry bound the wait until the library is given again what it refused.
	minRefusalRetry = time.Second
	maxRefusalRetry = time.Minute
)

// BGPServer is the BGP library.
type BGPServer interface {
	// Start begins to work as the router with an identifier.
	Start(ctx context.Context, routerID netip.Addr) error
	// Apply makes changes, and returns what the library refuses.
	Apply(ctx context.Context, changes routes.Changes) routes.Refusals
	// TendSessions opens again those sessions that are to be, ends those that must not go on, and returns the
	// sessions with all neighbours.
	TendSessions(ctx context.Context) ([]routes.Session, error)
	// ResetSession begins the session with a neighbour anew, if it is up; the neighbour drops the routes.
	ResetSession(ctx context.Context, neighbour netip.Addr) error
	// Stop ends all sessions; neighbours keep the routes for a while if it is graceful.
	Stop(ctx context.Context, graceful bool) error
}

// Kernel is what the speaker needs of the kernel.
type Kernel interface {
	// AgentAddresses lists the agent's addresses on an interface.
	AgentAddresses(iface string) ([]netip.Prefix, error)
	// Addresses lists all addresses on an interface.
	Addresses(iface string) ([]plan.Address, error)
	// Watch calls changed after changes, until ctx ends.
	Watch(ctx context.Context, changed func()) error
	// RouterAddressOn returns the link-local address of the one router on an interface.
	RouterAddressOn(iface string) (netip.Addr, error)
	// GatewaysFrom returns the gateways to which the node sends what has one of its addresses as source.
	GatewaysFrom(address netip.Addr) ([]netip.Addr, error)
}

// Speaker advertises the Virtual addresses of its node. SetupWithManager adds it to a manager, which starts it.
type Speaker struct {
	Cache  cache.Cache
	Client client.Client
	Kernel Kernel
	// NewBGPServer makes the BGP library, which calls changed when a session changes.
	NewBGPServer func(changed func()) BGPServer
	// StartBFD begins to watch no neighbours, until ctx ends. It calls changed when a session changes, and
	// failed when the path to a neighbour has failed.
	StartBFD func(ctx context.Context, changed func(), failed func(neighbour netip.Addr)) (BFD, error)
	// Hello sends a datagram from an address of the node to a gateway: SendHello, other than in tests.
	Hello func(from, to netip.Addr) error
	// ProxyForwards reports whether the node's service proxy forwards what neighbours send.
	ProxyForwards func(ctx context.Context) bool
	Metrics       *Metrics
	// Tasks runs what the speaker does side by side; nil for goroutines.
	Tasks tasks.Runner
	// Machine is what the speaker runs on; nil for the node, with StateDir.
	Machine Machine
	// Follow begins to tell handler of the node's NodeRouting, and calls synced once the API server has said
	// whether there is one; nil for the Cache.
	Follow func(ctx context.Context, handler toolscache.ResourceEventHandler, synced func()) error

	NodeName, Namespace string
	// StateDir is for the checkpoint and the lock, PasswordDir has the passwords, and UnitDir the links
	// that systemd keeps for active units.
	StateDir, PasswordDir, UnitDir string

	// wake is signalled when something may have changed, and synced when the API server has said whether there
	// is a NodeRouting.
	wake, synced chan struct{}
	// reporter writes the status of the node's NodeRouting, and saver the checkpoint.
	reporter *report.Reporter[purelbv1.NodeRoutingStatus]
	saver    *file.Saver
	watchdog *watchdog.Watchdog
	// isReady is what the readiness check says.
	isReady atomic.Bool

	// runningServer has the library as long as it runs. Rounds change it; resetSession waits for none.
	runningServer atomic.Pointer[BGPServer]

	// mu protects the two below, which the cache's goroutine writes.
	mu      sync.Mutex
	routing *purelbv1.NodeRouting
	// isDeleted means that the NodeRouting was deleted: the speaker keeps its routes, but at
	// its end neighbours are to drop them.
	isDeleted bool

	state state
}

// state is what the speaker remembers from one round to the next. All of it is lost with the
// process, as are the sessions.
type state struct {
	// bfd watches neighbours, and endBFD ends that.
	bfd      BFD
	endBFD   func()
	bfdWaits routes.BFDWaits
	// held is what the library holds, and routerID as which router it was started.
	held           routes.Config
	routerID       netip.Addr
	libraryRefusal libraryRefusal
	// settledOn is the basis on which the library holds all that it is to hold; without a routing if it may not.
	settledOn basis
	// blockedReason says why nothing can be changed; empty if it can. The routes stay meanwhile.
	blockedReason string
	// isRestart means that an earlier speaker ran since the node booted.
	isRestart bool
	// mayBeRestart means that the checkpoint of an earlier speaker cannot be used. The first round sets isRestart
	// by whether the kernel has addresses of the agent.
	mayBeRestart bool
	// mayOpenSessions means that sessions may be opened: the service proxy works, or has been waited for.
	mayOpenSessions bool
	startedAt       time.Time
	drain           drainState
	// lingering are the routes that others replace. A new process withdraws them at once: it holds
	// the others when its sessions begin.
	lingering routes.Lingering
	// lastCheckpoint was passed on to the saver last, or left by an earlier speaker since the node booted.
	lastCheckpoint *checkpoint
	// routers are those last seen on interfaces: a router that is silent for a while stays.
	routers map[string]netip.Addr
	// addresses are those last seen on interfaces that sessions have as their source.
	addresses map[string][]plan.Address
	// nextHello is when the speaker says hello to gateways again; a new process does so at once.
	nextHello time.Time
	bootID    string
	// unit tells whether the node shuts down. A speaker that starts during a shutdown does not know.
	unit unitWatch
	// failures spaces out reports of why sessions are down.
	failures pacing.Backoff
}

// failureGap returns for how long the change of a status may wait: not at all, unless only the reason
// changes why sessions are down. Then it is the longer the more often that has changed in a row.
func (s *state) failureGap(before, after purelbv1.NodeRoutingStatus) time.Duration {
	switch {
	case equality.Semantic.DeepEqual(before, after):
		return 0
	case routes.EqualExceptFailures(before, after):
		return s.failures.Next()
	}
	s.failures.Reset()
	return 0
}

// basis is what the node is to advertise on, neighbours apart, which are looked up each time.
type basis struct {
	routing   *purelbv1.NodeRouting
	addresses []netip.Prefix
	phase     routes.DrainPhase
}

// equal reports whether two bases are the same. A NodeRouting is replaced and never changed.
func (b basis) equal(other basis) bool {
	return b.routing == other.routing && b.phase == other.phase && slices.Equal(b.addresses, other.addresses)
}

// libraryRefusal is what the library has refused. A new process tries at once.
type libraryRefusal struct {
	// err says what and why; nil if there is nothing. rest are the changes that are still to be made, and
	// retryAt when.
	err     error
	rest    routes.Changes
	retryAt time.Time
	backoff pacing.Backoff
}

// SetupWithManager adds the speaker to mgr.
func (s *Speaker) SetupWithManager(mgr manager.Manager) error {
	s.Prepare()
	return mgr.Add(s)
}

// NeedLeaderElection is false: every node's speaker speaks.
func (s *Speaker) NeedLeaderElection() bool { return false }

// Start speaks until ctx ends.
func (s *Speaker) Start(ctx context.Context) error {
	if err := s.Machine.Lock(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	s.watchdog.BeginRound()
	if err := s.restore(ctx); err != nil {
		return err
	}
	if err := s.startBFD(ctx); err != nil {
		return err
	}
	defer s.state.endBFD()
	if err := s.watch(ctx); err != nil {
		return err
	}
	s.watchdog.EndRound(nil)
	// At first the speaker waits a moment for the API server: what the checkpoint says may be out of date.
	s.Tasks.Wait(ctx, checkpointPatience, s.synced)
	s.Tasks.Go(func() { _ = s.reporter.Start(ctx) })
	saving, lastRoundEnded := context.WithCancel(context.WithoutCancel(ctx))
	saved := make(chan struct{}, 1)
	s.Tasks.Go(func() {
		_ = s.saver.Start(saving)
		pacing.Signal(saved)
	})
	defer s.Tasks.Wait(context.WithoutCancel(ctx), tasks.Forever, saved)
	defer lastRoundEnded()
	for ctx.Err() == nil {
		s.watchdog.BeginRound()
		wait, err := s.round(ctx)
		if err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "Not everything could be applied")
		}
		s.watchdog.EndRound(nil) // a speaker that can do nothing waits for others
		s.Tasks.Wait(ctx, wait, s.wake)
	}
	return s.stop(context.WithoutCancel(ctx))
}

// Prepare makes the speaker's components, for one that no manager starts.
func (s *Speaker) Prepare() {
	if s.Tasks == nil {
		s.Tasks = tasks.Goroutines{}
	}
	if s.Machine == nil {
		s.Machine = machine{s.StateDir}
	}
	if s.Follow == nil {
		s.Follow = s.followCache
	}
	s.wake, s.synced = make(chan struct{}, 1), make(chan struct{}, 1)
	s.watchdog = watchdog.New(watchdog.Options{Program: "speaker", Round: "round", StuckAfter: stallTime})
	s.saver = newSaver(s)
	s.reporter = &report.Reporter[purelbv1.NodeRoutingStatus]{
		Tasks:  s.Tasks,
		Client: func() client.Client { return s.Client }, Kind: "NodeRouting", FieldOwner: FieldOwner,
		Changed: make(chan struct{}, 1), Timeout: reportTimeout, Rests: pacing.Batch{Gap: reportGap},
		Failures:          pacing.Backoff{Min: minRetry, Max: maxRetry, Spread: 0.5, Random: s.Tasks.Random},
		MaxUnansweredWait: maxRetry,
	}
}

// restore reads what an earlier speaker of the node left.
func (s *Speaker) restore(ctx context.Context) error {
	bootID, err := s.Machine.BootID()
	if err != nil {
		return err
	}
	routing, isSameBoot, err := s.loadCheckpoint(bootID)
	if err != nil {
		log.FromContext(ctx).Info("The speaker cannot use the checkpoint", "error", err.Error())
	}
	s.routing = routing
	s.state = state{
		isRestart: isSameBoot, mayBeRestart: err != nil, mayOpenSessions: isSameBoot,
		startedAt: s.Tasks.Now(), routers: map[string]netip.Addr{},
		addresses: map[string][]plan.Address{}, bootID: bootID,
		unit:           unitWatch{dir: s.UnitDir},
		libraryRefusal: libraryRefusal{backoff: pacing.Backoff{Min: minRefusalRetry, Max: maxRefusalRetry}},
		failures:       pacing.Backoff{Min: minFailureGap, Max: maxFailureGap},
	}
	if isSameBoot {
		left := s.checkpointOf(routing)
		s.state.lastCheckpoint = &left
	}
	return nil
}

// watch wakes the speaker when its NodeRouting or the kernel's interfaces change.
func (s *Speaker) watch(ctx context.Context) error {
	err := s.Follow(ctx, toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { s.setRouting(obj, false) },
		UpdateFunc: func(_, obj any) { s.setRouting(obj, false) },
		DeleteFunc: func(obj any) { s.setRouting(obj, true) },
	}, s.noteSynced)
	if err != nil {
		return fmt.Errorf("watch the NodeRouting: %w", err)
	}
	s.Tasks.Go(func() {
		if err := s.Kernel.Watch(ctx, func() { pacing.Signal(s.wake) }); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "The kernel is not watched: changes are seen late")
		}
	})
	return nil
}

// followCache begins to tell a handler of what changes in the Cache.
func (s *Speaker) followCache(ctx context.Context, handler toolscache.ResourceEventHandler, synced func()) error {
	informer, err := s.Cache.GetInformer(ctx, &purelbv1.NodeRouting{}, cache.BlockUntilSynced(false))
	if err != nil {
		return err
	}
	registration, err := informer.AddEventHandler(handler)
	if err != nil {
		return err
	}
	go func() {
		if toolscache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
			synced()
		}
	}()
	return nil
}

// noteSynced takes that the API server has said all. If it does not have the NodeRouting of the checkpoint,
// that was deleted while no speaker ran.
func (s *Speaker) noteSynced() {
	s.mu.Lock()
	s.isDeleted = s.isDeleted || s.routing != nil && s.routing.UID == ""
	s.mu.Unlock()
	pacing.Signal(s.synced)
	pacing.Signal(s.wake)
}

// setRouting takes the NodeRouting as the API server has it.
func (s *Speaker) setRouting(obj any, isDeleted bool) {
	if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	routing, ok := obj.(*purelbv1.NodeRouting)
	if !ok || routing.Spec.NodeName != s.NodeName {
		return
	}
	s.mu.Lock()
	s.isDeleted = isDeleted
	if !isDeleted {
		s.routing = routing.DeepCopy()
	}
	s.mu.Unlock()
	pacing.Signal(s.wake)
}

// round gathers, decides, applies and reports. It returns when the next one is due.
func (s *Speaker) round(ctx context.Context) (time.Duration, error) {
	s.mu.Lock()
	routing, isDeleted := s.routing, s.isDeleted
	s.mu.Unlock()
	if isDeleted {
		s.saveCheckpoint(nil)
	}
	if routing == nil || isDeleted && s.server() == nil {
		s.noteReadiness(false)
		return pollInterval, nil // nothing is known yet, or nothing is to be done any more
	}
	s.state.unit.observe()
	now := s.Tasks.Now()
	phase, isDrained, drainWait := s.state.drain.advance(routing.Spec.DrainSince != nil, now)
	addresses, err := s.agentAddresses(ctx, string(routing.Spec.Interface))
	if err != nil {
		s.state.blockedReason = "what the node has to advertise is not known, and nothing changes: " + err.Error()
		return time.Second, errors.Join(err, s.reportSessions(ctx, routing, isDrained))
	}
	if s.state.mayBeRestart {
		s.state.isRestart, s.state.mayBeRestart = len(addresses) > 0, false
	}
	if err := s.startServer(ctx, routing); err != nil {
		s.state.blockedReason = "BGP cannot be started, and is tried again: " + err.Error()
		return time.Second, errors.Join(err, s.reportSessions(ctx, routing, isDrained))
	}
	s.state.blockedReason = ""
	next := pollInterval
	if !s.mayOpenSessions(ctx) {
		next = proxyInterval
	}
	holdWait, err := s.hold(ctx, basis{routing, addresses, phase}, now)
	if !isDeleted {
		s.saveCheckpoint(routing)
	}
	listErr := s.reportSessions(ctx, routing, isDrained)
	for _, wait := range []time.Duration{drainWait, holdWait} {
		if wait > 0 {
			next = min(next, wait)
		}
	}
	return next, errors.Join(err, listErr)
}

// hold makes the library hold what is to be held on a basis, and returns when that has to be done again; 0 is when
// the basis changes. It does nothing if the library holds it already.
func (s *Speaker) hold(ctx context.Context, on basis, now time.Time) (wait time.Duration, err error) {
	in := routes.Inputs{
		Spec: on.routing.Spec, AddressesOn: s.addressesOn, Drain: on.phase, Held: s.state.held.Peers,
		Password: passwordReader(s.PasswordDir), RouterAddressOn: s.routerAddressOn, IsRestart: s.state.isRestart,
	}
	neighbours := in.Neighbours()
	held := routes.Neighbours{Peers: s.state.held.Peers, Waiting: s.state.held.Waiting}
	if s.state.settledOn.equal(on) && reflect.DeepEqual(held, neighbours) {
		return 0, nil
	}
	s.state.settledOn = basis{}
	in.Networks = routes.Networks(on.addresses)
	desired, lingering, lingerWait := s.state.lingering.AddTo(s.state.held, routes.Decide(in, neighbours), now)
	s.state.lingering = lingering
	retryWait, err := s.apply(ctx, desired, now)
	if lingerWait == 0 && retryWait == 0 {
		s.state.settledOn = on
	}
	return shorter(lingerWait, retryWait), err
}

// shorter returns the shorter one of two waits; 0 is for ever.
func shorter(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// agentAddresses lists the agent's addresses on the virtual interface. Of those that have gone since the round before
// it makes sure: the kernel has an IPv6 address once only, and the agent, which gives it another prefix length, removes
// it and adds it at once. A route that went meanwhile would be missing at routers for longer than the address.
func (s *Speaker) agentAddresses(ctx context.Context, iface string) ([]netip.Prefix, error) {
	addresses, err := s.Kernel.AgentAddresses(iface)
	if settled := s.state.settledOn; settled.routing != nil && slices.Equal(addresses, settled.addresses) {
		return addresses, err
	}
	if err != nil || !routes.HasLostAddress(s.state.held.Networks, addresses) {
		return addresses, err
	}
	s.Tasks.Wait(ctx, lookAgainTime)
	return s.Kernel.AgentAddresses(iface)
}

// reportSessions tends the sessions, and reports on them.
func (s *Speaker) reportSessions(ctx context.Context, routing *purelbv1.NodeRouting, isDrained bool) error {
	var sessions []routes.Session
	if server := s.server(); server != nil {
		var err error
		if sessions, err = server.TendSessions(ctx); err != nil {
			return err
		}
		s.watchNeighbours(sessions)
		s.sayHello(ctx, sessions)
	}
	s.mu.Lock()
	isDeleted := s.isDeleted
	s.mu.Unlock()
	if !isDeleted {
		s.report(routing, sessions, isDrained && len(s.state.held.Paths) == 0)
	}
	// A neighbour that the library has not taken is tried again in the next round.
	s.state.held.Peers = slices.DeleteFunc(slices.Clone(s.state.held.Peers), func(p routes.Peer) bool {
		return !slices.ContainsFunc(sessions, func(one routes.Session) bool { return one.Neighbour == p.Neighbour })
	})
	return nil
}

// apply makes the library hold what is desired. What it has refused it is given again after a while, or as
// soon as something else is to change; until then change returns how long that is.
func (s *Speaker) apply(ctx context.Context, desired routes.Config, now time.Time) (wait time.Duration, err error) {
	changes := routes.Diff(s.state.held, desired, s.state.mayOpenSessions)
	refusal := &s.state.libraryRefusal
	if refusal.err != nil && now.Before(refusal.retryAt) && reflect.DeepEqual(changes, refusal.rest) {
		s.state.held.Networks, s.state.held.Waiting = desired.Networks, desired.Waiting
		return refusal.retryAt.Sub(now), nil
	}
	var refused routes.Refusals
	if !changes.IsEmpty() {
		refused = s.server().Apply(ctx, changes)
		s.logChanges(ctx, changes)
	}
	s.state.held = routes.AfterChanges(s.state.held, desired, changes, refused)
	if refusal.err = refused.Err(); refusal.err == nil {
		refusal.backoff.Reset()
		return 0, nil
	}
	refusal.rest = routes.Diff(s.state.held, desired, s.state.mayOpenSessions)
	wait = refusal.backoff.Next()
	refusal.retryAt = now.Add(wait)
	return wait, refusal.err
}

// server returns the library, nil if it does not run.
func (s *Speaker) server() BGPServer {
	if running := s.runningServer.Load(); running != nil {
		return *running
	}
	return nil
}

// startServer starts the library, or starts it anew if the node's identifier has changed.
func (s *Speaker) startServer(ctx context.Context, routing *purelbv1.NodeRouting) error {
	routerID, err := netip.ParseAddr(routing.Spec.RouterID)
	if err != nil {
		return fmt.Errorf("the BGP identifier of the node: %w", err)
	}
	if s.server() != nil && s.state.routerID == routerID {
		return nil
	}
	return s.restartServer(ctx, routerID)
}

// restartServer ends all sessions, gracefully, and begins with an empty library.
func (s *Speaker) restartServer(ctx context.Context, routerID netip.Addr) error {
	if server := s.server(); server != nil {
		if err := server.Stop(ctx, true); err != nil {
			log.FromContext(ctx).Error(err, "The sessions did not end in order")
		}
		s.runningServer.Store(nil)
		s.state.held, s.state.settledOn, s.state.isRestart = routes.Config{}, basis{}, true
	}
	server := s.NewBGPServer(func() { pacing.Signal(s.wake) })
	if err := server.Start(ctx, routerID); err != nil {
		return err
	}
	s.runningServer.Store(&server)
	s.state.routerID = routerID
	return nil
}

// mayOpenSessions reports whether sessions may be opened. A speaker that starts with its node waits for
// the service proxy, without which the node would drop what it attracts.
func (s *Speaker) mayOpenSessions(ctx context.Context) bool {
	if !s.state.mayOpenSessions {
		s.state.mayOpenSessions = s.Tasks.Now().Sub(s.state.startedAt) > proxyPatience || s.ProxyForwards(ctx)
	}
	return s.state.mayOpenSessions
}

// routerAddressOn returns the address of the router on an interface, or the one that was last seen there.
func (s *Speaker) routerAddressOn(iface string) (netip.Addr, error) {
	addr, err := s.Kernel.RouterAddressOn(iface)
	if err == nil {
		s.state.routers[iface] = addr
		return addr, nil
	}
	if last, known := s.state.routers[iface]; known {
		return last, nil
	}
	return netip.Addr{}, err
}

// addressesOn returns the addresses on an interface, or those that were last seen there: a session does not end
// because the node cannot be read.
func (s *Speaker) addressesOn(iface string) ([]plan.Address, error) {
	addresses, err := s.Kernel.Addresses(iface)
	if err == nil {
		s.state.addresses[iface] = addresses
		return addresses, nil
	}
	if last, known := s.state.addresses[iface]; known {
		return last, nil
	}
	return nil, err
}

// isFromCheckpoint reports whether a NodeRouting is known from the checkpoint only, as the API server has yet to
// answer.
func isFromCheckpoint(routing *purelbv1.NodeRouting) bool { return routing.UID == "" }

// report passes on how the sessions are.
func (s *Speaker) report(routing *purelbv1.NodeRouting, sessions []routes.Session, isDrained bool) {
	latest := *routing
	latest.Status = s.reporter.Latest(routing, routing.Status)
	problem := s.state.blockedReason
	if problem == "" && s.state.libraryRefusal.err != nil {
		problem = "the BGP library refuses some of it, and is given it again: " + s.state.libraryRefusal.err.Error()
	}
	status := routes.Status(&latest, s.state.held, sessions, isDrained, problem)
	mayWait := s.state.failureGap(latest.Status, status)
	if !isFromCheckpoint(routing) {
		s.reporter.Set([]report.Status[purelbv1.NodeRoutingStatus]{{
			Object: routing, Before: latest.Status, After: status, MaxDelay: mayWait,
		}})
		pacing.Signal(s.reporter.Changed)
	}
	s.Metrics.set(status)
	isUnsent := func(p routes.Peer) bool {
		return !slices.ContainsFunc(sessions, func(one routes.Session) bool {
			return one.Neighbour == p.Neighbour && one.HasSentAll
		})
	}
	isComplete := s.state.mayOpenSessions && !slices.ContainsFunc(s.state.held.Peers, isUnsent) &&
		len(s.state.held.Waiting) == 0
	s.noteReadiness(isComplete)
}

// noteReadiness makes the speaker ready if all is done, or has been waited for.
func (s *Speaker) noteReadiness(isComplete bool) {
	s.isReady.Store(isComplete || s.Tasks.Now().Sub(s.state.startedAt) > readyPatience)
}

// stop ends the sessions. Neighbours keep the routes while the next speaker starts, unless
// reasonToDropRoutes says why not.
func (s *Speaker) stop(ctx context.Context) error {
	server := s.server()
	if server == nil {
		return nil
	}
	s.mu.Lock()
	in := stopInputs{isDeleted: s.isDeleted, isDraining: s.routing != nil && s.routing.Spec.DrainSince != nil}
	s.mu.Unlock()
	in.isShutdown = reasonToDropRoutes(in) == "" && s.state.unit.waitForShutdown(ctx, s.Tasks)
	whyRoutesGo := reasonToDropRoutes(in)
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	log.FromContext(ctx).Info("The speaker ends", "neighboursKeepRoutes", whyRoutesGo == "", "why", whyRoutesGo)
	return server.Stop(ctx, whyRoutesGo == "")
}

// Healthy is an error if the speaker is stuck.
func (s *Speaker) Healthy() error { return s.watchdog.Check() }

// Ready is an error until the neighbours have all routes, or the speaker has waited for readyPatience.
func (s *Speaker) Ready() error {
	if !s.isReady.Load() {
		return errors.New("not all neighbours have the routes yet")
	}
	return nil
}

// logChanges logs what an operator would want to know.
func (s *Speaker) logChanges(ctx context.Context, c routes.Changes) {
	logger := log.FromContext(ctx)
	if len(c.AddPaths)+len(c.RemovePaths) > 0 {
		logger.Info("Routes change", "advertised", len(c.AddPaths), "withdrawn", len(c.RemovePaths))
	}
	for what, peers := range map[string][]routes.Peer{
		"Neighbour added": c.AddPeers, "Neighbour removed": c.RemovePeers,
		"Neighbour's settings change":                                    c.UpdatePeers,
		"The session is opened anew, as the neighbour's settings change": c.ReopenPeers,
	} {
		for _, p := range peers {
			logger.Info(what, "bgpPeer", p.Name, "neighbour", p.Neighbour.String(), "peerASN", p.PeerASN, "myASN", p.MyASN)
		}
	}
}
