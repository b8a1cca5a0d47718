package controllers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/internal/revision"
)

// leaseReader answers each request for a Lease with the next of some versions. An empty one is
// no answer.
type leaseReader struct {
	client.Reader
	versions []string
	requests int
}

func (r *leaseReader) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	version := r.versions[min(r.requests, len(r.versions)-1)]
	r.requests++
	if version == "" || key.Name != "manager.purelb.io" {
		return errors.New("connection refused")
	}
	obj.SetResourceVersion(version)
	return nil
}

// TestFaultRestoredDatabaseEndsManager has the version of the leader's Lease fall.
func TestFaultRestoredDatabaseEndsManager(t *testing.T) {
	for name, row := range map[string]struct {
		versions []string
		took     time.Duration // until the manager ends; 0 is never
	}{
		"restored":             {[]string{"3000", "3001", "3001", "1000"}, 3 * restoreInterval},
		"away, then restored":  {[]string{"3000", "", "", "", "", "999"}, 5 * restoreInterval},
		"away":                 {[]string{"", "", "3000", "", "", "3000"}, 0},
		"written all the time": {[]string{"3000", "3002", "3004", "10000"}, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			begun := time.Now()
			err := (&EndWhenRestored{Reader: &leaseReader{versions: row.versions}, Lease: client.ObjectKey{Namespace: "purelb-system", Name: "manager.purelb.io"}}).Start(ctx)
			want := row.took
			if want == 0 {
				want = time.Hour
			}
			if took := time.Since(begun); errors.Is(err, revision.ErrRestored) != (row.took != 0) || took != want {
				t.Errorf("%s: %v after %s", name, err, took)
			}
		})
	}
}

// TestFaultRestoredServices shows the allocator a Service that was given an address before the
// backup of the database, and another one after that. When the database is restored, the address
// that the Service then shows is in use, and the Service is no longer waited for.
func TestFaultRestoredServices(t *testing.T) {
	withAddress := func(version, addr string) *corev1.Service {
		svc := loadBalancer("web", func(svc *corev1.Service) { svc.UID, svc.ResourceVersion = "u", version })
		svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: addr}}
		record := allocation.Record{Addresses: []netip.Addr{netip.MustParseAddr(addr)}, Group: "default", Type: v1.PoolTypeRemote}
		svc.Status.Conditions = []metav1.Condition{{Type: v1.ConditionRecord, Status: metav1.ConditionTrue, Message: record.String()}}
		return svc
	}
	before, after := withAddress("3000", "10.0.0.2"), withAddress("1000", "10.0.0.1")
	r, _ := allocator(t, oneAddress("default", "10.0.0.1-10.0.0.9"))
	q := &addedKeys{}
	r.index.observe(before)
	r.index.addPending(before, []netip.Addr{netip.MustParseAddr("10.0.0.3")})
	r.indexChange(q, before, after)
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

// addedKeys is a queue that takes what is added, and does nothing with it.
type addedKeys struct{ queue }

func (q *addedKeys) Add(reconcile.Request) {}
