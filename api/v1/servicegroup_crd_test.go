package v1_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// repeat writes a line of YAML n times, with %d counting up from 0.
func repeat(n int, line string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, line+"\n", i)
	}
	return b.String()
}

func TestServiceGroupRules(t *testing.T) {
	connect(t)
	const (
		one      = "exactly one of local, remote and netbox must be set"
		nest     = "nest them under spec.local"
		notCIDR  = "must be a subnet in CIDR form, such as 192.168.1.0/24"
		mask     = `must be "default" or a mask from /1 to /32 for IPv4 or /1 to /128 for IPv6`
		empty    = "at least one pool is needed"
		together = "pool and subnet go together"
	)
	v4 := func(pool, subnet, more string) string {
		return fmt.Sprintf("local:\n  v4pools:\n  - pool: %q\n    subnet: %q\n    %s\n", pool, subnet, more)
	}
	v6 := func(pool, subnet, more string) string {
		return strings.Replace(v4(pool, subnet, more), "v4pools", "v6pools", 1)
	}
	netbox := func(line string) string {
		fields := map[string]string{
			"url": "https://netbox.example", "tenant": "lab", "aggregation": "default",
			"tokenSecretRef": "{name: token, key: token}",
		}
		name, value, _ := strings.Cut(line, ": ")
		delete(fields, name)
		if value != "" {
			fields[name] = value
		}
		var b strings.Builder
		b.WriteString("netbox:\n")
		for n, v := range fields {
			fmt.Fprintf(&b, "  %s: %s\n", n, v)
		}
		return b.String()
	}

	one4 := v4("10.0.0.1", "10.0.0.0/24", "")
	for _, row := range []struct {
		name, spec string
		refused    []cause
	}{
		// Kinds of a group.
		{"nothing", "{}", []cause{{"spec", one}}},
		{
			"local and remote", v4("10.0.0.1", "10.0.0.0/24", "") + "remote: {pool: 10.1.0.1, subnet: 10.1.0.0/24}",
			[]cause{{"spec", one}},
		},
		{"local and netbox", v4("10.0.0.1", "10.0.0.0/24", "") + netbox(""), []cause{{"spec", one}}},
		{
			"all three", v4("10.0.0.1", "10.0.0.0/24", "") + "remote: {pool: 10.1.0.1, subnet: 10.1.0.0/24}\n" + netbox(""),
			[]cause{{"spec", one}},
		},
		{"stickyFor", one4 + "stickyFor: 1h30m", nil},
		{"stickyFor nothing", one4 + "stickyFor: 0s", nil},
		{"stickyFor too long", one4 + "stickyFor: 24h1s", []cause{{"spec.stickyFor", "must be from 0s to 24h"}}},
		{"stickyFor less than nothing", one4 + "stickyFor: -1s", []cause{{"spec.stickyFor", "must be from 0s to 24h"}}},
		{"stickyFor no duration", one4 + "stickyFor: 5", []cause{{"spec.stickyFor", "must be of type string"}}},
		{
			"stickyFor of NetBox", netbox("") + "stickyFor: 5m",
			[]cause{{"spec.stickyFor", "NetBox allocates the addresses of the group, and gets those of deleted Services back"}},
		},
		{
			"preferredNodes",
			one4 + "preferredNodes: [{weight: 100, nodeSelector: {matchLabels: {a: b}}}, {weight: 1, nodeSelector: {}}]", nil,
		},
		{
			"preferredNodes of NetBox", netbox("") + "preferredNodes: [{weight: 1, nodeSelector: {}}]\ntopologyKey: rack", nil,
		},
		{"no preferredNodes", one4 + "preferredNodes: []", []cause{{"spec.preferredNodes", "at least 1 item"}}},
		{
			"17 preferredNodes",
			one4 + "preferredNodes:\n" + repeat(17, "- {weight: 1, nodeSelector: {matchLabels: {a: 'v%d'}}}"),
			[]cause{{"spec.preferredNodes", "16"}},
		},
		{
			"preferredNodes without weight", one4 + "preferredNodes: [{nodeSelector: {}}]",
			[]cause{{"spec.preferredNodes[0].weight", "Required value"}},
		},
		{
			"preferredNodes of no weight", one4 + "preferredNodes: [{weight: 0, nodeSelector: {}}]",
			[]cause{{"spec.preferredNodes[0].weight", "greater than or equal to 1"}},
		},
		{
			"preferredNodes of too much weight", one4 + "preferredNodes: [{weight: 101, nodeSelector: {}}]",
			[]cause{{"spec.preferredNodes[0].weight", "less than or equal to 100"}},
		},
		{
			"preferredNodes without selector", one4 + "preferredNodes: [{weight: 1}]",
			[]cause{{"spec.preferredNodes[0].nodeSelector", "Required value"}},
		},
		{
			"preferredNodes of Virtual addresses",
			"remote: {pool: 10.1.0.1, subnet: 10.1.0.0/24}\npreferredNodes: [{weight: 1, nodeSelector: {}}]",
			[]cause{{"spec.preferredNodes", "addresses of remote pools are Virtual: all nodes have them"}},
		},
		{"topologyKey", one4 + "topologyKey: topology.kubernetes.io/zone", nil},
		{
			"topologyKey of Virtual addresses", "remote: {pool: 10.1.0.1, subnet: 10.1.0.0/24}\ntopologyKey: rack",
			[]cause{{"spec.topologyKey", "addresses of remote pools are Virtual: all nodes have them"}},
		},
		{"topologyKey of nothing", one4 + "topologyKey: ''", []cause{{"spec.topologyKey", "at least 1"}}},
		{"shareAcrossNamespaces", v4("10.0.0.1", "10.0.0.0/24", "") + "shareAcrossNamespaces: true", nil},
		{"shareAcrossNamespaces as text", v4("10.0.0.1", "10.0.0.0/24", "") + "shareAcrossNamespaces: 'yes'",
			[]cause{{"spec.shareAcrossNamespaces", "must be of type boolean"}}},
		{"policyLocal Override", v4("10.0.0.1", "10.0.0.0/24", "") + "policyLocal: Override", nil},
		{"policyLocal Allow", v4("10.0.0.1", "10.0.0.0/24", "") + "policyLocal: Allow", nil},
		{"policyLocal in small letters", v4("10.0.0.1", "10.0.0.0/24", "") + "policyLocal: allow",
			[]cause{{"spec.policyLocal", `Unsupported value: "allow": supported values: "Override", "Allow"`}}},
		{"advertisedBy Speakers", v4("10.0.0.1", "10.0.0.0/24", "") + "advertisedBy: Speakers", nil},
		{"advertisedBy External", v4("10.0.0.1", "10.0.0.0/24", "") + "advertisedBy: External", nil},
		{"advertisedBy another", v4("10.0.0.1", "10.0.0.0/24", "") + "advertisedBy: bird",
			[]cause{{"spec.advertisedBy", `Unsupported value: "bird": supported values: "Speakers", "External"`}}},

		// Which namespaces a group selects, which Services it serves unasked, and what it reserves.
		{"allowedNamespaces All", one4 + "allowedNamespaces: {from: All}", nil},
		{"allowedNamespaces of nothing", one4 + "allowedNamespaces: {}", nil},
		{"allowedNamespaces Selector", one4 + "allowedNamespaces: {from: Selector, selector: {matchLabels: {a: b}}}", nil},
		{"allowedNamespaces, all by a selector", one4 + "allowedNamespaces: {from: Selector, selector: {}}", nil},
		{
			"allowedNamespaces Same", one4 + "allowedNamespaces: {from: Same}",
			[]cause{{"spec.allowedNamespaces.from", `Unsupported value: "Same": supported values: "All", "Selector"`}},
		},
		{
			"Selector without selector", one4 + "allowedNamespaces: {from: Selector}",
			[]cause{{"spec.allowedNamespaces.selector", "from: Selector needs a selector; {} selects all namespaces"}},
		},
		{
			"selector with All", one4 + "allowedNamespaces: {from: All, selector: {}}",
			[]cause{{"spec.allowedNamespaces.from", "selector counts only with from: Selector"}},
		},
		{
			"selector alone", one4 + "allowedNamespaces: {selector: {}}",
			[]cause{{"spec.allowedNamespaces.from", "selector counts only with from: Selector"}},
		},
		{"autoAssign", one4 + "autoAssign: false", nil},
		{"autoAssign as text", one4 + "autoAssign: 'no'", []cause{{"spec.autoAssign", "must be of type boolean"}}},
		{"reserved", one4 + "reservations: [{address: 10.0.0.1, service: a/b}, {address: 'fd00::1', service: a1/b-2}]", nil},
		{"nothing reserved", one4 + "reservations: []", []cause{{"spec.reservations", "at least 1 item"}}},
		{"256 reserved", one4 + "reservations:\n" + repeat(256, "- {address: 10.0.0.%d, service: a/b}"), nil},
		{
			"257 reserved", one4 + "reservations:\n" + repeat(257, "- {address: 'fd00::%x', service: a/b}"),
			[]cause{{"spec.reservations", "256"}},
		},
		{
			"reserved twice", one4 + "reservations: [{address: 10.0.0.1, service: a/b}, {address: 10.0.0.1, service: a/c}]",
			[]cause{{"spec.reservations[1]", "Duplicate value"}},
		},
		{
			"reserved, no address", one4 + "reservations: [{address: ten, service: a/b}]",
			[]cause{{"spec.reservations[0].address", "must be an IP address"}},
		},
		{
			"reserved, a mapped address", one4 + "reservations: [{address: '::ffff:10.0.0.1', service: a/b}]",
			[]cause{{"spec.reservations[0].address", "must be an IP address"}},
		},
		{"reserved for a Service without namespace", one4 + "reservations: [{address: 10.0.0.1, service: web}]",
			[]cause{{"spec.reservations[0].service", "must be the namespace and the name of a Service, such as team-a/web"}}},
		{
			"reserved for three parts", one4 + "reservations: [{address: 10.0.0.1, service: a/b/c}]",
			[]cause{{"spec.reservations[0].service", "must be the namespace and the name"}},
		},
		{
			"reserved for nobody", one4 + "reservations: [{address: 10.0.0.1}]",
			[]cause{{"spec.reservations[0].service", "Required"}},
		},
		{
			"reserved in NetBox", netbox("") + "reservations: [{address: 10.0.0.1, service: a/b}]",
			[]cause{{"spec.reservations", "NetBox allocates the addresses of the group: reserve them there"}},
		},
		{
			"allowedNamespaces of NetBox", netbox("") + "allowedNamespaces: {from: Selector, selector: {matchLabels: {a: b}}}",
			nil,
		},

		// What belongs below.
		{"pool under spec", "{pool: 10.0.0.1, subnet: 10.0.0.0/24}", []cause{{"spec", one}, {"spec", nest}}},
		{"pool beside local", v4("10.0.0.1", "10.0.0.0/24", "") + "pool: 10.0.0.1", []cause{{"spec", nest}}},
		{"subnet beside local", v4("10.0.0.1", "10.0.0.0/24", "") + "subnet: 10.0.0.0/24", []cause{{"spec", nest}}},
		{"aggregation beside local", v4("10.0.0.1", "10.0.0.0/24", "") + "aggregation: default", []cause{{"spec", nest}}},
		{"a long pool under spec", v4("10.0.0.1", "10.0.0.0/24", "") + "pool: " + strings.Repeat("a", 97),
			[]cause{{"spec.pool", "96"}}},
		{"a long subnet under spec", v4("10.0.0.1", "10.0.0.0/24", "") + "subnet: " + strings.Repeat("a", 44),
			[]cause{{"spec.subnet", "43"}}},
		{"a long aggregation under spec", v4("10.0.0.1", "10.0.0.0/24", "") + "aggregation: " + strings.Repeat("a", 8),
			[]cause{{"spec.aggregation", "7"}}},

		// No pools.
		{"empty local", "local: {}", []cause{{"spec.local", empty}}},
		{"empty remote", "remote: {}", []cause{{"spec.remote", empty}}},
		{"only a boolean", "local: {multiPool: true}", []cause{{"spec.local", empty}}},
		{"empty list", "local: {v4pools: []}", []cause{{"spec.local.v4pools", "at least 1 item"}}},
		{"64 ranges of each family",
			"local:\n  v4pools:\n" + repeat(64, "  - {pool: 10.0.%[1]d.1, subnet: 10.0.%[1]d.0/24}") +
				"  v6pools:\n" + repeat(64, "  - {pool: 'fd00:%[1]d::1', subnet: 'fd00:%[1]d::/64'}"), nil},
		{"65 IPv4 ranges", "local:\n  v4pools:\n" + repeat(65, "  - {pool: 10.0.%[1]d.1, subnet: 10.0.%[1]d.0/24}"),
			[]cause{{"spec.local.v4pools", "64"}}},
		{"65 IPv6 ranges", "remote:\n  v6pools:\n" + repeat(65, "  - {pool: 'fd00:%[1]d::1', subnet: 'fd00:%[1]d::/64'}"),
			[]cause{{"spec.remote.v6pools", "64"}}},

		// Every form.
		{"lists", v4("10.0.0.0/28", "10.0.0.0/24", "aggregation: /32"), nil},
		{"IPv6 list", v6("fd00::1-fd00::9", "fd00::/64", "aggregation: /128"), nil},
		{
			"single ones",
			"local: {v4pool: {pool: 10.0.0.1, subnet: 10.0.0.0/24}, v6pool: {pool: 'fd00::1', subnet: 'fd00::/64', " +
				"aggregation: /128}}",
			nil,
		},
		{
			"list and single",
			"local: {v4pools: [{pool: 10.0.1.1, subnet: 10.0.1.0/24}], v4pool: {pool: 10.0.0.1, subnet: 10.0.0.0/24}}", nil,
		},
		{"oldest form, IPv4", "local: {pool: 10.0.0.1, subnet: 10.0.0.0/24, aggregation: default}", nil},
		{"oldest form, IPv6", "remote: {pool: 'fd00::1', subnet: 'fd00::/64', aggregation: /128}", nil},
		{
			"oldest form beside the other family",
			"local: {pool: 10.0.0.1, subnet: 10.0.0.0/24, v6pool: {pool: 'fd00::1', subnet: 'fd00::/64'}}", nil,
		},
		{"oldest form without subnet", "local: {pool: 10.0.0.1}", []cause{{"spec.local", together}}},
		{
			"oldest form without pool", "local: {subnet: 10.0.0.0/24}", []cause{{"spec.local", together}, {"spec.local", empty}},
		},
		{"aggregation alone", "local: {aggregation: /32, v4pool: {pool: 10.0.0.1, subnet: 10.0.0.0/24}}",
			[]cause{{"spec.local", "aggregation needs pool and subnet beside it"}}},

		// Booleans.
		{"multiPool", v4("10.0.0.1", "10.0.0.0/24", "") + "  multiPool: true", nil},
		{"balancePools, not multiPool", v4("10.0.0.1", "10.0.0.0/24", "") + "  balancePools: true\n  multiPool: false", nil},
		{"multiPool and balancePools", v4("10.0.0.1", "10.0.0.0/24", "") + "  balancePools: true\n  multiPool: true",
			[]cause{{"spec.local", "multiPool and balancePools exclude each other"}}},
		{"skipIPv6DAD", v6("fd00::1", "fd00::/64", "") + "  skipIPv6DAD: true", nil},

		// Pools: their text is the webhook's to judge.
		{"no pool", "local: {v4pools: [{subnet: 10.0.0.0/24}]}", []cause{{"spec.local.v4pools[0].pool", "Required"}}},
		{"pool of one character", v4("1", "10.0.0.0/24", ""), []cause{{"spec.local.v4pools[0].pool", "at least 2 chars"}}},
		{"pool of 96 characters", v4(strings.Repeat("1", 96), "10.0.0.0/24", ""), nil},
		{
			"pool of 97 characters", v4(strings.Repeat("1", 97), "10.0.0.0/24", ""),
			[]cause{{"spec.local.v4pools[0].pool", "96"}},
		},
		{
			"oldest pool of one character", "local: {pool: '1', subnet: 10.0.0.0/24}",
			[]cause{{"spec.local.pool", "at least 2 chars"}},
		},
		{
			"oldest pool of 97 characters", "local: {subnet: 10.0.0.0/24, pool: " + strings.Repeat("a", 97) + "}",
			[]cause{{"spec.local.pool", "96"}},
		},

		// Subnets.
		{"no subnet", "local: {v4pools: [{pool: 10.0.0.1}]}", []cause{{"spec.local.v4pools[0].subnet", "Required"}}},
		{"subnet of 3 characters", v4("10.0.0.1", "1/1", ""),
			[]cause{{"spec.local.v4pools[0].subnet", "at least 4 chars"}, {"spec.local.v4pools[0].subnet", notCIDR}}},
		{
			"subnet of 44 characters", v4("10.0.0.1", strings.Repeat("f", 44), ""),
			[]cause{{"spec.local.v4pools[0].subnet", "43"}},
		},
		{
			"longest subnet", v6("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128", ""),
			nil,
		},
		{"subnet is an address", v4("10.0.0.1", "10.0.0.0", ""), []cause{{"spec.local.v4pools[0].subnet", notCIDR}}},
		{"subnet with host bits", v4("10.0.0.7", "10.0.0.7/24", ""),
			[]cause{{"spec.local.v4pools[0].subnet", "did you mean 10.0.0.0/24?"}}},
		{"IPv6 subnet with host bits", v6("fd00::7", "fd00::7/64", ""),
			[]cause{{"spec.local.v6pools[0].subnet", "did you mean fd00::/64?"}}},
		{"the second subnet with host bits",
			"remote: {v4pools: [{pool: 10.1.0.1, subnet: 10.1.0.0/24}, {pool: 10.0.0.1, subnet: 10.0.0.1/24}]}",
			[]cause{{"spec.remote.v4pools[1].subnet", "did you mean 10.0.0.0/24?"}}},
		{"single subnet with host bits", "local: {v4pool: {pool: 10.0.0.1, subnet: 10.0.0.1/24}}",
			[]cause{{"spec.local.v4pool.subnet", "did you mean 10.0.0.0/24?"}}},
		{"single IPv6 subnet with host bits", "local: {v6pool: {pool: 'fd00::1', subnet: 'fd00::1/64'}}",
			[]cause{{"spec.local.v6pool.subnet", "did you mean fd00::/64?"}}},
		{"oldest subnet with host bits", "local: {pool: 10.0.0.1, subnet: 10.0.0.1/24}",
			[]cause{{"spec.local.subnet", "did you mean 10.0.0.0/24?"}}},
		{"oldest subnet is an address", "local: {pool: 10.0.0.1, subnet: 10.0.0.1}", []cause{{"spec.local.subnet", notCIDR}}},
		{
			"IPv4-mapped subnet", v6("::ffff:10.0.0.1", "::ffff:10.0.0.0/120", ""),
			[]cause{{"spec.local.v6pools[0].subnet", notCIDR}},
		},
		{
			"prefix with a leading zero", v4("10.0.0.1", "10.0.0.0/024", ""), []cause{{"spec.local.v4pools[0].subnet", notCIDR}},
		},

		// Communities that Services may ask for.
		{"communities for Services", one4 +
			"bgp: {allowServices: {communities: [no-export, '1:2'], largeCommunities: ['1:2:3']}}", nil},
		{"too large a number for Services", one4 + "bgp: {allowServices: {communities: ['65536:1']}}",
			[]cause{{"spec.bgp.allowServices.communities[0]", "must be two numbers of at most 65535"}}},
		{"a community twice for Services", one4 + "bgp: {allowServices: {communities: [no-export, no-export]}}",
			[]cause{{"spec.bgp.allowServices.communities[1]", "Duplicate value"}}},

		// Families.
		{"IPv6 among IPv4", v4("fd00::1", "fd00::/64", ""), []cause{{"spec.local.v4pools", "IPv6 goes under v6pools"}}},
		{"IPv4 among IPv6", v6("10.0.0.1", "10.0.0.0/24", ""), []cause{{"spec.local.v6pools", "IPv4 goes under v4pools"}}},
		{
			"IPv6 as v4pool", "local: {v4pool: {pool: 'fd00::1', subnet: 'fd00::/64'}}",
			[]cause{{"spec.local.v4pool.subnet", "IPv6 goes under v6pool"}},
		},
		{
			"IPv4 as v6pool", "local: {v6pool: {pool: 10.0.0.1, subnet: 10.0.0.0/24}}",
			[]cause{{"spec.local.v6pool.subnet", "IPv4 goes under v4pool"}},
		},

		// Aggregation.
		{"aggregation empty", v4("10.0.0.1", "10.0.0.0/24", "aggregation: ''"), nil},
		{"aggregation default", v4("10.0.0.1", "10.0.0.0/24", "aggregation: default"), nil},
		{"aggregation /1", v4("10.0.0.1", "10.0.0.0/24", "aggregation: /1"), nil},
		{"supernetting", v4("10.0.0.1", "10.0.0.0/24", "aggregation: /16"), nil},
		{"aggregation /128", v6("fd00::1", "fd00::/64", "aggregation: /128"), nil},
		{"aggregation /99", v6("fd00::1", "fd00::/64", "aggregation: /99"), nil},
		{
			"aggregation /33 of IPv4", v4("10.0.0.1", "10.0.0.0/24", "aggregation: /33"),
			[]cause{{"spec.local.v4pools", "from /1 to /32"}},
		},
		{"aggregation /33 of v4pool", "local: {v4pool: {pool: 10.0.0.1, subnet: 10.0.0.0/24, aggregation: /33}}",
			[]cause{{"spec.local.v4pool.aggregation", "from /1 to /32"}}},
		{"aggregation /0", v4("10.0.0.1", "10.0.0.0/24", "aggregation: /0"),
			[]cause{{"spec.local.v4pools[0].aggregation", mask}, {"spec.local.v4pools", "from /1 to /32"}}},
		{
			"aggregation /129", v6("fd00::1", "fd00::/64", "aggregation: /129"),
			[]cause{{"spec.local.v6pools[0].aggregation", mask}},
		},
		{
			"aggregation without a slash", v6("fd00::1", "fd00::/64", "aggregation: '64'"),
			[]cause{{"spec.local.v6pools[0].aggregation", mask}},
		},
		{
			"aggregation Default", v6("fd00::1", "fd00::/64", "aggregation: Default"),
			[]cause{{"spec.local.v6pools[0].aggregation", mask}},
		},
		{
			"aggregation too long", v6("fd00::1", "fd00::/64", "aggregation: defaults"),
			[]cause{{"spec.local.v6pools[0].aggregation", "7"}},
		},
		{
			"oldest aggregation /0", "local: {pool: 10.0.0.1, subnet: 10.0.0.0/24, aggregation: /0}",
			[]cause{{"spec.local.aggregation", mask}},
		},

		// NetBox.
		{"netbox", netbox(""), nil},
		{"netbox by http", netbox("url: http://netbox.example:8000/api"), nil},
		{"netbox without url", netbox("url"), []cause{{"spec.netbox.url", "Required"}}},
		{"netbox with an ftp url", netbox("url: ftp://netbox.example"), []cause{{"spec.netbox.url", "http or https URL"}}},
		{"netbox with no url at all", netbox("url: netbox"), []cause{{"spec.netbox.url", "http or https URL"}}},
		{"netbox with a long url", netbox("url: https://" + strings.Repeat("a", 505)), []cause{{"spec.netbox.url", "512"}}},
		{
			"netbox without tenant", netbox("tenant"),
			[]cause{{"spec.netbox", "say which addresses Services get: v4, v6, or tenant"}},
		},
		{"netbox with an empty tenant", netbox("tenant: ''"), []cause{{"spec.netbox.tenant", "at least 1 char"}}},
		{"netbox with a long tenant", netbox("tenant: " + strings.Repeat("a", 101)), []cause{{"spec.netbox.tenant", "100"}}},
		{"netbox without token", netbox("tokenSecretRef"), []cause{{"spec.netbox.tokenSecretRef", "Required"}}},
		{"netbox with an empty token", netbox("tokenSecretRef: {name: '', key: ''}"),
			[]cause{
				{"spec.netbox.tokenSecretRef.name", "at least 1 char"}, {"spec.netbox.tokenSecretRef.key", "at least 1 char"},
			}},
		{
			"netbox with half a token", netbox("tokenSecretRef: {name: token}"),
			[]cause{{"spec.netbox.tokenSecretRef.key", "Required"}},
		},
		{"netbox with long names",
			netbox("tokenSecretRef: {name: " + strings.Repeat("a", 254) + ", key: " + strings.Repeat("a", 254) + "}"),
			[]cause{{"spec.netbox.tokenSecretRef.name", "253"}, {"spec.netbox.tokenSecretRef.key", "253"}}},
		{"netbox aggregation", netbox("aggregation: '24'"), []cause{{"spec.netbox.aggregation", mask}}},
		{"netbox aggregation of a family", netbox("v6: {prefixes: ['fd00::/64'], aggregation: /128}"), nil},
		{"netbox aggregation of IPv6 under v4", netbox("v4: {prefixes: [10.0.0.0/24], aggregation: /33}"),
			[]cause{{"spec.netbox.v4.aggregation", "from /1 to /32"}}},
		{"netbox prefixes", netbox("v4: {prefixes: [10.0.0.0/24]}"), nil},
		{"netbox ranges", netbox("v6: {ranges: ['fd00::1-fd00::9']}"), nil},
		{"netbox selector", netbox("v4: {selector: {tag: lb, role: vips, tenant: lab, vrf: blue}}"), nil},
		{
			"netbox prefix that is none", netbox("v4: {prefixes: [10.0.0.1-10.0.0.9]}"),
			[]cause{{"spec.netbox.v4.prefixes", "every prefix must be in CIDR form"}},
		},
		{
			"netbox prefix of the other family", netbox("v4: {prefixes: ['fd00::/64']}"),
			[]cause{{"spec.netbox.v4", "every prefix must be IPv4; IPv6 goes under v6"}},
		},
		{
			"netbox prefix of IPv4 under v6", netbox("v6: {prefixes: [10.0.0.0/24]}"),
			[]cause{{"spec.netbox.v6", "every prefix must be IPv6; IPv4 goes under v4"}},
		},
		{
			"netbox source without anything", netbox("v4: {}"),
			[]cause{{"spec.netbox.v4", "at least one of prefixes, ranges and selector is needed"}},
		},
		{
			"netbox selector without anything", netbox("v4: {selector: {}}"),
			[]cause{{"spec.netbox.v4.selector", "at least one of tag, role, tenant and vrf is needed"}},
		},
		{"netbox role", netbox("role: king"), []cause{{"spec.netbox.role", "Unsupported value"}}},
		{
			"netbox status", netbox("status: Active"),
			[]cause{{"spec.netbox.status", "must be a status of NetBox, such as active"}},
		},
		{"netbox tags", netbox("tags: []"), []cause{{"spec.netbox.tags", "at least 1 item"}}},
	} {
		t.Run(row.name, func(t *testing.T) {
			err := api.Create(context.Background(), manifest(t, "ServiceGroup", row.spec), client.DryRunAll)
			checkRefused(t, err, row.refused)
		})
	}

	t.Run("no spec", func(t *testing.T) {
		sg := manifest(t, "ServiceGroup", "{}")
		delete(sg.Object, "spec")
		checkRefused(t, api.Create(context.Background(), sg, client.DryRunAll), []cause{{"spec", "Required"}})
	})
}

// TestSeeds creates the manifests of the documentation as they are written.
func TestSeeds(t *testing.T) {
	connect(t)
	refused := map[string][]cause{
		"local.yaml": {
			{"metadata.name", "a lowercase RFC 1123 subdomain"},
			{"spec", "exactly one of local, remote and netbox must be set"},
			{
				"spec",
				"pool, subnet and aggregation do not go directly under spec: nest them under spec.local (or under spec.remote if " +
					"they are always routed)",
			},
			{"spec", "name does not go under spec: the group's name is metadata.name"},
		},
	}
	files, err := filepath.Glob("testdata/seeds/*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("found only %v (%v)", files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			checkRefused(
				t, api.Create(context.Background(), object(t, string(text)), client.DryRunAll), refused[filepath.Base(file)],
			)
		})
	}
}

// TestMisplacedFields compares keys under spec that stand in the schema only to be refused
// with those that do not stand there, as clients send them: kubectl asks for strict
// validation, GitOps tools may ask for warnings or for none.
func TestMisplacedFields(t *testing.T) {
	connect(t)
	const pools = "local: {v4pool: {pool: 10.0.0.1, subnet: 10.0.0.0/24}}\n"
	for _, validation := range []string{
		metav1.FieldValidationStrict, metav1.FieldValidationWarn, metav1.FieldValidationIgnore,
	} {
		create := func(spec string) error {
			return api.Create(
				context.Background(), manifest(t, "ServiceGroup", spec), client.DryRunAll, client.FieldValidation(validation),
			)
		}
		for _, field := range []string{"pool: 10.0.0.2", "subnet: 10.0.0.0/24", "aggregation: default"} {
			checkRefused(
				t, create(pools+field),
				[]cause{{"spec", "nest them under spec.local (or under spec.remote if they are always routed)"}},
			)
		}
		checkRefused(t, create(pools+"name: a"), []cause{{"spec", "the group's name is metadata.name"}})

		// The API server drops an unknown key, or refuses it without saying where it belongs.
		err := create(pools + "unknown: 10.0.0.2")
		if validation != metav1.FieldValidationStrict {
			if err != nil {
				t.Errorf("%s: an unknown field is refused: %v", validation, err)
			}
		} else if err == nil || !strings.HasSuffix(err.Error(), `strict decoding error: unknown field "spec.unknown"`) {
			t.Errorf("%s: an unknown field: %v", validation, err)
		}
	}
}
