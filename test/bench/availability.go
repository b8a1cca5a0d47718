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
	kernels *kernelWatch
	// extraValues are measured beside the meter's figures, in ms, by name.
	extraValues map[string]float64
	// returnFigures are the meter's figures of what the disturbance ends with, such as the
	// return of a dead node. They make a case of their own.
	returnFigures *lab.Figures
}

// disturbance is a case. disturb returns when everything is as before.
type disturbance struct {
	name    string
	disturb func(context.Context, *trial) error
	// returnCase is the name of the case of trial.returnFigures.
	returnCase string
	// prepare moves the address to the node where the case wants it. Without it the
	// address is moved off the leading manager's node.
	prepare func(context.Context, *trial) error
}

var disturbances = []disturbance{
	{
		name: "node dead (no carrier)", disturb: cutHolderOff((*lab.Lab).CutLink, (*lab.Lab).HealLink),
		returnCase: "dead node returns (no carrier before)",
	},
	{
		name: "node dead (cut off inside the network)", disturb: cutHolderOff((*lab.Lab).UnplugPort, (*lab.Lab).PlugPort),
		returnCase: "dead node returns (had carrier all the time)",
	},
	{
		name: "node dead, the leading manager's", disturb: cutHolderOff((*lab.Lab).CutLink, (*lab.Lab).HealLink),
		prepare: moveToLeader,
	},
	{name: "drained by the exclusion label", disturb: drainHolder},
	{name: "agents restarted (rollout restart)", disturb: restartAgents},
	{name: "agent killed (kill -9)", disturb: killAgent},
	{name: "leading manager killed (kill -9)", disturb: killLeader},
	{name: "API server away 60 s", disturb: stopAPI(false)},
	{name: "API server away 60 s, agents killed meanwhile", disturb: stopAPI(true)},
	{name: "holder cut off the API 40 s", disturb: cutAPI},
	{name: "address stripped by hand", disturb: stripAddress},
}

// availability measures what disturbances cost a client on the nodes' link.
func (b *bench) availability(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	o, err := b.startWatches(ctx)
	if err != nil {
		return err
	}
	svc := newService("availability", "local", false)
	if err := b.client.Create(ctx, svc); err != nil {
		return fmt.Errorf("create a Service: %w", err)
	}
	defer func() {
		// The next section begins without this Service, also when the benchmark is
		// interrupted.
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
			t := &trial{bench: b, address: got.addresses[0], kernels: o.kernels, extraValues: map[string]float64{}}
			f, err := t.runDisturbance(ctx, d)
			if err != nil {
				return fmt.Errorf("%s, trial %d: %w", d.name, n+1, err)
			}
			b.say("%s, trial %d: %s %v", d.name, n+1, f, t.extraValues)
			figures, extra = append(figures, f), append(extra, t.extraValues)
			if t.returnFigures != nil && d.returnCase != "" {
				b.say("%s, trial %d: %s", d.returnCase, n+1, *t.returnFigures)
				back = append(back, *t.returnFigures)
			}
		}
		if err := b.addRows(availabilityRow(d.name, figures, extra)); err != nil {
			return err
		}
		if len(back) > 0 {
			if err := b.addRows(availabilityRow(d.returnCase, back, nil)); err != nil {
				return err
			}
		}
	}
	return nil
}

// availabilityRow returns the row of a case.
func availabilityRow(name string, figures []lab.Figures, extra []map[string]float64) report.Row {
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

// runDisturbance makes one trial, which begins and ends with the cluster at rest.
func (t *trial) runDisturbance(ctx context.Context, d disturbance) (lab.Figures, error) {
	if err := errors.Join(t.replaceRestartedPods(ctx), t.waitForRest(ctx)); err != nil {
		return lab.Figures{}, err
	}
	prepare := d.prepare
	if prepare == nil {
		prepare = moveOffLeader
	}
	err := prepare(ctx, t)
	if err != nil {
		return lab.Figures{}, err
	}
	if t.holder, err = t.waitForHolder(ctx, t.address); err != nil {
		return lab.Figures{}, err
	}
	if _, err := t.waitForHTTPAnswer(ctx, t.address); err != nil {
		return lab.Figures{}, err
	}
	t.kernels.forgetChanges()
	return t.measureWhile(ctx, func() error { return d.disturb(ctx, t) })
}

// measureWhile calls disturb and returns the meter's figures from 0.5 s before until 1 s
// after.
func (t *trial) measureWhile(ctx context.Context, disturb func() error) (lab.Figures, error) {
	meter, err := t.lab.Measure(ctx, lab.Client, t.address)
	if err != nil {
		return lab.Figures{}, err
	}
	err = sleep(ctx, 500*time.Millisecond)
	if err == nil {
		err = disturb()
	}
	if err == nil {
		err = sleep(ctx, time.Second)
	}
	record, stopped := meter.Stop()
	return record.Figures(), errors.Join(err, stopped)
}

// moveOffLeader moves the address off the leading manager's node, so that what happens to
// the holder's node does not happen to that manager. That is a case of its own.
func moveOffLeader(ctx context.Context, t *trial) error {
	node, err := t.findLeaderNode(ctx)
	if err != nil {
		return err
	}
	if holder, err := t.waitForHolder(ctx, t.address); err != nil || holder != node {
		return err
	}
	return t.moveAddressAway(ctx, t.address, node)
}

// moveToLeader moves the address to the leading manager's node.
func moveToLeader(ctx context.Context, t *trial) error {
	node, err := t.findLeaderNode(ctx)
	if err != nil {
		return err
	}
	if holder, err := t.waitForHolder(ctx, t.address); err != nil || holder == node {
		return err
	}
	others := slices.DeleteFunc(t.nodeNames(), func(name string) bool { return name == node })
	return t.moveAddressAway(ctx, t.address, others...)
}

// cutHolderOff returns a disturbance that cuts the holder off until another node has the
// address, and for 1 s more. What the holder's return costs is measured separately.
func cutHolderOff(cut, heal func(*lab.Lab, context.Context, string) error) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		if err := cut(t.lab, ctx, t.holder); err != nil {
			return err
		}
		_, err := t.waitForHolder(ctx, t.address, t.holder)
		if err == nil {
			err = sleep(ctx, time.Second)
		}
		if err != nil {
			return errors.Join(err, heal(t.lab, context.WithoutCancel(ctx), t.holder))
		}
		back, err := t.measureWhile(ctx, func() error {
			if err := heal(t.lab, context.WithoutCancel(ctx), t.holder); err != nil {
				return err
			}
			return sleep(ctx, 5*time.Second)
		})
		t.returnFigures = &back
		return err
	}
}

func drainHolder(ctx context.Context, t *trial) error {
	return t.moveAddressAway(ctx, t.address, t.holder)
}

func restartAgents(ctx context.Context, t *trial) error {
	for _, verb := range []string{"restart", "status"} {
		if err := t.kubectl(ctx, "-n", systemNamespace, "rollout", verb, "daemonset/purelb-agent-default"); err != nil {
			return err
		}
	}
	return t.waitForRest(ctx)
}

func killAgent(ctx context.Context, t *trial) error {
	if err := t.killProgram(ctx, t.holder, "agent"); err != nil {
		return err
	}
	return errors.Join(sleep(ctx, 5*time.Second), t.waitForRest(ctx))
}

func killLeader(ctx context.Context, t *trial) error {
	node, err := t.findLeaderNode(ctx)
	if err != nil {
		return err
	}
	if err := t.killProgram(ctx, node, "manager"); err != nil {
		return err
	}
	return errors.Join(sleep(ctx, 10*time.Second), t.waitForRest(ctx))
}

func stopAPI(killAgents bool) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		begun := time.Now()
		err := t.lab.StopControlPlane(ctx)
		if err == nil && killAgents {
			err = sleep(ctx, 20*time.Second)
			for _, node := range t.nodeNames() {
				err = errors.Join(err, t.killProgram(ctx, node, "agent"))
			}
		}
		err = errors.Join(err, sleep(ctx, time.Until(begun.Add(time.Minute))))
		if err := errors.Join(err, t.lab.StartControlPlane(context.WithoutCancel(ctx))); err != nil {
			return err
		}
		return t.waitForRest(ctx)
	}
}

func cutAPI(ctx context.Context, t *trial) error {
	if err := t.lab.CutAPI(ctx, t.holder); err != nil {
		return err
	}
	err := sleep(ctx, 40*time.Second)
	return errors.Join(err, t.lab.HealAPI(context.WithoutCancel(ctx), t.holder), t.waitForRest(ctx))
}

// stripAddress removes the address from the holder's interface, and waits until the agent
// has put it back.
func stripAddress(ctx context.Context, t *trial) error {
	begun := time.Now()
	if _, err := t.lab.Exec(ctx, t.holder, "ip", "address", "delete", t.address.String()+"/32", "dev",
		"eth0"); err != nil {
		return err
	}
	removed, err := t.kernels.wait(ctx, t.address, false, 1, begun)
	if err != nil {
		return err
	}
	back, err := t.kernels.wait(ctx, t.address, true, 1, removed)
	t.extraValues["back"] = ms(back.Sub(removed))
	return err
}
