package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/bench/report"
)

// burst measures many Services with Local addresses at once: as they are created, and, in
// another case, as the pool that they all wait for is created.
func (b *bench) burst(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	o, err := b.startWatches(ctx)
	if err != nil {
		return err
	}
	for _, n := range b.options.burst {
		for _, waiting := range []bool{false, true} {
			name := fmt.Sprintf("%d Services at once", n)
			if waiting {
				name = fmt.Sprintf("%d Services that wait for their pool", n)
			}
			if !b.cases.MatchString(name) {
				continue
			}
			rows, err := b.measureBurst(ctx, o, name, n, waiting)
			rest := context.WithoutCancel(ctx)
			err = errors.Join(err, b.deleteServices(rest), b.kubectl(rest, "delete", "--ignore-not-found", "-f", latePoolFile))
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if err := b.addRows(rows...); err != nil {
				return err
			}
		}
	}
	return nil
}

// latePoolFile has the pool that Services wait for.
const latePoolFile = "late.yaml"

func (b *bench) measureBurst(ctx context.Context, o watches, name string, n int, waiting bool) ([]report.Row, error) {
	group := "large"
	createAll := func() error {
		return b.createServices(
			ctx, n, func(i int) *corev1.Service { return newServiceWithoutEndpoints(fmt.Sprintf("burst-%d", i), group) },
		)
	}
	do := createAll
	if waiting {
		group = "late"
		do = func() error { return b.kubectl(ctx, "apply", "-f", latePoolFile) }
		if err := errors.Join(createAll(), b.waitUntilAllPending(ctx, n)); err != nil {
			return nil, err
		}
	}
	before, err := b.readServerMetrics(ctx)
	if err != nil {
		return nil, err
	}
	stations := o.stations[false]
	stations.update(func() { clear(stations.firstAnswers) })
	begun := time.Now()
	var done time.Time
	failed := make(chan error, 1)
	go func() {
		err := do()
		done = time.Now()
		failed <- err
	}()
	written := b.startProfiles(ctx, name)
	answered, err := b.waitUntilAllAnswer(ctx, o.services, stations, n)
	if err := errors.Join(err, <-failed, written()); err != nil {
		return nil, err
	}
	var ingress time.Time
	o.services.update(func() {
		for _, g := range o.services.allocations {
			if g.at.After(ingress) {
				ingress = g.at
			}
		}
	})
	// The manager writes events and conditions a little later: they count, too.
	if err := sleep(ctx, 10*time.Second); err != nil {
		return nil, err
	}
	after, err := b.readServerMetrics(ctx)
	if err != nil {
		return nil, err
	}
	const requests = "apiserver_request_total"
	more := increases(before.Sum(requests, writeKey), after.Sum(requests, writeKey))
	rows := []report.Row{{Section: "burst", Case: name, Unit: "s", N: n, Values: map[string]float64{
		"asked for": done.Sub(begun).Seconds(), "all have ingress": ingress.Sub(begun).Seconds(),
		"all answer ARP": answered.Sub(begun).Seconds(),
	}}}
	cost := report.Row{Section: "writes", Case: name, Unit: "for each Service", N: n, Values: map[string]float64{}}
	for what, count := range more {
		if isWriteOfPureLB(what) {
			cost.Values[what] = count / float64(n)
		}
	}
	return append(rows, cost), nil
}

// waitUntilAllPending waits until the condition of every Service says that it has no
// address.
func (b *bench) waitUntilAllPending(ctx context.Context, n int) error {
	return waitUntil(ctx, time.Second, "Services to wait", func() error {
		all := &corev1.ServiceList{}
		if err := b.client.List(ctx, all, client.InNamespace(benchNamespace)); err != nil {
			return err
		}
		pending := 0
		for _, svc := range all.Items {
			if meta.IsStatusConditionFalse(svc.Status.Conditions, v1.ConditionAllocated) {
				pending++
			}
		}
		if pending != n {
			return fmt.Errorf("%d of %d wait", pending, n)
		}
		return nil
	})
}

// isWriteOfPureLB says whether PureLB makes such writes because of Services. The benchmark
// itself creates and deletes Services, and agents renew Leases without any.
func isWriteOfPureLB(what string) bool {
	switch what {
	case "PATCH services", "APPLY services", "PUT services", "PATCH services/status", "APPLY services/status",
		"PUT services/status",
		"POST announcements", "PATCH announcements", "APPLY announcements", "PUT announcements", "DELETE announcements",
		"PATCH announcements/status", "APPLY announcements/status", "PUT announcements/status",
		"POST events", "PATCH events", "PATCH servicegroups/status", "APPLY servicegroups/status", "PUT servicegroups/status":
		return true
	}
	return false
}

// burstInterval is the time between two rounds of ARP requests for all addresses that do
// not answer yet.
const burstInterval = 100 * time.Millisecond

// waitUntilAllAnswer sends ARP requests for every address that does not answer yet, until
// all answer. It returns when the last answered.
func (b *bench) waitUntilAllAnswer(
	ctx context.Context, services *serviceWatch, stations *answerWatch, n int,
) (time.Time, error) {
	var last time.Time
	err := waitUntil(ctx, burstInterval, fmt.Sprintf("%d addresses to answer", n), func() error {
		var allocated []netip.Addr
		services.update(func() {
			for _, g := range services.allocations {
				allocated = append(allocated, g.addresses...)
			}
		})
		missing := findUnanswered(stations, allocated)
		for _, address := range missing {
			if err := stations.asker.Ask(address); err != nil {
				return err
			}
		}
		if len(allocated) < n || len(missing) > 0 {
			return fmt.Errorf("%d of %d have addresses, %d of them do not answer", len(allocated), n, len(missing))
		}
		return nil
	})
	stations.update(func() {
		for _, at := range stations.firstAnswers {
			if at.After(last) {
				last = at
			}
		}
	})
	return last, err
}

// findUnanswered returns the addresses that have not answered yet.
func findUnanswered(s *answerWatch, allocated []netip.Addr) []netip.Addr {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	var missing []netip.Addr
	for _, address := range allocated {
		if _, ok := s.firstAnswers[address]; !ok {
			missing = append(missing, address)
		}
	}
	return missing
}
