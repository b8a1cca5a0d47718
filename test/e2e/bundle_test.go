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

// bundle is what make bundle writes.
const bundle = "../../bundle/manifests/"

var _ = Describe("The OLM bundle", func() {
	It("is all that PureLB needs", func(ctx SpecContext) {
		started := time.Now()
		DeferCleanup(func(ctx SpecContext) {
			By("installing PureLB anew")
			deploy(ctx)
			AddReportEntry("removed, installed from the bundle, removed and installed again in " + time.Since(started).Round(time.Second).String())
		}, NodeTimeout(4*soon))
		By("removing what there is")
		undeploy(ctx)
		o := readBundle()
		DeferCleanup(o.remove, NodeTimeout(6*soon))
		By("doing what OLM does with the bundle")
		o.install(ctx)

		By("creating the examples of the ClusterServiceVersion, as its description says")
		for _, u := range o.examples("LBNodeAgent", "ServiceGroup") {
			// The API server may not have heard of the kinds, nor of the webhooks' Service yet.
			Eventually(func() error { return c.Create(ctx, u) }).WithContext(ctx).WithTimeout(soon).WithPolling(poll).Should(Succeed())
		}
		kubectl(ctx, "-n", system, "wait", "lbnodeagent/default", "--for=condition=Ready", "--timeout=120s")

		By("doing the main job")
		group(ctx, "localdual.yaml")
		svc := service(ctx, "bundled", "localdual")
		for _, address := range ingress(ctx, svc, 2) {
			answers(ctx, "client", address, soon)
		}
		announced(ctx, svc)

		By("refusing what is wrong, and serving the certificate that was mounted")
		out, err := run(ctx, "apply", "-f", "testdata/broken.yaml")
		Expect(err).To(HaveOccurred())
		Expect(out).To(ContainSubstring("did you mean 172.32.100.225-172.32.100.229?"))
		Expect(servedCertificates(ctx)).To(HaveEach(o.certificate))

		By("having no rights outside its namespace but those that it needs there")
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
			Expect(allowed(ctx, may.who, may.verb, may.group, may.resource, system)).To(Equal(may.here), "%+v", may)
			Expect(allowed(ctx, may.who, may.verb, may.group, may.resource, "kube-system")).To(Equal(may.elsewhere), "%+v", may)
		}
	}, SpecTimeout(4*time.Minute))
})

// allowed reports whether the API server would let a service account of ours do
// something to a resource of a namespace.
func allowed(ctx context.Context, account, verb, group, resource, in string) bool {
	GinkgoHelper()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: "system:serviceaccount:" + system + ":" + account,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: in, Verb: verb, Group: group, Resource: resource,
		},
	}}
	Expect(c.Create(ctx, review)).To(Succeed())
	return review.Status.Allowed
}

// readBundle reads bundle/.
func readBundle() *olm {
	GinkgoHelper()
	files, err := os.ReadDir(bundle)
	Expect(err).NotTo(HaveOccurred())
	o := &olm{}
	for _, f := range files {
		data, err := os.ReadFile(bundle + f.Name())
		Expect(err).NotTo(HaveOccurred())
		o.read(data)
	}
	Expect(o.csv.Metadata.Name).To(HavePrefix("purelb.v"))
	return o
}

// examples of kinds, from the ClusterServiceVersion.
func (o *olm) examples(kinds ...string) []*unstructured.Unstructured {
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

// remove takes away what install has made, and waits until there is nothing left.
func (o *olm) remove(ctx SpecContext) {
	By("removing it in the order that the description asks for")
	kubectl(ctx, "-n", system, "delete", "lbnodeagents", "--all", "--timeout=60s")
	for i := len(o.made) - 1; i >= 0; i-- {
		Expect(client.IgnoreNotFound(c.Delete(ctx, o.made[i], client.PropagationPolicy("Background")))).To(Succeed())
	}
	for _, u := range o.made {
		Eventually(func() bool {
			return apierrors.IsNotFound(c.Get(ctx, client.ObjectKeyFromObject(u), u))
		}).WithContext(ctx).WithTimeout(3*soon).WithPolling(poll).Should(BeTrue(), "%T %s", u, u.GetName())
	}
	Eventually(func(g Gomega) []string { return leftovers(ctx, g) }).WithContext(ctx).WithTimeout(soon).WithPolling(poll).Should(BeEmpty())
}

// make creates an object, to be removed.
func (o *olm) make(ctx context.Context, objects ...client.Object) {
	GinkgoHelper()
	for _, u := range objects {
		Expect(c.Create(ctx, u)).To(Succeed(), "%T %s", u, u.GetName())
		o.made = append(o.made, u)
	}
}
