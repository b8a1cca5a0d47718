// Package announced says of a Service what the nodes announce for it, as read
// from the status of Announcements. It is pure.
package announced

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// Place is one address on one node.
type Place struct {
	Node      string
	Interface string
	Address   string
	Type      v1.AnnounceType
	State     v1.AddressState
	Message   string
	// Shared is that several Services have the address.
	Shared bool
}

// Report is what a Service is to say of itself.
type Report struct {
	// Annotations to have; those of All that are not here are to go.
	Annotations map[string]string
	// Condition of type v1.ConditionAnnounced.
	Condition metav1.Condition
}

// All is the annotations that a Report may have.
var All = []string{v1.AnnotationAnnouncingIPv4, v1.AnnotationAnnouncingIPv6, v1.AnnotationAddedTo}

// PlacesOf lists where the addresses of a Service, as namespace/name, are or
// are to be, sorted. announcements and commons are those that are about it, and nodes
// the Announcements by which nodes announce what is common.
func PlacesOf(service string, announcements []v1.Announcement, commons []v1.CommonAnnouncement, nodes []v1.Announcement) []Place {
	places := commonPlaces(service, commons, nodes)
	for i := range announcements {
		a := &announcements[i]
		for _, spec := range a.Spec.Addresses {
			if !slices.Contains(spec.Services, service) {
				continue
			}
			p := Place{Node: a.Spec.NodeName, Interface: string(spec.Interface), Address: spec.Address, Type: spec.Type, State: v1.StatePending, Shared: len(spec.Services) > 1}
			if s := StatusOf(a, spec.Address); s != nil && s.Epoch == spec.Epoch {
				p.State, p.Message = s.State, s.Message
			}
			places = append(places, p)
		}
	}
	isWaiting := func(p Place) int {
		if p.State == v1.StateAnnounced {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(places, func(a, b Place) int {
		return cmp.Or(cmp.Compare(a.Address, b.Address), cmp.Compare(a.Node, b.Node), cmp.Compare(isWaiting(a), isWaiting(b)))
	})
	// A node may have an address in common and by itself: either will do.
	return slices.CompactFunc(places, func(a, b Place) bool {
		return a.Address == b.Address && a.Node == b.Node && a.Type == v1.AnnounceVirtual && b.Type == v1.AnnounceVirtual
	})
}

// StatusOf is what an Announcement's agent reports of an address, or nil.
func StatusOf(a *v1.Announcement, address string) *v1.AddressStatus {
	for i := range a.Status.Addresses {
		if a.Status.Addresses[i].Address == address {
			return &a.Status.Addresses[i]
		}
	}
	return nil
}

// Nodes is on how many nodes the places are.
func Nodes(places []Place) int {
	nodes := map[string]bool{}
	for _, p := range places {
		nodes[p.Node] = true
	}
	return len(nodes)
}

// Summarise reports on a Service that has the given addresses. why says, if it
// is known, why an address has no node.
func Summarise(addrs []netip.Addr, places []Place, why func(netip.Addr) string) Report {
	r := Report{Annotations: map[string]string{}}
	entries := map[string][]string{}
	var addedTo, waiting []string
	done, nowhere := 0, slices.Clone(addrs)
	for _, p := range places {
		nowhere = slices.DeleteFunc(nowhere, func(a netip.Addr) bool { return a.String() == p.Address })
		if p.State != v1.StateAnnounced {
			waiting = append(waiting, describe(p))
			continue
		}
		done++
		if p.Type != v1.AnnounceLocal {
			continue
		}
		name := v1.AnnotationAnnouncingIPv4
		if strings.Contains(p.Address, ":") {
			name = v1.AnnotationAnnouncingIPv6
		}
		entries[name] = append(entries[name], fmt.Sprintf("%s,%s,%s", p.Node, p.Interface, p.Address))
		addedTo = append(addedTo, p.Node+"/"+p.Interface)
	}
	for name, list := range entries {
		r.Annotations[name] = strings.Join(list, " ")
	}
	if len(addedTo) > 0 {
		slices.Sort(addedTo)
		r.Annotations[v1.AnnotationAddedTo] = strings.Join(slices.Compact(addedTo), " ")
	}
	homeless := make([]string, 0, len(nowhere))
	for _, a := range nowhere {
		s := fmt.Sprintf("%s has no node", a)
		if reason := why(a); reason != "" {
			s += ": " + reason
		}
		homeless = append(homeless, s)
	}
	r.Condition = condition(done, len(places), homeless, waiting)
	return r
}

func describe(p Place) string {
	s := fmt.Sprintf("%s on %s is %s", p.Address, p.Node, p.State)
	if p.Message != "" {
		s += " (" + p.Message + ")"
	}
	return s
}

func condition(done, all int, nowhere, waiting []string) metav1.Condition {
	const most = 3
	c := metav1.Condition{Type: v1.ConditionAnnounced, Status: metav1.ConditionFalse, Reason: v1.ReasonAnnouncing}
	c.Message = fmt.Sprintf("%d of %d announcements are made", done, all)
	switch {
	case len(nowhere) > 0:
		c.Reason = v1.ReasonNotAnnounced
		for _, n := range nowhere[:min(len(nowhere), most)] {
			c.Message += "; " + n
		}
	case done == all:
		c.Status, c.Reason = metav1.ConditionTrue, v1.ReasonAnnounced
	}
	for _, w := range waiting[:min(len(waiting), most)] {
		c.Message += "; " + w
	}
	if len(waiting) > most {
		c.Message += fmt.Sprintf("; and %d more", len(waiting)-most)
	}
	return c
}

// Services lists the Services that an Announcement is about, as namespace/name.
func Services(a *v1.Announcement) []string { return servicesOf(a.Spec.Addresses) }

func servicesOf(entries []v1.AnnouncedAddress) []string {
	var keys []string
	for i := range entries {
		keys = append(keys, entries[i].Services...)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// Changed lists the Services, as namespace/name, for which something differs
// between two versions of an Announcement.
func Changed(before, after *v1.Announcement) []string {
	type place struct {
		spec   v1.AnnouncedAddress
		status v1.AddressStatus
	}
	read := func(a *v1.Announcement) map[string]place {
		places := map[string]place{}
		for _, spec := range a.Spec.Addresses {
			places[spec.Address] = place{spec: spec}
		}
		for _, s := range a.Status.Addresses {
			p := places[s.Address]
			p.status = s
			places[s.Address] = p
		}
		return places
	}
	var keys []string
	was, is := read(before), read(after)
	for address, p := range was {
		if now := is[address]; !equality.Semantic.DeepEqual(p.spec, now.spec) || !equality.Semantic.DeepEqual(p.status, now.status) {
			keys = append(append(keys, p.spec.Services...), now.spec.Services...)
		}
	}
	for address, p := range is {
		if _, had := was[address]; !had {
			keys = append(keys, p.spec.Services...)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// Realised lists the addresses that an Announcement's agent has newly announced
// between two versions of it.
func Realised(before, after *v1.Announcement) []v1.AnnouncedAddress {
	return reached(before, after, func(s *v1.AddressStatus) bool { return s.State == v1.StateAnnounced })
}

// Conflicting lists the addresses that have newly met a conflict: another device
// answers for them, or claims them.
func Conflicting(before, after *v1.Announcement) []v1.AnnouncedAddress {
	return reached(before, after, conflicts)
}

func conflicts(s *v1.AddressStatus) bool {
	return s.State == v1.StateConflict || s.State == v1.StateAnnounced && s.MAC != ""
}

// ConflictNote says what a node has met. owner is the node whose device it is, or
// empty.
func ConflictNote(node string, s *v1.AddressStatus, owner string) string {
	device := s.MAC
	if owner != "" {
		device += ", which is node " + owner + "'s (kube-proxy in IPVS mode without strictARP answers for every address),"
	}
	if s.State == v1.StateAnnounced {
		return fmt.Sprintf("Node %s announces %s, but %s claims it, too", node, s.Address, device)
	}
	return fmt.Sprintf("Node %s cannot announce %s: %s answers for it", node, s.Address, device)
}

func reached(before, after *v1.Announcement, state func(*v1.AddressStatus) bool) []v1.AnnouncedAddress {
	var out []v1.AnnouncedAddress
	for _, spec := range after.Spec.Addresses {
		now, was := StatusOf(after, spec.Address), StatusOf(before, spec.Address)
		if now != nil && state(now) && (was == nil || !state(was) || was.Epoch != now.Epoch) {
			out = append(out, spec)
		}
	}
	return out
}
