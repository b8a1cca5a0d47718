package nodeagent

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// Metrics are the agent's own metrics.
type Metrics struct {
	announcementsSent prometheus.Counter
	additions         prometheus.Counter
	withdrawals       prometheus.Counter
	renewals          prometheus.Counter
	conflicts         prometheus.Counter
	yields            prometheus.Counter
	silence           prometheus.Histogram
	failover          prometheus.Histogram
	announced         *announcedGauges
	watched           *watchedGauges
}

// claimBuckets are those of histograms about claims, in seconds. A claim is to be made within one.
var claimBuckets = []float64{.2, .4, .5, .6, .7, .8, .9, 1, 1.5, 2, 5, 10}

// NewMetrics makes the metrics and registers them.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "purelb_lbnodeagent_" + name, Help: help})
	}
	m := &Metrics{
		announcementsSent: counter(
			"garp_sent_total", "Gratuitous ARP requests and unsolicited neighbour advertisements sent.",
		),
		additions:   counter("address_additions_total", "Addresses added to interfaces."),
		withdrawals: counter("address_withdrawals_total", "Addresses removed from interfaces."),
		renewals:    counter("address_renewals_total", "Renewals of the lifetimes of addresses."),
		conflicts:   counter("conflicts_total", "Times that another station began to claim an address of this node."),
		yields:      counter("yields_total", "Addresses yielded to other stations that claimed them."),
		silence: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "purelb_lbnodeagent_claim_silence_seconds",
			Help:    "For how long a watched node had been silent when this node claimed an address from it.",
			Buckets: claimBuckets,
		}),
		failover: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "purelb_lbnodeagent_claim_failover_seconds",
			Help:    "From when a watched node answered last until this node had an address that it claimed from it.",
			Buckets: claimBuckets,
		}),
		watched: &watchedGauges{description: prometheus.NewDesc("purelb_lbnodeagent_watched_nodes",
			"Nodes that this node watches, by what it sees.", []string{"reason"}, nil)},
		announced: &announcedGauges{description: prometheus.NewDesc("purelb_lbnodeagent_announced",
			"1 for each address that the node announces, by Service.", []string{"service", "node", "ip"}, nil),
			stateDescription: prometheus.NewDesc("purelb_lbnodeagent_addresses",
				"Addresses that the node is to announce, by state.", []string{"state"}, nil)},
	}
	registry.MustRegister(m.announcementsSent, m.additions, m.withdrawals, m.renewals, m.conflicts, m.yields, m.silence,
		m.failover, m.announced, m.watched)
	return m
}

// setAnnounced replaces what the node announces, and how many addresses that it is to announce are
// in each state.
func (m *Metrics) setAnnounced(node string, announced []plan.AnnouncedServices, states map[purelbv1.AddressState]int) {
	m.announced.mu.Lock()
	defer m.announced.mu.Unlock()
	m.announced.node, m.announced.addresses, m.announced.stateCounts = node, announced, states
}

// announcedGauges is one gauge for each address and Service, and one for each state. They are
// replaced all at once, so that no scrape sees a part of them.
type announcedGauges struct {
	description, stateDescription *prometheus.Desc
	mu                            sync.Mutex
	node                          string
	addresses                     []plan.AnnouncedServices
	stateCounts                   map[purelbv1.AddressState]int
}

// Describe implements prometheus.Collector.
func (g *announcedGauges) Describe(ch chan<- *prometheus.Desc) {
	ch <- g.description
	ch <- g.stateDescription
}

// Collect implements prometheus.Collector.
func (g *announcedGauges) Collect(ch chan<- prometheus.Metric) {
	g.mu.Lock()
	node, addresses, counts := g.node, g.addresses, g.stateCounts
	g.mu.Unlock()
	for _, state := range purelbv1.AddressStates {
		ch <- prometheus.MustNewConstMetric(g.stateDescription, prometheus.GaugeValue, float64(counts[state]), string(state))
	}
	for _, a := range addresses {
		for _, service := range a.Services {
			ch <- prometheus.MustNewConstMetric(g.description, prometheus.GaugeValue, 1, service, node, a.Addr.String())
		}
	}
}

// setWatched replaces how many nodes this node watches, by what it sees.
func (m *Metrics) setWatched(byReason map[string]int) {
	m.watched.mu.Lock()
	defer m.watched.mu.Unlock()
	m.watched.byReason = byReason
}

// watchedGauges is one gauge for each reason that there is. They are replaced all at once.
type watchedGauges struct {
	description *prometheus.Desc
	mu          sync.Mutex
	byReason    map[string]int
}

// Describe implements prometheus.Collector.
func (g *watchedGauges) Describe(ch chan<- *prometheus.Desc) { ch <- g.description }

// Collect implements prometheus.Collector.
func (g *watchedGauges) Collect(ch chan<- prometheus.Metric) {
	g.mu.Lock()
	byReason := g.byReason
	g.mu.Unlock()
	for reason, n := range byReason {
		ch <- prometheus.MustNewConstMetric(g.description, prometheus.GaugeValue, float64(n), reason)
	}
}
