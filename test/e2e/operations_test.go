package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var _ = Describe("PureLB", func() {
	It("serves new Services while the leading manager is deleted, and afterwards", func(ctx SpecContext) {
		applyGroup(ctx, "localdual.yaml")
		leader := func(g Gomega) string {
			lease := &coordinationv1.Lease{}
			g.Expect(kubeClient.Get(ctx, client.ObjectKey{Namespace: purelbNamespace, Name: "manager.purelb.io"}, lease)).To(Succeed())
			pod, _, _ := strings.Cut(ptr.Deref(lease.Spec.HolderIdentity, ""), "_")
			return pod
		}
		before := leader(NewWithT(GinkgoT()))
		kubectl(ctx, "-n", purelbNamespace, "delete", "pod", before, "--wait=false")
		serve := func(name string) {
			svc := createService(ctx, name, "localdual")
			addrs := waitForAddresses(ctx, svc, 2)
			waitUntilAnnounced(ctx, svc)
			waitForAnswer(ctx, "client", addrs[0], waitLimit)
		}
		serve("while-leaving")
		Eventually(leader).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).ShouldNot(BeElementOf(before, ""))
		serve("with-the-next")
		kubectl(ctx, "-n", purelbNamespace, "rollout", "status", "deployment/purelb-manager", "--timeout=60s")
	}, SpecTimeout(2*time.Minute))

	It("keeps every address on its node while the agents restart", func(ctx SpecContext) {
		applyGroup(ctx, "localdual.yaml")
		applyGroup(ctx, "remotedual.yaml")
		local, virtual := createService(ctx, "kept-local", "localdual"), createService(ctx, "kept-virtual", "remotedual")
		addrs := append(waitForAddresses(ctx, local, 2), waitForAddresses(ctx, virtual, 2)...)
		waitUntilAnnounced(ctx, local)
		waitUntilAnnounced(ctx, virtual)
		before := map[string][]string{}
		for _, addr := range addrs {
			found, err := findPlaces(ctx, addr)
			Expect(err).NotTo(HaveOccurred())
			before[addr.String()] = found
		}
		kubectl(ctx, "-n", purelbNamespace, "rollout", "restart", "daemonset/purelb-agent-default")
		restarted := make(chan struct{})
		go func() {
			defer GinkgoRecover()
			defer close(restarted)
			kubectl(ctx, "-n", purelbNamespace, "rollout", "status", "daemonset/purelb-agent-default", "--timeout=90s")
		}()
		for done := false; !done; {
			for _, addr := range addrs {
				found, err := findPlaces(ctx, addr)
				Expect(err).NotTo(HaveOccurred())
				Expect(found).To(Equal(before[addr.String()]))
			}
			select {
			case <-restarted:
				done = true
			case <-time.After(pollInterval):
			}
		}
		waitUntilAnnounced(ctx, local)
	}, SpecTimeout(3*time.Minute))

	It("lets agents read and write only what they need", func(ctx SpecContext) {
		const agent = "system:serviceaccount:purelb-system:purelb-agent"
		can := func(verb, resource, in string, more ...string) string {
			GinkgoHelper()
			return askCanI(ctx, append([]string{verb, resource, "-n", in, "--as", agent}, more...)...)
		}
		for _, r := range []string{"announcements.purelb.io", "lbnodeagents.purelb.io"} {
			for _, verb := range []string{"get", "list", "watch"} {
				Expect(can(verb, r, purelbNamespace)).To(Equal("yes"), "%s %s", verb, r)
				Expect(can(verb, r, "default")).To(Equal("no"), "%s %s elsewhere", verb, r)
			}
			for _, verb := range []string{"create", "update", "patch", "delete"} {
				Expect(can(verb, r, purelbNamespace)).To(Equal("no"), "%s %s", verb, r)
			}
		}
		Expect(can("patch", "announcements.purelb.io", purelbNamespace, "--subresource=status")).To(Equal("yes"))
		Expect(can("patch", "leases.coordination.k8s.io", purelbNamespace)).To(Equal("yes"))
		Expect(can("create", "leases.coordination.k8s.io", purelbNamespace)).To(Equal("no"))
		for _, r := range []string{"services", "endpoints", "endpointslices.discovery.k8s.io", "secrets", "configmaps", "pods", "nodes", "servicegroups.purelb.io"} {
			for _, verb := range []string{"get", "list", "watch", "create", "update", "patch", "delete"} {
				Expect(can(verb, r, purelbNamespace)).To(Equal("no"), "%s %s", verb, r)
			}
		}
	}, SpecTimeout(2*time.Minute))

	It("serves metrics to accounts that may read them, and to no others", func(ctx SpecContext) {
		applyGroup(ctx, "localdual.yaml")
		svc := createService(ctx, "measured", "localdual")
		waitForAddresses(ctx, svc, 2)
		waitUntilAnnounced(ctx, svc)
		kubectl(ctx, "-n", testNamespace, "create", "serviceaccount", "scraper")
		kubectl(ctx, "create", "clusterrolebinding", "e2e-scraper", "--clusterrole=purelb-metrics-reader", "--serviceaccount="+testNamespace+":scraper")
		DeferCleanup(func(ctx SpecContext) {
			kubectl(ctx, "delete", "clusterrolebinding", "e2e-scraper")
			kubectl(ctx, "-n", testNamespace, "delete", "serviceaccount", "scraper")
		}, NodeTimeout(waitLimit))
		token := strings.TrimSpace(kubectl(ctx, "-n", testNamespace, "create", "token", "scraper"))
		stranger := strings.TrimSpace(kubectl(ctx, "-n", testNamespace, "create", "token", "default"))

		pods := &corev1.PodList{}
		Expect(kubeClient.List(ctx, pods, client.InNamespace(purelbNamespace), client.MatchingLabels{"app.kubernetes.io/name": "purelb-manager"})).To(Succeed())
		var managers []string
		for _, p := range pods.Items {
			managers = append(managers, net.JoinHostPort(p.Status.PodIP, "8443"))
		}
		var agents []string
		for _, n := range testLab.Nodes() {
			agents = append(agents, net.JoinHostPort(n.IPv4.Addr().String(), "7472"))
		}
		Eventually(func(g Gomega) {
			var all string
			for _, at := range append(managers, agents...) {
				status, _, err := scrape(ctx, at, "")
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(status).To(Equal(http.StatusUnauthorized), "without a token, from %s", at)
				status, _, err = scrape(ctx, at, stranger)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(status).To(Equal(http.StatusForbidden), "with a token that may not, from %s", at)
				status, body, err := scrape(ctx, at, token)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(status).To(Equal(http.StatusOK), "from %s", at)
				all += body
			}
			g.Expect(all).To(ContainSubstring(`purelb_address_pool_addresses_in_use{pool="localdual"} 2`))
			g.Expect(all).To(ContainSubstring(`purelb_address_pool_size{pool="localdual"} 8`))
			g.Expect(all).To(ContainSubstring("purelb_election_member_count 3"))
			for _, in := range svc.Status.LoadBalancer.Ingress {
				g.Expect(all).To(MatchRegexp(`purelb_lbnodeagent_announced\{ip="%s",node="node\d",service="e2e/measured"\} 1`, in.IP))
			}
			g.Expect(all).To(MatchRegexp(`purelb_lbnodeagent_garp_sent_total\S* [1-9]`))
		}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(time.Second).Should(Succeed())
	}, SpecTimeout(time.Minute))
})

// askCanI returns what kubectl auth can-i answers: yes or no.
func askCanI(ctx context.Context, args ...string) string {
	GinkgoHelper()
	out, err := tryKubectl(ctx, append([]string{"auth", "can-i"}, args...)...)
	lines := strings.Split(strings.TrimSpace(out), "\n") // warnings come first
	answer := lines[len(lines)-1]
	Expect(answer).To(BeElementOf("yes", "no"), "%s: %v", out, err)
	return answer
}

// scrape reads metrics from the control plane's network namespace.
func scrape(ctx context.Context, at, token string) (int, string, error) {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return testLab.Dial(ctx, "cp", network, address)
		},
		// Each process makes its own certificate.
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives: true,
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+at+"/metrics", nil)
	if err != nil {
		return 0, "", err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := (&http.Client{Transport: transport, Timeout: 5 * time.Second}).Do(request)
	if err != nil {
		return 0, "", fmt.Errorf("scrape %s: %w", at, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}
