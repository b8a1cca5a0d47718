package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/proof/trial"
)

// calmBounds are those of a time in which nothing is to happen.
func calmBounds() []trial.Bound {
	return append(nothingHappens(""), atMost(outageFigure, 500*time.Millisecond), atMost(silenceFigure, silenceThatCounts))
}

// What moves nothing: the holder's kernel answers, whatever becomes of its programs.
var _ = Describe("A watched holder whose kernel answers", func() {
	const (
		longFault  = time.Minute
		shortFault = 30 * time.Second
	)
	for _, fault := range []struct {
		name, text string
		do         func(m *watchedService)
		more       []trial.Bound
		// countsOnly says that only what depends on no machine is judged.
		countsOnly bool
	}{
		{name: "agent killed", text: "its agent is killed", do: func(m *watchedService) {
			Expect(killProgram(m.ctx, m.holder, "agent")).To(BeTrue())
			m.pause(10 * time.Second)
		}},
		{name: "agent stopped for a minute", text: "its agent is stopped for a minute", do: func(m *watchedService) {
			m.stopAgents(longFault, m.holder)
			m.pause(3 * time.Second)
		}},
		{name: "agent killed again and again", text: "its agent is killed whenever it runs", do: func(m *watchedService) {
			for end := time.Now().Add(longFault); time.Now().Before(end); {
				killProgram(m.ctx, m.holder, "agent")
				m.pause(500 * time.Millisecond)
			}
		}},
		{name: "agent replaced", text: "its agent is replaced, as by an upgrade", do: func(m *watchedService) {
			kubectl(m.ctx, "-n", purelbNamespace, "delete", "pod", agentPodOn(m.ctx, m.holder).Name, "--wait=false")
			m.pause(shortFault)
		}},
		{
			name: "watchers stand still for a second", text: "those who watch it stand still for a second, again and again",
			do: func(m *watchedService) {
				for range 5 {
					m.stopAgents(time.Second, m.others(m.holder)...)
					m.pause(3 * time.Second)
				}
			},
		},
		{
			// Ten trials are an hour.
			name: "random load for six minutes", text: "all processors are loaded at random for six minutes", countsOnly: true,
			do: func(m *watchedService) {
				upTo := func(d time.Duration) time.Duration { return time.Duration(m.trial.random.Int64N(int64(d))) }
				for end := time.Now().Add(6 * time.Minute); time.Now().Before(end); {
					loadProcessors(m.ctx, time.Second+upTo(10*time.Second))
					m.pause(upTo(5 * time.Second))
				}
			},
		},
		{
			name: "processors loaded for a minute", text: "all processors are loaded for a minute", countsOnly: true,
			do: func(m *watchedService) { loadProcessors(m.ctx, longFault) },
		},
		{
			name: "echo blocked at the holder", text: "its firewall begins to drop echo requests",
			do: func(m *watchedService) { m.blockEcho(shortFault, m.holder) },
		},
		{
			name: "echo blocked at all nodes", text: "the firewall of each node begins to drop echo requests",
			do: func(m *watchedService) { m.blockEcho(shortFault, nodeNames()...) },
		},
		{
			name: "API server away for a minute", text: "the API server is away for a minute",
			more: nothingHappens(apiBackPrefix),
			do: func(m *watchedService) {
				m.stopControlPlane()
				m.pause(longFault)
				m.startControlPlane()
			},
		},
	} {
		specifyWatched("keeps its addresses, and loses no request, when "+fault.text, func(ctx SpecContext) {
			bounds := calmBounds()
			if fault.countsOnly {
				bounds = nothingHappens("")
			}
			measureWatched(ctx, watchedFault{
				name: fault.name, isOnAnyMachine: fault.countsOnly, claimsNothing: true,
				bounds: slices.Concat(bounds, fault.more),
				do: func(m *watchedService) {
					m.watchKernels()
					fault.do(m)
					m.endUnclaimed()
				},
			})
		})
	}
})

// stopAgents lets the agents of nodes stand still for a time. The kubelet may replace one meanwhile, as it answers no
// probes.
func (m *watchedService) stopAgents(d time.Duration, nodes ...string) {
	GinkgoHelper()
	signal := func(ctx context.Context, node, name string) error {
		_, err := testLab.NodeExec(ctx, node, "pkill", name, "-f", "^/purelb agent")
		return err
	}
	goOn := func(ctx context.Context) {
		for _, node := range nodes {
			_ = signal(ctx, node, "-CONT")
		}
	}
	DeferCleanup(func(ctx SpecContext) { goOn(ctx) }, NodeTimeout(waitLimit))
	for _, node := range nodes {
		Expect(signal(m.ctx, node, "-STOP")).To(Succeed())
	}
	m.pause(d)
	goOn(m.ctx)
}

// agentPodOn returns the pod of a node's agent.
func agentPodOn(ctx context.Context, node string) corev1.Pod {
	GinkgoHelper()
	pods := listPods(ctx, Default, agentName)
	i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == node && p.DeletionTimestamp == nil })
	Expect(i).NotTo(Equal(-1), "the agent of %s", node)
	return pods[i]
}

// blockEcho drops echo requests at nodes for a time.
func (m *watchedService) blockEcho(d time.Duration, nodes ...string) {
	GinkgoHelper()
	allow := func(ctx context.Context) error {
		for _, node := range nodes {
			if err := testLab.AllowEcho(ctx, node); err != nil {
				return err
			}
		}
		return nil
	}
	DeferCleanup(func(ctx SpecContext) { _ = allow(ctx) }, NodeTimeout(waitLimit)) // the trial has done it
	for _, node := range nodes {
		Expect(testLab.BlockEcho(m.ctx, node)).To(Succeed())
	}
	Eventually(func(g Gomega) { // otherwise nothing is blocked
		g.Expect(reasonsOfWatchers(listStandbys(m.ctx, g), m.holder)).To(ContainElement("Doubtful"))
	}).WithContext(m.ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
	m.pause(d)
	Expect(allow(m.ctx)).To(Succeed())
	m.pause(3 * time.Second)
}

// reasonsOfWatchers returns what the watchers of a node report.
func reasonsOfWatchers(standbys []v1.Announcement, watched string) []string {
	var reasons []string
	for _, ann := range standbys {
		ready := meta.FindStatusCondition(ann.Status.Conditions, v1.ConditionReady)
		if ann.Spec.Standby.Watched.NodeName == watched && ready != nil {
			reasons = append(reasons, ready.Reason)
		}
	}
	return reasons
}

// loadProcessors keeps all processors of this machine busy for a time.
func loadProcessors(ctx context.Context, d time.Duration) {
	GinkgoHelper()
	const endedByTime = 124 // the status of timeout(1)
	var loads []*exec.Cmd
	for range runtime.NumCPU() {
		load := exec.CommandContext(ctx, "timeout", fmt.Sprintf("%.0f", d.Seconds()), "sh", "-c", "while :; do :; done")
		Expect(load.Start()).To(Succeed())
		loads = append(loads, load)
	}
	for _, load := range loads {
		_ = load.Wait()
		Expect(load.ProcessState.ExitCode()).To(Equal(endedByTime))
	}
}
