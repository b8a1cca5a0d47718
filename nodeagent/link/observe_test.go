package link

import (
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// TestWhoseAddresses tells the agent's addresses from those of the node and of other programs,
// which the agent must never remove.
func TestWhoseAddresses(t *testing.T) {
	n := addVethPair(t)
	for _, prefix := range []string{"192.0.2.11/24", "192.0.2.12/32", "2001:db8::11/64"} {
		nstest.Run(
			t, "ip addr add %s dev eth0 %s", prefix, map[bool]string{true: "nodad"}[netip.MustParsePrefix(prefix).Addr().Is6()],
		)
	}
	for _, prefix := range []string{"192.0.2.1/32", "2001:db8::1/128"} {
		if err := n.Add(plan.Address{
			Interface: "eth0", Prefix: netip.MustParsePrefix(prefix), Valid: plan.Forever, Preferred: plan.Forever,
		}); err != nil {
			t.Fatal(err)
		}
	}
	got := map[string]bool{}
	for _, a := range addressesOn(t, n, "eth0") {
		got[a.Prefix.String()] = a.IsOurs
	}
	want := map[string]bool{
		"192.0.2.11/24": false, "192.0.2.12/32": false, "2001:db8::11/64": false,
		"192.0.2.1/32": true, "2001:db8::1/128": true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("whether each address is the agent's (-want +got):\n%s", diff)
	}
}

// TestPodInterfaces gives a node the interfaces of a container and of a virtual machine, with one MAC for both. It
// counts as one of pods: the kinds of both are known by the names that netlink has for them, which ip(8) does not show.
func TestPodInterfaces(t *testing.T) {
	n := addVethPair(t)
	nstest.Run(t, "ip link set eth1 address ee:ee:ee:ee:ee:ee")
	nstest.Run(t, "ip tuntap add name tap0 mode tap")
	t.Cleanup(func() { nstest.Run(t, "ip link del tap0") })
	nstest.Run(t, "ip link set tap0 address ee:ee:ee:ee:ee:ee")
	nstest.Run(t, "ip addr add 192.0.2.11/24 dev eth0")
	observed, err := n.Observe()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"ee:ee:ee:ee:ee:ee"}, plan.PodMACs(observed)); diff != "" {
		t.Errorf("MACs of pods (-want +got):\n%s", diff)
	}
}

// TestFaultManyRoutes gives a node the routes of a routing daemon and of many pods: none of them is
// kept. This test shows the row "it has many thousands of routes, which change all the time (a routing
// daemon, pods)" of docs/trust.md.
func TestFaultManyRoutes(t *testing.T) {
	n := addVethPair(t)
	nstest.Run(t, "ip addr add 192.0.2.11/24 dev eth0")
	nstest.Run(t, "ip route add default via 192.0.2.254")
	for family, format := range map[string]string{
		"-4": "route add 10.%d.%d.0/24 via 192.0.2.1 proto bird\n", "-6": "route add 2001:db8:%x:%x::/64 dev eth0\n",
	} {
		var batch strings.Builder
		for i := range 10_000 {
			fmt.Fprintf(&batch, format, i/256, i%256)
		}
		command := exec.Command("ip", family, "-batch", "-")
		command.Stdin = strings.NewReader(batch.String())
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	o, err := n.Observe()
	if err != nil {
		t.Fatal(err)
	}
	if len(o.Routes) > 10 || !slices.ContainsFunc(o.Routes, func(r plan.Route) bool { return r.Destination.Bits() == 0 }) {
		t.Errorf("%d routes are observed, first %v", len(o.Routes), o.Routes[:min(10, len(o.Routes))])
	}
}

// TestObservedChanges looks at the notifications of some changes of routes, up to that of an address
// which is added after them.
func TestObservedChanges(t *testing.T) {
	n := addVethPair(t)
	nstest.Run(t, "ip addr add 192.0.2.11/24 dev eth0")
	for command, want := range map[string]bool{
		"ip route add 203.0.113.0/24 via 192.0.2.1":                     false,
		"ip route add 203.0.114.0/24 dev eth0 proto bird":               false,
		"ip route add default via 192.0.2.1 table 100":                  false,
		"ip -6 route add 2001:db8:1::/64 dev eth0":                      false,
		"ip route add 203.0.113.1/32 dev eth0 proto kernel":             false,
		"ip -6 route add 2001:db8:3::1/128 dev eth0 proto kernel":       false,
		"ip -6 route add 2001:db8:4::/64 dev eth0 proto kernel":         true,
		"ip route add default via 192.0.2.1":                            true,
		"ip route add default via 192.0.2.2 metric 200 proto dhcp":      true,
		"ip -6 route add 2001:db8:2::/64 dev eth0 proto ra metric 1024": true,
		"ip link set eth0 alias x":                                      true,
	} {
		t.Run(command, func(t *testing.T) {
			socket, err := subscribe([]uint{
				unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
			})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = socket.Close() }()
			nstest.Run(t, "%s", command)
			nstest.Run(t, "ip addr add 198.51.100.1/32 dev eth1")
			defer nstest.Run(t, "ip addr del 198.51.100.1/32 dev eth1")
			got := false
			for isLast := false; !isLast; {
				messages, _, err := socket.Receive()
				if err != nil {
					t.Fatal(err)
				}
				for _, m := range messages {
					// The address has a route of its own, in the local table.
					isLast = isLast || m.Header.Type == unix.RTM_NEWADDR
					got = got || !isLast && n.isObservedChange(m)
				}
			}
			if got != want {
				t.Errorf("the agent looks again: %t", got)
			}
		})
	}
}
