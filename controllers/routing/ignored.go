package routing

import (
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

// withdrawTimeout is how long an agent may take to withdraw an address, and to report that.
const withdrawTimeout = 3 * time.Second

// LingeringAddress is an address that a node reports as announced, and is not to announce any more.
type LingeringAddress struct {
	Node string
	Addr netip.Addr
}

// IgnoredRanges is which Virtual addresses speakers are to ignore that their nodes still have.
type IgnoredRanges struct {
	// ByNode are ranges, first-last, at most v1.MaxIgnoredRanges for each node.
	ByNode map[string][]string
	// LingeringSince is since when addresses linger on nodes, and Wait in how long to look at them again; 0 is never.
	LingeringSince map[LingeringAddress]time.Time
	Wait           time.Duration
}

// IgnoredAddresses decides what speakers do in place of agents that are dead or stuck: they take back the routes to
// addresses that their nodes were to withdraw withdrawTimeout ago, as when the last endpoint of a Service with policy
// Local has left. Such an address is ignored only while another node announces it that stays: else its route may be the
// last one that leads anywhere. So a speaker does no more than an agent that works, and less where that could harm.
// lingeringSince is what was returned before.
func IgnoredAddresses(
	nodes []Node, announcements []v1.Announcement, commons []v1.CommonAnnouncement,
	lingeringSince map[LingeringAddress]time.Time, now time.Time,
) IgnoredRanges {
	left := lingeringAddresses(announcements, commons)
	if len(left) == 0 {
		return IgnoredRanges{}
	}
	out := IgnoredRanges{
		ByNode: map[string][]string{}, LingeringSince: map[LingeringAddress]time.Time{}, Wait: withdrawTimeout,
	}
	announced := announcedOnStaying(nodes, announcements)
	sets := map[string]*netipx.IPSetBuilder{}
	for _, l := range left {
		since, isKnown := lingeringSince[l]
		if !isKnown {
			since = now
		}
		out.LingeringSince[l] = since
		if rest := withdrawTimeout - now.Sub(since); rest > 0 {
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
		desired := addressesOf(a.Spec.Addresses, v1.AnnounceVirtual)
		for addr := range reportedAddresses(a) {
			announced[addr] = announced[addr] || desired[addr]
		}
	}
	return announced
}

// lingeringAddresses returns the addresses that nodes report as announced, and are not to announce any more.
func lingeringAddresses(announcements []v1.Announcement, commons []v1.CommonAnnouncement) []LingeringAddress {
	var left []LingeringAddress
	nodes := map[string]bool{}
	for i := range announcements {
		a := &announcements[i]
		desired := addressesOf(a.Spec.Addresses)
		for addr := range reportedAddresses(a) {
			if !desired[addr] {
				left, nodes[a.Spec.NodeName] = append(left, LingeringAddress{a.Spec.NodeName, addr}), true
			}
		}
	}
	isDesired := map[LingeringAddress]bool{}
	for i := range announcements {
		spec := &announcements[i].Spec
		if !nodes[spec.NodeName] {
			continue
		}
		for addr := range addressesOf(spec.Addresses) {
			isDesired[LingeringAddress{spec.NodeName, addr}] = true
		}
		for j := range commons {
			if common := &commons[j].Spec; spec.IncludeCommonAnnouncements && common.LBNodeAgent == spec.LBNodeAgent {
				for addr := range addressesOf(common.Addresses) {
					isDesired[LingeringAddress{spec.NodeName, addr}] = true
				}
			}
		}
	}
	return slices.DeleteFunc(left, func(l LingeringAddress) bool { return isDesired[l] })
}

// addressesOf returns the addresses of entries of these types, or of any.
func addressesOf(entries []v1.AnnouncedAddress, types ...v1.AnnounceType) map[netip.Addr]bool {
	addrs := map[netip.Addr]bool{}
	for i := range entries {
		addr, err := netip.ParseAddr(entries[i].Address)
		if err == nil && (len(types) == 0 || slices.Contains(types, entries[i].Type)) {
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
