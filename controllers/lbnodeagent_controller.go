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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/agents"
	"github.com/purelb/purelb-operator/controllers/placement"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

// LBNodeAgentReconciler runs agents: it labels each node with the LBNodeAgent
// that applies to it, and keeps one DaemonSet for each LBNodeAgent.
//
// The DaemonSet controller ends an agent as soon as its node's label changes. So a node that
// another LBNodeAgent is to have, or none, first withdraws what it announces, as placement
// asks of it; then its label changes. An LBNodeAgent that is deleted stays until all of its
// nodes have done so, and until their Announcements and Leases are gone. The reconciler keeps
// no state.
type LBNodeAgentReconciler struct {
	Client    client.Client
	Recorder  events.EventRecorder
	Liveness  *Liveness
	Namespace string
	Defaults  agents.Defaults
}

// finalizer keeps an LBNodeAgent until its nodes have withdrawn their addresses.
const finalizer = "purelb.io/agents"

// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=purelb.io,resources=lbnodeagents/status,namespace=purelb-system,verbs=patch
// +kubebuilder:rbac:groups=purelb.io,resources=lbnodeagents,namespace=purelb-system,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=purelb.io,resources=lbnodeagents/finalizers,namespace=purelb-system,verbs=update
// +kubebuilder:rbac:groups=apps,resources=daemonsets,namespace=purelb-system,verbs=get;list;watch;create;patch;delete

// +kubebuilder:rbac:groups="",resources=serviceaccounts,namespace=purelb-system,verbs=get;list;watch

// SetupWithManager registers the reconciler.
func (r *LBNodeAgentReconciler) SetupWithManager(mgr ctrl.Manager) error {
	allAgents := batched(r.requestsOfAll)
	return ctrl.NewControllerManagedBy(mgr).
		Named("lbnodeagent").
		For(&v1.LBNodeAgent{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1.LBNodeAgent{}, allAgents, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1.Announcement{}, allAgents, builder.WithPredicates(reportsOfLeavingNode)).
		Owns(&appsv1.DaemonSet{}).
		Watches(&corev1.Node{}, allAgents, builder.WithPredicates(predicate.LabelChangedPredicate{})).
		Watches(&corev1.ServiceAccount{}, allAgents, builder.WithPredicates(predicate.NewPredicateFuncs(func(obj client.Object) bool {
			return obj.GetName() == r.Defaults.ServiceAccount && obj.GetNamespace() == r.Namespace
		}))).
		WatchesRawSource(source.Channel(r.Liveness.Expiries(), batchedFor(expiryWait, r.requestsOfAll))).
		Complete(r)
}

// requestsOfAll are the requests of all LBNodeAgents. Where there is none, one request
// removes labels of earlier ones.
func (r *LBNodeAgentReconciler) requestsOfAll(ctx context.Context, _ client.Object) []reconcile.Request {
	list, err := r.listAgents(ctx)
	if err != nil {
		log.FromContext(ctx).Error(err, "Cannot enqueue LBNodeAgents")
		return nil
	}
	if len(list) == 0 {
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: r.Namespace}}}
	}
	var requests []reconcile.Request
	for i := range list {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list[i])})
	}
	return requests
}

func (r *LBNodeAgentReconciler) listAgents(ctx context.Context) ([]v1.LBNodeAgent, error) {
	var list v1.LBNodeAgentList
	if err := r.Client.List(ctx, &list, client.InNamespace(r.Namespace)); err != nil {
		return nil, fmt.Errorf("list LBNodeAgents: %w", err)
	}
	return list.Items, nil
}

// reportsOfLeavingNode lets through Announcements of nodes that are to withdraw what they
// have.
var reportsOfLeavingNode = predicate.NewPredicateFuncs(func(obj client.Object) bool {
	a, ok := obj.(*v1.Announcement)
	return ok && a.Spec.Leaving
})

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
	own := nodes[agent.Name]
	result := reconcile.Result{RequeueAfter: own.untilSilent}
	if len(own.leaving) > 0 {
		result.RequeueAfter = smallest(result.RequeueAfter, leavingInterval)
	}
	if !agent.DeletionTimestamp.IsZero() && len(own.leaving) == 0 {
		return r.remove(ctx, agent, own)
	}
	if agent.DeletionTimestamp.IsZero() && controllerutil.AddFinalizer(agent, finalizer) {
		if err := r.writeFinalizers(ctx, agent); err != nil {
			return resultOfWrite(err)
		}
	}
	if own.hasNoAccount, err = r.applyDaemonSet(ctx, agent); err != nil {
		return reconcile.Result{}, err
	}
	if err := r.writeStatus(ctx, agent, own); err != nil {
		return resultOfWrite(err)
	}
	return result, nil
}

// applyDaemonSet writes the DaemonSet of an LBNodeAgent, and reports whether the agents'
// service account does not exist. Then the agents' pods stay as they are: none could start.
func (r *LBNodeAgentReconciler) applyDaemonSet(ctx context.Context, agent *v1.LBNodeAgent) (hasNoAccount bool, err error) {
	account := &corev1.ServiceAccount{}
	err = r.Client.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: r.Defaults.ServiceAccount}, account)
	uid := account.UID
	if apierrors.IsNotFound(err) {
		hasNoAccount = true
		ds := &appsv1.DaemonSet{}
		err = client.IgnoreNotFound(r.Client.Get(ctx, client.ObjectKey{Namespace: agent.Namespace, Name: agents.DaemonSetName(agent.Name)}, ds))
		uid = agents.ServiceAccountUIDOf(ds)
	}
	if err != nil {
		return false, fmt.Errorf("look up the service account of the agents: %w", err)
	}
	err = apply(ctx, r.Client, agents.DaemonSet(agent, r.Defaults, uid), ownerLBNodeAgent)
	return hasNoAccount, err
}

// remove removes the DaemonSet of an LBNodeAgent that no node has any more. It lets the
// LBNodeAgent go when placement has removed what was made for its nodes: who removes the
// manager next finds nothing left behind.
func (r *LBNodeAgentReconciler) remove(ctx context.Context, agent *v1.LBNodeAgent, nodes agentNodes) (reconcile.Result, error) {
	ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: agent.Namespace, Name: agents.DaemonSetName(agent.Name)}}
	if err := r.Client.Delete(ctx, ds); client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("delete DaemonSet %s: %w", ds.Name, err)
	}
	if nodes.hasAnnouncements {
		return reconcile.Result{RequeueAfter: leavingInterval}, nil
	}
	if !controllerutil.RemoveFinalizer(agent, finalizer) {
		return reconcile.Result{}, nil
	}
	return resultOfWrite(r.writeFinalizers(ctx, agent))
}

// writeFinalizers writes the finalizers of an LBNodeAgent, if it is still as read.
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

// agentNodes are the nodes of one LBNodeAgent.
type agentNodes struct {
	// selectedCount is how many nodes it applies to.
	selectedCount int32
	// leaving are the nodes that have its label, and have yet to withdraw their addresses
	// before the label changes; sorted.
	leaving []string
	// labelledCount is how many Linux nodes have its label, and silent are those of them
	// whose agent has not renewed its Lease for silentAfter, or never; sorted. untilSilent is
	// in how long the next of the others may be one of them; 0 if none is late.
	labelledCount int32
	silent        []silentNode
	untilSilent   time.Duration
	// hasAnnouncements is that some node has an Announcement that names it.
	hasAnnouncements bool
	// hasNoAccount is that the service account of the agents does not exist.
	hasNoAccount bool
}

// silentNode is a node whose agent does not renew its Lease.
type silentNode struct {
	name string
	// isNotReady is that the node is not Ready, which explains it.
	isNotReady bool
}

// labelNodes gives each node the label of the LBNodeAgent that applies to it, and returns
// the nodes of each LBNodeAgent.
func (r *LBNodeAgentReconciler) labelNodes(ctx context.Context) (map[string]agentNodes, error) {
	list, err := r.listAgents(ctx)
	if err != nil {
		return nil, err
	}
	var nodes corev1.NodeList
	if err := r.Client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list Nodes: %w", err)
	}
	announcements, err := listAnnouncements(ctx, r.Client, r.Namespace)
	if err != nil {
		return nil, err
	}
	announcementsByNode := map[string][]v1.Announcement{}
	for i := range announcements {
		node := announcements[i].Spec.NodeName
		announcementsByNode[node] = append(announcementsByNode[node], announcements[i])
	}
	all := map[string]agentNodes{}
	for i := range announcements {
		named := all[announcements[i].Spec.LBNodeAgent]
		named.hasAnnouncements = true
		all[announcements[i].Spec.LBNodeAgent] = named
	}
	var errs []error
	for i := range nodes.Items {
		n := &nodes.Items[i]
		label, name := n.Labels[v1.LabelAgent], agents.Assign(list, n.Labels)
		selecting := all[name]
		selecting.selectedCount++
		all[name] = selecting
		all[label] = r.withLabelled(all[label], n)
		switch agents.LabelActionOf(list, n.Labels, announcementsByNode[n.Name], r.Liveness.SilentFor(n.Name) > lostAfter) {
		case agents.Keep:
		case agents.Wait:
			labelled := all[label]
			labelled.leaving = append(labelled.leaving, n.Name)
			all[label] = labelled
		case agents.Abandon:
			r.recordLost(list, label, n.Name)
			errs = append(errs, r.labelNode(ctx, n, name))
		case agents.Change:
			errs = append(errs, r.labelNode(ctx, n, name))
		}
	}
	for _, nodes := range all {
		slices.Sort(nodes.leaving)
		slices.SortFunc(nodes.silent, func(a, b silentNode) int { return strings.Compare(a.name, b.name) })
	}
	return all, errors.Join(errs...)
}

// withLabelled counts a node that has the label of an LBNodeAgent. Agents run on Linux only.
func (r *LBNodeAgentReconciler) withLabelled(nodes agentNodes, n *corev1.Node) agentNodes {
	if os, known := n.Labels[corev1.LabelOSStable]; known && os != "linux" {
		return nodes
	}
	nodes.labelledCount++
	if r.Liveness.LivenessOf(n.Name) != placement.Expired {
		return nodes
	}
	if silentFor := r.Liveness.SilentFor(n.Name); silentFor < silentAfter {
		nodes.untilSilent = smallest(nodes.untilSilent, silentAfter-silentFor)
		return nodes
	}
	isReady := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	nodes.silent = append(nodes.silent, silentNode{name: n.Name, isNotReady: !isReady})
	return nodes
}

// recordLost records that a node changes its label without having withdrawn its addresses.
func (r *LBNodeAgentReconciler) recordLost(list []v1.LBNodeAgent, label, node string) {
	for i := range list {
		if list[i].Name == label {
			r.Recorder.Eventf(&list[i], nil, corev1.EventTypeWarning, v1.EventAgentLost, "Release "+node,
				"The agent of node %s has not renewed its Lease for more than %s: addresses that the node still has are not withdrawn", node, lostAfter)
		}
	}
}

// labelNode writes the label of one Node; without a name it removes the label.
func (r *LBNodeAgentReconciler) labelNode(ctx context.Context, n *corev1.Node, name string) error {
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

func (r *LBNodeAgentReconciler) writeStatus(ctx context.Context, agent *v1.LBNodeAgent, nodes agentNodes) error {
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
	return applyStatus(ctx, r.Client, agent, ownerLBNodeAgent)
}

// agentStatus is the status that an LBNodeAgent is to have, given its DaemonSet and its
// nodes.
func agentStatus(agent *v1.LBNodeAgent, ds *appsv1.DaemonSet, nodes agentNodes) v1.LBNodeAgentStatus {
	status := v1.LBNodeAgentStatus{
		ObservedGeneration: agent.Generation,
		DesiredNodes:       ds.Status.DesiredNumberScheduled,
		// A pod is Ready whether its agent reaches the API server or not.
		ReadyNodes: min(ds.Status.NumberReady, max(nodes.labelledCount-int32(len(nodes.silent)), 0)), //nolint:gosec // there are not that many nodes
		Conditions: append([]metav1.Condition(nil), agent.Status.Conditions...),
	}
	ready := metav1.Condition{
		Type: v1.ConditionReady, Status: metav1.ConditionFalse, ObservedGeneration: agent.Generation, Reason: v1.ReasonProgressing,
		Message: fmt.Sprintf("%d of %d agents are ready", status.ReadyNodes, status.DesiredNodes),
	}
	isCurrent := ds.Status.ObservedGeneration >= ds.Generation && ds.Status.UpdatedNumberScheduled == status.DesiredNodes
	errs := agents.Validate(agent)
	switch {
	case len(errs) > 0:
		ready.Reason, ready.Message = v1.ReasonInvalid, textlimit.Shorten(errs.ToAggregate().Error(), 4096)
	case len(nodes.leaving) > 0:
		ready.Message = fmt.Sprintf("%d nodes have yet to withdraw their addresses: %s", len(nodes.leaving), textlimit.Shorten(strings.Join(nodes.leaving, ", "), 1024))
	case nodes.hasNoAccount && nodes.selectedCount > 0:
		ready.Reason = v1.ReasonDegraded
		ready.Message += "; the service account of the agents does not exist: no agent can start, and those that run cannot renew their Leases"
	case !isCurrent:
		ready.Message += fmt.Sprintf("; %d run the latest specification", ds.Status.UpdatedNumberScheduled)
	case status.DesiredNodes == 0 && nodes.selectedCount > 0:
		// The DaemonSet has not seen the nodes' labels yet, or tolerates none.
		ready.Message = fmt.Sprintf("%d nodes are selected, but no agent is to run on them yet", nodes.selectedCount)
	case status.ReadyNodes == status.DesiredNodes:
		ready.Status, ready.Reason = metav1.ConditionTrue, v1.ReasonAccepted
		if status.DesiredNodes == 0 {
			ready.Message = "no node is selected"
		}
	case ds.Status.NumberReady == status.DesiredNodes:
		ready.Reason = v1.ReasonDegraded
		ready.Message += "; " + describeSilent(nodes.silent)
	}
	meta.SetStatusCondition(&status.Conditions, ready)
	setStalled(&status.Conditions, ready, len(errs) > 0)
	return status
}

// describeSilent says which agents do not renew their Leases, and why as far as that is known.
func describeSilent(nodes []silentNode) string {
	var names []string
	for _, n := range nodes {
		if n.isNotReady {
			n.name += " (the node is not Ready)"
		}
		names = append(names, n.name)
	}
	const most = 10
	if more := len(names) - most; more > 0 {
		names = append(names[:most], fmt.Sprintf("%d more", more))
	}
	return "the Lease is not renewed by the agent of " + textlimit.Shorten(strings.Join(names, ", "), 1024) + ": see the log of that agent"
}
