package gitops

import (
	"context"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/template"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
)

// healthySeries are those of a cluster in which all is well, in the notation of promtool: a first
// value, then how often it is repeated, or a step added to it; _ is no value. There is one value
// each minute. The leading manager has metrics, the standby has none but of its leadership.
const healthySeries = `
up{job="purelb-manager-metrics", pod="a"} 1x4320
up{job="purelb-manager-metrics", pod="b"} 1x4320
leader_election_master_status{job="purelb-manager-metrics", pod="a", name="manager.purelb.io"} 1x4320
leader_election_master_status{job="purelb-manager-metrics", pod="b", name="manager.purelb.io"} 0x4320
up{job="purelb-agent-metrics", node="node1"} 1x4320
up{job="purelb-agent-metrics", node="node2"} 1x4320
purelb_election_member_count{pod="a"} 2x4320
purelb_election_member_count{pod="b"} 0x4320
purelb_addresses{pod="a", state="Announced"} 60x4320
purelb_addresses_without_other_node{pod="a", node="node1"} 0x4320
purelb_services{pod="a", state="Announced"} 40x4320
purelb_services{pod="a", state="NotAdvertised"} 0x4320
purelb_services{pod="a", state="Unreachable"} 0x4320
purelb_addresses{pod="a", state="Waiting"} 0x4320
purelb_addresses{pod="a", state="Pending"} 0x4320
purelb_addresses{pod="a", state="Yielded"} 0x4320
purelb_addresses{pod="a", state="Conflict"} 0x4320
purelb_addresses{pod="a", state="Failed"} 0x4320
purelb_addresses{pod="a", state="NoNode"} 0x4320
purelb_addresses{pod="a", state="NoEndpoint"} 0x4320
purelb_address_pool_size{pod="a", pool="default", family="IPv4"} 100x4320
purelb_address_pool_size{pod="a", pool="default", family="IPv6"} 9.2e18x4320
purelb_address_pool_addresses_in_use{pod="a", pool="default", family="IPv4"} 60x4320
purelb_address_pool_addresses_in_use{pod="a", pool="default", family="IPv6"} 1x4320
purelb_election_move_duration_seconds_bucket{pod="a", kind="Handover", le="0.5"} 0+1x4320
purelb_election_move_duration_seconds_bucket{pod="a", kind="Handover", le="10"} 0+1x4320
purelb_election_move_duration_seconds_bucket{pod="a", kind="Handover", le="30"} 0+1x4320
purelb_election_move_duration_seconds_bucket{pod="a", kind="Handover", le="+Inf"} 0+1x4320
purelb_lbnodeagent_addresses{node="node1", state="Announced"} 31x4320
purelb_lbnodeagent_addresses{node="node1", state="Pending"} 0x4320
purelb_lbnodeagent_addresses{node="node1", state="Failed"} 0x4320
purelb_lbnodeagent_conflicts_total{node="node1"} 3x4320
purelb_lbnodeagent_conflicts_total{node="node2"} 0x4320
up{job="purelb-speaker-metrics", node="node1"} 1x4320
up{job="purelb-speaker-metrics", node="node2"} 1x4320
purelb_speaker_session_up{node="node1", peer="rack", neighbor="192.0.2.1"} 1x4320
purelb_speaker_session_up{node="node1", peer="rack", neighbor="192.0.2.2"} 1x4320
purelb_speaker_session_up{node="node2", peer="rack", neighbor="192.0.2.1"} 1x4320
purelb_speaker_session_bfd_up{node="node1", peer="rack", neighbor="192.0.2.1"} 1x4320
purelb_speaker_session_downs_total{node="node1"} 2x4320
purelb_speaker_session_downs_total{node="node2"} 0x4320
purelb_ipam_reachable{pod="a", pool="netbox"} 1x4320
purelb_ipam_differences{pod="a", pool="netbox"} 0x4320
`

// alertCases change some of the healthy series. Each alert has a case in which it fires, at the
// first minute that is given, and one that comes near and in which nothing fires.
var alertCases = []struct {
	alert  string // what the case is about
	about  string
	series string // instead of the healthy ones with the same labels, or beside them
	fires  map[string]int
	hours  int // how long; 1 if 0
}{
	{
		alert: "PureLBManagerDown", about: "no manager is scraped from the tenth minute on",
		series: `
up{job="purelb-manager-metrics", pod="a"} 1x9 0x60
up{job="purelb-manager-metrics", pod="b"} 1x9 0x60
leader_election_master_status{job="purelb-manager-metrics", pod="a", name="manager.purelb.io"} 1x9 _x60
leader_election_master_status{job="purelb-manager-metrics", pod="b", name="manager.purelb.io"} 0x9 _x60`,
		fires: map[string]int{"PureLBManagerDown": 15},
	},
	{
		alert: "PureLBManagerDown", about: "one replica is away, and the other one leads",
		series: `
up{job="purelb-manager-metrics", pod="a"} 1x9 0x60
leader_election_master_status{job="purelb-manager-metrics", pod="a", name="manager.purelb.io"} 1x9 _x60
leader_election_master_status{job="purelb-manager-metrics", pod="b", name="manager.purelb.io"} 0x9 1x60`,
	},
	{
		alert: "PureLBManagerNoLeader", about: "the leader loses its Lease, and nobody takes it",
		series: `leader_election_master_status{job="purelb-manager-metrics", pod="a", name="manager.purelb.io"} 1x9 0x60`,
		fires:  map[string]int{"PureLBManagerNoLeader": 12},
	},
	{
		alert: "PureLBManagerNoLeader", about: "for a minute nobody leads, then the other replica does",
		series: `
leader_election_master_status{job="purelb-manager-metrics", pod="a", name="manager.purelb.io"} 1x9 0x60
leader_election_master_status{job="purelb-manager-metrics", pod="b", name="manager.purelb.io"} 0x10 1x60`,
	},
	{
		alert: "PureLBManagerNoLeader", about: "managers without leader election have no such metric",
		series: `
leader_election_master_status{job="purelb-manager-metrics", pod="a", name="manager.purelb.io"} _x60
leader_election_master_status{job="purelb-manager-metrics", pod="b", name="manager.purelb.io"} _x60`,
	},
	{
		alert: "PureLBAgentDown", about: "an agent is away from the tenth minute on",
		series: `
up{job="purelb-agent-metrics", node="node2"} 1x9 0x60
purelb_election_member_count{pod="a"} 2x9 1x60`,
		fires: map[string]int{"PureLBAgentDown": 15},
	},
	{
		alert: "PureLBAgentDown", about: "an agent is replaced, which takes four minutes",
		series: `up{job="purelb-agent-metrics", node="node2"} 1x9 0x3 1x60`,
	},
	{
		alert: "PureLBAgentNotRenewing", about: "an agent answers, and does not renew its Lease",
		series: `purelb_election_member_count{pod="a"} 2x9 1x60`,
		fires:  map[string]int{"PureLBAgentNotRenewing": 15},
	},
	{
		alert: "PureLBAgentNotRenewing", about: "there are more Leases than agents that answer, as while a node is added",
		series: `purelb_election_member_count{pod="a"} 2x9 3x60`,
	},
	{
		alert: "PureLBSpeakerDown", about: "a speaker is away, and with it what it said of its sessions",
		series: `
up{job="purelb-speaker-metrics", node="node2"} 1x9 0x60
purelb_speaker_session_up{node="node2", peer="rack", neighbor="192.0.2.1"} 1x9 _x60`,
		fires: map[string]int{"PureLBSpeakerDown": 15},
	},
	{
		alert: "PureLBSpeakerDown", about: "a speaker is replaced within graceful restart",
		series: `up{job="purelb-speaker-metrics", node="node2"} 1x9 0 1x60`,
	},
	{
		alert: "PureLBSessionDown", about: "one of two sessions of a node goes down",
		series: `
purelb_speaker_session_up{node="node1", peer="rack", neighbor="192.0.2.2"} 1x9 0x60
purelb_speaker_session_downs_total{node="node1"} 2x9 3x60`,
		fires: map[string]int{"PureLBSessionDown": 15},
	},
	{
		alert: "PureLBSessionDown", about: "a router restarts",
		series: `
purelb_speaker_session_up{node="node1", peer="rack", neighbor="192.0.2.2"} 1x9 0x3 1x60
purelb_speaker_session_downs_total{node="node1"} 2x9 3x60`,
	},
	{
		alert: "PureLBNodeIsolated", about: "both sessions of a node go down",
		series: `
purelb_speaker_session_up{node="node1", peer="rack", neighbor="192.0.2.1"} 1x9 0x60
purelb_speaker_session_up{node="node1", peer="rack", neighbor="192.0.2.2"} 1x9 0x60`,
		fires: map[string]int{"PureLBNodeIsolated": 12, "PureLBSessionDown": 15},
	},
	{
		alert: "PureLBNodeIsolated", about: "the only session of a node is down for a minute",
		series: `purelb_speaker_session_up{node="node2", peer="rack", neighbor="192.0.2.1"} 1x9 0 1x60`,
	},
	{
		alert: "PureLBSessionFlapping", about: "a session goes down three times, every five minutes",
		series: `purelb_speaker_session_downs_total{node="node1"} 2x39 3x4 4x4 5x60`,
		fires:  map[string]int{"PureLBSessionFlapping": 50},
	},
	{
		alert: "PureLBSessionFlapping", about: "a node's two sessions go down at once, as with a switch that is replaced",
		series: `purelb_speaker_session_downs_total{node="node1"} 2x9 4x60`,
	},
	{
		alert: "PureLBBFDFlapping", about: "BFD fails three times, and is back each time",
		series: `purelb_speaker_session_bfd_up{node="node1", peer="rack", neighbor="192.0.2.1"} 1x9 0 1x3 0 1x3 0 1x60`,
		fires:  map[string]int{"PureLBBFDFlapping": 21},
	},
	{
		alert: "PureLBBFDFlapping", about: "BFD fails once",
		series: `purelb_speaker_session_bfd_up{node="node1", peer="rack", neighbor="192.0.2.1"} 1x9 0 1x60`,
	},
	{
		alert: "PureLBPoolExhausted", about: "a Service waits for an address of a full group",
		series: `purelb_services_waiting{pod="a", pool="default", reason="Exhausted"} _x10 1x60`,
		fires:  map[string]int{"PureLBPoolExhausted": 15},
	},
	{
		alert: "PureLBPoolExhausted", about: "a group of one address, made for one Service, is full",
		series: `
purelb_address_pool_size{pod="a", pool="ingress", family="IPv4"} 1x60
purelb_address_pool_addresses_in_use{pod="a", pool="ingress", family="IPv4"} 1x60`,
	},
	{
		alert: "PureLBPoolNearlyFull", about: "the IPv4 addresses of a group of both families come to an end",
		series: `purelb_address_pool_addresses_in_use{pod="a", pool="default", family="IPv4"} 60x9 91x60`,
		fires:  map[string]int{"PureLBPoolNearlyFull": 25},
	},
	{
		alert: "PureLBPoolNearlyFull", about: "nine tenths are in use",
		series: `purelb_address_pool_addresses_in_use{pod="a", pool="default", family="IPv4"} 60x9 90x60`,
	},
	{
		alert: "PureLBPoolNearlyFull", about: "a group of four addresses is full, and nobody waits",
		series: `
purelb_address_pool_size{pod="a", pool="ingress", family="IPv4"} 4x60
purelb_address_pool_addresses_in_use{pod="a", pool="ingress", family="IPv4"} 4x60`,
	},
	{
		alert: "PureLBPoolFillsInFourDays", about: "12 of 100 addresses are taken each day",
		series: `purelb_address_pool_addresses_in_use{pod="a", pool="default", family="IPv4"} 60+0.00834x4320`,
		fires:  map[string]int{"PureLBPoolFillsInFourDays": 1500},
		hours:  30,
	},
	{
		alert: "PureLBPoolFillsInFourDays", about: "one of 100 addresses is taken each day",
		series: `purelb_address_pool_addresses_in_use{pod="a", pool="default", family="IPv4"} 60+0.00069x4320`,
		hours:  30,
	},
	{
		alert: "PureLBPoolFillsInFourDays", about: "a new cluster gets 60 Services within an hour, and no more",
		series: `purelb_address_pool_addresses_in_use{pod="a", pool="default", family="IPv4"} 0+1x60 60x4320`,
		hours:  30,
	},
	{
		alert: "PureLBPoolFillsInFourDays", about: "the leading manager is another one, twice a day",
		series: `
purelb_address_pool_size{pod="a", pool="default", family="IPv4"} 100x720 _x720 100x4320
purelb_address_pool_size{pod="b", pool="default", family="IPv4"} _x720 100x720
purelb_address_pool_addresses_in_use{pod="a", pool="default", family="IPv4"} 60x720 _x720 60x4320
purelb_address_pool_addresses_in_use{pod="b", pool="default", family="IPv4"} _x720 60x720`,
		hours: 30,
	},
	{
		alert: "PureLBServiceWithoutAddress", about: "a Service names a group that there is not, for as long as it does",
		series: `purelb_services_waiting{pod="a", pool="", reason="NoSuchGroup"} _x10 1x60`,
		fires:  map[string]int{"PureLBServiceWithoutAddress": 15},
	},
	{
		alert: "PureLBServiceWithoutAddress", about: "a Service waits for its ServiceGroup, which comes a minute later",
		series: `purelb_services_waiting{pod="a", pool="", reason="NoSuchGroup"} _x10 1x1 _x60`,
	},
	{
		alert: "PureLBServiceNotAdvertised", about: "no router knows the address of a Service",
		series: `purelb_services{pod="a", state="NotAdvertised"} 0x9 1x60`,
		fires:  map[string]int{"PureLBServiceNotAdvertised": 15},
	},
	{
		alert: "PureLBServiceNotAdvertised", about: "a new Service, whose routes are not sent yet",
		series: `purelb_services{pod="a", state="NotAdvertised"} 0x9 1x3 0x60`,
	},
	{
		alert: "PureLBAddressUnreachable", about: "a node announces an address and does not answer for it",
		series: `purelb_services{pod="a", state="Unreachable"} 0x9 1x60`,
		fires:  map[string]int{"PureLBAddressUnreachable": 12},
	},
	{
		alert: "PureLBAddressUnreachable", about: "an address that moves before the alert is due",
		series: `purelb_services{pod="a", state="Unreachable"} 0x9 1x1 0x60`,
	},
	{
		alert: "PureLBIPAMUnavailable", about: "a NetBox does not answer",
		series: `purelb_ipam_reachable{pod="a", pool="netbox"} 1x9 0x60`,
		fires:  map[string]int{"PureLBIPAMUnavailable": 15},
	},
	{
		alert: "PureLBIPAMUnavailable", about: "a NetBox restarts",
		series: `purelb_ipam_reachable{pod="a", pool="netbox"} 1x9 0x3 1x60`,
	},
	{
		alert: "PureLBIPAMDrift", about: "somebody edits a record in NetBox",
		series: `purelb_ipam_differences{pod="a", pool="netbox"} 0x9 1x60`,
		fires:  map[string]int{"PureLBIPAMDrift": 25},
	},
	{
		alert: "PureLBIPAMDrift", about: "a record is missing until the next comparison, ten minutes later",
		series: `purelb_ipam_differences{pod="a", pool="netbox"} 0x9 1x10 0x60`,
	},
	{
		alert: "PureLBAddressNotAnnounced", about: "two addresses have no node, then one has one that cannot add it",
		series: `
purelb_addresses{pod="a", state="Announced"} 60x9 58x60
purelb_addresses{pod="a", state="NoNode"} 0x9 2 1x60
purelb_addresses{pod="a", state="Failed"} 0x10 1x60`,
		fires: map[string]int{"PureLBAddressNotAnnounced": 12},
	},
	{
		alert: "PureLBAddressNotAnnounced", about: "addresses fail over, which takes less than two minutes",
		series: `
purelb_addresses{pod="a", state="Announced"} 60x9 30x1 60x60
purelb_addresses{pod="a", state="Pending"} 0x9 30x1 0x60`,
	},
	{
		alert: "PureLBAddressNotAnnounced", about: "a policy Local without pods, and a node that answers without its agent",
		series: `
purelb_addresses{pod="a", state="Announced"} 58x60
purelb_addresses{pod="a", state="Waiting"} 1x60
purelb_addresses{pod="a", state="NoEndpoint"} 1x60`,
	},
	{
		alert: "PureLBNodeNotAnnouncing", about: "a node cannot add a Virtual address, which others have",
		series: `
purelb_lbnodeagent_addresses{node="node1", state="Announced"} 31x9 30x60
purelb_lbnodeagent_addresses{node="node1", state="Pending"} 0x9 1x4 0x60
purelb_lbnodeagent_addresses{node="node1", state="Failed"} 0x14 1x60`,
		fires: map[string]int{"PureLBNodeNotAnnouncing": 20},
	},
	{
		alert: "PureLBNodeNotAnnouncing", about: "a node waits for its interface for five minutes",
		series: `
purelb_lbnodeagent_addresses{node="node1", state="Announced"} 31x9 0x4 31x60
purelb_lbnodeagent_addresses{node="node1", state="Pending"} 0x9 31x4 0x60`,
	},
	{
		alert: "PureLBNodeHasNoSuccessor", about: "the other node is excluded, and stays so",
		series: `purelb_addresses_without_other_node{pod="a", node="node1"} 0x9 60x60`,
		fires:  map[string]int{"PureLBNodeHasNoSuccessor": 25},
	},
	{
		alert: "PureLBNodeHasNoSuccessor", about: "the other node is rebooted, which takes ten minutes",
		series: `purelb_addresses_without_other_node{pod="a", node="node1"} 0x9 60x10 0x60`,
	},
	{
		alert: "PureLBNodeHasNoSuccessor", about: "a cluster with one agent",
		series: `
up{job="purelb-agent-metrics", node="node2"} _x60
purelb_election_member_count{pod="a"} 1x60
purelb_addresses_without_other_node{pod="a", node="node1"} 60x60`,
	},
	{
		alert: "PureLBAddressConflict", about: "a station claims an address that a node announces",
		series: `purelb_lbnodeagent_conflicts_total{node="node2"} 0x9 1x60`,
		fires:  map[string]int{"PureLBAddressConflict": 10},
	},
	{
		alert: "PureLBAddressConflict", about: "a station answers for an address that a node is to announce",
		series: `
purelb_addresses{pod="a", state="Announced"} 60x9 59x60
purelb_addresses{pod="a", state="Conflict"} 0x9 1x60`,
		fires: map[string]int{"PureLBAddressConflict": 10, "PureLBAddressNotAnnounced": 12},
	},
	{
		alert: "PureLBAddressConflict", about: "an agent that has counted conflicts of long ago restarts",
		series: `purelb_lbnodeagent_conflicts_total{node="node1"} 3x9 0x60`,
	},
	{
		alert: "PureLBSlowMoves", about: "half of the handovers take between 10 and 30 seconds",
		series: `
purelb_election_move_duration_seconds_bucket{pod="a", kind="Handover", le="0.5"} 0x9 0+1x60
purelb_election_move_duration_seconds_bucket{pod="a", kind="Handover", le="10"} 0x9 0+1x60
purelb_election_move_duration_seconds_bucket{pod="a", kind="Handover", le="30"} 0x9 0+2x60
purelb_election_move_duration_seconds_bucket{pod="a", kind="Handover", le="+Inf"} 0x9 0+2x60`,
		fires: map[string]int{"PureLBSlowMoves": 11},
	},
	{
		alert: "PureLBSlowMoves", about: "nothing moves",
		series: `
purelb_election_move_duration_seconds_bucket{pod="a", kind="Handover", le="0.5"} 5x60
purelb_election_move_duration_seconds_bucket{pod="a", kind="Handover", le="10"} 5x60
purelb_election_move_duration_seconds_bucket{pod="a", kind="Handover", le="30"} 5x60
purelb_election_move_duration_seconds_bucket{pod="a", kind="Handover", le="+Inf"} 5x60`,
	},
}

// longStep is how many minutes there are between evaluations in cases of more than an hour.
const longStep = 15

// TestAlerts evaluates all rules each minute, over the series of each case, as Prometheus does. Of
// each case just the alerts that it names fire, from the minute that it names.
func TestAlerts(t *testing.T) {
	g := NewWithT(t)
	rules := loadRules(t, g)
	fires, isSilent := map[string]bool{}, map[string]bool{}
	for _, c := range alertCases {
		_, isNamed := c.fires[c.alert]
		fires[c.alert] = fires[c.alert] || isNamed
		isSilent[c.alert] = isSilent[c.alert] || len(c.fires) == 0
		t.Run(c.alert+": "+c.about, func(t *testing.T) {
			g := NewWithT(t)
			want := c.fires
			if want == nil {
				want = map[string]int{}
			}
			minutes, step := 60, 1
			if c.hours > 0 {
				minutes, step = c.hours*60, longStep
			}
			g.Expect(evaluate(g, rules, c.series, minutes, step)).To(Equal(want))
		})
	}
	for _, rule := range rules {
		if !fires[rule.Alert] || !isSilent[rule.Alert] {
			t.Errorf("%s needs a case in which it fires, and one in which nothing fires", rule.Alert)
		}
	}
	for alert := range maps.Keys(fires) {
		isAlert := func(r monitoringv1.Rule) bool { return r.Alert == alert }
		g.Expect(slices.ContainsFunc(rules, isAlert)).To(BeTrue(), "there is no alert %s", alert)
	}
}

// loadRules returns the alerting rules as the component installs them.
func loadRules(t *testing.T, g *WithT) []monitoringv1.Rule {
	t.Helper()
	objects := buildWith(t, "prometheus")
	var rules []monitoringv1.Rule
	for _, group := range findObject[monitoringv1.PrometheusRule](g, objects, "PrometheusRule", "purelb").Spec.Groups {
		rules = append(rules, group.Rules...)
	}
	g.Expect(rules).NotTo(BeEmpty())
	return rules
}

// evaluate returns the alerts that fire within some minutes, and the first minute in which each
// does. It evaluates the rules every step minutes.
func evaluate(g *WithT, rules []monitoringv1.Rule, changed string, minutes, step int) map[string]int {
	query := queryOver(g, changed)
	first := map[string]int{}
	for i := range rules {
		rule := &rules[i]
		var holdsFor time.Duration
		if rule.For != nil {
			parsed, err := model.ParseDuration(string(*rule.For))
			g.Expect(err).NotTo(HaveOccurred())
			holdsFor = time.Duration(parsed)
		}
		activeSince := map[uint64]int{} // minutes, by labels
		for minute := 0; minute < minutes; minute += step {
			before := activeSince
			activeSince = map[uint64]int{}
			for _, sample := range query(rule.Expr.String(), minute) {
				id := labels.NewBuilder(sample.Metric).Del(model.MetricNameLabel).Labels().Hash()
				since, wasActive := before[id]
				if !wasActive {
					since = minute
				}
				activeSince[id] = since
				if _, hasFired := first[rule.Alert]; !hasFired && time.Duration(minute-since)*time.Minute >= holdsFor {
					first[rule.Alert] = minute
					expectAnnotations(g, rule, sample)
				}
			}
		}
	}
	return first
}

// queryOver returns a function that evaluates an expression at a minute over the healthy series, but
// for those that are changed.
func queryOver(g *WithT, changed string) func(expr string, minute int) promql.Vector {
	ctx := context.Background()
	series := parseSeries(g, healthySeries)
	maps.Copy(series, parseSeries(g, changed))
	database := &storage.MockQueryable{MockQuerier: &storage.MockQuerier{
		SelectMockFunction: func(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
			return selectSeries(series, matchers)
		},
	}}
	engine := promql.NewEngine(promql.EngineOpts{
		MaxSamples: 1e6, Timeout: time.Hour, Parser: parser.NewParser(parser.Options{}),
	})
	return func(expr string, minute int) promql.Vector {
		query, err := engine.NewInstantQuery(ctx, database, nil, expr, timeOf(minute))
		g.Expect(err).NotTo(HaveOccurred(), expr)
		defer query.Close()
		result := query.Exec(ctx)
		g.Expect(result.Err).NotTo(HaveOccurred(), expr)
		vector, err := result.Vector()
		g.Expect(err).NotTo(HaveOccurred(), expr)
		samples := make(promql.Vector, len(vector)) // the query's own are used again
		for i, sample := range vector {
			sample.Metric = sample.Metric.Copy()
			samples[i] = sample
		}
		return samples
	}
}

// expectAnnotations expects that the annotations of an alert that fires say what they are to say.
func expectAnnotations(g *WithT, rule *monitoringv1.Rule, sample promql.Sample) {
	data := template.AlertTemplateData(sample.Metric.Map(), nil, "", sample)
	text := "{{$labels := .Labels}}{{$value := .Value}}" + rule.Annotations["description"]
	expander := template.NewTemplateExpander(context.Background(), text, rule.Alert, data, 0, nil, nil, nil)
	description, err := expander.Expand()
	g.Expect(err).NotTo(HaveOccurred(), rule.Alert)
	g.Expect(description).NotTo(
		Or(ContainSubstring("  "), ContainSubstring("{{"), ContainSubstring("<no value>")), rule.Alert,
	)
	g.Expect(strings.HasSuffix(description, ".")).To(BeTrue(), description)
	for _, label := range labelsIn.FindAllStringSubmatch(rule.Annotations["description"], -1) {
		if strings.HasPrefix(label[0], "{{ with") {
			continue
		}
		g.Expect(sample.Metric.Get(label[1])).NotTo(BeEmpty(), "%s names the label %s", rule.Alert, label[1])
	}
}

func timeOf(minute int) time.Time { return time.UnixMilli(0).Add(time.Duration(minute) * time.Minute) }

// parseSeries parses series, one in a line, and returns them by their labels.
func parseSeries(g *WithT, text string) map[string]storage.Series {
	series := map[string]storage.Series{}
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) == "" {
			continue
		}
		name, values, err := parser.NewParser(parser.Options{}).ParseSeriesDesc(strings.TrimSpace(line))
		g.Expect(err).NotTo(HaveOccurred(), line)
		var samples []chunks.Sample
		for minute, v := range values {
			switch {
			case !v.Omitted:
				samples = append(samples, floatSample{timeOf(minute).UnixMilli(), v.Value})
			case minute > 0 && !values[minute-1].Omitted: // Prometheus notes that a scrape misses a series
				samples = append(samples, floatSample{timeOf(minute).UnixMilli(), math.Float64frombits(value.StaleNaN)})
			}
		}
		series[name.String()] = storage.NewListSeries(name, samples)
	}
	return series
}

// selectSeries returns the series that match, in the order of their labels.
func selectSeries(series map[string]storage.Series, matchers []*labels.Matcher) storage.SeriesSet {
	var selected []storage.Series
	for _, key := range slices.Sorted(maps.Keys(series)) {
		s := series[key]
		if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(s.Labels().Get(m.Name)) }) {
			selected = append(selected, s)
		}
	}
	return &seriesSet{storage.EmptySeriesSet(), selected, -1}
}

// seriesSet is a list of series.
type seriesSet struct {
	storage.SeriesSet // has no errors and no warnings

	series []storage.Series
	at     int
}

// Next goes on to the next series.
func (s *seriesSet) Next() bool { s.at++; return s.at < len(s.series) }

// At returns the present series.
func (s *seriesSet) At() storage.Series { return s.series[s.at] }

// floatSample is a value at a time in milliseconds.
type floatSample struct {
	at    int64
	value float64
}

// T implements chunks.Sample.
func (s floatSample) T() int64 { return s.at }

// ST implements chunks.Sample.
func (s floatSample) ST() int64 { return 0 }

// F implements chunks.Sample.
func (s floatSample) F() float64 { return s.value }

// H implements chunks.Sample.
func (s floatSample) H() *histogram.Histogram { return nil }

// FH implements chunks.Sample.
func (s floatSample) FH() *histogram.FloatHistogram { return nil }

// Type implements chunks.Sample.
func (s floatSample) Type() chunkenc.ValueType { return chunkenc.ValFloat }

// Copy implements chunks.Sample.
func (s floatSample) Copy() chunks.Sample { return s }
