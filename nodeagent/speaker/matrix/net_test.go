//go:build routers

package matrix

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
)

// Addresses of the topology. Those of nodes end in their number.
const (
	routerIPv4, routerIPv6       = "192.0.2.1", "2001:db8::1"
	reflectorIPv4, reflectorIPv6 = "192.0.2.3", "2001:db8::3"
	loopbackIPv4, loopbackIPv6   = "10.255.0.1", "2001:db8:ffff::1"
	homeIPv4                     = "192.0.2.100"
)

// topology is the network of the package's comment. The test itself runs beside the API server.
type topology struct {
	switched, router, reflector, client nstest.Neighbour
	nodes                               []*node
}

// node is one of the two nodes.
type node struct {
	name, ipv4, ipv6, port string
	where                  nstest.Neighbour
	dir                    string // of its files
	agent, speaker         *program
	// refuses means that there is no endpoint on the node.
	refuses atomic.Bool
}

func newTopology(t testing.TB) *topology {
	t.Helper()
	n := &topology{
		switched: nstest.NewNeighbour(t), router: nstest.NewNeighbour(t), reflector: nstest.NewNeighbour(t),
		client: nstest.NewNeighbour(t),
	}
	n.switched.Run(t, "ip link add br0 type bridge mcast_snooping 0")
	n.switched.Run(t, "ip link set br0 up")
	nstest.Run(t, "ip link set lo up")
	nstest.Run(t, "ip link add home type veth peer name p-home")
	n.plug(t, "p-home")
	nstest.Run(t, "ip link set home up")
	nstest.Run(t, "ip addr add %s/24 dev home", homeIPv4)
	nstest.Run(t, "ip route add default via %s", routerIPv4)
	n.station(t, n.router, "router", routerIPv4, routerIPv6)
	n.station(t, n.reflector, "reflector", reflectorIPv4, reflectorIPv6)
	n.router.Run(t, "ip addr add %s/32 dev lo", loopbackIPv4)
	n.router.Run(t, "ip addr add %s/128 dev lo", loopbackIPv6)
	for _, setting := range []string{
		"net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1", "net.ipv4.fib_multipath_hash_policy=1",
		"net.ipv6.fib_multipath_hash_policy=1",
	} {
		n.router.Run(t, "sysctl -qw %s", setting) // of its own namespace
	}
	nstest.Run(t, "ip link add outer type veth peer name eth0")
	n.router.MoveLink(t, "outer")
	n.client.MoveLink(t, "eth0")
	n.router.Run(t, "ip link set outer up")
	n.router.Run(t, "ip addr add 203.0.113.1/24 dev outer")
	n.router.Run(t, "ip addr add 2001:db8:f::1/64 dev outer nodad")
	n.client.Run(t, "ip link set lo up")
	n.client.Run(t, "ip link set eth0 up")
	n.client.Run(t, "ip addr add 203.0.113.2/24 dev eth0")
	n.client.Run(t, "ip addr add 2001:db8:f::2/64 dev eth0 nodad")
	n.client.Run(t, "ip route add default via 203.0.113.1")
	n.client.Run(t, "ip -6 route add default via 2001:db8:f::1")
	for i := 1; i <= 2; i++ {
		one := &node{
			name: fmt.Sprintf("node%d", i), ipv4: fmt.Sprintf("192.0.2.1%d", i), ipv6: fmt.Sprintf("2001:db8::1%d", i),
			port: fmt.Sprintf("p-node%d", i), where: nstest.NewNeighbour(t), dir: t.TempDir(),
		}
		n.station(t, one.where, one.name, one.ipv4, one.ipv6)
		one.where.Run(t, "ip route add default via %s", routerIPv4)
		one.where.Run(t, "ip -6 route add default via %s", routerIPv6)
		one.answerForProxy(t)
		one.serve(t, byte(i))
		n.nodes = append(n.nodes, one)
	}
	return n
}

// station connects a namespace to the switch.
func (n *topology) station(t testing.TB, where nstest.Neighbour, name, ipv4, ipv6 string) {
	t.Helper()
	nstest.Run(t, "ip link add eth0 type veth peer name p-%s", name)
	where.MoveLink(t, "eth0")
	n.plug(t, "p-"+name)
	where.Run(t, "ip link set lo up")
	where.Run(t, "ip link set eth0 up")
	where.Run(t, "ip addr add %s/24 dev eth0", ipv4)
	where.Run(t, "ip addr add %s/64 dev eth0 nodad", ipv6)
}

func (n *topology) plug(t testing.TB, port string) {
	t.Helper()
	n.switched.MoveLink(t, port)
	n.switched.Run(t, "ip link set %s master br0 up", port)
}

// setPort sets the port of a node up or down.
func (n *topology) setPort(t testing.TB, of *node, state string) {
	t.Helper()
	n.switched.Run(t, "ip link set %s %s", of.port, state)
}

// answerForProxy says of the node's service proxy that it works.
func (n *node) answerForProxy(t testing.TB) {
	t.Helper()
	var listener net.Listener
	n.where.Call(t, func() (err error) {
		listener, err = net.Listen("tcp", "127.0.0.1:10256")
		return err
	})
	server := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
}

// bootAnew makes the node forget what a boot does: addresses of the virtual interface, and that a speaker has run.
func (n *node) bootAnew(t testing.TB) {
	t.Helper()
	n.where.Run(t, "ip link del kube-lb0")
	for _, file := range []string{n.dir + "/speaker.json", n.unit()} {
		if err := os.Remove(file); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	n.startUnit(t)
}

// unit is the link by which a speaker knows that the node does not shut down.
func (n *node) unit() string { return n.dir + "/units/invocation:systemd-user-sessions.service" }

func (n *node) startUnit(t testing.TB) {
	t.Helper()
	if err := os.Symlink("x", n.unit()); err != nil && !os.IsExist(err) {
		t.Fatal(err)
	}
}

// wants returns the addresses of nodes in the family of an address.
func (n *topology) wants(address string) []string {
	var all []string
	for _, one := range n.nodes {
		if strings.Contains(address, ":") {
			all = append(all, one.ipv6)
		} else {
			all = append(all, one.ipv4)
		}
	}
	return all
}
