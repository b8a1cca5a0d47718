//go:build routers

package matrix

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
	"github.com/purelb/purelb-operator/test/proof/trial"
)

// jobs is how many cells are tried at the same time, each on a topology and with an API server of its own, by processes
// that are the test once more. They take cells by creating files in the folder claims, which the first process gives
// them.
var (
	jobs   = flag.Int("jobs", 1, "how many cells to try at the same time")
	claims = flag.String("claims", "", "folder in which the processes of one test take cells; none by default")
)

// take reports whether no other process of the test tries the cell, and keeps others from it.
func take(t testing.TB, row Row, column Column) bool {
	t.Helper()
	if *claims == "" {
		return true
	}
	number := slices.IndexFunc(Rows, func(r Row) bool { return r.Name == row.Name })*len(Columns()) +
		slices.Index(Columns(), column)
	file, err := os.OpenFile(filepath.Join(*claims, strconv.Itoa(number)), os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	return true
}

// runJobs tries the chosen cells in so many processes, each in a network namespace of its own, and puts their results
// together, in the order of the matrix.
func runJobs(t *testing.T) {
	dir := t.TempDir()
	var processes sync.WaitGroup
	for i := range *jobs {
		results := filepath.Join(dir, fmt.Sprintf("results%d.json", i))
		cmd := nstest.TestBinary("-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=0", "-claims="+dir,
			"-rows="+*chosen, "-proof-results="+results)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		processes.Go(func() {
			// The kernel kills the process when the thread ends that has started it (prctl(2), PR_SET_PDEATHSIG).
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			if err := cmd.Run(); err != nil {
				t.Errorf("job %d: %v", i, err)
			}
		})
	}
	processes.Wait()
	made := map[string]trial.Experiment{}
	for i := range *jobs {
		part, err := trial.Load(filepath.Join(dir, fmt.Sprintf("results%d.json", i)))
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // a job for which no cell was left has none
			t.Error(err)
		}
		for _, e := range part.Experiments {
			made[e.Name] = e
		}
	}
	all := trial.Result{}
	for _, row := range Rows {
		for _, column := range Columns() {
			if e, exists := made[Cell(row, column)]; exists {
				all.Experiments = append(all.Experiments, e)
			}
		}
	}
	if *results != "" {
		if err := all.Save(*results); err != nil {
			t.Fatal(err)
		}
	}
}
