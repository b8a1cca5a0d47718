package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/lab"
)

// monitoringLabel marks the specs with a Prometheus that scrapes the lab. hourLabel marks the one
// that only watches for long, which is no part of make test-e2e.
const (
	monitoringLabel = "monitoring"
	hourLabel       = "hour"
)

// alertsOf are the alerts of which a spec shows that they fire in the lab.
var alertsOf = map[string]bool{}

// firesWhen adds a spec that makes a fault and sees alerts fire.
func firesWhen(fault string, alerts []string, body func(SpecContext)) bool {
	for _, name := range alerts {
		alertsOf[name] = true
	}
	return Describe("Alerts", Offset(1), func() {
		It("fire when "+fault+": "+strings.Join(alerts, ", "), Offset(1), Label(monitoringLabel), body,
			SpecTimeout(2*functionalLimit))
	})
}

// TestEachAlertFires checks that each alert of the component has a spec in which it fires.
func TestEachAlertFires(t *testing.T) {
	g := NewWithT(t)
	text, err := os.ReadFile(componentFolder + "rules.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	rules, err := parseRules(text)
	g.Expect(err).NotTo(HaveOccurred())
	for _, name := range alertNames(rules) {
		g.Expect(alertsOf).To(HaveKey(name))
		delete(alertsOf, name)
	}
	g.Expect(alertsOf).To(BeEmpty(), "specs of alerts that there are not")
}

// pastOfPool returns the samples of a day in which a pool of ten IPv4 addresses filled: an alert
// compares the present with it. It ends before Prometheus takes it for the present.
func pastOfPool(name string, now time.Time) string {
	const (
		day       = 24 * time.Hour
		forgotten = 6 * time.Minute // Prometheus looks back for 5
	)
	labels := fmt.Sprintf("{pool=%q,family=%q}", name, corev1.IPv4Protocol)
	var size, used strings.Builder
	size.WriteString("# TYPE purelb_address_pool_size gauge\n")
	used.WriteString("# TYPE purelb_address_pool_addresses_in_use gauge\n")
	for age := day + time.Hour; age > forgotten; age -= time.Minute {
		at := now.Add(-age).Unix()
		fmt.Fprintf(&size, "purelb_address_pool_size%s 10 %d\n", labels, at)
		fmt.Fprintf(&used, "purelb_address_pool_addresses_in_use%s %d %d\n", labels, int(9*(1-age.Hours()/25)), at)
	}
	return used.String() + size.String() + "# EOF\n"
}

// virtualRange returns a range of the space's Virtual IPv4 addresses.
func (s *space) virtualRange(count int) v1.PoolSet {
	first := s.firstVirtualV4()
	last := first
	for range count - 1 {
		last = last.Next()
	}
	return v1.PoolSet{V4Pools: []v1.AddressPool{
		{Subnet: s.virtualV4().String(), Pool: first.String() + "-" + last.String(), Aggregation: "/32"},
	}}
}

// withoutServers gives a Service no pods.
func withoutServers(svc *corev1.Service) { svc.Spec.Selector = map[string]string{"app": "none"} }

var _ = firesWhen("pools are full, and a Service asks for what there is not", []string{
	"PureLBPoolExhausted", "PureLBPoolNearlyFull", "PureLBPoolFillsInFourDays", "PureLBServiceWithoutAddress",
}, func(ctx SpecContext) {
	s := newSpace(ctx)
	const size = 10
	group := s.createLocalGroup(ctx, "full", s.virtualRange(size))
	p := startPrometheus(ctx, prometheusOptions{history: pastOfPool(group, time.Now())})
	p.waitUntilSilent(ctx)
	for i := range size + 1 {
		s.createService(ctx, fmt.Sprintf("taken-%d", i), group, singleStack, withoutServers)
	}
	outside := s.createService(
		ctx, "outside", group, singleStack, withoutServers, withAnnotation(v1.AnnotationAddresses, "192.0.2.77"),
	)
	p.waitForAlerts(
		ctx, "PureLBPoolExhausted", "PureLBPoolNearlyFull", "PureLBPoolFillsInFourDays", "PureLBServiceWithoutAddress",
	)
	Expect(kubeClient.Delete(ctx, outside)).To(Succeed())
	for i := range size + 1 {
		Expect(kubeClient.Delete(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: fmt.Sprintf("taken-%d", i)},
		})).To(Succeed())
	}
	p.waitUntilSilent(ctx)
})

var _ = firesWhen("a station answers for an address, for so long that announcing it was slow", []string{
	"PureLBAddressConflict", "PureLBAddressNotAnnounced", "PureLBSlowMoves",
}, func(ctx SpecContext) {
	s := newSpace(ctx)
	group := s.createLocalGroup(ctx, "claimed", v1.PoolSet{V4Pools: []v1.AddressPool{s.v4Range(0, 1)}})
	fast := s.createService(ctx, "fast", group, singleStack, withAnnotation(v1.AnnotationAddresses, s.v4(1).String()))
	waitUntilAnnounced(ctx, fast)
	p := startPrometheus(ctx, prometheusOptions{})
	p.waitUntilSilent(ctx)
	mac, err := testLab.MAC(ctx, lab.Client)
	Expect(err).NotTo(HaveOccurred())
	forger, err := testLab.Forge(ctx, lab.Client, mac, s.v4(0))
	Expect(err).NotTo(HaveOccurred())
	stop := sync.OnceFunc(func() { Expect(forger.Stop()).To(Succeed()) })
	DeferCleanup(stop)
	svc := s.createService(ctx, "slow", group, singleStack, withAnnotation(v1.AnnotationAddresses, s.v4(0).String()))
	p.waitForAlerts(ctx, "PureLBAddressConflict", "PureLBAddressNotAnnounced")
	pause(ctx, 12*time.Second) // the alert is about moves of more than ten seconds
	stop()
	waitUntilAnnounced(ctx, svc)
	p.waitForAlerts(ctx, "PureLBSlowMoves")
	p.waitUntilSilent(ctx, "PureLBSlowMoves", "PureLBAddressConflict") // of the last minutes
})

var _ = firesWhen("somebody else has put an address on a node", []string{
	"PureLBNodeNotAnnouncing",
}, func(ctx SpecContext) {
	s := newSpace(ctx)
	group := s.createGroup(ctx, "foreign", v1.ServiceGroupSpec{
		Local: &v1.LocalPools{PoolSet: s.virtualRange(2)}, AdvertisedBy: v1.AdvertisedByExternal,
	})
	// The agent makes the interface with the first Virtual address.
	svc := s.createService(ctx, "first", group, singleStack, withoutServers)
	addr := waitForAddresses(ctx, svc, 1)[0]
	waitUntilAnnounced(ctx, svc)
	foreign := s.firstVirtualV4()
	if foreign == addr {
		foreign = foreign.Next()
	}
	const virtualInterface = "kube-lb0"
	node := nodeNames()[0]
	p := startPrometheus(ctx, prometheusOptions{})
	p.waitUntilSilent(ctx)
	change := func(ctx context.Context, verb string) error {
		_, err := testLab.Exec(ctx, node, "ip", "address", verb, foreign.String()+"/32", "dev", virtualInterface)
		return err
	}
	DeferCleanup(func(ctx SpecContext) { _ = change(ctx, "delete") }, NodeTimeout(waitLimit)) // it is gone, as a rule
	Expect(change(ctx, "add")).To(Succeed())
	s.createService(ctx, "foreign", group, singleStack, withoutServers)
	p.waitForAlerts(ctx, "PureLBNodeNotAnnouncing")
	Expect(change(ctx, "delete")).To(Succeed())
	p.waitUntilSilent(ctx)
})

var _ = firesWhen("there is no router, and when it and its BFD go again and again", []string{
	"PureLBSessionDown", "PureLBNodeIsolated", "PureLBServiceNotAdvertised", "PureLBSessionFlapping", "PureLBBFDFlapping",
}, func(ctx SpecContext) {
	s := newSpace(ctx)
	svc := s.createService(ctx, "routed", s.virtualGroup(ctx), withoutServers)
	waitForAddresses(ctx, svc, 2)
	bgpPeer(ctx, "alerts", byGateway+"  bfd: {interval: 300ms, multiplier: 3}\n")
	expectSessions(ctx, "alerts", "0/6", v1.ReasonSessionsDown)
	p := startPrometheus(ctx, prometheusOptions{})
	p.waitForAlerts(ctx, "PureLBSessionDown", "PureLBNodeIsolated", "PureLBServiceNotAdvertised")
	sessions := 2 * len(nodeNames())
	for i := range 3 {
		startRouter(ctx, lab.RouterOptions{Daemon: lab.FRR, BFD: true})
		p.waitForValue(ctx, "sum(purelb_speaker_session_up)", float64(sessions))
		p.waitForValue(ctx, "sum(purelb_speaker_session_bfd_up)", float64(sessions))
		if i == 0 {
			p.waitUntilSilent(ctx)
		}
		Expect(testLab.StopRouter(ctx)).To(Succeed())
		p.waitForValue(ctx, "sum(purelb_speaker_session_up)", 0)
		p.waitForValue(ctx, "count(purelb_speaker_session_bfd_up == 1) or vector(0)", 0)
	}
	p.waitForAlerts(ctx, "PureLBSessionFlapping", "PureLBBFDFlapping")
})

var _ = firesWhen("a node is away", []string{"PureLBAgentDown", "PureLBSpeakerDown"}, func(ctx SpecContext) {
	startRouter(ctx, lab.RouterOptions{Daemon: lab.FRR})
	bgpPeer(ctx, "alerts", byGateway)
	expectSessions(ctx, "alerts", "6/6", v1.ReasonEstablished)
	p := startPrometheus(ctx, prometheusOptions{})
	p.waitUntilSilent(ctx)
	_, leader := waitForLeader(ctx)
	node := otherNode(leader)
	DeferCleanup(func(ctx SpecContext) { Expect(testLab.PlugPort(ctx, node)).To(Succeed()) }, NodeTimeout(waitLimit))
	Expect(testLab.UnplugPort(ctx, node)).To(Succeed())
	p.waitForAlerts(ctx, "PureLBAgentDown", "PureLBSpeakerDown")
	Expect(testLab.PlugPort(ctx, node)).To(Succeed())
	p.waitUntilSilent(ctx)
})

var _ = firesWhen("all nodes but one are excluded", []string{"PureLBNodeHasNoSuccessor"}, func(ctx SpecContext) {
	s := newSpace(ctx)
	svc := s.createService(ctx, "alone", s.localGroup(ctx), singleStack)
	addr := waitForAddresses(ctx, svc, 1)[0]
	holder := waitForHolder(ctx, addr)
	p := startPrometheus(ctx, prometheusOptions{})
	p.waitUntilSilent(ctx)
	others := slices.DeleteFunc(nodeNames(), func(name string) bool { return name == holder })
	DeferCleanup(func(ctx SpecContext) { setExcluded(ctx, false, others...) }, NodeTimeout(waitLimit))
	setExcluded(ctx, true, others...)
	p.waitForAlerts(ctx, "PureLBNodeHasNoSuccessor")
	setExcluded(ctx, false, others...)
	p.waitUntilSilent(ctx)
})

var _ = firesWhen("NetBox records something else, and when it is away", []string{
	"PureLBIPAMDrift", "PureLBIPAMUnavailable",
}, func(ctx SpecContext) {
	n, s := startNetbox(ctx)
	group := n.virtualGroup(ctx, s)
	svc := s.createService(ctx, "recorded", group, singleStack, withoutServers)
	waitForAddresses(ctx, svc, 1)
	p := startPrometheus(ctx, prometheusOptions{})
	p.waitUntilSilent(ctx)
	records := n.Addresses()
	Expect(records).To(HaveLen(1))
	Expect(n.Edit(records[0].ID, map[string]any{"status": "reserved"})).To(BeTrue())
	// Managers compare when they start, and then every ten minutes.
	kubectl(ctx, "-n", purelbNamespace, "rollout", "restart", "deployment/purelb-manager")
	p.waitForAlerts(ctx, "PureLBIPAMDrift")
	Expect(n.Edit(records[0].ID, map[string]any{"status": records[0].Status})).To(BeTrue())

	n.stop()
	s.createService(ctx, "waiting", group, singleStack, withoutServers)
	p.waitForAlerts(ctx, "PureLBIPAMUnavailable")
	n.start()
	p.waitForValue(ctx, fmt.Sprintf("max(purelb_ipam_reachable{pool=%q})", group), 1)
})

var _ = firesWhen("a stranger has the managers' Lease, and when no manager runs", []string{
	"PureLBManagerNoLeader", "PureLBManagerDown",
}, func(ctx SpecContext) {
	p := startPrometheus(ctx, prometheusOptions{})
	p.waitUntilSilent(ctx)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: purelbNamespace, Name: managerLease}}
	const stranger = "stranger"
	release := func(ctx context.Context) {
		GinkgoHelper()
		Expect(client.IgnoreNotFound(kubeClient.Get(ctx, client.ObjectKeyFromObject(lease), lease))).To(Succeed())
		if ptr.Deref(lease.Spec.HolderIdentity, "") == stranger {
			Expect(client.IgnoreNotFound(kubeClient.Delete(ctx, lease.DeepCopy()))).To(Succeed())
		}
	}
	DeferCleanup(func(ctx SpecContext) { release(ctx) }, NodeTimeout(waitLimit))
	// The leader renews all the time, and one write of two that conflict is refused.
	Eventually(func() error {
		if err := kubeClient.Get(ctx, client.ObjectKeyFromObject(lease), lease); err != nil {
			return err
		}
		lease.Spec.HolderIdentity = ptr.To(stranger)
		lease.Spec.LeaseDurationSeconds = ptr.To[int32](3600)
		lease.Spec.RenewTime = ptr.To(metav1.NowMicro())
		return kubeClient.Update(ctx, lease)
	}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
	p.waitForAlerts(ctx, "PureLBManagerNoLeader")
	release(ctx)
	p.waitUntilSilent(ctx)

	stopManagers(ctx)
	p.waitForAlerts(ctx, "PureLBManagerDown")
})

var _ = firesWhen("an agent answers, and may not renew its Lease", []string{
	"PureLBAgentNotRenewing",
}, func(ctx SpecContext) {
	p := startPrometheus(ctx, prometheusOptions{})
	p.waitUntilSilent(ctx)
	restore := func(ctx context.Context) { retryKubectl(ctx, "apply", "-k", "../../config/default") }
	DeferCleanup(func(ctx SpecContext) { restore(ctx) }, NodeTimeout(waitLimit))
	kubectl(ctx, "-n", purelbNamespace, "delete", "rolebinding", "purelb-agent")
	p.waitForAlerts(ctx, "PureLBAgentNotRenewing")
	restore(ctx)
	p.waitUntilSilent(ctx)
})

var _ = firesWhen("a node announces an address, and answers nobody", []string{
	"PureLBAddressUnreachable",
}, func(ctx SpecContext) {
	set := func(ctx context.Context, value string) {
		retryKubectl(ctx, "-n", purelbNamespace, "patch", "lbnodeagent", "default", "--type=merge",
			"-p", fmt.Sprintf(`{"spec":{"local":{"reachability":%s}}}`, value))
	}
	DeferCleanup(func(ctx SpecContext) { set(ctx, "null") }, NodeTimeout(waitLimit))
	set(ctx, `{"enabled":true}`)
	s := newSpace(ctx)
	svc := s.createService(ctx, "mute", s.localGroup(ctx), singleStack)
	addr := waitForAddresses(ctx, svc, 1)[0]
	waitUntilAnnounced(ctx, svc)
	holder := waitForHolder(ctx, addr)
	Eventually(func(g Gomega) {
		g.Expect(kubeClient.Get(ctx, client.ObjectKeyFromObject(svc), svc)).To(Succeed())
		g.Expect(meta.IsStatusConditionTrue(svc.Status.Conditions, v1.ConditionServiceReachable)).To(BeTrue())
	}).WithContext(ctx).WithTimeout(3 * waitLimit).WithPolling(pollInterval).Should(Succeed())
	p := startPrometheus(ctx, prometheusOptions{})
	p.waitUntilSilent(ctx)

	const table = "mute"
	DeferCleanup(func(ctx SpecContext) {
		_, err := testLab.Exec(ctx, holder, "nft", "delete table arp "+table)
		Expect(err).NotTo(HaveOccurred())
	}, NodeTimeout(waitLimit))
	_, err := testLab.Exec(ctx, holder, "nft", fmt.Sprintf(
		"add table arp %[1]s; add chain arp %[1]s input { type filter hook input priority 0; }; "+
			"add rule arp %[1]s input arp operation request arp daddr ip %[2]s drop", table, addr,
	))
	Expect(err).NotTo(HaveOccurred())
	p.waitForAlerts(ctx, "PureLBAddressUnreachable")
})

var _ = Describe("Alerts", func() {
	It("stay silent in a healthy hour", Label(monitoringLabel, hourLabel), func(ctx SpecContext) {
		limit := time.Hour
		if text := os.Getenv("E2E_HEALTHY"); text != "" {
			var err error
			limit, err = time.ParseDuration(text)
			Expect(err).NotTo(HaveOccurred(), "E2E_HEALTHY")
		}
		n, s := startNetbox(ctx)
		startRouter(ctx, lab.RouterOptions{Daemon: lab.FRR, BFD: true})
		bgpPeer(ctx, "healthy", byGateway+"  bfd: {interval: 300ms, multiplier: 3}\n")
		waitUntilAnnounced(ctx, s.createService(ctx, "local", s.localGroup(ctx)))
		waitUntilAnnounced(ctx, s.createService(ctx, "recorded", n.virtualGroup(ctx, s), singleStack))
		expectSessions(ctx, "healthy", "6/6", v1.ReasonEstablished)
		p := startPrometheus(ctx, prometheusOptions{keepsFor: true})
		pause(ctx, limit)
		samples, err := p.query(ctx, fmt.Sprintf(
			`max by (alertname) (max_over_time(ALERTS{alertstate="firing"}[%ds]))`, int(limit.Seconds()),
		))
		Expect(err).NotTo(HaveOccurred())
		Expect(samples).To(BeEmpty())
		samples, err = p.query(ctx, fmt.Sprintf(
			`min(count_over_time(up{job="purelb-agent-metrics"}[%ds]))`, int(limit.Seconds()),
		))
		Expect(err).NotTo(HaveOccurred())
		Expect(samples).To(HaveLen(1))
		Expect(samples[0].Value.Value).To(BeNumerically(">", 0.9*limit.Seconds()), "scrapes of each agent")
	}, SpecTimeout(3*time.Hour))
})

// otherNode returns a node that is none of these.
func otherNode(names ...string) string {
	GinkgoHelper()
	for _, node := range nodeNames() {
		if !slices.Contains(names, node) {
			return node
		}
	}
	Fail("there is no other node")
	return ""
}
