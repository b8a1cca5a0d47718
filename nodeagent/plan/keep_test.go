package plan

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

func TestRenewKept(t *testing.T) {
	t.Parallel()
	lasting := func(valid, preferred time.Duration) func(*Address) {
		return func(a *Address) { a.Valid, a.Preferred = valid, preferred }
	}
	prefixRoute := func(a *Address) { a.NoPrefixRoute = false }
	for name, tc := range map[string]struct {
		address  Address
		settings func(*Settings)
		want     *Address // renewed to
		renewIn  time.Duration
	}{
		"runs out": {
			on("eth0", "192.0.2.1/24", left(time.Second)), nil, new(on("eth0", "192.0.2.1/24")), 100 * time.Second,
		},
		"not yet": {
			on("eth0", "192.0.2.1/24", left(230*time.Second)), nil, nil, 30 * time.Second,
		},
		"somebody else's": {on("eth0", "192.0.2.1/24", left(time.Second), notOurs), nil, nil, 0},
		"permanent":       {on("eth0", "192.0.2.1/24", lasting(Forever, Forever)), nil, nil, 0},
		"IPv6 stays deprecated": {
			on("eth0", "2001:db8::1/64", left(time.Second)), nil, new(on("eth0", "2001:db8::1/64")), 100 * time.Second,
		},
		"IPv6 becomes deprecated": {
			on("eth0", "2001:db8::1/64", lasting(250*time.Second, 100*time.Second)), nil, new(on("eth0", "2001:db8::1/64")),
			100 * time.Second,
		},
		"two thirds remain": {
			on("eth0", "192.0.2.1/24", left(200*time.Second)), nil, new(on("eth0", "192.0.2.1/24")), 100 * time.Second,
		},
		"its prefix route stays": {
			on("eth0", "192.0.2.1/24", left(time.Second), prefixRoute), nil, new(on("eth0", "192.0.2.1/24", prefixRoute)),
			100 * time.Second,
		},
		"has more than the settings say": {
			on("eth0", "192.0.2.1/24", left(900*time.Second)), nil, nil, 300 * time.Second,
		},
		"settings": {
			on("eth0", "192.0.2.1/24", left(300*time.Second)),
			func(s *Settings) { s.Local.Valid, s.Local.Preferred = 600*time.Second, 300*time.Second },
			new(on("eth0", "192.0.2.1/24", lasting(600*time.Second, 300*time.Second))), 100 * time.Second,
		},
		"finite on the virtual interface": {
			on("kube-lb0", "2001:db8::1/128", lasting(60*time.Second, 60*time.Second)), nil,
			new(on("kube-lb0", "2001:db8::1/128", lasting(300*time.Second, 300*time.Second))), 100 * time.Second,
		},
		"permanent on the virtual interface": {on("kube-lb0", "198.51.100.1/32"), nil, nil, 0},
		"is not made permanent by settings": {
			on("eth0", "192.0.2.1/24", left(time.Second)),
			func(s *Settings) { s.Local.Valid, s.Local.Preferred = Forever, Forever }, new(on("eth0", "192.0.2.1/24")),
			100 * time.Second,
		},
		"preferred runs out before the valid": {
			on("eth0", "192.0.2.1/24", lasting(590*time.Second, 70*time.Second)),
			func(s *Settings) { s.Local.Valid, s.Local.Preferred = 600*time.Second, 90*time.Second }, nil, 10 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			settings := SettingsOf(&purelbv1.LBNodeAgent{})
			if tc.settings != nil {
				tc.settings(&settings)
			}
			want := Plan{RenewIn: tc.renewIn}
			if tc.want != nil {
				want.Operations = []Operation{{Kind: Renew, Address: *tc.want}}
			}
			if diff := cmp.Diff(want, renewKept(settings, []Address{tc.address}), compareNetip); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
