package neigh

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
)

func TestMain(m *testing.M) { os.Exit(nstest.Main(m)) }

const (
	// patience is how long a test waits for what has to happen: a machine may be busy.
	patience = 60 * time.Second
	// longInterval is the interval of probes that are answered: they end with the last answer.
	longInterval = 30 * time.Second
)

// waitUntil waits until a condition is true.
func waitUntil(t *testing.T, what string, isSo func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !isSo(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in %s: %s", patience, what)
		}
	}
}

// connectNeighbour connects eth0 to eth0 of a new neighbour.
func connectNeighbour(t *testing.T) nstest.Neighbour {
	t.Helper()
	neighbour := nstest.NewNeighbour(t)
	nstest.Run(t, "ip link add eth0 address %s type veth peer name eth1 address %s", localMAC, neighbourMAC)
	t.Cleanup(func() { nstest.Run(t, "ip link del eth0") })
	nstest.Run(t, "ip link set eth0 up")
	neighbour.MoveLink(t, "eth1")
	neighbour.Run(t, "ip link set eth1 name eth0 up")
	waitForCarrier(t, neighbour)
	return neighbour
}

// waitForCarrier waits until eth0 has a carrier at both ends: until then the kernel drops what
// is sent.
func waitForCarrier(t *testing.T, neighbour nstest.Neighbour) {
	t.Helper()
	waitUntil(t, "eth0 has a carrier", func() bool {
		return strings.Contains(nstest.Run(t, "ip -o link show eth0"), "state UP") &&
			strings.Contains(neighbour.Run(t, "ip -o link show eth0"), "state UP")
	})
}

// openEthernet opens an Ethernet and closes its sockets when the test ends.
func openEthernet(t *testing.T) *Ethernet {
	t.Helper()
	e, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, socket := range e.sendSockets {
			_ = unix.Close(socket)
		}
	})
	return e
}

func questionsFor(iface string, addresses ...string) []Question {
	var result []Question
	for _, a := range addresses {
		result = append(result, Question{Target: Target{iface, netip.MustParseAddr(a)}})
	}
	return result
}

func TestProbe(t *testing.T) {
	neighbour := connectNeighbour(t)
	neighbour.Run(t, "ip addr add 192.0.2.1/32 dev eth0")
	// The address is added as an agent adds it: without duplicate address detection, and
	// never as a source address.
	neighbour.Run(t, "ip addr add 2001:db8::1/128 dev eth0 nodad preferred_lft 0")
	nstest.Run(t, "ip addr add 192.0.2.9/32 dev eth0")
	nstest.Run(t, "ip link add name br0 type bridge")
	t.Cleanup(func() { nstest.Run(t, "ip link del br0") })
	nstest.Run(t, "ip tuntap add name tun0 mode tun")
	t.Cleanup(func() { nstest.Run(t, "ip link del tun0") })

	e := openEthernet(t)
	free := questionsFor("eth0", "192.0.2.2", "192.0.2.9", "2001:db8::2")
	if answers := e.Probe(t.Context(), free, 2, 100*time.Millisecond); len(answers) > 0 {
		t.Errorf("answers for addresses that no other station has: %v", answers)
	}
	all := questionsFor("eth0", "192.0.2.1", "2001:db8::1")
	all = append(all, questionsFor("eth7", "192.0.2.3")...)
	all = append(all, questionsFor("br0", "192.0.2.4")...)
	all = append(all, questionsFor("tun0", "2001:db8::5")...)
	got := map[string]string{}
	for addr, answer := range e.Probe(t.Context(), all, 2, longInterval) {
		if answer.Err != nil {
			got[addr.String()] = answer.Err.Error()
		} else {
			got[addr.String()] = answer.MAC.String()
		}
	}
	want := map[string]string{
		"192.0.2.1":   neighbourMAC.String(),
		"2001:db8::1": neighbourMAC.String(),
		"192.0.2.3":   "probe for 192.0.2.3 on eth7: route ip+net: no such network interface",
		"192.0.2.4":   "probe for 192.0.2.4 on br0: send: network is down",
		"2001:db8::5": "probe for 2001:db8::5 on tun0: not an Ethernet interface",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestProbeIgnoresOwnAnswers has a node with two interfaces on one link, which answers its own
// probe.
func TestProbeIgnoresOwnAnswers(t *testing.T) {
	neighbour := connectNeighbour(t)
	nstest.Run(t, "ip link add eth2 type veth peer name eth3")
	t.Cleanup(func() { nstest.Run(t, "ip link del eth2") })
	nstest.Run(t, "ip link set eth2 up")
	nstest.Run(t, "ip addr add 192.0.2.20/32 dev eth2")
	nstest.Run(t, "ip addr add 2001:db8::20/128 dev eth2 nodad")
	neighbour.MoveLink(t, "eth3")
	neighbour.Run(t, "ip link add br0 type bridge")
	for _, port := range []string{"eth0", "eth3"} {
		neighbour.Run(t, "ip link set %s up master br0", port)
	}
	neighbour.Run(t, "ip link set br0 up")
	neighbour.Run(t, "ip addr add 192.0.2.21/32 dev br0")
	neighbour.Run(t, "ip addr add 2001:db8::21/128 dev br0 nodad")
	// The bridge forwards a question to eth2 before it answers the next for an address of its own.
	e, own := openEthernet(t), questionsFor("eth0", "192.0.2.20", "2001:db8::20")
	waitUntil(t, "the neighbour answers", func() bool {
		got := e.Probe(
			t.Context(), append(own, questionsFor("eth0", "192.0.2.21", "2001:db8::21")...), 3, 100*time.Millisecond,
		)
		for _, q := range own {
			if answer, isAnswered := got[q.Addr]; isAnswered {
				t.Fatalf("the node's own answer for %s counts: %+v", q.Addr, answer)
			}
		}
		return len(got) == 2
	})
}

// TestProbeBatch checks that a probe asks for all addresses before it asks for one again, so that
// it takes count intervals however many addresses it is for. It ends before, if all are answered for.
func TestProbeBatch(t *testing.T) {
	neighbour := connectNeighbour(t)
	requested := collectARPRequests(t, neighbour)
	var batch []string
	for i := range 100 {
		batch = append(batch, fmt.Sprintf("192.0.2.%d", 100+i), fmt.Sprintf("2001:db8::%x", 100+i))
	}
	neighbour.Run(t, "ip addr add 192.0.2.150/32 dev eth0")
	const count, interval = 3, 50 * time.Millisecond
	start := time.Now()
	answers := openEthernet(t).Probe(t.Context(), questionsFor("eth0", batch...), count, interval)
	if took := time.Since(start); took < count*interval {
		t.Errorf("took %v", took)
	}
	if want := map[netip.Addr]ProbeResult{netip.MustParseAddr("192.0.2.150"): {MAC: neighbourMAC}}; !cmp.Equal(
		want, answers, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	) {
		t.Errorf("answers %v", answers)
	}
	var order []netip.Addr
	const addresses, unanswered = 100, 99
	waitUntil(t, "the neighbour has received all questions", func() bool {
		order = append(order, requested()...)
		return len(order) >= addresses+(count-1)*unanswered
	})
	first := slices.Clone(order[:addresses])
	slices.SortFunc(first, netip.Addr.Compare)
	if different := len(slices.Compact(first)); different != addresses {
		t.Errorf("the first %d questions are for %d addresses: %v", addresses, different, order)
	}

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	answers = openEthernet(t).Probe(ctx, questionsFor("eth0", "192.0.2.150"), 10, time.Hour)
	if len(answers) != 1 || ctx.Err() != nil {
		t.Errorf("answers %v, and the probe goes on: %v", answers, ctx.Err())
	}
}

// collectARPRequests returns a function that returns the addresses that ARP requests have asked the
// neighbour for since its last call.
func collectARPRequests(t *testing.T, neighbour nstest.Neighbour) (requested func() []netip.Addr) {
	t.Helper()
	socket := packetSocket(t, neighbour, "eth0", 0x0608)
	var mu sync.Mutex
	var addrs []netip.Addr
	go func() {
		buffer := make([]byte, 2048)
		for {
			n, err := socket.Read(buffer)
			if err != nil {
				return
			}
			if n >= 42 && buffer[21] == arpRequest {
				mu.Lock()
				addrs = append(addrs, netip.AddrFrom4([4]byte(buffer[38:42])))
				mu.Unlock()
			}
		}
	}()
	return func() []netip.Addr {
		mu.Lock()
		defer mu.Unlock()
		taken := addrs
		addrs = nil
		return taken
	}
}

// TestReadMessagesLate checks that a frame counts that came before the deadline and is read
// after it.
func TestReadMessagesLate(t *testing.T) {
	neighbour := connectNeighbour(t)
	neighbour.Run(t, "ip addr add 192.0.2.1/32 dev eth0")
	nic, source, err := ethernetInterface("eth0")
	if err != nil {
		t.Fatal(err)
	}
	socket, err := openPacketSocket(nic, etherTypeARP, claimFilter(nic, false, nil))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = socket.Close() }()
	frame, err := ARPProbe(source, netip.MustParseAddr("192.0.2.1"))
	if err != nil {
		t.Fatal(err)
	}
	const asked = 3
	for range asked {
		if _, err := socket.Write(frame); err != nil {
			t.Fatal(err)
		}
	}
	answers := 0
	countAnswer := func(m Message) bool {
		if m.MAC == neighbourMAC {
			answers++
		}
		return true
	}
	// The kernel delivers on a veth pair at once, or as soon as it has time.
	waitUntil(t, "all questions are answered", func() bool {
		if err := readMessages(t.Context(), socket, time.Now().Add(-time.Second), countAnswer); err != nil {
			t.Fatal(err)
		}
		return answers >= asked
	})
	if answers != asked {
		t.Errorf("%d answers to %d questions", answers, asked)
	}
}

func TestProbeEndsWithContext(t *testing.T) {
	connectNeighbour(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	e, ended := openEthernet(t), make(chan map[netip.Addr]ProbeResult, 1)
	go func() { ended <- e.Probe(ctx, questionsFor("eth0", "192.0.2.1"), 10, time.Hour) }()
	select {
	case answers := <-ended:
		if err := answers[netip.MustParseAddr("192.0.2.1")].Err; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the context has ended: got the error %v", err)
		}
	case <-time.After(patience):
		t.Error("the probe goes on after the context has ended")
	}
}

// TestAnnounce checks that an announcement changes a neighbour's cache.
func TestAnnounce(t *testing.T) {
	neighbour := connectNeighbour(t)
	for address, family := range map[string]string{"192.0.2.1": "-4", "2001:db8::1": "-6"} {
		if family == "-4" {
			neighbour.Run(t, "ip addr add 192.0.2.50/24 dev eth0")
		} else {
			neighbour.Run(t, "ip addr add 2001:db8::50/64 dev eth0 nodad")
		}
		neighbour.Run(t, "ip neigh replace %s dev eth0 lladdr 02:00:00:00:00:99 nud stale", address)
		// The neighbour ignores an update that comes soon after another (locktime).
		e := openEthernet(t)
		waitUntil(t, address+" is changed in the neighbour's cache", func() bool {
			if err := e.Announce("eth0", netip.MustParseAddr(address)); err != nil {
				t.Fatal(err)
			}
			return strings.Contains(neighbour.Run(t, "ip %s neigh show %s dev eth0", family, address), localMAC.String())
		})
	}
	if err := openEthernet(t).Announce("eth7", netip.MustParseAddr("192.0.2.1")); err == nil ||
		!strings.Contains(err.Error(), "announce 192.0.2.1 on eth7") {
		t.Errorf("without the interface: %v", err)
	}
}
