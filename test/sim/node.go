package sim

import (
	"fmt"
	"net/netip"
	"time"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/link/linktest"
	"github.com/purelb/purelb-operator/nodeagent/neigh"
	"github.com/purelb/purelb-operator/nodeagent/plan"
	"github.com/purelb/purelb-operator/test/sim/apiserver"
)

// Interface is the name of the one interface of a node.
const Interface = "eth0"

// VirtualInterface is the name of the interface of Virtual addresses.
const VirtualInterface = v1.DefaultDummyInterface

// Node is a machine of the cluster: a kernel on a link, and an agent.
type Node struct {
	world  *World
	server *apiserver.Server
	Name   string
	MAC    neigh.MAC
	// Kernel loses all addresses that were added when the node's power is cut.
	Kernel *linktest.Kernel
	port   *Port
	agent  *agent
	// own are the addresses that the node has of its own.
	own  []netip.Prefix
	Disk Disk
	// DropsEchoes means that a firewall drops echo requests.
	DropsEchoes bool
	// isOff means that the machine does nothing: it has no power, or sleeps. noCarrier is its interface's.
	isOff, isAsleep, noCarrier bool
	// isCut means that the API server cannot be reached from the node.
	isCut bool
	// isAgentStarved means that the API server does not answer the agent.
	isAgentStarved bool
	// isAgentBlind means that the API server refuses all that the agent reads. It takes what the agent writes.
	isAgentBlind bool
	// HidesAddresses means that the kernel does not answer when the agent asks it for its addresses.
	HidesAddresses bool
	// couldReport means that the kubelet could report when that was last looked at, and isReady what the Node
	// object says.
	couldReport, isReady bool
	couldReportSince     time.Time
}

// gateways are the routers of the nodes, which are on no link.
var gateways = map[netip.Prefix]netip.Addr{
	netip.MustParsePrefix("0.0.0.0/0"): netip.MustParseAddr("192.0.2.1"),
	netip.MustParsePrefix("::/0"):      netip.MustParseAddr("fe80::ffff"),
}

// NewNode adds a node to a link, with an interface that has these addresses and default routes.
func (w *World) NewNode(server *apiserver.Server, l *Link, number int, own ...netip.Prefix) *Node {
	n := &Node{
		world: w, server: server, Name: fmt.Sprint("node", number),
		MAC: neigh.MAC{2, 0, 0, 0, 1, byte(number)}, own: own,
		Disk: Disk{files: map[string]file{}},
	}
	n.port = l.Connect(n.Name, n.receive)
	n.boot()
	return n
}

// boot gives the node a new kernel.
func (n *Node) boot() {
	n.Kernel = linktest.New(
		plan.Link{Name: "lo", Kind: "loopback", Loopback: true, Up: true},
		plan.Link{Name: Interface, Kind: "device", MAC: n.MAC.String(), Up: !n.port.IsDown},
	)
	for _, prefix := range n.own {
		n.Kernel.Put(plan.Address{Interface: Interface, Prefix: prefix, Valid: plan.Forever, Preferred: plan.Forever})
		n.Kernel.AddRoute(plan.Route{Interface: Interface, Destination: prefix.Masked(), Origin: plan.OriginKernel})
	}
	for destination, gateway := range gateways {
		n.Kernel.AddRoute(plan.Route{Interface: Interface, Destination: destination, Gateway: gateway})
	}
}

// SetCarrier takes the carrier of the node's interface away, or gives it back.
func (n *Node) SetCarrier(isUp bool) {
	n.noCarrier = !isUp
	n.port.IsDown = n.noCarrier || n.isOff
	n.Kernel.SetUp(Interface, isUp)
}

// SetCut cuts the node off the API server, or connects it again.
func (n *Node) SetCut(isCut bool) {
	n.isCut = isCut
	if n.agent != nil && !n.agent.isKilled {
		n.agent.setCut(isCut || n.isAgentStarved)
	}
}

// SetBlind makes the API server refuse all that the agent reads, or answer again.
func (n *Node) SetBlind(isBlind bool) {
	n.isAgentBlind = isBlind
	if n.agent != nil && !n.agent.isKilled {
		n.agent.setBlind(isBlind)
	}
}

// PowerOff ends all that the node does.
func (n *Node) PowerOff() {
	n.isOff, n.port.IsDown = true, true
	n.KillAgent()
}

// PowerOn makes the node boot, with a new kernel and a new agent.
func (n *Node) PowerOn() error {
	n.isOff, n.port.IsDown = false, n.noCarrier
	n.boot()
	return n.StartAgent()
}

// Sleep makes the machine sleep, and Wake lets it go on with what it did and the addresses that it had.
func (n *Node) Sleep() {
	n.isAsleep, n.isOff, n.port.IsDown = true, true, true
	n.agent.Pause()
}

// Wake ends what Sleep began.
func (n *Node) Wake() {
	n.isAsleep, n.isOff, n.port.IsDown = false, false, n.noCarrier
	n.agent.Resume()
}

// Holds reports whether the node would answer for an address: it has the address, and runs.
func (n *Node) Holds(addr netip.Addr) bool { return !n.isOff && n.Kernel.Has("", addr) }

// receive takes a frame that comes to the node's port.
func (n *Node) receive(frame []byte) {
	if to := neigh.MAC(frame[:6]); to[0]&1 == 0 && to != n.MAC {
		return
	}
	if answer := n.answer(frame); answer != nil {
		n.world.After(n.world.Between(minSlice, maxSlice), func() {
			if !n.isOff {
				n.port.Send(answer)
			}
		})
	}
	if n.agent != nil && !n.agent.isKilled {
		n.agent.receive(frame)
	}
}

// answer returns what the kernel answers to a frame; nil for nothing.
func (n *Node) answer(frame []byte) []byte {
	if target, isAsked := askedFor(frame); isAsked {
		iface := Interface
		if target.Is4() {
			iface = "" // Linux answers for the IPv4 addresses of all interfaces (arp_ignore 0)
		}
		if n.Kernel.Has(iface, target) {
			return claimTo(frame, n.MAC, target)
		}
		return nil
	}
	if target, isEcho := echoTo(frame); isEcho && !n.DropsEchoes && n.Kernel.Has("", target) {
		return echoReply(frame, n.MAC)
	}
	return nil
}
