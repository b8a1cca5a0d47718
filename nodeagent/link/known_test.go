package link

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/purelb/purelb-operator/internal/pacing"
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

// observedBy returns what Observe returns: each interface's addresses in the kernel's order, and lifetimes in steps of
// 100 s, as time passes between two looks.
func observedBy(t *testing.T, n *Netlink) plan.Observed {
	t.Helper()
	o, err := n.Observe()
	if err != nil {
		t.Fatal(err)
	}
	for i := range o.Addresses {
		for _, lifetime := range []*time.Duration{&o.Addresses[i].Valid, &o.Addresses[i].Preferred} {
			if *lifetime != plan.Forever {
				*lifetime = lifetime.Round(100 * time.Second)
			}
		}
	}
	slices.SortStableFunc(o.Addresses, func(a, b plan.Address) int {
		place := func(a plan.Address) string {
			text := fmt.Sprint(a.Interface, a.Prefix.Addr().Is6())
			if a.Prefix.Addr().Is6() { // the kernel lists the last one first, and nothing depends on that
				text += a.Prefix.String()
			}
			return text
		}
		return strings.Compare(place(a), place(b))
	})
	return o
}

// listedJustNow makes a Netlink take its last listing for a new one, for as long as a test takes, and returns its time.
func listedJustNow(n *Netlink) time.Time {
	n.known.listedAt = time.Now().Add(time.Hour)
	return n.known.listedAt
}

// TestObserveKnowsOwnChanges makes random changes of the agent's addresses, of which Watch tells nothing: after each
// one Observe returns, without listing, what another Netlink lists.
func TestObserveKnowsOwnChanges(t *testing.T) {
	n := addVethPair(t)
	lister, err := Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.EnsureVirtual("kube-lb0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nstest.Run(t, "ip link del kube-lb0") })
	nstest.Run(t, "ip addr add 192.0.2.11/24 dev eth0")
	n.known.setWatched(true)
	observedBy(t, n)
	listedAt := listedJustNow(n)

	var all []plan.Address
	for i := range 12 {
		a := plan.Address{Interface: "kube-lb0", Valid: plan.Forever, Preferred: plan.Forever}
		prefix := fmt.Sprintf("198.51.100.%d/32", i)
		if i%3 == 0 {
			prefix = fmt.Sprintf("2001:db8::%x/128", i)
		}
		if i%2 == 0 {
			a = plan.Address{Interface: "eth0", Valid: 300 * time.Second, Preferred: 300 * time.Second, NoPrefixRoute: true}
		}
		a.Prefix = netip.MustParsePrefix(prefix)
		all = append(all, a)
	}
	random, isThere := rand.New(rand.NewPCG(19, 0)), make([]bool, len(all)) //nolint:gosec // no secret
	for step := range 200 {
		i := random.IntN(len(all))
		what, err := "add", error(nil)
		switch a := all[i]; {
		case !isThere[i]:
			err, isThere[i] = n.Add(a), true
		case random.IntN(3) == 0:
			what, err = "replace", n.Replace(a, a)
		case random.IntN(2) == 0:
			what, err = "renew", n.Renew(a)
		default:
			what, isThere[i] = "remove", false
			err = n.Remove(a)
		}
		if err != nil {
			t.Fatal(err)
		}
		// One that was not there before is last, among those of its family and interface.
		if diff := cmp.Diff(observedBy(t, lister), observedBy(t, n), compareNetip, cmp.Comparer(equalAddrs)); diff != "" {
			t.Fatalf("step %d: %s %s (-listed +known):\n%s", step, what, all[i].Prefix, diff)
		}
	}
	if n.known.listedAt != listedAt {
		t.Error("Observe has listed")
	}
}

func equalAddrs(a, b netip.Addr) bool { return a == b }

// TestObserveListsAgain changes an address of which the agent is not told: Observe returns it only when it has a reason
// to list.
func TestObserveListsAgain(t *testing.T) {
	n := addVethPair(t)
	local := addressOnEth0("192.0.2.1/32")
	isSeen := func() bool {
		return slices.ContainsFunc(observedBy(t, n).Addresses, func(a plan.Address) bool {
			return a.Prefix == netip.MustParsePrefix("192.0.2.11/24")
		})
	}
	for _, c := range []struct {
		reason string
		happen func()
		want   bool
	}{
		{"none", func() {}, false},
		{"the agent adds an address", func() {
			if err := n.Add(local); err != nil {
				t.Error(err)
			}
		}, false},
		{"a change fails", func() {
			if n.Add(local) == nil {
				t.Error("the address was added twice")
			}
		}, true},
		{"there is nothing to remove", func() {
			_ = n.Remove(local)
			n.known.isCurrent = true // the first one was no reason
			if err := n.Remove(local); err != nil {
				t.Error(err)
			}
		}, true},
		{"Watch has heard of something", n.known.markStale, true},
		{"Watch ends", func() { n.known.setWatched(false) }, true},
		{"that was a while ago", func() { n.known.listedAt = time.Now().Add(-relistAfter) }, true},
		{"the agent has made an interface", func() {
			if _, err := n.EnsureVirtual("kube-lb0"); err != nil {
				t.Error(err)
			}
		}, true},
		{"its interface is there", func() {
			if _, err := n.EnsureVirtual("kube-lb0"); err != nil {
				t.Error(err)
			}
		}, false},
		{"the agent has removed it", func() {
			if err := n.RemoveVirtual("kube-lb0"); err != nil {
				t.Error(err)
			}
		}, true},
		{"an interface has another index", func() {
			clear(n.known.nameByIndex)
			if err := n.Add(local); err != nil {
				t.Error(err)
			}
		}, true},
	} {
		n.known.setWatched(true)
		if isSeen() {
			t.Fatal("the address is there from the start")
		}
		listedJustNow(n)
		nstest.Run(t, "ip addr add 192.0.2.11/24 dev eth0")
		c.happen()
		if got := isSeen(); got != c.want {
			t.Errorf("%s: Observe lists: %t", c.reason, got)
		}
		nstest.Run(t, "ip addr del 192.0.2.11/24 dev eth0")
	}
}

// TestObserveIsToldByWatch has another program add and remove addresses, and lose them with their interface: each time
// Watch tells, and what Observe returns then is so.
func TestObserveIsToldByWatch(t *testing.T) {
	n := addVethPair(t)
	nstest.Run(t, "ip addr add 192.0.2.11/24 dev eth0")
	ctx, cancel := context.WithCancel(t.Context())
	changed, done := make(chan struct{}, 1), make(chan error)
	go func() { done <- n.Watch(ctx, func() { pacing.Signal(changed) }) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	deadline := time.After(patience)
	for isWatched := false; !isWatched; {
		select {
		case <-time.After(time.Millisecond):
		case <-deadline:
			t.Fatal("Watch has not begun")
		}
		n.known.mu.Lock()
		isWatched = n.known.isWatched
		n.known.mu.Unlock()
	}
	observedBy(t, n)
	for _, c := range []struct {
		command, prefix string
		want            bool
	}{
		{"ip addr add 192.0.2.12/24 dev eth0", "192.0.2.12/24", true},
		{"ip addr del 192.0.2.12/24 dev eth0", "192.0.2.12/24", false},
		{"ip addr add 2001:db8::12/64 dev eth1 nodad", "2001:db8::12/64", true},
		{"ip link set eth1 down", "2001:db8::12/64", false}, // which takes IPv6 addresses with it
		{"ip addr flush dev eth0", "192.0.2.11/24", false},
	} {
		nstest.Run(t, "%s", c.command)
		for isThere := !c.want; isThere != c.want; {
			select {
			case <-changed:
			case <-deadline:
				t.Fatalf("Watch has not told of %s", c.command)
			}
			isThere = slices.ContainsFunc(observedBy(t, n).Addresses, func(a plan.Address) bool {
				return a.Prefix == netip.MustParsePrefix(c.prefix)
			})
		}
	}
}

func TestLeft(t *testing.T) {
	for _, c := range []struct{ lifetime, after, want time.Duration }{
		{plan.Forever, time.Hour, plan.Forever},
		{0, time.Hour, 0},
		{300 * time.Second, 900 * time.Millisecond, 300 * time.Second},
		{300 * time.Second, 9900 * time.Millisecond, 291 * time.Second},
		{5 * time.Second, 9 * time.Second, 0},
	} {
		if got := lifetimeLeft(c.lifetime, c.after); got != c.want {
			t.Errorf("of %s after %s: %s, want %s", c.lifetime, c.after, got, c.want)
		}
	}
}
