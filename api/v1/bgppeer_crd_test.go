package v1_test

import (
	"context"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestBGPPeerRules(t *testing.T) {
	connect(t)
	const minimal = "peerASN: 65000\nmyASN: 65001\n"
	at := minimal + "peerAddress: 192.0.2.1\n"
	for _, row := range []struct {
		name, spec string
		refused    []cause
	}{
		{"an address", at, nil},
		{"everything", at + `
nodeSelector: {matchLabels: {rack: a}, matchExpressions: [{key: x, operator: Exists}]}
passwordSecretRef: {name: router, key: password}
bfd: {interval: 100ms, multiplier: 5}
gracefulRestart: {restartTime: 2m}
holdTime: 90s
keepaliveTime: 30s
connectTime: 2s
port: 1179
sourceAddress: 192.0.2.11
ttlSecurity: true
families: [IPv4, IPv6]`, nil},
		{"four bytes of ASN", strings.Replace(at, "65000", "4294967294", 1), nil},
		{"AS_TRANS", strings.Replace(at, "65000", "23456", 1), []cause{{"spec.peerASN", "is reserved"}}},
		{"the last ASN of two bytes", strings.Replace(at, "65000", "65535", 1), []cause{{"spec.peerASN", "is reserved"}}},
		{"the last ASN", strings.Replace(at, "65000", "4294967295", 1), []cause{{"spec.peerASN", "is reserved"}}},
		{"own ASN that is reserved", strings.Replace(at, "65001", "23456", 1), []cause{{"spec.myASN", "is reserved"}}},
		{"connects too often", at + "connectTime: 1s", []cause{{"spec.connectTime", "must be from 2s to 10m"}}},
		{
			"TTL security with an internal one", strings.Replace(at, "65000", "Internal", 1) + "ttlSecurity: true",
			[]cause{{"spec.ttlSecurity", "is for external neighbours"}},
		},
		{
			"multihop to an internal one", strings.Replace(at, "65000", "Internal", 1) + "ebgpMultihop: 3",
			[]cause{{"spec.ebgpMultihop", "is for external neighbours"}},
		},
		{
			"multihop on an interface", minimal + "interface: eth1\nebgpMultihop: 3",
			[]cause{{"spec.ebgpMultihop", "is on the node's own link"}},
		},
		{
			"multicast", minimal + "peerAddress: 224.0.0.5",
			[]cause{{"spec.peerAddress", "must be the address of one host on the network"}},
		},
		{
			"link-local", minimal + "peerAddress: fe80::1",
			[]cause{{"spec.peerAddress", "of a neighbour with an IPv6 link-local address, name the interface"}},
		},
		{"link-local of IPv4", minimal + "peerAddress: 169.254.255.1", nil},
		{"source by its interface", at + "sourceInterface: lo", nil},
		{
			"source twice", at + "sourceInterface: lo\nsourceAddress: 192.0.2.11",
			[]cause{{"spec.sourceInterface", "exclude each other"}},
		},
		{
			"source of an unnumbered one", minimal + "interface: eth1\nsourceInterface: lo",
			[]cause{{"spec.sourceInterface", "from the interface's own link-local address"}},
		},
		{"any external", strings.Replace(at, "65000", "External", 1), nil},
		{"internal", strings.Replace(at, "65000", "Internal", 1), nil},
		{
			"ASN 0", strings.Replace(at, "65000", "0", 1),
			[]cause{{"spec.peerASN", "must be a number from 1 to 4294967295, External or Internal"}},
		},
		{
			"ASN too large", strings.Replace(at, "65000", "4294967296", 1), []cause{{"spec.peerASN", "must be a number from 1"}},
		},
		{
			"a number as text", strings.Replace(at, "65000", "'65000'", 1), []cause{{"spec.peerASN", "must be a number from 1"}},
		},
		{"another word", strings.Replace(at, "65000", "Any", 1), []cause{{"spec.peerASN", "must be a number from 1"}}},
		{"own ASN by label", "peerASN: 65000\nmyASNLabel: example.com/asn\ndiscover: DefaultGateway", nil},
		{"own ASN twice", at + "myASNLabel: asn", []cause{{"spec", "exactly one of myASN and myASNLabel"}}},
		{"no own ASN", "peerASN: 65000\npeerAddress: 192.0.2.1", []cause{{"spec", "exactly one of myASN and myASNLabel"}}},
		{"no neighbour", minimal, []cause{{"spec", "exactly one of peerAddress, interface and discover"}}},
		{
			"two neighbours", at + "discover: DefaultGateway",
			[]cause{{"spec", "exactly one of peerAddress, interface and discover"}},
		},
		{"unnumbered", minimal + "interface: eth1", nil},
		{
			"unnumbered with a password", minimal + "interface: eth1\npasswordSecretRef: {name: a, key: b}",
			[]cause{{"spec.passwordSecretRef", "cannot have a password"}},
		},
		{"no address", minimal + "peerAddress: router1", []cause{{"spec.peerAddress", "must be an IP address"}}},
		{
			"source of the other family", at + "sourceAddress: fd00::1",
			[]cause{{"spec.sourceAddress", "must be of the family of peerAddress"}},
		},
		{"multihop", at + "ebgpMultihop: 3", nil},
		{"multihop and BFD", at + "ebgpMultihop: 3\nbfd: {}", []cause{{"spec.bfd", "cannot be used with ebgpMultihop"}}},
		{
			"multihop and TTL security", at + "ebgpMultihop: 3\nttlSecurity: true",
			[]cause{{"spec.ttlSecurity", "exclude each other"}},
		},
		{"BFD too fast", at + "bfd: {interval: 10ms}", []cause{{"spec.bfd.interval", "must be from 50ms to 10s"}}},
		{"hold time too short", at + "holdTime: 2s", []cause{{"spec.holdTime", "must be from 3s to 18h"}}},
		{
			"keepalive too long", at + "holdTime: 9s\nkeepaliveTime: 5s",
			[]cause{{"spec.keepaliveTime", "at most half of holdTime"}},
		},
		{"no graceful restart", at + "gracefulRestart: {restartTime: 0s}", nil},
		{
			"restart for too long", at + "gracefulRestart: {restartTime: 2h}",
			[]cause{{"spec.gracefulRestart.restartTime", "must be 0s (off), or from 1s to 1h"}},
		},
		{"families twice", at + "families: [IPv4, IPv4]", []cause{{"spec.families[1]", "Duplicate"}}},
		{"no family", at + "families: []", []cause{{"spec.families", "at least 1"}}},
	} {
		t.Run(row.name, func(t *testing.T) { checkCreate(t, "BGPPeer", row.spec, row.refused) })
	}
}

func TestServiceGroupBGPRules(t *testing.T) {
	connect(t)
	group := func(bgp string) string {
		return "remote: {v4pools: [{pool: 192.0.2.0/28, subnet: 192.0.2.0/24}]}\nbgp: " + bgp
	}
	for _, row := range []struct {
		name, spec string
		refused    []cause
	}{
		{
			"everything",
			group(
				"{advertise: false, peers: [a, b], communities: ['65000:1', no-export], largeCommunities: ['4200000000:1:2'], " +
					"localPref: 200, med: 0, prepend: 3}",
			),
			nil,
		},
		{
			"a community that is none", group("{communities: [external]}"), []cause{{"spec.bgp.communities[0]", "should match"}},
		},
		{"a community too large", group("{communities: ['65536:1']}"), []cause{{"spec.bgp.communities[0]", "at most 65535"}}},
		{
			"a large community of two", group("{largeCommunities: ['1:2']}"),
			[]cause{{"spec.bgp.largeCommunities[0]", "should match"}},
		},
		{"no peers", group("{peers: []}"), []cause{{"spec.bgp.peers", "at least 1"}}},
		{"prepended too often", group("{prepend: 17}"), []cause{{"spec.bgp.prepend", "16"}}},
		{"MED too large", group("{med: 4294967296}"), []cause{{"spec.bgp.med", "4294967295"}}},
	} {
		t.Run(row.name, func(t *testing.T) { checkCreate(t, "ServiceGroup", row.spec, row.refused) })
	}
}

// checkCreate creates an object without storing it, and compares the answer.
func checkCreate(t *testing.T, kind, spec string, refused []cause) {
	t.Helper()
	checkRefused(t, api.Create(context.Background(), manifest(t, kind, spec), client.DryRunAll), refused)
}
