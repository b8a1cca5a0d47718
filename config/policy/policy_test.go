package policy_test

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/purelb/purelb-operator/config/crd"
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

// TestStatusIsReadable compares the statuses that agents and speakers write with what keeps them readable: the policy
// checks each time, and the schema bounds each number that a client reads as one of 32 bits.
func TestStatusIsReadable(t *testing.T) {
	for kind, policyName := range map[string]string{"announcements": "purelb-agents", "noderoutings": "purelb-speakers"} {
		raw, err := crd.Bases.ReadFile("bases/purelb.io_" + kind + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		var definition apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(raw, &definition); err != nil {
			t.Fatal(err)
		}
		schema := definition.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"]
		checks, timeCount := timesOf(t, policyName), 0
		var walk func(path string, schema *apiextensionsv1.JSONSchemaProps)
		walk = func(path string, schema *apiextensionsv1.JSONSchemaProps) {
			switch {
			case schema.Format == "date-time":
				timeCount++
				parent, name := path[:strings.LastIndex(path, ".")], path[strings.LastIndex(path, ".")+1:]
				list := regexp.QuoteMeta("object." + strings.TrimSuffix(parent, "[]"))
				if !regexp.MustCompile(list + `(\.filter\(.*?\))?\.map\((\w), \w\.` + name + `\)`).MatchString(checks) {
					t.Errorf("%s does not check %s", policyName, path)
				}
			case schema.Type == "integer" && schema.Format == "int32" && (schema.Minimum == nil || schema.Maximum == nil):
				t.Errorf("%s: %s has no minimum or no maximum", kind, path)
			case schema.Items != nil:
				walk(path+"[]", schema.Items.Schema)
			case schema.AdditionalProperties != nil:
				walk(path+"[]", schema.AdditionalProperties.Schema)
			}
			for name, property := range schema.Properties {
				walk(path+"."+name, &property)
			}
		}
		walk("status", &schema)
		if timeCount < 2 {
			t.Errorf("%s: %d times were found in the schema", kind, timeCount)
		}
	}
}

// timesOf returns the expression by which a policy lists the times that it checks.
func timesOf(t *testing.T, policyName string) string {
	t.Helper()
	objects, err := policy.Objects(policy.Users{Manager: "manager", Agent: "agent", Speaker: "speaker"})
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range objects {
		if u.GetKind() != "ValidatingAdmissionPolicy" || u.GetName() != policyName {
			continue
		}
		variables, _, _ := unstructured.NestedSlice(u.Object, "spec", "variables")
		for _, v := range variables {
			if variable, ok := v.(map[string]any); ok && variable["name"] == "times" {
				return variable["expression"].(string)
			}
		}
	}
	t.Fatalf("%s lists no times", policyName)
	return ""
}
