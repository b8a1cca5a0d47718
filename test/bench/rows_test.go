package main

import (
	"math"
	"testing"
	"time"

	"github.com/purelb/purelb-operator/test/lab"
)

func TestCosts(t *testing.T) {
	row := availabilityRow("x", []lab.Figures{
		{Requests: 100, Failed: 3, InFlight: 2, Outage: 30 * time.Millisecond, Changes: 1},
		{Requests: 110, Failed: 1, Outage: 10 * time.Millisecond, Changes: 0},
		{Requests: 120, Outage: 20 * time.Millisecond, Duplicate: 40 * time.Millisecond, Changes: 1},
	}, []map[string]float64{{"back": 5}, {"back": 7}, {"back": 6}})
	for name, want := range map[string]float64{
		"failedMax": 5, "failedMedian": 1, "outageMin": 10, "outageMedian": 20, "outageMax": 30,
		"duplicateMax": 40, "movesMedian": 1, "silenceMax": 0, "backMedian": 6, "requestsMin": 100,
	} {
		if got, ok := row.Values[name]; !ok || got != want {
			t.Errorf("%s: %v, %t, want %v", name, got, ok, want)
		}
	}
	if row.N != 3 {
		t.Errorf("n is %d", row.N)
	}
}

func TestIdleRows(t *testing.T) {
	one, two := program{pid: 1, role: "agent", node: "node1"}, program{pid: 2, role: "agent", node: "node2"}
	ended := program{pid: 3, role: "leader"}
	begun := time.Now()
	before := sample{
		at:          begun,
		usage:       map[program]usage{one: {cpu: time.Second}, two: {cpu: time.Second}, ended: {}},
		requests:    map[program]float64{one: 10, two: 20},
		watchEvents: map[string]float64{"coordination.k8s.io/leases": 100, "/services": 5},
	}
	after := sample{
		at: begun.Add(30 * time.Second),
		usage: map[program]usage{
			one: {cpu: 1100 * time.Millisecond, rssMiB: 20}, two: {cpu: 1050 * time.Millisecond, rssMiB: 30},
		},
		requests:    map[program]float64{one: 40, two: 51},
		watchEvents: map[string]float64{"coordination.k8s.io/leases": 160, "/services": 6},
	}
	rows := map[string]map[string]float64{}
	for _, row := range idleRows("x", before, after) {
		rows[row.Section+" "+row.Case] = row.Values
	}
	for _, want := range []struct {
		row, name string
		value     float64
	}{
		{"idle x: agent", "RSS MiB", 30}, {"idle x: agent", "CPU s/min", 0.2}, {"idle x: agent", "requests/min", 62},
		{"watches x", "Leases", 120}, {"watches x", "all", 122},
	} {
		if got := rows[want.row][want.name]; math.Abs(got-want.value) > 1e-9 {
			t.Errorf("%s: %s is %v, want %v", want.row, want.name, got, want.value)
		}
	}
	if len(rows["idle x: leader"]) != 0 {
		t.Errorf("a process that has ended: %v", rows["idle x: leader"])
	}
}
