package link

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

func TestMain(m *testing.M) { os.Exit(nstest.Main(m)) }

var compareNetip = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })

// pair makes eth0 and eth1, two ends of a cable, both up.
func pair(t *testing.T) *Netlink {
	t.Helper()
	nstest.Run(t, "ip link add eth0 type veth peer name eth1")
	t.Cleanup(func() { nstest.Run(t, "ip link del eth0") })
	nstest.Run(t, "ip link set eth0 up")
	nstest.Run(t, "ip link set eth1 up")
	n, err := Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// addresses lists those on an interface, except the kernel's own link-local.
func addresses(t *testing.T, n *Netlink, iface string) []plan.Address {
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
	n := pair(t)
	nstest.Run(t, "ip addr add 192.0.2.11/24 dev eth0")
	foreign := plan.Address{Interface: "eth0", Prefix: netip.MustParsePrefix("192.0.2.11/24"), Valid: plan.Forever, Preferred: plan.Forever}
	v4 := plan.Address{
		Interface: "eth0", Prefix: netip.MustParsePrefix("192.0.2.1/24"), Ours: true,
		Valid: 300 * time.Second, Preferred: 300 * time.Second, NoPrefixRoute: true,
	}
	v6 := plan.Address{
		Interface: "eth0", Prefix: netip.MustParsePrefix("2001:db8::1/64"), Ours: true,
		Valid: 300 * time.Second, Preferred: 0, NoPrefixRoute: true,
	}
	forever := plan.Address{Interface: "eth0", Prefix: netip.MustParsePrefix("198.51.100.1/32"), Ours: true, Valid: plan.Forever, Preferred: plan.Forever}
	forever6 := plan.Address{Interface: "eth0", Prefix: netip.MustParsePrefix("2001:db8:1::1/128"), Ours: true, Valid: plan.Forever, Preferred: plan.Forever}
	deprecated := plan.Address{Interface: "eth0", Prefix: netip.MustParsePrefix("2001:db8:2::1/128"), Ours: true, Valid: plan.Forever, Preferred: 0}

	all := []plan.Address{v4, v6, forever, forever6, deprecated}
	for _, a := range all {
		if err := n.Add(a); err != nil {
			t.Fatal(err)
		}
	}
	byPrefix := func(a, b plan.Address) int { return a.Prefix.Compare(b.Prefix) }
	want := append([]plan.Address{foreign}, all...)
	slices.SortFunc(want, byPrefix)
	got := addresses(t, n, "eth0")
	slices.SortFunc(got, byPrefix)
	if diff := cmp.Diff(want, got, compareNetip); diff != "" {
		t.Fatalf("after Add (-want +got):\n%s", diff)
	}
	if out := nstest.Run(t, "ip -6 addr show dev eth0 tentative"); strings.Contains(out, "2001:db8") {
		t.Errorf("duplicate address detection runs:\n%s", out)
	}
	for _, family := range []string{"-4", "-6"} {
		if out := nstest.Run(t, "ip %s route show dev eth0", family); strings.Contains(out, "2001:db8::/64") || strings.Count(out, "192.0.2.0/24") != 1 && family == "-4" {
			t.Errorf("a prefix route came with an address:\n%s", out)
		}
	}

	if err := n.Add(v4); err == nil || !strings.Contains(err.Error(), "add 192.0.2.1/24 to eth0") {
		t.Errorf("adding twice: %v", err)
	}

	// A renewal sets the lifetimes and keeps the tag.
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
	got = addresses(t, n, "eth0")
	slices.SortFunc(got, byPrefix)
	if diff := cmp.Diff(want, got, compareNetip); diff != "" {
		t.Fatalf("after Renew (-want +got):\n%s", diff)
	}

	for range 2 { // the second time they are gone already
		for _, a := range all {
			if err := n.Remove(a); err != nil {
				t.Fatal(err)
			}
		}
	}
	if diff := cmp.Diff([]plan.Address{foreign}, addresses(t, n, "eth0"), compareNetip); diff != "" {
		t.Fatalf("after Remove (-want +got):\n%s", diff)
	}
}

func TestAddressErrors(t *testing.T) {
	n := pair(t)
	nstest.Run(t, "sysctl -qw net.ipv6.conf.eth0.disable_ipv6=1")
	a := plan.Address{Interface: "eth0", Prefix: netip.MustParsePrefix("2001:db8::1/64"), Valid: plan.Forever}
	if err := n.Add(a); err == nil || !strings.Contains(err.Error(), "add 2001:db8::1/64 to eth0: IPv6 is disabled there") {
		t.Errorf("where IPv6 is disabled: %v", err)
	}
	a.Interface = "eth7"
	if err := n.Add(a); err == nil || !strings.Contains(err.Error(), "add 2001:db8::1/64 to eth7") {
		t.Errorf("where there is no interface: %v", err)
	}
	if err := n.Remove(a); err != nil {
		t.Errorf("nothing to remove: %v", err)
	}
}

// A kernel before 5.18 adds an address without its tag.
func TestAddUntagged(t *testing.T) {
	n := pair(t)
	adds := 0
	n.add = func(l netlink.Link, a *netlink.Addr) error {
		adds++
		a.Protocol = 0
		return n.handle.AddrAdd(l, a)
	}
	for _, prefix := range []string{"192.0.2.1/24", "192.0.2.1/24", "2001:db8::1/64"} {
		a := plan.Address{Interface: "eth0", Prefix: netip.MustParsePrefix(prefix), Valid: plan.Forever, Preferred: plan.Forever}
		if err := n.Add(a); err == nil || !strings.Contains(err.Error(), "kernel 5.18 or later is needed") {
			t.Errorf("%s: %v", prefix, err)
		}
	}
	if diff := cmp.Diff([]plan.Address{}, addresses(t, n, "eth0"), compareNetip); diff != "" {
		t.Errorf("what stays (-want +got):\n%s", diff)
	}
	if adds != 1 {
		t.Errorf("tried %d times", adds)
	}

	// An address that is somebody else's stays.
	nstest.Run(t, "ip addr add 192.0.2.1/24 dev eth0")
	n.tagging = nil
	foreign := plan.Address{Interface: "eth0", Prefix: netip.MustParsePrefix("192.0.2.1/24"), Valid: plan.Forever, Preferred: plan.Forever}
	if err := n.Add(foreign); err == nil {
		t.Error("added twice")
	}
	if diff := cmp.Diff([]plan.Address{foreign}, addresses(t, n, "eth0"), compareNetip); diff != "" {
		t.Errorf("somebody else's (-want +got):\n%s", diff)
	}
}

func TestObserve(t *testing.T) {
	n := pair(t)
	nstest.Run(t, "ip link set eth0 address 02:00:00:00:00:01")
	nstest.Run(t, "ip addr add 192.0.2.11/24 dev eth0")
	nstest.Run(t, "ip addr add 2001:db8::11/64 dev eth0 nodad")
	nstest.Run(t, "ip addr add 2001:db8:1::11/64 dev eth1 nodad")
	nstest.Run(t, "ip route add default via 192.0.2.254 metric 100")
	nstest.Run(t, "ip route add 203.0.113.0/24 nexthop via 192.0.2.1 dev eth0 nexthop via 192.0.2.2 dev eth0")
	nstest.Run(t, "ip route add blackhole 203.0.114.0/24")
	t.Cleanup(func() { nstest.Run(t, "ip route del blackhole 203.0.114.0/24") })
	nstest.Run(t, "ip -6 route add default via fe80::99 dev eth1 proto ra metric 1024")
	nstest.Run(t, "ip -6 route add 2001:db8:2::/64 dev eth1 proto ra metric 1024")
	nstest.Run(t, "ip route add 198.51.100.0/24 via inet6 fe80::98 dev eth0")

	o, err := n.Observe()
	if err != nil {
		t.Fatal(err)
	}
	links := map[string]plan.Link{}
	for _, l := range o.Links {
		links[l.Name] = l
	}
	if diff := cmp.Diff(plan.Link{Name: "eth0", Kind: "veth", MAC: "02:00:00:00:00:01", Up: true}, links["eth0"]); diff != "" {
		t.Errorf("eth0 (-want +got):\n%s", diff)
	}
	if l := links["lo"]; !l.Loopback || l.Up {
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
		route("eth0", "192.0.2.0/24", "", 0, plan.OriginKernel),
		route("eth0", "198.51.100.0/24", "fe80::98", 0, plan.OriginOther),
		route("eth0", "203.0.113.0/24", "192.0.2.1", 0, plan.OriginOther),
		route("eth0", "203.0.113.0/24", "192.0.2.2", 0, plan.OriginOther),
		route("eth1", "::/0", "fe80::99", 1024, plan.OriginRA),
		route("eth0", "2001:db8::/64", "", 256, plan.OriginKernel),
		route("eth1", "2001:db8:1::/64", "", 256, plan.OriginKernel),
		route("eth1", "2001:db8:2::/64", "", 1024, plan.OriginRA),
	}
	got := slices.DeleteFunc(o.Routes, func(r plan.Route) bool { return r.Destination.Addr().IsLinkLocalUnicast() })
	slices.SortFunc(got, func(a, b plan.Route) int {
		if c := a.Destination.Compare(b.Destination); c != 0 {
			return c
		}
		return a.Gateway.Compare(b.Gateway)
	})
	if diff := cmp.Diff(want, got, compareNetip, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("routes (-want +got):\n%s", diff)
	}

	nstest.Run(t, "ip link set eth1 down")
	// The kernel notes the loss of a carrier a little later (linkwatch).
	up := true
	for deadline := time.Now().Add(5 * time.Second); up && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		o, _ = n.Observe()
		up = slices.ContainsFunc(o.Links, func(l plan.Link) bool { return l.Name == "eth0" && l.Up })
	}
	if up {
		t.Error("eth0 has no carrier, but is up")
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
		t.Errorf("not marked as ours:\n%s", out)
	}
	on := func(prefix string) plan.Address {
		return plan.Address{Interface: "kube-lb0", Prefix: netip.MustParsePrefix(prefix), Valid: plan.Forever, Preferred: plan.Forever}
	}
	for _, prefix := range []string{"198.51.100.1/24", "198.51.100.2/32", "198.51.100.3/24", "198.51.100.4/24", "2001:db8::1/64", "2001:db8::2/128"} {
		if err := n.Add(on(prefix)); err != nil {
			t.Error(err)
		}
	}
	// Without the first of a subnet the others stay.
	if err := n.Remove(on("198.51.100.1/24")); err != nil {
		t.Error(err)
	}
	if left := addresses(t, n, "kube-lb0"); len(left) != 5 {
		t.Errorf("one of six was removed, these are left: %v", left)
	}

	nstest.Run(t, "ip link set kube-lb0 down")
	again, err := n.EnsureVirtual("kube-lb0")
	if err != nil || again != kind {
		t.Errorf("a second time: %q, %v", again, err)
	}
	if out := nstest.Run(t, "ip link show kube-lb0"); !strings.Contains(out, ",UP") {
		t.Errorf("not set up:\n%s", out)
	}
	if _, err := n.EnsureVirtual("much-too-long-a-name"); err == nil {
		t.Error("an impossible name is accepted")
	}

	remains := func(when string, want bool) {
		t.Helper()
		if err := n.RemoveVirtual("kube-lb0"); err != nil {
			t.Errorf("%s: %v", when, err)
		}
		if _, err := netlink.LinkByName("kube-lb0"); (err == nil) != want {
			t.Errorf("%s: it remains: %t (%v)", when, err == nil, err)
		}
	}
	remains("with addresses", true)
	nstest.Run(t, "ip address flush dev kube-lb0 scope global")
	remains("empty", false)
	remains("gone", false)
	nstest.Run(t, "ip link add kube-lb0 type bridge")
	remains("another's", true)
}

// One that was there before is used as it is, and not marked as ours.
func TestEnsureVirtualFound(t *testing.T) {
	n := pair(t)
	if kind, err := n.EnsureVirtual("eth1"); err != nil || kind != "veth" {
		t.Errorf("%q, %v", kind, err)
	}
	l, err := netlink.LinkByName("eth1")
	if err != nil || l.Attrs().Alias != "" {
		t.Errorf("alias %q, %v", l.Attrs().Alias, err)
	}
}

func TestWatch(t *testing.T) {
	n := pair(t)
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan struct{}, 1000)
	done := make(chan error)
	go func() { done <- n.Watch(ctx, func() { signals <- struct{}{} }) }()

	changed := func(what, command string) {
		t.Helper()
		nstest.Run(t, "%s", command)
		select {
		case <-signals:
		case <-time.After(5 * time.Second):
			t.Fatalf("no signal of %s", what)
		}
		for quiet := false; !quiet; { // until the coalesced rest has come, too
			select {
			case <-signals:
			case <-time.After(3 * watchGap):
				quiet = true
			}
		}
	}
	// Until it has subscribed, changes go unheard.
	for subscribed := false; !subscribed; {
		nstest.Run(t, "ip link set eth1 alias x")
		select {
		case <-signals:
			subscribed = true
		case <-time.After(watchGap):
		}
	}
	changed("an address", "ip addr add 192.0.2.11/24 dev eth0")
	changed("an IPv6 address", "ip addr add 2001:db8::11/64 dev eth0 nodad")
	changed("an address that goes", "ip addr del 192.0.2.11/24 dev eth0")
	changed("a route", "ip -6 route add 2001:db8:1::/64 dev eth0")
	changed("a link", "ip link set eth1 down")

	// Of a burst there is one signal at once, and one in each gap.
	nstest.Run(t, "ip link set eth1 up") // one that is down changes unheard
	link, err := netlink.LinkByName("eth1")
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	for i := range 200 {
		if err := n.handle.LinkSetAlias(link, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	<-time.After(3 * watchGap)
	if got, most := len(signals), 2+int(time.Since(begun)/watchGap); got == 0 || got > most {
		t.Errorf("%d signals of a burst, want %d at the most", got, most)
	}

	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Where there were more notifications than the socket holds it fails, so that Watch
// subscribes anew.
func TestReceiveOverrun(t *testing.T) {
	pair(t)
	socket, err := subscribe()
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
		receive(t.Context(), socket, make(chan struct{}, 1))
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(5 * time.Second):
		t.Error("it waits for more, and knows nothing of what was lost")
	}
}
