package sim

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/fields"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/tasks"
	"github.com/purelb/purelb-operator/nodeagent"
	"github.com/purelb/purelb-operator/test/sim/apiserver"
)

// Agents is the name of the one LBNodeAgent.
const Agents = "default"

// restartAfter is how long after an agent has ended the kubelet starts it again.
const restartAfter = time.Second

// agent is the process of a node's agent.
type agent struct {
	process
	follower
	node    *Node
	handler toolscache.ResourceEventHandler
	sockets sockets
	ctx     context.Context
	end     context.CancelFunc
}

// StartAgent starts the node's agent. Another one must not run.
func (n *Node) StartAgent() error {
	a := &agent{process: process{world: n.world, clock: n.Clock}, node: n}
	a.follower = newFollower(&a.process, n.Name, n.server, a.pass)
	a.isCut, a.isBlind = n.isCut || n.isAgentStarved, n.isAgentBlind
	a.ctx, a.end = context.WithCancel(log.IntoContext(context.Background(), logr.Discard()))
	options, err := nodeagent.ManagerOptions(n.Name, Namespace, Agents)
	if err != nil {
		return err
	}
	if a.cache, err = n.server.NewCache(agentSelections(n.Name, options.Cache, n.server)...); err != nil {
		return err
	}
	product := &nodeagent.Agent{
		Client: dated{n.server.NewClient(a.intercept, a.cache), n.Clock}, APIReader: n.server.NewClient(a.intercept, nil),
		Kernel: kernel{n.Kernel, a}, Neighbours: neighbours{a}, Tasks: &a.process,
		SuspendedFor: n.Clock.suspendedFor,
		Metrics:      nodeagent.NewMetrics(prometheus.NewRegistry()),
		NodeName:     n.Name, Namespace: Namespace, LBNodeAgentName: Agents,
		CheckpointPath: "checkpoint", Disk: disk{&a.process, n},
		OpenExchange: func(iface string) (nodeagent.Exchange, error) { return a.openExchange(iface) },
	}
	if n.agent = a; n.isAsleep {
		a.Pause()
	}
	a.Go(func() { a.run(product) })
	return nil
}

// agentSelections are of what an agent's cache keeps: of Announcements those of the node, as its informer sees to.
func agentSelections(node string, options cache.Options, server *apiserver.Server) []apiserver.Selection {
	selections := selectionsOf(options, server)
	for i := range selections {
		if _, isAnnouncement := selections[i].Of.(*v1.Announcement); isAnnouncement {
			selections[i].Fields = fields.OneTermEqualSelector("spec.nodeName", node)
		}
	}
	return selections
}

// run runs the agent's components, and fills its cache.
func (a *agent) run(product *nodeagent.Agent) {
	n := a.node
	for _, component := range product.MakeComponents() {
		a.Go(func() {
			if err := component.Start(a.ctx); err != nil && !a.isKilled {
				n.world.Tell(n.Name, "the agent ends: %v", err)
				n.world.After(0, n.KillAgent)
				n.world.After(restartAfter, func() { n.startAgain(a) })
			}
		})
	}
	a.handler = product.CacheHandler()
	for a.isCut || a.isBlind || a.relist() != nil {
		if a.Wait(a.ctx, time.Second) == tasks.Ended {
			return
		}
	}
	a.follow()
	product.NoteCacheFilled()
}

// startAgain starts an agent instead of one that has ended, if the machine runs or sleeps.
func (n *Node) startAgain(ended *agent) {
	if n.agent != ended || n.isOff && !n.isAsleep {
		return
	}
	if err := n.StartAgent(); err != nil {
		n.world.Tell(n.Name, "the agent does not start: %v", err)
	}
}

// Stop asks the agent to end.
func (a *agent) Stop() {
	a.end()
	a.after(0, func() {}) // which wakes its tasks
}

// KillAgent ends the node's agent at once, if one runs.
func (n *Node) KillAgent() {
	if n.agent != nil {
		n.agent.end()
		n.agent.kill()
	}
}

// pass tells the agent of a change in its cache.
func (a *agent) pass(c apiserver.Change) {
	switch {
	case c.Old == nil:
		a.handler.OnAdd(c.New, false)
	case c.New == nil:
		a.handler.OnDelete(c.Old)
	default:
		a.handler.OnUpdate(c.Old, c.New)
	}
}

// intercept makes requests take their time. They hang while the node is cut off.
func (a *agent) intercept(ctx context.Context, r apiserver.Request, do func() error) error {
	return a.ask(ctx, r, do)
}
