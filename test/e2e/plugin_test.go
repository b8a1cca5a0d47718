package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/lab"
)

// runPlugin runs kubectl-purelb, and returns what it prints and its exit code.
func runPlugin(ctx context.Context, args ...string) (string, int) {
	GinkgoHelper()
	program, err := filepath.Abs("../../bin/kubectl-purelb")
	Expect(err).NotTo(HaveOccurred())
	out, err := exec.CommandContext(ctx, program, append([]string{"--kubeconfig", testLab.Kubeconfig()}, args...)...).
		CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return string(out), exit.ExitCode()
	}
	Expect(err).NotTo(HaveOccurred(), "make kubectl-purelb builds it")
	return string(out), 0
}

var _ = Describe("kubectl purelb", func() {
	It("explains where an address is, and predicts where it goes when its node is drained", Label(smokeLabel),
		func(ctx SpecContext) {
			s := newSpace(ctx)
			svc := s.createService(ctx, "explained", s.localGroup(ctx), singleStack)
			address := waitForAddresses(ctx, svc, 1)[0]
			waitUntilAnnounced(ctx, svc)
			holder, _ := waitForSolePlace(ctx, address)

			out, code := runPlugin(ctx, "-n", s.namespace, "explain", "service", svc.Name)
			Expect(code).To(BeZero(), out)
			Expect(out).To(And(
				ContainSubstring("has "+address.String()+", announced"), MatchRegexp(`(?m)^\* `+holder+` +Announced +eth0`),
			))
			mac, err := testLab.MAC(ctx, holder)
			Expect(err).NotTo(HaveOccurred())
			out, code = runPlugin(ctx, "where", address.String())
			Expect(code).To(BeZero(), out)
			Expect(out).To(MatchRegexp(holder + ` +eth0 +` + mac + ` +Local +Announced`))

			By("planning and making a drain")
			out, code = runPlugin(ctx, "plan", "drain", holder, "-o", "json")
			Expect(code).To(BeZero(), out)
			var plans struct {
				Plans []struct {
					Moves []struct {
						Address, How string
						From, To     []string
					}
				}
			}
			Expect(json.Unmarshal([]byte(out), &plans)).To(Succeed())
			var predicted []string
			for _, m := range plans.Plans[0].Moves {
				if m.Address == address.String() {
					Expect(m.How).To(Equal("Handover"))
					Expect(m.From).To(Equal([]string{holder}))
					predicted = m.To
				}
			}
			Expect(predicted).To(HaveLen(1), out)
			DeferCleanup(func(ctx SpecContext) { setExcluded(ctx, false, holder) }, NodeTimeout(waitLimit))
			out, code = runPlugin(ctx, "drain", holder)
			Expect(code).To(BeZero(), out)
			Expect(out).To(ContainSubstring("node " + holder + " announces nothing any more"))
			place := waitForPlaces(ctx, address, 1)[0]
			Expect(place).To(HavePrefix(predicted[0] + "/"))
			out, code = runPlugin(ctx, "undrain", holder)
			Expect(code).To(BeZero(), out)
			node := &corev1.Node{}
			Expect(kubeClient.Get(ctx, client.ObjectKey{Name: holder}, node)).To(Succeed())
			Expect(node.Labels).NotTo(HaveKey(corev1.LabelNodeExcludeBalancers))
			Expect(waitForPlaces(ctx, address, 1)).To(Equal([]string{place}), "nothing moves back")
		}, SpecTimeout(smokeLimit))

	It("says what a Service waits for, what a file would be told, and what its user may not read", Label(smokeLabel),
		func(ctx SpecContext) {
			s := newSpace(ctx)
			svc := s.createService(ctx, "waiting", s.localGroup(ctx), singleStack, func(svc *corev1.Service) {
				svc.Annotations[v1.AnnotationAddresses] = "192.0.2.77"
			})
			Eventually(func() string {
				out, _ := runPlugin(ctx, "-n", s.namespace, "explain", "service", svc.Name)
				return out
			}).
				WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).
				Should(ContainSubstring("Waits: " + v1.ReasonAddressOutsidePools))
			out, code := runPlugin(ctx, "status")
			Expect(code).To(Equal(2), out)
			Expect(out).To(ContainSubstring("service/" + s.namespace + "/waiting"))

			refused, err := tryKubectl(ctx, "apply", "-f", "testdata/broken.yaml")
			Expect(err).To(HaveOccurred())
			out, code = runPlugin(ctx, "validate", "testdata/broken.yaml")
			Expect(code).To(Equal(2), out)
			const hint = "did you mean 172.32.100.225-172.32.100.229?"
			Expect(refused).To(ContainSubstring(hint))
			Expect(out).To(ContainSubstring(hint))

			out, code = runPlugin(ctx, "status", "--as=nobody")
			Expect(code).To(Equal(3), out)
			Expect(out).To(And(ContainSubstring("PureLB's health is unknown"), ContainSubstring("forbidden")))

			bundle := filepath.Join(GinkgoT().TempDir(), "support.tar.gz")
			out, code = runPlugin(ctx, "support-bundle", "--file", bundle)
			Expect(code).To(BeZero(), out)
			listed, err := exec.CommandContext(ctx, "tar", "-tzf", bundle).CombinedOutput()
			Expect(err).NotTo(HaveOccurred(), "%s", listed)
			Expect(string(listed)).
				To(And(
					ContainSubstring("announcements.yaml"), MatchRegexp(`logs/purelb-agent-default-\w+-agent\.log`),
					MatchRegexp(`logs/purelb-manager-[\w-]+-manager\.log`),
				))
		}, SpecTimeout(smokeLimit))

	It("shows pools, sessions and versions, predicts what deaths and files would do, and completes names",
		func(ctx SpecContext) {
			s := newSpace(ctx)
			group := s.localGroup(ctx)
			svc := s.createService(ctx, "counted", group, singleStack)
			address := waitForAddresses(ctx, svc, 1)[0]
			waitUntilAnnounced(ctx, svc)
			holder, _ := waitForSolePlace(ctx, address)

			out, code := runPlugin(ctx, "pools")
			Expect(code).To(BeZero(), out)
			Expect(out).To(MatchRegexp(`(?m)^`+group+` +local +true +1/4 +0/4`), out)

			By("with a BGPPeer whose router is not there, and then is")
			bgpPeer(ctx, "shown", byGateway)
			expectSessions(ctx, "shown", "0/6", v1.ReasonSessionsDown)
			out, code = runPlugin(ctx, "bgp")
			Expect(code).To(Equal(2), out)
			Expect(out).To(MatchRegexp(`(?m)^shown +0/6 +` + v1.ReasonSessionsDown))
			startRouter(ctx, lab.RouterOptions{Daemon: lab.FRR})
			expectSessions(ctx, "shown", "6/6", v1.ReasonEstablished)
			out, code = runPlugin(ctx, "bgp")
			Expect(code).To(BeZero(), out)
			for _, node := range nodeNames() {
				Expect(out).To(MatchRegexp(`(?m)^` + node + ` +shown +\S+ +65000 +` + string(v1.SessionEstablished)))
			}

			By("asking what the death of a node would do, and a file that leaves the address out")
			out, code = runPlugin(ctx, "plan", "lose", holder)
			Expect(code).To(BeZero(), out)
			Expect(out).To(MatchRegexp(
				`(?m)^` + address.String() + ` +` + s.namespace + `/counted +` + holder + ` +node\d +Failover`,
			))
			file := filepath.Join(GinkgoT().TempDir(), "group.yaml")
			manifest := fmt.Sprintf("{apiVersion: purelb.io/v1, kind: ServiceGroup, metadata: {name: %s, namespace: %s}, "+
				"spec: {local: {v4pools: [{subnet: 10.77.0.0/24, pool: %s-%s}]}}}", group, purelbNamespace, s.v4(4), s.v4(5))
			Expect(os.WriteFile(file, []byte(manifest), 0o600)).To(Succeed())
			left := "leaves 1 address in use by 1 Service (" + s.namespace + "/counted) outside every pool"
			out, code = runPlugin(ctx, "plan", "apply", file)
			Expect(code).To(Equal(2), out)
			Expect(out).To(ContainSubstring(left))
			refused, err := tryKubectl(ctx, "apply", "-f", file)
			Expect(err).To(HaveOccurred())
			Expect(refused).To(ContainSubstring(left))

			By("asking for versions, and completing the name of a node")
			out, code = runPlugin(ctx, "version")
			Expect(code).To(BeZero(), out)
			Expect(out).To(MatchRegexp(`^kubectl-purelb \S+\nrunning: purelb\.io/purelb:dev\n`))
			out, code = runPlugin(ctx, "__complete", "drain", holder[:len(holder)-1])
			Expect(code).To(BeZero(), out)
			for _, node := range nodeNames() {
				Expect(out).To(MatchRegexp(`(?m)^` + node))
			}
			for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
				out, code = runPlugin(ctx, "completion", shell)
				Expect(code).To(BeZero(), out)
				Expect(out).To(ContainSubstring("kubectl-purelb"))
			}
		}, SpecTimeout(functionalLimit))
})
