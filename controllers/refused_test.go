package controllers_test

import (
	"context"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// TestFaultDaemonSetRefused makes an LBNodeAgent that everything accepts but the API server, for
// the DaemonSet: its requests are above its limits.
func TestFaultDaemonSetRefused(t *testing.T) {
	g := begin(t)
	a := &v1.LBNodeAgent{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "greedy"}, Spec: v1.LBNodeAgentSpec{
		NodeSelector: map[string]string{"greedy": "none"},
		Resources: &corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}, Limits: corev1.ResourceList{
				corev1.ResourceMemory: resource.MustParse("128Mi"),
			},
		},
	}}
	create(t, a)
	readyOf := func(g Gomega) string {
		c := meta.FindStatusCondition(fetch(g, a).Status.Conditions, v1.ConditionReady)
		g.Expect(c).NotTo(BeNil())
		g.Expect(c.ObservedGeneration).To(Equal(a.Generation))
		return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
	}
	g.Eventually(readyOf).
		Should(And(
			HavePrefix("False Refused: The API server refuses what the agents need: "),
			ContainSubstring("must be less than or equal to memory limit"),
		))
	patch(t, a, `{"spec":{"resources":{"requests":{"memory":"64Mi"}}}}`)
	g.Eventually(readyOf).ShouldNot(HavePrefix("False Refused"))
	g.Eventually(func() error {
		return api.Get(
			context.Background(), client.ObjectKey{Namespace: namespace, Name: "purelb-agent-greedy"}, &appsv1.DaemonSet{},
		)
	}).Should(Succeed())
}
