package trial

import (
	"bytes"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// trials returns trials with these outages, in milliseconds, on a machine that was in time.
func trials(outages ...float64) []Trial {
	var all []Trial
	for i, outage := range outages {
		all = append(all, Trial{Seed: int64(i + 1), Figures: map[string]float64{"outage, ms": outage}, LateMS: 2})
	}
	return all
}

// late returns the trial as one in which the machine was late.
func late(t Trial) Trial {
	t.LateMS = 20.001
	return t
}

// broken returns the trial as one that broke an invariant.
func broken(t Trial) Trial {
	t.Broken = []string{"two nodes have it"}
	return t
}

func TestJudge(t *testing.T) {
	bounds := []Bound{{"outage, ms", 500}}
	ten := []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	with := func(n int, value float64) []float64 {
		all := slices.Clone(ten)
		for i := range n {
			all[i] = value
		}
		return all
	}
	for _, row := range []struct {
		name       string
		experiment Experiment
		outcome    Outcome
		conclusive int
		late       int
		broken     int // trials that break bounds
	}{
		{"all are within the bound", Experiment{Wanted: 10, Bounds: bounds, Trials: trials(ten...)}, Green, 10, 0, 0},
		{"the bound itself", Experiment{Wanted: 10, Bounds: bounds, Trials: trials(with(10, 500)...)}, Green, 10, 0, 0},
		{
			"one of ten is above it", Experiment{Wanted: 10, Bounds: bounds, Trials: trials(with(1, 500.1)...)}, Green, 10, 0, 1,
		},
		{"two of ten are", Experiment{Wanted: 10, Bounds: bounds, Trials: trials(with(2, 501)...)}, Red, 10, 0, 2},
		{"one of six", Experiment{Wanted: 6, Bounds: bounds, Trials: trials(501, 1, 1, 1, 1, 1)}, Green, 6, 0, 1},
		{"one of five", Experiment{Wanted: 5, Bounds: bounds, Trials: trials(501, 1, 1, 1, 1)}, Red, 5, 0, 1},
		{"one of one", Experiment{Wanted: 1, Bounds: bounds, Trials: trials(501)}, Red, 1, 0, 1},
		{
			"three of twenty", Experiment{Wanted: 20, Bounds: bounds, Trials: trials(append(with(3, 501), ten...)...)}, Green,
			20, 0, 3,
		},
		{
			"four of twenty", Experiment{Wanted: 20, Bounds: bounds, Trials: trials(append(with(4, 501), ten...)...)}, Red, 20,
			0, 4,
		},
		{"two bounds, each broken once by another trial", Experiment{
			Wanted: 10, Bounds: append(bounds, Bound{"failed", 0}), Trials: slices.Concat(
				[]Trial{{Figures: map[string]float64{"outage, ms": 501, "failed": 0}}},
				[]Trial{{Figures: map[string]float64{"outage, ms": 1, "failed": 1}}},
				slices.Repeat([]Trial{{Figures: map[string]float64{"outage, ms": 1, "failed": 0}}}, 8)),
		}, Red, 10, 0, 2},
		{"two bounds, both broken by one trial", Experiment{
			Wanted: 10, Bounds: append(bounds, Bound{"failed", 0}), Trials: slices.Concat(
				[]Trial{{Figures: map[string]float64{"outage, ms": 501, "failed": 1}}},
				slices.Repeat([]Trial{{Figures: map[string]float64{"outage, ms": 1, "failed": 0}}}, 9)),
		}, Green, 10, 0, 1},
		{
			"a figure that was not measured", Experiment{Wanted: 1, Bounds: []Bound{{"failed", 0}}, Trials: trials(1)}, Red, 1,
			0, 1,
		},
		{"a figure that is no number", Experiment{Wanted: 1, Bounds: bounds, Trials: trials(math.NaN())}, Red, 1, 0, 1},
		{
			"the median itself", Experiment{Wanted: 3, MedianBounds: []Bound{{"outage, ms", 300}}, Trials: trials(1, 300, 9999)},
			Green, 3, 0, 0,
		},
		{
			"the median is above its bound",
			Experiment{Wanted: 3, Bounds: bounds, MedianBounds: []Bound{{"outage, ms", 300}}, Trials: trials(1, 301, 400)}, Red,
			3, 0, 0,
		},
		{
			"the median of two", Experiment{Wanted: 2, MedianBounds: []Bound{{"outage, ms", 300}}, Trials: trials(1, 600)}, Red,
			2, 0, 0,
		},
		{
			"the median of too few", Experiment{Wanted: 3, MedianBounds: []Bound{{"outage, ms", 300}}, Trials: trials(301, 400)},
			Inconclusive, 2, 0, 0,
		},
		{
			"the median without those that are late",
			Experiment{
				Wanted: 1, MedianBounds: []Bound{{"outage, ms", 300}},
				Trials: append(trials(1), late(trials(400)[0]), late(trials(400)[0])),
			},
			Green, 1, 2, 0,
		},
		{
			"the median of what was not measured",
			Experiment{Wanted: 2, MedianBounds: []Bound{{"failed", 3}}, Trials: trials(1, 1)}, Red, 2, 0, 0,
		},
		{
			"the median of what was mostly measured",
			Experiment{Wanted: 3, MedianBounds: []Bound{{"outage, ms", 300}}, Trials: trials(1, 2, math.NaN())}, Green, 3, 0, 0,
		},
		{"without bounds", Experiment{Wanted: 2, Trials: trials(1, 9999)}, Green, 2, 0, 0},
		{
			"an invariant, once",
			Experiment{Wanted: 10, Bounds: bounds, Trials: append(trials(ten[:9]...), broken(trials(1)[0]))}, Red, 10, 0, 0,
		},
		{
			"an invariant, on a late machine",
			Experiment{Wanted: 2, Bounds: bounds, Trials: append(trials(1, 1), late(broken(trials(501)[0])))}, Red, 2, 1, 0,
		},
		{
			"an invariant, before enough trials", Experiment{Wanted: 10, Bounds: bounds, Trials: []Trial{broken(trials(1)[0])}},
			Red, 1, 0, 0,
		},
		{
			"late ones that break the bound do not count",
			Experiment{
				Wanted: 10, Bounds: bounds, Trials: append(trials(ten...), late(trials(501)[0]), late(trials(502)[0])),
			},
			Green, 10, 2, 0,
		},
		{
			"too many late ones break the bound",
			Experiment{
				Wanted: 8, Bounds: bounds,
				Trials: append(trials(ten[:7]...), late(trials(1)[0]), late(trials(501)[0]), late(trials(502)[0])),
			},
			Inconclusive, 8, 2, 0,
		},
		{
			"too many late ones break the bound where none counts as good",
			Experiment{
				Wanted: 8, Bounds: bounds, Trials: append(trials(ten[:8]...), late(trials(501)[0]), late(trials(502)[0])),
			},
			Green, 8, 2, 0,
		},
		{
			"late ones and one in time break the bound, too many together",
			Experiment{
				Wanted: 8, Bounds: bounds,
				Trials: append(trials(ten[:6]...), late(trials(1)[0]), trials(501)[0], late(trials(502)[0])),
			},
			Inconclusive, 8, 1, 1,
		},
		{
			"those that hold only without what the machine was late make up for none that is broken",
			Experiment{
				Wanted: 8, Bounds: bounds, Trials: slices.Concat(
					trials(ten[:7]...), []Trial{late(trials(1)[0]), late(trials(501)[0]), late(trials(501)[0])},
					[]Trial{late(trials(490)[0]), late(trials(490)[0]), late(trials(490)[0])},
				),
			},
			Inconclusive, 8, 5, 0,
		},
		{
			"one of four is late and good, and one more late and broken",
			Experiment{
				Wanted: 4, Bounds: bounds, Trials: append(trials(1, 1, 1), late(trials(1)[0]), late(trials(501)[0])),
			},
			Inconclusive, 4, 1, 0,
		},
		{
			"four in time make up for a late one that is broken",
			Experiment{Wanted: 4, Bounds: bounds, Trials: append(trials(1, 1, 1, 1), late(trials(501)[0]))}, Green, 4, 1, 0,
		},
		{
			"hopelessly late, whatever it shows",
			Experiment{
				Wanted: 1, Bounds: []Bound{{"failed", 0}},
				Trials: []Trial{
					{Figures: map[string]float64{"failed": 0}, LateMS: 100.001},
					{Figures: map[string]float64{"failed": 0}, LateMS: 100},
					{Figures: map[string]float64{"failed": 1}, LateMS: 100.001},
				},
			},
			Green, 1, 2, 0,
		},
		{
			"the median with what the machine was late",
			Experiment{
				Wanted: 1, Bounds: bounds, MedianBounds: []Bound{{"outage, ms", 300}}, Trials: []Trial{late(trials(280)[0])},
			},
			Red, 1, 0, 0,
		},
		{
			"the median that holds with what the machine was late",
			Experiment{
				Wanted: 1, Bounds: bounds, MedianBounds: []Bound{{"outage, ms", 300}},
				Trials: []Trial{late(trials(279.999)[0])},
			},
			Green, 1, 0, 0,
		},
		{
			"the median where any machine will do",
			Experiment{
				Wanted: 1, AnyMachine: true, MedianBounds: []Bound{{"outage, ms", 300}}, Trials: []Trial{late(trials(300)[0])},
			},
			Green, 1, 0, 0,
		},
		{
			"a figure with two commas",
			Experiment{Wanted: 1, Bounds: []Bound{{"back, again, ms", 500}}, Trials: []Trial{
				late(Trial{Figures: map[string]float64{"back, again, ms": 480}}),
			}},
			Inconclusive, 0, 1, 0,
		},
		{
			"late ones count whose bound holds even so",
			Experiment{Wanted: 2, Bounds: bounds, Trials: append(trials(1), late(trials(479.999)[0]))}, Green, 2, 0, 0,
		},
		{
			"late ones do not count whose bound holds only without what the machine was late",
			Experiment{Wanted: 1, Bounds: bounds, Trials: append(trials(1), late(trials(480)[0]))}, Green, 1, 1, 0,
		},
		{
			"the machine's lateness adds to no count",
			Experiment{
				Wanted: 1, Bounds: []Bound{{"failed", 0}}, Trials: []Trial{late(Trial{Figures: map[string]float64{"failed": 0}})},
			},
			Green, 1, 0, 0,
		},
		{
			"a time in seconds",
			Experiment{Wanted: 1, Bounds: []Bound{{"back, s", 1}}, Trials: []Trial{
				late(Trial{Figures: map[string]float64{"back, s": 0.9799}}),
				late(Trial{Figures: map[string]float64{"back, s": 0.98}}),
			}},
			Green, 1, 1, 0,
		},
		{
			"late ones without what the bound is of",
			Experiment{Wanted: 1, Bounds: []Bound{{"failed", 0}}, Trials: []Trial{late(trials(1)[0])}}, Inconclusive, 0, 1, 0,
		},
		{
			"just in time",
			Experiment{Wanted: 1, Bounds: bounds, Trials: []Trial{{Figures: map[string]float64{"outage, ms": 1}, LateMS: 20}}},
			Green, 1, 0, 0,
		},
		{
			"too few are conclusive",
			Experiment{
				Wanted: 2, Bounds: bounds,
				Trials: append(trials(1), late(trials(490)[0]), late(trials(490)[0]), late(trials(490)[0])),
			},
			Inconclusive, 1, 3, 0,
		},
		{
			"too few are conclusive, and one breaks the bound",
			Experiment{Wanted: 10, Bounds: bounds, Trials: trials(501, 1, 1)}, Inconclusive, 3, 0, 1,
		},
		{
			"too few are conclusive, and too many break the bound",
			Experiment{Wanted: 10, Bounds: bounds, Trials: trials(501, 501, 1)}, Red, 3, 0, 2,
		},
		{
			"late ones count where any machine will do",
			Experiment{Wanted: 1, AnyMachine: true, Trials: []Trial{late(trials(1)[0])}}, Green, 1, 0, 0,
		},
		{"none was made", Experiment{Wanted: 2, Bounds: bounds}, Inconclusive, 0, 0, 0},
		{"none was wanted", Experiment{Bounds: bounds}, Inconclusive, 0, 0, 0},
	} {
		v := Judge(row.experiment)
		if v.Outcome != row.outcome || v.Conclusive != row.conclusive || v.Late != row.late || v.BrokenTrials != row.broken {
			t.Errorf("%s: %+v", row.name, v)
		}
	}
}

// TestVerdict checks what a verdict says beside its outcome.
func TestVerdict(t *testing.T) {
	e := Experiment{
		Bounds: []Bound{{"failed", 0}, {"outage, ms", 500}}, Wanted: 4,
		Trials: []Trial{
			{Seed: 1, Figures: map[string]float64{"failed": 0, "outage, ms": 40}, LateMS: 1, Errors: []string{"a", "b"}},
			{Seed: 2, Figures: map[string]float64{"failed": 7, "outage, ms": 10}, LateMS: 3},
			{
				Seed: 3, Figures: map[string]float64{"failed": 0, "outage, ms": 9000}, LateMS: 90, Errors: []string{"c"},
				Broken: []string{"lost", "doubled"},
			},
			{Seed: 4, Figures: map[string]float64{"failed": 1, "outage, ms": 30}, LateMS: 5},
			{Seed: 5, Figures: map[string]float64{"failed": 2, "outage, ms": 600}, LateMS: 2},
		},
	}
	got := Judge(e)
	want := Verdict{
		Outcome: Red, Conclusive: 4, Late: 1, LateBroken: 1, BrokenTrials: 3, Errors: 3,
		Spreads:      []Spread{{"failed", 0, 1.5, 7}, {"outage, ms", 10, 35, 600}},
		LateMS:       Spread{"machine late, ms", 1, 2.5, 5},
		BrokenBounds: []BrokenBound{{Bound{"failed", 0}, 3}, {Bound{"outage, ms", 500}, 1}},
		Broken:       []string{"seed 3: lost", "seed 3: doubled"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("\n%+v, want\n%+v", got, want)
	}
	const text = "red; 1 more trials were inconclusive, the machine was late; failed above 0 in 3 of 4; outage above " +
		"500 ms in 1 of 4; seed 3: lost; seed 3: doubled; 3 errors"
	if got.String() != text {
		t.Errorf("%s", got)
	}
	if text := (Verdict{Outcome: Green, Conclusive: 10, LateConclusive: 3}).String(); text !=
		"green; in 3 of 10 the machine was late, and the bounds hold even so" {
		t.Errorf("%s", text)
	}
	for text, v := range map[string]Verdict{
		"inconclusive; 2 more trials were inconclusive, the machine was late; in 3 of 8 the machine was late, and the " +
			"bounds hold even so; 2 late trials break a bound, which is too often": {
			Outcome: Inconclusive, Conclusive: 8, Late: 2, LateConclusive: 3, LateBroken: 2,
		},
		"green; 1 more trials were inconclusive, the machine was late; in 3 of 10 the machine was late, and the bounds " +
			"hold even so; 1 late trials break a bound": {
			Outcome: Green, Conclusive: 10, Late: 1, LateConclusive: 3, LateBroken: 1,
		},
	} {
		if v.String() != text {
			t.Errorf("%s", v)
		}
	}
	e.MedianBounds = []Bound{{"failed", 2}, {"outage, ms", 30}}
	if got := Judge(e); !strings.Contains(got.String(), "; median of outage above 30 ms; seed 3: lost") {
		t.Errorf("%s", got)
	}
	e.Trials = []Trial{late(e.Trials[0])}
	if got := Judge(e); got.Outcome != Inconclusive || got.LateMS.Max != 20.001 || len(got.Spreads) != 2 {
		t.Errorf("only late trials: %+v", got)
	}
}

func TestNeedsMore(t *testing.T) {
	for _, row := range []struct {
		name   string
		trials []Trial
		want   bool
	}{
		{"none yet", nil, true},
		{"one", trials(1), true},
		{"as many as are wanted", trials(1, 1), false},
		{"one is to be repeated", append(trials(1), late(trials(501)[0])), true},
		{"two are", append(trials(1), late(trials(501)[0]), late(trials(501)[0])), true},
		{"no more are repeated", append(trials(1), late(trials(501)[0]), late(trials(501)[0]), late(trials(501)[0])), false},
		{"a late one need not be repeated", append(trials(1), late(trials(1)[0])), false},
		{"an invariant is broken", []Trial{broken(trials(1)[0])}, false},
		{"a bound is broken", trials(501), true},
	} {
		e := Experiment{Wanted: 2, Bounds: []Bound{{"outage, ms", 500}}, Trials: row.trials}
		if got := e.NeedsMore(); got != row.want {
			t.Errorf("%s: %t", row.name, got)
		}
	}
}

func TestMilliseconds(t *testing.T) {
	for d, want := range map[time.Duration]float64{
		0: 0, time.Second: 1000, 1500 * time.Microsecond: 1.5, 1234567 * time.Nanosecond: 1.235,
	} {
		if got := Milliseconds(d); got != want {
			t.Errorf("%s: %v", d, got)
		}
	}
}

// someResult returns the result of a command.
func someResult(command string, outages ...float64) Result {
	return Result{
		Command: command, Commit: "abc1234", Began: time.Date(2026, 11, 24, 8, 0, 0, 0, time.UTC),
		Experiments: []Experiment{
			{Name: "holder dead", Bounds: []Bound{{"outage, ms", 500}}, Wanted: len(outages), Trials: trials(outages...)},
		},
	}
}

func TestResult(t *testing.T) {
	want := someResult("make proof-failover", 1, 2, 3)
	want.Experiments[0].Trials[1] = late(broken(want.Experiments[0].Trials[1]))
	want.Experiments[0].Trials[2].Errors = []string{"10.77.0.200: connection refused"}
	var file bytes.Buffer
	if err := want.Write(&file); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{`"outcome": "red"`, `"seed 2: two nodes have it"`, `"connection refused"`} {
		if part = strings.Trim(part, `"`); !strings.Contains(file.String(), part) {
			t.Errorf("%q is not in %s", part, file.String())
		}
	}
	got, err := Read(&file)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v\n%+v, want\n%+v", err, got, want)
	}
	if _, err := Read(strings.NewReader(`{"experiments": [`)); err == nil {
		t.Error("half of a file was read")
	}
}

func TestResultIsGreen(t *testing.T) {
	green, red := someResult("make a", 1, 2), someResult("make a", 501, 502)
	both := green
	both.Experiments = slices.Concat(green.Experiments, red.Experiments)
	for _, row := range []struct {
		name   string
		result Result
		want   bool
	}{{"green", green, true}, {"red", red, false}, {"both", both, false}, {"none", Result{}, false}} {
		if got := row.result.IsGreen(); got != row.want {
			t.Errorf("%s: %t", row.name, got)
		}
	}
	for _, r := range []Result{
		{}, {Experiments: green.Experiments}, {Command: "make a", Commit: "abc", Began: green.Began},
	} {
		if r.Check() == nil {
			t.Errorf("%+v is taken for a result", r)
		}
	}
	if err := green.Check(); err != nil {
		t.Error(err)
	}
}

func TestFormatFigures(t *testing.T) {
	e := Experiment{
		Wanted: 3, Bounds: []Bound{{"outage, ms", 500}, {"failed", 0}}, MedianBounds: []Bound{
			{"outage, ms", 300}, {"late, s", 1},
		},
		Trials: []Trial{{Figures: map[string]float64{"failed": 0, "late, s": 0.25, "outage, ms": 120, "requests": 7}}},
	}
	const want = "outage 120 ms (median at most 300, at most 500); failed 0 (at most 0); late 0.2 s (median at most 1); " +
		"requests 7"
	if got := formatFigures(e, Judge(e)); got != want {
		t.Errorf("%s, want\n%s", got, want)
	}
}

// pageStep is a command that was run, and those whose results are in the page afterwards.
type pageStep struct{ ran, left string }

func TestUpdatePageOfSomeRows(t *testing.T) {
	updatePage(t, []pageStep{
		{"make proof-failover ROWS=a", "make proof-failover ROWS=a"},
		{"make proof-failover ROWS=b", "make proof-failover ROWS=a,make proof-failover ROWS=b"},
		{"make proof-failover ROWS=a SEED=2", "make proof-failover ROWS=b,make proof-failover ROWS=a SEED=2"},
		{"make proof-bgp", "make proof-bgp,make proof-failover ROWS=b,make proof-failover ROWS=a SEED=2"},
		{
			"make proof-bgp ROWS=c|d",
			"make proof-bgp,make proof-bgp ROWS='c\\|d',make proof-failover ROWS=b,make proof-failover ROWS=a SEED=2",
		},
		{
			"make proof-bgp ROWS=c|d SEED=3",
			"make proof-bgp,make proof-bgp ROWS='c\\|d' SEED=3,make proof-failover ROWS=b,make proof-failover ROWS=a SEED=2",
		},
		{"make proof-bgp", "make proof-bgp,make proof-failover ROWS=b,make proof-failover ROWS=a SEED=2"},
		{"make proof-failover", "make proof-bgp,make proof-failover"},
	})
}

// Results with feature gates stand beside those without.
func TestUpdatePageOfGates(t *testing.T) {
	const with, without = "make proof-failover FEATURE_GATES=A=true ROWS=a", "make proof-failover ROWS=a"
	updatePage(t, []pageStep{
		{without, without},
		{with, without + "," + with},
		{with + " SEED=2", without + "," + with + " SEED=2"},
		{without + " SEED=3", with + " SEED=2," + without + " SEED=3"},
		{"make proof-failover FEATURE_GATES=A=true", without + " SEED=3,make proof-failover FEATURE_GATES=A=true"},
	})
}

// updatePage adds the results of one command after the other to a page.
func updatePage(t *testing.T, steps []pageStep) {
	t.Helper()
	page := "<!-- results: begin -->\n<!-- results: end -->\n"
	for _, step := range steps {
		var err error
		if page, err = UpdatePage(page, []Result{someResult(step.ran, 1)}); err != nil {
			t.Fatal(err)
		}
		var left []string
		for line := range strings.Lines(page) {
			if _, command, isRow := strings.Cut(line, "| `"); isRow {
				command, _, _ = strings.Cut(command, "`")
				left = append(left, command)
			}
		}
		if got := strings.Join(left, ","); got != step.left {
			t.Errorf("after %s: %s, want %s", step.ran, got, step.left)
		}
	}
}

func TestUpdatePage(t *testing.T) {
	const page = "# Proof\n\n<!-- results: begin -->\n<!-- results: end -->\nMore.\n"
	soak := someResult("make soak DURATION=1h", 0.04)
	soak.Experiments[0].Name, soak.Experiments[0].Bounds = "a | b", nil
	soak.Experiments[0].Trials[0].Broken = []string{"first\nsecond"}
	got, err := UpdatePage(page, []Result{soak, someResult("make proof-failover SEED=1", 120.4, 30.25, 600)})
	want := "# Proof\n\n<!-- results: begin -->\n" + tableHead +
		"| holder dead | 2026-11-24 | abc1234 | `make proof-failover SEED=1` | 3 | outage 30.2 / 120 / 600 ms (at most " +
		"500) | 2 ms | red; outage above 500 ms in 1 of 3 |\n" +
		"| a \\| b | 2026-11-24 | abc1234 | `make soak DURATION=1h` | 1 | outage 0 ms | 2 ms | " +
		"red; seed 1: first second |\n" +
		"<!-- results: end -->\nMore.\n"
	if err != nil || got != want {
		t.Fatalf("%v\n%s, want\n%s", err, got, want)
	}
	if again, err := UpdatePage(got, nil); err != nil || again != got {
		t.Errorf("without results the page changed: %v\n%s", err, again)
	}
	got, err = UpdatePage(got, []Result{someResult("make proof-failover SEED=9", 1), someResult("make proof-bgp", 5)})
	want = "# Proof\n\n<!-- results: begin -->\n" + tableHead +
		"| holder dead | 2026-11-24 | abc1234 | `make proof-bgp` | 1 | outage 5 ms (at most 500) | 2 ms | green |\n" +
		"| holder dead | 2026-11-24 | abc1234 | `make proof-failover SEED=9` | 1 | outage 1 ms (at most 500) | 2 ms | " +
		"green |\n" +
		"| a \\| b | 2026-11-24 | abc1234 | `make soak DURATION=1h` | 1 | outage 0 ms | 2 ms | " +
		"red; seed 1: first second |\n" +
		"<!-- results: end -->\nMore.\n"
	if err != nil || got != want {
		t.Errorf("%v\n%s, want\n%s", err, got, want)
	}
	for _, bad := range []struct{ page, result string }{
		{"# Proof\n", "make a"}, {"<!-- results: begin -->\n|\n|\nwhat\n<!-- results: end -->", "make a"}, {page, ""},
	} {
		if _, err := UpdatePage(bad.page, []Result{someResult(bad.result, 1)}); err == nil {
			t.Errorf("%+v: no error", bad)
		}
	}
}
