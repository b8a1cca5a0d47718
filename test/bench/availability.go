package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/purelb/purelb-operator/test/bench/report"
	"github.com/purelb/purelb-operator/test/lab"
)

// trial is one disturbance of a Service with one Local address.
type trial struct {
	*bench
	address netip.Addr
	holder  string
	kernels *kernels
	// extra is measured beside what the meter measures, in ms, by name.
	extra map[string]float64
	// after is what was measured once more after the disturbance, as a case of its
	// own.
	after *lab.Figures
}

// disturbance is a case: what is done, until all is over.
type disturbance struct {
	name string
	do   func(context.Context, *trial) error
	// back is the name of the case of what trial.after measures.
	back string
	// prepare moves the address where it has to be; nil to have it on another node
	// than the leading manager.
	prepare func(context.Context, *trial) error
}

var disturbances = []disturbance{
	{name: "node dead (no carrier)", do: dead((*lab.Lab).CutLink, (*lab.Lab).HealLink), back: "dead node returns (no carrier before)"},
	{name: "node dead (cut off inside the network)", do: dead((*lab.Lab).UnplugPort, (*lab.Lab).PlugPort), back: "dead node returns (had carrier all the time)"},
	{name: "node dead, the leading manager's", do: dead((*lab.Lab).CutLink, (*lab.Lab).HealLink), prepare: withLeader},
	{name: "drained by the exclusion label", do: drain},
	{name: "agents restarted (rollout restart)", do: restartAgents},
	{name: "agent killed (kill -9)", do: killAgent},
	{name: "leading manager killed (kill -9)", do: killLeader},
	{name: "API server away 60 s", do: stopAPI(false)},
	{name: "API server away 60 s, agents killed meanwhile", do: stopAPI(true)},
	{name: "holder cut off the API 40 s", do: cutAPI},
	{name: "address stripped by hand", do: strip},
}

// availability measures what disturbances cost a client on the nodes' link.
func (b *bench) availability(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	o, err := b.observe(ctx)
	if err != nil {
		return err
	}
	svc := service("availability", "local", false)
	if err := b.client.Create(ctx, svc); err != nil {
		return fmt.Errorf("create a Service: %w", err)
	}
	defer func() {
		// The next section begins without it, also when the benchmark is stopped.
		if err := b.client.Delete(context.WithoutCancel(ctx), svc); err != nil {
			b.say("delete the Service: %s", err)
		}
	}()
	got, err := o.services.wait(ctx, svc.Name)
	if err != nil {
		return err
	}
	for _, d := range disturbances {
		if !b.cases.MatchString(d.name) {
			continue
		}
		var figures, back []lab.Figures
		var extra []map[string]float64
		for n := range b.trials {
			t := &trial{bench: b, address: got.addresses[0], kernels: o.kernels, extra: map[string]float64{}}
			f, err := t.run(ctx, d)
			if err != nil {
				return fmt.Errorf("%s, trial %d: %w", d.name, n+1, err)
			}
			b.say("%s, trial %d: %s %v", d.name, n+1, f, t.extra)
			figures, extra = append(figures, f), append(extra, t.extra)
			if t.after != nil && d.back != "" {
				b.say("%s, trial %d: %s", d.back, n+1, *t.after)
				back = append(back, *t.after)
			}
		}
		if err := b.add(costs(d.name, figures, extra)); err != nil {
			return err
		}
		if len(back) > 0 {
			if err := b.add(costs(d.back, back, nil)); err != nil {
				return err
			}
		}
	}
	return nil
}

// costs is the row of a case.
func costs(name string, figures []lab.Figures, extra []map[string]float64) report.Row {
	values := map[string][]float64{}
	for _, f := range figures {
		for what, value := range map[string]float64{
			"failed": float64(f.Failed + f.InFlight), "requests": float64(f.Requests), "moves": float64(f.Changes),
			"outage": ms(f.Outage), "silence": ms(f.Silence), "duplicate": ms(f.Duplicate),
		} {
			values[what] = append(values[what], value)
		}
	}
	for _, more := range extra {
		for what, value := range more {
			values[what] = append(values[what], value)
		}
	}
	row := report.Row{Section: "availability", Case: name, Unit: "ms", N: len(figures), Values: map[string]float64{}}
	for what, all := range values {
		report.Spread(row.Values, what, all)
	}
	return row
}

// run is one trial: from rest to rest.
func (t *trial) run(ctx context.Context, d disturbance) (lab.Figures, error) {
	if err := errors.Join(t.unkilled(ctx), t.atRest(ctx)); err != nil {
		return lab.Figures{}, err
	}
	prepare := d.prepare
	if prepare == nil {
		prepare = apart
	}
	err := prepare(ctx, t)
	if err != nil {
		return lab.Figures{}, err
	}
	if t.holder, err = t.settled(ctx, t.address); err != nil {
		return lab.Figures{}, err
	}
	if _, err := t.firstAnswer(ctx, t.address); err != nil {
		return lab.Figures{}, err
	}
	t.kernels.forget()
	return t.measured(ctx, func() error { return d.do(ctx, t) })
}

// measured is what the meter says of something that is done; it starts a little
// before, and ends a little after.
func (t *trial) measured(ctx context.Context, do func() error) (lab.Figures, error) {
	meter, err := t.lab.Measure(ctx, lab.Client, t.address)
	if err != nil {
		return lab.Figures{}, err
	}
	err = pause(ctx, 500*time.Millisecond)
	if err == nil {
		err = do()
	}
	if err == nil {
		err = pause(ctx, time.Second)
	}
	record, stopped := meter.Stop()
	return record.Figures(), errors.Join(err, stopped)
}

// apart keeps the leading manager out of what happens to the holder's node: that
// is a case of its own.
func apart(ctx context.Context, t *trial) error {
	node, err := t.leader(ctx)
	if err != nil {
		return err
	}
	if holder, err := t.settled(ctx, t.address); err != nil || holder != node {
		return err
	}
	return t.away(ctx, t.address, node)
}

// withLeader moves the address to the leading manager's node.
func withLeader(ctx context.Context, t *trial) error {
	node, err := t.leader(ctx)
	if err != nil {
		return err
	}
	if holder, err := t.settled(ctx, t.address); err != nil || holder == node {
		return err
	}
	others := slices.DeleteFunc(t.nodes(), func(name string) bool { return name == node })
	return t.away(ctx, t.address, others...)
}

// dead cuts the holder off until the address has moved, and for a little longer;
// how it comes back is measured by itself.
func dead(cut, heal func(*lab.Lab, context.Context, string) error) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		if err := cut(t.lab, ctx, t.holder); err != nil {
			return err
		}
		_, err := t.settled(ctx, t.address, t.holder)
		if err == nil {
			err = pause(ctx, time.Second)
		}
		if err != nil {
			return errors.Join(err, heal(t.lab, context.WithoutCancel(ctx), t.holder))
		}
		back, err := t.measured(ctx, func() error {
			if err := heal(t.lab, context.WithoutCancel(ctx), t.holder); err != nil {
				return err
			}
			return pause(ctx, 5*time.Second)
		})
		t.after = &back
		return err
	}
}

func drain(ctx context.Context, t *trial) error { return t.away(ctx, t.address, t.holder) }

func restartAgents(ctx context.Context, t *trial) error {
	for _, verb := range []string{"restart", "status"} {
		if err := t.kubectl(ctx, "-n", system, "rollout", verb, "daemonset/purelb-agent-default"); err != nil {
			return err
		}
	}
	return t.atRest(ctx)
}

func killAgent(ctx context.Context, t *trial) error {
	if err := t.kill(ctx, t.holder, "agent"); err != nil {
		return err
	}
	return errors.Join(pause(ctx, 5*time.Second), t.atRest(ctx))
}

func killLeader(ctx context.Context, t *trial) error {
	node, err := t.leader(ctx)
	if err != nil {
		return err
	}
	if err := t.kill(ctx, node, "manager"); err != nil {
		return err
	}
	return errors.Join(pause(ctx, 10*time.Second), t.atRest(ctx))
}

func stopAPI(killAgents bool) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		begun := time.Now()
		err := t.lab.StopControlPlane(ctx)
		if err == nil && killAgents {
			err = pause(ctx, 20*time.Second)
			for _, node := range t.nodes() {
				err = errors.Join(err, t.kill(ctx, node, "agent"))
			}
		}
		err = errors.Join(err, pause(ctx, time.Until(begun.Add(time.Minute))))
		if err := errors.Join(err, t.lab.StartControlPlane(context.WithoutCancel(ctx))); err != nil {
			return err
		}
		return t.atRest(ctx)
	}
}

func cutAPI(ctx context.Context, t *trial) error {
	if err := t.lab.CutAPI(ctx, t.holder); err != nil {
		return err
	}
	err := pause(ctx, 40*time.Second)
	return errors.Join(err, t.lab.HealAPI(context.WithoutCancel(ctx), t.holder), t.atRest(ctx))
}

// strip takes the address off, and waits until it is back.
func strip(ctx context.Context, t *trial) error {
	begun := time.Now()
	if _, err := t.lab.Exec(ctx, t.holder, "ip", "address", "delete", t.address.String()+"/24", "dev", "eth0"); err != nil {
		return err
	}
	gone, err := t.kernels.wait(ctx, t.address, false, 1, begun)
	if err != nil {
		return err
	}
	back, err := t.kernels.wait(ctx, t.address, true, 1, gone)
	t.extra["back"] = ms(back.Sub(gone))
	return err
}
