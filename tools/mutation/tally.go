package main

import (
	"errors"
	"fmt"
	"io"
)

// tally is what became of the mutants of a package, or of all packages.
type tally struct {
	noticed, survived, equivalent, unbuilt int
	notRun                                 int
	wrong                                  int // entries of the file of equivalent mutants
	survivors                              []*mutant
	timedOut                               []*mutant // noticed: a machine that is slow makes more of them
	notEquivalent                          []*mutant
	stale                                  []*equivalent
}

func count(mutants []*mutant, stale []*equivalent) tally {
	t := tally{stale: stale, wrong: len(stale)}
	for _, m := range mutants {
		switch m.status {
		case noticed:
			t.noticed++
			if m.isTimedOut {
				t.timedOut = append(t.timedOut, m)
			}
		case survived:
			t.survived++
			t.survivors = append(t.survivors, m)
		case "":
			t.notRun++
		case isEquivalent:
			t.equivalent++
		case doesNotBuild:
			t.unbuilt++
		case isNot:
			t.noticed++
			t.wrong++
			t.notEquivalent = append(t.notEquivalent, m)
		}
	}
	return t
}

func (t *tally) add(other tally) {
	t.noticed += other.noticed
	t.survived += other.survived
	t.equivalent += other.equivalent
	t.unbuilt += other.unbuilt
	t.wrong += other.wrong
}

// score is the percentage of mutants that tests noticed, of those that count.
func (t *tally) score() float64 {
	if t.noticed+t.survived == 0 {
		return 100
	}
	return 100 * float64(t.noticed) / float64(t.noticed+t.survived)
}

func (t *tally) print(out io.Writer, name string) {
	for _, m := range t.survivors {
		fmt.Fprintf(out, "survived: %s:%d:%d %s\n  - %s\n  + %s\n", m.file, m.line, m.column, m.function, m.before, m.after)
	}
	for _, m := range t.timedOut {
		fmt.Fprintf(
			out, "noticed, as tests do not end in time: %s:%d:%d %s\n  + %s\n", m.file, m.line, m.column, m.function, m.after,
		)
	}
	for _, m := range t.notEquivalent {
		fmt.Fprintf(out, "listed as equivalent, and a test notices it: %s:%d:%d\n  + %s\n", m.file, m.line, m.column, m.after)
	}
	for _, e := range t.stale {
		fmt.Fprintf(
			out, "listed as equivalent in line %d, and there is no such mutant: %s %s\n  + %s\n", e.number, e.file, e.function,
			e.after,
		)
	}
	fmt.Fprintf(out, "%s: %.1f %% noticed (%d of %d; besides, %d equivalent, %d that do not compile)\n",
		name, t.score(), t.noticed, t.noticed+t.survived, t.equivalent, t.unbuilt)
	if t.notRun > 0 {
		fmt.Fprintf(out, "%s: interrupted, %d mutants were not run\n", name, t.notRun)
	}
}

// verdict says whether the tests are good enough.
func (t *tally) verdict(threshold float64) error {
	var errs []error
	if score := t.score(); score < threshold {
		errs = append(errs, fmt.Errorf("tests noticed %.1f %% of the mutants: want %g %%", score, threshold))
	}
	if t.wrong > 0 {
		errs = append(errs, fmt.Errorf("%d entries of the file of equivalent mutants are wrong", t.wrong))
	}
	return errors.Join(errs...)
}
