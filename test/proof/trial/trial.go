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

const (
	// TooLate is how late the machine may be in a trial that is judged as it is.
	TooLate = 20 * time.Millisecond
	// hopelesslyLate is how late the machine may be in a trial that shows anything.
	hopelesslyLate = 100 * time.Millisecond
)

// brokenShare is the share of trials, one in so many, that makes an experiment red or inconclusive when they
// break bounds.
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

// isHopelesslyLate reports whether the machine was so late that the trial shows nothing.
func (t Trial) isHopelesslyLate() bool { return t.LateMS > Milliseconds(hopelesslyLate) }

// withLateness returns the trial with each of its times as much longer as the machine was late: what a meter
// may have missed meanwhile is in it.
func (t Trial) withLateness() Trial {
	figures := maps.Clone(t.Figures)
	for name := range figures {
		switch _, unit := cutUnit(name); unit {
		case "ms":
			figures[name] += t.LateMS
		case "s":
			figures[name] += t.LateMS / 1000
		}
	}
	t.Figures = figures
	return t
}

// cutUnit returns the name of a figure without its unit, and the unit; empty for a count.
func cutUnit(figure string) (name, unit string) {
	if i := strings.LastIndex(figure, ", "); i >= 0 {
		return figure[:i], figure[i+len(", "):]
	}
	return figure, ""
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
	// MedianBounds are bounds of the medians of figures over the conclusive trials. Times of trials in which the
	// machine was late are as much longer in them.
	MedianBounds []Bound `json:"medianBounds,omitempty"`
	// Wanted is how many conclusive trials the experiment is to have.
	Wanted int     `json:"wanted"`
	Trials []Trial `json:"trials"`
	// AnyMachine says that a late machine makes no trial inconclusive: the experiment has no
	// bound that depends on it, or considers lateness itself.
	AnyMachine bool `json:"anyMachine,omitempty"`
}

// IsConclusive reports whether a trial shows something: the machine was in time, or it was not hopelessly
// late and all bounds hold even if each time was as much longer as the machine was late.
func (e Experiment) IsConclusive(t Trial) bool {
	holdsEvenLate := !t.isHopelesslyLate() && len(e.Bounds) > 0 && !e.isBrokenBy(t.withLateness())
	return e.isInTime(t) || holdsEvenLate
}

// isInTime reports whether a trial is judged as it is.
func (e Experiment) isInTime(t Trial) bool { return e.AnyMachine || t.isInTime() }

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

// conclusive returns the trials that show something, in their order.
func (e Experiment) conclusive() []Trial { return trialsWith(e.Trials, e.IsConclusive) }

// withLateness returns trials with the times of those in which the machine was late as much longer.
func (e Experiment) withLateness(trials []Trial) []Trial {
	var all []Trial
	for _, t := range trials {
		if !e.isInTime(t) {
			t = t.withLateness()
		}
		all = append(all, t)
	}
	return all
}

// trialsWith returns the trials for which has is true, in their order.
func trialsWith(trials []Trial, has func(Trial) bool) []Trial {
	var found []Trial
	for _, t := range trials {
		if has(t) {
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
	// LateBroken is in how many of the late trials that were not conclusive a bound was broken as it was measured,
	// and the machine was not hopelessly late.
	LateBroken int `json:"lateBroken,omitempty"`
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
	v.BrokenTrials = len(trialsWith(judged, e.isBrokenBy))
	v.LateConclusive = len(trialsWith(judged, func(t Trial) bool { return !e.isInTime(t) }))
	v.LateBroken = len(trialsWith(e.Trials, func(t Trial) bool {
		return !e.IsConclusive(t) && !t.isHopelesslyLate() && e.isBrokenBy(t)
	}))
	for _, b := range e.Bounds {
		if n := len(trialsWith(judged, b.isBrokenBy)); n > 0 {
			v.BrokenBounds = append(v.BrokenBounds, BrokenBound{b, n})
		}
	}
	if v.Conclusive >= max(e.Wanted, 1) {
		asLate := e.withLateness(judged)
		v.BrokenMedians = slices.DeleteFunc(
			slices.Clone(e.MedianBounds), func(b Bound) bool { return !b.isBrokenByMedianOf(asLate) },
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
	case v.Conclusive < max(e.Wanted, 1), v.isBrokenTooOftenWhenLate():
		v.Outcome = Inconclusive
	default:
		v.Outcome = Green
	}
	return v
}

// isBrokenTooOftenWhenLate reports whether late trials count as good, and one in five of all trials that either
// are conclusive or break a bound breaks one. Else late trials would count only if they are good.
func (v Verdict) isBrokenTooOftenWhenLate() bool {
	broken := v.BrokenTrials + v.LateBroken
	return v.LateConclusive > 0 && broken*brokenShare >= v.Conclusive+v.LateBroken
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
