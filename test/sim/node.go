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

// VirtualInterface is the name of the interface of Virtual addresses.
const VirtualInterface = v1.DefaultDummyInterface

// Node is a machine of the cluster: a kernel on one link or two, and an agent.
type Node struct {
	world  *World
	server *apiserver.Server
	Name   string
	NICs   []*NIC
	// uplink is the segment by whose routers the node reaches other networks.
	uplink *Segment
	// Kernel loses all addresses that were added when the node's power is cut.
	Kernel *linktest.Kernel
	agent  *agent
	Disk   Disk
	Clock  *Clock
	// DropsEchoes means that a firewall drops echo requests.
	DropsEchoes bool
	// isOff means that the machine does nothing: it has no power, or sleeps.
	isOff, isAsleep bool
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
	// boots counts the kernels that the machine has had.
	boots int
	// routers are those that its speakers may have sessions with. speakers are those that run: the last one waits
	// for those before it to end. isSpeakerKept means that the kubelet starts none.
	routers       []*Router
	speakers      []*speaker
	isSpeakerKept bool
}

// NewNode adds a node with an interface on each of some segments, of which the first has default routes.
func (w *World) NewNode(server *apiserver.Server, number int, segments ...*Segment) *Node {
	n := &Node{
		world: w, server: server, Name: fmt.Sprint("node", number), uplink: segments[0],
		Disk: Disk{files: map[string]file{}}, Clock: newClock(),
	}
	for _, s := range segments {
		n.addNIC(s, number)
	}
	n.boot()
	return n
}

// boot gives the node a new kernel.
func (n *Node) boot() {
	n.boots++
	links := []plan.NetworkInterface{{Name: "lo", Kind: "loopback", IsLoopback: true, IsUp: true}}
	for _, c := range n.NICs {
		links = append(links, plan.NetworkInterface{Name: c.Name, Kind: "device", MAC: c.MAC.String(), IsUp: !c.port.IsDown})
	}
	n.Kernel = linktest.New(links...)
	for _, c := range n.NICs {
		n.configure(c)
	}
}

// SetCut cuts the node off the API server, or connects it again.
func (n *Node) SetCut(isCut bool) {
	n.isCut = isCut
	if n.agent != nil && !n.agent.isKilled {
		n.agent.setCut(isCut || n.isAgentStarved)
	}
	for _, s := range n.speakers {
		s.setCut(isCut || n.isAgentStarved)
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
	n.isOff = true
	n.setPorts()
	n.KillAgent()
	n.killSpeakers()
}

// PowerOn makes the node boot, with a new kernel and a new agent.
func (n *Node) PowerOn() error {
	n.isOff = false
	n.setPorts()
	n.boot()
	return n.StartAgent()
}

// Sleep makes the machine sleep, and Wake lets it go on with what it did and the addresses that it had.
func (n *Node) Sleep() {
	n.isAsleep, n.isOff = true, true
	n.Clock.stop()
	n.setPorts()
	n.agent.Pause()
	for _, s := range n.speakers {
		s.Pause()
	}
}

// Wake ends what Sleep began.
func (n *Node) Wake() {
	n.isAsleep, n.isOff = false, false
	n.Clock.start()
	n.setPorts()
	n.agent.Resume()
	for _, s := range n.speakers {
		s.Resume()
	}
}

// Holds reports whether the node would answer for an address: it has the address, and runs.
func (n *Node) Holds(addr netip.Addr) bool { return !n.isOff && n.Kernel.Has("", addr) }

// receive takes a frame that comes to a port of the node.
func (n *Node) receive(port *Port, frame []byte) {
	c := n.nicThat(func(c *NIC) bool { return c.port == port })
	if to := neigh.MAC(frame[:6]); to[0]&1 == 0 && to != c.MAC {
		return
	}
	if answer := n.answer(c, frame); answer != nil {
		n.world.After(n.world.Between(minSlice, maxSlice), func() {
			if !n.isOff {
				c.port.Send(answer)
			}
		})
	}
	if n.agent != nil && !n.agent.isKilled {
		n.agent.receive(c, frame)
	}
}

// answer returns what the kernel answers to a frame that an interface hears; nil for nothing.
func (n *Node) answer(c *NIC, frame []byte) []byte {
	if target, isAsked := askedFor(frame); isAsked {
		iface := c.Name
		if target.Is4() {
			iface = "" // Linux answers for the IPv4 addresses of all interfaces (arp_ignore 0)
		}
		if n.Kernel.Has(iface, target) {
			return claimTo(frame, c.MAC, target)
		}
		return nil
	}
	if target, isEcho := echoTo(frame); isEcho && !n.DropsEchoes && n.Kernel.Has("", target) {
		return echoReply(frame, c.MAC)
	}
	return nil
}
