package announced

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// commonPlaces is PlacesOf of what is common.
func commonPlaces(service string, commons []v1.CommonAnnouncement, nodes []v1.Announcement) []Place {
	var places []Place
	for i := range commons {
		for k := range commons[i].Spec.Addresses {
			e := &commons[i].Spec.Addresses[k]
			if !slices.Contains(e.Services, service) {
				continue
			}
			for n := range nodes {
				if s := inCommon(&nodes[n], commons[i].Spec.LBNodeAgent, e); s.State != "" {
					places = append(places, Place{
						Node: nodes[n].Spec.NodeName, Interface: string(e.Interface), Address: e.Address, Type: e.Type,
						State: s.State, Message: s.Message, Shared: len(e.Services) > 1,
					})
				}
			}
		}
	}
	return places
}

// inCommon is what a node makes of an entry that is common to the nodes of an
// LBNodeAgent. It has no state if the node is not to announce it.
func inCommon(a *v1.Announcement, agent string, e *v1.AnnouncedAddress) v1.AddressStatus {
	if !a.Spec.Common || a.Spec.LBNodeAgent != agent {
		return v1.AddressStatus{}
	}
	made := a.Status.CommonRevision != nil && *a.Status.CommonRevision >= e.Epoch
	switch s := StatusOf(a, e.Address); {
	case s != nil && s.Epoch == e.Epoch:
		return *s
	case made:
		return v1.AddressStatus{Address: e.Address, State: v1.StateAnnounced, Epoch: e.Epoch, Interface: string(e.Interface)}
	}
	return v1.AddressStatus{Address: e.Address, State: v1.StatePending}
}

// CommonChanged reports whether what a node makes of what is common may differ
// between two versions of its Announcement.
func CommonChanged(before, after *v1.Announcement) bool {
	return (before.Spec.Common || after.Spec.Common) &&
		(before.Spec.Common != after.Spec.Common || !equality.Semantic.DeepEqual(before.Status.CommonRevision, after.Status.CommonRevision) ||
			!equality.Semantic.DeepEqual(before.Status.Addresses, after.Status.Addresses))
}

// CommonDifference lists the Services, as namespace/name, for which a node makes
// something else of what is common, by two versions of its Announcement, and the
// addresses that it has newly announced.
func CommonDifference(before, after *v1.Announcement, commons []v1.CommonAnnouncement) (services []string, realised []v1.AnnouncedAddress) {
	for i := range commons {
		for k := range commons[i].Spec.Addresses {
			e := &commons[i].Spec.Addresses[k]
			was, is := inCommon(before, commons[i].Spec.LBNodeAgent, e), inCommon(after, commons[i].Spec.LBNodeAgent, e)
			if was.State != is.State || was.Message != is.Message {
				services = append(services, e.Services...)
			}
			if is.State == v1.StateAnnounced && was.State != v1.StateAnnounced {
				realised = append(realised, *e)
			}
		}
	}
	slices.Sort(services)
	return slices.Compact(services), realised
}

// CommonServices lists the Services that a CommonAnnouncement is about, as
// namespace/name.
func CommonServices(c *v1.CommonAnnouncement) []string { return servicesOf(c.Spec.Addresses) }

// CommonRewritten lists the Services, as namespace/name, for which two versions of
// a CommonAnnouncement ask for something else.
func CommonRewritten(before, after *v1.CommonAnnouncement) []string {
	was := map[string]v1.AnnouncedAddress{}
	for _, e := range before.Spec.Addresses {
		was[e.Address] = e
	}
	var changed []v1.AnnouncedAddress
	for _, e := range after.Spec.Addresses {
		if old, had := was[e.Address]; !had || !equality.Semantic.DeepEqual(old, e) {
			changed = append(changed, old, e)
		}
		delete(was, e.Address)
	}
	for _, e := range was {
		changed = append(changed, e)
	}
	return servicesOf(changed)
}
