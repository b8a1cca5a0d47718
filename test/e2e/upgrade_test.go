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

// previous is where previous.sh puts what to upgrade from.
const previous = "../../dist/previous/"

// rolledOut waits until manager and agents run an image, all of them.
func rolledOut(ctx context.Context, image string) {
	GinkgoHelper()
	Eventually(func(g Gomega) string {
		agents := &appsv1.DaemonSet{}
		g.Expect(c.Get(ctx, client.ObjectKey{Namespace: system, Name: "purelb-agent-default"}, agents)).To(Succeed())
		return agents.Spec.Template.Spec.Containers[0].Image
	}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(poll).Should(Equal(image))
	for _, what := range []string{"deployment/purelb-manager", "daemonset/purelb-agent-default"} {
		kubectl(ctx, "-n", system, "rollout", "status", what, "--timeout=120s")
	}
}

var _ = Describe("An upgrade", func() {
	It("costs nothing", func(ctx SpecContext) {
		from, err := os.ReadFile(previous + "version")
		Expect(err).NotTo(HaveOccurred(), "run make test-e2e, which builds what to upgrade from")
		fmt.Fprintf(os.Stdout, "upgrade from %s", from)
		Expect(bed.LoadImage(ctx, previous+"purelb.tar")).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { deploy(ctx) }, NodeTimeout(2*time.Minute))
		kubectl(ctx, "apply", "-f", previous+"install.yaml")
		rolledOut(ctx, "purelb.io/purelb:previous")
		disturb(ctx, "upgrade", 1, func(m *measured) {
			m.fromFar()
			kubectl(ctx, "apply", "-k", "../../config/default")
			rolledOut(ctx, "purelb.io/purelb:dev")
			atRest(ctx, m.svc)
			m.stayed()
			Eventually(func() []string { // a manager takes its time to go
				return strings.Fields(kubectl(ctx, "-n", system, "get", "pods", "-l", "app.kubernetes.io/part-of=purelb",
					"-o", "jsonpath={.items[*].spec.containers[*].image}"))
			}).WithContext(ctx).WithTimeout(soon).WithPolling(poll).Should(And(HaveLen(5), HaveEach("purelb.io/purelb:dev")))
		}, nothingHappened)
	}, SpecTimeout(5*time.Minute))
})
