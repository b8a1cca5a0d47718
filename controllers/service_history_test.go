package controllers_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/seeds"
)

// TestServiceHistory creates, edits and deletes Services at random while another client
// writes them, too. It checks all Services after they have settled.
func TestServiceHistory(t *testing.T) {
	g := begin(t)
	random := rand.New(rand.NewPCG(seeds.First(t), 4))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	const many, label = 14, "history"
	one := serviceGroup(t, "history-1", "local: {pool: 10.38.1.1-10.38.1.4, subnet: 10.38.1.0/24}")
	serviceGroup(
		t, "history-2",
		"remote: {balancePools: true, v4pools: [{pool: 10.38.2.1-10.38.2.2, subnet: 10.38.2.0/24}, {pool: "+
			"10.38.3.1-10.38.3.2, subnet: 10.38.3.0/24}]}",
	)
	t.Cleanup(func() {
		for i := range many {
			remove(t, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: user, Name: fmt.Sprintf("history-%d", i)}})
		}
	})

	var others sync.WaitGroup
	others.Go(func() { // another client, which causes conflicts
		for i := 0; ctx.Err() == nil; i++ {
			svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: user, Name: fmt.Sprintf("history-%d", i%many)}}
			_ = api.Patch(
				ctx, svc,
				client.RawPatch(
					"application/merge-patch+json", []byte(fmt.Sprintf(`{"metadata":{"annotations":{"other":"%d"}}}`, i)),
				),
			)
		}
	})
	pick := func(options ...string) string { return options[random.IntN(len(options))] }
	for range 250 {
		name := fmt.Sprintf("history-%d", random.IntN(many))
		svc := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: user, Name: name, Labels: map[string]string{label: "yes"}},
		}
		switch random.IntN(6) {
		case 0:
			g.Expect(client.IgnoreNotFound(api.Delete(ctx, svc))).To(Succeed())
		case 1:
			patch(t, one, fmt.Sprintf(`{"spec":{"local":{"pool":"10.38.1.1-10.38.1.%d"}}}`, 3+random.IntN(3)))
		default:
			annotations := map[string]string{
				v1.AnnotationServiceGroup:  pick("history-1", "history-1", "history-2", "nowhere"),
				v1.AnnotationAllowSharedIP: pick("", "", "k", "l"),
				v1.AnnotationAddresses:     pick("", "", "", "10.38.1.2", "10.38.2.2"),
			}
			ports := []corev1.ServicePort{{Port: int32(80 + random.IntN(3)), Protocol: corev1.ProtocolTCP}}
			svc.Annotations, svc.Spec.Ports = annotations, ports
			svc.Spec.Type, svc.Spec.AllocateLoadBalancerNodePorts = corev1.ServiceTypeLoadBalancer, ptr.To(false)
			err := api.Create(ctx, svc)
			if apierrors.IsAlreadyExists(err) {
				patch(t, svc, fmt.Sprintf(`{"metadata":{"annotations":{%q:%q,%q:%q,%q:%q}},"spec":{"ports":[{"port":%d,`+
					`"protocol":"TCP"}]}}`,
					v1.AnnotationServiceGroup, annotations[v1.AnnotationServiceGroup], v1.AnnotationAllowSharedIP,
					annotations[v1.AnnotationAllowSharedIP],
					v1.AnnotationAddresses, annotations[v1.AnnotationAddresses], ports[0].Port))
				err = nil
			}
			g.Expect(err).NotTo(HaveOccurred())
		}
	}
	cancel()
	others.Wait()

	audit := func(g Gomega) map[string]string {
		var list corev1.ServiceList
		g.Expect(api.List(context.Background(), &list, client.InNamespace(user), client.MatchingLabels{label: "yes"})).
			To(Succeed())
		holders, result := map[string][]*corev1.Service{}, map[string]string{}
		for i := range list.Items {
			svc := &list.Items[i]
			result[svc.Name] = svc.ResourceVersion
			g.Expect(meta.FindStatusCondition(svc.Status.Conditions, v1.ConditionAllocated)).NotTo(BeNil())
			for _, in := range svc.Status.LoadBalancer.Ingress {
				holders[in.IP] = append(holders[in.IP], svc)
			}
		}
		for address, sharers := range holders {
			for _, svc := range sharers[1:] {
				g.Expect(svc.Annotations[v1.AnnotationAllocatedKey]).NotTo(
					BeEmpty(), "%s is %s's and %s's", address, sharers[0].Name, svc.Name,
				)
				g.Expect(svc.Annotations[v1.AnnotationAllocatedKey]).To(
					Equal(sharers[0].Annotations[v1.AnnotationAllocatedKey]), "%s", address,
				)
			}
		}
		for i := range list.Items {
			svc := &list.Items[i]
			allocated := meta.FindStatusCondition(svc.Status.Conditions, v1.ConditionAllocated)
			if allocated.Reason != v1.ReasonExhausted || svc.Annotations[v1.AnnotationServiceGroup] != "history-2" {
				continue
			}
			for _, address := range []string{"10.38.2.1", "10.38.2.2", "10.38.3.1", "10.38.3.2"} {
				g.Expect(holders).To(HaveKey(address), "%s waits", svc.Name)
			}
		}
		return result
	}
	g.Eventually(func(g Gomega) { audit(g) }).Should(Succeed())
	waitUntilAllocated(t)
	// No node announces the addresses. The manager says so of each Service, but not at once.
	g.Eventually(func(g Gomega) {
		var list corev1.ServiceList
		g.Expect(api.List(context.Background(), &list, client.InNamespace(user), client.MatchingLabels{label: "yes"})).
			To(Succeed())
		for i := range list.Items {
			svc := &list.Items[i]
			reported := meta.FindStatusCondition(svc.Status.Conditions, v1.ConditionAnnounced)
			g.Expect(reported != nil).To(Equal(len(svc.Status.LoadBalancer.Ingress) > 0), svc.Name)
			g.Expect(reported == nil || reported.ObservedGeneration == svc.Generation).To(BeTrue(), svc.Name)
		}
	}).Should(Succeed())
	settled := audit(g)
	waitUntilAllocated(t)
	g.Expect(audit(g)).To(Equal(settled), "nothing is written any more")
}
