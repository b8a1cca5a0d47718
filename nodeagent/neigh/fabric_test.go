package neigh

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
)

// connectHolder connects eth0 to eth0 of a holder of 192.0.2.1 and 2001:db8::1, by what build makes of the links node
// and holder of a namespace in between.
func connectHolder(t *testing.T, build func(between nstest.Neighbour)) (holder nstest.Neighbour) {
	t.Helper()
	between, holder := nstest.NewNeighbour(t), nstest.NewNeighbour(t)
	nstest.Run(t, "ip link add eth0 address %s type veth peer name node", localMAC)
	t.Cleanup(func() { nstest.Run(t, "ip link del eth0") })
	between.MoveLink(t, "node")
	nstest.Run(t, "ip link add eth9 address %s type veth peer name holder", neighbourMAC)
	holder.MoveLink(t, "eth9")
	between.MoveLink(t, "holder")
	for _, link := range []string{"node", "holder"} {
		between.Run(t, "ip link set %s addrgenmode none up", link)
	}
	nstest.Run(t, "ip link set eth0 up")
	holder.Run(t, "ip link set eth9 name eth0 up")
	waitForCarrier(t, holder)
	build(between)
	nstest.Run(t, "ip addr add 192.0.2.11/24 dev eth0")
	nstest.Run(t, "ip addr add 2001:db8::11/64 dev eth0 nodad")
	holder.Run(t, "ip addr add 192.0.2.12/24 dev eth0")
	holder.Run(t, "ip addr add 2001:db8::12/64 dev eth0 nodad")
	holder.Run(t, "ip addr add 192.0.2.1/32 dev eth0")
	holder.Run(t, "ip addr add 2001:db8::1/128 dev eth0 nodad preferred_lft 0")
	return holder
}

// connectByFabric connects eth0 to a holder by a fabric, whose port 0 leads to eth0, and port 1 to the holder.
func connectByFabric(t *testing.T, rules fabricRules) (f *fabric, holder nstest.Neighbour) {
	t.Helper()
	holder = connectHolder(t, func(between nstest.Neighbour) { f = startFabric(t, between, rules, "node", "holder") })
	return f, holder
}

// connectByBridges connects eth0 to a holder by two bridges of the kernel, which are told to suppress neighbour
// discovery between them. What they then do depends on the kernel.
func connectByBridges(t *testing.T) (holder nstest.Neighbour) {
	t.Helper()
	return connectHolder(t, func(between nstest.Neighbour) {
		between.Run(t, "ip link add east type veth peer name west")
		for bridge, ports := range map[string][]string{"br0": {"node", "east"}, "br1": {"holder", "west"}} {
			between.Run(t, "ip link add %s type bridge mcast_snooping 0", bridge)
			for _, port := range ports {
				between.Run(t, "ip link set %s up master %s", port, bridge)
			}
			between.Run(t, "ip link set %s up", bridge)
		}
		for _, port := range []string{"east", "west"} {
			between.Run(t, "bridge link set dev %s neigh_suppress on", port)
		}
		for _, port := range []string{"node", "holder", "east", "west"} {
			waitUntil(t, "port "+port+" forwards", func() bool {
				return strings.Contains(between.Run(t, "bridge link show dev %s", port), "state forwarding")
			})
		}
	})
}

// senderByTarget has the node's own address from which to ask for each target.
var senderByTarget = map[string]string{"192.0.2.1": "192.0.2.11", "2001:db8::1": "2001:db8::11"}

// TestFaultSuppressingBridge probes through fabrics that know no station, and flood questions without a sender or do
// not: Probe finds the holder in either case, and the holder's cache learns no address but the node's own. So it does
// through bridges of the kernel, whatever these do. This test shows the row "a fabric that suppresses ARP and neighbour
// discovery" of docs/trust.md.
func TestFaultSuppressingBridge(t *testing.T) {
	for _, isSenderOptional := range []bool{false, true} {
		t.Run(fmt.Sprintf("floods questions without a sender=%v", isSenderOptional), func(t *testing.T) {
			f, holder := connectByFabric(t, fabricRules{isSenderOptional: isSenderOptional})
			e := openEthernet(t)
			for target := range senderByTarget {
				q := questionsFor("eth0", target)
				want, interval := map[netip.Addr]ProbeResult{}, 50*time.Millisecond
				// The answer to a solicitation without a sender is an unsolicited advertisement: the fabric suppresses it.
				isAnnounced := isSenderOptional && q[0].Addr.Is6()
				if isSenderOptional && !isAnnounced {
					want[q[0].Addr], interval = ProbeResult{MAC: neighbourMAC}, longInterval
				}
				got := e.Probe(t.Context(), q, 2, interval)
				if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
					t.Errorf("%s: without a sender (-want +got):\n%s", target, diff)
				}
				question := passage{addr: q[0].Addr, isForwarded: isSenderOptional}
				suppressed := passage{addr: q[0].Addr, isClaim: true}
				waitUntil(t, "the fabric has handled the question for "+target+", and its answer", func() bool {
					return f.count(func(p passage) bool { return p == question }) > 0 &&
						(!isAnnounced || f.count(func(p passage) bool { return p == suppressed }) > 0)
				})
			}
			expectHolderFound(t, holder)
		})
	}
	t.Run("bridges of this kernel", func(t *testing.T) { expectHolderFound(t, connectByBridges(t)) })
}

// expectHolderFound probes with a sender, and asks the holder alone without one.
func expectHolderFound(t *testing.T, holder nstest.Neighbour) {
	t.Helper()
	e := openEthernet(t)
	for target, sender := range senderByTarget {
		q := questionsFor("eth0", target)
		q[0].Sender = netip.MustParseAddr(sender)
		if answer := e.Probe(t.Context(), q, 2, longInterval)[q[0].Addr]; answer != (ProbeResult{MAC: neighbourMAC}) {
			t.Errorf("%s: with a sender: %v", target, answer)
		}
		// Fabrics suppress the answer to a solicitation without a sender, which is multicast.
		if q[0].Addr.Is4() {
			q[0].Sender, q[0].NodeMACs = netip.Addr{}, []MAC{neighbourMAC}
			if answer := e.Probe(t.Context(), q, 2, longInterval)[q[0].Addr]; answer != (ProbeResult{MAC: neighbourMAC}) {
				t.Errorf("%s: asking the holder alone: %v", target, answer)
			}
		}
	}
	for _, neighbour := range strings.Split(strings.TrimSpace(holder.Run(t, "ip neigh show")), "\n") {
		isOwn := strings.HasPrefix(neighbour, "192.0.2.11 ") || strings.HasPrefix(neighbour, "2001:db8::11 ") ||
			strings.HasPrefix(neighbour, "fe80::")
		if neighbour != "" && !isOwn {
			t.Errorf("the holder's cache has learnt %s", neighbour)
		}
	}
}

// TestFaultFabricAnswersForTheDead asks a station alone, through fabrics that answer for it when all are asked: the
// question reaches the station, and its own answer is received. Once the station is gone nobody answers, unless the
// fabric answers such questions, too: nothing tells that answer from the station's.
func TestFaultFabricAnswersForTheDead(t *testing.T) {
	for _, isSenderOptional := range []bool{false, true} {
		for _, answersDirect := range []bool{false, true} {
			name := fmt.Sprintf("answers without a sender=%v and for one station alone=%v", isSenderOptional, answersDirect)
			t.Run(name, func(t *testing.T) {
				rules := fabricRules{
					stations: map[netip.Addr]MAC{}, isSenderOptional: isSenderOptional, answersDirect: answersDirect,
				}
				for target := range senderByTarget {
					rules.stations[netip.MustParseAddr(target)] = neighbourMAC
				}
				f, holder := connectByFabric(t, rules)
				for target := range senderByTarget {
					t.Run(target, func(t *testing.T) { askDyingStation(t, f, holder, target) })
				}
			})
		}
	}
}

// askDyingStation asks the holder alone for one of its addresses while it has the address, and when it has not.
func askDyingStation(t *testing.T, f *fabric, holder nstest.Neighbour, target string) {
	t.Helper()
	e := openEthernet(t)
	q := questionsFor("eth0", target)
	q[0].Sender = netip.MustParseAddr(senderByTarget[target])
	isQuestion := func(p passage) bool { return p.addr == q[0].Addr && !p.isClaim }
	isForwarded := func(p passage) bool { return isQuestion(p) && p.isForwarded }
	// A node asks one station by a solicitation with a sender, but by an ARP probe, which has none.
	ofFabric := 0
	if f.rules.answersDirect && (f.rules.isSenderOptional || q[0].Addr.Is6()) {
		ofFabric = 1
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	heard := make(chan Message, 100)
	go func() {
		_ = e.Listen(ctx, "eth0", func(netip.Addr) bool { return true }, func(m Message) { heard <- m })
	}()
	// mark makes the fabric announce an address of the target's family that no station has.
	mark := func(addr string) {
		t.Helper()
		build := GratuitousARP
		if q[0].Addr.Is6() {
			build = UnsolicitedNA
		}
		if err := f.send(0, buildFrame(t, build, addr)); err != nil {
			t.Fatal(err)
		}
	}
	// countAnswers counts the answers that come: as many as are expected, and what else comes before a mark.
	countAnswers := func(expected int, markAddr string) (count int) {
		t.Helper()
		isMarked := false
		for deadline := time.After(patience); ; {
			if count >= expected && !isMarked {
				mark(markAddr)
				isMarked = true
			}
			select {
			case m := <-heard:
				switch {
				case m.Addr.String() == markAddr:
					return count
				case m.Addr == q[0].Addr && m.MAC == neighbourMAC && m.IsDirect && !m.IsGratuitous:
					count++
				}
			case <-deadline:
				t.Fatalf("%d answers are received, want %d", count, expected)
			}
		}
	}
	ask := func() {
		t.Helper()
		asked, forwarded := f.count(isQuestion), f.count(isForwarded)
		if err := e.AskStation(q[0], neighbourMAC); err != nil {
			t.Fatal(err)
		}
		waitUntil(t, "the fabric has handled the question", func() bool { return f.count(isQuestion) > asked })
		if f.count(isForwarded) == forwarded {
			t.Error("the question does not go through to the station")
		}
	}
	marks := map[bool][]string{
		false: {"198.51.100.1", "198.51.100.2", "198.51.100.3"}, true: {"2001:db8:9::1", "2001:db8:9::2", "2001:db8:9::3"},
	}[q[0].Addr.Is6()]
	waitUntil(t, "the node listens", func() bool {
		mark(marks[0])
		return len(heard) > 0
	})

	ask()
	if count := countAnswers(ofFabric+1, marks[1]); count != ofFabric+1 {
		t.Errorf("%d answers while the station lives, want %d of the fabric and one of the station", count, ofFabric)
	}
	length := map[bool]int{false: 32, true: 128}[q[0].Addr.Is6()]
	holder.Run(t, "ip addr del %s/%d dev eth0", target, length)
	ask()
	if count := countAnswers(ofFabric, marks[2]); count != ofFabric {
		t.Errorf("%d answers for a dead station, want %d of the fabric", count, ofFabric)
	}
	if answer := e.Probe(t.Context(), q, 2, longInterval)[q[0].Addr]; answer != (ProbeResult{MAC: neighbourMAC}) {
		t.Errorf("the fabric does not answer for the dead station: %v", answer)
	}
}
