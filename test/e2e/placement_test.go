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
	"github.com/purelb/purelb-operator/test/echo"
	"github.com/purelb/purelb-operator/test/lab"
)

// countHolders returns how many addresses of a ServiceGroup each node announces, and which
// node announces each address.
func countHolders(ctx context.Context, g Gomega, groupName string) (countByNode map[string]int, nodeByAddress map[string]string) {
	counts, of := map[string]int{}, map[string]string{}
	list := &v1.AnnouncementList{}
	g.Expect(kubeClient.List(ctx, list, client.InNamespace(purelbNamespace))).To(Succeed())
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
		applyGroup(ctx, "many.yaml")
		const many = 200
		begun := time.Now()
		for i := range many {
			createService(ctx, fmt.Sprintf("many-%d", i), "many", singleStack, func(svc *corev1.Service) { svc.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol} })
		}
		var before map[string]string
		Eventually(func(g Gomega) {
			var counts map[string]int
			counts, before = countHolders(ctx, g, "many")
			g.Expect(before).To(HaveLen(many))
			for _, node := range nodeNames() {
				g.Expect(counts[node]).To(BeNumerically("~", many/3, 1), "%v", counts)
			}
		}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(pollInterval).Should(Succeed())
		fmt.Fprintf(os.Stdout, "%d Services created and announced in %s\n", many, time.Since(begun).Round(time.Millisecond))

		dead := nodeNames()[0]
		Expect(testLab.CutLink(ctx, dead)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(testLab.HealLink(ctx, dead)).To(Succeed()) }, NodeTimeout(waitLimit))
		begun = time.Now()
		var after map[string]string
		Eventually(func(g Gomega) {
			var counts map[string]int
			counts, after = countHolders(ctx, g, "many")
			g.Expect(after).To(HaveLen(many))
			g.Expect(counts[dead]).To(BeZero())
			for _, node := range nodeNames()[1:] {
				g.Expect(counts[node]).To(BeNumerically("~", many/2, 1), "%v", counts)
			}
		}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(pollInterval).Should(Succeed())
		fmt.Fprintf(os.Stdout, "a node's share of %d addresses moved in %s\n", many, time.Since(begun).Round(time.Millisecond))
		for address, node := range after {
			if before[address] != dead {
				Expect(node).To(Equal(before[address]), "%s has moved without a cause", address)
			}
		}
	}, SpecTimeout(4*time.Minute))

	It("follows the endpoints of policy Local, and no request fails while they are replaced", Label(proxyLabel), func(ctx SpecContext) {
		applyGroup(ctx, "remotedual.yaml")
		DeferCleanup(func(ctx SpecContext) { Expect(testLab.StopRouting(ctx)).To(Succeed()) }, NodeTimeout(waitLimit))
		Expect(testLab.StartRouting(ctx)).To(Succeed())

		By("starting two servers that go on serving for a while after they are told to end")
		labels := map[string]string{"app": "rolling"}
		rolling := echo.Deployment(testNamespace, lab.EchoImage)
		rolling.Name, rolling.Spec.Replicas = "rolling", ptr.To[int32](2)
		rolling.Spec.Selector.MatchLabels, rolling.Spec.Template.Labels = labels, labels
		rolling.Spec.Template.Spec.TerminationGracePeriodSeconds = ptr.To[int64](10)
		rolling.Spec.Template.Spec.TopologySpreadConstraints[0].LabelSelector.MatchLabels = labels
		rolling.Spec.Template.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 3}}}
		rolling.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType}
		Expect(kubeClient.Create(ctx, rolling)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) {
			Expect(client.IgnoreNotFound(kubeClient.Delete(ctx, rolling, client.PropagationPolicy(metav1.DeletePropagationForeground)))).To(Succeed())
		}, NodeTimeout(waitLimit))
		kubectl(ctx, "-n", testNamespace, "rollout", "status", "deployment/rolling", "--timeout=60s")

		svc := createService(ctx, "rolling", "remotedual", singleStack, func(svc *corev1.Service) {
			svc.Spec.Selector, svc.Spec.ExternalTrafficPolicy = labels, corev1.ServiceExternalTrafficPolicyLocal
		})
		addr := waitForAddresses(ctx, svc, 1)[0]
		atEndpoints := func() {
			GinkgoHelper()
			Eventually(func(g Gomega) {
				pods := &corev1.PodList{}
				g.Expect(kubeClient.List(ctx, pods, client.InNamespace(testNamespace), client.MatchingLabels(labels))).To(Succeed())
				var want []string
				for _, p := range pods.Items {
					if p.DeletionTimestamp == nil {
						want = append(want, fmt.Sprintf("%s/kube-lb0 %s/32", p.Spec.NodeName, addr))
					}
				}
				found, err := findPlaces(ctx, addr)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(found).To(ConsistOf(want))
			}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(pollInterval).Should(Succeed())
		}
		atEndpoints()
		waitForAnswer(ctx, lab.Far, addr, waitLimit)
		Expect(fetch(ctx, lab.Far, addr)).To(ContainSubstring("client=10.78.0.2:"), "the client's own address")

		for trial := range trials() {
			// Where no endpoint is ready, kube-proxy also uses those that are terminating
			// since the trial before.
			Eventually(func(g Gomega) {
				pods := &corev1.PodList{}
				g.Expect(kubeClient.List(ctx, pods, client.InNamespace(testNamespace), client.MatchingLabels(labels))).To(Succeed())
				g.Expect(pods.Items).To(HaveLen(2))
			}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(pollInterval).Should(Succeed())
			meter, err := testLab.Measure(ctx, lab.Far, addr)
			Expect(err).NotTo(HaveOccurred())
			kubectl(ctx, "-n", testNamespace, "rollout", "restart", "deployment/rolling")
			kubectl(ctx, "-n", testNamespace, "rollout", "status", "deployment/rolling", "--timeout=120s")
			atEndpoints()
			record, err := meter.Stop()
			Expect(err).NotTo(HaveOccurred())
			figures := record.Figures()
			fmt.Fprintf(os.Stdout, "endpoints of policy Local replaced, trial %d: %s\n", trial+1, figures)
			Expect(figures.Failed).To(BeZero())
			Expect(figures.InFlight).To(BeNumerically("<=", figures.Requests/20), "only those during a change of routes")
		}

		By("scaling to zero and back")
		kubectl(ctx, "-n", testNamespace, "scale", "deployment/rolling", "--replicas=0")
		Eventually(func() ([]string, error) { return findPlaces(ctx, addr) }).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(BeEmpty())
		kubectl(ctx, "-n", testNamespace, "scale", "deployment/rolling", "--replicas=1")
		waitForAnswer(ctx, lab.Far, addr, waitLimit)
		atEndpoints()
	}, SpecTimeout(10*time.Minute))

	It("keeps policy Local on a Local address where its ServiceGroup or its annotation allows it", func(ctx SpecContext) {
		By("starting one server")
		labels := map[string]string{"app": "followed"}
		followed := echo.Deployment(testNamespace, lab.EchoImage)
		followed.Name, followed.Spec.Replicas = "followed", ptr.To[int32](1)
		followed.Spec.Selector.MatchLabels, followed.Spec.Template.Labels = labels, labels
		followed.Spec.Template.Spec.TopologySpreadConstraints = nil
		followed.Spec.Template.Spec.NodeName = "node2"
		Expect(kubeClient.Create(ctx, followed)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) {
			Expect(client.IgnoreNotFound(kubeClient.Delete(ctx, followed, client.PropagationPolicy(metav1.DeletePropagationForeground)))).To(Succeed())
		}, NodeTimeout(waitLimit))
		kubectl(ctx, "-n", testNamespace, "rollout", "status", "deployment/followed", "--timeout=60s")

		createLocalGroup(ctx, "followed", v1.PoolSet{V4Pools: []v1.AddressPool{v4Range(175, 177)}})
		policyLocal := func(svc *corev1.Service) {
			svc.Spec.Selector, svc.Spec.ExternalTrafficPolicy = labels, corev1.ServiceExternalTrafficPolicyLocal
		}
		policyOf := func(svc *corev1.Service) func(Gomega) corev1.ServiceExternalTrafficPolicy {
			return func(g Gomega) corev1.ServiceExternalTrafficPolicy {
				g.Expect(kubeClient.Get(ctx, client.ObjectKeyFromObject(svc), svc)).To(Succeed())
				return svc.Spec.ExternalTrafficPolicy
			}
		}
		setPolicyLocal := func(value string) {
			GinkgoHelper()
			kubectl(ctx, "-n", purelbNamespace, "patch", "servicegroup", "followed", "--type=merge", "-p", `{"spec":{"policyLocal":"`+value+`"}}`)
		}
		eventually := func(svc *corev1.Service, policy corev1.ServiceExternalTrafficPolicy) {
			GinkgoHelper()
			Eventually(policyOf(svc)).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Equal(policy))
		}
		// The pod sees the client, as no other node forwards the request.
		seesClient := func(svc *corev1.Service, node string) {
			GinkgoHelper()
			addr := waitForAddresses(ctx, svc, 1)[0]
			Eventually(func() ([]string, error) { return findPlaces(ctx, addr) }).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).
				Should(ConsistOf(HavePrefix(node + "/eth0")))
			// kube-proxy follows a change of the policy in its own time.
			Eventually(func() (string, error) { return fetch(ctx, lab.Client, addr) }).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).
				Should(And(ContainSubstring("client=10.77.0.50:"), ContainSubstring("node="+node)))
		}

		By("overriding the policy by default, but not where the annotation allows it")
		plain := createService(ctx, "plain", "followed", singleStack, policyLocal)
		eventually(plain, corev1.ServiceExternalTrafficPolicyCluster)
		annotated := createService(ctx, "annotated", "followed", singleStack, policyLocal, withAnnotation(v1.AnnotationAllowLocal, "true"))
		seesClient(annotated, "node2")

		By("allowing the policy for all Services of the ServiceGroup")
		setPolicyLocal("Allow")
		Eventually(func(g Gomega) map[string]string {
			g.Expect(kubeClient.Get(ctx, client.ObjectKeyFromObject(plain), plain)).To(Succeed())
			return plain.Annotations
		}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).ShouldNot(HaveKey(v1.AnnotationLocalOverride))
		kubectl(ctx, "-n", testNamespace, "patch", "service", "plain", "--type=merge", "-p", `{"spec":{"externalTrafficPolicy":"Local"}}`)
		allowed := createService(ctx, "allowed", "followed", singleStack, policyLocal)
		for _, svc := range []*corev1.Service{plain, annotated, allowed} {
			seesClient(svc, "node2")
			Expect(policyOf(svc)(Default)).To(Equal(corev1.ServiceExternalTrafficPolicyLocal))
		}

		By("moving the server: the addresses follow")
		kubectl(ctx, "-n", testNamespace, "patch", "deployment", "followed", "--type=merge", "-p", `{"spec":{"template":{"spec":{"nodeName":"node3"}}}}`)
		kubectl(ctx, "-n", testNamespace, "rollout", "status", "deployment/followed", "--timeout=120s")
		for _, svc := range []*corev1.Service{plain, annotated, allowed} {
			seesClient(svc, "node3")
		}

		By("overriding the policy again")
		setPolicyLocal("Override")
		for _, svc := range []*corev1.Service{plain, allowed} {
			eventually(svc, corev1.ServiceExternalTrafficPolicyCluster)
			waitForAnswer(ctx, lab.Client, waitForAddresses(ctx, svc, 1)[0], waitLimit)
		}
		seesClient(annotated, "node3")
		Expect(policyOf(annotated)(Default)).To(Equal(corev1.ServiceExternalTrafficPolicyLocal))
	}, SpecTimeout(5*time.Minute))
})
