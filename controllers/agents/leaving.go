package agents

import (
	"slices"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// Member is what the order depends on in which nodes go from one LBNodeAgent to another.
type Member struct {
	Name   string
	Labels map[string]string
	// IsReady is that the Node's condition Ready is True, and IsAlive that the node's agent renews its Lease.
	IsReady, IsAlive bool
	// Announcement is the one that has the node's name; nil for none.
	Announcement *v1.Announcement
}

// leavingShare is of how many nodes on which an LBNodeAgent's agent works one more may be without an agent.
const leavingShare = 10

// LeavingNodes returns the names of the nodes whose agents are to withdraw what they have now. Nodes that go from
// one LBNodeAgent to another do so one after another, as in a rolling update: the next one leaves when the agent of
// the last one's new LBNodeAgent has reported. One more at a time leaves for every leavingShare nodes on which that
// one works. If it does not start, the other nodes keep what they have.
//
// A node that no LBNodeAgent is to apply to leaves at once, and so does one that is not Ready. The latter holds up
// no other.
func LeavingNodes(all []v1.LBNodeAgent, members []Member) map[string]bool {
	leaving := map[string]bool{}
	waiting, arrived, missing := map[string][]string{}, map[string]int{}, map[string]int{}
	for i := range members {
		m := &members[i]
		next := LBNodeAgentFor(all, m.Labels)
		switch isOfAnother := IsOfAnother(all, m.Labels); {
		case !isOfAnother && (next == "" || !m.IsReady):
		case !isOfAnother && m.hasArrived(next):
			arrived[next]++
		case !isOfAnother:
			missing[next]++
		case next == "" || !m.IsReady:
			leaving[m.Name] = true
		case m.isTold():
			leaving[m.Name] = true
			missing[next]++
		default:
			waiting[next] = append(waiting[next], m.Name)
		}
	}
	for next, names := range waiting {
		slices.Sort(names)
		room := 1 + arrived[next]/leavingShare - missing[next]
		for _, name := range names[:min(max(room, 0), len(names))] {
			leaving[name] = true
		}
	}
	return leaving
}

// hasArrived reports whether the agent of the given LBNodeAgent works on the node: it renews its Lease, and has
// reported on an Announcement that is for it.
func (m *Member) hasArrived(lbNodeAgent string) bool {
	a := m.Announcement
	return a != nil && m.IsAlive && a.Spec.LBNodeAgent == lbNodeAgent && !a.Spec.AgentLeaving &&
		a.Status.ObservedGeneration >= a.Generation
}

// isTold reports whether the node's agent has been told to withdraw what it has.
func (m *Member) isTold() bool { return m.Announcement != nil && m.Announcement.Spec.AgentLeaving }
