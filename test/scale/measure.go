package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/purelb/purelb-operator/test/measure"
)

// measure measures everything with a number of Virtual addresses.
func (r *run) measure(ctx context.Context, addresses int) (row, error) {
	nodes := len(r.agents.nodes)
	values := map[string]float64{
		"nodes": float64(nodes), "addresses": float64(addresses), "localAddresses": float64(r.locals),
	}
	begun := time.Now()
	// The changes that are measured add the last of the addresses.
	if err := r.loadAddresses(ctx, max(r.addresses, addresses-r.changes-1)); err != nil {
		return row{}, err
	}
	values["loadMs"] = ms(time.Since(begun))
	for _, step := range []func(context.Context, map[string]float64) error{
		r.measureIdle, r.measureChanges, r.measureDeaths, r.measureRestart, r.measureSizes,
	} {
		if err := step(ctx, values); err != nil {
			return row{}, err
		}
	}
	name := fmt.Sprintf("%d nodes, %d addresses", nodes, addresses)
	if r.shape == racks {
		name += ", racks"
	}
	return row{Section: "scale", Case: name, N: r.changes, Values: values}, nil
}

// measureIdle measures what PureLB costs while nothing changes.
func (r *run) measureIdle(ctx context.Context, values map[string]float64) error {
	before, err := r.readUsage(ctx)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(r.idle):
	}
	after, err := r.readUsage(ctx)
	if err != nil {
		return err
	}
	duration := after.at.Sub(before.at)
	perMinute := func(a, b time.Duration) float64 { return (b - a).Seconds() / duration.Minutes() }
	values["managerCPUPerMin"] = perMinute(before.manager, after.manager)
	values["apiServerCPUPerMin"] = perMinute(before.apiServer, after.apiServer)
	values["etcdCPUPerMin"] = perMinute(before.etcd, after.etcd)
	values["agentsCPUPerMin"] = perMinute(before.simulator, after.simulator)
	values["requestsPerS"] = (after.requests - before.requests) / duration.Seconds()
	values["writesPerS"] = (after.writes - before.writes) / duration.Seconds()
	values["watchEventsPerS"] = (after.watchEvents - before.watchEvents) / duration.Seconds()
	values["idleAnnouncementWrites"] = after.announcementWrites - before.announcementWrites
	r.say("idle: CPU seconds a minute: manager %.1f, API server %.1f, etcd %.1f, agents %.1f; %.0f requests a second",
		values["managerCPUPerMin"], values["apiServerCPUPerMin"], values["etcdCPUPerMin"], values["agentsCPUPerMin"],
		values["requestsPerS"])
	return nil
}

// measureChanges measures how long each of some new Services takes, and what it costs.
func (r *run) measureChanges(ctx context.Context, values map[string]float64) error {
	before, err := r.readUsage(ctx)
	if err != nil {
		return err
	}
	finish := r.startProfiles(ctx, "changes")
	var onAll, reportedByAll []time.Duration
	for range r.changes {
		inKernels, reported, err := r.timeChange(ctx)
		if err != nil {
			return err
		}
		onAll, reportedByAll = append(onAll, inKernels), append(reportedByAll, reported)
	}
	after, err := r.readUsage(ctx)
	if err != nil {
		return err
	}
	if err := finish(); err != nil {
		return err
	}
	n := float64(r.changes)
	values["changeMs"], values["changeMaxMs"] = ms(median(onAll)), ms(maximum(onAll))
	values["convergeMs"], values["convergeMaxMs"] = ms(median(reportedByAll)), ms(maximum(reportedByAll))
	values["changeManagerCPU"] = (after.manager - before.manager).Seconds() / n
	values["changeAPIServerCPU"] = (after.apiServer - before.apiServer).Seconds() / n
	values["changeEtcdCPU"] = (after.etcd - before.etcd).Seconds() / n
	values["changeAgentsCPU"] = (after.simulator - before.simulator).Seconds() / n
	values["changeAnnouncementWrites"] = (after.announcementWrites - before.announcementWrites) / n
	values["changeWatchEvents"] = (after.watchEvents - before.watchEvents) / n
	values["changeStoredBytes"] = (after.storedBytes - before.storedBytes) / n
	return nil
}

// measureDeaths measures for how long no node announces the Local addresses of a dead
// node.
func (r *run) measureDeaths(ctx context.Context, values map[string]float64) error {
	var outages []time.Duration
	for range r.deaths {
		d, err := r.timeDeath(ctx)
		if err != nil {
			return err
		}
		r.say("a node died; its addresses are elsewhere after %s", d.Round(time.Millisecond))
		outages = append(outages, d)
	}
	values["deathMs"], values["deathMaxMs"] = ms(median(outages)), ms(maximum(outages))
	return nil
}

// measureRestart measures what happens when the manager is killed.
func (r *run) measureRestart(ctx context.Context, values map[string]float64) error {
	duration, rewritten, err := r.timeRestart(ctx)
	if err != nil {
		return err
	}
	values["restartMs"], values["restartRewritten"] = ms(duration), float64(rewritten)
	r.say(
		"the manager was killed; every node has the address of a new Service after %s, and %d Announcements were rewritten",
		duration.Round(time.Millisecond), rewritten,
	)
	return nil
}

// measureSizes measures the processes' memory, and how large the objects are.
func (r *run) measureSizes(ctx context.Context, values map[string]float64) error {
	for name, pid := range map[string]int{
		"managerRSSMiB": r.manager.pid(), "apiServerRSSMiB": r.cluster.apiServer, "etcdRSSMiB": r.cluster.etcd,
		"agentsRSSMiB": os.Getpid(),
	} {
		mib, err := measure.ResidentMiB(pid)
		if err != nil {
			return err
		}
		values[name] = mib
	}
	sizes, err := r.readObjectSizes(ctx)
	if err != nil {
		return err
	}
	values["announcements"], values["announcementBytes"] = float64(sizes.announcements), float64(sizes.largestAnnouncement)
	values["commons"], values["commonBytes"] = float64(sizes.commons), float64(sizes.largestCommon)
	u, err := r.readUsage(ctx)
	values["managerLosses"] = float64(u.managerLosses)
	values["etcdMiB"] = u.storedBytes / (1 << 20)
	r.say("%d Announcements, of %d bytes, and %d CommonAnnouncements, of %d bytes at the most; MiB: manager %.0f, API "+
		"server %.0f, etcd %.0f",
		sizes.announcements, sizes.largestAnnouncement, sizes.commons, sizes.largestCommon,
		values["managerRSSMiB"], values["apiServerRSSMiB"], values["etcdRSSMiB"])
	return err
}

// ms returns a duration in milliseconds.
func ms(d time.Duration) float64 { return float64(d.Milliseconds()) }

// maximum returns the longest of some durations.
func maximum(d []time.Duration) time.Duration {
	longest := time.Duration(0)
	for _, x := range d {
		longest = max(longest, x)
	}
	return longest
}

// median returns the middle of some durations.
func median(d []time.Duration) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return d[len(d)/2]
}
