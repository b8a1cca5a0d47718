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
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/purelb/purelb-operator/nodeagent"
	"github.com/purelb/purelb-operator/nodeagent/link/linktest"
	"github.com/purelb/purelb-operator/nodeagent/neigh"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

const interfaceName = "eth0"

// startsAtOnce is how many nodes are made, and agents started, at the same time.
const startsAtOnce = 8

// agents is the agents of all nodes: the real ones, each with a connection of
// its own and its service account's token, but with a kernel and a link in
// memory.
type agents struct {
	cluster *cluster
	tracker *tracker
	wire    *wire
	shape   shape
	nodes   []*node
}

// node is one node and its agent.
type node struct {
	number int
	config *rest.Config
	kernel *linktest.Kernel
	stop   context.CancelFunc // nil while the agent is not running
	ended  chan error
}

// newAgents makes the Nodes, without agents.
func newAgents(ctx context.Context, c *cluster, s shape, count int) (*agents, error) {
	a := &agents{cluster: c, tracker: newTracker(), wire: newWire(), shape: s, nodes: make([]*node, count)}
	return a, each(count, func(i int) error {
		config, err := a.makeNode(ctx, i)
		a.nodes[i] = &node{number: i, config: config, kernel: a.newKernel(i)}
		return err
	})
}

// each calls do for all numbers below count, some at once.
func each(count int, do func(int) error) error {
	var wait sync.WaitGroup
	numbers, errs := make(chan int), make([]error, count)
	for range startsAtOnce {
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

// makeNode makes a Node, and the pod that its agent's token is for.
func (a *agents) makeNode(ctx context.Context, i int) (*rest.Config, error) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i), Labels: map[string]string{corev1.LabelHostname: nodeName(i), corev1.LabelOSStable: "linux"}}}
	if err := a.cluster.admin.Create(ctx, n); err != nil {
		return nil, fmt.Errorf("make Node: %w", err)
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: a.shape.address(i).Addr().String()}}
	if err := a.cluster.admin.Status().Update(ctx, n); err != nil {
		return nil, fmt.Errorf("make Node ready: %w", err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "agent-" + nodeName(i)},
		Spec: corev1.PodSpec{
			NodeName: nodeName(i), ServiceAccountName: agentAccount,
			Containers: []corev1.Container{{Name: "agent", Image: "none"}},
		},
	}
	if err := a.cluster.admin.Create(ctx, pod); err != nil {
		return nil, fmt.Errorf("make Pod: %w", err)
	}
	token, err := a.cluster.token(ctx, agentAccount, pod)
	return a.cluster.as(token), err
}

// newKernel is a node's kernel after its start.
func (a *agents) newKernel(i int) *linktest.Kernel {
	address := a.shape.address(i)
	kernel := linktest.New(plan.Link{Name: interfaceName, Kind: "device", MAC: neigh.MAC(mac(i)).String(), Up: true})
	kernel.Put(plan.Address{Interface: interfaceName, Prefix: address, Valid: plan.Forever, Preferred: plan.Forever})
	kernel.Route(plan.Route{Interface: interfaceName, Destination: address.Masked(), Origin: plan.OriginKernel})
	kernel.Route(plan.Route{Interface: interfaceName, Destination: netip.MustParsePrefix("0.0.0.0/0"), Gateway: a.shape.gateway(i)})
	return kernel
}

// startAll starts the agents.
func (a *agents) startAll(ctx context.Context) error {
	return each(len(a.nodes), func(i int) error { return a.start(ctx, a.nodes[i]) })
}

// start starts a node's agent, as the program does.
func (a *agents) start(ctx context.Context, n *node) error {
	config := rest.CopyConfig(n.config)
	dialer := nodeagent.NewDialer()
	config.Dial = dialer.DialContext
	name := nodeName(n.number)
	options, err := nodeagent.ManagerOptions(name, namespace, lbNodeAgent)
	if err != nil {
		return err
	}
	options.Metrics = metricsserver.Options{BindAddress: "0"}
	options.Controller.SkipNameValidation = ptr.To(true)
	mgr, err := ctrl.NewManager(config, options)
	if err != nil {
		return fmt.Errorf("make the agent of %s: %w", name, err)
	}
	agent := &nodeagent.Agent{
		Client:      reporting{mgr.GetClient(), name, a.tracker},
		Live:        mgr.GetAPIReader(),
		Kernel:      telling{n.kernel, name, a.tracker},
		Neighbours:  a.wire.connect(n.number, a.shape.rack(n.number), n.kernel),
		Metrics:     nodeagent.NewMetrics(prometheus.NewRegistry()),
		NodeName:    name,
		Namespace:   namespace,
		LBNodeAgent: lbNodeAgent,
		Reconnect:   dialer.CloseAll,
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

// kill makes a node die: nobody hears of it any more. It returns when its agent
// has ended.
func (a *agents) kill(n *node) error {
	a.wire.unplug(n.number)
	n.stop()
	n.stop = nil
	return <-n.ended
}

// stopAll stops the agents that run.
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
