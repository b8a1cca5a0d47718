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

// burst measures many Services at once, with Local addresses: while they are made,
// and when they are there and their pool comes.
func (b *bench) burst(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	o, err := b.observe(ctx)
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
			rows, err := b.burstOf(ctx, o, name, n, waiting)
			rest := context.WithoutCancel(ctx)
			err = errors.Join(err, b.clear(rest), b.kubectl(rest, "delete", "--ignore-not-found", "-f", latePool))
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if err := b.add(rows...); err != nil {
				return err
			}
		}
	}
	return nil
}

// latePool is the pool that Services wait for.
const latePool = "late.yaml"

func (b *bench) burstOf(ctx context.Context, o observers, name string, n int, waiting bool) ([]report.Row, error) {
	group := "large"
	createAll := func() error {
		return b.create(ctx, n, func(i int) *corev1.Service { return bare(fmt.Sprintf("burst-%d", i), group) })
	}
	do := createAll
	if waiting {
		group = "late"
		do = func() error { return b.kubectl(ctx, "apply", "-f", latePool) }
		if err := errors.Join(createAll(), b.allWait(ctx, n)); err != nil {
			return nil, err
		}
	}
	before, err := b.serverMetrics(ctx)
	if err != nil {
		return nil, err
	}
	stations := o.stations[false]
	stations.ring(func() { clear(stations.first) })
	begun := time.Now()
	var done time.Time
	failed := make(chan error, 1)
	go func() {
		err := do()
		done = time.Now()
		failed <- err
	}()
	written := b.startProfiles(ctx, name)
	answered, err := b.allAnswer(ctx, o.services, stations, n)
	if err := errors.Join(err, <-failed, written()); err != nil {
		return nil, err
	}
	var ingress time.Time
	o.services.ring(func() {
		for _, g := range o.services.given {
			if g.at.After(ingress) {
				ingress = g.at
			}
		}
	})
	// What is written when all is over counts, too: events, conditions.
	if err := pause(ctx, 10*time.Second); err != nil {
		return nil, err
	}
	after, err := b.serverMetrics(ctx)
	if err != nil {
		return nil, err
	}
	const requests = "apiserver_request_total"
	more := grown(sum(before, requests, writes), sum(after, requests, writes))
	rows := []report.Row{{Section: "burst", Case: name, Unit: "s", N: n, Values: map[string]float64{
		"asked for": done.Sub(begun).Seconds(), "all have ingress": ingress.Sub(begun).Seconds(), "all answer ARP": answered.Sub(begun).Seconds(),
	}}}
	cost := report.Row{Section: "writes", Case: name, Unit: "for each Service", N: n, Values: map[string]float64{}}
	for what, count := range more {
		if ours(what) {
			cost.Values[what] = count / float64(n)
		}
	}
	return append(rows, cost), nil
}

// allWait waits until all Services have been told that they have to wait.
func (b *bench) allWait(ctx context.Context, n int) error {
	return await(ctx, time.Second, "Services to wait", func() error {
		all := &corev1.ServiceList{}
		if err := b.client.List(ctx, all, client.InNamespace(namespace)); err != nil {
			return err
		}
		told := 0
		for _, svc := range all.Items {
			if meta.IsStatusConditionFalse(svc.Status.Conditions, v1.ConditionAllocated) {
				told++
			}
		}
		if told != n {
			return fmt.Errorf("%d of %d do", told, n)
		}
		return nil
	})
}

// ours says whether PureLB makes such a write; Services are made and deleted by the
// benchmark, and Leases are renewed anyway.
func ours(what string) bool {
	switch what {
	case "PATCH services", "APPLY services", "PUT services", "PATCH services/status", "APPLY services/status", "PUT services/status",
		"POST announcements", "PATCH announcements", "APPLY announcements", "PUT announcements", "DELETE announcements",
		"PATCH announcements/status", "APPLY announcements/status", "PUT announcements/status",
		"POST events", "PATCH events", "PATCH servicegroups/status", "APPLY servicegroups/status", "PUT servicegroups/status":
		return true
	}
	return false
}

// burstInterval is between two rounds of questions: many are sent in each.
const burstInterval = 100 * time.Millisecond

// allAnswer asks for every address that does not answer yet until all do, and
// returns when the last did.
func (b *bench) allAnswer(ctx context.Context, services *services, stations *stations, n int) (time.Time, error) {
	var last time.Time
	err := await(ctx, burstInterval, fmt.Sprintf("%d addresses to answer", n), func() error {
		var known []netip.Addr
		services.ring(func() {
			for _, g := range services.given {
				known = append(known, g.addresses...)
			}
		})
		missing := unanswered(stations, known)
		for _, address := range missing {
			if err := stations.asker.Ask(address); err != nil {
				return err
			}
		}
		if len(known) < n || len(missing) > 0 {
			return fmt.Errorf("%d of %d have addresses, %d of them do not answer", len(known), n, len(missing))
		}
		return nil
	})
	stations.ring(func() {
		for _, at := range stations.first {
			if at.After(last) {
				last = at
			}
		}
	})
	return last, err
}

func unanswered(s *stations, known []netip.Addr) []netip.Addr {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	var missing []netip.Addr
	for _, address := range known {
		if _, ok := s.first[address]; !ok {
			missing = append(missing, address)
		}
	}
	return missing
}
