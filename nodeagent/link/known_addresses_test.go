package link

import (
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// TestOwnChangesAreNoNews looks at what the kernel reports of a change, up to the address that the test adds
// after it: what the agent has changed itself is no news, and what others do with its addresses is.
func TestOwnChangesAreNoNews(t *testing.T) {
	n := addVethPair(t)
	if _, err := n.EnsureVirtual("kube-lb0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nstest.Run(t, "ip link del kube-lb0") })
	nstest.Run(t, "ip addr add 192.0.2.11/24 dev eth0")
	local := func(prefix string, preferred time.Duration) plan.Address {
		return plan.Address{
			Interface: "eth0", Prefix: netip.MustParsePrefix(prefix), Valid: 300 * time.Second, Preferred: preferred,
			NoPrefixRoute: true,
		}
	}
	virtual := func(prefix string) plan.Address {
		return plan.Address{
			Interface: "kube-lb0", Prefix: netip.MustParsePrefix(prefix), Valid: plan.Forever, Preferred: plan.Forever,
		}
	}
	local4, local6 := local("192.0.2.1/32", 300*time.Second), local("2001:db8::1/128", 0)
	virtual4, virtual6 := virtual("198.51.100.1/32"), virtual("2001:db8:1::1/128")
	all := []plan.Address{local4, local6, virtual4, virtual6}
	each := func(change func(plan.Address) error) func(*testing.T) {
		return func(t *testing.T) {
			for _, a := range all {
				if err := change(a); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	byOthers := func(command string) func(*testing.T) {
		return func(t *testing.T) { nstest.Run(t, "%s", command) }
	}
	for _, c := range []struct {
		what   string
		change func(*testing.T)
		want   bool
	}{
		{"the agent adds its addresses", each(n.Add), false},
		{"the agent renews them", each(n.Renew), false},
		{"a program announces an address as it is", byOthers("ip addr change 192.0.2.11/24 dev eth0"), false},
		{"a program cuts a lifetime short",
			byOthers("ip addr change 2001:db8::1/128 dev eth0 valid_lft 9 preferred_lft 0"), true},
		{"a program takes a local address off", byOthers("ip addr del 192.0.2.1/32 dev eth0"), true},
		{"the agent puts it back", func(t *testing.T) {
			if err := n.Add(local4); err != nil {
				t.Fatal(err)
			}
		}, false},
		{"a program takes a virtual address off", byOthers("ip addr del 2001:db8:1::1/128 dev kube-lb0"), true},
		{"a program puts it back as its own", byOthers("ip addr add 2001:db8:1::1/128 dev kube-lb0 nodad"), true},
		{"a program adds an address", byOthers("ip addr add 192.0.2.12/24 dev eth0"), true},
		{"a program removes an address, and adds it again", func(t *testing.T) {
			nstest.Run(t, "ip addr del 192.0.2.12/24 dev eth0")
			nstest.Run(t, "ip addr add 192.0.2.12/24 dev eth0")
		}, true},
		{"the agent removes its addresses", each(n.Remove), false},
	} {
		t.Run(c.what, func(t *testing.T) {
			if _, err := n.Observe(); err != nil {
				t.Fatal(err)
			}
			socket, err := subscribe([]uint{
				unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
				unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
			})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = socket.Close() }()
			c.change(t)
			nstest.Run(t, "ip link set eth1 alias last") // what was reported before comes before
			var news []syscall.NetlinkMessage
			for isLast := false; !isLast; {
				messages, _, err := socket.Receive()
				if err != nil {
					t.Fatal(err)
				}
				isLast = slices.ContainsFunc(messages, func(m syscall.NetlinkMessage) bool {
					return m.Header.Type == unix.RTM_NEWLINK
				})
				for _, m := range messages {
					if m.Header.Type != unix.RTM_NEWLINK && n.isObservedChange(m) {
						news = append(news, m)
					}
				}
			}
			if got := len(news) > 0; got != c.want {
				t.Errorf("the agent looks again: %t, for %d messages: %v", got, len(news), news)
			}
		})
	}
}
