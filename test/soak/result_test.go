package main

import (
	"errors"
	"maps"
	"reflect"
	"testing"
	"time"

	"github.com/purelb/purelb-operator/test/proof/trial"
	"github.com/purelb/purelb-operator/test/soak/check"
	"github.com/purelb/purelb-operator/test/soak/model"
)

func TestExperiment(t *testing.T) {
	s := &soak{
		options: options{seed: 7}, watch: check.NewWatch(nil), rounds: 3, slowest: 1500 * time.Millisecond,
		done: map[model.Kind]int{model.CutLink: 4, model.StopAPI: 2}, largest: map[string]float64{
			clockLate: 130, "agent MiB": 35,
		},
	}
	s.watch.Longest["two answer, planned"] = 200 * time.Millisecond
	want := trial.Trial{Seed: 7, LateMS: 130, Pressure: -1, Figures: map[string]float64{
		"rounds": 3, "actions": 6, "slowest rest, s": 1.5, "two answer (planned), s": 0.2, "agent at rest, MiB": 35,
	}}
	e := s.experiment(nil)
	if len(e.Trials) != 1 || !reflect.DeepEqual(e.Trials[0], want) || trial.Judge(e).Outcome != trial.Green {
		t.Errorf("%+v", e)
	}
	before := maps.Clone(e.Trials[0].Figures)
	e = s.experiment(errors.New("violations: two nodes answer"))
	if v := trial.Judge(e); v.Outcome != trial.Red || len(v.Broken) != 1 || !maps.Equal(e.Trials[0].Figures, before) {
		t.Errorf("%+v", v)
	}
}
