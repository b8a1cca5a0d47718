package controllers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/partialwrite"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// writeAllCommons writes the CommonAnnouncements of all LBNodeAgents as decided.
func (r *PlacementReconciler) writeAllCommons(ctx context.Context, cluster *cluster, result *placement.Result) error {
	specs, stored := map[string]map[string]v1.CommonAnnouncementSpec{}, map[string]*v1.CommonAnnouncement{}
	for lbNodeAgent := range result.SharedEntries {
		specs[lbNodeAgent] = map[string]v1.CommonAnnouncementSpec{}
	}
	for i := range cluster.commons {
		c := &cluster.commons[i]
		if stored[c.Name] = c; specs[c.Spec.LBNodeAgent] == nil {
			specs[c.Spec.LBNodeAgent] = map[string]v1.CommonAnnouncementSpec{}
		}
		specs[c.Spec.LBNodeAgent][c.Name] = c.Spec
	}
	maps.DeleteFunc(r.state.highestRevision, func(lbNodeAgent string, _ int64) bool { return specs[lbNodeAgent] == nil })
	var errs []error
	for lbNodeAgent := range specs {
		errs = append(errs, r.writeCommonsOf(ctx, lbNodeAgent, result, specs[lbNodeAgent], stored))
	}
	return errors.Join(errs...)
}

// writeCommonsOf writes the CommonAnnouncements of one LBNodeAgent, of which specs are those
// that exist. Those of an LBNodeAgent without nodes are emptied. Empty ones are deleted,
// but for the one that is named after an LBNodeAgent that has nodes, and the one with the
// highest revision, which is not to come twice.
func (r *PlacementReconciler) writeCommonsOf(
	ctx context.Context, lbNodeAgent string, result *placement.Result, specs map[string]v1.CommonAnnouncementSpec,
	stored map[string]*v1.CommonAnnouncement,
) error {
	highest := placement.HighestRevision(specs)
	// An administrator may have deleted the one that had it.
	r.state.highestRevision[lbNodeAgent] = max(r.state.highestRevision[lbNodeAgent], highest)
	var storedEntries []v1.AnnouncedAddress
	for _, spec := range specs {
		storedEntries = append(storedEntries, spec.Addresses...)
	}
	entries := r.state.refusals.WithoutRefused(
		commonKey(lbNodeAgent), placement.SpecsOf(result.SharedEntries[lbNodeAgent]), storedEntries, r.Now(),
	)
	changed := placement.ReviseShared(lbNodeAgent, len(result.AnnouncesShared), entries, specs)
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(changed)) {
		if err := r.writeCommon(ctx, name, changed[name], stored[name]); err != nil {
			errs = append(errs, err)
			if !isRefused(err) {
				break // the write may take effect yet, and no agent is to see another before those with lower revisions
			}
		}
	}
	_, hasNodes := result.SharedEntries[lbNodeAgent]
	for name, spec := range specs {
		_, isChanged := changed[name]
		if !isChanged && len(spec.Addresses) == 0 && (!hasNodes || name != lbNodeAgent && spec.Revision < highest) {
			errs = append(errs, r.deleteIfUnchanged(ctx, stored[name]))
		}
	}
	return errors.Join(errs...)
}

// writeCommon writes one CommonAnnouncement, with the next revision, unless another client
// has written it meanwhile: a revision must not come twice. Where the API server refuses
// entries it writes the others, and notes the refusal.
func (r *PlacementReconciler) writeCommon(
	ctx context.Context, name string, spec v1.CommonAnnouncementSpec, stored *v1.CommonAnnouncement,
) error {
	lbNodeAgent, wanted := spec.LBNodeAgent, spec.Addresses
	var entries []v1.AnnouncedAddress
	if stored != nil {
		entries = stored.Spec.Addresses
	}
	outcome := partialwrite.Write(wanted, entries, func(part []v1.AnnouncedAddress) (bool, error) {
		if stored != nil && placement.SameAddresses(stored.Spec.Addresses, part) || stored == nil && len(part) == 0 {
			return false, nil
		}
		spec.Addresses = part
		c := &v1.CommonAnnouncement{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: r.Namespace},
			Spec:       placement.WithRevision(spec, r.state.highestRevision[lbNodeAgent]+1),
		}
		var err error
		if stored == nil {
			err = r.Client.Create(ctx, c, client.FieldOwner(ownerPlacement))
		} else {
			c.ResourceVersion = stored.ResourceVersion
			err = r.Client.Update(ctx, c, client.FieldOwner(ownerPlacement))
		}
		if err != nil {
			return isRefused(err), markRefusedWhole(fmt.Errorf("write CommonAnnouncement %s: %w", name, err))
		}
		stored = c
		r.state.highestRevision[lbNodeAgent] = c.Spec.Revision
		r.noteWrite(commonKey(name), c)
		return false, nil
	})
	return r.absorbRefusals(ctx, commonKey(lbNodeAgent), wanted, outcome)
}
