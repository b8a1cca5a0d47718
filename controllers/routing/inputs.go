package routing

import (
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// Node is what the manager knows of one node that runs an agent.
type Node struct {
	Name        string
	Labels      map[string]string
	LBNodeAgent string
	// VirtualInterface is where the node's Virtual addresses are.
	VirtualInterface string
	// Addresses are the node's own, as its kubelet reports them.
	Addresses []netip.Addr
	// HasReportedFacts is that the node's agent has reported Interfaces and Gateways. Until then, as when
	// the node's Announcement was just made anew, nothing about them changes.
	HasReportedFacts bool
	// Interfaces are the node's interfaces that its LBNodeAgent selects.
	Interfaces []v1.NodeInterface
	// Gateways are the next hops of all default routes of the node.
	Gateways []v1.NodeGateway
	// IsDraining is that traffic is to leave the node.
	IsDraining bool
	// IsStaying is that nothing is known for which the node will not go on to announce what it announces.
	IsStaying bool
}

// gateways are the next hops of the node's default routes. Agents of earlier releases report only those
// of the interfaces that their LBNodeAgent selects.
func (n *Node) gateways() []v1.NodeGateway {
	if len(n.Gateways) > 0 {
		return n.Gateways
	}
	var gateways []v1.NodeGateway
	for _, i := range n.Interfaces {
		for _, address := range i.Gateways {
			gateways = append(gateways, v1.NodeGateway{Interface: i.Name, Address: address})
		}
	}
	return gateways
}

// Inputs is everything that Render decides from.
type Inputs struct {
	Nodes  []Node
	Peers  []v1.BGPPeer
	Groups []Group
	// VirtualAddresses are those that nodes announce, or are to. AreAgentsBehind is that an agent has
	// yet to do what its node is to announce: it may have more addresses.
	VirtualAddresses map[netip.Addr]VirtualAddress
	AreAgentsBehind  bool
	// IgnoredRanges is what speakers do in place of agents that are dead.
	Ignored IgnoredRanges
	// Routings are the NodeRoutings as they stand, by node.
	Routings map[string]*v1.NodeRouting
	// Password returns what a key of a Secret of the manager's namespace has, if there is one.
	Password func(v1.SecretKeyRef) (password []byte, exists bool)
	Now      time.Time
}

// storedPeer is a neighbour as a NodeRouting has it.
type storedPeer struct {
	v1.RoutingPeer
	isUp bool // its session, as the speaker last said
}

// storedPeers are the neighbours that a BGPPeer gives a node, as the node's NodeRouting says already.
func (in *Inputs) storedPeers(node, peer string) []storedPeer {
	stored := in.Routings[node]
	if stored == nil {
		return nil
	}
	var peers []storedPeer
	for _, p := range stored.Spec.Peers {
		if p.Name == peer {
			peers = append(peers, storedPeer{p, isEstablished(stored, &p)})
		}
	}
	return peers
}

// drainSince returns since when a node drains: as its NodeRouting says already, or now. What a manager whose clock
// was ahead has written would let the drain take for as long as that: it begins now.
func (in *Inputs) drainSince(n *Node) *metav1.Time {
	if !n.IsDraining {
		return nil
	}
	if stored := in.Routings[n.Name]; stored != nil && stored.Spec.DrainSince != nil &&
		!stored.Spec.DrainSince.After(in.Now) {
		return stored.Spec.DrainSince
	}
	return &metav1.Time{Time: in.Now.Truncate(time.Second)}
}
