package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	"github.com/purelb/purelb-operator/internal/mergepatch"
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
	Liveness  *LivenessTracker
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
		Watches(&v1.Announcement{}, allAgents, builder.WithPredicates(interfacePresenceChanged)).
		Owns(&appsv1.DaemonSet{}).
		Watches(&corev1.Node{}, allAgents, builder.WithPredicates(predicate.LabelChangedPredicate{})).
		Watches(&corev1.ServiceAccount{}, allAgents,
			builder.WithPredicates(predicate.NewPredicateFuncs(func(obj client.Object) bool {
				return obj.GetName() == r.Defaults.ServiceAccount && obj.GetNamespace() == r.Namespace
			}))).
		WatchesRawSource(source.Channel(r.Liveness.Expiries(), batchedFor(expiryWait, r.requestsOfAll))).
		Complete(r)
}

// requestsOfAll are the requests of all LBNodeAgents. Where there is none, one request
// removes labels of earlier ones.
func (r *LBNodeAgentReconciler) requestsOfAll(ctx context.Context, _ client.Object) []reconcile.Request {
	list, err := r.listLBNodeAgents(ctx)
	if err != nil {
		log.FromContext(ctx).Error(err, "Cannot enqueue LBNodeAgents")
		return nil
	}
	if len(list) == 0 {
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: r.Namespace}}}
	}
	return requestsOf(list, func(*v1.LBNodeAgent) bool { return true })
}

func (r *LBNodeAgentReconciler) listLBNodeAgents(ctx context.Context) ([]v1.LBNodeAgent, error) {
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
	return ok && a.Spec.AgentLeaving
})

// interfacePresenceChanged lets through that the agent of a node reports that it selects interfaces, or none.
var interfacePresenceChanged = changed(func(before, after *v1.Announcement) bool {
	return hasReportedFacts(before) != hasReportedFacts(after) ||
		(len(before.Status.Interfaces) == 0) != (len(after.Status.Interfaces) == 0)
})

// Reconcile labels the nodes and keeps the DaemonSet of one LBNodeAgent. A Node that cannot be
// labelled holds up nothing else: the reconciler tries again.
func (r *LBNodeAgentReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	nodes, err := r.gatherNodes(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	labelErr := r.labelNodes(ctx, nodes)
	result, err := r.reconcileLBNodeAgent(ctx, req.NamespacedName, nodes)
	if labelErr != nil && err == nil && result.RequeueAfter > 0 { // what is due then does not wait longer and longer
		log.FromContext(ctx).Error(labelErr, "Not all Nodes could be labelled")
		return result, nil
	}
	if err := errors.Join(labelErr, err); err != nil {
		return reconcile.Result{}, err
	}
	return result, nil
}

// reconcileLBNodeAgent keeps the DaemonSet of one LBNodeAgent and, whatever becomes of that, writes
// the status.
func (r *LBNodeAgentReconciler) reconcileLBNodeAgent(
	ctx context.Context, key client.ObjectKey, nodes *nodesByLBNodeAgent,
) (reconcile.Result, error) {
	agent := &v1.LBNodeAgent{}
	if err := r.Client.Get(ctx, key, agent); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	own := nodes.byAgent[agent.Name]
	result := reconcile.Result{RequeueAfter: own.untilSilent}
	if len(own.leaving) > 0 {
		result.RequeueAfter = shortestWait(result.RequeueAfter, leavingInterval)
	}
	if !agent.DeletionTimestamp.IsZero() && len(own.leaving) == 0 {
		return r.finalize(ctx, agent, own)
	}
	if agent.DeletionTimestamp.IsZero() && controllerutil.AddFinalizer(agent, finalizer) {
		if err := r.writeFinalizers(ctx, agent); err != nil {
			return resultOfWrite(err)
		}
	}
	var applyErr error
	if own.hasNoAccount, applyErr = r.applyDaemonSet(ctx, agent); isRefused(applyErr) {
		own.apiRefusal = applyErr
	}
	if err := r.writeStatus(ctx, agent, own); err != nil {
		result, err = resultOfWrite(err)
		return result, errors.Join(applyErr, err)
	}
	return result, applyErr
}

// applyDaemonSet writes the DaemonSet of an LBNodeAgent, and reports whether the agents'
// service account does not exist. Then the agents' pods stay as they are: none could start.
func (r *LBNodeAgentReconciler) applyDaemonSet(
	ctx context.Context, agent *v1.LBNodeAgent,
) (hasNoAccount bool, err error) {
	account := &corev1.ServiceAccount{}
	err = r.Client.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: r.Defaults.ServiceAccount}, account)
	uid := account.UID
	if apierrors.IsNotFound(err) {
		hasNoAccount = true
		ds := &appsv1.DaemonSet{}
		err = client.IgnoreNotFound(r.Client.Get(
			ctx, client.ObjectKey{Namespace: agent.Namespace, Name: agents.DaemonSetName(agent.Name)}, ds,
		))
		uid = agents.ServiceAccountUIDOf(ds)
	}
	if err != nil {
		return false, fmt.Errorf("look up the service account of the agents: %w", err)
	}
	err = apply(ctx, r.Client, agents.DaemonSet(agent, r.Defaults, uid), ownerLBNodeAgent)
	return hasNoAccount, err
}

// finalize removes the DaemonSet of an LBNodeAgent that no node has any more. It lets the
// LBNodeAgent go when placement has removed what was made for its nodes: who removes the
// manager next finds nothing left behind.
func (r *LBNodeAgentReconciler) finalize(
	ctx context.Context, agent *v1.LBNodeAgent, nodes agentNodes,
) (reconcile.Result, error) {
	ds := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: agent.Namespace, Name: agents.DaemonSetName(agent.Name)},
	}
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
	fields := map[string]any{
		"metadata": map[string]any{"finalizers": agent.Finalizers, "resourceVersion": agent.ResourceVersion},
	}
	if err := mergepatch.Write(ctx, r.Client, agent, fields, client.FieldOwner(ownerLBNodeAgent)); err != nil {
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
	// next are the LBNodeAgents to which they go, and awaited says on which nodes the agents of those do not work, so that
	// others wait for their turns.
	next    []string
	awaited []string
	// labelledCount is how many Linux nodes have its label, and silent are those of them
	// whose agent has not renewed its Lease for silentAfter, or never; sorted. untilSilent is
	// in how long the next of the others may be one of them; 0 if none is late.
	labelledCount int32
	silent        []silentNode
	untilSilent   time.Duration
	// withoutInterface are the nodes with its label whose agents have reported that they select no interface; sorted.
	withoutInterface []string
	// hasAnnouncements is that some node has an Announcement that names it.
	hasAnnouncements bool
	// hasNoAccount is that the service account of the agents does not exist.
	hasNoAccount bool
	// apiRefusal is why the API server refuses what the agents need, or nil: a label, or the
	// DaemonSet.
	apiRefusal error
}

// nodesByLBNodeAgent are the nodes of all LBNodeAgents.
type nodesByLBNodeAgent struct {
	byAgent map[string]agentNodes
	// labelChanges are the labels to write.
	labelChanges []labelChange
}

// labelChange is a label to write on a Node.
type labelChange struct {
	node *corev1.Node
	// oldAgent is the name of the LBNodeAgent that the Node's label names, and newAgent that which it
	// is to name. Either may be empty.
	oldAgent, newAgent string
}

// silentNode is a node whose agent does not renew its Lease.
type silentNode struct {
	name string
	// isNotReady is that the node is not Ready, which explains it.
	isNotReady bool
}

// gatherNodes returns the nodes of each LBNodeAgent, and decides which of them get another
// label.
func (r *LBNodeAgentReconciler) gatherNodes(ctx context.Context) (*nodesByLBNodeAgent, error) {
	list, err := r.listLBNodeAgents(ctx)
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
	var changes []labelChange
	isLost := r.lostAgents(nodes.Items)
	for i := range nodes.Items {
		n := &nodes.Items[i]
		label, name := n.Labels[v1.LabelAgent], agents.LBNodeAgentFor(list, n.Labels)
		selecting := all[name]
		selecting.selectedCount++
		all[name] = selecting
		announced := announcementsByNode[n.Name]
		all[label] = r.countLabelledNode(all[label], n, announced)
		switch agents.LabelActionOf(list, n.Labels, announced, isLost(n, name, announced)) {
		case agents.KeepLabel:
		case agents.AwaitWithdrawal:
			labelled := all[label]
			labelled.leaving = append(labelled.leaving, n.Name)
			if name != "" && !slices.Contains(labelled.next, name) {
				labelled.next = append(labelled.next, name)
			}
			all[label] = labelled
		case agents.ChangeLabelOfLostAgent:
			r.recordLost(list, label, n.Name)
			changes = append(changes, labelChange{n, label, name})
		case agents.ChangeLabel:
			changes = append(changes, labelChange{n, label, name})
		}
	}
	r.noteAwaited(all, &cluster{nodes: nodes.Items, lbNodeAgents: list, announcements: announcements})
	for _, nodes := range all {
		slices.Sort(nodes.leaving)
		slices.Sort(nodes.withoutInterface)
		slices.SortFunc(nodes.silent, func(a, b silentNode) int { return strings.Compare(a.name, b.name) })
	}
	return &nodesByLBNodeAgent{byAgent: all, labelChanges: changes}, nil
}

// lostAgents returns what reports whether the agent of a node that is to run that of LBNodeAgent next, or none, is not
// to be waited for: the agent has been silent for long, and the manager has told it to withdraw what it has, or its
// node is not Ready. While most agents are silent, that a node is not Ready says little: the API server may be away
// from all of them.
func (r *LBNodeAgentReconciler) lostAgents(
	nodes []corev1.Node,
) func(n *corev1.Node, next string, announcements []v1.Announcement) bool {
	isSilent := func(n *corev1.Node) bool { return r.Liveness.SilentFor(n.Name) > lostAfter }
	labelled, silent := 0, 0
	for i := range nodes {
		if n := &nodes[i]; n.Labels[v1.LabelAgent] != "" {
			if labelled++; isSilent(n) {
				silent++
			}
		}
	}
	areMostSilent := silent > 1 && 2*silent > labelled
	return func(n *corev1.Node, next string, announcements []v1.Announcement) bool {
		isTold := slices.ContainsFunc(announcements, func(a v1.Announcement) bool { return a.Spec.AgentLeaving })
		isNotReady := readyOf(n).Status != corev1.ConditionTrue
		return isSilent(n) && (isTold || next == "" || isNotReady && !areMostSilent)
	}
}

// noteAwaited notes of each LBNodeAgent that nodes are to leave which agents these nodes wait for.
func (r *LBNodeAgentReconciler) noteAwaited(all map[string]agentNodes, c *cluster) {
	if !slices.ContainsFunc(slices.Collect(maps.Values(all)), func(n agentNodes) bool { return len(n.next) > 0 }) {
		return
	}
	awaited := agents.TurnsOf(c.lbNodeAgents, c.members(c.announcementsByNode(), r.Liveness.LivenessOf)).Awaited
	for name, nodes := range all {
		slices.Sort(nodes.next)
		for _, next := range nodes.next {
			if len(awaited[next]) > 0 {
				nodes.awaited = append(nodes.awaited, next+" on "+listNodes(awaited[next]))
			}
		}
		all[name] = nodes
	}
}

// labelNodes writes the labels that are to change, and notes which the API server refuses.
func (r *LBNodeAgentReconciler) labelNodes(ctx context.Context, nodes *nodesByLBNodeAgent) error {
	var errs []error
	for _, change := range nodes.labelChanges {
		err := r.labelNode(ctx, change.node, change.newAgent)
		errs = append(errs, err)
		if isRefused(err) {
			concerned := nodes.byAgent[cmp.Or(change.newAgent, change.oldAgent)]
			concerned.apiRefusal = err
			nodes.byAgent[cmp.Or(change.newAgent, change.oldAgent)] = concerned
		}
	}
	return errors.Join(errs...)
}

// countLabelledNode counts a node that has the label of an LBNodeAgent, and what the node's Announcements report.
func (r *LBNodeAgentReconciler) countLabelledNode(
	nodes agentNodes, n *corev1.Node, announcements []v1.Announcement,
) agentNodes {
	nodes.labelledCount++
	if slices.ContainsFunc(announcements, func(a v1.Announcement) bool {
		return a.Spec.LBNodeAgent == n.Labels[v1.LabelAgent] && hasReportedFacts(&a) && len(a.Status.Interfaces) == 0
	}) {
		nodes.withoutInterface = append(nodes.withoutInterface, n.Name)
	}
	if r.Liveness.LivenessOf(n.Name) != placement.Expired {
		return nodes
	}
	if silentFor := r.Liveness.SilentFor(n.Name); silentFor < silentAfter {
		nodes.untilSilent = shortestWait(nodes.untilSilent, silentAfter-silentFor)
		return nodes
	}
	isNotReady := readyOf(n).Status != corev1.ConditionTrue
	nodes.silent = append(nodes.silent, silentNode{name: n.Name, isNotReady: isNotReady})
	return nodes
}

// recordLost records that a node changes its label without having withdrawn its addresses.
func (r *LBNodeAgentReconciler) recordLost(list []v1.LBNodeAgent, label, node string) {
	for i := range list {
		if list[i].Name == label {
			r.Recorder.Eventf(&list[i], nil, corev1.EventTypeWarning, v1.EventAgentLost, "Release "+node,
				"The agent of node %s has not renewed its Lease for more than %s: addresses that the node still has are not "+
					"withdrawn", node, lostAfter)
		}
	}
}

// labelNode writes the label of one Node; without a name it removes the label.
func (r *LBNodeAgentReconciler) labelNode(ctx context.Context, n *corev1.Node, name string) error {
	target := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}
	err := mergepatch.SetLabel(ctx, r.Client, target, v1.LabelAgent, name, client.FieldOwner(ownerLBNodeAgent))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("label Node %s: %w", n.Name, err)
	}
	return nil
}
