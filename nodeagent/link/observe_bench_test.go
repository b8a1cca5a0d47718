package link

import (
	"fmt"
	"net/netip"
	"os/exec"
	"testing"

	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// BenchmarkObserve measures what it costs to list what the kernel holds, by how many addresses it has, and to look
// when all is known, as in a burst of changes.
func BenchmarkObserve(b *testing.B) {
	for _, family := range []string{"IPv4", "IPv6"} {
		for _, addresses := range []int{100, 1000, 10000} {
			b.Run(fmt.Sprintf("%s %d addresses", family, addresses), func(b *testing.B) {
				n, err := Open(nil)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := n.EnsureVirtual("kube-lb0"); err != nil {
					b.Fatal(err)
				}
				defer func() { _ = exec.Command("ip", "link", "del", "kube-lb0").Run() }()
				for i := range addresses {
					p := netip.MustParsePrefix(fmt.Sprintf("198.18.%d.%d/32", i/250, i%250))
					if family == "IPv6" {
						p = netip.MustParsePrefix(fmt.Sprintf("2001:db8::%x/128", i+1))
					}
					a := plan.Address{Interface: "kube-lb0", Prefix: p, Valid: plan.Forever, Preferred: plan.Forever}
					if err := n.Add(a); err != nil {
						b.Fatal(err)
					}
				}
				observe := func(b *testing.B) {
					for b.Loop() {
						o, err := n.Observe()
						if err != nil || len(o.Addresses) < addresses {
							b.Fatal(err, len(o.Addresses))
						}
					}
				}
				b.Run("listed", observe)
				n.known.setWatched(true)
				b.Run("known", observe)
			})
		}
	}
}
