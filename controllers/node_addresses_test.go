package controllers_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// TestAttackReservedPool lets an agent report 64 interfaces with 64 addresses each, all
// addresses of a pool among them: Services still get addresses, and the group names the
// node until its agent reports what the node has.
func TestAttackReservedPool(t *testing.T) {
	g := begin(t)
	lbNodeAgent(t, "liars", map[string]string{"liar": "yes"})
	bad := node(t, "liar", map[string]string{"liar": "yes"})
	g.Eventually(func(g Gomega) error {
		n := fetch(g, bad)
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.47.0.200"}}
		return api.Status().Update(t.Context(), n)
	}).Should(Succeed())
	var lies []v1.NodeInterface
	for i := range 64 {
		lie := v1.NodeInterface{Name: v1.InterfaceName(fmt.Sprintf("e%d", i)), MAC: "02:00:00:00:00:01"}
		for k := range 64 {
			lie.Subnets = append(lie.Subnets, fmt.Sprintf("10.47.%d.%d/32", (i*64+k)/256, (i*64+k)%256))
		}
		lies = append(lies, lie)
	}
	sg := serviceGroup(t, "coveted", "remote: {pool: 10.47.0.0/24, subnet: 10.47.0.0/24}")
	g.Eventually(ready(sg)).Should(HavePrefix("True Accepted: 1 range"))
	liar := runAgent(t, "liar", lies...)
	excessCondition := func(g Gomega) string {
		c := meta.FindStatusCondition(fetch(g, sg).Status.Conditions, v1.ConditionNodeAddressesExceeded)
		if c == nil {
			return ""
		}
		return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
	}
	// The node reports 256. One is confirmed, and seven more are reserved.
	excess := SatisfyAll(HavePrefix("True TooManyNodeAddresses: "), ContainSubstring("(node liar: IPv4 248 addresses)"))
	g.Eventually(excessCondition).Should(excess)
	g.Expect(ready(sg)(g)).
		To(SatisfyAll(HavePrefix("True Accepted: "), HaveSuffix("10.47.0.4, an address of node liar and 3 more")))
	g.Eventually(eventsOf(sg, v1.ReasonTooManyNodeAddresses)).
		Should(ConsistOf(ContainSubstring("(node liar: IPv4 248 addresses)")))

	svc := service(t, "coveting", ofGroup("coveted"))
	g.Eventually(ingress(svc)).Should(Equal([]string{"10.47.0.7"}))
	confirmed := service(t, "coveting-confirmed", ofGroup("coveted"), func(svc *corev1.Service) {
		svc.Annotations[v1.AnnotationAddresses] = "10.47.0.200"
	})
	g.Eventually(condition(confirmed, v1.ConditionAllocated)).Should(HavePrefix("False AddressInUse: "))

	liar.stop()
	runAgent(t, "liar", eth("eth0", "10.47.0.200/24"))
	g.Eventually(excessCondition).Should(BeEmpty())
	g.Expect(ingress(svc)(g)).To(Equal([]string{"10.47.0.7"}))
}
