package controllers

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/agents"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// TestFaultNodeWithoutLabel has a policy of the cluster refuse the label of one Node: the other
// Nodes get theirs, the DaemonSet is applied, and the LBNodeAgent says what is refused. This test
// shows the row "it refuses the label of a Node, or the agents' DaemonSet" of docs/trust.md.
func TestFaultNodeWithoutLabel(t *testing.T) {
	n1, n2, n3 := benchNode("n1"), benchNode("n2"), benchNode("n3")
	n1.Labels, n2.Labels, n3.Labels = map[string]string{}, map[string]string{}, map[string]string{}
	b := newBench(
		t, benchAgent(), n1, n2, n3,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: benchNamespace, Name: "purelb-agent", UID: "sa"}},
	)
	api, ok := b.api.(client.WithWatch)
	if !ok {
		t.Fatal("the client cannot watch")
	}
	var applied []string
	status := &v1.LBNodeAgent{}
	c := interceptor.NewClient(api, interceptor.Funcs{
		Patch: func(
			ctx context.Context, c client.WithWatch, obj client.Object, p client.Patch, o ...client.PatchOption,
		) error {
			if _, isNode := obj.(*corev1.Node); isNode && obj.GetName() == "n1" {
				return apierrors.NewForbidden(
					corev1.Resource("nodes"), obj.GetName(), errors.New("denied by a policy of the cluster"),
				)
			}
			return c.Patch(ctx, obj, p, o...)
		},
		Apply: func(_ context.Context, _ client.WithWatch, obj runtime.ApplyConfiguration, _ ...client.ApplyOption) error {
			if u, ok := obj.(interface{ GetKind() string }); ok {
				applied = append(applied, u.GetKind())
			}
			return nil
		},
		SubResourceApply: func(
			_ context.Context, _ client.Client, _ string, obj runtime.ApplyConfiguration, _ ...client.SubResourceApplyOption,
		) error {
			if u, ok := obj.(interface{ UnstructuredContent() map[string]any }); ok {
				return runtime.DefaultUnstructuredConverter.FromUnstructured(u.UnstructuredContent(), status)
			}
			return nil
		},
	})
	r := &LBNodeAgentReconciler{
		Client: c, Recorder: &events.FakeRecorder{}, Liveness: b.Liveness, Namespace: benchNamespace,
		Defaults: agents.Defaults{Image: "x", ServiceAccount: "purelb-agent"},
	}
	_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(benchAgent())})
	if !apierrors.IsForbidden(err) {
		t.Errorf("it does not try again: %v", err)
	}
	for name, want := range map[string]string{"n1": "", "n2": "default", "n3": "default"} {
		n := &corev1.Node{}
		if err := b.api.Get(t.Context(), client.ObjectKey{Name: name}, n); err != nil {
			t.Fatal(err)
		}
		if got := n.Labels[v1.LabelAgent]; got != want {
			t.Errorf("node %s has the label %q, want %q", name, got, want)
		}
	}
	ready := meta.FindStatusCondition(status.Status.Conditions, v1.ConditionReady)
	if len(applied) != 1 || ready == nil || ready.Reason != v1.ReasonRefused ||
		!strings.Contains(ready.Message, "label Node n1") ||
		!strings.Contains(ready.Message, "denied by a policy of the cluster") {
		t.Errorf("applied %v, condition %+v", applied, ready)
	}
}

// TestNodeTimesDoNotCount describes a Node that says that it has been NotReady since long ago, or
// will be: only the manager's own clock counts (placement.Clocks).
func TestNodeTimesDoNotCount(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	for _, since := range []time.Duration{-time.Hour, time.Hour} {
		n := benchNode("n1")
		n.Status.Conditions = []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, LastTransitionTime: metav1.NewTime(now.Add(since))},
		}
		if got := (&cluster{}).placementNode(n, nil, placement.Expired, now); !got.IsNotReady || got.IsNotReadyForLong {
			t.Errorf("since %s: %+v", since, got)
		}
	}
}
