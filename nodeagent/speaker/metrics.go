package speaker

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

// Metrics are the speaker's own metrics.
type Metrics struct {
	up, advertised, bfd, networks *prometheus.Desc
	downs                         prometheus.Counter

	// mu protects the last status, of which the gauges are made.
	mu     sync.Mutex
	status purelbv1.NodeRoutingStatus
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	labels := []string{"peer", "neighbor"}
	m := &Metrics{
		up: prometheus.NewDesc(
			"purelb_speaker_session_up", "1 for each BGP session that is up, 0 for each that is not.", labels, nil,
		),
		advertised: prometheus.NewDesc(
			"purelb_speaker_session_routes_advertised", "Routes that the node has sent in a BGP session.", labels, nil,
		),
		bfd: prometheus.NewDesc(
			"purelb_speaker_session_bfd_up", "1 for each session with BFD whose BFD is up, 0 for each whose BFD is down.",
			labels, nil,
		),
		networks: prometheus.NewDesc("purelb_speaker_networks", "Networks that the node advertises.", nil, nil),
		downs: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "purelb_speaker_session_downs_total", Help: "Times that a BGP session that was up went down.",
		}),
	}
	registry.MustRegister(m, m.downs)
	return m
}

// set replaces the status of which the gauges are made.
func (m *Metrics) set(status purelbv1.NodeRoutingStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, before := range m.status.Sessions {
		for _, after := range status.Sessions {
			if before.Peer == after.Peer && before.Neighbor == after.Neighbor && before.State == purelbv1.SessionEstablished &&
				after.State != purelbv1.SessionEstablished {
				m.downs.Inc()
			}
		}
	}
	m.status = status
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.up, m.advertised, m.bfd, m.networks} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	truth := func(is bool) float64 {
		if is {
			return 1
		}
		return 0
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	gauge(m.networks, float64(m.status.Networks))
	seen := map[[2]string]bool{}
	for _, s := range m.status.Sessions {
		if seen[[2]string{s.Peer, s.Neighbor}] {
			continue
		}
		seen[[2]string{s.Peer, s.Neighbor}] = true
		gauge(m.up, truth(s.State == purelbv1.SessionEstablished), s.Peer, s.Neighbor)
		gauge(m.advertised, float64(s.Advertised), s.Peer, s.Neighbor)
		if s.BFD != "" {
			gauge(m.bfd, truth(s.BFD == "Up"), s.Peer, s.Neighbor)
		}
	}
}
