package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/revision"
)

func lease() *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "purelb-node1"}}
}

// heartbeat returns a heartbeat that does itself what it asks the worker to do.
func (w *world) heartbeat() *heartbeat {
	h := newHeartbeat(w.Agent)
	h.syncFromAPIServer = func(context.Context) error { return w.listAndSync(true) }
	return h
}

// beating is a world whose heartbeat runs until the test ends, and notes when
// each renewal succeeds.
func beating(t *testing.T, objects ...client.Object) (*world, *[]time.Duration) {
	t.Helper()
	w := newWorld(t, objects...)
	start := time.Now()
	beats := new([]time.Duration)
	w.Client = interceptor.NewClient(w.Client.(client.WithWatch), interceptor.Funcs{
		Patch: func(
			ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption,
		) error {
			err := c.Patch(ctx, obj, patch, opts...)
			if err == nil {
				*beats = append(*beats, time.Since(start))
			}
			return err
		},
	})
	w.Reconnect = func() { w.reconnects++ } // set before the heartbeat starts, which reads it
	ctx, cancel := context.WithCancel(t.Context())
	w.started = true
	w.isCacheFilled.Store(true)
	var wait sync.WaitGroup
	wait.Go(func() { _ = w.reporter.Start(ctx) })
	wait.Go(func() { _ = w.heartbeat().Start(ctx) })
	t.Cleanup(func() {
		cancel()
		wait.Wait()
	})
	return w, beats
}

func TestHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, beats := beating(t, settings(), lease(), announcementOf("node1"))
		time.Sleep(3500 * time.Millisecond)
		synctest.Wait()
		w.expect("beats", []time.Duration{0, time.Second, 2 * time.Second, 3 * time.Second}, *beats)
		got := &coordinationv1.Lease{}
		if err := w.Client.Get(t.Context(), client.ObjectKeyFromObject(lease()), got); err != nil {
			t.Fatal(err)
		}
		w.expect("Lease", []any{"node1", int32(3), true}, []any{
			*got.Spec.HolderIdentity, *got.Spec.LeaseDurationSeconds, time.Since(got.Spec.RenewTime.Time) < time.Second,
		})

		// From 1 s to 10 s and back, at once: the Lease says how long it lasts.
		duration := func() time.Duration {
			if err := w.Client.Get(t.Context(), client.ObjectKeyFromObject(lease()), got); err != nil {
				t.Fatal(err)
			}
			return time.Duration(*got.Spec.LeaseDurationSeconds) * time.Second
		}
		w.edit("node1", func(s *purelbv1.AnnouncementSpec) { s.HeartbeatSeconds = 10 })
		_, _ = w.reconcile()
		synctest.Wait()
		w.expect("a slow Lease", 30*time.Second, duration())
		time.Sleep(8 * time.Second)
		synctest.Wait()
		w.expect("beats at 10 s", 5, len(*beats))
		w.edit("node1", func(s *purelbv1.AnnouncementSpec) { s.HeartbeatSeconds = 1 })
		_, _ = w.reconcile()
		synctest.Wait()
		w.expect("beats back at 1 s", 6, len(*beats))
		w.expect("a quick Lease", 3*time.Second, duration())
	})
}

// An agent with a slow Lease renews it at once when it is asked to, unless it has just done so.
func TestHeartbeatAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ann := announcementOf("node1")
		ann.Spec.HeartbeatSeconds = 10
		w, beats := beating(t, settings(), lease(), ann)
		for _, after := range []time.Duration{2 * time.Second, time.Second, time.Second, 3 * time.Second} {
			time.Sleep(after) // 2, 3, 4 and 7 s after the first renewal
			w.made()
			w.freshness.confirm()
			synctest.Wait()
			if requests := w.made(); len(requests) > 0 {
				w.expect("first request", "list", requests[0])
			}
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		const s = time.Second
		w.expect("beats", []time.Duration{0, 3 * s, 7 * s, 17 * s, 27 * s}, *beats)
	})
}

// An agent with a slow Lease takes an address over although its last holder answers: it lists at once.
func TestTakeoverWithSlowLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ann := announcementOf("node1")
		ann.Spec.HeartbeatSeconds = 10
		w, _ := beating(t, settings(), lease(), ann)
		w.neighbours.set("192.0.2.1", oldHolder)
		time.Sleep(5 * time.Second)
		w.edit("node1", func(s *purelbv1.AnnouncementSpec) {
			s.Addresses = []purelbv1.AnnouncedAddress{local("192.0.2.1", takeover)}
		})
		w.made()
		_, _ = w.reconcile()
		for range 20 {
			synctest.Wait()
			_, _ = w.finish()
		}
		w.expect("changes", []string{"Add 192.0.2.1/32 eth0"}, w.kernel.TakeCalls())
		w.expect("lists", true, slices.Contains(w.made(), "list"))
	})
}

// A shorter period counts as soon as the cache has it, whatever the worker does. A longer one waits for the worker.
func TestPeriodDoesNotWaitForWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings())
		w.freshness.setPeriod(nil)
		before, after := announcementOf("node1"), announcementOf("node1")
		after.Generation++
		for i, step := range []struct {
			name    string
			seconds int32
			want    time.Duration
		}{
			{"node1", 1, time.Second}, {"node1", 10, time.Second}, {"node1", 0, time.Second},
		} {
			after.Name, after.Spec.HeartbeatSeconds = step.name, step.seconds
			w.CacheHandler().OnUpdate(before, after)
			if got := w.freshness.renewalPeriod(); got != step.want {
				t.Errorf("step %d: each %s, want %s", i, got, step.want)
			}
		}
		w.freshness.setPeriod(nil)
		after.Name, after.Spec.HeartbeatSeconds = "node1-standby", 1
		w.CacheHandler().OnUpdate(before, after)
		w.expect("period of a standby's", defaultPeriod, w.freshness.renewalPeriod())
	})
}

// TestFaultRestoredDatabase restores the API server's database from a backup, so that a renewal
// gives the Lease an older version than the last one did. The agent ends, and its addresses stay. This
// test shows the row "its database is restored from a backup" of docs/trust.md.
func TestFaultRestoredDatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), lease(), announcementOf("node1", local("192.0.2.1")))
		versions, renewals := []string{"3000", "3002", "3002", "x", "1000"}, 0
		w.Client = interceptor.NewClient(w.Client.(client.WithWatch), interceptor.Funcs{
			Patch: func(
				ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption,
			) error {
				err := c.Patch(ctx, obj, patch, opts...)
				if _, isLease := obj.(*coordinationv1.Lease); isLease && err == nil {
					obj.SetResourceVersion(versions[min(renewals, len(versions)-1)])
					renewals++
				}
				return err
			},
		})
		w.started = true
		w.isCacheFilled.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := w.heartbeat().Start(ctx)
		if !errors.Is(err, revision.ErrRestored) || renewals != len(versions) {
			t.Errorf("after %d renewals: %v", renewals, err)
		}
		w.reconcileOrFail()
		w.expect("changes", []string{"Add 192.0.2.1/32 eth0"}, w.kernel.TakeCalls())
	})
}

// Before its first renewal, and after each outage, an agent lists and applies.
func TestHeartbeatListsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, beats := beating(t, settings(), lease(), announcementOf("node1", local("192.0.2.1")))
		time.Sleep(2500 * time.Millisecond)
		synctest.Wait()
		w.expect(
			"first requests", []string{"list", "patch purelb-node1", "apply status", "patch purelb-node1", "patch purelb-node1"},
			w.made(),
		)
		// It does not wait until the link has been asked.
		w.expect("first beat", time.Duration(0), (*beats)[0])
		w.reconcileOrFail()
		w.expect("changes", []string{"Add 192.0.2.1/32 eth0"}, w.kernel.TakeCalls())

		// Away for less than two periods: it was never out of date.
		w.made()
		w.fail(errors.New("away"))
		time.Sleep(1100 * time.Millisecond) // not when an attempt is due
		w.fail(nil)
		time.Sleep(1600 * time.Millisecond)
		synctest.Wait()
		w.expect("lists after a short outage", false, slices.Contains(w.made(), "list"))

		w.made()
		w.fail(errors.New("away"))
		time.Sleep(10*time.Second + time.Millisecond) // not when an attempt is due
		synctest.Wait()
		w.expect("requests while away", []string(nil), w.made())
		w.fail(nil)
		w.edit("node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses = nil })
		synctest.Wait()
		w.kernel.TakeCalls()
		time.Sleep(1100 * time.Millisecond)
		synctest.Wait()
		// The report that failed while the API server was away may be tried again before.
		requests := slices.DeleteFunc(w.made(), func(request string) bool { return request == "apply status" })
		w.expect("requests after an outage", []string{"list", "patch purelb-node1"}, requests[:min(2, len(requests))])
		w.expect("changes after an outage", []string{"Remove 192.0.2.1/32 eth0"}, w.kernel.TakeCalls())
	})
}

// What the live list said is not undone by a cache that is behind it.
func TestReadsLiveAfterList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1"))
		if err := w.listAndSync(true); err != nil {
			t.Fatal(err)
		}
		if _, err := w.finish(); err != nil {
			t.Error(err)
		}
		select {
		case <-w.wake:
		default:
			t.Error("no Reconcile comes next")
		}
		for _, tc := range []struct {
			after time.Duration
			want  []string
		}{{0, []string{"list"}}, {4 * time.Second, []string{"list"}}, {2 * time.Second, nil}} {
			time.Sleep(tc.after)
			w.made()
			if _, err := w.reconcile(); err != nil {
				t.Error(err)
			}
			w.expect(fmt.Sprintf("requests after %v more", tc.after), tc.want, w.made())
		}
	})
}

// No hot loop, whatever is wrong; and a Lease that comes late is found.
func TestHeartbeatFailing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, beats := beating(t, settings(), announcementOf("node1"))
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := len(w.made()); n < 20 || n > 40 {
			t.Errorf("%d requests in 10 s", n)
		}
		w.expect("reconnects after an answer", 0, w.reconnects)
		if err := w.Client.Create(t.Context(), lease()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if len(*beats) == 0 {
			t.Error("the Lease is not found")
		}
		w.fail(fmt.Errorf("no answer: %w", context.DeadlineExceeded))
		time.Sleep(5 * time.Second)
		synctest.Wait()
		// They fail after 0, 0.1, 0.3, 0.7, 1.5, 2.5, 3.5 and 4.5 s.
		w.expect("reconnects in 5 s without an answer", 3, w.reconnects)
	})
}
