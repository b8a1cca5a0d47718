package measure

import (
	"fmt"
	"io"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Metrics are a program's metrics, by name.
type Metrics map[string]*dto.MetricFamily

// ParseMetrics parses the text format of Prometheus.
func ParseMetrics(text io.Reader) (Metrics, error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(text)
	if err != nil {
		return nil, fmt.Errorf("parse metrics: %w", err)
	}
	return families, nil
}

// Sum adds up the counters and gauges of a name. Those to which key gives the same
// string, made of their labels, are added; those to which it gives none are left out.
func (m Metrics) Sum(name string, key func(labels map[string]string) string) map[string]float64 {
	sums := map[string]float64{}
	for _, metric := range m[name].GetMetric() {
		labels := map[string]string{}
		for _, l := range metric.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		if k := key(labels); k != "" {
			// One of the three is there; the others are 0.
			sums[k] += metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + metric.GetUntyped().GetValue()
		}
	}
	return sums
}

// Total adds up all counters and gauges of a name.
func (m Metrics) Total(name string) float64 {
	return m.Sum(name, func(map[string]string) string { return "all" })["all"]
}

// IsWrite says whether a request with this verb, as the API server's metrics call it,
// changes something.
func IsWrite(verb string) bool {
	switch verb {
	case "POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION":
		return true
	}
	return false
}
