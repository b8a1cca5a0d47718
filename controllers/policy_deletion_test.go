package controllers_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// TestPoliciesRefuseDeletion deletes Announcements and CommonAnnouncements as the users who
// may, and as an administrator, who may not.
func TestPoliciesRefuseDeletion(t *testing.T) {
	g, ctx := guardAlone(t), context.Background() // whose namespace ends
	g.keep("purelb-manager", g.as("purelb-manager"))
	manager, admin := g.client(g.as("purelb-manager")), g.admin
	ann := &v1.Announcement{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "node1"},
		Spec:       v1.AnnouncementSpec{NodeName: "node1", LBNodeAgent: "default"},
	}
	common := &v1.CommonAnnouncement{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"},
		Spec:       v1.CommonAnnouncementSpec{LBNodeAgent: "default", Revision: 1},
	}
	for _, obj := range []client.Object{ann, common} {
		g.Expect(manager.Create(ctx, obj)).To(Succeed())
	}
	const refusal = "delete its LBNodeAgent"
	g.refusing(func() error { return admin.Delete(ctx, ann, client.DryRunAll) }).
		Should(MatchError(ContainSubstring(refusal)))
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
		"system:serviceaccount:kube-system:generic-garbage-collector",
		"system:serviceaccount:kube-system:namespace-controller",
	} {
		for _, obj := range []client.Object{ann, common} {
			g.Expect(impersonating(user).Delete(ctx, obj, client.DryRunAll)).To(Succeed(), "%s, %T", user, obj)
		}
	}
	g.Expect(impersonating("system:serviceaccount:kube-system:replicaset-controller").Delete(ctx, ann)).
		To(MatchError(ContainSubstring(refusal)))

	// Nothing holds up the end of the namespace. No controller ends it here, so that it stays Terminating.
	g.Expect(admin.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())
	for _, obj := range []client.Object{ann, common} {
		g.Eventually(func() error { return client.IgnoreNotFound(admin.Delete(ctx, obj)) }).Should(Succeed())
	}
}

// TestFaultDeletedDefinition deletes CustomResourceDefinitions. This test shows the row "a
// CustomResourceDefinition of PureLB's is deleted by mistake" of docs/trust.md.
func TestFaultDeletedDefinition(t *testing.T) {
	g, ctx := guard(t), t.Context()
	g.keep("purelb-manager", g.as("purelb-manager"))
	group := &v1.ServiceGroup{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "lost"},
		Spec: v1.ServiceGroupSpec{
			Remote: &v1.RemotePools{PoolSet: v1.PoolSet{V4Pool: &v1.AddressPool{Pool: "192.0.2.1", Subnet: "192.0.2.0/24"}}},
		},
	}
	g.create(group)
	definition := func(name string) *metav1.PartialObjectMetadata {
		crd := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name}}
		crd.SetGroupVersionKind(schema.GroupVersionKind{
			Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition",
		})
		return crd
	}
	kinds := map[string]string{
		"servicegroups": "ServiceGroup", "lbnodeagents": "LBNodeAgent", "bgppeers": "BGPPeer",
		"announcements": "Announcement", "commonannouncements": "CommonAnnouncement", "noderoutings": "NodeRouting",
	}
	for plural, kind := range kinds {
		crd := definition(plural + ".purelb.io")
		g.refusing(func() error { return g.admin.Delete(ctx, crd, client.DryRunAll) }).Should(MatchError(ContainSubstring(
			"all " + kind + "s would be deleted with it, and nothing would ask about those: if that is meant, kubectl " +
				"annotate crd " +
				plural + ".purelb.io purelb.io/allow-deletion=true; to remove PureLB, see config/undeploy.sh")))
	}
	crd := definition("servicegroups.purelb.io")
	for value, allowed := range map[string]bool{`"yes"`: false, `"false"`: false, `"true"`: true, `null`: false} {
		patch := client.RawPatch(
			types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+v1.AnnotationAllowDeletion+`":`+value+`}}}`),
		)
		g.Expect(g.admin.Patch(ctx, crd, patch)).To(Succeed())
		if err := g.admin.Delete(ctx, crd, client.DryRunAll); allowed {
			g.Expect(err).NotTo(HaveOccurred())
		} else {
			g.Expect(err).To(MatchError(ContainSubstring("all ServiceGroups would be deleted with it")), value)
		}
	}
	g.Expect(g.admin.Patch(
		ctx, crd,
		client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+v1.AnnotationAllowDeletion+`":null}}}`)),
	)).To(Succeed())
	g.Expect(g.admin.Delete(ctx, crd)).NotTo(Succeed())
	g.Expect(g.admin.DeleteAllOf(ctx, crd, client.MatchingFields{"metadata.name": "servicegroups.purelb.io"})).
		NotTo(Succeed())
	g.Expect(g.admin.Get(ctx, client.ObjectKeyFromObject(group), group)).To(Succeed(), "it is not lost")

	// Those of others.
	foreign := &unstructured.Unstructured{Object: map[string]any{
		"spec": map[string]any{
			"group": "example.com", "scope": "Namespaced",
			"names": map[string]any{"kind": "Thing", "plural": "things"},
			"versions": []any{
				map[string]any{
					"name": "v1", "served": true, "storage": true,
					"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}},
				},
			},
		},
	}}
	foreign.SetGroupVersionKind(crd.GroupVersionKind())
	foreign.SetName("things.example.com")
	g.create(foreign)
	g.Expect(g.admin.Delete(ctx, foreign)).To(Succeed())
}

// TestAttackEditor has a user write and delete Announcements and CommonAnnouncements who has the
// right to, as the Operator Lifecycle Manager gives it to all who may edit the manager's
// namespace. This test shows the row "write or delete Announcements, by the rights that the Operator
// Lifecycle Manager gives to all who may edit the manager's namespace" of docs/trust.md.
func TestAttackEditor(t *testing.T) {
	g, ctx := guard(t), context.Background()
	g.keep("purelb-manager", g.as("purelb-manager"))
	manager := g.client(g.as("purelb-manager"))
	name := metav1.ObjectMeta{Namespace: namespace, Name: "editor"}
	g.create(
		&rbacv1.Role{
			ObjectMeta: name,
			Rules: []rbacv1.PolicyRule{
				{
					APIGroups: []string{"purelb.io"}, Resources: []string{"announcements", "commonannouncements"},
					Verbs: []string{"*"},
				},
			},
		},
		&rbacv1.RoleBinding{
			ObjectMeta: name, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "editor"},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "editor"}},
		})
	config := rest.CopyConfig(g.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "editor"}
	editor := g.client(config)
	ann := &v1.Announcement{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "node1"},
		Spec:       v1.AnnouncementSpec{NodeName: "node1", LBNodeAgent: "default"},
	}
	common := &v1.CommonAnnouncement{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "node1"},
		Spec:       v1.CommonAnnouncementSpec{LBNodeAgent: "default", Revision: 1},
	}
	for obj, change := range map[client.Object]string{
		ann: `{"spec":{"heartbeatSeconds":7}}`, common: `{"spec":{"revision":7}}`,
	} {
		created := obj.DeepCopyObject().(client.Object)
		g.Expect(manager.Create(ctx, obj)).To(Succeed())
		version := obj.GetResourceVersion()
		g.Eventually(func() error { return editor.Get(ctx, client.ObjectKeyFromObject(obj), obj) }).Should(
			Succeed(), "the right is there",
		)
		created.SetName("node2")
		g.refusing(func() error { return editor.Create(ctx, created, client.DryRunAll) }).
			Should(MatchError(ContainSubstring("are written by PureLB's manager")))
		for _, patch := range []string{
			change, `{"metadata":{"labels":{"a":"b"}}}`, `{"metadata":{"annotations":{"a":"b"}}}`,
			`{"metadata":{"finalizers":["a.b/c"]}}`,
			`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"node1","uid":"u"}]}}`,
		} {
			g.Expect(editor.Patch(
				ctx, obj.DeepCopyObject().(client.Object), client.RawPatch(types.MergePatchType, []byte(patch)),
			)).
				To(MatchError(ContainSubstring("are written by PureLB's manager")), "%T %s", obj, patch)
		}
		g.Expect(editor.Delete(ctx, obj)).To(MatchError(ContainSubstring("are deleted by PureLB's manager")))
		g.Expect(editor.Delete(ctx, obj, client.PropagationPolicy("Foreground"))).
			To(MatchError(ContainSubstring("are deleted by PureLB's manager")))
		g.Expect(editor.DeleteAllOf(ctx, obj, client.InNamespace(namespace))).
			To(MatchError(ContainSubstring("are deleted by PureLB's manager")))
		g.Expect(g.admin.Get(ctx, client.ObjectKeyFromObject(obj), obj)).To(Succeed())
		g.Expect(obj.GetResourceVersion()).To(Equal(version), "nothing has changed")
	}

	// Kubernetes itself may change what holds a deletion up, and nothing else.
	config = rest.CopyConfig(g.config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:kube-system:generic-garbage-collector", Groups: []string{"system:masters"},
	}
	collector := g.client(config)
	ann = &v1.Announcement{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "node1"}}
	g.Expect(collector.Patch(
		ctx, ann, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":["a.b/c"]}}`)),
	)).To(Succeed())
	g.Expect(collector.Patch(ctx, ann, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"heartbeatSeconds":7}}`)))).
		To(MatchError(ContainSubstring("are written by PureLB's manager")))
	// An editor may only let go of what holds it up.
	g.Expect(editor.Patch(
		ctx, ann, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":["a.b/c","d.e/f"]}}`)),
	)).NotTo(Succeed())
	g.Expect(editor.Patch(ctx, ann, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))).
		To(Succeed())
}
