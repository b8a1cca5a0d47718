package buildinfo_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/purelb/purelb-operator/internal/buildinfo"
)

func TestRegister(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	buildinfo.Register(registry, "v1.2.3")
	families, err := registry.Gather()
	if err != nil || len(families) != 1 || families[0].GetName() != "purelb_build_info" {
		t.Fatalf("%v, %v", families, err)
	}
	one := families[0].GetMetric()[0]
	if label := one.GetLabel()[0]; label.GetName() != "version" || label.GetValue() != "v1.2.3" ||
		one.GetGauge().GetValue() != 1 {
		t.Errorf("%v", one)
	}
}
