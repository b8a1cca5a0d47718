package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/proof/trial"
)

// newServiceGroup returns a ServiceGroup with one IPv4 range.
func newServiceGroup(name, addresses string) *v1.ServiceGroup {
	return &v1.ServiceGroup{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: purelbNamespace},
		Spec: v1.ServiceGroupSpec{Remote: &v1.RemotePools{PoolSet: v1.PoolSet{
			V4Pools: []v1.AddressPool{{Subnet: "198.51.100.0/24", Pool: addresses}},
		}}},
	}
}

// admitOnce creates a valid ServiceGroup, makes a faulty update of it and deletes it. It returns
// what the API server refused for another reason than the fault, and fails if the API server
// takes what is faulty.
func admitOnce(ctx context.Context, round int) []error {
	GinkgoHelper()
	sg := newServiceGroup("rolling", fmt.Sprintf("198.51.100.%d-198.51.100.200", round%100+1))
	if err := kubeClient.Create(ctx, sg); err != nil {
		// It may be there although the answer was lost, or still from the round before.
		errs := []error{fmt.Errorf("create: %w", err)}
		if err := client.IgnoreNotFound(kubeClient.Delete(ctx, newServiceGroup("rolling", ""))); err != nil {
			errs = append(errs, fmt.Errorf("delete: %w", err))
		}
		return errs
	}
	var errs []error
	patch := client.MergeFrom(sg.DeepCopy())
	sg.Spec.Remote.V4Pools[0].Pool = "198.51.100.9-198.51.100.3"
	err := kubeClient.Patch(ctx, sg, patch)
	Expect(err).To(HaveOccurred(), "a faulty update was taken in round %d", round)
	if !strings.Contains(err.Error(), "ends (198.51.100.3) before it starts (198.51.100.9)") {
		errs = append(errs, fmt.Errorf("faulty update: %w", err))
	}
	if err := kubeClient.Delete(ctx, newServiceGroup("rolling", "")); err != nil {
		errs = append(errs, fmt.Errorf("delete: %w", err))
	}
	return errs
}

var _ = Describe("Admission", func() {
	It("accepts every valid ServiceGroup and refuses every faulty one while the manager is rolled out",
		Label(proofLabel, rolloutTopic), func(ctx SpecContext) {
			DeferCleanup(func(ctx SpecContext) {
				Expect(client.IgnoreNotFound(kubeClient.Delete(ctx, newServiceGroup("rolling", "198.51.100.1")))).To(Succeed())
			}, NodeTimeout(waitLimit))
			const refused = "valid writes refused, or faulty ones for another reason"
			const missing = "rounds missing of 100"
			runTrials(ctx, "admission while the managers are rolled out", []trial.Bound{none(refused), none(missing)},
				func(t *oneTrial) {
					waitUntilReady(ctx)
					t.measureFromNow()
					kubectl(ctx, "-n", purelbNamespace, "rollout", "restart", "deployment/purelb-manager")
					rolled := make(chan struct{})
					go func() {
						defer GinkgoRecover()
						defer close(rolled)
						kubectl(ctx, "-n", purelbNamespace, "rollout", "status", "deployment/purelb-manager", "--timeout=120s")
					}()
					rounds, over := 0, time.Time{}
					// The last replicas of the previous generation end some seconds after the end of
					// the roll-out.
					for ; over.IsZero() || time.Since(over) < 8*time.Second; rounds++ {
						for _, err := range admitOnce(ctx, rounds) {
							t.Errors = append(t.Errors, fmt.Sprintf("round %d: %s", rounds, err))
						}
						select {
						case <-rolled:
							if over.IsZero() {
								over = time.Now()
							}
						case <-time.After(10 * time.Millisecond):
						}
					}
					t.Figures["rounds"] = float64(rounds)
					t.Figures[missing] = float64(max(0, 101-rounds))
					t.Figures[refused] = float64(len(t.Errors))
				})
		}, proofLimit())

	It("refuses to delete or shrink a ServiceGroup that is in use, unless its annotation allows orphans",
		Label(smokeLabel), func(ctx SpecContext) {
			s := newSpace(ctx)
			group := s.localGroup(ctx)
			svc := s.createService(ctx, "inuse", group)
			addrs := waitForAddresses(ctx, svc, 2)
			waitUntilAnnounced(ctx, svc)
			waitForAnswer(ctx, "client", addrs[0])

			user := s.namespace + "/inuse"
			// The manager that answers may see the Service somewhat later than the one that leads.
			refuses := func(args ...string) {
				GinkgoHelper()
				Eventually(func(g Gomega) string {
					out, err := tryKubectl(ctx, append(append([]string{"-n", purelbNamespace}, args...), "--dry-run=server")...)
					g.Expect(err).To(HaveOccurred(), out)
					return out
				}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).MustPassRepeatedly(5).
					Should(ContainSubstring(user))
				out, err := tryKubectl(ctx, append([]string{"-n", purelbNamespace}, args...)...)
				Expect(err).To(HaveOccurred())
				Expect(out).To(ContainSubstring(user))
			}
			refuses("delete", "servicegroup", group)
			pools, err := json.Marshal(map[string]any{
				"spec": map[string]any{"local": map[string]any{"v4pools": []v1.AddressPool{s.v4Range(3, 3)}}},
			})
			Expect(err).NotTo(HaveOccurred())
			refuses("patch", "servicegroup", group, "--type=merge", "-p", string(pools))

			kubectl(ctx, "-n", purelbNamespace, "annotate", "servicegroup", group, v1.AnnotationAllowOrphans+"=true")
			// The manager that answers may see the annotation somewhat later.
			retryKubectl(ctx, "-n", purelbNamespace, "delete", "servicegroup", group, "--ignore-not-found")
			s.waitForManager(ctx)
			Expect(waitForAddresses(ctx, svc, 2)).To(Equal(addrs), "the Service keeps its addresses")
			for _, addr := range addrs {
				waitForPlaces(ctx, addr, 1)
				waitForAnswer(ctx, "client", addr)
			}
		}, SpecTimeout(smokeLimit))

	It("gives the same verdict as a condition where its webhooks are missing", func(ctx SpecContext) {
		kubectl(ctx, "delete", "validatingwebhookconfiguration", "purelb-validating")
		DeferCleanup(func(ctx SpecContext) {
			kubectl(ctx, "apply", "-k", "../../config/default")
			Eventually(func() error {
				return kubeClient.Create(ctx, newServiceGroup("restored", "198.51.100.1"), client.DryRunAll)
			}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(
				Succeed(), "the webhooks are trusted again",
			)
		}, NodeTimeout(2*waitLimit))
		DeferCleanup(func(ctx SpecContext) {
			retryKubectl(ctx, "-n", purelbNamespace, "delete", "servicegroup", "broken", "--ignore-not-found")
		}, NodeTimeout(2*waitLimit))
		s := newSpace(ctx)
		retryKubectl(ctx, "apply", "-f", "testdata/broken.yaml")
		svc := s.createService(ctx, "waiting", "broken", singleStack)
		waitForDescription(ctx, svc, And(
			ContainSubstring("AllocationFailed"),
			ContainSubstring("GroupNotReady: ServiceGroup broken is not ready: spec.local.v4pools[0].pool"),
			ContainSubstring("did you mean 172.32.100.225-172.32.100.229?"),
		))
		Eventually(func() (string, error) {
			return tryKubectl(ctx, "get", "servicegroup", "-n", purelbNamespace, "broken", "-o", "wide")
		}).
			WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(
			MatchRegexp(`broken +False .*did you mean 172\.32\.100\.225-172\.32\.100\.229\?`))

		By("repairing the group")
		kubectl(ctx, "-n", purelbNamespace, "patch", "servicegroup", "broken", "--type=json",
			"-p", `[{"op":"replace","path":"/spec/local/v4pools/0/pool","value":"172.32.100.225-172.32.100.229"}]`)
		waitForAddresses(ctx, svc, 1)
		waitUntilAnnounced(ctx, svc)
	}, SpecTimeout(functionalLimit))

	It("refuses a faulty range and suggests what was probably meant", Label(smokeLabel), func(ctx SpecContext) {
		out, err := tryKubectl(ctx, "apply", "-f", "testdata/broken.yaml")
		Expect(err).To(HaveOccurred())
		Expect(out).To(And(
			ContainSubstring("spec.local.v4pools[0].pool"), ContainSubstring("did you mean 172.32.100.225-172.32.100.229?"),
		))
	}, SpecTimeout(smokeLimit))

	It("lets nobody but the manager write or delete Announcements", Label(smokeLabel), func(ctx SpecContext) {
		a, err := getAnnouncement(ctx, "node1")
		Expect(err).NotTo(HaveOccurred())
		patch := client.MergeFrom(a.DeepCopy())
		a.Spec.HeartbeatSeconds = 7
		err = kubeClient.Patch(ctx, a, patch)
		Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
		Expect(err).To(MatchError(ContainSubstring("Announcements are written by PureLB's manager")))

		other := &v1.Announcement{
			ObjectMeta: metav1.ObjectMeta{Name: "mine", Namespace: purelbNamespace},
			Spec:       v1.AnnouncementSpec{NodeName: "node1", LBNodeAgent: "default"},
		}
		Expect(apierrors.IsForbidden(kubeClient.Create(ctx, other))).To(BeTrue())

		By("refusing to delete one Announcement, or all")
		const refusal = "Announcements are deleted by PureLB's manager, after their addresses have been withdrawn"
		Expect(kubeClient.Delete(ctx, a)).To(MatchError(ContainSubstring(refusal)))
		Expect(kubeClient.DeleteAllOf(ctx, a, client.InNamespace(purelbNamespace))).To(MatchError(ContainSubstring(refusal)))
	}, SpecTimeout(smokeLimit))

	It("lets the manager change nothing of a Node but its label", Label(smokeLabel), func(ctx SpecContext) {
		const manager = "system:serviceaccount:purelb-system:purelb-manager"
		for _, args := range [][]string{
			{"label", "node", "node1", "e2e=1"},
			{"annotate", "node", "node1", "e2e=1"},
			{"patch", "node", "node1", "-p", `{"spec":{"unschedulable":true}}`},
			{"label", "node", "node1", "kubernetes.io/hostname-"},
		} {
			out, err := tryKubectl(ctx, append(args, "--as", manager)...)
			Expect(err).To(HaveOccurred(), "%v", args)
			Expect(out).To(ContainSubstring("may change nothing of a Node but the label purelb.io/agent"))
		}
		before := readAgentLabel(ctx)
		kubectl(ctx, "label", "node", "node1", v1.LabelAgent+"=other", "--overwrite", "--as", manager)
		Eventually(func() string { return readAgentLabel(ctx) }).WithContext(ctx).WithTimeout(waitLimit).WithPolling(
			pollInterval,
		).
			Should(Equal(before), "the manager restores the label")
		waitUntilReady(ctx) // the agent of the node may have been replaced
	}, SpecTimeout(smokeLimit))
})

// readAgentLabel returns the value of the label that says which agent node1 runs.
func readAgentLabel(ctx context.Context) string {
	GinkgoHelper()
	return kubectl(ctx, "get", "node", "node1", "-o", `jsonpath={.metadata.labels.purelb\.io/agent}`)
}
