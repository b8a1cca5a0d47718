package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
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

// parallelReports is how many Services are written at the same time: most of the time that
// a write takes is waiting for the API server.
const parallelReports = 4

// byService indexes Announcements and CommonAnnouncements by the Services that they have
// entries for, and EndpointSlices by their Service, as namespace/name.
const byService = "service"

// commonAnnouncersByLBNodeAgent indexes the Announcements of the nodes that announce the
// CommonAnnouncements of their LBNodeAgent, by the LBNodeAgent.
const commonAnnouncersByLBNodeAgent = "commonAnnouncersByLBNodeAgent"

// SetupWithManager registers the reconciler.
func (r *AnnouncedReconciler) SetupWithManager(mgr ctrl.Manager) error {
	c, err := r.Component(mgr)
	if err != nil {
		return err
	}
	return c.setupWithManager(mgr)
}

// Component prepares the reconciler, and returns it and what wakes it.
func (r *AnnouncedReconciler) Component(cluster ComponentManager) (Component, error) {
	indexer, ctx := cluster.GetFieldIndexer(), context.Background()
	err := errors.Join(
		indexer.IndexField(ctx, &v1.Announcement{}, byService, servicesOfObject),
		indexer.IndexField(ctx, &v1.CommonAnnouncement{}, byService, servicesOfObject),
		indexer.IndexField(ctx, &v1.Announcement{}, commonAnnouncersByLBNodeAgent, func(obj client.Object) []string {
			if a, ok := obj.(*v1.Announcement); ok && a.Spec.IncludeCommonAnnouncements {
				return []string{a.Spec.LBNodeAgent}
			}
			return nil
		}),
	)
	if err != nil {
		err = fmt.Errorf("index Announcements: %w", err)
	}
	serviceChanged := predicate.Or[client.Object](servicePlacementChanged, serviceReportChanged)
	return Component{
		Name: "announced", Reconciler: r,
		Watches: []Watch{
			{Object: &corev1.Service{}, Handler: &handler.EnqueueRequestForObject{}, Changed: serviceChanged},
			{Object: &v1.Announcement{}, Handler: r.announcementHandler()},
			{Object: &v1.CommonAnnouncement{}, Handler: commonAnnouncementHandler()},
			{Object: &v1.LBNodeAgent{}, Handler: batched(r.requestsForServicesOfLBNodeAgent), Changed: reachabilityChanged},
			{Object: &v1.ServiceGroup{}, Handler: batched(r.requestsForServicesOfGroup), Changed: groupReportChanged},
			{
				Object: &v1.NodeRouting{}, Handler: batchedFor(advertisedWait, r.requestsForServicesWithVirtualOn),
				Changed: advertisingChanged,
			},
			{
				Object: &corev1.Node{}, Handler: batchedFor(advertisedWait, r.requestsForServicesWithVirtualOn),
				Changed: nodeUnknownChanged,
			},
			{Object: &corev1.Pod{}, Handler: batchedFor(advertisedWait, r.requestsForSpeakerPod), Changed: speakerRunsChanged},
		},
		Sources: []source.Source{queueSource(&r.Explanations.queue)},
		Options: controller.Options{MaxConcurrentReconciles: parallelReports},
	}, err
}

// serviceReportChanged lets through changes of what this reconciler itself writes, by
// whomever: the report that the reconciler compared with may have been out of date.
var serviceReportChanged = changed(func(before, after *corev1.Service) bool {
	return !hasExactAnnotations(before.Annotations, after.Annotations, announced.AnnotationNames) ||
		slices.ContainsFunc(reportedConditions, func(t string) bool { return isConditionChanged(before, after, t) })
})

// servicesOfObject lists the Services that an Announcement or CommonAnnouncement has
// entries for, as namespace/name.
func servicesOfObject(obj client.Object) []string {
	switch a := obj.(type) {
	case *v1.Announcement:
		return announced.ServicesOfAnnouncement(a)
	case *v1.CommonAnnouncement:
		return announced.ServicesOfCommonAnnouncement(a)
	}
	return nil
}

// enqueueServices enqueues Services, as namespace/name, after a wait.
func enqueueServices(q queue, wait time.Duration, keys []string) {
	for _, key := range keys {
		q.AddAfter(reconcile.Request{NamespacedName: parseKey(key)}, wait)
	}
}

func parseKey(key string) client.ObjectKey {
	namespace, name, _ := strings.Cut(key, "/")
	return client.ObjectKey{Namespace: namespace, Name: name}
}

// announcementHandler returns what enqueues, when an Announcement changes, the Services for which something in it has
// changed.
func (r *AnnouncedReconciler) announcementHandler() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			if a, ok := e.Object.(*v1.Announcement); ok {
				enqueueServices(q, batchWait, announced.ServicesOfAnnouncement(a))
				services, _ := r.servicesOfSharedReport(ctx, &v1.Announcement{}, a)
				enqueueServices(q, firstReportWait, services) // as a rule a new node has realised all shared entries by then
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) {
			if a, ok := e.Object.(*v1.Announcement); ok {
				services, wait := r.servicesOfSharedReport(ctx, a, &v1.Announcement{})
				enqueueServices(q, wait, services)
				enqueueServices(q, batchWait, announced.ServicesOfAnnouncement(a))
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			before, ok1 := e.ObjectOld.(*v1.Announcement)
			after, ok2 := e.ObjectNew.(*v1.Announcement)
			if ok1 && ok2 {
				services, wait := r.servicesOfSharedReport(ctx, before, after)
				enqueueServices(q, wait, services)
				enqueueServices(q, batchWait, announced.ServicesOfChangedEntries(before, after))
			}
		},
	}
}

// servicesOfSharedReport lists the Services, as namespace/name, for which two versions of
// a node's Announcement report something else of the shared entries, and how long they
// wait for further nodes to report.
func (r *AnnouncedReconciler) servicesOfSharedReport(
	ctx context.Context, before, after *v1.Announcement,
) ([]string, time.Duration) {
	if !announced.SharedReportChanged(before, after) {
		return nil, 0
	}
	commons, err := listCommons(ctx, r.Client, r.Namespace)
	if err != nil {
		log.FromContext(ctx).Error(err, "Cannot find the Services of the shared entries")
		return nil, 0
	}
	return announced.ServicesOfChangedSharedReport(before, after, commons), sharedReportWait(commons)
}

// commonAnnouncementHandler returns what enqueues, when a CommonAnnouncement changes, the Services of which an entry
// has changed.
func commonAnnouncementHandler() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) {
			enqueueServices(q, batchWait, servicesOfObject(e.Object))
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) {
			enqueueServices(q, batchWait, servicesOfObject(e.Object))
		},
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) {
			before, ok1 := e.ObjectOld.(*v1.CommonAnnouncement)
			after, ok2 := e.ObjectNew.(*v1.CommonAnnouncement)
			if ok1 && ok2 {
				enqueueServices(q, batchWait, announced.ServicesOfChangedCommonAnnouncement(before, after))
			}
		},
	}
}
