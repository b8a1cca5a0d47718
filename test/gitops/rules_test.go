package gitops

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers"
	"github.com/purelb/purelb-operator/controllers/placement"
	"github.com/purelb/purelb-operator/internal/buildinfo"
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

// registeredNames returns the names of the metrics that PureLB's programs register.
func registeredNames() metricNames {
	registered := metricNames{}
	controllers.NewMetrics(registered)
	nodeagent.NewMetrics(registered)
	speaker.NewMetrics(registered)
	buildinfo.Register(registered, "")
	return registered
}

// runbooks is where the pages about alerts are.
const runbooks = "https://github.com/purelb/purelb-operator/blob/main/docs/runbooks/"

// labelsIn finds the labels that a template names.
var labelsIn = regexp.MustCompile(`\{\{[^}]*\$labels\.(\w+)[^}]*\}\}`)

// TestRules checks that the expressions of the alerts are valid and use metrics and jobs
// that exist, and that the alerts have what people and programs expect of them.
func TestRules(t *testing.T) {
	g := NewWithT(t)
	objects := buildWith(t, "prometheus")
	isKnown := knownMetrics(g)
	names := map[string]bool{}
	for _, rule := range loadRules(t, g) {
		t.Run(rule.Alert, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(rule.Alert).To(MatchRegexp("^PureLB[A-Z][A-Za-z]+$"))
			g.Expect(names).NotTo(HaveKey(rule.Alert))
			names[rule.Alert] = true
			expr, err := parser.NewParser(parser.Options{}).ParseExpr(rule.Expr.String())
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(expr.Type()).To(Equal(parser.ValueTypeVector))
			for _, selector := range selectorsIn(expr) {
				g.Expect(isKnown(selector.Name)).To(BeTrue(), selector.Name)
				for _, m := range selector.LabelMatchers {
					expectLabelValues(g, objects, m)
				}
			}
			g.Expect(rule.Labels).To(HaveLen(1))
			g.Expect(rule.Labels["severity"]).To(BeElementOf("info", "warning", "critical"))
			g.Expect(rule.Annotations["summary"]).To(MatchRegexp(`^[A-Z][^{}]+\.$`), "it is the same for all instances")
			g.Expect(rule.Annotations["description"]).NotTo(BeEmpty())
			g.Expect(rule.Annotations["runbook_url"]).To(Equal(runbooks + rule.Alert + ".md"))
			g.Expect(rule.Annotations).To(HaveLen(3))
		})
	}
	g.Expect(len(names)).To(BeNumerically(">", 4))
}

// expectLabelValues expects that there is what a matcher of an alert asks for.
func expectLabelValues(g *WithT, objects []*unstructured.Unstructured, m *labels.Matcher) {
	for value := range strings.SplitSeq(m.Value, "|") {
		switch m.Name {
		case "job": // is the name of the Service
			findObject[corev1.Service](g, objects, "Service", value)
		case "state":
			g.Expect(slices.Contains(placement.States, v1.AddressState(value)) ||
				slices.Contains(controllers.ServiceProgresses, controllers.ServiceProgress(value))).To(BeTrue(), value)
		case "reason":
			g.Expect(value).To(Equal(v1.ReasonExhausted))
		}
	}
}

// selectorsIn returns what an expression selects.
func selectorsIn(expr parser.Expr) []*parser.VectorSelector {
	var all []*parser.VectorSelector
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		if selector, ok := node.(*parser.VectorSelector); ok {
			all = append(all, selector)
		}
		return nil
	})
	return all
}

// libraryMetric is a row of docs/reference/metrics.md about a metric that is not PureLB's own.
var libraryMetric = regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| [a-z]+ \\|")

// knownMetrics returns a function that reports whether there is a metric: one of PureLB, or one
// that docs/reference/metrics.md lists and that Prometheus or the libraries have.
func knownMetrics(g *WithT) func(name string) bool {
	known := registeredNames()
	g.Expect(known).To(HaveKey("purelb_lbnodeagent_announced"))
	page, err := os.ReadFile(filepath.Join(root, "docs", "reference", "metrics.md"))
	g.Expect(err).NotTo(HaveOccurred())
	listed := map[string]bool{}
	for _, match := range libraryMetric.FindAllStringSubmatch(string(page), -1) {
		listed[match[1]] = true
	}
	for _, name := range libraryMetrics(g) {
		g.Expect(listed).To(HaveKey(name), "docs/reference/metrics.md does not list what rules and the dashboard may use")
		known[name] = true
	}
	return func(name string) bool {
		for _, suffix := range []string{"_bucket", "_count", "_sum"} {
			if known[strings.TrimSuffix(name, suffix)] {
				return true
			}
		}
		return false
	}
}

// libraryMetrics returns the metrics that docs/reference/metrics.md lists and that PureLB does
// not register itself, after checking that its programs have them.
func libraryMetrics(g *WithT) []string {
	names := []string{
		"leader_election_master_status", "controller_runtime_reconcile_time_seconds", "workqueue_queue_duration_seconds",
		"process_cpu_seconds_total", "process_resident_memory_bytes",
	}
	for _, name := range names {
		// A registry refuses a metric that has the name of another one.
		another := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: "another"})
		g.Expect(metrics.Registry.Register(another)).NotTo(Succeed(), name)
	}
	return append(names, "up") // is Prometheus' own
}
