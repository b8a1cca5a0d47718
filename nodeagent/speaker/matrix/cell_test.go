//go:build routers

package matrix

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

const (
	serviceCount   = 4 // of each cell; the client asks for the addresses of the first
	speakersSecret = "purelb-speaker-default"
)

// cell is what the trials of a cell have in common.
type cell struct {
	*world
	row     Row
	column  Column
	routers *routers
	peer    *v1.BGPPeer
	group   *v1.ServiceGroup
	// addresses are those that the client asks for, one of each family, and services how many Services there are.
	addresses []netip.Addr
	services  int
}

// newCell prepares a cell, until the test ends.
func newCell(t testing.TB, w *world, row Row, column Column) *cell {
	t.Helper()
	c := &cell{world: w, row: row, column: column}
	t.Cleanup(func() { c.end(t) })
	c.group = newGroup("matrix", "198.51.100", "2001:db8:1:")
	w.create(t, c.group)
	c.addresses = c.addService(t, 0)
	for i := 1; i < serviceCount; i++ {
		c.addService(t, i)
	}
	s := settings{isRange: row.IsRange}
	if row.HasPassword {
		s.password = "first"
		w.create(t, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "router"},
			Data:       map[string][]byte{"password": []byte(s.password)},
		})
	}
	c.routers = w.startRouters(t, column, s)
	c.peer = c.newPeer("router")
	w.create(t, c.peer)
	w.eventually(t, "both nodes have a NodeRouting", func() bool { return len(w.routings(t)) == len(w.nodes) })
	for _, n := range w.nodes {
		_ = os.Remove(n.dir + "/speaker.json")
		if row.HasPassword {
			c.mountPasswords(t, n, s.password)
		}
		n.speaker.start(t)
	}
	watch := w.watchRoutes(t, c.addresses)
	defer watch.stop()
	c.isWellSoon(t, watch)
	return c
}

// end removes what newCell has made.
func (c *cell) end(t testing.TB) {
	t.Helper()
	c.door.shut()
	c.door.open(t)
	ctx := context.WithoutCancel(t.Context())
	for _, n := range c.nodes {
		n.refuses.Store(false)
		n.speaker.end(syscall.SIGKILL)
		c.setPort(t, n, "up")
		n.startUnit(t)
		if !n.agent.runs() {
			n.agent.start(t)
		}
		c.label(t, n, false)
		files, _ := filepath.Glob(n.dir + "/passwords/*")
		for _, file := range files {
			_ = os.Remove(file)
		}
	}
	if !c.manager.runs() {
		c.manager.start(t)
	}
	in := client.InNamespace(namespace)
	for _, kind := range []client.Object{&v1.BGPPeer{}, &v1.ServiceGroup{}} {
		if err := c.api.DeleteAllOf(ctx, kind, in); err != nil {
			t.Error(err)
		}
	}
	c.remove(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "router"}})
	services := &corev1.ServiceList{}
	if err := c.api.List(ctx, services, client.InNamespace("default")); err != nil {
		t.Error(err)
	}
	for i := range services.Items {
		if services.Items[i].Name != "kubernetes" {
			c.remove(t, &services.Items[i])
		}
	}
	if err := c.api.DeleteAllOf(ctx, &discoveryv1.EndpointSlice{}, client.InNamespace("default"),
		client.MatchingLabels{"matrix": "true"}); err != nil {
		t.Error(err)
	}
	c.eventually(t, "nothing is left of the cell", func() bool {
		groups := &v1.ServiceGroupList{}
		if c.api.List(ctx, services, client.InNamespace("default")) != nil || c.api.List(ctx, groups, in) != nil {
			return false
		}
		return len(c.routings(t)) == 0 && len(services.Items) == 1 && len(groups.Items) == 0
	})
}

// newGroup has the remote pools of all Services, with a route for each address.
func newGroup(name, ipv4, ipv6 string) *v1.ServiceGroup {
	return &v1.ServiceGroup{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1.ServiceGroupSpec{Remote: &v1.RemotePools{PoolSet: v1.PoolSet{
			V4Pools: []v1.AddressPool{{
				Subnet: ipv4 + ".0/24", Pool: ipv4 + ".1-" + ipv4 + ".250", Aggregation: "/32",
			}},
			V6Pools: []v1.AddressPool{{Subnet: ipv6 + ":/64", Pool: ipv6 + ":1-" + ipv6 + ":ffff", Aggregation: "/128"}},
		}}},
	}
}

// newPeer is the BGPPeer of the column.
func (c *cell) newPeer(name string) *v1.BGPPeer {
	p := &v1.BGPPeer{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1.BGPPeerSpec{
			PeerASN: v1.PeerASN(fmt.Sprint(c.column.autonomousSystem())), MyASN: ptr.To[int64](65001),
			PeerAddress: c.column.peerAddress(), Families: c.ipFamilies(),
		},
	}
	if c.column.BFD {
		p.Spec.BFD = &v1.BGPBFD{
			Interval: &metav1.Duration{Duration: 300 * time.Millisecond}, Multiplier: ptr.To[int32](3),
		}
	}
	if c.column.Kind == Multihop {
		p.Spec.EBGPMultihop = ptr.To[int32](2)
	}
	if c.row.HasPassword {
		p.Spec.PasswordSecretRef = &v1.SecretKeyRef{Name: "router", Key: "password"}
	}
	return p
}

func (c *cell) ipFamilies() []v1.IPFamily {
	var all []v1.IPFamily
	for _, family := range c.column.families() {
		all = append(all, v1.IPFamily(strings.Replace(family, "ipv", "IPv", 1)))
	}
	return all
}

// newService is a Service with an address of each family of the column.
func (c *cell) newService(name, group string) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, Annotations: map[string]string{v1.AnnotationServiceGroup: group},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicySingleStack),
			Ports: []corev1.ServicePort{{Port: serverPort, Protocol: corev1.ProtocolUDP}},
		},
	}
	for _, family := range c.ipFamilies() {
		s.Spec.IPFamilies = append(s.Spec.IPFamilies, corev1.IPFamily(family))
	}
	if len(s.Spec.IPFamilies) > 1 {
		s.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyRequireDualStack)
	}
	return s
}

// addService creates the Service with a number, and returns its addresses once they are announced.
func (c *cell) addService(t testing.TB, number int) []netip.Addr {
	t.Helper()
	s := c.newService(fmt.Sprintf("service%d", number), c.group.Name)
	if c.row.IsLocal {
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	c.create(t, s)
	c.services++
	if c.row.IsLocal {
		c.setEndpoints(t, s, c.nodes...)
	}
	var addresses []netip.Addr
	c.eventually(t, "the Service has its addresses", func() bool {
		if c.api.Get(t.Context(), client.ObjectKeyFromObject(s), s) != nil {
			return false
		}
		addresses = nil
		for _, one := range s.Status.LoadBalancer.Ingress {
			if a, err := netip.ParseAddr(one.IP); err == nil {
				addresses = append(addresses, a)
			}
		}
		return len(addresses) == len(c.ipFamilies())
	})
	return addresses
}

// setEndpoints gives a Service a ready endpoint on each of these nodes, and on no other.
func (c *cell) setEndpoints(t testing.TB, s *corev1.Service, on ...*node) {
	t.Helper()
	for _, family := range c.ipFamilies() {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: s.Namespace, Name: s.Name + "-" + strings.ToLower(string(family)),
				Labels: map[string]string{discoveryv1.LabelServiceName: s.Name, "matrix": "true"},
			},
			AddressType: discoveryv1.AddressType(family),
		}
		for i, n := range on {
			address := fmt.Sprintf("10.1.0.%d", i+1)
			if family == "IPv6" {
				address = fmt.Sprintf("fd00:1::%d", i+1)
			}
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{address}, NodeName: &n.name,
				Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true)},
			})
		}
		endpoints := slice.Endpoints
		if err := c.api.Create(t.Context(), slice); apierrors.IsAlreadyExists(err) {
			change(t, c.world, slice, func(s *discoveryv1.EndpointSlice) { s.Endpoints = endpoints })
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// mountPasswords does what the kubelet does with the Secret for speakers, once the manager has written the password.
func (c *cell) mountPasswords(t testing.TB, n *node, password string) {
	t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: speakersSecret}}
	c.eventually(t, "the manager has copied the password", func() bool {
		if c.api.Get(t.Context(), client.ObjectKeyFromObject(secret), secret) != nil {
			return false
		}
		for _, value := range secret.Data {
			if string(value) == password {
				return true
			}
		}
		return false
	})
	for file, value := range secret.Data {
		if err := os.WriteFile(filepath.Join(n.dir, "passwords", file), value, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// label excludes a node from load balancers, or includes it.
func (c *cell) label(t testing.TB, n *node, isExcluded bool) {
	t.Helper()
	patch := `{"metadata":{"labels":{"` + corev1.LabelNodeExcludeBalancers + `":null}}}`
	if isExcluded {
		patch = strings.Replace(patch, "null", `""`, 1)
	}
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name}}
	merge := client.RawPatch(types.MergePatchType, []byte(patch))
	if err := c.api.Patch(context.WithoutCancel(t.Context()), object, merge); err != nil {
		t.Fatal(err)
	}
}

// difference says in what a node's status and the peer differ, or what is not yet as it has to be: the session is up
// since a time at least, and the peer has as many routes as the node says it advertises, which are so many networks.
func (c *cell) difference(t testing.TB, n *node, since time.Time, networks int) string {
	t.Helper()
	routing := c.routings(t)[n.name]
	if routing == nil {
		return n.name + " has no NodeRouting"
	}
	status, seen := routing.Status, c.routers.sessions()[c.column.sessionAddress(n)]
	if len(status.Sessions) != 1 || status.ObservedGeneration != routing.Generation {
		return fmt.Sprintf("%s has reported %+v of generation %d", n.name, status, routing.Generation)
	}
	s := status.Sessions[0]
	isUp := s.State == v1.SessionEstablished && s.Since != nil && !s.Since.Time.Before(since.Truncate(time.Second)) &&
		(!c.column.BFD || s.BFD == "Up")
	if !isUp || !seen.IsUp() || int(s.Advertised) != seen.Received || seen.Received != networks {
		return fmt.Sprintf("%s says %+v, and the peer says %+v; wanted are %d networks", n.name, s, seen, networks)
	}
	return ""
}

// networks is how many routes each node is to advertise.
func (c *cell) networks() int { return c.services * len(c.ipFamilies()) }

// agrees waits until the peer has of each node what its status says.
func (c *cell) agrees(t testing.TB, since time.Time, networks int, nodes ...*node) {
	t.Helper()
	for _, n := range nodes {
		last := ""
		if !c.becomes(func() bool { last = c.difference(t, n, since, networks); return last == "" }) {
			c.fail(t, "status and peer do not agree", last)
		}
	}
}

// isWellSoon waits until each node's status and the peer agree, and the router forwards over both nodes.
func (c *cell) isWellSoon(t testing.TB, watch *routeWatch) {
	t.Helper()
	c.agrees(t, time.Time{}, c.networks(), c.nodes...)
	if !c.becomes(watch.isComplete) {
		c.fail(t, "the router does not forward over both nodes", c.kernels(t))
	}
}

// fail ends the cell, with a reason for its result, and details for the log.
func (c *cell) fail(t testing.TB, reason, details string) {
	t.Helper()
	c.failure = reason
	t.Fatalf("%s: %s\n%s\n%s", reason, details, c.routers.show(), c.logs())
}
