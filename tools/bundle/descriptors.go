package main

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/operator-framework/api/pkg/operators/v1alpha1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// owned is our kinds as the base introduces them, with what their schemas say.
func (p *parts) owned() ([]v1alpha1.CRDDescription, error) {
	owned := slices.Clone(p.base.Spec.CustomResourceDefinitions.Owned)
	if len(owned) != len(p.definitions) {
		return nil, fmt.Errorf("%d kinds are defined, and %d introduced in config/manifests/bases", len(p.definitions), len(owned))
	}
	for i, o := range owned {
		schema, err := p.schema(o)
		if err != nil {
			return nil, err
		}
		owned[i].Description = oneLine(schema.Description)
		for _, d := range describe("", schema.Properties["spec"]) {
			owned[i].SpecDescriptors = append(owned[i].SpecDescriptors, v1alpha1.SpecDescriptor(d))
		}
		for _, d := range describe("", schema.Properties["status"]) {
			owned[i].StatusDescriptors = append(owned[i].StatusDescriptors, v1alpha1.StatusDescriptor(d))
		}
	}
	return owned, nil
}

// schema of a kind in the version that is introduced.
func (p *parts) schema(o v1alpha1.CRDDescription) (*apiextensionsv1.JSONSchemaProps, error) {
	for _, d := range p.definitions {
		for _, v := range d.Spec.Versions {
			if d.Name == o.Name && d.Spec.Names.Kind == o.Kind && v.Name == o.Version {
				return v.Schema.OpenAPIV3Schema, nil
			}
		}
	}
	return nil, fmt.Errorf("config/manifests/bases introduces %s %s as %s, which is not defined so", o.Kind, o.Version, o.Name)
}

// descriptor is what a SpecDescriptor and a StatusDescriptor have in common.
type descriptor v1alpha1.SpecDescriptor

// misplaced marks fields that exist only for a better error.
const misplaced = "is never valid here"

// describe lists the fields below path, those of lists by their first element,
// in alphabetical order.
func describe(path string, s apiextensionsv1.JSONSchemaProps) []descriptor {
	var all []descriptor
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		field := s.Properties[name]
		if strings.Contains(oneLine(field.Description), misplaced) {
			continue
		}
		at := strings.TrimPrefix(path+"."+name, ".")
		hints, whole := hint(name, field)
		all = append(all, descriptor{Path: at, DisplayName: title(name), Description: oneLine(field.Description), XDescriptors: hints})
		if whole {
			continue
		}
		all = append(all, describe(at, field)...)
		if list := field.Items; list != nil && list.Schema != nil {
			all = append(all, describe(at+"[0]", *list.Schema)...)
		}
	}
	return all
}

// hint says what a console may show a field as, and whether that is for the field
// as a whole: Kubernetes' own types need no description of their parts.
func hint(name string, field apiextensionsv1.JSONSchemaProps) (hints []string, whole bool) {
	const ui = "urn:alm:descriptor:com.tectonic.ui:"
	switch name {
	case "conditions":
		return []string{"urn:alm:descriptor:io.kubernetes.conditions"}, true
	case "resources":
		return []string{ui + "resourceRequirements"}, true
	case "tolerations":
		return []string{ui + "advanced"}, true
	case "imagePullPolicy":
		return []string{ui + "imagePullPolicy"}, true
	}
	switch field.Type {
	case "boolean":
		return []string{ui + "booleanSwitch"}, false
	case "integer":
		return []string{ui + "number"}, false
	}
	return nil, false
}

// title is a field's name for people: v4pools is IPv4 Pools.
func title(field string) string {
	for _, family := range []string{"4", "6"} {
		if rest, ok := strings.CutPrefix(field, "v"+family); ok {
			field = "IPv" + family + rest
		}
	}
	words := regexp.MustCompile(`IPv[46]|[A-Z]{2,}s?|[A-Z]?[a-z0-9]+`).FindAllString(field, -1)
	for i, w := range words {
		switch w {
		case "garp", "lb", "mac", "url":
			words[i] = strings.ToUpper(w)
		default:
			words[i] = strings.ToUpper(w[:1]) + w[1:]
		}
	}
	return strings.Join(words, " ")
}

// oneLine undoes the line breaks of a comment.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
