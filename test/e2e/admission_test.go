package e2e

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// pool makes a ServiceGroup of one IPv4 range.
func pool(name, addresses string) *v1.ServiceGroup {
	return &v1.ServiceGroup{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: system},
		Spec: v1.ServiceGroupSpec{Remote: &v1.RemotePools{PoolSet: v1.PoolSet{
			V4Pools: []v1.AddressPool{{Subnet: "198.51.100.0/24", Pool: addresses}},
		}}},
	}
}

var _ = Describe("Admission", func() {
	It("never fails for a valid ServiceGroup, nor lets a faulty one in, while the manager is rolled", func(ctx SpecContext) {
		DeferCleanup(func(ctx SpecContext) {
			Expect(client.IgnoreNotFound(c.Delete(ctx, pool("rolling", "198.51.100.1")))).To(Succeed())
		}, NodeTimeout(soon))
		kubectl(ctx, "-n", system, "rollout", "restart", "deployment/purelb-manager")
		rolled := make(chan struct{})
		go func() {
			defer GinkgoRecover()
			defer close(rolled)
			kubectl(ctx, "-n", system, "rollout", "status", "deployment/purelb-manager", "--timeout=120s")
		}()
		applied, over := 0, time.Time{}
		// The last replicas of the previous generation end some seconds after
		// the roll-out is over.
		for ; over.IsZero() || time.Since(over) < 8*time.Second; applied++ {
			sg := pool("rolling", fmt.Sprintf("198.51.100.%d-198.51.100.200", applied%100+1))
			err := c.Create(ctx, sg)
			Expect(err).NotTo(HaveOccurred(), "creation %d", applied)
			patch := client.MergeFrom(sg.DeepCopy())
			sg.Spec.Remote.V4Pools[0].Pool = "198.51.100.9-198.51.100.3"
			err = c.Patch(ctx, sg, patch)
			Expect(err).To(MatchError(ContainSubstring("ends (198.51.100.3) before it starts (198.51.100.9)")), "faulty update %d", applied)
			Expect(c.Delete(ctx, pool("rolling", ""))).To(Succeed(), "deletion %d", applied)
			select {
			case <-rolled:
				if over.IsZero() {
					over = time.Now()
				}
			case <-time.After(10 * time.Millisecond):
			}
		}
		AddReportEntry(fmt.Sprintf("%d rounds of create, faulty update and delete during the roll-out", applied))
		Expect(applied).To(BeNumerically(">", 100))
	}, SpecTimeout(3*time.Minute))

	It("keeps a ServiceGroup that is in use, unless told to let its addresses be", func(ctx SpecContext) {
		group(ctx, "localdual.yaml")
		svc := service(ctx, "inuse", "localdual")
		addrs := ingress(ctx, svc, 2)
		announced(ctx, svc)
		answers(ctx, "client", addrs[0], soon)

		out, err := run(ctx, "-n", system, "delete", "servicegroup", "localdual")
		Expect(err).To(HaveOccurred())
		Expect(out).To(ContainSubstring("e2e/inuse"))
		shrink := `{"spec":{"local":{"v4pools":[{"subnet":"10.77.0.0/24","pool":"10.77.0.103"}]}}}`
		out, err = run(ctx, "-n", system, "patch", "servicegroup", "localdual", "--type=merge", "-p", shrink)
		Expect(err).To(HaveOccurred())
		Expect(out).To(ContainSubstring("e2e/inuse"))
		out, err = run(ctx, "-n", system, "patch", "servicegroup", "localdual", "--type=merge", "-p", shrink, "--dry-run=server")
		Expect(err).To(HaveOccurred())
		Expect(out).To(ContainSubstring("e2e/inuse"))

		kubectl(ctx, "-n", system, "annotate", "servicegroup", "localdual", v1.AnnotationAllowOrphans+"=true")
		kubectl(ctx, "-n", system, "delete", "servicegroup", "localdual")
		Consistently(func(g Gomega) {
			g.Expect(c.Get(ctx, client.ObjectKeyFromObject(svc), svc)).To(Succeed())
			g.Expect(svc.Status.LoadBalancer.Ingress).To(HaveLen(2))
			_, err := fetch(ctx, "client", addrs[0])
			g.Expect(err).NotTo(HaveOccurred())
		}).WithContext(ctx).WithTimeout(3 * time.Second).WithPolling(poll).Should(Succeed())
		for _, addr := range addrs {
			where(ctx, addr, 1)
		}
	}, SpecTimeout(time.Minute))

	It("without its webhooks gives the same verdict as a condition", func(ctx SpecContext) {
		kubectl(ctx, "delete", "validatingwebhookconfiguration", "purelb-validating")
		DeferCleanup(func(ctx SpecContext) {
			kubectl(ctx, "apply", "-k", "../../config/default")
			Eventually(func() error {
				return c.Create(ctx, pool("restored", "198.51.100.1"), client.DryRunAll)
			}).WithContext(ctx).WithTimeout(soon).WithPolling(poll).Should(Succeed(), "the webhooks are trusted again")
		}, NodeTimeout(time.Minute))
		group(ctx, "broken.yaml")
		svc := service(ctx, "waiting", "broken", singleStack)
		Eventually(func() string { return kubectl(ctx, "describe", "service", "-n", namespace, "waiting") }).
			WithContext(ctx).WithTimeout(soon).WithPolling(poll).Should(And(
			ContainSubstring("AllocationFailed"),
			ContainSubstring("GroupNotReady: ServiceGroup broken is not ready: spec.local.v4pools[0].pool"),
			ContainSubstring("did you mean 172.32.100.225-172.32.100.229?"),
		))
		Expect(kubectl(ctx, "get", "servicegroup", "-n", system, "broken", "-o", "wide")).To(
			MatchRegexp(`broken +False .*did you mean 172\.32\.100\.225-172\.32\.100\.229\?`))

		By("mending the group")
		kubectl(ctx, "-n", system, "patch", "servicegroup", "broken", "--type=json",
			"-p", `[{"op":"replace","path":"/spec/local/v4pools/0/pool","value":"172.32.100.225-172.32.100.229"}]`)
		ingress(ctx, svc, 1)
		announced(ctx, svc)
	}, SpecTimeout(2*time.Minute))

	It("refuses a faulty range with what was probably meant", func(ctx SpecContext) {
		out, err := run(ctx, "apply", "-f", "testdata/broken.yaml")
		Expect(err).To(HaveOccurred())
		Expect(out).To(And(ContainSubstring("spec.local.v4pools[0].pool"), ContainSubstring("did you mean 172.32.100.225-172.32.100.229?")))
	}, SpecTimeout(soon))

	It("lets nobody but the manager say what is announced", func(ctx SpecContext) {
		a, err := announcement(ctx, "node1")
		Expect(err).NotTo(HaveOccurred())
		patch := client.MergeFrom(a.DeepCopy())
		a.Spec.HeartbeatSeconds = 7
		err = c.Patch(ctx, a, patch)
		Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
		Expect(err).To(MatchError(ContainSubstring("Announcements are written by PureLB's manager")))

		other := &v1.Announcement{
			ObjectMeta: metav1.ObjectMeta{Name: "mine", Namespace: system},
			Spec:       v1.AnnouncementSpec{NodeName: "node1", LBNodeAgent: "default"},
		}
		Expect(apierrors.IsForbidden(c.Create(ctx, other))).To(BeTrue())

		By("deleting one, which the manager makes anew")
		uid := a.UID
		Expect(c.Delete(ctx, a)).To(Succeed())
		Eventually(func(g Gomega) {
			a, err := announcement(ctx, "node1")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(a.UID).NotTo(Equal(uid))
			g.Expect(a.Status.ObservedGeneration).To(Equal(a.Generation))
		}).WithContext(ctx).WithTimeout(soon).WithPolling(poll).Should(Succeed())
	}, SpecTimeout(time.Minute))

	It("lets the manager change nothing of a Node but its label", func(ctx SpecContext) {
		const manager = "system:serviceaccount:purelb-system:purelb-manager"
		for _, args := range [][]string{
			{"label", "node", "node1", "e2e=1"},
			{"annotate", "node", "node1", "e2e=1"},
			{"patch", "node", "node1", "-p", `{"spec":{"unschedulable":true}}`},
			{"label", "node", "node1", "kubernetes.io/hostname-"},
		} {
			out, err := run(ctx, append(args, "--as", manager)...)
			Expect(err).To(HaveOccurred(), "%v", args)
			Expect(out).To(ContainSubstring("may change nothing of a Node but the label purelb.io/agent"))
		}
		before := agentLabel(ctx)
		kubectl(ctx, "label", "node", "node1", v1.LabelAgent+"=other", "--overwrite", "--as", manager)
		Eventually(func() string { return agentLabel(ctx) }).WithContext(ctx).WithTimeout(soon).WithPolling(poll).
			Should(Equal(before), "the manager puts it right")
	}, SpecTimeout(time.Minute))
})

func agentLabel(ctx context.Context) string {
	GinkgoHelper()
	return kubectl(ctx, "get", "node", "node1", "-o", `jsonpath={.metadata.labels.purelb\.io/agent}`)
}
