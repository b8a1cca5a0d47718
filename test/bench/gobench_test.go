package main

import (
	"reflect"
	"testing"

	"github.com/purelb/purelb-operator/test/bench/report"
)

func TestParseBenchmarks(t *testing.T) {
	got := parseBenchmarks(`goos: linux
BenchmarkPlace/100_nodes-2         	     120	   9876500 ns/op	        12.5 writes/service
BenchmarkAdmit-2	 3 some log
BenchmarkFirstFree 	 1000 	 500 ns/op
PASS
ok  	github.com/purelb/purelb-operator/controllers/placement	3.1s
`)
	want := []report.Row{
		{Section: "go", Case: "Place/100_nodes", N: 120, Values: map[string]float64{"µs/op": 9876.5, "writes/service": 12.5}},
		{Section: "go", Case: "Admit", N: 3, Values: map[string]float64{}},
		{Section: "go", Case: "FirstFree", N: 1000, Values: map[string]float64{"µs/op": 0.5}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
}
