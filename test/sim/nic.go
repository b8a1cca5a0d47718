package sim

import (
	"fmt"
	"net/netip"

	"github.com/purelb/purelb-operator/nodeagent/neigh"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// Segment is a link with the addresses that stations on it have.
type Segment struct {
	*Link
	// Group is the ServiceGroup of addresses of the segment.
	Group           string
	subnet, subnet6 netip.Prefix
	// client is a client on the link, and stranger a station that should have none of the addresses.
	client, stranger *station
}

// subnets are those of segments, by their numbers, with the names of their ServiceGroups.
var subnets = []struct{ group, v4, v6 string }{
	{GroupLocal, "192.0.2.0/24", "2001:db8:1::/64"},
	{GroupSecond, "203.0.113.0/24", "2001:db8:3::/64"},
}

// newSegment returns a segment of a number, with a client and a stranger.
func (w *World) newSegment(number int) *Segment {
	of := subnets[number]
	s := &Segment{
		Link: w.NewLink(), Group: of.group, subnet: netip.MustParsePrefix(of.v4), subnet6: netip.MustParsePrefix(of.v6),
	}
	s.client = w.connectStation(s, "client", byte(2*number+1))     //nolint:gosec // there are two
	s.stranger = w.connectStation(s, "stranger", byte(2*number+2)) //nolint:gosec // there are two
	return s
}

// addressOf returns the address of a host number in a subnet.
func addressOf(subnet netip.Prefix, host byte) netip.Addr {
	bytes := subnet.Addr().AsSlice()
	bytes[len(bytes)-1] = host
	addr, _ := netip.AddrFromSlice(bytes) // it has the length of an address
	return addr
}

// contains reports whether an address is of one of the segment's subnets.
func (s *Segment) contains(addr netip.Addr) bool {
	return s.subnet.Contains(addr) || s.subnet6.Contains(addr)
}

// defaultRoutes returns those by the segment's routers, which are on no link.
func (s *Segment) defaultRoutes() []plan.Route {
	return []plan.Route{
		{Destination: netip.MustParsePrefix("0.0.0.0/0"), Gateway: addressOf(s.subnet, 1)},
		{Destination: netip.MustParsePrefix("::/0"), Gateway: netip.MustParseAddr("fe80::ffff")},
	}
}

// hears reports whether frames that one node sends on the segment get to another, by the interfaces that have
// addresses of it.
func (s *Segment) hears(n, other *Node) bool {
	to, from := n.portOn(s), other.portOn(s)
	return n != other && to != nil && from != nil && !to.IsDown && !from.IsDown && !to.isCutFrom[from]
}

// NIC is a network interface of a node.
type NIC struct {
	Name string
	MAC  neigh.MAC
	// segment is that of the addresses own, which the interface has of its own, and port where it is plugged in.
	segment *Segment
	own     []netip.Prefix
	port    *Port
	// noCarrier means that the cable is broken.
	noCarrier bool
}

// addNIC adds an interface to a node of a number.
func (n *Node) addNIC(s *Segment, number int) {
	i, host := byte(len(n.NICs)), byte(number) //nolint:gosec // there are few
	nic := &NIC{
		Name: fmt.Sprint("eth", i), MAC: neigh.MAC{2, 0, 0, i, 1, host}, segment: s, own: []netip.Prefix{
			netip.PrefixFrom(addressOf(s.subnet, 10+host), s.subnet.Bits()),
			netip.PrefixFrom(addressOf(s.subnet6, host), s.subnet6.Bits()),
			netip.MustParsePrefix(fmt.Sprintf("fe80::%d/64", number)),
		},
	}
	var p *Port
	p = s.Connect(n.Name, func(frame []byte) { n.receive(p, frame) })
	nic.port = p
	n.NICs = append(n.NICs, nic)
}

// configure gives the node's kernel the interface's addresses and routes, with default routes if it is the first
// one's segment.
func (n *Node) configure(c *NIC) {
	for _, prefix := range c.own {
		n.Kernel.Put(plan.Address{Interface: c.Name, Prefix: prefix, Valid: plan.Forever, Preferred: plan.Forever})
		n.Kernel.AddRoute(plan.Route{Interface: c.Name, Destination: prefix.Masked(), Origin: plan.OriginKernel})
	}
	if c.segment != n.uplink {
		return
	}
	for _, r := range c.segment.defaultRoutes() {
		r.Interface = c.Name
		n.Kernel.AddRoute(r)
	}
}

// Renumber swaps the addresses that a node's two interfaces have of their own, and their cables.
func (n *Node) Renumber() {
	a, b := n.NICs[0], n.NICs[1]
	for _, c := range n.NICs {
		for _, prefix := range c.own {
			n.Kernel.Strip(c.Name, prefix)
		}
		n.Kernel.RemoveRoutes(c.Name)
	}
	a.own, b.own = b.own, a.own
	a.segment, b.segment = b.segment, a.segment
	n.SwapCables()
	for _, c := range n.NICs {
		n.configure(c)
	}
}

// on returns the interface of a node that has addresses of a segment; nil if there is none.
func (n *Node) on(s *Segment) *NIC {
	return n.nicThat(func(c *NIC) bool { return c.segment == s })
}

// nicNamed returns an interface of a node; nil if there is none of the name.
func (n *Node) nicNamed(name string) *NIC {
	return n.nicThat(func(c *NIC) bool { return c.Name == name })
}

func (n *Node) nicThat(is func(*NIC) bool) *NIC {
	for _, c := range n.NICs {
		if is(c) {
			return c
		}
	}
	return nil
}

// portOn returns the port of the interface that has addresses of a segment; nil if there is none, or if it is
// plugged in elsewhere.
func (n *Node) portOn(s *Segment) *Port {
	if c := n.on(s); c != nil && c.port.link == s.Link {
		return c.port
	}
	return nil
}

// setPorts lets the ports of a node be down, if it is off or they have no carrier.
func (n *Node) setPorts() {
	for _, c := range n.NICs {
		c.port.IsDown = n.isOff || c.noCarrier
	}
}

// SetCarrier takes the carrier of an interface away, or gives it back.
func (n *Node) SetCarrier(c *NIC, isUp bool) {
	c.noCarrier = !isUp
	n.setPorts()
	n.Kernel.SetLinkUp(c.Name, isUp)
}

// SwapCables plugs the cables of a node's two interfaces in the wrong way round, or back.
func (n *Node) SwapCables() {
	n.NICs[0].port, n.NICs[1].port = n.NICs[1].port, n.NICs[0].port
	n.setPorts()
}
