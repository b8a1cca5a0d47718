package announced

import (
	"cmp"
	"slices"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/order"
)

// Place is one address on one node.
type Place struct {
	Node      string
	Interface string
	Address   string
	Type      v1.AnnounceType
	// ServiceGroup that the address is of.
	ServiceGroup string
	// Epoch of the entry. State, Message and MAC are what the node reports for this
	// epoch; without a report the State is Pending.
	Epoch   int64
	State   v1.AddressState
	Message string
	MAC     string
	// HasSharers is that several Services have the address.
	HasSharers bool
	// Announcement is the object in which the node reports.
	Announcement *v1.Announcement
}

// PlacesOf lists where the addresses of a Service, as namespace/name, are announced or
// are to be announced, sorted. announcements and commons are those that have entries for
// the Service; announcers are the Announcements of the nodes that announce the shared
// entries.
func PlacesOf(
	service string, announcements []v1.Announcement, commons []v1.CommonAnnouncement, announcers []v1.Announcement,
) []Place {
	places := sharedPlaces(service, commons, announcers)
	for i := range announcements {
		a := &announcements[i]
		for k := range a.Spec.Addresses {
			if e := &a.Spec.Addresses[k]; slices.Contains(e.Services, service) {
				places = append(places, placeOf(a, e, ownStatus(a, e)))
			}
		}
	}
	slices.SortStableFunc(places, func(a, b Place) int {
		return cmp.Or(
			cmp.Compare(a.Address, b.Address), cmp.Compare(a.Node, b.Node),
			order.TrueFirst(a.State == v1.StateAnnounced, b.State == v1.StateAnnounced),
		)
	})
	// While a Virtual address changes between an own and a shared entry, a node has
	// both: the one that is announced counts.
	return slices.CompactFunc(places, func(a, b Place) bool {
		return a.Address == b.Address && a.Node == b.Node && a.Type == v1.AnnounceVirtual && b.Type == v1.AnnounceVirtual
	})
}

// sharedPlaces lists the places of a Service that come from shared entries.
func sharedPlaces(service string, commons []v1.CommonAnnouncement, announcers []v1.Announcement) []Place {
	var places []Place
	for i := range commons {
		for k := range commons[i].Spec.Addresses {
			e := &commons[i].Spec.Addresses[k]
			if !slices.Contains(e.Services, service) {
				continue
			}
			for n := range announcers {
				if status := sharedStatus(&announcers[n], commons[i].Spec.LBNodeAgent, e); status.State != "" {
					places = append(places, placeOf(&announcers[n], e, status))
				}
			}
		}
	}
	return places
}

func placeOf(a *v1.Announcement, e *v1.AnnouncedAddress, status v1.AddressStatus) Place {
	return Place{
		Node: a.Spec.NodeName, Interface: string(e.Interface), Address: e.Address, Type: e.Type, Epoch: e.Epoch,
		State: status.State, Message: status.Message, MAC: status.MAC, HasSharers: len(e.Services) > 1,
		ServiceGroup: e.ServiceGroup, Announcement: a,
	}
}

// ownStatus is what a node reports of an entry of its own Announcement.
func ownStatus(a *v1.Announcement, e *v1.AnnouncedAddress) v1.AddressStatus {
	if s := statusOfAddress(a, e.Address); s != nil && s.Epoch == e.Epoch {
		return *s
	}
	return v1.AddressStatus{Address: e.Address, State: v1.StatePending}
}

// sharedStatus is what a node reports of an entry that the nodes of an LBNodeAgent share:
// the revision up to which the node has realised the shared entries, and the exceptions.
// The status has no state if the node is not to announce the shared entries.
func sharedStatus(a *v1.Announcement, lbNodeAgent string, e *v1.AnnouncedAddress) v1.AddressStatus {
	if !a.Spec.IncludeCommonAnnouncements || a.Spec.LBNodeAgent != lbNodeAgent {
		return v1.AddressStatus{}
	}
	isRealised := a.Status.CommonAnnouncementsRevision != nil && *a.Status.CommonAnnouncementsRevision >= e.Epoch
	switch s := statusOfAddress(a, e.Address); {
	case s != nil && s.Epoch == e.Epoch:
		return *s
	case isRealised:
		return v1.AddressStatus{Address: e.Address, State: v1.StateAnnounced, Epoch: e.Epoch, Interface: string(e.Interface)}
	}
	return v1.AddressStatus{Address: e.Address, State: v1.StatePending}
}

// statusOfAddress is what a node reports of an address in one Announcement, or nil.
func statusOfAddress(a *v1.Announcement, address string) *v1.AddressStatus {
	for i := range a.Status.Addresses {
		if a.Status.Addresses[i].Address == address {
			return &a.Status.Addresses[i]
		}
	}
	return nil
}

// CountNodes returns on how many nodes the places are.
func CountNodes(places []Place) int {
	nodes := map[string]bool{}
	for _, p := range places {
		nodes[p.Node] = true
	}
	return len(nodes)
}

// NodeByMAC returns the node that reports a MAC address as one of its own. It returns
// nothing if no node does, or if several do: then the manager believes none of them.
func NodeByMAC(announcements []v1.Announcement, mac string) string {
	if mac == "" {
		return ""
	}
	node := ""
	for i := range announcements {
		a := &announcements[i]
		reports := slices.Contains(a.Status.MACs, mac) ||
			slices.ContainsFunc(a.Status.Interfaces, func(iface v1.NodeInterface) bool { return iface.MAC == mac })
		switch {
		case !reports || node == a.Spec.NodeName:
		case node != "":
			return ""
		default:
			node = a.Spec.NodeName
		}
	}
	return node
}
