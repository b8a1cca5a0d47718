package main

import (
	"encoding/json"
	"testing"
)

const openAPI = `{"definitions": {
  "a.Pod": {"type": "object", "properties": {"spec": {"$ref": "#/definitions/a.Spec"}},
    "x-kubernetes-group-version-kind": [{"group": "", "version": "v1", "kind": "Pod"}]},
  "a.Spec": {"type": "object", "properties": {"port": {"type": "string", "format": "int-or-string"},
    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    "memory": {"$ref": "#/definitions/a.resource.Quantity"}}},
  "a.Other": {"type": "object"},
  "a.resource.Quantity": {"type": "string"}
}}`

func TestSchemasOfOpenAPI(t *testing.T) {
	schemas, err := schemasOfOpenAPI([]byte(openAPI))
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(schemas)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"v1-v1-pod.json":{"$ref":"#/definitions/a.Pod","definitions":{` +
		`"a.Pod":{"additionalProperties":false,"properties":{"spec":{"$ref":"#/definitions/a.Spec"}},"type":"object",` +
		`"x-kubernetes-group-version-kind":[{"group":"","kind":"Pod","version":"v1"}]},` +
		`"a.Spec":{"additionalProperties":false,"properties":{"labels":{"additionalProperties":{"type":"string"},` +
		`"type":"object"},"memory":{"$ref":"#/definitions/a.resource.Quantity"},"port":{"type":["string","integer"]}},` +
		`"type":"object"},` +
		`"a.resource.Quantity":{"type":["string","number"]}}}}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestSchemasOfCRD(t *testing.T) {
	schemas := map[string]object{}
	err := addSchemasOfCRD(
		schemas,
		[]byte(
			"spec: {group: a.io, names: {kind: Thing}, versions: [{name: v1, schema: {openAPIV3Schema: {type: object, "+
				"properties: {metadata: {type: object}, spec: {type: object, properties: {size: {type: integer}}}}}}}]}",
		),
	)
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(schemas)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"a.io-v1-thing.json":{"additionalProperties":false,"properties":{"metadata":{"type":"object"},` +
		`"spec":{"additionalProperties":false,"properties":{"size":{"type":"integer"}},"type":"object"}},"type":"object"}}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if err := addSchemasOfCRD(schemas, []byte("kind: Service")); err == nil {
		t.Error("a Service is no CustomResourceDefinition")
	}
}
