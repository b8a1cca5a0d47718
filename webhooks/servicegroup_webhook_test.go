package webhooks_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// createRow is a ServiceGroup that is created beside those of createCluster.
type createRow struct {
	name, spec string
	want       answer
}

const (
	first4 = "spec.local.v4pools[0].pool"
	first6 = "spec.local.v6pools[0].pool"
)

func v4(pool, subnet string) string {
	return fmt.Sprintf("local: {v4pools: [{pool: %q, subnet: %q}]}", pool, subnet)
}

func v6(pool, subnet string) string {
	return fmt.Sprintf("local: {v6pools: [{pool: %q, subnet: %q}]}", pool, subnet)
}

// refusedAt is the refusal of one field. value is empty for a rule of the CRD, of which
// the API server names no value.
func refusedAt(path, value, reason string) answer {
	if value == "" {
		return answer{refused: []cause{{path, "Invalid value: " + reason}}}
	}
	return answer{refused: []cause{{path, fmt.Sprintf("Invalid value: %q: %s", value, reason)}}}
}

func warns(warnings ...string) answer { return answer{warnings: warnings} }

func overlap(path, value, mine, theirs, name string) answer {
	return refusedAt(
		path, value,
		fmt.Sprintf("range %s overlaps range %s of ServiceGroup %s, which has these addresses already", mine, theirs, name),
	)
}

func createRows() []createRow {
	const (
		form    = "must be a CIDR, a range first-last, or one address"
		subnet4 = "10.0.0.0/24"
		subnet6 = "fd00::/64"
		taken4  = "10.9.0.10-10.9.0.20"
		taken6  = "fd09::10-fd09::20"
	)
	return []createRow{
		// Every form of a range.
		{"CIDR", v4("10.0.0.0/28", subnet4), answer{}},
		{"range", v4("10.0.0.1-10.0.0.9", subnet4), answer{}},
		{"range with spaces", v4("10.0.0.1 - 10.0.0.9", subnet4), answer{}},
		{"one address", v4("10.0.0.1", subnet4), answer{}},
		{"a range of one", v4("10.0.0.1-10.0.0.1", subnet4), answer{}},
		{"the whole subnet", v4(subnet4, subnet4), answer{}},
		{"IPv6 CIDR", v6("fd00::/126", subnet6), answer{}},
		{"IPv6 range", v6("fd00::1-fd00::ffff", subnet6), answer{}},
		{"IPv6 address", v6("fd00::1", subnet6), answer{}},
		{"the whole IPv6 subnet", v6(subnet6, subnet6), answer{}},
		{"all of global unicast", v6("2000::/3", "2000::/3"), answer{}},
		{"/31", v4("10.0.0.0/31", "10.0.0.0/31"), answer{}},
		{"/32", v4("10.0.0.1/32", "10.0.0.1/32"), answer{}},
		{"/128", v6("fd00::1/128", "fd00::1/128"), answer{}},
		{"oldest form", "local: {pool: 10.0.0.1, subnet: 10.0.0.0/24}", answer{}},
		{
			"single ones",
			"remote: {v4pool: {pool: 10.0.0.1, subnet: 10.0.0.0/24}, v6pool: {pool: 'fd00::1', subnet: 'fd00::/64'}}", answer{},
		},
		{
			"list and single",
			"remote: {v4pools: [{pool: 10.0.0.1, subnet: 10.0.0.0/24}], v4pool: {pool: 10.0.0.2, subnet: 10.0.0.0/24}}",
			answer{},
		},

		// Host bits.
		{
			"IPv4 host bits", v4("10.0.0.4/29", subnet4),
			warns(first4 + ": 10.0.0.4/29 has host bits: addresses are taken from 10.0.0.4-10.0.0.7"),
		},
		{"IPv6 host bits", v6("fc00:270:154:0:8100::4/64", "fc00:270:154::/64"),
			warns(
				first6 + ": fc00:270:154:0:8100::4/64 has host bits: addresses are taken from " +
					"fc00:270:154:0:8100::4-fc00:270:154:0:ffff:ffff:ffff:ffff",
			)},

		// What is not a range.
		{"ends before it starts, leaves the subnet", v4("172.32.100.225-172.30.100.229", "172.32.100.0/24"),
			refusedAt(
				first4, "172.32.100.225-172.30.100.229",
				"ends (172.30.100.229) before it starts (172.32.100.225); did you mean 172.32.100.225-172.32.100.229?",
			)},
		{
			"swapped", v4("10.0.0.9-10.0.0.1", subnet4),
			refusedAt(
				first4, "10.0.0.9-10.0.0.1", "ends (10.0.0.1) before it starts (10.0.0.9); did you mean 10.0.0.1-10.0.0.9?",
			),
		},
		{
			"swapped IPv6", v6("fd00::9-fd00::1", subnet6),
			refusedAt(first6, "fd00::9-fd00::1", "ends (fd00::1) before it starts (fd00::9); did you mean fd00::1-fd00::9?"),
		},
		{
			"backwards elsewhere", v4("10.1.0.9-10.0.1.8", subnet4),
			refusedAt(first4, "10.1.0.9-10.0.1.8", "ends (10.0.1.8) before it starts (10.1.0.9)"),
		},
		{"words", v4("all of it", subnet4), refusedAt(first4, "all of it", form)},
		{"an octet too large", v4("10.0.0.256", subnet4), refusedAt(first4, "10.0.0.256", form)},
		{"a prefix too long", v4("10.0.0.0/33", subnet4), refusedAt(first4, "10.0.0.0/33", form)},
		{"an IPv6 prefix too long", v6("fd00::/129", subnet6), refusedAt(first6, "fd00::/129", form)},
		{"a short end", v4("10.0.0.1-9", subnet4), refusedAt(first4, "10.0.0.1-9", `"9", after the dash, is not an address`)},
		{"no start", v4("-10.0.0.9", subnet4), refusedAt(first4, "-10.0.0.9", `"", before the dash, is not an address`)},
		{"a zone", v6("fd00::1%eth0", subnet6), refusedAt(first6, "fd00::1%eth0", "fd00::1%eth0 has a zone")},

		// Subnets and families.
		{
			"outside the subnet", v4("10.0.1.1", subnet4),
			refusedAt(first4, "10.0.1.1", "10.0.1.1 is outside subnet 10.0.0.0/24"),
		},
		{
			"ends outside the subnet", v4("10.0.0.250-10.0.1.5", subnet4),
			refusedAt(first4, "10.0.0.250-10.0.1.5", "10.0.1.5 is outside subnet 10.0.0.0/24"),
		},
		{
			"larger than the subnet", v4("10.0.0.0/23", subnet4),
			refusedAt(first4, "10.0.0.0/23", "10.0.1.255 is outside subnet 10.0.0.0/24"),
		},
		{
			"IPv6 outside the subnet", v6("fd00:0:0:1::1", subnet6),
			refusedAt(first6, "fd00:0:0:1::1", "fd00:0:0:1::1 is outside subnet fd00::/64"),
		},
		{
			"IPv6 in an IPv4 subnet", v4("fd00::1", subnet4),
			refusedAt(first4, "fd00::1", "fd00::1 is not of the same family as subnet 10.0.0.0/24"),
		},
		{
			"IPv4 in an IPv6 subnet", v6("10.0.0.1", subnet6),
			refusedAt(first6, "10.0.0.1", "10.0.0.1 is not of the same family as subnet fd00::/64"),
		},
		{
			"families mixed in a range", v4("10.0.0.1-fd00::1", subnet4),
			refusedAt(first4, "10.0.0.1-fd00::1", "10.0.0.1 and fd00::1 are of different families"),
		},
		{
			"IPv4-mapped", v6("::ffff:10.0.0.1", subnet6),
			refusedAt(first6, "::ffff:10.0.0.1", "::ffff:10.0.0.1 is an IPv4-mapped IPv6 address; write it as 10.0.0.1"),
		},
		{
			"all of IPv6", v6("::/0", "::/0"),
			refusedAt("spec.local.v6pools[0].subnet", "::/0", "must not be all addresses of a family"),
		},
		{
			"all of IPv4", v4("0.0.0.0/0", "0.0.0.0/0"),
			refusedAt("spec.local.v4pools[0].subnet", "0.0.0.0/0", "must not be all addresses of a family"),
		},
		{
			"addresses of the host itself", v4("127.0.0.1-127.0.0.9", "127.0.0.0/8"),
			refusedAt(
				first4, "127.0.0.1-127.0.0.9",
				"range 127.0.0.1-127.0.0.9 has addresses of 127.0.0.0/8 (loopback), which no Service can have",
			),
		},
		{
			"half of IPv6", v6("::/1", "::/1"),
			refusedAt(
				first6, "::/1",
				"range ::-7fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff has addresses of ::/128 (unspecified), which no Service can have",
			),
		},
		{"several mistakes",
			"local: {v4pools: [{pool: x1, subnet: 10.0.0.0/24}], v6pools: [{pool: 'fd00::1', subnet: 'fd00::/64'}, {pool: " +
				"'fd01::1', subnet: 'fd00::/64'}]}",
			answer{refused: []cause{
				{first4, `Invalid value: "x1": ` + form},
				{"spec.local.v6pools[1].pool", `Invalid value: "fd01::1": fd01::1 is outside subnet fd00::/64`},
			}}},

		// Masks.
		{"/1", "remote: {pool: 10.0.0.1, subnet: 10.0.0.0/24, aggregation: /1}", answer{}},
		{"/32 as mask", "remote: {pool: 10.0.0.1, subnet: 10.0.0.0/24, aggregation: /32}", answer{}},
		{"/128 as mask", "remote: {pool: 'fd00::1', subnet: 'fd00::/64', aggregation: /128}", answer{}},
		{"default as mask", "remote: {pool: 'fd00::1', subnet: 'fd00::/64', aggregation: default}", answer{}},
		{"supernetting", "remote: {pool: 10.0.0.1, subnet: 10.0.0.0/24, aggregation: /16}", answer{}},
		{"/33 of the oldest IPv4 form", "remote: {pool: 10.0.0.1, subnet: 10.0.0.0/24, aggregation: /33}",
			refusedAt("spec.remote.aggregation", "/33", `must be "default" or a mask from /1 to /32`)},
		{"/33 in a list", "remote: {v4pools: [{pool: 10.0.0.1, subnet: 10.0.0.0/24, aggregation: /33}]}",
			refusedAt("spec.remote.v4pools", "", `aggregation must be "default" or from /1 to /32`)},

		// Overlaps within a group.
		{"equal ranges", "local: {v4pools: [{pool: 10.0.0.1, subnet: 10.0.0.0/24}, {pool: 10.0.0.1, subnet: 10.0.0.0/24}]}",
			refusedAt(
				"spec.local.v4pools[1].pool", "10.0.0.1",
				"range 10.0.0.1-10.0.0.1 overlaps range 10.0.0.1-10.0.0.1 of the same group",
			)},
		{"the second within the first",
			"local: {v6pools: [{pool: 'fd00::/120', subnet: 'fd00::/64'}, {pool: 'fd00::7', subnet: 'fd00::/64'}]}",
			refusedAt(
				"spec.local.v6pools[1].pool", "fd00::7", "range fd00::7-fd00::7 overlaps range fd00::-fd00::ff of the same group",
			)},
		{"the first within the single one",
			"local: {v4pools: [{pool: 10.0.0.7, subnet: 10.0.0.0/24}], v4pool: {pool: 10.0.0.0/28, subnet: 10.0.0.0/24}}",
			refusedAt(
				"spec.local.v4pool.pool", "10.0.0.0/28",
				"range 10.0.0.0-10.0.0.15 overlaps range 10.0.0.7-10.0.0.7 of the same group",
			)},
		{"oldest form beside a list",
			"local: {v4pools: [{pool: 10.0.0.7, subnet: 10.0.0.0/24}], pool: 10.0.0.1, subnet: 10.0.0.0/24}",
			refusedAt(
				"spec.local.pool", "10.0.0.1", "the group has IPv4 ranges in another form already: move this one into the list",
			)},

		// Overlaps with another group.
		{"equal to another's", v4(taken4, "10.9.0.0/24"), overlap(first4, taken4, taken4, taken4, "taken")},
		{
			"within another's", v4("10.9.0.12", "10.9.0.0/24"),
			overlap(first4, "10.9.0.12", "10.9.0.12-10.9.0.12", taken4, "taken"),
		},
		{
			"around another's", v4("10.9.0.0/24", "10.9.0.0/24"),
			overlap(first4, "10.9.0.0/24", "10.9.0.0-10.9.0.255", taken4, "taken"),
		},
		{
			"its end in another's", v4("10.9.0.1-10.9.0.10", "10.9.0.0/24"),
			overlap(first4, "10.9.0.1-10.9.0.10", "10.9.0.1-10.9.0.10", taken4, "taken"),
		},
		{
			"its start in another's", v4("10.9.0.20-10.9.0.30", "10.9.0.0/24"),
			overlap(first4, "10.9.0.20-10.9.0.30", "10.9.0.20-10.9.0.30", taken4, "taken"),
		},
		{"up to another's", v4("10.9.0.1-10.9.0.9", "10.9.0.0/24"), answer{}},
		{"from another's on", v4("10.9.0.21-10.9.0.30", "10.9.0.0/24"), answer{}},
		{"IPv6 equal", v6(taken6, "fd09::/64"), overlap(first6, taken6, taken6, taken6, "taken")},
		{
			"IPv6 within", v6("fd09::18/125", "fd09::/64"),
			overlap(first6, "fd09::18/125", "fd09::18-fd09::1f", taken6, "taken"),
		},
		{
			"IPv6 around", v6("fd09::/64", "fd09::/64"),
			overlap(first6, "fd09::/64", "fd09::-fd09::ffff:ffff:ffff:ffff", taken6, "taken"),
		},
		{
			"IPv6 end", v6("fd09::1-fd09::10", "fd09::/64"),
			overlap(first6, "fd09::1-fd09::10", "fd09::1-fd09::10", taken6, "taken"),
		},
		{
			"IPv6 start", v6("fd09::20-fd09::30", "fd09::/64"),
			overlap(first6, "fd09::20-fd09::30", "fd09::20-fd09::30", taken6, "taken"),
		},
		{"IPv6 up to another's", v6("fd09::-fd09::f", "fd09::/64"), answer{}},
		{
			"in another subnet", "remote: {pool: 10.9.0.16, subnet: 10.9.0.16/30}",
			overlap("spec.remote.pool", "10.9.0.16", "10.9.0.16-10.9.0.16", taken4, "taken"),
		},
		{"both families", "remote: {pool: 10.9.0.16, subnet: 10.9.0.0/24, v6pool: {pool: 'fd09::12', subnet: 'fd09::/64'}}",
			answer{refused: []cause{
				overlap("spec.remote.pool", "10.9.0.16", "10.9.0.16-10.9.0.16", taken4, "taken").refused[0],
				overlap("spec.remote.v6pool.pool", "fd09::12", "fd09::12-fd09::12", taken6, "taken").refused[0],
			}}},

		// Nodes' own addresses.
		{"covers nodes and a gateway", v4("10.7.0.0/28", "10.7.0.0/24"),
			warns(first4 + ": range 10.7.0.0-10.7.0.15 covers what is never allocated: " +
				"10.7.0.1, an address of node node1; 10.7.0.2, an address of node node2; 10.7.0.3, an address of node node3")},
		{"covers a gateway", "remote: {pool: 10.7.0.200-10.7.0.254, subnet: 10.7.0.0/24}",
			warns("spec.remote.pool: range 10.7.0.200-10.7.0.254 covers what is never allocated: " +
				"10.7.0.254, a gateway of node node1")},
		{"covers IPv6 ones", v6("fd07::/120", "fd07::/64"),
			warns(first6 + ": range fd07::-fd07::ff covers what is never allocated: " +
				"fd07::1, an address of node node1; fd07::fe, a gateway of node node1")},
		// Whose Services.
		{
			"for some namespaces",
			"{remote: {pool: 10.0.0.9, subnet: 10.0.0.0/24}, allowedNamespaces: {from: Selector, selector: {matchLabels: " +
				"{tier: gold}}}}",
			answer{},
		},
		{"for namespaces of no selector",
			"{remote: {pool: 10.0.0.9, subnet: 10.0.0.0/24}, allowedNamespaces: {from: Selector}}",
			refusedAt("spec.allowedNamespaces.selector", "", "from: Selector needs a selector; {} selects all namespaces")},
		{"for all namespaces, by a selector",
			"{remote: {pool: 10.0.0.9, subnet: 10.0.0.0/24}, allowedNamespaces: {selector: {}}}",
			refusedAt("spec.allowedNamespaces.from", "", "selector counts only with from: Selector")},
		{"for namespaces of an operator that is none",
			"{remote: {pool: 10.0.0.9, subnet: 10.0.0.0/24}, allowedNamespaces: {from: Selector, selector: {matchExpressions: " +
				"[{key: tier, operator: Is}]}}}",
			refusedAt("spec.allowedNamespaces.selector", "", `"Is" is not a valid label selector operator`)},
		{
			"reserved",
			"{remote: {pool: 10.0.0.9, subnet: 10.0.0.0/24}, reservations: [{address: 10.0.0.9, service: not-yet/web}]}",
			answer{},
		},
		{"reserved outside",
			"{remote: {pool: 10.0.0.9, subnet: 10.0.0.0/24}, reservations: [{address: 10.0.0.8, service: a/b}]}",
			refusedAt(
				"spec.reservations[0].address", "10.0.0.8", "is in no pool of the group: add it to one, or remove the reservation",
			)},
		{"reserved in the other family",
			"{remote: {pool: 10.0.0.9, subnet: 10.0.0.0/24}, reservations: [{address: 'fd00::1', service: a/b}]}",
			refusedAt(
				"spec.reservations[0].address", "fd00::1", "is in no pool of the group: add it to one, or remove the reservation",
			)},
		{
			"preferredNodes", "{local: {pool: 10.0.0.9, subnet: 10.0.0.0/24}, preferredNodes: [{weight: 5, nodeSelector: " +
				"{matchExpressions: [{key: rack, operator: In, values: [a, b]}]}}], topologyKey: topology.kubernetes.io/zone}",
			answer{},
		},
		{
			"preferredNodes that cannot be", "{local: {pool: 10.0.0.9, subnet: 10.0.0.0/24}, preferredNodes: [{weight: 5, " +
				"nodeSelector: {matchExpressions: [{key: rack, operator: Inside, values: [a, b]}]}}]}",
			refusedAt(
				"spec.preferredNodes[0].nodeSelector", "", `"Inside" is not a valid label selector operator`,
			),
		},
		{
			"preferredNodes of Virtual addresses", "{remote: {pool: 10.0.0.9, subnet: 10.0.0.0/24}, preferredNodes: " +
				"[{weight: 5, nodeSelector: {}}]}",
			refusedAt("spec.preferredNodes", "", "addresses of remote pools are Virtual: all nodes have them"),
		},
		{
			"stickyFor of NetBox",
			"{netbox: {url: 'https://n', tenant: t, tokenSecretRef: {name: a, key: b}}, stickyFor: 5m}",
			refusedAt(
				"spec.stickyFor", "",
				"NetBox allocates the addresses of the group, and gets those of deleted Services back at once",
			),
		},
		{
			"topologyKey that no node can have",
			"{local: {pool: 10.0.0.9, subnet: 10.0.0.0/24}, topologyKey: topology.kubernetes.io/zone=a}",
			refusedAt(
				"spec.topologyKey", "topology.kubernetes.io/zone=a",
				"must be the name of a label, such as topology.kubernetes.io/zone",
			),
		},
		{"reserved twice", "{remote: {v6pool: {pool: 'fd00::/64', subnet: 'fd00::/64'}}, reservations: [{address: " +
			"'fd00::1', service: a/b}, {address: 'fd00:0::1', service: a/c}]}",
			refusedAt("spec.reservations[1].address", "fd00:0::1", "is reserved for Service a/b already")},
		{"a network address reserved",
			"{remote: {pool: 10.0.0.0/30, subnet: 10.0.0.0/30}, reservations: [{address: 10.0.0.0, service: a/b}]}",
			refusedAt(
				"spec.reservations[0].address", "10.0.0.0",
				"10.0.0.0 is the first or last address of subnet 10.0.0.0/30: it is never allocated",
			)},
		{"reserved for no Service",
			"{remote: {pool: 10.0.0.9, subnet: 10.0.0.0/24}, reservations: [{address: 10.0.0.9, service: web}]}",
			refusedAt(
				"spec.reservations[0].service", "web", "must be the namespace and the name of a Service, such as team-a/web",
			)},
		{"reserved for a name that is too long",
			"{remote: {pool: 10.0.0.9, subnet: 10.0.0.0/24}, reservations: [{address: 10.0.0.9, service: a/" +
				strings.Repeat("b", 64) + "}]}",
			refusedAt(
				"spec.reservations[0].service", "a/"+strings.Repeat("b", 64),
				"must be the namespace and the name of a Service, such as team-a/web",
			)},
		{"reserved in NetBox",
			"{netbox: {url: 'https://netbox.example', tenant: t, tokenSecretRef: {name: a, key: b}}, reservations: [{address: " +
				"10.0.0.9, service: a/b}]}",
			refusedAt("spec.reservations", "", "NetBox allocates the addresses of the group: reserve them there")},
		{"reserved for a namespace that is left out",
			"{remote: {pool: 10.0.0.9, subnet: 10.0.0.0/24}, reservations: [{address: 10.0.0.9, service: test/web}], " +
				"allowedNamespaces: {from: Selector, selector: {matchLabels: {tier: gold}}}}",
			warns(
				"spec.reservations: 10.0.0.9 is reserved for Service test/web, whose namespace may not use the group: " +
					"spec.allowedNamespaces leaves it out",
			)},
		{"policy Local allowed", "{local: {pool: 10.0.0.9, subnet: 10.0.0.0/24}, policyLocal: Allow}", answer{}},
		{"policy Local allowed for Virtual addresses", "{remote: {pool: 10.0.0.9, subnet: 10.0.0.0/24}, policyLocal: Allow}",
			warns(
				"spec.policyLocal: addresses of remote pools are Virtual, and keep externalTrafficPolicy Local anyway, unless " +
					"Services share them: Allow is only for those",
			)},
		{
			"policy Local overridden, for Virtual addresses",
			"{remote: {pool: 10.0.0.9, subnet: 10.0.0.0/24}, policyLocal: Override}", answer{},
		},
		{"host bits and a gateway", v4("10.7.0.254/30", "10.7.0.0/24"), warns(
			first4+": 10.7.0.254/30 has host bits: addresses are taken from 10.7.0.254-10.7.0.255",
			first4+": range 10.7.0.254-10.7.0.255 covers what is never allocated: 10.7.0.254, a gateway of node node1")},

		// What the API server sees by itself.
		{"multiPool and balancePools", "local: {multiPool: true, balancePools: true, pool: 10.0.0.1, subnet: 10.0.0.0/24}",
			refusedAt("spec.local", "", "multiPool and balancePools exclude each other")},
		{"pool under spec", "{pool: 10.0.0.1, subnet: 10.0.0.0/24}", answer{refused: []cause{
			{"spec", "Invalid value: exactly one of local, remote and netbox must be set"},
			{
				"spec",
				"Invalid value: pool, subnet and aggregation do not go directly under spec: nest them under spec.local (or under " +
					"spec.remote if they are always routed)",
			},
		}}},
		{
			"local and remote", v4("10.0.0.1", subnet4) + "\nremote: {pool: 10.1.0.1, subnet: 10.1.0.0/24}",
			refusedAt("spec", "", "exactly one of local, remote and netbox must be set"),
		},
		{
			"subnet with host bits", v4("10.0.0.1", "10.0.0.1/24"),
			refusedAt("spec.local.v4pools[0].subnet", "", "has bits set beyond its prefix length; did you mean 10.0.0.0/24?"),
		},
		{
			"IPv6 under v4pools", v4("fd00::1", subnet6),
			refusedAt("spec.local.v4pools", "", "every subnet must be IPv4; IPv6 goes under v6pools"),
		},
		{
			"no pool", "local: {}",
			refusedAt("spec.local", "", "at least one pool is needed: v4pools, v6pools, v4pool, v6pool, or pool with subnet"),
		},

		// NetBox.
		{"netbox", "netbox: {url: 'https://netbox.example', tenant: t, tokenSecretRef: {name: a, key: b}}", answer{}},
		{
			"netbox mask",
			"netbox: {url: 'https://netbox.example', tenant: t, tokenSecretRef: {name: a, key: b}, aggregation: /24}", answer{},
		},
		{"netbox by http", "netbox: {url: 'http://netbox.example', tenant: t, tokenSecretRef: {name: a, key: b}}",
			warns("spec.netbox.url: by http, everyone on the way can read the token: use https")},
		{
			"netbox by ftp", netbox("ftp://netbox.example", "tenant: t"),
			refusedAt("spec.netbox.url", "ftp://netbox.example", "must be an http or https URL"),
		},
		{"netbox without addresses", netbox("https://netbox.example", "status: active"),
			refusedAt(
				"spec.netbox", "",
				"say which addresses Services get: v4, v6, or tenant for the addresses that are reserved for a tenant",
			)},
		{
			"netbox with an empty source", netbox("https://netbox.example", "v4: {}"),
			refusedAt("spec.netbox.v4", "", "at least one of prefixes, ranges and selector is needed"),
		},
		{"netbox with an empty selector", netbox("https://netbox.example", "v4: {selector: {}}"),
			refusedAt("spec.netbox.v4.selector", "", "at least one of tag, role, tenant and vrf is needed")},
		{"netbox prefix that is none", netbox("https://netbox.example", "v4: {prefixes: [10.0.0.1-10.0.0.9]}"),
			refusedAt("spec.netbox.v4.prefixes", "",
				"every prefix must be in CIDR form, such as 192.168.1.0/24 or fd00:1::/64")},
		{"netbox prefix of the other family", netbox("https://netbox.example", "v4: {prefixes: ['fd00::/64']}"),
			refusedAt("spec.netbox.v4", "", "every prefix must be IPv4; IPv6 goes under v6")},
		{
			"netbox status that is none", netbox("https://netbox.example", "tenant: t, status: Active"),
			refusedAt("spec.netbox.status", "Active", "must be a status of NetBox, such as active"),
		},
		{"netbox with a password", netbox("https://user:secret@netbox.example", "tenant: t"),
			refusedAt("spec.netbox.url", "…", "must not have a user or password: the token goes into the Secret")},
		{
			"netbox with a query", netbox("https://netbox.example?a=b", "tenant: t"),
			refusedAt("spec.netbox.url", "https://netbox.example?a=b", "must not have a query or fragment"),
		},
		{
			"netbox range", netbox("https://netbox.example", "v4: {ranges: [10.0.0.5]}"),
			refusedAt("spec.netbox.v4.ranges[0]", "10.0.0.5", "must be an IP range of NetBox, as first-last"),
		},
		{"netbox range of the other family", netbox("https://netbox.example", "v6: {ranges: [10.0.0.5-10.0.0.6]}"),
			refusedAt("spec.netbox.v6.ranges[0]", "10.0.0.5-10.0.0.6", "must be a range of IPv6 addresses")},
		{
			"netbox certificate", netbox("https://netbox.example", "tenant: t, caBundle: x"),
			refusedAt("spec.netbox.caBundle", "…", "has no certificate in PEM form (-----BEGIN CERTIFICATE-----)"),
		},
		{"netbox dnsName", netbox("https://netbox.example", "tenant: t, dnsName: '{{.Cluster}}.example'"),
			refusedAt(
				"spec.netbox.dnsName", "{{.Cluster}}.example",
				"must be a DNS name, in which only {{.Name}} and {{.Namespace}} are replaced",
			)},
		{"netbox status", netbox("https://netbox.example", "tenant: t, status: reserved"),
			refusedAt(
				"spec.netbox.status", "reserved",
				"is the status of the tenant's free addresses: choose another for those of Services",
			)},
	}
}

// netbox is the spec of a group that takes its addresses from NetBox.
func netbox(url, rest string) string {
	return "netbox: {url: '" + url + "', tokenSecretRef: {name: a, key: b}, " + rest + "}"
}

func TestServiceGroupCreate(t *testing.T) {
	begin(t)
	rows := createRows()
	if len(rows) < 60 {
		t.Fatalf("only %d rows", len(rows))
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) { checkCreate(t, group("x", row.spec), row.want) })
	}
}

// seedAnswers are the answers to the manifests of the documentation, with the manager in
// their namespace. Those that are not listed are accepted without warnings.
var seedAnswers = map[string]answer{
	"local.yaml": {
		refused: []cause{
			{"metadata.name", `Invalid value: "LocalAddressRange": a lowercase RFC 1123 subdomain must consist of lower case ` +
				`alphanumeric characters, '-' or '.', ` +
				`and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is ` +
				`'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')`},
			{"spec", "Invalid value: exactly one of local, remote and netbox must be set"},
			{
				"spec",
				"Invalid value: pool, subnet and aggregation do not go directly under spec: nest them under spec.local (or under " +
					"spec.remote if they are always routed)",
			},
			{"spec", "Invalid value: name does not go under spec: the group's name is metadata.name"},
		},
	},
	"overview.yaml": warns("spec.local.v6pools[0].pool: fc00:270:154:0:8100::4/64 has host bits: " +
		"addresses are taken from fc00:270:154:0:8100::4-fc00:270:154:0:ffff:ffff:ffff:ffff"),
	"overview-service.yaml": warns(
		"there is no ServiceGroup localaddrange in namespace purelb-system: the Service waits until there is",
	),
	"virtual-purelb.yaml":        {refused: wrongEnd},
	"virtual-purelb-system.yaml": {refused: wrongEnd},
}

var wrongEnd = refusedAt(first4, "172.32.100.225-172.30.100.229",
	"ends (172.30.100.229) before it starts (172.32.100.225); did you mean 172.32.100.225-172.32.100.229?").refused

func TestSeeds(t *testing.T) {
	begin(t)
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) != len(seedAnswers) {
		t.Fatalf("found %v (%v)", files, err)
	}
	for _, file := range files {
		name := filepath.Base(file)
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			want := seedAnswers[name]
			obj := object(string(text))
			if obj.GetNamespace() == elsewhere {
				// The manager of these tests is in another namespace: say so,
				// unless the API server has refused it before.
				if name == "virtual-purelb.yaml" {
					both := append([]cause{notHere}, want.refused...)
					checkCreate(t, obj, answer{refused: both})
				}
				obj.SetNamespace(namespace)
			}
			checkCreate(t, obj, want)
		})
	}
	t.Run("with the end put right", func(t *testing.T) {
		checkCreate(
			t,
			object(strings.ReplaceAll(readFile(t, "testdata/virtual-purelb-system.yaml"), "172.30.100.229", "172.32.100.229")),
			answer{},
		)
	})
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var notHere = refusedAt(
	"metadata.namespace", elsewhere, "only ServiceGroups in namespace purelb-system count: move it there",
).refused[0]

const notOnLink = "spec.local: no node has an interface in 192.0.2.0/24: the addresses are Virtual, and only routers " +
	"make packets come; correct the subnet or spec.local of the LBNodeAgents or, if that is meant, make the group one " +
	"of kind remote"

// TestServiceGroupSubnetNotFound checks that a subnet that no node is in is warned of, when a group is made and when
// it changes, and that other groups are not.
func TestServiceGroupSubnetNotFound(t *testing.T) {
	begin(t)
	recorded.keepsSubnets.Store(true)
	t.Cleanup(func() { recorded.keepsSubnets.Store(false) })
	checkCreate(t, group("x", v4("10.7.0.200", "10.7.0.0/24")), answer{})
	checkCreate(t, group("x", "remote: {pool: 192.0.2.1, subnet: 192.0.2.0/24}"), answer{})
	checkCreate(t, group("x", v4("192.0.2.1", "192.0.2.0/24")), warns(notOnLink))
	sg := group("onlink", v4("10.7.0.200", "10.7.0.0/24"))
	create(t, sg)
	change(t, sg, false, v4("192.0.2.1", "192.0.2.0/24"), warns(notOnLink))
}

func TestServiceGroupElsewhere(t *testing.T) {
	g := begin(t)
	ctx := context.Background()
	sg := group("x", "remote: {pool: 10.9.0.12, subnet: 10.9.0.0/24}") // overlaps, too
	sg.SetNamespace(elsewhere)
	checkCreate(t, sg, answer{refused: []cause{notHere}})

	withoutWebhooks(t)
	g.Expect(api.Create(ctx, sg)).To(Succeed())
	g.Eventually(ready(sg)).Should(Equal("False OutOfScope: " + notHere.String()))
	withWebhooks(t)
	t.Cleanup(func() { remove(t, sg) })
	waitUntilCached(t, sg)

	// The group stays without effect, so nothing is refused.
	change(t, sg, false, "remote: {pool: 10.9.0.13, subnet: 10.9.0.0/24}", answer{warnings: []string{notHere.String()}})
	g.Expect(api.Delete(ctx, sg.DeepCopy(), client.DryRunAll)).To(Succeed())
	g.Expect(recorded.take()).To(BeEmpty())
}

// change updates a group, first in a dry run, and checks both answers. allowOrphans adds
// the annotation that allows orphans.
func change(t *testing.T, sg *unstructured.Unstructured, allowOrphans bool, spec string, want answer) {
	t.Helper()
	ctx := context.Background()
	write := func(options ...client.UpdateOption) {
		t.Helper()
		err := update(ctx, sg, func(live *unstructured.Unstructured) {
			live.Object["spec"] = group("x", spec).Object["spec"]
			if allowOrphans {
				live.SetAnnotations(map[string]string{v1.AnnotationAllowOrphans: "true"})
			}
		}, options...)
		check(t, err, want)
	}
	write(client.DryRunAll)
	write()
	waitUntilCached(t, sg)
}

// update writes a change, and tries again after a conflict.
func update(
	ctx context.Context, sg *unstructured.Unstructured, mutate func(*unstructured.Unstructured),
	options ...client.UpdateOption,
) error {
	for {
		live := sg.DeepCopy()
		if err := api.Get(ctx, client.ObjectKeyFromObject(sg), live); err != nil {
			return err
		}
		mutate(live)
		recorded.take()
		if err := api.Update(ctx, live, options...); !apierrors.IsConflict(err) {
			return err
		}
	}
}

const (
	inUse      = "local: {pool: 10.20.0.0/28, subnet: 10.20.0.0/24, v6pool: {pool: 'fd20::/124', subnet: 'fd20::/64'}}"
	sevenInUse = "7 addresses in use by 7 Services (test/inuse1, test/inuse2, test/inuse3, test/inuse4, test/inuse5 " +
		"and 2 more)"
	threeInUse = "3 addresses in use by 3 Services (test/inuse5, test/inuse6, test/inuse7)"
	cure       = "annotate the ServiceGroup with purelb.io/allow-orphans=true, and they stay as they are until their " +
		"Services go"
	stay        = "they stay as they are until their Services go"
	outsidePool = " outside every pool: keep them in one, or " + cure
)

// updateRow is a change of the group of which seven Services have addresses .1 to .7.
type updateRow struct {
	name, spec string
	orphans    bool
	want       answer
}

func updateRows() []updateRow {
	forbidden := func(s string) answer { return answer{refused: []cause{{"spec", "Forbidden: " + s}}} }
	return []updateRow{
		{
			"the same in another form",
			"local: {v4pools: [{pool: 10.20.0.0-10.20.0.15, subnet: 10.20.0.0/24}], v6pool: {pool: 'fd20::/124', subnet: " +
				"'fd20::/64'}}",
			false, answer{},
		},
		{"larger", "local: {pool: 10.20.0.0/27, subnet: 10.20.0.0/24}", false, answer{}},
		{"the other family goes", "local: {pool: 10.20.0.0/28, subnet: 10.20.0.0/24}", false, answer{}},
		{
			"in two pieces",
			"local: {v4pools: [{pool: 10.20.0.1-10.20.0.4, subnet: 10.20.0.0/24}, {pool: 10.20.0.5-10.20.0.7, subnet: " +
				"10.20.0.0/24}]}",
			false, answer{},
		},
		{"without what is free", "local: {pool: 10.20.0.1-10.20.0.7, subnet: 10.20.0.0/24}", false, answer{}},
		{"another mask", "local: {pool: 10.20.0.0/28, subnet: 10.20.0.0/24, aggregation: /32}", false, answer{}},
		{"sharing", inUse + "\nshareAcrossNamespaces: true", false, answer{}},
		{"policy Local allowed", inUse + "\npolicyLocal: Allow", false, answer{}},
		{"for Services that name it", inUse + "\nautoAssign: false", false, answer{}},
		{"for other namespaces", inUse + "\nallowedNamespaces: {from: Selector, selector: {matchLabels: {tier: gold}}}",
			false,
			warns(
				"spec.allowedNamespaces: leaves out namespaces with " + sevenInUse +
					": they stay until their Services go or ask for another group",
			)},
		{"reserved for who has it", inUse + "\nreservations: [{address: 10.20.0.1, service: test/inuse1}]", false, answer{}},
		{"reserved for another one",
			inUse + "\nreservations: [{address: 10.20.0.9, service: test/inuse1}, {address: 10.20.0.1, service: test/web}]",
			false,
			refusedAt(
				"spec.reservations[1].address", "10.20.0.1",
				"is in use by Service test/inuse1: reserve another address, or let that Service ask for another one first",
			)},
		{
			"shrunk by what is in use", "local: {pool: 10.20.0.1-10.20.0.4, subnet: 10.20.0.0/24}", false,
			forbidden("leaves " + threeInUse + outsidePool),
		},
		{"shrunk by one", "local: {pool: 10.20.0.2-10.20.0.15, subnet: 10.20.0.0/24}", false,
			forbidden("leaves 1 address in use by 1 Service (test/inuse1)" + outsidePool)},
		{"a hole", "local: {v4pools: [{pool: 10.20.0.1-10.20.0.3, subnet: 10.20.0.0/24}, {pool: 10.20.0.5-10.20.0.7, " +
			"subnet: 10.20.0.0/24}]}", false,
			forbidden("leaves 1 address in use by 1 Service (test/inuse4)" + outsidePool)},
		{
			"moved", "local: {pool: 10.21.0.0/28, subnet: 10.21.0.0/24}", false, forbidden("leaves " + sevenInUse + outsidePool),
		},
		{
			"the family in use goes", "local: {v6pool: {pool: 'fd20::/124', subnet: 'fd20::/64'}}", false,
			forbidden("leaves " + sevenInUse + outsidePool),
		},
		{"another kind", "remote: {pool: 10.20.0.0/28, subnet: 10.20.0.0/24}", false,
			forbidden(
				"changes the group from local to remote with " + sevenInUse + ": make another ServiceGroup instead, or " + cure,
			)},
		{"another kind and moved", "remote: {pool: 10.21.0.0/28, subnet: 10.21.0.0/24}", false,
			forbidden(
				"changes the group from local to remote with " + sevenInUse + ": make another ServiceGroup instead, or " + cure,
			)},
		{"netbox", "netbox: {url: 'https://n.example', tenant: t, tokenSecretRef: {name: a, key: b}}", false, answer{
			refused: forbidden(
				"changes the group from local to netbox with " + sevenInUse + ": make another ServiceGroup instead, or " + cure,
			).refused,
		}},
		{"a mistake", "local: {pool: 10.20.0.9-10.20.0.1, subnet: 10.20.0.0/24}", false,
			refusedAt(
				"spec.local.pool", "10.20.0.9-10.20.0.1",
				"ends (10.20.0.1) before it starts (10.20.0.9); did you mean 10.20.0.1-10.20.0.9?",
			)},
		{"into another group",
			"local: {v4pools: [{pool: 10.20.0.0/28, subnet: 10.20.0.0/24}, {pool: 10.9.0.20, subnet: 10.9.0.0/24}]}", false,
			overlap("spec.local.v4pools[1].pool", "10.9.0.20", "10.9.0.20-10.9.0.20", "10.9.0.10-10.9.0.20", "taken")},
		{"host bits", "local: {pool: 10.20.0.1/28, subnet: 10.20.0.0/24}", false,
			warns("spec.local.pool: 10.20.0.1/28 has host bits: addresses are taken from 10.20.0.1-10.20.0.15")},
		{
			"shrunk, let be", "local: {pool: 10.20.0.1-10.20.0.4, subnet: 10.20.0.0/24}", true,
			warns("spec: leaves " + threeInUse + " outside every pool: " + stay),
		},
		{"another kind, let be", "remote: {pool: 10.20.0.0/28, subnet: 10.20.0.0/24}", true,
			warns("spec: changes the group from local to remote with " + sevenInUse + ": " + stay)},
		{"a mistake, let be", "local: {pool: 10.20.0.9-10.20.0.1, subnet: 10.20.0.0/24}", true,
			refusedAt(
				"spec.local.pool", "10.20.0.9-10.20.0.1",
				"ends (10.20.0.1) before it starts (10.20.0.9); did you mean 10.20.0.1-10.20.0.9?",
			)},
	}
}

// populate creates the group that is in use, and its seven Services.
func populate(t *testing.T, g *WithT) *unstructured.Unstructured {
	t.Helper()
	sg := group("inuse", inUse)
	create(t, sg)
	for i := 1; i <= 7; i++ {
		svc := service(fmt.Sprintf("inuse%d", i), "inuse", 80)
		create(t, svc)
		g.Eventually(func(g Gomega) []string { return ingressOf(g, svc.Name) }).
			Should(Equal([]string{fmt.Sprintf("10.20.0.%d", i)}))
		waitUntilCached(t, svc)
	}
	recorded.take()
	return sg
}

// inUseUnchanged checks that all Services keep what they have, once the manager has decided by what
// was written before: two Services that are made one after the other have been answered.
func inUseUnchanged(t *testing.T, g *WithT) {
	t.Helper()
	for range 2 {
		barrier := service("barrier", "none", 80)
		create(t, barrier)
		g.Eventually(func(g Gomega) string { return allocated(g, "barrier") }).
			Should(Equal("NoSuchGroup: there is no ServiceGroup none"))
		remove(t, barrier)
	}
	for i := 1; i <= 7; i++ {
		g.Expect(ingressOf(g, fmt.Sprintf("inuse%d", i))).To(Equal([]string{fmt.Sprintf("10.20.0.%d", i)}))
	}
}

func TestServiceGroupInUse(t *testing.T) {
	g := begin(t)
	ctx := context.Background()
	sg := populate(t, g)
	for _, row := range updateRows() {
		t.Run(row.name, func(t *testing.T) {
			g := NewWithT(t)
			change(t, sg, row.orphans, row.spec, row.want)
			if len(row.want.refused) > 0 {
				return
			}
			inUseUnchanged(t, g)
			g.Expect(update(ctx, sg, func(live *unstructured.Unstructured) { // back again, its kind too
				live.Object["spec"] = group("x", inUse).Object["spec"]
				live.SetAnnotations(map[string]string{v1.AnnotationAllowOrphans: "true"})
			})).To(Succeed())
			g.Expect(update(ctx, sg, func(live *unstructured.Unstructured) { live.SetAnnotations(nil) })).To(Succeed())
			waitUntilCached(t, sg)
		})
	}

	t.Run("metadata only", func(t *testing.T) {
		g := NewWithT(t)
		for _, mutate := range []func(*unstructured.Unstructured){
			func(u *unstructured.Unstructured) { u.SetLabels(map[string]string{"a": "b"}) },
			func(u *unstructured.Unstructured) { u.SetAnnotations(map[string]string{"a": "b"}) },
			func(u *unstructured.Unstructured) { u.SetFinalizers([]string{"example.com/a"}) },
			func(u *unstructured.Unstructured) { u.SetFinalizers(nil) },
		} {
			g.Expect(update(ctx, sg, mutate)).To(Succeed())
			g.Expect(recorded.take()).To(BeEmpty())
		}
	})

	t.Run("delete", func(t *testing.T) {
		g := NewWithT(t)
		for _, row := range deleteRows() {
			g.Expect(update(ctx, sg, func(live *unstructured.Unstructured) { live.SetAnnotations(row.annotations) })).
				To(Succeed())
			waitUntilCached(t, sg)
			recorded.take()
			check(t, api.Delete(ctx, sg.DeepCopy(), client.DryRunAll), row.want)
			check(t, api.Delete(ctx, sg.DeepCopy()), row.want)
		}
		g.Eventually(func() bool {
			return apierrors.IsNotFound(api.Get(ctx, client.ObjectKeyFromObject(sg),
				sg.DeepCopy()))
		}).Should(BeTrue())
		inUseUnchanged(t, g)
	})
}

const overrides = "spec.policyLocal: externalTrafficPolicy Local of 1 Service (test/keeps) is set to Cluster where " +
	"an address is Local or shared"

// TestServiceGroupPolicyLocal has two Services with policy Local, of which one leaves it to
// the group whether the policy stays.
func TestServiceGroupPolicyLocal(t *testing.T) {
	g := begin(t)
	const allow = "{local: {pool: 10.22.0.0/28, subnet: 10.22.0.0/24}, policyLocal: Allow}"
	const override = "{local: {pool: 10.22.0.0/28, subnet: 10.22.0.0/24}}"
	sg := group("allows", allow)
	create(t, sg)
	for _, name := range []string{"keeps", "insists"} {
		svc := service(name, "allows", 80)
		svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		if name == "insists" {
			svc.Annotations[v1.AnnotationAllowLocal] = "true"
		}
		create(t, svc)
		g.Eventually(func(g Gomega) []string { return ingressOf(g, name) }).Should(HaveLen(1))
		waitUntilCached(t, svc)
	}
	recorded.take()
	change(t, sg, false, override, warns(overrides))
	change(t, sg, false, "{local: {pool: 10.22.0.0/27, subnet: 10.22.0.0/24}, policyLocal: Override}", answer{})
	change(t, sg, false, allow, answer{})
}

const heldByAnother = "spec.reservations: 10.23.0.1, reserved for Service test/web, is in use by Service test/holds, " +
	"which keeps it until it goes or asks for another one"

// TestServiceGroupReservedInUse reserves, while the webhooks are away, an address that another
// Service has: the group says so, and each later change is warned of it.
func TestServiceGroupReservedInUse(t *testing.T) {
	g := begin(t)
	const spec = "{remote: {pool: 10.23.0.1-10.23.0.9, subnet: 10.23.0.0/24}"
	const reservation = ", reservations: [{address: 10.23.0.1, service: test/web}]"
	sg := group("reserves", spec+"}")
	create(t, sg)
	svc := service("holds", "reserves", 80)
	create(t, svc)
	g.Eventually(func(g Gomega) []string { return ingressOf(g, "holds") }).Should(Equal([]string{"10.23.0.1"}))
	waitUntilCached(t, svc)
	withoutWebhooks(t)
	g.Expect(update(context.Background(), sg, func(live *unstructured.Unstructured) {
		live.Object["spec"] = group("x", spec+reservation+"}").Object["spec"]
	})).To(Succeed())
	g.Eventually(ready(sg)).Should(Equal("True Accepted: 1 range; " + heldByAnother))
	withWebhooks(t)
	waitUntilCached(t, sg)
	change(t, sg, false, spec+reservation+", autoAssign: true}", warns(heldByAnother))
	g.Expect(ingressOf(g, "holds")).To(Equal([]string{"10.23.0.1"}))
}

type deleteRow struct {
	annotations map[string]string
	want        answer
}

func deleteRows() []deleteRow {
	refused := answer{forbidden: "leaves " + sevenInUse + outsidePool}
	return []deleteRow{
		{nil, refused},
		{map[string]string{v1.AnnotationAllowOrphans: "yes"}, refused},
		{
			map[string]string{v1.AnnotationAllowOrphans: "true"}, warns("leaves " + sevenInUse + " outside every pool: " + stay),
		},
	}
}

func TestServiceGroupDelete(t *testing.T) {
	begin(t)
	ctx := context.Background()

	t.Run("not in use", func(t *testing.T) {
		sg := group("x", "remote: {pool: 10.22.0.1, subnet: 10.22.0.0/24}")
		create(t, sg)
		check(t, api.Delete(ctx, sg, client.DryRunAll), answer{})
		check(t, api.Delete(ctx, sg), answer{})
	})
	t.Run("all at once", func(t *testing.T) {
		populate(t, NewWithT(t))
		err := api.DeleteAllOf(
			ctx, &v1.ServiceGroup{}, client.InNamespace(namespace), client.MatchingFields{"metadata.name": "inuse"},
		)
		check(t, err, deleteRows()[0].want)
	})
}

// TestWithoutWebhooks creates each faulty object of the table while there are no webhooks:
// the controllers report the same.
func TestWithoutWebhooks(t *testing.T) {
	g := begin(t)
	ctx := context.Background()
	withoutWebhooks(t)
	svc := service("unlucky", "x", 80)
	create(t, svc)

	judged := 0
	for _, row := range createRows() {
		if len(row.want.refused) == 0 {
			continue
		}
		sg := group("x", row.spec)
		if err := api.Create(ctx, sg); apierrors.IsInvalid(err) {
			continue // the CRD needs no webhook
		} else if err != nil {
			t.Fatal(err)
		}
		judged++
		t.Run(row.name, func(t *testing.T) {
			g := NewWithT(t)
			causes := make([]string, len(row.want.refused))
			for i, c := range row.want.refused {
				causes[i] = c.String()
			}
			message := strings.Join(causes, ", ")
			if len(causes) > 1 {
				message = "[" + message + "]"
			}
			g.Eventually(ready(sg)).Should(Or(Equal("False Invalid: "+message), Equal("False Overlap: "+message)))
			g.Expect(stalled(g, sg)).To(Equal(ready(sg)(g)[len("False "):]))
			g.Eventually(func(g Gomega) string { return allocated(g, svc.Name) }).
				Should(Equal("GroupNotReady: ServiceGroup x is not ready: " + message))
			g.Expect(ingressOf(g, svc.Name)).To(BeEmpty())
		})
		g.Expect(api.Delete(ctx, sg)).To(Succeed())
		g.Eventually(func(g Gomega) string { return allocated(g, svc.Name) }).
			Should(Equal("NoSuchGroup: there is no ServiceGroup x"))
	}
	if judged < 30 {
		t.Errorf("only %d faulty groups got in", judged)
	}

	t.Run("put right", func(t *testing.T) {
		g := NewWithT(t)
		sg := group("x", v4("10.0.0.9-10.0.0.1", "10.0.0.0/24"))
		create(t, sg)
		g.Eventually(ready(sg)).Should(HavePrefix("False Invalid: "))
		g.Expect(update(ctx, sg, func(live *unstructured.Unstructured) {
			live.Object["spec"] = group("x", v4("10.0.0.1/28", "10.0.0.0/24")).Object["spec"]
		})).To(Succeed())
		g.Eventually(ready(sg)).
			Should(Equal(
				"True Accepted: 1 range; spec.local.v4pools[0].pool: 10.0.0.1/28 has host bits: addresses are taken from " +
					"10.0.0.1-10.0.0.15",
			))
		g.Expect(stalled(g, sg)).To(BeEmpty())
	})
}

func ready(sg *unstructured.Unstructured) func(Gomega) string {
	return func(g Gomega) string {
		live := &v1.ServiceGroup{}
		g.Expect(api.Get(context.Background(), client.ObjectKeyFromObject(sg), live)).To(Succeed())
		c := meta.FindStatusCondition(live.Status.Conditions, v1.ConditionReady)
		g.Expect(c).NotTo(BeNil())
		return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
	}
}

func stalled(g Gomega, sg *unstructured.Unstructured) string {
	live := &v1.ServiceGroup{}
	g.Expect(api.Get(context.Background(), client.ObjectKeyFromObject(sg), live)).To(Succeed())
	c := meta.FindStatusCondition(live.Status.Conditions, v1.ConditionStalled)
	if c == nil {
		return ""
	}
	return fmt.Sprintf("%s: %s", c.Reason, c.Message)
}

// allocated returns why a Service waits.
func allocated(g Gomega, name string) string {
	svc := &corev1.Service{}
	g.Expect(api.Get(context.Background(), client.ObjectKey{Namespace: user, Name: name}, svc)).To(Succeed())
	c := meta.FindStatusCondition(svc.Status.Conditions, v1.ConditionAllocated)
	if c == nil {
		return ""
	}
	return fmt.Sprintf("%s: %s", c.Reason, c.Message)
}

// withoutWebhooks removes the webhook configuration until the test ends.
func withoutWebhooks(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	for _, w := range hooks.ValidatingWebhooks {
		g.Expect(client.IgnoreNotFound(api.Delete(context.Background(), w.DeepCopy()))).To(Succeed())
	}
	g.Eventually(createInvalidGroup).Should(Succeed())
	t.Cleanup(func() { withWebhooks(t) })
}

// withWebhooks puts the webhook configuration back.
func withWebhooks(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	for _, w := range hooks.ValidatingWebhooks {
		again := w.DeepCopy()
		again.ResourceVersion, again.UID = "", ""
		if err := api.Create(context.Background(), again); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	g.Eventually(createInvalidGroup).ShouldNot(Succeed())
	recorded.take()
}

// createInvalidGroup tries to create a group that the webhooks refuse.
func createInvalidGroup() error {
	return api.Create(context.Background(), group("bad", v4("x1", "10.0.0.0/24")), client.DryRunAll)
}
