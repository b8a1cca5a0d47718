package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/nodeagent/plan"
	"github.com/purelb/purelb-operator/nodeagent/watch"
)

// FieldOwner of the status of Announcements.
const FieldOwner = "purelb-agent"

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

	// Reconnect, if set, drops the connections to the API server. It is called when several
	// requests, one after the other, were not answered in time: another API server may answer.
	Reconnect func()

	// Checkpoint, if set, is the file in which the agent keeps the objects that it last read,
	// for a start while the API server is away.
	Checkpoint string
	// OpenExchange, if set, opens an Exchange by which the agent watches other nodes on the link of
	// an interface.
	OpenExchange func(iface string) (Exchange, error)
	// Ownership, if set, is the record of the addresses that the agent has added. The agent writes
	// it to its file.
	Ownership Ownership

	announcer *announcer
	prober    *prober
	defender  *defender
	watching  *watching
	freshness *freshness
	watchdog  *watchdog
	reporter  *reporter
	// saver writes the checkpoint, and ownershipSaver the Ownership; nil if there is none.
	saver, ownershipSaver *saver
	// wake asks for a Reconcile, and relist for a list at the API server.
	wake, relist chan struct{}
	// listLock is held by the one list at the API server that is under way, until it has been
	// applied: no list is applied after a later one.
	listLock lock
	// syncLock is held by the one sync that runs. It protects state.
	syncLock lock
	state    state
}

// state is what the agent remembers from one sync to the next. All of it is lost with the
// process. What the components remember that send and write (announcer, prober, reporter,
// saver) is only what they have yet to send or write; what the defender remembers is in
// plan.Defence.
type state struct {
	// memory is what plan.Decide remembers.
	memory plan.Memory
	// objects are those that the API server last had or, until it has answered since the agent
	// started, those of the checkpoint. The next process reads them anew.
	objects apiObjects
	// isListing means that a list at the API server is under way, so that the cache may be
	// ahead of it, and isCacheReadDue that the worker did not read the cache meanwhile. The
	// next process begins with a list.
	isListing, isCacheReadDue bool
	// isCacheFilled means that the worker works. It does so only after the caches of the
	// process have been filled.
	isCacheFilled bool
	// standIns bounds how often the heartbeat stands in for the worker. The next process stands
	// in at once.
	standIns pacing.Batch
	// lastCheckpoint is of the content that was passed on to the saver last. The next process
	// writes the checkpoint anew.
	lastCheckpoint contentID
	// isMissingLogged means that the agent has logged that its LBNodeAgent is missing. The next
	// process logs it again.
	isMissingLogged bool
}

// errUnobserved marks the failure of a sync as a whole: the agent could not see what there is
// to do. What fails with single addresses is not marked.
var errUnobserved = errors.New("cannot see what there is to do")

// sync gathers, decides, applies and reports. isUpToDate means that the objects are known to
// be up to date. It waits for nothing but the kernel and the node's service proxy. It returns
// when to sync again, 0 is when something changes, and the errors of single addresses, or
// errUnobserved if it could do nothing at all.
func (a *Agent) sync(ctx context.Context, objects apiObjects, isUpToDate bool) (wait time.Duration, err error) {
	a.watchdog.beginSync()
	defer func() { a.watchdog.endSync(err) }()
	a.logMissing(ctx, objects)

	inputs, err := a.gather(objects, isUpToDate)
	if err != nil {
		return 0, err
	}
	memory, decision := plan.Decide(a.state.memory, inputs)
	a.state.memory = memory
	outcomes, errs := a.apply(ctx, decision, inputs.Observed)
	if outcomes.Unrenewed > 0 {
		signal(a.wake) // the next sync goes on, be it the worker's or the heartbeat's
	}
	if err := a.removeVirtual(decision); err != nil {
		return 0, errors.Join(errs, err) // not reported: the agent may be removed once it has reported
	}
	outcomes.Contests, outcomes.Notes = a.defender.contests(), a.problemNotes()
	memory, conclusion := plan.Conclude(memory, inputs, decision, outcomes)
	a.state.memory = memory

	if !decision.IsNothingKnown {
		a.defender.forgetYields(decision.Desired()) //nolint:contextcheck // the defender listens until its own context ends
	}
	a.defender.hold(conclusion.Held) //nolint:contextcheck // as above
	if !decision.IsNothingKnown {
		a.save(inputs)
	}
	a.watching.set(objects.standbys, watch.SettingsOf(objects.lbNodeAgent)) //nolint:contextcheck // as above
	if !objects.isOffline {
		a.report(inputs, decision, conclusion)
	}
	return conclusion.DecideIn, errors.Join(errs, decision.Err)
}

// gather returns the inputs of a decision.
func (a *Agent) gather(objects apiObjects, isUpToDate bool) (plan.Inputs, error) {
	observed, err := a.Kernel.Observe()
	if err != nil {
		return plan.Inputs{}, fmt.Errorf("%w: %w", errUnobserved, err)
	}
	a.defender.noteObserved(observed)
	a.Neighbours.SetPodMACs(plan.PodMACs(observed))
	held, yields := a.defender.heldAndYields()
	return plan.Inputs{
		Now:                 time.Now(),
		LBNodeAgentName:     a.LBNodeAgent,
		LBNodeAgent:         objects.lbNodeAgent,
		Announcements:       a.reporter.withLatestStatuses(objects.announcements),
		CommonAnnouncements: objects.common,
		Standbys:            a.reporter.withLatestStatuses(objects.standbys),
		IsFirstReported:     len(objects.announcements) > 0 && objects.announcements[0].Status.ObservedGeneration > 0,
		IsUpToDate:          isUpToDate,
		IsOffline:           objects.isOffline,
		Observed:            observed,
		Held:                held,
		Yields:              yields,
		CheckedChallenges:   a.defender.checkedChallenges(),
		ProbeAnswers:        a.prober.takeAnswers(),
		Claims:              a.watching.takeClaims(),
	}, nil
}

// removeVirtual removes the virtual interfaces that the agent made and does not need any more,
// unless they hold addresses.
func (a *Agent) removeVirtual(decision plan.Decision) error {
	var errs error
	for _, name := range decision.RemoveVirtual {
		errs = errors.Join(errs, a.Kernel.RemoveVirtual(name))
	}
	return errs
}

// report passes the statuses on to the reporter, and what is announced to the metrics.
func (a *Agent) report(inputs plan.Inputs, decision plan.Decision, conclusion plan.Conclusion) {
	if decision.IsNothingKnown {
		a.reporter.setStatuses(nil, nil, nil)
		return
	}
	a.Metrics.setAnnounced(a.NodeName, conclusion.Announced, conclusion.States)
	a.reporter.setStatuses(slices.Concat(inputs.Announcements, inputs.Standbys),
		slices.Concat(conclusion.Statuses, a.watching.statuses(&inputs, &conclusion)), inputs.SharedEntries())
}

// savers returns the savers that there are.
func (a *Agent) savers() []*saver {
	if a.ownershipSaver == nil {
		return []*saver{a.saver}
	}
	return []*saver{a.saver, a.ownershipSaver}
}

// problemNotes returns why files are not written.
func (a *Agent) problemNotes() []string {
	var notes []string
	for _, s := range a.savers() {
		notes = append(notes, s.problemNote())
	}
	return notes
}

// logMissing logs once that there is no LBNodeAgent.
func (a *Agent) logMissing(ctx context.Context, objects apiObjects) {
	isMissing := objects.lbNodeAgent == nil && len(objects.announcements) > 0
	if isMissing && !a.state.isMissingLogged {
		log.FromContext(ctx).Info("There is no such LBNodeAgent: changing nothing until there is", "lbnodeagent", a.LBNodeAgent)
	}
	a.state.isMissingLogged = isMissing
}

// Healthy returns an error if the agent counts as stuck. It is for a liveness probe: whether
// the API server answers makes no difference.
func (a *Agent) Healthy(*http.Request) error { return a.watchdog.check() }
