package nodeagent

import (
	"fmt"
	"strings"
	"testing"
	"time"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
)

// The node's own address goes and comes back (DHCP, ifdown and ifup), with an address
// beside it that its Announcement gives the subnet's mask: the route to the subnet is
// there, and the node's own address stays when the other is withdrawn.
func TestFaultWireOwnAddressReturns(t *testing.T) {
	if !nstest.RunInOwnNamespace(t) {
		return
	}
	for _, promote := range []string{"0", "1"} {
		t.Run(fmt.Sprintf("promote_secondaries=%s", promote), func(t *testing.T) {
			w := newWire(t, true, local("192.0.2.1"))
			nstest.Run(t, "sysctl -qw net.ipv4.conf.all.promote_secondaries=0")
			nstest.Run(t, "sysctl -qw net.ipv4.conf.eth0.promote_secondaries=%s", promote)
			w.isAnnounced("192.0.2.1")
			hasRoute := func() bool {
				return strings.Contains(
					nstest.Run(t, "ip -4 route show dev eth0"), "192.0.2.0/24 proto kernel scope link src 192.0.2.11",
				)
			}
			for _, gap := range []time.Duration{0, 0, 0, 30 * time.Millisecond, 30 * time.Millisecond} {
				nstest.Run(t, "ip addr del 192.0.2.11/24 dev eth0")
				time.Sleep(gap) // for the agent to put right what it finds wrong
				nstest.Run(t, "ip addr add 192.0.2.11/24 dev eth0")
				w.within("the node has a route to its own subnet", hasRoute)
				w.within("the address is there", func() bool { return w.has("192.0.2.1") })
			}
			w.edit("node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses = nil })
			pacing.Signal(w.wake)
			w.within("the address is gone", func() bool { return !w.has("192.0.2.1") })
			if !w.has("192.0.2.11") || !hasRoute() {
				t.Errorf(
					"the node's own address or its route went with it:\n%s%s", nstest.Run(t, "ip -4 addr show dev eth0"),
					nstest.Run(t, "ip -4 route show dev eth0"),
				)
			}
		})
	}
}
