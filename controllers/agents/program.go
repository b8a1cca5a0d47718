package agents

import (
	"cmp"
	"net"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

const (
	// HostDir is the folder, on the node and in the container, of what outlives a program's
	// process, such as its checkpoint.
	HostDir = "/var/lib/purelb"
	// loopback is where the health checks are served: at any other address of the node, those
	// of Services included, each client of the network could ask for them.
	loopback = "127.0.0.1"
)

// Defaults are the values of what an LBNodeAgent may leave out.
type Defaults struct {
	// Image of the program.
	Image string
	// ServiceAccount that the program runs as.
	ServiceAccount string
}

// Program is a program that runs on the nodes of an LBNodeAgent: its agent, or its speaker.
type Program struct {
	// Component is the name of the container, and a part of the DaemonSet's.
	Component string
	// Command is empty for the image's own. Args are followed by the health checks' address and
	// the log level.
	Command, Args []string
	// MetricsPort and HealthPort are ports of the node.
	MetricsPort, HealthPort int32
	Capabilities            []corev1.Capability
	Resources               corev1.ResourceRequirements
	// HostVolume is the name of the volume with HostDir. Volumes and Mounts are further ones.
	HostVolume string
	Volumes    []corev1.Volume
	Mounts     []corev1.VolumeMount
	// ReadinessPeriodSeconds is the period of the readiness probe, and ReadinessFailureThreshold how many failures in a
	// row count.
	ReadinessPeriodSeconds, ReadinessFailureThreshold int32
	// PreStopSleepSeconds is for how many seconds the program goes on before it is told to end; 0 if it is told at once.
	PreStopSleepSeconds int64
	Annotations         map[string]string
}

// NameOf is the name of the DaemonSet of an LBNodeAgent's program.
func NameOf(component, lbNodeAgent string) string { return "purelb-" + component + "-" + lbNodeAgent }

// LabelsOf are the labels of what all programs of a component need.
func LabelsOf(component string) map[string]string {
	return map[string]string{
		"app.kubernetes.io/name":       "purelb-" + component,
		"app.kubernetes.io/component":  component,
		"app.kubernetes.io/part-of":    "purelb",
		"app.kubernetes.io/managed-by": "purelb-manager",
	}
}

// ObjectMetaOf is that of an object that an LBNodeAgent's program needs. The object goes with the
// LBNodeAgent.
func ObjectMetaOf(component string, a *v1.LBNodeAgent) metav1.ObjectMeta {
	labels := LabelsOf(component)
	labels[v1.LabelAgent] = a.Name
	return metav1.ObjectMeta{
		Name: NameOf(component, a.Name), Namespace: a.Namespace, Labels: labels,
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(a, v1.GroupVersion.WithKind("LBNodeAgent"))},
	}
}

// DaemonSet renders the DaemonSet of an LBNodeAgent's program. The DaemonSet selects nodes by the
// label that the manager gives them, so that each node runs one agent only.
func (p *Program) DaemonSet(a *v1.LBNodeAgent, defaults Defaults) *appsv1.DaemonSet {
	meta := ObjectMetaOf(p.Component, a)
	tolerations := a.Spec.Tolerations
	if len(tolerations) == 0 {
		tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	}
	return &appsv1.DaemonSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"},
		ObjectMeta: meta,
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{
				"app.kubernetes.io/name": meta.Labels["app.kubernetes.io/name"], v1.LabelAgent: a.Name}},
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{
				Type:          appsv1.RollingUpdateDaemonSetStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: ptr.To(intstr.FromInt32(1))},
			},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: meta.Labels, Annotations: p.Annotations},
				Spec: corev1.PodSpec{
					ServiceAccountName: defaults.ServiceAccount,
					HostNetwork:        true,
					// Little to wind down: addresses and routes outlive the program.
					TerminationGracePeriodSeconds: ptr.To[int64](10),
					NodeSelector:                  map[string]string{v1.LabelAgent: a.Name, corev1.LabelOSStable: linux},
					// The node's Services need the program as they need kube-proxy.
					PriorityClassName: cmp.Or(a.Spec.PriorityClassName, "system-node-critical"),
					Tolerations:       tolerations,
					SecurityContext: &corev1.PodSecurityContext{
						SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
					},
					Containers: []corev1.Container{p.container(a, defaults)},
					Volumes: append([]corev1.Volume{{Name: p.HostVolume, VolumeSource: corev1.VolumeSource{
						HostPath: &corev1.HostPathVolumeSource{Path: HostDir, Type: ptr.To(corev1.HostPathDirectoryOrCreate)}}}},
						p.Volumes...),
				},
			},
		},
	}
}

func (p *Program) container(a *v1.LBNodeAgent, defaults Defaults) corev1.Container {
	var lifecycle *corev1.Lifecycle
	if p.PreStopSleepSeconds > 0 {
		lifecycle = &corev1.Lifecycle{
			PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: p.PreStopSleepSeconds}},
		}
	}
	return corev1.Container{
		Lifecycle:       lifecycle,
		Name:            p.Component,
		Image:           cmp.Or(a.Spec.Image, defaults.Image),
		ImagePullPolicy: a.Spec.ImagePullPolicy,
		Command:         p.Command,
		Args: slices.Concat(p.Args, []string{
			"--health-probe-bind-address=" + net.JoinHostPort(loopback, strconv.Itoa(int(p.HealthPort))),
			"--log-level=" + cmp.Or(a.Spec.LogLevel, "info"),
		}),
		VolumeMounts: append([]corev1.VolumeMount{{Name: p.HostVolume, MountPath: HostDir}}, p.Mounts...),
		Env: []corev1.EnvVar{{Name: "NODE_NAME", ValueFrom: &corev1.EnvVarSource{
			FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "spec.nodeName"}}}},
		Ports: []corev1.ContainerPort{
			{Name: "metrics", ContainerPort: p.MetricsPort, Protocol: corev1.ProtocolTCP},
			{Name: "health", ContainerPort: p.HealthPort, Protocol: corev1.ProtocolTCP},
		},
		Resources: p.Resources,
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: ptr.To(false),
			ReadOnlyRootFilesystem:   ptr.To(true),
			RunAsUser:                ptr.To[int64](0), // capabilities of a container reach only root
			RunAsNonRoot:             ptr.To(false),
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: p.Capabilities},
		},
		LivenessProbe:  loopbackProbe("/healthz", 10, 3),
		ReadinessProbe: loopbackProbe("/readyz", p.ReadinessPeriodSeconds, p.ReadinessFailureThreshold),
	}
}

// loopbackProbe asks where the kubelet alone can: the program listens on the node's loopback address.
func loopbackProbe(path string, periodSeconds, failureThreshold int32) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
			Path: path, Host: loopback, Port: intstr.FromString("health")}},
		PeriodSeconds:    periodSeconds,
		TimeoutSeconds:   5,
		FailureThreshold: failureThreshold,
	}
}
