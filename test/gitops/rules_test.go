package gitops

import (
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/promql/parser"
	corev1 "k8s.io/api/core/v1"

	"github.com/purelb/purelb-operator/controllers"
	"github.com/purelb/purelb-operator/nodeagent"
	"github.com/purelb/purelb-operator/nodeagent/speaker"
)

// metricNames is a registry that only records the names of metrics.
type metricNames map[string]bool

var nameOf = regexp.MustCompile(`fqName: "([^"]+)"`)

// Register records the names of a collector's metrics.
func (n metricNames) Register(c prometheus.Collector) error {
	descriptions := make(chan *prometheus.Desc)
	go func() {
		c.Describe(descriptions)
		close(descriptions)
	}()
	for d := range descriptions {
		n[nameOf.FindStringSubmatch(d.String())[1]] = true
	}
	return nil
}

// MustRegister records the names of the collectors' metrics.
func (n metricNames) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		_ = n.Register(c) // it never fails
	}
}

// Unregister does nothing.
func (n metricNames) Unregister(prometheus.Collector) bool { return false }

// TestRules checks that the expressions of the alerts are valid and use metrics and jobs
// that exist, and that the alerts say what to do.
func TestRules(t *testing.T) {
	g := NewWithT(t)
	objects, err := buildFolder("config/overlays/prometheus")
	g.Expect(err).NotTo(HaveOccurred())
	registered := metricNames{}
	controllers.NewMetrics(registered)
	nodeagent.NewMetrics(registered)
	speaker.NewMetrics(registered)
	g.Expect(registered).To(HaveKey("purelb_lbnodeagent_announced"))
	rules := findObject[monitoringv1.PrometheusRule](g, objects, "PrometheusRule", "purelb")
	seen := 0
	for _, rule := range rules.Spec.Groups[0].Rules {
		t.Run(rule.Alert, func(t *testing.T) {
			g := NewWithT(t)
			seen++
			expr, err := parser.NewParser(parser.Options{}).ParseExpr(rule.Expr.String())
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(expr.Type()).To(Equal(parser.ValueTypeVector))
			parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
				selector, ok := node.(*parser.VectorSelector)
				if !ok {
					return nil
				}
				if selector.Name != "up" {
					g.Expect(registered).To(HaveKey(strings.TrimSuffix(selector.Name, "_bucket")))
					return nil
				}
				for _, m := range selector.LabelMatchers {
					if m.Name == "job" { // is the name of the Service
						findObject[corev1.Service](g, objects, "Service", m.Value)
					}
				}
				return nil
			})
			g.Expect(rule.Labels["severity"]).To(BeElementOf("warning", "critical"))
			g.Expect(rule.Annotations).To(HaveKeyWithValue("summary", Not(BeEmpty())))
			g.Expect(rule.Annotations).To(HaveKeyWithValue("description", ContainSubstring("kubectl")))
		})
	}
	g.Expect(seen).To(BeNumerically(">", 4))
}
