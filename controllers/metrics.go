package controllers

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// Metrics are the manager's own metrics.
type Metrics struct {
	size     *prometheus.GaugeVec
	inUse    *prometheus.GaugeVec
	rejected *prometheus.CounterVec
	members  prometheus.Gauge
	changes  *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	pool := []string{"pool"}
	m := &Metrics{
		size: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "purelb_address_pool_size", Help: "Addresses of a ServiceGroup, in use and free, of both families.",
		}, pool),
		inUse: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "purelb_address_pool_addresses_in_use", Help: "Addresses of a ServiceGroup that are in use.",
		}, pool),
		rejected: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "purelb_address_pool_allocation_rejected_total", Help: "Services that could not be given an address, by reason. Pool is empty for a ServiceGroup that there is not.",
		}, []string{"pool", "reason"}),
		members: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "purelb_election_member_count", Help: "Nodes whose agent is alive.",
		}),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "purelb_election_winner_changes_total", Help: "Local addresses that were given to a node, by kind: Placement, Failover, Handover.",
		}, []string{"kind"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "purelb_election_move_duration_seconds", Help: "From when a Local address was given to a node until the node announced it, by kind.",
			Buckets: []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}, []string{"kind"}),
	}
	registry.MustRegister(m.size, m.inUse, m.rejected, m.members, m.changes, m.duration)
	return m
}

// SetPool sets the counts of one ServiceGroup.
func (m *Metrics) SetPool(name string, s *v1.ServiceGroupStatus) {
	used := float64(s.AllocatedIPv4) + float64(s.AllocatedIPv6)
	m.inUse.WithLabelValues(name).Set(used)
	m.size.WithLabelValues(name).Set(used + float64(s.AvailableIPv4) + float64(s.AvailableIPv6))
}

// DeletePool deletes the metrics of a ServiceGroup.
func (m *Metrics) DeletePool(name string) {
	m.inUse.DeleteLabelValues(name)
	m.size.DeleteLabelValues(name)
	m.rejected.DeletePartialMatch(prometheus.Labels{"pool": name})
}

// CountRejected counts a Service that could not be given an address. pool is a ServiceGroup
// that exists, or empty: it never is what a user wrote.
func (m *Metrics) CountRejected(pool, reason string) { m.rejected.WithLabelValues(pool, reason).Inc() }

// SetMembers sets the number of nodes whose agent is alive.
func (m *Metrics) SetMembers(n int) { m.members.Set(float64(n)) }

// CountMove counts a Local address that is given to a node.
func (m *Metrics) CountMove(kind placement.MoveKind) { m.changes.WithLabelValues(string(kind)).Inc() }

// ObserveMove records how long such a move took.
func (m *Metrics) ObserveMove(kind placement.MoveKind, took time.Duration) {
	m.duration.WithLabelValues(string(kind)).Observe(took.Seconds())
}
