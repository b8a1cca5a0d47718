package routing

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// turnTime bounds the turn of a node: a session that does not come up again does not keep the other nodes
// from their new settings.
const turnTime = 30 * time.Second

// Turn is the turn of the one node that opens sessions anew, as settings of neighbours change. The zero
// Turn is nobody's.
type Turn struct {
	Node  string
	Since time.Time
	// Neighbours are those with which the node opens its sessions anew.
	Neighbours []v1.RoutingPeer
}

// Paced is what to write now of what Render has decided.
type Paced struct {
	// Specs are the NodeRoutings to be now, by node.
	Specs map[string]v1.NodeRoutingSpec
	// Turn is whose turn it is now, and Wait in how long it is over at the latest; 0 if it is nobody's.
	Turn Turn
	Wait time.Duration
	// NodesWaiting are the nodes on which a BGPPeer's settings are to change later, by name of the BGPPeer.
	NodesWaiting map[string][]string
}

// Pace lets nodes open sessions anew one at a time: a session that begins anew may cost its routes, and a
// mistake in a BGPPeer costs those of one node first. The next node's turn begins when the sessions of the
// one before are up again, or when turnTime is over. Neighbours that come or go do not wait, nor what
// changes while a session goes on, nor sessions that are down anyway.
func Pace(specs map[string]v1.NodeRoutingSpec, stored map[string]*v1.NodeRouting, turn Turn, now time.Time) Paced {
	p := Paced{Specs: maps.Clone(specs), Turn: turn, NodesWaiting: map[string][]string{}}
	pending := map[string][]v1.RoutingPeer{}
	for node, spec := range specs {
		if peers := peersToReopen(spec, stored[node]); len(peers) > 0 {
			pending[node] = peers
		}
	}
	if turn.Node != "" && turn.isOver(len(pending[turn.Node]) > 0, stored[turn.Node], now) {
		p.Turn = Turn{}
	}
	for _, node := range slices.Sorted(maps.Keys(pending)) {
		switch p.Turn.Node {
		case "":
			p.Turn = Turn{Node: node, Since: now, Neighbours: pending[node]}
		case node:
			for _, peer := range pending[node] {
				if indexOfNeighbour(p.Turn.Neighbours, &peer) < 0 {
					p.Turn.Neighbours = append(slices.Clone(p.Turn.Neighbours), peer)
				}
			}
		default:
			p.Specs[node] = withFormerSettings(specs[node], pending[node])
			for _, peer := range pending[node] {
				name := specs[node].Peers[indexOfNeighbour(specs[node].Peers, &peer)].Name
				p.NodesWaiting[name] = append(p.NodesWaiting[name], node)
			}
		}
	}
	if p.Turn.Node != "" {
		p.Wait = max(p.Turn.Since.Add(turnTime).Sub(now), time.Second)
	}
	return p
}

// peersToReopen returns the neighbours, as they are stored, whose sessions are up and would be opened anew.
// A node that drains has no routes to lose. Speakers notice by themselves when a password changes.
func peersToReopen(spec v1.NodeRoutingSpec, stored *v1.NodeRouting) []v1.RoutingPeer {
	if stored == nil || stored.Spec.DrainSince != nil || spec.DrainSince != nil {
		return nil
	}
	var peers []v1.RoutingPeer
	for _, before := range stored.Spec.Peers {
		i := indexOfNeighbour(spec.Peers, &before)
		if i < 0 || (spec.Peers[i].PasswordFile == "") != (before.PasswordFile == "") {
			continue
		}
		isSame := equality.Semantic.DeepEqual(spec.Peers[i].SessionSettings(), before.SessionSettings())
		if !isSame && isEstablished(stored, &before) {
			peers = append(peers, before)
		}
	}
	return peers
}

// indexOfNeighbour returns which of several peers is the same neighbour; -1 for none.
func indexOfNeighbour(peers []v1.RoutingPeer, p *v1.RoutingPeer) int {
	return slices.IndexFunc(peers, func(other v1.RoutingPeer) bool { return isSameNeighbour(&other, p) })
}

// withFormerSettings returns what a node is to do while some of its neighbours keep their former settings.
func withFormerSettings(spec v1.NodeRoutingSpec, former []v1.RoutingPeer) v1.NodeRoutingSpec {
	spec.Peers = slices.Clone(spec.Peers)
	for i := range spec.Peers {
		p := &spec.Peers[i]
		at := indexOfNeighbour(former, p)
		if at < 0 {
			continue
		}
		wanted := *p
		*p = former[at]
		p.Name, p.PasswordFile = wanted.Name, wanted.PasswordFile
	}
	return spec
}

// isOver reports whether a node's turn is over: its speaker works by the new settings, and the sessions are
// up again.
func (t *Turn) isOver(isPending bool, stored *v1.NodeRouting, now time.Time) bool {
	if stored == nil || now.Sub(t.Since) >= turnTime {
		return true
	}
	if isPending || stored.Status.ObservedGeneration < stored.Generation {
		return false
	}
	return !slices.ContainsFunc(t.Neighbours, func(p v1.RoutingPeer) bool {
		return indexOfNeighbour(stored.Spec.Peers, &p) >= 0 && !isEstablished(stored, &p)
	})
}

// isEstablished reports whether the node's session with a neighbour is up, as the speaker last said.
func isEstablished(routing *v1.NodeRouting, p *v1.RoutingPeer) bool {
	return slices.ContainsFunc(routing.Status.Sessions, func(s v1.RoutingSession) bool {
		return s.State == v1.SessionEstablished && p.IsNeighbor(s.Neighbor)
	})
}

// AddWaiting adds to what became of BGPPeers that some nodes still have their former settings.
func (r *Result) AddWaiting(waiting map[string][]string) {
	for name, nodes := range waiting {
		if peer := r.Peers[name]; peer != nil {
			peer.Problems = append(peer.Problems, fmt.Sprintf(
				"nodes open their sessions anew one at a time: %d have the former settings yet", len(nodes),
			))
		}
	}
}
