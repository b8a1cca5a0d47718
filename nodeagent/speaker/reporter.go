package speaker

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/internal/writeerror"
)

// FieldOwner of the status of NodeRoutings.
const FieldOwner = "purelb-speaker"

const (
	// reportGap is the least time between two reports, and reportTimeout how long one may take.
	reportGap     = 500 * time.Millisecond
	reportTimeout = 5 * time.Second
	minRetry      = 500 * time.Millisecond
	maxRetry      = 30 * time.Second
)

// reporter writes the status of the node's NodeRouting, by itself: the speaker never waits for
// the API server. Of several statuses that follow each other it may write the last one only.
type reporter struct {
	client  client.Client
	changed chan struct{}

	// mu protects the next status to write, and the last one written, which is lost with the
	// process: the next one writes it once more.
	mu      sync.Mutex
	next    *purelbv1.NodeRouting
	written *purelbv1.NodeRouting
}

func newReporter(c client.Client) *reporter {
	return &reporter{client: c, changed: make(chan struct{}, 1)}
}

// set replaces what there is to report.
func (r *reporter) set(routing *purelbv1.NodeRouting, status purelbv1.NodeRoutingStatus) {
	next := &purelbv1.NodeRouting{ObjectMeta: metav1.ObjectMeta{Namespace: routing.Namespace, Name: routing.Name, UID: routing.UID}, Status: status}
	r.mu.Lock()
	defer r.mu.Unlock()
	last := r.next
	if last == nil {
		last = r.written
	}
	if last != nil && last.UID == next.UID {
		keepTimes(&next.Status, &last.Status)
		if equality.Semantic.DeepEqual(last.Status, next.Status) {
			return
		}
	}
	r.next = next
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// keepTimes keeps the time of a condition that has not changed its status since the report
// before, which the API server may not show yet.
func keepTimes(next, last *purelbv1.NodeRoutingStatus) {
	for i := range next.Conditions {
		for _, c := range last.Conditions {
			if c.Type == next.Conditions[i].Type && c.Status == next.Conditions[i].Status {
				next.Conditions[i].LastTransitionTime = c.LastTransitionTime
			}
		}
	}
}

// run writes what there is to report until ctx ends.
func (r *reporter) run(ctx context.Context) {
	backoff := pacing.Backoff{Min: minRetry, Max: maxRetry, Spread: 0.5}
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.changed:
		}
		for r.hasNext() && ctx.Err() == nil {
			wait := reportGap
			if err := r.write(ctx); err != nil {
				if !backoff.Failing() { // once for each outage
					log.FromContext(ctx).Error(err, "The sessions could not be reported")
				}
				wait = backoff.Next()
			} else {
				backoff.Reset()
			}
			select {
			case <-ctx.Done():
			case <-time.After(wait):
			}
		}
	}
}

func (r *reporter) hasNext() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.next != nil
}

// write writes the next status, and notes that it is written unless there is another by then.
func (r *reporter) write(ctx context.Context) error {
	r.mu.Lock()
	next := r.next
	r.mu.Unlock()
	if next.UID == "" {
		r.done(next) // known from the checkpoint only: the API server has yet to answer
		return nil
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&next.Status)
	if err != nil {
		return fmt.Errorf("convert the status of NodeRouting %s: %w", next.Name, err)
	}
	u := &unstructured.Unstructured{Object: map[string]any{"status": content}}
	u.SetGroupVersionKind(purelbv1.GroupVersion.WithKind("NodeRouting"))
	u.SetNamespace(next.Namespace)
	u.SetName(next.Name)
	u.SetUID(types.UID(string(next.UID))) // a later NodeRouting of the same name is left alone
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	err = r.client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(FieldOwner), client.ForceOwnership)
	if err != nil && !writeerror.IsOutdated(err) {
		return fmt.Errorf("write the status of NodeRouting %s: %w", next.Name, err)
	}
	r.done(next)
	return nil
}

func (r *reporter) done(written *purelbv1.NodeRouting) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.written = written
	if r.next == written {
		r.next = nil
	}
}
