package main

import (
	"context"
	"encoding/json"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"
)

// programPath returns the path of purelb, which was built before the tests.
func programPath(t *testing.T) string {
	t.Helper()
	path := os.Getenv("PURELB")
	if path == "" {
		t.Fatal("PURELB is not set: run make test-unit, which builds the program and says where it is")
	}
	return path
}

func TestScale(t *testing.T) {
	purelb := programPath(t)
	t.Run("measures a small cluster", func(t *testing.T) { measureSmallCluster(t, purelb, always) })
	t.Run("leaves nothing running when interrupted", func(t *testing.T) { interruptRun(t, purelb) })
}

// bounds are the least and the most of values, by name.
type bounds map[string][2]float64

// anyMost is the most of what takes longer, or is done more often, the busier the machine is:
// TestProofScale has a bound for it.
var anyMost = math.Inf(1)

// always is what holds of a small cluster however busy the machine is.
var always = bounds{
	"nodes":                    {5, 5},
	"addresses":                {10, 10},
	"announcements":            {5, 5},
	"convergeMs":               {1, anyMost},
	"deathMs":                  {2_000, anyMost}, // no sooner than the Lease expires for others
	"restartMs":                {1, anyMost},
	"restartRewritten":         {0, anyMost},
	"changeMs":                 {1, anyMost},
	"changeAnnouncementWrites": {5, anyMost}, // each node reports the address
	"commons":                  {1, 1},
	"commonBytes":              {1_000, 20_000},
	"announcementBytes":        {1_000, 20_000},
	"requestsPerS":             {0.1, anyMost},
	"watchEventsPerS":          {0.1, anyMost},
	"managerRSSMiB":            {10, 512},
	"apiServerRSSMiB":          {100, 4_000},
	"agentsRSSMiB":             {10, 4_000},
	"apiServerCPUPerMin":       {0.1, anyMost},
}

// measureSmallCluster measures a small cluster and checks values.
func measureSmallCluster(t *testing.T, purelb string, expected bounds) {
	t.Helper()
	output := filepath.Join(t.TempDir(), "bench", "scale.json")
	var out strings.Builder
	err := runCommand(t.Context(), []string{
		"-program", purelb, "-output", output, "-pprof", "0",
		"-nodes", "5", "-addresses", "10", "-locals", "3", "-changes", "2", "-deaths", "1", "-idle", "5s",
	}, &out)
	t.Log(out.String())
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(output)
	if err != nil {
		t.Fatal(err)
	}
	var result struct{ Rows []row }
	if err := json.Unmarshal(content, &result); err != nil {
		t.Fatal(err)
	}
	if len(result.Rows) != 1 {
		t.Fatalf("%d rows", len(result.Rows))
	}
	got := result.Rows[0]
	if got.Section != "scale" || got.Case != "5 nodes, 10 addresses" || got.N != 2 {
		t.Errorf("the row is %s, %s, %d", got.Section, got.Case, got.N)
	}
	for name, b := range expected {
		v, isMeasured := got.Values[name]
		if !isMeasured || v < b[0] || v > b[1] {
			t.Errorf("%s is %v, not from %v to %v", name, v, b[0], b[1])
		}
	}
	if !strings.Contains(out.String(), "| 5     | 10 ") {
		t.Error("no table is printed")
	}
	checkNothingRuns(t)
}

// interruptRun ends a run while it waits.
func interruptRun(t *testing.T, purelb string) {
	ctrl.SetLogger(logr.Discard())
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	o := options{
		root: "../..", program: purelb, pprof: "0", shapes: []shape{racks}, nodes: []int{3}, addresses: []int{1},
		locals: 1, changes: 1, deaths: 1, idle: time.Hour,
	}
	progress := writerFunc(func(p []byte) (int, error) {
		if strings.Contains(string(p), "are announced by all nodes") {
			interrupt()
		}
		return len(p), nil
	})
	if rows, err := measureAll(ctx, o, progress); err == nil || len(rows) > 0 {
		t.Errorf("%d rows, %v", len(rows), err)
	}
	checkNothingRuns(t)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func checkNothingRuns(t *testing.T) {
	t.Helper()
	for _, name := range []string{"kube-apiserver", "etcd", "purelb"} {
		if pid, err := findChild(name); err == nil {
			t.Errorf("%s still runs: %d", name, pid)
		}
	}
}

func TestShape(t *testing.T) {
	for _, s := range []shape{flat, racks} {
		seen := map[netip.Addr]bool{}
		for i := range 10_000 {
			address, gateway := s.address(i), s.gateway(i)
			if seen[address.Addr()] || address.Addr() == gateway || !address.Contains(gateway) {
				t.Fatalf("%s: node %d has %s and the gateway %s", s, i, address, gateway)
			}
			seen[address.Addr()] = true
			if same := s.address(0).Masked() == address.Masked(); same != (s.rack(i) == 0) {
				t.Fatalf("%s: node %d in rack %d has %s", s, i, s.rack(i), address)
			}
		}
		local := s.pools()[localGroup].Local.V4Pools[0]
		first, _, _ := strings.Cut(local.Pool, "-")
		if !s.address(0).Masked().Contains(netip.MustParseAddr(first)) || seen[netip.MustParseAddr(first)] {
			t.Errorf("%s: the local pool is %s", s, local.Pool)
		}
	}
	if a, b := addressAfter(firstMeasured, 5),
		addressAfter(firstMeasured, 300); a != "10.200.255.5" || b != "10.200.254.44" {
		t.Errorf("addresses for measurements are %s and %s", a, b)
	}
}
