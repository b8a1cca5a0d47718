package routes

import (
	"fmt"
	"net/netip"
	"slices"

	"go4.org/netipx"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// GracefulShutdownCommunity is the community by which a node asks its neighbours to prefer other nodes
// (RFC 8326).
const GracefulShutdownCommunity = 65535 << 16

// LargeCommunity has the three numbers of RFC 8092.
type LargeCommunity [3]uint32

// Path is one route with its attributes.
type Path struct {
	Prefix           netip.Prefix
	Communities      []uint32
	LargeCommunities []LargeCommunity
	LocalPref, MED   *uint32
}

// Rule is what a neighbour gets of some routes.
type Rule struct {
	// Prefixes are the routes; none is all of the family.
	Prefixes []netip.Prefix
	// Neighbours are whom the rule is for; never empty.
	Neighbours []netip.Addr
	// Reject keeps the routes from these neighbours.
	Reject bool
	// Prepend is how many times to prepend ASN.
	Prepend, ASN uint32
	// NextHop is set on the routes of its family, if it is valid.
	NextHop netip.Addr
}

// Peer is one neighbour.
type Peer struct {
	purelbv1.RoutingPeer
	// Neighbour is the address, with its zone if it is link-local.
	Neighbour netip.Addr
	Password  string
	// SetsRestartState is that the neighbour is to hear that the speaker has restarted.
	SetsRestartState bool
}

// Config is what the BGP library is to hold, or holds.
type Config struct {
	// Networks are the node's, to which Paths lead as far as the ServiceGroups want that.
	Networks []Network
	Paths    []Path
	Rules    []Rule
	Peers    []Peer
	// Waiting are neighbours to which no session can be opened yet, with the reason.
	Waiting []WaitingPeer
}

// WaitingPeer is a neighbour to which no session can be opened yet.
type WaitingPeer struct {
	Peer purelbv1.RoutingPeer
	Why  string
}

// DrainPhase is how far a node is with sending traffic away.
type DrainPhase int

// The phases of a drain, in order.
const (
	// NotDraining advertises as ever.
	NotDraining DrainPhase = iota
	// Avoid advertises with the wish to prefer others.
	Avoid
	// Withdrawn advertises nothing.
	Withdrawn
)

// Inputs is everything that Decide decides from.
type Inputs struct {
	Spec     purelbv1.NodeRoutingSpec
	Networks []Network
	// AddressesOn returns all addresses that an interface has.
	AddressesOn func(iface string) ([]plan.Address, error)
	Drain       DrainPhase
	// Held are the neighbours that the library has.
	Held []Peer
	// Password returns the password in a file, if it is there.
	Password func(file string) (string, bool)
	// RouterAddressOn returns the address of the one router on an interface, or why there is none.
	RouterAddressOn func(iface string) (netip.Addr, error)
	// IsRestart is that an earlier speaker ran since the node booted.
	IsRestart bool
}

// Neighbours are those of a Config.
type Neighbours struct {
	Peers   []Peer
	Waiting []WaitingPeer
}

// Neighbours returns the node's neighbours. It looks up each time what the node can tell of them, as their passwords.
func (in *Inputs) Neighbours() Neighbours {
	var found Neighbours
	for _, p := range in.Spec.Peers {
		peer, why := in.resolvePeer(p)
		if why != "" {
			found.Waiting = append(found.Waiting, WaitingPeer{p, why})
			continue
		}
		if slices.ContainsFunc(found.Peers, func(other Peer) bool { return other.Neighbour == peer.Neighbour }) {
			found.Waiting = append(
				found.Waiting, WaitingPeer{p, fmt.Sprintf("%s is the neighbour of another BGPPeer already", peer.Neighbour)},
			)
			continue
		}
		found.Peers = append(found.Peers, peer)
	}
	return found
}

// Decide returns what the BGP library is to hold for these neighbours.
func Decide(in Inputs, neighbours Neighbours) Config {
	d := Config{
		Networks: without(in.Networks, parseRanges(in.Spec.Ignored)),
		Peers:    neighbours.Peers, Waiting: neighbours.Waiting,
	}
	d.Rules = nextHopRules(d.Peers)
	if in.Drain == Withdrawn {
		return d
	}
	groups := parseGroups(in.Spec.Groups)
	withheld := group{ranges: parseRanges(in.Spec.Withheld)}
	askedByServices := parseServiceCommunities(in.Spec.ServiceCommunities)
	prefixesByGroup := make([][]netip.Prefix, len(groups))
	for _, r := range routesOf(d.Networks, groups) {
		if withheld.contains(r.addr) {
			continue
		}
		bgp := purelbv1.ServiceGroupBGP{}
		if r.group >= 0 {
			bgp = groups[r.group].bgp
			prefixesByGroup[r.group] = append(prefixesByGroup[r.group], r.prefix)
		}
		if bgp.Advertise != nil && !*bgp.Advertise {
			continue
		}
		if r.prefix.IsSingleIP() { // a route to more addresses than one is not that of one Service
			bgp = withServiceCommunities(bgp, askedByServices, r.addr)
		}
		d.Paths = append(d.Paths, pathOf(r.prefix, bgp, in.Drain))
	}
	for i, prefixes := range prefixesByGroup {
		if len(prefixes) > 0 {
			d.Rules = append(d.Rules, groupRules(groups[i].bgp, prefixes, d.Peers)...)
		}
	}
	return d
}

// resolvePeer resolves a neighbour, or says why no session can be opened.
func (in *Inputs) resolvePeer(p purelbv1.RoutingPeer) (Peer, string) {
	peer := Peer{RoutingPeer: p, SetsRestartState: in.IsRestart && p.RestartSeconds > 0}
	if why := in.setNeighbourAddress(&peer); why != "" {
		return peer, why
	}
	if p.PasswordFile != "" {
		var isKnown bool
		if peer.Password, isKnown = in.passwordOf(&peer); !isKnown {
			return peer, "the password is not on the node yet: see passwordSecretRef of the BGPPeer"
		}
	}
	// A neighbour with an IPv6 link-local address is reached from that of its interface.
	if p.SourceInterface != "" && (peer.Neighbour.Is4() || !peer.Neighbour.IsLinkLocalUnicast()) {
		source, err := in.sourceOf(&peer)
		if err != nil {
			return peer, err.Error()
		}
		peer.SourceAddress = source
	}
	return peer, ""
}

// sourceOf returns the address of a neighbour's source interface from which the node reaches the neighbour. While the
// interface has none, or is not there, as while a network daemon sets it up anew, a session that there is keeps the
// address that it was opened from: it ends only if the address stays away.
func (in *Inputs) sourceOf(peer *Peer) (string, error) {
	addresses, err := in.AddressesOn(peer.SourceInterface)
	if err != nil {
		return "", err
	}
	source, err := sourceOn(addresses, peer.SourceInterface, peer.Neighbour)
	if err == nil {
		return source.String(), nil
	}
	for i := range in.Held {
		if h := &in.Held[i]; h.Neighbour == peer.Neighbour && h.SourceInterface == peer.SourceInterface {
			return h.SourceAddress, nil
		}
	}
	return "", err
}

// passwordOf returns the password in a neighbour's file. While that is not there, as the kubelet brings it later than
// the NodeRouting names it, a session that there is goes on with what it was opened with: the password of the file
// before, or none.
func (in *Inputs) passwordOf(peer *Peer) (password string, isKnown bool) {
	if password, isKnown = in.Password(peer.PasswordFile); isKnown {
		return password, true
	}
	for i := range in.Held {
		if in.Held[i].Neighbour == peer.Neighbour {
			return in.Held[i].Password, true
		}
	}
	return "", false
}

// setNeighbourAddress sets the address of a neighbour, or says why it is not known.
func (in *Inputs) setNeighbourAddress(peer *Peer) string {
	addr, err := netip.ParseAddr(peer.Address)
	if peer.Address == "" {
		addr, err = in.RouterAddressOn(peer.Interface)
	}
	if err != nil {
		return err.Error()
	}
	peer.Neighbour = addr.WithZone(peer.Interface)
	return ""
}

func pathOf(prefix netip.Prefix, bgp purelbv1.ServiceGroupBGP, drain DrainPhase) Path {
	p := Path{Prefix: prefix}
	for _, text := range bgp.Communities {
		if c, ok := text.Number(); ok {
			p.Communities = append(p.Communities, c)
		}
	}
	for _, text := range bgp.LargeCommunities {
		if c, ok := text.Numbers(); ok {
			p.LargeCommunities = append(p.LargeCommunities, c)
		}
	}
	if bgp.LocalPref != nil {
		p.LocalPref = new(uint32(*bgp.LocalPref)) //nolint:gosec // the schema bounds it
	}
	if bgp.MED != nil {
		p.MED = new(uint32(*bgp.MED)) //nolint:gosec // the schema bounds it
	}
	if drain == Avoid {
		// Internal neighbours see the preference, external ones the community.
		p.LocalPref = new(uint32)
		p.Communities = append(p.Communities, GracefulShutdownCommunity)
	}
	slices.Sort(p.Communities)
	slices.SortFunc(p.LargeCommunities, func(a, b LargeCommunity) int { return slices.Compare(a[:], b[:]) })
	p.Communities, p.LargeCommunities = slices.Compact(p.Communities), slices.Compact(p.LargeCommunities)
	return p
}

// ownRoute is a route that the node may advertise, as the group with that index says of addr; -1 is none.
type ownRoute struct {
	prefix netip.Prefix
	addr   netip.Addr
	group  int
}

// routesOf returns the route of each network, which has the attributes of its lowest address and, of the
// addresses whose groups want that, the routes of single addresses.
func routesOf(networks []Network, groups []group) []ownRoute {
	groupOf := func(a netip.Addr) int {
		return slices.IndexFunc(groups, func(g group) bool { return g.contains(a) })
	}
	var found []ownRoute
	for _, n := range networks {
		lowest := n.Addresses[0]
		found = append(found, ownRoute{n.Prefix, lowest, groupOf(lowest)})
		if n.Prefix.IsSingleIP() {
			continue
		}
		for _, a := range n.Addresses {
			if i := groupOf(a); i >= 0 && groups[i].hostRoutes {
				found = append(found, ownRoute{netip.PrefixFrom(a, a.BitLen()), a, i})
			}
		}
	}
	return found
}

// group is a parsed RoutingGroup.
type group struct {
	ranges     []netipx.IPRange
	bgp        purelbv1.ServiceGroupBGP
	hostRoutes bool
}

func (g *group) contains(a netip.Addr) bool {
	return slices.ContainsFunc(g.ranges, func(r netipx.IPRange) bool { return r.Contains(a) })
}

func parseGroups(groups []purelbv1.RoutingGroup) []group {
	parsed := make([]group, len(groups))
	for i, g := range groups {
		parsed[i] = group{parseRanges(g.Ranges), g.ServiceGroupBGP, g.HostRoutes}
	}
	return parsed
}

// serviceCommunities are parsed ServiceCommunities.
type serviceCommunities struct {
	addresses   *netipx.IPSet
	communities purelbv1.RouteCommunities
}

func parseServiceCommunities(entries []purelbv1.ServiceCommunities) []serviceCommunities {
	var parsed []serviceCommunities
	for _, e := range entries {
		b := netipx.IPSetBuilder{}
		for _, text := range e.Addresses {
			if addr, err := netip.ParseAddr(text); err == nil {
				b.Add(addr)
			} else if r, err := netipx.ParseIPRange(text); err == nil {
				b.AddRange(r)
			}
		}
		if addresses, err := b.IPSet(); err == nil {
			parsed = append(parsed, serviceCommunities{addresses, e.RouteCommunities})
		}
	}
	return parsed
}

// withServiceCommunities adds to what the group of an address says the communities that its Service asks for.
func withServiceCommunities(
	bgp purelbv1.ServiceGroupBGP, all []serviceCommunities, addr netip.Addr,
) purelbv1.ServiceGroupBGP {
	for _, of := range all {
		if of.addresses.Contains(addr) {
			bgp.Communities = slices.Concat(bgp.Communities, of.communities.Communities)
			bgp.LargeCommunities = slices.Concat(bgp.LargeCommunities, of.communities.LargeCommunities)
		}
	}
	return bgp
}

func parseRanges(texts []string) []netipx.IPRange {
	var ranges []netipx.IPRange
	for _, text := range texts {
		if r, err := netipx.ParseIPRange(text); err == nil {
			ranges = append(ranges, r)
		} else if p, err := netip.ParsePrefix(text); err == nil {
			ranges = append(ranges, netipx.RangeOfPrefix(p))
		}
	}
	return ranges
}

// nextHopRules set the next hop where a session carries the family that is not its own.
func nextHopRules(peers []Peer) []Rule {
	var rules []Rule
	for _, p := range peers {
		if hop, err := netip.ParseAddr(p.NextHop); err == nil {
			rules = append(rules, Rule{Neighbours: []netip.Addr{p.Neighbour}, NextHop: hop})
		}
	}
	return rules
}

// groupRules keep the routes of a group from the neighbours that it does not name, and prepend
// towards external ones.
func groupRules(bgp purelbv1.ServiceGroupBGP, prefixes []netip.Prefix, peers []Peer) []Rule {
	reject := Rule{Prefixes: prefixes, Reject: true}
	var rules []Rule
	for _, p := range peers {
		if len(bgp.Peers) > 0 && !slices.Contains(bgp.Peers, p.Name) {
			reject.Neighbours = append(reject.Neighbours, p.Neighbour)
			continue
		}
		if bgp.Prepend == 0 || p.PeerASN == p.MyASN {
			continue
		}
		asn := uint32(p.MyASN) //nolint:gosec // the schema bounds it
		i := slices.IndexFunc(rules, func(r Rule) bool { return r.ASN == asn })
		if i < 0 {
			i = len(rules)
			prepend := uint32(bgp.Prepend) //nolint:gosec // the schema bounds it
			rules = append(rules, Rule{Prefixes: prefixes, ASN: asn, Prepend: prepend})
		}
		rules[i].Neighbours = append(rules[i].Neighbours, p.Neighbour)
	}
	if len(reject.Neighbours) > 0 {
		rules = slices.Insert(rules, 0, reject)
	}
	return rules
}
