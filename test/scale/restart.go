package main

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// timeRestart kills the manager, starts it again, and adds a Service meanwhile. It
// returns how long it takes until every node has the Service's address, and how many
// Announcements the manager wrote without need.
func (r *run) timeRestart(ctx context.Context) (duration time.Duration, rewritten int64, err error) {
	before, err := r.waitUntilSettled(ctx)
	if err != nil {
		return 0, 0, err
	}
	if err := r.manager.kill(); err != nil {
		return 0, 0, err
	}
	begun := time.Now()
	if err := r.manager.start(); err != nil {
		return 0, 0, err
	}
	started := time.Since(begun)
	onAll, _, err := r.timeChange(ctx)
	if err != nil {
		return 0, 0, err
	}
	after, err := r.sumGenerations(ctx)
	return started + onAll, after - before, err
}

// waitUntilSettled waits until the manager writes no Announcements any more: what follows from the last
// death is not what the restart costs. It returns how often their specs have been written.
func (r *run) waitUntilSettled(ctx context.Context) (int64, error) {
	const settled = 5 * time.Second
	last, since := int64(-1), time.Now()
	err := waitUntil(ctx, "no Announcement is written any more", func() (bool, error) {
		if time.Since(since) < settled && last >= 0 {
			return false, nil
		}
		sum, err := r.sumGenerations(ctx)
		isSettled := sum == last
		last, since = sum, time.Now()
		return isSettled, err
	})
	return last, err
}

// sumGenerations returns how often the specs of all Announcements have been written.
func (r *run) sumGenerations(ctx context.Context) (int64, error) {
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(v1.GroupVersion.WithKind("AnnouncementList"))
	if err := r.cluster.admin.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return 0, fmt.Errorf("list Announcements: %w", err)
	}
	sum := int64(0)
	for i := range list.Items {
		sum += list.Items[i].Generation
	}
	return sum, nil
}
