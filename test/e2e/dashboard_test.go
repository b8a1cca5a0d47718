package e2e

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/e2e/panels"
	"github.com/purelb/purelb-operator/test/lab"
)

// dashboardPicture is where the picture of the dashboard goes.
var dashboardPicture = flag.String(
	"dashboard-picture", "../../dist/test/dashboard.svg", "file for a picture of the dashboard",
)

// dashboard is what Grafana reads of the component's dashboard.
type dashboard struct {
	Panels []struct {
		Type, Title string
		GridPos     struct{ X, Y, W, H int }
		FieldConfig struct{ Defaults struct{ Unit string } }
		Targets     []struct{ Expr, LegendFormat string }
	}
}

// rateInterval is what Grafana puts in the place of $__rate_interval, at the tests' scrape interval.
const rateInterval = "15s"

func expand(expr string) string { return strings.ReplaceAll(expr, "$__rate_interval", rateInterval) }

func readDashboard() dashboard {
	GinkgoHelper()
	text, err := os.ReadFile(componentFolder + "dashboard.json")
	Expect(err).NotTo(HaveOccurred())
	var d dashboard
	Expect(json.Unmarshal(text, &d)).To(Succeed())
	Expect(d.Panels).NotTo(BeEmpty())
	return d
}

// labelInLegend is a label in the name of a line.
var labelInLegend = regexp.MustCompile(`\{\{ *(\w+) *\}\}`)

// nameOf returns the name of a line, as Grafana makes it of a series' labels.
func nameOf(legend string, labels map[string]string) string {
	return labelInLegend.ReplaceAllStringFunc(legend, func(text string) string {
		return labels[labelInLegend.FindStringSubmatch(text)[1]]
	})
}

// draw returns the dashboard's panels with what Prometheus has of them.
func (d dashboard) draw(ctx context.Context, p *prometheus) string {
	GinkgoHelper()
	until := time.Now()
	var all []panels.Panel
	for _, shown := range d.Panels {
		panel := panels.Panel{
			Title: shown.Title, Unit: shown.FieldConfig.Defaults.Unit, IsStat: shown.Type == "stat", IsRow: shown.Type == "row",
			X: shown.GridPos.X, Y: shown.GridPos.Y, W: shown.GridPos.W, H: shown.GridPos.H,
		}
		for _, target := range shown.Targets {
			samples, err := p.queryRange(ctx, expand(target.Expr), until)
			Expect(err).NotTo(HaveOccurred(), target.Expr)
			for _, series := range samples {
				line := panels.Line{Name: nameOf(target.LegendFormat, series.Metric)}
				for _, value := range series.Values {
					line.Points = append(line.Points, panels.Point{At: value.At.Sub(p.startedAt), Value: value.Value})
				}
				panel.Lines = append(panel.Lines, line)
			}
		}
		all = append(all, panel)
	}
	for i := range all {
		Expect(all[i].IsRow || all[i].HasValues()).To(BeTrue(), "%s shows nothing", all[i].Title)
	}
	title := fmt.Sprintf(
		"PureLB's dashboard: a test in the lab, with %d nodes, a router and a NetBox", len(nodeNames()),
	)
	return panels.SVG(title, until.Sub(p.startedAt), all)
}

var _ = Describe("The dashboard", func() {
	It("shows what happens, by queries each of which has an answer", Label(monitoringLabel), func(ctx SpecContext) {
		n, s := startNetbox(ctx)
		startRouter(ctx, lab.RouterOptions{Daemon: lab.FRR, BFD: true})
		bgpPeer(ctx, "shown", byGateway+"  bfd: {interval: 300ms, multiplier: 3}\n")
		expectSessions(ctx, "shown", "6/6", v1.ReasonEstablished)
		d, p := readDashboard(), startPrometheus(ctx, prometheusOptions{})

		By("serving Services, one of which waits")
		group := s.localGroup(ctx)
		holders := map[string]bool{}
		var nodes []string
		for i := range 3 {
			svc := s.createService(ctx, fmt.Sprintf("local-%d", i), group)
			for _, addr := range waitForAddresses(ctx, svc, 2) {
				holder := waitForHolder(ctx, addr)
				holders[holder] = true
				nodes = append(nodes, holder)
			}
		}
		p.waitUntilSome(ctx, fmt.Sprintf(`purelb_lbnodeagent_announced{service=%q}`, s.namespace+"/local-0"))
		// A rate begins with the second request of a kind.
		fromNetbox := n.virtualGroup(ctx, s)
		for _, name := range []string{"routed", "routed-too"} {
			waitUntilAnnounced(ctx, s.createService(ctx, name, fromNetbox, singleStack))
			p.waitUntilSome(ctx, `purelb_ipam_request_duration_seconds_count{outcome="201"} > 0`)
		}
		p.waitUntilSome(ctx, expand(
			`sum(rate(purelb_ipam_request_duration_seconds_count{outcome="201"}[$__rate_interval])) > 0`,
		))
		s.createService(ctx, "waits", group, singleStack, withAnnotation(v1.AnnotationAddresses, "192.0.2.77"))
		waitUntilWatched(ctx, s, holders)

		By("losing a node, whose addresses others claim, and excluding another one")
		_, leader := waitForLeader(ctx)
		at := slices.IndexFunc(nodes, func(node string) bool { return node != leader })
		Expect(at).To(BeNumerically(">=", 0), "another node than the leader's has an address")
		lost := nodes[at]
		DeferCleanup(func(ctx SpecContext) { Expect(testLab.PlugPort(ctx, lost)).To(Succeed()) }, NodeTimeout(waitLimit))
		Expect(testLab.UnplugPort(ctx, lost)).To(Succeed())
		p.waitForValue(ctx, fmt.Sprintf(`up{job="purelb-agent-metrics", node=%q}`, lost), 0)
		p.waitUntilSome(ctx, `sum(purelb_election_failovers_total) > 0`)
		Expect(testLab.PlugPort(ctx, lost)).To(Succeed())
		p.waitForValue(ctx, fmt.Sprintf(`up{job="purelb-agent-metrics", node=%q}`, lost), 1)
		excluded := otherNode(lost)
		DeferCleanup(func(ctx SpecContext) { setExcluded(ctx, false, excluded) }, NodeTimeout(waitLimit))
		setExcluded(ctx, true, excluded)
		p.waitUntilSome(ctx, fmt.Sprintf(
			`sum(purelb_lbnodeagent_addresses{node=%q, state="Announced"}) == 0`, excluded,
		))
		setExcluded(ctx, false, excluded)

		By("restarting the router")
		Expect(testLab.StopRouter(ctx)).To(Succeed())
		p.waitForValue(ctx, "sum(purelb_speaker_session_up)", 0)
		startRouter(ctx, lab.RouterOptions{Daemon: lab.FRR, BFD: true})
		p.waitForValue(ctx, "sum(purelb_speaker_session_up)", float64(2*len(nodeNames())))

		queries := 0
		for _, panel := range d.Panels {
			for _, target := range panel.Targets {
				queries++
				p.waitUntilSome(ctx, expand(target.Expr))
			}
		}
		Expect(queries).To(BeNumerically(">", 20))

		Expect(os.MkdirAll(filepath.Dir(*dashboardPicture), 0o755)).To(Succeed())
		Expect(os.WriteFile(*dashboardPicture, []byte(d.draw(ctx, p)), 0o644)).To(Succeed())
	}, SpecTimeout(2*functionalLimit))
})
