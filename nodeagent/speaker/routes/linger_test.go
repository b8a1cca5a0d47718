package routes_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/purelb/purelb-operator/nodeagent/speaker/routes"
)

// TestLingering follows routes through changes of what is desired, in which each line is one round.
func TestLingering(t *testing.T) {
	type round struct {
		after   time.Duration // since the first round
		desired []string
		want    []string
		wait    time.Duration
	}
	for _, row := range []struct {
		name   string
		rounds []round
	}{
		{"an address goes at once", []round{
			{0, []string{"198.51.100.1/32"}, []string{"198.51.100.1/32"}, 0},
			{0, nil, nil, 0},
		}},
		{"another address comes", []round{
			{0, []string{"198.51.100.1/32"}, []string{"198.51.100.1/32"}, 0},
			{0, []string{"198.51.100.2/32"}, []string{"198.51.100.2/32"}, 0},
		}},
		{"the network becomes larger", []round{
			{0, []string{"198.51.100.1/32"}, []string{"198.51.100.1/32"}, 0},
			{0, []string{"198.51.100.0/24"}, []string{"198.51.100.0/24", "198.51.100.1/32"}, time.Second},
			{400 * time.Millisecond, []string{"198.51.100.0/24"}, []string{"198.51.100.0/24", "198.51.100.1/32"},
				600 * time.Millisecond},
			{time.Second, []string{"198.51.100.0/24"}, []string{"198.51.100.0/24"}, 0},
		}},
		{"the network becomes smaller", []round{
			{0, []string{"2001:db8::/64"}, []string{"2001:db8::/64"}, 0},
			{0, []string{"2001:db8::1/128", "2001:db8::2/128"}, []string{"2001:db8::1/128", "2001:db8::2/128", "2001:db8::/64"},
				time.Second},
			{time.Second, []string{"2001:db8::1/128", "2001:db8::2/128"}, []string{"2001:db8::1/128", "2001:db8::2/128"}, 0},
		}},
		{"the larger network was there before", []round{
			{0, []string{"198.51.100.0/24", "198.51.100.1/32"}, []string{"198.51.100.0/24", "198.51.100.1/32"}, 0},
			{0, []string{"198.51.100.0/24"}, []string{"198.51.100.0/24"}, 0},
		}},
		{"all go meanwhile, as in a drain", []round{
			{0, []string{"198.51.100.1/32"}, []string{"198.51.100.1/32"}, 0},
			{0, []string{"198.51.100.0/24"}, []string{"198.51.100.0/24", "198.51.100.1/32"}, time.Second},
			{100 * time.Millisecond, nil, nil, 0},
		}},
		{"the old network is back meanwhile", []round{
			{0, []string{"198.51.100.1/32"}, []string{"198.51.100.1/32"}, 0},
			{0, []string{"198.51.100.0/24"}, []string{"198.51.100.0/24", "198.51.100.1/32"}, time.Second},
			{900 * time.Millisecond, []string{"198.51.100.1/32"}, []string{"198.51.100.1/32"}, 0},
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			var lingering routes.Lingering
			var held routes.Config
			begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			for i, r := range row.rounds {
				var wait time.Duration
				held, lingering, wait = lingering.AddTo(held, desiredPaths(r.desired), begin.Add(r.after))
				var got []string
				for _, p := range held.Paths {
					got = append(got, p.Prefix.String())
				}
				if diff := cmp.Diff(r.want, got); diff != "" || wait != r.wait {
					t.Errorf("round %d waits %s, and not %s; routes (-want +got):\n%s", i, wait, r.wait, diff)
				}
			}
		})
	}
}

func desiredPaths(prefixes []string) (d routes.Config) {
	for _, p := range prefixes {
		d.Paths = append(d.Paths, routes.Path{Prefix: prefix(p)})
	}
	return d
}

// TestLingeringRules has a route that a neighbour must not get: the rule stays as long as the route.
func TestLingeringRules(t *testing.T) {
	keep := routes.Rule{
		Prefixes:   []netip.Prefix{prefix("198.51.100.1/32"), prefix("203.0.113.1/32")},
		Neighbours: []netip.Addr{first}, Reject: true,
	}
	held := desiredPaths([]string{"198.51.100.1/32", "203.0.113.1/32"})
	held.Rules = []routes.Rule{keep, {Neighbours: []netip.Addr{second}, NextHop: first}}
	desired := desiredPaths([]string{"198.51.100.0/24"})
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	extended, lingering, _ := routes.Lingering(nil).AddTo(held, desired, now)
	keep.Prefixes = keep.Prefixes[:1]
	if diff := cmp.Diff([]routes.Rule{keep}, extended.Rules, compareAddresses); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
	extended, _, _ = lingering.AddTo(extended, desired, now.Add(time.Hour))
	if len(extended.Rules) > 0 || len(extended.Paths) != 1 {
		t.Errorf("still there after an hour: %+v", extended)
	}
}
