package nodeagent

import (
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"

	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// While the link is asked the agent goes on with other addresses, and with the
// same ones if they are no longer to be had.
func TestAskingBlocksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1", local("192.0.2.1"), local("192.0.2.2"), virtual("198.51.100.1")))
		start := time.Now()
		once := func() {
			t.Helper()
			if _, err := w.once(); err != nil {
				t.Fatal(err)
			}
			w.expect("time", time.Duration(0), time.Since(start))
		}
		once()
		w.expect("changes", []string{"EnsureVirtual kube-lb0", "Add 198.51.100.1/32 kube-lb0"}, w.kernel.TakeCalls())
		w.expect("states", "192.0.2.1 Pending Probing, 192.0.2.2 Pending Probing, 198.51.100.1 Announced", w.states("node1"))
		w.edit("node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses = s.Addresses[1:2] })
		once()
		w.expect("changes while asking", []string{"Remove 198.51.100.1/32 kube-lb0"}, w.kernel.TakeCalls())
		w.reconcileOrFail()
		w.expect("changes when nobody has answered", []string{"Add 192.0.2.2/32 eth0"}, w.kernel.TakeCalls())
		w.expect("time", 200*time.Millisecond, time.Since(start))
		w.expect("probes", [][]string{{"192.0.2.1", "192.0.2.2"}}, w.neighbours.probes)
	})
}

// What the link said does not count for long, nor for a second claim.
func TestSilenceDoesNotLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1", local("192.0.2.1")))
		_, _ = w.once()
		time.Sleep(plan.SilenceValidFor + time.Second) // busy elsewhere
		w.neighbours.set("192.0.2.1", stranger)
		w.reconcileOrFail()
		w.expect("states", "192.0.2.1 Conflict Answered"+stranger.String(), w.states("node1"))

		w.neighbours.unset("192.0.2.1")
		time.Sleep(plan.ReprobeInterval)
		w.reconcileOrFail()
		w.expect("changes", []string{"Add 192.0.2.1/32 eth0"}, w.kernel.TakeCalls())
		w.edit("node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses = nil })
		w.reconcileOrFail()
		w.edit("node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses = append(s.Addresses, local("192.0.2.1")) })
		w.reconcileOrFail()
		w.expect("probes", 4, len(w.neighbours.probes))
	})
}

// An address that cannot be added is tried again, later each time, and the link
// is not asked each time.
func TestSilenceWhileAddFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1", local("192.0.2.1")))
		refused := errors.New("refused")
		w.kernel.Refuse(netip.MustParseAddr("192.0.2.1"), refused)
		for range 5 {
			if _, err := w.reconcile(); !errors.Is(err, refused) {
				t.Errorf("not retried: %v", err)
			}
			time.Sleep(time.Second)
		}
		w.expect("probes", 1, len(w.neighbours.probes))
		w.expect("states", "192.0.2.1 Failed AddFailed", w.states("node1"))
	})
}
