package controllers

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/purelb/purelb-operator/controllers/placement"
	"github.com/purelb/purelb-operator/controllers/routing"
	"github.com/purelb/purelb-operator/internal/pacing"
)

// PlacementReconciler writes the Announcements: what each node is to announce. It has one
// work item, the cluster: gather, decide (placement.Place), write, report.
type PlacementReconciler struct {
	Client                client.Client
	Namespace             string
	IsDefaultLoadBalancer bool
	Liveness              *LivenessTracker
	Now                   func() time.Time
	Metrics               *Metrics
	Explanations          *AddressExplanations
	Recorder              events.EventRecorder
	// NamesSuccessors is the feature gate WireFailover.
	NamesSuccessors bool
	// SlowsLeases is the feature gate SlowLeases. It does nothing without NamesSuccessors.
	SlowsLeases bool
	// ParallelWrites is how many nodes are written at the same time; 0 is a number that suits a cluster.
	ParallelWrites int

	// APIReader reads from the API server.
	APIReader client.Reader

	// batch decides when changes are placed.
	batch pacing.Batch
	state placementState
}

// +kubebuilder:rbac:groups=purelb.io,resources=announcements,namespace=purelb-system,verbs=get;list;watch;create;update;delete
// +kubebuilder:rbac:groups=purelb.io,resources=commonannouncements,namespace=purelb-system,verbs=get;list;watch;create;update;delete
// +kubebuilder:rbac:groups=purelb.io,resources=lbnodeagents;noderoutings,namespace=purelb-system,verbs=get;list;watch

// wholeCluster is the one request there is.
var wholeCluster = reconcile.Request{NamespacedName: types.NamespacedName{Name: "cluster"}}

// Reconcile writes what has changed of what the nodes are to announce.
func (r *PlacementReconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	r.batch.Begin(r.Now())
	defer func() { r.batch.End(r.Now()) }()
	cluster, err := gatherCluster(ctx, r.Client, r.Namespace)
	if err != nil {
		return reconcile.Result{}, err
	}
	if r.isCacheBehind(cluster) {
		return reconcile.Result{RequeueAfter: batchWait}, nil
	}
	now := r.Now()
	if len(cluster.routings) > 0 {
		cluster.ruled = routing.NewRuledAddresses(routingGroups(cluster.groups, cluster.catalog, nil), cluster.routings)
	}
	r.Liveness.SetHeartbeats(cluster.heartbeatPeriods())
	inputs := cluster.placementInputs(r.Liveness.LivenessOf, now, r.IsDefaultLoadBalancer)
	inputs.NamesSuccessors, inputs.Standbys = r.NamesSuccessors, storedObjectsByNode(cluster.standbys)
	if r.SlowsLeases && r.NamesSuccessors {
		inputs.SlowsLeases, inputs.Watches = true, cluster.watches()
	}
	r.state.clocks.FillDurations(&inputs, now)
	result := placement.Place(inputs)

	stored, err := r.writeAnnouncements(ctx, cluster, &inputs, &result)
	err = errors.Join(err, r.writeAllCommons(ctx, cluster, &result),
		r.writeStandbyAnnouncements(ctx, cluster, &inputs, stored),
		r.writeAskingAnnouncements(ctx, cluster, &inputs, stored))
	r.Explanations.set(r.explanations(&inputs, &result), inputs.Addresses, now)
	r.reportPlacement(ctx, &inputs, &result, stored)

	wait := shortestWait(
		result.NextDeadline, cluster.untilNextDrainTimeout(now), r.state.refusals.UntilRetry(now),
		noteWriteOutcome(ctx, &r.state.writeRetry, err, "Not all Announcements could be written"),
	)
	if len(result.Unplaced) > 0 {
		wait = shortestWait(wait, unplacedInterval)
	}
	return reconcile.Result{RequeueAfter: wait}, nil
}

// noteWriteOutcome says when to write again what could not be written, and logs why it
// could not. That an object is not as it was read any more is no error: the cache shows it
// soon. retry is of those that write, and message what the log says.
func noteWriteOutcome(ctx context.Context, retry *pacing.Backoff, err error, message string) time.Duration {
	if err == nil {
		retry.Reset()
		return 0
	}
	if !isOnlyOutdated(err) {
		log.FromContext(ctx).Error(err, message)
	}
	return retry.Next()
}
