package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
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
	"github.com/purelb/purelb-operator/test/netbox"
)

// netboxServer is a fake NetBox on the lab's client, outside of the cluster. Its records
// outlive its stops.
type netboxServer struct {
	*netbox.Server
	address string
	server  *http.Server
}

// startNetbox starts a fake NetBox with ranges of the lab's network, a network that no node
// is in, and the Secret with its token.
func startNetbox(ctx context.Context) *netboxServer {
	GinkgoHelper()
	n := &netboxServer{Server: netbox.NewServer(netbox.V46), address: netip.AddrPortFrom(hostAddress("client"), 8000).String()}
	n.Create("tags", map[string]any{"name": "purelb", "slug": "purelb"})
	n.Create("prefixes", map[string]any{"prefix": "10.88.0.0/24", "status": "active"})
	n.Create("ip-ranges", map[string]any{"start_address": "10.77.0.120/24", "end_address": "10.77.0.139/24", "status": "active"})
	n.Create("ip-ranges", map[string]any{"start_address": "fd00:77::120/64", "end_address": "fd00:77::139/64", "status": "active"})
	n.start()
	DeferCleanup(n.stop)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: purelbNamespace, Name: "netbox"}, StringData: map[string]string{"token": netbox.TokenV2}}
	Expect(kubeClient.Create(ctx, secret)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) { Expect(kubeClient.Delete(ctx, secret)).To(Succeed()) })
	return n
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

// group makes a ServiceGroup that takes its addresses from the fake.
func (n *netboxServer) group(ctx context.Context, name string, change func(*v1.NetboxPools)) *v1.ServiceGroup {
	GinkgoHelper()
	sg := &v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Namespace: purelbNamespace, Name: name}}
	sg.Spec.Netbox = &v1.NetboxPools{URL: "http://" + n.address, TokenSecretRef: v1.SecretKeyRef{Name: "netbox", Key: "token"}}
	change(sg.Spec.Netbox)
	Eventually(func() error { return kubeClient.Create(ctx, sg) }).WithTimeout(waitLimit).Should(Succeed())
	DeferCleanup(func(ctx SpecContext) {
		Eventually(func() error { return client.IgnoreNotFound(kubeClient.Delete(ctx, sg)) }).WithTimeout(waitLimit).Should(Succeed())
	}, NodeTimeout(waitLimit))
	Eventually(func(g Gomega) {
		g.Expect(kubeClient.Get(ctx, client.ObjectKeyFromObject(sg), sg)).To(Succeed())
		g.Expect(meta.IsStatusConditionTrue(sg.Status.Conditions, v1.ConditionReady)).To(BeTrue(), "%+v", sg.Status.Conditions)
	}).WithTimeout(waitLimit).Should(Succeed())
	return sg
}

// recorded returns the Service, as namespace/name, that each recorded address is of.
func (n *netboxServer) recorded() map[string]string {
	out := map[string]string{}
	for _, a := range n.Addresses() {
		parts := strings.Split(a.Description, "/")
		name := a.Description
		if len(parts) == 4 {
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

// leadingManager returns the pod that leads.
func leadingManager(ctx context.Context) string {
	lease := &coordinationv1.Lease{}
	if err := kubeClient.Get(ctx, client.ObjectKey{Namespace: purelbNamespace, Name: "manager.purelb.io"}, lease); err != nil {
		return ""
	}
	pod, _, _ := strings.Cut(ptr.Deref(lease.Spec.HolderIdentity, ""), "_")
	return pod
}

var _ = Describe("Addresses from NetBox", Ordered, func() {
	It("are announced, stay while NetBox is away and the manager restarts, and are there two seconds after its return", func(ctx SpecContext) {
		n := startNetbox(ctx)
		n.group(ctx, "netbox", func(p *v1.NetboxPools) {
			p.V4 = &v1.NetboxSource{Ranges: []string{"10.77.0.120-10.77.0.139"}}
			p.V6 = &v1.NetboxSource{Ranges: []string{"fd00:77::120-fd00:77::139"}}
		})
		n.group(ctx, "netbox-virtual", func(p *v1.NetboxPools) { p.V4 = &v1.NetboxSource{Prefixes: []string{"10.88.0.0/24"}} })

		local := createService(ctx, "netbox-local", "netbox")
		addrs := waitForAddresses(ctx, local, 2)
		waitUntilAnnounced(ctx, local)
		for _, a := range addrs {
			waitForAnswer(ctx, "client", a, waitLimit)
			Expect(n.recorded()).To(HaveKeyWithValue(a.String(), testNamespace+"/netbox-local"))
			places, err := findPlaces(ctx, a)
			Expect(err).NotTo(HaveOccurred())
			Expect(places).To(ConsistOf(ContainSubstring("/eth0 ")))
		}
		virtual := createService(ctx, "netbox-virtual", "netbox-virtual", singleStack)
		waitForAddresses(ctx, virtual, 1)
		waitUntilAnnounced(ctx, virtual)
		places, err := findPlaces(ctx, netip.MustParseAddr("10.88.0.1"))
		Expect(err).NotTo(HaveOccurred())
		Expect(places).To(HaveLen(len(nodeNames())))
		Expect(places).To(HaveEach(ContainSubstring("/kube-lb0 10.88.0.1/24")))

		By("stopping NetBox, and asking the address all the time")
		n.stop()
		var lost atomic.Int32
		asking, stopAsking := context.WithCancel(ctx)
		var asker sync.WaitGroup
		asker.Go(func() {
			for asking.Err() == nil {
				if _, err := fetch(asking, "client", addrs[0]); err != nil && asking.Err() == nil {
					lost.Add(1)
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
		waits := createService(ctx, "netbox-waits", "netbox")
		const away = "IPAMUnavailable: NetBox http://%s cannot be asked: dial: connect: connection refused"
		Eventually(allocated(ctx, waits)).WithContext(ctx).WithTimeout(waitLimit).Should(Equal(fmt.Sprintf(away, n.address)))
		gone := createService(ctx, "netbox-gone", "netbox-virtual", singleStack)
		Eventually(allocated(ctx, gone)).WithContext(ctx).WithTimeout(waitLimit).Should(HavePrefix("IPAMUnavailable"))

		By("restarting the manager meanwhile")
		kubectl(ctx, "-n", purelbNamespace, "rollout", "restart", "deployment/purelb-manager")
		kubectl(ctx, "-n", purelbNamespace, "rollout", "status", "deployment/purelb-manager", "--timeout=120s")
		after := createService(ctx, "netbox-after", "netbox")
		Eventually(allocated(ctx, after)).WithContext(ctx).WithTimeout(waitLimit).Should(Equal(fmt.Sprintf(away, n.address)))
		Expect(waitForAddresses(ctx, local, 2)).To(Equal(addrs))

		By("starting NetBox again")
		n.start()
		begin := time.Now()
		Eventually(func(g Gomega) {
			for _, svc := range []*corev1.Service{waits, after} {
				g.Expect(kubeClient.Get(ctx, client.ObjectKeyFromObject(svc), svc)).To(Succeed())
				g.Expect(svc.Status.LoadBalancer.Ingress).To(HaveLen(2))
			}
		}).WithTimeout(waitLimit).WithPolling(20 * time.Millisecond).Should(Succeed())
		took := time.Since(begin)
		AddReportEntry("served after NetBox's return", took.Round(time.Millisecond).String())
		GinkgoWriter.Printf("served %s after NetBox was back\n", took.Round(time.Millisecond))
		Expect(took).To(BeNumerically("<", 2*time.Second))
		waitUntilAnnounced(ctx, waits)
		waitForAnswer(ctx, "client", waitForAddresses(ctx, waits, 2)[0], waitLimit)
		stopAsking()
		asker.Wait()
		Expect(lost.Load()).To(BeZero(), "requests to the address that was there all the time")

		for _, svc := range []*corev1.Service{local, virtual, waits, gone, after} {
			Expect(kubeClient.Delete(ctx, svc)).To(Succeed())
		}
		Eventually(n.recorded).WithTimeout(waitLimit).Should(BeEmpty())
	}, SpecTimeout(5*time.Minute))

	It("are neither lost nor allocated twice when the manager is killed before it writes them to the Service", func(ctx SpecContext) {
		n := startNetbox(ctx)
		n.group(ctx, "netbox", func(p *v1.NetboxPools) {
			p.V4 = &v1.NetboxSource{Prefixes: []string{"10.88.0.0/24"}}
		})
		want := map[string]string{}
		for trial := range trials() {
			var once atomic.Bool
			n.SetFaults(nil, func(r *http.Request, status int) bool {
				if r.Method == http.MethodPost && status == http.StatusCreated && once.CompareAndSwap(false, true) {
					// NetBox has recorded the address, and the manager will never hear of it.
					_, _ = tryKubectl(ctx, "-n", purelbNamespace, "delete", "pod", leadingManager(ctx), "--grace-period=0", "--force")
					return false
				}
				return true
			})
			name := fmt.Sprintf("netbox-killed-%d", trial)
			svc := createService(ctx, name, "netbox", singleStack)
			Eventually(once.Load).WithTimeout(waitLimit).Should(BeTrue())
			want[waitForAddresses(ctx, svc, 1)[0].String()] = testNamespace + "/" + name
		}
		n.SetFaults(nil, nil)
		Expect(want).To(HaveLen(trials()), "no address twice")
		Expect(n.recorded()).To(Equal(want), "none leaks")
		GinkgoWriter.Printf("%d kills: %d addresses, %d records\n", trials(), len(want), len(n.recorded()))
		kubectl(ctx, "-n", purelbNamespace, "rollout", "status", "deployment/purelb-manager", "--timeout=120s")
	}, SpecTimeout(15*time.Minute))
})
