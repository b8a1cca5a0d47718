package controllers

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/ipam"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// Metrics are the manager's own metrics.
type Metrics struct {
	poolSize  *prometheus.GaugeVec
	poolInUse *prometheus.GaugeVec
	rejected  *prometheus.CounterVec
	waiting   *countedGauge[waitReason]
	// services counts Services by state.
	services *countedGauge[ServiceProgress]
	// addresses counts addresses by state.
	addresses *prometheus.GaugeVec
	// withoutOtherNode counts Local addresses by the node that has them, if no other node could take them.
	withoutOtherNode *countedGauge[string]
	members          prometheus.Gauge
	// Of external IPAM systems, by ServiceGroup.
	ipamReachable, ipamWaiting, ipamDifferences *prometheus.GaugeVec
	ipamDuration                                *prometheus.HistogramVec
	moves, failovers                            *prometheus.CounterVec
	moveDuration                                *prometheus.HistogramVec
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	pool := []string{"pool"}
	m := &Metrics{
		poolSize: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "purelb_address_pool_size",
			Help: "Addresses of a ServiceGroup, in use and free, by family; without those that are reserved and not in use.",
		}, []string{"pool", "family"}),
		poolInUse: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "purelb_address_pool_addresses_in_use", Help: "Addresses of a ServiceGroup that are in use, by family.",
		}, []string{"pool", "family"}),
		rejected: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "purelb_address_pool_allocation_rejected_total",
			Help: "Services that could not be given an address, by reason. Pool is empty for a ServiceGroup that there is not.",
		}, []string{"pool", "reason"}),
		waiting: &countedGauge[waitReason]{
			description: prometheus.NewDesc("purelb_services_waiting",
				"Services that do not have all the addresses that they ask for, by reason. Pool is empty for a ServiceGroup that "+
					"there is not.",
				[]string{"pool", "reason"}, nil),
			labels: func(wait waitReason) []string { return []string{wait.pool, wait.reason} },
		},
		services: &countedGauge[ServiceProgress]{
			description: prometheus.NewDesc("purelb_services",
				"Services of type LoadBalancer that PureLB serves, by how far they are: Waiting, NotAnnounced, NotAdvertised, "+
					"Unreachable, Announced.",
				[]string{"state"}, nil),
			labels: func(state ServiceProgress) []string { return []string{string(state)} },
		},
		addresses: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "purelb_addresses",
			Help: "Addresses of Services, by the state on the node that has come furthest, or NoNode or NoEndpoint.",
		}, []string{"state"}),
		withoutOtherNode: &countedGauge[string]{
			description: prometheus.NewDesc("purelb_addresses_without_other_node",
				"Local addresses of a node that no other node could take if it died; none of a node without Local addresses.",
				[]string{"node"}, nil),
			labels: func(node string) []string { return []string{node} },
		},
		ipamReachable: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "purelb_ipam_reachable", Help: "Whether the external IPAM system of a ServiceGroup answers: 1 or 0.",
		}, pool),
		ipamWaiting: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "purelb_ipam_addresses_waiting",
			Help: "Addresses that Services wait for from the external IPAM system of a ServiceGroup.",
		}, pool),
		ipamDifferences: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "purelb_ipam_differences",
			Help: "Addresses, prefixes and ranges of which the external IPAM system of a ServiceGroup records something else " +
				"than it ought to.",
		}, pool),
		ipamDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "purelb_ipam_request_duration_seconds",
			Help:    "Requests to the external IPAM system of a ServiceGroup, by outcome: the status of the answer, or error.",
			Buckets: []float64{.025, .05, .1, .25, .5, 1, 2.5, 5, 10, 15},
		}, []string{"pool", "outcome"}),
		members: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "purelb_election_member_count", Help: "Nodes whose agent is alive.",
		}),
		moves: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "purelb_election_winner_changes_total",
			Help: "Local addresses that were given to a node, by kind: FirstPlacement, Failover, Handover.",
		}, []string{"kind"}),
		failovers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "purelb_election_failovers_total",
			Help: "Local addresses that failed over, by cause: LeaseExpired, HolderDead, HolderYielded.",
		}, []string{"cause"}),
		moveDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "purelb_election_move_duration_seconds",
			Help:    "From when a Local address was given to a node until the node announced it, by kind.",
			Buckets: []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}, []string{"kind"}),
	}
	registry.MustRegister(m.poolSize, m.poolInUse, m.rejected, m.waiting, m.services, m.addresses, m.withoutOtherNode,
		m.members, m.moves, m.failovers, m.moveDuration, m.ipamReachable, m.ipamWaiting, m.ipamDifferences, m.ipamDuration)
	return m
}

// SetPool sets the counts of one ServiceGroup. A family that it has no addresses of has none.
func (m *Metrics) SetPool(name string, s *v1.ServiceGroupStatus) {
	for _, counts := range []struct {
		family          allocation.Family
		used, available int64
	}{{allocation.IPv4, s.AllocatedIPv4, s.AvailableIPv4}, {allocation.IPv6, s.AllocatedIPv6, s.AvailableIPv6}} {
		family, used, size := string(counts.family), float64(counts.used), float64(counts.used)+float64(counts.available)
		if size == 0 {
			m.poolInUse.DeleteLabelValues(name, family)
			m.poolSize.DeleteLabelValues(name, family)
			continue
		}
		m.poolInUse.WithLabelValues(name, family).Set(used)
		m.poolSize.WithLabelValues(name, family).Set(size)
	}
}

// DeletePool deletes the metrics of a ServiceGroup.
func (m *Metrics) DeletePool(name string) {
	pool := prometheus.Labels{"pool": name}
	m.poolInUse.DeletePartialMatch(pool)
	m.poolSize.DeletePartialMatch(pool)
	m.rejected.DeletePartialMatch(pool)
	m.SetIPAM(name, nil)
}

// SetIPAM sets what is known of the external IPAM system of a ServiceGroup, or deletes
// these metrics if o is nil.
func (m *Metrics) SetIPAM(name string, o *ipam.Observation) {
	if o == nil {
		m.ipamReachable.DeleteLabelValues(name)
		m.ipamWaiting.DeleteLabelValues(name)
		m.ipamDifferences.DeleteLabelValues(name)
		m.ipamDuration.DeletePartialMatch(prometheus.Labels{"pool": name})
		return
	}
	if o.Reason == "" {
		return // it has not been asked
	}
	reachable := 0.
	if o.Reason == v1.ReasonReachable {
		reachable = 1
	}
	m.ipamReachable.WithLabelValues(name).Set(reachable)
	m.ipamWaiting.WithLabelValues(name).Set(float64(o.RequestsWithoutAddress))
	differences := len(o.Differences) + o.UnusedNotReleased
	if o.Report != nil {
		differences += len(o.Report.Problems)
	}
	m.ipamDifferences.WithLabelValues(name).Set(float64(differences))
}

// ObserveIPAMRequest records a request to the external IPAM system of a ServiceGroup.
func (m *Metrics) ObserveIPAMRequest(name, outcome string, took time.Duration) {
	m.ipamDuration.WithLabelValues(name, outcome).Observe(took.Seconds())
}

// CountRejected counts a Service that could not be given an address. pool is a ServiceGroup
// that exists, or empty: it never is what a user wrote.
func (m *Metrics) CountRejected(pool, reason string) { m.rejected.WithLabelValues(pool, reason).Inc() }

// SetAddresses sets how many addresses are in each state.
func (m *Metrics) SetAddresses(counts map[v1.AddressState]int) {
	for _, state := range placement.States {
		m.addresses.WithLabelValues(string(state)).Set(float64(counts[state]))
	}
}

// SetWithoutOtherNode sets how many Local addresses each node has that no other node could take.
func (m *Metrics) SetWithoutOtherNode(counts map[string]int) {
	m.withoutOtherNode.setCount(func() map[string]int { return counts })
}

// setServiceCounts sets what counts the Services that wait for addresses, and all Services, each time
// that the metrics are read.
func (m *Metrics) setServiceCounts(waiting func() map[waitReason]int, all func() map[ServiceProgress]int) {
	m.waiting.setCount(waiting)
	m.services.setCount(all)
}

// SetMembers sets the number of nodes whose agent is alive.
func (m *Metrics) SetMembers(n int) { m.members.Set(float64(n)) }

// CountMove counts a Local address that is given to a node.
func (m *Metrics) CountMove(move placement.Move) {
	m.moves.WithLabelValues(string(move.Kind)).Inc()
	if move.Kind == placement.Failover {
		m.failovers.WithLabelValues(string(move.Cause)).Inc()
	}
}

// ObserveMove records how long such a move took.
func (m *Metrics) ObserveMove(kind placement.MoveKind, took time.Duration) {
	m.moveDuration.WithLabelValues(string(kind)).Observe(took.Seconds())
}

// countedGauge is one gauge for each key of what count returns each time that the metrics are read.
// There are none until count is set.
type countedGauge[K comparable] struct {
	description *prometheus.Desc
	labels      func(K) []string
	mu          sync.Mutex
	count       func() map[K]int
}

func (g *countedGauge[K]) setCount(count func() map[K]int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.count = count
}

// Describe implements prometheus.Collector.
func (g *countedGauge[K]) Describe(ch chan<- *prometheus.Desc) { ch <- g.description }

// Collect implements prometheus.Collector.
func (g *countedGauge[K]) Collect(ch chan<- prometheus.Metric) {
	g.mu.Lock()
	count := g.count
	g.mu.Unlock()
	if count == nil {
		return
	}
	for key, n := range count() {
		ch <- prometheus.MustNewConstMetric(g.description, prometheus.GaugeValue, float64(n), g.labels(key)...)
	}
}
