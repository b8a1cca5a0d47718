package controllers

import (
	"context"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/pacing"
)

// Waits because more is likely to come.
const (
	// batchWait lets what happens together be handled together: a burst of Services
	// costs one write for each node, and not one for each Service.
	batchWait = 20 * time.Millisecond
	// The first change after a rest is placed after firstPlacementWait, which is enough
	// for what one client writes in a row.
	firstPlacementWait = 2 * time.Millisecond
	// Placement rests for restPerPlacement times as long as it works, from batchWait to
	// maxPlacementRest: where it takes long, as the cluster is large, it runs less often,
	// and three quarters of a processor remain for the rest of the manager.
	restPerPlacement = 3
	maxPlacementRest = 2 * time.Second
	// Routing, which looks at all Services, too, rests for restPerRouting times as long as it works, from
	// batchWait to maxRoutingRest. Nodes advertise what they have by themselves: what they are told
	// changes with BGPPeers and groups. The first address of a new group with spec.bgp waits for that.
	restPerRouting = 9
	maxRoutingRest = 2 * time.Second
	// firstReportWait is how long after the allocation of an address its Service does not yet say that it is not
	// announced: as a rule it is announced sooner, and the Service says only that, with one write.
	firstReportWait = 3 * time.Second
	// silenceWait is how long after its first placement a process may take an agent for alive that is not: longer than
	// the Lease of a node with Local addresses lasts.
	silenceWait = 5 * time.Second
	// advertisedWait is how long Services wait for further reports of speakers: when a router goes
	// away, all nodes report that, and each report concerns all Virtual addresses.
	advertisedWait = 2 * time.Second
	// writesPerReportSpread is how often a Service is written while many nodes report,
	// one after the other, that they have realised a shared entry.
	writesPerReportSpread = 5
	// expiryWait is for how long Leases that expire, or are renewed after that, are collected:
	// each look at them is at all nodes, and agents often fall silent together.
	expiryWait = time.Second
	// ipamReportWait is how long answers of an external IPAM system are collected before
	// the status of its ServiceGroup is written.
	ipamReportWait = 100 * time.Millisecond
	// countDelay is how old the counts of a ServiceGroup may be. Each count looks at all
	// Services, so the counts change at most twice a second while Services come and go.
	countDelay = 500 * time.Millisecond
)

// Waits because something failed.
const (
	// What could not be written is written again after batchWait, then after twice as
	// long each time, up to maxWriteRetry: an API server that refuses everything is not
	// asked more often.
	maxWriteRetry = 10 * time.Second
	// The policies are written again after minPolicyRetry, and then later each time, up
	// to maxPolicyRetry. Where the manager may not even watch them it waits for
	// policySyncWait, which is for ever: the default is to end the manager, without
	// which nothing is allocated.
	minPolicyRetry = time.Second
	maxPolicyRetry = time.Minute
	policySyncWait = 10 * 365 * 24 * time.Hour
	// listRetry is how long a new leader waits before it tries again to list all Services.
	listRetry = time.Second
	// A Service that waits for addresses says so again by an event after reminderMin, and then after
	// twice as long each time, up to reminderMax: less than an hour, after which the API server
	// forgets events. reminderSpread keeps Services that began to wait together apart.
	reminderMin    = 5 * time.Minute
	reminderMax    = 50 * time.Minute
	reminderSpread = 0.3
	// restorePauseMin and restorePauseMax bound the pause between two restores of a
	// Service's overwritten addresses. The first one is short, because most controllers
	// write once; the longest one costs both controllers next to nothing.
	restorePauseMin = time.Second
	restorePauseMax = 5 * time.Minute
	// restoreMemory is after how long without a restore the next one is a first one again:
	// several of the longest pauses, so that a slow controller does not count as gone.
	restoreMemory = 10 * restorePauseMax
)

// Times after which the manager goes on without what it waits for.
const (
	// cachePatience is how long placement waits for the cache to show what it wrote. What
	// the cache does not show by then was deleted by another client.
	cachePatience = 5 * time.Second
	// listTimeout is for how long a new leader tries to list all Services before it gives
	// its leadership up: another replica may reach the API server.
	listTimeout = 30 * time.Second
	// quietAfter is for how long a manager hears of no renewal of any Lease before it takes itself for the one
	// that is cut off: three times the leader's period. An agent that renews its Lease each second has then
	// renewed it less than a Lease of three seconds ago, even if it was late by half a second.
	quietAfter = 3 * LeaderRetryPeriod
	// silentAfter is how long an agent does not renew its Lease before its LBNodeAgent says so:
	// about as long as the kubelet takes to find an agent not ready. An agent that restarts is
	// silent for less.
	silentAfter = 10 * time.Second
	// lostAfter is how long an agent does not renew its Lease before the manager does not
	// wait any more for the agent to withdraw what it has.
	lostAfter = time.Minute
)

// Intervals of looking again where only time changes something.
const (
	// cacheLag is for a version of an object that exists, and that the cache does not show
	// yet. A watch delivers it within a few milliseconds.
	cacheLag = 50 * time.Millisecond
	// unplacedInterval is for addresses that have no node.
	unplacedInterval = 5 * time.Second
	// leavingInterval is for nodes that have yet to withdraw addresses: those that are
	// lost are not waited for.
	leavingInterval = 5 * time.Second
	// LivenessInterval is how late a Lease may be found expired.
	LivenessInterval = 100 * time.Millisecond
)

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

type mapFunc = func(context.Context, client.Object) []reconcile.Request

// batched enqueues requests after batchWait: what comes until then is handled together,
// as a queue has each request once.
func batched(requests mapFunc) handler.EventHandler { return batchedFor(batchWait, requests) }

// batchedFor is batched with another wait.
func batchedFor(wait time.Duration, requests mapFunc) handler.EventHandler {
	return enqueueAfter(func() time.Duration { return wait }, requests)
}

// batchedBy is batched with the waits of a Batch.
func batchedBy(batch *pacing.Batch, now func() time.Time, requests mapFunc) handler.EventHandler {
	return enqueueAfter(func() time.Duration { return batch.Delay(now()) }, requests)
}

func enqueueAfter(delay func() time.Duration, requests mapFunc) handler.EventHandler {
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

// drainTimeout is how long an excluded or cordoned node keeps its Virtual addresses while its speaker
// withdraws the routes to them, which takes 8 s.
const drainTimeout = 30 * time.Second

// sharedReportWait is how long a Service waits for further nodes to report on shared
// entries: where many nodes spread their reports, each of them would have all Services
// written once more.
func sharedReportWait(commons []v1.CommonAnnouncement) time.Duration {
	wait := batchWait
	for i := range commons {
		wait = max(wait, time.Duration(commons[i].Spec.ReportSpreadSeconds)*time.Second/writesPerReportSpread)
	}
	return wait
}

// shortestWait is the smallest of the times to wait that are not 0, which is never.
func shortestWait(waits ...time.Duration) time.Duration {
	least := time.Duration(0)
	for _, w := range waits {
		if w > 0 && (least == 0 || w < least) {
			least = w
		}
	}
	return least
}
