//go:build stacks

package nodeagent

import (
	"strings"
	"testing"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
)

// The tests of this file need link types that not every kernel has. make test-vm runs them with a
// kernel of Debian.

// plugBond returns a function that makes a bond of two cables to a switch, which is the
// neighbour's. eth0 is the bond or, with a VLAN, a link on it.
func plugBond(options string, hasVLAN bool) func(*wire) {
	return func(w *wire) {
		w.t.Helper()
		bond, bridge := "eth0", "eth0"
		if hasVLAN {
			bond, bridge = "bond0", "br0"
		}
		nstest.Run(w.t, "ip link add %s address 02:00:00:00:00:aa type bond mode active-backup miimon 50 %s", bond, options)
		w.neighbour.Run(w.t, "ip link add %s address %s type bridge", bridge, neighbour)
		for _, cable := range []string{"0", "1"} {
			nstest.Run(w.t, "ip link add cable%s address 02:00:00:00:01:0%s type veth peer name far%s", cable, cable, cable)
			w.t.Cleanup(func() { nstest.Run(w.t, "ip link del cable%s", cable) })
			w.neighbour.MoveLink(w.t, "far"+cable)
			w.neighbour.Run(w.t, "ip link set far%s master %s up", cable, bridge)
			nstest.Run(w.t, "ip link set cable%s master %s", cable, bond)
		}
		w.t.Cleanup(func() { nstest.Run(w.t, "ip link del %s", bond) })
		if !hasVLAN {
			return
		}
		nstest.Run(w.t, "ip link set bond0 up")
		w.neighbour.Run(w.t, "ip link set br0 up")
		nstest.Run(w.t, "ip link add link bond0 name eth0 type vlan id 7")
		w.neighbour.Run(w.t, "ip link add link br0 name eth0 type vlan id 7")
	}
}

// plugVLAN makes eth0 as a VLAN on a cable.
func plugVLAN(w *wire) {
	w.t.Helper()
	nstest.Run(w.t, "ip link add cable0 address 02:00:00:00:00:aa type veth peer name far address %s", neighbour)
	w.t.Cleanup(func() { nstest.Run(w.t, "ip link del cable0") })
	w.neighbour.MoveLink(w.t, "far")
	nstest.Run(w.t, "ip link set cable0 up")
	w.neighbour.Run(w.t, "ip link set far up")
	nstest.Run(w.t, "ip link add link cable0 name eth0 type vlan id 7")
	w.neighbour.Run(w.t, "ip link add link far name eth0 type vlan id 7")
}

// An agent announces addresses on a bond, on a VLAN, and on a VLAN on a bond, and puts back what
// was stripped. When a bond's active port fails, the switch hears of the addresses again by the
// other port.
func TestLinkKinds(t *testing.T) {
	if !nstest.RunInOwnNamespace(t) {
		return
	}
	for _, c := range []struct {
		name   string
		plug   func(*wire)
		isBond bool
	}{
		{"VLAN", plugVLAN, false},
		{"bond", plugBond("", false), true},
		{"bond whose MAC is that of the active port", plugBond("fail_over_mac active", false), true},
		{"VLAN on a bond", plugBond("", true), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWireBy(
				t, c.plug, true, local("192.0.2.1"),
				local("2001:db8::1", func(a *purelbv1.AnnouncedAddress) { a.PrefixLength = 64 }),
			)
			w.isAnnounced("192.0.2.1", "2001:db8::1")
			for _, address := range []string{"192.0.2.1", "2001:db8::1"} {
				nstest.Run(t, "ip addr del %s dev eth0", address)
				t.Logf(
					"%s: stripped and back after %s", address, w.within(address+" is back", func() bool { return w.has(address) }),
				)
			}
			w.neighbour.Run(t, "ip addr add 192.0.2.99/24 dev eth0") // to ask from
			w.neighbour.Run(t, "arping -c 1 -w 60 -I eth0 192.0.2.1")
			if !c.isBond {
				return
			}
			for _, port := range []string{"0", "1"} { // the first is the active one; then back
				before4, before6 := w.claims("192.0.2.1"), w.claims("2001:db8::1")
				w.neighbour.Run(t, "ip link set far%s down", port)
				t.Logf("the port fails: claimed again after %s", w.within("both are claimed by the other port", func() bool {
					return w.claims("192.0.2.1") > before4 && w.claims("2001:db8::1") > before6
				}))
				w.neighbour.Run(t, "arping -c 1 -w 60 -I eth0 192.0.2.1")
				w.neighbour.Run(t, "ip link set far%s up", port)
				w.within("the port is back", func() bool {
					return strings.Count(nstest.Run(t, "ip -o link show type veth"), ",LOWER_UP") == 2
				})
			}
			nstest.Run(t, "ip route add default via 192.0.2.254 dev eth0") // the agent reports that interface
			link := nstest.Run(t, "ip -o link show dev eth0")
			w.within("the MAC is reported", func() bool {
				interfaces := w.get("node1").Status.Interfaces
				return len(interfaces) == 1 && strings.Contains(link, "link/ether "+interfaces[0].MAC+" ")
			})
			w.expect("states", "192.0.2.1 Announced, 2001:db8::1 Announced", w.states("node1"))
		})
	}
}
