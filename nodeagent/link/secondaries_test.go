package link

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// newNode adds eth0 with two IPv4 addresses and an IPv6 address of the node's own, with or
// without promote_secondaries, and a neighbour at the other end.
func newNode(t *testing.T, promote int) (*Netlink, nstest.Neighbour) {
	t.Helper()
	neighbour := nstest.NewNeighbour(t)
	nstest.Run(t, "ip link add eth0 type veth peer name far")
	t.Cleanup(func() { nstest.Run(t, "ip link del eth0") })
	neighbour.MoveLink(t, "far")
	neighbour.Run(t, "ip link set far up")
	neighbour.Run(t, "ip addr add 192.0.2.99/24 dev far")
	neighbour.Run(t, "ip addr add 2001:db8::99/64 dev far nodad")
	nstest.Run(t, "ip link set eth0 up")
	// Of the namespace that these tests have for themselves.
	nstest.Run(t, "sysctl -qw net.ipv4.conf.all.promote_secondaries=0")
	nstest.Run(t, "sysctl -qw net.ipv4.conf.eth0.promote_secondaries=%d", promote)
	nstest.Run(t, "ip addr add 192.0.2.11/24 brd + dev eth0")
	nstest.Run(t, "ip addr add 192.0.2.12/24 dev eth0")
	nstest.Run(t, "ip addr add 2001:db8::11/64 dev eth0 nodad")
	n, err := Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	return n, neighbour
}

// taggedAddress returns an address as the agent adds it to eth0.
func taggedAddress(address string, bits int) plan.Address {
	return plan.Address{
		Interface: "eth0", Prefix: netip.PrefixFrom(netip.MustParseAddr(address), bits), IsOurs: true, NoPrefixRoute: true,
		Valid: 300 * time.Second, Preferred: 300 * time.Second,
	}
}

// expectNodeAddresses fails unless the node has its own addresses, as newNode has added them,
// and a route to its subnet.
func expectNodeAddresses(t *testing.T, when string) {
	t.Helper()
	if out := nstest.Run(t, "ip -4 route show dev eth0"); !strings.Contains(
		out, "192.0.2.0/24 proto kernel scope link src 192.0.2.1",
	) {
		t.Errorf("%s: no route to the node's own subnet:\n%s", when, out)
	}
	out := nstest.Run(t, "ip -4 addr show dev eth0")
	for _, own := range []string{"inet 192.0.2.11/24 brd 192.0.2.255 scope global", "inet 192.0.2.12/24 scope global"} {
		if !strings.Contains(out, own) {
			t.Errorf("%s: no %q:\n%s", when, own, out)
		}
	}
	if strings.Contains(out, "192.0.2.11/32") || strings.Contains(out, "192.0.2.12/32") {
		t.Errorf("%s: a copy is left over:\n%s", when, out)
	}
}

// removeAndAddNodeAddresses does what DHCP does, or ifdown and ifup.
func removeAndAddNodeAddresses(t *testing.T) {
	t.Helper()
	nstest.Run(t, "ip addr del 192.0.2.11/24 dev eth0")
	if nstest.Run(t, "ip -4 addr show dev eth0 to 192.0.2.12") != "" {
		nstest.Run(t, "ip addr del 192.0.2.12/24 dev eth0")
	}
	nstest.Run(t, "ip addr add 192.0.2.11/24 brd + dev eth0")
	nstest.Run(t, "ip addr add 192.0.2.12/24 dev eth0")
}

// TestFaultOwnAddressReturns removes and adds the node's own addresses, with a host
// address of the agent beside them: no other address is lost, nor when the agent removes its
// address. This test shows the row "its own address goes and comes back" of docs/trust.md.
func TestFaultOwnAddressReturns(t *testing.T) {
	for promote := range 2 {
		t.Run(fmt.Sprintf("promote_secondaries=%d", promote), func(t *testing.T) {
			n, _ := newNode(t, promote)
			nstest.Run(t, "ip route add default via 192.0.2.254")
			desired := []plan.Desired{
				{
					Addr: netip.MustParseAddr("192.0.2.1"), Prefix: netip.MustParsePrefix("192.0.2.1/32"), Interface: "eth0",
					IsLocal: true,
				},
			}
			ours := taggedAddress("192.0.2.1", desired[0].Prefix.Bits())
			if err := n.Add(ours); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				removeAndAddNodeAddresses(t)
				expectNodeAddresses(t, "after the node's addresses were added again")
				if out := nstest.Run(t, "ip -4 addr show dev eth0 to 192.0.2.1"); !strings.Contains(out, "192.0.2.1/32") {
					t.Errorf("the agent's address was lost:\n%s", out)
				}
			}
			if err := n.Remove(ours); err != nil {
				t.Error(err)
			}
			expectNodeAddresses(t, "after the removal of the agent's address")
		})
	}
}

// TestFaultPrimaryIsWithdrawn removes an address of the agent that an older version added with
// the subnet's mask and that has become primary: the node keeps its own.
func TestFaultPrimaryIsWithdrawn(t *testing.T) {
	for promote := range 2 {
		t.Run(fmt.Sprintf("promote_secondaries=%d", promote), func(t *testing.T) {
			n, _ := newNode(t, promote)
			for _, address := range []string{"192.0.2.1", "192.0.2.2"} {
				if err := n.Add(taggedAddress(address, 24)); err != nil {
					t.Fatal(err)
				}
			}
			removeAndAddNodeAddresses(t)
			// without promote_secondaries the kernel has removed them with the node's own
			for _, address := range []string{"192.0.2.1", "192.0.2.2"} {
				_ = n.Add(taggedAddress(address, 24))
			}
			if out := nstest.Run(t, "ip -4 addr show dev eth0 primary"); promote == 1 && !strings.Contains(out, "192.0.2.1/24") {
				t.Fatalf("192.0.2.1 has not become primary:\n%s", out)
			}
			nstest.Run(t, "ip route add 198.51.100.0/24 via 192.0.2.99 dev eth0 onlink src 192.0.2.12")
			for _, address := range []string{"192.0.2.1", "192.0.2.2"} {
				if err := n.Remove(taggedAddress(address, 24)); err != nil {
					t.Fatal(err)
				}
			}
			expectNodeAddresses(t, "after the removal of the agent's addresses")
			expectSourceRoute(t)
			if left := addressesOn(t, n, "eth0"); len(left) != 3 {
				t.Errorf("%v", left)
			}
		})
	}
}

// expectSourceRoute fails if the kernel has lost the route that has an address of the node as
// its source.
func expectSourceRoute(t *testing.T) {
	t.Helper()
	if out := nstest.Run(t, "ip -4 route show 198.51.100.0/24"); !strings.Contains(out, "src 192.0.2.12") {
		t.Errorf("the route with the node's address as its source was lost: %q", out)
	}
}

// TestFaultPrimaryTakesNothingWithIt removes an address of the agent that was primary from
// the start, without promote_secondaries: the node keeps its own, with label and lifetimes.
func TestFaultPrimaryTakesNothingWithIt(t *testing.T) {
	n, _ := newNode(t, 0)
	nstest.Run(t, "ip -4 addr flush dev eth0")
	if err := n.Add(taggedAddress("192.0.2.1", 24)); err != nil {
		t.Fatal(err)
	}
	nstest.Run(t, "ip addr add 192.0.2.11/24 brd + dev eth0 label eth0:own valid_lft 1000 preferred_lft 900")
	nstest.Run(t, "ip addr add 192.0.2.12/24 dev eth0")
	nstest.Run(t, "ip route add 198.51.100.0/24 via 192.0.2.99 dev eth0 onlink src 192.0.2.12")
	if out := nstest.Run(t, "ip -4 addr show dev eth0 secondary"); !strings.Contains(out, "192.0.2.11/24") {
		t.Fatalf("the node's own address is not secondary:\n%s", out)
	}
	if err := n.Remove(taggedAddress("192.0.2.1", 24)); err != nil {
		t.Fatal(err)
	}
	expectNodeAddresses(t, "after the removal of the agent's address")
	expectSourceRoute(t)
	if out := nstest.Run(t, "ip -4 addr show dev eth0"); !strings.Contains(out, "scope global dynamic eth0:own") {
		t.Errorf("the label or the lifetimes were lost:\n%s", out)
	}
}

// TestFaultUpgradeLosesNothing begins with addresses that an older agent added with the
// subnet's mask. The next agent makes host addresses of them, and the kernel answers for them
// all the time.
func TestFaultUpgradeLosesNothing(t *testing.T) {
	for promote := range 2 {
		for _, primary := range []bool{false, true} {
			t.Run(fmt.Sprintf("promote_secondaries=%d, ours primary: %t", promote, primary), func(t *testing.T) {
				n, neighbour := newNode(t, promote)
				if primary {
					nstest.Run(t, "ip -4 addr flush dev eth0")
				}
				olds := []plan.Address{
					taggedAddress("192.0.2.1", 24), taggedAddress("192.0.2.2", 24), taggedAddress("2001:db8::1", 64),
				}
				for _, old := range olds {
					if err := n.Add(old); err != nil {
						t.Fatal(err)
					}
				}
				if primary {
					nstest.Run(t, "ip addr add 192.0.2.11/24 brd + dev eth0")
					nstest.Run(t, "ip addr add 192.0.2.12/24 dev eth0")
				}
				asked, stop := askRepeatedly(t, neighbour, "192.0.2.1", "192.0.2.2", "192.0.2.11", "192.0.2.12")
				applyDiff(t, n, olds)
				for before := asked(); asked() < before+8; time.Sleep(time.Millisecond) { // twice for each
				}
				unanswered := stop()
				t.Logf("asked %d times", asked())
				if len(unanswered) > 0 {
					t.Errorf("at some time nobody answered for %v", unanswered)
				}
				expectNodeAddresses(t, "after the upgrade")
				var got []string
				for _, a := range addressesOn(t, n, "eth0") {
					if a.IsOurs {
						got = append(got, a.Prefix.String())
					}
				}
				slices.Sort(got)
				if want := []string{"192.0.2.1/32", "192.0.2.2/32", "2001:db8::1/128"}; !slices.Equal(got, want) {
					t.Errorf("%v, want %v", got, want)
				}
			})
		}
	}
}

// applyDiff applies what plan.Diff decides.
func applyDiff(t *testing.T, n *Netlink, olds []plan.Address) {
	t.Helper()
	var desired []plan.Desired
	for _, old := range olds {
		addr := old.Prefix.Addr()
		desired = append(
			desired, plan.Desired{Addr: addr, Prefix: netip.PrefixFrom(addr, addr.BitLen()), Interface: "eth0", IsLocal: true},
		)
	}
	o, err := n.Observe()
	if err != nil {
		t.Fatal(err)
	}
	settings := plan.Settings{
		Local: plan.AddressSettings{Valid: 300 * time.Second, Preferred: 300 * time.Second, NoPrefixRoute: true},
	}
	for _, op := range plan.Diff(settings, desired, o, true).Operations {
		switch op.Kind {
		case plan.Add:
			err = n.Add(op.Address)
		case plan.Remove:
			err = n.Remove(op.Address)
		case plan.Replace:
			err = n.Replace(op.Replaced, op.Address)
		case plan.Renew:
			err = n.Renew(op.Address)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// arpProtocol is ETH_P_ARP in network byte order.
const arpProtocol = unix.ETH_P_ARP&0xff<<8 | unix.ETH_P_ARP>>8

// askRepeatedly makes a neighbour ask for IPv4 addresses by ARP until stop is called. stop
// returns the addresses for which a request was not answered.
func askRepeatedly(
	t *testing.T, neighbour nstest.Neighbour, addresses ...string,
) (asked func() int64, stop func() []string) {
	t.Helper()
	var fd, nic int
	var mac []byte
	neighbour.Call(t, func() error {
		var err error
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		request, err := unix.NewIfreq("far")
		if err != nil {
			return err
		}
		if err := unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, request); err != nil {
			return err
		}
		nic = int(request.Uint32())
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: arpProtocol, Ifindex: nic})
	})
	t.Cleanup(func() { _ = unix.Close(fd) })
	mac = []byte{2, 0, 0, 0, 0, 0x99}
	setTimeout := func(wait time.Duration) {
		t.Helper()
		timeout := unix.NsecToTimeval(wait.Nanoseconds())
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
			t.Fatal(err)
		}
	}
	query := func(address string) bool {
		target := netip.MustParseAddr(address).As4()
		request := append([]byte{0, 1, 8, 0, 6, 4, 0, 1}, mac...)
		request = append(append(append(request, 192, 0, 2, 99), 0, 0, 0, 0, 0, 0), target[:]...)
		to := &unix.SockaddrLinklayer{
			Protocol: arpProtocol, Ifindex: nic, Halen: 6, Addr: [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
		}
		if err := unix.Sendto(fd, request, 0, to); err != nil {
			return false
		}
		buffer := make([]byte, 256)
		for {
			length, _, err := unix.Recvfrom(fd, buffer, 0)
			if err != nil {
				return false
			}
			if length >= 28 && buffer[7] == 2 && [4]byte(buffer[14:18]) == target {
				return true
			}
		}
	}
	setTimeout(500 * time.Millisecond)
	for _, a := range addresses { // wait until the link is up and the kernel answers
		for deadline := time.Now().Add(patience); !query(a); {
			if time.Now().After(deadline) {
				t.Fatalf("nobody answers for %s before the upgrade", a)
			}
		}
	}
	setTimeout(patience) // the kernel of a busy machine answers late
	done := make(chan struct{})
	var wait sync.WaitGroup
	var unanswered []string
	var count atomic.Int64
	wait.Go(func() {
		for {
			for _, a := range addresses {
				count.Add(1)
				if !query(a) && !slices.Contains(unanswered, a) {
					unanswered = append(unanswered, a)
				}
			}
			select {
			case <-done:
				return
			default:
			}
		}
	})
	return func() int64 { return count.Load() }, func() []string {
		close(done)
		wait.Wait()
		return unanswered
	}
}
