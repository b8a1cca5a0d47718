package routing

import (
	"net"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// Ports of the speaker on its node.
const (
	metricsPort = 7474
	healthPort  = 7475
	// loopback is where the health checks are served, out of reach of the network.
	loopback = "127.0.0.1"
)

const (
	// stateDir is the folder, on the node and in the container, of the speaker's checkpoint
	// and of the lock by which a new speaker waits for the old one.
	stateDir = "/var/lib/purelb"
	// passwordDir is where the Secret with the passwords is mounted.
	passwordDir = "/etc/purelb/passwords" //nolint:gosec // a folder
	// speakerApp is the label app.kubernetes.io/name of speakers.
	speakerApp = "purelb-speaker"
)

// Defaults are the values of what an LBNodeAgent may leave out.
type Defaults struct {
	// Image of the speaker.
	Image string
	// ServiceAccount that the speaker runs as.
	ServiceAccount string
}

// SpeakerName is the name of the DaemonSet of the speakers of an LBNodeAgent, and of the Secret
// with their passwords.
func SpeakerName(lbNodeAgent string) string { return "purelb-speaker-" + lbNodeAgent }

// SpeakerLabels select the DaemonSets and Secrets of all speakers.
func SpeakerLabels() map[string]string {
	return map[string]string{
		"app.kubernetes.io/name":       speakerApp,
		"app.kubernetes.io/component":  "speaker",
		"app.kubernetes.io/part-of":    "purelb",
		"app.kubernetes.io/managed-by": "purelb-manager",
	}
}

func labelsOf(a *v1.LBNodeAgent) map[string]string {
	labels := SpeakerLabels()
	labels[v1.LabelAgent] = a.Name
	return labels
}

// Passwords renders the Secret with the passwords that the speakers of an LBNodeAgent need, by
// the name of the file.
func Passwords(a *v1.LBNodeAgent, passwords map[string][]byte) *corev1.Secret {
	return &corev1.Secret{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{
			Name: SpeakerName(a.Name), Namespace: a.Namespace, Labels: labelsOf(a),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(a, v1.GroupVersion.WithKind("LBNodeAgent"))},
		},
		Data: passwords,
	}
}

// SpeakerDaemonSet renders the DaemonSet of the speakers of an LBNodeAgent. It runs where the
// LBNodeAgent's agents run, with the image and the tolerations of those.
func SpeakerDaemonSet(a *v1.LBNodeAgent, defaults Defaults) *appsv1.DaemonSet {
	tolerations := a.Spec.Tolerations
	if len(tolerations) == 0 {
		tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	}
	priorityClass := a.Spec.PriorityClassName
	if priorityClass == "" {
		priorityClass = "system-node-critical"
	}
	return &appsv1.DaemonSet{
		TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"},
		ObjectMeta: metav1.ObjectMeta{
			Name: SpeakerName(a.Name), Namespace: a.Namespace, Labels: labelsOf(a),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(a, v1.GroupVersion.WithKind("LBNodeAgent"))},
		},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/name": speakerApp, v1.LabelAgent: a.Name}},
			// A speaker is ready when its neighbours have its routes: one node restarts at a time.
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{
				Type:          appsv1.RollingUpdateDaemonSetStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: ptr.To(intstr.FromInt32(1))},
			},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labelsOf(a)},
				Spec: corev1.PodSpec{
					ServiceAccountName:            defaults.ServiceAccount,
					HostNetwork:                   true,
					TerminationGracePeriodSeconds: ptr.To[int64](10),
					NodeSelector:                  map[string]string{v1.LabelAgent: a.Name, corev1.LabelOSStable: "linux"},
					PriorityClassName:             priorityClass,
					Tolerations:                   tolerations,
					SecurityContext: &corev1.PodSecurityContext{
						SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
					},
					Containers: []corev1.Container{speakerContainer(a, defaults)},
					Volumes: []corev1.Volume{
						{Name: "state", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{
							Path: stateDir, Type: ptr.To(corev1.HostPathDirectoryOrCreate)}}},
						{Name: "passwords", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
							SecretName: SpeakerName(a.Name), Optional: ptr.To(true), DefaultMode: ptr.To[int32](0o400)}}},
					},
				},
			},
		},
	}
}

// speakerContainer renders the container of an LBNodeAgent's speaker.
func speakerContainer(a *v1.LBNodeAgent, defaults Defaults) corev1.Container {
	image := a.Spec.Image
	if image == "" {
		image = defaults.Image
	}
	logLevel := a.Spec.LogLevel
	if logLevel == "" {
		logLevel = "info"
	}
	return corev1.Container{
		Name:            "speaker",
		Image:           image,
		ImagePullPolicy: a.Spec.ImagePullPolicy,
		Command:         []string{"/purelb-speaker"},
		Args: []string{
			"--node-name=$(NODE_NAME)",
			"--namespace=" + a.Namespace,
			"--state-dir=" + stateDir,
			"--password-dir=" + passwordDir,
			"--health-probe-bind-address=" + net.JoinHostPort(loopback, strconv.Itoa(healthPort)),
			"--log-level=" + logLevel,
		},
		VolumeMounts: []corev1.VolumeMount{
			{Name: "state", MountPath: stateDir},
			{Name: "passwords", MountPath: passwordDir, ReadOnly: true},
		},
		Env: []corev1.EnvVar{{Name: "NODE_NAME", ValueFrom: &corev1.EnvVarSource{
			FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "spec.nodeName"}}}},
		Ports: []corev1.ContainerPort{
			{Name: "metrics", ContainerPort: metricsPort, Protocol: corev1.ProtocolTCP},
			{Name: "health", ContainerPort: healthPort, Protocol: corev1.ProtocolTCP},
		},
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("48Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("192Mi")},
		},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: ptr.To(false),
			ReadOnlyRootFilesystem:   ptr.To(true),
			RunAsUser:                ptr.To[int64](0), // capabilities of a container reach only root
			RunAsNonRoot:             ptr.To(false),
			Capabilities: &corev1.Capabilities{
				Drop: []corev1.Capability{"ALL"},
				Add:  []corev1.Capability{"NET_ADMIN"}, // passwords of TCP connections, and larger buffers
			},
		},
		LivenessProbe:  probe("/healthz", 10, 3),
		ReadinessProbe: probe("/readyz", 2, 1),
	}
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
