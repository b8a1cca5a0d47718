package main

import (
	"strings"

	"github.com/purelb/purelb-operator/test/proof/trial"
)

// experiment returns the soak as an experiment of one trial. Whatever ended the soak early is a
// broken invariant. The bounds of the soak consider how late the machine is themselves.
func (s *soak) experiment(failure error) trial.Experiment {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	t := trial.Trial{
		Seed: int64(s.seed), LateMS: s.largest[clockLate], Pressure: -1,
		Figures: map[string]float64{"rounds": float64(s.rounds), "slowest rest, s": s.slowest.Seconds()},
	}
	for _, count := range s.done {
		t.Figures["actions"] += float64(count)
	}
	for class, longest := range s.watch.Longest {
		if what, detail, ok := strings.Cut(class, ", "); ok { // a comma ends the name of a figure
			class = what + " (" + detail + ")"
		}
		t.Figures[class+", s"] = longest.Seconds()
	}
	for what, value := range s.largest {
		if program, ok := strings.CutSuffix(what, " MiB"); ok {
			t.Figures[program+" at rest, MiB"] = value
		}
	}
	if failure != nil {
		t.Broken = []string{failure.Error()}
	}
	return trial.Experiment{Name: "random faults", Wanted: 1, AnyMachine: true, Trials: []trial.Trial{t}}
}
