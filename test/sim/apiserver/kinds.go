package apiserver

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	runtimeschema "k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/yaml"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/crds"
)

// NewCluster returns a Server with the kinds of a cluster that decide where addresses are: those of
// Kubernetes, and those of the project's CRDs, which are read once.
func NewCluster() (*Server, error) {
	kinds, err := clusterKinds()
	if err != nil {
		return nil, err
	}
	return New(Scheme(), kinds...), nil
}

var clusterKinds = sync.OnceValues(readKinds)

// Scheme returns a scheme of the kinds of a cluster.
func Scheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(corev1.AddToScheme(scheme))
	utilruntime.Must(appsv1.AddToScheme(scheme))
	utilruntime.Must(coordinationv1.AddToScheme(scheme))
	utilruntime.Must(discoveryv1.AddToScheme(scheme))
	utilruntime.Must(v1.AddToScheme(scheme))
	return scheme
}

// readKinds returns the kinds of a cluster.
func readKinds() ([]Kind, error) {
	conditions := map[string][]string{"status.conditions": {"type"}}
	kinds := []Kind{
		{GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Node"), HasStatus: true, ListKeys: conditions},
		{GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Namespace"), HasStatus: true, ListKeys: conditions},
		{
			GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Service"), IsNamespaced: true, HasStatus: true,
			ListKeys: conditions, SetDefaults: setModes,
		},
		{
			GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Pod"), IsNamespaced: true, HasStatus: true,
			IsNeverApplied: true,
		},
		{GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Event"), IsNamespaced: true, IsNeverApplied: true},
		{GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Secret"), IsNamespaced: true, IsNeverApplied: true},
		{GroupVersionKind: corev1.SchemeGroupVersion.WithKind("ConfigMap"), IsNamespaced: true, IsNeverApplied: true},
		{GroupVersionKind: corev1.SchemeGroupVersion.WithKind("ServiceAccount"), IsNamespaced: true, IsNeverApplied: true},
		{
			GroupVersionKind: discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), IsNamespaced: true, IsNeverApplied: true,
		},
		{
			GroupVersionKind: appsv1.SchemeGroupVersion.WithKind("DaemonSet"), IsNamespaced: true, HasStatus: true,
			CountsGenerations: true, ListKeys: map[string][]string{},
		},
		{GroupVersionKind: coordinationv1.SchemeGroupVersion.WithKind("Lease"), IsNamespaced: true, IsNeverApplied: true},
	}
	folder, err := crds.Find()
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		kind, err := readKind(file)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
		kinds = append(kinds, kind)
	}
	return kinds, nil
}

// setModes sets the mode of the addresses that a Service shows.
func setModes(service map[string]any) {
	shown, _, _ := unstructured.NestedFieldNoCopy(service, "status", "loadBalancer", "ingress")
	entries, _ := shown.([]any)
	for _, e := range entries {
		if entry, isMap := e.(map[string]any); isMap && entry["ip"] != nil && entry["ipMode"] == nil {
			entry["ipMode"] = string(corev1.LoadBalancerIPModeVIP)
		}
	}
}

// readKind reads a CRD.
func readKind(file string) (Kind, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return Kind{}, err
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(text, &crd); err != nil {
		return Kind{}, err
	}
	version := crd.Spec.Versions[0]
	var props apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(
		version.Schema.OpenAPIV3Schema, &props, nil,
	); err != nil {
		return Kind{}, err
	}
	structural, err := schema.NewStructural(&props)
	if err != nil {
		return Kind{}, err
	}
	kind := Kind{
		GroupVersionKind: runtimeschema.GroupVersionKind{
			Group: crd.Spec.Group, Version: version.Name, Kind: crd.Spec.Names.Kind,
		},
		IsNamespaced:      crd.Spec.Scope == apiextensionsv1.NamespaceScoped,
		HasStatus:         version.Subresources != nil && version.Subresources.Status != nil,
		CountsGenerations: true,
		ListKeys:          map[string][]string{},
		SetDefaults:       func(content map[string]any) { defaulting.Default(content, structural) },
	}
	addListKeys(kind.ListKeys, "", version.Schema.OpenAPIV3Schema)
	return kind, nil
}

// addListKeys adds the keys of the lists in the field at path.
func addListKeys(keys map[string][]string, path string, props *apiextensionsv1.JSONSchemaProps) {
	if props.XListType != nil && *props.XListType == "map" {
		keys[path] = props.XListMapKeys
	}
	if props.Items != nil && props.Items.Schema != nil {
		addListKeys(keys, path, props.Items.Schema)
	}
	for name := range props.Properties {
		child := props.Properties[name]
		addListKeys(keys, strings.TrimPrefix(path+"."+name, "."), &child)
	}
}
