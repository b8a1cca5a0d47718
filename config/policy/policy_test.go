package policy_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/purelb/purelb-operator/config/policy"
)

func TestObjects(t *testing.T) {
	objects, err := policy.Objects(policy.Users{
		Manager: "system:serviceaccount:lb:olm-manager", Agent: "system:serviceaccount:lb:olm-agent",
		Speaker: "system:serviceaccount:lb:olm-speaker",
	})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, u := range objects {
		names = append(names, u.GetKind()+" "+u.GetName())
		if u.GetLabels()["app.kubernetes.io/managed-by"] != policy.ManagedBy {
			t.Errorf("labels of %s: %v", u.GetName(), u.GetLabels())
		}
		text, err := json.Marshal(u.Object)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "system:serviceaccount:purelb-system") {
			t.Errorf("%s %s names a user that is not there: %s", u.GetKind(), u.GetName(), text)
		}
		// A binding names its policy alone, and purelb-crds makes no difference between users.
		if u.GetKind() != "ValidatingAdmissionPolicyBinding" && u.GetName() != "purelb-crds" &&
			!strings.Contains(string(text), "system:serviceaccount:lb:olm-") {
			t.Errorf("%s %s names no user: %s", u.GetKind(), u.GetName(), text)
		}
	}
	slices.Sort(names)
	want := []string{
		"FlowSchema purelb-agents", "FlowSchema purelb-manager",
		"ValidatingAdmissionPolicy purelb-agents", "ValidatingAdmissionPolicy purelb-announcements",
		"ValidatingAdmissionPolicy purelb-crds",
		"ValidatingAdmissionPolicy purelb-nodes", "ValidatingAdmissionPolicy purelb-speakers",
		"ValidatingAdmissionPolicyBinding purelb-agents", "ValidatingAdmissionPolicyBinding purelb-announcements",
		"ValidatingAdmissionPolicyBinding purelb-crds",
		"ValidatingAdmissionPolicyBinding purelb-nodes", "ValidatingAdmissionPolicyBinding purelb-speakers",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
	for _, user := range []string{"", "o'brien", `a"b`, `a\b`} {
		if _, err := policy.Objects(policy.Users{Manager: user, Agent: "agent", Speaker: "speaker"}); err == nil {
			t.Errorf("%q is written into an expression", user)
		}
	}
}
