package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/link/linktest"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// tracker notes what the agents report and what their kernels have. The clients and
// kernels of the agents here call it, so that measuring needs no watch of all
// Announcements, which would be a load of its own.
type tracker struct {
	mu sync.Mutex
	// announced is how many addresses each Announcement's status says are announced,
	// and total is their sum.
	announced map[string]int
	total     int
	// watched has the addresses of which it matters who has them, and when.
	watched map[string]*watchedAddress
	// sharedReportsByNode has, for each node, what it has reported of the shared entries
	// since watch was called last.
	sharedReportsByNode map[string][]sharedReport
}

// watchedAddress is an address that a measurement waits for.
type watchedAddress struct {
	reportedBy  map[string]bool // nodes
	lastReport  time.Time       // when the last of them reported it for the first time
	inKernelOf  map[string]bool // nodes
	kernelTimes []time.Time     // when each of them got it, ascending
}

// sharedReport says that a node has reported a revision of the shared entries as
// realised, and when.
type sharedReport struct {
	revision int64
	at       time.Time
}

func newTracker() *tracker {
	return &tracker{
		announced: map[string]int{}, watched: map[string]*watchedAddress{}, sharedReportsByNode: map[string][]sharedReport{},
	}
}

// watch makes the tracker note from now on which nodes have and report an address.
func (t *tracker) watch(address string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.watched[address] = &watchedAddress{reportedBy: map[string]bool{}, inKernelOf: map[string]bool{}}
	t.sharedReportsByNode = map[string][]sharedReport{}
}

// recordStatus notes a status that the API server has accepted.
func (t *tracker) recordStatus(node, announcement string, status *v1.AnnouncementStatus) {
	now, count := time.Now(), int(status.Announced)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range status.Addresses {
		if w := t.watched[a.Address]; a.State == v1.StateAnnounced && w != nil && !w.reportedBy[node] {
			w.reportedBy[node], w.lastReport = true, now
		}
	}
	if status.CommonAnnouncementsRevision != nil {
		t.sharedReportsByNode[node] = append(
			t.sharedReportsByNode[node], sharedReport{*status.CommonAnnouncementsRevision, now},
		)
	}
	t.total += count - t.announced[announcement]
	t.announced[announcement] = count
}

// recordKernelAddress notes that a node's kernel has got an address.
func (t *tracker) recordKernelAddress(node, address string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.watched[address]; w != nil && !w.inKernelOf[node] {
		w.inKernelOf[node], w.kernelTimes = true, append(w.kernelTimes, time.Now())
	}
}

// kernelTimes returns when the kernels of nodes got a watched address, ascending.
func (t *tracker) kernelTimes(address string) []time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.watched[address].kernelTimes)
}

// sharedReports returns how many nodes have reported this revision of the shared
// entries or a later one, and when the last node did so.
func (t *tracker) sharedReports(revision int64) (count int, last time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, reports := range t.sharedReportsByNode {
		i := slices.IndexFunc(reports, func(r sharedReport) bool { return r.revision >= revision })
		if i < 0 {
			continue
		}
		if count++; reports[i].at.After(last) {
			last = reports[i].at
		}
	}
	return count, last
}

// reports returns how many nodes have reported a watched address, and when the last
// node did so.
func (t *tracker) reports(address string) (count int, last time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.watched[address]
	if w == nil {
		return 0, time.Time{}
	}
	return len(w.reportedBy), w.lastReport
}

// announcedTotal returns how many addresses all nodes announce; an address counts once
// for each node.
func (t *tracker) announcedTotal() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.total
}

// waitLimit is how long waitUntil waits. What takes longer does not work.
const waitLimit = 10 * time.Minute

// waitUntil waits until done returns true. The error says that it waited until what.
func waitUntil(ctx context.Context, what string, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, waitLimit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		yes, err := done()
		if err != nil {
			return fmt.Errorf("wait until %s: %w", what, err)
		}
		if yes {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w", what, ctx.Err())
		case <-tick.C:
		}
	}
}

// trackedClient is an agent's client. It lets the tracker know of each status that the
// agent writes.
type trackedClient struct {
	client.Client
	node    string
	tracker *tracker
}

// Status returns the writer of statuses.
func (c trackedClient) Status() client.SubResourceWriter {
	return trackedStatusWriter{c.Client.Status(), c.node, c.tracker}
}

type trackedStatusWriter struct {
	client.SubResourceWriter
	node    string
	tracker *tracker
}

// Apply writes a status, and lets the tracker know when the API server has accepted it.
func (w trackedStatusWriter) Apply(
	ctx context.Context, obj runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption,
) error {
	// The client overwrites obj with the API server's answer: read it before.
	u, isUnstructured := obj.(interface{ UnstructuredContent() map[string]any })
	if !isUnstructured {
		return fmt.Errorf("a status of type %T", obj)
	}
	var applied v1.Announcement
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.UnstructuredContent(), &applied); err != nil {
		return fmt.Errorf("convert a status: %w", err)
	}
	if err := w.SubResourceWriter.Apply(ctx, obj, opts...); err != nil {
		return err
	}
	w.tracker.recordStatus(w.node, applied.Name, &applied.Status)
	return nil
}

// trackedKernel is a node's kernel. It lets the tracker know of each address that the
// agent adds.
type trackedKernel struct {
	*linktest.Kernel
	node    string
	tracker *tracker
}

// Add puts an address on its interface, and lets the tracker know.
func (k trackedKernel) Add(a plan.Address) error {
	if err := k.Kernel.Add(a); err != nil {
		return err
	}
	k.tracker.recordKernelAddress(k.node, a.Prefix.Addr().String())
	return nil
}
