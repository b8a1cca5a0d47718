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
	"time"

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

// claimOf returns the file that a process creates to take a cell.
func claimOf(dir string, row Row, column Column) string {
	number := slices.IndexFunc(Rows, func(r Row) bool { return r.Name == row.Name })*len(Columns()) +
		slices.Index(Columns(), column)
	return filepath.Join(dir, strconv.Itoa(number))
}

// take reports whether no other process of the test tries the cell, and keeps others from it.
func take(t testing.TB, row Row, column Column) bool {
	t.Helper()
	if *claims == "" {
		return true
	}
	file, err := os.OpenFile(claimOf(*claims, row, column), os.O_CREATE|os.O_EXCL, 0o600)
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

// mergeInterval is how often the results of all jobs are kept while they run.
const mergeInterval = 30 * time.Second

// runJobs tries the chosen cells in so many processes, each in a network namespace of its own.
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
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		processes.Wait()
	}()
	ticker := time.NewTicker(mergeInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			saveMerged(t, dir, false)
		case <-ended:
			saveMerged(t, dir, true)
			return
		}
	}
}

// saveMerged puts the results of jobs together, in the order of the matrix. At the end a cell that a job took and has
// no result for is one that failed.
func saveMerged(t *testing.T, dir string, isEnd bool) {
	t.Helper()
	made := map[string]trial.Experiment{}
	for i := range *jobs {
		part, err := trial.Load(filepath.Join(dir, fmt.Sprintf("results%d.json", i)))
		if err != nil && isEnd && !errors.Is(err, fs.ErrNotExist) { // a job for which no cell was left has none
			t.Error(err)
		}
		for _, e := range part.Experiments {
			made[e.Name] = e
		}
	}
	all := trial.Result{}
	for _, row := range Rows {
		for _, column := range Columns() {
			e, exists := made[Cell(row, column)]
			if _, err := os.Stat(claimOf(dir, row, column)); err == nil && isEnd && !exists && Reason(row, column) == "" {
				e = trial.Experiment{Name: Cell(row, column), Wanted: 1, Trials: []trial.Trial{{
					Pressure: -1, Broken: []string{"the process that tried it has ended"},
				}}}
				exists = true
			}
			if exists {
				all.Experiments = append(all.Experiments, e)
			}
		}
	}
	if *results == "" || len(all.Experiments) == 0 {
		return
	}
	if err := all.Save(*results); err != nil {
		t.Error(err)
	}
}
