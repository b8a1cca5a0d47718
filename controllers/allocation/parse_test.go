package allocation_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/yaml"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

const namespace = "purelb-system"

// group makes a ServiceGroup with the YAML text as its spec.
func group(t testing.TB, name, spec string) *v1.ServiceGroup {
	t.Helper()
	sg := &v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := yaml.UnmarshalStrict([]byte(spec), &sg.Spec); err != nil {
		t.Fatalf("%v in:\n%s", err, spec)
	}
	return sg
}

// parsedGroup parses a valid ServiceGroup.
func parsedGroup(t testing.TB, spec string) allocation.Group {
	t.Helper()
	g, _, errs := allocation.ParseGroup(group(t, "g", spec))
	if len(errs) > 0 {
		t.Fatalf("%v in:\n%s", errs, spec)
	}
	return g
}

// describe writes the ranges of a group as text: range, subnet, mask.
func describe(g *allocation.Group) []string {
	var out []string
	for _, r := range g.Ranges {
		out = append(out, r.String()+" in "+r.Subnet.String()+" "+netip.PrefixFrom(r.Addrs.From(), r.Mask).String())
	}
	return out
}

func texts(errs field.ErrorList) []string {
	var out []string
	for _, e := range errs {
		out = append(out, e.Error())
	}
	return out
}

func TestParseGroupAccepts(t *testing.T) {
	for _, row := range []struct {
		name, spec string
		ranges     []string
		warnings   []string
	}{
		{"CIDR", "local: {v4pools: [{pool: 10.0.0.16/28, subnet: 10.0.0.0/24}]}",
			[]string{"10.0.0.16-10.0.0.31 in 10.0.0.0/24 10.0.0.16/24"}, nil},
		{"range", "local: {v4pools: [{pool: 10.0.0.9-10.0.0.11, subnet: 10.0.0.0/24}]}",
			[]string{"10.0.0.9-10.0.0.11 in 10.0.0.0/24 10.0.0.9/24"}, nil},
		{"range of one", "local: {v4pools: [{pool: 10.0.0.9-10.0.0.9, subnet: 10.0.0.0/24}]}",
			[]string{"10.0.0.9-10.0.0.9 in 10.0.0.0/24 10.0.0.9/24"}, nil},
		{"range with spaces", "local: {v4pools: [{pool: 10.0.0.9 - 10.0.0.11, subnet: 10.0.0.0/24}]}",
			[]string{"10.0.0.9-10.0.0.11 in 10.0.0.0/24 10.0.0.9/24"}, nil},
		{"single address", "local: {v4pools: [{pool: 10.0.0.9, subnet: 10.0.0.0/24}]}",
			[]string{"10.0.0.9-10.0.0.9 in 10.0.0.0/24 10.0.0.9/24"}, nil},
		{"single IPv6 address", "remote: {v6pools: [{pool: 'FD00:0::9', subnet: 'fd00::/64'}]}",
			[]string{"fd00::9-fd00::9 in fd00::/64 fd00::9/64"}, nil},
		{"whole subnet", "local: {v4pools: [{pool: 10.0.0.0/24, subnet: 10.0.0.0/24}]}",
			[]string{"10.0.0.0-10.0.0.255 in 10.0.0.0/24 10.0.0.0/24"}, nil},
		{"host bits", "local: {v6pools: [{pool: 'fc00:270:154:0:8100::4/64', subnet: 'fc00:270:154::/64'}]}",
			[]string{"fc00:270:154:0:8100::4-fc00:270:154:0:ffff:ffff:ffff:ffff in fc00:270:154::/64 fc00:270:154:0:8100::4/64"},
			[]string{
				"spec.local.v6pools[0].pool: fc00:270:154:0:8100::4/64 has host bits: addresses are taken from " +
					"fc00:270:154:0:8100::4-fc00:270:154:0:ffff:ffff:ffff:ffff",
			}},
		{"IPv4 host bits", "local: {v4pool: {pool: 10.0.0.250/24, subnet: 10.0.0.0/24}}",
			[]string{"10.0.0.250-10.0.0.255 in 10.0.0.0/24 10.0.0.250/24"},
			[]string{"spec.local.v4pool.pool: 10.0.0.250/24 has host bits: addresses are taken from 10.0.0.250-10.0.0.255"}},

		{"aggregation default", "remote: {v4pools: [{pool: 10.0.0.9, subnet: 10.0.0.0/24, aggregation: default}]}",
			[]string{"10.0.0.9-10.0.0.9 in 10.0.0.0/24 10.0.0.9/24"}, nil},
		{"aggregation /32", "remote: {v4pools: [{pool: 10.0.0.9, subnet: 10.0.0.0/24, aggregation: /32}]}",
			[]string{"10.0.0.9-10.0.0.9 in 10.0.0.0/24 10.0.0.9/32"}, nil},
		{"aggregation /1, a supernet", "remote: {v4pools: [{pool: 10.0.0.9, subnet: 10.0.0.0/24, aggregation: /1}]}",
			[]string{"10.0.0.9-10.0.0.9 in 10.0.0.0/24 10.0.0.9/1"}, nil},
		{"aggregation /128", "remote: {v6pools: [{pool: 'fd00::9', subnet: 'fd00::/64', aggregation: /128}]}",
			[]string{"fd00::9-fd00::9 in fd00::/64 fd00::9/128"}, nil},

		{"order: IPv4 first, lists before single ones", `
local:
  v6pool: {pool: 'fd00:2::9', subnet: 'fd00:2::/64'}
  v6pools: [{pool: 'fd00:1::9', subnet: 'fd00:1::/64'}]
  v4pool: {pool: 10.0.3.9, subnet: 10.0.3.0/24}
  v4pools: [{pool: 10.0.2.9, subnet: 10.0.2.0/24}, {pool: 10.0.1.9, subnet: 10.0.1.0/24}]`,
			[]string{
				"10.0.2.9-10.0.2.9 in 10.0.2.0/24 10.0.2.9/24", "10.0.1.9-10.0.1.9 in 10.0.1.0/24 10.0.1.9/24",
				"10.0.3.9-10.0.3.9 in 10.0.3.0/24 10.0.3.9/24",
				"fd00:1::9-fd00:1::9 in fd00:1::/64 fd00:1::9/64", "fd00:2::9-fd00:2::9 in fd00:2::/64 fd00:2::9/64"}, nil},
		{"oldest form", "local: {pool: 192.168.151.240-192.168.151.250, subnet: 192.168.151.0/24, aggregation: default}",
			[]string{"192.168.151.240-192.168.151.250 in 192.168.151.0/24 192.168.151.240/24"}, nil},
		{"oldest form, IPv6", "remote: {pool: 'fd00::/126', subnet: 'fd00::/64', aggregation: /128}",
			[]string{"fd00::-fd00::3 in fd00::/64 fd00::/128"}, nil},
		{"oldest form of IPv4 beside IPv6",
			"local: {pool: 10.0.0.9, subnet: 10.0.0.0/24, v6pool: {pool: 'fd00::9', subnet: 'fd00::/64'}}",
			[]string{"10.0.0.9-10.0.0.9 in 10.0.0.0/24 10.0.0.9/24", "fd00::9-fd00::9 in fd00::/64 fd00::9/64"}, nil},
		{"oldest form of IPv6 beside IPv4",
			"local: {pool: 'fd00::9', subnet: 'fd00::/64', v4pool: {pool: 10.0.0.9, subnet: 10.0.0.0/24}}",
			[]string{"10.0.0.9-10.0.0.9 in 10.0.0.0/24 10.0.0.9/24", "fd00::9-fd00::9 in fd00::/64 fd00::9/64"}, nil},
		{"right beside what no Service can have",
			"remote: {v4pools: [{pool: 126.255.255.255, subnet: 126.0.0.0/8}, {pool: 128.0.0.0/31, subnet: 128.0.0.0/31}, " +
				"{pool: 223.255.255.255, subnet: 192.0.0.0/2}], v6pools: [{pool: '::2', subnet: '::/64'}, {pool: 'fec0::1', " +
				"subnet: 'fec0::/64'}]}",
			[]string{"126.255.255.255-126.255.255.255 in 126.0.0.0/8 126.255.255.255/8",
				"128.0.0.0-128.0.0.1 in 128.0.0.0/31 128.0.0.0/31",
				"223.255.255.255-223.255.255.255 in 192.0.0.0/2 223.255.255.255/2", "::2-::2 in ::/64 ::2/64",
				"fec0::1-fec0::1 in fec0::/64 fec0::1/64"}, nil},
		{"ranges that touch",
			"local: {v4pools: [{pool: 10.0.0.1-10.0.0.4, subnet: 10.0.0.0/24}, {pool: 10.0.0.5-10.0.0.9, subnet: 10.0.0.0/24}]}",
			[]string{"10.0.0.1-10.0.0.4 in 10.0.0.0/24 10.0.0.1/24", "10.0.0.5-10.0.0.9 in 10.0.0.0/24 10.0.0.5/24"}, nil},
		{"netbox", "netbox: {url: 'https://n', tenant: t, aggregation: /32, tokenSecretRef: {name: a, key: b}}", nil, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			g, warnings, errs := allocation.ParseGroup(group(t, "g", row.spec))
			if len(errs) > 0 {
				t.Fatalf("refused: %v", errs)
			}
			if diff := cmp.Diff(row.ranges, describe(&g)); diff != "" {
				t.Errorf("ranges (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(row.warnings, warnings); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseGroupSettings(t *testing.T) {
	pool := "pool: 10.0.0.9, subnet: 10.0.0.0/24"
	for _, row := range []struct {
		spec string
		want allocation.Group
	}{
		{"local: {" + pool + "}", allocation.Group{Type: v1.PoolTypeLocal}},
		{
			"local: {" + pool + ", skipIPv6DAD: true, multiPool: true}",
			allocation.Group{Type: v1.PoolTypeLocal, SkipIPv6DAD: true, MultiPool: true},
		},
		{"remote: {" + pool + ", balancePools: true}", allocation.Group{Type: v1.PoolTypeRemote, BalancePools: true}},
		{
			"remote: {" + pool + "}\nshareAcrossNamespaces: true",
			allocation.Group{Type: v1.PoolTypeRemote, ShareAcrossNamespaces: true},
		},
		{"local: {" + pool + "}\npolicyLocal: Override", allocation.Group{Type: v1.PoolTypeLocal}},
		{
			"local: {" + pool + "}\npolicyLocal: Allow",
			allocation.Group{Type: v1.PoolTypeLocal, PolicyLocal: v1.PolicyLocalAllow},
		},
		{"local: {" + pool + "}\nstickyFor: 1h", allocation.Group{Type: v1.PoolTypeLocal, StickyFor: time.Hour}},
		{"local: {" + pool + "}\nstickyFor: 0s", allocation.Group{Type: v1.PoolTypeLocal, StickyFor: -1}},
		{"netbox: {url: 'https://n', tenant: t, tokenSecretRef: {name: a, key: b}}",
			allocation.Group{Type: v1.PoolTypeNetbox, Netbox: &allocation.Netbox{
				URL: "https://n", TokenSecret: "a", TokenKey: "b", Tenant: "t",
				Sources: map[allocation.Family]allocation.NetboxSource{}, Status: "active",
				Masks: map[allocation.Family]int{allocation.IPv4: 0},
			}}},
	} {
		got := parsedGroup(t, row.spec)
		got.Ranges, row.want.Name = nil, "g"
		if row.want.PolicyLocal == "" {
			row.want.PolicyLocal = v1.PolicyLocalOverride
		}
		switch {
		case row.want.StickyFor < 0:
			row.want.StickyFor = 0
		case row.want.StickyFor == 0 && row.want.Type != v1.PoolTypeNetbox:
			row.want.StickyFor = 5 * time.Minute
		}
		if diff := cmp.Diff(row.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.spec, diff)
		}
	}
}

func TestParseGroupRefuses(t *testing.T) {
	pools4 := func(pool, subnet string) string {
		return "local: {v4pools: [{pool: '" + pool + "', subnet: '" + subnet + "'}]}"
	}
	pools6 := func(pool, subnet string) string {
		return strings.Replace(pools4(pool, subnet), "v4pools", "v6pools", 1)
	}
	aggregation := func(family, value string) string {
		if family == "v4pools" {
			return "remote: {v4pools: [{pool: 10.0.0.9, subnet: 10.0.0.0/24, aggregation: '" + value + "'}]}"
		}
		return "remote: {v6pools: [{pool: 'fd00::9', subnet: 'fd00::/64', aggregation: '" + value + "'}]}"
	}
	unusable := func(path, addrs, block string) []string {
		return []string{path + ": range " + addrs + " has addresses of " + block + ", which no Service can have"}
	}
	const notPool = "must be a CIDR, a range first-last, or one address"
	const masks4, masks6 = `must be "default" or a mask from /1 to /32`, `must be "default" or a mask from /1 to /128`
	const first4, first6 = "spec.local.v4pools[0].pool", "spec.local.v6pools[0].pool"

	for _, row := range []struct {
		name, spec string
		errs       []string // path and the end of the text
	}{
		{"nothing", "{}", []string{"spec: exactly one of local, remote and netbox must be set"}},
		{"two", "local: {pool: 10.0.0.9, subnet: 10.0.0.0/24}\nremote: {pool: 10.0.1.9, subnet: 10.0.1.0/24}",
			[]string{"spec: exactly one of local, remote and netbox must be set"}},
		{
			"no pool", "local: {}",
			[]string{"spec.local: at least one pool is needed: v4pools, v6pools, v4pool, v6pool, or pool with subnet"},
		},
		{"multiPool and balancePools", "local: {pool: 10.0.0.9, subnet: 10.0.0.0/24, multiPool: true, balancePools: true}",
			[]string{"spec.local.balancePools: multiPool and balancePools exclude each other"}},

		{"ends before it starts, by its network", pools4("172.32.100.225-172.30.100.229", "172.32.100.0/24"),
			[]string{
				first4 + ": ends (172.30.100.229) before it starts (172.32.100.225); did you mean 172.32.100.225-172.32.100.229?",
			}},
		{"ends before it starts, swapped", pools4("10.0.0.9-10.0.0.3", "10.0.0.0/24"),
			[]string{first4 + ": ends (10.0.0.3) before it starts (10.0.0.9); did you mean 10.0.0.3-10.0.0.9?"}},
		{"ends before it starts, nowhere near", pools4("10.0.9.9-10.0.3.3", "10.0.0.0/24"),
			[]string{first4 + ": ends (10.0.3.3) before it starts (10.0.9.9)"}},
		{"ends before it starts, odd prefix", pools4("10.0.5.200-10.0.1.201", "10.0.4.0/22"),
			[]string{first4 + ": ends (10.0.1.201) before it starts (10.0.5.200); did you mean 10.0.5.200-10.0.5.201?"}},
		{"IPv6 ends before it starts", pools6("fd00:2::9-fd00:1::f", "fd00:2::/64"),
			[]string{first6 + ": ends (fd00:1::f) before it starts (fd00:2::9); did you mean fd00:2::9-fd00:2::f?"}},

		{
			"starts outside", pools4("10.0.1.9-10.0.1.11", "10.0.0.0/24"),
			[]string{first4 + ": 10.0.1.9 is outside subnet 10.0.0.0/24"},
		},
		{
			"ends outside", pools4("10.0.0.9-10.0.1.11", "10.0.0.0/24"),
			[]string{first4 + ": 10.0.1.11 is outside subnet 10.0.0.0/24"},
		},
		{
			"CIDR wider than subnet", pools4("10.0.0.0/23", "10.0.0.0/24"),
			[]string{first4 + ": 10.0.1.255 is outside subnet 10.0.0.0/24"},
		},
		{"single outside", pools6("fd00:1::1", "fd00::/64"), []string{first6 + ": fd00:1::1 is outside subnet fd00::/64"}},

		{
			"families of pool and subnet", pools4("fd00::1", "10.0.0.0/24"),
			[]string{first4 + ": fd00::1 is not of the same family as subnet 10.0.0.0/24"},
		},
		{
			"families of the ends", pools4("10.0.0.1-fd00::1", "10.0.0.0/24"),
			[]string{first4 + ": 10.0.0.1 and fd00::1 are of different families"},
		},
		{
			"IPv6 subnet among IPv4", pools4("fd00::1", "fd00::/64"),
			[]string{"spec.local.v4pools[0].subnet: must be an IPv4 subnet"},
		},
		{
			"IPv4 subnet as v6pool", "local: {v6pool: {pool: 10.0.0.1, subnet: 10.0.0.0/24}}",
			[]string{"spec.local.v6pool.subnet: must be an IPv6 subnet"},
		},

		{"nonsense", pools4("some", "10.0.0.0/24"), []string{first4 + ": " + notPool}},
		{"empty", pools4("", "10.0.0.0/24"), []string{first4 + ": " + notPool}},
		{"octet out of range", pools4("10.0.0.256", "10.0.0.0/24"), []string{first4 + ": " + notPool}},
		{"prefix out of range", pools4("10.0.0.0/33", "10.0.0.0/24"), []string{first4 + ": " + notPool}},
		{"half a range", pools4("10.0.0.1-", "10.0.0.0/24"), []string{first4 + `: "", after the dash, is not an address`}},
		{"other half", pools4("-10.0.0.1", "10.0.0.0/24"), []string{first4 + `: "", before the dash, is not an address`}},
		{
			"last octet only", pools4("10.0.0.1-9", "10.0.0.0/24"),
			[]string{first4 + `: "9", after the dash, is not an address`},
		},
		{
			"three ends", pools4("10.0.0.1-10.0.0.2-10.0.0.3", "10.0.0.0/24"),
			[]string{first4 + `: "10.0.0.2-10.0.0.3", after the dash, is not an address`},
		},
		{"two CIDRs", pools4("10.0.0.0/28-10.0.0.9/28", "10.0.0.0/24"), []string{first4 + ": " + notPool}},
		{"a zone", pools6("fe80::1%eth0", "fe80::/64"), []string{first6 + ": fe80::1%eth0 has a zone"}},
		{
			"zones in a range", pools6("fe80::1%eth0-fe80::9%eth0", "fe80::/64"), []string{first6 + ": fe80::1%eth0 has a zone"},
		},

		{
			"IPv4-mapped", pools6("::ffff:10.0.0.1", "fd00::/64"),
			[]string{first6 + ": ::ffff:10.0.0.1 is an IPv4-mapped IPv6 address; write it as 10.0.0.1"},
		},
		{
			"IPv4-mapped range", pools6("::ffff:10.0.0.1-::ffff:10.0.0.9", "fd00::/64"),
			[]string{first6 + ": ::ffff:10.0.0.1 is an IPv4-mapped IPv6 address; write it as 10.0.0.1"},
		},
		{
			"IPv4-mapped CIDR", pools6("::ffff:10.0.0.0/120", "fd00::/64"),
			[]string{first6 + ": ::ffff:10.0.0.0 is an IPv4-mapped IPv6 address; write it as 10.0.0.0"},
		},
		{
			"IPv4-mapped subnet", pools6("::ffff:10.0.0.1", "::ffff:10.0.0.0/120"),
			[]string{"spec.local.v6pools[0].subnet: must not be an IPv4-mapped IPv6 subnet"},
		},

		{
			"this network", pools4("0.0.0.0/8", "0.0.0.0/8"),
			unusable(first4, "0.0.0.0-0.255.255.255", "0.0.0.0/8 (this network)"),
		},
		{"loopback", pools4("127.0.0.1", "127.0.0.0/24"), unusable(first4, "127.0.0.1-127.0.0.1", "127.0.0.0/8 (loopback)")},
		{
			"link-local", pools4("169.254.0.0/16", "169.254.0.0/16"),
			unusable(first4, "169.254.0.0-169.254.255.255", "169.254.0.0/16 (link-local)"),
		},
		{
			"around link-local", pools4("168.0.0.0-170.0.0.0", "160.0.0.0/4"),
			unusable(first4, "168.0.0.0-170.0.0.0", "169.254.0.0/16 (link-local)"),
		},
		{
			"into multicast", pools4("223.255.255.254-224.0.0.0", "192.0.0.0/2"),
			unusable(first4, "223.255.255.254-224.0.0.0", "224.0.0.0/4 (multicast)"),
		},
		{
			"multicast", pools4("239.255.255.255", "239.255.255.0/24"),
			unusable(first4, "239.255.255.255-239.255.255.255", "224.0.0.0/4 (multicast)"),
		},
		{"reserved", pools4("240.0.0.1", "240.0.0.0/4"), unusable(first4, "240.0.0.1-240.0.0.1", "240.0.0.0/4 (reserved)")},
		{
			"broadcast", pools4("255.255.255.255", "255.255.255.255/32"),
			unusable(first4, "255.255.255.255-255.255.255.255", "240.0.0.0/4 (reserved)"),
		},
		{
			"half of IPv6", pools6("::/1", "::/1"),
			unusable(first6, "::-7fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "::/128 (unspecified)"),
		},
		{"IPv6 loopback", pools6("::1-::9", "::/64"), unusable(first6, "::1-::9", "::1/128 (loopback)")},
		{
			"around IPv4-mapped", pools6("::2-::1:0:0:0", "::/32"),
			unusable(first6, "::2-::1:0:0:0", "::ffff:0.0.0.0/96 (IPv4-mapped)"),
		},
		{"IPv6 link-local", pools6("fe80::1", "fe80::/64"), unusable(first6, "fe80::1-fe80::1", "fe80::/10 (link-local)")},
		{
			"the last of link-local", pools6("febf:ffff::-febf:ffff::1", "febf:ffff::/64"),
			unusable(first6, "febf:ffff::-febf:ffff::1", "fe80::/10 (link-local)"),
		},
		{"IPv6 multicast", pools6("ff02::1", "ff02::/16"), unusable(first6, "ff02::1-ff02::1", "ff00::/8 (multicast)")},
		{
			"oldest form", "remote: {pool: 127.0.0.1, subnet: 127.0.0.0/8}",
			unusable("spec.remote.pool", "127.0.0.1-127.0.0.1", "127.0.0.0/8 (loopback)"),
		},

		{
			"subnet with host bits", pools4("10.0.0.9", "10.0.0.7/24"),
			[]string{"spec.local.v4pools[0].subnet: has bits set beyond its prefix length; did you mean 10.0.0.0/24?"},
		},
		{
			"subnet of everything", pools4("10.0.0.9", "0.0.0.0/0"),
			[]string{"spec.local.v4pools[0].subnet: must not be all addresses of a family"},
		},
		{
			"subnet is an address", pools4("10.0.0.9", "10.0.0.0"),
			[]string{"spec.local.v4pools[0].subnet: must be a subnet in CIDR form, such as 192.168.1.0/24 or fd00:1::/64"},
		},
		{
			"oldest subnet with host bits", "local: {pool: 10.0.0.9, subnet: 10.0.0.7/24}",
			[]string{"spec.local.subnet: has bits set beyond its prefix length; did you mean 10.0.0.0/24?"},
		},
		{
			"oldest pool outside", "local: {pool: 10.0.1.9, subnet: 10.0.0.0/24}",
			[]string{"spec.local.pool: 10.0.1.9 is outside subnet 10.0.0.0/24"},
		},

		{"aggregation /33", aggregation("v4pools", "/33"), []string{"spec.remote.v4pools[0].aggregation: " + masks4}},
		{"aggregation 24", aggregation("v4pools", "24"), []string{"spec.remote.v4pools[0].aggregation: " + masks4}},
		{"aggregation /0", aggregation("v4pools", "/0"), []string{"spec.remote.v4pools[0].aggregation: " + masks4}},
		{"aggregation Default", aggregation("v4pools", "Default"), []string{"spec.remote.v4pools[0].aggregation: " + masks4}},
		{"aggregation /024", aggregation("v4pools", "/024"), []string{"spec.remote.v4pools[0].aggregation: " + masks4}},
		{"aggregation /+24", aggregation("v4pools", "/+24"), []string{"spec.remote.v4pools[0].aggregation: " + masks4}},
		{"aggregation /-1", aggregation("v4pools", "/-1"), []string{"spec.remote.v4pools[0].aggregation: " + masks4}},
		{"aggregation /129", aggregation("v6pools", "/129"), []string{"spec.remote.v6pools[0].aggregation: " + masks6}},
		{
			"oldest aggregation", "remote: {pool: 10.0.0.9, subnet: 10.0.0.0/24, aggregation: /64}",
			[]string{"spec.remote.aggregation: " + masks4},
		},
		{
			"netbox aggregation", "netbox: {url: 'https://n', tenant: t, aggregation: /0, tokenSecretRef: {name: a, key: b}}",
			[]string{"spec.netbox.aggregation: " + masks6},
		},

		{"equal ranges", "local: {v4pools: [{pool: 10.0.0.8/29, subnet: 10.0.0.0/24}, {pool: 10.0.0.8-10.0.0.15, subnet: " +
			"10.0.0.0/24}]}",
			[]string{
				"spec.local.v4pools[1].pool: range 10.0.0.8-10.0.0.15 overlaps range 10.0.0.8-10.0.0.15 of the same group",
			}},
		{"nested ranges", "local: {v4pools: [{pool: 10.0.0.8/29, subnet: 10.0.0.0/24}, {pool: 10.0.0.9, subnet: " +
			"10.0.0.0/24}]}",
			[]string{"spec.local.v4pools[1].pool: range 10.0.0.9-10.0.0.9 overlaps range 10.0.0.8-10.0.0.15 of the same group"}},
		{"nested, the other order",
			"local: {v4pools: [{pool: 10.0.0.9, subnet: 10.0.0.0/24}, {pool: 10.0.0.8/29, subnet: 10.0.0.0/24}]}",
			[]string{"spec.local.v4pools[1].pool: range 10.0.0.8-10.0.0.15 overlaps range 10.0.0.9-10.0.0.9 of the same group"}},
		{"overlap of list and single",
			"local: {v4pools: [{pool: 10.0.0.8/29, subnet: 10.0.0.0/24}], v4pool: {pool: 10.0.0.15-10.0.0.20, subnet: " +
				"10.0.0.0/24}}",
			[]string{"spec.local.v4pool.pool: range 10.0.0.15-10.0.0.20 overlaps range 10.0.0.8-10.0.0.15 of the same group"}},
		{"oldest form beside a list",
			"local: {pool: 10.0.0.9, subnet: 10.0.0.0/24, v4pools: [{pool: 10.0.1.9, subnet: 10.0.1.0/24}]}",
			[]string{"spec.local.pool: the group has IPv4 ranges in another form already: move this one into the list"}},
		{"oldest form beside a single one",
			"local: {pool: 'fd00::9', subnet: 'fd00::/64', v6pool: {pool: 'fd01::9', subnet: 'fd01::/64'}}",
			[]string{"spec.local.pool: the group has IPv6 ranges in another form already: move this one into the list"}},

		{"everything at once", `
remote:
  v4pools: [{pool: x, subnet: 10.0.0.0/24, aggregation: /40}, {pool: 10.0.0.9, subnet: 10.0.0.1/24}]
  v6pool: {pool: 'fd00::9', subnet: 'fd01::/64'}`,
			[]string{"spec.remote.v4pools[0].aggregation: " + masks4, "spec.remote.v4pools[0].pool: " + notPool,
				"spec.remote.v4pools[1].subnet: has bits set beyond its prefix length; did you mean 10.0.0.0/24?",
				"spec.remote.v6pool.pool: fd00::9 is outside subnet fd01::/64"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, _, errs := allocation.ParseGroup(group(t, "g", row.spec))
			var got []string
			for _, e := range errs {
				got = append(got, e.Field+": "+e.Detail)
			}
			if diff := cmp.Diff(row.errs, got); diff != "" {
				t.Errorf("errors (-want +got):\n%s", diff)
			}
		})
	}
}

// TestParseSeeds parses the manifests of the documentation.
func TestParseSeeds(t *testing.T) {
	const dir = "../../api/v1/testdata/seeds"
	for file, want := range map[string]struct {
		ranges, warnings, errs []string
	}{
		"virtual-purelb.yaml": {errs: []string{
			`spec.local.v4pools[0].pool: Invalid value: "172.32.100.225-172.30.100.229": ends (172.30.100.229) before it ` +
				`starts (172.32.100.225); did you mean 172.32.100.225-172.32.100.229?`}},
		"virtual-purelb-system.yaml": {errs: []string{
			`spec.local.v4pools[0].pool: Invalid value: "172.32.100.225-172.30.100.229": ends (172.30.100.229) before it ` +
				`starts (172.32.100.225); did you mean 172.32.100.225-172.32.100.229?`}},
		"overview.yaml": {
			ranges: []string{
				"192.168.10.240-192.168.10.243 in 192.168.10.0/24 192.168.10.240/24",
				"fc00:270:154:0:8100::4-fc00:270:154:0:ffff:ffff:ffff:ffff in fc00:270:154::/64 fc00:270:154:0:8100::4/64"},
			warnings: []string{
				"spec.local.v6pools[0].pool: fc00:270:154:0:8100::4/64 has host bits: addresses are taken from " +
					"fc00:270:154:0:8100::4-fc00:270:154:0:ffff:ffff:ffff:ffff",
			}},
		"local.yaml": {errs: []string{`spec: Invalid value: 0: exactly one of local, remote and netbox must be set`}},
	} {
		t.Run(file, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil {
				t.Fatal(err)
			}
			sg := &v1.ServiceGroup{}
			if err := yaml.Unmarshal(text, sg); err != nil {
				t.Fatal(err)
			}
			g, warnings, errs := allocation.ParseGroup(sg)
			if diff := cmp.Diff(want.errs, texts(errs)); diff != "" {
				t.Errorf("errors (-want +got):\n%s", diff)
			}
			if len(want.errs) > 0 {
				return
			}
			if diff := cmp.Diff(want.ranges, describe(&g)); diff != "" {
				t.Errorf("ranges (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(want.warnings, warnings); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
}

// FuzzParseGroup checks that whatever the parser accepts makes sense.
func FuzzParseGroup(f *testing.F) {
	for _, seed := range [][3]string{
		{"10.0.0.0/28", "10.0.0.0/24", "/32"}, {"10.0.0.9-10.0.0.12", "10.0.0.0/24", "default"}, {
			"10.0.0.9", "10.0.0.8/31", "",
		},
		{"fc00:270:154:0:8100::4/64", "fc00:270:154::/64", "/128"}, {
			"172.32.100.225-172.30.100.229", "172.32.100.0/24", "/32",
		},
		{"::/0", "::/0", "/1"}, {"0.0.0.0/0", "0.0.0.0/0", "/0"}, {"::ffff:10.0.0.1", "::/0", ""}, {
			"fe80::1%x-fe80::2%y", "fe80::/10", "",
		},
		{"255.255.255.255", "255.255.255.255/32", "/32"}, {"::/1", "::/1", ""}, {"126.0.0.1-128.0.0.1", "96.0.0.0/2", "/8"}, {
			"-", "1.1.1.1/1", "x",
		}, {"ffff::-::", "::/0", ""}, {"1.1.1.1/024", "1.1.1.0/24", "/+1"},
	} {
		f.Add(seed[0], seed[1], seed[2], uint8(0))
	}
	f.Fuzz(func(t *testing.T, pool, subnet, aggregation string, form uint8) {
		p := v1.AddressPool{Pool: pool, Subnet: subnet, Aggregation: v1.Aggregation(aggregation)}
		var set v1.PoolSet
		switch form % 5 {
		case 0:
			set.V4Pools = []v1.AddressPool{p}
		case 1:
			set.V6Pools = []v1.AddressPool{p}
		case 2:
			set.V4Pool = &p
		case 3:
			set.V6Pool = &p
		case 4:
			set.Pool, set.Subnet, set.Aggregation = p.Pool, p.Subnet, p.Aggregation
		}
		g, _, errs := allocation.ParseGroup(&v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Name: v1.DefaultServiceGroup},
			Spec: v1.ServiceGroupSpec{Remote: &v1.RemotePools{PoolSet: set}}})
		if len(errs) > 0 {
			for _, e := range errs {
				if e.Field == "" || e.Detail == "" {
					t.Errorf("an error without field or text: %v", e)
				}
			}
			return
		}
		if pool != "" && len(g.Ranges) != 1 {
			t.Fatalf("accepted with %d ranges", len(g.Ranges))
		}
		for _, r := range g.Ranges {
			from, to := r.Addrs.From(), r.Addrs.To()
			switch {
			case !from.IsValid() || !to.IsValid() || to.Less(from):
				t.Errorf("range %v", r)
			case !r.Subnet.IsValid() || r.Subnet != r.Subnet.Masked() || !r.Subnet.Contains(from) || !r.Subnet.Contains(to):
				t.Errorf("range %v is not in subnet %v", r, r.Subnet)
			case from.Zone() != "" || from.Is4In6() || to.Is4In6():
				t.Errorf("range %v", r)
			case r.Mask < 1 || r.Mask > from.BitLen():
				t.Errorf("mask %d", r.Mask)
			case r.Capacity() < 0:
				t.Errorf("capacity %d", r.Capacity())
			}
			result := allocation.Allocate(&allocation.Request{Families: []allocation.Family{r.Family()}},
				&allocation.Inputs{
					Catalog: allocation.Catalog{v1.DefaultServiceGroup: {Group: g, Reason: v1.ReasonAccepted}},
					InUse:   allocation.NewInUse(),
				})
			if got := len(result.Addresses); (got == 1) != (r.Capacity() > 0) {
				t.Errorf("capacity %d, but %d addresses were allocated", r.Capacity(), got)
			}
			for _, a := range result.Addresses {
				if a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast() || a.Is4In6() {
					t.Errorf("allocated %s, which no Service can have", a)
				}
				if !r.Addrs.Contains(a) ||
					!slices.Contains([]string{string(allocation.IPv4), string(allocation.IPv6)}, string(allocation.FamilyOf(a))) {
					t.Errorf("allocated %s from %s", a, r)
				}
			}
		}
	})
}
