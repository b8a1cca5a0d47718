package controllers_test

import (
	"math"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

func TestServiceGroupStatus(t *testing.T) {
	g := begin(t)
	sg := serviceGroup(t, "status", `
remote:
  v4pools: [{pool: 10.30.0.0/30, subnet: 10.30.0.0/30}, {pool: 10.30.1.1, subnet: 10.30.1.0/24}]
  v6pool: {pool: 'fd30::/64', subnet: 'fd30::/64'}`)
	service(t, "counted", ofGroup("status"), dualStack)
	g.Eventually(ready(sg)).Should(Equal("True Accepted: 3 ranges"))
	g.Eventually(func(g Gomega) v1.ServiceGroupStatus {
		s := fetch(g, sg).Status
		s.Conditions = nil
		return s
	}).Should(Equal(v1.ServiceGroupStatus{
		ObservedGeneration: 1, Type: v1.PoolTypeRemote,
		AllocatedIPv4: 1, AvailableIPv4: 2, AllocatedIPv6: 1, AvailableIPv6: math.MaxInt64,
		AvailableIPv6Text: ">10^18", AnnouncedAs: "Virtual",
		Ranges: "10.30.0.0-10.30.0.3,10.30.1.1-10.30.1.1,fd30::-fd30::ffff:ffff:ffff:ffff",
		Pools: []v1.PoolStatus{
			{Range: "10.30.0.0-10.30.0.3", Subnet: "10.30.0.0/30", Announce: v1.AnnounceVirtual, Capacity: 2, Allocated: 1},
			{Range: "10.30.1.1-10.30.1.1", Subnet: "10.30.1.0/24", Announce: v1.AnnounceVirtual, Capacity: 1},
			{
				Range: "fd30::-fd30::ffff:ffff:ffff:ffff", Subnet: "fd30::/64", Announce: v1.AnnounceVirtual,
				Capacity: math.MaxInt64, Allocated: 1,
			},
		},
	}))
}

func TestServiceGroupVerdicts(t *testing.T) {
	g := begin(t)
	older := serviceGroup(t, "b-older", "local: {pool: 10.31.0.1-10.31.0.5, subnet: 10.31.0.0/24}")
	g.Eventually(ready(older)).Should(Equal("True Accepted: 1 range"))
	// Of groups created in the same second, the first by name would win.
	g.Eventually(func() bool { return metav1.Now().Unix() > older.CreationTimestamp.Unix() }).Should(BeTrue())
	younger := serviceGroup(t, "a-younger", "local: {pool: 10.31.0.5-10.31.0.9, subnet: 10.31.0.0/24}")
	const overlap = `spec.local.pool: Invalid value: "10.31.0.5-10.31.0.9": range 10.31.0.5-10.31.0.9 overlaps range ` +
		`10.31.0.1-10.31.0.5 ` +
		"of ServiceGroup b-older, which has these addresses already"
	g.Eventually(ready(younger)).Should(SatisfyAll(HavePrefix("False Overlap: "), HaveSuffix(overlap)))
	g.Eventually(eventsOf(younger, v1.ReasonOverlap)).
		Should(ConsistOf(SatisfyAll(HavePrefix("purelb-servicegroup: "), HaveSuffix(overlap))))
	g.Expect(ready(older)(g)).To(Equal("True Accepted: 1 range"))

	waiting := service(t, "waiting", ofGroup("a-younger"))
	g.Eventually(condition(waiting, v1.ConditionAllocated)).Should(
		SatisfyAll(HavePrefix("False GroupNotReady: ServiceGroup a-younger is not ready: "), HaveSuffix(overlap)))
	remove(t, older)
	g.Eventually(ready(younger)).Should(Equal("True Accepted: 1 range"))
	g.Eventually(ingress(waiting)).Should(Equal([]string{"10.31.0.5"}))

	invalid := serviceGroup(
		t, "invalid", "local: {v4pool: {pool: 172.32.100.225-172.30.100.229, subnet: 172.32.100.0/24}}",
	)
	g.Eventually(ready(invalid)).
		Should(Equal(`False Invalid: spec.local.v4pool.pool: Invalid value: "172.32.100.225-172.30.100.229": ` +
			`ends (172.30.100.229) before it starts (172.32.100.225); did you mean 172.32.100.225-172.32.100.229?`))

	elsewhere := &v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Namespace: user, Name: "elsewhere"}, Spec: older.Spec}
	create(t, elsewhere)
	g.Eventually(ready(elsewhere)).Should(
		SatisfyAll(
			HavePrefix("False OutOfScope: "), HaveSuffix("only ServiceGroups in namespace purelb-system count: move it there"),
		))
}

// TestSubnetNotFound follows a group of kind local whose subnet is mistyped: nothing is wrong with it until all agents
// have reported, and then a condition of its own says so. Ready stays True.
func TestSubnetNotFound(t *testing.T) {
	g := begin(t)
	rack := map[string]string{"subnets": "yes"}
	lbNodeAgent(t, "subnets", rack)
	typo := serviceGroup(t, "typo", "local: {v4pools: [{pool: 10.52.1.1, subnet: 10.52.1.0/24}, "+
		"{pool: 10.53.0.1, subnet: 10.53.0.0/24}], v6pool: {pool: 'fd52::1-fd52::4', subnet: 'fd52::/64'}}")
	says := func(g Gomega) string {
		status := fetch(g, typo).Status
		text := string(status.AnnouncedAs) + " " + status.AvailableIPv6Text
		if c := meta.FindStatusCondition(status.Conditions, v1.ConditionSubnetNotFound); c != nil {
			text += " " + string(c.Status) + " " + c.Reason + ": " + c.Message
		}
		return text
	}
	for _, name := range []string{"subnet1", "subnet2"} {
		node(t, name, rack)
		g.Eventually(func(g Gomega) *v1.Announcement { return announcement(g, name) }).ShouldNot(BeNil())
	}
	first := runAgent(t, "subnet1", eth("eth0", "10.52.0.1/24"))
	g.Eventually(says).Should(Equal("Virtual 4"), "one agent has reported, and the other may be in that subnet")
	// The agent of a node that is not Ready is not waited for. When the node is Ready again, what was said stays.
	const noneOf = "Virtual 4 True SubnetNotFound: no node has an interface in 10.52.1.0/24, 10.53.0.0/24, fd52::/64: "
	setReady(t, "subnet2", corev1.ConditionFalse)
	g.Eventually(says).Should(HavePrefix(noneOf))
	setReady(t, "subnet2", corev1.ConditionTrue)
	g.Eventually(eventsOf(typo, v1.ReasonSubnetNotFound)).Should(HaveLen(1))
	runAgent(t, "subnet2", eth("eth0", "10.53.0.2/24"))
	g.Eventually(says).Should(Equal("Mixed 4 True SubnetNotFound: no node has an interface in 10.52.1.0/24, fd52::/64: " +
		"the addresses are Virtual, and only routers make packets come; correct the subnet or spec.local of the " +
		"LBNodeAgents or, if that is meant, make the group one of kind remote"))
	g.Expect(ready(typo)(g)).To(Equal("True Accepted: 3 ranges"))
	g.Eventually(eventsOf(typo, v1.ReasonSubnetNotFound)).Should(
		And(HaveLen(2), HaveEach(HavePrefix("purelb-servicegroup: no node has"))),
	)

	first.stop()
	runAgent(t, "subnet1", v1.NodeInterface{Name: "eth0", Subnets: []string{"10.52.1.9/24", "fd52::9/64"}})
	g.Eventually(says).Should(Equal("Local 4"))
}
