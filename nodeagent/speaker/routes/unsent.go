package routes

import (
	"maps"
	"net/netip"
	"slices"

	"go4.org/netipx"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

// maxUnsentRanges bounds the ranges of one family that a session reports as not sent.
const maxUnsentRanges = purelbv1.MaxUnsentRanges / 2

// wantedAddress is an address of the node that is to be advertised to the neighbours of some BGPPeers, onlyPeers; none
// is all.
type wantedAddress struct {
	netip.Addr
	onlyPeers []string
}

// wantedAddresses lists the addresses of the node's networks that it is to advertise to anybody, ascending.
func wantedAddresses(spec *purelbv1.NodeRoutingSpec, networks []Network) []wantedAddress {
	groups, withheld := parseGroups(spec.Groups), group{ranges: parseRanges(spec.Withheld)}
	var wanted []wantedAddress
	for _, n := range networks {
		for _, a := range n.Addresses {
			bgp := purelbv1.ServiceGroupBGP{}
			if i := slices.IndexFunc(groups, func(g group) bool { return g.contains(a) }); i >= 0 {
				bgp = groups[i].bgp
			}
			if !withheld.contains(a) && (bgp.Advertise == nil || *bgp.Advertise) {
				wanted = append(wanted, wantedAddress{a, bgp.Peers})
			}
		}
	}
	slices.SortFunc(wanted, func(x, y wantedAddress) int { return x.Compare(y.Addr) })
	return wanted
}

// unsentRanges returns the addresses, as ranges first-last, that the node is to advertise to the neighbour of a BGPPeer
// in a session that is up, and to which no route leads that was sent in it. Addresses that follow each other among
// those of the node are one range. If there are too many ranges of a family, the last one goes up to the last such
// address, and may hold addresses that were sent.
func unsentRanges(peer string, s *Session, wanted []wantedAddress, isHeld map[netip.Prefix]bool) []string {
	if s.State != purelbv1.SessionEstablished {
		return nil
	}
	hasSent := sentTest(s, isHeld)
	var texts []string
	for _, family := range s.Families {
		var ranges []netipx.IPRange
		follows := false
		for _, a := range wanted {
			switch isToBeSent := len(a.onlyPeers) == 0 || slices.Contains(a.onlyPeers, peer); {
			case !isToBeSent || purelbv1.FamilyOf(a.Addr) != family:
			case hasSent(a.Addr):
				follows = false
			case follows || len(ranges) == maxUnsentRanges:
				last := &ranges[len(ranges)-1]
				*last, follows = netipx.IPRangeFrom(last.From(), a.Addr), true
			default:
				ranges, follows = append(ranges, netipx.IPRangeFrom(a.Addr, a.Addr)), true
			}
		}
		texts = append(texts, textlimit.Texts(ranges)...)
	}
	return texts
}

// sentTest returns what tests whether a route was sent in a session that leads to an address, given the routes that are
// held.
func sentTest(s *Session, isHeld map[netip.Prefix]bool) (hasSent func(netip.Addr) bool) {
	isSent, lengths := isHeld, map[int]bool{}
	if len(s.Unsent) > 0 {
		isSent = maps.Clone(isHeld)
		for _, p := range s.Unsent {
			delete(isSent, p)
		}
	}
	for p := range isSent {
		lengths[p.Bits()] = true
	}
	return func(a netip.Addr) bool {
		for bits := range lengths {
			if p, err := a.Prefix(bits); err == nil && isSent[p] {
				return true
			}
		}
		return false
	}
}
