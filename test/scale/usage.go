package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// clockTick is the unit of times in /proc/PID/stat: USER_HZ, which is 100 on
// every architecture that Go runs Linux on.
const clockTick = 10 * time.Millisecond

// cpuTime is how long a process has run on a processor.
func cpuTime(pid int) (time.Duration, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read the time of a process: %w", err)
	}
	// The second field is a name in brackets that may hold anything: proc_pid_stat(5).
	_, rest, _ := strings.Cut(string(content[strings.LastIndexByte(string(content), ')'):]), " ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, errors.New("read the time of a process: too few fields")
	}
	user, err1 := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * clockTick, errors.Join(err1, err2)
}

// resident is a process's memory in MiB.
func resident(pid int) (float64, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("read the memory of a process: %w", err)
	}
	for line := range strings.Lines(string(content)) {
		if value, found := strings.CutPrefix(line, "VmRSS:"); found {
			kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
			return kib / 1024, err
		}
	}
	return 0, errors.New("read the memory of a process: no VmRSS")
}

// childNamed is the process of a name that this one has started.
func childNamed(name string) (int, error) {
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
	manager, apiServer, etcd, simulator time.Duration
	requests, writes, watchEvents       float64
	announcementWrites                  float64
	storedBytes                         float64
	managerLosses                       int
}

// usage reads it.
func (r *run) usage(ctx context.Context) (usage, error) {
	u := usage{at: time.Now()}
	var errs []error
	u.manager, u.managerLosses = r.manager.cpu()
	for _, p := range []struct {
		pid  int
		into *time.Duration
	}{{r.cluster.apiServer, &u.apiServer}, {r.cluster.etcd, &u.etcd}, {os.Getpid(), &u.simulator}} {
		var err error
		*p.into, err = cpuTime(p.pid)
		errs = append(errs, err)
	}
	body, err := r.cluster.clientset.RESTClient().Get().AbsPath("/metrics").Stream(ctx)
	if err != nil {
		return u, errors.Join(append(errs, fmt.Errorf("read the API server's metrics: %w", err))...)
	}
	defer body.Close()
	return u, errors.Join(append(errs, u.count(body))...)
}

// writing is the verbs that change something.
var writing = map[string]bool{"POST": true, "PUT": true, "PATCH": true, "APPLY": true, "DELETE": true}

// count takes what the API server has counted.
func (u *usage) count(metrics io.Reader) error {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(metrics)
	if err != nil {
		return fmt.Errorf("parse the API server's metrics: %w", err)
	}
	for _, m := range families["apiserver_request_total"].GetMetric() {
		verb, n := labelOf(m, "verb"), m.GetCounter().GetValue()
		if verb != "WATCH" {
			u.requests += n
		}
		if writing[verb] {
			u.writes += n
			if labelOf(m, "resource") == "announcements" {
				u.announcementWrites += n
			}
		}
	}
	for _, m := range families["apiserver_watch_events_total"].GetMetric() {
		u.watchEvents += m.GetCounter().GetValue()
	}
	for _, m := range families["apiserver_storage_size_bytes"].GetMetric() {
		u.storedBytes += m.GetGauge().GetValue()
	}
	return nil
}

func labelOf(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}
