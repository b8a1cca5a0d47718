package controllers

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

// TestFaultRestoredServices shows the allocator a Service that was given an address before the
// backup of the database, and another one after that. When the database is restored, the address
// that the Service then shows is in use, and the Service is no longer waited for.
func TestFaultRestoredServices(t *testing.T) {
	withAddress := func(version, addr string) *corev1.Service {
		svc := loadBalancer("web", func(svc *corev1.Service) { svc.UID, svc.ResourceVersion = "u", version })
		svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: addr}}
		record := allocation.Record{
			Addresses: []netip.Addr{netip.MustParseAddr(addr)}, Group: "default", Type: v1.PoolTypeRemote,
		}
		svc.Status.Conditions = []metav1.Condition{
			{Type: v1.ConditionAllocationRecord, Status: metav1.ConditionTrue, Message: record.String()},
		}
		return svc
	}
	before, after := withAddress("3000", "10.0.0.2"), withAddress("1000", "10.0.0.1")
	r, _ := allocator(t, oneAddress("default", "10.0.0.1-10.0.0.9"))
	q := &addedKeys{}
	r.index.observe(before)
	r.index.addPending(before, []netip.Addr{netip.MustParseAddr("10.0.0.3")})
	r.handleServiceUpdate(t.Context(), q, before, after)
	if r.index.knowsNewer(after) {
		t.Error("the Service waits for a version that is no more")
	}
	next := loadBalancer("next", func(svc *corev1.Service) { svc.UID, svc.ResourceVersion = types.UID("n"), "1001" })
	r.index.observe(next)
	inputs, _, err := allocationInputs(t.Context(), r.Client, r.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(r.index.allocate(next, inputs).Addresses); got != "[10.0.0.2]" {
		t.Errorf("the next Service gets %s", got)
	}
}

// addedKeys is a queue that notes the names of what is added, each once, and does nothing with it.
type addedKeys struct {
	queue
	names []string
}

func (q *addedKeys) Add(request reconcile.Request) {
	if !slices.Contains(q.names, request.Name) {
		q.names = append(q.names, request.Name)
	}
}
