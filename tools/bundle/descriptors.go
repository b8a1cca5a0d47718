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

// ownedKinds returns PureLB's kinds as the base lists them, with descriptions from their
// schemas.
func (p *parts) ownedKinds() ([]v1alpha1.CRDDescription, error) {
	owned := slices.Clone(p.base.Spec.CustomResourceDefinitions.Owned)
	if len(owned) != len(p.definitions) {
		return nil, fmt.Errorf(
			"config/crd defines %d kinds, and config/manifests/bases lists %d", len(p.definitions), len(owned),
		)
	}
	for i, o := range owned {
		schema, err := p.schema(o)
		if err != nil {
			return nil, err
		}
		owned[i].Description = oneLine(schema.Description)
		for _, d := range describeFields("", schema.Properties["spec"]) {
			owned[i].SpecDescriptors = append(owned[i].SpecDescriptors, v1alpha1.SpecDescriptor(d))
		}
		for _, d := range describeFields("", schema.Properties["status"]) {
			owned[i].StatusDescriptors = append(owned[i].StatusDescriptors, v1alpha1.StatusDescriptor(d))
		}
	}
	return owned, nil
}

// schema returns the schema of a kind in the version that the base lists.
func (p *parts) schema(o v1alpha1.CRDDescription) (*apiextensionsv1.JSONSchemaProps, error) {
	for _, d := range p.definitions {
		for _, v := range d.Spec.Versions {
			if d.Name == o.Name && d.Spec.Names.Kind == o.Kind && v.Name == o.Version {
				return v.Schema.OpenAPIV3Schema, nil
			}
		}
	}
	return nil, fmt.Errorf(
		"config/manifests/bases lists %s %s as %s, which config/crd does not define", o.Kind, o.Version, o.Name,
	)
}

// descriptor describes a field. SpecDescriptor and StatusDescriptor have the same fields.
type descriptor v1alpha1.SpecDescriptor

// neverValid is part of the description of a field that exists only for a better error message.
const neverValid = "is never valid here"

// describeFields lists the fields below path in alphabetical order; those of a list by the
// list's first element.
func describeFields(path string, s apiextensionsv1.JSONSchemaProps) []descriptor {
	var all []descriptor
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		field := s.Properties[name]
		if strings.Contains(oneLine(field.Description), neverValid) {
			continue
		}
		at := strings.TrimPrefix(path+"."+name, ".")
		hints, whole := displayHints(name, field)
		all = append(
			all,
			descriptor{Path: at, DisplayName: displayName(name), Description: oneLine(field.Description), XDescriptors: hints},
		)
		if whole {
			continue
		}
		all = append(all, describeFields(at, field)...)
		if list := field.Items; list != nil && list.Schema != nil {
			all = append(all, describeFields(at+"[0]", *list.Schema)...)
		}
	}
	return all
}

// displayHints returns how a console may show a field, and whether that describes the field
// with all its parts, as for the types of Kubernetes itself.
func displayHints(name string, field apiextensionsv1.JSONSchemaProps) (hints []string, whole bool) {
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

// displayName returns the name under which a console shows a field: v4pools is IPv4 Pools.
func displayName(field string) string {
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

// oneLine replaces line breaks by spaces.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
