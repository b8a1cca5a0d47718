package allocation_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

// addRange is what a refusal for want of an address advises.
const addRange = ": add a range to it, or delete Services"

// addresses parses a list separated by spaces.
func addresses(s string) []netip.Addr {
	var out []netip.Addr
	for _, a := range strings.Fields(s) {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func TestAllocate(t *testing.T) {
	catalog := allocation.NewCatalog([]v1.ServiceGroup{
		groupMadeAt(
			t, "dual", 1,
			"local: {v4pool: {pool: 10.0.0.1-10.0.0.3, subnet: 10.0.0.0/24}, v6pool: {pool: 'fd00::1-fd00::3', subnet: "+
				"'fd00::/64'}}",
		),
		groupMadeAt(
			t, "v4", 1,
			"remote: {v4pools: [{pool: 10.1.9.0/30, subnet: 10.1.9.0/30}, {pool: 10.1.1.1-10.1.1.2, subnet: 10.1.1.0/24}]}",
		),
		groupMadeAt(t, "v6", 1, "remote: {v6pool: {pool: 'fd01::/126', subnet: 'fd01::/64'}}"),
		groupMadeAt(
			t, "balanced", 1,
			"local: {balancePools: true, v4pools: [{pool: 10.2.1.1-10.2.1.9, subnet: 10.2.1.0/24}, {pool: 10.2.2.1-10.2.2.9, "+
				"subnet: 10.2.2.0/24}, {pool: 10.2.3.1, subnet: 10.2.3.0/24}]}",
		),
		groupMadeAt(t, "wrong", 1, "local: {pool: 10.3.0.1, subnet: 10.4.0.0/24}"),
		groupMadeAt(t, "late", 2, "local: {pool: 10.0.0.3, subnet: 10.0.0.0/24}"),
		groupMadeAt(t, "netbox", 1, "netbox: {url: 'https://n', tenant: t, tokenSecretRef: {name: a, key: b}}"),
	}, namespace)
	const (
		single  = corev1.IPFamilyPolicySingleStack
		prefer  = corev1.IPFamilyPolicyPreferDualStack
		require = corev1.IPFamilyPolicyRequireDualStack
	)

	for _, row := range []struct {
		name     string
		group    string
		families string // "4", "64"
		policy   corev1.IPFamilyPolicy
		current  string
		adopts   bool   // others have written current
		others   string // addresses of other Services
		reserved string
		want     string
		reason   string // empty for Allocated
		message  string // what comes after "… from pool …", if it is Allocated
	}{
		{name: "first free", group: "dual", families: "4", policy: single, want: "10.0.0.1"},
		{
			name: "first free after others", group: "dual", families: "4", policy: single, others: "10.0.0.1 10.0.0.3",
			want: "10.0.0.2",
		},
		{name: "IPv6", group: "dual", families: "6", policy: single, want: "fd00::1"},
		{
			name: "both families, in the order asked for", group: "dual", families: "64", policy: require,
			want: "fd00::1 10.0.0.1",
		},
		{name: "network address is never allocated", group: "v4", families: "4", policy: single, want: "10.1.9.1"},
		{name: "ranges as written", group: "v4", families: "4", policy: single, others: "10.1.9.1", want: "10.1.9.2"},
		{
			name: "broadcast address is never allocated", group: "v4", families: "4", policy: single,
			others: "10.1.9.1 10.1.9.2", want: "10.1.1.1",
		},
		{name: "anycast address is never allocated", group: "v6", families: "6", policy: single, want: "fd01::1"},
		{name: "reserved", group: "dual", families: "4", policy: single, reserved: "10.0.0.1 10.0.0.2", want: "10.0.0.3"},
		{
			name: "reserved, but held already", group: "dual", families: "4", policy: single, current: "10.0.0.1",
			reserved: "10.0.0.1", want: "10.0.0.1",
		},

		{
			name: "balance: first of the emptiest", group: "balanced", families: "4", policy: single, others: "10.2.1.1",
			want: "10.2.2.1",
		},
		{name: "balance: as written, if equal", group: "balanced", families: "4", policy: single, want: "10.2.1.1"},
		{
			name: "balance: counts what is in use", group: "balanced", families: "4", policy: single,
			others: "10.2.1.7 10.2.2.5", want: "10.2.3.1",
		},
		{
			name: "balance: skips the full", group: "balanced", families: "4", policy: single,
			others: "10.2.1.1 10.2.1.2 10.2.2.1 10.2.2.2 10.2.3.1", want: "10.2.1.3",
		},
		{
			name: "balance: keeps the current", group: "balanced", families: "4", policy: single, current: "10.2.1.5",
			others: "10.2.1.1", want: "10.2.1.5",
		},

		{name: "keeps the current", group: "dual", families: "4", policy: single, current: "10.0.0.3", want: "10.0.0.3"},
		{
			name: "keeps both", group: "dual", families: "46", policy: require, current: "10.0.0.3 fd00::3",
			want: "10.0.0.3 fd00::3",
		},
		{
			name: "keeps them in the order asked for", group: "dual", families: "64", policy: require,
			current: "10.0.0.3 fd00::3", want: "fd00::3 10.0.0.3",
		},
		{
			name: "adopts one of a family", adopts: true, group: "dual", families: "4", policy: single,
			current: "10.0.0.3 10.0.0.2", want: "10.0.0.3",
		},
		{
			name: "keeps one that would not be allocated now", group: "v4", families: "4", policy: single, current: "10.1.9.0",
			want: "10.1.9.0",
		},
		{name: "family added", group: "dual", families: "46", policy: prefer, current: "10.0.0.3", want: "10.0.0.3 fd00::1"},
		{
			name: "family added first", group: "dual", families: "64", policy: require, current: "10.0.0.3",
			want: "fd00::1 10.0.0.3",
		},
		{name: "family removed", group: "dual", families: "4", policy: single, current: "10.0.0.3 fd00::3", want: "10.0.0.3"},
		{name: "family changed", group: "dual", families: "6", policy: single, current: "10.0.0.3", want: "fd00::1"},
		{name: "group changed", group: "v4", families: "4", policy: single, current: "10.0.0.3", want: "10.1.9.1"},
		{
			name: "another has it: a new one", group: "dual", families: "4", policy: single, current: "10.0.0.1",
			others: "10.0.0.1", want: "10.0.0.2",
		},

		{name: "no such group", group: "none", families: "4", policy: single,
			reason: v1.ReasonNoSuchGroup, message: "there is no ServiceGroup none"},
		{name: "no such group any more: keeps", group: "none", families: "46", policy: require, current: "10.0.0.1 fd00::1",
			want:   "10.0.0.1 fd00::1",
			reason: v1.ReasonNoSuchGroup, message: "there is no ServiceGroup none"},
		{name: "no such group, family removed", group: "none", families: "4", policy: single, current: "10.0.0.1 fd00::1",
			want:   "10.0.0.1",
			reason: v1.ReasonNoSuchGroup, message: "there is no ServiceGroup none"},
		{name: "no such group, first family removed", group: "none", families: "6", policy: single,
			current: "10.0.0.1 fd00::1", want: "fd00::1",
			reason: v1.ReasonNoSuchGroup, message: "there is no ServiceGroup none"},
		{name: "no such group, and another has it", group: "none", families: "4", policy: single, current: "10.0.0.1",
			others: "10.0.0.1",
			reason: v1.ReasonNoSuchGroup, message: "there is no ServiceGroup none"},
		{name: "invalid group", group: "wrong", families: "4", policy: single, reason: v1.ReasonGroupNotReady,
			message: `ServiceGroup wrong is not ready: spec.local.pool: Invalid value: "10.3.0.1": 10.3.0.1 is outside subnet ` +
				`10.4.0.0/24`},
		{name: "invalid group: keeps", group: "wrong", families: "4", policy: single, current: "10.3.0.1", want: "10.3.0.1",
			reason: v1.ReasonGroupNotReady,
			message: `ServiceGroup wrong is not ready: spec.local.pool: Invalid value: "10.3.0.1": 10.3.0.1 is outside subnet ` +
				`10.4.0.0/24`},
		{name: "overlapping group", group: "late", families: "4", policy: single, reason: v1.ReasonGroupNotReady,
			message: `ServiceGroup late is not ready: spec.local.pool: Invalid value: "10.0.0.3": range 10.0.0.3-10.0.0.3 ` +
				`overlaps range 10.0.0.1-10.0.0.3 of ServiceGroup dual, which has these addresses already`},
		{name: "netbox", group: "netbox", families: "4", policy: single, reason: v1.ReasonGroupNotReady,
			message: "ServiceGroup netbox is not ready: what NetBox has of the group is not known yet"},

		{name: "exhausted", group: "dual", families: "4", policy: single, others: "10.0.0.1 10.0.0.2 10.0.0.3",
			reason: v1.ReasonExhausted, message: "ServiceGroup dual has no free IPv4 address" + addRange},
		{name: "exhausted by reservations", group: "dual", families: "4", policy: single, others: "10.0.0.1",
			reserved: "10.0.0.2 10.0.0.3",
			reason:   v1.ReasonExhausted, message: "ServiceGroup dual has no free IPv4 address" + addRange},
		{name: "exhausted: keeps what it has of another group", group: "dual", families: "4", policy: single,
			current: "10.1.1.1",
			others:  "10.0.0.1 10.0.0.2 10.0.0.3", want: "10.1.1.1", reason: v1.ReasonExhausted,
			message: "ServiceGroup dual has no free IPv4 address" + addRange},
		{name: "exhausted, family removed", group: "v4", families: "6", policy: single, current: "10.0.0.1 fd00::1",
			want:   "fd00::1",
			reason: v1.ReasonExhausted, message: "ServiceGroup v4 has no free IPv6 address" + addRange},
		{name: "a group without the family", group: "v4", families: "6", policy: single,
			reason: v1.ReasonExhausted, message: "ServiceGroup v4 has no free IPv6 address" + addRange},
		{name: "RequireDualStack, one family exhausted", group: "dual", families: "46", policy: require,
			others: "fd00::1 fd00::2 fd00::3",
			reason: v1.ReasonExhausted, message: "ServiceGroup dual has no free IPv6 address" + addRange},
		{name: "RequireDualStack, both exhausted", group: "dual", families: "46", policy: require,
			others: "fd00::1 fd00::2 fd00::3 10.0.0.1 10.0.0.2 10.0.0.3",
			reason: v1.ReasonExhausted, message: "ServiceGroup dual has no free IPv4 and no free IPv6 address" + addRange},
		{name: "RequireDualStack, keeps the one it has", group: "dual", families: "46", policy: require, current: "10.0.0.3",
			others: "fd00::1 fd00::2 fd00::3",
			want:   "10.0.0.3", reason: v1.ReasonExhausted, message: "ServiceGroup dual has no free IPv6 address" + addRange},
		{name: "RequireDualStack of a group with one family", group: "v4", families: "46", policy: require,
			reason: v1.ReasonExhausted, message: "ServiceGroup v4 has no free IPv6 address" + addRange},
		{name: "PreferDualStack, one family exhausted", group: "dual", families: "46", policy: prefer,
			others: "fd00::1 fd00::2 fd00::3", want: "10.0.0.1",
			message: "; by PreferDualStack it gets an IPv6 address, too, as soon as ServiceGroup dual has one that is free"},
		{name: "PreferDualStack, the first family exhausted", group: "dual", families: "64", policy: prefer,
			others: "fd00::1 fd00::2 fd00::3", want: "10.0.0.1",
			message: "; by PreferDualStack it gets an IPv6 address, too, as soon as ServiceGroup dual has one that is free"},
		{name: "PreferDualStack of a group with one family", group: "v4", families: "64", policy: prefer, want: "10.1.9.1",
			message: "; by PreferDualStack it gets an IPv6 address, too, as soon as ServiceGroup v4 has one that is free"},
		{name: "PreferDualStack, both exhausted", group: "dual", families: "46", policy: prefer,
			others: "fd00::1 fd00::2 fd00::3 10.0.0.1 10.0.0.2 10.0.0.3",
			reason: v1.ReasonExhausted, message: "ServiceGroup dual has no free IPv4 and no free IPv6 address" + addRange},
	} {
		t.Run(row.name, func(t *testing.T) {
			req := &allocation.Request{RequestedGroup: row.group, FamilyPolicy: row.policy}
			req.Service = allocation.Service{
				Namespace: "a", Name: "b", Created: time.Unix(1, 0), Addresses: addresses(row.current),
			}
			req.IsOurs = true
			if !row.adopts {
				req.Allocated.Addresses = req.Addresses
			}
			for _, f := range row.families {
				req.Families = append(req.Families, map[rune]allocation.Family{'4': allocation.IPv4, '6': allocation.IPv6}[f])
			}
			inputs := &allocation.Inputs{
				Catalog: catalog,
				InUse: allocation.NewInUse(&req.Service, &allocation.Service{
					Namespace: "other", Name: "service", Allocated: allocation.Record{Addresses: addresses(row.others)},
					Addresses: addresses(row.others)}),
				NodeAddresses: map[netip.Addr]string{},
			}
			for _, a := range addresses(row.reserved) {
				inputs.NodeAddresses[a] = "a node"
			}

			want := allocation.Result{
				Addresses: addresses(row.want), RequestedGroup: row.group, Reason: row.reason, KeepsAllocation: row.reason != "",
				Message: row.message,
			}
			if row.reason == v1.ReasonNoSuchGroup {
				want.RequestedGroup = ""
			}
			if row.reason == "" {
				want.Reason, want.Group, want.Type = v1.ReasonAllocated, row.group, catalog[row.group].Group.Type
				want.Message = fmt.Sprintf("%s from pool %s%s", allocation.JoinAddresses(want.Addresses), row.group, row.message)
			}
			if strings.Contains(row.name, "another has it") {
				want.LostAddresses = []allocation.LostAddress{
					{Address: addresses(row.current)[0], Service: "other/service", IsOfOtherNamespace: true},
				}
			}
			same := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
			got := allocation.Allocate(req, inputs)
			if diff := cmp.Diff(want, got, same); diff != "" {
				t.Fatalf("result (-want +got):\n%s", diff)
			}

			// Asking again changes nothing.
			again := *req
			again.Addresses, again.Allocated = got.Addresses, got.Record()
			inputs.InUse.Put(&again.Service)
			got.LostAddresses = nil
			if diff := cmp.Diff(got, allocation.Allocate(&again, inputs), same); diff != "" {
				t.Errorf("asked again (-first +second):\n%s", diff)
			}
		})
	}
}

// TestAllocateNeverTwice allocates to more Services than there are addresses.
func TestAllocateNeverTwice(t *testing.T) {
	catalog := allocation.NewCatalog([]v1.ServiceGroup{
		groupMadeAt(
			t, "g", 1,
			"local: {balancePools: true, v4pools: [{pool: 10.0.0.0/28, subnet: 10.0.0.0/28}, {pool: 10.0.1.0/29, subnet: "+
				"10.0.1.0/24}], v6pool: {pool: 'fd00::/125', subnet: 'fd00::/64'}}",
		),
	}, namespace)
	used := allocation.NewInUse()
	served := 0
	for i := range 40 {
		req := &allocation.Request{RequestedGroup: "g", FamilyPolicy: corev1.IPFamilyPolicyPreferDualStack,
			Families: []allocation.Family{allocation.IPv6, allocation.IPv4}}
		req.Service = allocation.Service{Namespace: "a", Name: fmt.Sprint(i)}
		result := allocation.Allocate(req, &allocation.Inputs{Catalog: catalog, InUse: used})
		for _, a := range result.Addresses {
			if holders := used.ServicesWith(a); len(holders) > 0 {
				t.Fatalf("%s was given to %s and to %s", a, holders[0], req)
			}
		}
		req.Addresses = result.Addresses
		used.Put(&req.Service)
		if result.Reason == v1.ReasonAllocated {
			served++
		}
	}
	// 14 of the /28, 7 of the /29 and 7 of the /125; IPv6 comes with IPv4.
	if used.Len() != 28 || served != 21 {
		t.Errorf("%d addresses were given to %d Services", used.Len(), served)
	}
	if u := catalog["g"].Group.Usage(used); u.AvailableIPv4 != 0 || u.AvailableIPv6 != 0 {
		t.Errorf("left over: %+v", u)
	}
}

// BenchmarkAllocate allocates one address to a Service, and releases it, where the
// pool is empty and where it is the last one that is free.
func BenchmarkAllocate(b *testing.B) {
	const spec = "remote: {balancePools: true, v4pools: [{pool: 10.0.0.0/16, subnet: 10.0.0.0/16}], v6pools: [{pool: " +
		"'fd00::/64', subnet: 'fd00::/64'}]}"
	sg := groupMadeAt(b, "g", 1, spec)
	for _, row := range []struct {
		name   string
		family allocation.Family
		used   int
	}{
		{"empty 16", allocation.IPv4, 0}, {"full 16 but one", allocation.IPv4, 1<<16 - 3},
		{"empty 64", allocation.IPv6, 0}, {"64 with 65533 in use", allocation.IPv6, 1<<16 - 3},
	} {
		b.Run(row.name, func(b *testing.B) {
			inputs := &allocation.Inputs{
				Catalog: allocation.NewCatalog([]v1.ServiceGroup{sg}, namespace), InUse: allocation.NewInUse(),
			}
			give := func(i int) *allocation.Request {
				req := &allocation.Request{RequestedGroup: "g", Families: []allocation.Family{row.family}}
				req.Service = allocation.Service{Namespace: "a", Name: fmt.Sprint(i), IsOurs: true}
				req.Addresses = allocation.Allocate(req, inputs).Addresses
				if len(req.Addresses) != 1 {
					b.Fatal("no address")
				}
				inputs.InUse.Put(&req.Service)
				return req
			}
			for i := range row.used {
				give(i)
			}
			for b.Loop() {
				inputs.InUse.Delete(give(-1).String())
			}
		})
	}
}
