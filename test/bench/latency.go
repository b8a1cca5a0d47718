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

// Stages of a Service's life, as the cases are called. It is created when the API
// server has answered that it is; how long that takes is a stage of its own.
const (
	stageCreated   = "asked for → created"
	stageIngress   = "created → ingress"
	stageInterface = "created → on the interface"
	stageWire      = "created → ARP/ND answered"
	stageHTTP      = "created → first HTTP answer"
	stageWithdrawn = "deletion asked for → off the interface"
)

var stages = []string{stageCreated, stageIngress, stageInterface, stageWire, stageHTTP, stageWithdrawn}

// shape is a kind of Service.
type shape struct {
	name  string
	group string
	dual  bool
	// probe is whether agents probe before they claim.
	probe bool
}

var shapes = []shape{
	{"Local IPv4", "local", false, true},
	{"Local dual-stack", "local", true, true},
	{"Virtual IPv4", "virtual", false, true},
	{"Virtual dual-stack", "virtual", true, true},
	{"Local IPv4, no probing", "local", false, false},
	{"Local dual-stack, no probing", "local", true, false},
}

// observers is what a trial is watched by.
type observers struct {
	services *services
	kernels  *kernels
	stations map[bool]*stations // by whether it is IPv6
}

func (b *bench) observe(ctx context.Context) (o observers, err error) {
	if o.services, err = b.watchServices(ctx); err != nil {
		return o, err
	}
	if o.kernels, err = b.watchKernels(ctx); err != nil {
		return o, err
	}
	o.stations = map[bool]*stations{}
	for _, like := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if o.stations[like.Is6()], err = watchStations(ctx, like); err != nil {
			return o, err
		}
	}
	return o, nil
}

// latency measures how long a single Service takes, one after the other.
func (b *bench) latency(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	o, err := b.observe(ctx)
	if err != nil {
		return err
	}
	defer func() {
		// The next section begins as this one did, also when the benchmark is stopped.
		if err := b.probing(context.WithoutCancel(ctx), true); err != nil {
			b.say("%s", err)
		}
	}()
	for _, s := range shapes {
		if !b.cases.MatchString(s.name) {
			continue
		}
		if err := b.probing(ctx, s.probe); err != nil {
			return err
		}
		times := map[string][]float64{}
		for i := range b.count + 1 {
			trial, err := b.live(ctx, o, s, fmt.Sprintf("latency-%d", i))
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			if i == 0 {
				continue // it makes the interface, opens connections
			}
			for stage, took := range trial {
				times[stage] = append(times[stage], ms(took))
			}
		}
		for _, stage := range stages {
			if len(times[stage]) == 0 {
				continue
			}
			row := report.Row{Section: "latency", Case: stage + ", " + s.name, Unit: "ms", N: len(times[stage]), Values: report.Percentiles(times[stage])}
			if err := b.add(row); err != nil {
				return err
			}
		}
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// probing switches it on or off, and waits until the agents know.
func (b *bench) probing(ctx context.Context, on bool) error {
	if err := b.kubectl(ctx, "-n", system, "patch", "lbnodeagent", "default", "--type=merge", "-p",
		fmt.Sprintf(`{"spec":{"local":{"probeConfig":{"enabled":%t}}}}`, on)); err != nil {
		return err
	}
	// An agent does not say which settings it has; its watch tells it at once.
	return pause(ctx, time.Second)
}

// live makes a Service, follows it until it serves, deletes it, and waits until
// nothing of it is left.
func (b *bench) live(ctx context.Context, o observers, s shape, name string) (map[string]time.Duration, error) {
	nodes := 1
	if s.group == "virtual" {
		nodes = len(b.nodes())
	}
	svc := service(name, s.group, s.dual)
	o.kernels.forget()
	// The address is that of the trial before: who had it is not to be known.
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
		wait.Go(func() { follow(stageHTTP, func() (time.Time, error) { return b.firstAnswer(ctx, address) }) })
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
	// What it has caused, reports and events, is no part of the next trial.
	return times, errors.Join(b.gone(ctx, svc), pause(ctx, rest))
}

// rest is between two trials.
const rest = 300 * time.Millisecond

// gone waits until there is no such object.
func (b *bench) gone(ctx context.Context, object client.Object) error {
	return await(ctx, 10*time.Millisecond, object.GetName()+" to go", func() error {
		if err := b.client.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return client.IgnoreNotFound(err)
		}
		return errors.New("it is there")
	})
}

// httpTimeout is after how long the next request is made.
const httpTimeout = 100 * time.Millisecond

// firstAnswer asks the echo servers, from the client, until they answer.
func (b *bench) firstAnswer(ctx context.Context, address netip.Addr) (time.Time, error) {
	web := b.lab.HTTPClient(lab.Client, httpTimeout)
	err := await(ctx, askInterval, "an HTTP answer of "+address.String(), func() error { return get(ctx, web, address) })
	return time.Now(), err
}

func get(ctx context.Context, web *http.Client, address netip.Addr) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+netip.AddrPortFrom(address, 80).String()+"/", nil)
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
