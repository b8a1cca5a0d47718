package controllers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/partialwrite"
	"github.com/purelb/purelb-operator/controllers/placement"
	"github.com/purelb/purelb-operator/internal/writeerror"
)

// writeAnnouncements writes the Announcements of all nodes as decided, and returns the
// entries that are stored then; it keeps the Leases of nodes that run an agent, and deletes others. What fails for one
// node does not stop the others.
//
// An Announcement that has an entry for an address which another node is given is written
// first; if that fails, the other node is not given the address.
func (r *PlacementReconciler) writeAnnouncements(
	ctx context.Context, cluster *cluster, inputs *placement.Inputs, result *placement.Result,
) (storedAnnouncements, error) {
	plans := r.planNodes(cluster, inputs, result)
	notWritten, firstErr := r.writeFormerNodesFirst(ctx, plans, placement.ReassignedAddresses(inputs, result))
	secondErr := forEachParallel(r.ParallelWrites, len(plans), func(i int) error {
		n := plans[i]
		err := n.forEach(func(name string, spec v1.AnnouncementSpec, stored *v1.Announcement) error {
			if len(notWritten) > 0 {
				spec.Addresses = partialwrite.WithStored(spec.Addresses, entriesOf(stored), func(e *v1.AnnouncedAddress) bool {
					return notWritten[addressOf(e)] && !hasEntry(stored, e)
				})
			}
			return r.writeAnnouncement(ctx, &n, name, spec, stored)
		})
		if len(n.specs) == 0 {
			// The Lease goes first: as long as there are Announcements, this is tried again.
			if leaseErr := r.deleteLease(ctx, n.node); leaseErr != nil {
				return errors.Join(err, leaseErr)
			}
		}
		for _, a := range n.obsolete {
			err = errors.Join(err, r.deleteIfUnchanged(ctx, a))
		}
		if n.nodeObject != nil && len(n.specs) > 0 {
			err = errors.Join(err, r.ensureLease(ctx, n.nodeObject))
		}
		return err
	})
	stored := storedAnnouncements{}
	for _, n := range plans {
		stored[n.node] = slices.Collect(maps.Values(n.stored))
	}
	r.state.refusals.Prune(func(owner string) bool {
		lbNodeAgent, isShared := strings.CutPrefix(owner, commonKey(""))
		_, hasNodes := result.SharedEntries[lbNodeAgent]
		_, isNode := stored[owner]
		return isShared && hasNodes || !isShared && isNode
	})
	return stored, errors.Join(firstErr, secondErr)
}

// writeFormerNodesFirst writes the Announcements that have entries for addresses which other nodes are
// given, without what those are given. It returns the addresses for which that failed.
func (r *PlacementReconciler) writeFormerNodesFirst(
	ctx context.Context, plans []nodePlan, reassigned map[netip.Addr]bool,
) (notWritten map[netip.Addr]bool, err error) {
	if len(reassigned) == 0 {
		return nil, nil
	}
	var mu sync.Mutex
	notWritten = map[netip.Addr]bool{}
	err = forEachParallel(r.ParallelWrites, len(plans), func(i int) error {
		n := plans[i]
		return n.forEach(func(name string, spec v1.AnnouncementSpec, stored *v1.Announcement) error {
			concerned := addressesIn(stored, reassigned)
			if len(concerned) == 0 {
				return nil
			}
			spec.Addresses = partialwrite.WithStored(spec.Addresses, stored.Spec.Addresses, func(e *v1.AnnouncedAddress) bool {
				return reassigned[addressOf(e)] && !hasEntry(stored, e)
			})
			err := r.writeAnnouncement(ctx, &n, name, spec, stored)
			written := n.stored[name] // without what was refused
			mu.Lock()
			defer mu.Unlock()
			for _, a := range concerned {
				if err != nil || !slices.EqualFunc(
					entriesWith(written.Spec.Addresses, a), entriesWith(spec.Addresses, a), placement.SameEntry,
				) {
					notWritten[a] = true
				}
			}
			return err
		})
	})
	return notWritten, err
}

// entriesWith returns the entries of an address.
func entriesWith(entries []v1.AnnouncedAddress, a netip.Addr) []v1.AnnouncedAddress {
	return slices.DeleteFunc(slices.Clone(entries), func(e v1.AnnouncedAddress) bool { return addressOf(&e) != a })
}

// writeAnnouncement writes one Announcement, of which stored is what exists. Where the API
// server refuses entries it writes the others, and notes the refusal.
func (r *PlacementReconciler) writeAnnouncement(
	ctx context.Context, n *nodePlan, name string, spec v1.AnnouncementSpec, stored *v1.Announcement,
) error {
	if first := n.stored[n.node]; stored == nil && first != nil && first.Spec.Sole {
		// The first one could not be written, and the node's agent would not see this one.
		return fmt.Errorf("create Announcement %s: the agent of %s watches only one yet", name, n.node)
	}
	wanted := spec.Addresses
	outcome := partialwrite.Write(wanted, entriesOf(stored), func(part []v1.AnnouncedAddress) (bool, error) {
		spec.Addresses = part
		written, err := r.putAnnouncement(ctx, n, name, spec, stored)
		if err != nil {
			return isRefused(err), markRefusedWhole(err)
		}
		stored, n.stored[name] = written, written
		return false, nil
	})
	return r.absorbRefusals(ctx, n.node, wanted, outcome)
}

// absorbRefusals notes which entries of an owner were refused. It returns an error that is not
// about entries.
func (r *PlacementReconciler) absorbRefusals(
	ctx context.Context, owner string, wanted []v1.AnnouncedAddress, outcome partialwrite.Outcome,
) error {
	r.state.refusals.NoteWrite(owner, wanted, outcome, r.Now())
	if refused := outcome.Refused; len(refused) > 0 {
		log.FromContext(ctx).Error(
			outcome.Refusal, "The API server refuses what is to be announced", "owner", owner, "entries", len(refused),
			"first", refused[0].Address,
		)
	}
	return outcome.Err
}

// isRefused reports whether the API server will not have an object for what is in it, or by
// a quota or a policy of the cluster.
func isRefused(err error) bool {
	// etcd's
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsRequestEntityTooLargeError(err) ||
		err != nil && strings.Contains(err.Error(), "request is too large")
}

// markRefusedWhole marks an error by which an object is refused whatever its entries are. As a
// rule that is so where the API server forbids a write.
func markRefusedWhole(err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%w: %w", partialwrite.ErrObjectRefused, err)
	}
	return err
}

// isOnlyOutdated reports whether nothing is wrong but that objects are not as they were read
// any more.
func isOnlyOutdated(err error) bool {
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		return !slices.ContainsFunc(joined.Unwrap(), func(err error) bool { return !isOnlyOutdated(err) })
	}
	return writeerror.IsOutdated(err) || apierrors.IsAlreadyExists(err)
}

// putAnnouncement creates one Announcement, or updates it if it differs from the stored
// one, and if its spec is still as stored: an agent's reports may come meanwhile. It
// returns what is stored then. The object has no owner: while its Node object is deleted,
// placement moves the node's addresses by what the Announcement says of the node, and only
// then does the Announcement go. The garbage collector would delete it at once.
func (r *PlacementReconciler) putAnnouncement(
	ctx context.Context, n *nodePlan, name string, spec v1.AnnouncementSpec, stored *v1.Announcement,
) (*v1.Announcement, error) {
	if stored == nil {
		a := &v1.Announcement{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: r.Namespace, Labels: n.labels}, Spec: spec}
		if err := r.Client.Create(ctx, a, client.FieldOwner(ownerPlacement)); err != nil {
			return nil, fmt.Errorf("create Announcement %s: %w", name, err)
		}
		r.noteWrite(name, a)
		return a, nil
	}
	if isSameSpec(&stored.Spec, &spec) && stored.Labels[v1.LabelNode] == n.labels[v1.LabelNode] &&
		len(stored.OwnerReferences) == 0 {
		return stored, nil
	}
	const attempts = 5
	meta := stored.ObjectMeta
	for attempt := 1; ; attempt++ {
		a := &v1.Announcement{ObjectMeta: *meta.DeepCopy(), Spec: spec}
		a.OwnerReferences = nil
		delete(a.Labels, v1.LabelNode)
		for key, value := range n.labels {
			metav1.SetMetaDataLabel(&a.ObjectMeta, key, value)
		}
		err := r.Client.Update(ctx, a, client.FieldOwner(ownerPlacement))
		if err == nil {
			r.noteWrite(name, a)
			return a, nil
		}
		err = fmt.Errorf("update Announcement %s: %w", name, err)
		if !apierrors.IsConflict(err) || attempt == attempts {
			return nil, err
		}
		live := &v1.Announcement{}
		if liveErr := r.APIReader.Get(ctx, client.ObjectKeyFromObject(a), live); liveErr != nil || live.UID != stored.UID ||
			live.Generation != stored.Generation {
			return nil, errors.Join(err, liveErr)
		}
		meta = live.ObjectMeta // only its status has changed
	}
}

// isSameSpec compares without regard to the order of addresses, which is the API server's
// to choose.
func isSameSpec(a, b *v1.AnnouncementSpec) bool {
	x, y := *a, *b
	x.Addresses, y.Addresses = nil, nil
	return equality.Semantic.DeepEqual(x, y) && placement.SameAddresses(a.Addresses, b.Addresses)
}

// deleteIfUnchanged deletes an Announcement or CommonAnnouncement, unless it is another by
// now than the cache shows.
func (r *PlacementReconciler) deleteIfUnchanged(ctx context.Context, obj client.Object) error {
	uid, version := obj.GetUID(), obj.GetResourceVersion()
	err := r.Client.Delete(ctx, obj, client.Preconditions{UID: &uid, ResourceVersion: &version})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // the cache will show what has become of it
	}
	if err != nil {
		return fmt.Errorf("delete %T %s: %w", obj, obj.GetName(), err)
	}
	return nil
}

// ensureLease creates the Lease that the node's agent renews. The agent itself may not: it
// could then create any Lease.
func (r *PlacementReconciler) ensureLease(ctx context.Context, n *corev1.Node) error {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Name:            v1.LeasePrefix + n.Name,
		Namespace:       r.Namespace,
		Labels:          nodeLabels(n.Name),
		OwnerReferences: []metav1.OwnerReference{nodeOwnerReference(n)},
	}}
	err := r.Client.Get(ctx, client.ObjectKeyFromObject(lease), &coordinationv1.Lease{})
	if apierrors.IsNotFound(err) {
		err = r.Client.Create(ctx, lease)
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create Lease %s: %w", lease.Name, err)
	}
	return nil
}

// deleteLease deletes the Lease of a node that runs no agent any more. That of a node which is
// deleted goes with its Node.
func (r *PlacementReconciler) deleteLease(ctx context.Context, node string) error {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: v1.LeasePrefix + node}}
	if err := r.Client.Delete(ctx, lease); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete Lease %s: %w", lease.Name, err)
	}
	return nil
}

// nodeOwnerReference makes a Node the owner of an object, so that the object goes with it.
func nodeOwnerReference(n *corev1.Node) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}
}
