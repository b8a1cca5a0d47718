package controllers

import (
	"context"
	"errors"
	"maps"
	"slices"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// assignmentWrite is an Announcement with standby or asking that is to be as it is planned, or to go.
type assignmentWrite struct {
	spec   *v1.AnnouncementSpec // nil if it is to go
	stored *v1.Announcement     // nil if it is not there
}

// writeStandbyAnnouncements writes the Announcements that say what nodes are to do when another one dies.
// With the feature gate WireFailover off there are none.
func (r *PlacementReconciler) writeStandbyAnnouncements(
	ctx context.Context, cluster *cluster, inputs *placement.Inputs, announcing storedAnnouncements,
) error {
	wanted := map[string]*v1.AnnouncementSpec{}
	for _, plan := range placement.PlanStandbys(*inputs) {
		maps.Copy(wanted, plan.Announcements(inputs.Standbys[plan.Watcher]))
	}
	return r.writeAssignments(ctx, cluster.standbys, wanted, inputs, announcing)
}

// writeAskingAnnouncements writes the Announcements that say what nodes are to find out about addresses of
// another one. Without an LBNodeAgent that has local.reachability enabled there are none.
func (r *PlacementReconciler) writeAskingAnnouncements(
	ctx context.Context, cluster *cluster, inputs *placement.Inputs, announcing storedAnnouncements,
) error {
	wanted, stored := map[string]*v1.AnnouncementSpec{}, storedObjectsByNode(cluster.askings)
	for _, plan := range placement.PlanAsking(*inputs) {
		maps.Copy(wanted, plan.Announcements(stored[plan.Asker]))
	}
	return r.writeAssignments(ctx, cluster.askings, wanted, inputs, announcing)
}

// storedObjectsByNode describes Announcements with standby or asking to the plans that they are written for.
func storedObjectsByNode(announcements []v1.Announcement) map[string][]placement.StoredObject {
	byNode := map[string][]placement.StoredObject{}
	for i := range announcements {
		spec, object := &announcements[i].Spec, placement.StoredObject{Name: announcements[i].Name}
		if spec.Standby != nil {
			for k := range spec.Standby.Witnesses {
				object.Witnesses = append(object.Witnesses, spec.Standby.Witnesses[k].NodeName)
			}
			for k := range spec.Standby.Addresses {
				object.Addresses = append(object.Addresses, spec.Standby.Addresses[k].Address)
			}
		}
		if spec.Asking != nil {
			for k := range spec.Asking.Addresses {
				object.Addresses = append(object.Addresses, spec.Asking.Addresses[k].Address)
			}
		}
		byNode[spec.NodeName] = append(byNode[spec.NodeName], object)
	}
	return byNode
}

// writeAssignments writes Announcements that announce nothing, and then deletes those that are not wanted, of nodes for
// which nothing failed: an address that changes its object is never in none. They come last, and what fails for one
// does not stop the others.
func (r *PlacementReconciler) writeAssignments(
	ctx context.Context, stored []v1.Announcement, wanted map[string]*v1.AnnouncementSpec,
	inputs *placement.Inputs, announcing storedAnnouncements,
) error {
	writes := map[string]*assignmentWrite{}
	for i := range stored {
		writes[stored[i].Name] = &assignmentWrite{stored: &stored[i]}
	}
	lbNodeAgent := map[string]string{}
	for i := range inputs.Nodes {
		lbNodeAgent[inputs.Nodes[i].Name] = inputs.Nodes[i].LBNodeAgent
	}
	for name, spec := range wanted {
		if writes[name] == nil {
			writes[name] = &assignmentWrite{}
		}
		spec.LBNodeAgent, spec.HeartbeatSeconds = lbNodeAgent[spec.NodeName], placement.SlowHeartbeat
		writes[name].spec = spec
	}
	var kept, unwanted []string
	for _, name := range slices.Sorted(maps.Keys(writes)) {
		if writes[name].spec != nil {
			kept = append(kept, name)
		} else {
			unwanted = append(unwanted, name)
		}
	}
	errs := make([]error, len(kept))
	for i, name := range kept {
		if w := writes[name]; w.stored == nil {
			errs[i] = r.endSole(ctx, announcing[w.spec.NodeName])
		}
	}
	err := forEachParallel(r.ParallelWrites, len(kept), func(i int) error {
		w := writes[kept[i]]
		if errs[i] != nil {
			return errs[i]
		}
		// These Announcements have no label of their node, by which kubectl wait chooses Announcements during a drain.
		_, errs[i] = r.putAnnouncement(ctx, &nodePlan{node: w.spec.NodeName}, kept[i], *w.spec, w.stored)
		return errs[i]
	})
	hasFailed := map[string]bool{}
	for i, name := range kept {
		hasFailed[writes[name].spec.NodeName] = hasFailed[writes[name].spec.NodeName] || errs[i] != nil
	}
	unwanted = slices.DeleteFunc(unwanted, func(name string) bool { return hasFailed[writes[name].stored.Spec.NodeName] })
	return errors.Join(err, forEachParallel(r.ParallelWrites, len(unwanted), func(i int) error {
		return r.deleteIfUnchanged(ctx, writes[unwanted[i]].stored)
	}))
}

// endSole writes `sole: false` to the Announcement of a node that says `sole: true`, if one does; announcing are the
// node's Announcements with addresses. The manager calls it before it creates an Announcement with standby or asking
// for the node: the node's agent watches only the sole one, and would not see the other.
func (r *PlacementReconciler) endSole(ctx context.Context, announcing []*v1.Announcement) error {
	for i, a := range announcing {
		if !a.Spec.Sole {
			continue
		}
		spec := *a.Spec.DeepCopy()
		spec.Sole = false
		n := &nodePlan{node: spec.NodeName, labels: nodeLabels(spec.NodeName)}
		written, err := r.putAnnouncement(ctx, n, a.Name, spec, a)
		if err != nil {
			return err
		}
		announcing[i] = written
	}
	return nil
}
