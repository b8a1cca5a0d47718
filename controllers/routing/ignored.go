package routing

import (
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

// withdrawWithin is how long an agent may take to withdraw an address, and to report that.
const withdrawWithin = 3 * time.Second

// LeftAddress is an address that a node reports as announced, and is not to announce any more.
type LeftAddress struct {
	Node string
	Addr netip.Addr
}

// Ignored is which Virtual addresses speakers are to ignore that their nodes still have.
type Ignored struct {
	// ByNode are ranges, first-last, at most v1.MaxIgnoredRanges for each node.
	ByNode map[string][]string
	// LeftSince is since when addresses are left on nodes, and Wait in how long to look at them again; 0 is never.
	LeftSince map[LeftAddress]time.Time
	Wait      time.Duration
}

// IgnoredAddresses decides what speakers do in place of agents that are dead or stuck: they take back the routes to
// addresses that their nodes were to withdraw withdrawWithin ago, as when the last endpoint of a Service with policy
// Local has left. Such an address is ignored only while another node announces it that stays: else its route may be the
// last one that leads anywhere. So a speaker does no more than an agent that works, and less where that could harm.
// leftSince is what was returned before.
func IgnoredAddresses(
	nodes []Node, announcements []v1.Announcement, commons []v1.CommonAnnouncement,
	leftSince map[LeftAddress]time.Time, now time.Time,
) Ignored {
	left := leftAddresses(announcements, commons)
	if len(left) == 0 {
		return Ignored{}
	}
	out := Ignored{ByNode: map[string][]string{}, LeftSince: map[LeftAddress]time.Time{}, Wait: withdrawWithin}
	announced := announcedOnStaying(nodes, announcements)
	sets := map[string]*netipx.IPSetBuilder{}
	for _, l := range left {
		since, isKnown := leftSince[l]
		if !isKnown {
			since = now
		}
		out.LeftSince[l] = since
		if rest := withdrawWithin - now.Sub(since); rest > 0 {
			out.Wait = min(out.Wait, rest)
			continue
		}
		if announced[l.Addr] {
			if sets[l.Node] == nil {
				sets[l.Node] = &netipx.IPSetBuilder{}
			}
			sets[l.Node].Add(l.Addr)
		}
	}
	for node, b := range sets {
		ranges := buildSet(b).Ranges()
		out.ByNode[node] = textlimit.Texts(ranges[:min(len(ranges), v1.MaxIgnoredRanges)])
	}
	return out
}

// announcedOnStaying returns the Virtual addresses that nodes which stay are to announce, and report.
func announcedOnStaying(nodes []Node, announcements []v1.Announcement) map[netip.Addr]bool {
	isStaying := map[string]bool{}
	for i := range nodes {
		isStaying[nodes[i].Name] = nodes[i].IsStaying
	}
	announced := map[netip.Addr]bool{}
	for i := range announcements {
		a := &announcements[i]
		if !isStaying[a.Spec.NodeName] {
			continue
		}
		desired := virtualAddressesOf(a.Spec.Addresses)
		for addr := range reportedAddresses(a) {
			announced[addr] = announced[addr] || desired[addr]
		}
	}
	return announced
}

// leftAddresses returns the addresses that nodes report as announced, and are not to announce any more.
func leftAddresses(announcements []v1.Announcement, commons []v1.CommonAnnouncement) []LeftAddress {
	var left []LeftAddress
	nodes := map[string]bool{}
	for i := range announcements {
		a := &announcements[i]
		desired := virtualAddressesOf(a.Spec.Addresses)
		for addr := range reportedAddresses(a) {
			if !desired[addr] {
				left, nodes[a.Spec.NodeName] = append(left, LeftAddress{a.Spec.NodeName, addr}), true
			}
		}
	}
	isDesired := map[LeftAddress]bool{}
	for i := range announcements {
		spec := &announcements[i].Spec
		if !nodes[spec.NodeName] {
			continue
		}
		for addr := range virtualAddressesOf(spec.Addresses) {
			isDesired[LeftAddress{spec.NodeName, addr}] = true
		}
		for j := range commons {
			if common := &commons[j].Spec; spec.IncludeCommonAnnouncements && common.LBNodeAgent == spec.LBNodeAgent {
				for addr := range virtualAddressesOf(common.Addresses) {
					isDesired[LeftAddress{spec.NodeName, addr}] = true
				}
			}
		}
	}
	return slices.DeleteFunc(left, func(l LeftAddress) bool { return isDesired[l] })
}

// virtualAddressesOf returns the Virtual addresses of entries.
func virtualAddressesOf(entries []v1.AnnouncedAddress) map[netip.Addr]bool {
	addrs := map[netip.Addr]bool{}
	for i := range entries {
		if addr, err := netip.ParseAddr(entries[i].Address); err == nil && entries[i].Type == v1.AnnounceVirtual {
			addrs[addr] = true
		}
	}
	return addrs
}

// reportedAddresses returns the addresses that a node has on an interface, as its agent has last reported.
func reportedAddresses(a *v1.Announcement) map[netip.Addr]bool {
	addrs := map[netip.Addr]bool{}
	for i := range a.Status.Addresses {
		s := &a.Status.Addresses[i]
		if addr, err := netip.ParseAddr(s.Address); err == nil && s.State == v1.StateAnnounced {
			addrs[addr] = true
		}
	}
	return addrs
}
