package controllers

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

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/events"
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
	"github.com/purelb/purelb-operator/controllers/agents"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// batchDelay lets what happens together be handled together: a burst of
// Services costs one write for each node, not one for each Service.
const batchDelay = 20 * time.Millisecond

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// batched enqueues requests after batchDelay; those that wait already are not
// enqueued twice.
func batched(requests func(context.Context, client.Object) []reconcile.Request) handler.EventHandler {
	return batchedFor(always(batchDelay), requests)
}

func always(d time.Duration) func() time.Duration { return func() time.Duration { return d } }

// batchedFor is batched with another delay.
func batchedFor(delay func() time.Duration, requests func(context.Context, client.Object) []reconcile.Request) handler.EventHandler {
	enqueue := func(ctx context.Context, obj client.Object, q queue) {
		for _, r := range requests(ctx, obj) {
			q.AddAfter(r, delay())
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
	Recorder  events.EventRecorder

	pace pace
	// moving is the moves under way, to measure them.
	moving map[netip.Addr]moving
	// written is the last write of each Announcement, by name, and of each
	// CommonAnnouncement, by commonKey, for as long as the cache
	// may not show it: to decide on what was there before could give an address
	// to two nodes.
	written map[string]writtenAnnouncement
	// writing guards written while nodes are written at the same time.
	writing sync.Mutex
	// revisions is the highest of what is common that was seen, by LBNodeAgent.
	revisions map[string]int64
}

type writtenAnnouncement struct {
	uid        types.UID
	generation int64
	deleted    bool
	at         time.Time
}

// moving is a move under way.
type moving struct {
	kind  placement.Kind
	since time.Time
}

// lostAfter is how long an agent has to be silent before nobody waits for it to
// give up what it has.
const lostAfter = time.Minute

// cachePatience is how long the cache is waited for. What it does not show by
// then was deleted by somebody else.
const cachePatience = 5 * time.Second

// +kubebuilder:rbac:groups=purelb.io,resources=announcements,namespace=purelb-system,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=purelb.io,resources=commonannouncements,namespace=purelb-system,verbs=get;list;watch;create;update;delete
// +kubebuilder:rbac:groups=purelb.io,resources=lbnodeagents,namespace=purelb-system,verbs=get;list;watch

// wholeCluster is the one request there is.
var wholeCluster = reconcile.Request{NamespacedName: types.NamespacedName{Name: "cluster"}}

// SetupWithManager registers the reconciler.
func (r *PlacementReconciler) SetupWithManager(mgr ctrl.Manager) error {
	r.written, r.moving, r.revisions = map[string]writtenAnnouncement{}, map[netip.Addr]moving{}, map[string]int64{}
	if err := indexEndpoints(context.Background(), mgr); err != nil {
		return err
	}
	delay := func() time.Duration { return r.pace.delay(time.Now()) }
	everything := batchedFor(delay, func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{wholeCluster}
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("placement").
		Watches(&v1.Announcement{}, everything).
		Watches(&v1.CommonAnnouncement{}, everything).
		Watches(&v1.ServiceGroup{}, everything, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1.LBNodeAgent{}, everything, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&corev1.Service{}, everything, builder.WithPredicates(placedDifferently)).
		Watches(&corev1.Node{}, everything, builder.WithPredicates(nodeChanged)).
		Watches(&discoveryv1.EndpointSlice{}, batchedFor(delay, r.endpointsMatter)).
		WatchesRawSource(source.Channel(r.Liveness.Changes(), everything)).
		Complete(r)
}

// placedDifferently lets through changes of a Service that placement looks at: of one
// that has addresses, or had.
var placedDifferently = predicate.Funcs{
	CreateFunc: func(e event.CreateEvent) bool { return hasAddresses(e.Object) },
	DeleteFunc: func(e event.DeleteEvent) bool { return hasAddresses(e.Object) },
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok1 := e.ObjectOld.(*corev1.Service)
		after, ok2 := e.ObjectNew.(*corev1.Service)
		return ok1 && ok2 && (hasAddresses(before) || hasAddresses(after)) &&
			(!equality.Semantic.DeepEqual(before.Status.LoadBalancer, after.Status.LoadBalancer) ||
				!equality.Semantic.DeepEqual(before.Spec, after.Spec) || isBranded(before) != isBranded(after) || insists(before) != insists(after))
	},
}

func hasAddresses(obj client.Object) bool {
	svc, ok := obj.(*corev1.Service)
	return ok && len(svc.Status.LoadBalancer.Ingress) > 0
}

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
	defer r.pace.work(time.Now)()
	in, err := gather(ctx, r.Client, r.Namespace)
	if err != nil {
		return reconcile.Result{}, err
	}
	if r.behind(in) {
		return reconcile.Result{RequeueAfter: batchDelay}, nil
	}
	facts := in.facts(r.Liveness.Of, r.Now(), r.IsDefault)
	result := placement.Place(facts)
	r.Reasons.set(result.Unplaced, facts.Addresses)
	err = errors.Join(r.writeAll(ctx, in, &result), r.writeCommons(ctx, in, &result))
	r.report(ctx, &facts, &result) // what could be written has begun
	if err != nil {
		return reconcile.Result{}, err
	}
	// For what only time changes.
	if len(result.Unplaced) > 0 {
		return reconcile.Result{RequeueAfter: factsPatience / 6}, nil
	}
	return reconcile.Result{RequeueAfter: in.untilSick(r.Now())}, nil
}

// writeAll makes the Announcements of all nodes as decided. What fails for one
// node does not stop the others.
func (r *PlacementReconciler) writeAll(ctx context.Context, in *cluster, result *placement.Result) error {
	existing := map[string][]*v1.Announcement{}
	for i := range in.announcements {
		a := &in.announcements[i]
		existing[a.Spec.NodeName] = append(existing[a.Spec.NodeName], a)
	}
	return atOnce(len(in.nodes), func(i int) error {
		n := &in.nodes[i]
		entries, runs := result.Entries[n.Name]
		switch has := existing[n.Name]; {
		case runs || len(entries) > 0:
			return r.write(ctx, n, v1.AnnouncementSpec{
				HeartbeatSeconds: result.Heartbeat[n.Name], Leaving: agents.IsLeaving(in.agents, n.Labels), Common: result.Joins[n.Name],
			}, entries, has)
		case len(has) == 0:
			return nil
		case r.isGone(n.Name, has):
			return r.remove(ctx, has)
		default:
			return r.write(ctx, n, v1.AnnouncementSpec{Leaving: true}, nil, has)
		}
	})
}

// behind reports whether the cache is certain to show a newer version of an
// Announcement or CommonAnnouncement soon.
func (r *PlacementReconciler) behind(in *cluster) bool {
	shown := map[string]*metav1.ObjectMeta{}
	for i := range in.announcements {
		shown[in.announcements[i].Name] = &in.announcements[i].ObjectMeta
	}
	for i := range in.commons {
		shown[commonKey(in.commons[i].Name)] = &in.commons[i].ObjectMeta
	}
	for name, w := range r.written {
		a := shown[name]
		caughtUp := w.deleted && (a == nil || a.UID != w.uid) || !w.deleted && a != nil && (a.UID != w.uid || a.Generation >= w.generation)
		if caughtUp || r.Now().Sub(w.at) > cachePatience {
			delete(r.written, name)
		}
	}
	return len(r.written) > 0
}

// commonKey tells a CommonAnnouncement from an Announcement of the same name.
func commonKey(name string) string { return "common/" + name }

// writeCommons makes the CommonAnnouncements as decided. Those of an LBNodeAgent
// without nodes are emptied; empty ones are removed, but for the one that is named
// after an LBNodeAgent that has nodes, and the one with the highest revision, which is
// not to come twice.
func (r *PlacementReconciler) writeCommons(ctx context.Context, in *cluster, result *placement.Result) error {
	are, stored := map[string]map[string]v1.CommonAnnouncementSpec{}, map[string]*v1.CommonAnnouncement{}
	for agent := range result.Common {
		are[agent] = map[string]v1.CommonAnnouncementSpec{}
	}
	for i := range in.commons {
		c := &in.commons[i]
		if stored[c.Name] = c; are[c.Spec.LBNodeAgent] == nil {
			are[c.Spec.LBNodeAgent] = map[string]v1.CommonAnnouncementSpec{}
		}
		are[c.Spec.LBNodeAgent][c.Name] = c.Spec
	}
	var errs []error
	for agent, specs := range are {
		highest := placement.Highest(specs)
		// Somebody may have deleted the one that had it.
		r.revisions[agent] = max(r.revisions[agent], highest)
		changed := placement.Revise(agent, len(result.Joins), r.revisions[agent], result.Common[agent], specs)
		for _, name := range slices.SortedFunc(maps.Keys(changed), func(a, b string) int { return cmp.Compare(changed[a].Revision, changed[b].Revision) }) {
			if err := r.writeCommon(ctx, name, changed[name], stored[name]); err != nil {
				errs = append(errs, err)
				break // none is to be seen before those with lower revisions
			}
			r.revisions[agent] = changed[name].Revision
		}
		_, has := result.Common[agent]
		for name, spec := range specs {
			_, written := changed[name]
			if !written && len(spec.Addresses) == 0 && (!has || name != agent && spec.Revision < highest) {
				errs = append(errs, r.delete(ctx, stored[name], commonKey(name)))
			}
		}
	}
	return errors.Join(errs...)
}

// delete deletes an Announcement or CommonAnnouncement, by its key in written, unless
// it is another by now than the cache shows.
func (r *PlacementReconciler) delete(ctx context.Context, obj client.Object, key string) error {
	uid, version := obj.GetUID(), obj.GetResourceVersion()
	err := r.Client.Delete(ctx, obj, client.Preconditions{UID: &uid, ResourceVersion: &version})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // the cache will say so
	}
	if err != nil {
		return fmt.Errorf("delete %s: %w", key, err)
	}
	r.writing.Lock()
	defer r.writing.Unlock()
	r.written[key] = writtenAnnouncement{uid: uid, deleted: true, at: r.Now()}
	return nil
}

// writeCommon writes one, unless somebody else has written it meanwhile: a
// revision must not come twice.
func (r *PlacementReconciler) writeCommon(ctx context.Context, name string, spec v1.CommonAnnouncementSpec, stored *v1.CommonAnnouncement) error {
	c := &v1.CommonAnnouncement{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: r.Namespace}, Spec: spec}
	write := func() error { return r.Client.Create(ctx, c, client.FieldOwner(ownerPlacement)) }
	if stored != nil {
		c.ResourceVersion = stored.ResourceVersion
		write = func() error { return r.Client.Update(ctx, c, client.FieldOwner(ownerPlacement)) }
	}
	if err := write(); err != nil {
		return fmt.Errorf("write CommonAnnouncement %s: %w", name, err)
	}
	r.writing.Lock()
	defer r.writing.Unlock()
	r.written[commonKey(name)] = writtenAnnouncement{uid: c.UID, generation: c.Generation, at: r.Now()}
	return nil
}

// isGone reports whether a node that runs no agent any more has given up all that
// it had, or cannot be asked.
func (r *PlacementReconciler) isGone(node string, announcements []*v1.Announcement) bool {
	return r.Liveness.Silent(node) > lostAfter || !slices.ContainsFunc(announcements, func(a *v1.Announcement) bool {
		return !agents.GaveUp(a)
	})
}

func (r *PlacementReconciler) remove(ctx context.Context, announcements []*v1.Announcement) error {
	var errs []error
	for _, a := range announcements {
		errs = append(errs, r.delete(ctx, a, a.Name))
	}
	return errors.Join(errs...)
}

// report tells, logs and counts what moves.
func (r *PlacementReconciler) report(ctx context.Context, facts *placement.Facts, result *placement.Result) {
	logger := log.FromContext(ctx)
	for i := range facts.Addresses {
		addr := &facts.Addresses[i]
		if m, moves := result.Moves[addr.Addr]; moves && m.Begun {
			logger.Info("Address gets a node", "address", addr.Addr, "kind", m.Kind, "from", m.From, "to", m.To, "because", m.Message)
			logger.V(1).Info("Nodes passed over", "address", addr.Addr, "nodes", m.PassedOver)
			r.tell(ctx, addr, m)
		}
	}
	for addr, why := range result.Unplaced {
		logger.V(1).Info("Address has no node", "address", addr, "reason", why.Reason, "message", why.Message)
	}
	r.measure(facts, result)
}

// tell records an event on the Services whose address moves.
func (r *PlacementReconciler) tell(ctx context.Context, addr *placement.Address, m placement.Move) {
	reason, note := v1.EventHandover, "Handing %s over from node %s to %s: %s"
	switch m.Kind {
	case placement.Placement:
		return // it is announced soon, and that is said
	case placement.Failover:
		reason, note = v1.EventFailover, "Moving %s from node %s to %s if nobody answers for it: %s"
	}
	for _, key := range addr.Services {
		svc := &corev1.Service{}
		if err := r.Client.Get(ctx, parseKey(key), svc); err == nil {
			r.Recorder.Eventf(svc, nil, corev1.EventTypeNormal, reason, "Place "+addr.Addr.String(), note, addr.Addr, m.From, m.To, m.Message)
		}
	}
}

// measure counts moves, and how long they take.
func (r *PlacementReconciler) measure(facts *placement.Facts, result *placement.Result) {
	members := 0
	for i := range facts.Nodes {
		if facts.Nodes[i].Agent != "" && facts.Nodes[i].Liveness != placement.Expired {
			members++
		}
	}
	r.Metrics.Members(members)
	for addr, m := range result.Moves {
		if m.Begun {
			r.Metrics.Moves(m.Kind)
			r.moving[addr] = moving{kind: m.Kind, since: r.Now()}
		}
	}
	for addr, m := range r.moving {
		if _, still := result.Moves[addr]; still {
			continue
		}
		if !slices.ContainsFunc(facts.Entries, func(e placement.Entry) bool { return e.Addr == addr && e.State != v1.StateAnnounced }) {
			r.Metrics.Moved(m.kind, r.Now().Sub(m.since))
		}
		delete(r.moving, addr)
	}
}

// write makes the Announcements of one node carry entries, and makes its Lease. spec
// has what else they say; what is common only the first asks for.
func (r *PlacementReconciler) write(ctx context.Context, n *corev1.Node, spec v1.AnnouncementSpec, entries []v1.AnnouncedAddress, existing []*v1.Announcement) error {
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
	var empty []*v1.Announcement
	for _, a := range existing {
		switch {
		case sliced[a.Name] != nil:
		case len(a.Spec.Addresses) == 0 && r.isGone(n.Name, []*v1.Announcement{a}):
			empty = append(empty, a)
		default: // were it deleted now, nobody would know that this is meant, or what its agent still has
			sliced[a.Name] = nil
		}
	}
	for name, addresses := range sliced {
		one := spec
		one.NodeName, one.LBNodeAgent, one.Addresses = n.Name, n.Labels[v1.LabelAgent], addresses
		one.Common = spec.Common && name == n.Name
		errs = append(errs, r.writeOne(ctx, n, name, one, byName[name]))
	}
	return errors.Join(append(errs, r.remove(ctx, empty), r.ensureLease(ctx, n))...)
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
		r.writing.Lock()
		defer r.writing.Unlock()
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
	x, y := *a, *b
	x.Addresses, y.Addresses = nil, nil
	return equality.Semantic.DeepEqual(x, y) && placement.SameAddresses(a.Addresses, b.Addresses)
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
