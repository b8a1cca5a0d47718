package controllers_test

import (
	"math"
	"testing"

	. "github.com/onsi/gomega"
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
