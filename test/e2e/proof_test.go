package e2e

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	. "github.com/onsi/gomega"

	"github.com/purelb/purelb-operator/test/lab"
	"github.com/purelb/purelb-operator/test/measure"
	"github.com/purelb/purelb-operator/test/proof/trial"
)

// proofResults is the file in which the suite keeps what its experiments show.
var proofResults = flag.String(
	"proof-results", "", "file in which to keep the experiments of specs with the label proof; none by default",
)

// trials returns how many conclusive trials an experiment is to have: E2E_TRIALS, which make
// proof-… sets, or two.
func trials() int {
	if n, err := strconv.Atoi(os.Getenv("E2E_TRIALS")); err == nil && n > 0 {
		return n
	}
	return 2
}

// proofLimit bounds a spec that makes an experiment. A trial takes a minute or two, and each may
// be repeated once; what waits in it has limits of its own.
func proofLimit() SpecTimeout {
	return SpecTimeout(10*time.Minute + time.Duration(2*trials())*5*time.Minute)
}

// Names of figures.
const (
	requestsFigure      = "requests"
	failedFigure        = "requests failed"
	inFlightFigure      = "requests failed in flight"
	retransmittedFigure = "requests with SYN retransmitted"
	outageFigure        = "HTTP outage, ms"
	silenceFigure       = "ARP silence, ms"
	duplicateFigure     = "two answering, ms"
	changesFigure       = "changes of MAC"
	settledFigure       = "one answering after, ms"
)

// Prefixes of the names of figures that are not of the client on the nodes' link during the
// disturbance.
const (
	farPrefix  = "from behind the router: " // of the client there
	backPrefix = "when the node returns: "  // of the time after the disturbance
)

// experiment is what a spec tries, with its trials so far.
type experiment struct {
	trial.Experiment
	spec     string // its full text
	isJudged bool   // all trials were made
}

// experiments are those that were made so far.
var experiments []*experiment

// oneTrial is the trial that is under way. All of it counts for how late the machine was,
// unless measureFromNow and stopMeasuring say what is measured.
type oneTrial struct {
	trial.Trial
	random   *rand.Rand // makes the choices of the trial, from its seed
	ctx      context.Context
	lateness *measure.LatenessMeter // nil after stopMeasuring
}

// measureFromNow forgets how late the machine was since measuring began.
func (t *oneTrial) measureFromNow() {
	if t.lateness != nil {
		t.lateness.Stop()
	}
	t.lateness = measure.StartLateness(t.ctx)
}

// stopMeasuring notes how late the machine was. What comes after it does not count, until
// measureFromNow is called.
func (t *oneTrial) stopMeasuring() {
	if t.lateness == nil {
		return
	}
	late := t.lateness.Stop()
	t.lateness = nil
	t.LateMS, t.Pressure = max(t.LateMS, trial.Milliseconds(late.Longest)), max(t.Pressure, late.Pressure)
}

// noteRecord adds the figures and the errors of a meter to the trial, with a prefix, and
// returns the figures.
func (t *oneTrial) noteRecord(prefix string, record lab.Record) lab.Figures {
	f := record.Figures()
	for name, value := range map[string]float64{
		requestsFigure: float64(f.Requests), failedFigure: float64(f.Failed), inFlightFigure: float64(f.InFlight),
		retransmittedFigure: float64(f.Retransmitted), outageFigure: trial.Milliseconds(f.Outage),
	} {
		t.Figures[prefix+name] = value
	}
	if len(record.WireRequests) > 0 {
		t.Figures[prefix+silenceFigure] = trial.Milliseconds(f.Silence)
		t.Figures[prefix+duplicateFigure] = trial.Milliseconds(f.Duplicate)
		t.Figures[prefix+changesFigure] = float64(f.Changes)
	}
	for _, text := range record.Errors() {
		t.Errors = append(t.Errors, prefix+text)
	}
	return f
}

// stopMeter stops a Meter, and adds what it has seen to the trial, with a prefix.
func (t *oneTrial) stopMeter(prefix string, meter *lab.Meter) lab.Figures {
	GinkgoHelper()
	record, err := meter.Stop()
	Expect(err).NotTo(HaveOccurred())
	Expect(record.Requests).NotTo(BeEmpty(), "%sno request was made", prefix)
	return t.noteRecord(prefix, record)
}

// atMost returns a bound of a figure in milliseconds.
func atMost(figure string, limit time.Duration) trial.Bound {
	return trial.Bound{Figure: figure, AtMost: trial.Milliseconds(limit)}
}

// none returns the bound of a count that is to be zero.
func none(figure string) trial.Bound { return trial.Bound{Figure: figure} }

// runTrials makes the trials of an experiment until enough are conclusive, prints them and
// judges them. What tryOnce measures it adds to its trial. A failed expectation in tryOnce says
// that an invariant is broken: it ends the experiment.
func runTrials(ctx context.Context, name string, bounds []trial.Bound, tryOnce func(*oneTrial)) {
	GinkgoHelper()
	runExperiment(ctx, trial.Experiment{Name: name, Bounds: bounds, AnyMachine: len(bounds) == 0}, tryOnce)
}

// runExperiment makes the trials of an experiment as runTrials does. The experiment has a name and
// what says how it is judged.
func runExperiment(ctx context.Context, planned trial.Experiment, tryOnce func(*oneTrial)) {
	GinkgoHelper()
	planned.Wanted = trials()
	e, name := &experiment{Experiment: planned, spec: CurrentSpecReport().FullText()}, planned.Name
	experiments = append(experiments, e)
	for e.NeedsMore() {
		e.tryOnce(ctx, tryOnce)
		t := e.Trials[len(e.Trials)-1]
		conclusive := ""
		if !e.IsConclusive(t) {
			conclusive = "; INCONCLUSIVE"
		}
		fmt.Fprintf(
			os.Stdout, "%s, seed %d: %v, %d errors; machine late %.1f ms, pressure %.2f%s\n", name, t.Seed, t.Figures,
			len(t.Errors), t.LateMS, t.Pressure, conclusive,
		)
	}
	e.isJudged = true
	verdict := trial.Judge(e.Experiment)
	fmt.Fprintf(os.Stdout, "%s, %d trials: %s\n", name, len(e.Trials), verdict)
	for _, s := range verdict.Spreads {
		fmt.Fprintf(os.Stdout, "    %s: %v / %v / %v\n", s.Figure, s.Min, s.Median, s.Max)
	}
	Expect(verdict.Outcome).To(Equal(trial.Green), "%s: %s", name, verdict)
}

// tryOnce makes one trial. It is kept also when an expectation fails in it.
func (e *experiment) tryOnce(ctx context.Context, tryOnce func(*oneTrial)) {
	seed := GinkgoRandomSeed() + int64(len(e.Trials))
	t := &oneTrial{
		Trial:  trial.Trial{Seed: seed, Figures: map[string]float64{}, Pressure: -1},
		random: rand.New(rand.NewPCG(uint64(seed), 0)), ctx: ctx,
	}
	defer func() {
		t.stopMeasuring()
		e.Trials = append(e.Trials, t.Trial)
	}()
	t.measureFromNow()
	tryOnce(t)
}

// After each spec with the label proof its experiments are kept, also those that a failure has
// ended. A spec that failed shows something even if it made no trial.
var _ = ReportAfterEach(func(report SpecReport) {
	if report.State.Is(types.SpecStateSkipped|types.SpecStatePending) || !slices.Contains(report.Labels(), proofLabel) {
		return
	}
	if report.Failed() {
		experiments = keepFailure(experiments, report.FullText(), report.FailureMessage())
	}
	if *proofResults == "" {
		return
	}
	result := trial.Result{}
	for _, e := range experiments {
		result.Experiments = append(result.Experiments, e.Experiment)
	}
	Expect(result.Save(*proofResults)).To(Succeed())
})

// keepFailure notes that a spec failed, as a broken invariant of the spec's last trial, and
// returns all experiments. That too many trials broke a bound, or were inconclusive, is a
// failure that the trials show themselves.
func keepFailure(all []*experiment, spec, message string) []*experiment {
	if n := len(all); n == 0 || all[n-1].spec != spec {
		all = append(all, &experiment{Experiment: trial.Experiment{Name: spec, Wanted: trials()}, spec: spec})
	}
	last := all[len(all)-1]
	if last.isJudged && trial.Judge(last.Experiment).Outcome != trial.Green {
		return all
	}
	if len(last.Trials) == 0 {
		last.Trials = []trial.Trial{{Seed: GinkgoRandomSeed(), Pressure: -1}}
	}
	t := &last.Trials[len(last.Trials)-1]
	t.Broken = append(t.Broken, message)
	return all
}

// TestStopMeasuring needs no lab. It checks that the lateness of a trial is that of all of its parts.
func TestStopMeasuring(t *testing.T) {
	for _, before := range []float64{0, 1e6} {
		one := &oneTrial{Trial: trial.Trial{LateMS: before, Pressure: -1}, ctx: t.Context()}
		one.measureFromNow()
		one.stopMeasuring()
		one.stopMeasuring() // measures nothing
		if one.LateMS < before || before == 0 && one.LateMS == before {
			t.Errorf("%v ms before, %v ms with what came then", before, one.LateMS)
		}
	}
}

// TestKeepFailure needs no lab.
func TestKeepFailure(t *testing.T) {
	good, bad := trial.Trial{Seed: 1, Figures: map[string]float64{failedFigure: 0}}, trial.Trial{
		Seed: 1, Figures: map[string]float64{failedFigure: 1},
	}
	made := func(isJudged bool, trials ...trial.Trial) []*experiment {
		e := trial.Experiment{Name: "excluded", Wanted: 1, Bounds: []trial.Bound{none(failedFigure)}, Trials: trials}
		return []*experiment{{Experiment: e, spec: "a spec", isJudged: isJudged}}
	}
	for _, row := range []struct {
		name    string
		before  []*experiment
		spec    string
		count   int  // experiments afterwards
		isAdded bool // the failure is a broken invariant of the last one
	}{
		{"no experiment yet", nil, "a spec", 1, true},
		{"one of another spec", made(true, good), "another", 2, true},
		{"before the first trial", made(false), "a spec", 1, true},
		{"in a trial", made(false, good), "a spec", 1, true},
		{"the trials were red", made(true, bad), "a spec", 1, false},
		{"the trials were green, and cleanup failed", made(true, good), "a spec", 1, true},
	} {
		all := keepFailure(row.before, row.spec, "two nodes have it")
		last := trial.Judge(all[len(all)-1].Experiment)
		if len(all) != row.count || last.Outcome != trial.Red || len(last.Broken) == 1 != row.isAdded {
			t.Errorf("%s: %+v", row.name, last)
		}
	}
}
