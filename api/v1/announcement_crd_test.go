package v1_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// announcing is the spec of an Announcement with one address that has the given
// fields instead of, or beside, valid ones; name alone leaves a field out.
func announcing(fields ...string) string {
	all := map[string]string{
		"address": "10.0.0.1", "prefixLength": "24", "interface": "eth0", "type": "Local", "serviceGroup": "default",
	}
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		delete(all, name)
		if value != "" {
			all[name] = value
		}
	}
	var b strings.Builder
	b.WriteString("nodeName: node1\nlbNodeAgent: default\naddresses:\n- x: x\n")
	for name, value := range all {
		fmt.Fprintf(&b, "  %s: %s\n", name, strings.ReplaceAll(value, "\n", "\n    "))
	}
	return b.String()
}

// standingBy is the spec of an Announcement with standby for some addresses.
func standingBy(addresses, witnesses int, more string) string {
	spec := "nodeName: node2\nlbNodeAgent: default\n" + more +
		"\nstandby:\n  watched: {nodeName: node1, addresses: [10.0.0.1], macs: ['02:00:00:00:00:01']}\n  interface: eth0\n" +
		"  witnesses: ["
	for i := range witnesses {
		spec += fmt.Sprintf("{nodeName: w%d}, ", i)
	}
	spec += "]\n  addresses: ["
	for i := range addresses {
		spec += fmt.Sprintf(
			"{address: 10.0.0.%d, serviceGroup: default, epoch: 1, successors: [{nodeName: node2, epoch: 2}]}, ", i,
		)
	}
	return spec + "]"
}

func TestAnnouncementRules(t *testing.T) {
	connect(t)
	const (
		entry     = "spec.addresses[0]"
		canonical = "must be an IP address in canonical form"
	)
	addresses := func(n int) string {
		return "nodeName: node1\nlbNodeAgent: default\naddresses:\n" +
			repeat(n, "- {address: 10.0.0.%d, prefixLength: 24, interface: eth0, type: Local, serviceGroup: default}")
	}
	for _, row := range []struct {
		name, spec string
		refused    []cause
	}{
		{"no addresses", "nodeName: node1\nlbNodeAgent: default", nil},
		{"no nodeName", "lbNodeAgent: default", []cause{{"spec.nodeName", "Required"}}},
		{"empty nodeName", "nodeName: ''\nlbNodeAgent: default", []cause{{"spec.nodeName", "at least 1 char"}}},
		{
			"nodeName of 254", "nodeName: " + strings.Repeat("a", 254) + "\nlbNodeAgent: default",
			[]cause{{"spec.nodeName", "253"}},
		},
		{"no lbNodeAgent", "nodeName: node1", []cause{{"spec.lbNodeAgent", "Required"}}},
		{"empty lbNodeAgent", "nodeName: node1\nlbNodeAgent: ''", []cause{{"spec.lbNodeAgent", "at least 1 char"}}},
		{
			"lbNodeAgent of 64", "nodeName: node1\nlbNodeAgent: " + strings.Repeat("a", 64), []cause{{"spec.lbNodeAgent", "63"}},
		},
		{"heartbeat 60", "nodeName: node1\nlbNodeAgent: default\nheartbeatSeconds: 60", nil},
		{"heartbeat 0", "nodeName: node1\nlbNodeAgent: default\nheartbeatSeconds: 0",
			[]cause{{"spec.heartbeatSeconds", "greater than or equal to 1"}}},
		{"heartbeat 61", "nodeName: node1\nlbNodeAgent: default\nheartbeatSeconds: 61",
			[]cause{{"spec.heartbeatSeconds", "less than or equal to 60"}}},

		{"100 addresses", addresses(100), nil},
		{"101 addresses", addresses(101), []cause{{"spec.addresses", "100"}}},
		{"an address twice",
			announcing() + strings.ReplaceAll(announcing()[strings.Index(announcing(), "- x: x"):], "x: x", "y: y"),
			[]cause{{"spec.addresses[1]", "Duplicate"}}},

		{"IPv6", announcing("address: 'fd00::1'", "prefixLength: 128"), nil},
		{"no address", announcing("address"), []cause{{entry + ".address", "Required"}}},
		{"not an address", announcing("address: node1"), []cause{{entry + ".address", canonical}}},
		{"address with a mask", announcing("address: 10.0.0.1/24"), []cause{{entry + ".address", canonical}}},
		{"IPv6 with zeroes", announcing("address: 'fd00:0::1'"), []cause{{entry + ".address", canonical}}},
		{"IPv6 in capitals", announcing("address: 'FD00::1'"), []cause{{entry + ".address", canonical}}},
		{"IPv4-mapped", announcing("address: '::ffff:10.0.0.1'"), []cause{{entry + ".address", canonical}}},
		{"address of 40", announcing("address: " + strings.Repeat("f", 40)), []cause{{entry + ".address", "39"}}},
		{"the longest address", announcing("address: 'fd00:1111:1111:1111:1111:1111:1111:1111'"), nil},

		{"no prefixLength", announcing("prefixLength"), []cause{{entry + ".prefixLength", "Required"}}},
		{"prefixLength 0", announcing("prefixLength: 0"), []cause{{entry + ".prefixLength", "greater than or equal to 1"}}},
		{"prefixLength 32", announcing("prefixLength: 32"), nil},
		{
			"prefixLength 33 of IPv4", announcing("prefixLength: 33"),
			[]cause{{entry + ".prefixLength", "must be at most 32 for IPv4"}},
		},
		{"prefixLength 33 of IPv6", announcing("address: 'fd00::1'", "prefixLength: 33"), nil},
		{
			"prefixLength 129", announcing("address: 'fd00::1'", "prefixLength: 129"),
			[]cause{{entry + ".prefixLength", "less than or equal to 128"}},
		},

		{"standby", standingBy(1, 1, ""), nil},
		{"standby for 100 addresses", standingBy(100, 3, ""), nil},
		{"standby for 101 addresses", standingBy(101, 0, ""), []cause{{"spec.standby.addresses", "100"}}},
		{"standby for nothing", standingBy(0, 0, ""), []cause{{"spec.standby.addresses", "at least 1 item"}}},
		{"four witnesses", standingBy(1, 4, ""), []cause{{"spec.standby.witnesses", "3"}}},
		{"standby and addresses",
			standingBy(
				1, 1, "addresses: [{address: 10.0.0.1, prefixLength: 32, interface: eth0, type: Local, serviceGroup: default}]",
			),
			[]cause{{"spec.addresses", "an Announcement with standby announces no addresses"}}},

		{"two successors", announcing("successors: [{nodeName: node2, epoch: 2}, {nodeName: node3, epoch: 3}]"), nil},
		{
			"three successors",
			announcing("successors: [{nodeName: b, epoch: 2}, {nodeName: c, epoch: 3}, {nodeName: d, epoch: 4}]"),
			[]cause{{entry + ".successors", "at most 2 items"}},
		},
		{
			"a successor without a node", announcing("successors: [{epoch: 2}]"),
			[]cause{{entry + ".successors[0].nodeName", "Required"}},
		},
		{
			"a successor without an epoch", announcing("successors: [{nodeName: node2}]"),
			[]cause{{entry + ".successors[0].epoch", "Required"}},
		},
		{
			"a successor with epoch 0", announcing("successors: [{nodeName: node2, epoch: 0}]"),
			[]cause{{entry + ".successors[0].epoch", "greater than or equal to 1"}},
		},
		{
			"successors of a Virtual address", announcing("type: Virtual", "successors: [{nodeName: node2, epoch: 2}]"),
			[]cause{{entry + ".successors", "for Local addresses only"}},
		},

		{"contested", announcing("contestedBy: {nodeName: node2, epoch: 2}"), nil},
		{
			"contested without a node", announcing("contestedBy: {epoch: 2}"),
			[]cause{{entry + ".contestedBy.nodeName", "Required"}},
		},
		{
			"contested without an epoch", announcing("contestedBy: {nodeName: node2}"),
			[]cause{{entry + ".contestedBy.epoch", "Required"}},
		},
		{
			"contested Virtual address", announcing("type: Virtual", "contestedBy: {nodeName: node2, epoch: 2}"),
			[]cause{{entry + ".contestedBy", "for Local addresses only"}},
		},
		{
			"16 successors of the node",
			"nodeName: node1\nlbNodeAgent: default\nsuccessors:\n" + repeat(16, "- {nodeName: n%d}"), nil,
		},
		{
			"17 successors of the node",
			"nodeName: node1\nlbNodeAgent: default\nsuccessors:\n" + repeat(17, "- {nodeName: n%d}"),
			[]cause{{"spec.successors", "16"}},
		},
		{
			"a successor of the node twice",
			"nodeName: node1\nlbNodeAgent: default\nsuccessors: [{nodeName: node2}, {nodeName: node2}]",
			[]cause{{"spec.successors[1]", "Duplicate"}},
		},

		{"no interface", announcing("interface"), []cause{{entry + ".interface", "Required"}}},
		{"interface of 16", announcing("interface: abcdefghijklmnop"), []cause{{entry + ".interface", "15"}}},
		{"interface with a colon", announcing("interface: 'eth0:0'"), []cause{{entry + ".interface", "should match"}}},
		{"no type", announcing("type"), []cause{{entry + ".type", "Required"}}},
		{"type", announcing("type: Remote"), []cause{{entry + ".type", `supported values: "Local", "Virtual"`}}},
		{"no serviceGroup", announcing("serviceGroup"), []cause{{entry + ".serviceGroup", "Required"}}},
		{
			"serviceGroup of 254", announcing("serviceGroup: " + strings.Repeat("a", 254)),
			[]cause{{entry + ".serviceGroup", "253"}},
		},

		{"100 services", announcing("services: [" + repeat(100, "a/%d,") + "]"), nil},
		{"101 services", announcing("services: [" + repeat(101, "a/%d,") + "]"), []cause{{entry + ".services", "100"}}},
		{
			"service of 318", announcing("services: [" + strings.Repeat("a", 318) + "]"),
			[]cause{{entry + ".services[0]", "317"}},
		},
		{"claim Takeover", announcing("claimPolicy: Takeover"), nil},
		{
			"claim", announcing("claimPolicy: Steal"),
			[]cause{{entry + ".claimPolicy", `supported values: "Probe", "Takeover"`}},
		},
		{"handed over", announcing("handingOver: true"), nil},
		{"64 MACs", announcing("previousMACs: [" + repeat(64, "m%d,") + "]"), nil},
		{"65 MACs", announcing("previousMACs: [" + repeat(65, "m%d,") + "]"), []cause{{entry + ".previousMACs", "64"}}},
		{
			"MAC of 65", announcing("previousMACs: [" + strings.Repeat("a", 65) + "]"),
			[]cause{{entry + ".previousMACs[0]", "64"}},
		},
		{"epoch negative", announcing("epoch: -1"), []cause{{entry + ".epoch", "greater than or equal to 0"}}},

		{"Virtual", announcing("type: Virtual"), nil},
		{
			"Virtual, taken over", announcing("type: Virtual", "claimPolicy: Takeover"),
			[]cause{{entry, "for Local addresses only"}},
		},
		{
			"Virtual, handed over", announcing("type: Virtual", "handingOver: true"),
			[]cause{{entry, "for Local addresses only"}},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			err := api.Create(context.Background(), manifest(t, "Announcement", row.spec), client.DryRunAll)
			checkRefused(t, err, row.refused)
		})
	}
	t.Run("no spec", func(t *testing.T) {
		a := manifest(t, "Announcement", "{}")
		unstructured.RemoveNestedField(a.Object, "spec")
		checkRefused(t, api.Create(context.Background(), a, client.DryRunAll), []cause{{"spec", "Required"}})
	})
	t.Run("defaults", func(t *testing.T) {
		a := manifest(t, "Announcement", announcing())
		if err := api.Create(context.Background(), a, client.DryRunAll); err != nil {
			t.Fatal(err)
		}
		want := map[string]any{
			"nodeName": "node1", "lbNodeAgent": "default", "heartbeatSeconds": int64(10),
			"addresses": []any{map[string]any{
				"address": "10.0.0.1", "prefixLength": int64(24), "interface": "eth0", "type": "Local", "serviceGroup": "default",
				"claimPolicy": "Probe", "handingOver": false,
			}},
		}
		if diff := cmp.Diff(want, a.Object["spec"]); diff != "" {
			t.Errorf("spec (-want +got):\n%s", diff)
		}
	})
}

func TestAnnouncementNode(t *testing.T) {
	connect(t)
	ctx := context.Background()
	for _, name := range []string{"node1", "node1-2", "node2"} {
		a := manifest(t, "Announcement", "nodeName: "+name[:5]+"\nlbNodeAgent: default")
		a.SetName(name)
		if err := api.Create(ctx, a); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = api.Delete(ctx, a) })
	}

	t.Run("is selectable", func(t *testing.T) {
		var list v1.AnnouncementList
		if err := api.List(ctx, &list, client.InNamespace(namespace),
			client.MatchingFields{"spec.nodeName": "node1"}); err != nil {
			t.Fatal(err)
		}
		var names []string
		for i := range list.Items {
			names = append(names, list.Items[i].Name)
		}
		if diff := cmp.Diff([]string{"node1", "node1-2"}, names); diff != "" {
			t.Errorf("Announcements of node1 (-want +got):\n%s", diff)
		}
	})
	t.Run("is immutable", func(t *testing.T) {
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"nodeName":"node2"}}`))
		a := &v1.Announcement{}
		a.Namespace, a.Name = namespace, "node1"
		checkRefused(t, api.Patch(ctx, a, patch), []cause{{"spec.nodeName", "nodeName is immutable"}})
	})
	t.Run("lbNodeAgent is not", func(t *testing.T) {
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"lbNodeAgent":"other"}}`))
		a := &v1.Announcement{}
		a.Namespace, a.Name = namespace, "node1"
		checkRefused(t, api.Patch(ctx, a, patch), nil)
	})
}
