package main

import (
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/purelb/purelb-operator/tools/bundle/kustomize"
)

// chartDir is where the chart is, relative to the repository's root.
const chartDir = "charts/purelb"

// written holds those files of the chart that are written by hand. VERSION, REPOSITORY, TAG and
// DIGEST stand for what the command is told.
//
//go:embed all:files
var written embed.FS

// namespace is the one that the manifests of config/ name. Helm says which it is.
const namespace = "purelb-system"

// component is a component of config/ that a value of the chart turns on.
type component struct{ name, value string }

var components = []component{
	{"cert-manager", "certManager.enabled"},
	{"network-policy", "networkPolicy.enabled"},
	{"prometheus", "prometheus.enabled"},
}

// generate returns the content of the chart's files, by their names relative to the repository's
// root.
func generate(o options) (map[string][]byte, error) {
	named, digest, _ := strings.Cut(o.image, "@")
	colon := strings.LastIndex(named, ":")
	if colon <= strings.LastIndex(named, "/") {
		return nil, fmt.Errorf("image %q has no tag", o.image)
	}
	repository, tag := named[:colon], named[colon+1:]
	files := map[string][]byte{}
	replacer := strings.NewReplacer("VERSION", o.version, "REPOSITORY", repository, "TAG", tag, "DIGEST", digest)
	err := fs.WalkDir(written, "files", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		content, err := written.ReadFile(name)
		files[path.Join(chartDir, strings.TrimPrefix(name, "files/"))] = []byte(replacer.Replace(string(content)))
		return err
	})
	if err != nil {
		return nil, err
	}
	templates, err := templatesOf(filepath.Join(o.root, "config"))
	if err != nil {
		return nil, err
	}
	for name, text := range templates {
		files[path.Join(chartDir, "templates", name)] = []byte(text)
	}
	return files, nil
}

// templatesOf returns the templates of all objects, by the names of their files.
func templatesOf(config string) (map[string]string, error) {
	base, err := kustomize.BuildWith(config)
	if err != nil {
		return nil, err
	}
	templates, byName := map[string]string{}, map[string]*unstructured.Unstructured{}
	for _, u := range base {
		if u.GetKind() == "Namespace" {
			continue // Helm does not make the namespace that it installs into
		}
		byName[fileName(u)] = u
		templates[fileName(u)] = templateOf(u)
		if u.GetKind() == "CustomResourceDefinition" {
			templates[fileName(u)] = onlyIf("crds.install", templates[fileName(u)])
		}
	}
	for _, c := range components {
		objects, err := kustomize.BuildWith(config, c.name)
		if err != nil {
			return nil, err
		}
		for _, u := range objects {
			name := fileName(u)
			switch known := byName[name]; {
			case u.GetKind() == "Namespace" || known != nil && reflect.DeepEqual(known.Object, u.Object):
			case known == nil && templates[name] == "":
				templates[name] = onlyIf(c.value, templateOf(u))
			case known != nil && templates[name] == templateOf(known):
				templates[name] = fmt.Sprintf("{{- if .Values.%s }}\n%s{{- else }}\n%s{{- end }}\n",
					c.value, templateOf(u), templates[name])
			default:
				return nil, fmt.Errorf("two components, of which one is %s, make or change %s", c.name, name)
			}
		}
	}
	return templates, nil
}

// onlyIf returns a template that is rendered if a value is true.
func onlyIf(value, template string) string {
	return fmt.Sprintf("{{- if .Values.%s }}\n%s{{- end }}\n", value, template)
}

// fileName returns the name of an object's file, which no two objects share.
func fileName(u *unstructured.Unstructured) string {
	return strings.ToLower(u.GetKind()) + "-" + u.GetName() + ".yaml"
}

var (
	wholeNamespace = regexp.MustCompile(`(?m): ` + namespace + `$`)
	placeholder    = regexp.MustCompile(`HELM-VALUE-(\d+)`)
)

// templateOf returns the template of an object: its manifest, with expressions of Helm in place
// of what the chart's values say.
func templateOf(u *unstructured.Unstructured) string {
	u = u.DeepCopy()
	var expressions []string
	// valueOf returns what stands for an expression until the manifest is written.
	valueOf := func(expression string) string {
		expressions = append(expressions, expression)
		return fmt.Sprintf("HELM-VALUE-%d", len(expressions)-1)
	}
	insert := func(expression string, fields ...string) {
		if err := unstructured.SetNestedField(u.Object, valueOf(expression), fields...); err != nil {
			panic(err) // the object has another form than config/ gives it
		}
	}
	switch u.GetKind() {
	case "CustomResourceDefinition":
		annotations := map[string]string{"helm.sh/resource-policy": "keep"}
		for name, value := range u.GetAnnotations() {
			annotations[name] = value
		}
		u.SetAnnotations(annotations)
	case "ServiceAccount": // of the manager, and of the agents and speakers, whose pods the manager makes
		insert(".Values.imagePullSecrets | toJson", "imagePullSecrets")
	case "ServiceMonitor", "PrometheusRule":
		insert(mergedWith(u.GetLabels(), ".Values.prometheus.labels"), "metadata", "labels")
	case "NetworkPolicy":
		insertSources(u, valueOf)
	case "Deployment":
		insert(".Values.manager.replicas | toJson", "spec", "replicas")
		for field, value := range map[string]string{"labels": "podLabels", "annotations": "podAnnotations"} {
			own, _, err := unstructured.NestedStringMap(u.Object, "spec", "template", "metadata", field)
			if err != nil {
				panic(err)
			}
			insert(mergedWith(own, ".Values.manager."+value), "spec", "template", "metadata", field)
		}
		for _, field := range []string{"nodeSelector", "tolerations", "affinity", "priorityClassName"} {
			insert(".Values.manager."+field+" | toJson", "spec", "template", "spec", field)
		}
		insertIntoContainer(u, valueOf)
	}
	data, err := yaml.Marshal(u.Object)
	if err != nil {
		panic(err) // what kustomize renders can be written
	}
	text := strings.ReplaceAll(string(data), "{{", `{{ "{{" }}`)
	text = wholeNamespace.ReplaceAllString(text, ": {{ .Release.Namespace | quote }}")
	text = strings.ReplaceAll(text, namespace, "{{ .Release.Namespace }}")
	return placeholder.ReplaceAllStringFunc(text, func(found string) string {
		var i int
		_, _ = fmt.Sscanf(found, "HELM-VALUE-%d", &i)
		return "{{ " + expressions[i] + " }}"
	})
}

// insertSources puts, for each port that a NetworkPolicy opens, an expression in place of whence it can be reached.
func insertSources(u *unstructured.Unstructured, valueOf func(expression string) string) {
	rules, _, err := unstructured.NestedSlice(u.Object, "spec", "ingress")
	if err != nil {
		panic(err) // the object has another form than config/ gives it
	}
	values := map[string]string{"webhook": "webhooksFrom", "metrics": "metricsFrom"} // by port
	for _, rule := range rules {
		port := rule.(map[string]any)["ports"].([]any)[0].(map[string]any)["port"].(string)
		rule.(map[string]any)["from"] = valueOf(
			fmt.Sprintf(".Values.networkPolicy.%s | default list | toJson", values[port]),
		)
	}
	if err := unstructured.SetNestedSlice(u.Object, rules, "spec", "ingress"); err != nil {
		panic(err)
	}
}

// mergedWith returns an expression for a map of texts with what a value of the chart adds to it.
func mergedWith(own map[string]string, value string) string {
	return fmt.Sprintf("merge (fromJson %q) (%s | default dict) | toJson", jsonOf(own), value)
}

func jsonOf(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err) // what was read from YAML can be written
	}
	return string(text)
}

// insertIntoContainer puts expressions into the manager's container, each as what valueOf returns for it.
func insertIntoContainer(u *unstructured.Unstructured, valueOf func(expression string) string) {
	containers, _, err := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "containers")
	if err != nil || len(containers) != 1 {
		panic(fmt.Sprintf("%d containers: %v", len(containers), err))
	}
	container := containers[0].(map[string]any)
	var args []string
	for _, arg := range container["args"].([]any) {
		args = append(args, fmt.Sprintf("%q", arg))
	}
	container["image"] = valueOf(`include "purelb.image" . | toJson`)
	list := strings.Join(args, " ")
	container["args"] = valueOf(fmt.Sprintf("concat (list %s) (.Values.manager.extraArgs | default list) | toJson", list))
	container["env"] = valueOf(
		fmt.Sprintf("concat (fromJsonArray %q) (.Values.manager.extraEnv | default list) | toJson", jsonOf(container["env"])),
	)
	container["imagePullPolicy"] = valueOf(".Values.image.pullPolicy | toJson")
	container["resources"] = valueOf(".Values.manager.resources | toJson")
	if err := unstructured.SetNestedSlice(u.Object, containers, "spec", "template", "spec", "containers"); err != nil {
		panic(err)
	}
}
