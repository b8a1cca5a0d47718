package nodeagent

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

func TestMetrics(t *testing.T) {
	w := newWorld(t, settings(), announcementOf("node1",
		local("192.0.2.1", func(a *purelbv1.AnnouncedAddress) { a.Services = []string{"test/a", "test/b"} }),
		local("192.0.2.2"), virtual("198.51.100.1")))
	registry := prometheus.NewRegistry()
	w.Metrics = NewMetrics(registry)
	w.prepare()
	w.neighbours.set("192.0.2.2", stranger)
	if _, err := w.reconcile(); err != nil {
		t.Fatal(err)
	}
	w.edit("node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses = s.Addresses[:2] })
	if _, err := w.reconcile(); err != nil {
		t.Fatal(err)
	}
	w.announcer.announceDue(t.Context())
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			got = append(
				got,
				fmt.Sprintf(
					"%s{%s} %v", family.GetName(), strings.Join(labels, ","), m.GetCounter().GetValue()+m.GetGauge().GetValue(),
				),
			)
		}
	}
	w.expect("metrics", []string{
		"purelb_lbnodeagent_address_additions_total{} 2",
		"purelb_lbnodeagent_address_renewals_total{} 0",
		"purelb_lbnodeagent_address_withdrawals_total{} 1",
		"purelb_lbnodeagent_addresses{state=Announced} 1",
		"purelb_lbnodeagent_addresses{state=Conflict} 1",
		"purelb_lbnodeagent_addresses{state=Failed} 0",
		"purelb_lbnodeagent_addresses{state=Pending} 0",
		"purelb_lbnodeagent_addresses{state=Waiting} 0",
		"purelb_lbnodeagent_addresses{state=Yielded} 0",
		"purelb_lbnodeagent_announced{ip=192.0.2.1,node=node1,service=test/a} 1",
		"purelb_lbnodeagent_announced{ip=192.0.2.1,node=node1,service=test/b} 1",
		"purelb_lbnodeagent_claim_failover_seconds{} 0",
		"purelb_lbnodeagent_claim_silence_seconds{} 0",
		"purelb_lbnodeagent_conflicts_total{} 0",
		"purelb_lbnodeagent_garp_sent_total{} 1",
		"purelb_lbnodeagent_yields_total{} 0",
	}, got)
}

func TestMetricsOfWatching(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newClaiming(t, "")
		w.start(true)
		w.claim()
		time.Sleep(10 * time.Second)
		registry := prometheus.NewRegistry()
		registry.MustRegister(w.Metrics.silence, w.Metrics.failover, w.Metrics.watched)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, family := range families {
			for _, m := range family.GetMetric() {
				reason := ""
				for _, l := range m.GetLabel() {
					reason = l.GetValue()
				}
				got = append(
					got,
					fmt.Sprintf("%s %s %v %d", family.GetName(), reason, m.GetGauge().GetValue(), m.GetHistogram().GetSampleCount()),
				)
			}
		}
		w.expect("metrics", []string{
			"purelb_lbnodeagent_claim_failover_seconds  0 1", "purelb_lbnodeagent_claim_silence_seconds  0 1",
			"purelb_lbnodeagent_watched_nodes Silent 1 0",
		}, got)
	})
}
