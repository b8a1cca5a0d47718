package controllers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/announced"
)

// eventsEach is the number of nodes up to which each node that announces an
// address gets an event of its own.
const eventsEach = 16

// tellers is how many Services are told at the same time: most of the time that it
// takes is waiting for the API server.
const tellers = 4

// tellsPerSpread is how often a Service is told how far it is, while many nodes report
// one after the other.
const tellsPerSpread = 5

// underway is how long after its allocation a Service is not told that it is not
// announced yet: as a rule it is announced sooner, and told only that.
const underway = 3 * time.Second

// AnnouncedReconciler tells Services, by annotations, a condition and events,
// what nodes announce for them.
type AnnouncedReconciler struct {
	Client    client.Client
	Recorder  events.EventRecorder
	Namespace string
	IsDefault bool
	Reasons   *Reasons
}

// byAnnounced indexes Announcements by the Services that they are about, as
// namespace/name.
const byAnnounced = "services"

// byCommon indexes the Announcements by which nodes announce what is common by
// their LBNodeAgent.
const byCommon = "common"

// SetupWithManager registers the reconciler.
func (r *AnnouncedReconciler) SetupWithManager(mgr ctrl.Manager) error {
	indexer, ctx := mgr.GetFieldIndexer(), context.Background()
	err := errors.Join(
		indexer.IndexField(ctx, &v1.Announcement{}, byAnnounced, about),
		indexer.IndexField(ctx, &v1.CommonAnnouncement{}, byAnnounced, about),
		indexer.IndexField(ctx, &v1.Announcement{}, byCommon, func(obj client.Object) []string {
			if a, ok := obj.(*v1.Announcement); ok && a.Spec.Common {
				return []string{a.Spec.LBNodeAgent}
			}
			return nil
		}),
	)
	if err != nil {
		return fmt.Errorf("index Announcements: %w", err)
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("announced").
		Watches(&corev1.Service{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(predicate.Or(placedDifferently, saysDifferently))).
		Watches(&v1.Announcement{}, r.servicesOf()).
		Watches(&v1.CommonAnnouncement{}, servicesOfCommon()).
		WatchesRawSource(source.Channel(r.Reasons.changes, &handler.EnqueueRequestForObject{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: tellers}).
		Complete(r)
}

// saysDifferently lets through changes of what this reconciler itself writes,
// by whomever: what it compared with may have been out of date.
var saysDifferently = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, ok1 := e.ObjectOld.(*corev1.Service)
	after, ok2 := e.ObjectNew.(*corev1.Service)
	return ok1 && ok2 && (!equality.Semantic.DeepEqual(
		meta.FindStatusCondition(before.Status.Conditions, v1.ConditionAnnounced),
		meta.FindStatusCondition(after.Status.Conditions, v1.ConditionAnnounced),
	) || slices.ContainsFunc(announced.All, func(name string) bool { return before.Annotations[name] != after.Annotations[name] }))
}}

// about lists the Services that an Announcement or CommonAnnouncement is about, as
// namespace/name.
func about(obj client.Object) []string {
	switch a := obj.(type) {
	case *v1.Announcement:
		return announced.Services(a)
	case *v1.CommonAnnouncement:
		return announced.CommonServices(a)
	}
	return nil
}

// tellSoon enqueues Services, as namespace/name.
func tellSoon(q queue, keys []string) { tellIn(batchDelay, q, keys) }

func tellIn(delay time.Duration, q queue, keys []string) {
	for _, key := range keys {
		q.AddAfter(reconcile.Request{NamespacedName: parseKey(key)}, delay)
	}
}

// servicesOf maps an Announcement to the Services for which something in it has
// changed, and records what has newly come true.
func (r *AnnouncedReconciler) servicesOf() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			if a, ok := e.Object.(*v1.Announcement); ok {
				tellSoon(q, announced.Services(a))
				services, _, _ := r.commonDifference(ctx, &v1.Announcement{}, a)
				tellIn(underway, q, services) // a new node has it all soon, as a rule
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) {
			if a, ok := e.Object.(*v1.Announcement); ok {
				services, _, delay := r.commonDifference(ctx, a, &v1.Announcement{})
				tellIn(delay, q, services)
				tellSoon(q, announced.Services(a))
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			before, ok1 := e.ObjectOld.(*v1.Announcement)
			after, ok2 := e.ObjectNew.(*v1.Announcement)
			if !ok1 || !ok2 {
				return
			}
			services, realised, delay := r.commonDifference(ctx, before, after)
			tellIn(delay, q, services)
			tellSoon(q, announced.Changed(before, after))
			r.record(ctx, before, after, append(realised, announced.Realised(before, after)...))
		},
	}
}

// commonDifference lists the Services, as namespace/name, for which a node makes
// something else of what is common, by two versions of its Announcement, and how soon
// those are to be told; and, unless many nodes do, the addresses that it has newly
// announced.
func (r *AnnouncedReconciler) commonDifference(ctx context.Context, before, after *v1.Announcement) (services []string, realised []v1.AnnouncedAddress, delay time.Duration) {
	if !announced.CommonChanged(before, after) {
		return nil, nil, 0
	}
	commons, err := listCommons(ctx, r.Client, r.Namespace)
	if err != nil {
		log.FromContext(ctx).Error(err, "Cannot tell Services what is announced")
		return nil, nil, 0
	}
	delay = batchDelay
	for i := range commons {
		// Each of many reports would have all Services written once more.
		delay = max(delay, time.Duration(commons[i].Spec.ReportSpreadSeconds)*time.Second/tellsPerSpread)
	}
	services, realised = announced.CommonDifference(before, after, commons)
	joining, err := r.joining(ctx, after.Spec.LBNodeAgent, client.Limit(eventsEach+1))
	if err != nil || len(joining) > eventsEach {
		return services, nil, delay // Reconcile writes one event for all
	}
	return services, realised, delay
}

// servicesOfCommon maps a CommonAnnouncement to the Services for which it asks for
// something else.
func servicesOfCommon() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) { tellSoon(q, about(e.Object)) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) { tellSoon(q, about(e.Object)) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) {
			before, ok1 := e.ObjectOld.(*v1.CommonAnnouncement)
			after, ok2 := e.ObjectNew.(*v1.CommonAnnouncement)
			if ok1 && ok2 {
				tellSoon(q, announced.CommonRewritten(before, after))
			}
		},
	}
}

// places lists where the addresses of a Service, as namespace/name, are or are to be.
func (r *AnnouncedReconciler) places(ctx context.Context, key string) ([]announced.Place, error) {
	var announcements v1.AnnouncementList
	var commons v1.CommonAnnouncementList
	options := []client.ListOption{client.InNamespace(r.Namespace), client.MatchingFields{byAnnounced: key}, client.UnsafeDisableDeepCopy}
	if err := errors.Join(r.Client.List(ctx, &announcements, options...), r.Client.List(ctx, &commons, options...)); err != nil {
		return nil, fmt.Errorf("list Announcements of %s: %w", key, err)
	}
	of := map[string]bool{}
	var nodes []v1.Announcement
	for i := range commons.Items {
		agent := commons.Items[i].Spec.LBNodeAgent
		if of[agent] {
			continue
		}
		of[agent] = true
		joining, err := r.joining(ctx, agent)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, joining...)
	}
	return announced.PlacesOf(key, announcements.Items, commons.Items, nodes), nil
}

// joining lists the Announcements by which nodes of an LBNodeAgent announce what is
// common.
func (r *AnnouncedReconciler) joining(ctx context.Context, agent string, options ...client.ListOption) ([]v1.Announcement, error) {
	var list v1.AnnouncementList
	options = append(options, client.InNamespace(r.Namespace), client.MatchingFields{byCommon: agent}, client.UnsafeDisableDeepCopy)
	if err := r.Client.List(ctx, &list, options...); err != nil {
		return nil, fmt.Errorf("list Announcements of LBNodeAgent %s: %w", agent, err)
	}
	return list.Items, nil
}

func parseKey(key string) client.ObjectKey {
	namespace, name, _ := strings.Cut(key, "/")
	return client.ObjectKey{Namespace: namespace, Name: name}
}

// record writes events for what one Announcement's node has newly realised, and for
// its conflicts.
func (r *AnnouncedReconciler) record(ctx context.Context, before, after *v1.Announcement, realised []v1.AnnouncedAddress) {
	node := after.Spec.NodeName
	for _, a := range realised {
		reason := v1.EventAnnouncingLocal
		if a.Type == v1.AnnounceVirtual {
			reason = v1.EventAnnouncingNonLocal
		}
		for _, key := range a.Services {
			r.event(ctx, key, after, corev1.EventTypeNormal, reason, "Announce "+a.Address,
				fmt.Sprintf("Announcing %s from node %s interface %s", a.Address, node, a.Interface))
		}
	}
	for _, a := range announced.Conflicting(before, after) {
		s := announced.StatusOf(after, a.Address)
		for _, key := range a.Services {
			r.event(ctx, key, after, corev1.EventTypeWarning, v1.EventAddressConflict, "Claim "+a.Address,
				announced.ConflictNote(node, s, r.whose(ctx, s.MAC)))
		}
	}
}

// whose is the node that has a MAC address, or empty.
func (r *AnnouncedReconciler) whose(ctx context.Context, mac string) string {
	announcements, err := listAnnouncements(ctx, r.Client, r.Namespace)
	if err != nil {
		return ""
	}
	for i := range announcements {
		for _, iface := range announcements[i].Status.Interfaces {
			if iface.MAC == mac && mac != "" {
				return announcements[i].Spec.NodeName
			}
		}
	}
	return ""
}

func (r *AnnouncedReconciler) event(ctx context.Context, key string, about *v1.Announcement, kind, reason, action, note string) {
	svc := &corev1.Service{}
	if err := r.Client.Get(ctx, parseKey(key), svc); err != nil {
		return // gone: nobody to tell
	}
	if reason == v1.EventAnnouncingNonLocal {
		places, err := r.places(ctx, key)
		if err != nil || announced.Nodes(places) > eventsEach {
			return // Reconcile writes one for all
		}
	}
	r.Recorder.Eventf(svc, about, kind, reason, action, "%s", note)
}

// Reconcile makes one Service say what is announced for it.
func (r *AnnouncedReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	svc := &corev1.Service{}
	if err := r.Client.Get(ctx, req.NamespacedName, svc); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !svc.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil
	}
	addrs := ingressOf(svc)
	var report announced.Report
	var places []announced.Place
	if isOurs(svc, r.IsDefault) && isBranded(svc) && len(addrs) > 0 {
		var err error
		if places, err = r.places(ctx, keyOf(svc)); err != nil {
			return reconcile.Result{}, err
		}
		report = announced.Summarise(addrs, places, func(a netip.Addr) string {
			why, _ := r.Reasons.Of(a)
			return why.Message
		})
	}
	if err := r.override(ctx, svc, places); apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: catchUp}, nil
	} else if err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if left := isUnderway(svc, report, time.Now()); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	return reconcile.Result{}, client.IgnoreNotFound(r.tell(ctx, svc, report, places))
}

// isUnderway returns for how long yet there is nothing to say of a Service that was
// just given its addresses.
func isUnderway(svc *corev1.Service, report announced.Report, now time.Time) time.Duration {
	allocated := meta.FindStatusCondition(svc.Status.Conditions, v1.ConditionAllocated)
	told := meta.FindStatusCondition(svc.Status.Conditions, v1.ConditionAnnounced)
	if report.Condition.Status != metav1.ConditionFalse || allocated == nil || told != nil {
		return 0
	}
	return min(underway, allocated.LastTransitionTime.Add(underway).Sub(now))
}

// tell writes annotations and condition, or takes them away if there is nothing to
// report on.
func (r *AnnouncedReconciler) tell(ctx context.Context, svc *corev1.Service, report announced.Report, places []announced.Place) error {
	wanted := report.Condition
	status := corev1ac.ServiceStatus()
	before := meta.FindStatusCondition(svc.Status.Conditions, v1.ConditionAnnounced).DeepCopy()
	changed := !hasAnnotations(svc.Annotations, report.Annotations, announced.All)
	if wanted.Type == "" {
		changed = changed || before != nil
	} else {
		wanted.ObservedGeneration = svc.Generation
		conditions := slices.Clone(svc.Status.Conditions)
		changed = meta.SetStatusCondition(&conditions, wanted) || changed
		status.WithConditions(conditionConfiguration(meta.FindStatusCondition(conditions, v1.ConditionAnnounced)))
	}
	if !changed {
		return nil
	}
	ac := corev1ac.Service(svc.Name, svc.Namespace).WithUID(svc.UID).WithStatus(status)
	if err := applyServiceStatus(ctx, r.Client, ac, ownerAnnounced, report.Annotations, announced.All); err != nil {
		return err
	}
	if nodes := announced.Nodes(places); wanted.Status == metav1.ConditionTrue && nodes > eventsEach &&
		(before == nil || before.Status != metav1.ConditionTrue) {
		r.Recorder.Eventf(svc, nil, corev1.EventTypeNormal, v1.EventAnnouncingNonLocal, "Announce", "Announcing from %d nodes", nodes)
	}
	return nil
}
