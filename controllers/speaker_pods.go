package controllers

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/announced"
	"github.com/purelb/purelb-operator/controllers/routing"
)

// +kubebuilder:rbac:groups="",resources=pods,namespace=purelb-system,verbs=get;list;watch

// SlimPod keeps of a speaker's pod what the manager reads: on which node it is, and whether its container runs.
func SlimPod(obj any) (any, error) {
	pod, isPod := obj.(*corev1.Pod)
	if !isPod {
		return obj, nil
	}
	slim := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion, Labels: pod.Labels,
		},
		Spec: corev1.PodSpec{NodeName: pod.Spec.NodeName},
	}
	for i := range pod.Status.ContainerStatuses {
		status := corev1.ContainerStatus{Name: pod.Status.ContainerStatuses[i].Name}
		if pod.Status.ContainerStatuses[i].State.Running != nil {
			status.State.Running = &corev1.ContainerStateRunning{}
		}
		slim.Status.ContainerStatuses = append(slim.Status.ContainerStatuses, status)
	}
	return slim, nil
}

// hasRunningContainer reports whether a container of a pod runs, Ready or not: a speaker that is not Ready yet says of
// its sessions what is so.
func hasRunningContainer(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.State.Running != nil
	})
}

// withDeadSpeakersDown returns NodeRoutings by node, in which the sessions of speakers that are dead, as far as
// Kubernetes knows, are down: they stay in the list, set to Idle.
func withDeadSpeakersDown(
	ctx context.Context, c client.Reader, namespace string, routings map[string]*v1.NodeRouting,
) (map[string]*v1.NodeRouting, error) {
	if len(routings) == 0 { // as without BGP, whose Services ask, too
		return routings, nil
	}
	var nodes corev1.NodeList
	if err := c.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list Nodes: %w", err)
	}
	isUnknown := map[string]bool{}
	for i := range nodes.Items {
		isUnknown[nodes.Items[i].Name] = readinessOf(&nodes.Items[i]).Status == corev1.ConditionUnknown
	}
	var pods corev1.PodList
	err := c.List(
		ctx, &pods, client.InNamespace(namespace), client.MatchingLabels(routing.SpeakerLabels()),
		client.UnsafeDisableDeepCopy,
	)
	if err != nil {
		return nil, fmt.Errorf("list pods of speakers: %w", err)
	}
	isDown := nodesWithSpeakerDown(pods.Items)
	return announced.CurrentRoutings(
		routings, func(node string) bool { return isUnknown[node] }, func(node string) bool { return isDown[node] },
	), nil
}

// nodesWithSpeakerDown returns the nodes that have pods of speakers of which none runs. Where there is no pod nothing
// is known: it may not have been made yet.
func nodesWithSpeakerDown(pods []corev1.Pod) map[string]bool {
	isDown := map[string]bool{}
	for i := range pods {
		node := pods[i].Spec.NodeName
		before, isSeen := isDown[node]
		isDown[node] = (before || !isSeen) && !hasRunningContainer(&pods[i])
	}
	return isDown
}

// requestsForSpeakerPod maps a pod of a speaker to the Services that have Virtual addresses on its node.
func (r *AnnouncedReconciler) requestsForSpeakerPod(ctx context.Context, pod client.Object) []reconcile.Request {
	p, isPod := pod.(*corev1.Pod)
	if !isPod || p.Spec.NodeName == "" {
		return nil
	}
	return r.requestsForServicesWithVirtualOn(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: p.Spec.NodeName}})
}

// speakerRunsChanged lets through that a speaker's pod comes to a node, runs or does not run any more, and goes.
var speakerRunsChanged = changed(func(before, after *corev1.Pod) bool {
	return hasRunningContainer(before) != hasRunningContainer(after) || before.Spec.NodeName != after.Spec.NodeName
})
