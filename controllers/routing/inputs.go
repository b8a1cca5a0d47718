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
	// Interfaces are the facts that the node's agent reports.
	Interfaces []v1.NodeInterface
	// IsDraining is that traffic is to leave the node.
	IsDraining bool
}

// Inputs is everything that Render decides from.
type Inputs struct {
	Nodes  []Node
	Peers  []v1.BGPPeer
	Groups []Group
	// Used are the Virtual addresses that nodes announce, or are to. AreAgentsBehind is that an agent
	// has yet to do what its node is to announce: it may have more addresses.
	Used            map[netip.Addr]UsedAddress
	AreAgentsBehind bool
	// Routings are the NodeRoutings as they stand, by node.
	Routings map[string]*v1.NodeRouting
	// HasSecret reports whether a Secret of the manager's namespace has a key.
	HasSecret func(v1.SecretKeyRef) bool
	Now       time.Time
}

// drainSince returns since when a node drains: as its NodeRouting says already, or now.
func (in *Inputs) drainSince(n *Node) *metav1.Time {
	if !n.IsDraining {
		return nil
	}
	if stored := in.Routings[n.Name]; stored != nil && stored.Spec.DrainSince != nil {
		return stored.Spec.DrainSince
	}
	return &metav1.Time{Time: in.Now.Truncate(time.Second)}
}
