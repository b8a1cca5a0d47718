package agents

import (
	"net"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// Ports of the agent on its node.
const (
	metricsPort = 7472
	healthPort  = 7473
	// loopback is where the health checks are served: at any other address of the node, those
	// of Services included, each client of the network could ask for them.
	loopback = "127.0.0.1"
)

// checkpointDir is the folder, on the node and in the agent's container, of the agent's
// checkpoint: what its Announcements last asked for.
const checkpointDir = "/var/lib/purelb"

// Defaults are the values of what an LBNodeAgent may leave out.
type Defaults struct {
	// Image of the agent.
	Image string
	// ServiceAccount that the agent runs as.
	ServiceAccount string
}

// DaemonSetName is the name of the DaemonSet of an LBNodeAgent.
func DaemonSetName(lbNodeAgent string) string { return "purelb-agent-" + lbNodeAgent }

// ServiceAccountUIDOf returns the UID of the service account as which the pods of a DaemonSet
// run, as far as the DaemonSet says.
func ServiceAccountUIDOf(ds *appsv1.DaemonSet) types.UID {
	return types.UID(ds.Spec.Template.Annotations[v1.AnnotationServiceAccountUID])
}

// DaemonSet renders the DaemonSet of an LBNodeAgent. The DaemonSet selects nodes by the
// label that the manager gives them, so that each node runs one agent only.
//
// The API server refuses the tokens of pods whose service account was deleted, also when an
// account of the same name exists again. So the pods have the UID of their account in an
// annotation, and another UID replaces them.
func DaemonSet(a *v1.LBNodeAgent, defaults Defaults, serviceAccountUID types.UID) *appsv1.DaemonSet {
	selector := map[string]string{
		"app.kubernetes.io/name": "purelb-agent",
		v1.LabelAgent:            a.Name,
	}
	labels := map[string]string{
		"app.kubernetes.io/name":       "purelb-agent",
		"app.kubernetes.io/component":  "agent",
		"app.kubernetes.io/part-of":    "purelb",
		"app.kubernetes.io/managed-by": "purelb-manager",
		v1.LabelAgent:                  a.Name,
	}
	tolerations := a.Spec.Tolerations
	if len(tolerations) == 0 {
		tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	}
	priorityClass := a.Spec.PriorityClassName
	if priorityClass == "" {
		priorityClass = "system-node-critical" // the node's Services need the agent as they need kube-proxy
	}
	var annotations map[string]string
	if serviceAccountUID != "" {
		annotations = map[string]string{v1.AnnotationServiceAccountUID: string(serviceAccountUID)}
	}
	return &appsv1.DaemonSet{
		TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"},
		ObjectMeta: metav1.ObjectMeta{
			Name:            DaemonSetName(a.Name),
			Namespace:       a.Namespace,
			Labels:          labels,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(a, v1.GroupVersion.WithKind("LBNodeAgent"))},
		},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: selector},
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{
				Type:          appsv1.RollingUpdateDaemonSetStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: ptr.To(intstr.FromInt32(1))},
			},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: annotations},
				Spec: corev1.PodSpec{
					ServiceAccountName: defaults.ServiceAccount,
					HostNetwork:        true,
					// Nothing to wind down: addresses outlive the agent.
					TerminationGracePeriodSeconds: ptr.To[int64](10),
					NodeSelector:                  map[string]string{v1.LabelAgent: a.Name, corev1.LabelOSStable: "linux"},
					PriorityClassName:             priorityClass,
					Tolerations:                   tolerations,
					SecurityContext: &corev1.PodSecurityContext{
						SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
					},
					Containers: []corev1.Container{agentContainer(a, defaults)},
					Volumes: []corev1.Volume{{Name: "checkpoint", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{
						Path: checkpointDir, Type: ptr.To(corev1.HostPathDirectoryOrCreate)}}}},
				},
			},
		},
	}
}

// agentContainer renders the container of an LBNodeAgent's agent.
func agentContainer(a *v1.LBNodeAgent, defaults Defaults) corev1.Container {
	image := a.Spec.Image
	if image == "" {
		image = defaults.Image
	}
	logLevel := a.Spec.LogLevel
	if logLevel == "" {
		logLevel = "info"
	}
	container := corev1.Container{
		Name:            "agent",
		Image:           image,
		ImagePullPolicy: a.Spec.ImagePullPolicy,
		Args: []string{
			"agent",
			"--node-name=$(NODE_NAME)",
			"--namespace=" + a.Namespace,
			"--lbnodeagent=" + a.Name,
			"--checkpoint=" + checkpointDir + "/agent.json",
			"--health-probe-bind-address=" + net.JoinHostPort(loopback, strconv.Itoa(healthPort)),
			"--log-level=" + logLevel,
		},
		VolumeMounts: []corev1.VolumeMount{{Name: "checkpoint", MountPath: checkpointDir}},
		Env: []corev1.EnvVar{{Name: "NODE_NAME", ValueFrom: &corev1.EnvVarSource{
			FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "spec.nodeName"}}}},
		Ports: []corev1.ContainerPort{
			{Name: "metrics", ContainerPort: metricsPort, Protocol: corev1.ProtocolTCP},
			{Name: "health", ContainerPort: healthPort, Protocol: corev1.ProtocolTCP},
		},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: ptr.To(false),
			ReadOnlyRootFilesystem:   ptr.To(true),
			RunAsUser:                ptr.To[int64](0), // capabilities of a container reach only root
			RunAsNonRoot:             ptr.To(false),
			Capabilities: &corev1.Capabilities{
				Drop: []corev1.Capability{"ALL"},
				Add:  []corev1.Capability{"NET_ADMIN", "NET_RAW"},
			},
		},
		LivenessProbe:  probe("/healthz", 10, 3),
		ReadinessProbe: probe("/readyz", 5, 2),
	}
	if a.Spec.Resources != nil {
		container.Resources = *a.Spec.Resources
	}
	return container
}

// probe asks where the kubelet alone can: the program listens on the node's loopback address.
func probe(path string, period, failures int32) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
			Path: path, Host: loopback, Port: intstr.FromString("health")}},
		PeriodSeconds:    period,
		TimeoutSeconds:   5,
		FailureThreshold: failures,
	}
}
