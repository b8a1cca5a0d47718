package nodeagent

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/order"
	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/internal/tasks"
	"github.com/purelb/purelb-operator/nodeagent/neigh"
	"github.com/purelb/purelb-operator/nodeagent/plan"
	"github.com/purelb/purelb-operator/nodeagent/watch"
)

// Exchange asks stations on one interface's link, and keeps their answers.
type Exchange interface {
	// SendEcho sends an echo request to one station, from an address of this node's own.
	SendEcho(addr, sender netip.Addr, station neigh.MAC, number uint16) error
	// Drain passes on all answers that have come since the last time, and does not wait for
	// others. It returns neigh.ErrLost if some may be missing.
	Drain(heard func(neigh.ExchangeAnswer)) error
	Close() error
}

// watching watches other nodes, as the Announcements with standby ask: one goroutine for each
// interface asks, each interval, all nodes that are watched on the interface's link. What the
// answers mean, package watch decides. What watching remembers is lost with the process: the
// next one has to see again that a node answers.
type watching struct {
	nodeName string
	// openExchange is nil if the agent watches no nodes.
	openExchange func(iface string) (Exchange, error)
	neighbours   Stations
	defender     *defender
	freshness    *freshness
	metrics      *Metrics
	tasks        tasks.Runner
	// wake is signalled when the worker has something to do.
	wake chan<- struct{}

	mu    sync.Mutex
	ctx   context.Context // of Start; nil before
	links map[string]*watchedLink
	// claims are those that no sync has taken yet, and revived the nodes that have answered anew since one has.
	claims  map[netip.Addr]plan.Claim
	revived map[plan.WatchedNode]bool
	// wakes bounds how often the worker is woken because a reason has changed.
	wakes pacing.Batch
}

// watchedLink is the link of one interface. It is protected by the lock of watching.
type watchedLink struct {
	iface    string
	settings watch.Settings
	watchers map[watch.Key]*watch.Watcher
	// knownReasons are those of which the worker knows.
	knownReasons map[watch.Key]string
	stop         context.CancelFunc
}

func newWatching(a *Agent) *watching {
	return &watching{
		nodeName: a.NodeName, openExchange: a.OpenExchange, neighbours: a.Neighbours, defender: a.defender,
		freshness: a.freshness,
		metrics:   a.Metrics, tasks: a.Tasks, wake: a.wake,
		links: map[string]*watchedLink{}, claims: map[netip.Addr]plan.Claim{}, revived: map[plan.WatchedNode]bool{},
		wakes: pacing.Batch{Gap: time.Second},
	}
}

// NeedLeaderElection is false: every node may watch others.
func (w *watching) NeedLeaderElection() bool { return false }

// Start watches until ctx ends.
func (w *watching) Start(ctx context.Context) error {
	w.mu.Lock()
	w.ctx = ctx
	for _, l := range order.ByKey(w.links, strings.Compare) { //nolint:contextcheck // it is w.ctx
		w.startLink(l)
	}
	w.mu.Unlock()
	w.tasks.Wait(ctx, tasks.Forever)
	return nil
}

// setStandbys replaces what is watched.
func (w *watching) setStandbys(standbys []purelbv1.Announcement, settings watch.Settings) {
	if w.openExchange == nil || settings.IsDisabled {
		standbys = nil
	}
	targets := watch.Targets(standbys, w.nodeName, w.defender.hasSenderFor, w.defender.gateways.gatewaysByInterface())
	w.mu.Lock()
	defer w.mu.Unlock()
	for iface, l := range order.ByKey(w.links, strings.Compare) {
		for key := range l.watchers {
			if _, isWatched := targets[key]; !isWatched {
				delete(l.watchers, key)
				delete(l.knownReasons, key)
			}
		}
		if len(l.watchers) == 0 || l.settings != settings {
			if l.stop != nil {
				l.stop()
			}
			delete(w.links, iface)
		}
	}
	for key, target := range order.ByKey(targets, watch.Key.Compare) {
		l := w.links[key.Interface]
		if l == nil {
			l = &watchedLink{
				iface: key.Interface, settings: settings, watchers: map[watch.Key]*watch.Watcher{},
				knownReasons: map[watch.Key]string{},
			}
			w.links[key.Interface] = l
			w.startLink(l)
		}
		if known := l.watchers[key]; known != nil {
			known.SetTarget(target)
			continue
		}
		l.watchers[key] = watch.New(settings, target)
	}
}

// addClaims lets the worker have claims. It waits for no request.
func (w *watching) addClaims(claims map[netip.Addr]plan.Claim) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.Copy(w.claims, claims)
	if len(w.claims) > 0 {
		pacing.Signal(w.wake)
	}
}

// noteRevived notes that a node answers anew, and drops the claims of its addresses that no sync has taken yet. The
// worker ends others. The caller holds the lock.
func (w *watching) noteRevived(node plan.WatchedNode) {
	w.revived[node] = true
	pacing.Signal(w.wake)
	maps.DeleteFunc(w.claims, func(_ netip.Addr, c plan.Claim) bool {
		return plan.WatchedNode{Interface: c.Interface, Name: c.PreviousHolder} == node
	})
}

// takeClaims returns the claims that watchers have made since it was last called, and the nodes that answer or have
// answered anew since then.
func (w *watching) takeClaims() (map[netip.Addr]plan.Claim, map[plan.WatchedNode]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	claims, living := w.claims, w.revived
	w.claims, w.revived = map[netip.Addr]plan.Claim{}, map[plan.WatchedNode]bool{}
	for iface, l := range w.links {
		for _, watcher := range l.watchers {
			for _, name := range watcher.LivingNodes() {
				living[plan.WatchedNode{Interface: iface, Name: name}] = true
			}
		}
	}
	return claims, living
}

// takeStandbyStatuses returns the statuses of the Announcements with standby, notes that the worker knows the reasons
// in them, and sets the metric of watched nodes.
func (w *watching) takeStandbyStatuses(in *plan.Inputs, conclusion *plan.Conclusion) []purelbv1.AnnouncementStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := metav1.NewTime(in.Now.Truncate(time.Second))
	statuses := make([]purelbv1.AnnouncementStatus, 0, len(in.Standbys))
	for i := range in.Standbys {
		ann := &in.Standbys[i]
		key, reason := watch.KeyOf(ann.Spec.Standby), watch.ReasonDisabled
		if l := w.links[key.Interface]; l != nil && l.watchers[key] != nil {
			reason = l.watchers[key].Reason()
			l.knownReasons[key] = reason
		}
		status := watch.Status(ann, reason, now)
		status.Addresses = conclusion.StandbyAddressStatuses[i]
		statuses = append(statuses, status)
	}
	reasons := map[string]int{}
	for _, l := range w.links {
		for _, watcher := range l.watchers {
			reasons[watcher.Reason()]++
		}
	}
	w.metrics.setWatched(reasons)
	return statuses
}

// startLink begins to watch on a link, until that is stopped. The caller holds the lock.
func (w *watching) startLink(l *watchedLink) {
	if w.ctx == nil || l.stop != nil {
		return
	}
	ctx, stop := context.WithCancel(w.ctx)
	l.stop = stop
	w.tasks.Go(func() {
		for ctx.Err() == nil {
			if err := w.watchLink(ctx, l); err != nil {
				log.FromContext(ctx).V(1).Info("Watching again shortly", "interface", l.iface, "error", err.Error())
			}
			w.tasks.Wait(ctx, relistenAfter)
		}
	})
}

// watchLink asks and hears on a link until ctx ends, or the interface goes down or away.
func (w *watching) watchLink(ctx context.Context, l *watchedLink) (err error) {
	x, err := w.openExchange(l.iface)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	for next := w.tasks.Now(); w.tasks.Wait(ctx, tasks.Until(w.tasks, next)) != tasks.Ended; {
		next = w.tasks.Now().Add(l.settings.Interval)
		if err := w.runRound(ctx, l, x); err != nil {
			return err
		}
	}
	return nil
}

// runRound ends a round of all Watchers of a link, and begins the next one.
func (w *watching) runRound(ctx context.Context, l *watchedLink, x Exchange) error {
	inputs := watch.RoundInputs{CanHear: w.defender.isLinkUp(l.iface), IsAgentFresh: w.freshness.isFresh()}
	gateways := w.defender.gateways.macsOf(l.iface)
	w.mu.Lock()
	err := x.Drain(func(h neigh.ExchangeAnswer) {
		answer := watch.Answer{
			Kind: watch.Resolve, Addr: h.Addr, MAC: h.MAC.String(), IsDirectAnswer: h.IsDirectAnswer,
			IsGateway: slices.Contains(gateways, h.MAC),
		}
		if h.IsEcho {
			answer.Kind, answer.Round = watch.Echo, h.Sequence
		}
		for _, watcher := range l.watchers {
			watcher.Hear(answer)
		}
	})
	if inputs.AreAnswersLost = errors.Is(err, neigh.ErrLost); err != nil && !inputs.AreAnswersLost {
		w.mu.Unlock()
		return err
	}
	now := w.tasks.Now()
	var steps []watch.Step
	var repeated []netip.Addr
	claims := map[netip.Addr]plan.Claim{}
	for _, watcher := range order.ByKey(l.watchers, watch.Key.Compare) {
		steps = append(steps, watcher.AdvanceRound(now, inputs)...)
	}
	for _, step := range steps {
		repeated = append(repeated, step.Repeats...)
		if len(step.Repeats) > 0 {
			w.noteRevived(plan.WatchedNode{Interface: l.iface, Name: step.Node})
		}
		if len(step.Claims) > 0 {
			log.FromContext(ctx).Info("A watched node is silent", "node", step.Node, "interface", l.iface,
				"for", step.SilentFor.String(), "addresses", len(step.Claims))
		}
		for _, c := range step.Claims {
			w.metrics.silence.Observe(step.SilentFor.Seconds())
			claims[c.Addr] = plan.Claim{
				Interface: l.iface, Epoch: c.Epoch, PreviousHolder: step.Node, SilentFor: step.SilentFor, QuietAt: now,
			}
			repeated = append(repeated, c.Addr) // the node may have claimed it before
		}
	}
	w.wakeForNewReasons(l, now)
	w.mu.Unlock()
	w.defender.repeatClaims(ctx, repeated)
	w.addClaims(claims) // afterwards, or what is claimed now would be repeated at once
	for _, step := range steps {
		for _, q := range step.Questions {
			w.ask(l.iface, x, step.Round, q)
		}
	}
	return nil
}

// wakeForNewReasons wakes the worker, once in a while, when it does not know a reason yet. The
// caller holds the lock.
func (w *watching) wakeForNewReasons(l *watchedLink, now time.Time) {
	isNew := false
	for key, watcher := range l.watchers {
		known, isKnown := l.knownReasons[key]
		isNew = isNew || isKnown && known != watcher.Reason()
	}
	if isNew && w.wakes.Delay(now) <= 0 {
		w.wakes.Note(now)
		pacing.Signal(w.wake)
	}
}

// ask sends a question. What is not sent is not answered.
func (w *watching) ask(iface string, x Exchange, round uint16, q watch.Question) {
	macs := neigh.ParseMACs(q.MACs)
	question := w.defender.questionCountingGateways(iface, q.Addr)
	switch {
	case q.IsForAll:
		question.NodeMACs = macs
		_ = w.neighbours.Ask(question)
	case len(macs) == 0:
	case q.Kind == watch.Echo && question.Sender.IsValid():
		_ = x.SendEcho(q.Addr, question.Sender, macs[0], round)
	case q.Kind == watch.Resolve:
		_ = w.neighbours.AskStation(question, macs[0])
	}
}

// repeatClaims announces those of some addresses once more that the node has by a claim, and earlier ones whose turn
// comes now.
func (d *defender) repeatClaims(ctx context.Context, addrs []netip.Addr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	repeated, mayLog := d.defence.RepeatClaims(addrs, d.tasks.Now())
	for _, h := range repeated {
		d.announcer.announceOnce(h.Interface, h.Prefix.Addr())
	}
	if mayLog {
		log.FromContext(ctx).Info("Claimed addresses of a node that was silent once more", "addresses", len(repeated))
	}
}

// questionCountingGateways returns the question for an address, from an address of the node's own. It takes the lock,
// and answers of gateways count.
func (d *defender) questionCountingGateways(iface string, addr netip.Addr) neigh.Question {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.questionCountingGatewaysLocked(iface, addr, nil)
}

// isLinkUp reports whether an interface has a carrier, as far as the defender knows.
func (d *defender) isLinkUp(iface string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.isLinkUpLocked(iface)
}

// hasSenderFor reports whether the node has an address of its own on an interface from which to ask for
// another address there: for IPv4 one in whose subnet the other is. Of IPv6 any will do: own addresses
// need not have a subnet, and the manager names only addresses that are on the link.
func (d *defender) hasSenderFor(iface string, addr netip.Addr) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	sender := d.defence.Sender(iface, addr)
	if addr.Is6() {
		return sender.IsValid()
	}
	return slices.ContainsFunc(d.defence.NodeAddresses, func(a plan.Address) bool {
		return a.Interface == iface && a.Prefix.Addr() == sender && a.Prefix.Masked().Contains(addr)
	})
}
