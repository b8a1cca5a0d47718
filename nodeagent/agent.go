package nodeagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/neigh"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// FieldOwner of the status of Announcements.
const FieldOwner = "purelb-agent"

// requestTimeout bounds what waits for the API server while it keeps the kernel
// waiting.
const requestTimeout = 5 * time.Second

// reprobe is how long an address that another station has is left alone before
// it is asked for again.
const reprobe = time.Second

// Kernel is what the agent needs of the kernel.
type Kernel interface {
	// Observe lists what the kernel holds.
	Observe() (plan.Observed, error)
	// EnsureVirtual makes the virtual interface if it is missing, and returns
	// its kind.
	EnsureVirtual(name string) (kind string, err error)
	// RemoveVirtual removes it again, if EnsureVirtual made it and it is empty.
	RemoveVirtual(name string) error
	// Add puts an address on its interface, tagged as ours.
	Add(plan.Address) error
	// Renew sets the lifetimes of an address that is there.
	Renew(plan.Address) error
	// Remove takes an address from its interface.
	Remove(plan.Address) error
	// GatewayMACs is where the next hops of default routes by an interface are, as
	// far as is known: lower case with colons.
	GatewayMACs(iface string) []string
	// Watch calls changed after changes, until ctx ends.
	Watch(ctx context.Context, changed func()) error
}

// Neighbours is what the agent needs of the stations on the node's links.
type Neighbours interface {
	// Announce tells an interface's link that this node has an address.
	Announce(iface string, addr netip.Addr) error
	// Probe asks who has the targets. What is not in the result nobody has.
	Probe(ctx context.Context, targets []neigh.Target, count int, interval time.Duration) map[netip.Addr]neigh.Answer
	// Ask asks once; who listens hears the answer.
	Ask(iface string, addr netip.Addr) error
	// Listen passes on what other stations say of the addresses that are wanted,
	// until ctx ends, or the interface goes down or away.
	Listen(ctx context.Context, iface string, wanted func(netip.Addr) bool, heard func(neigh.Message)) error
}

// Agent makes the kernel of its node match its Announcements. It is started by
// SetupWithManager.
type Agent struct {
	// Client reads from the cache and writes.
	Client client.Client
	// Live reads from the API server.
	Live       client.Reader
	Kernel     Kernel
	Neighbours Neighbours
	// Proxy, if set, is waited for before an address is announced whose traffic
	// stays on the node.
	Proxy   Proxy
	Metrics *Metrics
	// NodeName, Namespace of its Announcements, and name of the LBNodeAgent
	// whose settings apply.
	NodeName, Namespace, LBNodeAgent string

	// Reconnect, if set, drops the connections to the API server. It is called
	// when several requests, one after the other, were not answered in time: another
	// API server may do so.
	Reconnect func()

	// Checkpoint, if set, is the file in which the agent keeps what it was last
	// told, for a start while the API server is away.
	Checkpoint string

	announcer *announcer
	prober    *prober
	guard     *guard
	saved     checkpointFile
	// waiting is since when addresses wait for the Proxy.
	waiting map[netip.Addr]time.Time
	pulse   *pulse
	// wake asks for a Reconcile.
	wake chan struct{}
	// running is held by the one sync that runs.
	running sync.Mutex
	// cached is that the cache has been filled.
	cached bool
	// told is the Announcements and CommonAnnouncements last seen, and missing those
	// that were deleted lately.
	told    []plan.Asking
	missing []plan.Missing
	// reported is what was last written of each Announcement's status, for as long
	// as the cache does not show it.
	reported map[string]reported
	// mute is until when nothing is reported.
	mute time.Time
	// reportAt is when what has time is reported; zero if nothing is to be.
	reportAt time.Time
	// complained is that the LBNodeAgent is missing: said once.
	complained bool
}

// SyncLive lists the node's Announcements at the API server and applies them.
// It fails only if it could not list: what went wrong with single addresses is
// in status, and retried by Reconcile.
func (a *Agent) SyncLive(ctx context.Context, timeout time.Duration) error {
	a.running.Lock()
	defer a.running.Unlock()
	listing, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	desired, err := a.gather(listing, true)
	if err != nil {
		return err
	}
	a.pulse.listed()
	// Reconcile comes next, for what has to be repeated or renewed.
	defer signal(a.wake)
	if _, err := a.sync(ctx, desired, true); err != nil {
		log.FromContext(ctx).Error(err, "Not everything could be applied")
	}
	return nil
}

// signal wakes who waits for c, or will.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // is awake already
	}
}

// syncCached applies the Announcements as the cache has them, or the API server
// while the cache may be behind it. It returns when to call again; 0 is when
// something changes.
func (a *Agent) syncCached(ctx context.Context) (time.Duration, error) {
	a.running.Lock()
	defer a.running.Unlock()
	a.cached = true // the queue is worked when the caches have synced
	live := a.pulse.listedLately()
	listing, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	desired, err := a.gather(listing, live)
	if err != nil {
		return 0, err
	}
	return a.sync(ctx, desired, live || a.pulse.fresh())
}

// gathered is what the API has for the node; agent is nil if there is nothing
// to go by.
type gathered struct {
	agent         *purelbv1.LBNodeAgent
	announcements []purelbv1.Announcement
	// commons is the CommonAnnouncements of the agent's LBNodeAgent.
	commons []purelbv1.CommonAnnouncement
	// offline is that it is from the checkpoint, and there is nobody to tell.
	offline bool
	// missing is what was deleted lately.
	missing []plan.Missing
}

// joined is the CommonAnnouncements that the node announces: all, or none. An
// Announcement that was deleted lately counts.
func (g gathered) joined() []purelbv1.CommonAnnouncement {
	if slices.ContainsFunc(g.announcements, func(ann purelbv1.Announcement) bool { return ann.Spec.Common }) ||
		slices.ContainsFunc(g.missing, func(m plan.Missing) bool { return m.Common }) {
		return g.commons
	}
	return nil
}

// gather reads from the API server if live, else from the cache. What is common is
// read from the cache as soon as there is one: it is much, all nodes have it, and to be
// behind with it does no harm.
func (a *Agent) gather(ctx context.Context, live bool) (gathered, error) {
	list := &purelbv1.AnnouncementList{}
	commons := &purelbv1.CommonAnnouncementList{}
	reader, own := client.Reader(a.Client), []client.ListOption{client.InNamespace(a.Namespace)}
	cache, common := reader, own
	if live {
		// The cache holds no others', and has no index.
		reader = a.Live
		own = append(slices.Clip(own), client.MatchingFields{"spec.nodeName": a.NodeName})
	}
	if !a.cached {
		cache = a.Live
		common = append(slices.Clip(common), client.MatchingFields{"spec.lbNodeAgent": a.LBNodeAgent})
	}
	if err := reader.List(ctx, list, own...); err != nil {
		return gathered{}, fmt.Errorf("list Announcements: %w", err)
	}
	// Only read: not copied.
	if err := cache.List(ctx, commons, append(slices.Clip(common), client.UnsafeDisableDeepCopy)...); err != nil {
		return gathered{}, fmt.Errorf("list CommonAnnouncements: %w", err)
	}
	var g gathered
	for _, ann := range list.Items {
		if ann.Spec.NodeName == a.NodeName {
			g.announcements = append(g.announcements, ann)
		}
	}
	slices.SortFunc(g.announcements, func(a, b purelbv1.Announcement) int { return cmp.Compare(a.Name, b.Name) })
	for _, c := range commons.Items {
		if c.Spec.LBNodeAgent == a.LBNodeAgent {
			g.commons = append(g.commons, c)
		}
	}
	slices.SortFunc(g.commons, func(a, b purelbv1.CommonAnnouncement) int { return cmp.Compare(a.Name, b.Name) })
	a.pulse.setPeriod(g.announcements)
	a.saved.standIn = nil

	agent := &purelbv1.LBNodeAgent{}
	err := reader.Get(ctx, client.ObjectKey{Namespace: a.Namespace, Name: a.LBNodeAgent}, agent)
	switch {
	case apierrors.IsNotFound(err):
		if !a.complained {
			log.FromContext(ctx).Info("There is no such LBNodeAgent: changing nothing until there is", "lbnodeagent", a.LBNodeAgent)
		}
		a.complained = true
		return g, nil
	case err != nil:
		return gathered{}, fmt.Errorf("get LBNodeAgent %s: %w", a.LBNodeAgent, err)
	}
	a.complained = false
	g.agent = agent
	return g, nil
}

// sync makes the kernel match and reports. trusted is that the Announcements
// are known to be up to date.
func (a *Agent) sync(ctx context.Context, g gathered, trusted bool) (time.Duration, error) {
	if !g.offline {
		asked := plan.Asked(g.announcements, g.commons)
		a.missing = plan.StillMissing(a.told, a.missing, asked, time.Now())
		a.told, g.missing = asked, a.missing
	}
	if g.agent == nil || len(g.announcements) == 0 || slices.ContainsFunc(g.announcements, a.isAnothers) {
		return a.keep(ctx, g.agent)
	}
	settings := plan.SettingsOf(g.agent)
	desired, invalid := plan.Merge(g.announcements, g.joined())
	observed, note, err := a.observe(settings, desired)
	if err != nil && observed.Links == nil {
		return 0, err
	}
	a.guard.links(observed.Links)
	todo := plan.Diff(settings, desired, observed, trusted)
	todo.Repair(a.guard.holds())
	todo.Yield(a.guard.given(desired), desired, observed)
	if g.offline {
		todo.Retain(settings)
	}
	inherited, untilOver := todo.Hold(settings, a.missing, time.Now())
	withheld, wait := todo.Withhold(settings, g.announcements, time.Now())

	run := a.applying(settings, todo.Results)
	run.stranded, run.again, run.own = withheld, earliest(wait, untilOver), ownAddresses(observed)
	maps.DeleteFunc(a.waiting, func(addr netip.Addr, _ time.Time) bool {
		return !slices.ContainsFunc(desired, func(d plan.Desired) bool { return d.Addr == addr })
	})
	errs := errors.Join(err, run.apply(ctx, todo.Operations))
	if err := a.removeVirtual(g, settings, observed); err != nil {
		return 0, errors.Join(errs, err) // not reported: the agent may go once it has
	}
	for addr, result := range invalid {
		run.results[addr] = result
	}

	a.guard.hold(append(plan.HeldBy(settings, desired, run.results), plan.HeldUnasked(settings, todo.Kept)...))
	run.again = earliest(earliest(run.again, a.contests(run.results)), a.save(g))
	if g.offline {
		return earliest(todo.RenewIn, run.again), errs
	}
	interfaces, err := plan.Interfaces(settings.Selection, observed)
	errs = errors.Join(errs, err)
	a.Metrics.setAnnounced(a.NodeName, desired, run.results)
	report := plan.Report{
		Results: run.results, Commons: g.joined(), Stranded: run.stranded, Interfaces: interfaces, Note: note,
		Now: metav1.NewTime(time.Now().Truncate(time.Second)),
	}
	report.Inherited = plan.Inherit(inherited, run.stranded, g.announcements)
	wait, err = a.reportAll(ctx, g.announcements, report)
	return earliest(earliest(todo.RenewIn, run.again), wait), errors.Join(errs, err)
}

// removeVirtual removes the virtual interfaces that the agent made and needs no
// more, unless they hold addresses: all, if it is to go.
func (a *Agent) removeVirtual(g gathered, settings plan.Settings, observed plan.Observed) error {
	empty := func(ann purelbv1.Announcement) bool { return ann.Spec.Leaving && len(ann.Spec.Addresses) == 0 }
	going := !slices.ContainsFunc(g.announcements, func(ann purelbv1.Announcement) bool { return !empty(ann) })
	var errs error
	for _, l := range observed.Links {
		if l.Ours && (going || l.Name != settings.Selection.VirtualInterface) {
			errs = errors.Join(errs, a.Kernel.RemoveVirtual(l.Name))
		}
	}
	return errs
}

// contests makes the results say whose claims of the node's addresses were heard
// lately, and returns when that is to change.
func (a *Agent) contests(results map[netip.Addr]plan.Result) time.Duration {
	again := time.Duration(0)
	for addr, result := range results {
		mac, left := a.guard.contested(addr)
		if mac == "" || result.State != purelbv1.StateAnnounced {
			continue
		}
		again = earliest(again, left)
		result.MAC, result.Reason = mac, plan.ReasonContested
		result.Message = fmt.Sprintf("%s on %s claims it, too: it was defended; see whose device that is", mac, result.Interface)
		results[addr] = result
	}
	return again
}

// isAnothers reports whether an Announcement is for the agent of another
// LBNodeAgent, which is to come when this one has gone.
func (a *Agent) isAnothers(ann purelbv1.Announcement) bool {
	return ann.Spec.LBNodeAgent != a.LBNodeAgent
}

// keep looks after a node that nothing is known about. A missing Announcement
// is not an empty one: the kernel keeps what it has. It returns when to call
// again; agent may be nil.
func (a *Agent) keep(ctx context.Context, agent *purelbv1.LBNodeAgent) (time.Duration, error) {
	if agent == nil {
		agent = &purelbv1.LBNodeAgent{}
	}
	settings := plan.SettingsOf(agent)
	observed, err := a.Kernel.Observe()
	if err != nil {
		return 0, err
	}
	todo := plan.Keep(settings, observed.Addresses)
	a.guard.links(observed.Links)
	a.guard.hold(plan.HeldUnasked(settings, observed.Addresses))
	run := a.applying(settings, nil)
	return todo.RenewIn, run.apply(ctx, todo.Operations)
}

// observe lists what the kernel holds, with the virtual interface if it is
// needed. Without that interface the rest goes on.
func (a *Agent) observe(settings plan.Settings, desired []plan.Desired) (observed plan.Observed, note string, err error) {
	name := settings.Selection.VirtualInterface
	var failed error
	for _, d := range desired {
		if d.Local || d.Interface != name {
			continue
		}
		var kind string
		if kind, failed = a.Kernel.EnsureVirtual(name); failed != nil {
			note = failed.Error()
		} else if kind != "dummy" {
			note = fmt.Sprintf("%s is of kind %s", name, kind)
		}
		break
	}
	observed, err = a.Kernel.Observe()
	if err != nil {
		return plan.Observed{}, "", errors.Join(failed, err)
	}
	return observed, note, failed
}

// earliest is the shorter of two waits, of which 0 is for ever.
func earliest(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
