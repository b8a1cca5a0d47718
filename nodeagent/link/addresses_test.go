package link

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

func TestMain(m *testing.M) { os.Exit(nstest.Main(m)) }

// patience is how long a test waits for what has to happen: a machine may be busy.
const patience = 60 * time.Second

var compareNetip = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })

// addVethPair adds eth0 and eth1, the two ends of a veth pair, both up, and waits for their carriers:
// the kernel notices them a moment later, and then announces the links, and their IPv6 addresses and
// routes, once more.
func addVethPair(t *testing.T) *Netlink {
	t.Helper()
	nstest.Run(t, "ip link add eth0 type veth peer name eth1")
	t.Cleanup(func() { nstest.Run(t, "ip link del eth0") })
	nstest.Run(t, "ip link set eth0 up")
	nstest.Run(t, "ip link set eth1 up")
	n, err := Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"eth0", "eth1"} {
		for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			l, err := n.handle.LinkByName(name)
			if err != nil {
				t.Fatal(err)
			}
			if l.Attrs().OperState == netlink.OperUp {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s has no carrier after %s: it is %s", name, patience, l.Attrs().OperState)
			}
		}
	}
	return n
}

// addressesOn lists the addresses of an interface, except those that the kernel makes itself
// (link-local).
func addressesOn(t *testing.T, n *Netlink, iface string) []plan.Address {
	t.Helper()
	o, err := n.Observe()
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(o.Addresses, func(a plan.Address) bool {
		return a.Interface != iface || a.Prefix.Addr().IsLinkLocalUnicast()
	})
}

func TestAddresses(t *testing.T) {
	n := addVethPair(t)
	nstest.Run(t, "ip addr add 192.0.2.11/24 dev eth0")
	foreign := plan.Address{
		Interface: "eth0", Prefix: netip.MustParsePrefix("192.0.2.11/24"), Valid: plan.Forever, Preferred: plan.Forever,
	}
	v4 := plan.Address{
		Interface: "eth0", Prefix: netip.MustParsePrefix("192.0.2.1/24"), IsOurs: true,
		Valid: 300 * time.Second, Preferred: 300 * time.Second, NoPrefixRoute: true,
	}
	v6 := plan.Address{
		Interface: "eth0", Prefix: netip.MustParsePrefix("2001:db8::1/64"), IsOurs: true,
		Valid: 300 * time.Second, Preferred: 0, NoPrefixRoute: true,
	}
	forever := plan.Address{
		Interface: "eth0", Prefix: netip.MustParsePrefix("198.51.100.1/32"), IsOurs: true, Valid: plan.Forever,
		Preferred: plan.Forever,
	}
	forever6 := plan.Address{
		Interface: "eth0", Prefix: netip.MustParsePrefix("2001:db8:1::1/128"), IsOurs: true, Valid: plan.Forever,
		Preferred: plan.Forever,
	}
	deprecated := plan.Address{
		Interface: "eth0", Prefix: netip.MustParsePrefix("2001:db8:2::1/128"), IsOurs: true,
		Valid: plan.Forever, Preferred: 0,
	}

	ours := []plan.Address{v4, v6, forever, forever6, deprecated}
	for _, a := range ours {
		if err := n.Add(a); err != nil {
			t.Fatal(err)
		}
	}
	byPrefix := func(a, b plan.Address) int { return a.Prefix.Compare(b.Prefix) }
	want := append([]plan.Address{foreign}, ours...)
	slices.SortFunc(want, byPrefix)
	got := addressesOn(t, n, "eth0")
	slices.SortFunc(got, byPrefix)
	if diff := cmp.Diff(want, got, compareNetip); diff != "" {
		t.Fatalf("after Add (-want +got):\n%s", diff)
	}
	if out := nstest.Run(t, "ip -6 addr show dev eth0 tentative"); strings.Contains(out, "2001:db8") {
		t.Errorf("duplicate address detection runs:\n%s", out)
	}
	for _, family := range []string{"-4", "-6"} {
		if out := nstest.Run(t, "ip %s route show dev eth0", family); strings.Contains(out, "2001:db8::/64") ||
			strings.Count(out, "192.0.2.0/24") != 1 && family == "-4" {
			t.Errorf("a prefix route came with an address:\n%s", out)
		}
	}

	if err := n.Add(v4); err == nil || !strings.Contains(err.Error(), "add 192.0.2.1/24 to eth0") {
		t.Errorf("adding twice: %v", err)
	}

	// Renew sets the lifetimes and keeps the tag.
	v4.Valid, v4.Preferred = 600*time.Second, 500*time.Second
	v6.Valid = 600 * time.Second
	forever.Valid, forever.Preferred = 60*time.Second, 60*time.Second
	for _, a := range []plan.Address{v4, v6, forever} {
		if err := n.Renew(a); err != nil {
			t.Fatal(err)
		}
	}
	want = []plan.Address{foreign, v4, v6, forever, forever6, deprecated}
	slices.SortFunc(want, byPrefix)
	got = addressesOn(t, n, "eth0")
	slices.SortFunc(got, byPrefix)
	if diff := cmp.Diff(want, got, compareNetip); diff != "" {
		t.Fatalf("after Renew (-want +got):\n%s", diff)
	}

	for range 2 { // the second time the interface no longer has the addresses
		for _, a := range ours {
			if err := n.Remove(a); err != nil {
				t.Fatal(err)
			}
		}
	}
	if diff := cmp.Diff([]plan.Address{foreign}, addressesOn(t, n, "eth0"), compareNetip); diff != "" {
		t.Fatalf("after Remove (-want +got):\n%s", diff)
	}
}

func TestAddressErrors(t *testing.T) {
	n := addVethPair(t)
	nstest.Run(t, "sysctl -qw net.ipv6.conf.eth0.disable_ipv6=1")
	a := plan.Address{Interface: "eth0", Prefix: netip.MustParsePrefix("2001:db8::1/64"), Valid: plan.Forever}
	if err := n.Add(a); err == nil ||
		!strings.Contains(err.Error(), "add 2001:db8::1/64 to eth0: IPv6 is disabled there") {
		t.Errorf("with IPv6 disabled: %v", err)
	}
	a.Interface = "eth7"
	if err := n.Add(a); err == nil || !strings.Contains(err.Error(), "add 2001:db8::1/64 to eth7") {
		t.Errorf("without the interface: %v", err)
	}
	if err := n.Remove(a); err != nil {
		t.Errorf("removing an address that no interface has: %v", err)
	}
}

// TestAddUntagged behaves as a kernel before 5.18, which adds an address without its tag.
func TestAddUntagged(t *testing.T) {
	n := addVethPair(t)
	adds := 0
	n.addrAdd = func(l netlink.Link, a *netlink.Addr) error {
		adds++
		a.Protocol = 0
		return n.handle.AddrAdd(l, a)
	}
	for _, prefix := range []string{"192.0.2.1/24", "192.0.2.1/24", "2001:db8::1/64"} {
		a := plan.Address{
			Interface: "eth0", Prefix: netip.MustParsePrefix(prefix), Valid: plan.Forever, Preferred: plan.Forever,
		}
		if err := n.Add(a); err == nil || !strings.Contains(err.Error(), "kernel 5.18 or later is needed") {
			t.Errorf("%s: %v", prefix, err)
		}
	}
	if diff := cmp.Diff([]plan.Address{}, addressesOn(t, n, "eth0"), compareNetip); diff != "" {
		t.Errorf("left over (-want +got):\n%s", diff)
	}
	if adds != 1 {
		t.Errorf("%d attempts to add an address, want one", adds)
	}

	// An address that another program has added stays.
	nstest.Run(t, "ip addr add 192.0.2.1/24 dev eth0")
	n.keepsTags = nil
	foreign := plan.Address{
		Interface: "eth0", Prefix: netip.MustParsePrefix("192.0.2.1/24"), Valid: plan.Forever, Preferred: plan.Forever,
	}
	if err := n.Add(foreign); err == nil {
		t.Error("an address was added twice")
	}
	if diff := cmp.Diff([]plan.Address{foreign}, addressesOn(t, n, "eth0"), compareNetip); diff != "" {
		t.Errorf("another program's address (-want +got):\n%s", diff)
	}
}

func TestObserve(t *testing.T) {
	n := addVethPair(t)
	nstest.Run(t, "ip link set eth0 address 02:00:00:00:00:01")
	nstest.Run(t, "ip addr add 192.0.2.11/24 dev eth0")
	nstest.Run(t, "ip addr add 2001:db8::11/64 dev eth0 nodad")
	nstest.Run(t, "ip addr add 2001:db8:1::11/64 dev eth1 nodad")
	nstest.Run(t, "ip route add default via 192.0.2.254 metric 100")
	nstest.Run(t, "ip route add default metric 200 nexthop via 192.0.2.1 dev eth0 nexthop via 192.0.2.2 dev eth0")
	nstest.Run(t, "ip -4 route add default via inet6 fe80::98 dev eth0 metric 300")
	nstest.Run(t, "ip route add blackhole default metric 400")
	t.Cleanup(func() { nstest.Run(t, "ip route del blackhole default metric 400") })
	nstest.Run(t, "ip route add 203.0.113.0/24 via 192.0.2.1") // not observed
	nstest.Run(t, "ip -6 route add default via fe80::99 dev eth1 proto ra metric 1024")
	nstest.Run(t, "ip -6 route add 2001:db8:2::/64 dev eth1 proto ra metric 1024")

	o, err := n.Observe()
	if err != nil {
		t.Fatal(err)
	}
	links := map[string]plan.NetworkInterface{}
	for _, l := range o.Interfaces {
		links[l.Name] = l
	}
	if diff := cmp.Diff(plan.NetworkInterface{Name: "eth0", Kind: "veth", MAC: "02:00:00:00:00:01", IsUp: true},
		links["eth0"]); diff != "" {
		t.Errorf("eth0 (-want +got):\n%s", diff)
	}
	if l := links["lo"]; !l.IsLoopback || l.IsUp {
		t.Errorf("lo: %+v", l)
	}

	route := func(iface, destination, gateway string, metric int, origin plan.RouteOrigin) plan.Route {
		r := plan.Route{Interface: iface, Destination: netip.MustParsePrefix(destination), Metric: metric, Origin: origin}
		if gateway != "" {
			r.Gateway = netip.MustParseAddr(gateway)
		}
		return r
	}
	want := []plan.Route{
		route("eth0", "0.0.0.0/0", "192.0.2.254", 100, plan.OriginOther),
		route("eth0", "0.0.0.0/0", "192.0.2.1", 200, plan.OriginOther),
		route("eth0", "0.0.0.0/0", "192.0.2.2", 200, plan.OriginOther),
		route("eth0", "0.0.0.0/0", "fe80::98", 300, plan.OriginOther),
		route("eth0", "192.0.2.0/24", "", 0, plan.OriginKernel),
		route("eth1", "::/0", "fe80::99", 1024, plan.OriginRA),
		route("eth0", "2001:db8::/64", "", 256, plan.OriginKernel),
		route("eth1", "2001:db8:1::/64", "", 256, plan.OriginKernel),
		route("eth1", "2001:db8:2::/64", "", 1024, plan.OriginRA),
	}
	got := slices.DeleteFunc(o.Routes, func(r plan.Route) bool { return r.Destination.Addr().IsLinkLocalUnicast() })
	for _, routes := range [][]plan.Route{got, want} {
		slices.SortFunc(routes, func(a, b plan.Route) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	}
	if diff := cmp.Diff(want, got, compareNetip, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("routes (-want +got):\n%s", diff)
	}

	nstest.Run(t, "ip link set eth1 down")
	// The kernel reports the loss of a carrier a little later (linkwatch).
	up := true
	for deadline := time.Now().Add(patience); up && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		o, _ = n.Observe()
		up = slices.ContainsFunc(o.Interfaces, func(l plan.NetworkInterface) bool { return l.Name == "eth0" && l.IsUp })
	}
	if up {
		t.Error("eth0 is reported as up without a carrier")
	}
}

func TestEnsureVirtual(t *testing.T) {
	n, err := Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nstest.Run(t, "ip link del kube-lb0") })
	kind, err := n.EnsureVirtual("kube-lb0")
	if err != nil {
		t.Fatal(err)
	}
	if kind != "dummy" && kind != "ifb" && kind != "bridge" {
		t.Errorf("kind %q", kind)
	}
	if want := os.Getenv("PURELB_TEST_VIRTUAL"); want != "" && kind != want {
		t.Errorf("kind %q, but this kernel has %q", kind, want)
	}
	if out := nstest.Run(t, "ip link show kube-lb0"); !strings.Contains(out, Alias) {
		t.Errorf("kube-lb0 lacks the agent's alias:\n%s", out)
	}
	address := func(prefix string) plan.Address {
		return plan.Address{
			Interface: "kube-lb0", Prefix: netip.MustParsePrefix(prefix), Valid: plan.Forever, Preferred: plan.Forever,
		}
	}
	for _, prefix := range []string{
		"198.51.100.1/24", "198.51.100.2/32", "198.51.100.3/24", "198.51.100.4/24", "2001:db8::1/64", "2001:db8::2/128",
	} {
		if err := n.Add(address(prefix)); err != nil {
			t.Error(err)
		}
	}
	// After the first address of a subnet is removed the others stay.
	if err := n.Remove(address("198.51.100.1/24")); err != nil {
		t.Error(err)
	}
	if left := addressesOn(t, n, "kube-lb0"); len(left) != 5 {
		t.Errorf("after one of six addresses was removed: %v", left)
	}

	nstest.Run(t, "ip link set kube-lb0 down")
	secondKind, err := n.EnsureVirtual("kube-lb0")
	if err != nil || secondKind != kind {
		t.Errorf("EnsureVirtual a second time: %q, %v", secondKind, err)
	}
	if out := nstest.Run(t, "ip link show kube-lb0"); !strings.Contains(out, ",UP") {
		t.Errorf("kube-lb0 was not set up:\n%s", out)
	}
	if _, err := n.EnsureVirtual("much-too-long-a-name"); err == nil {
		t.Error("EnsureVirtual accepts a name that is too long")
	}

	removeVirtual := func(when string, wantExists bool) {
		t.Helper()
		if err := n.RemoveVirtual("kube-lb0"); err != nil {
			t.Errorf("RemoveVirtual %s: %v", when, err)
		}
		if _, err := netlink.LinkByName("kube-lb0"); (err == nil) != wantExists {
			t.Errorf("RemoveVirtual %s: the interface exists: %t (%v)", when, err == nil, err)
		}
	}
	removeVirtual("with addresses", true)
	nstest.Run(t, "ip address flush dev kube-lb0 scope global")
	removeVirtual("without addresses", false)
	removeVirtual("without the interface", false)
	nstest.Run(t, "ip link add kube-lb0 type bridge")
	removeVirtual("of another program's interface", true)
}

// TestEnsureVirtualExists checks that EnsureVirtual uses an interface of another program as
// it is and does not mark it.
func TestEnsureVirtualExists(t *testing.T) {
	n := addVethPair(t)
	if kind, err := n.EnsureVirtual("eth1"); err != nil || kind != "veth" {
		t.Errorf("%q, %v", kind, err)
	}
	l, err := netlink.LinkByName("eth1")
	if err != nil || l.Attrs().Alias != "" {
		t.Errorf("alias %q, %v", l.Attrs().Alias, err)
	}
}

// TestFaultVirtualOfAnotherProgram has a virtual interface that the agent did not make: when an
// address is removed, the others of its subnet stay. The agent changes the interface once. This test
// shows the row "its virtual interface was made by another program, or by an agent that died while it
// made it" of docs/trust.md.
func TestFaultVirtualOfAnotherProgram(t *testing.T) {
	n, err := Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	nstest.Run(t, "ip link add kube-lb0 type bridge")
	t.Cleanup(func() { nstest.Run(t, "ip link del kube-lb0") })
	nstest.Run(t, "sysctl -qw net.ipv4.conf.all.promote_secondaries=0")
	nstest.Run(t, "sysctl -qw net.ipv4.conf.kube-lb0.promote_secondaries=0")
	if _, err := n.EnsureVirtual("kube-lb0"); err != nil {
		t.Fatal(err)
	}
	address := func(i int) plan.Address {
		return plan.Address{
			Interface: "kube-lb0", Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}), 24),
			Valid: plan.Forever, Preferred: plan.Forever,
		}
	}
	for i := range 20 {
		if err := n.Add(address(i + 1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.Remove(address(1)); err != nil {
		t.Fatal(err)
	}
	if left := addressesOn(t, n, "kube-lb0"); len(left) != 19 {
		t.Errorf("after one of twenty addresses was removed: %v", left)
	}

	updates, stop := make(chan netlink.LinkUpdate, 100), make(chan struct{})
	defer close(stop)
	if err := netlink.LinkSubscribe(updates, stop); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if _, err := n.EnsureVirtual("kube-lb0"); err != nil {
			t.Fatal(err)
		}
	}
	nstest.Run(t, "ip link set kube-lb0 alias last") // the sentinel: what was reported before comes before
	for update := range updates {
		if update.Attrs().Name == "kube-lb0" {
			if update.Attrs().Alias != "last" {
				t.Error("EnsureVirtual changes an interface that is as it is to be")
			}
			break
		}
	}
}

func TestWatch(t *testing.T) {
	n := addVethPair(t)
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan struct{}, 1000)
	done := make(chan error)
	go func() { done <- n.Watch(ctx, func() { signals <- struct{}{} }) }()

	expectSignal := func(what, command string) {
		t.Helper()
		nstest.Run(t, "%s", command)
		select {
		case <-signals:
		case <-time.After(patience):
			t.Fatalf("no signal of %s", what)
		}
		for quiet := false; !quiet; { // until the later signals of the same change have come, too
			select {
			case <-signals:
			case <-time.After(3 * notificationGap):
				quiet = true
			}
		}
	}
	// Watch misses changes until it has subscribed.
	for subscribed := false; !subscribed; {
		nstest.Run(t, "ip link set eth1 alias x")
		select {
		case <-signals:
			subscribed = true
		case <-time.After(notificationGap):
		}
	}
	expectSignal("an address", "ip addr add 192.0.2.11/24 dev eth0")
	expectSignal("an IPv6 address", "ip addr add 2001:db8::11/64 dev eth0 nodad")
	expectSignal("the removal of an address", "ip addr del 192.0.2.11/24 dev eth0")
	expectSignal("a route", "ip -6 route add 2001:db8:1::/64 dev eth0 proto ra")
	expectSignal("a link", "ip link set eth1 down")

	// A burst of changes causes one signal at once, and one after each gap.
	begun := time.Now()
	expectSignal("a link that is up", "ip link set eth1 up") // the kernel does not report changes of one that is down
	link, err := netlink.LinkByName("eth1")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		if err := n.handle.LinkSetAlias(link, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(patience); len(signals) == 0 &&
		time.Now().Before(deadline); time.Sleep(time.Millisecond) {
	}
	<-time.After(3 * notificationGap) // in which a Watch that makes no gaps signals each change
	if got, most := len(signals), 2+int(time.Since(begun)/notificationGap); got == 0 || got > most {
		t.Errorf("%d signals for a burst, want from 1 to %d", got, most)
	}

	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestReceiveOverrun causes more notifications than the socket holds: receive returns, so that
// Watch subscribes again.
func TestReceiveOverrun(t *testing.T) {
	addVethPair(t)
	socket, err := subscribe([]uint{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR})
	if err != nil {
		t.Fatal(err)
	}
	if err := socket.SetReceiveBufferSize(1, false); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		nstest.Run(t, "ip link set eth1 alias %d", i)
	}
	ended := make(chan struct{})
	go func() {
		receive(t.Context(), socket, func([]syscall.NetlinkMessage) {})
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("receive goes on after notifications were lost")
	}
}

// TestFaultManyLinks adds and removes links with new names: WatchLinks passes on exactly the
// links that exist, with their carriers. This test shows the row "its links come and go" of
// docs/trust.md.
func TestFaultManyLinks(t *testing.T) {
	n := addVethPair(t)
	ctx, cancel := context.WithCancel(t.Context())
	calls := make(chan []plan.NetworkInterface, 1)
	done := make(chan error, 1)
	go func() {
		done <- n.WatchLinks(ctx, func(links []plan.NetworkInterface) {
			select {
			case <-calls: // only the newest call counts
			default:
			}
			calls <- links
		})
	}()
	expectLinks := func(want map[string]bool) {
		t.Helper()
		var got map[string]bool
		for deadline := time.After(patience); ; {
			select {
			case links := <-calls:
				got = map[string]bool{}
				for _, l := range links {
					if l.Name != "lo" {
						got[l.Name] = l.IsUp
					}
				}
				if cmp.Equal(want, got) {
					return
				}
			case err := <-done:
				t.Fatalf("WatchLinks has returned: %v", err)
			case <-deadline:
				t.Fatalf("got %v, want %v", got, want)
			}
		}
	}
	expectLinks(map[string]bool{"eth0": true, "eth1": true})
	nstest.Run(t, "ip link set eth1 down")
	expectLinks(map[string]bool{"eth0": false, "eth1": false})
	nstest.Run(t, "ip link set eth1 up")
	expectLinks(map[string]bool{"eth0": true, "eth1": true})
	for i := range 20 {
		nstest.Run(t, "ip link add pod%d type veth peer name host%d", i, i)
		nstest.Run(t, "ip link del pod%d", i)
	}
	// The kernel reports that a link becomes a bridge's port, or no longer is one, in a
	// notification of another family (AF_BRIDGE).
	nstest.Run(t, "ip link add br0 type bridge")
	t.Cleanup(func() { nstest.Run(t, "ip link del br0") })
	nstest.Run(t, "ip link set eth1 master br0")
	nstest.Run(t, "ip link set eth1 nomaster")
	nstest.Run(t, "ip link set eth1 down")
	nstest.Run(t, "ip link set eth1 name eth2")
	nstest.Run(t, "ip link set eth2 up")
	expectLinks(map[string]bool{"eth0": true, "eth2": true, "br0": false})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestAddDelivers looks at the kernel's routing at the moment when Add returns: until an IPv6 address
// has its local route, the kernel forwards what comes for it.
func TestAddDelivers(t *testing.T) {
	n := addVethPair(t)
	n.routeLimit = time.Minute
	for i := range 500 {
		addr := netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 14: byte(i >> 8), 15: byte(i)})
		a := plan.Address{
			Interface: "eth0", Prefix: netip.PrefixFrom(addr, 128), IsOurs: true,
			Valid: plan.Forever, Preferred: 0,
		}
		if err := n.Add(a); err != nil {
			t.Fatal(err)
		}
		routes, err := n.handle.RouteGetWithOptions(addr.AsSlice(), &netlink.RouteGetOptions{Iif: "eth0"})
		if err != nil {
			t.Fatalf("address %d: %v", i, err)
		}
		if len(routes) != 1 || routes[0].Type != unix.RTN_LOCAL {
			t.Fatalf("packets for address %d would go by %v", i, routes)
		}
	}
}

// TestReplaceDelivers gives an IPv6 address another mask, and follows the local routes to it: there always is one, so
// that the kernel takes what comes for it for its own.
func TestReplaceDelivers(t *testing.T) {
	n := addVethPair(t)
	n.routeLimit = time.Minute
	addr := netip.MustParseAddr("2001:db8::1")
	with := func(bits int) plan.Address {
		return plan.Address{
			Interface: "eth0", Prefix: netip.PrefixFrom(addr, bits), IsOurs: true, Valid: plan.Forever, Preferred: 0,
		}
	}
	if err := n.Add(with(128)); err != nil {
		t.Fatal(err)
	}
	updates, done := make(chan netlink.RouteUpdate, 1000), make(chan struct{})
	if err := netlink.RouteSubscribe(updates, done); err != nil {
		t.Fatal(err)
	}
	defer close(done)
	var got []string
	// follow takes updates until the kept route has gone.
	follow := func() {
		t.Helper()
		routes := map[netlink.RouteProtocol]bool{unix.RTPROT_KERNEL: true}
		for timeout := time.After(patience); ; {
			select {
			case u := <-updates:
				if dst, ok := netip.AddrFromSlice(u.Dst.IP); !ok || dst != addr || u.Route.Type != unix.RTN_LOCAL {
					continue
				}
				isAdded := u.Type == unix.RTM_NEWROUTE
				routes[u.Protocol] = isAdded
				got = append(got, fmt.Sprintf("%d %t", u.Protocol, isAdded))
				if !routes[unix.RTPROT_KERNEL] && !routes[keptRouteProtocol] {
					t.Fatalf("there is no local route after %v", got)
				}
				if u.Protocol == keptRouteProtocol && !isAdded {
					return
				}
			case <-timeout:
				t.Fatalf("after %v nothing more comes", got)
			}
		}
	}
	for i := range 100 {
		was, is := 128, 64
		if i%2 == 1 {
			was, is = is, was
		}
		if err := n.Replace(with(was), with(is)); err != nil {
			t.Fatal(err)
		}
		got = nil
		follow()
	}
	if left := nstest.Run(t, "ip -6 route show table local proto %d", keptRouteProtocol); left != "" {
		t.Errorf("these routes are left: %s", left)
	}
}

// TestKeptRouteExpires has the agent die between the removal of an address and the next one.
func TestKeptRouteExpires(t *testing.T) {
	n := addVethPair(t)
	a := addressOnEth0("2001:db8::1/128")
	if err := n.Add(a); err != nil {
		t.Fatal(err)
	}
	end := n.keepLocalRoute(a)
	if err := n.Remove(a); err != nil {
		t.Fatal(err)
	}
	kept := nstest.Run(t, "ip -6 route show table local proto %d", keptRouteProtocol)
	if !strings.Contains(kept, "local 2001:db8::1 dev eth0") || !strings.Contains(kept, "expires") {
		t.Errorf("no route that expires is kept: %q", kept)
	}
	end()
	if left := nstest.Run(t, "ip -6 route show table local proto %d", keptRouteProtocol); left != "" {
		t.Errorf("it is left: %s", left)
	}
}
