package plugin

import (
	"context"
	"fmt"
	"io/fs"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiservercel "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	"github.com/purelb/purelb-operator/config/crd"
)

// schemas check objects as the API server checks them against their CRD: schema, defaults, lists
// and CEL rules.
type schemas map[string]*kindSchema // by kind

type kindSchema struct {
	structural *structuralschema.Structural
	openAPI    validation.SchemaValidator
	rules      *cel.Validator
}

// loadSchemas reads the CRDs that this program was built with.
func loadSchemas() (schemas, error) {
	all := schemas{}
	err := fs.WalkDir(crd.Bases, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := crd.Bases.ReadFile(path)
		if err != nil {
			return err
		}
		var definition apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(data, &definition); err != nil {
			return err
		}
		all[definition.Spec.Names.Kind], err = newKindSchema(definition.Spec.Versions[0].Schema.OpenAPIV3Schema)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the CRDs: %w", err)
	}
	return all, nil
}

func newKindSchema(props *apiextensionsv1.JSONSchemaProps) (*kindSchema, error) {
	var internal apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(props, &internal,
		nil); err != nil {
		return nil, err
	}
	structural, err := structuralschema.NewStructural(&internal)
	if err != nil {
		return nil, err
	}
	openAPI, _, err := validation.NewSchemaValidator(&internal)
	if err != nil {
		return nil, err
	}
	return &kindSchema{structural, openAPI, cel.NewValidator(structural, true, apiservercel.PerCallLimit)}, nil
}

// defaultAndCheck sets the defaults in the object, and returns what the API server would refuse.
func (s *kindSchema) defaultAndCheck(ctx context.Context, object *unstructured.Unstructured) field.ErrorList {
	var errs field.ErrorList
	pruned := object.DeepCopy()
	for _, path := range pruning.PruneWithOptions(
		pruned.Object, s.structural, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true},
	) {
		errs = append(errs, field.Forbidden(field.NewPath(strings.TrimPrefix(path, ".")), "unknown field"))
	}
	defaulting.Default(object.Object, s.structural)
	errs = append(errs, validation.ValidateCustomResource(nil, object.Object, s.openAPI)...)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, s.structural, object.Object)...)
	if s.rules != nil && len(errs) == 0 { // rules assume that the schema is kept
		found, _ := s.rules.Validate(ctx, nil, s.structural, object.Object, nil, apiservercel.RuntimeCELCostBudget)
		errs = append(errs, found...)
	}
	for _, message := range utilvalidation.IsDNS1123Subdomain(object.GetName()) {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), object.GetName(), message))
	}
	return errs
}
