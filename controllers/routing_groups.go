package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/routing"
)

// gatherGroups reads the ServiceGroups, and the Virtual addresses that nodes announce, or are to.
func (r *RoutingReconciler) gatherGroups(ctx context.Context, g *routingInputs) error {
	var groups v1.ServiceGroupList
	if err := r.Client.List(
		ctx, &groups, client.InNamespace(r.Namespace), client.UnsafeDisableDeepCopy,
	); err != nil {
		return fmt.Errorf("list ServiceGroups: %w", err)
	}
	g.groups = groups.Items
	catalog := allocation.NewCatalog(groups.Items, r.Namespace)
	if len(g.Peers)+len(g.Routings) == 0 { // nothing is advertised
		g.Groups = routingGroups(groups.Items, catalog, nil)
		return nil
	}
	services, err := listServices(ctx, r.Client)
	if err != nil {
		return err
	}
	if g.announcements, err = listAnnouncements(ctx, r.Client, r.Namespace); err != nil {
		return err
	}
	if g.commons, err = listCommons(ctx, r.Client, r.Namespace); err != nil {
		return err
	}
	g.VirtualAddresses = virtualAddresses(g.announcements, g.commons, services)
	g.Groups = routingGroups(groups.Items, catalog, groupsWithPolicyLocal(services, g.VirtualAddresses))
	g.AreAgentsBehind = areAgentsBehind(g.announcements, g.commons)
	return nil
}

// groupsWithPolicyLocal are the groups of which Services with externalTrafficPolicy Local have Virtual
// addresses. Those of remote pools always are, also while no node has an endpoint, and so the address.
func groupsWithPolicyLocal(services []corev1.Service, virtual map[netip.Addr]routing.VirtualAddress) map[string]bool {
	groups := map[string]bool{}
	for i := range services {
		if !allocation.HasPolicyLocal(&services[i]) {
			continue
		}
		record := allocation.RecordOf(&services[i])
		isVirtual := record.Type == v1.PoolTypeRemote
		for _, addr := range record.Addresses {
			_, isFound := virtual[addr]
			isVirtual = isVirtual || isFound
		}
		groups[record.Group] = groups[record.Group] || isVirtual
	}
	return groups
}

// routingGroups are the ServiceGroups of a catalog. The ranges of a group whose addresses come from elsewhere are those
// that its status lists.
func routingGroups(
	groups []v1.ServiceGroup, catalog allocation.Catalog, hasPolicyLocal map[string]bool,
) []routing.Group {
	var out []routing.Group
	for i := range groups {
		sg := &groups[i]
		verdict := catalog[sg.Name]
		if verdict == nil {
			continue
		}
		group := routing.Group{Name: sg.Name, CreatedAt: sg.CreationTimestamp.Time}
		if bgp := sg.Spec.BGP; bgp != nil {
			group.BGP, group.AllowServices = &bgp.ServiceGroupBGP, bgp.AllowServices
		}
		if verdict.IsReady() {
			for _, r := range verdict.Group.Ranges {
				group.Ranges = append(group.Ranges, r.String())
			}
			if len(group.Ranges) == 0 {
				for _, p := range sg.Status.Pools {
					group.Ranges = append(group.Ranges, cmp.Or(p.Range, p.Subnet))
				}
			}
		}
		group.NeedsHostRoutes = hasPolicyLocal[sg.Name] && routing.HasAggregateRoutes(&verdict.Group)
		out = append(out, group)
	}
	return out
}

// virtualAddresses are the Virtual addresses that nodes announce, or are to. Of one that a Service has, the
// record of the Service says which group it was allocated from. Of several Services that have it, the oldest says
// which communities its routes have.
func virtualAddresses(
	announcements []v1.Announcement, commons []v1.CommonAnnouncement, services []corev1.Service,
) map[netip.Addr]routing.VirtualAddress {
	virtual := map[netip.Addr]routing.VirtualAddress{}
	note := func(entries []v1.AnnouncedAddress) {
		for i := range entries {
			if addr, err := netip.ParseAddr(entries[i].Address); err == nil && entries[i].Type == v1.AnnounceVirtual {
				virtual[addr] = routing.VirtualAddress{Group: entries[i].ServiceGroup}
			}
		}
	}
	for i := range announcements {
		note(announcements[i].Spec.Addresses)
	}
	for i := range commons {
		note(commons[i].Spec.Addresses)
	}
	oldest := map[netip.Addr]*corev1.Service{}
	for i := range services {
		svc := &services[i]
		record := allocation.RecordOf(svc)
		for _, addr := range record.Addresses {
			if _, isFound := virtual[addr]; !isFound || oldest[addr] != nil && !allocation.IsOlder(svc, oldest[addr]) {
				continue
			}
			oldest[addr] = svc
			virtual[addr] = routing.VirtualAddress{
				Group: record.Group, HasService: true, Communities: allocation.CommunitiesText(svc),
				ServiceCreated: svc.CreationTimestamp.Time,
			}
		}
	}
	return virtual
}

// areAgentsBehind reports whether an agent has yet to do what its node is to announce.
func areAgentsBehind(announcements []v1.Announcement, commons []v1.CommonAnnouncement) bool {
	revisions := map[string]int64{}
	for i := range commons {
		spec := &commons[i].Spec
		revisions[spec.LBNodeAgent] = max(revisions[spec.LBNodeAgent], spec.Revision)
	}
	for i := range announcements {
		a := &announcements[i]
		wanted, realised := int64(0), a.Status.CommonAnnouncementsRevision
		if a.Spec.IncludeCommonAnnouncements {
			wanted = revisions[a.Spec.LBNodeAgent]
		}
		if a.Status.ObservedGeneration < a.Generation || wanted == 0 && realised != nil ||
			wanted > 0 && (realised == nil || *realised < wanted) {
			return true
		}
	}
	return false
}

// writeGroups writes the condition Advertised of the ServiceGroups where it differs, and records an event
// when one turns bad. The condition is this controller's; all else of the status is another's.
func (r *RoutingReconciler) writeGroups(ctx context.Context, g *routingInputs, result *routing.Result) error {
	var errs []error
	for i := range g.groups {
		sg := &g.groups[i]
		before := meta.FindStatusCondition(sg.Status.Conditions, v1.ConditionGroupAdvertised)
		var conditions []metav1.Condition
		if before != nil {
			conditions = []metav1.Condition{*before}
		}
		if wanted, exists := result.Groups[sg.Name]; exists {
			wanted.ObservedGeneration = sg.Generation
			meta.SetStatusCondition(&conditions, wanted)
		} else {
			conditions = nil
		}
		after := meta.FindStatusCondition(conditions, v1.ConditionGroupAdvertised)
		if equality.Semantic.DeepEqual(before, after) {
			continue
		}
		if err := r.applyConditions(ctx, sg, conditions); err != nil {
			errs = append(errs, client.IgnoreNotFound(err))
			continue
		}
		isBad := after != nil && (after.Status == metav1.ConditionFalse || after.Reason == v1.ReasonTooManyCommunities)
		if isBad && (before == nil || before.Reason != after.Reason || before.Status != after.Status) {
			r.Recorder.Eventf(sg.DeepCopy(), nil, corev1.EventTypeWarning, after.Reason, "Advertise", "%s", after.Message)
		}
	}
	return errors.Join(errs...)
}

// applyConditions writes those conditions of a ServiceGroup that are this controller's, and no more.
func (r *RoutingReconciler) applyConditions(
	ctx context.Context, sg *v1.ServiceGroup, conditions []metav1.Condition,
) error {
	status, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&struct {
		Conditions []metav1.Condition `json:"conditions,omitempty"`
	}{conditions})
	if err != nil {
		return fmt.Errorf("convert the conditions of ServiceGroup %s: %w", sg.Name, err)
	}
	// With the UID, so that a later object of the same name is left alone.
	stored := metav1.ObjectMeta{Namespace: sg.Namespace, Name: sg.Name, UID: sg.UID}
	return applyStatusFields(ctx, r.Client, v1.GroupVersion.WithKind("ServiceGroup"), stored, status, ownerRouting)
}
