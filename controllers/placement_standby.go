package controllers

import (
	"context"
	"maps"
	"slices"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// standbyWrite is a standby Announcement that is to be as it is planned, or to go.
type standbyWrite struct {
	name    string
	watcher string
	spec    *v1.AnnouncementSpec // nil if it is to go
	stored  *v1.Announcement     // nil if it is not there
}

// writeStandbys writes the Announcements that say what nodes are to do when another one dies.
// They come last, and what fails for one does not stop the others. With the feature gate
// WireFailover off there are none.
func (r *PlacementReconciler) writeStandbys(
	ctx context.Context, cluster *cluster, inputs *placement.Inputs, result *placement.Result,
) error {
	writes := map[string]*standbyWrite{}
	for i := range cluster.standbys {
		a := &cluster.standbys[i]
		writes[a.Name] = &standbyWrite{name: a.Name, watcher: a.Spec.NodeName, stored: a}
	}
	lbNodeAgent := map[string]string{}
	for i := range inputs.Nodes {
		lbNodeAgent[inputs.Nodes[i].Name] = inputs.Nodes[i].LBNodeAgent
	}
	for _, plan := range placement.PlanStandbys(*inputs) {
		for name, standby := range plan.Announcements() {
			w := writes[name]
			if w == nil {
				w = &standbyWrite{name: name, watcher: plan.Watcher}
				writes[name] = w
			}
			w.spec = &v1.AnnouncementSpec{
				NodeName: plan.Watcher, LBNodeAgent: lbNodeAgent[plan.Watcher],
				HeartbeatSeconds: result.HeartbeatSeconds[plan.Watcher], Standby: standby,
			}
		}
	}
	names := slices.Sorted(maps.Keys(writes))
	return forEachParallel(
		r.ParallelWrites, len(names), func(i int) error { return r.writeStandby(ctx, writes[names[i]]) },
	)
}

func (r *PlacementReconciler) writeStandby(ctx context.Context, w *standbyWrite) error {
	if w.spec == nil {
		return r.deleteIfUnchanged(ctx, w.stored)
	}
	_, err := r.putAnnouncement(ctx, &nodePlan{node: w.watcher, labels: nodeLabels(w.watcher)}, w.name, *w.spec, w.stored)
	return err
}
