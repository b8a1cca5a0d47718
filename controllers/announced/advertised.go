package announced

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

// maxNamedInCondition is how many of several addresses, or BGPPeers, a condition names.
const maxNamedInCondition = 3

// AdvertisedCondition returns the condition v1.ConditionAdvertised of a Service: whether routers have been
// sent a route to each of its Virtual addresses by some node that announces the address. routings
// has the NodeRoutings by node, and group is the Service's ServiceGroup, or nil. The condition has
// no type if no address is Virtual.
func AdvertisedCondition(
	places []Place, routings map[string]*v1.NodeRouting, group *v1.ServiceGroup,
) metav1.Condition {
	counts := advertisersOf(places, routings)
	if len(counts) == 0 {
		return metav1.Condition{}
	}
	c := metav1.Condition{Type: v1.ConditionAdvertised, Status: metav1.ConditionTrue, Reason: v1.ReasonAdvertised}
	if group != nil && group.Spec.AdvertisedBy == v1.AdvertisedByExternal {
		c.Status, c.Reason = metav1.ConditionUnknown, v1.ReasonExternal
		c.Message = fmt.Sprintf("spec.advertisedBy of ServiceGroup %s says that routing software of your own advertises "+
			"the addresses: PureLB does not see whether it does", counts[0].group)
		return c
	}
	var texts []string
	for i := range counts {
		reason, text := counts[i].verdict()
		if reason != v1.ReasonAdvertised && c.Status == metav1.ConditionTrue {
			c.Status, c.Reason = metav1.ConditionFalse, reason
			texts = slices.Insert(texts, 0, text)
			continue
		}
		texts = append(texts, text)
	}
	c.Message = strings.Join(textlimit.First(texts, maxNamedInCondition), "; ")
	if c.Reason == v1.ReasonNoRouter && group != nil &&
		meta.IsStatusConditionTrue(group.Status.Conditions, v1.ConditionSubnetNotFound) {
		c.Message = fmt.Sprintf("ServiceGroup %s is one of kind local, and no node is in its subnet: see its condition %s; "+
			"besides, %s", group.Name, v1.ConditionSubnetNotFound, c.Message)
	}
	return c
}

// CurrentRoutings returns NodeRoutings by node, in which no session is up whose speaker cannot say any more that it has
// ended: one that does not run, as the kubelet says, or is on a node of which it is unknown whether it is Ready. If
// all nodes are unknown it is rather the API server that hears of none, and what was last said of all of them stays.
func CurrentRoutings(
	routings map[string]*v1.NodeRouting, isUnknown, isSpeakerDown func(node string) bool,
) map[string]*v1.NodeRouting {
	current, isAnyKnown := map[string]*v1.NodeRouting{}, false
	for node, routing := range routings {
		switch current[node] = routing; {
		case isUnknown(node):
			current[node] = withSessionsDown(routing, "it is unknown whether the node is Ready")
			continue
		case isSpeakerDown(node):
			current[node] = withSessionsDown(routing, "the speaker does not run, as the node's kubelet says: see its pod")
		}
		isAnyKnown = true
	}
	if !isAnyKnown {
		return routings
	}
	return current
}

// withSessionsDown returns a copy of a NodeRouting in which all sessions are Idle, and why.
func withSessionsDown(routing *v1.NodeRouting, why string) *v1.NodeRouting {
	without := &v1.NodeRouting{ObjectMeta: routing.ObjectMeta, Spec: routing.Spec, Status: routing.Status}
	without.Status.Established, without.Status.Sessions = 0, slices.Clone(routing.Status.Sessions)
	for i := range without.Status.Sessions {
		s := &without.Status.Sessions[i]
		s.State, s.LastError = "Idle", why
	}
	return without
}

// advertiserCounts is by whom one Virtual address is advertised.
type advertiserCounts struct {
	address, group string
	// nodeCount nodes announce the address, and advertiserCount of them have sent a route.
	nodeCount, advertiserCount int
	// sessionCount is the number of sessions in which these nodes are to advertise the address. Of them,
	// establishedCount are up, and in sentCount of those routes were sent.
	sessionCount, establishedCount, sentCount int
	// peers are the BGPPeers of these sessions, each once.
	peers []string
	// isUnwanted is that the ServiceGroup keeps speakers from advertising the address, and isWithheld that
	// the manager does, as nobody says how.
	isUnwanted, isWithheld bool
}

// GroupBGPOf returns spec.bgp of a ServiceGroup as a node's NodeRouting has it: how the node is to advertise the
// group's addresses.
func GroupBGPOf(spec *v1.NodeRoutingSpec, group string) v1.ServiceGroupBGP {
	for i := range spec.Groups {
		if spec.Groups[i].Name == group {
			return spec.Groups[i].ServiceGroupBGP
		}
	}
	return v1.ServiceGroupBGP{}
}

// ServiceCommunitiesFor returns the communities that Services ask for and that a node's route to a single address has,
// besides those of the ServiceGroup.
func ServiceCommunitiesFor(spec *v1.NodeRoutingSpec, a netip.Addr) v1.RouteCommunities {
	for i := range spec.ServiceCommunities {
		if isAmong(spec.ServiceCommunities[i].Addresses, a) {
			return spec.ServiceCommunities[i].RouteCommunities
		}
	}
	return v1.RouteCommunities{}
}

// IsWithheld reports whether a node is not to advertise an address because nobody says how.
func IsWithheld(spec *v1.NodeRoutingSpec, a netip.Addr) bool { return isAmong(spec.Withheld, a) }

// IsSent reports whether, in a session that is up, a route was sent that leads to an address that the node announces,
// and that the ServiceGroup does not keep from the neighbour.
func IsSent(s *v1.RoutingSession, a netip.Addr) bool {
	return slices.Contains(s.Families, v1.FamilyOf(a)) && s.Advertised > 0 && !isAmong(s.Unsent, a)
}

// isAmong reports whether an address is among texts, each an address or a range, first-last.
func isAmong(texts []string, a netip.Addr) bool {
	return slices.ContainsFunc(texts, func(text string) bool {
		r, err := netipx.ParseIPRange(text)
		return text == a.String() || err == nil && r.Contains(a)
	})
}

// advertisersOf counts, for each Virtual address of some places, who advertises it; sorted as the
// places are.
func advertisersOf(places []Place, routings map[string]*v1.NodeRouting) []advertiserCounts {
	var counts []advertiserCounts
	for _, p := range places {
		if p.Type != v1.AnnounceVirtual {
			continue
		}
		if len(counts) == 0 || counts[len(counts)-1].address != p.Address {
			counts = append(counts, advertiserCounts{address: p.Address, group: p.ServiceGroup})
		}
		if p.State == v1.StateAnnounced {
			counts[len(counts)-1].addNode(&p, routings[p.Node])
		}
	}
	return counts
}

// addNode counts a node that announces the address. routing is nil if the node has no speaker.
func (c *advertiserCounts) addNode(p *Place, routing *v1.NodeRouting) {
	c.nodeCount++
	if routing == nil {
		return
	}
	addr, err := netip.ParseAddr(p.Address)
	if err != nil {
		return
	}
	if IsWithheld(&routing.Spec, addr) {
		c.isWithheld = true
		return
	}
	bgp := GroupBGPOf(&routing.Spec, p.ServiceGroup)
	if bgp.Advertise != nil && !*bgp.Advertise {
		c.isUnwanted = true
		return
	}
	family, sent := v1.FamilyOf(addr), 0
	for i := range routing.Spec.Peers {
		peer := &routing.Spec.Peers[i]
		if !slices.Contains(peer.Families, family) || len(bgp.Peers) > 0 && !slices.Contains(bgp.Peers, peer.Name) {
			continue
		}
		c.sessionCount++
		if !slices.Contains(c.peers, peer.Name) {
			c.peers = append(c.peers, peer.Name)
		}
		at := slices.IndexFunc(routing.Status.Sessions, func(s v1.RoutingSession) bool {
			return s.Peer == peer.Name && s.State == v1.SessionEstablished && peer.IsNeighbor(s.Neighbor)
		})
		if at < 0 {
			continue
		}
		c.establishedCount++
		if IsSent(&routing.Status.Sessions[at], addr) {
			sent++
		}
	}
	c.sentCount += sent
	if sent > 0 {
		c.advertiserCount++
	}
}

// verdict says whether some node advertises the address and, if none does, why.
func (c *advertiserCounts) verdict() (reason, text string) {
	switch {
	case c.sentCount > 0:
		return v1.ReasonAdvertised, fmt.Sprintf(
			"%s is advertised by %d of %d nodes, in %d of %d sessions",
			c.address, c.advertiserCount, c.nodeCount, c.sentCount, c.sessionCount,
		)
	case c.nodeCount == 0:
		return v1.ReasonNotAnnounced, fmt.Sprintf("no node announces %s yet", c.address)
	case c.sessionCount == 0 && c.isWithheld:
		return v1.ReasonNotAdvertised, fmt.Sprintf(
			"%s is advertised to nobody, as no ServiceGroup says how: see the conditions of ServiceGroup %s and of the BGPPeers",
			c.address, c.group,
		)
	case c.sessionCount == 0 && c.isUnwanted:
		return v1.ReasonNoRouter, fmt.Sprintf(
			"spec.bgp.advertise of ServiceGroup %s keeps speakers from advertising %s: if routing software of your own does, "+
				"set its spec.advertisedBy to External", c.group, c.address,
		)
	case c.sessionCount == 0:
		return v1.ReasonNoRouter, fmt.Sprintf(
			"no BGPPeer gives one of the %d nodes that announce %s a router for it: make one or, if routing software of "+
				"your own advertises it, set spec.advertisedBy of ServiceGroup %s to External", c.nodeCount, c.address, c.group,
		)
	case c.establishedCount == 0:
		return v1.ReasonNoSession, fmt.Sprintf(
			"%s is advertised by 0 of %d nodes: 0 of %d sessions are up; see BGPPeer %s",
			c.address, c.nodeCount, c.sessionCount, strings.Join(textlimit.First(c.peers, maxNamedInCondition), ", "),
		)
	}
	return v1.ReasonNotAdvertised, fmt.Sprintf(
		"%s is advertised by 0 of %d nodes: %d of %d sessions are up, and none has been sent a route to it",
		c.address, c.nodeCount, c.establishedCount, c.sessionCount,
	)
}

// AdvertisingChanged reports whether AdvertisedCondition may differ between two versions of a NodeRouting.
func AdvertisingChanged(before, after *v1.NodeRouting) bool {
	return before.Spec.NodeName != after.Spec.NodeName || before.Spec.LBNodeAgent != after.Spec.LBNodeAgent ||
		!equality.Semantic.DeepEqual(before.Spec.Peers, after.Spec.Peers) ||
		!equality.Semantic.DeepEqual(before.Spec.Groups, after.Spec.Groups) ||
		!slices.Equal(before.Spec.Withheld, after.Spec.Withheld) ||
		!slices.EqualFunc(before.Status.Sessions, after.Status.Sessions, func(a, b v1.RoutingSession) bool {
			return a.Peer == b.Peer && a.Neighbor == b.Neighbor &&
				(a.State == v1.SessionEstablished) == (b.State == v1.SessionEstablished) &&
				(a.Advertised > 0) == (b.Advertised > 0) && slices.Equal(a.Families, b.Families) &&
				slices.Equal(a.Unsent, b.Unsent)
		})
}
