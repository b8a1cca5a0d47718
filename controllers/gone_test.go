package controllers_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers"
	"github.com/purelb/purelb-operator/controllers/agents"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/internal/writeerror"
)

// behindCache returns a client whose cache still shows one object, and nothing else. It
// writes to the API server, except DaemonSets, and adds what the API server answers to
// answers.
func behindCache(t *testing.T, shown client.Object, answers *[]error) client.Client {
	t.Helper()
	direct, err := client.NewWithWatch(serverConfig, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	note := func(err error) error {
		*answers = append(*answers, err)
		return err
	}
	return interceptor.NewClient(direct, interceptor.Funcs{
		Get: func(
			_ context.Context, _ client.WithWatch, key client.ObjectKey, obj client.Object, _ ...client.GetOption,
		) error {
			switch obj := obj.(type) {
			case *corev1.Service:
				if svc, ok := shown.(*corev1.Service); ok && key == client.ObjectKeyFromObject(svc) {
					svc.DeepCopyInto(obj)
					return nil
				}
			case *v1.ServiceGroup:
				if sg, ok := shown.(*v1.ServiceGroup); ok && key == client.ObjectKeyFromObject(sg) {
					sg.DeepCopyInto(obj)
					return nil
				}
			case *v1.LBNodeAgent:
				if agent, ok := shown.(*v1.LBNodeAgent); ok && key == client.ObjectKeyFromObject(agent) {
					agent.DeepCopyInto(obj)
					return nil
				}
			case *appsv1.DaemonSet:
				return nil
			}
			return apierrors.NewNotFound(v1.GroupVersion.WithResource("any").GroupResource(), key.Name)
		},
		List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, _ ...client.ListOption) error {
			switch list := list.(type) {
			case *v1.ServiceGroupList:
				if sg, ok := shown.(*v1.ServiceGroup); ok {
					list.Items = []v1.ServiceGroup{*sg}
				}
			case *v1.LBNodeAgentList:
				if agent, ok := shown.(*v1.LBNodeAgent); ok {
					list.Items = []v1.LBNodeAgent{*agent}
				}
			}
			return nil
		},
		Apply: func(context.Context, client.WithWatch, runtime.ApplyConfiguration, ...client.ApplyOption) error {
			return nil
		},
		Patch: func(
			ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption,
		) error {
			return note(c.Patch(ctx, obj, patch, opts...))
		},
		SubResourceApply: func(
			ctx context.Context, c client.Client, sub string, obj runtime.ApplyConfiguration,
			opts ...client.SubResourceApplyOption,
		) error {
			return note(c.SubResource(sub).Apply(ctx, obj, opts...))
		},
	})
}

// TestFaultObjectGone has objects that go, or are replaced by others of the same name,
// between the reconciler's look and its write. That is no error. This test shows the row "an object
// goes, or is replaced, between look and write" of docs/trust.md.
func TestFaultObjectGone(t *testing.T) {
	g := begin(t)
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: "00000000-0000-4000-8000-000000000001", ResourceVersion: "1", Generation: 1,
		}
	}
	record := allocation.Record{
		Addresses: []netip.Addr{netip.MustParseAddr("10.48.0.1")}, Group: "x", Type: v1.PoolTypeLocal,
	}
	announced := &corev1.Service{
		ObjectMeta: meta("gone"), Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer},
		Status: corev1.ServiceStatus{
			LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "10.48.0.1"}}},
			Conditions: []metav1.Condition{
				{Type: v1.ConditionAllocationRecord, Status: metav1.ConditionTrue, Message: record.String()},
			},
		},
	}
	announced.Annotations = map[string]string{v1.AnnotationAddedTo: "node1/eth0"}
	marked := announced.DeepCopy() // policy Local was overridden, and is not any more
	marked.Annotations = map[string]string{v1.AnnotationLocalOverride: "1", v1.AnnotationAllowLocal: "true"}
	pool := v1.ServiceGroupSpec{Local: &v1.LocalPools{PoolSet: v1.PoolSet{Pool: "10.48.0.1", Subnet: "10.48.0.0/24"}}}
	group := &v1.ServiceGroup{ObjectMeta: meta("gone"), Spec: pool}
	agent := &v1.LBNodeAgent{ObjectMeta: meta("gone")}
	held := agent.DeepCopy()
	held.Finalizers = []string{"purelb.io/agents"}
	leaving := held.DeepCopy()
	leaving.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}

	reasons, recorder := &controllers.AddressExplanations{}, events.NewFakeRecorder(10)
	ofServices := func(c client.Client) reconcile.Reconciler {
		return &controllers.AnnouncedReconciler{
			Client: c, Recorder: recorder, Namespace: namespace, IsDefaultLoadBalancer: true, Now: time.Now,
			Explanations: reasons,
		}
	}
	ofGroups := func(c client.Client) reconcile.Reconciler {
		return &controllers.ServiceGroupReconciler{
			Client: c, Recorder: recorder, Namespace: namespace, IsDefaultLoadBalancer: true,
			Metrics: controllers.NewMetrics(prometheus.NewRegistry()), IPAM: noIPAM(c),
		}
	}
	ofAgents := func(c client.Client) reconcile.Reconciler {
		return &controllers.LBNodeAgentReconciler{Client: c, Recorder: recorder, Namespace: namespace,
			Liveness: controllers.NewLivenessTracker(time.Now),
			Defaults: agents.Defaults{Image: "purelb.io/purelb:test", ServiceAccount: "purelb-agent"}}
	}
	for _, row := range []struct {
		name       string
		shown      client.Object
		reconciler func(client.Client) reconcile.Reconciler
		other      client.Object
	}{
		{
			"report of a Service", announced, ofServices,
			&corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}},
		},
		{
			"local-override of a Service", marked, ofServices,
			&corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}},
		},
		{"status of a ServiceGroup", group, ofGroups, &v1.ServiceGroup{Spec: pool}},
		{
			"finalizer of an LBNodeAgent", agent, ofAgents,
			&v1.LBNodeAgent{Spec: v1.LBNodeAgentSpec{NodeSelector: map[string]string{"no": "node"}}},
		},
		{
			"status of an LBNodeAgent", held, ofAgents,
			&v1.LBNodeAgent{Spec: v1.LBNodeAgentSpec{NodeSelector: map[string]string{"no": "node"}}},
		},
		{
			"last finalizer of an LBNodeAgent", leaving, ofAgents,
			&v1.LBNodeAgent{Spec: v1.LBNodeAgentSpec{NodeSelector: map[string]string{"no": "node"}}},
		},
	} {
		for _, isReplaced := range []bool{false, true} {
			name := row.name + ", gone"
			if isReplaced {
				name = row.name + ", replaced"
			}
			t.Run(name, func(t *testing.T) {
				g := NewWithT(t)
				if isReplaced {
					row.other.SetNamespace(namespace)
					row.other.SetName("gone")
					row.other.SetResourceVersion("")
					create(t, row.other)
				}
				var answers []error
				result, err := row.reconciler(behindCache(t, row.shown, &answers)).Reconcile(
					context.Background(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(row.shown)},
				)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(answers).NotTo(BeEmpty())
				for _, answer := range answers {
					if _, isService := row.shown.(*corev1.Service); isReplaced && !isService && answer == nil {
						// The API server does not compare UIDs when the status of a custom resource
						// is applied. The event of the other object makes its reconciler put it right.
						continue
					}
					g.Expect(writeerror.IsOutdated(answer)).To(BeTrue(), "the API server answers %v", answer)
				}
				g.Expect(result.RequeueAfter).To(BeNumerically("<", time.Second))
			})
		}
	}
	g.Expect(recorder.Events).To(BeEmpty())
}

// TestServiceGroupEventOnce has the manager's cache show a ServiceGroup for a while as it was before
// the reconciler wrote its status: the reconciler records the event for that status once.
func TestServiceGroupEventOnce(t *testing.T) {
	g, ctx := NewWithT(t), context.Background()
	group := &v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "reversed"},
		Spec: v1.ServiceGroupSpec{
			Local: &v1.LocalPools{PoolSet: v1.PoolSet{Pool: "10.48.0.9-10.48.0.1", Subnet: "10.48.0.0/24"}},
		}}
	g.Expect(addToScheme()).To(Succeed())
	server := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(group).WithStatusSubresource(group).Build()
	key := client.ObjectKeyFromObject(group)
	g.Expect(server.Get(ctx, key, group)).To(Succeed())
	isBehind := true
	c := interceptor.NewClient(server, interceptor.Funcs{
		Get: func(
			ctx context.Context, server client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption,
		) error {
			if shown, isGroup := obj.(*v1.ServiceGroup); isGroup && isBehind {
				group.DeepCopyInto(shown)
				return nil
			}
			return server.Get(ctx, key, obj, opts...)
		},
	})
	recorder := events.NewFakeRecorder(10)
	r := &controllers.ServiceGroupReconciler{
		Client: c, Recorder: recorder, Namespace: namespace, IsDefaultLoadBalancer: true,
		Metrics: controllers.NewMetrics(prometheus.NewRegistry()), IPAM: noIPAM(c),
	}
	_, err := r.Reconcile(ctx, reconcile.Request{NamespacedName: key})
	g.Expect(err).NotTo(HaveOccurred())
	result, err := r.Reconcile(ctx, reconcile.Request{NamespacedName: key})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(result.RequeueAfter).To(BeNumerically(">", 0), "it looks again, soon")
	isBehind = false
	result, err = r.Reconcile(ctx, reconcile.Request{NamespacedName: key})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(result.RequeueAfter).To(BeZero())
	g.Expect(recorder.Events).To(HaveLen(1))
}

// TestLastCachedAnnotation has the manager take its annotation from a Service of which its cache
// keeps no other one: those that the user has written stay. This test shows the row "make the manager
// work or remember without bound" of docs/trust.md.
func TestLastCachedAnnotation(t *testing.T) {
	const theirs = "example.com/theirs"
	for _, name := range []string{v1.AnnotationLocalOverride, v1.AnnotationAddedTo} {
		t.Run(name, func(t *testing.T) {
			g, ctx := NewWithT(t), context.Background()
			g.Expect(addToScheme()).To(Succeed())
			svc := &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: user, Name: "left", Annotations: map[string]string{theirs: "kept", name: "1"},
				},
				Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP},
			}
			server := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(svc).WithStatusSubresource(svc).Build()
			key := client.ObjectKeyFromObject(svc)
			c := interceptor.NewClient(server, interceptor.Funcs{
				Get: func(
					ctx context.Context, server client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption,
				) error {
					if err := server.Get(ctx, key, obj, opts...); err != nil {
						return err
					}
					kept, err := controllers.SlimService(obj)
					if slim, isService := kept.(*corev1.Service); isService {
						g.Expect(slim.Annotations).To(Equal(map[string]string{name: "1"}))
						slim.DeepCopyInto(obj.(*corev1.Service))
					}
					return err
				},
			})
			r := &controllers.AnnouncedReconciler{
				Client: c, Recorder: events.NewFakeRecorder(10), Namespace: namespace, Now: time.Now,
				Explanations: &controllers.AddressExplanations{},
			}
			_, err := r.Reconcile(ctx, reconcile.Request{NamespacedName: key})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(server.Get(ctx, key, svc)).To(Succeed())
			g.Expect(svc.Annotations).To(Equal(map[string]string{theirs: "kept"}))
		})
	}
}
