// Package kustomize renders folders of config/.
package kustomize

import (
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// Build returns the objects that `kubectl kustomize` prints for a folder.
func Build(dir string) ([]*unstructured.Unstructured, error) {
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", dir, err)
	}
	var objects []*unstructured.Unstructured
	for _, r := range resources.Resources() {
		data, err := r.MarshalJSON()
		if err != nil {
			return nil, fmt.Errorf("build %s: %w", dir, err)
		}
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(data); err != nil {
			return nil, fmt.Errorf("build %s: %w", dir, err)
		}
		objects = append(objects, u)
	}
	return objects, nil
}

// BuildWith returns the objects of config/default with components of config/components.
func BuildWith(config string, components ...string) ([]*unstructured.Unstructured, error) {
	dir, err := os.MkdirTemp("", "kustomize")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	// Kustomizations name folders by relative paths only.
	if config, err = filepath.Abs(config); err != nil {
		return nil, err
	}
	relative, err := filepath.Rel(dir, config)
	if err != nil {
		return nil, err
	}
	kustomization := types.Kustomization{Resources: []string{filepath.Join(relative, "default")}}
	for _, name := range components {
		kustomization.Components = append(kustomization.Components, filepath.Join(relative, "components", name))
	}
	text, err := yaml.Marshal(kustomization)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), text, 0o600); err != nil {
		return nil, err
	}
	return Build(dir)
}
