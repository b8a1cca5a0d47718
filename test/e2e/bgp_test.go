package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/echo"
	"github.com/purelb/purelb-operator/test/lab"
)

// bgpPeer applies a BGPPeer, and deletes it when the test ends.
func bgpPeer(ctx context.Context, name, spec string) {
	GinkgoHelper()
	path := GinkgoT().TempDir() + "/peer.yaml"
	text := "apiVersion: purelb.io/v1\nkind: BGPPeer\nmetadata: {name: " + name + ", namespace: " + purelbNamespace + "}\nspec:\n" + spec
	Expect(os.WriteFile(path, []byte(text), 0o600)).To(Succeed())
	retryKubectl(ctx, "apply", "-f", path)
	DeferCleanup(func(ctx SpecContext) {
		kubectl(ctx, "-n", purelbNamespace, "delete", "bgppeer", name, "--ignore-not-found")
	}, NodeTimeout(waitLimit))
}

// byGateway is the spec of a BGPPeer that is each node's gateways.
const byGateway = "  peerASN: 65000\n  myASN: 65001\n  discover: DefaultGateway\n  connectTime: 1s\n"

// startRouter makes the lab's router speak BGP, until the test ends.
func startRouter(ctx context.Context, options lab.RouterOptions) {
	GinkgoHelper()
	Expect(testLab.StartRouter(ctx, options)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) { Expect(testLab.StopRouter(ctx)).To(Succeed()) }, NodeTimeout(waitLimit))
}

// expectSessions waits until a BGPPeer says that its sessions are so.
func expectSessions(ctx context.Context, name, sessions, reason string) *v1.BGPPeer {
	GinkgoHelper()
	p := &v1.BGPPeer{}
	Eventually(func(g Gomega) {
		g.Expect(kubeClient.Get(ctx, client.ObjectKey{Namespace: purelbNamespace, Name: name}, p)).To(Succeed())
		g.Expect(p.Status.Conditions).NotTo(BeEmpty())
		g.Expect(p.Status.Sessions+" "+p.Status.Conditions[0].Reason).To(Equal(sessions+" "+reason), p.Status.Conditions[0].Message)
	}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(pollInterval).Should(Succeed())
	return p
}

// routerNextHops returns the nodes over which the router's kernel has a route to an address.
func routerNextHops(ctx context.Context, g Gomega, address netip.Addr) []string {
	family := "-4"
	if address.Is6() {
		family = "-6"
	}
	out, err := testLab.Exec(ctx, lab.Router, "ip", family, "route", "show", netip.PrefixFrom(address, address.BitLen()).String())
	g.Expect(err).NotTo(HaveOccurred())
	var over []string
	for _, n := range testLab.Nodes() {
		for _, a := range []netip.Addr{n.IPv4.Addr(), n.IPv6.Addr()} {
			if strings.Contains(out+" ", "via "+a.String()+" ") {
				over = append(over, n.Name)
			}
		}
	}
	return over
}

// expectNextHops waits until the router's kernel has a route to an address over the nodes.
func expectNextHops(ctx context.Context, address netip.Addr, nodes ...string) {
	GinkgoHelper()
	Eventually(func(g Gomega) { g.Expect(routerNextHops(ctx, g, address)).To(ConsistOf(nodes)) }).
		WithContext(ctx).WithTimeout(30 * time.Second).WithPolling(pollInterval).Should(Succeed())
}

// timedMeter is a Meter with the time at which it began.
type timedMeter struct {
	*lab.Meter
	begun time.Time
}

// expectNoFailure stops meters, and wants no request to have failed. changes are when the router
// spread connections over other nodes than before: one that was under way then may fail.
func expectNoFailure(what string, changes []time.Time, meters ...timedMeter) {
	GinkgoHelper()
	const underWay = 200 * time.Millisecond // a request takes a few milliseconds
	isUnderWay := func(start time.Time) bool {
		return slices.ContainsFunc(changes, func(at time.Time) bool { return !at.Before(start) && at.Sub(start) < underWay })
	}
	var failures []string
	for _, m := range meters {
		record, err := m.Stop()
		Expect(err).NotTo(HaveOccurred())
		Expect(len(record.Requests)).To(BeNumerically(">", 20), "%s: too few requests", what)
		failed, broken := 0, 0
		for _, r := range record.Requests {
			switch {
			case r.Err == nil:
			case isUnderWay(m.begun.Add(r.Start)):
				broken++
			default:
				failed++
				failures = append(failures, fmt.Sprintf("%s–%s: %v", m.begun.Add(r.Start).Format("15:04:05.000"), m.begun.Add(r.End).Format("05.000"), r.Err))
			}
		}
		fmt.Fprintf(os.Stdout, "%s: %d requests, %d failed, %d broken while the router changed a route\n", what, len(record.Requests), failed, broken)
		Expect(broken).To(BeNumerically("<=", len(changes)), what)
	}
	Expect(failures).To(BeEmpty(), what)
}

// measureBoth measures two addresses from behind the router.
func measureBoth(ctx context.Context, addrs []netip.Addr) []timedMeter {
	GinkgoHelper()
	var meters []timedMeter
	for _, a := range addrs {
		begun := time.Now()
		m, err := testLab.Measure(ctx, lab.Far, a)
		Expect(err).NotTo(HaveOccurred())
		meters = append(meters, timedMeter{m, begun})
	}
	return meters
}

func speakerPods(ctx context.Context, g Gomega) []corev1.Pod {
	pods := &corev1.PodList{}
	g.Expect(kubeClient.List(ctx, pods, client.InNamespace(purelbNamespace), client.MatchingLabels{"app.kubernetes.io/name": "purelb-speaker"})).To(Succeed())
	return pods.Items
}

var _ = Describe("BGP", Label("bgp"), func() {
	It("runs no speaker without a BGPPeer", func(ctx SpecContext) {
		Consistently(func(g Gomega) { g.Expect(speakerPods(ctx, g)).To(BeEmpty()) }).WithContext(ctx).WithTimeout(time.Second).WithPolling(pollInterval).Should(Succeed())
		out := kubectl(ctx, "-n", purelbNamespace, "get", "noderoutings,daemonsets,secrets", "-o", "name")
		Expect(out).NotTo(ContainSubstring("speaker"))
		Expect(out).NotTo(ContainSubstring("noderouting"))
	}, SpecTimeout(time.Minute))

	for _, daemon := range []lab.Daemon{lab.FRR, lab.BIRD} {
		It("makes Virtual addresses reachable over all nodes, and loses no request when a speaker is replaced, with "+string(daemon), func(ctx SpecContext) {
			applyGroup(ctx, "remotedual.yaml")
			applyGroup(ctx, "localdual.yaml")
			startRouter(ctx, lab.RouterOptions{Daemon: daemon})
			svc := createService(ctx, "routed", "remotedual")
			addrs := waitForAddresses(ctx, svc, 2)
			begun := time.Now()
			bgpPeer(ctx, "gateways", byGateway)
			for _, a := range addrs {
				expectNextHops(ctx, a, nodeNames()...)
			}
			fmt.Fprintf(os.Stdout, "%s: routes of both families over all nodes %s after the first BGPPeer\n", daemon, time.Since(begun).Round(10*time.Millisecond))
			expectSessions(ctx, "gateways", "6/6", v1.ReasonEstablished)
			for _, a := range addrs {
				waitForAnswer(ctx, lab.Far, a, waitLimit)
			}
			out := kubectl(ctx, "-n", purelbNamespace, "get", "bgppeers,noderoutings", "-o", "wide")
			fmt.Fprintln(os.Stdout, out)

			By("advertising no Local address")
			local := createService(ctx, "onlink", "localdual")
			for _, a := range waitForAddresses(ctx, local, 2) {
				waitForAnswer(ctx, lab.Client, a, waitLimit)
				expectNextHops(ctx, a)
			}

			By("replacing each speaker, killing one, and replacing agents")
			watch, err := testLab.WatchRoutes(ctx, lab.Router)
			Expect(err).NotTo(HaveOccurred())
			meters := measureBoth(ctx, addrs)
			kubectl(ctx, "-n", purelbNamespace, "rollout", "restart", "daemonset/purelb-speaker-default")
			kubectl(ctx, "-n", purelbNamespace, "rollout", "status", "daemonset/purelb-speaker-default", "--timeout=180s")
			expectSessions(ctx, "gateways", "6/6", v1.ReasonEstablished)
			_, err = testLab.NodeExec(ctx, nodeNames()[0], "sh", "-c", "kill -9 $(pidof purelb-speaker)")
			Expect(err).NotTo(HaveOccurred())
			Eventually(func(g Gomega) {
				restarts := int32(0)
				for _, p := range speakerPods(ctx, g) {
					for _, c := range p.Status.ContainerStatuses {
						restarts += c.RestartCount
						g.Expect(c.Ready).To(BeTrue())
					}
				}
				g.Expect(restarts).To(BeNumerically(">=", 1))
			}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(pollInterval).Should(Succeed())
			kubectl(ctx, "-n", purelbNamespace, "rollout", "restart", "daemonset/purelb-agent-default")
			kubectl(ctx, "-n", purelbNamespace, "rollout", "status", "daemonset/purelb-agent-default", "--timeout=180s")
			expectSessions(ctx, "gateways", "6/6", v1.ReasonEstablished)
			Expect(watch.Stop()).To(BeEmpty(), "the router changed routes")
			expectNoFailure(string(daemon)+": speakers replaced and killed, agents replaced", nil, meters...)

			By("deleting the BGPPeer")
			kubectl(ctx, "-n", purelbNamespace, "delete", "bgppeer", "gateways")
			for _, a := range addrs {
				expectNextHops(ctx, a)
			}
			Eventually(func(g Gomega) { g.Expect(speakerPods(ctx, g)).To(BeEmpty()) }).WithContext(ctx).WithTimeout(time.Minute).WithPolling(pollInterval).Should(Succeed())
		}, SpecTimeout(8*time.Minute))
	}

	It("says in words what is wrong with a session", func(ctx SpecContext) {
		startRouter(ctx, lab.RouterOptions{Daemon: lab.FRR, Password: "right"})
		Expect(kubeClient.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "router", Namespace: purelbNamespace}, StringData: map[string]string{"password": "wrong"}})).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { kubectl(ctx, "-n", purelbNamespace, "delete", "secret", "router") }, NodeTimeout(waitLimit))
		bgpPeer(ctx, "v4", "  peerASN: 65000\n  myASN: 65001\n  peerAddress: 10.77.0.1\n  connectTime: 1s\n  passwordSecretRef: {name: router, key: password}\n")
		Eventually(func() string {
			return expectSessions(ctx, "v4", "0/3", v1.ReasonSessionsDown).Status.Conditions[0].Message
		}).WithContext(ctx).WithTimeout(waitLimit).Should(ContainSubstring("its password differs"))

		By("correcting the password, without a restart of any pod")
		before := speakerPods(ctx, Default)
		kubectl(ctx, "-n", purelbNamespace, "patch", "secret", "router", "--type=merge", "-p", `{"stringData":{"password":"right"}}`)
		Eventually(func() string {
			p := &v1.BGPPeer{}
			_ = kubeClient.Get(ctx, client.ObjectKey{Namespace: purelbNamespace, Name: "v4"}, p)
			return p.Status.Sessions
		}).WithContext(ctx).WithTimeout(3 * time.Minute).WithPolling(pollInterval).Should(Equal("3/3"))
		after := speakerPods(ctx, Default)
		Expect(after).To(HaveLen(len(before)))
		for i := range after {
			Expect(after[i].UID).To(Equal(before[i].UID))
		}
		Eventually(func() string {
			return kubectl(ctx, "-n", purelbNamespace, "get", "events", "--field-selector=involvedObject.kind=BGPPeer")
		}).WithContext(ctx).WithTimeout(waitLimit).Should(ContainSubstring("SessionUp"))
	}, SpecTimeout(6*time.Minute))

	It("loses no request when a node is drained, and comes back", func(ctx SpecContext) {
		applyGroup(ctx, "remotedual.yaml")
		startRouter(ctx, lab.RouterOptions{Daemon: lab.FRR})
		svc := createService(ctx, "drained", "remotedual")
		addrs := waitForAddresses(ctx, svc, 2)
		bgpPeer(ctx, "gateways", byGateway)
		for _, a := range addrs {
			expectNextHops(ctx, a, nodeNames()...)
			waitForAnswer(ctx, lab.Far, a, waitLimit)
		}
		node := nodeNames()[0]
		for trial := range trials() {
			watch, err := testLab.WatchRoutes(ctx, lab.Router)
			Expect(err).NotTo(HaveOccurred())
			meters := measureBoth(ctx, addrs)
			kubectl(ctx, "label", "node", node, "node.kubernetes.io/exclude-from-external-load-balancers=")
			DeferCleanup(func(ctx SpecContext) {
				kubectl(ctx, "label", "node", node, "node.kubernetes.io/exclude-from-external-load-balancers-")
			}, NodeTimeout(waitLimit))
			for _, a := range addrs {
				expectNextHops(ctx, a, nodeNames()[1:]...)
			}
			for _, a := range addrs { // the address goes after the route
				Expect(findPlaces(ctx, a)).To(ContainElement(ContainSubstring(node + "/")))
			}
			Eventually(func(g Gomega) {
				for _, a := range addrs {
					g.Expect(findPlaces(ctx, a)).NotTo(ContainElement(ContainSubstring(node + "/")))
				}
			}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(pollInterval).Should(Succeed())
			kubectl(ctx, "label", "node", node, "node.kubernetes.io/exclude-from-external-load-balancers-")
			for _, a := range addrs {
				expectNextHops(ctx, a, nodeNames()...)
			}
			expectNoFailure(fmt.Sprintf("node drained and back, %d", trial), watch.Stop(), meters...)
		}
	}, SpecTimeout(5*time.Minute))

	It("goes on while the API server is away, with a new speaker, too", func(ctx SpecContext) {
		applyGroup(ctx, "remotedual.yaml")
		startRouter(ctx, lab.RouterOptions{Daemon: lab.FRR})
		svc := createService(ctx, "outage", "remotedual")
		addrs := waitForAddresses(ctx, svc, 2)
		bgpPeer(ctx, "gateways", byGateway)
		expectSessions(ctx, "gateways", "6/6", v1.ReasonEstablished)
		for _, a := range addrs {
			waitForAnswer(ctx, lab.Far, a, waitLimit)
		}
		watch, err := testLab.WatchRoutes(ctx, lab.Router)
		Expect(err).NotTo(HaveOccurred())
		meters := measureBoth(ctx, addrs)
		Expect(testLab.StopControlPlane(ctx)).To(Succeed())
		back := func(ctx SpecContext) { Expect(testLab.StartControlPlane(ctx)).To(Succeed()) }
		DeferCleanup(back, NodeTimeout(time.Minute))
		const away = 60 * time.Second
		began := time.Now()
		_, err = testLab.NodeExec(ctx, nodeNames()[1], "sh", "-c", "kill -9 $(pidof purelb-speaker)")
		Expect(err).NotTo(HaveOccurred())
		Eventually(func() (int, error) {
			out, err := testLab.Vtysh(ctx, "show bgp summary established json")
			return strings.Count(out, `"state":"Established"`), err
		}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(BeNumerically(">=", 2*len(nodeNames())), "the speaker does not start without the API server")
		time.Sleep(away - time.Since(began)) // the outage is to last so long
		back(ctx)
		kubectl(ctx, "-n", purelbNamespace, "rollout", "status", "deployment/purelb-manager", "--timeout=120s")
		expectSessions(ctx, "gateways", "6/6", v1.ReasonEstablished)
		Expect(watch.Stop()).To(BeEmpty(), "the router changed routes")
		expectNoFailure("API server away for 60 s, a speaker killed meanwhile", nil, meters...)
	}, SpecTimeout(5*time.Minute))

	It("follows the endpoints of policy Local, and keeps the client's address", func(ctx SpecContext) {
		applyGroup(ctx, "remotedual.yaml")
		startRouter(ctx, lab.RouterOptions{Daemon: lab.FRR})
		bgpPeer(ctx, "gateways", byGateway)
		server := echoOn(ctx, "bgp-local", 2)
		svc := createService(ctx, "bgp-local", "remotedual", func(svc *corev1.Service) {
			svc.Spec.Selector, svc.Spec.ExternalTrafficPolicy = map[string]string{"app": "bgp-local"}, corev1.ServiceExternalTrafficPolicyLocal
		})
		addrs := waitForAddresses(ctx, svc, 2)
		atEndpoints := func() {
			GinkgoHelper()
			Eventually(func(g Gomega) {
				pods := &corev1.PodList{}
				g.Expect(kubeClient.List(ctx, pods, client.InNamespace(testNamespace), client.MatchingLabels{"app": "bgp-local"})).To(Succeed())
				nodes := map[string]bool{}
				for _, p := range pods.Items {
					if p.DeletionTimestamp == nil {
						nodes[p.Spec.NodeName] = true
					}
				}
				for _, a := range addrs {
					g.Expect(routerNextHops(ctx, g, a)).To(HaveLen(len(nodes)))
					for node := range nodes {
						g.Expect(routerNextHops(ctx, g, a)).To(ContainElement(node))
					}
				}
			}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(pollInterval).Should(Succeed())
		}
		atEndpoints()
		for _, a := range addrs {
			waitForAnswer(ctx, lab.Far, a, waitLimit)
		}
		// A node that has just got an endpoint may refuse until its kube-proxy has seen that, too.
		Eventually(func() (string, error) { return fetch(ctx, lab.Far, addrs[0]) }).WithContext(ctx).WithTimeout(waitLimit).
			WithPolling(pollInterval).Should(ContainSubstring("client=10.78.0.2:"), "the client's own address")
		kubectl(ctx, "-n", testNamespace, "rollout", "restart", "deployment/"+server)
		kubectl(ctx, "-n", testNamespace, "rollout", "status", "deployment/"+server, "--timeout=120s")
		atEndpoints()
		for _, a := range addrs {
			waitForAnswer(ctx, lab.Far, a, waitLimit)
		}
	}, SpecTimeout(5*time.Minute))

	It("advertises networks with the attributes that their ServiceGroup asks for", func(ctx SpecContext) {
		applyGroup(ctx, "aggregated.yaml")
		startRouter(ctx, lab.RouterOptions{Daemon: lab.FRR})
		bgpPeer(ctx, "v4", "  peerASN: 65000\n  myASN: 65001\n  peerAddress: 10.77.0.1\n  connectTime: 1s\n")
		bgpPeer(ctx, "v6", "  peerASN: 65000\n  myASN: 65001\n  peerAddress: fd00:77::1\n  connectTime: 1s\n  families: [IPv4, IPv6]\n")
		first, second := createService(ctx, "first", "aggregated"), createService(ctx, "second", "aggregated")
		waitForAddresses(ctx, first, 2)
		waitForAddresses(ctx, second, 2)
		details := func(family, prefix string) string {
			out, err := testLab.Vtysh(ctx, "show bgp "+family+" unicast "+prefix)
			Expect(err).NotTo(HaveOccurred())
			return out
		}
		// The group names v4 only: nothing comes by the session over IPv6.
		Eventually(func() string { return details("ipv4", "172.33.1.0/24") }).WithContext(ctx).WithTimeout(time.Minute).WithPolling(pollInterval).
			Should(And(ContainSubstring("65001 65001 65001"), ContainSubstring("metric 50"), ContainSubstring("Community: 65001:77 no-export"),
				ContainSubstring("Large Community: 65001:1:2"), ContainSubstring("3 available")))
		Expect(details("ipv6", "fd00:33:1::/64")).To(ContainSubstring("Network not in table"))
		table, err := testLab.Vtysh(ctx, "show bgp ipv4 unicast")
		Expect(err).NotTo(HaveOccurred())
		Expect(table).NotTo(ContainSubstring("172.33.1.1"), "one route for the whole network")

		By("deleting one Service, then the other")
		Expect(kubeClient.Delete(ctx, first)).To(Succeed())
		Consistently(func() string { return details("ipv4", "172.33.1.0/24") }).WithContext(ctx).WithTimeout(2 * time.Second).WithPolling(pollInterval).Should(ContainSubstring("65001"))
		Expect(kubeClient.Delete(ctx, second)).To(Succeed())
		Eventually(func() string { return details("ipv4", "172.33.1.0/24") }).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(ContainSubstring("Network not in table"))
	}, SpecTimeout(4*time.Minute))
})

// echoOn starts echo servers of a name of their own that go on serving for a while after they
// are told to end, and returns the name of the Deployment.
func echoOn(ctx context.Context, name string, replicas int32) string {
	GinkgoHelper()
	labels := map[string]string{"app": name}
	d := echo.Deployment(testNamespace, lab.EchoImage)
	d.Name, d.Spec.Replicas = name, ptr.To(replicas)
	d.Spec.Selector.MatchLabels, d.Spec.Template.Labels = labels, labels
	d.Spec.Template.Spec.TerminationGracePeriodSeconds = ptr.To[int64](10)
	d.Spec.Template.Spec.TopologySpreadConstraints[0].LabelSelector.MatchLabels = labels
	d.Spec.Template.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 5}}}
	Expect(kubeClient.Create(ctx, d)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) {
		Expect(client.IgnoreNotFound(kubeClient.Delete(ctx, d, client.PropagationPolicy(metav1.DeletePropagationForeground)))).To(Succeed())
	}, NodeTimeout(waitLimit))
	kubectl(ctx, "-n", testNamespace, "rollout", "status", "deployment/"+name, "--timeout=180s") // the controllers may have just restarted
	return name
}
