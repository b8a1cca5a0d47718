package neigh

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
)

// addManyAddresses adds n addresses of each family to a neighbour, and returns them.
func addManyAddresses(t *testing.T, neighbour nstest.Neighbour, n int) (v4, v6 []string) {
	t.Helper()
	var batch strings.Builder
	for i := range n {
		a4, a6 := fmt.Sprintf("198.18.%d.%d", i/250, i%250+1), fmt.Sprintf("2001:db8::%x", i+1)
		v4, v6 = append(v4, a4), append(v6, a6)
		fmt.Fprintf(&batch, "addr add %s/32 dev eth0\naddr add %s/128 dev eth0 nodad preferred_lft 0\n", a4, a6)
	}
	file := filepath.Join(t.TempDir(), "batch")
	if err := os.WriteFile(file, []byte(batch.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	neighbour.Run(t, "ip -batch %s", file)
	return v4, v6
}

// TestFaultManyHeld has Probe ask at once for 5,000 addresses that the neighbour has, or for 1,000 in the virtual
// machine, whose processor is emulated. Probe is to report none of them as free. TestProofManyHeld does the same
// with the agent's interval and on a busy machine.
func TestFaultManyHeld(t *testing.T) {
	many := 5000
	if os.Getenv("PURELB_TEST_VM") != "" {
		many = 1000
	}
	neighbour := connectNeighbour(t)
	v4, v6 := addManyAddresses(t, neighbour, many)
	e := openEthernet(t)
	expectAllHeld(t, e, v4, longInterval)
	expectAllHeld(t, e, v6, longInterval)
}

// expectAllHeld probes for many addresses of one family that the neighbour has.
func expectAllHeld(t *testing.T, e *Ethernet, all []string, interval time.Duration) {
	t.Helper()
	start := time.Now()
	answers := e.Probe(t.Context(), questionsFor("eth0", all...), 2, interval)
	took := time.Since(start)
	held := 0
	for addr, a := range answers {
		if a != (ProbeResult{MAC: neighbourMAC}) {
			t.Fatalf("%s: %+v", addr, a)
		}
		held++
	}
	t.Logf("%s to %s: %d addresses, %d held, after %s", all[0], all[len(all)-1], len(all), held, took)
	if held != len(all) {
		t.Errorf("%s to %s: %d held addresses are taken for free", all[0], all[len(all)-1], len(all)-held)
	}
}

// TestFaultAnswersLost makes the queue of the probe's socket small: the probe does not take
// addresses for free whose answers the kernel drops, and finds their holder once there is room. This
// test shows the row "it cannot be heard, or cannot hear" of docs/trust.md.
func TestFaultAnswersLost(t *testing.T) {
	neighbour := connectNeighbour(t)
	all, _ := addManyAddresses(t, neighbour, 300)
	nic, source, err := ethernetInterface("eth0")
	if err != nil {
		t.Fatal(err)
	}
	socket, err := openPacketSocket(nic, etherTypeARP, claimFilter(nic, false, nil))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = socket.Close() }()
	raw, err := socket.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	setQueue := func(option, size int) {
		t.Helper()
		if controlErr := raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, option,
				size)
		}); err != nil || controlErr != nil {
			t.Fatal(err, controlErr)
		}
	}
	setQueue(unix.SO_RCVBUF, 1)
	p := &linkProbe{
		socket: socket, source: source, pending: map[netip.Addr]Question{}, answeredBy: map[netip.Addr]MAC{},
		unsettled: len(all),
	}
	err = p.run(t.Context(), questionsFor("eth0", all...), 2, 10*time.Millisecond)
	t.Logf("%d of %d answered: %v", len(p.answeredBy), len(all), err)
	if !errors.Is(err, errAnswersLost) || len(p.answeredBy) == len(all) {
		t.Errorf(
			"with room for few answers %d of %d held addresses are found, and the error is %v", len(p.answeredBy), len(all), err,
		)
	}
	setQueue(unix.SO_RCVBUFFORCE, receiveBuffer)
	if err := p.run(t.Context(), questionsFor("eth0", all...), 2, longInterval); err != nil ||
		len(p.answeredBy) != len(all) {
		t.Errorf(
			"with room for all answers %d of %d held addresses are found, and the error is %v", len(p.answeredBy), len(all), err,
		)
	}
}

// TestFaultNoCarrier probes on a link without a carrier, where silence proves nothing.
func TestFaultNoCarrier(t *testing.T) {
	neighbour := connectNeighbour(t)
	neighbour.Run(t, "ip link set eth0 down")
	waitUntil(
		t, "eth0 has no carrier", func() bool { return !strings.Contains(nstest.Run(t, "ip -o link show eth0"), "state UP") },
	)
	for _, address := range []string{"192.0.2.1", "2001:db8::1"} {
		answers := openEthernet(t).Probe(t.Context(), questionsFor("eth0", address), 1, 20*time.Millisecond)
		if err := answers[netip.MustParseAddr(address)].Err; err == nil {
			t.Errorf("%s is taken for free", address)
		}
	}
}

// arpReplyFrom builds an ARP reply to eth0 from a station that need not exist.
func arpReplyFrom(t *testing.T, mac MAC, address string) []byte {
	t.Helper()
	return buildFrame(
		t, GratuitousARP, address, setBytes(0, localMAC[:]...), setBytes(6, mac[:]...), setBytes(21, arpReply),
		setBytes(22, mac[:]...), setBytes(38, 0, 0, 0, 0),
	)
}

// answerEachARPRequest makes the neighbour answer each ARP request with these frames, at once
// and in this order, until the test ends.
func answerEachARPRequest(t *testing.T, neighbour nstest.Neighbour, frames ...[]byte) {
	t.Helper()
	socket := packetSocket(t, neighbour, "eth0", 0x0608)
	go func() {
		buffer := make([]byte, 2048)
		for {
			n, err := socket.Read(buffer)
			if err != nil {
				return
			}
			if n < 42 || buffer[21] != arpRequest {
				continue
			}
			for _, frame := range frames {
				if _, err := socket.Write(frame); err != nil {
					return
				}
			}
		}
	}()
}

// TestAttackHideHolder answers before the holder does, in the name of a proxying gateway, no
// station, a group, this very node, or another station: Probe finds the holder. This test shows the
// row "hide that another station has an address" of docs/trust.md.
func TestAttackHideHolder(t *testing.T) {
	gateway, holder, stranger := MAC{2, 0, 0, 0, 0, 0xcc}, MAC{2, 0, 0, 0, 0, 0xdd}, MAC{2, 0, 0, 0, 0, 0xee}
	for name, first := range map[string]MAC{
		"the gateway": gateway, "nobody": {}, "all": broadcast, "a group": {1, 0, 0x5e, 0, 0, 1}, "this node": localMAC,
		"a stranger": stranger,
	} {
		t.Run(name, func(t *testing.T) {
			neighbour := connectNeighbour(t)
			answerEachARPRequest(t, neighbour, arpReplyFrom(t, first, "192.0.2.1"), arpReplyFrom(t, holder, "192.0.2.1"))
			q := questionsFor("eth0", "192.0.2.1")
			q[0].IgnoredMACs = []MAC{gateway}
			for _, nodes := range [][]MAC{nil, {holder}} {
				if first == stranger && nodes == nil { // nothing tells the holder from the stranger
					continue
				}
				q[0].NodeMACs = nodes
				answer := openEthernet(t).Probe(t.Context(), q, 2, longInterval)[q[0].Addr]
				if answer != (ProbeResult{MAC: holder}) {
					t.Errorf("answer %v, want that of the holder, %s", answer, holder)
				}
			}
		})
	}
	// Without the holder Probe ignores the gateway's answer and returns the stranger's.
	neighbour := connectNeighbour(t)
	answerEachARPRequest(t, neighbour, arpReplyFrom(t, gateway, "192.0.2.1"), arpReplyFrom(t, stranger, "192.0.2.2"))
	q := questionsFor("eth0", "192.0.2.1", "192.0.2.2")
	for i := range q {
		q[i].NodeMACs, q[i].IgnoredMACs = []MAC{holder}, []MAC{gateway}
	}
	// The gateway's answers come before the stranger's.
	e := openEthernet(t)
	waitUntil(t, "the stranger's answer is received", func() bool {
		answers := e.Probe(t.Context(), q, 2, 50*time.Millisecond)
		_, isAnswered := answers[q[1].Addr]
		if want := (ProbeResult{MAC: stranger}); isAnswered && (len(answers) != 1 || answers[q[1].Addr] != want) {
			t.Fatalf("answers %v, want one of %s", answers, stranger)
		}
		return isAnswered
	})
}

// TestAttackOtherVLAN claims addresses in another VLAN than that of the interface, with and
// without an interface in that VLAN: Listen passes on none of the claims. This test shows the row "be
// heard from another VLAN" of docs/trust.md.
func TestAttackOtherVLAN(t *testing.T) {
	for _, hasInterface := range []bool{false, true} {
		t.Run(fmt.Sprintf("interface=%v", hasInterface), func(t *testing.T) {
			neighbour := connectNeighbour(t)
			if hasInterface {
				if out, err := exec.Command("ip", "link", "add", "link", "eth0", "name", "eth0.20", "type", "vlan", "id", "20").
					CombinedOutput(); err != nil {
					t.Skipf("NOT SHOWN HERE, but by make test-vm: this kernel has no VLAN interfaces: %s", out)
				}
				nstest.Run(t, "ip link set eth0.20 up")
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			heard := make(chan Message, 10)
			go func() {
				_ = openEthernet(t).Listen(ctx, "eth0", func(netip.Addr) bool { return true }, func(m Message) { heard <- m })
			}()
			write := newFrameSender(t, neighbour)
			nextMessage := func() Message {
				for deadline := time.After(patience); ; {
					write(buildFrame(t, GratuitousARP, "192.0.2.99"))
					select {
					case m := <-heard:
						return m
					case <-deadline:
						t.Fatal("no message is received")
					case <-time.After(20 * time.Millisecond):
					}
				}
			}
			nextMessage()
			tagged := func(frame []byte) []byte { return slices.Insert(frame, 12, 0x81, 0x00, 0, 20) }
			write(buildFrame(t, GratuitousARP, "192.0.2.1", tagged))
			write(buildFrame(t, UnsolicitedNA, "2001:db8::1", tagged))
			for range 5 {
				if m := nextMessage(); m.Addr != netip.MustParseAddr("192.0.2.99") {
					t.Fatalf("a claim from another VLAN is received: %+v", m)
				}
			}
		})
	}
}

// allEtherTypes makes packetSocket read all frames (big endian).
const allEtherTypes = 0x0300

// packetSocket opens a packet socket on a link of the neighbour's that reads the frames that it receives of one
// EtherType (big endian; 0: none), and is closed when the test ends.
func packetSocket(t *testing.T, neighbour nstest.Neighbour, link string, etherType uint16) *os.File {
	t.Helper()
	var socket *os.File
	neighbour.Call(t, func() error {
		nic, _, err := ethernetInterface(link)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		socket = os.NewFile(uintptr(fd), "packets of the neighbour")
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: etherType, Ifindex: nic.Index})
	})
	t.Cleanup(func() { _ = socket.Close() })
	return socket
}

// newFrameSender returns a function that sends a frame on the neighbour's eth0. It waits until
// the socket has room: if the receiving kernel is slower than the sender, the socket fills up.
func newFrameSender(t *testing.T, neighbour nstest.Neighbour) func(frame []byte) {
	t.Helper()
	socket := packetSocket(t, neighbour, "eth0", 0)
	return func(frame []byte) {
		t.Helper()
		if _, err := socket.Write(frame); err != nil {
			t.Error(err)
		}
	}
}

// TestCommonBits checks how much of many addresses the socket filter compares.
func TestCommonBits(t *testing.T) {
	for name, c := range map[string]struct {
		addrs         []string
		values, masks []uint32
	}{
		"none":      {},
		"one":       {[]string{"192.0.2.1"}, []uint32{0xc0000201}, []uint32{0xffffffff}},
		"two":       {[]string{"192.0.2.1", "192.0.2.2"}, []uint32{0xc0000200}, []uint32{0xfffffffc}},
		"far apart": {[]string{"10.0.0.1", "192.0.2.2"}, []uint32{0}, []uint32{0}},
		"IPv6": {[]string{"2001:db8::1", "2001:db8::1:0:2"},
			[]uint32{0x20010db8, 0, 0, 0}, []uint32{0xffffffff, 0xffffffff, 0xfffffffe, 0}},
	} {
		var addrs []netip.Addr
		for _, a := range c.addrs {
			addrs = append(addrs, netip.MustParseAddr(a))
		}
		if values, masks := commonBits(addrs); !slices.Equal(values, c.values) || !slices.Equal(masks, c.masks) {
			t.Errorf("%s: %x/%x, want %x/%x", name, values, masks, c.values, c.masks)
		}
	}
}

// TestFaultInterfaceSendsNothing fills the queue of one interface: sending on it fails at once,
// and sending on another interface succeeds.
func TestFaultInterfaceSendsNothing(t *testing.T) {
	connectNeighbour(t)
	nstest.Run(t, "ip link add eth2 type veth peer name eth3")
	t.Cleanup(func() { nstest.Run(t, "ip link del eth2") })
	nstest.Run(t, "ip link set eth2 up")
	nstest.Run(t, "ip link set eth3 up")
	nstest.Run(t, "tc qdisc add dev eth0 root tbf rate 8bit burst 2000 limit 100000000")
	e := openEthernet(t)
	done := make(chan error, 1)
	go func() {
		var failed error
		for range 100000 {
			failed = e.Announce("eth0", netip.MustParseAddr("192.0.2.1"))
			if failed != nil {
				break
			}
		}
		done <- failed
	}()
	select {
	case err := <-done:
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.ENOBUFS) {
			t.Errorf("announcing on an interface that sends nothing: %v", err)
		}
	case <-time.After(patience):
		t.Fatal("announcing on an interface that sends nothing does not end")
	}
	if err := e.Announce("eth2", netip.MustParseAddr("192.0.2.1")); err != nil {
		t.Errorf("announcing on another interface: %v", err)
	}
	// A question that finds no room in the interface's queue proves nothing.
	nstest.Run(t, "tc qdisc replace dev eth0 root pfifo limit 0")
	answer := e.Probe(t.Context(), questionsFor("eth0", "192.0.2.1"), 1,
		10*time.Millisecond)[netip.MustParseAddr("192.0.2.1")]
	if !errors.Is(answer.Err, unix.ENOBUFS) {
		t.Errorf("probing on an interface that takes nothing: %+v", answer)
	}
}

// TestAttackFrames sends more frames than Listen may read.
func TestAttackFrames(t *testing.T) {
	neighbour := connectNeighbour(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var heard atomic.Int32
	go func() {
		_ = openEthernet(t).Listen(ctx, "eth0", func(netip.Addr) bool { return true }, func(Message) { heard.Add(1) })
	}()
	write, frame := newFrameSender(t, neighbour), buildFrame(t, GratuitousARP, "192.0.2.1")
	waitUntil(t, "a message is received", func() bool {
		write(frame)
		return heard.Load() > 0
	})
	start, before := time.Now(), heard.Load() // what is read between two looks only makes the bound wider
	const sent = 100000
	for range sent {
		write(frame)
	}
	read := int(heard.Load() - before)
	took := time.Since(start)
	t.Logf("%d frames sent in %s, %d read", sent, took, read)
	if most := 2*readBurst + int(readRate*took.Seconds()); read > most {
		t.Errorf("%d frames were read in %s, more than %d", read, took, most)
	}
}

// TestAttackPodMAC has a station with the MAC that all interfaces of pods have: it is heard, unless
// that may be the MAC of the node itself.
func TestAttackPodMAC(t *testing.T) {
	podMAC := MAC{0xee, 0xee, 0xee, 0xee, 0xee, 0xee}
	neighbour := connectNeighbour(t)
	nstest.Run(t, "ip link add cali1 address %s type veth peer name pod1", podMAC)
	t.Cleanup(func() { nstest.Run(t, "ip link del cali1") })
	answerEachARPRequest(t, neighbour, arpReplyFrom(t, podMAC, "192.0.2.1"))
	e, q := openEthernet(t), questionsFor("eth0", "192.0.2.1")
	expectHeard := func(isHeard bool) {
		t.Helper()
		answers := map[bool]ProbeResult{true: {MAC: podMAC}}
		interval := map[bool]time.Duration{true: longInterval, false: 100 * time.Millisecond}[isHeard]
		if answer := e.Probe(t.Context(), q, 2, interval)[q[0].Addr]; answer != answers[isHeard] {
			t.Errorf("the answer to a probe is %v, want %v", answer, answers[isHeard])
		}
		if own, err := e.isOwn(podMAC); own == isHeard || err != nil {
			t.Errorf("isOwn is %v, %v", own, err)
		}
	}
	expectHeard(false) // what the interface is for is not known
	e.SetPodMACs([]string{podMAC.String()})
	expectHeard(true)
	if own, err := e.isOwn(localMAC); !own || err != nil {
		t.Errorf("isOwn of the node's own address: %v, %v", own, err)
	}
	e.SetPodMACs(nil)
	expectHeard(false)
}

// TestAttackOwnAddresses checks that the node's own MAC addresses are not listed for each frame.
func TestAttackOwnAddresses(t *testing.T) {
	connectNeighbour(t)
	e := openEthernet(t)
	if own, err := e.isOwn(localMAC); !own || err != nil {
		t.Fatalf("isOwn of the node's own address: %v, %v", own, err)
	}
	listed := e.interfaceMACsListedAt
	for range 10000 {
		if own, err := e.isOwn(neighbourMAC); own || err != nil {
			t.Fatalf("isOwn of another station's address: %v, %v", own, err)
		}
		if time.Since(listed) < interfaceMACsTTL && e.interfaceMACsListedAt != listed {
			t.Fatal("the addresses are listed for each frame")
		}
	}
	nstest.Run(t, "ip link add br9 address 02:00:00:00:00:09 type bridge")
	t.Cleanup(func() { nstest.Run(t, "ip link del br9") })
	waitUntil(t, "isOwn finds a new interface", func() bool {
		own, _ := e.isOwn(MAC{2, 0, 0, 0, 0, 9})
		return own
	})
}
