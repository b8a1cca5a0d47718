package trial

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// TooLate is how late the machine may be in a trial that is judged as it is.
const TooLate = 20 * time.Millisecond

// brokenShare is the share of conclusive trials, one in so many, that makes an experiment red when they break
// bounds, and the share of all trials that makes it inconclusive.
const brokenShare = 5

// Trial is one run of an experiment.
type Trial struct {
	// Seed makes the trial's choices.
	Seed int64 `json:"seed"`
	// Figures are what was measured, by name. The name ends with the unit, unless the figure
	// is a count.
	Figures map[string]float64 `json:"figures"`
	// Errors are all errors that were seen, such as those of requests. They are shown and not
	// judged: how many there may be is a bound.
	Errors []string `json:"errors,omitempty"`
	// Broken are the invariants that did not hold.
	Broken []string `json:"broken,omitempty"`
	// LateMS is by how many milliseconds the machine was late at the most.
	LateMS float64 `json:"lateMS"`
	// Pressure is the share of the time in which some process waited for a processor, from 0
	// to 1; negative if that is not known.
	Pressure float64 `json:"pressure"`
}

// isInTime reports whether the machine was in time.
func (t Trial) isInTime() bool { return t.LateMS <= Milliseconds(TooLate) }

// withLateness returns the trial with each of its times as much longer as the machine was late: what a meter
// may have missed meanwhile is in it.
func (t Trial) withLateness() Trial {
	figures := maps.Clone(t.Figures)
	for name := range figures {
		switch _, unit, _ := strings.Cut(name, ", "); unit {
		case "ms":
			figures[name] += t.LateMS
		case "s":
			figures[name] += t.LateMS / 1000
		}
	}
	t.Figures = figures
	return t
}

// Milliseconds returns a time as a figure, with three decimal places.
func Milliseconds(d time.Duration) float64 {
	return float64(d.Round(time.Microsecond).Microseconds()) / 1000
}

// Bound is what a figure may be at the most.
type Bound struct {
	Figure string  `json:"figure"`
	AtMost float64 `json:"atMost"`
}

// isBrokenBy reports whether a trial breaks the bound. One that did not measure the figure
// shows nothing, and breaks it.
func (b Bound) isBrokenBy(t Trial) bool {
	value, ok := t.Figures[b.Figure]
	return !ok || !(value <= b.AtMost) // NaN breaks the bound
}

// isBrokenByMedianOf reports whether the median of the figure over trials breaks the bound. A
// trial that did not measure the figure counts as one in which it had no limit.
func (b Bound) isBrokenByMedianOf(trials []Trial) bool {
	var values []float64
	for _, t := range trials {
		value, ok := t.Figures[b.Figure]
		if !ok || math.IsNaN(value) {
			value = math.Inf(1)
		}
		values = append(values, value)
	}
	return spread(b.Figure, values).Median > b.AtMost
}

// Experiment is something that is tried several times.
type Experiment struct {
	Name   string  `json:"name"`
	Bounds []Bound `json:"bounds,omitempty"`
	// MedianBounds are bounds of the medians of figures over the conclusive trials.
	MedianBounds []Bound `json:"medianBounds,omitempty"`
	// Wanted is how many conclusive trials the experiment is to have.
	Wanted int     `json:"wanted"`
	Trials []Trial `json:"trials"`
	// AnyMachine says that a late machine makes no trial inconclusive: the experiment has no
	// bound that depends on it, or considers lateness itself.
	AnyMachine bool `json:"anyMachine,omitempty"`
}

// IsConclusive reports whether a trial shows something: the machine was in time, or all bounds hold
// even if each time was as much longer as the machine was late.
func (e Experiment) IsConclusive(t Trial) bool {
	return e.AnyMachine || t.isInTime() || len(e.Bounds) > 0 && !e.isBrokenBy(t.withLateness())
}

// isBrokenBy reports whether a trial breaks a bound.
func (e Experiment) isBrokenBy(t Trial) bool {
	return slices.ContainsFunc(e.Bounds, func(b Bound) bool { return b.isBrokenBy(t) })
}

// NeedsMore reports whether another trial is to be made: no invariant is broken, too few
// trials were conclusive, and no more than Wanted have been repeated.
func (e Experiment) NeedsMore() bool {
	return !slices.ContainsFunc(e.Trials, func(t Trial) bool { return len(t.Broken) > 0 }) &&
		len(e.conclusive()) < e.Wanted && len(e.Trials) < 2*e.Wanted
}

func (e Experiment) conclusive() []Trial {
	var found []Trial
	for _, t := range e.Trials {
		if e.IsConclusive(t) {
			found = append(found, t)
		}
	}
	return found
}

// Outcome is what came of an experiment.
type Outcome string

const (
	// Green says that the experiment shows what it is to show.
	Green Outcome = "green"
	// Red says that an invariant or a bound is broken.
	Red Outcome = "red"
	// Inconclusive says that the machine was late in too many trials that do not show that the bounds hold. It
	// is as bad as Red.
	Inconclusive Outcome = "inconclusive"
)

// Spread is the least, the middle and the greatest value of a figure.
type Spread struct {
	Figure string  `json:"figure"`
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
}

// BrokenBound is a bound and in how many conclusive trials it was broken.
type BrokenBound struct {
	Bound
	Trials int `json:"trials"`
}

// Verdict is the judgement of an experiment.
type Verdict struct {
	Outcome Outcome `json:"outcome"`
	// Conclusive is how many trials were conclusive, and Late how many were not. LateConclusive is in how many of
	// the conclusive ones the machine was late.
	Conclusive     int `json:"conclusive"`
	Late           int `json:"late"`
	LateConclusive int `json:"lateConclusive,omitempty"`
	// Spreads are those of each figure, by name, over the conclusive trials. If there are
	// none, they are over all trials.
	Spreads []Spread `json:"spreads"`
	// LateMS is the spread of LateMS over the trials that Spreads are of.
	LateMS Spread `json:"lateMS"`
	// BrokenTrials is in how many conclusive trials a bound was broken; BrokenBounds says
	// which.
	BrokenTrials int           `json:"brokenTrials"`
	BrokenBounds []BrokenBound `json:"brokenBounds,omitempty"`
	// BrokenMedians are the bounds of medians that were broken. There are none before enough
	// trials were conclusive.
	BrokenMedians []Bound `json:"brokenMedians,omitempty"`
	// Broken are the invariants that did not hold, each with the seed of its trial.
	Broken []string `json:"broken,omitempty"`
	// Errors is how many errors all trials saw.
	Errors int `json:"errors"`
}

// Judge judges the trials of an experiment.
func Judge(e Experiment) Verdict {
	judged := e.conclusive()
	v := Verdict{Conclusive: len(judged), Late: len(e.Trials) - len(judged)}
	for _, t := range e.Trials {
		v.Errors += len(t.Errors)
		for _, b := range t.Broken {
			v.Broken = append(v.Broken, fmt.Sprintf("seed %d: %s", t.Seed, b))
		}
	}
	allBroken := 0
	for _, t := range e.Trials {
		isConclusive, isBroken := e.IsConclusive(t), e.isBrokenBy(t)
		if isBroken {
			allBroken++
		}
		if isConclusive && isBroken {
			v.BrokenTrials++
		}
		if isConclusive && !e.AnyMachine && !t.isInTime() {
			v.LateConclusive++
		}
	}
	for _, b := range e.Bounds {
		n := 0
		for _, t := range judged {
			if b.isBrokenBy(t) {
				n++
			}
		}
		if n > 0 {
			v.BrokenBounds = append(v.BrokenBounds, BrokenBound{b, n})
		}
	}
	if v.Conclusive >= max(e.Wanted, 1) {
		v.BrokenMedians = slices.DeleteFunc(
			slices.Clone(e.MedianBounds), func(b Bound) bool { return !b.isBrokenByMedianOf(judged) },
		)
	}
	if len(judged) == 0 {
		judged = e.Trials
	}
	v.Spreads, v.LateMS = spreadsOf(judged)
	// Too few conclusive trials do not hide that too many of them break bounds: the trials
	// that are missing count as good.
	isTooOften := v.BrokenTrials > 0 && v.BrokenTrials*brokenShare >= max(e.Wanted, v.Conclusive)
	switch {
	case len(v.Broken) > 0, isTooOften, len(v.BrokenMedians) > 0:
		v.Outcome = Red
	case v.Conclusive < max(e.Wanted, 1), allBroken*brokenShare >= max(len(e.Trials), 1):
		v.Outcome = Inconclusive // late trials that hold do not make up for late ones that do not
	default:
		v.Outcome = Green
	}
	return v
}

// spreadsOf returns the spread of each figure of trials, by name, and of their lateness.
func spreadsOf(trials []Trial) (figures []Spread, late Spread) {
	values := map[string][]float64{}
	var lates []float64
	for _, t := range trials {
		lates = append(lates, t.LateMS)
		for name, value := range t.Figures {
			values[name] = append(values[name], value)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		figures = append(figures, spread(name, values[name]))
	}
	return figures, spread("machine late, ms", lates)
}

// spread returns the spread of values. The median of an even number of values is the mean of
// the two in the middle.
func spread(name string, values []float64) Spread {
	s := Spread{Figure: name}
	if len(values) == 0 {
		return s
	}
	sorted := slices.SortedFunc(slices.Values(values), cmp.Compare[float64])
	middle := len(sorted) / 2
	s.Min, s.Median, s.Max = sorted[0], sorted[middle], sorted[len(sorted)-1]
	if len(sorted)%2 == 0 {
		s.Median = (sorted[middle-1] + sorted[middle]) / 2
	}
	return s
}
