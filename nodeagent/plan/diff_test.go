package plan

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

var compareNetip = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })

func local(address string, bits int32, edit ...func(*purelbv1.AnnouncedAddress)) purelbv1.AnnouncedAddress {
	a := purelbv1.AnnouncedAddress{
		Address: address, PrefixLength: bits, Interface: "eth0", Type: purelbv1.AnnounceLocal,
		ClaimPolicy: purelbv1.ClaimProbe, Epoch: 3, Services: []string{"test/kuard"},
	}
	for _, e := range edit {
		e(&a)
	}
	return a
}

func virtual(address string, bits int32) purelbv1.AnnouncedAddress {
	return purelbv1.AnnouncedAddress{
		Address: address, PrefixLength: bits, Interface: "kube-lb0", Type: purelbv1.AnnounceVirtual,
		ClaimPolicy: purelbv1.ClaimProbe, Services: []string{"test/far"},
	}
}

func takeover(a *purelbv1.AnnouncedAddress) { a.ClaimPolicy = purelbv1.ClaimTakeover }
func leaving(a *purelbv1.AnnouncedAddress)  { a.HandingOver = true }
func skipProbe(a *purelbv1.AnnouncedAddress) {
	a.SkipProbe = true
}

func announcement(addresses ...purelbv1.AnnouncedAddress) purelbv1.Announcement {
	return purelbv1.Announcement{
		ObjectMeta: metav1.ObjectMeta{Name: "node1", Generation: 7},
		Spec:       purelbv1.AnnouncementSpec{NodeName: "node1", Addresses: addresses},
	}
}

func reported(ann purelbv1.Announcement, statuses ...purelbv1.AddressStatus) purelbv1.Announcement {
	ann.Status.Addresses = statuses
	return ann
}

// on is an address of ours as Diff puts it on an interface.
func on(iface, prefix string, edit ...func(*Address)) Address {
	a := Address{Interface: iface, Prefix: netip.MustParsePrefix(prefix), IsOurs: true, Valid: Forever, Preferred: Forever}
	if iface != "kube-lb0" {
		a.Valid, a.Preferred, a.NoPrefixRoute = 300*time.Second, 300*time.Second, true
		if a.Prefix.Addr().Is6() {
			a.Preferred = 0
		}
	}
	for _, e := range edit {
		e(&a)
	}
	return a
}

func notOurs(a *Address) { a.IsOurs = false }
func left(d time.Duration) func(*Address) {
	return func(a *Address) {
		a.Valid = d
		if a.Preferred != 0 {
			a.Preferred = d
		}
	}
}

type operation struct {
	Kind            string
	Address         Address
	Probe, Announce bool
}

func TestDiff(t *testing.T) {
	t.Parallel()
	links := []NetworkInterface{{Name: "eth0", IsUp: true}, {Name: "eth1", IsUp: true}, {Name: "eth9"}, {Name: "kube-lb0"}}
	own := []Address{
		on("eth0", "192.0.2.11/24", notOurs), on("eth1", "192.0.2.12/24", notOurs), on("eth9", "192.0.2.13/24", notOurs),
	}
	onInterface := func(name string) func(*purelbv1.AnnouncedAddress) {
		return func(a *purelbv1.AnnouncedAddress) { a.Interface = purelbv1.InterfaceName(name) }
	}
	was := func(state purelbv1.AddressState, epoch int64, reason string) purelbv1.AddressStatus {
		return purelbv1.AddressStatus{Address: "192.0.2.1", State: state, Epoch: epoch, Reason: reason}
	}

	for name, tc := range map[string]struct {
		announcements []purelbv1.Announcement
		addresses     []Address
		unaddressed   bool // the interfaces have no other addresses than these
		settings      func(*Settings)
		untrusted     bool
		want          []operation
		states        map[string]string // state and reason, by address
		renewIn       time.Duration
	}{
		"empty Announcement, nothing there": {
			announcements: []purelbv1.Announcement{announcement()},
		},
		"empty Announcement withdraws what is ours, and nothing else": {
			announcements: []purelbv1.Announcement{announcement()},
			addresses: []Address{
				on("eth0", "192.0.2.11/24", notOurs), on("eth0", "192.0.2.1/32"),
				on("kube-lb0", "198.51.100.1/32"), on("kube-lb0", "198.51.100.2/32", notOurs),
			},
			want: []operation{
				{Kind: "Remove", Address: on("eth0", "192.0.2.1/32")},
				{Kind: "Remove", Address: on("kube-lb0", "198.51.100.1/32")},
			},
		},
		"all Announcements of the node count": {
			announcements: []purelbv1.Announcement{
				announcement(virtual("198.51.100.1", 32)), announcement(virtual("198.51.100.2", 32)),
			},
			addresses: []Address{on("kube-lb0", "198.51.100.2/32")},
			want:      []operation{{Kind: "Add", Address: on("kube-lb0", "198.51.100.1/32")}},
			states:    map[string]string{"198.51.100.1": "Announced ", "198.51.100.2": "Announced "},
		},
		"Local is probed for, announced and renewed; IPv6 is never a source address": {
			announcements: []purelbv1.Announcement{announcement(local("192.0.2.1", 24), local("2001:db8::1", 64))},
			want: []operation{
				{Kind: "Add", Address: on("eth0", "192.0.2.1/32"), Probe: true, Announce: true},
				{Kind: "Add", Address: Address{
					Interface: "eth0", Prefix: netip.MustParsePrefix("2001:db8::1/128"), IsOurs: true,
					Valid: 300 * time.Second, NoPrefixRoute: true,
				}, Probe: true, Announce: true},
			},
			states:  map[string]string{"192.0.2.1": "Pending Probing", "2001:db8::1": "Pending Probing"},
			renewIn: 100 * time.Second,
		},
		"Takeover does not probe": {
			announcements: []purelbv1.Announcement{announcement(local("192.0.2.1", 24, takeover))},
			want:          []operation{{Kind: "Add", Address: on("eth0", "192.0.2.1/32"), Announce: true}},
			states:        map[string]string{"192.0.2.1": "Announced "},
			renewIn:       100 * time.Second,
		},
		"Takeover probes while the desired set may be out of date": {
			announcements: []purelbv1.Announcement{announcement(local("192.0.2.1", 24, takeover))},
			untrusted:     true,
			want:          []operation{{Kind: "Add", Address: on("eth0", "192.0.2.1/32"), Probe: true, Announce: true}},
			states:        map[string]string{"192.0.2.1": "Pending Probing"},
			renewIn:       100 * time.Second,
		},
		"Takeover counts once": {
			announcements: []purelbv1.Announcement{
				reported(announcement(local("192.0.2.1", 24, takeover)), was(purelbv1.StateAnnounced, 3, "")),
			},
			want:    []operation{{Kind: "Add", Address: on("eth0", "192.0.2.1/32"), Probe: true, Announce: true}},
			states:  map[string]string{"192.0.2.1": "Pending Probing"},
			renewIn: 100 * time.Second,
		},
		"Takeover counts once even after the address was lost": {
			announcements: []purelbv1.Announcement{
				reported(announcement(local("192.0.2.1", 24, takeover)), was(purelbv1.StateConflict, 3, ReasonLost)),
			},
			want:    []operation{{Kind: "Add", Address: on("eth0", "192.0.2.1/32"), Probe: true, Announce: true}},
			states:  map[string]string{"192.0.2.1": "Pending Probing"},
			renewIn: 100 * time.Second,
		},
		"Takeover ends Waiting": {
			announcements: []purelbv1.Announcement{
				reported(announcement(local("192.0.2.1", 24, takeover)), was(purelbv1.StateWaiting, 3, ReasonPreviousHolder)),
			},
			want:    []operation{{Kind: "Add", Address: on("eth0", "192.0.2.1/32"), Announce: true}},
			states:  map[string]string{"192.0.2.1": "Announced "},
			renewIn: 100 * time.Second,
		},
		"Takeover counts again for a new epoch": {
			announcements: []purelbv1.Announcement{
				reported(announcement(local("192.0.2.1", 24, takeover)), was(purelbv1.StateAnnounced, 2, "")),
			},
			want:    []operation{{Kind: "Add", Address: on("eth0", "192.0.2.1/32"), Announce: true}},
			states:  map[string]string{"192.0.2.1": "Announced "},
			renewIn: 100 * time.Second,
		},
		"no probe where it is switched off, for one or for all": {
			announcements: []purelbv1.Announcement{announcement(local("192.0.2.1", 24, skipProbe))},
			want:          []operation{{Kind: "Add", Address: on("eth0", "192.0.2.1/32"), Announce: true}},
			states:        map[string]string{"192.0.2.1": "Announced "},
			renewIn:       100 * time.Second,
		},
		"no probe at all": {
			announcements: []purelbv1.Announcement{announcement(local("192.0.2.1", 24))},
			settings:      func(s *Settings) { s.Probe.IsEnabled = false },
			want:          []operation{{Kind: "Add", Address: on("eth0", "192.0.2.1/32"), Announce: true}},
			states:        map[string]string{"192.0.2.1": "Announced "},
			renewIn:       100 * time.Second,
		},
		"what is there is adopted": {
			announcements: []purelbv1.Announcement{announcement(local("192.0.2.1", 24), virtual("198.51.100.1", 32))},
			addresses:     []Address{on("eth0", "192.0.2.1/32", left(250*time.Second)), on("kube-lb0", "198.51.100.1/32")},
			states:        map[string]string{"192.0.2.1": "Announced ", "198.51.100.1": "Announced "},
			renewIn:       50 * time.Second,
		},
		"renewed when two thirds remain": {
			announcements: []purelbv1.Announcement{announcement(local("192.0.2.1", 24), local("2001:db8::1", 64))},
			addresses: []Address{
				on("eth0", "192.0.2.1/32", left(200*time.Second)), on("eth0", "2001:db8::1/128", left(199*time.Second)),
			},
			want: []operation{
				{Kind: "Renew", Address: on("eth0", "192.0.2.1/32")},
				{Kind: "Renew", Address: on("eth0", "2001:db8::1/128")},
			},
			states:  map[string]string{"192.0.2.1": "Announced ", "2001:db8::1": "Announced "},
			renewIn: 100 * time.Second,
		},
		"a preferred lifetime that is shorter decides": {
			announcements: []purelbv1.Announcement{announcement(local("192.0.2.1", 24))},
			settings:      func(s *Settings) { s.Local.Preferred = 60 * time.Second },
			addresses:     []Address{on("eth0", "192.0.2.1/32", func(a *Address) { a.Preferred = 50 * time.Second })},
			states:        map[string]string{"192.0.2.1": "Announced "},
			renewIn:       10 * time.Second,
		},
		"renewed when the settings changed, either way": {
			announcements: []purelbv1.Announcement{announcement(local("192.0.2.1", 24), virtual("198.51.100.1", 32))},
			settings:      func(s *Settings) { s.Local.Valid, s.Local.Preferred = 120*time.Second, 120*time.Second },
			addresses:     []Address{on("eth0", "192.0.2.1/32"), on("kube-lb0", "198.51.100.1/32", left(299*time.Second))},
			want: []operation{
				{Kind: "Renew", Address: on("eth0", "192.0.2.1/32", left(120*time.Second))},
				{Kind: "Renew", Address: on("kube-lb0", "198.51.100.1/32")},
			},
			states:  map[string]string{"192.0.2.1": "Announced ", "198.51.100.1": "Announced "},
			renewIn: 40 * time.Second,
		},
		"forever is never renewed": {
			announcements: []purelbv1.Announcement{announcement(local("2001:db8::1", 64))},
			settings:      func(s *Settings) { s.Local.Valid = Forever },
			addresses:     []Address{on("eth0", "2001:db8::1/128", left(Forever))},
			states:        map[string]string{"2001:db8::1": "Announced "},
		},
		"moved to another interface: claimed there": {
			announcements: []purelbv1.Announcement{announcement(local("192.0.2.1", 24, onInterface("eth1")))},
			addresses:     []Address{on("eth0", "192.0.2.1/32")},
			want: []operation{
				{Kind: "Remove", Address: on("eth0", "192.0.2.1/32")},
				{Kind: "Add", Address: on("eth1", "192.0.2.1/32"), Probe: true, Announce: true},
			},
			states:  map[string]string{"192.0.2.1": "Pending Probing"},
			renewIn: 100 * time.Second,
		},
		"the subnet's mask, of an older agent: the host address comes first, and nobody need know": {
			announcements: []purelbv1.Announcement{announcement(local("192.0.2.1", 24, leaving), local("192.0.2.2", 24))},
			addresses:     []Address{on("eth0", "192.0.2.1/24"), on("eth0", "192.0.2.2/24"), on("eth0", "192.0.2.9/24")},
			want: []operation{
				{Kind: "Add", Address: on("eth0", "192.0.2.1/32")},
				{Kind: "Add", Address: on("eth0", "192.0.2.2/32")},
				{Kind: "Remove", Address: on("eth0", "192.0.2.1/24")},
				{Kind: "Remove", Address: on("eth0", "192.0.2.2/24")},
				{Kind: "Remove", Address: on("eth0", "192.0.2.9/24")},
			},
			states:  map[string]string{"192.0.2.1": "Announced ", "192.0.2.2": "Announced "},
			renewIn: 100 * time.Second,
		},
		"both masks, of an agent that died in between": {
			announcements: []purelbv1.Announcement{announcement(local("192.0.2.1", 24))},
			addresses:     []Address{on("eth0", "192.0.2.1/24"), on("eth0", "192.0.2.1/32")},
			want:          []operation{{Kind: "Remove", Address: on("eth0", "192.0.2.1/24")}},
			states:        map[string]string{"192.0.2.1": "Announced "},
			renewIn:       100 * time.Second,
		},
		"the subnet's mask of IPv6: replaced, since the kernel cannot hold both": {
			announcements: []purelbv1.Announcement{announcement(local("2001:db8::1", 64))},
			addresses:     []Address{on("eth0", "2001:db8::1/64")},
			want:          []operation{{Kind: "Replace", Address: on("eth0", "2001:db8::1/128")}},
			states:        map[string]string{"2001:db8::1": "Announced "},
			renewIn:       100 * time.Second,
		},
		"another mask of a Virtual address": {
			announcements: []purelbv1.Announcement{announcement(virtual("198.51.100.1", 24))},
			addresses:     []Address{on("kube-lb0", "198.51.100.1/32")},
			want: []operation{
				{Kind: "Add", Address: on("kube-lb0", "198.51.100.1/24")},
				{Kind: "Remove", Address: on("kube-lb0", "198.51.100.1/32")},
			},
			states: map[string]string{"198.51.100.1": "Announced "},
		},
		"prefix route changed: replaced, since the kernel cannot change it": {
			announcements: []purelbv1.Announcement{announcement(virtual("198.51.100.1", 24))},
			settings:      func(s *Settings) { s.Virtual.NoPrefixRoute = true },
			addresses:     []Address{on("kube-lb0", "198.51.100.1/24")},
			want: []operation{
				{Kind: "Replace", Address: on("kube-lb0", "198.51.100.1/24", func(a *Address) { a.NoPrefixRoute = true })},
			},
			states: map[string]string{"198.51.100.1": "Announced "},
		},
		"a foreign address is never touched": {
			announcements: []purelbv1.Announcement{announcement(local("192.0.2.1", 24))},
			addresses:     []Address{on("eth0", "192.0.2.1/32", notOurs)},
			states:        map[string]string{"192.0.2.1": "Failed ForeignAddress"},
		},
		"a foreign address elsewhere does not matter": {
			announcements: []purelbv1.Announcement{announcement(virtual("198.51.100.1", 32))},
			addresses:     []Address{on("kube-ipvs0", "198.51.100.1/32", notOurs)},
			want:          []operation{{Kind: "Add", Address: on("kube-lb0", "198.51.100.1/32")}},
			states:        map[string]string{"198.51.100.1": "Announced "},
		},
		"no such interface": {
			announcements: []purelbv1.Announcement{announcement(local("192.0.2.1", 24, onInterface("eth7")))},
			states:        map[string]string{"192.0.2.1": "Pending InterfaceMissing"},
		},
		"no carrier": {
			announcements: []purelbv1.Announcement{announcement(local("192.0.2.1", 24, onInterface("eth9"), takeover))},
			states:        map[string]string{"192.0.2.1": "Pending InterfaceDown"},
		},
		"leaving is kept": {
			announcements: []purelbv1.Announcement{announcement(local("192.0.2.1", 24, leaving))},
			addresses:     []Address{on("eth0", "192.0.2.1/32")},
			states:        map[string]string{"192.0.2.1": "Announced "},
			renewIn:       100 * time.Second,
		},
		"leaving is not claimed": {
			announcements: []purelbv1.Announcement{announcement(local("192.0.2.1", 24, leaving))},
			states:        map[string]string{"192.0.2.1": "Pending HandingOver"},
		},
		"of two entries the higher epoch counts": {
			announcements: []purelbv1.Announcement{
				announcement(local("192.0.2.1", 24)),
				announcement(local("192.0.2.1", 25, func(a *purelbv1.AnnouncedAddress) { a.Epoch = 4 })),
			},
			addresses: []Address{on("eth0", "192.0.2.1/32")},
			states:    map[string]string{"192.0.2.1": "Announced "},
			renewIn:   100 * time.Second,
		},
		"the subnet's mask on an interface without a carrier": {
			announcements: []purelbv1.Announcement{announcement(local("192.0.2.1", 24, onInterface("eth9")))},
			addresses:     []Address{on("eth9", "192.0.2.1/24")},
			want: []operation{
				{Kind: "Add", Address: on("eth9", "192.0.2.1/32")},
				{Kind: "Remove", Address: on("eth9", "192.0.2.1/24")},
			},
			states:  map[string]string{"192.0.2.1": "Announced "},
			renewIn: 100 * time.Second,
		},
		"removals are in the order of addresses, then of interfaces": {
			announcements: []purelbv1.Announcement{announcement()},
			addresses:     []Address{on("eth1", "192.0.2.9/32"), on("eth1", "192.0.2.10/32"), on("eth0", "192.0.2.9/32")},
			want: []operation{
				{Kind: "Remove", Address: on("eth0", "192.0.2.9/32")},
				{Kind: "Remove", Address: on("eth1", "192.0.2.9/32")},
				{Kind: "Remove", Address: on("eth1", "192.0.2.10/32")},
			},
		},
		"a foreign address beside ours with another mask: ours goes": {
			announcements: []purelbv1.Announcement{announcement(local("192.0.2.1", 24))},
			addresses:     []Address{on("eth0", "192.0.2.1/32", notOurs), on("eth0", "192.0.2.1/24")},
			want:          []operation{{Kind: "Remove", Address: on("eth0", "192.0.2.1/24")}},
			states:        map[string]string{"192.0.2.1": "Failed ForeignAddress"},
		},
		"other flags and another mask: one is replaced, the other goes": {
			announcements: []purelbv1.Announcement{announcement(virtual("198.51.100.1", 24))},
			addresses: []Address{
				on("kube-lb0", "198.51.100.1/24", func(a *Address) { a.NoPrefixRoute = true }), on("kube-lb0", "198.51.100.1/32"),
			},
			want: []operation{
				{Kind: "Remove", Address: on("kube-lb0", "198.51.100.1/32")},
				{Kind: "Replace", Address: on("kube-lb0", "198.51.100.1/24")},
			},
			states: map[string]string{"198.51.100.1": "Announced "},
		},
		"of several addresses the first to run out says when to renew": {
			announcements: []purelbv1.Announcement{
				announcement(local("192.0.2.1", 24), local("192.0.2.2", 24), local("192.0.2.3", 24)),
			},
			addresses: []Address{
				on("eth0", "192.0.2.1/32", left(250*time.Second)), on("eth0", "192.0.2.2/32", left(201*time.Second)),
				on("eth0", "192.0.2.3/32", left(300*time.Second)),
			},
			states:  map[string]string{"192.0.2.1": "Announced ", "192.0.2.2": "Announced ", "192.0.2.3": "Announced "},
			renewIn: time.Second,
		},
		"a preferred lifetime that was forever": {
			announcements: []purelbv1.Announcement{announcement(local("192.0.2.1", 24))},
			addresses:     []Address{on("eth0", "192.0.2.1/32", func(a *Address) { a.Preferred = Forever })},
			want:          []operation{{Kind: "Renew", Address: on("eth0", "192.0.2.1/32")}},
			states:        map[string]string{"192.0.2.1": "Announced "},
			renewIn:       100 * time.Second,
		},
		"an IPv6 address that could be a source address": {
			announcements: []purelbv1.Announcement{announcement(local("2001:db8::1", 64))},
			addresses:     []Address{on("eth0", "2001:db8::1/128", func(a *Address) { a.Preferred = time.Second })},
			want:          []operation{{Kind: "Renew", Address: on("eth0", "2001:db8::1/128")}},
			states:        map[string]string{"2001:db8::1": "Announced "},
			renewIn:       100 * time.Second,
		},
		"a preferred lifetime of its own is renewed by that": {
			announcements: []purelbv1.Announcement{announcement(local("192.0.2.1", 24, takeover))},
			settings:      func(s *Settings) { s.Local.Preferred = 60 * time.Second },
			want: []operation{
				{
					Kind: "Add", Address: on("eth0", "192.0.2.1/32", func(a *Address) { a.Preferred = 60 * time.Second }),
					Announce: true,
				},
			},
			states:  map[string]string{"192.0.2.1": "Announced "},
			renewIn: 20 * time.Second,
		},
		"IPv4 that does not expire, which the kernel lists as preferred forever": {
			announcements: []purelbv1.Announcement{announcement(local("192.0.2.1", 24), virtual("198.51.100.1", 32))},
			settings: func(s *Settings) {
				s.Local = AddressSettings{Valid: Forever, Preferred: 300 * time.Second, NoPrefixRoute: true}
				s.Virtual.Preferred = 300 * time.Second
			},
			addresses: []Address{
				on("eth0", "192.0.2.1/32", func(a *Address) { a.Valid, a.Preferred = Forever, Forever }),
				on("kube-lb0", "198.51.100.1/32"),
			},
			states: map[string]string{"192.0.2.1": "Announced ", "198.51.100.1": "Announced "},
		},
		"IPv6 that does not expire is renewed by its preferred lifetime": {
			announcements: []purelbv1.Announcement{announcement(virtual("2001:db8:1::1", 128))},
			settings:      func(s *Settings) { s.Virtual.Preferred = 300 * time.Second },
			addresses: []Address{
				on("kube-lb0", "2001:db8:1::1/128", func(a *Address) { a.Preferred = 250 * time.Second }),
			},
			states:  map[string]string{"2001:db8:1::1": "Announced "},
			renewIn: 50 * time.Second,
		},
		"before the node's own address: added again, behind that": {
			announcements: []purelbv1.Announcement{
				announcement(local("192.0.2.1", 24), local("192.0.2.2", 24), local("192.0.2.3", 24), virtual("198.51.100.1", 32)),
			},
			unaddressed: true,
			addresses: []Address{
				on("eth1", "192.0.2.12/24", notOurs), on("kube-lb0", "198.51.100.1/32"), on("kube-lb0", "198.51.100.2/32", notOurs),
				on("eth0", "192.0.2.1/32", left(250*time.Second)), on("eth0", "192.0.2.2/32"), on("eth0", "192.0.2.11/24", notOurs),
				on("eth0", "192.0.2.3/32", left(290*time.Second)), on("eth0", "203.0.113.11/24", notOurs),
			},
			want: []operation{
				{Kind: "Replace", Address: on("eth0", "192.0.2.1/32")},
				{Kind: "Replace", Address: on("eth0", "192.0.2.2/32")},
			},
			states: map[string]string{
				"192.0.2.1": "Announced ", "192.0.2.2": "Announced ", "192.0.2.3": "Announced ", "198.51.100.1": "Announced ",
			},
			renewIn: 90 * time.Second,
		},
		"before an address of scope link, which the kernel lists last": {
			announcements: []purelbv1.Announcement{announcement(local("192.0.2.1", 24))},
			unaddressed:   true,
			addresses: []Address{
				on("eth0", "192.0.2.1/32"), on("eth0", "192.0.2.11/24", notOurs, func(a *Address) { a.HasNarrowScope = true }),
			},
			states:  map[string]string{"192.0.2.1": "Announced "},
			renewIn: 100 * time.Second,
		},
		"before the node's own IPv6 address: the kernel lists the last one first": {
			announcements: []purelbv1.Announcement{announcement(local("2001:db8::1", 64))},
			addresses:     []Address{on("eth0", "2001:db8::1/128"), on("eth0", "2001:db8::11/64", notOurs)},
			states:        map[string]string{"2001:db8::1": "Announced "},
			renewIn:       100 * time.Second,
		},
		"the node's own address is away: IPv4 waits, what is there stays": {
			announcements: []purelbv1.Announcement{
				announcement(local("192.0.2.1", 24, takeover), local("192.0.2.2", 24), local("2001:db8::1", 64, takeover)),
			},
			unaddressed: true,
			addresses: []Address{
				on("eth0", "192.0.2.2/32"), on("eth0", "2001:db8::11/64", notOurs), on("eth1", "192.0.2.12/24", notOurs),
			},
			want: []operation{{Kind: "Add", Address: on("eth0", "2001:db8::1/128"), Announce: true}},
			states: map[string]string{
				"192.0.2.1": "Pending NoNodeAddress", "192.0.2.2": "Announced ", "2001:db8::1": "Announced ",
			},
			renewIn: 100 * time.Second,
		},
		"a mask that is none": {
			announcements: []purelbv1.Announcement{announcement(virtual("198.51.100.2", 64), virtual("198.51.100.1", 32))},
			want:          []operation{{Kind: "Add", Address: on("kube-lb0", "198.51.100.1/32")}},
			states:        map[string]string{"198.51.100.2": "Failed Invalid", "198.51.100.1": "Announced "},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			settings := SettingsOf(&purelbv1.LBNodeAgent{})
			if tc.settings != nil {
				tc.settings(&settings)
			}
			desired, invalid := MergeDesired(tc.announcements, nil)
			addresses := tc.addresses
			if !tc.unaddressed {
				addresses = slices.Concat(own, addresses)
			}
			got := Diff(settings, desired, Observed{Interfaces: links, Addresses: addresses}, !tc.untrusted)

			var operations []operation
			for _, op := range got.Operations {
				operations = append(operations, operation{op.Kind.String(), op.Address, op.Probe, op.Announce})
			}
			if diff := cmp.Diff(tc.want, operations, compareNetip); diff != "" {
				t.Errorf("operations (-want +got):\n%s", diff)
			}
			states := map[string]string{}
			for _, results := range []map[netip.Addr]Result{got.Results, invalid} {
				for addr, r := range results {
					states[addr.String()] = string(r.State) + " " + r.Reason
				}
			}
			if tc.states == nil {
				tc.states = map[string]string{}
			}
			if diff := cmp.Diff(tc.states, states); diff != "" {
				t.Errorf("states (-want +got):\n%s", diff)
			}
			if got.RenewIn != tc.renewIn {
				t.Errorf("RenewIn = %v, want %v", got.RenewIn, tc.renewIn)
			}
		})
	}
}

// Whatever the kernel held, once all operations are applied a second Diff finds
// nothing to do.
func TestDiffConverges(t *testing.T) {
	t.Parallel()
	desired, _ := MergeDesired([]purelbv1.Announcement{announcement(
		local("192.0.2.1", 24), local("192.0.2.2", 24, takeover), local("2001:db8::1", 64), virtual("198.51.100.1", 32))},
		nil)
	observed := Observed{
		Interfaces: []NetworkInterface{{Name: "eth0", IsUp: true}, {Name: "eth1", IsUp: true}, {Name: "kube-lb0"}},
		Addresses: []Address{
			on("eth0", "192.0.2.11/24", notOurs), on("eth1", "192.0.2.1/32"), on("eth0", "192.0.2.2/24"),
			on("eth0", "2001:db8::1/64", left(10*time.Second)), on("kube-lb0", "192.0.2.9/32"),
		},
	}
	settings := SettingsOf(&purelbv1.LBNodeAgent{})
	for _, op := range Diff(settings, desired, observed, true).Operations {
		kept := observed.Addresses[:0:0]
		for _, a := range observed.Addresses {
			if a.Interface != op.Address.Interface || a.Prefix != op.Address.Prefix && a.Prefix != op.Replaced.Prefix {
				kept = append(kept, a)
			}
		}
		if op.Kind != Remove {
			kept = append(kept, op.Address)
		}
		observed.Addresses = kept
	}
	if got := Diff(settings, desired, observed, true).Operations; len(got) > 0 {
		t.Errorf("not converged: %+v", got)
	}
	if len(observed.Addresses) != 5 {
		t.Errorf("the kernel holds %+v", observed.Addresses)
	}
}

func TestResults(t *testing.T) {
	t.Parallel()
	d := &Desired{
		Addr: netip.MustParseAddr("192.0.2.1"), Interface: "eth0", Epoch: 3, PreviousMACs: []string{"02:00:00:00:00:01"},
	}
	for name, tc := range map[string]struct {
		got  Result
		want Result
	}{
		"the previous holder answers": {
			answeredResult(d, "02:00:00:00:00:01"),
			Result{
				State: purelbv1.StateWaiting, Epoch: 3, MAC: "02:00:00:00:00:01", Reason: "PreviousHolder",
				Message: "its previous holder, 02:00:00:00:00:01, still answers for the address; waiting until it stops",
			},
		},
		"a stranger answers": {
			answeredResult(d, "02:00:00:00:00:02"),
			Result{
				State: purelbv1.StateConflict, Epoch: 3, MAC: "02:00:00:00:00:02", Reason: "Answered",
				Message: "02:00:00:00:00:02 on eth0 answers for the address: take it off that station, or out of the pool; " +
					"waiting until it stops",
			},
		},
		"the kernel refused": {
			FailedResult(d, ReasonAddFailed, errors.New("no")),
			Result{State: purelbv1.StateFailed, Epoch: 3, Reason: "AddFailed", Message: "no"},
		},
		"a renewal failed": {
			StillAnnouncedResult(d, ReasonRenewFailed, errors.New("no")),
			Result{State: purelbv1.StateAnnounced, Epoch: 3, Interface: "eth0", Reason: "RenewFailed", Message: "no"},
		},
	} {
		if diff := cmp.Diff(tc.want, tc.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
