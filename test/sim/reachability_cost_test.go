package sim

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// TestCostOfReachability counts what it costs that nodes find out whether the Local addresses of others can be reached:
// frames on the link, and what is written to the API server, while nothing changes. docs/reference/placement.md has the
// figures of go test ./test/sim -run TestCostOfReachability -v.
func TestCostOfReachability(t *testing.T) {
	const nodes, addresses, minutes = 3, 100, 24
	type cost struct{ frames, writes int }
	costs := map[bool]cost{}
	for _, isEnabled := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c, err := NewCluster(NewWorld(1, io.Discard), nodes)
			if err != nil {
				t.Fatal(err)
			}
			defer c.End()
			prepareCost(t, c, addresses, isEnabled)
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			c.Run(5 * time.Minute)
			before := costs[isEnabled]
			subnet, counted := netip.MustParsePrefix("192.0.2.0/24"), &before
			c.Segments[0].Connect("counter", func(frame []byte) {
				if target, isAsked := askedFor(frame); isAsked && subnet.Contains(target) {
					counted.frames++
				}
			})
			revisions := c.Server.RevisionOf(&v1.Announcement{})
			c.Server.OnChange = append(c.Server.OnChange, func() {
				if now := c.Server.RevisionOf(&v1.Announcement{}); now != revisions {
					revisions = now
					counted.writes++
				}
			})
			c.Run(minutes * time.Minute)
			costs[isEnabled] = *counted
			checkReachable(t, c, addresses, isEnabled)
		})
	}
	frames := float64(costs[true].frames-costs[false].frames) / minutes
	writes := float64(costs[true].writes) / minutes
	t.Logf("%d nodes with %d addresses: %.1f frames and %.2f writes of Announcements a minute", nodes, addresses, frames,
		writes)
	if costs[false].writes > 0 {
		t.Errorf("%d writes of Announcements although nothing is asked for, and nothing changes", costs[false].writes)
	}
	if frames < 0.98*addresses || frames > 1.02*addresses {
		t.Errorf("%.1f frames a minute for %d addresses", frames, addresses)
	}
	// Two askers of each of three holders report when they last got answers, every eight minutes or so.
	if writes > 1 {
		t.Errorf("%.2f writes a minute", writes)
	}
}

// prepareCost makes Services with Local IPv4 addresses, and has these asked for, or not.
func prepareCost(t *testing.T, c *Cluster, addresses int, isEnabled bool) {
	t.Helper()
	group, agents := &v1.ServiceGroup{}, &v1.LBNodeAgent{}
	err := errors.Join(
		c.Admin.Get(t.Context(), client.ObjectKey{Namespace: Namespace, Name: GroupLocal}, group),
		c.Admin.Get(t.Context(), client.ObjectKey{Namespace: Namespace, Name: Agents}, agents),
	)
	if err != nil {
		t.Fatal(err)
	}
	group.Spec.Local.V4Pools = []v1.AddressPool{{Pool: "192.0.2.100-192.0.2.199", Subnet: "192.0.2.0/24"}}
	agents.Spec.Local.Reachability = &v1.ReachabilityConfig{Enabled: isEnabled}
	for _, object := range []client.Object{group, agents} {
		if err := c.Admin.Update(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	for i := range addresses {
		_, err := c.CreateService(Service{
			Name: fmt.Sprint("s", i), Group: GroupLocal, Families: []corev1.IPFamily{corev1.IPv4Protocol},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// checkReachable checks that all addresses are found to be reachable, if they are asked for.
func checkReachable(t *testing.T, c *Cluster, addresses int, isEnabled bool) {
	t.Helper()
	var all v1.AnnouncementList
	if err := c.Admin.List(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	answered := map[string]bool{}
	for i := range all.Items {
		for _, r := range all.Items[i].Status.Reachability {
			if r.Reason == v1.ReasonAnswered {
				answered[r.Address] = true
			}
		}
	}
	if want := map[bool]int{true: addresses}[isEnabled]; len(answered) != want {
		t.Errorf("%d addresses are reachable, want %d", len(answered), want)
	}
}
