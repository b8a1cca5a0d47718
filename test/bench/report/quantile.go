package report

import (
	"math"
	"slices"
)

// Quantile returns the smallest value that at least the fraction q of all values does not
// exceed (nearest rank). So it is always one of the values. Without values it is NaN.
func Quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(q * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// Percentiles returns the values of a row that describe a distribution.
func Percentiles(values []float64) map[string]float64 {
	return map[string]float64{"p50": Quantile(values, 0.5), "p99": Quantile(values, 0.99)}
}

// suffixes are those of the names that Spread makes.
var suffixes = [3]string{"Min", "Median", "Max"}

// Spread adds the minimum, median and maximum of values to those of a row.
func Spread(to map[string]float64, name string, values []float64) {
	for i, q := range []float64{0, 0.5, 1} {
		to[name+suffixes[i]] = Quantile(values, q)
	}
}
