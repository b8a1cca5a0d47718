package nodeagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

// Back-off between renewals that fail.
const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = time.Second
)

// heartbeat renews the node's Lease.
type heartbeat struct {
	agent *Agent
}

// NeedLeaderElection is false: every node's agent lives.
func (h *heartbeat) NeedLeaderElection() bool { return false }

// Start renews until ctx ends.
func (h *heartbeat) Start(ctx context.Context) error {
	backoff, failing, unanswered := minBackoff, false, 0
	for ctx.Err() == nil {
		start := time.Now()
		err := h.beat(ctx)
		wait := time.Until(start.Add(h.agent.pulse.interval()))
		if err == nil {
			if failing {
				log.FromContext(ctx).Info("The Lease is renewed again")
			}
			failing, backoff, unanswered = false, minBackoff, 0
		} else if ctx.Err() == nil {
			if !failing { // once for each outage
				log.FromContext(ctx).Error(err, "The Lease is not renewed")
			}
			if errors.Is(err, context.DeadlineExceeded) {
				unanswered++
			}
			// Less and less often: a slow API server has all watches opened anew.
			if h.agent.Reconnect != nil && unanswered > 1 && bits.OnesCount(uint(unanswered)) == 1 {
				h.agent.Reconnect()
			}
			h.agent.standIn(ctx, false)
			failing, wait = true, backoff
			backoff = min(2*backoff, maxBackoff)
		}
		h.sleep(ctx, start, wait, err == nil)
	}
	return nil
}

// beat renews once. An agent that was not fresh first learns what it may have
// missed, so that it never stands by what has moved meanwhile.
func (h *heartbeat) beat(ctx context.Context) error {
	a := h.agent
	if !a.pulse.fresh() {
		if err := a.SyncLive(ctx, a.pulse.interval()); err != nil {
			return err
		}
	}
	start := time.Now()
	if err := h.renew(ctx, start); err != nil {
		return err
	}
	a.pulse.renewedAt(start)
	return nil
}

// renew writes what is the agent's of the Lease, which the manager makes.
func (h *heartbeat) renew(ctx context.Context, now time.Time) error {
	a := h.agent
	period := a.pulse.interval()
	ctx, cancel := context.WithTimeout(ctx, period)
	defer cancel()
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{
		"holderIdentity":       a.NodeName,
		"renewTime":            metav1.NewMicroTime(now),
		"leaseDurationSeconds": 3 * int32(period/time.Second),
	}})
	if err != nil {
		return fmt.Errorf("make the renewal: %w", err)
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: a.Namespace, Name: purelbv1.LeasePrefix + a.NodeName}}
	if err := a.Client.Patch(ctx, lease, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("renew Lease %s: %w", lease.Name, err)
	}
	return nil
}

// sleep waits. After a renewal a change of the period counts at once, from the
// start of that renewal.
func (h *heartbeat) sleep(ctx context.Context, start time.Time, wait time.Duration, renewed bool) {
	changed := h.agent.pulse.changed
	if !renewed {
		changed = nil
	}
	for wait > 0 {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
			return
		case <-changed:
			wait = time.Until(start.Add(h.agent.pulse.interval()))
		}
	}
}
