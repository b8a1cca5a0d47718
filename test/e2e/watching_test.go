package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

var _ = Describe("Nodes that are to follow another one", func() {
	It("watch it while the feature gate WireFailover is on", func(ctx SpecContext) {
		s := newSpace(ctx)
		turnOnWireFailover(ctx)
		svc := s.createService(ctx, "watched", s.localGroup(ctx))
		holders := map[string]bool{}
		for _, addr := range waitForAddresses(ctx, svc, 2) {
			holders[waitForHolder(ctx, addr)] = true
		}
		Eventually(func(g Gomega) {
			watchers := map[string]int{}
			for _, ann := range listStandbys(ctx, g) {
				if !slices.ContainsFunc(ann.Spec.Standby.Addresses, func(a v1.StandbyAddress) bool { return s.owns(netip.MustParseAddr(a.Address)) }) {
					continue
				}
				ready := meta.FindStatusCondition(ann.Status.Conditions, v1.ConditionReady)
				g.Expect(ready).NotTo(BeNil())
				g.Expect(ready.Reason).To(Equal("Watching"), "%s watches %s: %s", ann.Spec.NodeName, ann.Spec.Standby.Watched.NodeName, ready.Message)
				watchers[ann.Spec.Standby.Watched.NodeName]++
			}
			for holder := range holders {
				g.Expect(watchers).To(HaveKeyWithValue(holder, len(nodeNames())-1))
			}
		}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
	}, SpecTimeout(functionalLimit))
})

// listStandbys returns the Announcements with standby.
func listStandbys(ctx context.Context, g Gomega) []v1.Announcement {
	var list v1.AnnouncementList
	g.Expect(kubeClient.List(ctx, &list, client.InNamespace(purelbNamespace))).To(Succeed())
	return slices.DeleteFunc(list.Items, func(a v1.Announcement) bool { return a.Spec.Standby == nil })
}

// turnOnWireFailover turns the feature gate on until the spec ends.
func turnOnWireFailover(ctx context.Context) {
	GinkgoHelper()
	const (
		name = "purelb-manager"
		path = "/spec/template/spec/containers/0/args"
	)
	var before appsv1.Deployment
	Expect(kubeClient.Get(ctx, client.ObjectKey{Namespace: purelbNamespace, Name: name}, &before)).To(Succeed())
	last := len(before.Spec.Template.Spec.Containers[0].Args)
	patch := func(ctx context.Context, patch string) {
		GinkgoHelper()
		kubectl(ctx, "-n", purelbNamespace, "patch", "deployment/"+name, "--type=json", "-p", patch)
		kubectl(ctx, "-n", purelbNamespace, "rollout", "status", "deployment/"+name, "--timeout=120s")
	}
	DeferCleanup(func(ctx SpecContext) {
		patch(ctx, fmt.Sprintf(`[{"op": "remove", "path": "%s/%d"}]`, path, last))
		Eventually(func(g Gomega) { g.Expect(listStandbys(ctx, g)).To(BeEmpty()) }).
			WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
	}, NodeTimeout(3*time.Minute))
	patch(ctx, fmt.Sprintf(`[{"op": "add", "path": "%s/-", "value": "--feature-gates=WireFailover=true"}]`, path))
}
