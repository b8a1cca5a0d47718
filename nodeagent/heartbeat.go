package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/mergepatch"
	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/internal/revision"
	"github.com/purelb/purelb-operator/internal/tasks"
	"github.com/purelb/purelb-operator/nodeagent/internal/watchdog"
)

// heartbeat renews the node's Lease.
type heartbeat struct {
	client client.Client
	// lease is the node's, and node its holder.
	lease     client.ObjectKey
	node      string
	freshness *freshness
	watchdog  *watchdog.Watchdog
	tasks     tasks.Runner
	// syncFromAPIServer lists at the API server and applies, and isCacheFilled reports whether changes are
	// applied without that.
	syncFromAPIServer func(context.Context) error
	isCacheFilled     func() bool
	// wakeReporter is signalled when there may be statuses to write.
	wakeReporter chan<- struct{}
	// reconnect, if set, drops the connections to the API server.
	reconnect func()
	// unacknowledged is signalled when the API server did not acknowledge what was sent to it.
	unacknowledged <-chan struct{}
	// leaseVersion is that of the Lease after the last renewal. The next process begins without.
	leaseVersion revision.Watermark
}

func newHeartbeat(a *Agent) *heartbeat {
	return &heartbeat{
		client: a.Client, lease: client.ObjectKey{Namespace: a.Namespace, Name: purelbv1.LeasePrefix + a.NodeName},
		node:      a.NodeName,
		freshness: a.freshness, watchdog: a.watchdog, tasks: a.Tasks,
		syncFromAPIServer: a.syncFromAPIServer, isCacheFilled: a.isCacheFilled.Load,
		wakeReporter: a.reporter.Changed, reconnect: a.Reconnect,
		unacknowledged: a.Unacknowledged,
	}
}

// NeedLeaderElection is false: every node has a Lease.
func (h *heartbeat) NeedLeaderElection() bool { return false }

// Start renews until ctx ends. It returns revision.ErrRestored, which ends the agent, if the API
// server's database was restored from a backup: the agent's watches would go on from a version
// that the database has not reached, and deliver nothing until it has, while the agent renews
// its Lease and counts as fresh. The kubelet starts the agent again. The addresses stay in the
// kernel, where the next agent finds them.
func (h *heartbeat) Start(ctx context.Context) error {
	backoff, unanswered := pacing.Backoff{Min: minBackoff, Max: maxBackoff}, 0
	for ctx.Err() == nil {
		start := h.tasks.Now()
		err := h.beat(ctx)
		if errors.Is(err, revision.ErrRestored) {
			return fmt.Errorf("the agent has to begin anew: %w", err)
		}
		if err == nil {
			if backoff.Failing() {
				log.FromContext(ctx).Info("The Lease is renewed again")
			}
			backoff.Reset()
			unanswered = 0
			h.sleep(ctx, start)
		} else if ctx.Err() == nil {
			h.freshness.noteFailed()
			if !backoff.Failing() { // once for each outage
				log.FromContext(ctx).Error(err, "The Lease is not renewed")
			}
			if errors.Is(err, context.DeadlineExceeded) {
				unanswered++
			}
			// Reconnect after 2, 4, 8, … unanswered renewals: each time all watches are opened anew.
			if h.reconnect != nil && unanswered > 1 && bits.OnesCount(uint(unanswered)) == 1 {
				h.reconnect()
			}
			h.tasks.Wait(ctx, backoff.Next())
		}
	}
	return nil
}

// beat renews the Lease once, unless the agent is stuck. An agent that was not fresh first lists
// and applies what it may have missed, so that it never defends an address that has moved
// meanwhile. Until the cache is filled, the agent does so before each renewal, since nothing else
// tells it of changes. As a rule the reporter writes only after the renewal: beat wakes it at its end, though a
// sync that something else asks for meanwhile wakes it, too.
func (h *heartbeat) beat(ctx context.Context) error {
	h.freshness.noteBeat()
	h.watchdog.PingWorker()
	if err := h.watchdog.CheckBlocked(); err != nil {
		return err
	}
	if h.freshness.needsList() || !h.isCacheFilled() {
		defer pacing.Signal(h.wakeReporter)
		if err := h.syncFromAPIServer(ctx); err != nil {
			return err
		}
	}
	if err := h.watchdog.Check(); err != nil {
		return err
	}
	start := h.tasks.Now()
	if err := h.renew(ctx, start); err != nil {
		return err
	}
	h.freshness.noteRenewed(start)
	return nil
}

// renew writes the fields of the Lease that are the agent's; the manager makes the Lease.
func (h *heartbeat) renew(ctx context.Context, now time.Time) error {
	period, timeout := h.freshness.beginRenewal()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	fields := map[string]any{"spec": map[string]any{
		"holderIdentity":       h.node,
		"renewTime":            metav1.NewMicroTime(now),
		"leaseDurationSeconds": purelbv1.HeartbeatsPerLease * int32(period/time.Second), //nolint:gosec // at most a minute
	}}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: h.lease.Namespace, Name: h.lease.Name}}
	if err := mergepatch.Write(ctx, h.client, lease, fields); err != nil {
		return fmt.Errorf("renew Lease %s: %w", lease.Name, err)
	}
	if err := h.leaseVersion.Note(lease.ResourceVersion); err != nil {
		return fmt.Errorf("renew Lease %s: %w", lease.Name, err)
	}
	return nil
}

// sleep waits until the next renewal, after one that began at a time.
func (h *heartbeat) sleep(ctx context.Context, start time.Time) {
	for isAsked := false; ; isAsked = true {
		wait := h.freshness.untilRenewal(start, isAsked)
		switch h.tasks.Wait(ctx, wait, h.freshness.renewalAsked, h.unacknowledged) {
		case 0:
		case 1:
			if h.freshness.noteUnacknowledged() {
				return
			}
		default:
			return
		}
	}
}
