package controllers

import (
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

// speakerPod is a pod of a speaker on a node, as the cache has it.
func speakerPod(t *testing.T, node string, state corev1.ContainerState) *corev1.Pod {
	t.Helper()
	slim, err := SlimPod(&corev1.Pod{
		Spec:   corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "speaker"}}},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "speaker", State: state}}},
	})
	pod, isPod := slim.(*corev1.Pod)
	if err != nil || !isPod || len(pod.Spec.Containers) > 0 {
		t.Fatalf("%v, %+v", err, slim)
	}
	return pod
}

// TestNodesWithSpeakerDown has nodes whose speakers run, do not, are replaced by others, or have no pod.
func TestNodesWithSpeakerDown(t *testing.T) {
	runs := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	waits := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	isDown := nodesWithSpeakerDown([]corev1.Pod{
		*speakerPod(t, "a", runs), *speakerPod(t, "b", waits), *speakerPod(t, "c", runs), *speakerPod(t, "c", waits),
		*speakerPod(t, "d", waits), *speakerPod(t, "d", runs), *speakerPod(t, "e", waits), *speakerPod(t, "e", waits),
	})
	if want := map[string]bool{"a": false, "b": true, "c": false, "d": false, "e": true}; !maps.Equal(isDown, want) {
		t.Errorf("%v, want %v", isDown, want)
	}
	for _, row := range []struct {
		before, after *corev1.Pod
		want          bool
	}{
		{speakerPod(t, "a", runs), speakerPod(t, "a", runs), false},
		{speakerPod(t, "a", runs), speakerPod(t, "a", waits), true},
		{speakerPod(t, "a", waits), speakerPod(t, "a", runs), true},
		{speakerPod(t, "", waits), speakerPod(t, "a", waits), true},
	} {
		if got := speakerRunsChanged.Update(event.UpdateEvent{ObjectOld: row.before, ObjectNew: row.after}); got != row.want {
			t.Errorf("%+v, %+v: %t", row.before, row.after, got)
		}
	}
}
