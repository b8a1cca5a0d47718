package controllers_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/purelb/purelb-operator/test/seeds"
)

// killings is how often TestFaultNetboxKilled kills the manager.
const killings = 50

// TestFaultNetboxKilled kills the manager at random between its request to NetBox and the
// write of the address to the Service, and at other moments: no address leaks, and none is
// allocated twice.
func TestFaultNetboxKilled(t *testing.T) {
	w := newExternalWorld(t)
	w.prefix("10.50.0.0/24")
	w.prefix("fd00:50::/64")
	w.start()
	w.group("killed", "v4: {prefixes: [10.50.0.0/24]}, v6: {prefixes: ['fd00:50::/64']}")
	w.Eventually(w.addresses(w.service("first", "killed"))).Should(HaveLen(1))

	random := rand.New(rand.NewPCG(seeds.First(t), 5))
	moments := map[string]int{}
	// Fewer Services are deleted than the manager releases without a person having looked.
	const deletions = 8
	deleted := map[string]bool{}
	var alive []*corev1.Service
	removeSometimes := func() {
		if len(alive) == 0 || len(deleted) == deletions || random.IntN(6) != 0 {
			return
		}
		i := random.IntN(len(alive))
		deleted[alive[i].Name] = true
		w.remove(alive[i])
		alive = append(alive[:i], alive[i+1:]...)
	}
	rounds := killings
	if testing.Short() { // with the race detector
		rounds /= 5
	}
	for round := range rounds {
		moment, after := w.armKill(random)
		moments[moment]++
		for n := range 1 + random.IntN(3) {
			change := func(*corev1.Service) {}
			if random.IntN(2) == 0 {
				change = requireDual
			}
			alive = append(alive, w.service(fmt.Sprintf("killed-%d-%d", round, n), "killed", change))
		}
		removeSometimes() // the release may meet the kill
		waitForDeath(w, after)
		w.kill()
		removeSometimes()
		w.netbox.SetFaults(nil, nil)
		w.setOnWrite(nil)
		w.start()
	}
	t.Logf("killed: %v", moments)
	var holders map[string]string
	w.Eventually(func(g Gomega) { holders = w.holders(g) }).Should(Succeed())
	for a, name := range w.recorded() {
		if holder, isHeld := holders[a]; isHeld && holder != name {
			t.Errorf("%s is recorded as that of %s, and %s has it", a, name, holder)
		}
	}
	for a, name := range holders {
		if w.recorded()[a] != name {
			t.Errorf("%s of %s is recorded as that of %q", a, name, w.recorded()[a])
		}
	}
	for a, name := range w.recorded() {
		if holders[a] == "" && !deleted[name] {
			t.Errorf("%s is recorded as that of %s, which has another address", a, name)
		}
	}
	t.Logf("%d addresses in use; %d more are recorded, of the %d Services that were deleted while no manager ran or as "+
		"it was killed",
		len(holders), len(w.recorded())-len(holders), len(deleted))
	w.pass(11*time.Minute, "killed")
	w.pass(11*time.Minute, "killed")
	w.Eventually(w.recorded).Should(Equal(holders), "what is recorded is what Services have")
}

// waitForDeath waits until the manager has been killed, or has nothing to do.
func waitForDeath(w *externalWorld, after time.Duration) {
	deadline := time.Now().Add(after)
	for !w.isDead.Load() && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
}

func (w *externalWorld) setOnWrite(f func(isDone bool)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.onWrite = f
}

// armKill chooses when the manager dies. It returns the name of the moment, and how long to
// wait for it at most.
func (w *externalWorld) armKill(random *rand.Rand) (moment string, after time.Duration) {
	var left atomic.Int32
	left.Store(int32(1 + random.IntN(3)))
	die := w.death()
	isChange := func(r *http.Request) bool { return r.Method != http.MethodGet }
	switch random.IntN(6) {
	case 0:
		w.netbox.SetFaults(func(_ http.ResponseWriter, r *http.Request) bool {
			if isChange(r) && left.Add(-1) == 0 {
				die()
				panic(http.ErrAbortHandler)
			}
			return false
		}, nil)
		return "before NetBox has the request", time.Second
	case 1, 2:
		w.netbox.SetFaults(nil, func(r *http.Request, _ int) bool {
			if isChange(r) && left.Add(-1) == 0 {
				die()
				return false
			}
			return true
		})
		return "after NetBox has served the request", time.Second
	case 3:
		w.setOnWrite(func(isDone bool) {
			if !isDone && left.Add(-1) == 0 {
				die()
			}
		})
		return "before the write to the Service", time.Second
	case 4:
		w.setOnWrite(func(isDone bool) {
			if isDone && left.Add(-1) == 0 {
				die()
			}
		})
		return "after the write to the Service", time.Second
	}
	return "at any time", time.Duration(random.IntN(100)) * time.Millisecond
}
