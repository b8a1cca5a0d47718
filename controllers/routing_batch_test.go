package controllers

import (
	"context"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/routing"
)

// delayQueue notes after how long requests are to be handled.
type delayQueue struct {
	queue
	delays []time.Duration
}

func (q *delayQueue) AddAfter(_ reconcile.Request, delay time.Duration) {
	q.delays = append(q.delays, delay)
}

func routingScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return scheme
}

// TestRoutingRests changes an object of each kind that wakes the reconciler, before and after it has worked for 200 ms:
// it looks soon at the first changes, and rests before those that follow.
func TestRoutingRests(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	r := &RoutingReconciler{
		Client: fake.NewClientBuilder().WithScheme(routingScheme(t)).Build(), Namespace: "purelb-system",
		Now: func() time.Time {
			now = now.Add(100 * time.Millisecond)
			return now
		},
	}
	watches := r.Component().Watches
	delays := func() []time.Duration {
		q := &delayQueue{}
		for _, w := range watches {
			now = now.Add(-100 * time.Millisecond) // the clock stands still meanwhile
			w.Handler.Create(t.Context(), event.CreateEvent{Object: w.Object}, q)
		}
		return q.delays
	}
	if got := delays(); !slices.Equal(got, slices.Repeat([]time.Duration{batchWait}, len(watches))) {
		t.Errorf("at first: %v", got)
	}
	if _, err := r.Reconcile(t.Context(), wholeCluster); err != nil {
		t.Fatal(err)
	}
	if got := delays(); !slices.Equal(got, slices.Repeat([]time.Duration{1800 * time.Millisecond}, len(watches))) {
		t.Errorf("after work of 200 ms: %v", got)
	}
}

// TestSilentNodes has nodes with speakers, of which the API server has not heard of one for a while, and the kubelet of
// another says that its speaker does not run.
func TestSilentNodes(t *testing.T) {
	nodeWith := func(name string, ready corev1.ConditionStatus) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
		return n
	}
	routings := map[string]*v1.NodeRouting{}
	for _, name := range []string{"n1", "n2", "n3", "n4"} {
		routings[name] = &v1.NodeRouting{Status: v1.NodeRoutingStatus{Established: 1}}
	}
	down := speakerPod(t, "n4", corev1.ContainerState{})
	down.Namespace, down.Name, down.Labels = benchNamespace, "speaker", routing.SpeakerLabels()
	c := fake.NewClientBuilder().WithScheme(routingScheme(t)).WithObjects(
		nodeWith("n1", corev1.ConditionUnknown), nodeWith("n2", corev1.ConditionFalse), down,
	).Build()
	heard, err := withDeadSpeakersDown(context.Background(), c, benchNamespace, routings)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int32{"n1": 0, "n2": 1, "n3": 1, "n4": 0} {
		if got := heard[name].Status.Established; got != want {
			t.Errorf("%s: %d sessions, want %d", name, got, want)
		}
	}
	for _, row := range []struct {
		before, after corev1.ConditionStatus
		want          bool
	}{
		{corev1.ConditionTrue, corev1.ConditionUnknown, true}, {corev1.ConditionUnknown, corev1.ConditionTrue, true},
		{corev1.ConditionTrue, corev1.ConditionFalse, false}, {corev1.ConditionUnknown, corev1.ConditionUnknown, false},
	} {
		update := event.UpdateEvent{ObjectOld: nodeWith("n1", row.before), ObjectNew: nodeWith("n1", row.after)}
		if got := nodeUnknownChanged.Update(update); got != row.want {
			t.Errorf("from %s to %s: %t", row.before, row.after, got)
		}
	}
}
