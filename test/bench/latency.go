package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/purelb/purelb-operator/test/bench/report"
	"github.com/purelb/purelb-operator/test/lab"
)

// The stages of a Service's life, which name the cases. A Service counts as created when
// the API server has answered the request; how long that takes is a stage of its own.
const (
	stageCreated   = "asked for → created"
	stageIngress   = "created → ingress"
	stageInterface = "created → on the interface"
	stageWire      = "created → ARP/ND answered"
	stageHTTP      = "created → first HTTP answer"
	stageWithdrawn = "deletion asked for → off the interface"
)

var stages = []string{stageCreated, stageIngress, stageInterface, stageWire, stageHTTP, stageWithdrawn}

// serviceKind is a kind of Service to measure.
type serviceKind struct {
	name  string
	group string
	dual  bool
	// probe says whether agents probe an address before they claim it.
	probe bool
}

var serviceKinds = []serviceKind{
	{"Local IPv4", "local", false, true},
	{"Local dual-stack", "local", true, true},
	{"Virtual IPv4", "virtual", false, true},
	{"Virtual dual-stack", "virtual", true, true},
	{"Local IPv4, no probing", "local", false, false},
	{"Local dual-stack, no probing", "local", true, false},
}

// watches are what a trial is observed with.
type watches struct {
	services *serviceWatch
	kernels  *kernelWatch
	stations map[bool]*answerWatch // by whether it is IPv6
}

// startWatches starts all watches. They end with ctx.
func (b *bench) startWatches(ctx context.Context) (o watches, err error) {
	if o.services, err = b.watchServices(ctx); err != nil {
		return o, err
	}
	if o.kernels, err = b.watchKernels(ctx); err != nil {
		return o, err
	}
	o.stations = map[bool]*answerWatch{}
	for _, like := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if o.stations[like.Is6()], err = watchStations(ctx, like); err != nil {
			return o, err
		}
	}
	return o, nil
}

// latency measures how long each stage takes, for one Service after the other.
func (b *bench) latency(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	o, err := b.startWatches(ctx)
	if err != nil {
		return err
	}
	defer func() {
		// The next section begins with probing, also when the benchmark is interrupted.
		if err := b.setProbing(context.WithoutCancel(ctx), true); err != nil {
			b.say("%s", err)
		}
	}()
	for _, s := range serviceKinds {
		if !b.cases.MatchString(s.name) {
			continue
		}
		if err := b.setProbing(ctx, s.probe); err != nil {
			return err
		}
		times := map[string][]float64{}
		for i := range b.count + 1 {
			trial, err := b.followService(ctx, o, s, fmt.Sprintf("latency-%d", i))
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			if i == 0 {
				continue // the first creates the virtual interface and opens connections
			}
			for stage, duration := range trial {
				times[stage] = append(times[stage], ms(duration))
			}
		}
		for _, stage := range stages {
			if len(times[stage]) == 0 {
				continue
			}
			row := report.Row{
				Section: "latency", Case: stage + ", " + s.name, Unit: "ms", N: len(times[stage]),
				Values: report.Percentiles(times[stage]),
			}
			if err := b.addRows(row); err != nil {
				return err
			}
		}
	}
	return nil
}

// ms returns a duration in milliseconds.
func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// setProbing switches probing on or off, and waits until the agents know.
func (b *bench) setProbing(ctx context.Context, on bool) error {
	if err := b.kubectl(ctx, "-n", systemNamespace, "patch", "lbnodeagent", "default", "--type=merge", "-p",
		fmt.Sprintf(`{"spec":{"local":{"probeConfig":{"enabled":%t}}}}`, on)); err != nil {
		return err
	}
	// An agent does not report which settings it has. Its watch delivers them at once.
	return sleep(ctx, time.Second)
}

// followService creates a Service, follows it until it serves, deletes it, and waits until
// nothing of it is left. It returns how long each stage took.
func (b *bench) followService(
	ctx context.Context, o watches, s serviceKind, name string,
) (map[string]time.Duration, error) {
	nodes := 1
	if s.group == "virtual" {
		nodes = len(b.nodeNames())
	}
	svc := newService(name, s.group, s.dual)
	o.kernels.forgetChanges()
	// The address is the one of the trial before. The client must not know its MAC.
	if err := b.lab.FlushNeighbours(ctx, lab.Client); err != nil {
		return nil, err
	}
	begun := time.Now()
	if err := b.client.Create(ctx, svc); err != nil {
		return nil, fmt.Errorf("create %s: %w", name, err)
	}
	created := time.Now()
	times := map[string]time.Duration{stageCreated: created.Sub(begun)}
	got, err := o.services.wait(ctx, name)
	if err != nil {
		return nil, err
	}
	times[stageIngress] = got.at.Sub(created)

	var wait sync.WaitGroup
	var mutex sync.Mutex
	var failed error
	follow := func(stage string, wait func() (time.Time, error)) {
		at, err := wait()
		mutex.Lock()
		defer mutex.Unlock()
		if err != nil {
			failed = err
		}
		times[stage] = max(times[stage], at.Sub(created)) // of two addresses, the later
	}
	for _, address := range got.addresses {
		wait.Go(func() {
			follow(stageInterface, func() (time.Time, error) { return o.kernels.wait(ctx, address, true, nodes, begun) })
		})
		wait.Go(func() { follow(stageHTTP, func() (time.Time, error) { return b.waitForHTTPAnswer(ctx, address) }) })
		if nodes == 1 {
			wait.Go(func() {
				follow(stageWire, func() (time.Time, error) { return o.stations[address.Is6()].wait(ctx, address) })
			})
		}
	}
	wait.Wait()
	if failed != nil {
		return nil, failed
	}

	deleted := time.Now()
	if err := b.client.Delete(ctx, svc); err != nil {
		return nil, fmt.Errorf("delete %s: %w", name, err)
	}
	for _, address := range got.addresses {
		at, err := o.kernels.wait(ctx, address, false, nodes, deleted)
		if err != nil {
			return nil, err
		}
		times[stageWithdrawn] = max(times[stageWithdrawn], at.Sub(deleted))
	}
	// The reports and events that this Service has caused must not delay the next trial.
	return times, errors.Join(b.waitUntilGone(ctx, svc), sleep(ctx, pauseBetweenTrials))
}

// pauseBetweenTrials lets agents and manager finish what a trial has caused.
const pauseBetweenTrials = 300 * time.Millisecond

// waitUntilGone waits until the object does not exist.
func (b *bench) waitUntilGone(ctx context.Context, object client.Object) error {
	return waitUntil(ctx, 10*time.Millisecond, object.GetName()+" to be deleted", func() error {
		if err := b.client.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return client.IgnoreNotFound(err)
		}
		return errors.New("it still exists")
	})
}

// httpTimeout is how long a request waits for its answer before the next is made.
const httpTimeout = 100 * time.Millisecond

// waitForHTTPAnswer sends requests from the client until the echo servers answer. It
// returns when they did.
func (b *bench) waitForHTTPAnswer(ctx context.Context, address netip.Addr) (time.Time, error) {
	web := b.lab.HTTPClient(lab.Client, httpTimeout)
	err := waitUntil(
		ctx, askInterval, "an HTTP answer of "+address.String(), func() error { return getOnce(ctx, web, address) },
	)
	return time.Now(), err
}

// getOnce makes one request, and returns nil if the answer is 200.
func getOnce(ctx context.Context, web *http.Client, address netip.Addr) error {
	request, err := http.NewRequestWithContext(
		ctx, http.MethodGet, "http://"+netip.AddrPortFrom(address, 80).String()+"/", nil,
	)
	if err != nil {
		return err
	}
	response, err := web.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the answer is %s", response.Status)
	}
	return nil
}
