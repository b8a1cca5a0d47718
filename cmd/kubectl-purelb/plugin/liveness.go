package plugin

import (
	"context"
	"fmt"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// leasePoll is how often Leases are looked at while it is not known who renews.
const leasePoll = 250 * time.Millisecond

// ObserveLeases looks at the Leases of agents until each was renewed, or was not for as long as it
// lasts, and notes the nodes of the latter in NotRenewing. No clocks are compared: a node's may be wrong.
// It takes about a second, or as long as a Lease lasts if an agent does not renew its own.
func (o *Objects) ObserveLeases(ctx context.Context, c client.Reader, namespace string) error {
	o.NotRenewing = map[string]bool{}
	start := time.Now()
	pending := map[string]*coordinationv1.Lease{} // as they were first seen, by node
	for i := range o.Leases {
		lease := &o.Leases[i]
		node, isAgents := strings.CutPrefix(lease.Name, v1.LeasePrefix)
		switch {
		case !isAgents:
		case lease.Spec.RenewTime == nil || lease.Spec.LeaseDurationSeconds == nil:
			o.NotRenewing[node] = true
		default:
			pending[node] = lease
		}
	}
	for len(pending) > 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(leasePoll):
		}
		var now coordinationv1.LeaseList
		if err := c.List(ctx, &now, client.InNamespace(namespace)); err != nil {
			return fmt.Errorf("list Leases: %w", err)
		}
		for i := range now.Items {
			node, isAgents := strings.CutPrefix(now.Items[i].Name, v1.LeasePrefix)
			if first := pending[node]; isAgents && first != nil && !now.Items[i].Spec.RenewTime.Equal(first.Spec.RenewTime) {
				delete(pending, node)
			}
		}
		for node, first := range pending {
			if time.Since(start) > o.leaseDurationOf(node, first) {
				o.NotRenewing[node] = true
				delete(pending, node)
			}
		}
	}
	return nil
}

// leaseDurationOf is how long the Lease of a node's agent lasts: as it says, which is the agent's word,
// but no longer than the manager lets it.
func (o *Objects) leaseDurationOf(node string, lease *coordinationv1.Lease) time.Duration {
	limit := controllers.MaxLeaseDuration
	for i := range o.Announcements {
		if a := &o.Announcements[i]; a.Name == node && a.Spec.HeartbeatSeconds > 0 { // the others say nothing of it
			limit = v1.HeartbeatsPerLease * time.Duration(a.Spec.HeartbeatSeconds) * time.Second
		}
	}
	return min(limit, time.Duration(*lease.Spec.LeaseDurationSeconds)*time.Second)
}

// newestRenewal is when the leading manager renewed its Lease, which it does twice a second: about the time by
// which the manager writes, whatever clock the user's machine has. Without a leader it is when the last of all
// Leases was renewed.
func newestRenewal(leases []coordinationv1.Lease) time.Time {
	var newest time.Time
	for i := range leases {
		switch t := leases[i].Spec.RenewTime; {
		case t == nil:
		case leases[i].Name == controllers.LeaderLease:
			return t.Time
		case t.After(newest):
			newest = t.Time
		}
	}
	return newest
}

// livenessOf says what is known of a node's agent: one without a Lease, and one that was seen not to
// renew it, is dead. Where Leases could not be read, or were not observed, others count as alive.
func (o *Objects) livenessOf(node string) placement.Liveness {
	if o.isUnread(kindLeases) {
		return placement.Fresh
	}
	for i := range o.Leases {
		if o.Leases[i].Name == v1.LeasePrefix+node && !o.NotRenewing[node] {
			return placement.Fresh
		}
	}
	return placement.Expired
}
