package nodeagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
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
	"github.com/purelb/purelb-operator/internal/writeerror"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// reporter writes the statuses of the node's Announcements to the API server, by itself:
// neither the worker nor the heartbeat waits for it. For each Announcement it keeps the
// status that the last sync had to report, and writes that until it has been written:
// of several changes that follow each other it may write the last one only.
//
// The order is: a sync applies its decision, removes the virtual interface of a node that is to
// have none, and only then passes on what to report. A sync that could not remove the interface
// reports nothing, as the agent may be removed once it has reported that it has no address.
// After a list at the API server the heartbeat renews the Lease first.
//
// What the reporter remembers is lost with the process. The next one reads the statuses from the
// API server, and reports how they differ.
type reporter struct {
	agent *Agent
	// changed is signalled when there is something to write, or may be.
	changed chan struct{}

	mu sync.Mutex
	// reports are by the names of the Announcements that the last sync knew of.
	reports map[string]*statusReport
	// rests makes the reporter rest after reports that took long.
	rests pacing.Batch
	// failures waits after failed reports, and notBefore is until when nothing is written.
	failures  pacing.Backoff
	notBefore time.Time
	// spreadUntil is when a status that may wait is written; zero if there is none.
	spreadUntil time.Time
}

// statusReport is the status that an Announcement is to have.
type statusReport struct {
	key types.NamespacedName
	uid types.UID
	// version of the Announcement from which the status was computed.
	version string
	status  purelbv1.AnnouncementStatus
	// isPending means that the status has not been written, and due is when it is to be.
	isPending bool
	due       time.Time
	// number grows with each status.
	number int
}

func newReporter(agent *Agent) *reporter {
	return &reporter{
		agent: agent, changed: make(chan struct{}, 1), reports: map[string]*statusReport{},
		rests:    pacing.Batch{RestPerWork: restPerReport, MaxGap: maxReportRest},
		failures: pacing.Backoff{Min: minRetry, Max: maxRetry},
	}
}

// NeedLeaderElection is false: every node's agent reports.
func (r *reporter) NeedLeaderElection() bool { return false }

// Start writes what there is to report until ctx ends.
func (r *reporter) Start(ctx context.Context) error {
	for {
		batch, wait := r.dueReports()
		var due <-chan time.Time
		if len(batch) > 0 || wait > 0 {
			due = time.After(wait)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.changed:
		case <-due:
		}
		isFailing := r.isFailing()
		if _, err := r.write(ctx); err != nil && ctx.Err() == nil && !isFailing { // once for each outage
			log.FromContext(ctx).Error(err, "Not everything could be reported")
		}
	}
}

func (r *reporter) isFailing() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failures.Failing()
}

// withLatestStatuses returns the Announcements with the statuses that the agent last wanted to
// report, where the statuses that it read may be older: until they have been written, and then
// until another version of the Announcement has been read. The kernel has an address sooner than
// the cache shows that the agent reported it.
func (r *reporter) withLatestStatuses(announcements []purelbv1.Announcement) []purelbv1.Announcement {
	announcements = slices.Clone(announcements)
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range announcements {
		ann := &announcements[i]
		if last := r.reports[ann.Name]; last != nil && last.uid == ann.UID && (last.isPending || last.version == ann.ResourceVersion) {
			ann.Status = last.status
		}
	}
	return announcements
}

// setStatuses replaces what there is to report: for each Announcement, with its latest status,
// the status that it is to have. The reporter forgets all other Announcements. The caller signals
// changed when the statuses are to be written.
func (r *reporter) setStatuses(announcements []purelbv1.Announcement, statuses []purelbv1.AnnouncementStatus, shared []purelbv1.CommonAnnouncement) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.reports
	r.reports = make(map[string]*statusReport, len(announcements))
	for i := range announcements {
		ann, status := &announcements[i], statuses[i]
		next := &statusReport{key: client.ObjectKeyFromObject(ann), uid: ann.UID, version: ann.ResourceVersion, status: status}
		last := before[ann.Name]
		if last != nil && last.uid == ann.UID {
			next.number, next.isPending, next.due = last.number, last.isPending, last.due
		}
		if !equality.Semantic.DeepEqual(status, ann.Status) {
			next.number++
			due := r.dueOf(&ann.Status, &status, shared)
			if !next.isPending || due.Before(next.due) {
				next.due = due
			}
			next.isPending = true
		} else if ann.Spec.Common && !next.isPending {
			r.spreadUntil = time.Time{}
		}
		if next.isPending || last != nil && last.uid == ann.UID && last.version == ann.ResourceVersion {
			r.reports[ann.Name] = next
		}
	}
}

// dueOf returns when a status is to be written. One that says only that the shared entries are
// realised may wait, since all nodes report that at once.
func (r *reporter) dueOf(before, after *purelbv1.AnnouncementStatus, shared []purelbv1.CommonAnnouncement) time.Time {
	revision, spreadOver := int64(0), time.Duration(0)
	for i := range shared { // the manager knew the number of nodes best when it wrote the last one
		if c := &shared[i].Spec; c.Revision > revision {
			revision, spreadOver = c.Revision, time.Duration(c.ReportSpreadSeconds)*time.Second
		}
	}
	now := time.Now()
	if spreadOver == 0 || before.CommonRevision == nil || before.ObservedGeneration != after.ObservedGeneration ||
		!equality.Semantic.DeepEqual(before.Addresses, after.Addresses) || !equality.Semantic.DeepEqual(before.Interfaces, after.Interfaces) {
		return now
	}
	if r.spreadUntil.IsZero() {
		r.spreadUntil = now.Add(rand.N(spreadOver))
	}
	return r.spreadUntil
}

// write writes what is due, and returns in how long there is more to write; 0 is when
// something changes. It ends at the first request that is not answered in time.
func (r *reporter) write(ctx context.Context) (time.Duration, error) {
	for ctx.Err() == nil {
		batch, wait := r.dueReports()
		if len(batch) == 0 {
			return wait, nil
		}
		r.rests.Begin(time.Now())
		errs := make([]error, len(batch))
		var wg sync.WaitGroup
		for i, report := range batch {
			wg.Go(func() { errs[i] = r.apply(ctx, report) })
		}
		wg.Wait()
		r.rests.End(time.Now())
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
func (r *reporter) dueReports() ([]statusReport, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	rest := max(r.rests.Delay(now), r.notBefore.Sub(now))
	var batch []statusReport
	wait := time.Duration(0)
	byDue := slices.SortedFunc(maps.Values(r.reports), func(a, b *statusReport) int {
		return cmp.Or(a.due.Compare(b.due), strings.Compare(a.key.Name, b.key.Name))
	})
	for _, report := range byDue {
		if !report.isPending {
			continue
		}
		switch left := max(report.due.Sub(now), rest); {
		case left > 0:
			wait = plan.Earliest(wait, left)
		case len(batch) < parallelReports:
			batch = append(batch, *report)
		}
	}
	return batch, wait
}

// noteWritten notes what became of statuses. An API server that does not answer may be back at
// any time; what it refuses it is likely to refuse again.
func (r *reporter) noteWritten(batch []statusReport, errs []error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, err := time.Now(), errors.Join(errs...)
	retry := time.Duration(0)
	if err == nil {
		r.failures.Reset()
	} else {
		retry = r.failures.Next()
	}
	for i, report := range batch {
		current := r.reports[report.key.Name]
		switch {
		case current == nil || current.uid != report.uid:
		case errs[i] == nil && current.number == report.number:
			current.isPending, r.spreadUntil = false, time.Time{}
		case errs[i] == nil: // it has changed since
			current.due = now
		case errs[i] != nil && isRefusal(errs[i]): // others go first
			current.due = now.Add(retry)
		case errs[i] != nil:
			current.due = now.Add(min(retry, maxBackoff))
		}
	}
	if errors.Is(err, context.DeadlineExceeded) { // nor would the API server answer the next request
		r.notBefore = now.Add(min(retry, maxBackoff))
	}
	return err
}

// isRefusal reports whether the API server has answered, and refused a request.
func isRefusal(err error) bool { return apierrors.ReasonForError(err) != metav1.StatusReasonUnknown }

// apply writes one status.
func (r *reporter) apply(ctx context.Context, report statusReport) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&report.status)
	if err != nil {
		return fmt.Errorf("convert the status of Announcement %s: %w", report.key.Name, err)
	}
	u := &unstructured.Unstructured{Object: map[string]any{"status": content}}
	u.SetGroupVersionKind(purelbv1.GroupVersion.WithKind("Announcement"))
	u.SetNamespace(report.key.Namespace)
	u.SetName(report.key.Name)
	u.SetUID(report.uid) // so that a later Announcement of the same name is left alone
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err = r.agent.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(FieldOwner), client.ForceOwnership)
	if err != nil && !writeerror.IsOutdated(err) { // else the Announcement is gone, and nobody wants its status
		return fmt.Errorf("write the status of Announcement %s: %w", report.key.Name, err)
	}
	return nil
}
