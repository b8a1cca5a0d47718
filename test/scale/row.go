package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"
)

// row is what was measured in one case.
type row struct {
	Section string             `json:"section"`
	Case    string             `json:"case"`
	Unit    string             `json:"unit"`
	N       int                `json:"n"`
	Values  map[string]float64 `json:"values"`
}

// measure measures with so many Virtual addresses.
func (r *run) measure(ctx context.Context, addresses int) (row, error) {
	nodes := len(r.agents.nodes)
	values := map[string]float64{"nodes": float64(nodes), "addresses": float64(addresses), "localAddresses": float64(r.locals)}
	begun := time.Now()
	// The changes that are measured make it full.
	if err := r.load(ctx, max(r.addresses, addresses-r.changes-1)); err != nil {
		return row{}, err
	}
	values["loadMs"] = ms(time.Since(begun))
	for _, step := range []func(context.Context, map[string]float64) error{r.measureIdle, r.measureChanges, r.measureDeaths, r.measureRestart, r.measureSizes} {
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

// measureIdle measures what it costs when nothing changes.
func (r *run) measureIdle(ctx context.Context, values map[string]float64) error {
	before, err := r.usage(ctx)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(r.idle):
	}
	after, err := r.usage(ctx)
	if err != nil {
		return err
	}
	took := after.at.Sub(before.at)
	perMinute := func(a, b time.Duration) float64 { return (b - a).Seconds() / took.Minutes() }
	values["managerCPUPerMin"] = perMinute(before.manager, after.manager)
	values["apiServerCPUPerMin"] = perMinute(before.apiServer, after.apiServer)
	values["etcdCPUPerMin"] = perMinute(before.etcd, after.etcd)
	values["agentsCPUPerMin"] = perMinute(before.simulator, after.simulator)
	values["requestsPerS"] = (after.requests - before.requests) / took.Seconds()
	values["writesPerS"] = (after.writes - before.writes) / took.Seconds()
	values["watchEventsPerS"] = (after.watchEvents - before.watchEvents) / took.Seconds()
	values["idleAnnouncementWrites"] = after.announcementWrites - before.announcementWrites
	r.say("idle: CPU seconds a minute: manager %.1f, API server %.1f, etcd %.1f, agents %.1f; %.0f requests a second",
		values["managerCPUPerMin"], values["apiServerCPUPerMin"], values["etcdCPUPerMin"], values["agentsCPUPerMin"], values["requestsPerS"])
	return nil
}

// measureChanges measures one Service more, some times.
func (r *run) measureChanges(ctx context.Context, values map[string]float64) error {
	before, err := r.usage(ctx)
	if err != nil {
		return err
	}
	finish := r.startProfiles(ctx, "changes")
	var onAll, took []time.Duration
	for range r.changes {
		got, reported, err := r.change(ctx)
		if err != nil {
			return err
		}
		onAll, took = append(onAll, got), append(took, reported)
	}
	after, err := r.usage(ctx)
	if err != nil {
		return err
	}
	if err := finish(); err != nil {
		return err
	}
	n := float64(r.changes)
	values["changeMs"], values["changeMaxMs"] = ms(median(onAll)), ms(maximum(onAll))
	values["convergeMs"], values["convergeMaxMs"] = ms(median(took)), ms(maximum(took))
	values["changeManagerCPU"] = (after.manager - before.manager).Seconds() / n
	values["changeAPIServerCPU"] = (after.apiServer - before.apiServer).Seconds() / n
	values["changeEtcdCPU"] = (after.etcd - before.etcd).Seconds() / n
	values["changeAgentsCPU"] = (after.simulator - before.simulator).Seconds() / n
	values["changeAnnouncementWrites"] = (after.announcementWrites - before.announcementWrites) / n
	values["changeWatchEvents"] = (after.watchEvents - before.watchEvents) / n
	values["changeStoredBytes"] = (after.storedBytes - before.storedBytes) / n
	return nil
}

// measureDeaths measures how long Local addresses of a dead node are away.
func (r *run) measureDeaths(ctx context.Context, values map[string]float64) error {
	var took []time.Duration
	for range r.deaths {
		d, err := r.death(ctx)
		if err != nil {
			return err
		}
		r.say("a node died; its addresses are elsewhere after %s", d.Round(time.Millisecond))
		took = append(took, d)
	}
	values["deathMs"], values["deathMaxMs"] = ms(median(took)), ms(maximum(took))
	return nil
}

// measureRestart measures a manager that is killed.
func (r *run) measureRestart(ctx context.Context, values map[string]float64) error {
	took, rewritten, err := r.restart(ctx)
	if err != nil {
		return err
	}
	values["restartMs"], values["restartRewritten"] = ms(took), float64(rewritten)
	r.say("the manager was killed; every node has the address of a new Service after %s, and %d Announcements were rewritten", took.Round(time.Millisecond), rewritten)
	return nil
}

// measureSizes measures memory, and Announcements.
func (r *run) measureSizes(ctx context.Context, values map[string]float64) error {
	for name, pid := range map[string]int{
		"managerRSSMiB": r.manager.pid(), "apiServerRSSMiB": r.cluster.apiServer, "etcdRSSMiB": r.cluster.etcd, "agentsRSSMiB": os.Getpid(),
	} {
		mib, err := resident(pid)
		if err != nil {
			return err
		}
		values[name] = mib
	}
	count, commons, largest, largestCommon, err := r.size(ctx)
	if err != nil {
		return err
	}
	values["announcements"], values["announcementBytes"] = float64(count), float64(largest)
	values["commons"], values["commonBytes"] = float64(commons), float64(largestCommon)
	u, err := r.usage(ctx)
	values["managerLosses"] = float64(u.managerLosses)
	values["etcdMiB"] = u.storedBytes / (1 << 20)
	r.say("%d Announcements, of %d bytes, and %d CommonAnnouncements, of %d bytes at the most; MiB: manager %.0f, API server %.0f, etcd %.0f", count, largest, commons, largestCommon,
		values["managerRSSMiB"], values["apiServerRSSMiB"], values["etcdRSSMiB"])
	return err
}

func ms(d time.Duration) float64 { return float64(d.Milliseconds()) }

func maximum(d []time.Duration) time.Duration {
	longest := time.Duration(0)
	for _, x := range d {
		longest = max(longest, x)
	}
	return longest
}

// columns of the table, with their values.
var columns = []struct{ title, value, format string }{
	{"nodes", "nodes", "%.0f"},
	{"addresses", "addresses", "%.0f"},
	{"on all nodes ms", "changeMs", "%.0f"},
	{"reported ms", "convergeMs", "%.0f"},
	{"death ms", "deathMs", "%.0f"},
	{"restart ms", "restartMs", "%.0f"},
	{"rewritten", "restartRewritten", "%.0f"},
	{"manager MiB", "managerRSSMiB", "%.0f"},
	{"CPU s/min", "managerCPUPerMin", "%.1f"},
	{"API server MiB", "apiServerRSSMiB", "%.0f"},
	{"CPU s/min", "apiServerCPUPerMin", "%.1f"},
	{"agents CPU s/min", "agentsCPUPerMin", "%.1f"},
	{"requests/s", "requestsPerS", "%.0f"},
	{"events/s", "watchEventsPerS", "%.0f"},
	{"Announcements", "announcements", "%.0f"},
	{"bytes", "announcementBytes", "%.0f"},
	{"Common", "commons", "%.0f"},
	{"bytes", "commonBytes", "%.0f"},
}

// printTable prints the most telling values as a Markdown table.
func printTable(out io.Writer, rows []row) error {
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	line := func(cells []string) { fmt.Fprintln(w, "| "+strings.Join(cells, "\t| ")+"\t|") }
	var titles, rule []string
	for _, c := range columns {
		titles, rule = append(titles, c.title), append(rule, "---")
	}
	line(titles)
	line(rule)
	for _, r := range rows {
		var cells []string
		for _, c := range columns {
			cells = append(cells, fmt.Sprintf(c.format, r.Values[c.value]))
		}
		line(cells)
	}
	return w.Flush()
}

// write writes the rows as JSON.
func write(path string, rows []row) error {
	content, err := json.MarshalIndent(map[string][]row{"rows": rows}, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the results: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make a folder for the results: %w", err)
	}
	if err := os.WriteFile(path, append(content, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	return nil
}
