package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	schemavalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
)

// internalDefinition converts a definition to the API server's internal version.
func internalDefinition(
	t *testing.T, crd *apiextensionsv1.CustomResourceDefinition,
) *apiextensions.CustomResourceDefinition {
	t.Helper()
	crd = crd.DeepCopy()
	apiextensionsv1.SetDefaults_CustomResourceDefinition(crd)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&crd.Spec)
	scheme, converted := runtime.NewScheme(), &apiextensions.CustomResourceDefinition{}
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if err := scheme.Convert(crd, converted, nil); err != nil {
		t.Fatal(err)
	}
	converted.Status.StoredVersions = []string{crd.Spec.Versions[0].Name}
	return converted
}

// TestDefinitions calls the API server's own validation, because the validators of the operator
// framework do not pass on all that it finds.
func TestDefinitions(t *testing.T) {
	definitions := committed(t).V1CRDs
	if len(definitions) != 6 {
		t.Fatalf("%d definitions", len(definitions))
	}
	for _, crd := range definitions {
		if errs := validation.ValidateCustomResourceDefinition(context.Background(),
			internalDefinition(t, crd)); len(errs) > 0 {
			t.Errorf("%s: %v", crd.Name, errs.ToAggregate())
		}
		broken := crd.DeepCopy()
		broken.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"] = apiextensionsv1.JSONSchemaProps{
			Type: "object", XValidations: apiextensionsv1.ValidationRules{{Rule: "self.nothing == 1"}},
		}
		if errs := validation.ValidateCustomResourceDefinition(context.Background(), internalDefinition(t, broken)); len(
			errs,
		) == 0 {
			t.Errorf("%s: a rule about a missing field passes validation", crd.Name)
		}
	}
}

// validate checks an object as the API server does: unknown fields, the schema, and the rules
// in it.
func validate(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition, object *unstructured.Unstructured) []string {
	t.Helper()
	props := internalDefinition(t, crd).Spec.Versions[0].Schema
	if props == nil { // all versions have the same schema
		props = internalDefinition(t, crd).Spec.Validation
	}
	structural, err := schema.NewStructural(props.OpenAPIV3Schema)
	if err != nil {
		t.Fatal(err)
	}
	var wrong []string
	object = object.DeepCopy()
	for _, field := range pruning.PruneWithOptions(
		object.Object, structural, true, schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true},
	) {
		wrong = append(wrong, "unknown field "+field)
	}
	defaulting.Default(object.Object, structural)
	validator, _, err := schemavalidation.NewSchemaValidator(props.OpenAPIV3Schema)
	if err != nil {
		t.Fatal(err)
	}
	errs := schemavalidation.ValidateCustomResource(nil, object.Object, validator)
	rules := cel.NewValidator(structural, true, celconfig.PerCallLimit)
	more, _ := rules.Validate(context.Background(), nil, structural, object.Object, nil, celconfig.RuntimeCELCostBudget)
	for _, e := range append(errs, more...) {
		wrong = append(wrong, e.Error())
	}
	return wrong
}

// examples returns an example of each kind from the bundle.
func examples(t *testing.T) map[string]*unstructured.Unstructured {
	t.Helper()
	var objects []*unstructured.Unstructured
	if err := json.Unmarshal([]byte(committed(t).CSV.Annotations["alm-examples"]), &objects); err != nil {
		t.Fatal(err)
	}
	byKind := map[string]*unstructured.Unstructured{}
	for _, u := range objects {
		byKind[u.GetKind()] = u
	}
	return byKind
}

func TestExamples(t *testing.T) {
	all := examples(t)
	for _, crd := range committed(t).V1CRDs {
		object := all[crd.Spec.Names.Kind]
		if object == nil {
			t.Errorf("no example of a %s", crd.Spec.Names.Kind)
			continue
		}
		for _, wrong := range validate(t, crd, object) {
			t.Errorf("example of a %s: %s", object.GetKind(), wrong)
		}
	}
}

// TestDescriptors checks that each field that an example sets is described, as consoles and the
// scorecard require.
func TestDescriptors(t *testing.T) {
	all, hasStatus := examples(t), map[string]bool{}
	for _, crd := range committed(t).V1CRDs {
		_, hasStatus[crd.Spec.Names.Kind] = crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"]
	}
	for _, owned := range committed(t).CSV.Spec.CustomResourceDefinitions.Owned {
		described := map[string]bool{}
		for _, d := range owned.SpecDescriptors {
			if d.DisplayName == "" || d.Description == "" || described[d.Path] {
				t.Errorf("%s: descriptor %+v", owned.Kind, d)
			}
			described[d.Path] = true
		}
		if hasStatus[owned.Kind] != (len(owned.StatusDescriptors) > 0) || owned.DisplayName == "" || owned.Description == "" {
			t.Errorf("%s is not described", owned.Kind)
		}
		spec, _, err := unstructured.NestedMap(all[owned.Kind].Object, "spec")
		if err != nil {
			t.Fatal(err)
		}
		for field := range spec {
			if !described[field] {
				t.Errorf("%s: spec.%s is not described", owned.Kind, field)
			}
		}
	}
}

// TestExamplesAreValidated breaks the examples and checks that validation fails.
func TestExamplesAreValidated(t *testing.T) {
	tests := map[string]struct {
		kind  string
		path  []string
		value any
		want  string
	}{
		"unknown field": {"ServiceGroup", []string{"spec", "colour"}, "blue", "unknown field spec.colour"},
		"type":          {"LBNodeAgent", []string{"spec", "local", "localInterface"}, int64(1), "localInterface"},
		"rule": {
			"ServiceGroup", []string{"spec", "remote"}, map[string]any{}, "exactly one of local, remote and netbox",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			object := examples(t)[test.kind]
			if err := unstructured.SetNestedField(object.Object, test.value, test.path...); err != nil {
				t.Fatal(err)
			}
			for _, crd := range committed(t).V1CRDs {
				if crd.Spec.Names.Kind == test.kind {
					if got := strings.Join(validate(t, crd, object), "\n"); !strings.Contains(got, test.want) {
						t.Errorf("validation reports %q, want %q", got, test.want)
					}
				}
			}
		})
	}
}
