package plugin

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/announced"
)

// SessionAdvertising says whether one node advertises an address to one neighbour, by BGP.
type SessionAdvertising struct {
	Node         string `json:"node"`
	Peer         string `json:"peer"` // the BGPPeer
	Neighbor     string `json:"neighbor"`
	IsAdvertised bool   `json:"advertised"`
	Why          string `json:"why,omitempty"`
}

// explainBGP says to which neighbours nodes advertise a Virtual address. group is the ServiceGroup of the
// address, or empty.
func explainBGP(c *Cluster, a netip.Addr, group string, places []announced.Place) (string, []SessionAdvertising) {
	switch {
	case len(c.unreadOf(kindBGPPeers, kindNodeRoutings)) > 0:
		return "", nil
	case len(c.BGPPeers) == 0:
		return "there is no BGPPeer: PureLB does not know whether routers reach it", nil
	}
	var all []SessionAdvertising
	carrying := 0
	for i := range c.NodeRoutings {
		r := &c.NodeRoutings[i]
		hasAddress := slices.ContainsFunc(places, func(p announced.Place) bool {
			return p.Node == r.Spec.NodeName && p.Address == a.String() && p.State == v1.StateAnnounced
		})
		for j := range r.Status.Sessions {
			s := &r.Status.Sessions[j]
			to := SessionAdvertising{Node: r.Spec.NodeName, Peer: s.Peer, Neighbor: s.Neighbor}
			to.IsAdvertised, to.Why = advertises(r, s, a, group, hasAddress)
			if to.IsAdvertised {
				carrying++
			}
			all = append(all, to)
		}
	}
	slices.SortStableFunc(all, func(x, y SessionAdvertising) int {
		return cmp.Or(cmp.Compare(x.Node, y.Node), cmp.Compare(x.Peer, y.Peer), cmp.Compare(x.Neighbor, y.Neighbor))
	})
	switch {
	case len(all) == 0:
		return "no node has a session", nil
	case carrying == 1:
		return fmt.Sprintf("1 of %s carries it", count(len(all), "session")), all
	}
	return fmt.Sprintf("%d of %s carry it", carrying, count(len(all), "session")), all
}

// communitiesOf returns the communities that a Virtual address's Service has got for the routes to it, as the first
// node says that has any.
func communitiesOf(c *Cluster, a netip.Addr) []string {
	for i := range c.NodeRoutings {
		if communities := announced.ServiceCommunitiesFor(&c.NodeRoutings[i].Spec, a); !communities.IsEmpty() {
			return textsOf(&communities)
		}
	}
	return nil
}

// textsOf lists communities of both kinds.
func textsOf(communities *v1.RouteCommunities) []string {
	var texts []string
	for _, community := range communities.Communities {
		texts = append(texts, string(community))
	}
	for _, community := range communities.LargeCommunities {
		texts = append(texts, string(community))
	}
	return texts
}

// advertises reports whether a node advertises an address in a session, and why not. hasAddress is whether the node
// has the address on its virtual interface, whose addresses speakers advertise.
func advertises(
	r *v1.NodeRouting, s *v1.RoutingSession, a netip.Addr, group string, hasAddress bool,
) (isAdvertised bool, why string) {
	bgp := announced.GroupBGPOf(&r.Spec, group)
	switch {
	case announced.IsWithheld(&r.Spec, a):
		return false, "no ServiceGroup says how: the manager withholds it"
	case bgp.Advertise != nil && !*bgp.Advertise:
		return false, fmt.Sprintf("ServiceGroup %s has bgp.advertise: false", group)
	case len(bgp.Peers) > 0 && !slices.Contains(bgp.Peers, s.Peer):
		return false, fmt.Sprintf("bgp.peers of ServiceGroup %s does not name the BGPPeer", group)
	case !hasAddress:
		return false, "the node does not have it"
	case s.State != v1.SessionEstablished && s.LastError != "":
		return false, fmt.Sprintf("the session is %s: %s", s.State, s.LastError)
	case s.State != v1.SessionEstablished:
		return false, fmt.Sprintf("the session is %s", s.State)
	case !slices.Contains(s.Families, v1.FamilyOf(a)):
		return false, fmt.Sprintf("the session carries no %s", v1.FamilyOf(a))
	case r.Spec.DrainSince != nil && r.Status.Drained:
		return false, "the node is drained"
	case r.Status.Networks == 0:
		return false, "the speaker has no network to advertise"
	case !announced.IsSent(s, a):
		return false, "the node has sent the neighbour no route to it: see the condition Ready of its NodeRouting"
	case r.Spec.DrainSince != nil:
		return true, "the node is drained: the neighbour is asked to prefer others"
	}
	return true, ""
}
