package sim

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/routing"
	"github.com/purelb/purelb-operator/internal/tasks"
	"github.com/purelb/purelb-operator/nodeagent/plan"
	product "github.com/purelb/purelb-operator/nodeagent/speaker"
	"github.com/purelb/purelb-operator/test/sim/apiserver"
)

// speaker is the process of a node's speaker.
type speaker struct {
	process
	follower
	node      *Node
	handler   toolscache.ResourceEventHandler
	libraries []*library
	watcher   *watcher
	product   *product.Speaker
	began     time.Time
	ctx       context.Context
	end       context.CancelFunc
}

// StartSpeaker starts a speaker, beside one that is to end.
func (n *Node) StartSpeaker() error {
	s := &speaker{process: process{world: n.world, clock: n.Clock}, node: n, began: time.Now()}
	s.follower = newFollower(&s.process, n.Name+".bgp", n.server, s.pass)
	s.isCut = n.isCut || n.isAgentStarved
	s.ctx, s.end = context.WithCancel(log.IntoContext(context.Background(), logr.Discard()))
	var err error
	s.cache, err = n.server.NewCache(apiserver.Selection{
		Of: &v1.NodeRouting{}, Selects: func(obj client.Object) bool {
			r, isRouting := obj.(*v1.NodeRouting)
			return isRouting && r.Spec.NodeName == n.Name
		},
	})
	if err != nil {
		return err
	}
	s.product = &product.Speaker{
		Client: n.server.NewClient(s.ask, s.cache), Kernel: speakerKernel{s},
		NewBGPServer: func(changed func()) product.BGPServer {
			l := &library{speaker: s, changed: changed}
			s.libraries = append(s.libraries, l)
			return l
		},
		StartBFD: func(_ context.Context, changed func(), failed func(netip.Addr)) (product.BFD, error) {
			s.watcher = &watcher{speaker: s, changed: changed, failed: failed}
			return s.watcher, nil
		},
		Hello:         func(netip.Addr, netip.Addr) error { return nil },
		ProxyForwards: func(context.Context) bool { return true },
		Metrics:       product.NewMetrics(prometheus.NewRegistry()),
		Tasks:         &s.process, Machine: machine{disk{&s.process, n}}, Follow: s.begin,
		NodeName: n.Name, Namespace: Namespace, StateDir: "speaker",
	}
	if n.isAsleep {
		s.Pause()
	}
	n.speakers = append(n.speakers, s)
	s.product.Prepare()
	s.Go(func() {
		err := s.product.Start(s.ctx)
		if err != nil && !s.isKilled {
			n.world.Tell(s.name, "the speaker ends: %v", err)
		}
		n.world.After(0, s.Kill)
	})
	return nil
}

// begin begins to tell the speaker of its NodeRouting.
func (s *speaker) begin(ctx context.Context, handler toolscache.ResourceEventHandler, synced func()) error {
	s.handler = handler
	s.Go(func() {
		for s.isCut || s.relist() != nil {
			if s.Wait(ctx, time.Second) == tasks.Ended {
				return
			}
		}
		s.follow()
		synced()
	})
	return nil
}

// pass tells the speaker of a change.
func (s *speaker) pass(c apiserver.Change) {
	switch {
	case c.Old == nil:
		s.handler.OnAdd(c.New, false)
	case c.New == nil:
		s.handler.OnDelete(c.Old)
	default:
		s.handler.OnUpdate(c.Old, c.New)
	}
}

// Stop asks the speaker to end.
func (s *speaker) Stop() {
	s.end()
	s.after(0, func() {}) // which wakes its tasks
}

// Kill ends the speaker at once. The kernel closes its connections.
func (s *speaker) Kill() {
	if s.isKilled {
		return
	}
	s.end()
	s.kill()
	for _, l := range s.libraries {
		l.end(false)
	}
	s.node.speakers = slices.DeleteFunc(s.node.speakers, func(other *speaker) bool { return other == s })
}

// killSpeakers ends the node's speakers at once.
func (n *Node) killSpeakers() {
	for _, s := range slices.Clone(n.speakers) {
		s.Kill()
	}
}

// Speaks reports whether a speaker of the node runs.
func (n *Node) Speaks() bool { return len(n.speakers) > 0 }

// machine is the node as its speaker sees it.
type machine struct{ disk }

// Lock waits until the speakers of before have ended.
func (m machine) Lock(ctx context.Context) error {
	for !m.isKilled && &m.node.speakers[0].process != m.process {
		if m.Wait(ctx, 50*time.Millisecond) == tasks.Ended {
			return ctx.Err()
		}
	}
	return nil
}

func (m machine) BootID() (string, error) { return fmt.Sprint("boot ", m.node.boots), nil }

func (m machine) Replace(path string, text []byte) error { return m.ReplaceDurably(path, text) }

// speakerKernel is the kernel of a node as its speaker sees it.
type speakerKernel struct{ speaker *speaker }

func (k speakerKernel) Addresses(iface string) ([]plan.Address, error) {
	observed, err := k.speaker.node.Kernel.Observe()
	return slices.DeleteFunc(observed.Addresses, func(a plan.Address) bool { return a.Interface != iface }), err
}

func (k speakerKernel) AgentAddresses(iface string) ([]netip.Prefix, error) {
	addresses, err := k.Addresses(iface)
	var own []netip.Prefix
	for _, a := range addresses {
		if a.IsOurs {
			own = append(own, a.Prefix)
		}
	}
	return own, err
}

// Watch makes changed be called soon after each change.
func (k speakerKernel) Watch(ctx context.Context, changed func()) error {
	s := k.speaker
	defer s.node.Kernel.Subscribe(func() { s.after(s.world.Between(minSlice, maxSlice), changed) })()
	s.Wait(ctx, tasks.Forever)
	return nil
}

// GatewaysFrom returns none: frames of the simulation know the way.
func (speakerKernel) GatewaysFrom(netip.Addr) ([]netip.Addr, error) { return nil, nil }

func (speakerKernel) RouterAddressOn(string) (netip.Addr, error) {
	return netip.Addr{}, errors.New("no router")
}

// AddRouters connects routers to the link of the nodes, whose speakers run as the manager's DaemonSet says.
func (c *Cluster) AddRouters(addrs ...netip.Addr) {
	for i, addr := range addrs {
		c.Routers = append(c.Routers, c.NewRouter(c.Segments[0], fmt.Sprint("router", i+1), addr))
	}
	for _, n := range c.Nodes {
		n.routers = c.Routers
	}
	c.followDaemonSet()
}

// followDaemonSet starts and stops speakers, as kubelets do.
func (c *Cluster) followDaemonSet() {
	key := client.ObjectKey{Namespace: Namespace, Name: routing.SpeakerName(Agents)}
	isWanted := c.Admin.Get(context.Background(), key, &appsv1.DaemonSet{}) == nil
	for _, n := range c.Nodes {
		switch isWatching := !n.isOff && !n.isCut; {
		case !isWatching || n.isSpeakerKept:
		case isWanted && !n.Speaks():
			if err := n.StartSpeaker(); err != nil {
				c.Tell(n.Name, "the speaker does not start: %v", err)
			}
		case !isWanted && n.Speaks():
			n.stopSpeaker()
		}
	}
	c.After(restartAfter, c.followDaemonSet)
}

// stopSpeaker stops the node's speaker as the kubelet does, which waits for a while.
func (n *Node) stopSpeaker() {
	for _, s := range n.speakers {
		if s.ctx.Err() == nil {
			s.Stop()
			const patience = 30 * time.Second
			n.world.After(patience, s.Kill)
		}
	}
}
