package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// undeployPureLB removes PureLB as make undeploy does.
func undeployPureLB(ctx context.Context) string {
	GinkgoHelper()
	manifests, err := exec.CommandContext(ctx, *kubectlProgram, "kustomize", "../../config/default").Output()
	Expect(err).NotTo(HaveOccurred())
	command := exec.CommandContext(ctx, "../../config/undeploy.sh")
	command.Env = append(os.Environ(), "KUBECTL="+*kubectlProgram, "KUBECONFIG="+testLab.Kubeconfig())
	command.Stdin = strings.NewReader(string(manifests))
	out, err := command.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s", out)
	return string(out)
}

// allowRemoval says on LBNodeAgents and CustomResourceDefinitions that their deletion is meant.
func allowRemoval(ctx context.Context) {
	GinkgoHelper()
	kubectl(
		ctx, "-n", purelbNamespace, "annotate", "lbnodeagents", "--all", "--overwrite", v1.AnnotationAllowWithdrawal+"=true",
	)
	for name := range strings.FieldsSeq(kubectl(ctx, "get", "crd", "-o", "name")) {
		if strings.HasSuffix(name, "."+v1.GroupVersion.Group) {
			kubectl(ctx, "annotate", "--overwrite", name, v1.AnnotationAllowDeletion+"=true")
		}
	}
}

// findLeftovers returns what there is of PureLB on the nodes and in the cluster.
func findLeftovers(ctx context.Context, g Gomega) []string {
	var found []string
	for _, host := range nodeNames() {
		addrs, err := testLab.Addresses(ctx, host)
		g.Expect(err).NotTo(HaveOccurred())
		for _, a := range addrs {
			if a.Link == "kube-lb0" || isForPools(a.Prefix.Addr()) {
				found = append(found, host+" "+a.Link+" "+a.Prefix.String())
			}
		}
		links, err := testLab.Exec(ctx, host, "ip", "-o", "link", "show")
		g.Expect(err).NotTo(HaveOccurred())
		if strings.Contains(links, "kube-lb0") {
			found = append(found, host+" has kube-lb0")
		}
	}
	list := &corev1.NodeList{}
	g.Expect(kubeClient.List(ctx, list)).To(Succeed())
	for _, n := range list.Items {
		if value, labelled := n.Labels[v1.LabelAgent]; labelled {
			found = append(found, n.Name+" is labelled "+value)
		}
	}
	for _, what := range []string{"crd", "namespace", "clusterrole", "clusterrolebinding",
		"validatingwebhookconfiguration",
		"validatingadmissionpolicy", "validatingadmissionpolicybinding", "flowschema"} {
		for name := range strings.FieldsSeq(kubectl(ctx, "get", what, "-o", "name")) {
			if strings.Contains(name, "purelb") {
				found = append(found, name)
			}
		}
	}
	return found
}

// isForPools reports whether an address of the nodes' link is one of those that spaces have.
func isForPools(addr netip.Addr) bool {
	for block := range numberOfBlocks {
		if s := (&space{block: block}); s.owns(addr) {
			return true
		}
	}
	return false
}

// Removal is the last spec: nothing is installed after it.
var _ = Describe("Removal", removalPriority, func() {
	It("leaves nothing behind", Label(smokeLabel), func(ctx SpecContext) {
		s := newSpace(ctx)
		local, virtual := s.createService(ctx, "removed-local", s.localGroup(ctx)),
			s.createService(ctx, "removed-virtual", s.virtualGroup(ctx))
		for _, svc := range []*corev1.Service{local, virtual} {
			waitForAddresses(ctx, svc, 2)
			waitUntilAnnounced(ctx, svc)
		}
		for _, addr := range waitForAddresses(ctx, local, 2) {
			node, _ := waitForSolePlace(ctx, addr)
			Expect(findLeftovers(ctx, Default)).
				To(ContainElement(fmt.Sprintf("%s eth0 %s", node, netip.PrefixFrom(addr, addr.BitLen()))),
					"otherwise the test looks in the wrong places")
		}
		undeployPureLB(ctx)
		Eventually(func(g Gomega) []string { return findLeftovers(ctx, g) }).WithContext(ctx).WithTimeout(2 * waitLimit).
			WithPolling(pollInterval).Should(BeEmpty())
	}, SpecTimeout(smokeLimit))
})
