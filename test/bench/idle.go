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

// settling is how long nothing is done before it counts as idle: longer than
// programs keep memory that only a start needs.
const settling = 20 * time.Second

// idle measures what PureLB needs when nothing changes, with so many Services
// whose Virtual addresses every node has; and, last, with as many that are not
// ours.
func (b *bench) idle(ctx context.Context) error {
	token, err := b.metricsToken(ctx)
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
			if err := b.idleWith(ctx, token, name, n, foreign); err != nil {
				return errors.Join(fmt.Errorf("%s: %w", name, err), b.clear(context.WithoutCancel(ctx)))
			}
		}
	}
	return nil
}

func (b *bench) idleWith(ctx context.Context, token, name string, n int, foreign bool) error {
	b.say("making %s", name)
	if err := b.create(ctx, n, func(i int) *corev1.Service {
		svc := bare(fmt.Sprintf("idle-%d", i), "virtual")
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
	if err := b.announcedEverywhere(ctx, n); err != nil {
		return err
	}
	// As a fresh start has it, not as the burst has left it.
	if err := b.restart(ctx); err != nil {
		return err
	}
	if err := b.announcedEverywhere(ctx, n); err != nil {
		return err
	}
	if err := pause(ctx, settling); err != nil {
		return err
	}
	rows, err := b.measureIdle(ctx, token, name)
	if err != nil {
		return err
	}
	return errors.Join(b.add(rows...), b.clear(ctx))
}

// restart replaces all pods of PureLB.
func (b *bench) restart(ctx context.Context) error {
	for _, what := range []string{"deployment/purelb-manager", "daemonset/purelb-agent-default"} {
		for _, verb := range []string{"restart", "status"} {
			if err := b.kubectl(ctx, "-n", system, "rollout", verb, what); err != nil {
				return err
			}
		}
	}
	// The managers that go have their time.
	return await(ctx, poll, "the pods before to go", func() error {
		pods := &corev1.PodList{}
		if err := b.client.List(ctx, pods, client.InNamespace(system)); err != nil {
			return err
		}
		if want := len(b.nodes()) + 2; len(pods.Items) != want {
			return fmt.Errorf("there are %d pods, not %d", len(pods.Items), want)
		}
		return nil
	})
}

// serviceProxyName is the label of Services that kube-proxy leaves to another
// (KEP-2447): four of them that follow ten thousand leave two cores to nothing else.
const serviceProxyName = "service.kubernetes.io/service-proxy-name"

// bare is a Service without endpoints: what kube-proxy does is not measured.
func bare(name, group string) *corev1.Service {
	svc := service(name, group, false)
	svc.Spec.Selector = nil
	svc.Spec.AllocateLoadBalancerNodePorts = ptr.To(false) // there are not that many ports
	return svc
}

// creators is how many Services are made at the same time.
const creators = 20

// create makes Services at once.
func (b *bench) create(ctx context.Context, n int, service func(int) *corev1.Service) error {
	numbers, failed := make(chan int, n), make(chan error, creators)
	for i := range n {
		numbers <- i
	}
	close(numbers)
	for range creators {
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
	for range creators {
		errs = append(errs, <-failed)
	}
	return errors.Join(errs...)
}

// clear deletes all Services, and waits until nothing of them is announced.
func (b *bench) clear(ctx context.Context) error {
	if err := b.client.DeleteAllOf(ctx, &corev1.Service{}, client.InNamespace(namespace)); err != nil {
		return fmt.Errorf("delete the Services: %w", err)
	}
	return await(ctx, 500*time.Millisecond, "the Services to go", func() error {
		left := &corev1.ServiceList{}
		if err := b.client.List(ctx, left, client.InNamespace(namespace), client.Limit(1)); err != nil {
			return err
		}
		if len(left.Items) > 0 {
			return errors.New("some are there")
		}
		return b.announcedNow(ctx, 0)
	})
}

// announcedEverywhere waits until each node announces n addresses.
func (b *bench) announcedEverywhere(ctx context.Context, n int) error {
	return await(ctx, 500*time.Millisecond, fmt.Sprintf("%d addresses on each node", n), func() error { return b.announcedNow(ctx, n) })
}

func (b *bench) announcedNow(ctx context.Context, n int) error {
	all, commons := &v1.AnnouncementList{}, &v1.CommonAnnouncementList{}
	if err := errors.Join(b.client.List(ctx, all, client.InNamespace(system)), b.client.List(ctx, commons, client.InNamespace(system))); err != nil {
		return err
	}
	revision := int64(0)
	for i := range commons.Items {
		revision = max(revision, commons.Items[i].Spec.Revision)
	}
	wanted, announced := map[string]int{}, map[string]int{}
	for _, a := range all.Items {
		made := a.Status.CommonRevision
		if a.Status.ObservedGeneration != a.Generation || a.Spec.Common && (made == nil || *made != revision) {
			return fmt.Errorf("the agent of %s has not seen all that it is to announce", a.Spec.NodeName)
		}
		wanted[a.Spec.NodeName] += int(a.Status.Desired)
		announced[a.Spec.NodeName] += int(a.Status.Announced)
	}
	for _, node := range b.nodes() {
		if wanted[node] != n || announced[node] != n {
			return fmt.Errorf("%s announces %d of %d", node, announced[node], wanted[node])
		}
	}
	return nil
}

// look is what all programs have used, and asked, so far.
type look struct {
	at       time.Time
	usage    map[program]usage
	requests map[program]float64
	watched  map[string]float64 // events sent to watches, by kind
}

// use looks what programs have used. To ask them for their metrics costs them
// something, so that is done before the time that is measured, or after it.
func (l *look) use(programs []program) error {
	l.at, l.usage = time.Now(), map[program]usage{}
	for _, p := range programs {
		u, err := p.used()
		if err != nil {
			return err
		}
		l.usage[p] = u
	}
	return nil
}

// ask looks what programs, and the API server, have done.
func (b *bench) ask(ctx context.Context, token string, programs []program, l *look) error {
	l.requests = map[program]float64{}
	for _, p := range programs {
		samples, err := b.programMetrics(ctx, p, token)
		if err != nil {
			return err
		}
		l.requests[p] = sum(samples, "rest_client_requests_total", func(map[string]string) string { return "all" })["all"]
	}
	samples, err := b.serverMetrics(ctx)
	if err != nil {
		return err
	}
	l.watched = sum(samples, "apiserver_watch_events_total", func(labels map[string]string) string {
		return labels["group"] + "/" + labels["resource"] + labels["kind"]
	})
	return nil
}

// measureIdle compares two looks.
func (b *bench) measureIdle(ctx context.Context, token, name string) ([]report.Row, error) {
	programs, err := b.programs(ctx)
	if err != nil {
		return nil, err
	}
	var before, after look
	if err := b.ask(ctx, token, programs, &before); err != nil {
		return nil, err
	}
	if err := before.use(programs); err != nil {
		return nil, err
	}
	written := b.startProfiles(ctx, name)
	if err := pause(ctx, time.Duration(b.idleSeconds)*time.Second); err != nil {
		return nil, err
	}
	if err := written(); err != nil {
		return nil, err
	}
	if err := after.use(programs); err != nil {
		return nil, err
	}
	if err := b.ask(ctx, token, programs, &after); err != nil {
		return nil, err
	}
	b.say("events sent to all watches, a minute: %v", grown(before.watched, after.watched))
	return idleRows(name, before, after), nil
}

// idleRows is a row for each role; of several agents the one with the most.
func idleRows(name string, before, after look) []report.Row {
	minutes := after.at.Sub(before.at).Minutes()
	var rows []report.Row
	for _, role := range []string{"leader", "standby", "agent"} {
		row := report.Row{Section: "idle", Case: name + ": " + role, Values: map[string]float64{}}
		for p, then := range before.usage {
			now, there := after.usage[p]
			if p.role != role || !there {
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
	watched := report.Row{Section: "watches", Case: name, Unit: "a minute, all watches", N: 1, Values: map[string]float64{}}
	for kind, n := range grown(before.watched, after.watched) {
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
