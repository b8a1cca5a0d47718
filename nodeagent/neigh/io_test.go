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

// cable connects eth0, here, to eth0 of a neighbour.
func cable(t *testing.T) nstest.Neighbour {
	t.Helper()
	neighbour := nstest.NewNeighbour(t)
	nstest.Run(t, "ip link add eth0 address %s type veth peer name eth1 address %s", here, there)
	t.Cleanup(func() { nstest.Run(t, "ip link del eth0") })
	nstest.Run(t, "ip link set eth0 up")
	neighbour.Take(t, "eth1")
	neighbour.Run(t, "ip link set eth1 name eth0 up")
	return neighbour
}

// speaker speaks on the cable.
func speaker(t *testing.T) *Ethernet {
	t.Helper()
	e, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(e.socket) })
	return e
}

func targets(iface string, addresses ...string) []Target {
	var result []Target
	for _, a := range addresses {
		result = append(result, Target{iface, netip.MustParseAddr(a)})
	}
	return result
}

func TestProbe(t *testing.T) {
	neighbour := cable(t)
	neighbour.Run(t, "ip addr add 192.0.2.1/32 dev eth0")
	// As an agent puts it there: without duplicate address detection, and never
	// a source address.
	neighbour.Run(t, "ip addr add 2001:db8::1/128 dev eth0 nodad preferred_lft 0")
	nstest.Run(t, "ip addr add 192.0.2.9/32 dev eth0")
	nstest.Run(t, "ip link add name br0 type bridge")
	t.Cleanup(func() { nstest.Run(t, "ip link del br0") })
	nstest.Run(t, "ip tuntap add name tun0 mode tun")
	t.Cleanup(func() { nstest.Run(t, "ip link del tun0") })

	all := targets("eth0", "192.0.2.1", "192.0.2.2", "192.0.2.9", "2001:db8::1", "2001:db8::2")
	all = append(all, targets("eth7", "192.0.2.3")...)
	all = append(all, targets("br0", "192.0.2.4")...)
	all = append(all, targets("tun0", "2001:db8::5")...)
	got := map[string]string{}
	for addr, answer := range speaker(t).Probe(t.Context(), all, 2, 100*time.Millisecond) {
		if answer.Err != nil {
			got[addr.String()] = answer.Err.Error()
		} else {
			got[addr.String()] = answer.MAC.String()
		}
	}
	want := map[string]string{
		"192.0.2.1":   there.String(),
		"2001:db8::1": there.String(),
		"192.0.2.3":   "probe for 192.0.2.3 on eth7: route ip+net: no such network interface",
		"192.0.2.4":   "probe for 192.0.2.4 on br0: write packet:br0: network is down",
		"2001:db8::5": "probe for 2001:db8::5 on tun0: not an Ethernet interface",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A node with two interfaces on one link answers its own probe: that is nobody.
func TestProbeIgnoresItself(t *testing.T) {
	neighbour := cable(t)
	nstest.Run(t, "ip link add eth2 type veth peer name eth3")
	t.Cleanup(func() { nstest.Run(t, "ip link del eth2") })
	nstest.Run(t, "ip link set eth2 up")
	nstest.Run(t, "ip addr add 192.0.2.20/32 dev eth2")
	nstest.Run(t, "ip addr add 2001:db8::20/128 dev eth2 nodad")
	neighbour.Take(t, "eth3")
	neighbour.Run(t, "ip link add br0 type bridge")
	for _, port := range []string{"eth0", "eth3"} {
		neighbour.Run(t, "ip link set %s up master br0", port)
	}
	neighbour.Run(t, "ip link set br0 up")
	if got := speaker(t).Probe(t.Context(), targets("eth0", "192.0.2.20", "2001:db8::20"), 3, 100*time.Millisecond); len(got) > 0 {
		t.Errorf("answers %v", got)
	}
}

// However many are asked for, it takes count intervals; and less, if all
// answer.
func TestProbeBatch(t *testing.T) {
	neighbour := cable(t)
	var batch []string
	for i := range 100 {
		batch = append(batch, fmt.Sprintf("192.0.2.%d", 100+i), fmt.Sprintf("2001:db8::%x", 100+i))
	}
	neighbour.Run(t, "ip addr add 192.0.2.150/32 dev eth0")
	const count, interval = 3, 50 * time.Millisecond
	start := time.Now()
	answers := speaker(t).Probe(t.Context(), targets("eth0", batch...), count, interval)
	if took := time.Since(start); took < count*interval || took > count*interval+5*time.Second { // one by one: 30 s
		t.Errorf("took %v", took)
	}
	if want := map[netip.Addr]Answer{netip.MustParseAddr("192.0.2.150"): {MAC: there}}; !cmp.Equal(want, answers, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })) {
		t.Errorf("answers %v", answers)
	}

	start = time.Now()
	answers = speaker(t).Probe(t.Context(), targets("eth0", "192.0.2.150"), 10, time.Second)
	if took := time.Since(start); took > time.Second || len(answers) != 1 {
		t.Errorf("took %v: %v", took, answers)
	}
}

// What has come before the deadline counts, also if there was no time to read it.
func TestListenLate(t *testing.T) {
	neighbour := cable(t)
	neighbour.Run(t, "ip addr add 192.0.2.1/32 dev eth0")
	nic, source, err := station("eth0")
	if err != nil {
		t.Fatal(err)
	}
	socket, err := open(nic, etherTypeARP, nil)
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
	heard := 0
	hear := func(m Message) bool {
		if m.MAC == there {
			heard++
		}
		return true
	}
	// Delivery on the cable is at once, or as soon as the kernel gets to it.
	for end := time.Now().Add(5 * time.Second); heard < asked && time.Now().Before(end); {
		if err := listen(t.Context(), socket, time.Now().Add(-time.Second), hear); err != nil {
			t.Fatal(err)
		}
	}
	if heard != asked {
		t.Errorf("heard %d answers of %d", heard, asked)
	}
}

func TestProbeEndsWithContext(t *testing.T) {
	cable(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	answers := speaker(t).Probe(ctx, targets("eth0", "192.0.2.1"), 10, 5*time.Second)
	if err := answers[netip.MustParseAddr("192.0.2.1")].Err; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("not asked to the end, but: %v", err)
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("took %v", took)
	}
}

// An announcement changes what a neighbour knows.
func TestAnnounce(t *testing.T) {
	neighbour := cable(t)
	for address, family := range map[string]string{"192.0.2.1": "-4", "2001:db8::1": "-6"} {
		if family == "-4" {
			neighbour.Run(t, "ip addr add 192.0.2.50/24 dev eth0")
		} else {
			neighbour.Run(t, "ip addr add 2001:db8::50/64 dev eth0 nodad")
		}
		neighbour.Run(t, "ip neigh replace %s dev eth0 lladdr 02:00:00:00:00:99 nud stale", address)
		var known string
		for range 50 {
			if err := speaker(t).Announce("eth0", netip.MustParseAddr(address)); err != nil {
				t.Fatal(err)
			}
			known = neighbour.Run(t, "ip %s neigh show %s dev eth0", family, address)
			if strings.Contains(known, here.String()) {
				break
			}
			// The neighbour ignores an update soon after another (locktime).
			<-time.After(100 * time.Millisecond)
		}
		if !strings.Contains(known, here.String()) {
			t.Errorf("%s: the neighbour still knows %q", address, known)
		}
	}
	if err := speaker(t).Announce("eth7", netip.MustParseAddr("192.0.2.1")); err == nil || !strings.Contains(err.Error(), "announce 192.0.2.1 on eth7") {
		t.Errorf("where there is no interface: %v", err)
	}
}
