package plan

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/seeds"
)

func TestMergeDesired(t *testing.T) {
	t.Parallel()
	with := func(a purelbv1.AnnouncedAddress, edit func(*purelbv1.AnnouncedAddress)) purelbv1.AnnouncedAddress {
		edit(&a)
		return a
	}
	epoch := func(epoch int64) func(*purelbv1.AnnouncedAddress) {
		return func(a *purelbv1.AnnouncedAddress) { a.Epoch = epoch }
	}
	bits := func(bits int32) func(*purelbv1.AnnouncedAddress) {
		return func(a *purelbv1.AnnouncedAddress) { a.PrefixLength = bits }
	}
	onEth1 := func(a *purelbv1.AnnouncedAddress) { a.Interface = "eth1" }
	noAddress := virtual("198.51.100", 32)
	one := virtual("198.51.100.1", 32)
	type entries = []purelbv1.AnnouncedAddress
	for name, c := range map[string]struct {
		announcements []entries // of node1, node1-b, …
		shared        entries
		want          []string
		invalid       []string
	}{
		"none": {nil, nil, nil, nil},
		"ascending, of all objects": {
			[]entries{{virtual("198.51.100.10", 32)}, {virtual("198.51.100.9", 32)}}, entries{one},
			[]string{"198.51.100.1/32 kube-lb0 0", "198.51.100.9/32 kube-lb0 0", "198.51.100.10/32 kube-lb0 0"}, nil,
		},
		"only shared entries": {
			nil, entries{one, virtual("198.51.100.2", 32)}, []string{"198.51.100.1/32 kube-lb0 0", "198.51.100.2/32 kube-lb0 0"},
			nil,
		},
		"of equal epochs that of the first Announcement": {
			[]entries{{local("192.0.2.1", 24)}, {local("192.0.2.1", 24, onEth1)}}, nil, []string{"192.0.2.1/32 eth0 3"}, nil,
		},
		"a higher epoch in a later Announcement": {
			[]entries{{local("192.0.2.1", 24)}, {local("192.0.2.1", 24, onEth1, epoch(4))}}, nil,
			[]string{"192.0.2.1/32 eth1 4"}, nil,
		},
		"a lower epoch in a later Announcement": {
			[]entries{{local("192.0.2.1", 24)}, {local("192.0.2.1", 24, onEth1, epoch(2))}}, nil,
			[]string{"192.0.2.1/32 eth0 3"}, nil,
		},
		"an Announcement's before a shared entry": {
			[]entries{{local("192.0.2.1", 24)}}, entries{virtual("192.0.2.1", 32), one},
			[]string{"192.0.2.1/32 eth0 3", "198.51.100.1/32 kube-lb0 0"}, nil,
		},
		"a shared entry twice": {
			nil, entries{one, one}, []string{"198.51.100.1/32 kube-lb0 0"}, nil,
		},
		"no address": {
			[]entries{{noAddress, one}}, entries{noAddress}, []string{"198.51.100.1/32 kube-lb0 0"}, nil,
		},
		"the longest and the shortest mask": {
			[]entries{{one}}, entries{virtual("198.51.100.2", 1)},
			[]string{"198.51.100.1/32 kube-lb0 0", "198.51.100.2/1 kube-lb0 0"}, nil,
		},
		"masks that are none": {
			[]entries{{with(one, bits(0))}}, entries{virtual("198.51.100.2", 33)}, nil,
			[]string{
				"198.51.100.1 prefix length 0 is not one of this family", "198.51.100.2 prefix length 33 is not one of this family",
			},
		},
		"a bad mask does not matter where another is good": {
			[]entries{{with(one, bits(0))}, {one}}, entries{with(one, bits(99))}, []string{"198.51.100.1/32 kube-lb0 0"}, nil,
		},
	} {
		var announcements []purelbv1.Announcement
		for i, list := range c.announcements {
			ann := announcement(list...)
			ann.Name = fmt.Sprintf("node1-%d", i)
			announcements = append([]purelbv1.Announcement{ann}, announcements...) // in whatever order
		}
		var shared []purelbv1.CommonAnnouncement
		if c.shared != nil {
			shared = []purelbv1.CommonAnnouncement{{Spec: purelbv1.CommonAnnouncementSpec{Addresses: c.shared}}}
		}
		desired, invalid := MergeDesired(announcements, shared)
		var got, problems []string
		for _, d := range desired {
			got = append(got, fmt.Sprintf("%s %s %d", d.Prefix, d.Interface, d.Epoch))
		}
		for _, text := range []string{"198.51.100.1", "198.51.100.2"} {
			if r, isInvalid := invalid[netip.MustParseAddr(text)]; isInvalid && r.State == purelbv1.StateFailed &&
				r.Reason == ReasonInvalid {
				problems = append(problems, text+" "+r.Message)
			}
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(c.invalid, problems); diff != "" || len(invalid) != len(problems) {
			t.Errorf("%s: %v invalid (-want +got):\n%s", name, invalid, diff)
		}
	}
}

// Takeover counts until the node has had the address under that epoch.
func TestTakeoverCountsOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status purelbv1.AddressStatus
		want   bool
	}{
		"announced": {
			purelbv1.AddressStatus{Address: "192.0.2.1", State: purelbv1.StateAnnounced, Epoch: 3}, false,
		},
		"yielded": {
			purelbv1.AddressStatus{Address: "192.0.2.1", State: purelbv1.StateYielded, Epoch: 3}, false,
		},
		"lost": {
			purelbv1.AddressStatus{Address: "192.0.2.1", State: purelbv1.StateFailed, Epoch: 3, Reason: "Lost"}, false,
		},
		"pending": {
			purelbv1.AddressStatus{Address: "192.0.2.1", State: purelbv1.StatePending, Epoch: 3}, true,
		},
		"announced under another": {
			purelbv1.AddressStatus{Address: "192.0.2.1", State: purelbv1.StateAnnounced, Epoch: 2}, true,
		},
		"lost under another": {
			purelbv1.AddressStatus{Address: "192.0.2.1", State: purelbv1.StateFailed, Epoch: 2, Reason: "Lost"}, true,
		},
		"another address is announced": {
			purelbv1.AddressStatus{Address: "192.0.2.2", State: purelbv1.StateAnnounced, Epoch: 3}, true,
		},
	} {
		desired, _ := MergeDesired(
			[]purelbv1.Announcement{reported(announcement(local("192.0.2.1", 24, takeover)), c.status)}, nil,
		)
		if desired[0].IsTakeover != c.want {
			t.Errorf("%s: takes over %v, want %v", name, desired[0].IsTakeover, c.want)
		}
	}
}

// Each entry names all Announcements of the node: a yield under one that was deleted and made anew does
// not count any more. Those of a checkpoint of an earlier version are not known, and every yield counts.
func TestMergeDesiredAnnouncements(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name        string
		uids        []types.UID // of node1, which has the entry, and of node1-b
		want        []types.UID
		coversOfOld bool // a yield under Announcement "old" counts
	}{
		{"the one with the entry", []types.UID{"old"}, []types.UID{"old"}, true},
		{"another one", []types.UID{"new", "old"}, []types.UID{"new", "old"}, true},
		{"made anew", []types.UID{"new"}, []types.UID{"new"}, false},
		{"not known", []types.UID{""}, nil, true},
	} {
		var announcements []purelbv1.Announcement
		for i, uid := range c.uids {
			ann := announcement()
			if i == 0 {
				ann = announcement(local("192.0.2.1", 24))
			}
			ann.Name, ann.UID = fmt.Sprintf("node1-%d", i), uid
			announcements = append(announcements, ann)
		}
		desired, _ := MergeDesired(announcements, nil)
		if diff := cmp.Diff(c.want, desired[0].NodeAnnouncements); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
		if got := (YieldedAddress{Epoch: 3, Announcement: "old"}).covers(&desired[0]); got != c.coversOfOld {
			t.Errorf("%s: a yield under the old one counts: %t", c.name, got)
		}
	}
}

// TestMergeDesiredOfRandomEntries compares MergeDesired with its rule, applied to one address after the other: the
// valid entry of an Announcement with the highest epoch counts, of equal ones the first, and then the first valid
// shared one.
func TestMergeDesiredOfRandomEntries(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(seeds.First(t), 0)) //nolint:gosec // a test's
	const addresses = 12
	entriesOf := func(count int) []purelbv1.AnnouncedAddress {
		var entries []purelbv1.AnnouncedAddress
		for range count {
			text := fmt.Sprintf("192.0.2.%d", random.IntN(addresses)+1)
			e := virtual(text, []int32{0, 24, 32, 33}[random.IntN(4)])
			if random.IntN(2) == 0 {
				e = local(text, 24)
			}
			e.Epoch, e.HealthCheckNodePort = random.Int64N(4), random.Int32N(1000) // the port tells entries apart
			entries = append(entries, e)
		}
		return entries
	}
	for range 2000 {
		var announcements []purelbv1.Announcement
		for i := range random.IntN(4) {
			ann := announcement(entriesOf(random.IntN(6))...)
			ann.Name, ann.UID = fmt.Sprint("node1-", i), types.UID(fmt.Sprint(i))
			announcements = append(announcements, ann)
		}
		shared := make([]purelbv1.CommonAnnouncement, random.IntN(3))
		for i := range shared {
			shared[i].Spec.Addresses = entriesOf(random.IntN(6))
		}
		var want, got []string
		for n := range addresses {
			addr := netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", n+1))
			var best Desired
			isAsked, isFound := false, false
			consider := func(e *purelbv1.AnnouncedAddress, ann types.UID, isShared bool) {
				if e.Address != addr.String() {
					return
				}
				isAsked = true
				d, problem := desiredBy(addr, e)
				if problem.State == "" && (!isFound || !isShared && d.Epoch > best.Epoch) {
					best, isFound = d, true
					best.Announcement = ann
				}
			}
			for i := range announcements {
				for j := range announcements[i].Spec.Addresses {
					consider(&announcements[i].Spec.Addresses[j], announcements[i].UID, false)
				}
			}
			for i := range shared {
				for j := range shared[i].Spec.Addresses {
					consider(&shared[i].Spec.Addresses[j], "", true)
				}
			}
			switch {
			case isFound:
				want = append(want, fmt.Sprint(best.Prefix, best.Epoch, best.HealthPort, best.Announcement))
			case isAsked:
				want = append(want, fmt.Sprint(addr, " is invalid"))
			}
		}
		desired, invalid := MergeDesired(announcements, shared)
		for i := range desired {
			d := &desired[i]
			if i > 0 && !desired[i-1].Addr.Less(d.Addr) {
				t.Fatalf("%s comes before %s", desired[i-1].Addr, d.Addr)
			}
			got = append(got, fmt.Sprint(d.Prefix, d.Epoch, d.HealthPort, d.Announcement))
		}
		for addr := range invalid {
			got = append(got, fmt.Sprint(addr, " is invalid"))
		}
		slices.Sort(want)
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("of %v and %v (-want +got):\n%s", announcements, shared, diff)
		}
	}
}
