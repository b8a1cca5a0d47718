package apiserver_test

import (
	"fmt"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/purelb/purelb-operator/test/sim/apiserver"
)

func benchmarkServer(b *testing.B) *apiserver.Client {
	b.Helper()
	server, err := apiserver.NewCluster()
	if err != nil {
		b.Fatal(err)
	}
	return server.NewClient(nil, nil)
}

// BenchmarkRenewal renews a Lease, which each node does each second.
func BenchmarkRenewal(b *testing.B) {
	c := benchmarkServer(b)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "node1"}}
	if err := c.Create(b.Context(), lease); err != nil {
		b.Fatal(err)
	}
	at := time.Unix(1_800_000_000, 0)
	for b.Loop() {
		at = at.Add(time.Second)
		patch := fmt.Sprintf(`{"spec":{"renewTime":%q}}`, at.UTC().Format(metav1.RFC3339Micro))
		if err := c.Patch(b.Context(), lease, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkReport applies the status of an Announcement of three addresses, one of which changes.
func BenchmarkReport(b *testing.B) {
	c := benchmarkServer(b)
	a := announcement("a")
	if err := c.Create(b.Context(), a); err != nil {
		b.Fatal(err)
	}
	epoch := int64(0)
	for b.Loop() {
		epoch++
		addresses := []any{}
		for i := range 3 {
			addresses = append(
				addresses,
				map[string]any{
					"address": fmt.Sprintf("192.0.2.%d", i+1), "state": "Announced", "epoch": int64(1),
					"lastTransitionTime": "2026-01-02T03:04:05Z",
				},
			)
		}
		addresses[1].(map[string]any)["epoch"] = epoch
		u := statusOf(
			"Announcement", a,
			map[string]any{
				"announced": int64(3), "desired": int64(3), "addresses": addresses, "conditions": []any{condition("Ready", "True")},
			},
		)
		u.Object = runtime.DeepCopyJSON(u.Object)
		if err := c.Status().Apply(
			b.Context(), client.ApplyConfigurationFromUnstructured(u), client.FieldOwner("agent"), client.ForceOwnership,
		); err != nil {
			b.Fatal(err)
		}
	}
}
