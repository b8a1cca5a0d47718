package allocation_test

import (
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

// groupMadeAt is a ServiceGroup that was created at the given second.
func groupMadeAt(t testing.TB, name string, second int64, spec string) v1.ServiceGroup {
	sg := group(t, name, spec)
	sg.CreationTimestamp = metav1.Unix(second, 0)
	return *sg
}

func TestNewCatalog(t *testing.T) {
	pool := func(s string) string { return "local: {pool: " + s + ", subnet: 10.0.0.0/24}" }
	elsewhere := groupMadeAt(t, "a", 0, pool("10.0.0.1-10.0.0.9"))
	elsewhere.Namespace = "other"

	for _, row := range []struct {
		name   string
		groups []v1.ServiceGroup
		want   map[string]string // reason and message by group
	}{
		{"none", nil, map[string]string{}},
		{"apart", []v1.ServiceGroup{
			groupMadeAt(t, "a", 1, pool("10.0.0.1-10.0.0.4")), groupMadeAt(t, "b", 2, pool("10.0.0.5-10.0.0.9")),
		},
			map[string]string{"a": "Accepted: 1 range", "b": "Accepted: 1 range"}},
		{"two ranges", []v1.ServiceGroup{
			groupMadeAt(
				t, "a", 1, "remote: {pool: 10.0.0.1, subnet: 10.0.0.0/24, v6pool: {pool: 'fd00::1', subnet: 'fd00::/64'}}",
			),
		},
			map[string]string{"a": "Accepted: 2 ranges"}},
		{"nested, the outer older", []v1.ServiceGroup{
			groupMadeAt(t, "b", 1, pool("10.0.0.1-10.0.0.9")), groupMadeAt(t, "a", 2, pool("10.0.0.4")),
		},
			map[string]string{
				"b": "Accepted: 1 range",
				"a": `Overlap: spec.local.pool: Invalid value: "10.0.0.4": range 10.0.0.4-10.0.0.4 overlaps range ` +
					`10.0.0.1-10.0.0.9 of ServiceGroup b, which has these addresses already`,
			}},
		{"nested, the inner older", []v1.ServiceGroup{
			groupMadeAt(t, "b", 2, pool("10.0.0.1-10.0.0.9")), groupMadeAt(t, "a", 1, pool("10.0.0.4")),
		},
			map[string]string{
				"a": "Accepted: 1 range",
				"b": `Overlap: spec.local.pool: Invalid value: "10.0.0.1-10.0.0.9": range 10.0.0.1-10.0.0.9 overlaps range ` +
					`10.0.0.4-10.0.0.4 of ServiceGroup a, which has these addresses already`,
			}},
		{"equal, of one age: the first by name", []v1.ServiceGroup{
			groupMadeAt(t, "b", 1, pool("10.0.0.1")), groupMadeAt(t, "a", 1, pool("10.0.0.1")),
		},
			map[string]string{
				"a": "Accepted: 1 range",
				"b": `Overlap: spec.local.pool: Invalid value: "10.0.0.1": range 10.0.0.1-10.0.0.1 overlaps range ` +
					`10.0.0.1-10.0.0.1 of ServiceGroup a, which has these addresses already`,
			}},
		{"different subnets", []v1.ServiceGroup{
			groupMadeAt(t, "a", 1, pool("10.0.0.0/24")), groupMadeAt(t, "b", 2, "remote: {pool: 10.0.0.9, subnet: 10.0.0.8/29}"),
		},
			map[string]string{
				"a": "Accepted: 1 range",
				"b": `Overlap: spec.remote.pool: Invalid value: "10.0.0.9": range 10.0.0.9-10.0.0.9 overlaps range ` +
					`10.0.0.0-10.0.0.255 of ServiceGroup a, which has these addresses already`,
			}},
		{"one that is refused takes no room", []v1.ServiceGroup{
			groupMadeAt(t, "a", 1, pool("10.0.0.1-10.0.0.5")), groupMadeAt(t, "b", 2, pool("10.0.0.5-10.0.0.9")),
			groupMadeAt(t, "c", 3, pool("10.0.0.9"))},
			map[string]string{"a": "Accepted: 1 range", "c": "Accepted: 1 range",
				"b": `Overlap: spec.local.pool: Invalid value: "10.0.0.5-10.0.0.9": range 10.0.0.5-10.0.0.9 overlaps range ` +
					`10.0.0.1-10.0.0.5 of ServiceGroup a, which has these addresses already`}},
		{"nor does one that is invalid", []v1.ServiceGroup{
			groupMadeAt(t, "a", 1, "local: {v4pools: [{pool: 10.0.0.1, subnet: 10.0.0.0/24}, {pool: x, subnet: 10.0.0.0/24}]}"),
			groupMadeAt(t, "b", 2, pool("10.0.0.1"))},
			map[string]string{"b": "Accepted: 1 range",
				"a": `Invalid: spec.local.v4pools[1].pool: Invalid value: "x": ` +
					"must be a CIDR, a range first-last, or one address"}},
		{"of two to overlap with, the first by name", []v1.ServiceGroup{
			groupMadeAt(t, "b", 1, pool("10.0.0.1-10.0.0.4")), groupMadeAt(t, "a", 2, pool("10.0.0.5-10.0.0.9")),
			groupMadeAt(t, "c", 3, pool("10.0.0.1-10.0.0.9"))},
			map[string]string{"a": "Accepted: 1 range", "b": "Accepted: 1 range",
				"c": `Overlap: spec.local.pool: Invalid value: "10.0.0.1-10.0.0.9": range 10.0.0.1-10.0.0.9 overlaps range ` +
					`10.0.0.5-10.0.0.9 of ServiceGroup a, which has these addresses already`}},
		{"of two ranges to overlap with, the first", []v1.ServiceGroup{
			groupMadeAt(
				t, "a", 1,
				"local: {v4pools: [{pool: 10.0.0.5-10.0.0.9, subnet: 10.0.0.0/24}, {pool: 10.0.0.1-10.0.0.4, subnet: "+
					"10.0.0.0/24}]}",
			),
			groupMadeAt(t, "b", 2, pool("10.0.0.1-10.0.0.9"))},
			map[string]string{"a": "Accepted: 2 ranges",
				"b": `Overlap: spec.local.pool: Invalid value: "10.0.0.1-10.0.0.9": range 10.0.0.1-10.0.0.9 overlaps range ` +
					`10.0.0.1-10.0.0.4 of ServiceGroup a, which has these addresses already`}},
		{"another namespace does not count", []v1.ServiceGroup{elsewhere, groupMadeAt(t, "b", 1, pool("10.0.0.1"))},
			map[string]string{"b": "Accepted: 1 range"}},
		{"netbox", []v1.ServiceGroup{
			groupMadeAt(t, "a", 1, "netbox: {url: 'https://n', tenant: t, tokenSecretRef: {name: a, key: b}}"),
		},
			map[string]string{"a": "Progressing: what NetBox has of the group is not known yet"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := map[string]string{}
			for name, v := range allocation.NewCatalog(row.groups, namespace) {
				got[name] = v.Reason + ": " + v.Message
			}
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Errorf("verdicts (-want +got):\n%s", diff)
			}
		})
	}
}

func TestGroupOf(t *testing.T) {
	catalog := allocation.NewCatalog([]v1.ServiceGroup{
		groupMadeAt(t, "a", 1, "local: {pool: 10.0.0.1-10.0.0.4, subnet: 10.0.0.0/24}"),
		groupMadeAt(t, "refused", 2, "local: {pool: 10.0.0.4-10.0.0.9, subnet: 10.0.0.0/24}"),
		groupMadeAt(
			t, "b", 3,
			"remote: {v6pools: [{pool: 'fd00::1', subnet: 'fd00::/64'}, {pool: 'fd01::1', subnet: 'fd01::/64', aggregation: "+
				"/128}]}",
		),
	}, namespace)
	for addr, want := range map[string]string{
		"10.0.0.1": "a 24", "10.0.0.4": "a 24", "10.0.0.5": "", "fd00::1": "b 64", "fd01::1": "b 128", "fd01::2": "",
		"::ffff:10.0.0.1": "",
	} {
		got := ""
		if g, r, ok := catalog.GroupContaining(netip.MustParseAddr(addr)); ok {
			got = g.Name + " " + netip.PrefixFrom(r.Addrs.From(), r.Mask).String()[len(r.Addrs.From().String())+1:]
		}
		if got != want {
			t.Errorf("group of %s is %q, not %q", addr, got, want)
		}
	}
}

func TestCapacity(t *testing.T) {
	for _, row := range []struct {
		pool, subnet string
		want         int64
	}{
		{"10.0.0.0/24", "10.0.0.0/24", 254},
		{"10.0.0.0-10.0.0.9", "10.0.0.0/24", 9},
		{"10.0.0.250-10.0.0.255", "10.0.0.0/24", 5},
		{"10.0.0.1-10.0.0.9", "10.0.0.0/24", 9},
		{"10.0.0.0", "10.0.0.0/24", 0},
		{"10.0.0.255", "10.0.0.0/24", 0},
		{"10.0.0.0/25", "10.0.0.0/24", 127}, // .127 is no broadcast address of the subnet
		{"10.0.0.0/30", "10.0.0.0/30", 2},
		{"10.0.0.0/31", "10.0.0.0/31", 2}, // RFC 3021
		{"10.0.0.7", "10.0.0.7/32", 1},
		{"10.0.0.0/8", "10.0.0.0/8", 1<<24 - 2},
		{"fd00::/126", "fd00::/64", 3},
		{"fd00::4/126", "fd00::/64", 4},
		{"fd00::ffff:ffff:ffff:ffff", "fd00::/64", 1}, // IPv6 has no broadcast
		{"fd00::/126", "fd00::/126", 3},
		{"fd00::/127", "fd00::/127", 2}, // RFC 6164
		{"fd00::7", "fd00::7/128", 1},
		{"fd00::/65", "fd00::/64", math.MaxInt64}, // 2^63 - 1
		{"fd00::/64", "fd00::/64", math.MaxInt64},
		{"4000::/2", "4000::/2", math.MaxInt64},
	} {
		form := "v4pool"
		if netip.MustParsePrefix(row.subnet).Addr().Is6() {
			form = "v6pool"
		}
		g := parsedGroup(t, "remote: {"+form+": {pool: '"+row.pool+"', subnet: '"+row.subnet+"'}}")
		if got := g.Ranges[0].Capacity(); got != row.want {
			t.Errorf("capacity of %s in %s is %d, not %d", row.pool, row.subnet, got, row.want)
		}
	}
}

func TestUsage(t *testing.T) {
	// 10.0.2.0 is in use although it would not be allocated now.
	used := allocation.NewInUse(&allocation.Service{Namespace: "a", Name: "b",
		Addresses: addresses("10.0.0.1 10.0.0.3 10.0.1.1 10.9.9.9 10.0.2.0 fd00::1 fd01::1")})
	for _, row := range []struct {
		name, spec string
		want       allocation.Usage
	}{
		{"both families", "local: {v4pools: [{pool: 10.0.0.1-10.0.0.4, subnet: 10.0.0.0/24}, {pool: 10.0.1.0/30, subnet: " +
			"10.0.1.0/24}], v6pool: {pool: 'fd00::/126', subnet: 'fd00::/64'}}",
			allocation.Usage{
				AllocatedIPv4: 3, AvailableIPv4: 4, AllocatedIPv6: 1, AvailableIPv6: 2, AllocatedByRange: []int64{2, 1, 1},
			}},
		{"nothing used", "local: {pool: 10.0.3.1-10.0.3.4, subnet: 10.0.3.0/24}",
			allocation.Usage{AvailableIPv4: 4, AllocatedByRange: []int64{0}}},
		{"more used than there is", "local: {pool: 10.0.2.0, subnet: 10.0.2.0/24}",
			allocation.Usage{AllocatedIPv4: 1, AllocatedByRange: []int64{1}}},
		{"huge", "remote: {v6pool: {pool: 'fd00::/64', subnet: 'fd00::/64'}}",
			allocation.Usage{AllocatedIPv6: 1, AvailableIPv6: math.MaxInt64, AllocatedByRange: []int64{1}}},
		{"huge together", "remote: {v6pools: [{pool: 'fd00::1-fd00::7fff:ffff:ffff:ffff', subnet: 'fd00::/64'}, {pool: " +
			"'fd01::1-fd01::7fff:ffff:ffff:ffff', subnet: 'fd01::/64'}]}",
			allocation.Usage{AllocatedIPv6: 2, AvailableIPv6: math.MaxInt64, AllocatedByRange: []int64{1, 1}}},
	} {
		t.Run(row.name, func(t *testing.T) {
			g := parsedGroup(t, row.spec)
			row.want.ReservedByRange = make([]int64, len(row.want.AllocatedByRange)) // nothing
			if diff := cmp.Diff(row.want, g.Usage(used)); diff != "" {
				t.Errorf("usage (-want +got):\n%s", diff)
			}
		})
	}
}

// TestCatalogIgnoresOrder checks that a verdict depends on no order of listing.
func TestCatalogIgnoresOrder(t *testing.T) {
	a := groupMadeAt(t, "a", time.Now().Unix(), "local: {pool: 10.0.0.1-10.0.0.5, subnet: 10.0.0.0/24}")
	b := groupMadeAt(t, "b", 1, "local: {pool: 10.0.0.5-10.0.0.9, subnet: 10.0.0.0/24}")
	one, two := allocation.NewCatalog([]v1.ServiceGroup{a, b}, namespace),
		allocation.NewCatalog([]v1.ServiceGroup{b, a}, namespace)
	for _, name := range []string{"a", "b"} {
		if one[name].Message != two[name].Message {
			t.Errorf("%s: %q or %q", name, one[name].Message, two[name].Message)
		}
	}
	if b := one["b"]; !b.IsReady() || one["a"].IsReady() {
		t.Error("the older group does not win")
	}
}
