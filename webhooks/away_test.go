package webhooks_test

import (
	"context"
	"os"
	"testing"

	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// clientAs returns a client of another account.
func clientAs(t *testing.T, user string, groups ...string) client.Client {
	t.Helper()
	as := rest.CopyConfig(config)
	as.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: append(groups, "system:authenticated")}
	c, err := client.New(as, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// namespaceControllers returns a client for each account that the namespace controller
// may have, with the rights that it has in every cluster.
func namespaceControllers(t *testing.T) map[string]client.Client {
	t.Helper()
	const role = "system:controller:namespace-controller" // the API server makes it
	accounts := map[string]client.Client{
		"with an account of its own": clientAs(
			t, "system:serviceaccount:kube-system:namespace-controller", "system:serviceaccounts",
			"system:serviceaccounts:kube-system",
		),
		"as kube-controller-manager": clientAs(t, "system:kube-controller-manager"),
		"of another distribution":    clientAs(t, "distribution:namespaces"),
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "namespace-controllers"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects: []rbacv1.Subject{
			{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "system:kube-controller-manager"},
			{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "distribution:namespaces"},
		},
	}
	bind(t, binding)
	return accounts
}

func bind(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, obj := range objects {
		if err := api.Create(context.Background(), obj); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = api.Delete(context.Background(), obj) })
	}
}

// installUnreachableWebhooks replaces the webhooks, until the test ends, by those that
// config/webhook installs, at an address where no server answers. Each request that the API server
// would ask about fails, also one that it would let through.
func installUnreachableWebhooks(t *testing.T) {
	t.Helper()
	read := func(file string) *admissionregistrationv1.ValidatingWebhookConfiguration {
		text, err := os.ReadFile("../config/webhook/" + file)
		if err != nil {
			t.Fatal(err)
		}
		c := &admissionregistrationv1.ValidatingWebhookConfiguration{}
		if err := yaml.Unmarshal(text, c); err != nil {
			t.Fatal(err)
		}
		return c
	}
	installed, conditions := read("manifests.yaml"), map[string][]admissionregistrationv1.MatchCondition{}
	for _, w := range read("patch.yaml").Webhooks {
		conditions[w.Name] = w.MatchConditions
	}
	installed.Name = "away"
	for i := range installed.Webhooks {
		w := &installed.Webhooks[i]
		w.MatchConditions = conditions[w.Name]
		w.FailurePolicy = ptr.To(admissionregistrationv1.Fail)
		// Nobody listens at the port that discards.
		w.ClientConfig = admissionregistrationv1.WebhookClientConfig{URL: ptr.To("https://127.0.0.1:9/")}
	}
	withoutWebhooks(t)
	if err := api.Create(context.Background(), installed); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g := NewWithT(t)
		g.Expect(api.Delete(context.Background(), installed)).To(Succeed())
		g.Eventually(createInvalidGroup).Should(Succeed())
	})
	NewWithT(t).Eventually(createInvalidGroup).Should(MatchError(ContainSubstring("failed calling webhook")))
}

// TestFaultWebhooksAway writes objects while no manager answers. The API server accepts
// what a webhook would never refuse: changes that leave the specification as it is, the
// deletion of a namespace, and that of an LBNodeAgent which says that it is meant. It refuses
// everything else. This test shows the row "the webhooks are
// away" of docs/trust.md.
func TestFaultWebhooksAway(t *testing.T) {
	begin(t)
	ctx := context.Background()
	objects := map[string]*unstructured.Unstructured{
		"ServiceGroup": group("away", "remote: {pool: 10.23.0.1, subnet: 10.23.0.0/24}"),
		"LBNodeAgent":  manifest("LBNodeAgent", "away", "nodeSelector: {rack: z}"),
		"BGPPeer":      manifest("BGPPeer", "away", "peerASN: 65000\nmyASN: 65001\npeerAddress: 192.0.2.7"),
	}
	for _, obj := range objects {
		create(t, obj)
	}
	accounts := namespaceControllers(t)
	installUnreachableWebhooks(t)

	metadata := []struct {
		name   string
		mutate func(*unstructured.Unstructured)
	}{
		{
			"a finalizer", func(u *unstructured.Unstructured) { u.SetFinalizers([]string{"example.com/a", "purelb.io/agents"}) },
		},
		{"the end of all finalizers", func(u *unstructured.Unstructured) { u.SetFinalizers(nil) }},
		{"a label", func(u *unstructured.Unstructured) { u.SetLabels(map[string]string{"a": "b"}) }},
		{"orphans allowed", func(u *unstructured.Unstructured) {
			u.SetAnnotations(map[string]string{v1.AnnotationAllowOrphans: "true"})
		}},
		{"a withdrawal allowed", allowWithdrawal("true")},
		{"neither allowed", func(u *unstructured.Unstructured) { u.SetAnnotations(nil) }},
	}
	for kind, obj := range objects {
		for _, row := range metadata {
			t.Run(kind+", "+row.name, func(t *testing.T) {
				NewWithT(t).Expect(update(ctx, obj, row.mutate)).To(Succeed())
			})
		}
		t.Run(kind+", a specification", func(t *testing.T) {
			err := update(ctx, obj, func(u *unstructured.Unstructured) {
				u.Object["spec"] = map[string]any{"local": map[string]any{"pool": "10.23.0.1-10.23.0.2", "subnet": "10.23.0.0/24"}}
				u.SetAnnotations(map[string]string{v1.AnnotationAllowOrphans: "true"})
				switch kind {
				case "LBNodeAgent":
					u.Object["spec"] = map[string]any{"nodeSelector": map[string]any{"rack": "y"}}
				case "BGPPeer":
					u.Object["spec"] = map[string]any{"peerASN": int64(65000), "myASN": int64(65001), "peerAddress": "192.0.2.8"}
				}
			})
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring("failed calling webhook")))
		})
		if kind == "BGPPeer" { // no webhook is asked about the deletion of one
			continue
		}
		t.Run(kind+", deletion by an administrator", func(t *testing.T) {
			err := api.Delete(ctx, obj, client.DryRunAll)
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring("failed calling webhook")))
		})
		for name, account := range accounts {
			t.Run(kind+", deletion by the namespace controller "+name, func(t *testing.T) {
				NewWithT(t).Eventually(func() error { // until the API server knows its rights
					return account.DeleteAllOf(
						ctx, obj, client.InNamespace(namespace), client.MatchingFields{"metadata.name": "away"}, client.DryRunAll,
					)
				}).Should(Succeed())
			})
		}
	}
	t.Run("LBNodeAgent, deletion that is meant", func(t *testing.T) {
		g, obj := NewWithT(t), objects["LBNodeAgent"]
		for value, isMeant := range map[string]bool{"true": true, "yes": false} {
			g.Expect(update(ctx, obj, allowWithdrawal(value))).To(Succeed())
			if err := api.Delete(ctx, obj, client.DryRunAll); isMeant {
				g.Expect(err).NotTo(HaveOccurred())
			} else {
				g.Expect(err).To(MatchError(ContainSubstring("failed calling webhook")))
			}
		}
	})
}

// TestServicesAskedAbout writes Services while no manager answers: the API server asks only about
// those that may be PureLB's, and about changes of what they ask for.
func TestServicesAskedAbout(t *testing.T) {
	begin(t)
	ctx := context.Background()
	kept := service("kept", "taken", 80)
	create(t, kept)
	installUnreachableWebhooks(t)
	manager := clientAs(t, "system:serviceaccount:"+namespace+":purelb-manager", "system:masters")
	other := clientAs(t, "system:serviceaccount:"+namespace+":other", "system:masters")

	created := func(class string, serviceType corev1.ServiceType) func(client.Client) error {
		return func(c client.Client) error {
			svc := service("new", "taken", 80)
			svc.Spec.Type = serviceType
			if serviceType != corev1.ServiceTypeLoadBalancer {
				svc.Spec.AllocateLoadBalancerNodePorts = nil
			}
			if class != "" {
				svc.Spec.LoadBalancerClass = ptr.To(class)
			}
			return c.Create(ctx, svc, client.DryRunAll)
		}
	}
	changed := func(change func(*corev1.Service)) func(client.Client) error {
		return func(c client.Client) error {
			svc := kept.DeepCopy()
			change(svc)
			return c.Patch(ctx, svc, client.MergeFrom(kept), client.DryRunAll)
		}
	}
	for _, row := range []struct {
		name    string
		as      client.Client
		write   func(client.Client) error
		isAsked bool
	}{
		{"new", other, created("", corev1.ServiceTypeLoadBalancer), true},
		{"new, of our class", other, created(v1.LoadBalancerClass, corev1.ServiceTypeLoadBalancer), true},
		{"new, of another class", other, created("example.com/other", corev1.ServiceTypeLoadBalancer), false},
		{"new, no load balancer", other, created("", corev1.ServiceTypeClusterIP), false},
		{"new, by the manager", manager, created("", corev1.ServiceTypeLoadBalancer), false},
		{"a label", other, changed(func(svc *corev1.Service) { svc.Labels = map[string]string{"a": "b"} }), false},
		{"a finalizer", other, changed(func(svc *corev1.Service) { svc.Finalizers = []string{"example.com/a"} }), false},
		{"an annotation", other, changed(annotated("color", "a")), true},
		{"the end of its annotations", other, changed(func(svc *corev1.Service) { svc.Annotations = nil }), true},
		{"a port", other, changed(func(svc *corev1.Service) { svc.Spec.Ports[0].Port = 81 }), true},
		{"a port, by the manager", manager, changed(func(svc *corev1.Service) { svc.Spec.Ports[0].Port = 81 }), false},
	} {
		t.Run(row.name, func(t *testing.T) {
			g := NewWithT(t)
			if err := row.write(row.as); row.isAsked {
				g.Expect(err).To(MatchError(ContainSubstring("failed calling webhook")))
			} else {
				g.Expect(err).NotTo(HaveOccurred())
			}
		})
	}
}

// TestNamespaceControllerAnswer has no matchConditions, as webhooks that OLM installs have
// none: the webhook itself lets the namespace controller delete what is in use, under
// whatever account, and no other client.
func TestNamespaceControllerAnswer(t *testing.T) {
	g := begin(t)
	ctx := context.Background()
	accounts := namespaceControllers(t)
	verbs := func(name string, resources []string, group string, verbs ...string) client.Object {
		return &rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Rules:      []rbacv1.PolicyRule{{APIGroups: []string{group}, Resources: resources, Verbs: verbs}},
		}
	}
	boundTo := func(role string, users ...string) client.Object {
		binding := &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: role},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		}
		for _, user := range users {
			binding.Subjects = append(
				binding.Subjects, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user},
			)
		}
		return binding
	}
	both := []string{"servicegroups", "lbnodeagents"}
	bind(t,
		verbs("deletes", both, "purelb.io", "get", "delete"), boundTo("deletes", "deleter", "operator"),
		verbs("changes", both, "purelb.io", "update"), boundTo("changes", "operator"),
		verbs("finalizes", []string{"namespaces/finalize"}, "", "update"), boundTo("finalizes", "operator"))
	create(t, manifest("LBNodeAgent", "last", "{}"))
	populate(t, g)
	refusals := map[client.Object]string{
		group("inuse", inUse): deleteRows()[0].want.forbidden, manifest("LBNodeAgent", "last", "{}"): withdrawalCure,
	}

	for name, account := range accounts {
		t.Run(name, func(t *testing.T) {
			for obj := range refusals {
				NewWithT(t).Eventually(func() error { return account.Delete(ctx, obj, client.DryRunAll) }).Should(Succeed())
			}
		})
	}
	for name, account := range map[string]client.Client{
		"an administrator":                        clientAs(t, "admin", "system:masters"),
		"who may delete only":                     clientAs(t, "deleter"),
		"who may finalize namespaces, and change": clientAs(t, "operator"),
	} {
		t.Run(name, func(t *testing.T) {
			for obj, refusal := range refusals {
				NewWithT(t).Eventually(func() string { // until the API server knows its rights
					err := account.Delete(ctx, obj, client.DryRunAll)
					if !apierrors.IsForbidden(err) {
						t.Fatalf("answer %v, want a refusal", err)
					}
					return err.Error()
				}).Should(HaveSuffix(refusal))
			}
		})
	}
}
