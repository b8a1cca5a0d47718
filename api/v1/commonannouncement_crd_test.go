package v1_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

func TestCommonAnnouncementRules(t *testing.T) {
	connect(t)
	const entry = "- {address: 10.0.0.%d, prefixLength: 32, interface: kube-lb0, type: Virtual, serviceGroup: default, " +
		"epoch: 1}"
	of := func(addresses string) string { return "lbNodeAgent: default\nrevision: 1\naddresses:\n" + addresses }
	for _, row := range []struct {
		name, spec string
		refused    []cause
	}{
		{"no addresses", "lbNodeAgent: default\nrevision: 1", nil},
		{"100 addresses", of(repeat(100, entry)), nil},
		{"101 addresses", of(repeat(101, entry)), []cause{{"spec.addresses", "at most 100 items"}}},
		{"no lbNodeAgent", "revision: 1", []cause{{"spec.lbNodeAgent", "Required"}}},
		{"no revision", "lbNodeAgent: default", []cause{{"spec.revision", "Required"}}},
		{"revision 0", "lbNodeAgent: default\nrevision: 0", []cause{{"spec.revision", "greater than or equal to 1"}}},
		{"a Local address", of(
			"- {address: 10.0.0.1, prefixLength: 32, interface: eth0, type: Local, serviceGroup: default}",
		),
			[]cause{{"spec.addresses", "only Virtual addresses are announced by all nodes"}}},
		{"an address that is none",
			of("- {address: 10.0.0, prefixLength: 32, interface: kube-lb0, type: Virtual, serviceGroup: default}"),
			[]cause{{"spec.addresses[0].address", "must be an IP address in canonical form"}}},
	} {
		t.Run(row.name, func(t *testing.T) {
			checkRefused(
				t, api.Create(context.Background(), manifest(t, "CommonAnnouncement", row.spec), client.DryRunAll), row.refused,
			)
		})
	}
}

func TestCommonAnnouncementAgent(t *testing.T) {
	connect(t)
	ctx := context.Background()
	for name, agent := range map[string]string{"one": "one", "one-2": "one", "two": "two"} {
		c := manifest(t, "CommonAnnouncement", "revision: 1\nlbNodeAgent: "+agent)
		c.SetName(name)
		if err := api.Create(ctx, c); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = api.Delete(ctx, c) })
	}
	t.Run("is selectable", func(t *testing.T) {
		var list v1.CommonAnnouncementList
		if err := api.List(ctx, &list, client.InNamespace(namespace),
			client.MatchingFields{"spec.lbNodeAgent": "one"}); err != nil {
			t.Fatal(err)
		}
		var names []string
		for i := range list.Items {
			names = append(names, list.Items[i].Name)
		}
		if diff := cmp.Diff([]string{"one", "one-2"}, names); diff != "" {
			t.Errorf("CommonAnnouncements of one (-want +got):\n%s", diff)
		}
	})
	t.Run("is immutable", func(t *testing.T) {
		c := &v1.CommonAnnouncement{}
		c.Namespace, c.Name = namespace, "one"
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"lbNodeAgent":"two"}}`))
		checkRefused(t, api.Patch(ctx, c, patch), []cause{{"spec.lbNodeAgent", "lbNodeAgent is immutable"}})
	})
}

// TestCommonAnnouncementTable shows how many addresses there are.
func TestCommonAnnouncementTable(t *testing.T) {
	connect(t)
	obj := manifest(t, "CommonAnnouncement", "lbNodeAgent: default\nrevision: 7\naddressCount: 2")
	if err := api.Create(context.Background(), obj); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = api.Delete(context.Background(), obj) })
	want := [][]string{{obj.GetName(), "default", "2", "7", ""}}
	columns := []string{"Name", "LBNodeAgent", "Addresses", "Revision", "Age"}
	if diff := cmp.Diff(want, table(t, "commonannouncements", columns)); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}
