package e2e

import (
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

var _ = Describe("A ServiceGroup of some namespaces", func() {
	It("is refused to others at once, and serves their Services when they may have it", func(ctx SpecContext) {
		s := newSpace(ctx)
		const team = "e2e-team"
		group := s.createGroup(ctx, "of-a-team", v1.ServiceGroupSpec{
			AllowedNamespaces: &v1.AllowedNamespaces{
				From: v1.NamespacesFromSelector, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{team: s.namespace}},
			},
			Local: &v1.LocalPools{PoolSet: v1.PoolSet{V4Pools: []v1.AddressPool{s.v4Range(0, 1)}}},
		})
		svc := s.createService(ctx, "waiting", group, singleStack)
		waitForRefusal(ctx, svc, v1.ReasonNotAllowed, "ServiceGroup "+group+" is not for namespace "+s.namespace)
		Expect(svc.Status.LoadBalancer.Ingress).To(BeEmpty())
		out, code := runPlugin(ctx, "-n", s.namespace, "explain", "service", svc.Name)
		Expect(code).To(Equal(2), out)
		Expect(out).To(ContainSubstring("Waits: " + v1.ReasonNotAllowed))

		By("labelling the namespace")
		kubectl(ctx, "label", "namespace", s.namespace, team+"="+s.namespace)
		waitForExactAddresses(ctx, svc, s.v4(0))
		waitForAnswer(ctx, "client", s.v4(0))

		By("taking the label away: what has an address keeps it, what is new gets none")
		kubectl(ctx, "label", "namespace", s.namespace, team+"-")
		later := s.createService(ctx, "later", group, singleStack)
		waitForRefusal(ctx, later, v1.ReasonNotAllowed, "is not for namespace "+s.namespace)
		waitForExactAddresses(ctx, svc, s.v4(0))
		waitForAnswer(ctx, "client", s.v4(0))
	}, SpecTimeout(functionalLimit))
})

var _ = Describe("A Service that is deleted and made again", func() {
	It("gets its address back, unless the ServiceGroup says otherwise", func(ctx SpecContext) {
		s := newSpace(ctx)
		group := s.createLocalGroup(ctx, "sticky", v1.PoolSet{V4Pools: []v1.AddressPool{s.v4Range(0, 3)}})
		neverSticky := s.createGroup(ctx, "not-sticky", v1.ServiceGroupSpec{
			StickyFor: &metav1.Duration{},
			Local:     &v1.LocalPools{PoolSet: v1.PoolSet{V4Pools: []v1.AddressPool{s.v4Range(4, 5)}}},
		})
		for _, row := range []struct {
			group                    string
			first, others, madeAgain netip.Addr
		}{
			{group, s.v4(0), s.v4(1), s.v4(0)},
			{neverSticky, s.v4(4), s.v4(4), s.v4(5)},
		} {
			By("using " + row.group)
			svc := s.createService(ctx, "remade-"+row.group, row.group, singleStack)
			waitForExactAddresses(ctx, svc, row.first)
			waitForAnswer(ctx, "client", row.first)
			Expect(kubeClient.Delete(ctx, svc)).To(Succeed())
			waitForPlaces(ctx, row.first, 0) // the manager knows that it is gone

			other := s.createService(ctx, "other-"+row.group, row.group, singleStack)
			waitForExactAddresses(ctx, other, row.others)
			again := s.createService(ctx, "remade-"+row.group, row.group, singleStack)
			waitForExactAddresses(ctx, again, row.madeAgain)
			waitForAnswer(ctx, "client", row.madeAgain)
		}
	}, SpecTimeout(functionalLimit))
})
