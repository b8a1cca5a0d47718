package neigh

import (
	"bytes"
	"context"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
)

// newFabric connects eth0 to eth0 of a holder by two bridges that suppress neighbour
// discovery between them, as those of an EVPN fabric do on their VXLAN ports.
func newFabric(t *testing.T) (bridges, holder nstest.Neighbour) {
	t.Helper()
	bridges, holder = nstest.NewNeighbour(t), nstest.NewNeighbour(t)
	nstest.Run(t, "ip link add eth0 address %s type veth peer name node", localMAC)
	t.Cleanup(func() { nstest.Run(t, "ip link del eth0") })
	bridges.MoveLink(t, "node")
	nstest.Run(t, "ip link add eth9 address %s type veth peer name holder", neighbourMAC)
	holder.MoveLink(t, "eth9")
	bridges.MoveLink(t, "holder")
	bridges.Run(t, "ip link add east type veth peer name west")
	for bridge, ports := range map[string][]string{"br0": {"node", "east"}, "br1": {"holder", "west"}} {
		bridges.Run(t, "ip link add %s type bridge mcast_snooping 0", bridge)
		for _, port := range ports {
			bridges.Run(t, "ip link set %s up master %s", port, bridge)
		}
		bridges.Run(t, "ip link set %s up", bridge)
	}
	for _, port := range []string{"east", "west"} {
		bridges.Run(t, "bridge link set dev %s neigh_suppress on", port)
		if out := bridges.Run(t, "bridge -d link show dev %s", port); !strings.Contains(out, "neigh_suppress on") {
			t.Skipf("NOT SHOWN HERE, but by make test-vm: the bridges of this kernel suppress no neighbour discovery: %s", out)
		}
	}
	nstest.Run(t, "ip link set eth0 up")
	nstest.Run(t, "ip addr add 192.0.2.11/24 dev eth0")
	nstest.Run(t, "ip addr add 2001:db8::11/64 dev eth0 nodad")
	holder.Run(t, "ip link set eth9 name eth0 up")
	waitForCarrier(t, holder)
	for _, port := range []string{"node", "holder", "east", "west"} {
		waitUntil(t, "port "+port+" forwards", func() bool {
			return strings.Contains(bridges.Run(t, "bridge link show dev %s", port), "state forwarding")
		})
	}
	holder.Run(t, "ip addr add 192.0.2.12/24 dev eth0")
	holder.Run(t, "ip addr add 2001:db8::12/64 dev eth0 nodad")
	holder.Run(t, "ip addr add 192.0.2.1/32 dev eth0")
	holder.Run(t, "ip addr add 2001:db8::1/128 dev eth0 nodad preferred_lft 0")
	return bridges, holder
}

// senderByTarget has the node's own address from which to ask for each target.
var senderByTarget = map[string]string{"192.0.2.1": "192.0.2.11", "2001:db8::1": "2001:db8::11"}

// TestFaultSuppressingBridge probes through a fabric that floods no question without a
// sender: Probe finds the holder all the same, and the holder's cache learns no address but
// the node's own. This test shows the row "a fabric that suppresses ARP and neighbour discovery" of
// docs/trust.md.
func TestFaultSuppressingBridge(t *testing.T) {
	_, holder := newFabric(t)
	e := openEthernet(t)
	for address, sender := range senderByTarget {
		t.Run("asking for "+address, func(t *testing.T) {
			q := questionsFor("eth0", address)
			isSuppressed := len(e.Probe(t.Context(), q, 2, 50*time.Millisecond)) == 0
			q[0].Sender = netip.MustParseAddr(sender)
			if answer := e.Probe(t.Context(), q, 2, longInterval)[q[0].Addr]; answer != (Answer{MAC: neighbourMAC}) {
				t.Errorf("with a sender: %v", answer)
			}
			q[0].Sender = netip.Addr{}
			// The bridges suppress the answer to a solicitation without a sender, which is multicast.
			if q[0].Addr.Is4() {
				q[0].NodeMACs = []MAC{neighbourMAC}
				if answer := e.Probe(t.Context(), q, 2, longInterval)[q[0].Addr]; answer != (Answer{MAC: neighbourMAC}) {
					t.Errorf("asking the holder alone: %v", answer)
				}
			}
			if !isSuppressed {
				t.Skipf(
					"NOT SHOWN HERE: the bridges of this kernel, %s, suppress no question without a sender, so that none needs a "+
						"sender",
					kernelRelease(),
				)
			}
		})
	}
	for _, neighbour := range strings.Split(strings.TrimSpace(holder.Run(t, "ip neigh show")), "\n") {
		isOwn := strings.HasPrefix(neighbour, "192.0.2.11 ") || strings.HasPrefix(neighbour, "2001:db8::11 ") ||
			strings.HasPrefix(neighbour, "fe80::")
		if neighbour != "" && !isOwn {
			t.Errorf("the holder's cache has learnt %s", neighbour)
		}
	}
}

// TestFaultFabricAnswersForTheDead asks a station alone, through a fabric that answers for
// it: the station's own answer is received, and none once the station is gone. Where the fabric's
// kernel answers such questions itself, the test cannot show the latter, and says so.
func TestFaultFabricAnswersForTheDead(t *testing.T) {
	bridges, holder := newFabric(t)
	e := openEthernet(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	heard := make(chan Message, 100)
	go func() {
		_ = e.Listen(ctx, "eth0", func(netip.Addr) bool { return true }, func(m Message) { heard <- m })
	}()
	isAnswered := func(address string, within time.Duration) bool {
		t.Helper()
		q := questionsFor("eth0", address)[0]
		q.Sender = netip.MustParseAddr(senderByTarget[address])
		for deadline := time.After(within); ; {
			if err := e.AskStation(q, neighbourMAC); err != nil {
				t.Fatal(err)
			}
			select {
			case m := <-heard:
				if m.Addr == q.Addr && m.MAC == neighbourMAC && m.IsDirect && !m.IsGratuitous {
					return true
				}
			case <-time.After(20 * time.Millisecond):
			case <-deadline:
				return false
			}
		}
	}
	for address := range senderByTarget {
		if !isAnswered(address, patience) {
			t.Errorf("%s: no answer from a holder whose kernel lives", address)
		}
	}
	// The fabric's control plane has told the bridges where the holder is, and does not learn
	// that the holder is gone.
	for address := range senderByTarget {
		bridges.Run(t, "ip neigh replace %s lladdr %s dev br0 nud noarp extern_learn", address, neighbourMAC)
	}
	bridges.Run(t, "bridge fdb replace %s dev east master static extern_learn", neighbourMAC)
	holder.Run(t, "ip addr del 192.0.2.1/32 dev eth0")
	holder.Run(t, "ip addr del 2001:db8::1/128 dev eth0")
	for len(heard) > 0 {
		<-heard
	}
	for address := range senderByTarget {
		// The kernel of make test-vm, Linux 6.1, answers neighbour solicitations for a station alone.
		if isVM := os.Getenv("PURELB_TEST_VIRTUAL") != ""; isVM && netip.MustParseAddr(address).Is6() {
			continue
		}
		t.Run("nobody answers for "+address, func(t *testing.T) {
			if isAnswered(address, 300*time.Millisecond) {
				t.Skipf(
					"NOT SHOWN HERE: the bridges of this kernel, %s, answer questions that are for a station alone", kernelRelease(),
				)
			}
		})
	}
}

// kernelRelease is what the kernel calls itself. What its bridges suppress differs between
// releases, also of one version, as distributions take over changes.
func kernelRelease() string {
	release, err := exec.Command("uname", "-rv").Output()
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(release))
}
