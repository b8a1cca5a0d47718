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

// tracker knows what the agents have reported: it is told when the API server
// has taken a status, so that nobody has to watch all Announcements to measure.
type tracker struct {
	mu        sync.Mutex
	announced map[string]int // how many addresses, by Announcement
	total     int
	watched   map[string]*watched
	made      map[string][]made // by node, since an address was watched last
}

// watched is what is known of an address that is waited for.
type watched struct {
	nodes map[string]bool
	last  time.Time       // when a node reported it for the first time
	held  map[string]bool // the nodes whose kernels have it
	got   []time.Time     // when they got it
}

// made is up to which revision a node has reported what is common, and when.
type made struct {
	revision int64
	at       time.Time
}

func newTracker() *tracker {
	return &tracker{announced: map[string]int{}, watched: map[string]*watched{}, made: map[string][]made{}}
}

// watch makes the tracker note who reports an address from now on.
func (t *tracker) watch(address string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.watched[address] = &watched{nodes: map[string]bool{}, held: map[string]bool{}}
	t.made = map[string][]made{}
}

// reported takes a status that the API server has taken.
func (t *tracker) reported(node, announcement string, status *v1.AnnouncementStatus) {
	now, count := time.Now(), int(status.Announced)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range status.Addresses {
		if w := t.watched[a.Address]; a.State == v1.StateAnnounced && w != nil && !w.nodes[node] {
			w.nodes[node], w.last = true, now
		}
	}
	if status.CommonRevision != nil {
		t.made[node] = append(t.made[node], made{*status.CommonRevision, now})
	}
	t.total += count - t.announced[announcement]
	t.announced[announcement] = count
}

// holds takes that a node's kernel has got an address.
func (t *tracker) holds(node, address string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.watched[address]; w != nil && !w.held[node] {
		w.held[node], w.got = true, append(w.got, time.Now()) // in order
	}
}

// held is when nodes' kernels got a watched address, one after the other.
func (t *tracker) held(address string) []time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.watched[address].got)
}

// common is how many nodes have reported that they have made a revision of what is
// common, and when the last did.
func (t *tracker) common(revision int64) (count int, last time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, reports := range t.made {
		i := slices.IndexFunc(reports, func(m made) bool { return m.revision >= revision })
		if i < 0 {
			continue
		}
		if count++; reports[i].at.After(last) {
			last = reports[i].at
		}
	}
	return count, last
}

// nodes is how many nodes have reported a watched address, and when the last did.
func (t *tracker) nodes(address string) (int, time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.watched[address]
	if w == nil {
		return 0, time.Time{}
	}
	return len(w.nodes), w.last
}

// sum is how many addresses are announced by all nodes together.
func (t *tracker) sum() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.total
}

// patience is how long is waited for anything: what takes longer does not work.
const patience = 10 * time.Minute

// await waits until done. what is for the error.
func await(ctx context.Context, what string, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
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

// reporting is an agent's client that tells the tracker.
type reporting struct {
	client.Client
	node    string
	tracker *tracker
}

// Status is the writer of status.
func (r reporting) Status() client.SubResourceWriter {
	return reportingStatus{r.Client.Status(), r.node, r.tracker}
}

type reportingStatus struct {
	client.SubResourceWriter
	node    string
	tracker *tracker
}

// Apply writes a status, and tells.
func (r reportingStatus) Apply(ctx context.Context, obj runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption) error {
	// What is applied becomes the answer.
	u, known := obj.(interface{ UnstructuredContent() map[string]any })
	if !known {
		return fmt.Errorf("a status of type %T", obj)
	}
	var applied v1.Announcement
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.UnstructuredContent(), &applied); err != nil {
		return fmt.Errorf("convert a status: %w", err)
	}
	if err := r.SubResourceWriter.Apply(ctx, obj, opts...); err != nil {
		return err
	}
	r.tracker.reported(r.node, applied.Name, &applied.Status)
	return nil
}

// telling is a node's kernel that tells the tracker.
type telling struct {
	*linktest.Kernel
	node    string
	tracker *tracker
}

// Add puts an address on its interface, and tells.
func (k telling) Add(a plan.Address) error {
	if err := k.Kernel.Add(a); err != nil {
		return err
	}
	k.tracker.holds(k.node, a.Prefix.Addr().String())
	return nil
}
