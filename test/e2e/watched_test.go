package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/lab"
	"github.com/purelb/purelb-operator/test/proof/trial"
)

// watchedService is a Service with an address of each family. One node, the holder, has both
// when a trial begins, and its successors watch it.
type watchedService struct {
	ctx    context.Context
	trial  *oneTrial
	svc    *corev1.Service
	addrs  []netip.Addr
	holder string
	// successors are those of each address, first rank first.
	successors map[netip.Addr][]string
	// host is where the meters ask.
	host   string
	meters map[netip.Addr]*lab.Meter
	// watches note what the kernels of all nodes do with addresses, since watchKernels.
	watches map[string]*lab.AddressWatch
}

// watchedFault is something that happens while nodes watch the holder of addresses, and what it
// may cost.
type watchedFault struct {
	name string
	// chooseHolder chooses the node that has the addresses when a trial begins; nil if any node
	// will do.
	chooseHolder func() string
	// prepare is called when the holder is chosen, if it is not nil.
	prepare func(*watchedService)
	// claimsNothing says that no node claims an address, so that the managers have nothing to forget.
	claimsNothing bool
	// do makes the fault, and waits until its effects are over. It may stop the meters.
	do func(*watchedService)
	// bounds and medians are those of the figures of each family.
	bounds, medians []trial.Bound
	// isOnAnyMachine says that the fault itself makes the machine late, or that no bound is one of
	// time.
	isOnAnyMachine bool
	// host is where requests come from; the client on the nodes' link if it is empty.
	host string
}

// specifyWatched adds a spec that measures while nodes watch each other.
func specifyWatched(text string, body func(SpecContext)) {
	It(text, Offset(1), Label(proofLabel, watchingTopic), body, proofLimit())
}

// measureWatched measures a Service while a fault happens to nodes that hold its addresses or watch
// the holder.
func measureWatched(ctx SpecContext, f watchedFault) {
	GinkgoHelper()
	s := newSpace(ctx)
	svc := s.createService(ctx, "watched", s.localGroup(ctx))
	addrs := waitForAddresses(ctx, svc, 2)
	host := f.host
	if host == "" {
		host = lab.Client
	}
	experiment := trial.Experiment{
		Name: f.name, Bounds: forFamilies(f.bounds...), MedianBounds: forFamilies(f.medians...), AnyMachine: f.isOnAnyMachine,
	}
	runExperiment(ctx, experiment, func(t *oneTrial) {
		if f.claimsNothing {
			recoverFromTrials(ctx)
		} else {
			forgetTrials(ctx)
		}
		waitForRest(ctx, svc)
		m := &watchedService{ctx: ctx, trial: t, svc: svc, addrs: addrs, host: host}
		if f.chooseHolder != nil {
			m.holder = f.chooseHolder()
		} else {
			m.holder = nodeNames()[t.random.IntN(len(nodeNames()))]
		}
		if f.prepare != nil {
			f.prepare(m)
		}
		gatherAddresses(ctx, m.holder, areAnnouncedBy(ctx, m.holder, addrs))
		m.successors = waitUntilFollowed(ctx, m.holder, addrs)
		if strings.Contains(os.Getenv("E2E_FEATURE_GATES"), "SlowLeases=true") {
			waitUntilLeasesAreSlow(ctx)
		}
		for _, addr := range addrs {
			waitForPlaces(ctx, addr, 1)
			waitForAnswer(ctx, m.host, addr)
		}
		t.measureFromNow()
		m.startMeters()
		// Watchers arm an address within a second, and a fault meets them at any time between two
		// rounds, two renewals of Leases, or two questions to witnesses.
		m.pause(1500*time.Millisecond + time.Duration(t.random.Int64N(int64(time.Second))))
		f.do(m)
		if m.meters != nil {
			m.pause(time.Second)
			m.stopMeters("")
		}
		t.stopMeasuring()
		for _, addr := range addrs {
			expectOneHolder(ctx, m.host, addr)
		}
	})
}

// forgetTrials waits until PureLB is at rest, and knows nothing of the trials before: the managers are
// replaced, as the leader names new successors of a node whose addresses were claimed later each time,
// after five minutes in the end.
func forgetTrials(ctx context.Context) {
	GinkgoHelper()
	// Together they are replaced in half the time of a rollout.
	for _, p := range listPods(ctx, Default, managerName) {
		Expect(client.IgnoreNotFound(kubeClient.Delete(ctx, &p))).To(Succeed())
	}
	recoverFromTrials(ctx)
}

// recoverFromTrials waits until PureLB is at rest. Pods that have restarted are replaced, as the kubelet
// waits longer each time.
func recoverFromTrials(ctx context.Context) {
	GinkgoHelper()
	replaceRestartedPods(ctx)
	waitUntilReady(ctx)
}

// familyOf returns what the names of the figures of an address begin with.
func familyOf(addr netip.Addr) string {
	if addr.Is4() {
		return string(corev1.IPv4Protocol) + ": "
	}
	return string(corev1.IPv6Protocol) + ": "
}

// forFamilies returns bounds for the figures of each family.
func forFamilies(bounds ...trial.Bound) []trial.Bound {
	var all []trial.Bound
	for _, family := range []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} {
		for _, b := range bounds {
			b.Figure = string(family) + ": " + b.Figure
			all = append(all, b)
		}
	}
	return all
}

// areAnnouncedBy returns a function that reports whether one node announces all addresses.
func areAnnouncedBy(ctx context.Context, node string, addrs []netip.Addr) func(Gomega) bool {
	return func(g Gomega) bool {
		for _, addr := range addrs {
			if !slices.Equal(findAnnouncers(ctx, g, addr), []string{node}) {
				return false
			}
		}
		return true
	}
}

// gatherAddresses moves addresses to a node, unless they are there, by excluding the others for a
// while. What areThere says tells when they are there.
func gatherAddresses(ctx context.Context, holder string, areThere func(Gomega) bool) {
	GinkgoHelper()
	if areThere(Default) {
		return
	}
	others := slices.DeleteFunc(nodeNames(), func(name string) bool { return name == holder })
	DeferCleanup(func(ctx SpecContext) { setExcluded(ctx, false, others...) }, NodeTimeout(waitLimit))
	setExcluded(ctx, true, others...)
	Eventually(areThere).WithContext(ctx).WithTimeout(2*waitLimit).WithPolling(pollInterval).
		Should(BeTrue(), "the addresses are announced by %s", holder)
	setExcluded(ctx, false, others...)
}

// setExcluded excludes nodes from having addresses of Services, or includes them.
func setExcluded(ctx context.Context, isExcluded bool, nodes ...string) {
	GinkgoHelper()
	value := "null"
	if isExcluded {
		value = `""`
	}
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, corev1.LabelNodeExcludeBalancers, value)
	for _, name := range nodes {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		Expect(kubeClient.Patch(ctx, node, client.RawPatch(types.MergePatchType, patch))).To(Succeed())
	}
}

// waitUntilFollowed waits until the holder of addresses has two successors for each, and until they
// watch it. It returns the successors, first rank first.
func waitUntilFollowed(ctx context.Context, holder string, addrs []netip.Addr) map[netip.Addr][]string {
	GinkgoHelper()
	var followers map[netip.Addr][]string
	Eventually(func(g Gomega) {
		followers = map[netip.Addr][]string{}
		list := &v1.AnnouncementList{}
		g.Expect(kubeClient.List(ctx, list, client.InNamespace(purelbNamespace))).To(Succeed())
		held, standbys := map[string][]v1.Successor{}, []v1.Announcement{}
		for _, ann := range list.Items {
			if ann.Spec.Standby != nil {
				standbys = append(standbys, ann)
			}
			for _, e := range ann.Spec.Addresses {
				if ann.Spec.NodeName == holder {
					held[e.Address] = e.Successors
				}
			}
		}
		for _, addr := range addrs {
			successors := held[addr.String()]
			g.Expect(successors).To(HaveLen(v1.MaxSuccessorsPerAddress), "successors of %s", addr)
			for _, s := range successors {
				g.Expect(watchesFor(standbys, s, holder, addr)).To(BeTrue(), "%s watches %s for %s", s.NodeName, holder, addr)
				followers[addr] = append(followers[addr], s.NodeName)
			}
		}
	}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
	return followers
}

// waitUntilLeasesAreSlow waits until all agents have renewed Leases that last for longer, as nodes watch all addresses.
func waitUntilLeasesAreSlow(ctx context.Context) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		for _, name := range nodeNames() {
			lease := &coordinationv1.Lease{}
			g.Expect(kubeClient.Get(ctx, client.ObjectKey{Namespace: purelbNamespace, Name: v1.LeasePrefix + name}, lease)).
				To(Succeed())
			g.Expect(lease.Spec.LeaseDurationSeconds).To(HaveValue(BeEquivalentTo(30)), "Lease of %s", name)
		}
	}).WithContext(ctx).WithTimeout(2 * time.Minute).WithPolling(pollInterval).Should(Succeed())
}

// watchesFor reports whether a successor says that it watches the holder of an address, and knows
// the epoch that is reserved for it.
func watchesFor(standbys []v1.Announcement, s v1.Successor, holder string, addr netip.Addr) bool {
	return slices.ContainsFunc(standbys, func(ann v1.Announcement) bool {
		ready := meta.FindStatusCondition(ann.Status.Conditions, v1.ConditionReady)
		return ann.Spec.NodeName == s.NodeName && ann.Spec.Standby.Watched.NodeName == holder &&
			ann.Status.ObservedGeneration == ann.Generation && ready != nil && ready.Reason == "Watching" &&
			slices.ContainsFunc(ann.Spec.Standby.Addresses, func(a v1.StandbyAddress) bool {
				return a.Address == addr.String() && slices.Contains(a.Successors, s)
			})
	})
}

// anySuccessor returns a node that watches the holder, and is a successor for all addresses.
func (m *watchedService) anySuccessor() string {
	GinkgoHelper()
	var all []string
	for _, node := range m.others(m.holder) {
		isSuccessor := func(addr netip.Addr) bool { return slices.Contains(m.successors[addr], node) }
		if !slices.ContainsFunc(m.addrs, func(addr netip.Addr) bool { return !isSuccessor(addr) }) {
			all = append(all, node)
		}
	}
	Expect(all).NotTo(BeEmpty(), "nodes that are successors for all of %v", m.addrs)
	return all[m.trial.random.IntN(len(all))]
}

// firstSuccessor returns the first successor of any of the addresses.
func (m *watchedService) firstSuccessor() string { return m.successors[m.anyAddress()][0] }

// anyAddress returns one of the addresses.
func (m *watchedService) anyAddress() netip.Addr { return m.addrs[m.trial.random.IntN(len(m.addrs))] }

// others returns all nodes but some.
func (m *watchedService) others(nodes ...string) []string {
	return slices.DeleteFunc(nodeNames(), func(name string) bool { return slices.Contains(nodes, name) })
}

// pause lets the measurement go on for a time.
func (m *watchedService) pause(d time.Duration) { pause(m.ctx, d) }

// startMeters starts a Meter of each address. All begin before what happens next.
func (m *watchedService) startMeters() {
	GinkgoHelper()
	m.meters = map[netip.Addr]*lab.Meter{}
	for _, addr := range m.addrs {
		m.meters[addr] = measureFrom(m.ctx, m.host, addr)
	}
}

// stopMeters stops the Meters, and adds what they have seen to the trial, with the family and a
// prefix. It returns the figures of all.
func (m *watchedService) stopMeters(prefix string) []lab.Figures {
	GinkgoHelper()
	var all []lab.Figures
	for _, addr := range m.addrs {
		f := m.trial.stopMeter(familyOf(addr)+prefix, m.meters[addr])
		m.trial.Figures[familyOf(addr)+prefix+settledFigure] = trial.Milliseconds(f.Settled)
		all = append(all, f)
	}
	m.meters = nil
	return all
}

// measureNext stops the Meters, and measures with new ones what do does, and three seconds more.
func (m *watchedService) measureNext(prefix string, do func()) {
	GinkgoHelper()
	if m.meters != nil {
		m.stopMeters("")
	}
	m.startMeters()
	do()
	m.pause(3 * time.Second)
	m.stopMeters(prefix)
}

// waitUntilClaimed waits until one node has each address, beside dead ones, and returns which. It
// looks only when claims are to be over, as looking takes time of the processors.
func (m *watchedService) waitUntilClaimed(dead ...string) map[netip.Addr]string {
	GinkgoHelper()
	m.pause(longestOutageOfTwo)
	found := map[netip.Addr]string{}
	Eventually(func(g Gomega) {
		holders := m.holdersAmong(g, m.others(dead...))
		for _, addr := range m.addrs {
			g.Expect(holders[addr]).To(HaveLen(1), "nodes that have %s", addr)
			found[addr] = holders[addr][0]
		}
	}).WithContext(m.ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
	return found
}

// holdersAmong returns which of some nodes have each address in their kernels.
func (m *watchedService) holdersAmong(g Gomega, nodes []string) map[netip.Addr][]string {
	found := map[netip.Addr][]string{}
	for _, node := range nodes {
		all, err := testLab.Addresses(m.ctx, node)
		g.Expect(err).NotTo(HaveOccurred())
		for _, a := range all {
			if slices.Contains(m.addrs, a.Prefix.Addr()) {
				found[a.Prefix.Addr()] = append(found[a.Prefix.Addr()], node)
			}
		}
	}
	return found
}

// expectKept checks that these nodes have the addresses, and that no others have or get them.
func (m *watchedService) expectKept(holders map[netip.Addr]string) {
	GinkgoHelper()
	for _, addr := range m.addrs {
		Expect(waitForPlaces(m.ctx, addr, 1)).To(ConsistOf(HavePrefix(holders[addr]+"/")), "%s has moved", addr)
	}
}

// waitUntilAdopted waits until the Announcements say what the kernels do.
func (m *watchedService) waitUntilAdopted(holders map[netip.Addr]string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		for _, addr := range m.addrs {
			g.Expect(findAnnouncers(m.ctx, g, addr)).To(ConsistOf(holders[addr]), "nodes that announce %s", addr)
		}
	}).WithContext(m.ctx).WithTimeout(3 * time.Minute).WithPolling(pollInterval).Should(Succeed())
}

// waitUntilAnnouncedBy waits until one of some nodes announces each address, and returns which.
func (m *watchedService) waitUntilAnnouncedBy(nodes ...string) map[netip.Addr]string {
	GinkgoHelper()
	found := map[netip.Addr]string{}
	Eventually(func(g Gomega) {
		for _, addr := range m.addrs {
			announcers := findAnnouncers(m.ctx, g, addr)
			g.Expect(announcers).To(ConsistOf(BeElementOf(nodes)), "nodes that announce %s", addr)
			found[addr] = announcers[0]
		}
	}).WithContext(m.ctx).WithTimeout(2 * time.Minute).WithPolling(pollInterval).Should(Succeed())
	return found
}

// expectNotMoved checks that the holder still announces all addresses. Other nodes may be in state
// Waiting.
func (m *watchedService) expectNotMoved() {
	GinkgoHelper()
	for _, addr := range m.addrs {
		(&disturbedService{ctx: m.ctx, addr: addr, holder: m.holder}).expectNotMoved()
	}
}

// watchKernels notes from now on what the kernels of all nodes do with addresses, until countClaims.
func (m *watchedService) watchKernels() {
	GinkgoHelper()
	m.watches = map[string]*lab.AddressWatch{}
	for _, node := range nodeNames() {
		w, err := testLab.WatchAddresses(m.ctx, node)
		Expect(err).NotTo(HaveOccurred())
		m.watches[node] = w
	}
}

// countClaims returns how often each node added one of the addresses since watchKernels. Also the
// renewal of a lifetime counts, so the count of a node that had the address means nothing.
func (m *watchedService) countClaims() map[string]int {
	counts := map[string]int{}
	for node, w := range m.watches {
		counts[node] = countAdded(w.Stop(), m.addrs)
	}
	m.watches = nil
	return counts
}

// countAdded returns how often one of the addresses was added.
func countAdded(changes []lab.AddressChange, addrs []netip.Addr) int {
	count := 0
	for _, c := range changes {
		if !c.IsDeleted && slices.Contains(addrs, c.Prefix.Addr()) {
			count++
		}
	}
	return count
}

// expectNoClaims checks that none of some nodes added one of the addresses since watchKernels.
func (m *watchedService) expectNoClaims(nodes ...string) {
	GinkgoHelper()
	counts := m.countClaims()
	for _, node := range slices.Sorted(maps.Keys(counts)) {
		if slices.Contains(nodes, node) {
			Expect(counts[node]).To(BeZero(), "claims of %s", node)
		}
	}
}

// endUnclaimed ends what is measured, unless that has ended, and checks that no node but the holder
// added an address since watchKernels, and that the holder still announces all.
func (m *watchedService) endUnclaimed() {
	GinkgoHelper()
	m.expectNoClaims(m.others(m.holder)...)
	if m.meters != nil {
		m.stopMeters("")
	}
	m.trial.stopMeasuring()
	m.expectNotMoved()
}

// stopControlPlane stops the control plane until startControlPlane, or until the spec ends, and
// waits until no agent takes itself for fresh.
func (m *watchedService) stopControlPlane() {
	GinkgoHelper()
	start := func(ctx SpecContext) { Expect(testLab.StartControlPlane(ctx)).To(Succeed()) }
	DeferCleanup(start, NodeTimeout(2*time.Minute))
	Expect(testLab.StopControlPlane(m.ctx)).To(Succeed())
	m.pause(5 * time.Second)
}

// apiBackPrefix is that of figures of the time in which the API server comes back.
const apiBackPrefix = "when the API server returns: "

// nothingHappens are bounds of a time in which nothing is to happen. They count, and depend on no
// machine.
func nothingHappens(prefix string) []trial.Bound {
	return []trial.Bound{none(prefix + failedFigure), none(prefix + inFlightFigure), none(prefix + changesFigure)}
}

// startControlPlane starts the control plane, and measures meanwhile. It makes the machine late, so
// that lateness does not count any more.
func (m *watchedService) startControlPlane() {
	GinkgoHelper()
	if m.meters != nil {
		m.stopMeters("")
	}
	m.trial.stopMeasuring()
	m.measureNext(apiBackPrefix, func() { Expect(testLab.StartControlPlane(m.ctx)).To(Succeed()) })
}

// death is a way in which a node dies, and comes back.
type death struct {
	name string
	kill func(ctx context.Context, node string) error
	// revive may be called when the node is not dead.
	revive func(ctx context.Context, node string) error
	// isNoticed says that the node's agent notices, so that it is silent when it comes back.
	isNoticed bool
}

var (
	noCarrier = death{
		name:      "no carrier",
		kill:      func(ctx context.Context, node string) error { return testLab.CutLink(ctx, node) },
		revive:    func(ctx context.Context, node string) error { return testLab.HealLink(ctx, node) },
		isNoticed: true,
	}
	cutInside = death{
		name:   "cut inside the network",
		kill:   func(ctx context.Context, node string) error { return testLab.UnplugPort(ctx, node) },
		revive: func(ctx context.Context, node string) error { return testLab.PlugPort(ctx, node) },
	}
	noPower = death{
		name: "no power",
		kill: func(ctx context.Context, node string) error {
			return errors.Join(testLab.Freeze(ctx, node), testLab.CutLink(ctx, node))
		},
		revive: func(ctx context.Context, node string) error {
			return errors.Join(testLab.Thaw(ctx, node), testLab.HealLink(ctx, node))
		},
	}
	deaths = []death{noCarrier, cutInside, noPower}
)

// kill lets nodes die, at once, until they are revived or the spec ends.
func (m *watchedService) kill(d death, nodes ...string) {
	GinkgoHelper()
	DeferCleanup(func(ctx SpecContext) {
		for _, node := range nodes {
			Expect(d.revive(ctx, node)).To(Succeed())
		}
	}, NodeTimeout(waitLimit))
	for _, node := range nodes {
		Expect(d.kill(m.ctx, node)).To(Succeed())
	}
}

// revive brings nodes back.
func (m *watchedService) revive(d death, nodes ...string) {
	GinkgoHelper()
	for _, node := range nodes {
		Expect(d.revive(m.ctx, node)).To(Succeed())
	}
}

// gatherManagers moves all managers to a node.
func (m *watchedService) gatherManagers(node string) {
	GinkgoHelper()
	uncordon := func(ctx context.Context) {
		GinkgoHelper()
		for _, other := range m.others(node) {
			kubectl(ctx, "uncordon", other)
		}
	}
	DeferCleanup(func(ctx SpecContext) { uncordon(ctx) }, NodeTimeout(waitLimit))
	for _, other := range m.others(node) {
		kubectl(m.ctx, "cordon", other)
	}
	Eventually(func(g Gomega) {
		for _, p := range listPods(m.ctx, g, managerName) {
			if p.Spec.NodeName != node && p.DeletionTimestamp == nil {
				retryKubectl(m.ctx, "-n", purelbNamespace, "delete", "pod", p.Name, "--wait=false")
			}
		}
		expectReadyPods(m.ctx, g, managerName, 2)
		for _, p := range listPods(m.ctx, g, managerName) {
			g.Expect(p.Spec.NodeName).To(Equal(node), "the node of %s", p.Name)
		}
	}).WithContext(m.ctx).WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(Succeed())
	waitForLeader(m.ctx)
	uncordon(m.ctx)
}

// TestCountAdded needs no lab.
func TestCountAdded(t *testing.T) {
	changes := []lab.AddressChange{
		{Link: "eth0", Prefix: netip.MustParsePrefix("10.77.0.100/32")},
		{Link: "eth0", Prefix: netip.MustParsePrefix("10.77.0.100/32"), IsDeleted: true},
		{Link: "eth0", Prefix: netip.MustParsePrefix("fd00:77::100/128")},
		{Link: "eth0", Prefix: netip.MustParsePrefix("10.77.0.101/32")},
	}
	addrs := []netip.Addr{netip.MustParseAddr("10.77.0.100"), netip.MustParseAddr("fd00:77::100")}
	if got := countAdded(changes, addrs); got != 2 {
		t.Errorf("%d, want 2", got)
	}
}

// TestForFamilies needs no lab. It checks that bounds and figures of an address have the same names.
func TestForFamilies(t *testing.T) {
	var want []trial.Bound
	for _, addr := range []string{"10.77.0.100", "fd00:77::100"} {
		want = append(want, atMost(familyOf(netip.MustParseAddr(addr))+silenceFigure, time.Second))
	}
	if got := forFamilies(atMost(silenceFigure, time.Second)); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
