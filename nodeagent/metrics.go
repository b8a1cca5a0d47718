package nodeagent

import (
	"net/netip"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// Metrics is the agent's own metrics.
type Metrics struct {
	sent        prometheus.Counter
	additions   prometheus.Counter
	withdrawals prometheus.Counter
	renewals    prometheus.Counter
	conflicts   prometheus.Counter
	yields      prometheus.Counter
	announced   *announced
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "purelb_lbnodeagent_" + name, Help: help})
	}
	m := &Metrics{
		sent:        counter("garp_sent_total", "Gratuitous ARP requests and unsolicited neighbour advertisements sent."),
		additions:   counter("address_additions_total", "Addresses added to interfaces."),
		withdrawals: counter("address_withdrawals_total", "Addresses removed from interfaces."),
		renewals:    counter("address_renewals_total", "Renewals of the lifetimes of addresses."),
		conflicts:   counter("conflicts_total", "Times that another station began to claim an address of this node."),
		yields:      counter("yields_total", "Addresses given up to other stations that claimed them."),
		announced: &announced{description: prometheus.NewDesc("purelb_lbnodeagent_announced",
			"1 for each address that the node announces, by Service.", []string{"service", "node", "ip"}, nil)},
	}
	registry.MustRegister(m.sent, m.additions, m.withdrawals, m.renewals, m.conflicts, m.yields, m.announced)
	return m
}

// setAnnounced says what the node announces.
func (m *Metrics) setAnnounced(node string, desired []plan.Desired, results map[netip.Addr]plan.Result) {
	all := make([]serving, 0, len(desired))
	for _, d := range desired {
		if results[d.Addr].State == purelbv1.StateAnnounced {
			all = append(all, serving{d.Addr, d.Services})
		}
	}
	m.announced.mu.Lock()
	defer m.announced.mu.Unlock()
	m.announced.node, m.announced.serving = node, all
}

// announced is one gauge for each address and Service. It is replaced as a
// whole, so that no scrape sees a part of it.
type announced struct {
	description *prometheus.Desc
	mu          sync.Mutex
	node        string
	serving     []serving
}

// serving is the Services of an address, as they come from the cache.
type serving struct {
	address  netip.Addr
	services []string
}

func (a *announced) Describe(ch chan<- *prometheus.Desc) { ch <- a.description }

func (a *announced) Collect(ch chan<- prometheus.Metric) {
	a.mu.Lock()
	node, all := a.node, a.serving
	a.mu.Unlock()
	for _, s := range all {
		for _, service := range s.services {
			ch <- prometheus.MustNewConstMetric(a.description, prometheus.GaugeValue, 1, service, node, s.address.String())
		}
	}
}
