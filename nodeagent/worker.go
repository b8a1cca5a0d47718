package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/internal/tasks"
	"github.com/purelb/purelb-operator/nodeagent/plan"
	"github.com/purelb/purelb-operator/nodeagent/watch"
)

// workerState is what the worker remembers from one sync to the next. Only the worker uses it. All of it is
// lost with the process. What the components remember that send and write (announcer, prober,
// reporter, saver) is only what they have yet to send or write; what the defender remembers is in
// plan.Defence.
type workerState struct {
	// memory is what plan.Decide remembers.
	memory plan.Memory
	// objects are those that the API server last had or, until it has answered since the agent
	// started, those of the checkpoint. The next process reads them anew.
	objects apiObjects
	// isListing means that a list at the API server is under way, so that the cache may be
	// ahead of it, and isCacheReadDue that the worker did not read the cache meanwhile. The
	// next process begins with a list.
	isListing, isCacheReadDue bool
	// lastCheckpoint is of the content that was passed on to the saver last. The next process
	// writes the checkpoint anew.
	lastCheckpoint contentID
	// isMissingLBNodeAgentLogged means that the agent has logged that its LBNodeAgent is missing. The next
	// process logs it again.
	isMissingLBNodeAgentLogged bool
}

// listRequest asks the worker for a list at the API server.
type listRequest struct {
	timeout time.Duration
	// sync, if the heartbeat asks, is what it waits for.
	sync *pendingSync
}

// pendingSync is a list and a sync by it that the heartbeat waits for: err, once done is signalled, says what became of
// both. The channel has room for that.
type pendingSync struct {
	done chan struct{}
	err  error
}

// listResult is what a list at the API server has returned.
type listResult struct {
	listRequest
	objects apiObjects
	err     error
}

// errWholeSyncFailed marks the failure of a sync as a whole: the agent could not see what there is
// to do. What fails with single addresses is not marked.
var errWholeSyncFailed = errors.New("cannot see what there is to do")

// ifWholeSyncFailed returns an error if it marks the failure of a sync as a whole, else nil.
func ifWholeSyncFailed(err error) error {
	if errors.Is(err, errWholeSyncFailed) {
		return err
	}
	return nil
}

// NeedLeaderElection is false: every node has an agent.
func (a *Agent) NeedLeaderElection() bool { return false }

// Start is the worker, until ctx ends: it waits until something wakes it, and syncs. It never waits
// for the API server.
func (a *Agent) Start(ctx context.Context) error {
	defer pacing.Signal(a.workerEnded)
	a.watchdog.SetGiveEmptyItem(func() { pacing.Signal(a.emptyItem) })
	schedule := newSyncSchedule()
	sync := func(syncOnce func() (wait time.Duration, hasSynced bool, err error)) {
		schedule.begin(a.Tasks.Now())
		wait, hasSynced, err := syncOnce()
		schedule.end(a.Tasks.Now(), wait, hasSynced, err)
		if err != nil {
			log.FromContext(ctx).Error(err, "Not everything could be applied")
		}
	}
	for ctx.Err() == nil {
		a.watchdog.NoteItemTaken()
		wait := schedule.wait(a.Tasks.Now())
		// The heartbeat waits for lists, while syncs may ask for syncs: lists come first, and rest for nothing.
		const statusHasChanged, listsHaveChanged, isWoken = 1, 2, 3 // the places of the signals; an empty item is 0
		switch a.Tasks.Wait(ctx, wait, a.emptyItem, a.statusChanged, a.listsChanged, a.wake) {
		case statusHasChanged:
			schedule.syncIn(a.Tasks.Now(), statusCheckDelay)
		case listsHaveChanged:
			if list, isThere := tryReceive(a.listResults); isThere {
				sync(func() (time.Duration, bool, error) { return a.syncListed(ctx, list) })
			}
			a.beginRequestedList(ctx)
		case tasks.TimeOver, isWoken:
			if schedule.take(a.Tasks.Now()) {
				sync(func() (time.Duration, bool, error) {
					wait, err := a.syncWoken(ctx)
					return wait, true, err
				})
			}
		}
	}
	return nil
}

// tryReceive takes what is in a channel, if there is something.
func tryReceive[T any](c <-chan T) (taken T, isThere bool) {
	select {
	case taken = <-c:
		return taken, true
	default:
		return taken, false
	}
}

// What wakes the worker: objects in the cache, the kernel, and whoever else signals wake.

// CacheHandler returns what has to be told of changes in the cache: it wakes the worker when an object
// changes, once the cache is filled. When only the status of an Announcement changes, and is not what the agent
// wanted to report, it wakes the worker a little later: a status that the agent computed while the cache was behind
// may have to be written once more.
func (a *Agent) CacheHandler() toolscache.ResourceEventHandler {
	notify := func(c chan<- struct{}) {
		if a.isCacheFilled.Load() { // else all is read as soon as it is
			pacing.Signal(c)
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { notify(a.wake) },
		DeleteFunc: func(any) { notify(a.wake) },
		UpdateFunc: func(before, after any) {
			was, is := before.(client.Object), after.(client.Object) //nolint:forcetypeassert // the cache has no others
			_, isSettings := after.(*purelbv1.LBNodeAgent)
			if ann, isAnnouncement := after.(*purelbv1.Announcement); isAnnouncement && ann.Name == a.NodeName {
				a.freshness.notePeriod(ann)
			}
			switch {
			case was.GetGeneration() != is.GetGeneration() || was.GetUID() != is.GetUID():
				notify(a.wake)
			case !isSettings && !a.isOwnReport(was, is):
				notify(a.statusChanged)
			}
		},
	}
}

// isOwnReport reports whether an Announcement changes to the status that the agent last wanted to report, so that
// there is nothing to do. After the first report of an Announcement there is: the others leave out the facts then.
func (a *Agent) isOwnReport(before, after client.Object) bool {
	was, isAnnouncement := before.(*purelbv1.Announcement)
	is, _ := after.(*purelbv1.Announcement)
	return isAnnouncement && was.Status.ObservedGeneration > 0 && a.reporter.IsWanted(is, is.Status)
}

// NoteCacheFilled tells the worker that the cache is filled.
func (a *Agent) NoteCacheFilled() {
	a.isCacheFilled.Store(true)
	pacing.Signal(a.wake)
}

// watchAPI tells the worker of changes in the cache, until ctx ends.
func (a *Agent) watchAPI(ctx context.Context, informers cache.Informers) error {
	handler := a.CacheHandler()
	var haveSynced []toolscache.InformerSynced
	for _, kind := range []client.Object{
		&purelbv1.Announcement{}, &purelbv1.CommonAnnouncement{}, &purelbv1.LBNodeAgent{},
	} {
		informer, err := informers.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch objects of %T: %w", kind, err)
		}
		registration, err := informer.AddEventHandler(handler)
		if err != nil {
			return fmt.Errorf("watch objects of %T: %w", kind, err)
		}
		haveSynced = append(haveSynced, registration.HasSynced)
	}
	if toolscache.WaitForCacheSync(ctx.Done(), haveSynced...) {
		a.NoteCacheFilled()
	}
	return nil
}

// watchKernel wakes the worker when what the kernel holds changes, until ctx ends. A watch that could not begin is
// tried again, and until then the worker looks each time.
func (a *Agent) watchKernel(ctx context.Context) error {
	wake := func() { pacing.Signal(a.wake) }
	watchAgainAndAgain(
		ctx, a.Tasks, "The kernel is not watched: until it is, what others change is put right later",
		func() error { return a.Kernel.Watch(ctx, wake) }, wake,
	)
	return nil
}

// watchAgainAndAgain calls watch, which watches until ctx ends, until it could begin. It logs the problem once, and
// calls between before each further attempt.
func watchAgainAndAgain(ctx context.Context, runner tasks.Runner, problem string, watch func() error, between func()) {
	for isLogged := false; ctx.Err() == nil; isLogged = true {
		err := watch()
		if err == nil {
			return
		}
		if !isLogged {
			log.FromContext(ctx).Error(err, problem)
		}
		runner.Wait(ctx, rewatchAfter)
		between()
	}
}

// What the worker reads: the cache, or what a list at the API server has returned.

// syncWoken syncs when something has woken the worker, by the objects that sources.choose says. It
// returns when to sync again; 0 is when something changes.
func (a *Agent) syncWoken(ctx context.Context) (time.Duration, error) {
	switch a.knownSources().choose(causeWoken) {
	case sourceLastUntilListed:
		a.state.isCacheReadDue = true
	case sourceLastAndList:
		a.beginList(ctx, listRequest{timeout: requestTimeout})
	case sourceCache:
		objects, err := a.readObjects(ctx, false)
		if err != nil {
			a.watchdog.BeginRound()
			a.watchdog.EndRound(ifWholeSyncFailed(err))
			return 0, err
		}
		a.state.objects = objects
	case sourceLast, sourceNone, sourceList:
	}
	defer pacing.Signal(a.reporter.Changed)
	return a.sync(ctx, a.state.objects, a.freshness.isCurrent())
}

// syncFromAPIServer lists the node's objects at the API server, and has the worker apply them: for the
// heartbeat, which renews the Lease only afterwards. It fails if the agent could not list, or could
// not observe the kernel: what went wrong with single addresses is in the statuses, and retried by
// the worker.
func (a *Agent) syncFromAPIServer(ctx context.Context) error {
	pending := &pendingSync{done: make(chan struct{}, 1)}
	// there is one heartbeat
	a.heartbeatLists <- listRequest{timeout: min(a.freshness.renewalPeriod(), requestTimeout), sync: pending}
	pacing.Signal(a.listsChanged)
	if a.Tasks.Wait(ctx, tasks.Forever, pending.done) == tasks.Ended {
		return fmt.Errorf("wait for a sync: %w", ctx.Err())
	}
	return pending.err
}

// beginRequestedList begins the list that the heartbeat has asked for, if it has, unless one is under way:
// no list is applied after a later one.
func (a *Agent) beginRequestedList(ctx context.Context) {
	if a.state.isListing {
		return
	}
	if request, isThere := tryReceive(a.heartbeatLists); isThere {
		a.beginList(ctx, request)
	}
}

// beginList begins to list at the API server. There must be no list under way.
func (a *Agent) beginList(ctx context.Context, request listRequest) {
	a.state.isListing = true
	a.Tasks.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, request.timeout)
		defer cancel()
		objects, err := a.readObjects(ctx, true)
		a.listResults <- listResult{request, objects, err} // there is room for the one list
		pacing.Signal(a.listsChanged)
	})
}

// syncListed syncs when the list that was under way has ended, by the objects that sources.choose
// says, if any. It returns when to sync again; 0 is when something changes.
func (a *Agent) syncListed(ctx context.Context, list listResult) (wait time.Duration, hasSynced bool, err error) {
	a.state.isListing = false
	if a.state.isCacheReadDue { // the list may be older than the change that woke the worker meanwhile
		a.state.isCacheReadDue = false
		pacing.Signal(a.wake)
	}
	isOfHeartbeat, failure, cause := list.sync != nil, list.err, causeListed
	switch {
	case failure != nil && isOfHeartbeat:
		cause = causeHeartbeatListFailed
	case failure != nil:
		cause, wait = causeListFailed, minRetry
	}
	switch a.knownSources().choose(cause) {
	case sourceList:
		a.state.objects = list.objects
		a.defender.forgetYieldsAboveListedEpochs(list.objects.announcements)
		if isOfHeartbeat {
			a.freshness.noteListed()
			pacing.Signal(a.wake) // for what has to be repaired or renewed
		}
		wait, err = a.sync(ctx, a.state.objects, true)
		hasSynced = true
	case sourceLast: // without anything the agent keeps what the kernel has
		wait, err = a.sync(ctx, a.state.objects, a.freshness.isCurrent())
		hasSynced = true
	case sourceNone, sourceLastUntilListed, sourceLastAndList, sourceCache:
	}
	if !isOfHeartbeat {
		pacing.Signal(a.reporter.Changed) // the heartbeat does so once it has renewed the Lease
		return wait, hasSynced, err
	}
	if failure == nil && errors.Is(err, errWholeSyncFailed) {
		failure = err
	}
	list.sync.err = failure
	pacing.Signal(list.sync.done)
	return wait, hasSynced, err
}

// What the worker does: it gathers, decides, applies and reports.

// sync makes the kernel as the objects say. isUpToDate means that the objects are known to be up
// to date. It waits for nothing but the kernel and the node's service proxy. It returns when to
// sync again, 0 is when something changes, or errors after which to retry: those of single
// addresses, or errWholeSyncFailed if it could do nothing at all.
func (a *Agent) sync(ctx context.Context, objects apiObjects, isUpToDate bool) (wait time.Duration, err error) {
	a.watchdog.BeginRound()
	defer func() { a.watchdog.EndRound(ifWholeSyncFailed(err)) }()
	a.logMissingLBNodeAgent(ctx, objects)

	inputs, err := a.gather(objects, isUpToDate)
	if err != nil {
		return 0, err
	}
	memory, decision := plan.Decide(a.state.memory, inputs)
	a.state.memory = memory
	if decision.AsksForTakeover {
		a.freshness.confirm() // once it has listed the agent need not ask the link
	}
	outcomes, errs := a.apply(ctx, decision, inputs.Observed)
	if outcomes.Unrenewed > 0 {
		pacing.Signal(a.wake) // the next sync goes on
	}
	if err := a.removeVirtual(decision); err != nil {
		return 0, errors.Join(errs, err) // not reported: the agent may be removed once it has reported
	}
	outcomes.Rivals, outcomes.Notes = a.defender.rivals(), a.problemNotes()
	memory, conclusion := plan.Conclude(memory, inputs, decision, outcomes)
	a.state.memory = memory

	if !decision.IsNothingKnown {
		//nolint:contextcheck // the defender listens until its own context ends
		a.defender.updateYields(decision.Desired())
	}
	a.defender.setHeld(conclusion.Held) //nolint:contextcheck // as above
	if !decision.IsNothingKnown {
		a.saveCheckpoint(inputs)
	}
	a.watching.setStandbys(objects.standbys, watch.SettingsOf(objects.lbNodeAgent)) //nolint:contextcheck // as above
	askings := a.reporter.withLatestStatuses(objects.askings)
	a.reachability.setAskings(askings)
	if !objects.isFromCheckpoint {
		a.report(inputs, decision, conclusion, askings)
	}
	err = errors.Join(errs, decision.Err)
	if wait = conclusion.DecideIn; err != nil && wait > 0 && wait <= plan.ReprobeInterval {
		// An error would delay the addresses that wait until another station stops answering.
		log.FromContext(ctx).Error(err, "Not everything could be applied")
		return wait, nil
	}
	return wait, err
}

// gather returns the inputs of a decision.
func (a *Agent) gather(objects apiObjects, isUpToDate bool) (plan.Inputs, error) {
	observed, err := a.Kernel.Observe()
	if err != nil {
		return plan.Inputs{}, fmt.Errorf("%w: %w", errWholeSyncFailed, err)
	}
	a.defender.noteObserved(observed)
	a.Neighbours.SetPodMACs(plan.PodMACs(observed))
	held, yields := a.defender.heldAndYields()
	claims, living := a.watching.takeClaims()
	return plan.Inputs{
		Now:                         a.Tasks.Now(),
		LBNodeAgentName:             a.LBNodeAgentName,
		LBNodeAgent:                 objects.lbNodeAgent,
		Announcements:               a.reporter.withLatestStatuses(objects.announcements),
		CommonAnnouncements:         objects.commonAnnouncements,
		Standbys:                    a.reporter.withLatestStatuses(objects.standbys),
		IsFirstAnnouncementReported: len(objects.announcements) > 0 && objects.announcements[0].Status.ObservedGeneration > 0,
		IsUpToDate:                  isUpToDate,
		IsFromCheckpoint:            objects.isFromCheckpoint,
		Observed:                    observed,
		Held:                        held,
		Yields:                      yields,
		CheckedContestEpochs:        a.defender.checkedContestEpochs(),
		ProbeAnswers:                a.prober.takeAnswers(),
		Claims:                      claims,
		LivingNodes:                 living,
	}, nil
}

// removeVirtual removes the virtual interfaces that the agent made and does not need any more,
// unless they hold addresses.
func (a *Agent) removeVirtual(decision plan.Decision) error {
	var errs error
	for _, name := range decision.VirtualsToRemove {
		errs = errors.Join(errs, a.Kernel.RemoveVirtual(name))
	}
	return errs
}

// report passes the statuses on to the reporter, and what is announced to the metrics.
func (a *Agent) report(
	inputs plan.Inputs, decision plan.Decision, conclusion plan.Conclusion, askings []purelbv1.Announcement,
) {
	if decision.IsNothingKnown {
		a.reporter.setStatuses(nil, nil, nil)
		return
	}
	a.Metrics.setAnnounced(a.NodeName, conclusion.Announced, conclusion.StateCounts)
	a.reporter.setStatuses(slices.Concat(inputs.Announcements, inputs.Standbys, askings),
		slices.Concat(
			conclusion.Statuses, a.watching.takeStandbyStatuses(&inputs, &conclusion),
			a.reachability.askingStatuses(askings, inputs.Now),
		), inputs.IncludedCommonAnnouncements())
}

// logMissingLBNodeAgent logs once that there is no LBNodeAgent.
func (a *Agent) logMissingLBNodeAgent(ctx context.Context, objects apiObjects) {
	isMissing := objects.lbNodeAgent == nil && len(objects.announcements) > 0
	if isMissing && !a.state.isMissingLBNodeAgentLogged {
		log.FromContext(ctx).Info(
			"There is no such LBNodeAgent: changing nothing until there is", "lbnodeagent", a.LBNodeAgentName,
		)
	}
	a.state.isMissingLBNodeAgentLogged = isMissing
}
