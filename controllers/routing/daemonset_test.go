package routing_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/agents"
	"github.com/purelb/purelb-operator/controllers/routing"
)

// TestSpeakerDaemonSet has what an LBNodeAgent may say of its pods, and what becomes of that in the
// DaemonSet of its speakers; and what holds for all of them.
func TestSpeakerDaemonSet(t *testing.T) {
	pod := func(ds *appsv1.DaemonSet) *corev1.PodSpec { return &ds.Spec.Template.Spec }
	container := func(ds *appsv1.DaemonSet) *corev1.Container { return &pod(ds).Containers[0] }
	image := func(ds *appsv1.DaemonSet) string { return container(ds).Image }
	pull := func(ds *appsv1.DaemonSet) string { return string(container(ds).ImagePullPolicy) }
	priority := func(ds *appsv1.DaemonSet) string { return pod(ds).PriorityClassName }
	logLevel := func(ds *appsv1.DaemonSet) string {
		return strings.Join(slices.DeleteFunc(slices.Clone(container(ds).Args), func(arg string) bool {
			return !strings.HasPrefix(arg, "--log-level=")
		}), " ")
	}
	tolerations := func(ds *appsv1.DaemonSet) string {
		var all []string
		for _, t := range pod(ds).Tolerations {
			all = append(all, fmt.Sprintf("%s %s %s", t.Key, t.Operator, t.Effect))
		}
		return strings.Join(all, ", ")
	}
	for _, row := range []struct {
		name string
		spec v1.LBNodeAgentSpec
		what func(*appsv1.DaemonSet) string
		want string
	}{
		{"the manager's image", v1.LBNodeAgentSpec{}, image, "purelb:default"},
		{"another image", v1.LBNodeAgentSpec{Image: "purelb:mine"}, image, "purelb:mine"},
		{"a pull policy", v1.LBNodeAgentSpec{ImagePullPolicy: corev1.PullAlways}, pull, "Always"},
		{"critical for the node", v1.LBNodeAgentSpec{}, priority, "system-node-critical"},
		{"another priority", v1.LBNodeAgentSpec{PriorityClassName: "low"}, priority, "low"},
		{"level info", v1.LBNodeAgentSpec{}, logLevel, "--log-level=info"},
		{"another level", v1.LBNodeAgentSpec{LogLevel: "debug"}, logLevel, "--log-level=debug"},
		{"on every node, whatever its taints", v1.LBNodeAgentSpec{}, tolerations, " Exists "},
		{"on nodes with some taint", v1.LBNodeAgentSpec{Tolerations: []corev1.Toleration{
			{Key: "gpu", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
		}}, tolerations, "gpu Exists NoSchedule"},
	} {
		t.Run(row.name, func(t *testing.T) {
			a := &v1.LBNodeAgent{
				ObjectMeta: metav1.ObjectMeta{Name: "edge", Namespace: "purelb-system", UID: "1"}, Spec: row.spec,
			}
			ds := routing.SpeakerDaemonSet(a, agents.Defaults{Image: "purelb:default", ServiceAccount: "speaker"}, "uid")
			if got := agents.ServiceAccountUIDOf(ds); got != "uid" {
				t.Errorf("its pods say that their account is %q", got)
			}
			if got := row.what(ds); got != row.want {
				t.Errorf("got  %q\nwant %q", got, row.want)
			}
			labels := ds.Spec.Template.Labels
			for key, value := range ds.Spec.Selector.MatchLabels {
				if labels[key] != value {
					t.Errorf("its pods do not have label %s=%s: %v", key, value, labels)
				}
			}
			if selector := pod(ds).NodeSelector; selector[v1.LabelAgent] != "edge" || selector[corev1.LabelOSStable] != "linux" {
				t.Errorf("it runs on %v, and the agents on nodes with the label of their LBNodeAgent", selector)
			}
			if got := ds.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.IntValue(); got != 1 {
				t.Errorf("%d nodes restart at a time", got)
			}
			security := container(ds).SecurityContext
			if !*security.ReadOnlyRootFilesystem || *security.AllowPrivilegeEscalation || security.Privileged != nil ||
				!slices.Equal(security.Capabilities.Add, []corev1.Capability{"NET_ADMIN"}) ||
				!slices.Equal(security.Capabilities.Drop, []corev1.Capability{"ALL"}) {
				t.Errorf("it may do more than it has to: %+v", security)
			}
			passwords := routing.SpeakerSecret(a, map[string][]byte{"p": []byte("x")})
			mounted := pod(ds).Volumes[1].Secret
			if mounted.SecretName != passwords.Name || !*mounted.Optional || *mounted.DefaultMode != 0o400 {
				t.Errorf("Secret %s is mounted as %+v", passwords.Name, mounted)
			}
			units := pod(ds).Volumes[2]
			isMounted := slices.ContainsFunc(container(ds).VolumeMounts, func(m corev1.VolumeMount) bool {
				return m.Name == units.Name && m.ReadOnly && slices.Contains(container(ds).Args, "--systemd-unit-dir="+m.MountPath)
			})
			if units.HostPath == nil || units.HostPath.Path != "/run/systemd/units" || !isMounted {
				t.Errorf("the folder of systemd's units is mounted as %+v, %+v", units, container(ds).VolumeMounts)
			}
			for _, owned := range []metav1.ObjectMeta{ds.ObjectMeta, passwords.ObjectMeta} {
				if owned.Namespace != "purelb-system" || owned.Name != "purelb-speaker-edge" ||
					owned.OwnerReferences[0].UID != "1" {
					t.Errorf("%s/%s is of %v", owned.Namespace, owned.Name, owned.OwnerReferences)
				}
			}
		})
	}
}
