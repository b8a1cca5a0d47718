package controllers

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// TestUnplacedReasonsOfManyServices has all addresses of a large cluster lose their nodes
// at once, while nothing reports yet: each Service is to say why, and once.
func TestUnplacedReasonsOfManyServices(t *testing.T) {
	const services = 5000
	synctest.Test(t, func(t *testing.T) {
		q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		defer q.ShutDown()
		reasons := &AddressExplanations{}
		if err := queueSource(&reasons.queue).Start(t.Context(), q); err != nil {
			t.Fatal(err)
		}
		var addresses []placement.Address
		for i := range services {
			a := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
			addresses = append(addresses, placement.Address{Addr: a, Services: []string{fmt.Sprintf("test/s%d", i)}})
		}
		for _, message := range []string{"all nodes are excluded", "no agent renews its Lease"} {
			why := map[netip.Addr]placement.Explanation{}
			for _, a := range addresses {
				why[a.Addr] = placement.Explanation{Reason: v1.ReasonNoEligibleNode, Message: message}
			}
			reasons.set(why, addresses, time.Now())
		}
		synctest.Wait()
		if q.Len() != services {
			t.Errorf("%d of %d Services report why their addresses have no node", q.Len(), services)
		}
		for range q.Len() {
			request, _ := q.Get()
			q.Done(request)
		}
		reasons.set(reasons.byAddress, addresses, time.Now())
		synctest.Wait()
		if q.Len() != 0 {
			t.Errorf("%d Services report once more what has not changed", q.Len())
		}
	})
}
