package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/purelb/purelb-operator/nodeagent"
	"github.com/purelb/purelb-operator/nodeagent/link/linktest"
	"github.com/purelb/purelb-operator/nodeagent/neigh"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

const interfaceName = "eth0"

// parallelCalls is how many calls forEachParallel makes at the same time: Nodes and
// Services are created, and agents started, so many at a time.
const parallelCalls = 8

// agents are PureLB's agents of all nodes. Each has a connection of its own to the API
// server and its service account's token, but a kernel and a link in memory.
type agents struct {
	cluster *cluster
	tracker *tracker
	wire    *wire
	shape   shape
	nodes   []*node
}

// node is one node and its agent.
type node struct {
	number int          // from 0
	config *rest.Config // its agent's
	kernel *linktest.Kernel
	stop   context.CancelFunc // nil while the agent is not running
	ended  chan error         // gets what the agent returns when it ends
}

// newAgents creates the Nodes. startAll starts their agents.
func newAgents(ctx context.Context, c *cluster, s shape, count int) (*agents, error) {
	a := &agents{cluster: c, tracker: newTracker(), wire: newWire(), shape: s, nodes: make([]*node, count)}
	return a, forEachParallel(count, func(i int) error {
		config, err := a.createNode(ctx, i)
		a.nodes[i] = &node{number: i, config: config, kernel: a.newKernel(i)}
		return err
	})
}

// forEachParallel calls do for all numbers below count, parallelCalls at a time.
func forEachParallel(count int, do func(int) error) error {
	var wait sync.WaitGroup
	numbers, errs := make(chan int), make([]error, count)
	for range parallelCalls {
		wait.Go(func() {
			for i := range numbers {
				errs[i] = do(i)
			}
		})
	}
	for i := range count {
		numbers <- i
	}
	close(numbers)
	wait.Wait()
	return errors.Join(errs...)
}

// createNode creates a Node, and the pod that its agent's token is bound to.
func (a *agents) createNode(ctx context.Context, i int) (*rest.Config, error) {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: nodeName(i), Labels: map[string]string{corev1.LabelHostname: nodeName(i), corev1.LabelOSStable: "linux"},
		},
	}
	if err := a.cluster.admin.Create(ctx, n); err != nil {
		return nil, fmt.Errorf("create Node: %w", err)
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: a.shape.address(i).Addr().String()}}
	if err := a.cluster.admin.Status().Update(ctx, n); err != nil {
		return nil, fmt.Errorf("make the Node ready: %w", err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "agent-" + nodeName(i)},
		Spec: corev1.PodSpec{
			NodeName: nodeName(i), ServiceAccountName: agentAccount,
			Containers: []corev1.Container{{Name: "agent", Image: "none"}},
		},
	}
	if err := a.cluster.admin.Create(ctx, pod); err != nil {
		return nil, fmt.Errorf("create Pod: %w", err)
	}
	token, err := a.cluster.createToken(ctx, agentAccount, pod)
	return a.cluster.configWith(token), err
}

// newKernel returns a node's kernel as it is after the node's start.
func (a *agents) newKernel(i int) *linktest.Kernel {
	address := a.shape.address(i)
	kernel := linktest.New(plan.NetworkInterface{
		Name: interfaceName, Kind: "device", MAC: neigh.MAC(mac(i)).String(), IsUp: true,
	})
	kernel.Put(plan.Address{Interface: interfaceName, Prefix: address, Valid: plan.Forever, Preferred: plan.Forever})
	kernel.AddRoute(plan.Route{Interface: interfaceName, Destination: address.Masked(), Origin: plan.OriginKernel})
	kernel.AddRoute(plan.Route{
		Interface: interfaceName, Destination: netip.MustParsePrefix("0.0.0.0/0"), Gateway: a.shape.gateway(i),
	})
	return kernel
}

// startAll starts the agents of all nodes.
func (a *agents) startAll(ctx context.Context) error {
	return forEachParallel(len(a.nodes), func(i int) error { return a.start(ctx, a.nodes[i]) })
}

// start starts a node's agent as cmd/agent.go does.
func (a *agents) start(ctx context.Context, n *node) error {
	config := rest.CopyConfig(n.config)
	dialer, unacknowledged := nodeagent.NewDialer()
	config.Dial = dialer.DialContext
	if err := nodeagent.PingAPIServer(); err != nil {
		return err
	}
	name := nodeName(n.number)
	options, err := nodeagent.ManagerOptions(name, namespace, lbNodeAgent)
	if err != nil {
		return err
	}
	options.Metrics = metricsserver.Options{BindAddress: "0"}
	mgr, err := ctrl.NewManager(config, options)
	if err != nil {
		return fmt.Errorf("make the agent of %s: %w", name, err)
	}
	agent := &nodeagent.Agent{
		Client:          trackedClient{mgr.GetClient(), name, a.tracker},
		APIReader:       mgr.GetAPIReader(),
		Kernel:          trackedKernel{n.kernel, name, a.tracker},
		Neighbours:      a.wire.connect(n.number, a.shape.rack(n.number), n.kernel),
		Metrics:         nodeagent.NewMetrics(prometheus.NewRegistry()),
		NodeName:        name,
		Namespace:       namespace,
		LBNodeAgentName: lbNodeAgent,
		Reconnect:       dialer.CloseAll,
		Unacknowledged:  unacknowledged,
	}
	if err := agent.SetupWithManager(mgr); err != nil {
		return fmt.Errorf("set up the agent of %s: %w", name, err)
	}
	ctx, n.stop = context.WithCancel(ctx)
	n.ended = make(chan error, 1)
	go func() {
		n.ended <- mgr.Start(ctx)
		dialer.CloseAll()
	}()
	return nil
}

// kill makes a node die: the node answers nothing on its link any more, and its agent
// ends. kill returns when the agent has ended.
func (a *agents) kill(n *node) error {
	a.wire.unplug(n.number)
	n.stop()
	n.stop = nil
	return <-n.ended
}

// stopAll stops all agents that run.
func (a *agents) stopAll() error {
	var errs []error
	for _, n := range a.nodes {
		if n != nil && n.stop != nil {
			n.stop()
		}
	}
	for _, n := range a.nodes {
		if n != nil && n.stop != nil {
			errs = append(errs, <-n.ended)
			n.stop = nil
		}
	}
	return errors.Join(errs...)
}
