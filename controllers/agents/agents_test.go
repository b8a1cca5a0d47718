package agents_test

import (
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/agents"
)

func TestAssign(t *testing.T) {
	named := func(name string, selector map[string]string) v1.LBNodeAgent {
		return v1.LBNodeAgent{
			ObjectMeta: metav1.ObjectMeta{Namespace: "purelb-system", Name: name},
			Spec:       v1.LBNodeAgentSpec{NodeSelector: selector},
		}
	}
	rack := map[string]string{"rack": "a"}
	going := named("a", rack)
	going.DeletionTimestamp = ptr.To(metav1.Now())
	for _, row := range []struct {
		name string
		all  []v1.LBNodeAgent
		node map[string]string
		want string
	}{
		{"none", nil, rack, ""},
		{"selects all", []v1.LBNodeAgent{named("all", nil)}, nil, "all"},
		{"selects others", []v1.LBNodeAgent{named("b", map[string]string{"rack": "b"})}, rack, ""},
		{"all labels must match", []v1.LBNodeAgent{named("b", map[string]string{"rack": "a", "row": "1"})}, rack, ""},
		{"first by name", []v1.LBNodeAgent{named("b", nil), named("a", nil)}, nil, "a"},
		{"a selector beats none", []v1.LBNodeAgent{named("a", nil), named("z", rack)}, rack, "z"},
		{
			"of two selectors, the first by name", []v1.LBNodeAgent{named("z", rack), named("b", rack), named("a", nil)}, rack,
			"b",
		},
		{"Linux", []v1.LBNodeAgent{named("a", nil)}, map[string]string{corev1.LabelOSStable: "linux"}, "a"},
		{"Windows", []v1.LBNodeAgent{named("a", nil)}, map[string]string{corev1.LabelOSStable: "windows"}, ""},
		{
			"one that selects what was decided does not count",
			[]v1.LBNodeAgent{named("a", map[string]string{v1.LabelAgent: "b"}), named("b", nil)},
			map[string]string{v1.LabelAgent: "b"}, "b",
		},
		{"one that goes does not count", []v1.LBNodeAgent{going, named("b", nil)}, rack, "b"},
	} {
		if got := agents.LBNodeAgentFor(row.all, row.node); got != row.want {
			t.Errorf("%s: %q, not %q", row.name, got, row.want)
		}
	}
}

func TestDaemonSet(t *testing.T) {
	a := &v1.LBNodeAgent{ObjectMeta: metav1.ObjectMeta{Namespace: "purelb-system", Name: "default", UID: "u"}}
	defaults := agents.Defaults{Image: "img", ServiceAccount: "sa"}
	pod := agents.DaemonSet(a, defaults, "").Spec.Template.Spec
	c := pod.Containers[0]
	want := &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN", "NET_RAW"}}
	if diff := cmp.Diff(want, c.SecurityContext.Capabilities); diff != "" {
		t.Errorf("capabilities (-want +got):\n%s", diff)
	}
	if !*c.SecurityContext.ReadOnlyRootFilesystem || *c.SecurityContext.AllowPrivilegeEscalation || !pod.HostNetwork {
		t.Error("the pod's rights are not as they should be")
	}
	if diff := cmp.Diff([]corev1.Toleration{{Operator: corev1.TolerationOpExists}}, pod.Tolerations); diff != "" {
		t.Errorf("tolerations (-want +got):\n%s", diff)
	}
	if pod.PriorityClassName != "system-node-critical" {
		t.Errorf("priority class %s", pod.PriorityClassName)
	}
	if u := agents.DaemonSet(a, defaults, "").Spec.UpdateStrategy; u.RollingUpdate.MaxUnavailable.IntValue() != 1 ||
		u.RollingUpdate.MaxSurge != nil {
		t.Errorf("more than one agent is away during an update, or two want the ports of one node: %+v", u.RollingUpdate)
	}
	if c.Image != "img" || pod.ServiceAccountName != "sa" {
		t.Errorf("image %s, service account %s", c.Image, pod.ServiceAccountName)
	}

	resources := &corev1.ResourceRequirements{
		Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")},
	}
	a.Spec = v1.LBNodeAgentSpec{
		Image: "other", ImagePullPolicy: corev1.PullAlways, LogLevel: "debug", PriorityClassName: "low",
		Tolerations: []corev1.Toleration{{Key: "k"}}, Resources: resources,
	}
	pod = agents.DaemonSet(a, defaults, "").Spec.Template.Spec
	c = pod.Containers[0]
	if diff := cmp.Diff(*resources, c.Resources); diff != "" || c.ImagePullPolicy != corev1.PullAlways ||
		!slices.Contains(c.Args, "--log-level=debug") {
		t.Errorf("the specification is not followed: %+v", c)
	}
	if pod.Containers[0].Image != "other" || pod.PriorityClassName != "low" || len(pod.Tolerations) != 1 ||
		pod.Tolerations[0].Key != "k" {
		t.Errorf("the specification is not followed: %+v", pod)
	}
}

// TestAgentSleepsAsLongAsManagers compares agents with the Deployment of the manager: when a node shuts down, both are
// told to end at once, and have to hand over its addresses together.
func TestAgentSleepsAsLongAsManagers(t *testing.T) {
	text, err := os.ReadFile("../../config/manager/manager.yaml")
	if err != nil {
		t.Fatal(err)
	}
	deployment := &appsv1.Deployment{}
	if err := yaml.UnmarshalStrict(text, deployment); err != nil {
		t.Fatal(err)
	}
	manager := deployment.Spec.Template.Spec.Containers[0].Lifecycle
	pod := agents.DaemonSet(&v1.LBNodeAgent{}, agents.Defaults{}, "").Spec.Template.Spec
	agent := pod.Containers[0].Lifecycle
	if diff := cmp.Diff(manager, agent); diff != "" || manager.PreStop.Sleep.Seconds == 0 {
		t.Errorf("how long each goes on (-manager +agent):\n%s", diff)
	}
	if *pod.TerminationGracePeriodSeconds <= agent.PreStop.Sleep.Seconds {
		t.Errorf("an agent has no time to end: it is killed after %d s", *pod.TerminationGracePeriodSeconds)
	}
}

// TestServiceAccountUID replaces the agents when their service account is another one, and not
// while nothing is known of the account.
func TestServiceAccountUID(t *testing.T) {
	a := &v1.LBNodeAgent{ObjectMeta: metav1.ObjectMeta{Namespace: "purelb-system", Name: "default", UID: "u"}}
	render := func(uid types.UID) *appsv1.DaemonSet {
		return agents.DaemonSet(a, agents.Defaults{Image: "img", ServiceAccount: "sa"}, uid)
	}
	for _, uid := range []types.UID{"", "one", "two"} {
		if got := agents.ServiceAccountUIDOf(render(uid)); got != uid {
			t.Errorf("the pods of account %q say %q", uid, got)
		}
	}
	if diff := cmp.Diff(render("one").Spec.Template, render("one").Spec.Template); diff != "" {
		t.Errorf("the same account replaces the agents: %s", diff)
	}
	if cmp.Equal(render("one").Spec.Template, render("two").Spec.Template) {
		t.Error("another account does not replace the agents")
	}
	if annotations := render("").Spec.Template.Annotations; annotations != nil {
		t.Errorf("without an account the pods have the annotations %v", annotations)
	}
}
