package sim

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/sim/apiserver"
)

// Cluster is a World with an API server, and nodes on a link of which each has an agent.
type Cluster struct {
	*World
	Server *apiserver.Server
	// Admin is a client of a user who may do everything, at once.
	Admin *apiserver.Client
	Link  *Link
	Nodes []*Node
	// client is where a client is connected to the link.
	client *Port
	// WireFailover is the feature gate of that name.
	WireFailover bool
	// OnReady, if set, is called when a node becomes ready, or is ready no more.
	OnReady func(n *Node, isReady bool)
	// managers are all that have ever run.
	managers []*Manager
	// isAway means that the API server answers nobody but the Admin.
	isAway bool
}

// NewCluster returns a cluster with nodes, none of which runs an agent yet, and a ServiceGroup of Local
// addresses of their link.
func NewCluster(w *World, nodes int) (*Cluster, error) {
	server, err := apiserver.NewCluster()
	if err != nil {
		return nil, err
	}
	c := &Cluster{World: w, Server: server, Admin: server.NewClient(nil, nil), Link: w.NewLink()}
	c.client = c.Link.Connect("client", func([]byte) {})
	group := &v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: "default"}}
	group.Spec.Local = &v1.LocalPools{
		PoolSet: v1.PoolSet{V4Pools: []v1.AddressPool{{Pool: "192.0.2.100-192.0.2.119", Subnet: "192.0.2.0/24"}}},
	}
	agents := &v1.LBNodeAgent{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: Agents}}
	objects := []client.Object{group, agents}
	for i := range nodes {
		number := i + 1
		own := netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + number)}), 24)
		n := w.NewNode(server, c.Link, number, netip.AddrFrom4([4]byte{192, 0, 2, 1}), own)
		c.Nodes = append(c.Nodes, n)
		object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: map[string]string{
			corev1.LabelHostname: n.Name, v1.LabelAgent: Agents,
		}}}
		objects = append(objects, object)
	}
	for _, object := range objects {
		if err := c.Admin.Create(context.Background(), object); err != nil {
			return nil, fmt.Errorf("create %s: %w", object.GetName(), err)
		}
	}
	for _, n := range c.Nodes {
		n.couldReport, n.isReady = true, true
		if err := c.setReady(n, true); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// setReady makes a Node object say that the node is ready, or that it is not.
func (c *Cluster) setReady(n *Node, isReady bool) error {
	object := &corev1.Node{}
	if err := c.Admin.Get(context.Background(), client.ObjectKey{Name: n.Name}, object); err != nil {
		return err
	}
	status := corev1.ConditionUnknown
	if isReady {
		status = corev1.ConditionTrue
	}
	object.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
	return c.Admin.Status().Update(context.Background(), object)
}

// How long the kubelet is silent until its node is not ready, and how long it takes from then on that it
// can report until the node is ready again.
const notReadyAfter, readyAfter = 40 * time.Second, 5 * time.Second

// followKubelets makes Node objects say whether their kubelets report.
func (c *Cluster) followKubelets() {
	for _, n := range c.Nodes {
		canReport := !n.isOff && !n.isCut
		if canReport != n.couldReport {
			n.couldReport, n.couldReportSince = canReport, time.Now()
		}
		wait := notReadyAfter
		if canReport {
			wait = readyAfter
		}
		if n.isReady != canReport && time.Since(n.couldReportSince) >= wait && !c.isAway {
			c.Tell("", "ready: %s %v", n.Name, canReport)
			if err := c.setReady(n, canReport); err != nil {
				c.Tell("", "%v", err)
			}
			n.isReady = canReport
			if c.OnReady != nil {
				c.OnReady(n, canReport)
			}
		}
	}
	c.After(time.Second, c.followKubelets)
}

// Start starts a manager and all agents.
func (c *Cluster) Start() error {
	c.followKubelets()
	if err := c.StartManager(); err != nil {
		return err
	}
	for _, n := range c.Nodes {
		if err := n.StartAgent(); err != nil {
			return err
		}
	}
	return nil
}

// StartManager starts a manager that leads.
func (c *Cluster) StartManager() error {
	m, err := c.World.StartManager(fmt.Sprint("manager", len(c.managers)+1), c.Server, ManagerOptions{
		NamesSuccessors: c.WireFailover,
		Intercept: func(_ context.Context, _ apiserver.Request, do func() error) error {
			if c.isAway {
				return errCut
			}
			return do()
		},
	})
	if err == nil {
		c.managers = append(c.managers, m)
	}
	return err
}

// Leader returns the manager that was started last.
func (c *Cluster) Leader() *Manager { return c.managers[len(c.managers)-1] }

// SetAway makes the API server answer nobody, or all again.
func (c *Cluster) SetAway(isAway bool) {
	c.isAway = isAway
	c.Leader().setCut(isAway)
	for _, n := range c.Nodes {
		n.SetCut(isAway)
	}
}

// SetExcluded asks for a node to be left by all addresses, or allows it to have some again.
func (c *Cluster) SetExcluded(n *Node, isExcluded bool) error {
	object := &corev1.Node{}
	if err := c.Admin.Get(context.Background(), client.ObjectKey{Name: n.Name}, object); err != nil {
		return err
	}
	delete(object.Labels, corev1.LabelNodeExcludeBalancers)
	if isExcluded {
		object.Labels[corev1.LabelNodeExcludeBalancers] = ""
	}
	return c.Admin.Update(context.Background(), object)
}

// End ends everything that runs.
func (c *Cluster) End() {
	for _, m := range c.managers {
		m.Kill()
	}
	for _, n := range c.Nodes {
		n.KillAgent()
	}
}

// Tenants is the namespace of the Services.
const Tenants = "test"

// CreateService creates a Service of type LoadBalancer.
func (c *Cluster) CreateService(name string) error {
	return c.Admin.Create(context.Background(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: Tenants, Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	})
}

// DeleteService deletes a Service.
func (c *Cluster) DeleteService(name string) error {
	return c.Admin.Delete(
		context.Background(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: Tenants, Name: name}},
	)
}

// Addresses returns the addresses of a Service.
func (c *Cluster) Addresses(name string) ([]netip.Addr, error) {
	svc := &corev1.Service{}
	if err := c.Admin.Get(context.Background(), client.ObjectKey{Namespace: Tenants, Name: name}, svc); err != nil {
		return nil, err
	}
	var addrs []netip.Addr
	for _, ingress := range svc.Status.LoadBalancer.Ingress {
		addr, err := netip.ParseAddr(ingress.IP)
		if err != nil {
			return nil, err
		}
		addrs = append(addrs, addr)
	}
	return addrs, nil
}

// HoldersOf returns the nodes that would answer for an address.
func (c *Cluster) HoldersOf(addr netip.Addr) []*Node {
	var holders []*Node
	for _, n := range c.Nodes {
		if n.Holds(addr) {
			holders = append(holders, n)
		}
	}
	return holders
}

// reachesOne reports whether one of some nodes and the client hear each other.
func (c *Cluster) reachesOne(nodes []*Node) bool {
	return slices.ContainsFunc(nodes, func(n *Node) bool {
		return !n.port.IsDown && !n.port.isCutFrom[c.client] && !c.client.isCutFrom[n.port]
	})
}

// Settled is how long a cluster may take until all is as it is to be, once nothing is broken any more.
const Settled = time.Minute
