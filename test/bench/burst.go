package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/purelb/purelb-operator/test/bench/report"
)

// burst measures many Services at once, with Local addresses.
func (b *bench) burst(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	o, err := b.observe(ctx)
	if err != nil {
		return err
	}
	for _, n := range b.options.burst {
		name := fmt.Sprintf("%d Services at once", n)
		if !b.cases.MatchString(name) {
			continue
		}
		rows, err := b.burstOf(ctx, o, name, n)
		if err := errors.Join(err, b.clear(context.WithoutCancel(ctx))); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := b.add(rows...); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) burstOf(ctx context.Context, o observers, name string, n int) ([]report.Row, error) {
	before, err := b.serverMetrics(ctx)
	if err != nil {
		return nil, err
	}
	stations := o.stations[false]
	stations.ring(func() { clear(stations.first) })
	begun := time.Now()
	failed := make(chan error, 1)
	go func() {
		failed <- b.create(ctx, n, func(i int) *corev1.Service { return bare(fmt.Sprintf("burst-%d", i), "large") })
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
		"all have ingress": ingress.Sub(begun).Seconds(), "all answer ARP": answered.Sub(begun).Seconds(),
	}}}
	cost := report.Row{Section: "writes", Case: name, Unit: "for each Service", N: n, Values: map[string]float64{}}
	for what, count := range more {
		if ours(what) {
			cost.Values[what] = count / float64(n)
		}
	}
	return append(rows, cost), nil
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
