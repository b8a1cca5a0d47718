package gitops

import (
	"encoding/json"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/prometheus/prometheus/promql/parser"
	corev1 "k8s.io/api/core/v1"
)

// dashboardSeries are those beside the healthy ones that the dashboard shows.
const dashboardSeries = `
purelb_services_waiting{pod="a", pool="default", reason="Exhausted"} 1x60
purelb_services{pod="a", state="Announced"} 40x60
purelb_build_info{job="purelb-agent-metrics", node="node1", version="v1.0.0"} 1x60
purelb_election_winner_changes_total{pod="a", kind="Handover"} 0+1x60
purelb_election_failovers_total{pod="a", cause="LeaseExpired"} 0+1x60
purelb_lbnodeagent_watched_nodes{node="node1", reason="Watching"} 2x60
purelb_lbnodeagent_claim_silence_seconds_bucket{node="node1", le="0.6"} 0+1x60
purelb_lbnodeagent_claim_silence_seconds_bucket{node="node1", le="+Inf"} 0+1x60
purelb_lbnodeagent_claim_failover_seconds_bucket{node="node1", le="0.6"} 0+1x60
purelb_lbnodeagent_claim_failover_seconds_bucket{node="node1", le="+Inf"} 0+1x60
controller_runtime_reconcile_time_seconds_bucket{pod="a", controller="service", le="0.01"} 0+1x60
controller_runtime_reconcile_time_seconds_bucket{pod="a", controller="service", le="+Inf"} 0+1x60
workqueue_queue_duration_seconds_bucket{pod="a", name="service", le="0.01"} 0+1x60
workqueue_queue_duration_seconds_bucket{pod="a", name="service", le="+Inf"} 0+1x60
purelb_lbnodeagent_announced{node="node1", service="test/a", ip="192.0.2.1"} 1x60
purelb_lbnodeagent_yields_total{node="node1"} 0x60
purelb_lbnodeagent_address_additions_total{node="node1"} 0+1x60
purelb_lbnodeagent_address_withdrawals_total{node="node1"} 0+1x60
purelb_lbnodeagent_address_renewals_total{node="node1"} 0+1x60
purelb_lbnodeagent_garp_sent_total{node="node1"} 0+3x60
purelb_speaker_session_routes_advertised{node="node1", peer="rack", neighbor="192.0.2.1"} 2x60
purelb_speaker_networks{node="node1"} 2x60
purelb_ipam_addresses_waiting{pod="a", pool="netbox"} 0x60
purelb_ipam_request_duration_seconds_bucket{pod="a", pool="netbox", outcome="200", le="0.1"} 0+1x60
purelb_ipam_request_duration_seconds_bucket{pod="a", pool="netbox", outcome="200", le="+Inf"} 0+1x60
process_cpu_seconds_total{job="purelb-manager-metrics", pod="a"} 0+1x60
process_resident_memory_bytes{job="purelb-agent-metrics", pod="c"} 2e7x60
`

// panel is what a dashboard has of one of its panels.
type panel struct {
	Type, Title, Description string
	Datasource               datasource
	GridPos                  struct{ X, Y, W, H int }
	Targets                  []struct {
		RefID      string `json:"refId"`
		Datasource datasource
		Expr       string
	}
}

type datasource struct{ Type, UID string }

// chosen is the data source that the user chooses at the top of the dashboard.
var chosen = datasource{"prometheus", "${datasource}"}

// TestDashboard checks that Grafana's sidecar finds the dashboard, that the dashboard is of no certain
// Grafana, and that each query is valid, uses metrics that exist, and has an answer from a cluster.
func TestDashboard(t *testing.T) {
	g := NewWithT(t)
	objects := buildWith(t, "prometheus")
	configMap := findObject[corev1.ConfigMap](g, objects, "ConfigMap", "purelb-dashboard")
	g.Expect(configMap.Labels).To(HaveKeyWithValue("grafana_dashboard", "1"))
	g.Expect(configMap.Namespace).To(Equal(purelbNamespace))
	g.Expect(configMap.Data).To(HaveLen(1))
	text := configMap.Data["purelb.json"]
	var dashboard struct {
		UID, Title string
		Templating struct {
			List []struct{ Name, Type, Query string }
		}
		Panels []panel
	}
	g.Expect(json.Unmarshal([]byte(text), &dashboard)).To(Succeed())
	g.Expect(dashboard.UID).To(Equal("purelb-overview"), "links to the dashboard have it")
	g.Expect(text).NotTo(ContainSubstring(`"id":`), "each Grafana numbers what it loads")
	g.Expect(dashboard.Templating.List).To(HaveLen(1))
	g.Expect(dashboard.Templating.List[0]).
		To(Equal(struct{ Name, Type, Query string }{"datasource", "datasource", "prometheus"}))

	isKnown, query := knownMetrics(g), queryOver(g, dashboardSeries)
	queries, shown := 0, map[string]bool{}
	for i, p := range dashboard.Panels {
		for _, other := range dashboard.Panels[:i] {
			g.Expect(p.overlaps(other)).To(BeFalse(), "%s and %s", p.Title, other.Title)
		}
		if p.Type == "row" {
			continue
		}
		t.Run(p.Title, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(p.Datasource).To(Equal(chosen))
			g.Expect(p.Description).To(HaveSuffix("."))
			g.Expect(p.Targets).NotTo(BeEmpty())
			ids := map[string]bool{}
			for _, target := range p.Targets {
				queries++
				g.Expect(ids).NotTo(HaveKey(target.RefID))
				ids[target.RefID] = true
				g.Expect(target.Datasource).To(Equal(chosen))
				text := strings.ReplaceAll(target.Expr, "$__rate_interval", "5m")
				expr, err := parser.NewParser(parser.Options{}).ParseExpr(text)
				g.Expect(err).NotTo(HaveOccurred())
				for _, selector := range selectorsIn(expr) {
					g.Expect(isKnown(selector.Name)).To(BeTrue(), selector.Name)
					shown[selector.Name] = true
					for _, m := range selector.LabelMatchers {
						if m.Name == "state" {
							expectLabelValues(g, objects, m)
						}
					}
				}
				g.Expect(query(text, 30)).NotTo(BeEmpty(), text)
			}
		})
	}
	g.Expect(queries).To(BeNumerically(">", 20))
	for name := range registeredNames() {
		// Rejections are counted; how many wait now says more.
		if name != "purelb_address_pool_allocation_rejected_total" && !shown[name] && !shown[name+"_bucket"] {
			t.Errorf("the dashboard does not show %s", name)
		}
	}
}

// overlaps reports whether two panels take the same place.
func (p panel) overlaps(other panel) bool {
	a, b := p.GridPos, other.GridPos
	return a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H
}
