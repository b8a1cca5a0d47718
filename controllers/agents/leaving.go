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

// Turns say which nodes go from one LBNodeAgent to another now, and for what the others wait.
type Turns struct {
	// Leaving are the names of the nodes whose agents are to withdraw what they have now.
	Leaving map[string]bool
	// Awaited are, by LBNodeAgent to which nodes wait to go while none goes, the nodes for which they wait: those
	// that are Ready, and whose agent does not renew its Lease, or has yet to report; sorted.
	Awaited map[string][]string
}

// leavingShare is of how many nodes on which an LBNodeAgent's agent works one more may be without an agent.
const leavingShare = 10

// TurnsOf returns which nodes go from one LBNodeAgent to another now. They do so one after another, as in a rolling
// update: the next one leaves when the agent of the last one's new LBNodeAgent has reported. One more at a time leaves
// for every leavingShare nodes on which that one works. If it does not start, the other nodes keep what they have.
//
// A node that no LBNodeAgent is to apply to leaves at once. One that is not Ready waits, and holds up no other, and
// neither does a node that no agent has ever run on.
func TurnsOf(all []v1.LBNodeAgent, members []Member) Turns {
	turns := Turns{Leaving: map[string]bool{}, Awaited: map[string][]string{}}
	waiting, awaited := map[string][]string{}, map[string][]string{}
	arrived, told := map[string]int{}, map[string]int{}
	for i := range members {
		m := &members[i]
		next := LBNodeAgentFor(all, m.Labels)
		switch isOfAnother := IsOfAnother(all, m.Labels); {
		case !isOfAnother && (next == "" || !m.IsReady || !m.hasReported()):
		case !isOfAnother && m.hasArrived(next):
			arrived[next]++
		case !isOfAnother:
			awaited[next] = append(awaited[next], m.Name)
		case next == "", m.isTold() && !m.IsReady:
			turns.Leaving[m.Name] = true
		case m.isTold():
			turns.Leaving[m.Name] = true
			told[next]++
		case m.IsReady:
			waiting[next] = append(waiting[next], m.Name)
		}
	}
	for next, names := range waiting {
		slices.Sort(names)
		room := 1 + arrived[next]/leavingShare - told[next] - len(awaited[next])
		if room <= 0 && told[next] == 0 {
			slices.Sort(awaited[next])
			turns.Awaited[next] = awaited[next]
		}
		for _, name := range names[:min(max(room, 0), len(names))] {
			turns.Leaving[name] = true
		}
	}
	return turns
}

// hasReported reports whether an agent has ever reported on the node's Announcement.
func (m *Member) hasReported() bool {
	return m.Announcement != nil && m.Announcement.Status.ObservedGeneration > 0
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
