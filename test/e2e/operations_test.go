package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

var _ = Describe("PureLB", func() {
	It("serves new Services while the leading manager is deleted, and afterwards", func(ctx SpecContext) {
		s := newSpace(ctx)
		group := s.localGroup(ctx)
		before, _ := waitForLeader(ctx)
		kubectl(ctx, "-n", purelbNamespace, "delete", "pod", before, "--wait=false")
		serve := func(name string) {
			GinkgoHelper()
			svc := s.createService(ctx, name, group)
			addrs := waitForAddresses(ctx, svc, 2)
			waitUntilAnnounced(ctx, svc)
			waitForAnswer(ctx, "client", addrs[0])
		}
		serve("while-leaving")
		Eventually(func(g Gomega) string {
			next, _ := findLeader(ctx, g)
			return next
		}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).ShouldNot(BeElementOf(before, ""))
		serve("with-the-next")
	}, SpecTimeout(functionalLimit))

	It("keeps every address on its node while the agents restart", Label(smokeLabel), func(ctx SpecContext) {
		s := newSpace(ctx)
		local, virtual := s.createService(ctx, "kept-local", s.localGroup(ctx)),
			s.createService(ctx, "kept-virtual", s.virtualGroup(ctx))
		locals, virtuals := waitForAddresses(ctx, local, 2), waitForAddresses(ctx, virtual, 2)
		waitUntilAnnounced(ctx, local)
		waitUntilAnnounced(ctx, virtual)
		before := map[netip.Addr][]string{}
		for _, addr := range locals {
			before[addr] = waitForPlaces(ctx, addr, 1)
		}
		for _, addr := range virtuals {
			before[addr] = waitForPlaces(ctx, addr, len(nodeNames()))
		}
		expectInPlace := func() {
			GinkgoHelper()
			for addr, places := range before {
				found, err := findPlaces(ctx, addr)
				Expect(err).NotTo(HaveOccurred())
				Expect(found).To(Equal(places), "places of %s", addr)
			}
		}
		var old []types.UID
		for _, p := range listPods(ctx, Default, agentName) {
			old = append(old, p.UID)
		}
		kubectl(ctx, "-n", purelbNamespace, "rollout", "restart", "daemonset/purelb-agent-default")
		// The addresses are looked at all the time until each agent is a new one, which is ready.
		Eventually(func(g Gomega) {
			expectInPlace()
			expectReadyPods(ctx, g, agentName, len(nodeNames()))
			for _, p := range listPods(ctx, g, agentName) {
				g.Expect(old).NotTo(ContainElement(p.UID), "%s is the agent of before", p.Name)
			}
		}).WithContext(ctx).WithTimeout(3 * time.Minute).WithPolling(pollInterval).Should(Succeed())
		waitUntilReady(ctx)
		waitUntilAnnounced(ctx, local)
		waitUntilAnnounced(ctx, virtual)
		expectInPlace()
	}, SpecTimeout(smokeLimit))

	It("lets agents read and write only what they need", Label(smokeLabel), func(ctx SpecContext) {
		expect := func(allowed bool, verb, group, resource, subresource, in string) {
			GinkgoHelper()
			Expect(isAllowed(ctx, agentName, verb, group, resource, subresource, in)).To(
				Equal(allowed), "%s %s/%s %s in %s", verb, group, resource, subresource, in,
			)
		}
		for _, r := range []string{"announcements", "lbnodeagents"} {
			for _, verb := range []string{"get", "list", "watch"} {
				expect(true, verb, v1.GroupVersion.Group, r, "", purelbNamespace)
				expect(false, verb, v1.GroupVersion.Group, r, "", "default")
			}
			for _, verb := range []string{"create", "update", "patch", "delete"} {
				expect(false, verb, v1.GroupVersion.Group, r, "", purelbNamespace)
			}
		}
		expect(true, "patch", v1.GroupVersion.Group, "announcements", "status", purelbNamespace)
		expect(true, "patch", "coordination.k8s.io", "leases", "", purelbNamespace)
		expect(false, "create", "coordination.k8s.io", "leases", "", purelbNamespace)
		for _, r := range []struct{ group, resource string }{
			{"", "services"}, {"", "endpoints"}, {"discovery.k8s.io", "endpointslices"}, {"", "secrets"}, {"", "configmaps"}, {
				"", "pods",
			},
			{"", "nodes"}, {v1.GroupVersion.Group, "servicegroups"},
		} {
			for _, verb := range []string{"get", "list", "watch", "create", "update", "patch", "delete"} {
				expect(false, verb, r.group, r.resource, "", purelbNamespace)
			}
		}
	}, SpecTimeout(smokeLimit))

	It("serves metrics to accounts that may read them, and to no others", Label(smokeLabel), func(ctx SpecContext) {
		s := newSpace(ctx)
		group := s.localGroup(ctx)
		svc := s.createService(ctx, "measured", group)
		waitForAddresses(ctx, svc, 2)
		waitUntilAnnounced(ctx, svc)
		s.kubectl(ctx, "create", "serviceaccount", "scraper")
		s.kubectl(ctx, "create", "serviceaccount", "stranger")
		DeferCleanup(func(ctx SpecContext) {
			retryKubectl(ctx, "delete", "clusterrolebinding", s.name("scraper"), "--ignore-not-found")
		}, NodeTimeout(2*waitLimit))
		kubectl(
			ctx, "create", "clusterrolebinding", s.name("scraper"), "--clusterrole=purelb-metrics-reader",
			"--serviceaccount="+s.namespace+":scraper",
		)
		token := strings.TrimSpace(s.kubectl(ctx, "create", "token", "scraper"))
		stranger := strings.TrimSpace(s.kubectl(ctx, "create", "token", "stranger"))

		var managers []string
		for _, p := range listPods(ctx, Default, managerName) {
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
			for _, family := range []string{"IPv4", "IPv6"} {
				labels := `{family="` + family + `",pool="` + group + `"} `
				g.Expect(all).To(ContainSubstring("purelb_address_pool_addresses_in_use" + labels + "1"))
				g.Expect(all).To(ContainSubstring("purelb_address_pool_size" + labels + "4"))
			}
			g.Expect(all).To(ContainSubstring("purelb_election_member_count 3"))
			for _, in := range svc.Status.LoadBalancer.Ingress {
				g.Expect(all).To(MatchRegexp(
					`purelb_lbnodeagent_announced\{ip="%s",node="node\d",service="%s/measured"\} 1`, in.IP, s.namespace,
				))
			}
			// The heaps of manager and agents are limited: footprint.HeapLimit of 512 and of 128 MiB.
			g.Expect(all).To(ContainSubstring("go_gc_gomemlimit_bytes 4.8318382e+08"))
			g.Expect(all).To(ContainSubstring("go_gc_gomemlimit_bytes 1.00663296e+08"))
			g.Expect(all).To(MatchRegexp(`purelb_lbnodeagent_garp_sent_total\S* [1-9]`))
		}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(time.Second).Should(Succeed())

		By("health checks are the kubelet's alone: agents that it finds ready refuse others")
		for _, n := range testLab.Nodes() {
			_, err := testLab.Dial(ctx, "cp", "tcp", net.JoinHostPort(n.IPv4.Addr().String(), "7473"))
			Expect(err).To(MatchError(syscall.ECONNREFUSED), "from %s", n.Name)
		}
	}, SpecTimeout(smokeLimit))
})

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
