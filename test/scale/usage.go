package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/purelb/purelb-operator/test/measure"
)

// findChild returns the id of the process with a name that this process has started.
func findChild(name string) (int, error) {
	tasks, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		return 0, fmt.Errorf("list child processes: %w", err)
	}
	for _, task := range tasks {
		children, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		for child := range strings.FieldsSeq(string(children)) {
			command, err := os.ReadFile("/proc/" + child + "/cmdline")
			if err != nil {
				continue
			}
			program, _, _ := strings.Cut(string(command), "\x00")
			if filepath.Base(program) == name {
				return strconv.Atoi(child)
			}
		}
	}
	return 0, fmt.Errorf("no child process is %s", name)
}

// usage is what the processes have used, and the API server has counted, so far.
type usage struct {
	at                                  time.Time
	manager, apiServer, etcd, simulator time.Duration // of processors
	requests, writes, watchEvents       float64
	announcementWrites                  float64
	storedBytes                         float64
	managerLosses                       int
}

// readUsage reads what the processes have used and the API server has counted.
func (r *run) readUsage(ctx context.Context) (usage, error) {
	u := usage{at: time.Now()}
	var errs []error
	u.manager, u.managerLosses = r.manager.readCPU()
	for _, p := range []struct {
		pid  int
		into *time.Duration
	}{{r.cluster.apiServer, &u.apiServer}, {r.cluster.etcd, &u.etcd}, {os.Getpid(), &u.simulator}} {
		var err error
		*p.into, err = measure.CPUTime(p.pid)
		errs = append(errs, err)
	}
	body, err := r.cluster.clientset.RESTClient().Get().AbsPath("/metrics").Stream(ctx)
	if err != nil {
		return u, errors.Join(append(errs, fmt.Errorf("read the API server's metrics: %w", err))...)
	}
	defer body.Close()
	metrics, err := measure.ParseMetrics(body)
	if err != nil {
		return u, errors.Join(append(errs, err)...)
	}
	u.addMetrics(metrics)
	return u, errors.Join(errs...)
}

// addMetrics takes over what the API server has counted.
func (u *usage) addMetrics(metrics measure.Metrics) {
	const requests = "apiserver_request_total"
	for verb, n := range metrics.Sum(requests, func(labels map[string]string) string { return labels["verb"] }) {
		if verb != "WATCH" {
			u.requests += n
		}
		if measure.IsWrite(verb) {
			u.writes += n
		}
	}
	u.announcementWrites = metrics.Sum(requests, func(labels map[string]string) string {
		if labels["resource"] != "announcements" || !measure.IsWrite(labels["verb"]) {
			return ""
		}
		return "all"
	})["all"]
	u.watchEvents = metrics.Total("apiserver_watch_events_total")
	u.storedBytes = metrics.Total("apiserver_storage_size_bytes")
}
