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
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/agents"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/routing"
	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/internal/tcpmd5"
)

// provisionalInterval is after how long the reconciler looks again whether agents have withdrawn addresses
// whose rules it keeps until then.
const provisionalInterval = 10 * time.Second

// RoutingReconciler writes the NodeRoutings, to which neighbours each node advertises what,
// runs speakers where BGPPeers select nodes, gives those the passwords, and reports on BGPPeers.
// It has one work item, the cluster: gather, decide (routing.Render), write, report.
type RoutingReconciler struct {
	Client    client.Client
	Recorder  events.EventRecorder
	Namespace string
	Defaults  agents.Defaults
	Now       func() time.Time
	// ParallelWrites is how many NodeRoutings are written at the same time; 0 is a number that suits a cluster.
	ParallelWrites int

	// batch decides when changes are looked at.
	batch pacing.Batch
	state routingState
}

// routingState is what outlives one reconcile. It is lost when the process ends.
type routingState struct {
	// sessions are those that each node last reported, to record an event when one comes up
	// or goes down. Without them the events of one report are missing.
	sessions map[string][]v1.RoutingSession
	// turn is of the node that opens sessions anew, as settings have changed. Without it two nodes
	// may do so at once.
	turn routing.Turn
	// lingeringSince is since when addresses are on nodes that are to withdraw them. Without it speakers take back
	// the routes to these later.
	lingeringSince map[routing.LingeringAddress]time.Time
	// speakers are the DaemonSets that were written, by LBNodeAgent. Without them each is written once
	// more, which changes nothing.
	speakers map[string]writtenSpeakers
	// writeRetry is when to write again what could not be written: it holds up nothing else. Without it that is at once.
	writeRetry pacing.Backoff
}

// writtenSpeakers is a DaemonSet as it was rendered, and the object that it was then.
type writtenSpeakers struct {
	rendered   *appsv1.DaemonSet
	uid        types.UID
	generation int64
}

// +kubebuilder:rbac:groups=purelb.io,resources=bgppeers,namespace=purelb-system,verbs=get;list;watch
// +kubebuilder:rbac:groups=purelb.io,resources=bgppeers/status,namespace=purelb-system,verbs=patch
// +kubebuilder:rbac:groups=purelb.io,resources=noderoutings,namespace=purelb-system,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=secrets,namespace=purelb-system,verbs=get;list;watch;create;patch;delete

// SetupWithManager registers the reconciler.
func (r *RoutingReconciler) SetupWithManager(mgr ctrl.Manager) error {
	c := r.Component()
	return c.setupWithManager(mgr)
}

// Component prepares the reconciler, and returns it and what wakes it.
func (r *RoutingReconciler) Component() Component {
	r.batch = pacing.Batch{Wait: batchWait, Gap: batchWait, RestPerWork: restPerRouting, MaxGap: maxRoutingRest}
	r.state.writeRetry = pacing.Backoff{Min: batchWait, Max: maxWriteRetry}
	all := batchedBy(&r.batch, r.Now, func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{wholeCluster}
	})
	spec := predicate.GenerationChangedPredicate{}
	return Component{
		Name: "routing", Reconciler: r,
		Watches: []Watch{
			{Object: &v1.BGPPeer{}, Handler: all, Changed: spec},
			{Object: &v1.NodeRouting{}, Handler: all},
			{Object: &v1.ServiceGroup{}, Handler: all, Changed: specOrRangesChanged},
			{Object: &v1.LBNodeAgent{}, Handler: all, Changed: spec},
			{Object: &v1.Announcement{}, Handler: all, Changed: predicate.Or[client.Object](factsChanged, spec)},
			{Object: &v1.CommonAnnouncement{}, Handler: all, Changed: spec},
			{
				Object: &corev1.Service{}, Handler: all,
				Changed: predicate.Or[client.Object](servicePlacementChanged, communitiesChanged),
			},
			{
				Object: &corev1.Node{}, Handler: all,
				Changed: predicate.Or[client.Object](nodePlacementChanged, nodeUnknownChanged),
			},
			{Object: &corev1.Pod{}, Handler: all, Changed: speakerRunsChanged},
			{Object: &corev1.Secret{}, Handler: all},
			{
				Object: &corev1.ServiceAccount{}, Handler: all,
				Changed: predicate.NewPredicateFuncs(func(obj client.Object) bool {
					return obj.GetName() == r.Defaults.ServiceAccount && obj.GetNamespace() == r.Namespace
				}),
			},
			{
				Object: &appsv1.DaemonSet{}, Handler: all,
				Changed: predicate.And[client.Object](predicate.NewPredicateFuncs(isOfSpeakers), spec),
			},
		},
	}
}

// communitiesChanged lets through that a Service asks for other communities. A new one has no addresses yet.
var communitiesChanged = onlyChanged(func(before, after *corev1.Service) bool {
	return hasAddresses(after) && allocation.CommunitiesText(before) != allocation.CommunitiesText(after)
})

// isOfSpeakers reports whether an object is one that the reconciler makes for speakers.
func isOfSpeakers(obj client.Object) bool {
	return labels.SelectorFromSet(routing.SpeakerLabels()).Matches(labels.Set(obj.GetLabels()))
}

// Reconcile writes what has changed of what the speakers are to do, and how BGPPeers are.
func (r *RoutingReconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	r.batch.Begin(r.Now())
	defer func() { r.batch.End(r.Now()) }()
	g, err := r.gather(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	result := routing.Render(g.Inputs)
	paced := routing.Pace(result.Specs, g.Routings, r.state.turn, g.Now)
	result.Specs, r.state.turn = paced.Specs, paced.Turn
	result.AddWaiting(paced.NodesWaiting)
	r.recordSessions(ctx, g)
	err = errors.Join(
		r.writePasswords(ctx, g, &result),
		r.writeRoutings(ctx, g, &result),
		r.writeSpeakers(ctx, g, &result),
		r.writePeers(ctx, g, &result),
		r.writeGroups(ctx, g, &result),
	)
	r.state.lingeringSince = g.Ignored.LingeringSince
	if isOnlyOutdated(err) {
		return reconcile.Result{RequeueAfter: cacheLag}, nil
	}
	wait := shortestWait(
		paced.Wait, g.Ignored.Wait, noteWriteOutcome(ctx, &r.state.writeRetry, err, "Not all of routing could be written"),
	)
	if result.IsProvisional {
		wait = shortestWait(wait, provisionalInterval)
	}
	return reconcile.Result{RequeueAfter: wait}, nil
}

// writeRoutings writes the NodeRoutings that differ, and deletes those of nodes without a
// speaker.
func (r *RoutingReconciler) writeRoutings(ctx context.Context, g *routingInputs, result *routing.Result) error {
	var changed []*v1.NodeRouting
	for _, node := range slices.Sorted(maps.Keys(result.Specs)) {
		spec := result.Specs[node]
		if stored := g.Routings[node]; stored != nil && equality.Semantic.DeepEqual(stored.Spec, spec) {
			continue
		}
		changed = append(changed, &v1.NodeRouting{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: r.Namespace, Name: node, Labels: nodeLabels(node),
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: g.nodeUIDs[node]}},
			},
			Spec: spec,
		})
	}
	err := forEachParallel(r.ParallelWrites, len(changed), func(i int) error {
		return apply(ctx, r.Client, changed[i], ownerRouting)
	})
	for node, stored := range g.Routings {
		if _, wanted := result.Specs[node]; !wanted {
			if e := r.Client.Delete(ctx, stored); client.IgnoreNotFound(e) != nil {
				err = errors.Join(err, fmt.Errorf("delete NodeRouting %s: %w", node, e))
			}
		}
	}
	return err
}

// writeSpeakers applies the DaemonSets of speakers that are not as they were written, or are to be
// otherwise, and deletes those that nobody needs.
func (r *RoutingReconciler) writeSpeakers(ctx context.Context, g *routingInputs, result *routing.Result) error {
	var list appsv1.DaemonSetList
	if err := r.Client.List(ctx, &list, client.InNamespace(r.Namespace),
		client.MatchingLabels(routing.SpeakerLabels())); err != nil {
		return fmt.Errorf("list DaemonSets: %w", err)
	}
	account := &corev1.ServiceAccount{}
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: r.Defaults.ServiceAccount}, account)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("look up the service account of the speakers: %w", err)
	}
	written := map[string]writtenSpeakers{}
	var errs []error
	for _, name := range result.LBNodeAgents {
		agent := g.lbNodeAgents[name]
		if agent == nil {
			continue
		}
		uid := cmp.Or(account.UID, accountOfSpeakers(list.Items, name)) // without an account none could start
		rendered, last := routing.SpeakerDaemonSet(agent, r.Defaults, uid), r.state.speakers[name]
		isStored := slices.ContainsFunc(list.Items, func(ds appsv1.DaemonSet) bool {
			return ds.Name == rendered.Name && ds.UID == last.uid && ds.Generation <= last.generation
		})
		if isStored && equality.Semantic.DeepEqual(last.rendered, rendered) {
			written[name] = last
			continue
		}
		stored, err := applyAndReturnStored(ctx, r.Client, rendered, ownerRouting)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		written[name] = writtenSpeakers{rendered, stored.GetUID(), stored.GetGeneration()}
	}
	r.state.speakers = written
	for i := range list.Items {
		if !slices.Contains(result.LBNodeAgents, list.Items[i].Labels[v1.LabelAgent]) {
			if err := r.Client.Delete(ctx, &list.Items[i]); client.IgnoreNotFound(err) != nil {
				errs = append(errs, fmt.Errorf("delete DaemonSet %s: %w", list.Items[i].Name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// accountOfSpeakers returns the UID of the service account that the speakers of an LBNodeAgent have now, as far as
// their DaemonSet says.
func accountOfSpeakers(stored []appsv1.DaemonSet, lbNodeAgent string) types.UID {
	for i := range stored {
		if stored[i].Name == routing.SpeakerName(lbNodeAgent) {
			return agents.ServiceAccountUIDOf(&stored[i])
		}
	}
	return ""
}

// writePasswords keeps one Secret for the speakers of each LBNodeAgent, with the passwords that
// they need. A password that is missing now, or cannot be one, stays as it was: else its sessions would end.
func (r *RoutingReconciler) writePasswords(ctx context.Context, g *routingInputs, result *routing.Result) error {
	var errs []error
	for name, files := range result.PasswordRefs {
		agent := g.lbNodeAgents[name]
		if agent == nil {
			continue
		}
		stored, isStored := g.secrets[routing.SpeakerName(name)]
		data := map[string][]byte{}
		for file, ref := range files {
			content, exists := g.Password(ref)
			if _, problem := tcpmd5.ParsePassword(content); exists && problem == "" {
				data[file] = content
			} else if before, exists := stored[file]; exists {
				data[file] = before
			}
		}
		if isStored && equality.Semantic.DeepEqual(stored, data) {
			continue
		}
		errs = append(errs, apply(ctx, r.Client, routing.SpeakerSecret(agent, data), ownerRouting))
	}
	for _, secret := range g.speakerSecrets {
		if len(result.PasswordRefs[secret.Labels[v1.LabelAgent]]) == 0 {
			if err := r.Client.Delete(ctx, secret); client.IgnoreNotFound(err) != nil {
				errs = append(errs, fmt.Errorf("delete Secret %s: %w", secret.Name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// writePeers writes the statuses of BGPPeers that differ.
func (r *RoutingReconciler) writePeers(ctx context.Context, g *routingInputs, result *routing.Result) error {
	reports, err := withDeadSpeakersDown(ctx, r.Client, r.Namespace, g.Routings)
	if err != nil {
		return err
	}
	var errs []error
	for i := range g.Peers {
		p := &g.Peers[i]
		status := routing.PeerStatus(p, result.Peers[p.Name], reports)
		if equality.Semantic.DeepEqual(status, p.Status) {
			continue
		}
		changed := p.DeepCopy()
		changed.Status = status
		err := applyStatus(ctx, r.Client, changed, ownerRouting)
		errs = append(errs, client.IgnoreNotFound(err))
		if err == nil && result.UnknownGroupsProblem != "" &&
			strings.Contains(readyMessage(status.Conditions), result.UnknownGroupsProblem) &&
			!strings.Contains(readyMessage(p.Status.Conditions), result.UnknownGroupsProblem) {
			r.Recorder.Eventf(
				p, nil, corev1.EventTypeWarning, v1.EventRoutesWithheld, "Advertise", "%s", result.UnknownGroupsProblem,
			)
		}
	}
	return errors.Join(errs...)
}

func readyMessage(conditions []metav1.Condition) string {
	if ready := meta.FindStatusCondition(conditions, v1.ConditionReady); ready != nil {
		return ready.Message
	}
	return ""
}

// recordSessions records events for sessions that have come up or gone down.
func (r *RoutingReconciler) recordSessions(ctx context.Context, g *routingInputs) {
	peers := map[string]*v1.BGPPeer{}
	for i := range g.Peers {
		peers[g.Peers[i].Name] = &g.Peers[i]
	}
	sessions := map[string][]v1.RoutingSession{}
	var down []routing.SessionChange
	for _, node := range slices.Sorted(maps.Keys(g.Routings)) {
		nodeRouting := g.Routings[node]
		sessions[node] = nodeRouting.Status.Sessions
		before, known := r.state.sessions[node]
		if !known && r.state.sessions == nil {
			continue // the first reconcile of this process: what happened before is not its to tell
		}
		for _, c := range routing.SessionChanges(node, before, nodeRouting.Status.Sessions) {
			switch p := peers[c.Peer]; {
			case p == nil:
			case c.IsUp:
				r.Recorder.Eventf(
					p, nil, corev1.EventTypeNormal, v1.EventSessionUp, "Connect "+node, "The session of node %s with %s is up", node,
					c.Neighbor,
				)
			default:
				down = append(down, c)
				r.Recorder.Eventf(
					p, nil, corev1.EventTypeWarning, v1.EventSessionDown, "Connect "+node,
					"The session of node %s with %s is down: %s", node, c.Neighbor, c.Cause,
				)
			}
		}
	}
	r.state.sessions = sessions
	r.recordAtServices(ctx, down)
}

// recordAtServices records an event at the Services that have Virtual addresses on the nodes whose
// sessions have gone down, at maxServicesWithEvent of them: what concerns all need not be said a
// thousand times, and each of these says how many more there are.
func (r *RoutingReconciler) recordAtServices(ctx context.Context, down []routing.SessionChange) {
	var concerned []routing.ConcernedService
	for _, c := range down[:min(len(down), maxSessionsAtServices)] {
		keys, err := servicesWithVirtualOn(ctx, r.Client, r.Namespace, c.Node)
		if err != nil {
			log.FromContext(ctx).Error(err, "Cannot find the Services of a session", "node", c.Node)
			return
		}
		concerned = routing.AddConcerned(concerned, c, keys)
	}
	for i := range concerned[:min(len(concerned), maxServicesWithEvent)] {
		svc := &corev1.Service{}
		if err := r.Client.Get(ctx, parseKey(concerned[i].Key), svc); err != nil {
			if client.IgnoreNotFound(err) != nil {
				log.FromContext(ctx).Error(err, "Cannot read a Service", "service", concerned[i].Key)
			}
			continue
		}
		r.Recorder.Eventf(
			svc, nil, corev1.EventTypeWarning, v1.EventSessionDown, "Advertise", "%s",
			concerned[i].Note(len(down)-1, max(len(concerned)-maxServicesWithEvent, 0)),
		)
	}
}

// Bounds of what a router that goes away costs: it takes the sessions of all nodes along, each of
// which concerns all Virtual addresses.
const (
	// maxServicesWithEvent is at how many Services an event says that sessions have gone down, each
	// time that the manager looks at them.
	maxServicesWithEvent = 10
	// maxSessionsAtServices is of how many of these sessions the Services are looked for.
	maxSessionsAtServices = 32
)
