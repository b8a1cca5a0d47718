package agents_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/agents"
	"github.com/purelb/purelb-operator/test/seeds"
)

// cluster is LBNodeAgents and nodes; what is done to them goes on in steps, in any
// order, as the controllers and the agents do it.
type cluster struct {
	t      *testing.T
	rand   *rand.Rand
	agents []v1.LBNodeAgent
	nodes  map[string]*member
	calm   bool // nothing fails any more
	log    []string
}

// member is a node.
type member struct {
	labels map[string]string
	// announcement is what the node is told and says; nil for none.
	announcement *v1.Announcement
	// kernel is how many addresses the node has, and dead that its agent is not.
	kernel int
	dead   bool
	// notReady is that the kubelet is not, while the agent works.
	notReady bool
}

var (
	agentNames = []string{"a", "b", "c", "default"}
	selectors  = []map[string]string{nil, {"rack": "1"}, {"rack": "2"}, {"rack": "1", "row": "x"}}
)

func (c *cluster) say(format string, args ...any) {
	c.log = append(c.log, fmt.Sprintf(format, args...))
}

func (c *cluster) fail(format string, args ...any) {
	c.t.Helper()
	for _, line := range c.log[max(0, len(c.log)-40):] {
		c.t.Log(line)
	}
	c.t.Fatalf(format, args...)
}

func (c *cluster) index(name string) int {
	return slices.IndexFunc(c.agents, func(a v1.LBNodeAgent) bool { return a.Name == name })
}

// edit is something that a user does.
func (c *cluster) edit() {
	name, selector := agentNames[c.rand.IntN(len(agentNames))], selectors[c.rand.IntN(len(selectors))]
	i := c.index(name)
	switch c.rand.IntN(4) {
	case 0:
		if i < 0 {
			c.agents = append(
				c.agents,
				v1.LBNodeAgent{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.LBNodeAgentSpec{NodeSelector: selector}},
			)
			c.say("user: creates %s %v", name, selector)
		}
	case 1:
		if i >= 0 && c.agents[i].DeletionTimestamp == nil {
			c.agents[i].DeletionTimestamp = ptr.To(metav1.Now())
			c.say("user: deletes %s", name)
		}
	case 2:
		if i >= 0 {
			c.agents[i].Spec.NodeSelector = selector
			c.say("user: %s selects %v", name, selector)
		}
	default:
		node := c.node()
		labels := maps.Clone(selectors[c.rand.IntN(len(selectors))])
		if labels == nil {
			labels = map[string]string{}
		}
		if label, ok := c.nodes[node].labels[v1.LabelAgent]; ok {
			labels[v1.LabelAgent] = label
		}
		c.nodes[node].labels = labels
		c.say("user: labels of %s: %v", node, labels)
	}
}

func (c *cluster) node() string {
	return slices.Sorted(maps.Keys(c.nodes))[c.rand.IntN(len(c.nodes))]
}

// place is what placement writes for one node.
func (c *cluster) place(name string) {
	n := c.nodes[name]
	label := n.labels[v1.LabelAgent]
	if label == "" || c.index(label) < 0 {
		if n.announcement != nil && len(n.announcement.Status.Addresses) == 0 {
			n.announcement = nil
		}
		return
	}
	leaving := agents.TurnsOf(c.agents, c.members()).Leaving[name]
	if next := agents.LBNodeAgentFor(c.agents, n.labels); leaving && next != "" && !n.isTold() {
		c.checkTurn(name, next)
	}
	if n.announcement == nil {
		n.announcement = &v1.Announcement{
			ObjectMeta: metav1.ObjectMeta{Generation: 1}, Spec: v1.AnnouncementSpec{NodeName: name},
		}
	}
	spec := v1.AnnouncementSpec{NodeName: name, LBNodeAgent: label, AgentLeaving: leaving}
	if !leaving {
		spec.Addresses = []v1.AnnouncedAddress{{Address: "192.0.2.1"}}
	}
	if spec.AgentLeaving != n.announcement.Spec.AgentLeaving || spec.LBNodeAgent != n.announcement.Spec.LBNodeAgent ||
		len(spec.Addresses) != len(n.announcement.Spec.Addresses) {
		n.announcement.Spec = spec
		n.announcement.Generation++
		c.say("placement: %s leaving %t, %d addresses", name, leaving, len(spec.Addresses))
	}
}

// members are the nodes as the manager sees them. One whose agent is dead is not Ready.
func (c *cluster) members() []agents.Member {
	var members []agents.Member
	for name, n := range c.nodes {
		members = append(members, agents.Member{
			Name: name, Labels: n.labels, IsReady: !n.dead && !n.notReady, IsAlive: !n.dead, Announcement: n.announcement,
		})
	}
	return members
}

// isTold is that the node's agent has been told to withdraw what it has.
func (n *member) isTold() bool { return n.announcement != nil && n.announcement.Spec.AgentLeaving }

// checkTurn fails if a node is told to leave for the agent of an LBNodeAgent while another node is on its way to it.
func (c *cluster) checkTurn(name, next string) {
	if n := c.nodes[name]; n.dead || n.notReady {
		c.fail("%s is to leave for %q, and is not Ready", name, next)
	}
	for other, n := range c.nodes {
		if other == name || n.dead || n.notReady || agents.LBNodeAgentFor(c.agents, n.labels) != next {
			continue
		}
		isThere := n.labels[v1.LabelAgent] == next
		hasReported := n.announcement != nil && n.announcement.Status.ObservedGeneration > 0
		switch {
		case !hasReported && (isThere || c.index(n.labels[v1.LabelAgent]) < 0): // no agent has ever run there
		case !isThere && c.index(n.labels[v1.LabelAgent]) >= 0 && !n.isTold(): // it waits, too
		case isThere && n.announcement != nil && n.announcement.Spec.LBNodeAgent == next && !n.isTold() && n.kernel > 0:
		default:
			c.fail("%s is to leave for %q, while %s is on its way", name, next, other)
		}
	}
}

// act is what a node's agent does. There is none without a label.
func (c *cluster) act(name string) {
	n := c.nodes[name]
	label := n.labels[v1.LabelAgent]
	if n.dead || c.index(label) < 0 || n.announcement == nil || n.announcement.Spec.LBNodeAgent != label {
		return
	}
	if len(n.announcement.Spec.Addresses) > 0 || c.calm || c.rand.IntN(3) > 0 { // it may fail to take one off
		n.kernel = len(n.announcement.Spec.Addresses)
	}
	n.announcement.Status.ObservedGeneration = n.announcement.Generation
	n.announcement.Status.Addresses = nil
	if n.kernel > 0 {
		n.announcement.Status.Addresses = []v1.AddressStatus{{Address: "192.0.2.1", State: v1.StateAnnounced}}
	}
}

// label is what the LBNodeAgent controller does with one node.
func (c *cluster) label(name string) {
	n := c.nodes[name]
	var announcements []v1.Announcement
	if n.announcement != nil {
		announcements = append(announcements, *n.announcement)
	}
	before, to := n.labels[v1.LabelAgent], agents.LBNodeAgentFor(c.agents, n.labels)
	move := agents.LabelActionOf(c.agents, n.labels, announcements, n.dead)
	switch move {
	case agents.KeepLabel, agents.AwaitWithdrawal:
		return
	case agents.ChangeLabel:
		if n.kernel > 0 && !n.dead && c.index(before) >= 0 {
			c.fail("%s changes from %q to %q with addresses that it has", name, before, to)
		}
	case agents.ChangeLabelOfLostAgent:
		if !n.dead {
			c.fail("%s is abandoned, which is alive", name)
		}
	}
	if to == "" {
		delete(n.labels, v1.LabelAgent)
	} else {
		n.labels[v1.LabelAgent] = to
	}
	n.kernel, n.dead = 0, false // another agent starts, or what is left is nobody's
	c.say("%s: %q becomes %q (%s)", name, before, to, move)
}

// end is what the controller does with an LBNodeAgent that is deleted and that no
// node has any more.
func (c *cluster) end() {
	c.agents = slices.DeleteFunc(c.agents, func(a v1.LBNodeAgent) bool {
		return a.DeletionTimestamp != nil && !slices.ContainsFunc(slices.Collect(maps.Values(c.nodes)), func(n *member) bool {
			return n.labels[v1.LabelAgent] == a.Name
		})
	})
}

// TestHistories does anything in any order. An agent is not taken from a node that
// has addresses, unless it is silent; nodes go from one LBNodeAgent to another one after another; and in the
// end each node has the one agent that the rule names, and what was deleted is gone.
func TestHistories(t *testing.T) {
	first := seeds.First(t)
	for i := range uint64(2000) {
		seed := first + i
		c := &cluster{t: t, rand: rand.New(rand.NewPCG(seed, 0)), nodes: map[string]*member{}}
		for i := range 4 {
			c.nodes[fmt.Sprintf("n%d", i)] = &member{labels: map[string]string{}}
		}
		c.say("seed %d", seed)
		step := func(node string, kind int) {
			switch kind {
			case 0:
				c.place(node)
			case 1:
				c.act(node)
			case 2:
				c.label(node)
			case 3:
				c.end()
			}
		}
		for range 120 {
			switch kind := c.rand.IntN(12); {
			case kind == 0:
				c.edit()
			case kind == 1:
				n := c.nodes[c.node()]
				n.dead, n.notReady = c.rand.IntN(4) == 0, c.rand.IntN(4) == 0
			case kind == 2 && c.rand.IntN(4) == 0:
				c.nodes[c.node()].announcement = nil // somebody deletes it
			default:
				step(c.node(), kind%4)
			}
		}
		c.calm = true
		for _, n := range c.nodes {
			n.notReady = false
		}
		for range 24 {
			for _, node := range slices.Sorted(maps.Keys(c.nodes)) {
				for kind := range 4 {
					step(node, kind)
				}
			}
		}
		for name, n := range c.nodes {
			if got, want := n.labels[v1.LabelAgent], agents.LBNodeAgentFor(c.agents, n.labels); got != want {
				c.fail("%s has %q, the rule names %q", name, got, want)
			}
		}
		for _, a := range c.agents {
			if a.DeletionTimestamp != nil {
				c.fail("%s is still there", a.Name)
			}
		}
	}
}
