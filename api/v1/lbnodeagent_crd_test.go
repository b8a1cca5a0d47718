package v1_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestLBNodeAgentRules(t *testing.T) {
	connect(t)
	duration := func(field, value string) string {
		group, name, _ := strings.Cut(field, ".")
		return fmt.Sprintf("local: {%s: {%s: %q}}", group, name, value)
	}
	const (
		garpDelay    = "spec.local.garpConfig.initialDelay"
		garpInterval = "spec.local.garpConfig.interval"
		probeWait    = "spec.local.probeConfig.interval"
		onLocal      = "spec.local.addressConfig.localInterface"
		onDummy      = "spec.local.addressConfig.dummyInterface"
	)
	lifetimes := func(where, valid, preferred string) string {
		return fmt.Sprintf(
			"local: {addressConfig: {%s: {validLifetime: %s, preferredLifetime: %s}}}", where, valid, preferred,
		)
	}
	for _, row := range []struct {
		name, spec string
		refused    []cause
	}{
		{"nothing", "{}", nil},
		{"everything", `
nodeSelector: {rack: a}
local:
  localInterface: en.*|eth0
  interfaces: [bond0, bond0.100]
  dummyInterface: kube-lb1
  garpConfig: {enabled: true, initialDelay: 1s, count: 1, interval: 100ms}
  probeConfig: {enabled: false, count: 10, interval: 5s}
  addressConfig:
    localInterface: {validLifetime: 60, preferredLifetime: 60, noPrefixRoute: true}
    dummyInterface: {validLifetime: 2147483647, preferredLifetime: 0, noPrefixRoute: true}
image: purelb.io/purelb:dev
imagePullPolicy: Never
resources: {}
tolerations: [{operator: Exists}]
priorityClassName: low
onUnschedulable: HandOver
logLevel: debug`, nil},
		{"onUnschedulable: Drain", "onUnschedulable: Drain", []cause{{"spec.onUnschedulable", `"Ignore", "HandOver"`}}},

		{"16 labels", "nodeSelector:\n" + repeat(16, "  l%d: a"), nil},
		{"17 labels", "nodeSelector:\n" + repeat(17, "  l%d: a"), []cause{{"spec.nodeSelector", "16"}}},

		{"localInterface empty", "local: {localInterface: ''}", []cause{{"spec.local.localInterface", "at least 1 char"}}},
		{"localInterface of 256", "local: {localInterface: " + strings.Repeat("a", 256) + "}", nil},
		{
			"localInterface of 257", "local: {localInterface: " + strings.Repeat("a", 257) + "}",
			[]cause{{"spec.local.localInterface", "256"}},
		},
		{"an interface with a slash", "local: {interfaces: [a/b]}", []cause{{"spec.local.interfaces[0]", "should match"}}},
		{"an interface with a space", "local: {interfaces: ['a b']}", []cause{{"spec.local.interfaces[0]", "should match"}}},
		{"an alias", "local: {interfaces: ['eth0:1']}", []cause{{"spec.local.interfaces[0]", "should match"}}},
		{"an interface of 15", "local: {interfaces: [abcdefghijklmno]}", nil},
		{"an interface of 16", "local: {interfaces: [abcdefghijklmnop]}", []cause{{"spec.local.interfaces[0]", "15"}}},
		{"an interface twice", "local: {interfaces: [eth0, eth0]}", []cause{{"spec.local.interfaces[1]", "Duplicate"}}},
		{"32 interfaces", "local:\n  interfaces:\n" + repeat(32, "  - eth%d"), nil},
		{"33 interfaces", "local:\n  interfaces:\n" + repeat(33, "  - eth%d"), []cause{{"spec.local.interfaces", "32"}}},
		{"subnets", "local: {subnets: [192.168.1.0/24, 'fd00:1::/64']}", nil},
		{
			"a subnet with host bits", "local: {subnets: [192.168.1.1/24]}",
			[]cause{{"spec.local.subnets[0]", "beyond its prefix length"}},
		},
		{
			"a subnet that is none", "local: {subnets: [rack-a]}",
			[]cause{{"spec.local.subnets[0]", "must be a subnet in CIDR form"}},
		},
		{"a subnet twice", "local: {subnets: [10.0.0.0/8, 10.0.0.0/8]}", []cause{{"spec.local.subnets[1]", "Duplicate"}}},
		{"64 subnets", "local:\n  subnets:\n" + repeat(64, "  - 10.0.%d.0/24"), nil},
		{"65 subnets", "local:\n  subnets:\n" + repeat(65, "  - 10.0.%d.0/24"), []cause{{"spec.local.subnets", "64"}}},
		{"dummyInterface empty", "local: {dummyInterface: ''}",
			[]cause{{"spec.local.dummyInterface", "at least 1 char"}}},
		{"dummyInterface of 16", "local: {dummyInterface: abcdefghijklmnop}", []cause{{"spec.local.dummyInterface", "15"}}},

		{"GARP delay 0s", duration("garpConfig.initialDelay", "0s"), nil},
		{"GARP delay 10s", duration("garpConfig.initialDelay", "10s"), nil},
		{"GARP delay negative", duration("garpConfig.initialDelay", "-1s"), []cause{{garpDelay, "must be from 0s to 10s"}}},
		{
			"GARP delay 10.001s", duration("garpConfig.initialDelay", "10001ms"), []cause{{garpDelay, "must be from 0s to 10s"}},
		},
		{
			"GARP delay is no duration", duration("garpConfig.initialDelay", "soon"),
			[]cause{{garpDelay, "must be from 0s to 10s"}},
		},
		{
			"GARP delay without a unit", duration("garpConfig.initialDelay", "5"),
			[]cause{{garpDelay, "must be from 0s to 10s"}},
		},
		{"GARP delay too long a text", duration("garpConfig.initialDelay", "00000000000000001s"), []cause{{garpDelay, "16"}}},
		{"GARP interval 100ms", duration("garpConfig.interval", "100ms"), nil},
		{"GARP interval 10s", duration("garpConfig.interval", "10s"), nil},
		{"GARP interval 99ms", duration("garpConfig.interval", "99ms"), []cause{{garpInterval, "must be from 100ms to 10s"}}},
		{"GARP interval 11s", duration("garpConfig.interval", "11s"), []cause{{garpInterval, "must be from 100ms to 10s"}}},
		{
			"GARP interval is no duration", duration("garpConfig.interval", "fast"),
			[]cause{{garpInterval, "must be from 100ms to 10s"}},
		},
		{
			"GARP count 0", "local: {garpConfig: {count: 0}}",
			[]cause{{"spec.local.garpConfig.count", "greater than or equal to 1"}},
		},
		{
			"GARP count 11", "local: {garpConfig: {count: 11}}",
			[]cause{{"spec.local.garpConfig.count", "less than or equal to 10"}},
		},
		{"GARP off", "local: {garpConfig: {enabled: false}}", nil},

		{"probe interval 10ms", duration("probeConfig.interval", "10ms"), nil},
		{"probe interval 5s", duration("probeConfig.interval", "5s"), nil},
		{"probe interval 9ms", duration("probeConfig.interval", "9ms"), []cause{{probeWait, "must be from 10ms to 5s"}}},
		{"probe interval 5.1s", duration("probeConfig.interval", "5.1s"), []cause{{probeWait, "must be from 10ms to 5s"}}},
		{
			"probe interval is no duration", duration("probeConfig.interval", ""),
			[]cause{{probeWait, "must be from 10ms to 5s"}},
		},
		{
			"probe count 0", "local: {probeConfig: {count: 0}}",
			[]cause{{"spec.local.probeConfig.count", "greater than or equal to 1"}},
		},
		{
			"probe count 11", "local: {probeConfig: {count: 11}}",
			[]cause{{"spec.local.probeConfig.count", "less than or equal to 10"}},
		},

		{"failover", "local: {failover: {enabled: false, interval: 50ms, misses: 3, trust: Echo}}", nil},
		{"failover at its slowest", "local: {failover: {interval: 10s, misses: 20, trust: All}}", nil},
		{
			"failover interval 49ms", duration("failover.interval", "49ms"),
			[]cause{{"spec.local.failover.interval", "must be from 50ms to 10s"}},
		},
		{
			"failover interval 10.1s", duration("failover.interval", "10.1s"),
			[]cause{{"spec.local.failover.interval", "must be from 50ms to 10s"}},
		},
		{
			"failover misses 2", "local: {failover: {misses: 2}}",
			[]cause{{"spec.local.failover.misses", "greater than or equal to 3"}},
		},
		{
			"failover misses 21", "local: {failover: {misses: 21}}",
			[]cause{{"spec.local.failover.misses", "less than or equal to 20"}},
		},
		{
			"failover trust", "local: {failover: {trust: Nobody}}",
			[]cause{{"spec.local.failover.trust", `supported values: "All", "Echo"`}},
		},

		{"lifetimes forever", lifetimes("localInterface", "0", "0"), nil},
		{"lifetimes of a minute", lifetimes("dummyInterface", "60", "60"), nil},
		{"preferred within forever", lifetimes("localInterface", "0", "300"), nil},
		{"preferred as valid", lifetimes("localInterface", "300", "0"), nil},
		{"valid 59", lifetimes("localInterface", "59", "0"), []cause{{onLocal + ".validLifetime", "at least 60 seconds"}}},
		{
			"preferred 59", lifetimes("dummyInterface", "300", "59"),
			[]cause{{onDummy + ".preferredLifetime", "at least 60 seconds"}},
		},
		{
			"preferred beyond valid", lifetimes("localInterface", "300", "301"),
			[]cause{{onLocal + ".preferredLifetime", "must not be longer than validLifetime"}},
		},
		{"valid negative", lifetimes("localInterface", "-1", "-1"),
			[]cause{{onLocal + ".validLifetime", "greater than or equal to 0"}, {
				onLocal + ".validLifetime", "at least 60 seconds",
			},
				{onLocal + ".preferredLifetime", "greater than or equal to 0"}, {
					onLocal + ".preferredLifetime", "at least 60 seconds",
				}}},
		{"valid beyond 31 bits", lifetimes("localInterface", "2147483648", "0"),
			[]cause{
				{"<nil>", "format int32 in " + onLocal + ".validLifetime"},
				{onLocal + ".validLifetime", "less than or equal to 2147483647"},
			}},
		{"preferred negative", lifetimes("localInterface", "60", "-1"),
			[]cause{
				{onLocal + ".preferredLifetime", "greater than or equal to 0"},
				{onLocal + ".preferredLifetime", "at least 60 seconds"},
			}},

		{"image of 513", "image: " + strings.Repeat("a", 513), []cause{{"spec.image", "512"}}},
		{
			"imagePullPolicy", "imagePullPolicy: Sometimes",
			[]cause{{"spec.imagePullPolicy", `supported values: "Always", "IfNotPresent", "Never"`}},
		},
		{
			"33 tolerations", "tolerations:\n" + repeat(33, "- {key: k%d, operator: Exists}"),
			[]cause{{"spec.tolerations", "32"}},
		},
		{
			"priorityClassName of 254", "priorityClassName: " + strings.Repeat("a", 254),
			[]cause{{"spec.priorityClassName", "253"}},
		},
		{"logLevel", "logLevel: trace", []cause{{"spec.logLevel", `supported values: "error", "info", "debug"`}}},
	} {
		t.Run(row.name, func(t *testing.T) {
			err := api.Create(context.Background(), manifest(t, "LBNodeAgent", row.spec), client.DryRunAll)
			checkRefused(t, err, row.refused)
		})
	}

	t.Run("name of 63", func(t *testing.T) {
		agent := manifest(t, "LBNodeAgent", "{}")
		agent.SetName(strings.Repeat("a", 63))
		checkRefused(t, api.Create(context.Background(), agent, client.DryRunAll), nil)
	})
	t.Run("name of 64", func(t *testing.T) {
		agent := manifest(t, "LBNodeAgent", "{}")
		agent.SetName(strings.Repeat("a", 64))
		checkRefused(
			t, api.Create(context.Background(), agent, client.DryRunAll), []cause{{"<nil>", "at most 63 characters"}},
		)
	})
}

func TestLBNodeAgentDefaults(t *testing.T) {
	connect(t)
	defaults := func(local map[string]any) map[string]any {
		return map[string]any{
			"local":             local,
			"logLevel":          "info",
			"onUnschedulable":   "Ignore",
			"priorityClassName": "system-node-critical",
			"resources": map[string]any{
				"requests": map[string]any{"cpu": "10m", "memory": "32Mi"},
				"limits":   map[string]any{"memory": "128Mi"},
			},
		}
	}
	local := func() map[string]any {
		return map[string]any{
			"localInterface": "default",
			"dummyInterface": "kube-lb0",
			"garpConfig":     map[string]any{"enabled": true, "initialDelay": "0s", "count": int64(3), "interval": "500ms"},
			"probeConfig":    map[string]any{"enabled": true, "count": int64(2), "interval": "100ms"},
			"addressConfig": map[string]any{
				"localInterface": map[string]any{
					"validLifetime": int64(300), "preferredLifetime": int64(300), "noPrefixRoute": true,
				},
				"dummyInterface": map[string]any{"validLifetime": int64(0), "preferredLifetime": int64(0), "noPrefixRoute": false},
			},
		}
	}
	garp := local()
	garp["garpConfig"].(map[string]any)["count"] = int64(1)
	// Lifetimes are only defaulted together: half a pair may contradict the
	// default of the other half.
	lifetime := local()
	lifetime["addressConfig"].(map[string]any)["localInterface"] = map[string]any{"validLifetime": int64(120)}

	for _, row := range []struct {
		name, spec string
		want       map[string]any
	}{
		{"empty spec", "{}", defaults(local())},
		{"empty local", "local: {}", defaults(local())},
		{"one field of garpConfig", "local: {garpConfig: {count: 1}}", defaults(garp)},
		{"one lifetime", "local: {addressConfig: {localInterface: {validLifetime: 120}}}", defaults(lifetime)},
	} {
		t.Run(row.name, func(t *testing.T) {
			agent := manifest(t, "LBNodeAgent", row.spec)
			if err := api.Create(context.Background(), agent, client.DryRunAll); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(row.want, agent.Object["spec"]); diff != "" {
				t.Errorf("spec (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("no spec", func(t *testing.T) {
		agent := manifest(t, "LBNodeAgent", "{}")
		unstructured.RemoveNestedField(agent.Object, "spec")
		if err := api.Create(context.Background(), agent, client.DryRunAll); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(defaults(local()), agent.Object["spec"]); diff != "" {
			t.Errorf("spec (-want +got):\n%s", diff)
		}
	})
}
