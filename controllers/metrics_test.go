package controllers_test

import (
	"testing"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers"
)

// TestPoolMetrics checks that a family which has no free address left is seen beside one that has
// many, and that a family without addresses has no metrics.
func TestPoolMetrics(t *testing.T) {
	g := NewWithT(t)
	metrics := prometheus.NewRegistry()
	m := controllers.NewMetrics(metrics)
	value := func(name, family string) float64 {
		return valueOf(g, metrics, "purelb_address_pool_"+name, "pool", "dual", "family", family)
	}
	m.SetPool("dual", &v1.ServiceGroupStatus{AllocatedIPv4: 4, AllocatedIPv6: 1, AvailableIPv6: 15})
	g.Expect(value("addresses_in_use", "IPv4")).To(BeEquivalentTo(4))
	g.Expect(value("size", "IPv4")).To(BeEquivalentTo(4))
	g.Expect(value("addresses_in_use", "IPv6")).To(BeEquivalentTo(1))
	g.Expect(value("size", "IPv6")).To(BeEquivalentTo(16))
	count := func() int {
		families, err := metrics.Gather()
		g.Expect(err).NotTo(HaveOccurred())
		series := 0
		for _, family := range families {
			for _, one := range family.GetMetric() {
				if len(one.GetLabel()) > 0 {
					series++
				}
			}
		}
		return series
	}
	g.Expect(count()).To(Equal(4))
	m.SetPool("dual", &v1.ServiceGroupStatus{AvailableIPv4: 4})
	g.Expect(count()).To(Equal(2))
	m.DeletePool("dual")
	g.Expect(count()).To(BeZero())
}
