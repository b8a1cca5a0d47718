package controllers

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/agents"
)

// LBNodeAgentReconciler runs agents: it labels each node with the LBNodeAgent
// that applies to it, and keeps one DaemonSet for each LBNodeAgent.
type LBNodeAgentReconciler struct {
	Client    client.Client
	Namespace string
	Defaults  agents.Defaults
}

// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=purelb.io,resources=lbnodeagents/status,namespace=purelb-system,verbs=patch
// +kubebuilder:rbac:groups=purelb.io,resources=lbnodeagents/finalizers,namespace=purelb-system,verbs=update
// +kubebuilder:rbac:groups=apps,resources=daemonsets,namespace=purelb-system,verbs=get;list;watch;create;patch

// SetupWithManager registers the reconciler.
func (r *LBNodeAgentReconciler) SetupWithManager(mgr ctrl.Manager) error {
	all := batched(r.all)
	return ctrl.NewControllerManagedBy(mgr).
		Named("lbnodeagent").
		For(&v1.LBNodeAgent{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
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

// Reconcile labels the nodes and keeps the DaemonSet of one LBNodeAgent.
func (r *LBNodeAgentReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	selected, err := r.labelNodes(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	agent := &v1.LBNodeAgent{}
	if err := r.Client.Get(ctx, req.NamespacedName, agent); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !agent.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil // its DaemonSet goes with it
	}
	if _, err := apply(ctx, r.Client, agents.DaemonSet(agent, r.Defaults), ownerLBNodeAgent); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, r.writeStatus(ctx, agent, selected[agent.Name])
}

// labelNodes gives each node the label of the LBNodeAgent that applies to it,
// and counts them by LBNodeAgent.
func (r *LBNodeAgentReconciler) labelNodes(ctx context.Context) (map[string]int32, error) {
	list, err := r.list(ctx)
	if err != nil {
		return nil, err
	}
	var nodes corev1.NodeList
	if err := r.Client.List(ctx, &nodes); err != nil {
		return nil, fmt.Errorf("list Nodes: %w", err)
	}
	selected := map[string]int32{}
	var errs []error
	for i := range nodes.Items {
		n := &nodes.Items[i]
		name := agents.Assign(list, n.Labels)
		selected[name]++
		if n.Labels[v1.LabelAgent] == name {
			continue
		}
		patch := client.MergeFrom(n.DeepCopy())
		if name == "" {
			delete(n.Labels, v1.LabelAgent)
		} else {
			metav1.SetMetaDataLabel(&n.ObjectMeta, v1.LabelAgent, name)
		}
		if err := r.Client.Patch(ctx, n, patch); client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("label Node %s: %w", n.Name, err))
		}
	}
	return selected, errors.Join(errs...)
}

func (r *LBNodeAgentReconciler) writeStatus(ctx context.Context, agent *v1.LBNodeAgent, selected int32) error {
	ds := &appsv1.DaemonSet{}
	key := client.ObjectKey{Namespace: agent.Namespace, Name: agents.DaemonSetName(agent.Name)}
	if err := r.Client.Get(ctx, key, ds); err != nil {
		return client.IgnoreNotFound(err) // the cache will show it
	}
	status := agentStatus(agent, ds, selected)
	if equality.Semantic.DeepEqual(status, agent.Status) {
		return nil
	}
	agent.Status = status
	return client.IgnoreNotFound(applyStatus(ctx, r.Client, agent, ownerLBNodeAgent))
}

// agentStatus is the status that an LBNodeAgent is to have, by its DaemonSet's
// and the number of nodes that it applies to.
func agentStatus(agent *v1.LBNodeAgent, ds *appsv1.DaemonSet, selected int32) v1.LBNodeAgentStatus {
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
	case !current:
		ready.Message += fmt.Sprintf("; %d run the latest specification", ds.Status.UpdatedNumberScheduled)
	case status.DesiredNodes == 0 && selected > 0:
		// The DaemonSet has not seen the nodes' labels yet, or tolerates none.
		ready.Message = fmt.Sprintf("%d nodes are selected, but no agent is to run on them yet", selected)
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
