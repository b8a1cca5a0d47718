package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/lab"
	"github.com/purelb/purelb-operator/test/proof/trial"
)

// bgpPeer applies a BGPPeer, and deletes it when the test ends. The speakers go with the last
// BGPPeer.
func bgpPeer(ctx context.Context, name, spec string) {
	GinkgoHelper()
	path := GinkgoT().TempDir() + "/peer.yaml"
	text := "apiVersion: purelb.io/v1\nkind: BGPPeer\nmetadata: {name: " + name + ", namespace: " + purelbNamespace +
		"}\nspec:\n" + spec
	Expect(os.WriteFile(path, []byte(text), 0o600)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) {
		retryKubectl(ctx, "-n", purelbNamespace, "delete", "bgppeer", name, "--ignore-not-found")
		left := &v1.BGPPeerList{}
		Expect(kubeClient.List(ctx, left, client.InNamespace(purelbNamespace))).To(Succeed())
		if len(left.Items) == 0 {
			waitForNoSpeakers(ctx)
		}
	}, NodeTimeout(4*waitLimit))
	retryKubectl(ctx, "apply", "-f", path)
}

// waitForNoSpeakers waits until nothing is left of the speakers.
func waitForNoSpeakers(ctx context.Context) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(listPods(ctx, g, speakerName)).To(BeEmpty())
		out, err := tryKubectl(ctx, "-n", purelbNamespace, "get", "noderoutings,daemonsets,secrets", "-o", "name")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).NotTo(Or(ContainSubstring("speaker"), ContainSubstring("noderouting")))
	}).WithContext(ctx).WithTimeout(2 * waitLimit).WithPolling(pollInterval).Should(Succeed())
}

// byGateway is the spec of a BGPPeer that is each node's gateways.
const byGateway = "  peerASN: 65000\n  myASN: 65001\n  discover: DefaultGateway\n"

// startRouter makes the lab's router speak BGP, until the test ends.
func startRouter(ctx context.Context, options lab.RouterOptions) {
	GinkgoHelper()
	DeferCleanup(func(ctx SpecContext) { Expect(testLab.StopRouter(ctx)).To(Succeed()) }, NodeTimeout(waitLimit))
	Expect(testLab.StartRouter(ctx, options)).To(Succeed())
}

// expectSessions waits until a BGPPeer says that its sessions are so.
func expectSessions(ctx context.Context, name, sessions, reason string) *v1.BGPPeer {
	GinkgoHelper()
	p := &v1.BGPPeer{}
	Eventually(func(g Gomega) {
		g.Expect(kubeClient.Get(ctx, client.ObjectKey{Namespace: purelbNamespace, Name: name}, p)).To(Succeed())
		g.Expect(p.Status.Conditions).NotTo(BeEmpty())
		g.Expect(p.Status.Sessions+" "+p.Status.Conditions[0].Reason).To(
			Equal(sessions+" "+reason), p.Status.Conditions[0].Message,
		)
	}).WithContext(ctx).WithTimeout(2 * waitLimit).WithPolling(pollInterval).Should(Succeed())
	return p
}

// waitForNewSessions waits until every node says that its sessions with a BGPPeer have come up
// since a time, and are up. So it does not see those of before.
func waitForNewSessions(ctx context.Context, peer string, since time.Time, nodes ...string) {
	GinkgoHelper()
	since = since.Truncate(time.Second) // as times in the API are
	Eventually(func(g Gomega) {
		list := &v1.NodeRoutingList{}
		g.Expect(kubeClient.List(ctx, list, client.InNamespace(purelbNamespace))).To(Succeed())
		seen := map[string]bool{}
		for _, r := range list.Items {
			if !slices.Contains(nodes, r.Spec.NodeName) {
				continue
			}
			for _, session := range r.Status.Sessions {
				if session.Peer != peer {
					continue
				}
				seen[r.Spec.NodeName] = true
				g.Expect(session.State).To(Equal(v1.SessionEstablished), "%s with %s", r.Spec.NodeName, session.Neighbor)
				g.Expect(session.Since).NotTo(BeNil())
				g.Expect(session.Since.Time).NotTo(BeTemporally("<", since), "%s with %s", r.Spec.NodeName, session.Neighbor)
			}
		}
		g.Expect(seen).To(HaveLen(len(nodes)), "nodes with sessions")
	}).WithContext(ctx).WithTimeout(2 * waitLimit).WithPolling(pollInterval).Should(Succeed())
}

// countNewSessions returns how many sessions with a node the router's FRR has that came up less
// than a time ago, and are up.
func countNewSessions(ctx context.Context, node lab.Node, age time.Duration) (int, error) {
	out, err := testLab.Vtysh(ctx, "show bgp summary established json")
	if err != nil {
		return 0, err
	}
	var families map[string]struct {
		Peers map[string]struct {
			State          string `json:"state"`
			PeerUptimeMsec int64  `json:"peerUptimeMsec"`
		} `json:"peers"`
	}
	if err := json.Unmarshal([]byte(out), &families); err != nil {
		return 0, fmt.Errorf("read FRR's summary: %w: %s", err, out)
	}
	found := map[string]bool{}
	for _, family := range families {
		for _, address := range []netip.Addr{node.IPv4.Addr(), node.IPv6.Addr()} {
			peer := family.Peers[address.String()]
			if peer.State == "Established" && time.Duration(peer.PeerUptimeMsec)*time.Millisecond < age {
				found[address.String()] = true
			}
		}
	}
	return len(found), nil
}

// routerNextHops returns the nodes over which the router's kernel has a route to an address.
func routerNextHops(ctx context.Context, g Gomega, address netip.Addr) []string {
	family := "-4"
	if address.Is6() {
		family = "-6"
	}
	out, err := testLab.Exec(
		ctx, lab.Router, "ip", family, "route", "show", netip.PrefixFrom(address, address.BitLen()).String(),
	)
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
		WithContext(ctx).WithTimeout(2*waitLimit).WithPolling(pollInterval).Should(Succeed(), "next hops of %s", address)
}

// timedMeter is a Meter with the time at which it began.
type timedMeter struct {
	*lab.Meter
	begun time.Time
}

// What routed addresses may lose while their routes change: nothing but connections that were
// under way, one for each change.
const (
	brokenFigure  = "requests broken while the router changed a route"
	changedFigure = "changes of routes"
)

// noteMeters stops meters and adds to the trial what they have seen. changes are when the router
// spread connections over other nodes than before: one that was under way then may fail, and
// each further one counts as failed.
func (t *oneTrial) noteMeters(changes []time.Time, meters ...timedMeter) {
	GinkgoHelper()
	const underWay = 200 * time.Millisecond // a request takes a few milliseconds
	isUnderWay := func(start time.Time) bool {
		return slices.ContainsFunc(changes, func(at time.Time) bool { return !at.Before(start) && at.Sub(start) < underWay })
	}
	t.Figures[changedFigure] = float64(len(changes))
	for _, figure := range []string{requestsFigure, failedFigure, brokenFigure, retransmittedFigure, outageFigure} {
		t.Figures[figure] = 0
	}
	for _, m := range meters {
		record, err := m.Stop()
		Expect(err).NotTo(HaveOccurred())
		Expect(len(record.Requests)).To(BeNumerically(">", 20), "too few requests")
		figures, broken := record.Figures(), 0
		for _, r := range record.Requests {
			switch {
			case r.Err == nil:
				continue
			case isUnderWay(m.begun.Add(r.Start)):
				broken++
			default:
				t.Figures[failedFigure]++
			}
			t.Errors = append(
				t.Errors,
				fmt.Sprintf("%s–%s: %v", m.begun.Add(r.Start).Format("15:04:05.000"), m.begun.Add(r.End).Format("05.000"), r.Err),
			)
		}
		t.Figures[failedFigure] += float64(max(0, broken-len(changes)))
		t.Figures[brokenFigure] += float64(broken)
		t.Figures[requestsFigure] += float64(figures.Requests)
		t.Figures[retransmittedFigure] += float64(figures.Retransmitted)
		t.Figures[outageFigure] = max(t.Figures[outageFigure], trial.Milliseconds(figures.Outage))
	}
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

// routedService makes the router speak BGP with the nodes, and creates a Service with Virtual
// addresses that the router reaches over all nodes.
func routedService(ctx context.Context, s *space, daemon lab.Daemon, group, name string) []netip.Addr {
	GinkgoHelper()
	startRouter(ctx, lab.RouterOptions{Daemon: daemon})
	svc := s.createService(ctx, name, group)
	addrs := waitForAddresses(ctx, svc, 2)
	begun := time.Now()
	bgpPeer(ctx, "gateways", byGateway)
	for _, a := range addrs {
		expectNextHops(ctx, a, nodeNames()...)
	}
	fmt.Fprintf(
		os.Stdout, "%s: routes of both families over all nodes %s after the first BGPPeer\n", daemon,
		time.Since(begun).Round(10*time.Millisecond),
	)
	expectSessions(ctx, "gateways", "6/6", v1.ReasonEstablished)
	for _, a := range addrs {
		waitForAnswer(ctx, lab.Far, a)
	}
	return addrs
}

// replaceRestartedSpeakers replaces the speakers that were killed before, and waits until all are
// ready. The kubelet's back-off would restart them later each time.
func replaceRestartedSpeakers(ctx context.Context) {
	GinkgoHelper()
	replaceRestartedPods(ctx)
	Eventually(func(g Gomega) { expectReadyPods(ctx, g, speakerName, len(nodeNames())) }).
		WithContext(ctx).WithTimeout(2 * waitLimit).WithPolling(pollInterval).Should(Succeed())
	waitUntilReady(ctx)
}

// killSpeaker kills the speaker on a node, as kill -9 does.
func killSpeaker(ctx context.Context, node string) {
	GinkgoHelper()
	_, err := testLab.NodeExec(ctx, node, "sh", "-c", "kill -9 $(pidof purelb-speaker)")
	Expect(err).NotTo(HaveOccurred())
}

var _ = Describe("BGP", Label(bgpTopic), func() {
	It("runs no speaker without a BGPPeer", func(ctx SpecContext) {
		s := newSpace(ctx)
		svc := s.createService(ctx, "unrouted", s.virtualGroup(ctx))
		waitUntilAnnounced(ctx, svc)
		s.waitForManager(ctx)
		Expect(listPods(ctx, Default, speakerName)).To(BeEmpty())
		out := kubectl(ctx, "-n", purelbNamespace, "get", "noderoutings,daemonsets,secrets", "-o", "name")
		Expect(out).NotTo(ContainSubstring("speaker"))
		Expect(out).NotTo(ContainSubstring("noderouting"))
	}, SpecTimeout(functionalLimit))

	for _, daemon := range []lab.Daemon{lab.FRR, lab.BIRD} {
		var labels Labels
		if daemon == lab.FRR {
			labels = Label(smokeLabel)
		}
		It("makes Virtual addresses reachable over all nodes until the BGPPeer is deleted, with "+string(daemon), labels,
			func(ctx SpecContext) {
				s := newSpace(ctx)
				virtual := s.virtualGroup(ctx)
				addrs := routedService(ctx, s, daemon, virtual, "routed")
				GinkgoWriter.Println(kubectl(ctx, "-n", purelbNamespace, "get", "bgppeers,noderoutings", "-o", "wide"))

				By("advertising no Local address, although what comes later is advertised")
				local := s.createService(ctx, "onlink", s.localGroup(ctx))
				locals := waitForAddresses(ctx, local, 2)
				for _, a := range locals {
					waitForAnswer(ctx, lab.Client, a)
				}
				later := s.createService(ctx, "later", virtual)
				for _, a := range waitForAddresses(ctx, later, 2) {
					expectNextHops(ctx, a, nodeNames()...)
				}
				for _, a := range locals {
					Expect(routerNextHops(ctx, Default, a)).To(BeEmpty(), "routes to %s", a)
				}

				By("deleting the BGPPeer")
				kubectl(ctx, "-n", purelbNamespace, "delete", "bgppeer", "gateways")
				for _, a := range addrs {
					expectNextHops(ctx, a)
				}
				waitForNoSpeakers(ctx)
			}, SpecTimeout(smokeLimit))

		It("loses no request when speakers and agents are replaced, with "+string(daemon), Label(proofLabel),
			func(ctx SpecContext) {
				s := newSpace(ctx)
				addrs := routedService(ctx, s, daemon, s.virtualGroup(ctx), "routed")
				waitForServers(ctx, s.namespace)
				bounds := []trial.Bound{none(failedFigure), none(changedFigure)}
				runTrials(ctx, string(daemon)+": speakers replaced and killed, agents replaced", bounds, func(t *oneTrial) {
					replaceRestartedSpeakers(ctx)
					expectSessions(ctx, "gateways", "6/6", v1.ReasonEstablished)
					t.measureFromNow()
					watch, err := testLab.WatchRoutes(ctx, lab.Router)
					Expect(err).NotTo(HaveOccurred())
					meters := measureBoth(ctx, addrs)
					begun := time.Now()
					kubectl(ctx, "-n", purelbNamespace, "rollout", "restart", "daemonset/purelb-speaker-default")
					kubectl(ctx, "-n", purelbNamespace, "rollout", "status", "daemonset/purelb-speaker-default", "--timeout=180s")
					waitForNewSessions(ctx, "gateways", begun, nodeNames()...)
					killed := time.Now()
					node := nodeNames()[t.random.IntN(len(nodeNames()))]
					killSpeaker(ctx, node)
					waitForNewSessions(ctx, "gateways", killed, node)
					Eventually(func(g Gomega) {
						restarts := int32(0)
						for _, p := range listPods(ctx, g, speakerName) {
							for _, c := range p.Status.ContainerStatuses {
								restarts += c.RestartCount
								g.Expect(c.Ready).To(BeTrue())
							}
						}
						g.Expect(restarts).To(BeNumerically(">=", 1))
					}).WithContext(ctx).WithTimeout(2 * waitLimit).WithPolling(pollInterval).Should(Succeed())
					kubectl(ctx, "-n", purelbNamespace, "rollout", "restart", "daemonset/purelb-agent-default")
					kubectl(ctx, "-n", purelbNamespace, "rollout", "status", "daemonset/purelb-agent-default", "--timeout=180s")
					waitUntilReady(ctx)
					expectSessions(ctx, "gateways", "6/6", v1.ReasonEstablished)
					t.noteMeters(watch.Stop(), meters...)
				})
			}, proofLimit())
	}

	It("says in words what is wrong with a session", func(ctx SpecContext) {
		startRouter(ctx, lab.RouterOptions{Daemon: lab.FRR, Password: "right"})
		DeferCleanup(func(ctx SpecContext) {
			retryKubectl(ctx, "-n", purelbNamespace, "delete", "secret", "router", "--ignore-not-found")
		}, NodeTimeout(2*waitLimit))
		Expect(kubeClient.Create(
			ctx,
			&corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Name: "router", Namespace: purelbNamespace},
				StringData: map[string]string{"password": "wrong"},
			},
		)).To(Succeed())
		bgpPeer(
			ctx, "v4",
			"  peerASN: 65000\n  myASN: 65001\n  peerAddress: 10.77.0.1\n  passwordSecretRef: {name: "+
				"router, key: password}\n",
		)
		Eventually(func() string {
			return expectSessions(ctx, "v4", "0/3", v1.ReasonSessionsDown).Status.Conditions[0].Message
		}).WithContext(ctx).WithTimeout(waitLimit).Should(ContainSubstring("its password differs"))

		By("correcting the password, without a restart of any pod")
		uids := func() []types.UID {
			var found []types.UID
			for _, p := range listPods(ctx, Default, speakerName) {
				found = append(found, p.UID)
			}
			return found
		}
		before := uids()
		kubectl(
			ctx, "-n", purelbNamespace, "patch", "secret", "router", "--type=merge", "-p", `{"stringData":{"password":"right"}}`,
		)
		Eventually(func() string {
			p := &v1.BGPPeer{}
			_ = kubeClient.Get(ctx, client.ObjectKey{Namespace: purelbNamespace, Name: "v4"}, p)
			return p.Status.Sessions
		}).WithContext(ctx).WithTimeout(3 * time.Minute).WithPolling(pollInterval).Should(Equal("3/3"))
		Expect(uids()).To(ConsistOf(before))
		Eventually(func() string {
			return kubectl(ctx, "-n", purelbNamespace, "get", "events", "--field-selector=involvedObject.kind=BGPPeer")
		}).WithContext(ctx).WithTimeout(waitLimit).Should(ContainSubstring("SessionUp"))
	}, SpecTimeout(functionalLimit))

	It("loses no request when a node is drained, and comes back", Label(proofLabel), func(ctx SpecContext) {
		s := newSpace(ctx)
		addrs := routedService(ctx, s, lab.FRR, s.virtualGroup(ctx), "drained")
		waitForServers(ctx, s.namespace)
		const early = "addresses that went before the route was seen to go"
		runTrials(ctx, "node drained and back", []trial.Bound{none(failedFigure), none(early)}, func(t *oneTrial) {
			at := t.random.IntN(len(nodeNames()))
			node, others := nodeNames()[at], slices.Delete(nodeNames(), at, at+1)
			watch, err := testLab.WatchRoutes(ctx, lab.Router)
			Expect(err).NotTo(HaveOccurred())
			t.measureFromNow()
			meters := measureBoth(ctx, addrs)
			DeferCleanup(func(ctx SpecContext) { setExcluded(ctx, false, node) }, NodeTimeout(waitLimit))
			setExcluded(ctx, true, node)
			for _, a := range addrs {
				expectNextHops(ctx, a, others...)
			}
			t.Figures[early] = 0
			for _, a := range addrs { // the address goes after the route
				places, err := findPlaces(ctx, a)
				Expect(err).NotTo(HaveOccurred())
				if !slices.ContainsFunc(places, func(place string) bool { return strings.HasPrefix(place, node+"/") }) {
					t.Figures[early]++
				}
			}
			Eventually(func(g Gomega) {
				for _, a := range addrs {
					g.Expect(findPlaces(ctx, a)).NotTo(ContainElement(ContainSubstring(node + "/")))
				}
			}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(pollInterval).Should(Succeed())
			setExcluded(ctx, false, node)
			for _, a := range addrs {
				expectNextHops(ctx, a, nodeNames()...)
			}
			t.noteMeters(watch.Stop(), meters...)
		})
	}, proofLimit())

	It("goes on while the API server is away, with a new speaker, too", Label(proofLabel), func(ctx SpecContext) {
		s := newSpace(ctx)
		addrs := routedService(ctx, s, lab.FRR, s.virtualGroup(ctx), "outage")
		waitForServers(ctx, s.namespace)
		bounds := []trial.Bound{none(failedFigure), none(changedFigure)}
		runTrials(ctx, "BGP, API server away for 60 s, a speaker killed meanwhile", bounds, func(t *oneTrial) {
			replaceRestartedSpeakers(ctx)
			expectSessions(ctx, "gateways", "6/6", v1.ReasonEstablished)
			t.measureFromNow()
			watch, err := testLab.WatchRoutes(ctx, lab.Router)
			Expect(err).NotTo(HaveOccurred())
			meters := measureBoth(ctx, addrs)
			back := func(ctx SpecContext) { Expect(testLab.StartControlPlane(ctx)).To(Succeed()) }
			DeferCleanup(back, NodeTimeout(2*waitLimit))
			Expect(testLab.StopControlPlane(ctx)).To(Succeed())
			const away = 60 * time.Second
			began := time.Now()
			restarted := testLab.Nodes()[t.random.IntN(len(testLab.Nodes()))]
			killSpeaker(ctx, restarted.Name)
			Eventually(func() (int, error) { return countNewSessions(ctx, restarted, time.Since(began)) }).
				WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(
				Equal(2), "the speaker does not start without the API server",
			)
			time.Sleep(away - time.Since(began)) // the outage is to last so long
			back(ctx)
			waitUntilReady(ctx)
			// The status has to be from after the outage: it says what the restarted speaker has.
			waitForNewSessions(ctx, "gateways", began, restarted.Name)
			expectSessions(ctx, "gateways", "6/6", v1.ReasonEstablished)
			t.noteMeters(watch.Stop(), meters...)
		})
	}, proofLimit())

	It("follows the endpoints of policy Local, and keeps the client's address", func(ctx SpecContext) {
		s := newSpace(ctx)
		addrs := routedToEndpoints(ctx, s)
		s.kubectl(ctx, "rollout", "restart", "deployment/bgp-local")
		s.kubectl(ctx, "rollout", "status", "deployment/bgp-local", "--timeout=180s")
		for _, a := range addrs {
			s.waitForRoutesToEndpoints(ctx, "bgp-local", a)
			waitForAnswer(ctx, lab.Far, a)
		}
		waitForOwnAddress(ctx, addrs[0])
	}, SpecTimeout(functionalLimit))

	It("loses no request while the servers of policy Local are replaced", Label(proofLabel), func(ctx SpecContext) {
		s := newSpace(ctx)
		addrs := routedToEndpoints(ctx, s)
		runTrials(ctx, "BGP, policy Local, servers replaced", []trial.Bound{none(failedFigure)}, func(t *oneTrial) {
			watch, err := testLab.WatchRoutes(ctx, lab.Router)
			Expect(err).NotTo(HaveOccurred())
			meters := measureBoth(ctx, addrs)
			s.kubectl(ctx, "rollout", "restart", "deployment/bgp-local")
			s.kubectl(ctx, "rollout", "status", "deployment/bgp-local", "--timeout=180s")
			for _, a := range addrs {
				s.waitForRoutesToEndpoints(ctx, "bgp-local", a)
			}
			// kube-proxy may use a server that has ended for a second. In the next trial it would be beside others that are
			// about to end, on a node that has no other ones yet.
			s.waitUntilServersHaveEnded(ctx, "bgp-local")
			t.noteMeters(watch.Stop(), meters...)
		})
	}, proofLimit())

	It("advertises networks with the attributes that their ServiceGroup asks for", Label(smokeLabel),
		func(ctx SpecContext) {
			startRouter(ctx, lab.RouterOptions{Daemon: lab.FRR})
			s := newSpace(ctx)
			v4, v6 := s.virtualV4(), s.virtualV6()
			attributes := v1.ServiceGroupBGPSpec{ServiceGroupBGP: v1.ServiceGroupBGP{
				Peers: []string{"v4"}, Communities: []v1.Community{"no-export", "65001:77"}, LargeCommunities: []v1.LargeCommunity{
					"65001:1:2",
				},
				MED: ptr.To[int64](50), Prepend: 2,
			}}
			aggregated := s.createGroup(ctx, "aggregated", v1.ServiceGroupSpec{
				Remote: &v1.RemotePools{PoolSet: v1.PoolSet{
					V4Pools: []v1.AddressPool{
						{Subnet: v4.String(), Pool: fmt.Sprintf("%s-%s", v4.Addr().Next(), s.firstVirtualV4().Prev())},
					},
					V6Pools: []v1.AddressPool{
						{Subnet: v6.String(), Pool: fmt.Sprintf("%s-%s", v6.Addr().Next(), s.firstVirtualV6().Prev())},
					},
				}},
				BGP: &attributes,
			})
			single := s.virtualGroup(ctx)
			bgpPeer(ctx, "v4", "  peerASN: 65000\n  myASN: 65001\n  peerAddress: 10.77.0.1\n")
			bgpPeer(
				ctx, "v6",
				"  peerASN: 65000\n  myASN: 65001\n  peerAddress: fd00:77::1\n  families: [IPv4, IPv6]\n",
			)
			first, second := s.createService(ctx, "first", aggregated), s.createService(ctx, "second", aggregated)
			addrs := append(waitForAddresses(ctx, first, 2), waitForAddresses(ctx, second, 2)...)
			table := func(family, prefix string) (string, error) {
				return testLab.Vtysh(ctx, "show bgp "+family+" unicast "+prefix)
			}
			waitForTable := func(family, prefix string, matcher gomegatypes.GomegaMatcher) {
				GinkgoHelper()
				Eventually(func() (string, error) { return table(family, prefix) }).
					WithContext(ctx).WithTimeout(2 * waitLimit).WithPolling(pollInterval).Should(matcher)
			}
			// waitForSpeakers waits until the router has routes to a Service that is created now, over both
			// sessions of each node: so each speaker has handled all that was there before.
			waitForSpeakers := func(name string) {
				GinkgoHelper()
				for _, a := range waitForAddresses(ctx, s.createService(ctx, name, single), 2) {
					expectNextHops(ctx, a, nodeNames()...)
				}
			}
			advertised := And(ContainSubstring("65001 65001 65001"), ContainSubstring("metric 50"),
				ContainSubstring("Community: 65001:77 no-export"),
				ContainSubstring("Large Community: 65001:1:2"), ContainSubstring("3 available"))
			waitForTable("ipv4", v4.String(), advertised)
			waitForSpeakers("other")
			// The group names v4 only: nothing comes by the session over IPv6.
			Expect(table("ipv6", v6.String())).To(ContainSubstring("Network not in table"))
			for _, a := range addrs {
				if a.Is4() {
					Expect(table("ipv4", a.String()+"/32")).To(
						ContainSubstring("Network not in table"), "one route for the whole network",
					)
				}
			}

			By("deleting one Service, then the other")
			Expect(kubeClient.Delete(ctx, first)).To(Succeed())
			for _, a := range addrs[:2] {
				waitForPlaces(ctx, a, 0)
			}
			waitForSpeakers("another")
			Expect(table("ipv4", v4.String())).To(advertised, "the second Service has the network")
			Expect(kubeClient.Delete(ctx, second)).To(Succeed())
			waitForTable("ipv4", v4.String(), ContainSubstring("Network not in table"))
		}, SpecTimeout(smokeLimit))

	It("gives the routes to a Service's addresses the communities for which the Service asks", func(ctx SpecContext) {
		startRouter(ctx, lab.RouterOptions{Daemon: lab.FRR})
		s := newSpace(ctx)
		first4, first6 := s.firstVirtualV4(), s.firstVirtualV6()
		group := s.createGroup(ctx, "communities", v1.ServiceGroupSpec{
			Remote: &v1.RemotePools{PoolSet: v1.PoolSet{
				V4Pools: []v1.AddressPool{{
					Subnet: s.virtualV4().String(), Pool: fmt.Sprintf("%s-%s", first4, first4.Next()), Aggregation: "/32",
				}},
				V6Pools: []v1.AddressPool{{
					Subnet: s.virtualV6().String(), Pool: fmt.Sprintf("%s-%s", first6, first6.Next()), Aggregation: "/128",
				}},
			}},
			BGP: &v1.ServiceGroupBGPSpec{
				ServiceGroupBGP: v1.ServiceGroupBGP{Communities: []v1.Community{"65001:1"}},
				AllowServices: &v1.RouteCommunities{
					Communities:      []v1.Community{"65001:77", "no-export"},
					LargeCommunities: []v1.LargeCommunity{"65001:1:2"},
				},
			},
		})
		bgpPeer(
			ctx, "both", "  peerASN: 65000\n  myASN: 65001\n  peerAddress: 10.77.0.1\n  families: [IPv4, IPv6]\n",
		)
		// expectCommunities waits until the router has a route to an address from each node, with these communities.
		expectCommunities := func(a netip.Addr, ofEach ...string) {
			GinkgoHelper()
			family := "ipv4"
			if a.Is6() {
				family = "ipv6"
			}
			Eventually(func() ([]string, error) {
				text, err := testLab.Vtysh(ctx, fmt.Sprintf("show bgp %s unicast %s/%d", family, a, a.BitLen()))
				var found []string
				for line := range strings.Lines(text) {
					if _, communities, isFound := strings.Cut(line, "Community: "); isFound {
						found = append(found, strings.TrimSpace(communities))
					}
				}
				return found, err
			}).WithContext(ctx).WithTimeout(2 * waitLimit).WithPolling(pollInterval).
				Should(Equal(slices.Repeat(ofEach, len(nodeNames()))))
		}
		asking := s.createService(
			ctx, "asking", group, withAnnotation(v1.AnnotationBGPCommunities, "65001:77,65001:1:2,65001:666"),
		)
		plain := waitForAddresses(ctx, s.createService(ctx, "plain", group), 2)
		addrs := waitForAddresses(ctx, asking, 2)
		for i := range addrs {
			expectCommunities(addrs[i], "65001:1 65001:77", "65001:1:2")
			expectCommunities(plain[i], "65001:1")
		}

		By("asking for others")
		editService(ctx, asking, withAnnotation(v1.AnnotationBGPCommunities, "no-export"))
		for i := range addrs {
			expectCommunities(addrs[i], "65001:1 no-export")
			expectCommunities(plain[i], "65001:1")
		}

		By("asking for none")
		editService(ctx, asking, func(svc *corev1.Service) { delete(svc.Annotations, v1.AnnotationBGPCommunities) })
		for i := range addrs {
			expectCommunities(addrs[i], "65001:1")
		}
	}, SpecTimeout(smokeLimit))
})

// routedToEndpoints makes the router speak BGP with the nodes, and creates the Service bgp-local
// of policy Local, which the router reaches over the nodes with its servers.
func routedToEndpoints(ctx context.Context, s *space) []netip.Addr {
	GinkgoHelper()
	startRouter(ctx, lab.RouterOptions{Daemon: lab.FRR})
	bgpPeer(ctx, "gateways", byGateway)
	// After the pods have ended, so have the routes to their nodes.
	s.startServers(ctx, "bgp-local", 2, servesUntilRoutesFollow, func(pod *corev1.PodSpec) {
		pod.Containers[0].Lifecycle.PreStop.Sleep.Seconds = 5
	})
	addrs := waitForAddresses(
		ctx, s.createService(ctx, "bgp-local", s.virtualGroup(ctx), withServers("bgp-local"), policyLocal), 2,
	)
	for _, a := range addrs {
		s.waitForRoutesToEndpoints(ctx, "bgp-local", a)
		waitForAnswer(ctx, lab.Far, a)
	}
	waitForOwnAddress(ctx, addrs[0])
	return addrs
}

// waitForRoutesToEndpoints waits until the router reaches an address over the nodes with pods of
// servers, and over no others.
func (s *space) waitForRoutesToEndpoints(ctx context.Context, servers string, addr netip.Addr) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		nodes := slices.Collect(maps.Keys(s.nodesOf(ctx, g, servers)))
		g.Expect(routerNextHops(ctx, g, addr)).To(ConsistOf(nodes))
	}).WithContext(ctx).WithTimeout(2 * waitLimit).WithPolling(pollInterval).Should(Succeed())
}
