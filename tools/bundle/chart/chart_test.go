package main

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/purelb/purelb-operator/tools/bundle/kustomize"
)

const root = "../../.."

// committed returns the chart in charts/.
func committed(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.LoadDir(filepath.Join(root, chartDir))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestChartIsGenerated fails when charts/ is not what make chart writes.
func TestChartIsGenerated(t *testing.T) {
	c := committed(t)
	want, err := generate(options{
		root: root, version: c.Metadata.Version,
		image: c.Values["image"].(map[string]any)["repository"].(string) + ":" + c.Metadata.AppVersion,
	})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	err = filepath.WalkDir(filepath.Join(root, chartDir), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		got[filepath.ToSlash(name)] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	wanted := map[string]string{}
	for name, content := range want {
		wanted[name] = string(content)
	}
	if diff := cmp.Diff(wanted, got); diff != "" {
		t.Errorf("make chart writes another chart (-want +got):\n%s", diff)
	}
}

// objects are manifests, by the names of their files.
type objects map[string]map[string]any

// render returns what Helm renders of the chart with values, which are YAML.
func render(t *testing.T, namespace, values string) (objects, error) {
	t.Helper()
	given, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		t.Fatal(err)
	}
	c := committed(t)
	all, err := chartutil.ToRenderValues(
		c, given, chartutil.ReleaseOptions{Name: "any", Namespace: namespace, IsInstall: true}, nil,
	)
	if err != nil {
		return nil, err
	}
	texts, err := engine.Render(c, all)
	if err != nil {
		return nil, err
	}
	rendered := objects{}
	for name, text := range texts {
		u := &unstructured.Unstructured{}
		if filepath.Ext(name) != ".yaml" || strings.TrimSpace(text) == "" {
			continue
		}
		if err := yaml.UnmarshalStrict([]byte(text), &u.Object); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, text)
		}
		rendered[fileName(u)] = u.Object
	}
	return rendered, nil
}

// ofConfig returns what kustomize renders of config/default with components, apart from the namespace.
func ofConfig(t *testing.T, components ...string) objects {
	t.Helper()
	list, err := kustomize.BuildWith(filepath.Join(root, "config"), components...)
	if err != nil {
		t.Fatal(err)
	}
	all := objects{}
	for _, u := range list {
		switch u.GetKind() {
		case "Namespace":
			continue
		case "CustomResourceDefinition":
			annotations := u.GetAnnotations()
			annotations["helm.sh/resource-policy"] = "keep"
			u.SetAnnotations(annotations)
		case "ServiceAccount":
			u.Object["imagePullSecrets"] = []any{}
		case "NetworkPolicy": // without "from" the rule means the same
			spec := u.Object["spec"].(map[string]any)
			spec["ingress"].([]any)[0].(map[string]any)["from"] = []any{}
		}
		all[fileName(u)] = u.Object
	}
	return all
}

// asRead returns objects as a reader of their YAML gets them, with numbers of one type.
func asRead(t *testing.T, all objects) objects {
	t.Helper()
	text, err := yaml.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	read := objects{}
	if err := yaml.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	return read
}

// TestChartRendersAsKustomize compares the chart with config/, for each component.
func TestChartRendersAsKustomize(t *testing.T) {
	for component, values := range map[string]string{
		"":               "",
		"cert-manager":   "certManager: {enabled: true}",
		"network-policy": "networkPolicy: {enabled: true}",
		"prometheus":     "prometheus: {enabled: true}",
	} {
		t.Run(component, func(t *testing.T) {
			got, err := render(t, namespace, values)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(asRead(t, ofConfig(t, strings.Fields(component)...)), asRead(t, got)); diff != "" {
				t.Errorf("(-kustomize +helm):\n%s", diff)
			}
		})
	}
}

// TestChartWithAllComponents turns all components on together.
func TestChartWithAllComponents(t *testing.T) {
	got, err := render(
		t, namespace, "{certManager: {enabled: true}, networkPolicy: {enabled: true}, prometheus: {enabled: true}}",
	)
	if err != nil {
		t.Fatal(err)
	}
	want := ofConfig(t, "cert-manager", "network-policy", "prometheus")
	if diff := cmp.Diff(asRead(t, want), asRead(t, got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestChartInAnotherNamespace installs into a namespace whose name YAML takes for a number.
func TestChartInAnotherNamespace(t *testing.T) {
	got, err := render(
		t, "1234", "{certManager: {enabled: true}, networkPolicy: {enabled: true}, prometheus: {enabled: true}}",
	)
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for name, object := range got {
		text, err := yaml.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), namespace) {
			t.Errorf("%s names %s", name, namespace)
		}
		value, isSet, err := unstructured.NestedString(object, "metadata", "namespace")
		if err != nil || isSet && value != "1234" {
			t.Errorf("%s: namespace %q, %v", name, value, err)
		}
		if isSet {
			named++
		}
	}
	if named < 5 {
		t.Errorf("%d objects are in a namespace", named)
	}
}

// fieldEnv is an environment variable that has the value of a field of the pod.
func fieldEnv(name, path string) map[string]any {
	return map[string]any{"name": name, "valueFrom": map[string]any{"fieldRef": map[string]any{"fieldPath": path}}}
}

// TestChartValues checks what single values change.
func TestChartValues(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0a", 32)
	for values, want := range map[string]struct {
		file   string
		fields []string
		value  any
	}{
		"image: {repository: r.example/p}": {
			"deployment-purelb-manager.yaml", []string{"image"}, "r.example/p:dev",
		},
		"image: {tag: v9}": {
			"deployment-purelb-manager.yaml", []string{"image"}, "purelb.io/purelb:v9",
		},
		"image: {tag: v9, digest: '" + digest + "'}": {
			"deployment-purelb-manager.yaml", []string{"image"}, "purelb.io/purelb@" + digest,
		},
		"manager: {extraArgs: ['--feature-gates=A=true']}": {
			"deployment-purelb-manager.yaml", []string{"args"},
			[]any{"manager", "--namespace=$(NAMESPACE)", "--pod-name=$(POD_NAME)", "--feature-gates=A=true"},
		},
		"manager: {resources: {limits: {memory: 1Gi}, requests: null}}": {
			"deployment-purelb-manager.yaml", []string{"resources"}, map[string]any{"limits": map[string]any{"memory": "1Gi"}},
		},
		"image: {pullPolicy: Always}": {
			"deployment-purelb-manager.yaml", []string{"imagePullPolicy"}, "Always",
		},
		"manager: {extraEnv: [{name: HTTPS_PROXY, value: 'http://p:1'}, {name: A, valueFrom: {fieldRef: {fieldPath: b}}}]}": {
			"deployment-purelb-manager.yaml", []string{"env"}, []any{
				fieldEnv("NAMESPACE", "metadata.namespace"), fieldEnv("POD_NAME", "metadata.name"),
				map[string]any{"name": "HTTPS_PROXY", "value": "http://p:1"}, fieldEnv("A", "b"),
			},
		},
		"manager: {podLabels: {app.kubernetes.io/name: other, team: net}}": {
			"deployment-purelb-manager.yaml", []string{"spec", "template", "metadata", "labels"}, map[string]any{
				"app.kubernetes.io/name": "purelb-manager", "app.kubernetes.io/component": "manager",
				"app.kubernetes.io/part-of": "purelb", "team": "net",
			},
		},
		"manager: {podAnnotations: {sidecar.istio.io/inject: 'false'}}": {
			"deployment-purelb-manager.yaml", []string{"spec", "template", "metadata", "annotations"}, map[string]any{
				"kubectl.kubernetes.io/default-container": "manager", "sidecar.istio.io/inject": "false",
			},
		},
		"manager: {extraArgs: null}": {
			"deployment-purelb-manager.yaml", []string{"args"},
			[]any{"manager", "--namespace=$(NAMESPACE)", "--pod-name=$(POD_NAME)"},
		},
		"networkPolicy: {enabled: true, webhooksFrom: [{ipBlock: {cidr: 192.0.2.0/28}}], metricsFrom: null}": {
			"networkpolicy-purelb-manager.yaml", []string{"spec", "ingress"}, []any{
				map[string]any{
					"from":  []any{map[string]any{"ipBlock": map[string]any{"cidr": "192.0.2.0/28"}}},
					"ports": []any{map[string]any{"port": "webhook", "protocol": "TCP"}},
				},
				map[string]any{"from": []any{}, "ports": []any{map[string]any{"port": "metrics", "protocol": "TCP"}}},
			},
		},
		"{enabled: true, manager: {replicas: 1}}": {
			"deployment-purelb-manager.yaml", []string{"spec", "replicas"}, float64(1),
		},
		"manager: {podLabels: null, podAnnotations: null, extraEnv: null}": {
			"deployment-purelb-manager.yaml", []string{"spec", "template", "metadata", "annotations"}, map[string]any{
				"kubectl.kubernetes.io/default-container": "manager",
			},
		},
		"prometheus: {enabled: true, labels: {release: stack}}": {
			"servicemonitor-purelb-agents.yaml", []string{"metadata", "labels"}, map[string]any{
				"app.kubernetes.io/part-of": "purelb", "release": "stack",
			},
		},
		"prometheus: {enabled: true, labels: {role: alerts}}": {
			"prometheusrule-purelb.yaml", []string{"metadata", "labels"}, map[string]any{
				"app.kubernetes.io/part-of": "purelb", "role": "alerts",
			},
		},
		"manager: {replicas: 3}": {
			"deployment-purelb-manager.yaml", []string{"spec", "replicas"}, float64(3),
		},
		"manager: {tolerations: []}": {
			"deployment-purelb-manager.yaml", []string{"spec", "template", "spec", "tolerations"}, []any{},
		},
		"manager: {priorityClassName: ''}": {
			"deployment-purelb-manager.yaml", []string{"spec", "template", "spec", "priorityClassName"}, "",
		},
		"imagePullSecrets: [{name: registry}]": {
			"serviceaccount-purelb-agent.yaml", []string{"imagePullSecrets"}, []any{map[string]any{"name": "registry"}},
		},
		"crds: {install: false}": {"customresourcedefinition-servicegroups.purelb.io.yaml", nil, nil},
		"{prometheus: {enabled: false}, networkPolicy: {enabled: false}}": {"networkpolicy-purelb-manager.yaml", nil, nil},
		"{global: {of: another chart}, manager: {nodeSelector: {a: 'yes'}}}": {
			"deployment-purelb-manager.yaml", []string{"spec", "template", "spec", "nodeSelector"},
			map[string]any{"a": "yes", "kubernetes.io/os": "linux"},
		},
	} {
		t.Run(values, func(t *testing.T) {
			got, err := render(t, namespace, values)
			if err != nil {
				t.Fatal(err)
			}
			object, exists := asRead(t, got)[want.file]
			if exists != (want.fields != nil) {
				t.Fatalf("%s exists: %v", want.file, exists)
			}
			if !exists {
				return
			}
			if len(want.fields) == 1 && strings.HasPrefix(want.file, "deployment") {
				containers, _, _ := unstructured.NestedSlice(object, "spec", "template", "spec", "containers")
				object = containers[0].(map[string]any)
			}
			value, _, err := unstructured.NestedFieldNoCopy(object, want.fields...)
			if diff := cmp.Diff(want.value, value); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

// TestChartRefusesValues checks that slips are refused, and say where they are.
func TestChartRefusesValues(t *testing.T) {
	for values, want := range map[string]string{
		"manger: {replicas: 3}":                   "manger",
		"manager: {replica: 3}":                   "replica",
		"manager: {replicas: two}":                "replicas",
		"manager: {extraArgs: ['feature-gates']}": "extraArgs",
		"image: {digest: v1}":                     "digest",
		"image: {repository: ''}":                 "repository",
		"certManager: true":                       "certManager",
		"image: {pullPolicy: Sometimes}":          "pullPolicy",
		"manager: {extraEnv: [{nam: A}]}":         "extraEnv",
		"manager: {podLabels: {a: 1}}":            "podLabels",
		"prometheus: {labels: [a]}":               "labels",
		"imagePullSecrets: [registry]":            "imagePullSecrets",
		"crds: null":                              "crds",
		"manager: null":                           "manager",
		"enabled: 'yes'":                          "enabled",
		"networkPolicy: {webhooksFrom: 10.0.0.1}": "webhooksFrom",
	} {
		if _, err := render(t, namespace, values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", values, err)
		}
	}
}

// TestChartLint has Helm's own linter judge the chart.
func TestChartLint(t *testing.T) {
	for _, values := range []map[string]any{
		nil, {"prometheus": map[string]any{"enabled": true}, "certManager": map[string]any{"enabled": true}},
	} {
		result := lint.AllWithKubeVersion(
			filepath.Join(root, chartDir), values, namespace,
			&chartutil.KubeVersion{Version: "v1.37.1", Major: "1", Minor: "37"},
		)
		for _, m := range result.Messages {
			if m.Severity > support.InfoSev {
				t.Error(m)
			}
		}
	}
}

// TestGenerateRefuses checks what the command cannot do.
func TestGenerateRefuses(t *testing.T) {
	for _, image := range []string{"", "purelb", "registry.example.com:5000/purelb"} {
		if _, err := generate(options{root: root, version: "1.2.3", image: image}); err == nil {
			t.Errorf("image %q is accepted", image)
		}
	}
	files, err := generate(options{root: root, version: "1.2.3", image: "registry.example.com:5000/purelb:v1.2.3"})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"Chart.yaml":  "\nversion: 1.2.3\nappVersion: v1.2.3\n",
		"values.yaml": "repository: registry.example.com:5000/purelb\n",
	} {
		if !strings.Contains(string(files[chartDir+"/"+name]), want) {
			t.Errorf("%s does not say %q", name, want)
		}
	}
	digest := "sha256:" + strings.Repeat("0", 64)
	const tagged = "registry.example.com:5000/purelb:v1.2.3"
	pinned, err := generate(options{root: root, version: "1.2.3", image: tagged + "@" + digest})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"Chart.yaml":  "\nappVersion: v1.2.3\n",
		"values.yaml": "repository: registry.example.com:5000/purelb\n",
	} {
		if !strings.Contains(string(pinned[chartDir+"/"+name]), want) {
			t.Errorf("with a digest, %s does not say %q", name, want)
		}
	}
	if want := "digest: \"" + digest + "\"\n"; !strings.Contains(string(pinned[chartDir+"/values.yaml"]), want) {
		t.Errorf("values.yaml does not say %s", want)
	}
	if names := slices.Sorted(maps.Keys(files)); !slices.Contains(names, chartDir+"/templates/_image.tpl") {
		t.Errorf("the chart has the files %v", names)
	}
}
