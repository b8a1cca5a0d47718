package link

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// TestWhoseAddresses tells the agent's addresses from those of the node and of other programs,
// which the agent must never remove.
func TestWhoseAddresses(t *testing.T) {
	n := addVethPair(t)
	for _, prefix := range []string{"192.0.2.11/24", "192.0.2.12/32", "2001:db8::11/64"} {
		nstest.Run(t, "ip addr add %s dev eth0 %s", prefix, map[bool]string{true: "nodad"}[netip.MustParsePrefix(prefix).Addr().Is6()])
	}
	for _, prefix := range []string{"192.0.2.1/32", "2001:db8::1/128"} {
		if err := n.Add(plan.Address{Interface: "eth0", Prefix: netip.MustParsePrefix(prefix), Valid: plan.Forever, Preferred: plan.Forever}); err != nil {
			t.Fatal(err)
		}
	}
	got := map[string]bool{}
	for _, a := range addressesOn(t, n, "eth0") {
		got[a.Prefix.String()] = a.Ours
	}
	want := map[string]bool{
		"192.0.2.11/24": false, "192.0.2.12/32": false, "2001:db8::11/64": false,
		"192.0.2.1/32": true, "2001:db8::1/128": true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("whether each address is the agent's (-want +got):\n%s", diff)
	}
}
