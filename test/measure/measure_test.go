package measure

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParseProcess(t *testing.T) {
	got, err := parseMiB("Name:\tpurelb\nVmPeak:\t  9999 kB\nVmRSS:\t   30720 kB\nThreads:\t7\n", "VmRSS")
	if err != nil || got != 30 {
		t.Errorf("resident memory %v, %v", got, err)
	}
	for _, bad := range []string{"Name:\tpurelb\nThreads:\t7\n", "VmRSS:\t x kB\n"} {
		if _, err := parseMiB(bad, "VmRSS"); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	cpu, err := parseCPUTime("12 (a b) c) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20")
	if err != nil || cpu != 2*time.Second {
		t.Errorf("processor time %v, %v", cpu, err)
	}
	for _, bad := range []string{"", "12 (a) S 1", "12 (a) S 1 2 3 4 5 6 7 8 9 10 x 50 0"} {
		if _, err := parseCPUTime(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestThisProcess(t *testing.T) {
	mib, err := ResidentMiB(os.Getpid())
	if err != nil || mib < 1 {
		t.Errorf("%v MiB, %v", mib, err)
	}
	if _, err := CPUTime(os.Getpid()); err != nil {
		t.Error(err)
	}
}

func TestMetrics(t *testing.T) {
	metrics, err := ParseMetrics(strings.NewReader(`# HELP apiserver_request_total Counter
# TYPE apiserver_request_total counter
apiserver_request_total{code="200",resource="services",verb="APPLY"} 3
apiserver_request_total{code="409",resource="services",verb="APPLY"} 1
apiserver_request_total{code="200",resource="services",verb="GET"} 50
apiserver_request_total{code="201",resource="events",verb="POST"} 7 1700000000000
# TYPE size gauge
size 2
other{text="a \"quoted}\" word"} 1e+06
plain 0.5
`))
	if err != nil {
		t.Fatal(err)
	}
	got := metrics.Sum("apiserver_request_total", func(labels map[string]string) string {
		if !IsWrite(labels["verb"]) {
			return ""
		}
		return labels["verb"] + " " + labels["resource"]
	})
	if want := map[string]float64{"APPLY services": 4, "POST events": 7}; !reflect.DeepEqual(got, want) {
		t.Errorf("writes %v, want %v", got, want)
	}
	got = metrics.Sum("other", func(labels map[string]string) string { return labels["text"] })
	if want := map[string]float64{`a "quoted}" word`: 1e6}; !reflect.DeepEqual(got, want) {
		t.Errorf("a quoted label: %v, want %v", got, want)
	}
	for name, want := range map[string]float64{"apiserver_request_total": 61, "size": 2, "plain": 0.5, "absent": 0} {
		if got := metrics.Total(name); got != want {
			t.Errorf("all of %s: %v, want %v", name, got, want)
		}
	}
	for _, bad := range []string{"name\n", "name{a=\"b} 1\n", "name{a=\"b\"} x\n"} {
		if _, err := ParseMetrics(strings.NewReader(bad)); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestProfiles(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == heapPath {
			http.Error(w, "no heap", http.StatusNotFound)
			return
		}
		_, _ = w.Write([]byte(r.URL.String()))
	}))
	defer server.Close()
	address, file := strings.TrimPrefix(server.URL, "http://"), filepath.Join(t.TempDir(), "cpu.pprof")
	if err := CPUOf(server.Client(), address, 3).Save(t.Context(), file); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "/debug/pprof/profile?seconds=3" {
		t.Errorf("saved %q, %v", text, err)
	}
	if err := HeapOf(server.Client(), address).Save(t.Context(), file); err == nil ||
		!strings.Contains(err.Error(), "no heap") {
		t.Errorf("a refused profile: %v", err)
	}
}

func TestStartAll(t *testing.T) {
	first, second := errors.New("first"), make(chan struct{})
	wait := StartAll(
		func() error { close(second); return first },
		func() error { <-second; return nil }, // needs the other to run at the same time
	)
	if err := wait(); !errors.Is(err, first) {
		t.Errorf("%v", err)
	}
}
