// Package buildinfo makes the programs say which version they are.
package buildinfo

import "github.com/prometheus/client_golang/prometheus"

// Register registers the metric purelb_build_info, which is always 1, with the version of the
// program as its label.
func Register(registry prometheus.Registerer, version string) {
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "purelb_build_info", Help: "Always 1; the label is the version of the program.",
	}, []string{"version"})
	info.WithLabelValues(version).Set(1)
	registry.MustRegister(info)
}
