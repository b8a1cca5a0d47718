package e2e

import (
	"context"
	"net/netip"
	"slices"
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
	"github.com/purelb/purelb-operator/test/proof/trial"
)

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
		if slices.ContainsFunc(
			pods.Items[i].Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.RestartCount > 0 },
		) {
			Expect(client.IgnoreNotFound(kubeClient.Delete(ctx, &pods.Items[i]))).To(Succeed())
		}
	}
}

// waitForRest waits until nothing of the trial before is left: all pods and nodes are
// ready, no server is ending, of which a proxy may still know, all Leases are renewed, no
// address is being handed over, and the Service is announced.
func waitForRest(ctx context.Context, svc *corev1.Service) {
	GinkgoHelper()
	for _, what := range []string{"daemonset/purelb-agent-default", "deployment/purelb-manager"} {
		kubectl(ctx, "-n", purelbNamespace, "rollout", "status", what, "--timeout=120s")
	}
	waitForServers(ctx, svc.Namespace)
	Eventually(func(g Gomega) {
		pods := &corev1.PodList{}
		g.Expect(kubeClient.List(ctx, pods, client.InNamespace(svc.Namespace))).To(Succeed())
		g.Expect(pods.Items).To(HaveEach(HaveField("DeletionTimestamp", BeNil())), "pods that are ending")
		for _, name := range nodeNames() {
			node := &corev1.Node{}
			g.Expect(kubeClient.Get(ctx, client.ObjectKey{Name: name}, node)).To(Succeed())
			g.Expect(isNodeReady(node)).To(BeTrue(), "%s is NotReady", name)
			g.Expect(node.Spec.Taints).To(BeEmpty())
			a, err := getAnnouncement(ctx, name)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(a.Status.ObservedGeneration).To(Equal(a.Generation))
			for _, e := range a.Spec.Addresses {
				g.Expect(e.HandingOver).To(BeFalse())
			}
			for _, i := range a.Status.Interfaces {
				g.Expect(i.Down).To(BeFalse())
			}
			lease := &coordinationv1.Lease{}
			g.Expect(kubeClient.Get(ctx, client.ObjectKey{Namespace: purelbNamespace, Name: v1.LeasePrefix + name}, lease)).
				To(Succeed())
			late := time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, 0)) * time.Second * 2 / 3
			g.Expect(time.Since(lease.Spec.RenewTime.Time)).To(BeNumerically("<", late), "Lease of %s", name)
		}
	}).WithContext(ctx).WithTimeout(2 * time.Minute).WithPolling(pollInterval).Should(Succeed())
	waitUntilAnnounced(ctx, svc)
}

// disturbance is something that happens to the holder of an address, and what it may cost.
type disturbance struct {
	name string
	// prepare is called before each trial, if it is not nil.
	prepare func()
	// do makes the disturbance, and waits until its effects are over.
	do func(*disturbedService)
	// bounds are those of the figures of the client on the nodes' link, and of what do notes.
	bounds []trial.Bound
	// check checks what has happened, by the figures of the client on the nodes' link. It may
	// be nil.
	check func(lab.Figures)
	// fromFar says that the client behind the router measures as well. It may lose no request.
	fromFar bool
	// change changes the Service, which has an IPv4 address otherwise.
	change []func(*corev1.Service)
	// serversServeOn says that servers serve on for a while after they are told to end, where the
	// disturbance ends them.
	serversServeOn bool
	// isOnAnyMachine says that the disturbance itself makes the machine late, and counts all the same.
	isOnAnyMachine bool
}

// disturbedService is a Service with one Local address, and what is measured of it during a
// disturbance.
type disturbedService struct {
	*lab.Meter
	ctx    context.Context
	trial  *oneTrial
	svc    *corev1.Service
	addr   netip.Addr
	holder string
}

// farBounds are those of the client behind the router.
var farBounds = []trial.Bound{
	none(farPrefix + failedFigure), none(farPrefix + inFlightFigure), atMost(farPrefix+outageFigure, 500*time.Millisecond),
}

// disturb measures a Service with one Local address during a disturbance.
func disturb(ctx context.Context, d disturbance) {
	GinkgoHelper()
	s := newSpace(ctx)
	svc := s.createService(ctx, "outage", s.localGroup(ctx), append([]func(*corev1.Service){singleStack}, d.change...)...)
	if d.serversServeOn {
		s.changeServers(ctx, servesUntilRoutesFollow)
	}
	addr := waitForAddresses(ctx, svc, 1)[0]
	bounds := d.bounds
	if d.fromFar {
		bounds = slices.Concat(bounds, farBounds)
	}
	planned := trial.Experiment{Name: d.name, Bounds: bounds, AnyMachine: d.isOnAnyMachine || len(bounds) == 0}
	runExperiment(ctx, planned, func(t *oneTrial) {
		if d.prepare != nil {
			d.prepare()
		}
		replaceRestartedPods(ctx)
		waitForRest(ctx, svc)
		waitForAnswer(ctx, lab.Client, addr)
		m := &disturbedService{ctx: ctx, trial: t, svc: svc, addr: addr, holder: waitForHolder(ctx, addr)}
		t.measureFromNow()
		m.Meter = measureFrom(ctx, lab.Client, addr)
		var far *lab.Meter
		if d.fromFar {
			far = measureFrom(ctx, lab.Far, addr)
		}
		// A disturbance meets agents and managers at any time between two renewals of a Lease.
		m.keepMeasuring(500*time.Millisecond + time.Duration(t.random.Int64N(int64(time.Second))))
		d.do(m)
		m.keepMeasuring(time.Second)
		figures := t.stopMeter("", m.Meter)
		if far != nil {
			t.stopMeter(farPrefix, far)
		}
		t.stopMeasuring()
		if d.check != nil {
			d.check(figures)
		}
		m.expectOneHolder()
	})
}

// measureFrom starts a Meter of an address at a host of the lab. It ends with the spec at the
// latest.
func measureFrom(ctx context.Context, host string, addr netip.Addr) *lab.Meter {
	GinkgoHelper()
	meter, err := testLab.Measure(ctx, host, addr)
	Expect(err).NotTo(HaveOccurred())
	return meter
}

// expectOneHolder checks that after a disturbance one node has the address, and that no other
// answers for it.
func (m *disturbedService) expectOneHolder() {
	GinkgoHelper()
	expectOneHolder(m.ctx, lab.Client, m.addr)
}

// expectOneHolder checks, by what a host of the lab is answered, that one node has an address.
func expectOneHolder(ctx context.Context, host string, addr netip.Addr) {
	GinkgoHelper()
	waitForPlaces(ctx, addr, 1)
	waitForAnswer(ctx, host, addr)
	meter := measureFrom(ctx, host, addr)
	pause(ctx, 500*time.Millisecond)
	record, err := meter.Stop()
	Expect(err).NotTo(HaveOccurred())
	Expect(record.WireAnswers).NotTo(BeEmpty(), "a node answers afterwards")
	Expect(record.Figures().Duplicate).To(BeZero(), "two nodes answer afterwards")
	Expect(record.Figures().Changes).To(BeZero(), "the node that answers changes afterwards")
}

// keepMeasuring lets the measurement go on for a time, to see that nothing more happens.
func (m *disturbedService) keepMeasuring(d time.Duration) { pause(m.ctx, d) }

// pause waits for a time, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// waitUntilMoved waits until the address is in the Announcement of one node only, which
// announces it and is not the holder.
func (m *disturbedService) waitUntilMoved() {
	GinkgoHelper()
	Eventually(m.findAnnouncers).WithContext(m.ctx).WithTimeout(2 * time.Minute).WithPolling(pollInterval).
		Should(ConsistOf(And(BeElementOf(nodeNames()), Not(Equal(m.holder)))))
}

func (m *disturbedService) findAnnouncers(g Gomega) []string { return findAnnouncers(m.ctx, g, m.addr) }

// findAnnouncers returns the nodes whose Announcements have an address, each with the state
// that its agent reports unless that is Announced.
func findAnnouncers(ctx context.Context, g Gomega, addr netip.Addr) []string {
	var found []string
	for _, name := range nodeNames() {
		a, err := getAnnouncement(ctx, name) // there is none for a node without an agent
		g.Expect(client.IgnoreNotFound(err)).To(Succeed())
		for _, e := range a.Spec.Addresses {
			if e.Address != addr.String() {
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
// state Waiting.
func (m *disturbedService) expectNotMoved() {
	GinkgoHelper()
	Eventually(m.findAnnouncers).WithContext(m.ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(
		And(ContainElement(m.holder), HaveEach(Or(Equal(m.holder), HaveSuffix(" "+string(v1.StateWaiting))))))
}

// cutUntilMoved cuts the holder's link, waits until the address has moved, and connects the node again.
func (m *disturbedService) cutUntilMoved() {
	GinkgoHelper()
	DeferCleanup(
		func(ctx SpecContext) { Expect(testLab.HealLink(ctx, m.holder)).To(Succeed()) }, NodeTimeout(waitLimit),
	)
	Expect(testLab.CutLink(m.ctx, m.holder)).To(Succeed())
	m.waitUntilMoved()
	Expect(testLab.HealLink(m.ctx, m.holder)).To(Succeed())
}

// excludeUntilMoved excludes the holder, waits until the address has moved, and includes the
// node again.
func (m *disturbedService) excludeUntilMoved() {
	GinkgoHelper()
	DeferCleanup(func(ctx SpecContext) { setExcluded(ctx, false, m.holder) }, NodeTimeout(waitLimit))
	setExcluded(m.ctx, true, m.holder)
	m.waitUntilMoved()
	setExcluded(m.ctx, false, m.holder)
}

// cordonUntilMoved cordons the holder, as kubectl drain does first, waits until the address has moved, and
// uncordons the node again. Its pods stay: what their end costs depends on them alone.
func (m *disturbedService) cordonUntilMoved() {
	GinkgoHelper()
	uncordon := func(ctx context.Context) { kubectl(ctx, "uncordon", m.holder) }
	DeferCleanup(func(ctx SpecContext) { uncordon(ctx) }, NodeTimeout(waitLimit))
	kubectl(m.ctx, "cordon", m.holder)
	m.waitUntilMoved()
	uncordon(m.ctx)
}

// drainAndReboot reboots a node as docs/how-to/drain.md says where LBNodeAgents have onUnschedulable: HandOver.
func (m *disturbedService) drainAndReboot(node string) {
	GinkgoHelper()
	startDraining(m.ctx, node)()
	kubectl(m.ctx, "-n", purelbNamespace, "wait", "announcements", "-l", v1.LabelNode+"="+node,
		"--for=jsonpath={.status.announced}=0", "--timeout=60s")
	m.reboot(node, testLab.PowerOff, func() { kubectl(m.ctx, "uncordon", node) })
}

// drainByPluginAndReboot reboots a node as docs/how-to/drain.md says where the plugin drains it.
func (m *disturbedService) drainByPluginAndReboot(node string) {
	GinkgoHelper()
	DeferCleanup(func(ctx SpecContext) { setExcluded(ctx, false, node) }, NodeTimeout(waitLimit))
	out, code := runPlugin(m.ctx, "drain", node)
	Expect(code).To(BeZero(), out)
	startDraining(m.ctx, node)()
	m.reboot(node, testLab.PowerOff, func() {
		kubectl(m.ctx, "uncordon", node)
		out, code := runPlugin(m.ctx, "undrain", node)
		Expect(code).To(BeZero(), out)
	})
}

// drainAndShutDown reboots a node that hands over nothing when it is drained. Its kubelet delays the shutdown.
func (m *disturbedService) drainAndShutDown(node string) {
	GinkgoHelper()
	startDraining(m.ctx, node)()
	m.expectDelayedShutdown(node)
	m.reboot(node, testLab.ShutDown, func() { kubectl(m.ctx, "uncordon", node) })
}

// shutDown reboots a node that nobody has drained. Its kubelet delays the shutdown, and the pods that it has
// ended stay as they are, for people to see.
func (m *disturbedService) shutDown(node string) {
	GinkgoHelper()
	m.expectDelayedShutdown(node)
	m.reboot(node, testLab.ShutDown, func() {
		kubectl(m.ctx, "delete", "pods", "--all-namespaces", "--field-selector=status.phase!=Running,status.phase!=Pending")
	})
}

// expectDelayedShutdown checks that a node's kubelet delays its shutdown.
func (m *disturbedService) expectDelayedShutdown(node string) {
	GinkgoHelper()
	config := kubectl(m.ctx, "get", "--raw", "/api/v1/nodes/"+node+"/proxy/configz")
	Expect(config).To(ContainSubstring(`"shutdownGracePeriod":"1m0s"`))
}

// reboot ends a node, starts it at once, makes it useful again by what release does, and waits until all is as it was
// before. No address that has left the node comes back.
func (m *disturbedService) reboot(node string, end func(context.Context, string) error, release func()) {
	GinkgoHelper()
	DeferCleanup(func(ctx SpecContext) { Expect(testLab.PowerOn(ctx, node)).To(Succeed()) }, NodeTimeout(time.Minute))
	Expect(end(m.ctx, node)).To(Succeed())
	holder := m.findAnnouncers(Default)
	Expect(holder).To(And(HaveLen(1), Not(ContainElement(node))), "nodes that announce %s when %s is off", m.addr, node)
	off := time.Now()
	Expect(testLab.PowerOn(m.ctx, node)).To(Succeed())
	Eventually(func(g Gomega) {
		lease := &coordinationv1.Lease{}
		g.Expect(kubeClient.Get(m.ctx, client.ObjectKey{Namespace: purelbNamespace, Name: v1.LeasePrefix + node}, lease)).
			To(Succeed())
		g.Expect(lease.Spec.RenewTime.Time).To(BeTemporally(">", off), "Lease of %s", node)
	}).WithContext(m.ctx).WithTimeout(2 * time.Minute).WithPolling(pollInterval).Should(Succeed())
	release()
	waitForRest(m.ctx, m.svc)
	Expect(m.findAnnouncers(Default)).To(Equal(holder), "nothing moves back")
}

// managerLease is the Lease of the manager that leads.
const managerLease = "manager.purelb.io"

// findLeader returns the pod and the node of the manager that leads. The Lease may name a pod
// that is gone or ending: then no manager leads yet.
func findLeader(ctx context.Context, g Gomega) (pod, node string) {
	lease := &coordinationv1.Lease{}
	g.Expect(kubeClient.Get(ctx, client.ObjectKey{Namespace: purelbNamespace, Name: managerLease}, lease)).
		To(Succeed())
	pod, _, _ = strings.Cut(ptr.Deref(lease.Spec.HolderIdentity, ""), "_")
	p := &corev1.Pod{}
	g.Expect(kubeClient.Get(ctx, client.ObjectKey{Namespace: purelbNamespace, Name: pod}, p)).To(
		Succeed(), "the pod that leads",
	)
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

// plannedBounds are those of a planned change of holder, which may cost no request but those in
// flight.
var plannedBounds = append([]trial.Bound{none(failedFigure)}, moveBounds...)

// moveBounds are those of a planned change of holder for the address alone, whatever becomes of servers.
var moveBounds = []trial.Bound{
	atMost(outageFigure, 500*time.Millisecond), atMost(silenceFigure, silenceThatCounts),
	atMost(duplicateFigure, 250*time.Millisecond),
}

// noEffectBounds are those of a disturbance that may cost nothing at all; expectNoEffect says
// what may not happen.
var noEffectBounds = []trial.Bound{
	none(failedFigure), none(inFlightFigure), atMost(outageFigure, 500*time.Millisecond),
	atMost(silenceFigure, silenceThatCounts),
}

// expectNoEffect checks by the figures that no other node has had the address.
func expectNoEffect(f lab.Figures) {
	GinkgoHelper()
	Expect(f.Duplicate).To(BeZero(), "two nodes answer")
	Expect(f.Changes).To(BeZero(), "changes of MAC")
}

// failoverBounds are those of a holder's death.
func failoverBounds(limit time.Duration) []trial.Bound {
	return []trial.Bound{atMost(silenceFigure, limit), atMost(outageFigure, limit)}
}

// silenceThatCounts is the shortest time without an answer by ARP or ND that counts. Answers may
// be some milliseconds late without a cause in PureLB.
const silenceThatCounts = 150 * time.Millisecond
