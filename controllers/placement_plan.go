package controllers

import (
	"errors"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/agents"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// maxSoleAddresses is how many addresses the only Announcement of a node may have. With more it might need another one
// soon, and its agent would watch now the one and now both.
const maxSoleAddresses = 12

// nodePlan is what the Announcements of one node are to be.
type nodePlan struct {
	node string
	// nodeObject is nil if there is no Node object any more.
	nodeObject *corev1.Node
	labels     map[string]string
	// specs are the wanted ones, and stored what exists, by name. obsolete are those to
	// delete.
	specs    map[string]v1.AnnouncementSpec
	stored   map[string]*v1.Announcement
	obsolete []*v1.Announcement
}

// forEach calls do for each wanted Announcement of the node.
func (n *nodePlan) forEach(do func(name string, spec v1.AnnouncementSpec, stored *v1.Announcement) error) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(n.specs)) {
		errs = append(errs, do(name, n.specs[name], n.stored[name]))
	}
	return errors.Join(errs...)
}

// planNodes returns the plans of all nodes, including those that have no Node object any
// more.
func (r *PlacementReconciler) planNodes(
	cluster *cluster, inputs *placement.Inputs, result *placement.Result,
) []nodePlan {
	existing := map[string][]*v1.Announcement{}
	for i := range cluster.announcements {
		a := &cluster.announcements[i]
		existing[a.Spec.NodeName] = append(existing[a.Spec.NodeName], a)
	}
	hasAssignment := map[string]bool{}
	for _, assignments := range [][]v1.Announcement{cluster.standbys, cluster.askings} {
		for i := range assignments {
			hasAssignment[assignments[i].Spec.NodeName] = true
		}
	}
	var plans []nodePlan
	for i := range cluster.nodes {
		n := &cluster.nodes[i]
		entries, runsAgent := result.Entries[n.Name]
		spec := v1.AnnouncementSpec{LBNodeAgent: n.Labels[v1.LabelAgent], AgentLeaving: true}
		if runsAgent || len(entries) > 0 {
			spec.HeartbeatSeconds = result.HeartbeatSeconds[n.Name]
			spec.AgentLeaving = inputs.Nodes[i].IsLeaving // which begins with cluster.nodes
			spec.IncludeCommonAnnouncements = result.AnnouncesShared[n.Name]
			spec.Successors = result.Successors[n.Name]
			spec.Sole = result.IsOffLocalSubnets[n.Name] && !hasAssignment[n.Name] && len(entries) <= maxSoleAddresses
		}
		if runsAgent || len(entries) > 0 || len(existing[n.Name]) > 0 {
			plan := r.planNode(n.Name, spec, entries, existing[n.Name], runsAgent)
			plan.nodeObject = n
			plans = append(plans, plan)
		}
		delete(existing, n.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(existing)) {
		plans = append(plans, r.planNode(name, v1.AnnouncementSpec{}, result.Entries[name], existing[name], false))
	}
	return plans
}

// planNode distributes the entries of one node over its Announcements. spec is what else they say; only the first
// asks for the shared entries and for quick renewals, describes successors, and may be sole. A node that runs no agent
// gets no new Announcement and, once it has withdrawn everything, has none.
func (r *PlacementReconciler) planNode(
	node string, spec v1.AnnouncementSpec, placed []placement.Placed, existing []*v1.Announcement, runsAgent bool,
) nodePlan {
	plan := nodePlan{
		node: node, labels: nodeLabels(node), specs: map[string]v1.AnnouncementSpec{}, stored: map[string]*v1.Announcement{},
	}
	if !runsAgent && len(placed) == 0 && r.hasWithdrawnOrIsLost(node, existing) {
		plan.obsolete = existing
		return plan
	}
	var names []string
	var stored []v1.AnnouncedAddress
	nameOfAddress := map[string]string{}
	for _, a := range existing {
		names = append(names, a.Name)
		plan.stored[a.Name] = a
		stored = append(stored, a.Spec.Addresses...)
		for _, e := range a.Spec.Addresses {
			nameOfAddress[e.Address] = a.Name
		}
	}
	entries := r.state.refusals.WithoutRefused(node, placement.SpecsOf(placed), stored, r.Now())
	sliced := placement.Slice(node, entries, names, nameOfAddress)
	for _, a := range existing {
		switch {
		case sliced[a.Name] != nil:
		case len(a.Spec.Addresses) == 0 && r.hasWithdrawnOrIsLost(node, []*v1.Announcement{a}):
			plan.obsolete = append(plan.obsolete, a)
		default: // deleted now, its agent would keep the addresses for a while, and the manager not know of them
			sliced[a.Name] = nil
		}
	}
	for name, addresses := range sliced {
		one := spec
		one.NodeName, one.Addresses = node, addresses
		one.IncludeCommonAnnouncements = spec.IncludeCommonAnnouncements && name == node
		one.Sole = spec.Sole && name == node && len(sliced) == 1 && len(plan.obsolete) == 0
		if name != node {
			one.HeartbeatSeconds, one.Successors = placement.SlowHeartbeat, nil
		}
		if one.LBNodeAgent == "" { // the node has left its selector
			old := plan.stored[name]
			if old == nil {
				continue // no agent would read a new one
			}
			one.LBNodeAgent, one.HeartbeatSeconds = old.Spec.LBNodeAgent, old.Spec.HeartbeatSeconds
		}
		plan.specs[name] = one
	}
	return plan
}

// hasWithdrawnOrIsLost reports whether a node that runs no agent any more has withdrawn all
// that its Announcements asked for, or its agent cannot be waited for.
func (r *PlacementReconciler) hasWithdrawnOrIsLost(node string, announcements []*v1.Announcement) bool {
	return r.Liveness.SilentFor(node) > lostAfter || !slices.ContainsFunc(announcements, func(a *v1.Announcement) bool {
		return !agents.HasWithdrawn(a)
	})
}

// nodeLabels are the labels of what is created for a node. The value of a label has no
// more than 63 characters; a node with a longer name goes without.
func nodeLabels(node string) map[string]string {
	if len(node) > validation.LabelValueMaxLength {
		return nil
	}
	return map[string]string{v1.LabelNode: node}
}

// addressesIn lists which of some addresses an Announcement has an entry for.
func addressesIn(a *v1.Announcement, addresses map[netip.Addr]bool) []netip.Addr {
	var in []netip.Addr
	entries := entriesOf(a)
	for i := range entries {
		if addr := addressOf(&entries[i]); addresses[addr] {
			in = append(in, addr)
		}
	}
	return in
}

// hasEntry reports whether an Announcement has an entry with the same address and epoch.
func hasEntry(a *v1.Announcement, e *v1.AnnouncedAddress) bool {
	return slices.ContainsFunc(
		entriesOf(a), func(old v1.AnnouncedAddress) bool { return old.Address == e.Address && old.Epoch == e.Epoch },
	)
}

// entriesOf are the entries of an Announcement, which may be nil.
func entriesOf(a *v1.Announcement) []v1.AnnouncedAddress {
	if a == nil {
		return nil
	}
	return a.Spec.Addresses
}

// addressOf is the address of an entry; the CRD lets no other text through.
func addressOf(e *v1.AnnouncedAddress) netip.Addr {
	addr, _ := netip.ParseAddr(e.Address)
	return addr
}
