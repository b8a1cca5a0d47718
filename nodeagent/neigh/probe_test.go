package neigh

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
)

func TestMain(m *testing.M) { os.Exit(nstest.Main(m)) }

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
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if strings.Contains(nstest.Run(t, "ip -o link show eth0"), "state UP") && strings.Contains(neighbour.Run(t, "ip -o link show eth0"), "state UP") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("eth0 has no carrier")
		}
	}
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

	all := questionsFor("eth0", "192.0.2.1", "192.0.2.2", "192.0.2.9", "2001:db8::1", "2001:db8::2")
	all = append(all, questionsFor("eth7", "192.0.2.3")...)
	all = append(all, questionsFor("br0", "192.0.2.4")...)
	all = append(all, questionsFor("tun0", "2001:db8::5")...)
	got := map[string]string{}
	for addr, answer := range openEthernet(t).Probe(t.Context(), all, 2, 100*time.Millisecond) {
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
	if got := openEthernet(t).Probe(t.Context(), questionsFor("eth0", "192.0.2.20", "2001:db8::20"), 3, 100*time.Millisecond); len(got) > 0 {
		t.Errorf("answers %v", got)
	}
}

// TestProbeBatch checks that a probe takes count intervals however many addresses it is for,
// and less if all are answered for.
func TestProbeBatch(t *testing.T) {
	neighbour := connectNeighbour(t)
	var batch []string
	for i := range 100 {
		batch = append(batch, fmt.Sprintf("192.0.2.%d", 100+i), fmt.Sprintf("2001:db8::%x", 100+i))
	}
	neighbour.Run(t, "ip addr add 192.0.2.150/32 dev eth0")
	const count, interval = 3, 50 * time.Millisecond
	start := time.Now()
	answers := openEthernet(t).Probe(t.Context(), questionsFor("eth0", batch...), count, interval)
	if took := time.Since(start); took < count*interval || took > count*interval+5*time.Second { // one by one: 30 s
		t.Errorf("took %v", took)
	}
	if want := map[netip.Addr]Answer{netip.MustParseAddr("192.0.2.150"): {MAC: neighbourMAC}}; !cmp.Equal(want, answers, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })) {
		t.Errorf("answers %v", answers)
	}

	start = time.Now()
	answers = openEthernet(t).Probe(t.Context(), questionsFor("eth0", "192.0.2.150"), 10, time.Second)
	if took := time.Since(start); took > 5*time.Second || len(answers) != 1 { // all questions: 10 s
		t.Errorf("took %v: %v", took, answers)
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
	socket, err := openReceiver(nic, etherTypeARP, claimFilter(nic, false, nil))
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
	for end := time.Now().Add(5 * time.Second); answers < asked && time.Now().Before(end); {
		if err := readMessages(t.Context(), socket, time.Now().Add(-time.Second), countAnswer); err != nil {
			t.Fatal(err)
		}
	}
	if answers != asked {
		t.Errorf("%d answers to %d questions", answers, asked)
	}
}

func TestProbeEndsWithContext(t *testing.T) {
	connectNeighbour(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	answers := openEthernet(t).Probe(ctx, questionsFor("eth0", "192.0.2.1"), 10, 5*time.Second)
	if err := answers[netip.MustParseAddr("192.0.2.1")].Err; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the context has ended: got the error %v", err)
	}
	if took := time.Since(start); took > 20*time.Second { // all questions: 50 s
		t.Errorf("took %v", took)
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
		var cached string
		for range 50 {
			if err := openEthernet(t).Announce("eth0", netip.MustParseAddr(address)); err != nil {
				t.Fatal(err)
			}
			cached = neighbour.Run(t, "ip %s neigh show %s dev eth0", family, address)
			if strings.Contains(cached, localMAC.String()) {
				break
			}
			// The neighbour ignores an update that comes soon after another (locktime).
			<-time.After(100 * time.Millisecond)
		}
		if !strings.Contains(cached, localMAC.String()) {
			t.Errorf("%s: the neighbour's cache still has %q", address, cached)
		}
	}
	if err := openEthernet(t).Announce("eth7", netip.MustParseAddr("192.0.2.1")); err == nil || !strings.Contains(err.Error(), "announce 192.0.2.1 on eth7") {
		t.Errorf("without the interface: %v", err)
	}
}
