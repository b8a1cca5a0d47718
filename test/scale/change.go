package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// timeChange adds one Service and returns how long it takes until the kernel of every
// node has its address, and until every agent has reported it.
func (r *run) timeChange(ctx context.Context) (onAll, reported time.Duration, err error) {
	address := addressAfter(firstMeasured, r.addresses)
	r.agents.tracker.watch(address)
	begun := time.Now()
	if err := r.createService(ctx, fmt.Sprintf("virtual%05d", r.addresses), virtualGroup, address); err != nil {
		return 0, 0, err
	}
	r.addresses++
	err = waitUntil(ctx, "every node has "+address, func() (bool, error) {
		return len(r.agents.tracker.kernelTimes(address)) >= len(r.agents.nodes), nil
	})
	if err != nil {
		return 0, 0, err
	}
	revision, err := r.sharedRevisionOf(ctx, address)
	if err != nil {
		return 0, 0, err
	}
	err = waitUntil(ctx, "every agent reports "+address, r.refreshing(ctx, func() bool {
		n, _ := r.agents.tracker.sharedReports(revision)
		return n >= len(r.agents.nodes)
	}))
	after := func(t time.Time) time.Duration { return t.Sub(begun).Round(time.Millisecond) }
	inKernel := r.agents.tracker.kernelTimes(address)
	_, last := r.agents.tracker.sharedReports(revision)
	r.say("one more address: on the first node after %s, on half of the nodes after %s, on nine of ten after %s, on "+
		"every node after %s, reported by every agent after %s",
		after(inKernel[0]), after(inKernel[len(inKernel)/2]), after(inKernel[len(inKernel)*9/10]),
		after(inKernel[len(inKernel)-1]), after(last))
	return after(inKernel[len(inKernel)-1]), after(last), err
}

// refreshing returns a condition of what agents report, which refreshes the tracker
// every 10 s.
func (r *run) refreshing(ctx context.Context, done func() bool) func() (bool, error) {
	refreshed := time.Now()
	return func() (bool, error) {
		if time.Since(refreshed) > 10*time.Second {
			if err := r.refreshTracker(ctx); err != nil {
				return false, err
			}
			refreshed = time.Now()
		}
		return done(), nil
	}
}

// refreshTracker lets the tracker see what the API server has. Otherwise the tracker
// would miss a report whose agent had given up waiting when the API server took it.
func (r *run) refreshTracker(ctx context.Context) error {
	var list v1.AnnouncementList
	if err := r.cluster.admin.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return fmt.Errorf("list Announcements: %w", err)
	}
	for i := range list.Items {
		a := &list.Items[i]
		r.agents.tracker.recordStatus(a.Spec.NodeName, a.Name, &a.Status)
	}
	return nil
}

// sharedRevisionOf returns the revision of the shared entries that brought an address.
func (r *run) sharedRevisionOf(ctx context.Context, address string) (int64, error) {
	var list v1.CommonAnnouncementList
	if err := r.cluster.admin.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return 0, fmt.Errorf("list CommonAnnouncements: %w", err)
	}
	for i := range list.Items {
		for _, e := range list.Items[i].Spec.Addresses {
			if e.Address == address {
				return e.Epoch, nil
			}
		}
	}
	return 0, fmt.Errorf("no CommonAnnouncement has %s", address)
}

// nth is the address n after another.
func addressAfter(first netip.Addr, n int) string {
	a := first.As4()
	a[2], a[3] = a[2]-byte(n/256), a[3]+byte(n%256)
	return netip.AddrFrom4(a).String()
}
