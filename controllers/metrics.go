package controllers

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// Metrics is the manager's own metrics.
type Metrics struct {
	size     *prometheus.GaugeVec
	inUse    *prometheus.GaugeVec
	rejected *prometheus.CounterVec
	members  prometheus.Gauge
	changes  *prometheus.CounterVec
	moves    *prometheus.HistogramVec
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
			Name: "purelb_address_pool_allocation_rejected_total", Help: "Services that could not be given an address, by reason.",
		}, []string{"pool", "reason"}),
		members: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "purelb_election_member_count", Help: "Nodes whose agent is alive.",
		}),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "purelb_election_winner_changes_total", Help: "Local addresses that were given to a node, by kind: Placement, Failover, Handover.",
		}, []string{"kind"}),
		moves: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "purelb_election_move_duration_seconds", Help: "From when a Local address was given to a node until the node announced it, by kind.",
			Buckets: []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}, []string{"kind"}),
	}
	registry.MustRegister(m.size, m.inUse, m.rejected, m.members, m.changes, m.moves)
	return m
}

// Pool sets what is known of one ServiceGroup.
func (m *Metrics) Pool(name string, s *v1.ServiceGroupStatus) {
	used := float64(s.AllocatedIPv4) + float64(s.AllocatedIPv6)
	m.inUse.WithLabelValues(name).Set(used)
	m.size.WithLabelValues(name).Set(used + float64(s.AvailableIPv4) + float64(s.AvailableIPv6))
}

// PoolGone forgets a ServiceGroup.
func (m *Metrics) PoolGone(name string) {
	m.inUse.DeleteLabelValues(name)
	m.size.DeleteLabelValues(name)
}

// Rejected counts a Service that could not be given an address.
func (m *Metrics) Rejected(pool, reason string) { m.rejected.WithLabelValues(pool, reason).Inc() }

// Members sets the number of nodes whose agent is alive.
func (m *Metrics) Members(n int) { m.members.Set(float64(n)) }

// Moves counts a Local address that is given to a node.
func (m *Metrics) Moves(kind placement.Kind) { m.changes.WithLabelValues(string(kind)).Inc() }

// Moved records how long that took.
func (m *Metrics) Moved(kind placement.Kind, took time.Duration) {
	m.moves.WithLabelValues(string(kind)).Observe(took.Seconds())
}
