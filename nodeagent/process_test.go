package nodeagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/nodeagent/internal/file"
	"github.com/purelb/purelb-operator/nodeagent/internal/report"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// faultyKernel fails or hangs as a test says.
type faultyKernel struct {
	Kernel
	mu sync.Mutex
	// blind makes Observe fail.
	blind error
	// hung makes changes and Observe wait until it is closed; nil for none.
	hung chan struct{}
	// onlyObserve makes changes go on even so.
	onlyObserve bool
	// failing is since when something has failed or waited, and nothing has been done.
	failing time.Time
}

func (k *faultyKernel) fault() error {
	k.mu.Lock()
	hung, blind := k.hung, k.blind
	if (hung != nil || blind != nil) && k.failing.IsZero() {
		k.failing = time.Now()
	}
	k.mu.Unlock()
	if hung != nil {
		<-hung
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if blind == nil {
		k.failing = time.Time{}
	}
	return blind
}

func (k *faultyKernel) failingSince() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.failing
}

// forget makes failingSince count anew, as for a new process.
func (k *faultyKernel) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.failing = time.Time{}
}

func (k *faultyKernel) setBlind(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.blind = err
}

// hang makes it wait, until the function that it returns is called.
func (k *faultyKernel) hang() (goOn func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	hung := make(chan struct{})
	k.hung = hung
	return sync.OnceFunc(func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		close(hung)
		k.hung = nil
	})
}

func (k *faultyKernel) Observe() (plan.Observed, error) {
	if err := k.fault(); err != nil {
		return plan.Observed{}, err
	}
	return k.Kernel.Observe()
}

func (k *faultyKernel) Add(a plan.Address) error {
	if !k.onlyObserve {
		_ = k.fault()
	}
	return k.Kernel.Add(a)
}

// recordingKernel keeps a record of the addresses that the agent has added, as link.Netlink does
// where the kernel does not mark them.
type recordingKernel struct {
	Kernel
	mu       sync.Mutex
	added    map[string]bool
	onChange func()
}

func (k *recordingKernel) note(a plan.Address, isAdded bool, err error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil {
		k.added[a.Prefix.String()] = isAdded
		k.onChange()
	}
	return err
}

func (k *recordingKernel) Add(a plan.Address) error    { return k.note(a, true, k.Kernel.Add(a)) }
func (k *recordingKernel) Remove(a plan.Address) error { return k.note(a, false, k.Kernel.Remove(a)) }
func (k *recordingKernel) Path() string                { return "addresses.json" }
func (k *recordingKernel) OnChange(changed func())     { k.onChange = changed }

func (k *recordingKernel) Content() ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return json.Marshal(k.added)
}

// disk takes files, or hangs.
type disk struct {
	mu    sync.Mutex
	hung  chan struct{} // nil while it answers
	full  error
	files map[string][]byte
}

func (d *disk) replace(path string, text []byte) error {
	d.mu.Lock()
	hung := d.hung
	d.mu.Unlock()
	if hung != nil {
		<-hung
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.full != nil {
		return d.full
	}
	if d.files == nil {
		d.files = map[string][]byte{}
	}
	d.files[path] = text
	return nil
}

func (d *disk) hang() (goOn func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	hung := make(chan struct{})
	d.hung = hung
	return sync.OnceFunc(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		close(hung)
		d.hung = nil
	})
}

func (d *disk) fill(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.full = err
}

func (d *disk) has(path string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.files[path]) > 0
}

// text returns what a file contains.
func (d *disk) text(path string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return string(d.files[path])
}

// process is a whole agent as SetupWithManager makes it, but for the manager and its
// caches, in a world whose parts fail as a test says.
type process struct {
	*world
	faulty *faultyKernel
	disk   *disk
	// apiHangs makes requests to the API server wait until they time out.
	apiHangs atomic.Bool
	// apiDelay is how long it takes to answer, in nanoseconds.
	apiDelay atomic.Int64
	// reportsHang makes reports wait so, and reports and mostReports are how many do, and
	// did at a time.
	reportsHang          atomic.Bool
	reports, mostReports atomic.Int32
	// recording, if set, keeps a record of the addresses that the agent has added.
	recording *recordingKernel
	// unfilled is that the cache is never filled, and cacheHangs makes the worker wait for the cache.
	unfilled   bool
	cacheHangs atomic.Bool
	// deaf keeps the defender from starting, for a kernel that takes time: the defender would wait for
	// a mutex meanwhile, and with it the clock of synctest.
	deaf bool

	// existence is held while an object is deleted, and while a report looks whether there still
	// is one and is taken.
	existence sync.Mutex

	mu sync.Mutex
	// beats is when the Lease was renewed.
	beats []time.Time
	stop  func()
}

// newProcess makes one that is not started yet.
func newProcess(t testing.TB, objects ...client.Object) *process {
	t.Helper()
	p := &process{world: newWorld(t, append(objects, lease())...), disk: &disk{}}
	p.started = true
	p.faulty = &faultyKernel{Kernel: p.kernel}
	request := func(ctx context.Context) error {
		if p.apiHangs.Load() {
			<-ctx.Done()
			return ctx.Err()
		}
		if delay := time.Duration(p.apiDelay.Load()); delay > 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(delay):
			}
		}
		return nil
	}
	p.Client = interceptor.NewClient(p.Client.(client.WithWatch), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if p.cacheHangs.Load() {
				<-ctx.Done()
			}
			return c.List(ctx, list, opts...)
		},
		Patch: func(
			ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption,
		) error {
			if err := request(ctx); err != nil {
				return err
			}
			err := c.Patch(ctx, obj, patch, opts...)
			if err == nil {
				p.mu.Lock()
				defer p.mu.Unlock()
				p.beats = append(p.beats, time.Now())
			}
			return err
		},
		Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			p.existence.Lock()
			defer p.existence.Unlock()
			return c.Delete(ctx, obj, opts...)
		},
		SubResourceApply: func(
			ctx context.Context, c client.Client, sub string, obj runtime.ApplyConfiguration,
			opts ...client.SubResourceApplyOption,
		) error {
			if p.reportsHang.Load() {
				p.mostReports.Store(max(p.mostReports.Load(), p.reports.Add(1)))
				defer p.reports.Add(-1)
				<-ctx.Done()
				return ctx.Err()
			}
			if err := request(ctx); err != nil {
				return err
			}
			p.existence.Lock()
			defer p.existence.Unlock()
			key := client.ObjectKey{Namespace: namespace, Name: obj.(interface{ GetName() string }).GetName()}
			before, after, watch := &purelbv1.Announcement{}, &purelbv1.Announcement{}, p.CacheHandler()
			if err := c.Get(ctx, key, before); err != nil {
				return err // the fake would make it
			}
			if err := c.SubResource(sub).Apply(ctx, obj, opts...); err != nil {
				return err
			}
			if err := c.Get(ctx, key, after); err != nil {
				return err
			}
			watch.OnUpdate(before, after)
			return nil
		},
	})
	p.APIReader = interceptor.NewClient(p.APIReader.(client.WithWatch), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if err := request(ctx); err != nil {
				return err
			}
			return c.List(ctx, list, opts...)
		},
	})
	return p
}

// start starts it, as a process does: it knows nothing.
func (p *process) start() {
	a := &Agent{
		Client: p.Client, APIReader: p.APIReader, Kernel: p.faulty, Neighbours: p.neighbours, Metrics: p.Metrics,
		NodeName: p.NodeName, Namespace: p.Namespace, LBNodeAgentName: p.LBNodeAgentName, CheckpointPath: p.CheckpointPath,
	}
	p.Agent = a
	if p.recording != nil {
		a.Kernel, a.Ownership = p.recording, p.recording
	}
	a.prepare()
	for _, s := range a.savers() {
		s.Replace = p.disk.replace
	}
	a.loadCheckpoint()
	ctx, cancel := context.WithCancel(context.Background())
	if !p.unfilled {
		a.isCacheFilled.Store(true)
		pacing.Signal(a.wake)
	}
	var wait sync.WaitGroup
	for _, run := range []func(context.Context) error{
		a.Start, a.watchKernel, a.announcer.Start, a.reporter.Start, newHeartbeat(a).Start,
	} {
		wait.Go(func() { _ = run(ctx) })
	}
	if !p.deaf {
		wait.Go(func() { _ = a.defender.Start(ctx) })
	}
	for _, s := range a.savers() {
		wait.Go(func() { _ = s.Start(ctx) })
	}
	p.stop = sync.OnceFunc(func() {
		cancel()
		wait.Wait()
	})
}

// sinceBeat is how long ago the Lease was last renewed.
func (p *process) sinceBeat() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.beats) == 0 {
		return -1
	}
	return time.Since(p.beats[len(p.beats)-1])
}

// change edits the Announcement and wakes the agent, as a watch does.
func (p *process) change(name string, edit func(*purelbv1.AnnouncementSpec)) {
	p.t.Helper()
	p.edit(name, edit)
	pacing.Signal(p.wake)
}

// holds reports whether the kernel has an address of ours.
func (p *process) holds(address string) bool {
	o, _ := p.kernel.Observe()
	for _, a := range o.Addresses {
		if a.IsOurs && a.Prefix.Addr().String() == address {
			return true
		}
	}
	return false
}

// isWell fails unless the agent renews its Lease, and is healthy.
func (p *process) isWell(when string) {
	p.t.Helper()
	synctest.Wait()
	if since := p.sinceBeat(); since < 0 || since > time.Second {
		p.t.Errorf("%s: the Lease was last renewed %s ago", when, since)
	}
	if err := p.Healthy(nil); err != nil {
		p.t.Errorf("%s: %v", when, err)
	}
}

// isStuck fails unless the agent renews no Lease, and is not healthy.
func (p *process) isStuck(when string, forAtLeast time.Duration) {
	p.t.Helper()
	synctest.Wait()
	if since := p.sinceBeat(); since < forAtLeast {
		p.t.Errorf("%s: the Lease was renewed %s ago", when, since)
	}
	if p.Healthy(nil) == nil {
		p.t.Errorf("%s: it looks alive", when)
	}
}

// An agent that cannot see what there is to do renews no Lease after a few seconds, and
// is not healthy, until it can again. What is wrong with single addresses is none of that. This test
// shows the row "its agent sees nothing, hangs, or its worker takes nothing" of docs/trust.md.
func TestFaultBlindAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, settings(), announcementOf("node1", local("192.0.2.1"), local("192.0.2.2")))
		p.kernel.Refuse(addrOf("192.0.2.2"), errors.New("refused"))
		p.start()
		defer p.stop()
		time.Sleep(time.Minute)
		p.isWell("one address cannot be added")
		p.faulty.setBlind(errors.New("list routes: interrupted"))
		pacing.Signal(p.wake)
		time.Sleep(stuckAfter + 3*time.Second)
		p.isStuck("nothing can be listed", 2*time.Second)
		time.Sleep(10 * time.Minute)
		p.isStuck("after 10 minutes", 10*time.Minute)
		if p.holds("192.0.2.1") {
			t.Error("the address has not faded")
		}
		p.faulty.setBlind(nil)
		time.Sleep(maxRetry + time.Second)
		p.isWell("it sees again")
		if !p.holds("192.0.2.1") {
			t.Error("the address is not back")
		}
	})
}

// The same where it never saw anything.
func TestFaultBlindFromTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, settings(), announcementOf("node1", local("192.0.2.1")))
		p.faulty.setBlind(errors.New("no such file"))
		p.start()
		defer p.stop()
		time.Sleep(time.Minute)
		synctest.Wait()
		p.expect("renewals", time.Duration(-1), p.sinceBeat())
		if p.Healthy(nil) == nil {
			t.Error("it looks alive")
		}
		p.faulty.setBlind(nil)
		time.Sleep(maxRetry + time.Second)
		p.isWell("it sees")
	})
}

// A sync that does not end: no renewal, until it does.
func TestFaultSyncHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, settings(), announcementOf("node1", virtual("198.51.100.1")))
		p.start()
		defer p.stop()
		time.Sleep(time.Minute)
		p.isWell("at first")
		goOn := p.faulty.hang()
		defer goOn()
		p.change("node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses = append(s.Addresses, virtual("198.51.100.2")) })
		time.Sleep(stuckAfter + 3*time.Second)
		p.isStuck("the kernel does not answer", 2*time.Second)
		goOn()
		time.Sleep(3 * time.Second)
		p.isWell("it answers")
		p.expect("states", "198.51.100.1 Announced, 198.51.100.2 Announced", p.states("node1"))
	})
}

// A worker that takes nothing, although no sync runs: no renewal.
func TestFaultWorkerTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, settings(), announcementOf("node1"))
		p.start()
		defer p.stop()
		time.Sleep(time.Minute)
		p.isWell("at first")
		p.cacheHangs.Store(true)
		pacing.Signal(p.wake)
		time.Sleep(time.Minute)
		p.isStuck("the worker waits for something", 50*time.Second)
	})
}

// A cache that is never filled, although the API server answers: the agent lists and applies before
// each renewal, so that a Lease that is renewed means what it says.
func TestFaultCacheIsNeverFilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, settings(), announcementOf("node1", local("192.0.2.1")))
		p.unfilled = true
		p.start()
		defer p.stop()
		time.Sleep(3 * time.Second)
		p.isWell("at first")
		p.expect("states", "192.0.2.1 Announced", p.states("node1"))
		p.edit("node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses = append(s.Addresses, virtual("198.51.100.1")) })
		time.Sleep(1100 * time.Millisecond)
		synctest.Wait()
		p.expect("states after a change", "192.0.2.1 Announced, 198.51.100.1 Announced", p.states("node1"))
		time.Sleep(10 * time.Minute)
		p.isWell("after 10 minutes")
		if !p.holds("192.0.2.1") {
			t.Error("the address has faded")
		}
	})
}

// Whether the API server answers makes no difference to whether the agent is alive, nor
// to what it does for the kernel. This test shows the row "it takes requests and answers none" of
// docs/trust.md.
func TestFaultAPIServerAway(t *testing.T) {
	for name, away := range map[string]func(p *process, is bool){
		"it takes requests and does not answer": func(p *process, is bool) { p.apiHangs.Store(is) },
		"it refuses": func(p *process, is bool) {
			if p.fail(nil); is {
				p.fail(errors.New("connection refused"))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newProcess(t, settings(), announcementOf("node1", local("192.0.2.1"), virtual("198.51.100.1")))
				alive := func(when string, d time.Duration) {
					t.Helper()
					for range d / time.Second {
						time.Sleep(time.Second)
						if err := p.Healthy(nil); err != nil {
							t.Fatalf("%s: %v", when, err)
						}
					}
				}
				p.start()
				alive("at first", 10*time.Second)
				p.isWell("at first")
				away(p, true)
				alive("away", 10*time.Minute)
				for _, address := range []string{"192.0.2.1", "198.51.100.1"} {
					p.expect("it has "+address, true, p.holds(address))
				}
				p.kernel.Strip("kube-lb0", prefixOf("198.51.100.1/32"))
				p.kernel.SetLinkUp("eth0", false) // a fact changes, which cannot be reported
				time.Sleep(50 * time.Millisecond)
				p.expect("it is back", true, p.holds("198.51.100.1"))
				p.kernel.SetLinkUp("eth0", true)

				// One that starts meanwhile, and has no checkpoint, keeps what is there.
				p.stop()
				p.start()
				defer func() { p.stop() }()
				p.unfilled = true
				alive("started while it is away", 10*time.Minute)
				p.expect("it has it still", true, p.holds("192.0.2.1"))
				away(p, false)
				alive("it answers again", 10*time.Second)
				p.isWell("it answers again")
			})
		})
	}
}

// An agent that starts while the API server is away, and has no checkpoint, and no cache
// either, keeps what the kernel has.
func TestFaultKnowsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, settings(), announcementOf("node1", local("192.0.2.1")))
		p.start()
		time.Sleep(10 * time.Second)
		p.stop()
		p.apiHangs.Store(true)
		p.unfilled = true
		p.start()
		defer p.stop()
		time.Sleep(10 * time.Minute)
		p.expect("it has it still", true, p.holds("192.0.2.1"))
		if err := p.Healthy(nil); err != nil {
			t.Error(err)
		}
	})
}

// diskFaults are what may become of a disk. Each returns what mends it.
var diskFaults = map[string]func(d *disk) (mend func()){
	"it hangs": func(d *disk) func() { return d.hang() },
	"it is full": func(d *disk) func() {
		d.fill(errors.New("no space left on device"))
		return func() { d.fill(nil) }
	},
}

// A disk that hangs or is full delays the checkpoint, and nothing else. This test shows the row "its
// disk hangs or is full" of docs/trust.md.
func TestFaultDisk(t *testing.T) {
	for name, breakIt := range diskFaults {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newProcess(t, settings(), announcementOf("node1", local("192.0.2.1")))
				p.CheckpointPath = t.TempDir() + "/agent.json"
				mend := breakIt(p.disk)
				defer mend()
				p.start()
				defer func() {
					mend()
					p.stop()
				}()
				time.Sleep(10 * time.Second)
				p.isWell("the disk does not work")
				p.expect("states", "192.0.2.1 Announced", p.states("node1"))
				p.change("node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses = append(s.Addresses, virtual("198.51.100.1")) })
				time.Sleep(10 * time.Minute)
				p.isWell("after 10 minutes")
				p.expect("states", "192.0.2.1 Announced, 198.51.100.1 Announced", p.states("node1"))
				ready := p.get("node1").Status.Conditions[0]
				if !strings.Contains(ready.Message, "the checkpoint is not written") || ready.Status != "True" {
					t.Errorf("Ready is %s: %q", ready.Status, ready.Message)
				}
				p.expect("it is written", false, p.disk.has(p.CheckpointPath))
				mend()
				time.Sleep(file.RetryInterval + time.Second)
				synctest.Wait()
				p.expect("it is written then", true, strings.Contains(string(p.disk.files[p.CheckpointPath]), "198.51.100.1"))
				if ready := p.get("node1").Status.Conditions[0]; strings.Contains(ready.Message, "checkpoint") {
					t.Errorf("Ready still says %q", ready.Message)
				}
			})
		})
	}
}

// Where the kernel does not mark the agent's addresses, and the disk does not work, the agent adds and
// withdraws addresses, says that the record is not written, and writes it when the disk works again.
func TestFaultDiskOfTheRecord(t *testing.T) {
	for name, breakIt := range diskFaults {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newProcess(t, settings(), announcementOf("node1", local("192.0.2.1"), virtual("198.51.100.1")))
				p.recording = &recordingKernel{Kernel: p.faulty, added: map[string]bool{}}
				mend := breakIt(p.disk)
				defer mend()
				p.start()
				defer func() {
					mend()
					p.stop()
				}()
				time.Sleep(10 * time.Second)
				p.isWell("the disk does not work")
				p.expect("states", "192.0.2.1 Announced, 198.51.100.1 Announced", p.states("node1"))
				p.change("node1", func(s *purelbv1.AnnouncementSpec) {
					s.Addresses = append(s.Addresses[:1], virtual("198.51.100.2"))
				})
				time.Sleep(10 * time.Minute)
				p.isWell("after 10 minutes")
				p.expect("states", "192.0.2.1 Announced, 198.51.100.2 Announced", p.states("node1"))
				p.expect("it is withdrawn", false, p.holds("198.51.100.1"))
				ready := p.get("node1").Status.Conditions[0]
				if !strings.Contains(ready.Message, "the record of the agent's addresses is not written") ||
					ready.Status != "True" {
					t.Errorf("Ready is %s: %q", ready.Status, ready.Message)
				}
				p.expect("it is written", false, p.disk.has("addresses.json"))
				mend()
				time.Sleep(file.RetryInterval + time.Second)
				synctest.Wait()
				p.expect(
					"the record", `{"192.0.2.1/32":true,"198.51.100.1/32":false,"198.51.100.2/32":true}`,
					p.disk.text("addresses.json"),
				)
				if ready := p.get("node1").Status.Conditions[0]; strings.Contains(ready.Message, "record") {
					t.Errorf("Ready still says %q", ready.Message)
				}
			})
		})
	}
}

// An agent that is asked to stop writes first what the next one is to know of its addresses.
func TestRecordIsWrittenAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, settings(), announcementOf("node1", local("192.0.2.1")))
		p.recording = &recordingKernel{Kernel: p.faulty, added: map[string]bool{}}
		p.start()
		time.Sleep(10 * time.Second)
		goOn := p.faulty.hang() // a sync, which is under way when the agent is asked to stop
		p.change("node1", func(s *purelbv1.AnnouncementSpec) {
			s.Addresses = append(s.Addresses, virtual("198.51.100.1"), virtual("198.51.100.2"))
		})
		synctest.Wait()
		stopped := make(chan struct{})
		go func() {
			p.stop()
			close(stopped)
		}()
		synctest.Wait()
		goOn()
		<-stopped
		p.expect("it is added", true, p.holds("198.51.100.2"))
		p.expect(
			"the record", `{"192.0.2.1/32":true,"198.51.100.1/32":true,"198.51.100.2/32":true}`, p.disk.text("addresses.json"),
		)
	})
}

// Reports that are not answered delay neither repairs nor renewals nor the checkpoint.
func TestFaultReportsHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objects := []client.Object{settings()}
		for s := range 40 {
			ann := announcementOf(sliceName(s))
			for i := range 25 {
				ann.Spec.Addresses = append(ann.Spec.Addresses, local(addressIn(s, i+1)))
			}
			objects = append(objects, ann)
		}
		p := newProcess(t, objects...)
		p.CheckpointPath = t.TempDir() + "/agent.json"
		p.start()
		defer p.stop()
		time.Sleep(10 * time.Second)
		p.isWell("at first")
		p.reportsHang.Store(true)
		for s := range 40 { // all has to be reported
			p.kernel.Refuse(addrOf(addressIn(s, 1)), errors.New("refused"))
			p.kernel.Strip("eth0", prefixOf(addressIn(s, 1)+"/32"))
		}
		time.Sleep(20 * time.Second)
		p.isWell("reports hang")
		p.kernel.Strip("eth0", prefixOf(addressIn(7, 2)+"/32"))
		time.Sleep(10 * time.Millisecond)
		p.expect("it is back", true, p.holds(addressIn(7, 2)))
		p.change(sliceName(7), func(s *purelbv1.AnnouncementSpec) {
			s.Addresses = append(s.Addresses, virtual("198.51.100.1"))
		})
		time.Sleep(3 * time.Second)
		p.expect("the checkpoint has what has changed", true, strings.Contains(p.disk.text(p.CheckpointPath), "198.51.100.1"))
		if n := p.mostReports.Load(); n == 0 || n > report.MaxParallelWrites {
			t.Errorf("%d requests at a time", n)
		}
		for s := range 40 {
			p.kernel.Refuse(addrOf(addressIn(s, 1)), nil)
		}
		p.reportsHang.Store(false)
		time.Sleep(2*maxRetry + 5*time.Second)
		synctest.Wait()
		for s := range 40 {
			want := int32(25)
			if s == 7 {
				want++ // the one that was added
			}
			if ann := p.get(sliceName(s)); ann.Status.Announced != want {
				t.Errorf("%s reports %d", ann.Name, ann.Status.Announced)
			}
			p.expect("facts in "+sliceName(s), s == 0, len(p.get(sliceName(s)).Status.Interfaces) > 0)
		}
	})
}

func addrOf(address string) netip.Addr    { return netip.MustParseAddr(address) }
func prefixOf(prefix string) netip.Prefix { return netip.MustParsePrefix(prefix) }
func sliceName(s int) string              { return fmt.Sprintf("node1-%02d", s) }
func addressIn(s, i int) string           { return fmt.Sprintf("198.18.%d.%d", s, i) }
