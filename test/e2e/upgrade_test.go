package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// previousDir is where previous.sh puts the version to upgrade from.
const previousDir = "../../dist/previous/"

// waitForRollout waits until all managers and agents run an image.
func waitForRollout(ctx context.Context, image string) {
	GinkgoHelper()
	Eventually(func(g Gomega) string {
		agents := &appsv1.DaemonSet{}
		g.Expect(kubeClient.Get(ctx, client.ObjectKey{Namespace: purelbNamespace, Name: "purelb-agent-default"}, agents)).
			To(Succeed())
		return agents.Spec.Template.Spec.Containers[0].Image
	}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(pollInterval).Should(Equal(image))
	for _, what := range []string{"deployment/purelb-manager", "daemonset/purelb-agent-default"} {
		kubectl(ctx, "-n", purelbNamespace, "rollout", "status", what, "--timeout=120s")
	}
}

var _ = Describe("An upgrade", reinstallPriority, func() {
	It("loses no request", Label(proofLabel, upgradeTopic), func(ctx SpecContext) {
		if why, err := os.ReadFile(previousDir + "missing"); err == nil {
			Skip("NOT TESTED: " + strings.TrimSpace(string(why)))
		}
		from, err := os.ReadFile(previousDir + "version")
		Expect(err).NotTo(HaveOccurred(), "run make test-e2e, which builds the version to upgrade from")
		fmt.Fprintf(os.Stdout, "upgrade from %s", from)
		Expect(testLab.LoadImage(ctx, previousDir+"purelb.tar")).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { deployPureLB(ctx) }, NodeTimeout(functionalLimit))
		disturb(ctx, disturbance{
			name: "upgrade",
			prepare: func() {
				kubectl(ctx, "apply", "-f", previousDir+"install.yaml")
				waitForRollout(ctx, "purelb.io/purelb:previous")
			},
			do: func(m *disturbedService) {
				kubectl(ctx, "apply", "-k", "../../config/default")
				waitForRollout(ctx, "purelb.io/purelb:dev")
				waitForRest(ctx, m.svc)
				m.expectNotMoved()
				Eventually(func() []string { // a manager may take some time to end
					return strings.Fields(kubectl(ctx, "-n", purelbNamespace, "get", "pods", "-l", "app.kubernetes.io/part-of=purelb",
						"-o", "jsonpath={.items[*].spec.containers[*].image}"))
				}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).
					Should(And(HaveLen(5), HaveEach("purelb.io/purelb:dev")))
			},
			bounds: noEffectBounds, check: expectNoEffect, fromFar: true,
		})
	}, proofLimit())
})
