package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/bench/report"
)

// settleTime passes between a start and the measurement. Programs keep memory that only
// their start needs for a shorter time.
const settleTime = 20 * time.Second

// idle measures what PureLB uses while nothing changes: with numbers of Services whose
// Virtual addresses every node has, and then with as many Services of another load
// balancer's class.
func (b *bench) idle(ctx context.Context) error {
	token, err := b.createMetricsToken(ctx)
	if err != nil {
		return err
	}
	for _, foreign := range []bool{false, true} {
		for _, n := range b.options.idle {
			name := fmt.Sprintf("%d Services", n)
			if foreign {
				name += " of another class"
			}
			if n == 0 && foreign || !b.cases.MatchString(name) {
				continue
			}
			if err := b.measureIdleWith(ctx, token, name, n, foreign); err != nil {
				return errors.Join(fmt.Errorf("%s: %w", name, err), b.deleteServices(context.WithoutCancel(ctx)))
			}
		}
	}
	return nil
}

// measureIdleWith measures a case with n Services.
func (b *bench) measureIdleWith(ctx context.Context, token, name string, n int, foreign bool) error {
	b.say("creating %s", name)
	if err := b.createServices(ctx, n, func(i int) *corev1.Service {
		svc := newServiceWithoutEndpoints(fmt.Sprintf("idle-%d", i), "virtual")
		svc.Labels = map[string]string{serviceProxyName: "none"}
		if foreign {
			svc.Spec.LoadBalancerClass = ptr.To("example.com/other")
		}
		return svc
	}); err != nil {
		return err
	}
	if foreign {
		n = 0
	}
	if err := b.waitUntilAnnounced(ctx, n); err != nil {
		return err
	}
	// The memory that creating the Services took would stay for a while.
	if err := b.restartPureLB(ctx); err != nil {
		return err
	}
	if err := b.waitUntilAnnounced(ctx, n); err != nil {
		return err
	}
	if err := sleep(ctx, settleTime); err != nil {
		return err
	}
	rows, err := b.measureIdle(ctx, token, name)
	if err != nil {
		return err
	}
	return errors.Join(b.addRows(rows...), b.deleteServices(ctx))
}

// restartPureLB replaces all pods of PureLB.
func (b *bench) restartPureLB(ctx context.Context) error {
	for _, what := range []string{"deployment/purelb-manager", "daemonset/purelb-agent-default"} {
		for _, verb := range []string{"restart", "status"} {
			if err := b.kubectl(ctx, "-n", systemNamespace, "rollout", verb, what); err != nil {
				return err
			}
		}
	}
	// Managers may take some time to end.
	return waitUntil(ctx, pollInterval, "the previous pods to end", func() error {
		pods := &corev1.PodList{}
		if err := b.client.List(ctx, pods, client.InNamespace(systemNamespace)); err != nil {
			return err
		}
		if want := len(b.nodeNames()) + 2; len(pods.Items) != want {
			return fmt.Errorf("there are %d pods, not %d", len(pods.Items), want)
		}
		return nil
	})
}

// serviceProxyName is the label of Services that kube-proxy ignores (KEP-2447). Without it
// the lab's kube-proxies would use all processors for thousands of Services.
const serviceProxyName = "service.kubernetes.io/service-proxy-name"

// newServiceWithoutEndpoints returns a Service that gives kube-proxy little to do, as
// kube-proxy is not measured.
func newServiceWithoutEndpoints(name, group string) *corev1.Service {
	svc := newService(name, group, false)
	svc.Spec.Selector = nil
	svc.Spec.AllocateLoadBalancerNodePorts = ptr.To(false) // there are not that many ports
	return svc
}

// parallelCreators is how many Services createServices creates at the same time.
const parallelCreators = 20

// createServices creates n Services.
func (b *bench) createServices(ctx context.Context, n int, service func(int) *corev1.Service) error {
	numbers, failed := make(chan int, n), make(chan error, parallelCreators)
	for i := range n {
		numbers <- i
	}
	close(numbers)
	for range parallelCreators {
		go func() {
			var err error
			for i := range numbers {
				if err == nil {
					err = b.client.Create(ctx, service(i))
				}
			}
			failed <- err
		}()
	}
	var errs []error
	for range parallelCreators {
		errs = append(errs, <-failed)
	}
	return errors.Join(errs...)
}

// deleteServices deletes all Services, and waits until no node announces their addresses.
func (b *bench) deleteServices(ctx context.Context) error {
	if err := b.client.DeleteAllOf(ctx, &corev1.Service{}, client.InNamespace(benchNamespace)); err != nil {
		return fmt.Errorf("delete the Services: %w", err)
	}
	return waitUntil(ctx, 500*time.Millisecond, "the Services to go", func() error {
		left := &corev1.ServiceList{}
		if err := b.client.List(ctx, left, client.InNamespace(benchNamespace), client.Limit(1)); err != nil {
			return err
		}
		if len(left.Items) > 0 {
			return errors.New("some are there")
		}
		return b.checkAnnounced(ctx, 0)
	})
}

// waitUntilAnnounced waits until each node announces n addresses.
func (b *bench) waitUntilAnnounced(ctx context.Context, n int) error {
	return waitUntil(
		ctx, 500*time.Millisecond, fmt.Sprintf("%d addresses on each node", n),
		func() error { return b.checkAnnounced(ctx, n) },
	)
}

// checkAnnounced returns an error unless each node announces n addresses now.
func (b *bench) checkAnnounced(ctx context.Context, n int) error {
	all, commons := &v1.AnnouncementList{}, &v1.CommonAnnouncementList{}
	if err := errors.Join(
		b.client.List(ctx, all, client.InNamespace(systemNamespace)),
		b.client.List(ctx, commons, client.InNamespace(systemNamespace)),
	); err != nil {
		return err
	}
	revision := int64(0)
	for i := range commons.Items {
		revision = max(revision, commons.Items[i].Spec.Revision)
	}
	wanted, announced := map[string]int{}, map[string]int{}
	for _, a := range all.Items {
		realised := a.Status.CommonAnnouncementsRevision
		if a.Status.ObservedGeneration != a.Generation ||
			a.Spec.IncludeCommonAnnouncements && (realised == nil || *realised != revision) {
			return fmt.Errorf("the agent of %s has not seen all addresses that it is to announce", a.Spec.NodeName)
		}
		wanted[a.Spec.NodeName] += int(a.Status.Desired)
		announced[a.Spec.NodeName] += int(a.Status.Announced)
	}
	for _, node := range b.nodeNames() {
		if wanted[node] != n || announced[node] != n {
			return fmt.Errorf("%s announces %d of %d", node, announced[node], wanted[node])
		}
	}
	return nil
}

// sample is what all programs have used, and how much they have asked the API server, so
// far.
type sample struct {
	at          time.Time
	usage       map[program]usage
	requests    map[program]float64
	watchEvents map[string]float64 // events sent to watches, by kind
}

// readUsage reads what the programs have used. It does not read their metrics, which would
// cost the programs something: readCounters does that outside the measured time.
func (l *sample) readUsage(programs []program) error {
	l.at, l.usage = time.Now(), map[program]usage{}
	for _, p := range programs {
		u, err := p.readUsage()
		if err != nil {
			return err
		}
		l.usage[p] = u
	}
	return nil
}

// readCounters reads the metrics of the programs and of the API server.
func (b *bench) readCounters(ctx context.Context, token string, programs []program, l *sample) error {
	l.requests = map[program]float64{}
	for _, p := range programs {
		metrics, err := b.readProgramMetrics(ctx, p, token)
		if err != nil {
			return err
		}
		l.requests[p] = metrics.Total("rest_client_requests_total")
	}
	metrics, err := b.readServerMetrics(ctx)
	if err != nil {
		return err
	}
	l.watchEvents = metrics.Sum("apiserver_watch_events_total", func(labels map[string]string) string {
		return labels["group"] + "/" + labels["resource"] + labels["kind"]
	})
	return nil
}

// measureIdle takes two samples, and returns the rows of their difference.
func (b *bench) measureIdle(ctx context.Context, token, name string) ([]report.Row, error) {
	programs, err := b.findPrograms(ctx)
	if err != nil {
		return nil, err
	}
	var before, after sample
	if err := b.readCounters(ctx, token, programs, &before); err != nil {
		return nil, err
	}
	if err := before.readUsage(programs); err != nil {
		return nil, err
	}
	written := b.startProfiles(ctx, name)
	if err := sleep(ctx, time.Duration(b.idleSeconds)*time.Second); err != nil {
		return nil, err
	}
	if err := written(); err != nil {
		return nil, err
	}
	if err := after.readUsage(programs); err != nil {
		return nil, err
	}
	if err := b.readCounters(ctx, token, programs, &after); err != nil {
		return nil, err
	}
	b.say("events sent to all watches, a minute: %v", increases(before.watchEvents, after.watchEvents))
	return idleRows(name, before, after), nil
}

// idleRows returns a row for each role, of several agents with the largest values, and a
// row of the events that the API server sent to watches.
func idleRows(name string, before, after sample) []report.Row {
	minutes := after.at.Sub(before.at).Minutes()
	var rows []report.Row
	for _, role := range []string{"leader", "standby", "agent"} {
		row := report.Row{Section: "idle", Case: name + ": " + role, Values: map[string]float64{}}
		for p, then := range before.usage {
			now, runs := after.usage[p]
			if p.role != role || !runs {
				continue
			}
			row.N++
			for what, value := range map[string]float64{
				"RSS MiB": now.rssMiB, "cgroup MiB": now.cgroupMiB, "CPU s/min": (now.cpu - then.cpu).Seconds() / minutes,
				"requests/min": (after.requests[p] - before.requests[p]) / minutes,
			} {
				row.Values[what] = max(row.Values[what], value)
			}
		}
		if row.N > 0 {
			rows = append(rows, row)
		}
	}
	watched := report.Row{
		Section: "watches", Case: name, Unit: "a minute, all watches", N: 1, Values: map[string]float64{},
	}
	for kind, n := range increases(before.watchEvents, after.watchEvents) {
		switch kind {
		case "purelb.io/announcements", "purelb.io/Announcement":
			watched.Values["Announcements"] = n / minutes
		case "coordination.k8s.io/leases", "coordination.k8s.io/Lease":
			watched.Values["Leases"] = n / minutes
		}
		watched.Values["all"] += n / minutes
	}
	return append(rows, watched)
}
