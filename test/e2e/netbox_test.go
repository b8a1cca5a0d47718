package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/lab"
	"github.com/purelb/purelb-operator/test/netbox"
	"github.com/purelb/purelb-operator/test/proof/trial"
)

// netboxServer is a fake NetBox on the lab's client, outside of the cluster. Its records
// outlive its stops.
type netboxServer struct {
	*netbox.Server
	address string
	server  *http.Server
	secret  string
}

// startNetbox starts a fake NetBox with the addresses of a space, which it makes, too, and the
// Secret with the fake's token. The fake is there until the space is gone, so that addresses
// can be released.
func startNetbox(ctx context.Context) (*netboxServer, *space) {
	GinkgoHelper()
	n := &netboxServer{
		Server: netbox.NewServer(netbox.V46), address: netip.AddrPortFrom(hostAddress("client"), 8000).String(),
	}
	n.Create("tags", map[string]any{"name": "purelb", "slug": "purelb"})
	n.start()
	DeferCleanup(n.stop)
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: purelbNamespace, GenerateName: "e2e-netbox-"},
		StringData: map[string]string{"token": netbox.TokenV2, "url": "http://" + n.address},
	}
	Expect(kubeClient.Create(ctx, secret)).To(Succeed())
	n.secret = secret.Name
	DeferCleanup(func(ctx SpecContext) {
		Expect(client.IgnoreNotFound(kubeClient.Delete(ctx, secret))).To(Succeed())
	}, NodeTimeout(waitLimit))
	s := newSpace(ctx)
	n.Create("prefixes", map[string]any{"prefix": s.virtualV4().String(), "status": "active"})
	n.Create(
		"ip-ranges",
		map[string]any{
			"start_address": s.v4(0).String() + "/24", "end_address": s.v4(blockSize-1).String() + "/24", "status": "active",
		},
	)
	n.Create(
		"ip-ranges",
		map[string]any{
			"start_address": s.v6(0).String() + "/64", "end_address": s.v6(blockSize-1).String() + "/64", "status": "active",
		},
	)
	return n, s
}

// localGroup makes a ServiceGroup that takes Local addresses of both families from the fake.
func (n *netboxServer) localGroup(ctx context.Context, s *space) string {
	GinkgoHelper()
	return n.group(ctx, s, "netbox", func(p *v1.NetboxPools) {
		p.V4 = &v1.NetboxSource{Ranges: []string{fmt.Sprintf("%s-%s", s.v4(0), s.v4(blockSize-1))}}
		p.V6 = &v1.NetboxSource{Ranges: []string{fmt.Sprintf("%s-%s", s.v6(0), s.v6(blockSize-1))}}
	})
}

// virtualGroup makes a ServiceGroup that takes Virtual addresses from the fake.
func (n *netboxServer) virtualGroup(ctx context.Context, s *space) string {
	GinkgoHelper()
	return n.group(ctx, s, "netbox-virtual", func(p *v1.NetboxPools) {
		p.V4 = &v1.NetboxSource{Prefixes: []string{s.virtualV4().String()}}
	})
}

// hostAddress returns the IPv4 address of a host of the lab.
func hostAddress(name string) netip.Addr {
	GinkgoHelper()
	for _, h := range testLab.Hosts() {
		if h.Name == name {
			return h.IPv4.Addr()
		}
	}
	Fail("there is no host " + name)
	return netip.Addr{}
}

func (n *netboxServer) start() {
	GinkgoHelper()
	var err error
	Eventually(func() error {
		listener, listenErr := testLab.Listen("client", "tcp", n.address)
		if listenErr != nil {
			return listenErr
		}
		n.server = &http.Server{Handler: n.Server, ReadHeaderTimeout: time.Minute}
		go func(server *http.Server) {
			if serveErr := server.Serve(listener); !errors.Is(serveErr, http.ErrServerClosed) {
				err = serveErr
			}
		}(n.server)
		return nil
	}).WithTimeout(waitLimit).Should(Succeed())
	Expect(err).NotTo(HaveOccurred())
}

// stop ends the server and all connections to it.
func (n *netboxServer) stop() { _ = n.server.Close() }

// group makes a ServiceGroup that takes its addresses from the fake, and waits until the
// ServiceGroup is ready.
func (n *netboxServer) group(ctx context.Context, s *space, what string, change func(*v1.NetboxPools)) string {
	GinkgoHelper()
	pools := &v1.NetboxPools{URL: "http://" + n.address, TokenSecretRef: v1.SecretKeyRef{Name: n.secret, Key: "token"}}
	change(pools)
	name := s.createGroup(ctx, what, v1.ServiceGroupSpec{Netbox: pools})
	Eventually(func(g Gomega) {
		sg := &v1.ServiceGroup{}
		g.Expect(kubeClient.Get(ctx, client.ObjectKey{Namespace: purelbNamespace, Name: name}, sg)).To(Succeed())
		g.Expect(meta.IsStatusConditionTrue(sg.Status.Conditions, v1.ConditionReady)).To(
			BeTrue(), "%+v", sg.Status.Conditions,
		)
	}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
	return name
}

// recorded returns the Service, as namespace/name, that each recorded address is of.
func (n *netboxServer) recorded() map[string]string {
	out := map[string]string{}
	for _, a := range n.Addresses() {
		parts := strings.Split(a.Description, "/")
		name := a.Description
		if len(parts) >= 4 {
			name = parts[1] + "/" + parts[2]
		}
		key := a.Address.Addr().String()
		out[key] = strings.TrimPrefix(out[key]+" "+name, " ")
	}
	return out
}

// allocated returns reason and message of the condition purelb.io/Allocated.
func allocated(ctx context.Context, svc *corev1.Service) func(Gomega) string {
	return func(g Gomega) string {
		g.Expect(kubeClient.Get(ctx, client.ObjectKeyFromObject(svc), svc)).To(Succeed())
		c := meta.FindStatusCondition(svc.Status.Conditions, v1.ConditionAllocated)
		if c == nil {
			return ""
		}
		return c.Reason + ": " + c.Message
	}
}

// waitForAllocation waits for what the condition Allocated of a Service says.
func waitForAllocation(ctx context.Context, svc *corev1.Service, matcher gomegatypes.GomegaMatcher) {
	GinkgoHelper()
	Eventually(allocated(ctx, svc)).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(matcher)
}

// waitForRecords waits until the fake has these records and no others.
func (n *netboxServer) waitForRecords(ctx context.Context, want map[string]string) {
	GinkgoHelper()
	Eventually(n.recorded).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Equal(want))
}

var _ = Describe("Addresses from NetBox", func() {
	It("are announced, and recorded until they are released", Label(smokeLabel), func(ctx SpecContext) {
		n, s := startNetbox(ctx)
		local := s.createService(ctx, "netbox-local", n.localGroup(ctx, s))
		virtual := s.createService(ctx, "netbox-virtual", n.virtualGroup(ctx, s), singleStack)
		want := map[string]string{}
		for _, a := range waitForAddresses(ctx, local, 2) {
			want[a.String()] = s.namespace + "/netbox-local"
			waitForAnswer(ctx, "client", a)
			_, place := waitForSolePlace(ctx, a)
			Expect(place).To(HavePrefix("eth0 "))
		}
		waitUntilAnnounced(ctx, local)
		far := waitForAddresses(ctx, virtual, 1)[0]
		Expect(far).To(Equal(s.virtualV4().Addr().Next()))
		want[far.String()] = s.namespace + "/netbox-virtual"
		waitUntilAnnounced(ctx, virtual)
		Expect(waitForPlaces(ctx, far, len(nodeNames()))).To(HaveEach(ContainSubstring("/kube-lb0 " + far.String() + "/24")))
		n.waitForRecords(ctx, want)

		Expect(kubeClient.Delete(ctx, local)).To(Succeed())
		n.waitForRecords(ctx, map[string]string{far.String(): s.namespace + "/netbox-virtual"})
		Expect(kubeClient.Delete(ctx, virtual)).To(Succeed())
		n.waitForRecords(ctx, map[string]string{})
	}, SpecTimeout(smokeLimit))

	It("stay while NetBox is away and the manager restarts, and are there two seconds after its return",
		Label(proofLabel, ipamTopic), func(ctx SpecContext) {
			n, s := startNetbox(ctx)
			group, virtualGroup := n.localGroup(ctx, s), n.virtualGroup(ctx, s)
			local := s.createService(ctx, "netbox-local", group)
			addrs := waitForAddresses(ctx, local, 2)
			waitUntilAnnounced(ctx, local)
			waitForServers(ctx, s.namespace)
			for _, a := range addrs {
				waitForAnswer(ctx, "client", a)
			}
			records := n.recorded()
			const served = "served after NetBox's return, ms"
			bounds := []trial.Bound{
				{Figure: served, AtMost: 2000}, none(failedFigure), none(inFlightFigure),
				atMost(outageFigure, 300*time.Millisecond),
			}
			runTrials(ctx, "NetBox away, managers restarted", bounds, func(t *oneTrial) {
				replaceRestartedPods(ctx)
				waitUntilReady(ctx)
				By("stopping NetBox, and asking the address all the time")
				t.measureFromNow()
				meter := measureFrom(ctx, lab.Client, addrs[0])
				n.stop()
				waits := s.createService(ctx, fmt.Sprintf("netbox-waits-%d", t.Seed), group)
				away := fmt.Sprintf(
					"IPAMUnavailable: NetBox http://%s cannot be asked: dial: connect: connection refused", n.address,
				)
				waitForAllocation(ctx, waits, Equal(away))
				gone := s.createService(ctx, fmt.Sprintf("netbox-gone-%d", t.Seed), virtualGroup, singleStack)
				waitForAllocation(ctx, gone, HavePrefix("IPAMUnavailable"))

				By("restarting the manager meanwhile")
				kubectl(ctx, "-n", purelbNamespace, "rollout", "restart", "deployment/purelb-manager")
				kubectl(ctx, "-n", purelbNamespace, "rollout", "status", "deployment/purelb-manager", "--timeout=120s")
				// A manager that ends may still lead, and NetBox is to be back for the next leader.
				waitUntilReady(ctx)
				after := s.createService(ctx, fmt.Sprintf("netbox-after-%d", t.Seed), group)
				waitForAllocation(ctx, after, Equal(away))
				Expect(waitForAddresses(ctx, local, 2)).To(Equal(addrs))

				By("starting NetBox again")
				n.start()
				begin := time.Now()
				Eventually(func(g Gomega) {
					for _, svc := range []*corev1.Service{waits, after} {
						g.Expect(kubeClient.Get(ctx, client.ObjectKeyFromObject(svc), svc)).To(Succeed())
						g.Expect(svc.Status.LoadBalancer.Ingress).To(HaveLen(2))
					}
				}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(20 * time.Millisecond).Should(Succeed())
				t.Figures[served] = trial.Milliseconds(time.Since(begin))
				waitUntilAnnounced(ctx, waits)
				waitForAnswer(ctx, "client", waitForAddresses(ctx, waits, 2)[0])
				expectNoEffect(t.stopMeter("", meter))
				t.stopMeasuring()

				for _, svc := range []*corev1.Service{waits, gone, after} {
					Expect(kubeClient.Delete(ctx, svc)).To(Succeed())
				}
				n.waitForRecords(ctx, records)
			})
			Expect(kubeClient.Delete(ctx, local)).To(Succeed())
			n.waitForRecords(ctx, map[string]string{})
		}, proofLimit())

	It("are neither lost nor allocated twice when the manager is killed before it writes them to the Service",
		Label(proofLabel, ipamTopic), func(ctx SpecContext) {
			n, s := startNetbox(ctx)
			group := n.virtualGroup(ctx, s)
			want := map[string]string{}
			runTrials(ctx, "manager killed before it writes an address of NetBox to the Service", nil, func(t *oneTrial) {
				leader, _ := waitForLeader(ctx)
				var once atomic.Bool
				killed := make(chan error, 1)
				n.SetFaults(nil, func(r *http.Request, status int) bool {
					if r.Method == http.MethodPost && status == http.StatusCreated && once.CompareAndSwap(false, true) {
						// NetBox has recorded the address, and the manager will never hear of it.
						out, err := tryKubectl(ctx, "-n", purelbNamespace, "delete", "pod", leader, "--grace-period=0", "--force")
						if err != nil {
							err = fmt.Errorf("%w: %s", err, out)
						}
						killed <- err
						return false
					}
					return true
				})
				name := fmt.Sprintf("netbox-killed-%d", t.Seed)
				svc := s.createService(ctx, name, group, singleStack)
				Eventually(killed).WithContext(ctx).WithTimeout(waitLimit).Should(
					Receive(BeNil()), "the manager that leads is killed",
				)
				killedAt := time.Now()
				addr := waitForAddresses(ctx, svc, 1)[0].String()
				t.Figures["allocated after the kill, ms"] = trial.Milliseconds(time.Since(killedAt))
				Expect(want).NotTo(HaveKey(addr), "an address was allocated twice")
				want[addr] = s.namespace + "/" + name
				waitUntilReady(ctx)
				n.SetFaults(nil, nil)
				n.waitForRecords(ctx, want) // none leaks
			})
		}, proofLimit())
})
