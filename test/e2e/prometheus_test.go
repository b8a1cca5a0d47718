package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/lab"
)

// componentFolder has the component that users install for Prometheus.
const componentFolder = "../../config/components/prometheus/"

// Names of the files of Prometheus beside its configuration.
const (
	tokenFile = "token"
	rulesFile = "rules.yml"
)

// scrapeInterval is how often the tests' Prometheus scrapes, and evaluates alerts: often, so that
// tests need not wait.
const scrapeInterval = time.Second

// serviceMonitor is what a ServiceMonitor of the component says.
type serviceMonitor struct {
	Metadata struct{ Name string }
	Spec     struct {
		Selector  struct{ MatchLabels map[string]string }
		Endpoints []struct {
			Port, Scheme      string
			TLSConfig         struct{ InsecureSkipVerify bool }
			Relabelings       []relabeling
			MetricRelabelings []relabeling
		}
	}
}

// relabeling is how a ServiceMonitor changes labels.
type relabeling struct {
	Action       string   `json:"action"`
	Regex        string   `json:"regex"`
	SourceLabels []string `json:"sourceLabels"`
	TargetLabel  string   `json:"targetLabel"`
	Replacement  string   `json:"replacement"`
}

// config returns a relabeling in Prometheus' own words.
func (r relabeling) config() map[string]any {
	config := map[string]any{}
	for name, value := range map[string]string{
		"action": r.Action, "regex": r.Regex, "target_label": r.TargetLabel, "replacement": r.Replacement,
	} {
		if value != "" {
			config[name] = value
		}
	}
	if len(r.SourceLabels) > 0 {
		config["source_labels"] = r.SourceLabels
	}
	return config
}

// Labels by which Prometheus' discovery of Kubernetes says what a target is.
const (
	metaNamespace    = "__meta_kubernetes_namespace"
	metaService      = "__meta_kubernetes_service_name"
	metaServiceLabel = "__meta_kubernetes_service_label_"
	metaPort         = "__meta_kubernetes_endpointslice_port_name"
	metaPod          = "__meta_kubernetes_pod_name"
	metaNode         = "__meta_kubernetes_pod_node_name"
)

// notForLabels are the characters of a label's name in Kubernetes that Prometheus writes as _.
var notForLabels = regexp.MustCompile(`[^a-zA-Z0-9_]`)

// scrapeConfigs returns what the Prometheus operator makes of ServiceMonitors: the pods of their
// Services are scraped, and the series get the labels namespace, service, pod, job and endpoint.
// What these Services and pods are it asks a page for: Debian's Prometheus cannot ask an API server.
func scrapeConfigs(monitors []serviceMonitor, targetsURL string) []map[string]any {
	var all []map[string]any
	for _, m := range monitors {
		for i, e := range m.Spec.Endpoints {
			var relabelings []map[string]any
			add := func(r relabeling) { relabelings = append(relabelings, r.config()) }
			for name, value := range m.Spec.Selector.MatchLabels {
				add(relabeling{
					Action: "keep", SourceLabels: []string{metaServiceLabel + notForLabels.ReplaceAllString(name, "_")},
					Regex: regexp.QuoteMeta(value),
				})
			}
			add(relabeling{Action: "keep", SourceLabels: []string{metaPort}, Regex: regexp.QuoteMeta(e.Port)})
			for target, source := range map[string]string{
				"namespace": metaNamespace, "service": metaService, "pod": metaPod, "job": metaService, "endpoint": metaPort,
			} {
				add(relabeling{SourceLabels: []string{source}, TargetLabel: target})
			}
			for _, r := range e.Relabelings {
				add(r)
			}
			var ofMetrics []map[string]any
			for _, r := range e.MetricRelabelings {
				ofMetrics = append(ofMetrics, r.config())
			}
			all = append(all, map[string]any{
				"job_name": fmt.Sprintf("serviceMonitor/%s/%s/%d", purelbNamespace, m.Metadata.Name, i), "scheme": e.Scheme,
				"authorization": map[string]any{"credentials_file": tokenFile},
				"tls_config":    map[string]any{"insecure_skip_verify": e.TLSConfig.InsecureSkipVerify},
				"http_sd_configs": []map[string]any{
					{"url": targetsURL, "refresh_interval": scrapeInterval.String()},
				},
				"relabel_configs": relabelings, "metric_relabel_configs": ofMetrics,
			})
		}
	}
	return all
}

// targetGroup is a target of Prometheus, and what discovery says of it.
type targetGroup struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

// findTargets returns the pods of PureLB's Services, also those that are not ready, as Prometheus'
// discovery of EndpointSlices does.
func findTargets(ctx context.Context, c client.Client) ([]targetGroup, error) {
	services, slices := &corev1.ServiceList{}, &discoveryv1.EndpointSliceList{}
	if err := errors.Join(
		c.List(ctx, services, client.InNamespace(purelbNamespace)), c.List(ctx, slices, client.InNamespace(purelbNamespace)),
	); err != nil {
		return nil, err
	}
	ofService := map[string]map[string]string{}
	for _, svc := range services.Items {
		labels := map[string]string{metaNamespace: svc.Namespace, metaService: svc.Name}
		for name, value := range svc.Labels {
			labels[metaServiceLabel+notForLabels.ReplaceAllString(name, "_")] = value
		}
		ofService[svc.Name] = labels
	}
	var found []targetGroup
	for _, slice := range slices.Items {
		for _, port := range slice.Ports {
			for _, e := range slice.Endpoints {
				labels := maps.Clone(ofService[slice.Labels[discoveryv1.LabelServiceName]])
				if labels == nil || e.TargetRef == nil || len(e.Addresses) == 0 {
					continue
				}
				labels[metaPort], labels[metaPod] = ptr.Deref(port.Name, ""), e.TargetRef.Name
				labels[metaNode] = ptr.Deref(e.NodeName, "")
				found = append(found, targetGroup{
					Targets: []string{net.JoinHostPort(e.Addresses[0], fmt.Sprint(ptr.Deref(port.Port, 0)))}, Labels: labels,
				})
			}
		}
	}
	return found, nil
}

// serveTargets answers with what findTargets finds. When it finds nothing because the API server is
// away, Prometheus keeps the targets that it has.
func serveTargets(c client.Client) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		found, err := findTargets(r.Context(), c)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(append([]targetGroup{}, found...))
	})
}

// readMonitors reads the ServiceMonitors of the component.
func readMonitors() []serviceMonitor {
	GinkgoHelper()
	text, err := os.ReadFile(componentFolder + "monitors.yaml")
	Expect(err).NotTo(HaveOccurred())
	var all []serviceMonitor
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var m serviceMonitor
		Expect(yaml.Unmarshal([]byte(document), &m)).To(Succeed())
		all = append(all, m)
	}
	return all
}

// readRules reads the alerts of the component, as they are in the file.
func readRules() []map[string]any {
	GinkgoHelper()
	text, err := os.ReadFile(componentFolder + "rules.yaml")
	Expect(err).NotTo(HaveOccurred())
	rules, err := parseRules(text)
	Expect(err).NotTo(HaveOccurred())
	return rules
}

// parseRules returns the alerts of a PrometheusRule.
func parseRules(text []byte) ([]map[string]any, error) {
	var file struct {
		Spec struct {
			Groups []struct{ Rules []map[string]any }
		}
	}
	err := yaml.Unmarshal(text, &file)
	var all []map[string]any
	for _, group := range file.Spec.Groups {
		all = append(all, group.Rules...)
	}
	return all, err
}

// prometheus is a Prometheus of Debian that scrapes the lab, until the spec ends.
type prometheus struct{ startedAt time.Time }

// prometheusOptions say how a Prometheus differs from one that users run.
type prometheusOptions struct {
	// keepsFor makes alerts wait as long as they do for users. Else they fire after two evaluations.
	keepsFor bool
	// history has samples of the past.
	history string
}

// startPrometheus installs what the component installs, as far as it is Kubernetes' own, starts a
// Prometheus that scrapes by the component's ServiceMonitors and evaluates its alerts, and waits until
// it has scraped all programs of PureLB.
func startPrometheus(ctx context.Context, options prometheusOptions) *prometheus {
	GinkgoHelper()
	files := []string{"-f", componentFolder + "reader.yaml", "-f", componentFolder + "services.yaml"}
	DeferCleanup(func(ctx SpecContext) {
		Expect(testLab.StopPrometheus(ctx)).To(Succeed())
		kubectl(ctx, append([]string{"delete", "--ignore-not-found"}, files...)...)
	}, NodeTimeout(waitLimit))
	retryKubectl(ctx, append([]string{"apply"}, files...)...)
	secret := &corev1.Secret{}
	Eventually(func(g Gomega) {
		g.Expect(kubeClient.Get(ctx, client.ObjectKey{Namespace: purelbNamespace, Name: "purelb-metrics-token"}, secret)).
			To(Succeed())
		g.Expect(secret.Data).To(HaveKey("token"))
	}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())

	listener, err := testLab.Listen(lab.ControlPlane, "tcp", "127.0.0.1:0")
	Expect(err).NotTo(HaveOccurred())
	server := &http.Server{Handler: serveTargets(kubeClient), ReadHeaderTimeout: waitLimit}
	go func() { _ = server.Serve(listener) }()
	DeferCleanup(func() { _ = server.Close() })
	rules := readRules()
	if !options.keepsFor {
		for _, rule := range rules {
			if _, holds := rule["for"]; holds {
				rule["for"] = (2 * scrapeInterval).String()
			}
		}
	}
	rulesText, err := yaml.Marshal(map[string]any{"groups": []map[string]any{{"name": "purelb", "rules": rules}}})
	Expect(err).NotTo(HaveOccurred())
	config, err := yaml.Marshal(map[string]any{
		"global": map[string]string{
			"scrape_interval": scrapeInterval.String(), "scrape_timeout": scrapeInterval.String(),
			"evaluation_interval": scrapeInterval.String(),
		},
		"rule_files":     []string{rulesFile},
		"scrape_configs": scrapeConfigs(readMonitors(), "http://"+listener.Addr().String()),
	})
	Expect(err).NotTo(HaveOccurred())
	Expect(testLab.StartPrometheus(ctx, lab.PrometheusOptions{
		Files: map[string]string{
			lab.PrometheusConfig: string(config), rulesFile: string(rulesText), tokenFile: string(secret.Data["token"]),
		},
		History: options.history,
	}, func(text string) { GinkgoWriter.Println(text) })).To(Succeed())
	p := &prometheus{startedAt: time.Now()}
	programs := map[string]int{"purelb-manager-metrics": 2, "purelb-agent-metrics": len(nodeNames())}
	speakers := &v1.BGPPeerList{}
	Expect(kubeClient.List(ctx, speakers, client.InNamespace(purelbNamespace))).To(Succeed())
	if len(speakers.Items) > 0 {
		programs["purelb-speaker-metrics"] = len(nodeNames())
	}
	for job, count := range programs {
		p.waitForValue(ctx, fmt.Sprintf(`sum(up{job=%q})`, job), float64(count))
	}
	return p
}

// sample is an answer of Prometheus: labels, and values at some times.
type sample struct {
	Metric map[string]string
	Value  point   // of a query at one time
	Values []point // of a query over a time
}

// point is a value at a time.
type point struct {
	At    time.Time
	Value float64
}

// UnmarshalJSON reads a pair of seconds and a number in quotes.
func (p *point) UnmarshalJSON(data []byte) error {
	var seconds float64
	var text string
	if err := json.Unmarshal(data, &[]any{&seconds, &text}); err != nil {
		return fmt.Errorf("read a point of Prometheus: %w", err)
	}
	value, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return fmt.Errorf("read a value of Prometheus: %w", err)
	}
	*p = point{time.UnixMilli(int64(math.Round(seconds * 1000))), value}
	return nil
}

// get reads a page of Prometheus' API into data.
func (p *prometheus) get(ctx context.Context, page string, query url.Values, data any) error {
	address := "http://" + lab.PrometheusAddress + "/api/v1/" + page + "?" + query.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	response, err := testLab.HTTPClient(lab.ControlPlane, 10*time.Second).Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return fmt.Errorf("read Prometheus' answer to %s %v: %s: %w", page, query, response.Status, err)
	}
	if answer.Status != "success" {
		return fmt.Errorf("ask Prometheus %s %v: %s", page, query, answer.Error)
	}
	return json.Unmarshal(answer.Data, data)
}

// query asks for an expression as it is now.
func (p *prometheus) query(ctx context.Context, expr string) ([]sample, error) {
	var data struct{ Result []sample }
	err := p.get(ctx, "query", url.Values{"query": {expr}}, &data)
	return data.Result, err
}

// queryRange asks for an expression since Prometheus started.
func (p *prometheus) queryRange(ctx context.Context, expr string, until time.Time) ([]sample, error) {
	var data struct{ Result []sample }
	err := p.get(ctx, "query_range", url.Values{
		"query": {expr}, "start": {p.startedAt.Format(time.RFC3339)}, "end": {until.Format(time.RFC3339)},
		"step": {scrapeInterval.String()},
	}, &data)
	return data.Result, err
}

// waitForValue waits until an expression has one value, which is this one.
func (p *prometheus) waitForValue(ctx context.Context, expr string, value float64) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		samples, err := p.query(ctx, expr)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(samples).To(HaveLen(1), expr)
		g.Expect(samples[0].Value.Value).To(Equal(value), expr)
	}).WithContext(ctx).WithTimeout(2 * waitLimit).WithPolling(pollInterval).Should(Succeed())
}

// waitUntilSome waits until an expression has an answer.
func (p *prometheus) waitUntilSome(ctx context.Context, expr string) {
	GinkgoHelper()
	Eventually(func() ([]sample, error) { return p.query(ctx, expr) }).
		WithContext(ctx).WithTimeout(2*waitLimit).WithPolling(pollInterval).ShouldNot(BeEmpty(), expr)
}

// alerts returns the alerts that fire, each once, with the description of one of its instances.
func (p *prometheus) alerts(ctx context.Context, g Gomega) map[string]string {
	GinkgoHelper()
	var data struct {
		Alerts []struct {
			State               string
			Labels, Annotations map[string]string
		}
	}
	g.Expect(p.get(ctx, "alerts", nil, &data)).To(Succeed())
	firing := map[string]string{}
	for _, a := range data.Alerts {
		if a.State == "firing" {
			firing[a.Labels["alertname"]] = a.Annotations["description"]
		}
	}
	return firing
}

// waitForAlerts waits until all these alerts fire, each with a description that has its words.
func (p *prometheus) waitForAlerts(ctx context.Context, names ...string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		firing := p.alerts(ctx, g)
		for _, name := range names {
			g.Expect(firing).To(HaveKey(name))
			g.Expect(firing[name]).To(And(HaveSuffix("."), Not(ContainSubstring("<no value>")), Not(ContainSubstring("  "))))
		}
	}).WithContext(ctx).WithTimeout(6 * waitLimit).WithPolling(pollInterval).Should(Succeed())
}

// waitUntilSilent waits until no alert fires, but for some that look back for a while.
func (p *prometheus) waitUntilSilent(ctx context.Context, but ...string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		firing := p.alerts(ctx, g)
		for _, name := range but {
			delete(firing, name)
		}
		g.Expect(firing).To(BeEmpty())
	}).WithContext(ctx).WithTimeout(2 * waitLimit).WithPolling(pollInterval).Should(Succeed())
}

// alertNames returns the names of the component's alerts.
func alertNames(rules []map[string]any) []string {
	var names []string
	for _, rule := range rules {
		names = append(names, fmt.Sprint(rule["alert"]))
	}
	slices.Sort(names)
	return names
}
