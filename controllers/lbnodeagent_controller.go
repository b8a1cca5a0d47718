package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/agents"
)

// LBNodeAgentReconciler runs agents: it labels each node with the LBNodeAgent
// that applies to it, and keeps one DaemonSet for each LBNodeAgent.
//
// The DaemonSet controller ends an agent as soon as its node's label changes. So
// a node that another LBNodeAgent is to have, or none, first gives up what it
// announces, which placement sees to; then its label changes. An LBNodeAgent that
// is deleted stays until all of its nodes have done so.
type LBNodeAgentReconciler struct {
	Client    client.Client
	Recorder  events.EventRecorder
	Liveness  *Liveness
	Namespace string
	Defaults  agents.Defaults
}

// finalizer keeps an LBNodeAgent until its nodes have given up their addresses.
const finalizer = "purelb.io/agents"

// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=purelb.io,resources=lbnodeagents/status,namespace=purelb-system,verbs=patch
// +kubebuilder:rbac:groups=purelb.io,resources=lbnodeagents,namespace=purelb-system,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=purelb.io,resources=lbnodeagents/finalizers,namespace=purelb-system,verbs=update
// +kubebuilder:rbac:groups=apps,resources=daemonsets,namespace=purelb-system,verbs=get;list;watch;create;patch;delete

// SetupWithManager registers the reconciler.
func (r *LBNodeAgentReconciler) SetupWithManager(mgr ctrl.Manager) error {
	all := batched(r.all)
	return ctrl.NewControllerManagedBy(mgr).
		Named("lbnodeagent").
		For(&v1.LBNodeAgent{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1.LBNodeAgent{}, all, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1.Announcement{}, all, builder.WithPredicates(releases)).
		Owns(&appsv1.DaemonSet{}).
		Watches(&corev1.Node{}, all, builder.WithPredicates(predicate.LabelChangedPredicate{})).
		Complete(r)
}

func (r *LBNodeAgentReconciler) all(ctx context.Context, _ client.Object) []reconcile.Request {
	list, err := r.list(ctx)
	if err != nil {
		log.FromContext(ctx).Error(err, "Cannot enqueue LBNodeAgents")
		return nil
	}
	if len(list) == 0 { // labels of earlier ones may be left
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: r.Namespace}}}
	}
	var requests []reconcile.Request
	for i := range list {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list[i])})
	}
	return requests
}

func (r *LBNodeAgentReconciler) list(ctx context.Context) ([]v1.LBNodeAgent, error) {
	var list v1.LBNodeAgentList
	if err := r.Client.List(ctx, &list, client.InNamespace(r.Namespace)); err != nil {
		return nil, fmt.Errorf("list LBNodeAgents: %w", err)
	}
	return list.Items, nil
}

// releases lets through Announcements of nodes that give up what they have.
var releases = predicate.NewPredicateFuncs(func(obj client.Object) bool {
	a, ok := obj.(*v1.Announcement)
	return ok && a.Spec.Leaving
})

// askAgain is how often nodes are looked at that have yet to give something up:
// those that are lost are not waited for.
const askAgain = 5 * time.Second

// Reconcile labels the nodes and keeps the DaemonSet of one LBNodeAgent.
func (r *LBNodeAgentReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	nodes, err := r.labelNodes(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	agent := &v1.LBNodeAgent{}
	if err := r.Client.Get(ctx, req.NamespacedName, agent); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	held := nodes[agent.Name]
	result := reconcile.Result{}
	if len(held.leaving) > 0 {
		result.RequeueAfter = askAgain
	}
	if !agent.DeletionTimestamp.IsZero() && len(held.leaving) == 0 {
		return reconcile.Result{}, r.end(ctx, agent)
	}
	if agent.DeletionTimestamp.IsZero() && controllerutil.AddFinalizer(agent, finalizer) {
		if err := r.writeFinalizers(ctx, agent); err != nil {
			return reconcile.Result{}, err
		}
	}
	if _, err := apply(ctx, r.Client, agents.DaemonSet(agent, r.Defaults), ownerLBNodeAgent); err != nil {
		return reconcile.Result{}, err
	}
	return result, r.writeStatus(ctx, agent, held)
}

// end removes what is left of an LBNodeAgent that no node has any more.
func (r *LBNodeAgentReconciler) end(ctx context.Context, agent *v1.LBNodeAgent) error {
	ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: agent.Namespace, Name: agents.DaemonSetName(agent.Name)}}
	if err := r.Client.Delete(ctx, ds); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete DaemonSet %s: %w", ds.Name, err)
	}
	if !controllerutil.RemoveFinalizer(agent, finalizer) {
		return nil
	}
	return client.IgnoreNotFound(r.writeFinalizers(ctx, agent))
}

// writeFinalizers writes an LBNodeAgent's finalizers, if it is still as read.
func (r *LBNodeAgentReconciler) writeFinalizers(ctx context.Context, agent *v1.LBNodeAgent) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"finalizers": agent.Finalizers, "resourceVersion": agent.ResourceVersion,
	}})
	if err != nil {
		return fmt.Errorf("make a patch: %w", err)
	}
	if err := r.Client.Patch(ctx, agent, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(ownerLBNodeAgent)); err != nil {
		return fmt.Errorf("write finalizers of LBNodeAgent %s: %w", agent.Name, err)
	}
	return nil
}

// nodesOf is the nodes of one LBNodeAgent.
type nodesOf struct {
	// selected is to how many it applies.
	selected int32
	// leaving is those that it had and that have yet to give up their addresses,
	// sorted.
	leaving []string
}

// labelNodes gives each node the label of the LBNodeAgent that applies to it,
// and tells which nodes each LBNodeAgent has.
func (r *LBNodeAgentReconciler) labelNodes(ctx context.Context) (map[string]nodesOf, error) {
	list, err := r.list(ctx)
	if err != nil {
		return nil, err
	}
	var nodes corev1.NodeList
	if err := r.Client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list Nodes: %w", err)
	}
	listed, err := listAnnouncements(ctx, r.Client, r.Namespace)
	if err != nil {
		return nil, err
	}
	announcements := map[string][]v1.Announcement{}
	for i := range listed {
		announcements[listed[i].Spec.NodeName] = append(announcements[listed[i].Spec.NodeName], listed[i])
	}
	all := map[string]nodesOf{}
	var errs []error
	for i := range nodes.Items {
		n := &nodes.Items[i]
		label, name := n.Labels[v1.LabelAgent], agents.Assign(list, n.Labels)
		of := all[name]
		of.selected++
		all[name] = of
		switch agents.MoveOf(list, n.Labels, announcements[n.Name], r.Liveness.Silent(n.Name) > lostAfter) {
		case agents.Stay:
		case agents.Wait:
			of := all[label]
			of.leaving = append(of.leaving, n.Name)
			all[label] = of
		case agents.Abandon:
			r.sayLost(list, label, n.Name)
			errs = append(errs, r.label(ctx, n, name))
		case agents.Change:
			errs = append(errs, r.label(ctx, n, name))
		}
	}
	for name, of := range all {
		slices.Sort(of.leaving)
		all[name] = of
	}
	return all, errors.Join(errs...)
}

// sayLost tells that a node goes without having given up its addresses.
func (r *LBNodeAgentReconciler) sayLost(list []v1.LBNodeAgent, label, node string) {
	for i := range list {
		if list[i].Name == label {
			r.Recorder.Eventf(&list[i], nil, corev1.EventTypeWarning, v1.EventAgentLost, "Release "+node,
				"The agent of node %s has not been heard of for more than %s: what addresses the node still has are not withdrawn", node, lostAfter)
		}
	}
}

// label writes the label of one Node; without a name it takes it away.
func (r *LBNodeAgentReconciler) label(ctx context.Context, n *corev1.Node, name string) error {
	var value any
	if name != "" {
		value = name
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]any{v1.LabelAgent: value}}})
	if err != nil {
		return fmt.Errorf("make a patch: %w", err)
	}
	target := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}
	if err := r.Client.Patch(ctx, target, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(ownerLBNodeAgent)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("label Node %s: %w", n.Name, err)
	}
	return nil
}

func (r *LBNodeAgentReconciler) writeStatus(ctx context.Context, agent *v1.LBNodeAgent, nodes nodesOf) error {
	ds := &appsv1.DaemonSet{}
	key := client.ObjectKey{Namespace: agent.Namespace, Name: agents.DaemonSetName(agent.Name)}
	if err := r.Client.Get(ctx, key, ds); err != nil {
		return client.IgnoreNotFound(err) // the cache will show it
	}
	status := agentStatus(agent, ds, nodes)
	if equality.Semantic.DeepEqual(status, agent.Status) {
		return nil
	}
	agent.Status = status
	return client.IgnoreNotFound(applyStatus(ctx, r.Client, agent, ownerLBNodeAgent))
}

// agentStatus is the status that an LBNodeAgent is to have, by its DaemonSet's
// and its nodes.
func agentStatus(agent *v1.LBNodeAgent, ds *appsv1.DaemonSet, nodes nodesOf) v1.LBNodeAgentStatus {
	status := v1.LBNodeAgentStatus{
		ObservedGeneration: agent.Generation,
		DesiredNodes:       ds.Status.DesiredNumberScheduled,
		ReadyNodes:         ds.Status.NumberReady,
		Conditions:         append([]metav1.Condition(nil), agent.Status.Conditions...),
	}
	ready := metav1.Condition{
		Type: v1.ConditionReady, Status: metav1.ConditionFalse, ObservedGeneration: agent.Generation, Reason: v1.ReasonProgressing,
		Message: fmt.Sprintf("%d of %d agents are ready", status.ReadyNodes, status.DesiredNodes),
	}
	current := ds.Status.ObservedGeneration >= ds.Generation && ds.Status.UpdatedNumberScheduled == status.DesiredNodes
	errs := agents.Validate(agent)
	switch {
	case len(errs) > 0:
		ready.Reason, ready.Message = v1.ReasonInvalid, shorten(errs.ToAggregate().Error(), 4096)
	case len(nodes.leaving) > 0:
		ready.Message = fmt.Sprintf("%d nodes have yet to give up their addresses: %s", len(nodes.leaving), shorten(strings.Join(nodes.leaving, ", "), 1024))
	case !current:
		ready.Message += fmt.Sprintf("; %d run the latest specification", ds.Status.UpdatedNumberScheduled)
	case status.DesiredNodes == 0 && nodes.selected > 0:
		// The DaemonSet has not seen the nodes' labels yet, or tolerates none.
		ready.Message = fmt.Sprintf("%d nodes are selected, but no agent is to run on them yet", nodes.selected)
	case status.ReadyNodes == status.DesiredNodes:
		ready.Status, ready.Reason = metav1.ConditionTrue, v1.ReasonAccepted
		if status.DesiredNodes == 0 {
			ready.Message = "no node is selected"
		}
	}
	meta.SetStatusCondition(&status.Conditions, ready)
	setStalled(&status.Conditions, ready, len(errs) > 0)
	return status
}
