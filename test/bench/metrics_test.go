package main

import (
	"reflect"
	"strings"
	"testing"

	"github.com/purelb/purelb-operator/test/measure"
)

func TestWrites(t *testing.T) {
	const first = `# TYPE apiserver_request_total counter
apiserver_request_total{code="200",resource="services",subresource="status",verb="APPLY"} 3
apiserver_request_total{code="409",resource="services",subresource="status",verb="APPLY"} 1
`
	const later = first + `apiserver_request_total{code="200",resource="services",subresource="",verb="GET"} 50
apiserver_request_total{code="201",resource="events",subresource="",verb="POST"} 7 1700000000000
`
	count := func(text string) map[string]float64 {
		metrics, err := measure.ParseMetrics(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		return metrics.Sum("apiserver_request_total", writeKey)
	}
	before, after := count(first), count(later)
	if want := map[string]float64{"APPLY services/status": 4, "POST events": 7}; !reflect.DeepEqual(after, want) {
		t.Errorf("writes %v, want %v", after, want)
	}
	if got, want := increases(before, after), map[string]float64{"POST events": 7}; !reflect.DeepEqual(got, want) {
		t.Errorf("increases %v, want %v", got, want)
	}
}
