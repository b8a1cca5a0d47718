package main

import (
	"reflect"
	"testing"
)

func TestMetrics(t *testing.T) {
	samples, err := parseMetrics(`# HELP apiserver_request_total Counter
# TYPE apiserver_request_total counter
apiserver_request_total{code="200",resource="services",subresource="status",verb="APPLY"} 3
apiserver_request_total{code="409",resource="services",subresource="status",verb="APPLY"} 1
apiserver_request_total{code="200",resource="services",subresource="",verb="GET"} 50
apiserver_request_total{code="201",resource="events",subresource="",verb="POST"} 7 1700000000000
other{text="a \"quoted}\" word"} 1e+06
plain 0.5
`)
	if err != nil || len(samples) != 6 {
		t.Fatalf("%v, %v", samples, err)
	}
	if got := samples[4]; got.value != 1e6 || got.labels["text"] != `a \"quoted}\" word` {
		t.Errorf("escaped: %v", got)
	}
	if got := samples[5]; got.name != "plain" || got.value != 0.5 {
		t.Errorf("without labels: %v", got)
	}
	before := sum(samples[:2], "apiserver_request_total", writes)
	after := sum(samples, "apiserver_request_total", writes)
	if want := map[string]float64{"APPLY services/status": 4, "POST events": 7}; !reflect.DeepEqual(after, want) {
		t.Errorf("writes %v, want %v", after, want)
	}
	if got, want := grown(before, after), map[string]float64{"POST events": 7}; !reflect.DeepEqual(got, want) {
		t.Errorf("grown %v, want %v", got, want)
	}
	for _, bad := range []string{"name", "name{a=\"b} 1", "name{a=\"b\"} x"} {
		if _, err := parseMetrics(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}
