//go:build routers

package matrix

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
	"github.com/purelb/purelb-operator/test/measure"
	"github.com/purelb/purelb-operator/test/proof/trial"
	"github.com/purelb/purelb-operator/test/seeds"
)

// Names of the other figures that all cells have.
const (
	requestsFigure = "requests"
	awayFigure     = "route absent, ms"
	movedFigure    = "flows moved"
)

// results is the file in which the experiments are kept, and rows chooses cells by their names.
var (
	results = flag.String("proof-results", "", "file in which to keep the experiments; none by default")
	chosen  = flag.String("rows", "", "regular expression of the names of cells, all by default")
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(nstest.Main(m))
}

// duration is how long nothing happens in the last row.
func duration(t testing.TB) time.Duration {
	t.Helper()
	text := os.Getenv("DURATION")
	if text == "" {
		text = "30m"
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestProofRouters makes TRIALS trials of each cell of the matrix that has a value, and says of the others why they
// have none.
func TestProofRouters(t *testing.T) {
	wanted, err := strconv.Atoi(os.Getenv("TRIALS"))
	if err != nil || wanted < 1 {
		wanted = 1
	}
	name, err := regexp.Compile(*chosen)
	if err != nil {
		t.Fatal(err)
	}
	if *jobs > 1 && *claims == "" {
		runJobs(t)
		return
	}
	first, result := seeds.First(t), trial.Result{}
	w := newWorld(t)
	for _, row := range Rows {
		for _, column := range Columns() {
			cell := Cell(row, column)
			if !name.MatchString(cell) || !take(t, row, column) {
				continue
			}
			if reason := Reason(row, column); reason != "" {
				t.Logf("%s: no value, as %s", cell, reason)
				continue
			}
			e := trial.Experiment{Name: cell, Wanted: wanted}
			if row.LosesNothing {
				e.Bounds = append(e.Bounds, trial.Bound{Figure: LostFigure})
			}
			if row.Name == rangeRow { // it is long enough
				e.Wanted = 1
				e.Bounds = append(e.Bounds, trial.Bound{Figure: flapsFigure})
			}
			e.AnyMachine = len(e.Bounds) == 0
			t.Run(cell, func(t *testing.T) { tryCell(t, w, row, column, &e, first) })
			result.Experiments = append(result.Experiments, e)
			if *results != "" {
				if err := result.Save(*results); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// tryCell makes the trials of a cell.
func tryCell(t *testing.T, w *world, row Row, column Column, e *trial.Experiment, first uint64) {
	w.failure = "the test failed: see the log"
	hasEnded := false
	defer func() {
		if !hasEnded {
			if len(e.Trials) == 0 {
				e.Trials = append(e.Trials, trial.Trial{Seed: int64(first), Pressure: -1})
			}
			last := &e.Trials[len(e.Trials)-1]
			last.Broken = append(last.Broken, w.failure)
		}
	}()
	c := newCell(t, w, row, column)
	for e.NeedsMore() {
		tryOnce(t, c, e, first)
	}
	hasEnded = true
	if verdict := trial.Judge(*e); verdict.Outcome != trial.Green {
		t.Errorf("%s: %s", e.Name, verdict)
	}
}

// tryOnce makes one trial, which is kept also when something does not happen that has to.
func tryOnce(t *testing.T, c *cell, e *trial.Experiment, first uint64) {
	seed := first + uint64(len(e.Trials))
	random := rand.New(rand.NewPCG(seed, 0))
	a := &attempt{
		cell: c, t: t, figures: map[string]float64{}, node: c.nodes[random.IntN(len(c.nodes))], number: len(e.Trials),
		watch: c.watchRoutes(t, c.addresses),
	}
	c.isWellSoon(t, a.watch)
	var clients []*requester
	begun := time.Now()
	for _, address := range c.addresses {
		clients = append(clients, c.startClient(t, address))
	}
	isAnswered := func() bool {
		for _, one := range clients {
			if !one.hasAnswers(begun, len(c.nodes)) {
				return false
			}
		}
		return true
	}
	if !c.becomes(isAnswered) {
		c.fail(t, "not each flow has an answer, or not each node answers", a.describe(clients, begun))
	}
	late := measure.StartLateness(t.Context())
	made := trial.Trial{Seed: int64(seed), Figures: a.figures, Pressure: -1}
	defer func() {
		lateness := late.Stop()
		made.LateMS, made.Pressure = trial.Milliseconds(lateness.Longest), lateness.Pressure
		e.Trials = append(e.Trials, made)
		t.Logf("%s, seed %d: %v; machine late %.1f ms, pressure %.2f", e.Name, seed, made.Figures, made.LateMS, made.Pressure)
	}()
	functions[c.row.Name](a)
	c.isWellSoon(t, a.watch)
	begun = time.Now()
	if !c.becomes(isAnswered) {
		c.fail(t, "not each flow has an answer again, or not each node answers", a.describe(clients, begun))
	}
	a.note(clients)
}

// describe says which nodes have answered the clients since a time, and what kernels have.
func (a *attempt) describe(clients []*requester, since time.Time) string {
	text := ""
	for i, c := range clients {
		text += fmt.Sprintf("%s: %s\n", a.addresses[i], c.answers(since))
	}
	return text + a.kernels(a.t)
}

// kernels says what those of the router and of the nodes have.
func (n *topology) kernels(t testing.TB) string {
	t.Helper()
	text := ""
	for _, where := range []nstest.Neighbour{n.router, n.nodes[0].where, n.nodes[1].where} {
		for _, what := range []string{"route", "-6 route", "nexthop", "neigh", "addr"} {
			text += "ip " + what + "\n" + where.Run(t, "ip %s", what)
		}
	}
	return text
}

// note adds to the figures what the clients and the watch have seen.
func (a *attempt) note(clients []*requester) {
	a.t.Helper()
	outage := time.Duration(0)
	for _, figure := range []string{requestsFigure, LostFigure, movedFigure} {
		a.figures[figure] = 0
	}
	for _, c := range clients {
		made, lost, moved, longest := c.figures()
		a.figures[requestsFigure] += float64(made)
		a.figures[LostFigure] += float64(lost)
		a.figures[movedFigure] += float64(moved)
		outage = max(outage, longest)
	}
	a.figures[OutageFigure] = trial.Milliseconds(outage)
	absent, err := a.watch.longest()
	if err != nil {
		a.t.Fatal(err)
	}
	a.figures[awayFigure] = trial.Milliseconds(absent)
}
