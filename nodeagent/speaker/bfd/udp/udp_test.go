package udp_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"

	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
	"github.com/purelb/purelb-operator/nodeagent/speaker/bfd"
	"github.com/purelb/purelb-operator/nodeagent/speaker/bfd/udp"
)

// nodeVariable is the environment variable that makes the test binary a node with a session with 192.0.2.1.
const nodeVariable = "PURELB_TEST_BFD_NODE"

func TestMain(m *testing.M) {
	if os.Getenv(nodeVariable) == "" {
		os.Exit(nstest.Main(m))
	}
	b, err := udp.Start(context.Background(), logr.Discard(), func() {}, func(netip.Addr) {})
	if err != nil {
		panic(err)
	}
	b.Sync(map[netip.Addr]bfd.NeighbourSettings{netip.MustParseAddr("192.0.2.1"): {Settings: settings}})
	b.Wait() // for ever
}

// soon is how long a test waits for what has to happen.
const soon = 60 * time.Second

// settings are slow enough for a machine that is busy.
var settings = bfd.Settings{Interval: 100 * time.Millisecond, Multiplier: 10}

// newLink connects the node, 192.0.2.11, 192.0.2.12, 2001:db8::11 and fe80::11, to a router, 192.0.2.1,
// 2001:db8::1 and fe80::1.
func newLink(t *testing.T) nstest.Neighbour {
	t.Helper()
	router := nstest.NewNeighbour(t)
	nstest.Run(t, "ip link set lo up")
	nstest.Run(t, "ip link add eth0 type veth peer name far")
	t.Cleanup(func() { nstest.Run(t, "ip link del eth0") })
	router.MoveLink(t, "far")
	nstest.Run(t, "ip link set eth0 addrgenmode none")
	router.Run(t, "ip link set far addrgenmode none")
	router.Run(t, "ip link set far up")
	nstest.Run(t, "ip link set eth0 up")
	for _, addr := range []string{"192.0.2.1/24", "2001:db8::1/64 nodad", "fe80::1/64 nodad"} {
		router.Run(t, "ip addr add %s dev far", addr)
	}
	for _, addr := range []string{"192.0.2.11/24", "192.0.2.12/24", "2001:db8::11/64 nodad", "fe80::11/64 nodad"} {
		nstest.Run(t, "ip addr add %s dev eth0", addr)
	}
	return router
}

// router is the other end of a session: the same session, with a socket of package net.
type router struct {
	conn *net.UDPConn
	node netip.AddrPort
	// ttl is what its packets have.
	ttl atomic.Int32

	mu      sync.Mutex
	session *bfd.Session
	// heard are what came, and failures how often the session has failed.
	heard    []arrival
	failures int
	isMute   bool
}

type arrival struct {
	packet bfd.Packet
	from   netip.AddrPort
	ttl    int
}

// startRouter begins a session of the router at an address of its own with an address of the node.
func startRouter(t *testing.T, where nstest.Neighbour, own, node string) *router {
	t.Helper()
	return startRouterWithTTL(t, where, own, node, 255)
}

// startRouterWithTTL begins such a session with packets that have a TTL.
func startRouterWithTTL(t *testing.T, where nstest.Neighbour, own, node string, ttl int32) *router {
	t.Helper()
	r := &router{session: bfd.New(settings, 77, func() float64 { return 0.5 })}
	r.ttl.Store(ttl)
	r.node = netip.AddrPortFrom(netip.MustParseAddr(node), 3784)
	where.Call(t, func() error {
		local := netip.MustParseAddr(own)
		if local.Zone() != "" {
			// By number: package net keeps for a while which number an interface had in an earlier test.
			iface, err := net.InterfaceByName(local.Zone())
			if err != nil {
				return err
			}
			zone := strconv.Itoa(iface.Index)
			local, r.node = local.WithZone(zone), netip.AddrPortFrom(r.node.Addr().WithZone(zone), 3784)
		}
		conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(local, 3784)))
		r.conn = conn
		return err
	})
	if r.conn == nil {
		t.FailNow()
	}
	r.setOption(t, unix.IPPROTO_IP, unix.IP_RECVTTL, 1)
	if r.node.Addr().Is6() {
		r.setOption(t, unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1)
	}
	t.Cleanup(func() { _ = r.conn.Close() })
	go r.run(t)
	return r
}

func (r *router) setOption(t *testing.T, level, name, value int) {
	raw, err := r.conn.SyscallConn()
	if err != nil {
		t.Error(err)
		return
	}
	_ = raw.Control(func(fd uintptr) {
		if err := unix.SetsockoptInt(int(fd), level, name, value); err != nil {
			t.Error(err)
		}
	})
}

func (r *router) run(t *testing.T) {
	buffer, control := make([]byte, 512), make([]byte, 512)
	for {
		r.mu.Lock()
		at := r.session.Deadline()
		r.mu.Unlock()
		_ = r.conn.SetReadDeadline(at)
		n, oob, _, from, err := r.conn.ReadMsgUDPAddrPort(buffer, control)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		r.mu.Lock()
		var o bfd.Outcome
		if err == nil {
			ttl := ttlOf(t, control[:oob])
			packet, err := bfd.Parse(buffer[:n], 255)
			if err != nil {
				t.Errorf("the node sends %x: %v", buffer[:n], err)
			}
			r.heard = append(r.heard, arrival{packet, from, ttl})
			o = r.session.Receive(packet, time.Now())
		} else {
			o = r.session.Advance(time.Now())
		}
		if o.HasFailed {
			r.failures++
		}
		r.send(t, o.Send)
		r.mu.Unlock()
	}
}

// send sends a packet. The caller holds mu.
func (r *router) send(t *testing.T, p *bfd.Packet) {
	if p == nil || r.isMute {
		return
	}
	if r.node.Addr().Is4() {
		r.setOption(t, unix.IPPROTO_IP, unix.IP_TTL, int(r.ttl.Load()))
	} else {
		r.setOption(t, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, int(r.ttl.Load()))
	}
	_, _ = r.conn.WriteToUDPAddrPort(p.Append(nil), r.node)
}

func (r *router) state() bfd.State {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.session.State()
}

// arrivals are the packets that have come.
func (r *router) arrivals() []arrival {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]arrival{}, r.heard...)
}

func ttlOf(t *testing.T, control []byte) int {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		t.Error(err)
	}
	for _, m := range messages {
		if m.Header.Type == unix.IP_TTL || m.Header.Type == unix.IPV6_HOPLIMIT {
			return int(m.Data[0])
		}
	}
	return -1
}

func eventually(t *testing.T, what string, isSo func() bool) {
	t.Helper()
	for end := time.Now().Add(soon); !isSo(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not so: %s", what)
		}
	}
}

// node is the sessions of the node, and how often each has failed.
type node struct {
	*udp.BFD
	end      func()
	failures atomic.Int32
}

func startNode(t *testing.T) *node {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	n := &node{}
	b, err := udp.Start(ctx, logr.Discard(), func() {}, func(netip.Addr) { n.failures.Add(1) })
	if err != nil {
		t.Fatal(err)
	}
	n.BFD = b
	n.end = func() { cancel(); b.Wait() }
	t.Cleanup(n.end)
	return n
}

func (n *node) watches(neighbour, source string) {
	s := bfd.NeighbourSettings{Settings: settings}
	if source != "" {
		s.Source = netip.MustParseAddr(source)
	}
	n.Sync(map[netip.Addr]bfd.NeighbourSettings{netip.MustParseAddr(neighbour): s})
}

// TestSessions has a session of each family: it comes up with packets that RFC 5881 allows, fails when the
// neighbour is silent, and comes up again; at its end it says that this is planned.
func TestSessions(t *testing.T) {
	where := newLink(t)
	for _, row := range []struct{ name, neighbour, own, node, source, from string }{
		{"IPv4", "192.0.2.1", "192.0.2.1", "192.0.2.11", "", "192.0.2.11"},
		{"IPv4 with a source", "192.0.2.1", "192.0.2.1", "192.0.2.12", "192.0.2.12", "192.0.2.12"},
		{"IPv6", "2001:db8::1", "2001:db8::1", "2001:db8::11", "", "2001:db8::11"},
		{"link-local", "fe80::1%eth0", "fe80::1%far", "fe80::11%far", "", "fe80::11"},
		{"link-local with a source", "fe80::1%eth0", "fe80::1%far", "fe80::11%far", "fe80::11", "fe80::11"},
	} {
		t.Run(row.name, func(t *testing.T) {
			r, n := startRouter(t, where, row.own, row.node), startNode(t)
			n.watches(row.neighbour, row.source)
			isUp := func() bool {
				return r.state() == bfd.Up && n.State(netip.MustParseAddr(row.neighbour)) == bfd.Up
			}
			eventually(t, "the session is up", isUp)
			first := r.arrivals()[0]
			before := len(r.arrivals())
			eventually(t, "twenty packets more", func() bool { return len(r.arrivals()) > before+20 })
			for _, a := range r.arrivals() {
				if a.ttl != 255 || a.from.Port() != first.from.Port() || a.from.Port() < 49152 ||
					a.from.Addr().WithZone("").Unmap().String() != row.from {
					t.Fatalf("a packet from %s with TTL %d", a.from, a.ttl)
				}
			}
			r.setMute(true)
			eventually(t, "the session fails", func() bool { return n.failures.Load() == 1 })
			r.setMute(false)
			eventually(t, "the session is up again", isUp)
			n.end()
			eventually(t, "the router hears that it ends", func() bool {
				heard := r.arrivals()
				return heard[len(heard)-1].packet.State == bfd.AdminDown
			})
			eventually(t, "the router's session is down", func() bool { return r.state() == bfd.Down })
			if n.failures.Load() != 1 {
				t.Errorf("it has failed %d times", n.failures.Load())
			}
		})
	}
}

func (r *router) setMute(isMute bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isMute = isMute
}

// TestAttackBFDFromBeyondTheLink sends packets that have come through a router. This test shows the row
// "speak BFD from another network" of docs/trust.md.
func TestAttackBFDFromBeyondTheLink(t *testing.T) {
	where := newLink(t)
	for _, row := range []struct{ name, neighbour, node string }{
		{"IPv4", "192.0.2.1", "192.0.2.11"}, {"IPv6", "2001:db8::1", "2001:db8::11"},
	} {
		t.Run(row.name, func(t *testing.T) {
			// Its first packet may wait until the kernel has found the node.
			r, n := startRouterWithTTL(t, where, row.neighbour, row.node, 254), startNode(t)
			n.watches(row.neighbour, "")
			eventually(t, "the router hears the node", func() bool { return len(r.arrivals()) >= 3 })
			for _, a := range r.arrivals() {
				if a.packet.State != bfd.Down || a.packet.YourDiscriminator != 0 {
					t.Fatalf("the node has heard the router: %+v", a.packet)
				}
			}
			r.ttl.Store(255)
			eventually(t, "the session is up", func() bool { return n.State(netip.MustParseAddr(row.neighbour)) == bfd.Up })
		})
	}
}

// TestFaultHeldUp stops the process of the node's sessions for longer than the neighbour may be silent. This
// test shows the row "the node is so busy that BFD is held up for longer than it waits" of docs/trust.md.
func TestFaultHeldUp(t *testing.T) {
	r := startRouter(t, newLink(t), "192.0.2.1", "192.0.2.11")
	runtime.LockOSThread() // the kernel kills the process when the thread ends that has started it
	defer runtime.UnlockOSThread()
	n := exec.Command("/proc/self/exe")
	n.Env = append(os.Environ(), nodeVariable+"=1")
	n.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = n.Process.Kill()
		_ = n.Wait()
	})
	eventually(t, "the node says that the session is up", func() bool {
		heard := r.arrivals()
		return len(heard) > 0 && heard[len(heard)-1].packet.State == bfd.Up && r.state() == bfd.Up
	})
	if err := n.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// The router goes on for twice as long as the session would wait for it.
	p := bfd.Packet{
		State: bfd.Up, Multiplier: settings.Multiplier,
		MyDiscriminator: 77, YourDiscriminator: r.arrivals()[len(r.arrivals())-1].packet.MyDiscriminator,
		DesiredMinTx: settings.Interval, RequiredMinRx: settings.Interval,
	}
	r.setMute(true) // nothing but these packets
	for range 2 * int(settings.Multiplier) {
		r.sendAlone(t, p)
		time.Sleep(settings.Interval)
	}
	p.Poll = true
	before := len(r.arrivals())
	r.sendAlone(t, p)
	if err := n.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	var answer *bfd.Packet
	eventually(t, "the node answers", func() bool {
		for _, a := range r.arrivals()[before:] {
			if a.packet.Final {
				answer = &a.packet
			}
		}
		return answer != nil
	})
	if answer.State != bfd.Up {
		t.Errorf("the session is %s", answer.State)
	}
}

// sendAlone sends a packet although the router is mute.
func (r *router) sendAlone(t *testing.T, p bfd.Packet) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isMute = false
	r.send(t, &p)
	r.isMute = true
}

// A port that another program has is tried again.
func TestPortIsTaken(t *testing.T) {
	where := newLink(t)
	other, err := net.ListenPacket("udp4", "0.0.0.0:3784")
	if err != nil {
		t.Fatal(err)
	}
	r, n := startRouter(t, where, "192.0.2.1", "192.0.2.11"), startNode(t)
	n.watches("192.0.2.1", "")
	eventually(t, "the router hears the node", func() bool { return len(r.arrivals()) > 0 })
	if state := n.State(netip.MustParseAddr("192.0.2.1")); state != bfd.Down {
		t.Errorf("the session is %s", state)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the session is up", func() bool { return n.State(netip.MustParseAddr("192.0.2.1")) == bfd.Up })
}

// TestNeighboursComeAndGo changes which sessions there are: the ports are open only while there are any,
// settings change in a session that is up, and another source is another session.
func TestNeighboursComeAndGo(t *testing.T) {
	where := newLink(t)
	r, n := startRouter(t, where, "192.0.2.1", "192.0.2.11"), startNode(t)
	neighbour := netip.MustParseAddr("192.0.2.1")
	// canListen reports whether the port is free.
	canListen := func(network string) func() bool {
		return func() bool {
			conn, err := net.ListenPacket(network, ":3784")
			return err == nil && conn.Close() == nil
		}
	}
	eventually(t, "without sessions the port is free", canListen("udp4"))
	n.watches("192.0.2.1", "")
	eventually(t, "the session is up", func() bool { return r.state() == bfd.Up && n.State(neighbour) == bfd.Up })
	if canListen("udp4")() || !canListen("udp6")() {
		t.Error("it listens for the other family")
	}
	slower := bfd.NeighbourSettings{Settings: bfd.Settings{Interval: 200 * time.Millisecond, Multiplier: 9}}
	n.Sync(map[netip.Addr]bfd.NeighbourSettings{neighbour: slower})
	eventually(t, "the router hears other settings, and has answered", func() bool {
		heard := r.arrivals()
		last := heard[len(heard)-1].packet
		return last.Multiplier == 9 && last.RequiredMinRx == slower.Interval && !last.Poll && last.State == bfd.Up
	})
	r.mu.Lock()
	if r.failures > 0 || n.failures.Load() > 0 {
		t.Error("a change of the settings took the session down")
	}
	r.mu.Unlock()
	slower.Source = netip.MustParseAddr("192.0.2.12")
	n.Sync(map[netip.Addr]bfd.NeighbourSettings{neighbour: slower})
	eventually(t, "the router hears the other source", func() bool {
		heard := r.arrivals()
		return heard[len(heard)-1].from.Addr().Unmap() == slower.Source
	})
	n.Sync(nil)
	eventually(t, "the port is free again", canListen("udp4"))
	if state := n.State(neighbour); state != bfd.Down {
		t.Errorf("a session that is over is %s", state)
	}
}

// TestNeighbourIsAway has a neighbour whose address the node cannot reach yet.
func TestNeighbourIsAway(t *testing.T) {
	where := newLink(t)
	r, n := startRouter(t, where, "192.0.2.1", "192.0.2.99"), startNode(t)
	n.watches("192.0.2.1", "192.0.2.99")
	other := netip.MustParseAddr("2001:db8::1")
	six := startRouter(t, where, "2001:db8::1", "2001:db8::11")
	n.Sync(map[netip.Addr]bfd.NeighbourSettings{
		netip.MustParseAddr("192.0.2.1"): {Settings: settings, Source: netip.MustParseAddr("192.0.2.99")},
		other:                            {Settings: settings},
	})
	eventually(t, "another session is up", func() bool { return six.state() == bfd.Up && n.State(other) == bfd.Up })
	nstest.Run(t, "ip addr add 192.0.2.99/24 dev eth0")
	eventually(t, "the node gets the source address, and the session is up", func() bool { return r.state() == bfd.Up })
}
