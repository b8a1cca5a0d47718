package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// batchDelay lets what happens together be handled together: a burst of
// Services costs one write for each node, not one for each Service.
const batchDelay = 20 * time.Millisecond

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// batched enqueues requests after batchDelay; those that wait already are not
// enqueued twice.
func batched(requests func(context.Context, client.Object) []reconcile.Request) handler.EventHandler {
	return batchedFor(batchDelay, requests)
}

// batchedFor is batched with another delay.
func batchedFor(delay time.Duration, requests func(context.Context, client.Object) []reconcile.Request) handler.EventHandler {
	enqueue := func(ctx context.Context, obj client.Object, q queue) {
		for _, r := range requests(ctx, obj) {
			q.AddAfter(r, delay)
		}
	}
	return handler.Funcs{
		CreateFunc:  func(ctx context.Context, e event.CreateEvent, q queue) { enqueue(ctx, e.Object, q) },
		UpdateFunc:  func(ctx context.Context, e event.UpdateEvent, q queue) { enqueue(ctx, e.ObjectNew, q) },
		DeleteFunc:  func(ctx context.Context, e event.DeleteEvent, q queue) { enqueue(ctx, e.Object, q) },
		GenericFunc: func(ctx context.Context, e event.GenericEvent, q queue) { enqueue(ctx, e.Object, q) },
	}
}

// PlacementReconciler writes the Announcements: what each node is to announce.
// It has one work item, the cluster.
type PlacementReconciler struct {
	Client    client.Client
	Namespace string
	IsDefault bool
	Liveness  *Liveness
	Now       func() time.Time
	Metrics   *Metrics
	Reasons   *Reasons

	// written is the last write of each Announcement, for as long as the cache
	// may not show it: to decide on what was there before could give an address
	// to two nodes.
	written map[string]writtenAnnouncement
}

type writtenAnnouncement struct {
	uid        types.UID
	generation int64
	at         time.Time
}

// cachePatience is how long the cache is waited for. What it does not show by
// then was deleted by somebody else.
const cachePatience = 5 * time.Second

// +kubebuilder:rbac:groups=purelb.io,resources=announcements,namespace=purelb-system,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=purelb.io,resources=lbnodeagents,namespace=purelb-system,verbs=get;list;watch

// SetupWithManager registers the reconciler.
func (r *PlacementReconciler) SetupWithManager(mgr ctrl.Manager) error {
	r.written = map[string]writtenAnnouncement{}
	everything := batched(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: "cluster"}}}
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("placement").
		Watches(&v1.Announcement{}, everything).
		Watches(&v1.ServiceGroup{}, everything, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1.LBNodeAgent{}, everything, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&corev1.Service{}, everything, builder.WithPredicates(placedDifferently)).
		Watches(&corev1.Node{}, everything, builder.WithPredicates(nodeChanged)).
		WatchesRawSource(source.Channel(r.Liveness.Changes(), everything)).
		Complete(r)
}

// placedDifferently lets through changes of a Service that placement looks at.
var placedDifferently = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, ok1 := e.ObjectOld.(*corev1.Service)
	after, ok2 := e.ObjectNew.(*corev1.Service)
	return !ok1 || !ok2 || !equality.Semantic.DeepEqual(before.Status.LoadBalancer, after.Status.LoadBalancer) ||
		!equality.Semantic.DeepEqual(before.Spec, after.Spec) || isBranded(before) != isBranded(after)
}}

// nodeChanged keeps the kubelet's status reports out.
var nodeChanged = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, ok1 := e.ObjectOld.(*corev1.Node)
	after, ok2 := e.ObjectNew.(*corev1.Node)
	if !ok1 || !ok2 {
		return true
	}
	ready := func(n *corev1.Node) corev1.NodeCondition {
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady {
				return corev1.NodeCondition{Status: c.Status, Message: c.Message}
			}
		}
		return corev1.NodeCondition{}
	}
	return !equality.Semantic.DeepEqual(before.Labels, after.Labels) ||
		!equality.Semantic.DeepEqual(before.Spec.Taints, after.Spec.Taints) || ready(before) != ready(after)
}}

// Reconcile writes what has changed of what the nodes are to announce.
func (r *PlacementReconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	in, err := gather(ctx, r.Client, r.Namespace)
	if err != nil {
		return reconcile.Result{}, err
	}
	if r.behind(in.announcements) {
		return reconcile.Result{RequeueAfter: batchDelay}, nil
	}
	facts := in.facts(r.Liveness.Of, r.Now(), r.IsDefault)
	result := placement.Place(facts)
	r.report(ctx, &facts, &result)

	existing := map[string][]*v1.Announcement{}
	for i := range in.announcements {
		a := &in.announcements[i]
		existing[a.Spec.NodeName] = append(existing[a.Spec.NodeName], a)
	}
	var errs []error
	for i := range in.nodes {
		n := &in.nodes[i]
		entries, runs := result.Entries[n.Name]
		if !runs && len(existing[n.Name]) == 0 {
			continue
		}
		errs = append(errs, r.write(ctx, n, entries, result.Heartbeat[n.Name], existing[n.Name]))
	}
	requeue := reconcile.Result{}
	if len(result.Unplaced) > 0 { // for what only time changes
		requeue.RequeueAfter = factsPatience / 6
	}
	return requeue, errors.Join(errs...)
}

// behind reports whether the cache is certain to show a newer version of an
// Announcement soon.
func (r *PlacementReconciler) behind(announcements []v1.Announcement) bool {
	shown := map[string]*v1.Announcement{}
	for i := range announcements {
		shown[announcements[i].Name] = &announcements[i]
	}
	for name, w := range r.written {
		a := shown[name]
		caughtUp := a != nil && (a.UID != w.uid || a.Generation >= w.generation)
		if caughtUp || r.Now().Sub(w.at) > cachePatience {
			delete(r.written, name)
		}
	}
	return len(r.written) > 0
}

// report logs what moves and counts.
func (r *PlacementReconciler) report(ctx context.Context, facts *placement.Facts, result *placement.Result) {
	logger := log.FromContext(ctx)
	r.Reasons.set(result.Unplaced, facts.Addresses)
	for addr, why := range result.Changes {
		logger.V(1).Info("Address changes its node", "address", addr, "reason", why.Reason, "message", why.Message)
	}
	for addr, why := range result.Unplaced {
		logger.V(1).Info("Address has no node", "address", addr, "reason", why.Reason, "message", why.Message)
	}
	members := 0
	for i := range facts.Nodes {
		if facts.Nodes[i].Agent != "" && facts.Nodes[i].Liveness != placement.Expired {
			members++
		}
	}
	r.Metrics.Members(members)
}

// write makes the Announcements of one node carry entries, and makes its Lease.
func (r *PlacementReconciler) write(ctx context.Context, n *corev1.Node, entries []v1.AnnouncedAddress, heartbeat int32, existing []*v1.Announcement) error {
	var names []string
	where := map[string]string{}
	byName := map[string]*v1.Announcement{}
	for _, a := range existing {
		names = append(names, a.Name)
		byName[a.Name] = a
		for _, e := range a.Spec.Addresses {
			where[e.Address] = a.Name
		}
	}
	sliced := placement.Slice(n.Name, entries, names, where)
	var errs []error
	for name, addresses := range sliced {
		spec := v1.AnnouncementSpec{
			NodeName:         n.Name,
			LBNodeAgent:      n.Labels[v1.LabelAgent],
			HeartbeatSeconds: heartbeat,
			Addresses:        addresses,
		}
		errs = append(errs, r.writeOne(ctx, n, name, spec, byName[name]))
	}
	for _, a := range existing {
		if _, wanted := sliced[a.Name]; !wanted {
			if err := r.Client.Delete(ctx, a); client.IgnoreNotFound(err) != nil {
				errs = append(errs, fmt.Errorf("delete Announcement %s: %w", a.Name, err))
			}
		}
	}
	return errors.Join(append(errs, r.ensureLease(ctx, n))...)
}

func (r *PlacementReconciler) writeOne(ctx context.Context, n *corev1.Node, name string, spec v1.AnnouncementSpec, existing *v1.Announcement) error {
	if existing != nil {
		if spec.LBNodeAgent == "" { // the node has left its selector
			spec.LBNodeAgent, spec.HeartbeatSeconds = existing.Spec.LBNodeAgent, existing.Spec.HeartbeatSeconds
		}
		if sameSpec(&existing.Spec, &spec) && existing.Labels[v1.LabelNode] == labelsOf(n)[v1.LabelNode] {
			return nil
		}
	}
	made, err := apply(ctx, r.Client, &v1.Announcement{
		ObjectMeta: metav1.ObjectMeta{
			Name:            name,
			Namespace:       r.Namespace,
			Labels:          labelsOf(n),
			OwnerReferences: []metav1.OwnerReference{ownerOf(n)},
		},
		Spec: spec,
	}, ownerPlacement)
	if err == nil {
		r.written[name] = writtenAnnouncement{uid: made.GetUID(), generation: made.GetGeneration(), at: r.Now()}
	}
	return err
}

// labelsOf is the labels of what is made for a node. A label holds no more than
// 63 characters; a node with a longer name goes without.
func labelsOf(n *corev1.Node) map[string]string {
	if len(n.Name) > validation.LabelValueMaxLength {
		return nil
	}
	return map[string]string{v1.LabelNode: n.Name}
}

// sameSpec compares without regard to the order of addresses, which is the API
// server's to choose.
func sameSpec(a, b *v1.AnnouncementSpec) bool {
	sorted := func(s *v1.AnnouncementSpec) *v1.AnnouncementSpec {
		c := *s
		c.Addresses = slices.SortedFunc(slices.Values(s.Addresses), func(x, y v1.AnnouncedAddress) int { return cmp.Compare(x.Address, y.Address) })
		return &c
	}
	return equality.Semantic.DeepEqual(sorted(a), sorted(b))
}

// ensureLease makes the Lease that the node's agent renews. The agent itself
// may not: it could then make any.
func (r *PlacementReconciler) ensureLease(ctx context.Context, n *corev1.Node) error {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Name:            v1.LeasePrefix + n.Name,
		Namespace:       r.Namespace,
		Labels:          labelsOf(n),
		OwnerReferences: []metav1.OwnerReference{ownerOf(n)},
	}}
	err := r.Client.Get(ctx, client.ObjectKeyFromObject(lease), &coordinationv1.Lease{})
	if apierrors.IsNotFound(err) {
		err = r.Client.Create(ctx, lease)
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make Lease %s: %w", lease.Name, err)
	}
	return nil
}

// factsChanged lets through changes of what an agent reports of its node.
var factsChanged = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, ok1 := e.ObjectOld.(*v1.Announcement)
	after, ok2 := e.ObjectNew.(*v1.Announcement)
	return !ok1 || !ok2 || !equality.Semantic.DeepEqual(before.Status.Interfaces, after.Status.Interfaces)
}}
