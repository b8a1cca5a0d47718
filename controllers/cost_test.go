package controllers_test

import (
	"fmt"
	"regexp"
	"testing"

	. "github.com/onsi/gomega"
	eventsv1 "k8s.io/api/events/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// TestWritesForService counts what one Service more costs: what the manager writes until the Service says that
// it is announced, and another node follows the one that holds its Local address, and the events that the Service has
// then. The agents report once for each node that has the address, and once more for each of the three nodes that are
// told about successors (TestReportsOfNewAddress and TestReportsOfSuccessors of package nodeagent). docs/scale.md has
// these numbers.
func TestWritesForService(t *testing.T) {
	g := begin(t)
	nodes := []string{"node-1", "node-2"}
	lbNodeAgent(t, "default", nil)
	for i, name := range nodes {
		node(t, name, nil)
		runAgent(t, name, eth("eth0", fmt.Sprintf("10.46.0.%d/24", 101+i)))
	}
	serviceGroup(t, "cost-local", "local: {pool: 10.46.0.1-10.46.0.50, subnet: 10.46.0.0/24}")
	serviceGroup(t, "cost-virtual", "remote: {pool: 10.47.0.1-10.47.0.50, subnet: 10.47.0.0/24}")
	made := 0
	count := func(g Gomega, group string) map[string]int {
		made++
		name := fmt.Sprintf("cost-%d-of-%s", made, group)
		written.take()
		svc := service(t, name, ofGroup(group))
		g.Eventually(condition(svc, v1.ConditionAnnounced)).Should(HavePrefix("True"))
		if group == "cost-local" {
			waitUntilFollowed(t, ingress(svc)(g)[0], 1)
		}
		counts := map[string]int{}
		add := func(pattern string) {
			kinds := regexp.MustCompile(pattern)
			for _, w := range written.take() {
				if m := kinds.FindStringSubmatch(w); m != nil {
					counts[m[1]+m[2]]++
				}
			}
		}
		add(`/(services|announcements|commonannouncements)/[^/]+(/status)?$`)
		waitUntilPlaced(t) // which has shared entries and Services of its own
		add(`/(services|announcements)/(?:` + name + `|node-[12](?:-standby-[0-9a-f]+)?)(/status)?$`)
		var events eventsv1.EventList
		g.Expect(api.List(t.Context(), &events)).To(Succeed())
		for i := range events.Items {
			if events.Items[i].Regarding.UID == svc.UID {
				counts["event "+events.Items[i].Reason]++
			}
		}
		return counts
	}
	// The first Services also make the nodes include the shared entries. A machine that is so busy that an agent
	// reports after firstReportWait costs one more write: then the next Service is counted.
	expect := func(group string, want map[string]int) {
		t.Helper()
		g.Eventually(func(g Gomega) map[string]int { return count(g, group) }).WithTimeout(5 * soon).Should(Equal(want))
	}
	expect("cost-local", map[string]int{
		"services/status": 2, "announcements": 3, "event " + v1.EventAddressAssigned: 1,
		"event " + v1.EventAnnouncingLocal: 1,
	})
	count(g, "cost-virtual")
	expect("cost-virtual", map[string]int{
		"services/status": 2, "commonannouncements": 1, "event " + v1.EventAddressAssigned: 1,
		"event " + v1.EventAnnouncingNonLocal: len(nodes),
	})
}
