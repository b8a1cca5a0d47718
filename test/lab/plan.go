package lab

import (
	"fmt"
	"net/netip"
)

// Names of hosts, as in [Lab.Exec]. Each has a network namespace called
// "lab-" and its name.
const (
	ControlPlane = "cp"     // the API server
	Client       = "client" // on the link of the nodes
	Router       = "router" // the default gateway of all
	Far          = "far"    // a client behind the router
	Fabric       = "fabric" // the switches: bridges, with no address
)

const (
	namespacePrefix = "lab-"
	link            = "eth0" // of every host
	farLink         = "eth1" // of the router, towards far
	bridge          = "br0"  // in the fabric, for the nodes' link
	farBridge       = "br1"  // in the fabric, for the link of far
	splitBridge     = "br2"  // in the fabric, for what SplitLink parts from the nodes' link
	portPrefix      = "p-"   // of the bridge, before the name of the host

	apiPort  = 6443 // on the control plane
	dnsPort  = 53   // on the control plane
	etcdURL  = "http://127.0.0.1:2379"
	nodeBase = 10 // node1 has number 11 on the link
)

// Host is one machine of the lab.
type Host struct {
	// Name of the host.
	Name string
	// IPv4 and IPv6 are its address and the subnet of its eth0.
	IPv4, IPv6 netip.Prefix
	// MAC is the hardware address of its eth0.
	MAC string
}

// Node is a host that is a Kubernetes node; its names are the same.
type Node struct {
	Host
	// PodCIDRs are the IPv4 and the IPv6 addresses of its pods.
	PodCIDRs []netip.Prefix
}

// Namespace returns the name of a host's network namespace.
func Namespace(name string) string { return namespacePrefix + name }

// port returns the name of the fabric's port that a host is connected to.
func port(name string) string { return portPrefix + name }

// bridgeOf returns the bridge of that port.
func bridgeOf(name string) string {
	if name == Far {
		return farBridge
	}
	return bridge
}

const (
	// DefaultNodes is how many nodes a lab has unless Options say otherwise.
	DefaultNodes = 3
	// MaxNodes is how many nodes a lab may have.
	MaxNodes = 9
)

// plan is a lab with a number of nodes.
type plan int

// hosts are all hosts with addresses.
func (p plan) hosts() []Host {
	hosts := []Host{host(ControlPlane, 77, 2)}
	for _, node := range p.nodes() {
		hosts = append(hosts, node.Host)
	}
	return append(hosts, host(Client, 77, 50), host(Router, 77, 1), host(Far, 78, 2))
}

// nodes are those of the hosts that are Kubernetes nodes.
func (p plan) nodes() []Node {
	var nodes []Node
	for i := 1; i <= int(p); i++ {
		nodes = append(nodes, Node{
			Host: host(fmt.Sprintf("node%d", i), 77, nodeBase+i),
			PodCIDRs: []netip.Prefix{
				netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", i)),
				netip.MustParsePrefix(fmt.Sprintf("fd00:244:0:%d::/64", i)),
			},
		})
	}
	return nodes
}

// host returns the host with number n on a subnet. In IPv6 the number is written as in IPv4, so
// node1 is 10.77.0.11 and fd00:77::11.
func host(name string, subnet, n int) Host {
	return Host{
		Name: name,
		IPv4: netip.MustParsePrefix(fmt.Sprintf("10.%d.0.%d/24", subnet, n)),
		IPv6: netip.MustParsePrefix(fmt.Sprintf("fd00:%d::%d/64", subnet, n)),
		MAC:  fmt.Sprintf("02:00:00:%d:00:%02d", subnet, n),
	}
}

// routerTowardsFar returns the router's interface towards far.
func routerTowardsFar() Host { return host(Router, 78, 1) }

// gateways returns the default gateways of the hosts on the link of h.
func gateways(h Host) []netip.Addr {
	if h.Name == Far {
		r := routerTowardsFar()
		return []netip.Addr{r.IPv4.Addr(), r.IPv6.Addr()}
	}
	r := host(Router, 77, 1)
	return []netip.Addr{r.IPv4.Addr(), r.IPv6.Addr()}
}

// plannedHost returns the host with a name in the largest lab.
func plannedHost(name string) (Host, error) {
	for _, h := range plan(MaxNodes).hosts() {
		if h.Name == name {
			return h, nil
		}
	}
	return Host{}, fmt.Errorf("the lab has no host called %q", name)
}

// clusterCIDRs hold all pods, serviceCIDRs all ClusterIPs.
func clusterCIDRs() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/48")}
}

func serviceCIDRs() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/112")}
}

// apiServer returns the address at which nodes reach the API server.
func apiServer() netip.AddrPort {
	return netip.AddrPortFrom(host(ControlPlane, 77, 2).IPv4.Addr(), apiPort)
}

// nameServers returns the addresses of the cluster's name server.
func nameServers() []netip.Addr { return host(ControlPlane, 77, 2).addresses() }
