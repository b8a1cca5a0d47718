package docs_test

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/purelb/purelb-operator/controllers"
	"github.com/purelb/purelb-operator/internal/buildinfo"
	"github.com/purelb/purelb-operator/nodeagent"
	"github.com/purelb/purelb-operator/nodeagent/speaker"
)

var update = flag.Bool("update", false, "write testdata/api-surface.txt and walk.md")

const surfaceFile = "testdata/api-surface.txt"

// TestAPISurface keeps the names that users rely on as they are: kinds, fields, values, conditions, reasons,
// events, annotations, labels, finalizers and metrics. Who changes one says so in the CHANGELOG, by a line that
// ends in the new checksum of the list.
func TestAPISurface(t *testing.T) {
	surface := strings.Join(surfaceOf(t), "\n") + "\n"
	if *update {
		if err := os.WriteFile(surfaceFile, []byte(surface), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(strings.Split(read(t, surfaceFile), "\n"), strings.Split(surface, "\n")); diff != "" {
		t.Errorf("the API is not what docs/%s says (-file +code).\n"+
			"If that is meant: go test ./docs -run TestAPISurface -update\n%s", surfaceFile, diff)
	}
	mark := fmt.Sprintf("(API %.4x)", sha256.Sum256([]byte(surface)))
	if !strings.Contains(read(t, filepath.Join(root, "CHANGELOG.md")), mark) {
		t.Errorf("no line of CHANGELOG.md says what of the API changed last: it ends in %s", mark)
	}
}

// surfaceOf lists what users see of the API, each thing with its kind as first word, sorted.
func surfaceOf(t *testing.T) []string {
	t.Helper()
	lines := crdLines(t)
	for kind, values := range map[string][]string{
		"condition":  constants(t, isCondition),
		"reason":     constants(t, isReason),
		"event":      constants(t, isEvent),
		"annotation": constants(t, regexp.MustCompile(`^Annotation[A-Z]`)),
		"label":      constants(t, regexp.MustCompile(`^Label[A-Z]`)),
		"finalizer":  constants(t, regexp.MustCompile(`^[fF]inalizer`)),
	} {
		for _, value := range values {
			lines = append(lines, kind+" "+value)
		}
	}
	all := &registry{}
	controllers.NewMetrics(all)
	nodeagent.NewMetrics(all)
	speaker.NewMetrics(all)
	buildinfo.Register(all, "")
	for _, name := range slices.Sorted(maps.Keys(all.metrics)) {
		lines = append(lines, strings.TrimSpace("metric "+name+" "+all.metrics[name]))
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}

// crdLines lists the kinds with their names, and the fields with types and values.
func crdLines(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, "config/crd/bases/*.yaml"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("%d CRDs: %v", len(paths), err)
	}
	var lines []string
	for _, path := range paths {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict([]byte(read(t, path)), crd); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for _, version := range crd.Spec.Versions {
			names := crd.Spec.Names
			aliases := slices.Concat([]string{names.Plural, names.Singular}, names.ShortNames, names.Categories)
			lines = append(lines, fmt.Sprintf("kind %s %s/%s %s %s", names.Kind, crd.Spec.Group, version.Name,
				crd.Spec.Scope, strings.Join(aliases, " ")))
			for part, schema := range version.Schema.OpenAPIV3Schema.Properties {
				if part == "spec" || part == "status" {
					lines = append(lines, fieldLines(names.Kind+" "+part, &schema)...)
				}
			}
		}
	}
	return lines
}

// fieldLines lists the fields below one at path. What is of a type of Kubernetes' has a line without those
// of its fields.
func fieldLines(path string, schema *apiextensionsv1.JSONSchemaProps) []string {
	var lines []string
	for name, field := range schema.Properties {
		line, of := "field "+path+"."+name, &field
		if field.Items != nil {
			line, of = line+"[]", field.Items.Schema
		}
		below := strings.TrimPrefix(line, "field ")
		line += " " + of.Type
		if of.XIntOrString {
			line += "integer-or-string"
		}
		if slices.Contains(schema.Required, name) {
			line += " required"
		}
		for _, value := range of.Enum {
			line += " " + strings.Trim(string(value.Raw), `"`)
		}
		lines = append(lines, line)
		if !isOfKubernetes(of) {
			lines = append(lines, fieldLines(below, of)...)
		}
	}
	return lines
}

// isOfKubernetes recognises label selectors, resources, tolerations and conditions.
func isOfKubernetes(schema *apiextensionsv1.JSONSchemaProps) bool {
	return slices.ContainsFunc([][]string{
		{"matchLabels"}, {"limits", "requests"}, {"tolerationSeconds"},
		{"lastTransitionTime", "observedGeneration", "type"},
	}, func(fields []string) bool {
		return !slices.ContainsFunc(fields, func(field string) bool {
			_, has := schema.Properties[field]
			return !has
		})
	})
}
