package controllers_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// TestPoliciesRefuseDeletion deletes Announcements and CommonAnnouncements as the users who
// may, and as an administrator, who may not.
func TestPoliciesRefuseDeletion(t *testing.T) {
	g, ctx := guard(t), context.Background()
	g.keep("purelb-manager", g.as("purelb-manager"))
	manager, admin := g.client(g.as("purelb-manager")), g.admin
	ann := &v1.Announcement{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "node1"}, Spec: v1.AnnouncementSpec{NodeName: "node1", LBNodeAgent: "default"}}
	common := &v1.CommonAnnouncement{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}, Spec: v1.CommonAnnouncementSpec{LBNodeAgent: "default", Revision: 1}}
	for _, obj := range []client.Object{ann, common} {
		g.Expect(manager.Create(ctx, obj)).To(Succeed())
	}
	const refusal = "delete its LBNodeAgent"
	g.refusing(func() error { return admin.Delete(ctx, ann, client.DryRunAll) }).To(MatchError(ContainSubstring(refusal)))
	g.Expect(admin.Delete(ctx, common)).To(MatchError(ContainSubstring(refusal)))
	for _, kind := range []client.Object{&v1.Announcement{}, &v1.CommonAnnouncement{}} {
		g.Expect(admin.DeleteAllOf(ctx, kind, client.InNamespace(namespace))).To(MatchError(ContainSubstring(refusal)))
	}

	// The administrator may act as those who may delete.
	impersonating := func(user string) client.Client {
		config := rest.CopyConfig(g.config)
		config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters"}}
		return g.client(config)
	}
	for _, user := range []string{
		accounts + "purelb-manager", "system:kube-controller-manager",
		"system:serviceaccount:kube-system:generic-garbage-collector", "system:serviceaccount:kube-system:namespace-controller",
	} {
		for _, obj := range []client.Object{ann, common} {
			g.Expect(impersonating(user).Delete(ctx, obj, client.DryRunAll)).To(Succeed(), "%s, %T", user, obj)
		}
	}
	g.Expect(impersonating("system:serviceaccount:kube-system:replicaset-controller").Delete(ctx, ann)).To(MatchError(ContainSubstring(refusal)))

	// Nothing holds up the end of the namespace. No controller ends it here, so that it stays Terminating.
	g.Expect(admin.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())
	for _, obj := range []client.Object{ann, common} {
		g.Eventually(func() error { return client.IgnoreNotFound(admin.Delete(ctx, obj)) }).Should(Succeed())
	}
}
