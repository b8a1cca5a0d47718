package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/lab"
)

// trials returns how often to try each disturbance: E2E_TRIALS, or twice.
func trials() int {
	if n, err := strconv.Atoi(os.Getenv("E2E_TRIALS")); err == nil && n > 0 {
		return n
	}
	return 2
}

// longTrials returns how often to try a disturbance that takes a minute: E2E_TRIALS, or once.
func longTrials() int {
	if os.Getenv("E2E_TRIALS") == "" {
		return 1
	}
	return trials()
}

// silenceThatCounts is the shortest time without an answer by ARP or ND that counts. On a
// busy machine answers may be some milliseconds late without a cause in PureLB.
const silenceThatCounts = 150 * time.Millisecond

// waitForHolder waits until one node has a Local address, and returns the node.
func waitForHolder(ctx context.Context, addr netip.Addr) string {
	GinkgoHelper()
	node, _, _ := strings.Cut(waitForPlaces(ctx, addr, 1)[0], "/")
	return node
}

// replaceRestartedPods replaces the pods of PureLB whose containers were killed before. The
// kubelet's back-off would restart them later each time.
func replaceRestartedPods(ctx context.Context) {
	GinkgoHelper()
	pods := &corev1.PodList{}
	Expect(kubeClient.List(ctx, pods, client.InNamespace(purelbNamespace))).To(Succeed())
	for i := range pods.Items {
		if slices.ContainsFunc(pods.Items[i].Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.RestartCount > 0 }) {
			Expect(client.IgnoreNotFound(kubeClient.Delete(ctx, &pods.Items[i]))).To(Succeed())
		}
	}
}

// waitForRest waits until nothing of the trial before is left: all pods and nodes are
// ready, all Leases are renewed, no address is being handed over, and the Service is
// announced.
func waitForRest(ctx context.Context, svc *corev1.Service) {
	GinkgoHelper()
	for _, what := range []string{"daemonset/purelb-agent-default", "deployment/purelb-manager"} {
		kubectl(ctx, "-n", purelbNamespace, "rollout", "status", what, "--timeout=120s")
	}
	waitForServers(ctx, svc.Namespace)
	Eventually(func(g Gomega) {
		for _, name := range nodeNames() {
			node := &corev1.Node{}
			g.Expect(kubeClient.Get(ctx, client.ObjectKey{Name: name}, node)).To(Succeed())
			g.Expect(isNodeReady(node)).To(BeTrue(), "%s is NotReady", name)
			g.Expect(node.Spec.Taints).To(BeEmpty())
			a, err := getAnnouncement(ctx, name)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(a.Status.ObservedGeneration).To(Equal(a.Generation))
			for _, e := range a.Spec.Addresses {
				g.Expect(e.Leaving).To(BeFalse())
			}
			for _, i := range a.Status.Interfaces {
				g.Expect(i.Down).To(BeFalse())
			}
			lease := &coordinationv1.Lease{}
			g.Expect(kubeClient.Get(ctx, client.ObjectKey{Namespace: purelbNamespace, Name: v1.LeasePrefix + name}, lease)).To(Succeed())
			g.Expect(time.Since(lease.Spec.RenewTime.Time)).To(BeNumerically("<", 2*time.Second), "Lease of %s", name)
		}
	}).WithContext(ctx).WithTimeout(2 * time.Minute).WithPolling(pollInterval).Should(Succeed())
	waitUntilAnnounced(ctx, svc)
}

// disturbedService is a Service with one Local address, and what is measured of it during a
// disturbance.
type disturbedService struct {
	*lab.Meter
	ctx      context.Context
	svc      *corev1.Service
	addr     netip.Addr
	holder   string
	farMeter *lab.Meter // from the client behind the router; nil unless measureFromFar was called
}

// measureFromFar measures from the client behind the router, too.
func (m *disturbedService) measureFromFar() {
	GinkgoHelper()
	var err error
	m.farMeter, err = testLab.Measure(m.ctx, lab.Far, m.addr)
	Expect(err).NotTo(HaveOccurred())
}

// stopMeters stops the measurement, prints the figures, and returns those of the client on
// the nodes' link. From behind the router no request may be lost.
func (m *disturbedService) stopMeters(name string) lab.Figures {
	GinkgoHelper()
	record, err := m.Stop()
	Expect(err).NotTo(HaveOccurred())
	figures := record.Figures()
	fmt.Fprintf(os.Stdout, "%s: %s\n", name, figures)
	if m.farMeter != nil {
		record, err := m.farMeter.Stop()
		Expect(err).NotTo(HaveOccurred())
		far := record.Figures()
		fmt.Fprintf(os.Stdout, "%s, from behind the router: %s\n", name, far)
		Expect(far.Requests).NotTo(BeZero())
		Expect(far.Failed+far.InFlight).To(BeNumerically("<=", far.Requests/requestsPerStrayFailure), "failed requests from behind the router")
		Expect(far.Outage).To(BeNumerically("<", 500*time.Millisecond), "HTTP outage behind the router")
	}
	return figures
}

// disturb measures a Service with one Local address, an IPv4 address unless change changes
// that, in n trials. In each, disturbOnce does something to the Service's holder and waits
// until the effects are over, and checkFigures checks what it cost. disturb prints the
// figures.
func disturb(ctx context.Context, name string, n int, disturbOnce func(*disturbedService), checkFigures func(lab.Figures), change ...func(*corev1.Service)) {
	GinkgoHelper()
	s := newSpace(ctx)
	svc := s.createService(ctx, "outage", s.localGroup(ctx), append([]func(*corev1.Service){singleStack}, change...)...)
	addr := waitForAddresses(ctx, svc, 1)[0]
	var outages, silences []time.Duration
	for trial := range n {
		replaceRestartedPods(ctx)
		waitForRest(ctx, svc)
		waitForAnswer(ctx, lab.Client, addr)
		meter, err := testLab.Measure(ctx, lab.Client, addr)
		Expect(err).NotTo(HaveOccurred())
		m := &disturbedService{Meter: meter, ctx: ctx, svc: svc, addr: addr, holder: waitForHolder(ctx, addr)}
		m.keepMeasuring(500 * time.Millisecond)
		disturbOnce(m)
		m.keepMeasuring(time.Second)
		figures := m.stopMeters(fmt.Sprintf("%s, trial %d", name, trial+1))
		checkFigures(figures)
		outages, silences = append(outages, figures.Outage), append(silences, figures.Silence)
	}
	fmt.Fprintf(os.Stdout, "%s, %d trials: HTTP outage %s, ARP silence %s\n", name, n, formatSpread(outages), formatSpread(silences))
}

// formatSpread returns the minimum, median and maximum as text.
func formatSpread(times []time.Duration) string {
	slices.Sort(times)
	round := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	return fmt.Sprintf("%s / %s / %s", round(times[0]), round(times[len(times)/2]), round(times[len(times)-1]))
}

// keepMeasuring lets the measurement go on for a time, to see that nothing more happens.
func (m *disturbedService) keepMeasuring(d time.Duration) {
	select {
	case <-m.ctx.Done():
	case <-time.After(d):
	}
}

// waitUntilMoved waits until the address is in the Announcement of one node only, which
// announces it and is not the holder.
func (m *disturbedService) waitUntilMoved() {
	GinkgoHelper()
	Eventually(m.findAnnouncers).WithContext(m.ctx).WithTimeout(2 * time.Minute).WithPolling(pollInterval).
		Should(And(HaveLen(1), Not(ContainElement(m.holder))))
}

// findAnnouncers returns the nodes whose Announcements have the address, each with the state
// that its agent reports unless that is Announced.
func (m *disturbedService) findAnnouncers(g Gomega) []string {
	var found []string
	for _, name := range nodeNames() {
		a, err := getAnnouncement(m.ctx, name) // there is none for a node without an agent
		g.Expect(client.IgnoreNotFound(err)).To(Succeed())
		for _, e := range a.Spec.Addresses {
			if e.Address != m.addr.String() {
				continue
			}
			state := ""
			for _, s := range a.Status.Addresses {
				if s.Address == e.Address && s.Epoch == e.Epoch {
					state = string(s.State)
				}
			}
			if state == string(v1.StateAnnounced) {
				found = append(found, name)
			} else {
				found = append(found, name+" "+state)
			}
		}
	}
	return found
}

// expectNotMoved checks that the holder still announces the address. Other nodes may be in
// state Standby.
func (m *disturbedService) expectNotMoved() {
	GinkgoHelper()
	Eventually(m.findAnnouncers).WithContext(m.ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(
		And(ContainElement(m.holder), HaveEach(Or(Equal(m.holder), HaveSuffix(" "+string(v1.StateStandby))))))
}

// excludeUntilMoved excludes the holder, waits until the address has moved, and includes the
// node again.
func (m *disturbedService) excludeUntilMoved() {
	GinkgoHelper()
	include := func(ctx context.Context) {
		kubectl(ctx, "label", "node", m.holder, corev1.LabelNodeExcludeBalancers+"-")
	}
	DeferCleanup(func(ctx SpecContext) { include(ctx) }, NodeTimeout(waitLimit))
	kubectl(m.ctx, "label", "node", m.holder, corev1.LabelNodeExcludeBalancers+"=")
	m.waitUntilMoved()
	include(m.ctx)
}

// findLeader returns the pod and the node of the manager that leads. The Lease may name a pod
// that is gone or ending: then no manager leads yet.
func findLeader(ctx context.Context, g Gomega) (pod, node string) {
	lease := &coordinationv1.Lease{}
	g.Expect(kubeClient.Get(ctx, client.ObjectKey{Namespace: purelbNamespace, Name: "manager.purelb.io"}, lease)).To(Succeed())
	pod, _, _ = strings.Cut(ptr.Deref(lease.Spec.HolderIdentity, ""), "_")
	p := &corev1.Pod{}
	g.Expect(kubeClient.Get(ctx, client.ObjectKey{Namespace: purelbNamespace, Name: pod}, p)).To(Succeed(), "the pod that leads")
	g.Expect(p.DeletionTimestamp).To(BeNil(), "the pod that leads is ending")
	return pod, p.Spec.NodeName
}

// waitForLeader waits until a manager leads, and returns its pod and node.
func waitForLeader(ctx context.Context) (pod, node string) {
	GinkgoHelper()
	Eventually(func(g Gomega) { pod, node = findLeader(ctx, g) }).
		WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
	return pod, node
}

// killProgram ends the manager or the agent on a node, as kill -9 does. It returns whether
// there was one.
func killProgram(ctx context.Context, node, command string) bool {
	_, err := testLab.NodeExec(ctx, node, "pkill", "-9", "-f", "^/purelb "+command)
	return err == nil
}

// requestsPerStrayFailure is how many requests there have to be for each that may fail
// without a cause in PureLB. On a busy machine a request may wait for more than a second. A
// failure with a cause in the address shows as an outage, too.
const requestsPerStrayFailure = 5000

// expectNothingLost checks the figures of a planned change of holder, which may cost no
// request but those in flight.
func expectNothingLost(f lab.Figures) {
	GinkgoHelper()
	Expect(f.Failed).To(BeNumerically("<=", f.Requests/requestsPerStrayFailure), "failed requests: %s", f)
	Expect(f.Outage).To(BeNumerically("<", 500*time.Millisecond), "HTTP outage")
	Expect(f.Silence).To(BeNumerically("<", silenceThatCounts), "ARP silence")
	Expect(f.Duplicate).To(BeNumerically("<", 250*time.Millisecond), "two nodes answer")
}

// expectNoEffect checks the figures of a disturbance that may cost nothing at all.
func expectNoEffect(f lab.Figures) {
	GinkgoHelper()
	expectNothingLost(f)
	Expect(f.InFlight).To(BeZero(), "failed requests in flight")
	Expect(f.Duplicate).To(BeZero(), "two nodes answer")
	Expect(f.Changes).To(BeZero(), "changes of MAC")
}
