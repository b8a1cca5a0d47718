package controllers_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// TestServiceCommunities follows what Services ask for of the routes to their addresses, from the annotation to the
// NodeRoutings: what is allowed is there, also for Services that share an address, and what is not is ignored, with an
// event and a word in the Service's condition.
func TestServiceCommunities(t *testing.T) {
	g, ctx := begin(t), context.Background()
	rack := map[string]string{"communities": "yes"}
	lbNodeAgent(t, "communities", rack)
	node(t, "marked1", rack)
	runAgent(t, "marked1", eth("eth0", "10.42.0.1/24"))
	sg := serviceGroup(t, "communities", `
remote: {pool: 198.18.7.0/28, subnet: 198.18.7.0/24, aggregation: /32}
bgp: {communities: ["65001:1"], allowServices: {communities: [no-export, "65001:7"], largeCommunities: ["65001:1:7"]}}`)
	bgpPeer(t, "communities", "peerASN: 65000\nmyASN: 65001\npeerAddress: 192.0.2.7\n"+
		"nodeSelector: {matchLabels: {communities: 'yes'}}")
	routing := &v1.NodeRouting{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "marked1"}}
	communities := func(g Gomega) string {
		var out []string
		for _, e := range fetch(g, routing).Spec.ServiceCommunities {
			out = append(out, fmt.Sprintf("%v%v%v", e.Addresses, e.Communities, e.LargeCommunities))
		}
		return strings.Join(out, "; ")
	}
	asking := func(list string) func(*corev1.Service) {
		return func(svc *corev1.Service) { svc.Annotations[v1.AnnotationBGPCommunities] = list }
	}
	sharing := func(port int32) func(*corev1.Service) {
		return func(svc *corev1.Service) {
			svc.Annotations[v1.AnnotationAllowSharedIP], svc.Spec.Ports[0].Port = "communities", port
		}
	}
	change := func(svc *corev1.Service, list string) {
		t.Helper()
		g.Eventually(func(g Gomega) error {
			asking(list)(fetch(g, svc))
			return api.Update(ctx, svc)
		}).Should(Succeed())
	}
	first := service(t, "first", ofGroup("communities"), asking("65001:7, 65001:1:7"), sharing(80))
	g.Eventually(communities).Should(Equal("[198.18.7.1][65001:7][65001:1:7]"))
	second := service(t, "second", ofGroup("communities"), asking("65001:1:7,65001:7"))
	g.Eventually(communities).Should(Equal("[198.18.7.1-198.18.7.2][65001:7][65001:1:7]"))
	g.Expect(eventsOf(second, v1.EventConfigurationWarning)(g)).To(BeEmpty())

	// What is not allowed, or no community, is ignored; the rest counts.
	change(second, "no-export,blackhole,oops")
	g.Eventually(communities).Should(Equal(
		"[198.18.7.1][65001:7][65001:1:7]; [198.18.7.2][no-export][]"))
	const ignored = `annotation purelb.io/bgp-communities: blackhole is not allowed, "oops" is not a community: ` +
		"spec.bgp.allowServices of ServiceGroup communities says which the routes may have"
	g.Eventually(condition(second, v1.ConditionAllocated)).Should(Equal(
		"True Allocated: 198.18.7.2 from pool communities; " + ignored))
	g.Eventually(eventsOf(second, v1.EventConfigurationWarning)).Should(Equal([]string{"purelb-allocator: " + ignored}))

	// Of Services that share an address the oldest decides; then the next one. A Service is older by its time
	// of creation, which has whole seconds, and then by its name.
	third := service(t, "third", ofGroup("communities"), asking("no-export"), sharing(81))
	g.Eventually(condition(third, v1.ConditionAllocated)).Should(HaveSuffix(
		"has no effect on 198.18.7.1: of the Services that share it, the oldest decides: Service test/first"))
	g.Expect(communities(g)).To(HavePrefix("[198.18.7.1][65001:7][65001:1:7]; "))
	remove(t, first)
	g.Eventually(communities).Should(Equal("[198.18.7.1-198.18.7.2][no-export][]"))
	g.Eventually(condition(third, v1.ConditionAllocated)).Should(Equal("True Allocated: 198.18.7.1 from pool communities"))

	// What the group allows no more goes.
	g.Eventually(func(g Gomega) error {
		fetch(g, sg).Spec.BGP.AllowServices = nil
		return api.Update(ctx, sg)
	}).Should(Succeed())
	g.Eventually(communities).Should(BeEmpty())
	g.Eventually(condition(third, v1.ConditionAllocated)).Should(HaveSuffix(
		"ServiceGroup communities allows Services no communities: it has no spec.bgp.allowServices"))
}
