package plugin

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/order"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

// maxAddressesNamed is of how many addresses, or ranges, with the same communities the table says which.
const maxAddressesNamed = 8

// BGPState is the state of all BGPPeers and of each node's sessions.
type BGPState struct {
	Peers    []BGPPeer    `json:"peers"`
	Sessions []BGPSession `json:"sessions"` // those that are not up first
	// ServiceCommunities are the same on all nodes.
	ServiceCommunities []ServiceCommunities `json:"serviceCommunities,omitempty"`
	Unread             []Unread             `json:"unread,omitempty"`
}

// ServiceCommunities are communities for which some Services ask, and the addresses of these Services, whose routes
// have them.
type ServiceCommunities struct {
	Communities []string `json:"communities"`
	Addresses   []string `json:"addresses"` // and ranges of addresses
}

// BGPPeer is one BGPPeer.
type BGPPeer struct {
	Name        string `json:"name"`
	Established int32  `json:"established"`
	Desired     int32  `json:"desired"`
	Reason      string `json:"reason,omitempty"`  // of condition Ready
	Message     string `json:"message,omitempty"` // of condition Ready; only while that is not True
}

// BGPSession is the session of one node with one neighbour.
type BGPSession struct {
	Node string `json:"node"`
	v1.RoutingSession
	// NodeNetworks is how many networks the node advertises, and Draining that it has been told
	// to withdraw them.
	NodeNetworks int32 `json:"networks"`
	Draining     bool  `json:"draining,omitempty"`
}

// problems is what is wrong with the session: why it is not up, does not carry all families, or has not sent a route
// to each address that the node is to advertise in it.
func (s *BGPSession) problems() string {
	const maxShown = 3
	texts := textlimit.First(s.Unsent, maxShown)
	if len(texts) > 0 {
		texts = []string{"no route sent to " + strings.Join(texts, ", ")}
	}
	if s.LastError != "" {
		texts = append([]string{s.LastError}, texts...)
	}
	return strings.Join(texts, "; ")
}

// BGPStateOf lists the BGPPeers and the sessions that speakers report.
func BGPStateOf(c *Cluster) *BGPState {
	b := &BGPState{Peers: []BGPPeer{}, Sessions: []BGPSession{}, Unread: c.unreadOf(kindBGPPeers, kindNodeRoutings)}
	for i := range c.BGPPeers {
		p := &c.BGPPeers[i]
		peer := BGPPeer{Name: p.Name, Established: p.Status.EstablishedSessions, Desired: p.Status.DesiredSessions}
		if ready := meta.FindStatusCondition(p.Status.Conditions, v1.ConditionReady); ready != nil {
			peer.Reason = ready.Reason
			if ready.Status != metav1.ConditionTrue {
				peer.Message = ready.Message
			}
		}
		b.Peers = append(b.Peers, peer)
	}
	for i := range c.NodeRoutings {
		r := &c.NodeRoutings[i]
		for _, s := range r.Status.Sessions {
			b.Sessions = append(b.Sessions, BGPSession{r.Spec.NodeName, s, r.Status.Networks, r.Spec.DrainSince != nil})
		}
		if len(b.ServiceCommunities) > 0 {
			continue // all nodes have the same
		}
		for j := range r.Spec.ServiceCommunities {
			of := &r.Spec.ServiceCommunities[j]
			b.ServiceCommunities = append(
				b.ServiceCommunities, ServiceCommunities{textsOf(&of.RouteCommunities), of.Addresses},
			)
		}
	}
	isDown := func(s BGPSession) bool { return s.State != v1.SessionEstablished }
	slices.SortStableFunc(b.Sessions, func(x, y BGPSession) int {
		return cmp.Or(order.TrueFirst(isDown(x), isDown(y)), cmp.Compare(x.Node, y.Node), cmp.Compare(x.Neighbor, y.Neighbor))
	})
	return b
}

// AreAllUp reports whether every BGPPeer is ready and has all of its sessions.
func (b *BGPState) AreAllUp() bool {
	return !slices.ContainsFunc(b.Peers, func(p BGPPeer) bool { return p.Message != "" || p.Established < p.Desired })
}

// WriteText writes the BGPPeers, the sessions and, if Services ask for communities, these; without BGPPeers only that
// there are none.
func (b *BGPState) WriteText(w io.Writer, style Style) error {
	t := newTextWriter(w, style)
	if len(b.Peers) == 0 {
		if len(b.Unread) == 0 {
			t.line("There are no BGPPeers: nothing is advertised by PureLB.")
		}
		t.unread(b.Unread)
		return t.flush()
	}
	t.header("PEER", "SESSIONS", "REASON", "MESSAGE")
	for _, p := range b.Peers {
		t.row(p.Name, fmt.Sprintf("%d/%d", p.Established, p.Desired), p.Reason, p.Message)
	}
	t.line("")
	t.header("NODE", "PEER", "NEIGHBOUR", "ASN", "STATE", "SINCE", "FAMILIES", "SENT", "BFD", "LAST ERROR")
	for _, s := range b.Sessions {
		state, since, asn := string(s.State), "", ""
		if s.Draining {
			state += " (draining)"
		}
		if s.Since != nil {
			since = s.Since.UTC().Format("2006-01-02T15:04:05Z")
		}
		if s.PeerASN != 0 {
			asn = strconv.FormatInt(s.PeerASN, 10)
		}
		families := make([]string, len(s.Families))
		for i, f := range s.Families {
			families[i] = string(f)
		}
		t.row(
			s.Node, s.Peer, s.Neighbor, asn, state, since, strings.Join(families, ","), strconv.Itoa(int(s.Advertised)), s.BFD,
			s.problems(),
		)
	}
	if len(b.ServiceCommunities) > 0 {
		t.line("")
		t.header("SERVICES ASK FOR", "ADDRESSES")
		for _, of := range b.ServiceCommunities {
			t.row(strings.Join(of.Communities, ","), textlimit.List(of.Addresses, maxAddressesNamed, ", "))
		}
	}
	t.unread(b.Unread)
	return t.flush()
}
