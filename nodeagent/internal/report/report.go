// Package report writes the statuses that a program of the node reports to the API server.
package report

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/internal/tasks"
	"github.com/purelb/purelb-operator/internal/writeerror"
)

// MaxParallelWrites bounds how many statuses are written at a time.
const MaxParallelWrites = 4

// Reporter writes the statuses of objects to the API server, by itself: nothing else of the
// program waits for that. For each object it keeps the status that the program last wanted to
// report, and writes that until it has been written: of several changes that follow each other it
// may write the last one only.
//
// What the Reporter remembers is lost with the process. The next one reads the statuses from the
// API server, and reports how they differ.
type Reporter[S any] struct {
	// Tasks runs the Reporter.
	Tasks tasks.Runner
	// Client returns the client of the API server.
	Client func() client.Client
	// Kind is that of the objects, and FieldOwner owns their statuses.
	Kind, FieldOwner string
	// Timeout bounds a request.
	Timeout time.Duration
	// Rests makes the Reporter rest after reports.
	Rests pacing.Batch
	// Failures waits after failed reports: for no longer than MaxUnansweredWait while the API server does
	// not answer, as it may be back at any time. What it refuses it is likely to refuse again.
	Failures          pacing.Backoff
	MaxUnansweredWait time.Duration
	// IsSame reports whether two statuses say the same; by reflection, if it is nil.
	IsSame func(a, b S) bool
	// Changed is signalled when there is something to write, or may be.
	Changed chan struct{}

	mu sync.Mutex
	// reports are by the names of the objects that Set was last called with.
	reports map[string]*wantedStatus[S]
	// notBefore is until when nothing is written.
	notBefore time.Time
}

// Status is the status that an object is to have.
type Status[S any] struct {
	// Object says whose status it is, and from which version of the object it was computed.
	Object client.Object
	// Before is the latest status of the object, and After the one that it is to have.
	Before, After S
	// MaxDelay is for how long the change may wait.
	MaxDelay time.Duration
}

// wantedStatus is the status of one object, and whether it has been written.
type wantedStatus[S any] struct {
	key             types.NamespacedName
	uid             types.UID
	resourceVersion string
	status          S
	// isPending means that the status has not been written, and dueAt is when it is to be.
	isPending bool
	dueAt     time.Time
	// sequence grows with each status.
	sequence int
}

// NeedLeaderElection is false: every node reports.
func (r *Reporter[S]) NeedLeaderElection() bool { return false }

// Start writes what there is to report until ctx ends.
func (r *Reporter[S]) Start(ctx context.Context) error {
	for {
		batch, wait := r.dueReports()
		if len(batch) == 0 {
			wait = tasks.OrForever(wait)
		}
		if r.Tasks.Wait(ctx, wait, r.Changed) == tasks.Ended {
			return nil
		}
		isFailing := r.isFailing()
		if _, err := r.WriteDue(ctx); err != nil && ctx.Err() == nil && !isFailing { // once for each outage
			log.FromContext(ctx).Error(err, "Not everything could be reported")
		}
	}
}

func (r *Reporter[S]) isFailing() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.Failures.Failing()
}

// Latest returns the status that the program last wanted to report of an object, where the one
// that it read may be older: until it has been written, and then until another version of the
// object has been read. Otherwise it returns the one that was read.
func (r *Reporter[S]) Latest(obj client.Object, read S) S {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := r.reports[obj.GetName()]
	if last != nil && last.uid == obj.GetUID() && (last.isPending || last.resourceVersion == obj.GetResourceVersion()) {
		return last.status
	}
	return read
}

// IsWanted reports whether a status that was read of an object is the one that the program last wanted to report, as
// far as the Reporter remembers that.
func (r *Reporter[S]) IsWanted(obj client.Object, read S) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := r.reports[obj.GetName()]
	return last != nil && last.uid == obj.GetUID() && r.isSame(last.status, read)
}

func (r *Reporter[S]) isSame(a, b S) bool {
	if r.IsSame != nil {
		return r.IsSame(a, b)
	}
	return equality.Semantic.DeepEqual(a, b)
}

// Set replaces what there is to report. The Reporter forgets all other objects. The caller signals
// Changed when the statuses are to be written.
func (r *Reporter[S]) Set(statuses []Status[S]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, now := r.reports, r.Tasks.Now()
	r.reports = make(map[string]*wantedStatus[S], len(statuses))
	for i := range statuses {
		s := &statuses[i]
		name, version := s.Object.GetName(), s.Object.GetResourceVersion()
		key, uid := client.ObjectKeyFromObject(s.Object), s.Object.GetUID()
		next := &wantedStatus[S]{key: key, uid: uid, resourceVersion: version, status: s.After}
		last := before[name]
		if last != nil && last.uid != next.uid {
			last = nil
		}
		if last != nil {
			next.sequence, next.isPending, next.dueAt = last.sequence, last.isPending, last.dueAt
		}
		if !r.isSame(s.After, s.Before) {
			next.sequence++
			if !next.isPending || s.MaxDelay == 0 && now.Before(next.dueAt) {
				next.isPending, next.dueAt = true, now.Add(s.MaxDelay)
			}
		}
		if next.isPending || last != nil && last.resourceVersion == version {
			r.reports[name] = next
		}
	}
}

// WriteDue writes what is due, and returns in how long there is more to write; 0 is when
// something changes. It ends with the first batch of which something could not be written.
func (r *Reporter[S]) WriteDue(ctx context.Context) (time.Duration, error) {
	for ctx.Err() == nil {
		batch, wait := r.dueReports()
		if len(batch) == 0 {
			return wait, nil
		}
		r.Rests.Begin(r.Tasks.Now())
		errs := make([]error, len(batch))
		r.Tasks.ForEachParallel(len(batch), func(i int) { errs[i] = r.apply(ctx, &batch[i]) })
		r.Rests.End(r.Tasks.Now())
		if err := r.noteWritten(batch, errs); err != nil {
			_, wait = r.dueReports()
			return wait, err
		}
	}
	return 0, nil
}

// dueReports returns some of the statuses that are to be written now or, if there are none, in
// how long there will be one; 0 is never. Those that have been due for longest come first, so that
// statuses which change all the time, as those of addresses that a station claims, hold up no other.
func (r *Reporter[S]) dueReports() ([]wantedStatus[S], time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.Tasks.Now()
	rest := max(r.Rests.Delay(now), r.notBefore.Sub(now))
	var batch []wantedStatus[S]
	wait := time.Duration(0)
	byDue := slices.SortedFunc(maps.Values(r.reports), func(a, b *wantedStatus[S]) int {
		return cmp.Or(a.dueAt.Compare(b.dueAt), strings.Compare(a.key.Name, b.key.Name))
	})
	for _, report := range byDue {
		if !report.isPending {
			continue
		}
		switch left := max(report.dueAt.Sub(now), rest); {
		case left > 0 && (wait == 0 || left < wait):
			wait = left
		case left <= 0 && len(batch) < MaxParallelWrites:
			batch = append(batch, *report)
		}
	}
	return batch, wait
}

// noteWritten notes what became of statuses.
func (r *Reporter[S]) noteWritten(batch []wantedStatus[S], errs []error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, err := r.Tasks.Now(), errors.Join(errs...)
	retry := time.Duration(0)
	if err == nil {
		r.Failures.Reset()
	} else {
		retry = r.Failures.Next()
	}
	for i, report := range batch {
		current := r.reports[report.key.Name]
		switch {
		case current == nil || current.uid != report.uid:
		case errs[i] == nil && current.sequence == report.sequence:
			current.isPending = false
		case errs[i] == nil: // it has changed since
			current.dueAt = now
		case isRefusal(errs[i]): // others go first
			current.dueAt = now.Add(retry)
		default:
			current.dueAt = now.Add(min(retry, r.MaxUnansweredWait))
		}
	}
	if errors.Is(err, context.DeadlineExceeded) { // nor would the API server answer the next request
		r.notBefore = now.Add(min(retry, r.MaxUnansweredWait))
	}
	return err
}

// isRefusal reports whether the API server has answered, and refused a request.
func isRefusal(err error) bool { return apierrors.ReasonForError(err) != metav1.StatusReasonUnknown }

// apply writes one status.
func (r *Reporter[S]) apply(ctx context.Context, report *wantedStatus[S]) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&report.status)
	if err != nil {
		return fmt.Errorf("convert the status of %s %s: %w", r.Kind, report.key.Name, err)
	}
	u := &unstructured.Unstructured{Object: map[string]any{"status": content}}
	u.SetGroupVersionKind(purelbv1.GroupVersion.WithKind(r.Kind))
	u.SetNamespace(report.key.Namespace)
	u.SetName(report.key.Name)
	u.SetUID(report.uid) // so that a later object of the same name is left alone
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	err = r.Client().Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u),
		client.FieldOwner(r.FieldOwner), client.ForceOwnership)
	if err != nil && !writeerror.IsOutdated(err) { // else the object is gone, and nobody wants its status
		return fmt.Errorf("write the status of %s %s: %w", r.Kind, report.key.Name, err)
	}
	return nil
}
