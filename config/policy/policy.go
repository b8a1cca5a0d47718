// Package policy has what protects PureLB in the cluster: who may write which
// of its objects, and which of its requests the API server serves first. The
// manager keeps these objects in place itself, and no installer has to know of
// them.
package policy

import (
	"embed"
	"errors"
	"fmt"
	"io"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// ManagedBy is the label app.kubernetes.io/managed-by of all the objects.
const ManagedBy = "purelb-manager"

// The users as they are written in the manifests.
const (
	defaultManager = "system:serviceaccount:purelb-system:purelb-manager"
	defaultAgent   = "system:serviceaccount:purelb-system:purelb-agent"
	defaultSpeaker = "system:serviceaccount:purelb-system:purelb-speaker"
)

//go:embed *.yaml
var manifests embed.FS

// Users are those whom the objects name, as the API server knows them, such as
// system:serviceaccount:purelb-system:purelb-manager.
type Users struct{ Manager, Agent, Speaker string }

// Objects are all objects, for the given users.
func Objects(users Users) ([]*unstructured.Unstructured, error) {
	for _, user := range []string{users.Manager, users.Agent, users.Speaker} {
		// All are written into strings of CEL.
		if user == "" || strings.ContainsAny(user, `'"\`) {
			return nil, fmt.Errorf("%q cannot be the name of a user in a policy", user)
		}
	}
	files, err := manifests.ReadDir(".")
	if err != nil {
		return nil, fmt.Errorf("list policies: %w", err)
	}
	named := strings.NewReplacer(defaultManager, users.Manager, defaultAgent, users.Agent, defaultSpeaker, users.Speaker)
	var all []*unstructured.Unstructured
	for _, file := range files {
		objects, err := read(file.Name())
		if err != nil {
			return nil, fmt.Errorf("read policies of %s: %w", file.Name(), err)
		}
		for _, u := range objects {
			u.Object = rename(u.Object, named).(map[string]any)
			labels := u.GetLabels()
			if labels == nil {
				labels = map[string]string{}
			}
			labels["app.kubernetes.io/managed-by"] = ManagedBy
			labels["app.kubernetes.io/part-of"] = "purelb"
			u.SetLabels(labels)
			all = append(all, u)
		}
	}
	return all, nil
}

// read parses the documents of one file.
func read(name string) ([]*unstructured.Unstructured, error) {
	file, err := manifests.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	decoder := yaml.NewYAMLOrJSONDecoder(file, 4096)
	var objects []*unstructured.Unstructured
	for {
		u := &unstructured.Unstructured{}
		err := decoder.Decode(&u.Object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		if u.Object != nil { // a document of comments only
			objects = append(objects, u)
		}
	}
}

// rename replaces in all strings of a value.
func rename(value any, named *strings.Replacer) any {
	switch v := value.(type) {
	case string:
		return named.Replace(v)
	case []any:
		for i := range v {
			v[i] = rename(v[i], named)
		}
	case map[string]any:
		for key := range v {
			v[key] = rename(v[key], named)
		}
	}
	return value
}
