package nodeagent

import (
	"context"
	"errors"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllertest"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/nodeagent/link/linktest"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// The worker has begun to list, and the answer takes time. The heartbeat asks for a list, and an
// object changes: what the later list says is not undone by the earlier one.
func TestListsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1", virtual("198.51.100.1")))
		delays := make(chan time.Duration, 1)
		delays <- time.Second // of the first list
		w.APIReader = interceptor.NewClient(w.APIReader.(client.WithWatch), interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				err := c.List(ctx, list, opts...)
				select {
				case d := <-delays:
					time.Sleep(d)
				default:
				}
				return err
			},
		})
		w.freshness.noteListed() // the cache may be behind
		go w.work(t.Context())
		time.Sleep(time.Second / 2)
		w.edit("node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses = append(s.Addresses, virtual("198.51.100.2")) })
		if err := w.syncFromAPIServer(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(10 * time.Second)
		w.expect(
			"changes", []string{"EnsureVirtual kube-lb0", "Add 198.51.100.1/32 kube-lb0", "Add 198.51.100.2/32 kube-lb0"},
			w.kernel.TakeCalls(),
		)
	})
}

// busyKernel takes a second to observe, and then has changed again.
type busyKernel struct {
	Kernel
	changed chan struct{}
}

func (k busyKernel) Observe() (plan.Observed, error) {
	time.Sleep(time.Second)
	pacing.Signal(k.changed)
	return k.Kernel.Observe()
}

// A worker that is woken without end has time for the heartbeat: it ends the sync that it has begun,
// syncs as the list says that it has begun, lists while it syncs once more, and syncs as that list says.
func TestHeartbeatGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1"))
		w.Kernel = busyKernel{w.kernel, w.wake}
		ctx, stop := context.WithCancel(t.Context())
		defer func() {
			stop()
			<-w.workerEnded
		}()
		go w.work(ctx)
		for range 20 {
			time.Sleep(1700 * time.Millisecond)
			start := time.Now()
			if err := w.syncFromAPIServer(t.Context()); err != nil {
				t.Error(err)
			}
			if took := time.Since(start); took > 4*time.Second {
				t.Errorf("the heartbeat has waited for %s", took)
			}
		}
	})
}

// largeKernel takes a while to observe, as one with thousands of addresses does, and notes when.
type largeKernel struct {
	Kernel
	takes    time.Duration
	observed *[]time.Duration
	begun    time.Time
}

func (k largeKernel) Observe() (plan.Observed, error) {
	*k.observed = append(*k.observed, time.Since(k.begun))
	time.Sleep(k.takes)
	return k.Kernel.Observe()
}

// TestBurst wakes the worker 975 times, a millisecond apart. It syncs at once, and then a few times for
// all that changes meanwhile; after the burst it syncs at once again.
func TestBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1"))
		var observed []time.Duration
		w.Kernel = largeKernel{w.kernel, 10 * time.Millisecond, &observed, time.Now()}
		ctx, stop := context.WithCancel(t.Context())
		defer func() {
			stop()
			<-w.workerEnded
		}()
		go w.work(ctx)
		for range 975 {
			time.Sleep(time.Millisecond)
			pacing.Signal(w.wake)
		}
		time.Sleep(1025 * time.Millisecond)
		synctest.Wait()
		during := len(observed)
		pacing.Signal(w.wake)
		time.Sleep(time.Second)
		synctest.Wait()
		w.expect("syncs of the burst, each 10 ms with 40 ms after it", 21, during)
		w.expect("the first sync, and the one after the burst",
			[]time.Duration{0, 2 * time.Second}, []time.Duration{observed[0], observed[during]})
	})
}

// While an address cannot be added the agent tries less and less often. The lists of the heartbeat that fail meanwhile,
// as the API server is away, make no difference.
func TestFailedListsHurryNoRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1", virtual("198.51.100.1")))
		w.kernel.Refuse(netip.MustParseAddr("198.51.100.1"), errors.New("refused"))
		ctx, stop := context.WithCancel(t.Context())
		defer func() {
			stop()
			<-w.workerEnded
		}()
		go w.work(ctx)
		time.Sleep(time.Minute)
		triesIn := func(beats int, wantErr bool) int {
			w.kernel.TakeCalls()
			for range beats {
				time.Sleep(time.Second)
				if err := w.syncFromAPIServer(t.Context()); (err != nil) != wantErr {
					t.Errorf("a list: %v, want an error: %v", err, wantErr)
				}
			}
			return len(w.kernel.TakeCalls())
		}
		w.fail(errors.New("away"))
		w.expect("tries in a minute without the API server", int(time.Minute/maxRetry), triesIn(60, true))

		w.fail(nil)
		w.kernel.Refuse(netip.MustParseAddr("198.51.100.1"), nil)
		w.expect("tries once the kernel adds it", 1, triesIn(10, false))
		time.Sleep(2 * cacheLag) // then the worker lists no more by itself
		w.kernel.Strip("kube-lb0", netip.MustParsePrefix("198.51.100.1/32"))
		w.kernel.Refuse(netip.MustParseAddr("198.51.100.1"), errors.New("refused"))
		w.fail(errors.New("away"))
		pacing.Signal(w.wake)
		w.expect("tries in a second after a sync that succeeded", 3, triesIn(1, true))
	})
}

// A status that others have made wrong is put right a little later.
func TestWrongStatusIsPutRight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1", virtual("198.51.100.1")))
		go func() { _ = w.reporter.Start(t.Context()) }()
		go w.work(t.Context())
		time.Sleep(10 * time.Second)
		wrong := w.get("node1")
		wrong.Status.Addresses[0].State = purelbv1.StatePending
		if err := w.Client.Status().Update(t.Context(), wrong); err != nil {
			t.Fatal(err)
		}
		pacing.Signal(w.statusChanged)
		time.Sleep(statusCheckDelay - time.Millisecond)
		synctest.Wait()
		w.expect("state before", "198.51.100.1 Pending", w.states("node1"))
		time.Sleep(time.Millisecond)
		synctest.Wait()
		w.expect("state", "198.51.100.1 Announced", w.states("node1"))
	})
}

// unwatchable is a kernel that cannot be watched the first few times.
type unwatchable struct {
	*linktest.Kernel
	// watchFailures and linkFailures are how often Watch and WatchLinks are still to fail.
	watchFailures, linkFailures atomic.Int32
}

func (k *unwatchable) Watch(ctx context.Context, changed func()) error {
	if k.watchFailures.Add(-1) >= 0 {
		return errors.New("no memory")
	}
	return k.Kernel.Watch(ctx, changed)
}

func (k *unwatchable) WatchLinks(ctx context.Context, changed func([]plan.NetworkInterface)) error {
	if k.linkFailures.Add(-1) >= 0 {
		return errors.New("the listing was interrupted")
	}
	return k.Kernel.WatchLinks(ctx, changed)
}

// A kernel that cannot be watched when the agent starts is watched later, and until then the worker looks now and then.
func TestKernelIsWatchedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1", local("192.0.2.1")))
		kernel := &unwatchable{Kernel: w.kernel}
		kernel.watchFailures.Store(3)
		kernel.linkFailures.Store(3)
		w.Kernel, w.defender.kernel = kernel, kernel
		isWoken := func() bool {
			synctest.Wait()
			_, isThere := tryReceive(w.wake)
			return isThere
		}
		go func() { _ = w.watchKernel(t.Context()) }()
		go func() { _ = w.defender.Start(t.Context()) }()
		w.expect("woken at first", false, isWoken())
		time.Sleep(rewatchAfter)
		w.expect("woken while it cannot be watched", true, isWoken())
		time.Sleep(10 * rewatchAfter)
		isWoken() // for the last time without a change
		w.kernel.SetLinkUp("eth0", false)
		w.expect("woken by a change", true, isWoken())
		w.expect("eth0 is known to be up", false, w.defender.isLinkUp("eth0"))
	})
}

// The cache wakes the worker once it is filled, and then when a spec has changed; when only a status
// has, it does so a little later, and not at all for the status of the LBNodeAgent.
func TestWatchAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		informers := &informertest.FakeInformers{Scheme: w.Client.Scheme()}
		informerOf := func(o client.Object) *controllertest.FakeInformer {
			i, err := informers.FakeInformerFor(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			return i
		}
		gvk, err := w.Client.GroupVersionKindFor(settings())
		if err != nil {
			t.Fatal(err)
		}
		informerOf(settings())
		unfilled := controllertest.NewFakeInformer()
		informers.InformersByGVK[gvk] = unfilled
		expect := func(what string, wake, later bool) {
			t.Helper()
			synctest.Wait()
			is := func(c chan struct{}) bool {
				select {
				case <-c:
					return true
				default:
					return false
				}
			}
			w.expect(what, []bool{wake, later}, []bool{is(w.wake), is(w.statusChanged)})
		}
		go func() { _ = w.watchAPI(t.Context(), informers) }()
		synctest.Wait()
		ann, reported := announcementOf("node1"), announcementOf("node1")
		reported.Status.Announced = 1
		informerOf(ann).Add(ann)
		informerOf(ann).Update(ann, reported)
		time.Sleep(time.Minute)
		expect("while one kind is missing", false, false)
		w.expect("the cache is filled", false, w.isCacheFilled.Load())
		unfilled.Synced()
		time.Sleep(time.Second)
		expect("once it is filled", true, false)
		w.expect("the cache is filled", true, w.isCacheFilled.Load())

		informerOf(ann).Update(ann, reported)
		expect("the status of an Announcement", false, true)
		changed := announcementOf("node1")
		changed.Generation++
		informerOf(ann).Update(ann, changed)
		expect("its spec", true, false)
		another := announcementOf("node1")
		another.UID = "another"
		informerOf(ann).Update(ann, another)
		expect("one of the same name", true, false)
		informerOf(ann).Delete(ann)
		expect("it is gone", true, false)
		shared := commonAnnouncementOf("common", 1)
		informerOf(shared).Add(shared)
		expect("a CommonAnnouncement", true, false)
		was, is := settings(), settings()
		unfilled.Update(was, is)
		expect("the status of the LBNodeAgent", false, false)
		is.Generation++
		unfilled.Update(was, is)
		expect("its spec", true, false)
	})
}

// What the cache shows of the agent's own reports wakes nobody, but for the first one: the other Announcements of the
// node have its facts until then. What others write does, also while a report is still to be written.
func TestOwnReportsAreNoNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1", virtual("198.51.100.1")))
		w.isCacheFilled.Store(true)
		expect := func(what string, before, after *purelbv1.Announcement, want bool) {
			t.Helper()
			w.CacheHandler().OnUpdate(before, after)
			_, got := tryReceive(w.statusChanged)
			w.expect("woken by "+what, want, got)
		}
		unreported := w.get("node1")
		w.reconcileOrFail()
		reported := w.get("node1")
		expect("the first report", unreported, reported, true)
		w.reconcileOrFail() // as the cache shows the first report

		w.edit("node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses = append(s.Addresses, virtual("198.51.100.2")) })
		changed := w.get("node1")
		w.reconcileOrFail()
		again := w.get("node1")
		w.expect("states", "198.51.100.1 Announced, 198.51.100.2 Announced", w.states("node1"))
		expect("another report", changed, again, false)
		expect("an older report", again, changed, true)
		wrong := again.DeepCopy()
		wrong.Status.Addresses[0].State = purelbv1.StatePending
		expect("the report of another", again, wrong, true)
		later := again.DeepCopy()
		later.UID = "later"
		expect("a later Announcement of the same name", later, later, true)
	})
}
