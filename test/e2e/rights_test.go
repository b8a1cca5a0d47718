package e2e

import (
	"context"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

var _ = Describe("An agent's token", func() {
	It("gives rights to its own node's objects, and to nothing else", Label(smokeLabel), func(ctx SpecContext) {
		pods := listPods(ctx, Default, agentName) // PureLB is at rest, so these stay
		Expect(pods).To(HaveLen(3))
		own, other := pods[0].Spec.NodeName, pods[1].Spec.NodeName
		agent := clientOfAgent(ctx, pods[0].Name)

		merge := func(body string) client.Patch { return client.RawPatch("application/merge-patch+json", []byte(body)) }
		ann := func(node string) *v1.Announcement {
			return &v1.Announcement{ObjectMeta: metav1.ObjectMeta{Namespace: purelbNamespace, Name: node}}
		}
		lease := func(name string) *coordinationv1.Lease {
			return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: purelbNamespace, Name: name}}
		}
		const services, renewal = `{"status":{"services":"test/none"}}`, `{"spec":{"holderIdentity":"nobody"}}`
		Expect(agent.Status().Patch(ctx, ann(own), merge(services))).To(Succeed())
		Expect(agent.Patch(ctx, lease(v1.LeasePrefix+own), merge(renewal))).To(Succeed())

		for what, err := range map[string]error{
			"the agent of node " + own +
				" may write the status of no other node's Announcement": agent.Status().Patch(ctx, ann(other), merge(services)),
			"the agent of node " + own +
				" may renew no other Lease": agent.Patch(ctx, lease(v1.LeasePrefix+other), merge(renewal)),
			`cannot patch resource "announcements" in API group`: agent.Patch(
				ctx, ann(own), merge(`{"spec":{"heartbeatSeconds":2}}`),
			),
			`cannot patch resource "services"`: agent.Patch(ctx,
				&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"}},
				merge(`{"metadata":{"labels":{"a":"b"}}}`)),
			`cannot get resource "secrets"`: agent.Get(
				ctx, client.ObjectKey{Namespace: purelbNamespace, Name: "purelb-webhook-certificate"}, &corev1.Secret{},
			),
			`cannot create resource "leases"`: agent.Create(ctx, lease("mine")),
		} {
			Expect(err).To(MatchError(ContainSubstring(what)))
		}

		By("refusing a token that is bound to no pod")
		agent = clientWithToken(kubectl(ctx, "-n", purelbNamespace, "create", "token", "purelb-agent"))
		Expect(agent.Patch(ctx, lease(v1.LeasePrefix+own), merge(renewal))).
			To(MatchError(ContainSubstring("has to say which node it is for")))
	}, SpecTimeout(smokeLimit))
})

// clientOfAgent returns a client with the rights of an agent, by a token as the kubelet gets one for its pod.
func clientOfAgent(ctx context.Context, pod string) client.Client {
	GinkgoHelper()
	return clientWithToken(kubectl(ctx, "-n", purelbNamespace, "create", "token", "purelb-agent",
		"--bound-object-kind=Pod", "--bound-object-name="+pod))
}

func clientWithToken(token string) client.Client {
	GinkgoHelper()
	config, err := clientcmd.BuildConfigFromFlags("", testLab.Kubeconfig())
	Expect(err).NotTo(HaveOccurred())
	config = rest.AnonymousClientConfig(config)
	config.BearerToken = strings.TrimSpace(token)
	c, err := client.New(config, client.Options{Scheme: kubeClient.Scheme()})
	Expect(err).NotTo(HaveOccurred())
	return c
}
