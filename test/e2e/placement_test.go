package e2e

import (
	"context"
	"fmt"
	"os"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/lab"
)

// holders counts the addresses of a group that each node is to announce, and
// tells of each which node that is.
func holders(ctx context.Context, g Gomega, groupName string) (map[string]int, map[string]string) {
	counts, of := map[string]int{}, map[string]string{}
	list := &v1.AnnouncementList{}
	g.Expect(c.List(ctx, list, client.InNamespace(system))).To(Succeed())
	for _, a := range list.Items {
		g.Expect(len(a.Spec.Addresses)).To(BeNumerically("<=", v1.MaxAddressesPerAnnouncement))
		announced := map[string]bool{}
		for _, s := range a.Status.Addresses {
			announced[s.Address] = s.State == v1.StateAnnounced
		}
		for _, e := range a.Spec.Addresses {
			if e.ServiceGroup == groupName && announced[e.Address] {
				counts[a.Spec.NodeName]++
				of[e.Address] = a.Spec.NodeName
			}
		}
	}
	return counts, of
}

var _ = Describe("Placement", func() {
	It("spreads 200 addresses evenly, and moves only those of a node that dies", func(ctx SpecContext) {
		group(ctx, "many.yaml")
		const many = 200
		begun := time.Now()
		for i := range many {
			service(ctx, fmt.Sprintf("many-%d", i), "many", singleStack, func(svc *corev1.Service) { svc.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol} })
		}
		var before map[string]string
		Eventually(func(g Gomega) {
			var counts map[string]int
			counts, before = holders(ctx, g, "many")
			g.Expect(before).To(HaveLen(many))
			for _, node := range nodes() {
				g.Expect(counts[node]).To(BeNumerically("~", many/3, 1), "%v", counts)
			}
		}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(poll).Should(Succeed())
		fmt.Fprintf(os.Stdout, "%d Services made and announced in %s\n", many, time.Since(begun).Round(time.Millisecond))

		dead := nodes()[0]
		Expect(bed.CutLink(ctx, dead)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(bed.HealLink(ctx, dead)).To(Succeed()) }, NodeTimeout(soon))
		begun = time.Now()
		var after map[string]string
		Eventually(func(g Gomega) {
			var counts map[string]int
			counts, after = holders(ctx, g, "many")
			g.Expect(after).To(HaveLen(many))
			g.Expect(counts[dead]).To(BeZero())
			for _, node := range nodes()[1:] {
				g.Expect(counts[node]).To(BeNumerically("~", many/2, 1), "%v", counts)
			}
		}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(poll).Should(Succeed())
		fmt.Fprintf(os.Stdout, "a node's share of %d addresses moved in %s\n", many, time.Since(begun).Round(time.Millisecond))
		for address, node := range after {
			if before[address] != dead {
				Expect(node).To(Equal(before[address]), "%s has moved without a cause", address)
			}
		}
	}, SpecTimeout(4*time.Minute))

	It("follows the endpoints of policy Local, without a failed request while they are replaced", func(ctx SpecContext) {
		group(ctx, "remotedual.yaml")
		DeferCleanup(func(ctx SpecContext) { Expect(bed.StopRouting(ctx)).To(Succeed()) }, NodeTimeout(soon))
		Expect(bed.StartRouting(ctx)).To(Succeed())

		By("two servers that serve on for a while when they are to end")
		labels := map[string]string{"app": "rolling"}
		rolling := echo()
		rolling.Name, rolling.Spec.Replicas = "rolling", ptr.To[int32](2)
		rolling.Spec.Selector.MatchLabels, rolling.Spec.Template.Labels = labels, labels
		rolling.Spec.Template.Spec.TerminationGracePeriodSeconds = ptr.To[int64](10)
		rolling.Spec.Template.Spec.TopologySpreadConstraints[0].LabelSelector.MatchLabels = labels
		rolling.Spec.Template.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 3}}}
		rolling.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType}
		Expect(c.Create(ctx, rolling)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) {
			Expect(client.IgnoreNotFound(c.Delete(ctx, rolling, client.PropagationPolicy(metav1.DeletePropagationForeground)))).To(Succeed())
		}, NodeTimeout(soon))
		kubectl(ctx, "-n", namespace, "rollout", "status", "deployment/rolling", "--timeout=60s")

		svc := service(ctx, "rolling", "remotedual", singleStack, func(svc *corev1.Service) {
			svc.Spec.Selector, svc.Spec.ExternalTrafficPolicy = labels, corev1.ServiceExternalTrafficPolicyLocal
		})
		addr := ingress(ctx, svc, 1)[0]
		atEndpoints := func() {
			GinkgoHelper()
			Eventually(func(g Gomega) {
				pods := &corev1.PodList{}
				g.Expect(c.List(ctx, pods, client.InNamespace(namespace), client.MatchingLabels(labels))).To(Succeed())
				var want []string
				for _, p := range pods.Items {
					if p.DeletionTimestamp == nil {
						want = append(want, fmt.Sprintf("%s/kube-lb0 %s/32", p.Spec.NodeName, addr))
					}
				}
				found, err := places(ctx, addr)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(found).To(ConsistOf(want))
			}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(poll).Should(Succeed())
		}
		atEndpoints()
		answers(ctx, lab.Far, addr, soon)
		Expect(fetch(ctx, lab.Far, addr)).To(ContainSubstring("client=10.78.0.2:"), "the client's own address")

		for trial := range trials() {
			// Where none is ready, kube-proxy sends to those, too, that are about to end
			// since the trial before.
			Eventually(func(g Gomega) {
				pods := &corev1.PodList{}
				g.Expect(c.List(ctx, pods, client.InNamespace(namespace), client.MatchingLabels(labels))).To(Succeed())
				g.Expect(pods.Items).To(HaveLen(2))
			}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(poll).Should(Succeed())
			meter, err := bed.Measure(ctx, lab.Far, addr)
			Expect(err).NotTo(HaveOccurred())
			kubectl(ctx, "-n", namespace, "rollout", "restart", "deployment/rolling")
			kubectl(ctx, "-n", namespace, "rollout", "status", "deployment/rolling", "--timeout=120s")
			atEndpoints()
			record, err := meter.Stop()
			Expect(err).NotTo(HaveOccurred())
			figures := record.Figures()
			fmt.Fprintf(os.Stdout, "endpoints of policy Local replaced, trial %d: %s\n", trial+1, figures)
			Expect(figures.Failed).To(BeZero())
			Expect(figures.InFlight).To(BeNumerically("<=", figures.Requests/20), "only those that a change of routes has met")
		}

		By("scaling to zero and back")
		kubectl(ctx, "-n", namespace, "scale", "deployment/rolling", "--replicas=0")
		Eventually(func() ([]string, error) { return places(ctx, addr) }).WithContext(ctx).WithTimeout(soon).WithPolling(poll).Should(BeEmpty())
		kubectl(ctx, "-n", namespace, "scale", "deployment/rolling", "--replicas=1")
		answers(ctx, lab.Far, addr, soon)
		atEndpoints()
	}, SpecTimeout(10*time.Minute))
})
