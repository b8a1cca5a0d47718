package sim

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/sim/apiserver"
)

// Cluster is a World with an API server, and nodes on links, of which each has an agent.
type Cluster struct {
	*World
	Server *apiserver.Server
	// Admin is a client of a user who may do everything, at once.
	Admin *apiserver.Client
	// Segments are the links, one or two.
	Segments []*Segment
	Nodes    []*Node
	// WireFailover is the feature gate of that name: on, unless a history turns it off.
	WireFailover bool
	// SlowLeases is the feature gate of that name.
	SlowLeases bool
	// OnReady, if set, is called when a node becomes ready, or is ready no more.
	OnReady func(n *Node, isReady bool)
	// Replicas are those of the manager.
	Replicas []*Replica
	// hasWrongClocks means that the nodes' clocks are wrong, and change.
	hasWrongClocks bool
	// Routers are those on the link.
	Routers []*Router
	// NetBox is the cluster's; nil if it has none.
	NetBox *NetBox
	// isAway means that the API server answers nobody but the Admin.
	isAway bool
}

// The ServiceGroups of a cluster: one of Local addresses of each link, and one of Virtual addresses.
const (
	GroupLocal   = "default"
	GroupSecond  = "second"
	GroupVirtual = "remote"
)

// poolOf returns a pool of 20 addresses of a subnet.
func poolOf(subnet netip.Prefix, first, last string) []v1.AddressPool {
	start := strings.TrimSuffix(subnet.Addr().String(), "0")
	return []v1.AddressPool{{Pool: start + first + "-" + start + last, Subnet: subnet.String()}}
}

// serviceGroups returns the ServiceGroups of a cluster with some segments.
func serviceGroups(segments []*Segment) []client.Object {
	var groups []client.Object
	for _, s := range segments {
		local := &v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: s.Group}}
		local.Spec.Local = &v1.LocalPools{PoolSet: v1.PoolSet{
			V4Pools: poolOf(s.subnet, "100", "119"), V6Pools: poolOf(s.subnet6, "100", "113"),
		}}
		groups = append(groups, local)
	}
	virtual := &v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: GroupVirtual}}
	virtual.Spec.Remote = &v1.RemotePools{PoolSet: v1.PoolSet{
		V4Pools: []v1.AddressPool{{Pool: "198.51.100.100-198.51.100.119", Subnet: "198.51.100.0/24"}},
		V6Pools: []v1.AddressPool{{Pool: "2001:db8:2::100-2001:db8:2::113", Subnet: "2001:db8:2::/64"}},
	}}
	return append(groups, virtual)
}

// NewCluster returns a cluster with nodes on one link, none of which runs an agent yet, and its ServiceGroups.
func NewCluster(w *World, nodes int) (*Cluster, error) { return newCluster(w, make([][]int, nodes)) }

// NewTwoLinkCluster returns a cluster with a node on each of two links, and two nodes on both.
func NewTwoLinkCluster(w *World) (*Cluster, error) {
	return newCluster(w, [][]int{{0}, {0, 1}, {0, 1}, {1}})
}

// newCluster returns a cluster with nodes that have an interface on each of some segments, by their numbers;
// on the first one, if there are none.
func newCluster(w *World, nodes [][]int) (*Cluster, error) {
	server, err := apiserver.NewCluster()
	if err != nil {
		return nil, err
	}
	c := &Cluster{
		World: w, Server: server, Admin: server.NewClient(nil, nil), Segments: []*Segment{w.newSegment(0)},
		WireFailover: true,
	}
	agents := &v1.LBNodeAgent{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: Agents}}
	if slices.ContainsFunc(nodes, func(on []int) bool { return slices.Contains(on, 1) }) {
		c.Segments = append(c.Segments, w.newSegment(1))
		agents.Spec.Local = &v1.LBNodeAgentLocal{LocalInterface: "eth.*"}
	}
	objects := append(serviceGroups(c.Segments), agents)
	for i, on := range nodes {
		segments := c.Segments[:1]
		if len(on) > 0 {
			segments = nil
		}
		for _, number := range on {
			segments = append(segments, c.Segments[number])
		}
		n := w.NewNode(server, i+1, segments...)
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

// Start starts two managers and all agents.
func (c *Cluster) Start() error {
	c.followKubelets()
	for i := range replicas {
		r := &Replica{cluster: c, number: i + 1, node: c.Nodes[i%len(c.Nodes)]}
		c.Replicas = append(c.Replicas, r)
		if err := r.start(); err != nil {
			return err
		}
	}
	for _, n := range c.Nodes {
		if err := n.StartAgent(); err != nil {
			return err
		}
	}
	return nil
}

// replicas is how many managers run.
const replicas = 2

// Replica is a pod of the manager on a node.
type Replica struct {
	cluster *Cluster
	number  int
	node    *Node
	*Manager
	starts int
	// isCutOff means that the pod alone does not reach the API server.
	isCutOff bool
}

// start starts the replica's program, which starts again a while after it has ended by itself.
func (r *Replica) start() error {
	c := r.cluster
	r.starts++
	name := fmt.Sprintf("manager%d", r.number)
	if r.starts > 1 { // an identity is used once
		name += fmt.Sprintf(".%d", r.starts)
	}
	var err error
	r.Manager, err = c.StartReplica(
		name, c.Server, ManagerOptions{
			NamesSuccessors: c.WireFailover, SlowsLeases: c.SlowLeases, Clock: r.node.Clock,
			HasRouters: len(c.Routers) > 0, NetBox: c.NetBox,
		}, func() { c.After(restartAfter, r.startAgain) },
	)
	if err == nil {
		r.reach()
	}
	return err
}

// startAgain starts the replica's program if it does not run, and its node does.
func (r *Replica) startAgain() {
	if !r.isKilled || r.node.isOff {
		return
	}
	if err := r.start(); err != nil {
		r.cluster.Tell("", "%s does not start: %v", r.name, err)
	}
}

// reach makes the replica reach the API server, or not.
func (r *Replica) reach() {
	if isCut := r.isCutOff || r.node.isCut; isCut != r.isCut && !r.isKilled {
		r.setCut(isCut)
	}
}

// Crash kills the replica's program. It starts again.
func (r *Replica) Crash() {
	r.Kill()
	r.cluster.After(restartAfter, r.startAgain)
}

// SetCut cuts the replica off the API server, or connects it again.
func (r *Replica) SetCut(isCut bool) {
	r.isCutOff = isCut
	r.reach()
}

// SetCut cuts a node off the API server, or connects it again, and with it the managers that run there.
func (c *Cluster) SetCut(n *Node, isCut bool) {
	n.SetCut(isCut)
	for _, r := range c.Replicas {
		r.reach()
	}
}

// PowerOff ends all that a node does.
func (c *Cluster) PowerOff(n *Node) {
	n.PowerOff()
	for _, r := range c.Replicas {
		if r.node == n {
			r.Kill()
		}
	}
}

// Sleep makes a machine sleep, and Wake lets it go on, with all that runs there.
func (c *Cluster) Sleep(n *Node) {
	n.Sleep()
	for _, r := range c.Replicas {
		if r.node == n {
			r.Pause()
		}
	}
}

// Wake ends what Sleep began.
func (c *Cluster) Wake(n *Node) {
	n.Wake()
	for _, r := range c.Replicas {
		if r.node == n {
			r.process.Resume()
			c.After(restartAfter, r.startAgain)
		}
	}
}

// PowerOn makes a node boot, and start what runs there.
func (c *Cluster) PowerOn(n *Node) error {
	for _, r := range c.Replicas {
		if r.node == n {
			c.After(restartAfter, r.startAgain)
		}
	}
	return n.PowerOn()
}

// SetAway makes the API server answer nobody, or all again.
func (c *Cluster) SetAway(isAway bool) {
	c.isAway = isAway
	for _, n := range c.Nodes {
		c.SetCut(n, isAway)
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
	for _, r := range c.Replicas {
		r.Kill()
	}
	for _, n := range c.Nodes {
		n.KillAgent()
		n.killSpeakers()
	}
}

// Tenants is the namespace of the Services.
const Tenants = "test"

// Service is what a user wants of a Service of type LoadBalancer.
type Service struct {
	Name     string
	Group    string
	Families []corev1.IPFamily
	// IsPolicyLocal means that nodes without an endpoint of it are to have none of its addresses.
	IsPolicyLocal bool
	// WritesPolicyLocal means that its user writes policy Local, and does not say that this is meant for Local
	// addresses, too: of them it becomes Cluster.
	WritesPolicyLocal bool
	// Address, if it is valid, is what the user asks for.
	Address netip.Addr
	// SharingKey is by which it shares its address; "" if it does not.
	SharingKey string
	// Port is 80 if it is 0.
	Port int32
}

// CreateService creates a Service, without endpoints, and returns its UID.
func (c *Cluster) CreateService(s Service) (types.UID, error) {
	policy, traffic := corev1.IPFamilyPolicySingleStack, corev1.ServiceExternalTrafficPolicyCluster
	if len(s.Families) > 1 {
		policy = corev1.IPFamilyPolicyRequireDualStack
	}
	annotations := map[string]string{v1.AnnotationServiceGroup: s.Group}
	if s.IsPolicyLocal || s.WritesPolicyLocal {
		traffic = corev1.ServiceExternalTrafficPolicyLocal
	}
	if s.IsPolicyLocal {
		annotations[v1.AnnotationAllowLocal] = "true"
	}
	if s.Address.IsValid() {
		annotations[v1.AnnotationAddresses] = s.Address.String()
	}
	if s.SharingKey != "" {
		annotations[v1.AnnotationAllowSharedIP] = s.SharingKey
	}
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: Tenants, Name: s.Name, Annotations: annotations},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, IPFamilies: s.Families, IPFamilyPolicy: &policy,
			ExternalTrafficPolicy: traffic, ClusterIP: "10.96.0.1",
			Ports: []corev1.ServicePort{{Port: cmp.Or(s.Port, 80), Protocol: corev1.ProtocolTCP}},
		},
	}
	err := c.Admin.Create(context.Background(), svc)
	return svc.UID, err
}

// SetEndpoints makes a Service have a ready endpoint on each of some nodes, and no others.
func (c *Cluster) SetEndpoints(s Service, nodes []*Node) error {
	for _, family := range s.Families {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: Tenants, Name: s.Name + "-" + strings.ToLower(string(family)),
				Labels: map[string]string{discoveryv1.LabelServiceName: s.Name},
			},
			AddressType: discoveryv1.AddressType(family),
		}
		for _, n := range nodes {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{"10.244.0.1"}, NodeName: &n.Name,
				Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
			})
		}
		err := c.Admin.Update(context.Background(), slice)
		if apierrors.IsNotFound(err) {
			err = c.Admin.Create(context.Background(), slice)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// DeleteService deletes a Service and its endpoints.
func (c *Cluster) DeleteService(s Service) error {
	object := metav1.ObjectMeta{Namespace: Tenants, Name: s.Name}
	if err := c.Admin.Delete(context.Background(), &corev1.Service{ObjectMeta: object}); err != nil {
		return err
	}
	for _, family := range s.Families {
		object.Name = s.Name + "-" + strings.ToLower(string(family))
		if err := c.Admin.Delete(context.Background(), &discoveryv1.EndpointSlice{ObjectMeta: object}); err != nil {
			return err
		}
	}
	return nil
}

// Addresses returns the addresses of a Service.
func (c *Cluster) Addresses(name string) ([]netip.Addr, error) {
	svc := &corev1.Service{}
	if err := c.Admin.Get(context.Background(), client.ObjectKey{Namespace: Tenants, Name: name}, svc); err != nil {
		return nil, err
	}
	return addressesOf(svc)
}

// addressesOf returns the addresses that a Service shows.
func addressesOf(svc *corev1.Service) ([]netip.Addr, error) {
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

// PolicyOf returns the external traffic policy of a Service.
func (c *Cluster) PolicyOf(name string) (corev1.ServiceExternalTrafficPolicy, error) {
	svc := &corev1.Service{}
	err := c.Admin.Get(context.Background(), client.ObjectKey{Namespace: Tenants, Name: name}, svc)
	return svc.Spec.ExternalTrafficPolicy, err
}

// SegmentOf returns the segment of an address; the first one, if it is of none.
func (c *Cluster) SegmentOf(addr netip.Addr) *Segment {
	for _, s := range c.Segments {
		if s.contains(addr) {
			return s
		}
	}
	return c.Segments[0]
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

// Settled is how long a cluster may take until all is as it is to be, once nothing is broken any more.
const Settled = time.Minute
