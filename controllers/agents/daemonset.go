package agents

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// component is that of agents.
const component = "agent"

// preStopSleepSeconds is for how many seconds an agent goes on when its pod is ended. A kubelet that shuts down says so
// and ends agents in the same instant, if its node has no ordinary pods: without this nobody would be there to hand
// over the node's addresses. Managers go on for as long (config/manager), so that the one that leads writes it.
const preStopSleepSeconds = 4

// DaemonSetName is the name of the DaemonSet of an LBNodeAgent's agents.
func DaemonSetName(lbNodeAgent string) string { return NameOf(component, lbNodeAgent) }

// ServiceAccountUIDOf returns the UID of the service account as which the pods of a DaemonSet
// run, as far as the DaemonSet says.
func ServiceAccountUIDOf(ds *appsv1.DaemonSet) types.UID {
	return types.UID(ds.Spec.Template.Annotations[v1.AnnotationServiceAccountUID])
}

// AccountAnnotations are the annotations of pods that run as a service account; nil if its UID is not known.
func AccountAnnotations(uid types.UID) map[string]string {
	if uid == "" {
		return nil
	}
	return map[string]string{v1.AnnotationServiceAccountUID: string(uid)}
}

// DaemonSet renders the DaemonSet of an LBNodeAgent's agents.
//
// The API server refuses the tokens of pods whose service account was deleted, also when an
// account of the same name exists again. So the pods have the UID of their account in an
// annotation, and another UID replaces them.
func DaemonSet(a *v1.LBNodeAgent, defaults Defaults, serviceAccountUID types.UID) *appsv1.DaemonSet {
	agent := Program{
		Component: component,
		Args: []string{
			"agent",
			"--node-name=$(NODE_NAME)",
			"--namespace=" + a.Namespace,
			"--lbnodeagent=" + a.Name,
			"--checkpoint=" + HostDir + "/agent.json",
		},
		MetricsPort: 7472, HealthPort: 7473,
		Capabilities:           []corev1.Capability{"NET_ADMIN", "NET_RAW"},
		Resources:              ptr.Deref(a.Spec.Resources, corev1.ResourceRequirements{}),
		HostVolume:             "checkpoint",
		ReadinessPeriodSeconds: 5, ReadinessFailureThreshold: 2,
		PreStopSleepSeconds: preStopSleepSeconds,
		Annotations:         AccountAnnotations(serviceAccountUID),
	}
	return agent.DaemonSet(a, defaults)
}
