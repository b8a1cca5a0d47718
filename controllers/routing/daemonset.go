package routing

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/agents"
)

const (
	// component is that of speakers.
	component = "speaker"
	// passwordDir is where the Secret with the passwords is mounted.
	passwordDir = "/etc/purelb/passwords" //nolint:gosec // a folder
	// unitDir is where systemd has a link for each active service of the node. It has nothing else: no
	// socket, and no file with content.
	unitDir = "/run/systemd/units"
)

// SpeakerName is the name of the DaemonSet of the speakers of an LBNodeAgent, and of the Secret
// with their passwords.
func SpeakerName(lbNodeAgent string) string { return agents.NameOf(component, lbNodeAgent) }

// SpeakerLabels select the DaemonSets and Secrets of all speakers.
func SpeakerLabels() map[string]string { return agents.LabelsOf(component) }

// SpeakerSecret renders the Secret with the passwords that the speakers of an LBNodeAgent need, by
// the name of the file.
func SpeakerSecret(a *v1.LBNodeAgent, passwords map[string][]byte) *corev1.Secret {
	return &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: agents.ObjectMetaOf(component, a),
		Data:       passwords,
	}
}

// SpeakerDaemonSet renders the DaemonSet of the speakers of an LBNodeAgent. It runs where the
// LBNodeAgent's agents run, with the image and the tolerations of those. A speaker is ready when its
// neighbours have its routes, so that one node restarts at a time. Another UID of the speakers' service account
// replaces them, as that of the agents' does agents.
func SpeakerDaemonSet(a *v1.LBNodeAgent, defaults agents.Defaults, serviceAccountUID types.UID) *appsv1.DaemonSet {
	speaker := agents.Program{
		Component: component,
		Command:   []string{"/purelb-speaker"},
		Args: []string{
			"--node-name=$(NODE_NAME)",
			"--namespace=" + a.Namespace,
			"--state-dir=" + agents.HostDir, // with the lock by which a new speaker waits for the old one, too
			"--password-dir=" + passwordDir,
			"--systemd-unit-dir=" + unitDir,
		},
		MetricsPort: 7474, HealthPort: 7475,
		Capabilities: []corev1.Capability{"NET_ADMIN"}, // passwords of TCP connections, and larger buffers
		// The speaker needs less. The kernel makes a container with a small request wait for long when
		// the node is busy, and BFD does not wait for long.
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("48Mi"),
			},
			Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("192Mi")},
		},
		HostVolume: "state",
		Volumes: []corev1.Volume{
			{Name: "passwords", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
				SecretName: SpeakerName(a.Name), Optional: ptr.To(true), DefaultMode: ptr.To[int32](0o400)}}},
			// Nodes without systemd have no such folder.
			{Name: "units", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{
				Path: unitDir, Type: ptr.To(corev1.HostPathDirectoryOrCreate)}}},
		},
		Mounts: []corev1.VolumeMount{
			{Name: "passwords", MountPath: passwordDir, ReadOnly: true},
			{Name: "units", MountPath: unitDir, ReadOnly: true},
		},
		ReadinessPeriodSeconds: 2, ReadinessFailureThreshold: 1,
		Annotations: agents.AccountAnnotations(serviceAccountUID),
	}
	return speaker.DaemonSet(a, defaults)
}
