package e2e

import (
	"context"
	"encoding/json"
	"os"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// bundleDir has what make bundle writes.
const bundleDir = "../../bundle/manifests/"

var _ = Describe("The OLM bundle", reinstallPriority, func() {
	It("installs everything that PureLB needs", func(ctx SpecContext) {
		started := time.Now()
		DeferCleanup(func(ctx SpecContext) {
			By("installing PureLB again")
			deployPureLB(ctx)
			AddReportEntry(
				"removed, installed from the bundle, removed and installed again in " +
					time.Since(started).Round(time.Second).String(),
			)
		}, NodeTimeout(functionalLimit))
		By("removing PureLB")
		undeployPureLB(ctx)
		o := readBundle()
		DeferCleanup(o.remove, NodeTimeout(functionalLimit))
		By("doing what OLM does with the bundle")
		o.install(ctx)

		By("creating the examples of the ClusterServiceVersion, as its description says")
		for _, u := range o.examples("LBNodeAgent", "ServiceGroup") {
			// The API server may not know the kinds or the webhooks' Service yet.
			Eventually(func() error { return kubeClient.Create(ctx, u) }).WithContext(ctx).WithTimeout(waitLimit).WithPolling(
				pollInterval,
			).Should(Succeed())
		}
		kubectl(ctx, "-n", purelbNamespace, "wait", "lbnodeagent/default", "--for=condition=Ready", "--timeout=180s")

		By("serving a Service")
		s := newSpace(ctx)
		svc := s.createService(ctx, "bundled", s.localGroup(ctx))
		for _, address := range waitForAddresses(ctx, svc, 2) {
			waitForAnswer(ctx, "client", address)
		}
		waitUntilAnnounced(ctx, svc)

		By("refusing a faulty ServiceGroup, and serving the certificate that was mounted")
		out, err := tryKubectl(ctx, "apply", "-f", "testdata/broken.yaml")
		Expect(err).To(HaveOccurred())
		Expect(out).To(ContainSubstring("did you mean 172.32.100.225-172.32.100.229?"))
		Expect(readServedCertificates(ctx)).To(HaveEach(o.certificate))

		By("having no rights elsewhere but those that it needs there")
		for _, may := range []struct {
			who, verb, group, resource string
			here, elsewhere            bool
		}{
			{"purelb-agent", "patch", "coordination.k8s.io", "leases", true, false},
			{"purelb-agent", "list", "purelb.io", "announcements", true, false},
			{"purelb-agent", "list", "purelb.io", "commonannouncements", true, false},
			{"purelb-agent", "patch", "purelb.io", "commonannouncements", false, false},
			{"purelb-agent", "get", "", "secrets", false, false},
			{"purelb-manager", "get", "", "secrets", true, false},
			{"purelb-manager", "create", "apps", "daemonsets", true, false},
			{"purelb-manager", "patch", "", "services", true, true},
		} {
			Expect(isAllowed(ctx, may.who, may.verb, may.group, may.resource, "", purelbNamespace)).To(
				Equal(may.here), "%+v", may,
			)
			Expect(isAllowed(ctx, may.who, may.verb, may.group, may.resource, "", "kube-system")).To(
				Equal(may.elsewhere), "%+v", may,
			)
		}
	}, SpecTimeout(functionalLimit))
})

// isAllowed says whether the API server would allow a verb on a resource (or a subresource, unless
// that is empty) of a namespace to a service account of PureLB.
func isAllowed(ctx context.Context, account, verb, group, resource, subresource, in string) bool {
	GinkgoHelper()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: "system:serviceaccount:" + purelbNamespace + ":" + account,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: in, Verb: verb, Group: group, Resource: resource, Subresource: subresource,
		},
	}}
	Expect(kubeClient.Create(ctx, review)).To(Succeed())
	return review.Status.Allowed
}

// readBundle reads the manifests of the bundle.
func readBundle() *olmInstallation {
	GinkgoHelper()
	files, err := os.ReadDir(bundleDir)
	Expect(err).NotTo(HaveOccurred())
	o := &olmInstallation{}
	for _, f := range files {
		data, err := os.ReadFile(bundleDir + f.Name())
		Expect(err).NotTo(HaveOccurred())
		o.read(data)
	}
	Expect(o.csv.Metadata.Name).To(HavePrefix("purelb.v"))
	return o
}

// examples returns the examples of some kinds from the ClusterServiceVersion.
func (o *olmInstallation) examples(kinds ...string) []*unstructured.Unstructured {
	GinkgoHelper()
	var all, found []*unstructured.Unstructured
	Expect(json.Unmarshal([]byte(o.csv.Metadata.Annotations["alm-examples"]), &all)).To(Succeed())
	for _, kind := range kinds {
		for _, u := range all {
			if u.GetKind() == kind {
				found = append(found, u)
			}
		}
	}
	Expect(found).To(HaveLen(len(kinds)))
	return found
}

// remove removes what install has created, and waits until nothing is left.
func (o *olmInstallation) remove(ctx SpecContext) {
	By("removing the installation in the order that the description asks for")
	allowRemoval(ctx)
	kubectl(ctx, "-n", purelbNamespace, "delete", "lbnodeagents", "--all", "--timeout=60s")
	for i := len(o.created) - 1; i >= 0; i-- {
		Expect(client.IgnoreNotFound(kubeClient.Delete(ctx, o.created[i], client.PropagationPolicy("Background")))).
			To(Succeed())
	}
	for _, u := range o.created {
		Eventually(func() bool {
			return apierrors.IsNotFound(kubeClient.Get(ctx, client.ObjectKeyFromObject(u), u))
		}).WithContext(ctx).WithTimeout(3*waitLimit).WithPolling(pollInterval).Should(BeTrue(), "%T %s", u, u.GetName())
	}
	Eventually(func(g Gomega) []string { return findLeftovers(ctx, g) }).WithContext(ctx).WithTimeout(waitLimit).
		WithPolling(pollInterval).Should(BeEmpty())
}

// create creates objects, which remove will remove.
func (o *olmInstallation) create(ctx context.Context, objects ...client.Object) {
	GinkgoHelper()
	for _, u := range objects {
		Expect(kubeClient.Create(ctx, u)).To(Succeed(), "%T %s", u, u.GetName())
		o.created = append(o.created, u)
	}
}
