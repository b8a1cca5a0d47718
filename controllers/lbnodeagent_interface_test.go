package controllers_test

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// TestInterfaceNotFound follows an LBNodeAgent that selects no interface of its nodes: it says of which, once their
// agents have reported, and a ServiceGroup whose addresses are therefore Virtual says so, too.
func TestInterfaceNotFound(t *testing.T) {
	g := begin(t)
	labels := map[string]string{"interfaces": "none"}
	agent := lbNodeAgent(t, "bare", labels)
	group := serviceGroup(t, "bare", "local: {v4pool: {pool: 10.54.1.1, subnet: 10.54.1.0/24}}")
	says := func(g Gomega) string {
		c := meta.FindStatusCondition(fetch(g, agent).Status.Conditions, v1.ConditionInterfaceNotFound)
		if c == nil {
			return ""
		}
		return string(c.Status) + " " + c.Reason + ": " + c.Message
	}
	for _, name := range []string{"bare1", "bare2"} {
		node(t, name, labels)
		g.Eventually(func(g Gomega) *v1.Announcement { return announcement(g, name) }).ShouldNot(BeNil())
	}
	const of, rest = " of 2 nodes have no interface that spec.local.localInterface, default, or spec.local.interfaces " +
		"selects, and announce no Local address: ", "; correct it, or select these nodes by another LBNodeAgent"
	first := runAgent(t, "bare1")
	g.Eventually(says).Should(Equal("True InterfaceNotFound: 1" + of + "bare1" + rest))
	g.Eventually(eventsOf(agent, v1.ReasonInterfaceNotFound)).Should(HaveLen(1))
	runAgent(t, "bare2")
	g.Eventually(says).Should(Equal("True InterfaceNotFound: 2" + of + "bare1, bare2" + rest))
	g.Eventually(func(g Gomega) bool {
		status := fetch(g, group).Status
		return status.AnnouncedAs == "Virtual" && meta.IsStatusConditionTrue(status.Conditions, v1.ConditionSubnetNotFound)
	}).Should(BeTrue())

	first.stop()
	runAgent(t, "bare1", eth("eth0", "10.54.1.9/24"))
	g.Eventually(says).Should(Equal("True InterfaceNotFound: 1" + of + "bare2" + rest))
	g.Eventually(func(g Gomega) any { return fetch(g, group).Status.AnnouncedAs }).Should(BeEquivalentTo("Local"))
}
