package controllers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/announced"
	"github.com/purelb/purelb-operator/controllers/placement"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

// AnnouncedReconciler makes each Service say, by annotations, conditions and events, what
// nodes announce for it, what speakers advertise, and what other nodes get answers for.
type AnnouncedReconciler struct {
	Client                client.Client
	Recorder              events.EventRecorder
	Namespace             string
	IsDefaultLoadBalancer bool
	Explanations          *AddressExplanations
	Now                   func() time.Time

	state announcedState
}

// announcedState is what outlives one reconcile.
type announcedState struct {
	mu sync.Mutex
	// events is what the events of each Service that has addresses have said. It is lost
	// with the process; announced.RestoreEventMemory says what then becomes of events.
	events map[client.ObjectKey]announced.EventMemory
	// settling has, of each Service of which one of the settledConditions is to change, or whose announcement is in
	// doubt, the change. It is lost with the process: then the change is written that much later.
	settling map[settlingKey]announced.PendingChange
	// addresses has the addresses of each Service, with since when they are known; the zero time of those that the
	// Service had when the process first saw it, if it had said by then whether they are announced.
	addresses map[client.ObjectKey]map[netip.Addr]time.Time
}

// settledConditions are those of which each change is written once it has lasted.
var settledConditions = []string{v1.ConditionAdvertised, v1.ConditionServiceReachable}

// reportedConditions are all conditions of a Service that the reconciler owns.
var reportedConditions = append([]string{v1.ConditionAnnounced}, settledConditions...)

// settlingKey is a condition of a Service.
type settlingKey struct {
	service       client.ObjectKey
	conditionType string
}

// forget drops what is known of a Service of which nothing more is to be said, or that could not be read: then
// it is found out again.
func (s *announcedState) forget(key client.ObjectKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.events, key)
	delete(s.addresses, key)
	for _, conditionType := range reportedConditions {
		delete(s.settling, settlingKey{key, conditionType})
	}
}

// noteAddresses notes the addresses of a Service, which may have reported on some before. It returns since when the
// newest of them is known; the zero time if none of them is an earlier one.
func (s *announcedState) noteAddresses(
	key client.ObjectKey, addrs []netip.Addr, hasReported bool, now time.Time,
) (newest time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, isKnown := s.addresses[key]
	after, oldest := make(map[netip.Addr]time.Time, len(addrs)), now
	for _, a := range addrs {
		since, isOld := before[a]
		if !isOld && (isKnown || !hasReported) {
			since = now
		}
		after[a] = since
		if since.After(newest) {
			newest = since
		}
		if since.Before(oldest) {
			oldest = since
		}
	}
	if s.addresses == nil {
		s.addresses = map[client.ObjectKey]map[netip.Addr]time.Time{}
	}
	s.addresses[key] = after
	if !oldest.Before(newest) {
		return time.Time{}
	}
	return newest
}

// settle decides whether a condition of a Service is to be written in place of the stored one, and in
// how long to look again.
func (s *announcedState) settle(
	key settlingKey, stored *metav1.Condition, wanted metav1.Condition, now time.Time,
) (isDue bool, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	isDue, wait, next := s.settling[key].Decide(stored, wanted, now)
	if wait == 0 {
		delete(s.settling, key)
		return isDue, 0
	}
	if s.settling == nil {
		s.settling = map[settlingKey]announced.PendingChange{}
	}
	s.settling[key] = next
	return false, wait
}

// settleAll returns of the settledConditions of a Service, by type, what is to be stored now, and in
// how long to look again; 0 is when something changes.
func (s *announcedState) settleAll(
	svc *corev1.Service, wanted map[string]metav1.Condition, now time.Time,
) (due map[string]metav1.Condition, wait time.Duration) {
	due = map[string]metav1.Condition{}
	for _, t := range settledConditions {
		stored := meta.FindStatusCondition(svc.Status.Conditions, t)
		isDue, untilDue := s.settle(settlingKey{client.ObjectKeyFromObject(svc), t}, stored, wanted[t], now)
		if due[t] = wanted[t]; !isDue {
			due[t] = ptr.Deref(stored, metav1.Condition{})
		}
		wait = shortestWait(wait, untilDue)
	}
	return due, wait
}

// settleAnnounced returns what is to be stored now as v1.ConditionAnnounced, and in how long to look again; 0 is when
// something changes. Only what depends on silence is to last: agents fall silent together when the API server is away.
func (s *announcedState) settleAnnounced(
	svc *corev1.Service, report announced.Report, now time.Time,
) (due metav1.Condition, wait time.Duration) {
	key := settlingKey{client.ObjectKeyFromObject(svc), v1.ConditionAnnounced}
	if !report.DependsOnSilence {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.settling, key)
		return report.Condition, 0
	}
	stored := meta.FindStatusCondition(svc.Status.Conditions, v1.ConditionAnnounced)
	isDue, wait := s.settle(key, stored, report.Condition, now)
	if isDue {
		return report.Condition, 0
	}
	return ptr.Deref(stored, metav1.Condition{}), wait
}

// Reconcile makes one Service say what is announced for it.
func (r *AnnouncedReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	svc := &corev1.Service{}
	err := r.Client.Get(ctx, req.NamespacedName, svc)
	if err != nil || !svc.DeletionTimestamp.IsZero() {
		r.state.forget(req.NamespacedName)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	group, err := r.groupOf(ctx, svc)
	if err != nil {
		return reconcile.Result{}, err
	}
	addrs := allocation.AddressesToAnnounce(svc)
	var report announced.Report
	conditions := map[string]metav1.Condition{}
	var places []announced.Place
	var newest time.Time
	hasReport := IsOurs(svc, r.IsDefaultLoadBalancer) && len(addrs) > 0
	if hasReport {
		hasReported := meta.FindStatusCondition(svc.Status.Conditions, v1.ConditionAnnounced) != nil
		newest = r.state.noteAddresses(req.NamespacedName, addrs, hasReported, r.Now())
		var askings []v1.Announcement
		if places, askings, err = r.placesOf(ctx, KeyOf(svc)); err != nil {
			return reconcile.Result{}, err
		}
		report = announced.Summarise(addrs, places, func(a netip.Addr) placement.Explanation {
			why, _ := r.Explanations.ExplanationFor(a)
			return why
		})
		if conditions[v1.ConditionAdvertised], err = r.advertisedCondition(ctx, group, places); err != nil {
			return reconcile.Result{}, err
		}
		if conditions[v1.ConditionServiceReachable], err = r.reachableCondition(ctx, places, askings); err != nil {
			return reconcile.Result{}, err
		}
	}
	if err := r.overrideLocalPolicy(ctx, svc, group, places); err != nil {
		return resultOfWrite(err)
	}
	wait := max(untilFirstReport(svc, report, newest, r.Now()), r.untilExplained(svc, report))
	if wait == 0 {
		if hasReport {
			conditions, wait = r.state.settleAll(svc, conditions, r.Now())
			var untilDue time.Duration
			conditions[v1.ConditionAnnounced], untilDue = r.state.settleAnnounced(svc, report, r.Now())
			wait = shortestWait(wait, untilDue)
		}
		if err := r.writeReport(ctx, svc, report.Annotations, conditions, places); err != nil {
			return resultOfWrite(err)
		}
	}
	if hasReport {
		r.recordEvents(ctx, svc, places)
	} else {
		r.state.forget(req.NamespacedName)
	}
	return reconcile.Result{RequeueAfter: wait}, nil
}

// placesOf lists where the addresses of a Service, as namespace/name, are announced or are
// to be announced, and the Announcements by which other nodes ask for them.
func (r *AnnouncedReconciler) placesOf(
	ctx context.Context, key string,
) (places []announced.Place, askings []v1.Announcement, err error) {
	var announcements v1.AnnouncementList
	var commons v1.CommonAnnouncementList
	options := []client.ListOption{
		client.InNamespace(r.Namespace), client.MatchingFields{byService: key}, client.UnsafeDisableDeepCopy,
	}
	if err := errors.Join(r.Client.List(ctx, &announcements, options...),
		r.Client.List(ctx, &commons, options...)); err != nil {
		return nil, nil, fmt.Errorf("list Announcements of %s: %w", key, err)
	}
	isListed := map[string]bool{}
	var announcers []v1.Announcement
	for i := range commons.Items {
		agent := commons.Items[i].Spec.LBNodeAgent
		if isListed[agent] {
			continue
		}
		isListed[agent] = true
		var list v1.AnnouncementList
		err := r.Client.List(
			ctx, &list, client.InNamespace(r.Namespace), client.MatchingFields{commonAnnouncersByLBNodeAgent: agent},
			client.UnsafeDisableDeepCopy,
		)
		if err != nil {
			return nil, nil, fmt.Errorf("list Announcements of LBNodeAgent %s: %w", agent, err)
		}
		announcers = append(announcers, list.Items...)
	}
	for _, a := range announcements.Items {
		if a.Spec.Asking != nil {
			askings = append(askings, a)
		}
	}
	return announced.PlacesOf(key, announcements.Items, commons.Items, announcers), askings, nil
}

// untilFirstReport returns for how long a Service that was just given an address, such as one of a second family, does
// not yet say that it is not announced. newest is since when the newest of its addresses is known.
func untilFirstReport(svc *corev1.Service, report announced.Report, newest, now time.Time) time.Duration {
	allocated := meta.FindStatusCondition(svc.Status.Conditions, v1.ConditionAllocated)
	if report.Condition.Status != metav1.ConditionFalse || allocated == nil {
		return 0
	}
	since := allocated.LastTransitionTime.Time
	if earlier := meta.FindStatusCondition(svc.Status.Conditions, v1.ConditionAnnounced); earlier != nil {
		if earlier.Status != metav1.ConditionTrue {
			return 0
		}
		since = newest
	}
	return max(0, min(firstReportWait, since.Add(firstReportWait).Sub(now)))
}

// untilExplained returns in how long to look again at a Service that is reported to be announced again before this
// process knows whether that is in doubt.
func (r *AnnouncedReconciler) untilExplained(svc *corev1.Service, report announced.Report) time.Duration {
	before := meta.FindStatusCondition(svc.Status.Conditions, v1.ConditionAnnounced)
	if before == nil || report.Condition.Status != metav1.ConditionTrue || r.Explanations.AreKnown(r.Now()) ||
		before.Reason != v1.ReasonHolderSilent && before.Reason != v1.ReasonNotAnnounced {
		return 0
	}
	return firstReportWait
}

// writeReport writes annotations and conditions of a Service, or removes them if there is
// nothing to report. Where so many nodes announce it that they have no events of their own, it records one.
// The wanted conditions are by type; what is not among them is removed.
func (r *AnnouncedReconciler) writeReport(
	ctx context.Context, svc *corev1.Service, annotations map[string]string, wanted map[string]metav1.Condition,
	places []announced.Place,
) error {
	status := corev1ac.ServiceStatus()
	before := meta.FindStatusCondition(svc.Status.Conditions, v1.ConditionAnnounced).DeepCopy()
	isChanged := !hasExactAnnotations(svc.Annotations, annotations, announced.AnnotationNames)
	conditions := slices.Clone(svc.Status.Conditions)
	for _, t := range reportedConditions {
		c := wanted[t]
		if c.Type == "" {
			isChanged = meta.RemoveStatusCondition(&conditions, t) || isChanged
			continue
		}
		c.ObservedGeneration = svc.Generation
		isChanged = meta.SetStatusCondition(&conditions, c) || isChanged
		status.WithConditions(conditionApplyConfiguration(meta.FindStatusCondition(conditions, t)))
	}
	if !isChanged {
		return nil
	}
	ac := corev1ac.Service(svc.Name, svc.Namespace).WithUID(svc.UID).WithStatus(status)
	if err := applyServiceStatus(ctx, r.Client, ac, ownerAnnounced, annotations, announced.AnnotationNames); err != nil {
		return err
	}
	r.recordReachable(svc, wanted[v1.ConditionServiceReachable])
	r.recordNotAnnounced(svc, wanted[v1.ConditionAnnounced])
	r.recordAdvertised(svc, wanted[v1.ConditionAdvertised])
	if nodes := announced.CountNodes(places); wanted[v1.ConditionAnnounced].Status == metav1.ConditionTrue &&
		nodes > announced.MaxNodesWithOwnEvent &&
		(before == nil || before.Status != metav1.ConditionTrue) {
		r.Recorder.Eventf(
			svc, nil, corev1.EventTypeNormal, v1.EventAnnouncingNonLocal, "Announce", "Announcing from %d nodes", nodes,
		)
	}
	return nil
}

// recordNotAnnounced records that an address of a Service has no node. svc is the Service as it was before its report
// was written.
func (r *AnnouncedReconciler) recordNotAnnounced(svc *corev1.Service, written metav1.Condition) {
	before := meta.FindStatusCondition(svc.Status.Conditions, v1.ConditionAnnounced)
	if written.Reason == v1.ReasonNotAnnounced && (before == nil || before.Reason != v1.ReasonNotAnnounced) {
		r.Recorder.Eventf(svc, nil, corev1.EventTypeWarning, written.Reason, "Announce", "%s",
			textlimit.Shorten(written.Message, maxNote))
	}
}

// recordEvents records what is new of the places of a Service, compared with what its
// events have said so far. svc is the Service as it was before its report was written.
func (r *AnnouncedReconciler) recordEvents(ctx context.Context, svc *corev1.Service, places []announced.Place) {
	key := client.ObjectKeyFromObject(svc)
	r.state.mu.Lock()
	before, isKnown := r.state.events[key]
	r.state.mu.Unlock()
	if !isKnown {
		before = announced.RestoreEventMemory(svc, places)
	}
	newEvents, after := announced.NewEvents(before, places, func(mac string) string { return r.nodeByMAC(ctx, mac) })
	for _, e := range newEvents {
		r.Recorder.Eventf(svc, e.Announcement, e.Type, e.Reason, e.Action, "%s", e.Note)
	}
	r.state.mu.Lock()
	defer r.state.mu.Unlock()
	if r.state.events == nil {
		r.state.events = map[client.ObjectKey]announced.EventMemory{}
	}
	r.state.events[key] = after
}

// nodeByMAC names the node that has a MAC address, if one has it.
func (r *AnnouncedReconciler) nodeByMAC(ctx context.Context, mac string) string {
	announcements, err := listAnnouncements(ctx, r.Client, r.Namespace)
	if err != nil {
		log.FromContext(ctx).Error(err, "Cannot look up the node of a MAC address")
		return ""
	}
	return announced.NodeByMAC(announcements, mac)
}
