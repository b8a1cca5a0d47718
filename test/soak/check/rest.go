// Package check judges what a soak observes. Rest looks at the whole cluster when nothing
// disturbs it; Watch looks at single addresses all the time. Both are pure: they get times
// and observations as arguments, so their tests plant each kind of violation.
package check

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// Snapshot is the cluster at rest.
type Snapshot struct {
	Nodes         []Node
	Services      []Service
	Groups        []Group
	Announcements []v1.Announcement
	Commons       []v1.CommonAnnouncement
	// Watched says that nodes are to watch the holders of Local addresses.
	Watched bool
	// Wanted are the names of all Services that users have created and not deleted.
	Wanted []string
	// Asked are the answers to HTTP requests, by address and then by the host that asked:
	// empty if the answer was good, else what was wrong.
	Asked map[netip.AddrPort]map[string]string
}

// Node is a node of the cluster.
type Node struct {
	Name string
	// Refusing says that the node may hold no address that another node can hold: it is
	// excluded or out of service.
	Refusing bool
	// HasEndpoint says that a ready pod of the Services runs there.
	HasEndpoint bool
	// Held are the addresses that its kernel has and that are not its own.
	Held []Held
}

// Held is an address on an interface.
type Held struct {
	Link   string
	Prefix netip.Prefix
}

// Service is a Service as the API server has it.
type Service struct {
	Name string
	// IsBalancer says that the type is LoadBalancer.
	IsBalancer bool
	Port       uint16
	// Families are the families that it must have: IPv4, IPv6.
	Families []string
	// PolicyLocal says that only nodes with endpoints serve it.
	PolicyLocal bool
	ShareKey    string
	Ingress     []netip.Addr
	// Branded says that it has an annotation that only the manager writes.
	Branded bool
	// Allocated and Announced are its conditions.
	Allocated, Announced Condition
}

// Condition is a condition; empty if there is none.
type Condition struct{ Status, Reason, Message string }

// Group is a ServiceGroup.
type Group struct {
	Name string
	// Ranges are first and last addresses.
	Ranges []Range
	// AllocatedIPv4 and AllocatedIPv6 are as its status counts.
	AllocatedIPv4, AllocatedIPv6 int64
	Ready                        bool
}

// Range is from First to Last.
type Range struct{ First, Last netip.Addr }

func (r Range) has(a netip.Addr) bool { return r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0 }

func (g Group) has(a netip.Addr) bool {
	return slices.ContainsFunc(g.Ranges, func(r Range) bool { return r.has(a) })
}

// Rest returns what is wrong with a cluster at rest, a line for each violation.
func Rest(s Snapshot) []string {
	r := &rest{Snapshot: s, users: map[netip.Addr][]Service{}}
	for _, svc := range s.Services {
		for _, a := range svc.Ingress {
			r.users[a] = append(r.users[a], svc)
		}
	}
	r.checkPresence()
	for _, svc := range s.Services {
		r.checkService(svc)
	}
	r.checkSharing()
	r.checkAnnouncements()
	r.checkKernels()
	r.checkPlaces()
	r.checkWatchers()
	r.checkCounts()
	return r.found
}

type rest struct {
	Snapshot
	users map[netip.Addr][]Service // by address
	found []string
}

func (r *rest) report(format string, args ...any) {
	r.found = append(r.found, fmt.Sprintf(format, args...))
}

// checkPresence compares the Services with those that users want.
func (r *rest) checkPresence() {
	var have []string
	for _, svc := range r.Services {
		have = append(have, svc.Name)
		if !slices.Contains(r.Wanted, svc.Name) {
			r.report("Service %s was deleted and is still there", svc.Name)
		}
	}
	for _, name := range r.Wanted {
		if !slices.Contains(have, name) {
			r.report("Service %s is gone", name)
		}
	}
}

// waitReasons are the reasons for which a Service may be without an address.
var waitReasons = []string{
	v1.ReasonExhausted, v1.ReasonAddressInUse, v1.ReasonAddressOutsidePools, v1.ReasonPortConflict,
	v1.ReasonSharingRefused, v1.ReasonGroupNotReady,
}

func (r *rest) checkService(svc Service) {
	if !svc.IsBalancer {
		if len(svc.Ingress) > 0 || svc.Branded {
			r.report("Service %s is no LoadBalancer and still has addresses %v or marks", svc.Name, svc.Ingress)
		}
		return
	}
	complete := true
	for _, family := range svc.Families {
		if !slices.ContainsFunc(svc.Ingress, func(a netip.Addr) bool { return familyOf(a) == family }) {
			complete = false
		}
	}
	switch {
	case svc.Allocated.Status == "":
		r.report("Service %s is forgotten: it has no condition %s", svc.Name, v1.ConditionAllocated)
		return
	case svc.Allocated.Status == "True" && !complete:
		r.report("Service %s says Allocated, wants %v and has %v", svc.Name, svc.Families, svc.Ingress)
	case svc.Allocated.Status != "True" &&
		(!slices.Contains(waitReasons, svc.Allocated.Reason) || svc.Allocated.Message == ""):
		r.report("Service %s waits for no good reason: %+v", svc.Name, svc.Allocated)
	case svc.Allocated.Reason == v1.ReasonExhausted:
		r.checkExhausted(svc)
	}
	if len(svc.Ingress) == 0 {
		return
	}
	able := r.nodesAbleFor(svc)
	switch {
	case svc.Announced.Status == "True":
		r.checkAnswers(svc)
	case len(able) == 0 && slices.Contains([]string{"False", "Unknown"}, svc.Announced.Status) &&
		svc.Announced.Message != "":
	default:
		r.report("Service %s has %v and is not announced, though %v could: %+v", svc.Name, svc.Ingress, able, svc.Announced)
	}
}

// checkExhausted checks that the group of a Service that waits for an address has none.
func (r *rest) checkExhausted(svc Service) {
	for _, g := range r.Groups {
		if !strings.Contains(svc.Allocated.Message, g.Name) {
			continue
		}
		for _, family := range svc.Families {
			if slices.ContainsFunc(svc.Ingress, func(a netip.Addr) bool { return familyOf(a) == family }) {
				continue
			}
			if free, found := r.freeIn(g, family); !found {
				return
			} else if free.IsValid() {
				continue
			}
			return // this family is exhausted, and that is the reason
		}
		r.report("Service %s says that %s is exhausted, and it is not: %s", svc.Name, g.Name, svc.Allocated.Message)
	}
}

// freeIn returns an address of a family that no Service has, if the group has the family.
func (r *rest) freeIn(g Group, family string) (free netip.Addr, found bool) {
	for _, pool := range g.Ranges {
		if familyOf(pool.First) != family {
			continue
		}
		found = true
		for a := pool.First; pool.has(a); a = a.Next() {
			if len(r.users[a]) == 0 {
				return a, true
			}
		}
	}
	return netip.Addr{}, found
}

// nodesAbleFor returns the nodes that can announce a Service.
func (r *rest) nodesAbleFor(svc Service) []string {
	var able []string
	for _, n := range r.Nodes {
		if !n.Refusing && (!svc.PolicyLocal || n.HasEndpoint) {
			able = append(able, n.Name)
		}
	}
	return able
}

// checkAnswers checks that clients got answers.
func (r *rest) checkAnswers(svc Service) {
	for _, a := range svc.Ingress {
		for host, wrong := range r.Asked[netip.AddrPortFrom(a, svc.Port)] {
			if wrong != "" {
				r.report("Service %s at %s does not answer %s: %s", svc.Name, a, host, wrong)
			}
		}
	}
}

func (r *rest) checkSharing() {
	for a, users := range r.users {
		ports := map[uint16]string{}
		for _, svc := range users {
			if len(users) > 1 && (svc.ShareKey == "" || svc.ShareKey != users[0].ShareKey) && svc.Allocated.Status == "True" {
				r.report(
					"address %s is of %s, which shares with none by its key %q, and of %d others", a, svc.Name, svc.ShareKey,
					len(users)-1,
				)
			}
			if other := ports[svc.Port]; other != "" && svc.Allocated.Status == "True" {
				r.report("address %s, port %d is of %s and of %s", a, svc.Port, other, svc.Name)
			}
			ports[svc.Port] = svc.Name
		}
	}
}

// wanted returns what a node is to have, by address, as its Announcements say.
func (r *rest) wanted(node string) map[netip.Addr]v1.AnnouncedAddress {
	all := map[netip.Addr]v1.AnnouncedAddress{}
	add := func(entries []v1.AnnouncedAddress) {
		for _, e := range entries {
			if a, err := netip.ParseAddr(e.Address); err == nil {
				all[a] = e
			}
		}
	}
	for _, ann := range r.Announcements {
		if ann.Spec.NodeName != node {
			continue
		}
		add(ann.Spec.Addresses)
		if !ann.Spec.IncludeCommonAnnouncements {
			continue
		}
		for _, c := range r.Commons {
			if c.Spec.LBNodeAgent == ann.Spec.LBNodeAgent {
				add(c.Spec.Addresses)
			}
		}
	}
	return all
}

// checkAnnouncements checks that agents report what is asked of them.
func (r *rest) checkAnnouncements() {
	for _, ann := range r.Announcements {
		if ann.Status.ObservedGeneration != ann.Generation {
			r.report(
				"Announcement %s: generation %d, and its agent has seen %d", ann.Name, ann.Generation,
				ann.Status.ObservedGeneration,
			)
		}
		if ann.Status.Announced != ann.Status.Desired {
			r.report("Announcement %s: %d of %d are announced", ann.Name, ann.Status.Announced, ann.Status.Desired)
		}
		for _, c := range ann.Status.Conditions {
			if c.Type == v1.ConditionReady && c.Status != "True" {
				r.report("Announcement %s is not Ready: %s", ann.Name, c.Message)
			}
		}
		for _, e := range ann.Spec.Addresses {
			if e.HandingOver {
				r.report("Announcement %s: %s is still being handed over", ann.Name, e.Address)
			}
			i := slices.IndexFunc(ann.Status.Addresses, func(st v1.AddressStatus) bool { return st.Address == e.Address })
			if i < 0 || ann.Status.Addresses[i].State != v1.StateAnnounced || ann.Status.Addresses[i].Epoch != e.Epoch {
				r.report("Announcement %s: %s is to be announced with epoch %d, and is not", ann.Name, e.Address, e.Epoch)
			}
		}
		for _, st := range ann.Status.Addresses {
			if !slices.ContainsFunc(ann.Spec.Addresses, func(e v1.AnnouncedAddress) bool { return e.Address == st.Address }) {
				r.report("Announcement %s: status has %s, which is not in spec", ann.Name, st.Address)
			}
		}
	}
}

// checkKernels checks that kernels have what the Announcements say, and nothing else.
func (r *rest) checkKernels() {
	for _, n := range r.Nodes {
		wanted := r.wanted(n.Name)
		have := map[netip.Addr]bool{}
		for _, h := range n.Held {
			e, ok := wanted[h.Prefix.Addr()]
			switch {
			case !ok:
				r.report("%s has %s on %s, left over", n.Name, h.Prefix, h.Link)
			case e.Interface != "" && string(e.Interface) != h.Link || int(e.PrefixLength) != h.Prefix.Bits():
				r.report(
					"%s has %s on %s, and is to have %s/%d on %s", n.Name, h.Prefix, h.Link, e.Address, e.PrefixLength, e.Interface,
				)
			}
			if have[h.Prefix.Addr()] {
				r.report("%s has %s twice", n.Name, h.Prefix.Addr())
			}
			have[h.Prefix.Addr()] = true
		}
		for a := range wanted {
			if !have[a] {
				r.report("%s is to have %s, and has not", n.Name, a)
			}
		}
	}
}

// checkPlaces checks that addresses are where they belong: a Local one on one node, a
// Virtual one on all that can serve it, and none that no Service has.
func (r *rest) checkPlaces() {
	places := map[netip.Addr][]string{}
	local := map[netip.Addr]bool{}
	for _, n := range r.Nodes {
		for a, e := range r.wanted(n.Name) {
			places[a] = append(places[a], n.Name)
			local[a] = local[a] || e.Type == v1.AnnounceLocal
			if len(r.users[a]) == 0 {
				r.report("%s is to announce %s, which no Service has", n.Name, a)
			}
			if n.Refusing && e.Type == v1.AnnounceLocal &&
				slices.ContainsFunc(r.Nodes, func(o Node) bool { return !o.Refusing && (o.HasEndpoint || !r.isPolicyLocal(a)) }) {
				r.report("%s is to announce %s, and is excluded or out of service", n.Name, a)
			}
		}
	}
	for a, users := range r.users {
		at := places[a]
		if local[a] && len(at) > 1 {
			r.report("Local address %s is on %v", a, at)
		}
		if local[a] || r.isPolicyLocal(a) {
			continue
		}
		for _, node := range r.nodesAbleFor(users[0]) {
			if !slices.Contains(at, node) && len(at) > 0 {
				r.report("Virtual address %s is not on %s", a, node)
			}
		}
	}
}

// watch is that a node watches another one because of an address.
type watch struct{ watcher, holder, address string }

// reservation is by which epoch a holder has an address, and which one is reserved for a successor.
type reservation struct{ held, reserved int64 }

// checkWatchers checks that another node follows each holder of a Local address if one could, and that nodes know
// whom they follow.
func (r *rest) checkWatchers() {
	if !r.Watched {
		return
	}
	known := map[watch]reservation{}
	for i := range r.Announcements {
		ann := &r.Announcements[i]
		if ann.Spec.Standby == nil {
			continue
		}
		for _, a := range ann.Spec.Standby.Addresses {
			known[watch{ann.Spec.NodeName, ann.Spec.Standby.Watched.NodeName, a.Address}] =
				reservation{a.Epoch, v1.ReservedEpochOf(a.Successors, ann.Spec.NodeName)}
		}
	}
	for i := range r.Announcements {
		holder := r.Announcements[i].Spec.NodeName
		for _, e := range r.Announcements[i].Spec.Addresses {
			if e.Type != v1.AnnounceLocal {
				continue
			}
			for _, s := range e.Successors {
				key := watch{s.NodeName, holder, e.Address}
				if known[key] != (reservation{e.Epoch, s.Epoch}) {
					r.report("%s is to follow %s as the holder of %s, and is not told so", s.NodeName, holder, e.Address)
				}
				delete(known, key)
			}
			if others := r.othersAbleFor(e.Address, holder); len(e.Successors) == 0 && len(others) > 0 {
				r.report("no node follows %s as the holder of %s, though %v could", holder, e.Address, others)
			}
		}
	}
	for key := range known {
		r.report("%s watches %s because of %s, and is not to follow it", key.watcher, key.holder, key.address)
	}
}

// othersAbleFor returns the nodes that can announce all Services of an address, without its holder.
func (r *rest) othersAbleFor(address, holder string) []string {
	var able []string
	for _, n := range r.Nodes {
		if n.Name != holder {
			able = append(able, n.Name)
		}
	}
	for _, svc := range r.Services {
		if slices.ContainsFunc(svc.Ingress, func(a netip.Addr) bool { return a.String() == address }) {
			could := r.nodesAbleFor(svc)
			able = slices.DeleteFunc(able, func(n string) bool { return !slices.Contains(could, n) })
		}
	}
	return able
}

func (r *rest) isPolicyLocal(a netip.Addr) bool {
	return slices.ContainsFunc(r.users[a], func(s Service) bool { return s.PolicyLocal })
}

// checkCounts checks what ServiceGroups count.
func (r *rest) checkCounts() {
	for _, g := range r.Groups {
		if !g.Ready {
			r.report("ServiceGroup %s is not Ready", g.Name)
			continue
		}
		counts := map[string]int64{}
		for a := range r.users {
			if g.has(a) {
				counts[familyOf(a)]++
			}
		}
		if counts["IPv4"] != g.AllocatedIPv4 || counts["IPv6"] != g.AllocatedIPv6 {
			r.report(
				"ServiceGroup %s counts %d and %d addresses, and Services have %d and %d", g.Name, g.AllocatedIPv4, g.AllocatedIPv6,
				counts["IPv4"], counts["IPv6"],
			)
		}
	}
}

func familyOf(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}
