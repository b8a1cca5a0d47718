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

// trials is how often each disturbance is tried: E2E_TRIALS, or twice.
func trials() int {
	if n, err := strconv.Atoi(os.Getenv("E2E_TRIALS")); err == nil && n > 0 {
		return n
	}
	return 2
}

// longTrials is trials, for what takes a minute each.
func longTrials() int {
	if os.Getenv("E2E_TRIALS") == "" {
		return 1
	}
	return trials()
}

// silent is a gap between answers by ARP or ND that counts: on a busy machine
// one of some milliseconds says nothing.
const silent = 150 * time.Millisecond

// holderOf is the node that has a Local address.
func holderOf(ctx context.Context, addr netip.Addr) string {
	GinkgoHelper()
	node, _, _ := strings.Cut(where(ctx, addr, 1)[0], "/")
	return node
}

// unkilled replaces the pods of PureLB that were killed before: a kubelet starts
// their containers again later each time.
func unkilled(ctx context.Context) {
	GinkgoHelper()
	pods := &corev1.PodList{}
	Expect(c.List(ctx, pods, client.InNamespace(system))).To(Succeed())
	for i := range pods.Items {
		if slices.ContainsFunc(pods.Items[i].Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.RestartCount > 0 }) {
			Expect(client.IgnoreNotFound(c.Delete(ctx, &pods.Items[i]))).To(Succeed())
		}
	}
}

// atRest waits until all is as it should be, so that a trial begins with
// nothing left of the one before.
func atRest(ctx context.Context, svc *corev1.Service) {
	GinkgoHelper()
	for _, what := range []string{"daemonset/purelb-agent-default", "deployment/purelb-manager"} {
		kubectl(ctx, "-n", system, "rollout", "status", what, "--timeout=120s")
	}
	kubectl(ctx, "-n", namespace, "rollout", "status", "deployment/echo", "--timeout=120s")
	Eventually(func(g Gomega) {
		for _, name := range nodes() {
			node := &corev1.Node{}
			g.Expect(c.Get(ctx, client.ObjectKey{Name: name}, node)).To(Succeed())
			for _, condition := range node.Status.Conditions {
				if condition.Type == corev1.NodeReady {
					g.Expect(condition.Status).To(Equal(corev1.ConditionTrue), "%s is not ready", name)
				}
			}
			g.Expect(node.Spec.Taints).To(BeEmpty())
			a, err := announcement(ctx, name)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(a.Status.ObservedGeneration).To(Equal(a.Generation))
			for _, e := range a.Spec.Addresses {
				g.Expect(e.Leaving).To(BeFalse())
			}
			for _, i := range a.Status.Interfaces {
				g.Expect(i.Down).To(BeFalse())
			}
			lease := &coordinationv1.Lease{}
			g.Expect(c.Get(ctx, client.ObjectKey{Namespace: system, Name: v1.LeasePrefix + name}, lease)).To(Succeed())
			g.Expect(time.Since(lease.Spec.RenewTime.Time)).To(BeNumerically("<", 2*time.Second), "Lease of %s", name)
		}
	}).WithContext(ctx).WithTimeout(2 * time.Minute).WithPolling(poll).Should(Succeed())
	announced(ctx, svc)
}

// measured is a disturbance of a Service with one Local address.
type measured struct {
	*lab.Meter
	ctx    context.Context
	svc    *corev1.Service
	addr   netip.Addr
	holder string
	far    *lab.Meter // of the client behind the router, if that asks, too
}

// fromFar asks from behind the router, too.
func (m *measured) fromFar() {
	GinkgoHelper()
	var err error
	m.far, err = bed.Measure(m.ctx, lab.Far, m.addr)
	Expect(err).NotTo(HaveOccurred())
}

// end stops the measurement. From behind the router nothing may be lost, if it was
// measured.
func (m *measured) end(name string) lab.Figures {
	GinkgoHelper()
	record, err := m.Stop()
	Expect(err).NotTo(HaveOccurred())
	figures := record.Figures()
	fmt.Fprintf(os.Stdout, "%s: %s\n", name, figures)
	if m.far != nil {
		record, err := m.far.Stop()
		Expect(err).NotTo(HaveOccurred())
		far := record.Figures()
		fmt.Fprintf(os.Stdout, "%s, from behind the router: %s\n", name, far)
		Expect(far.Requests).NotTo(BeZero())
		Expect(far.Failed+far.InFlight).To(BeNumerically("<=", far.Requests/stray), "failed requests from behind the router")
		Expect(far.Outage).To(BeNumerically("<", 500*time.Millisecond), "HTTP outage behind the router")
	}
	return figures
}

// disturb runs trials of something that is done to the holder of a Local
// address, while the address is asked for all the time, and prints the figures.
// do waits until all is over; judge gets the figures of each. change is of the
// Service, which has an IPv4 address otherwise.
func disturb(ctx context.Context, name string, n int, do func(*measured), judge func(lab.Figures), change ...func(*corev1.Service)) {
	GinkgoHelper()
	group(ctx, "localdual.yaml")
	svc := service(ctx, "outage", "localdual", append([]func(*corev1.Service){singleStack}, change...)...)
	addr := ingress(ctx, svc, 1)[0]
	var outages, silences []time.Duration
	for trial := range n {
		unkilled(ctx)
		atRest(ctx, svc)
		answers(ctx, lab.Client, addr, soon)
		meter, err := bed.Measure(ctx, lab.Client, addr)
		Expect(err).NotTo(HaveOccurred())
		m := &measured{Meter: meter, ctx: ctx, svc: svc, addr: addr, holder: holderOf(ctx, addr)}
		m.last(500 * time.Millisecond)
		do(m)
		m.last(time.Second)
		figures := m.end(fmt.Sprintf("%s, trial %d", name, trial+1))
		judge(figures)
		outages, silences = append(outages, figures.Outage), append(silences, figures.Silence)
	}
	fmt.Fprintf(os.Stdout, "%s, %d trials: HTTP outage %s, ARP silence %s\n", name, n, spread(outages), spread(silences))
}

// spread is minimum, median and maximum.
func spread(times []time.Duration) string {
	slices.Sort(times)
	round := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	return fmt.Sprintf("%s / %s / %s", round(times[0]), round(times[len(times)/2]), round(times[len(times)-1]))
}

// last lets the measurement go on for a time: what is not to happen has to be
// waited for.
func (m *measured) last(d time.Duration) {
	select {
	case <-m.ctx.Done():
	case <-time.After(d):
	}
}

// moved waits until another node than the holder has the address, as its
// Announcement says, and is the only one to have an entry.
func (m *measured) moved() {
	GinkgoHelper()
	Eventually(m.places).WithContext(m.ctx).WithTimeout(2 * time.Minute).WithPolling(poll).
		Should(And(HaveLen(1), Not(ContainElement(m.holder))))
}

// places is the nodes that announce the address, and are to.
func (m *measured) places(g Gomega) []string {
	var found []string
	for _, name := range nodes() {
		a, err := announcement(m.ctx, name) // there is none for a node without an agent
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

// stayed checks that the address has not moved. Another node may stand by.
func (m *measured) stayed() {
	GinkgoHelper()
	Eventually(m.places).WithContext(m.ctx).WithTimeout(soon).WithPolling(poll).Should(
		And(ContainElement(m.holder), HaveEach(Or(Equal(m.holder), HaveSuffix(" "+string(v1.StateStandby))))))
}

// exclude excludes the holder until the address has moved.
func (m *measured) exclude() {
	GinkgoHelper()
	include := func(ctx context.Context) {
		kubectl(ctx, "label", "node", m.holder, corev1.LabelNodeExcludeBalancers+"-")
	}
	DeferCleanup(func(ctx SpecContext) { include(ctx) }, NodeTimeout(soon))
	kubectl(m.ctx, "label", "node", m.holder, corev1.LabelNodeExcludeBalancers+"=")
	m.moved()
	include(m.ctx)
}

// leader is the pod of the leading manager, and its node.
func leader(ctx context.Context) (pod, node string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		lease := &coordinationv1.Lease{}
		g.Expect(c.Get(ctx, client.ObjectKey{Namespace: system, Name: "manager.purelb.io"}, lease)).To(Succeed())
		pod, _, _ = strings.Cut(ptr.Deref(lease.Spec.HolderIdentity, ""), "_")
		p := &corev1.Pod{}
		g.Expect(c.Get(ctx, client.ObjectKey{Namespace: system, Name: pod}, p)).To(Succeed())
		node = p.Spec.NodeName
	}).WithContext(ctx).WithTimeout(soon).WithPolling(poll).Should(Succeed())
	return pod, node
}

// kill ends a process of PureLB on a node, as kill -9 does; which is manager or
// agent. It reports whether there was one.
func kill(ctx context.Context, node, which string) bool {
	_, err := bed.NodeExec(ctx, node, "pkill", "-9", "-f", "^/purelb "+which)
	return err == nil
}

// stray is in how many requests one may fail by itself: a machine that does all
// this on a few cores can keep one waiting for a second. Whatever has a cause in
// an address shows as an outage, too.
const stray = 5000

// nothingLost is what a planned change costs.
func nothingLost(f lab.Figures) {
	GinkgoHelper()
	Expect(f.Failed).To(BeNumerically("<=", f.Requests/stray), "failed requests: %s", f)
	Expect(f.Outage).To(BeNumerically("<", 500*time.Millisecond), "HTTP outage")
	Expect(f.Silence).To(BeNumerically("<", silent), "ARP silence")
	Expect(f.Duplicate).To(BeNumerically("<", 250*time.Millisecond), "two nodes answer")
}

// nothingHappened is what a disturbance costs that moves nothing.
func nothingHappened(f lab.Figures) {
	GinkgoHelper()
	nothingLost(f)
	Expect(f.InFlight).To(BeZero(), "failed requests in flight")
	Expect(f.Duplicate).To(BeZero(), "two nodes answer")
	Expect(f.Changes).To(BeZero(), "changes of MAC")
}

var _ = Describe("A disturbance", func() {
	It("is over in seconds when the holder is dead, and nothing moves when it is back", func(ctx SpecContext) {
		disturb(ctx, "holder dead", trials(), func(m *measured) {
			Expect(bed.CutLink(ctx, m.holder)).To(Succeed())
			DeferCleanup(func(ctx SpecContext) { Expect(bed.HealLink(ctx, m.holder)).To(Succeed()) }, NodeTimeout(soon))
			m.moved()
			m.last(time.Second)
			By("plugging it in again")
			back, err := bed.Measure(ctx, lab.Client, m.addr)
			Expect(err).NotTo(HaveOccurred())
			dead := m.holder
			Expect(bed.HealLink(ctx, dead)).To(Succeed())
			m.last(3 * time.Second)
			record, err := back.Stop()
			Expect(err).NotTo(HaveOccurred())
			figures := record.Figures()
			fmt.Fprintf(os.Stdout, "holder back: %s\n", figures)
			Expect(figures.Duplicate).To(BeNumerically("<", time.Second), "two nodes answer")
			Expect(m.places(Default)).To(And(HaveLen(1), Not(ContainElement(dead))), "it does not move back")
			Expect(places(ctx, m.addr)).To(HaveLen(1))
		}, func(f lab.Figures) {
			Expect(f.Silence).To(BeNumerically("<", 8*time.Second))
			Expect(f.Outage).To(BeNumerically("<", 8*time.Second))
		})
	}, SpecTimeout(30*time.Minute))

	It("costs nothing when the holder is excluded", func(ctx SpecContext) {
		disturb(ctx, "holder excluded", trials(), func(m *measured) {
			m.exclude()
		}, nothingLost)
	}, SpecTimeout(30*time.Minute))

	It("costs nothing when the holder shuts down", func(ctx SpecContext) {
		disturb(ctx, "holder shuts down", trials(), func(m *measured) {
			// What the kubelet says when it shuts down (KEP-2000); this one says that
			// all is well again with its next report.
			kubectl(ctx, "patch", "node", m.holder, "--subresource=status", "--type=strategic", "-p",
				`{"status":{"conditions":[{"type":"Ready","status":"False","reason":"KubeletNotReady","message":"node is shutting down"}]}}`)
			m.moved()
		}, nothingLost)
	}, SpecTimeout(30*time.Minute))

	It("costs nothing when the holder leaves its LBNodeAgent", func(ctx SpecContext) {
		disturb(ctx, "holder leaves its LBNodeAgent", trials(), func(m *measured) {
			back := func(ctx SpecContext) {
				kubectl(ctx, "-n", system, "patch", "lbnodeagent", "default", "--type=merge", "-p", `{"spec":{"nodeSelector":null}}`)
				for _, node := range nodes() {
					kubectl(ctx, "label", "node", node, "lab-")
				}
			}
			DeferCleanup(back, NodeTimeout(soon))
			for _, node := range nodes() {
				kubectl(ctx, "label", "node", node, "lab=yes", "--overwrite")
			}
			kubectl(ctx, "-n", system, "patch", "lbnodeagent", "default", "--type=merge", "-p", `{"spec":{"nodeSelector":{"lab":"yes"}}}`)
			kubectl(ctx, "label", "node", m.holder, "lab=no", "--overwrite")
			m.moved()
			Eventually(func(g Gomega) map[string]string {
				node := &corev1.Node{}
				g.Expect(c.Get(ctx, client.ObjectKey{Name: m.holder}, node)).To(Succeed())
				return node.Labels
			}).WithContext(ctx).WithTimeout(soon).WithPolling(poll).ShouldNot(HaveKey(v1.LabelAgent))
			back(ctx)
		}, nothingLost)
	}, SpecTimeout(30*time.Minute))

	It("is over in seconds when the leading manager dies with the holder", func(ctx SpecContext) {
		disturb(ctx, "holder and leader dead", trials(), func(m *measured) {
			_, node := leader(ctx)
			Expect(kill(ctx, node, "manager")).To(BeTrue())
			Expect(bed.CutLink(ctx, m.holder)).To(Succeed())
			heal := func(ctx SpecContext) { Expect(bed.HealLink(ctx, m.holder)).To(Succeed()) }
			DeferCleanup(heal, NodeTimeout(soon))
			m.moved()
			heal(ctx)
		}, func(f lab.Figures) { Expect(f.Silence).To(BeNumerically("<", 10*time.Second)) })
	}, SpecTimeout(30*time.Minute))

	It("costs nothing when the API server is away for a minute, and agents are killed meanwhile", func(ctx SpecContext) {
		disturb(ctx, "API server away", longTrials(), func(m *measured) {
			DeferCleanup(func(ctx SpecContext) { Expect(bed.StartControlPlane(ctx)).To(Succeed()) }, NodeTimeout(time.Minute))
			m.fromFar()
			Expect(bed.StopControlPlane(ctx)).To(Succeed())
			m.last(20 * time.Second)
			for _, node := range nodes() {
				Expect(kill(ctx, node, "agent")).To(BeTrue())
			}
			m.last(40 * time.Second)
			Expect(bed.StartControlPlane(ctx)).To(Succeed())
			atRest(ctx, m.svc)
			m.stayed()
		}, nothingHappened)
	}, SpecTimeout(60*time.Minute))

	It("costs nothing when the holder's agent is killed, again and again", func(ctx SpecContext) {
		disturb(ctx, "holder's agent killed", longTrials(), func(m *measured) {
			m.fromFar()
			for killed, deadline := 0, time.Now().Add(10*time.Second); time.Now().Before(deadline); m.last(100 * time.Millisecond) {
				if kill(ctx, m.holder, "agent") {
					killed++
				}
				if time.Until(deadline) < time.Second {
					Expect(killed).NotTo(BeZero())
				}
			}
			m.stayed()
		}, nothingHappened)
	}, SpecTimeout(30*time.Minute))

	It("costs nothing when all agents are restarted, or killed", func(ctx SpecContext) {
		disturb(ctx, "agents restarted", trials(), func(m *measured) {
			m.fromFar()
			kubectl(ctx, "-n", system, "rollout", "restart", "daemonset/purelb-agent-default")
			kubectl(ctx, "-n", system, "rollout", "status", "daemonset/purelb-agent-default", "--timeout=120s")
			for _, node := range nodes() {
				Expect(kill(ctx, node, "agent")).To(BeTrue())
			}
			m.last(time.Second)
			atRest(ctx, m.svc)
			m.stayed()
		}, nothingHappened)
	}, SpecTimeout(30*time.Minute))
})

var _ = Describe("A holder that is cut off the API only", func() {
	It("serves on, gives way to the next when its Node is not ready, and takes nothing back", func(ctx SpecContext) {
		disturb(ctx, "holder cut off the API", longTrials(), func(m *measured) {
			heal := func(ctx SpecContext) { _ = bed.HealAPI(ctx, m.holder) } // it may have been healed
			DeferCleanup(heal, NodeTimeout(soon))
			Expect(bed.CutAPI(ctx, m.holder)).To(Succeed())
			Eventually(func(g Gomega) corev1.ConditionStatus {
				moved := !slices.Contains(m.places(g), m.holder)
				node := &corev1.Node{} // as it is then, or later
				g.Expect(c.Get(ctx, client.ObjectKey{Name: m.holder}, node)).To(Succeed())
				for _, condition := range node.Status.Conditions {
					if condition.Type != corev1.NodeReady {
						continue
					}
					if moved && condition.Status == corev1.ConditionTrue {
						StopTrying("it has moved before").Now()
					}
					return condition.Status
				}
				return ""
			}).WithContext(ctx).WithTimeout(2 * time.Minute).WithPolling(poll).Should(Equal(corev1.ConditionUnknown))
			m.moved()
			next := m.places(Default)
			m.last(2 * time.Second)
			Expect(places(ctx, m.addr)).To(HaveLen(1), "the one that was cut off has given way")
			By("healing")
			Expect(bed.HealAPI(ctx, m.holder)).To(Succeed())
			atRest(ctx, m.svc)
			Expect(m.places(Default)).To(Equal(next), "healing moves nothing back")
		}, func(f lab.Figures) {
			Expect(f.Silence).To(BeNumerically("<", silent), "ARP silence")
			Expect(f.Duplicate).To(BeNumerically("<", time.Second), "two nodes answer")
			Expect(f.Changes).To(Equal(1), "changes of MAC")
			Expect(f.Failed).To(BeNumerically("<=", f.Requests/stray), "failed requests: %s", f)
			Expect(f.Outage).To(BeNumerically("<", 500*time.Millisecond), "HTTP outage")
		})
	}, SpecTimeout(60*time.Minute))
})
