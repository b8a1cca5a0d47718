// Schemas writes JSON schemas for kubeconform, which would otherwise download them: of
// Kubernetes' kinds from the OpenAPI document that is part of the module k8s.io/kubernetes,
// and of custom resources from their CustomResourceDefinitions.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

func main() {
	openAPI := flag.String("openapi", "", "swagger.json of Kubernetes")
	output := flag.String("output", "", "folder to write to")
	flag.Parse()
	if err := run(*openAPI, flag.Args(), *output); err != nil {
		fmt.Fprintln(os.Stderr, "schemas:", err)
		os.Exit(1)
	}
}

func run(openAPI string, crds []string, output string) error {
	text, err := os.ReadFile(openAPI)
	if err != nil {
		return fmt.Errorf("read the OpenAPI document: %w", err)
	}
	schemas, err := schemasOfOpenAPI(text)
	if err != nil {
		return err
	}
	for _, file := range crds {
		text, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read a CustomResourceDefinition: %w", err)
		}
		if err := addSchemasOfCRD(schemas, text); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	if err := os.MkdirAll(output, 0o755); err != nil {
		return fmt.Errorf("make the folder: %w", err)
	}
	for name, schema := range schemas {
		text, err := json.Marshal(schema)
		if err != nil {
			return fmt.Errorf("encode %s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(output, name), text, 0o644); err != nil {
			return fmt.Errorf("write a schema: %w", err)
		}
	}
	return nil
}

type object = map[string]any

// fileName is what kubeconform makes of {{.Group}}-{{.ResourceAPIVersion}}-{{.ResourceKind}}:
// for a kind without a group it takes the version for the group.
func fileName(group, version, kind string) string {
	if group == "" {
		group = version
	}
	return strings.ToLower(group+"-"+version+"-"+kind) + ".json"
}

// schemasOfOpenAPI returns a schema for each kind of an OpenAPI document, by file name.
func schemasOfOpenAPI(text []byte) (map[string]object, error) {
	var document struct {
		Definitions map[string]object `json:"definitions"`
	}
	if err := json.Unmarshal(text, &document); err != nil {
		return nil, fmt.Errorf("parse the OpenAPI document: %w", err)
	}
	if len(document.Definitions) == 0 {
		return nil, errors.New("the OpenAPI document has no definitions")
	}
	for name, definition := range document.Definitions {
		if strings.HasSuffix(name, ".resource.Quantity") {
			document.Definitions[name] = object{"type": []any{"string", "number"}}
		} else {
			makeStrict(definition)
		}
	}
	schemas := map[string]object{}
	for name, definition := range document.Definitions {
		kinds, _ := definition["x-kubernetes-group-version-kind"].([]any)
		for _, k := range kinds {
			gvk, ok := k.(object)
			if !ok || len(kinds) > 1 {
				continue // DeleteOptions and the like, which are of every group
			}
			group, _ := gvk["group"].(string)
			version, _ := gvk["version"].(string)
			kind, _ := gvk["kind"].(string)
			needed := object{}
			addReferences(needed, definition, document.Definitions)
			needed[name] = definition
			schemas[fileName(group, version, kind)] = object{"$ref": "#/definitions/" + name, "definitions": needed}
		}
	}
	return schemas, nil
}

// addReferences adds to needed the definitions that a schema refers to.
func addReferences(needed object, schema any, definitions map[string]object) {
	switch schema := schema.(type) {
	case object:
		if ref, ok := schema["$ref"].(string); ok {
			name := strings.TrimPrefix(ref, "#/definitions/")
			if definition, exists := definitions[name]; exists && needed[name] == nil {
				needed[name] = definition
				addReferences(needed, definition, definitions)
			}
		}
		for _, value := range schema {
			addReferences(needed, value, definitions)
		}
	case []any:
		for _, value := range schema {
			addReferences(needed, value, definitions)
		}
	}
}

// addSchemasOfCRD adds a schema for each version of a CustomResourceDefinition.
func addSchemasOfCRD(schemas map[string]object, text []byte) error {
	var crd struct {
		Spec struct {
			Group    string
			Names    struct{ Kind string }
			Versions []struct {
				Name   string
				Schema struct{ OpenAPIV3Schema object }
			}
		}
	}
	if err := yaml.Unmarshal(text, &crd); err != nil {
		return fmt.Errorf("parse the CustomResourceDefinition: %w", err)
	}
	if len(crd.Spec.Versions) == 0 {
		return errors.New("no CustomResourceDefinition with versions")
	}
	for _, v := range crd.Spec.Versions {
		makeStrict(v.Schema.OpenAPIV3Schema)
		schemas[fileName(crd.Spec.Group, v.Name, crd.Spec.Names.Kind)] = v.Schema.OpenAPIV3Schema
	}
	return nil
}

// makeStrict makes a schema refuse properties that it does not have, as the API server does
// with strict field validation, and says in terms of JSON schemas what OpenAPI says by
// formats of Kubernetes. Free-form objects, which have no properties of their own, stay
// free.
func makeStrict(schema object) {
	if schema["format"] == "int-or-string" || schema["x-kubernetes-int-or-string"] == true {
		schema["type"] = []any{"string", "integer"}
		delete(schema, "format")
	}
	properties, _ := schema["properties"].(object)
	_, hasMore := schema["additionalProperties"]
	if len(properties) > 0 && !hasMore && schema["x-kubernetes-preserve-unknown-fields"] != true {
		schema["additionalProperties"] = false
	}
	for _, p := range properties {
		if property, ok := p.(object); ok {
			if property["type"] == "object" && property["properties"] == nil {
				continue // metadata of a custom resource, and free-form objects
			}
			makeStrict(property)
		}
	}
	for _, key := range []string{"items", "additionalProperties"} {
		if inner, ok := schema[key].(object); ok {
			makeStrict(inner)
		}
	}
}
