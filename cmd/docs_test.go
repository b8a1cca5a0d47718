package main

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/component-base/featuregate"

	"github.com/purelb/purelb-operator/internal/features"
)

// TestFlags compares the tables of docs/reference/flags.md with the flags of both
// programs and their defaults.
func TestFlags(t *testing.T) {
	page, err := os.ReadFile("../docs/reference/flags.md")
	if err != nil {
		t.Fatal(err)
	}
	gates, err := features.New()
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range []*cobra.Command{newManagerCommand(gates), newAgentCommand()} {
		flags := map[string]string{}
		program.Flags().VisitAll(func(f *pflag.Flag) { flags["--"+f.Name] = f.DefValue })
		_, text, found := strings.Cut(string(page), "\n## purelb "+program.Name()+"\n")
		if !found {
			t.Errorf("docs/reference/flags.md has no heading for purelb %s", program.Name())
		}
		text, _, _ = strings.Cut(text, "\n## ")
		listed := map[string]string{}
		row := regexp.MustCompile("(?m)^\\| `(--[a-z-]+)` \\| (?:`([^`]*)`)? *\\|")
		for _, match := range row.FindAllStringSubmatch(text, -1) {
			listed[match[1]] = match[2]
		}
		delete(flags, "--help")
		if diff := cmp.Diff(flags, listed); diff != "" {
			t.Errorf("docs/reference/flags.md, purelb %s (-code +page):\n%s", program.Name(), diff)
		}
	}
}

// TestFeatureGates compares the table of docs/reference/flags.md with the feature gates.
func TestFeatureGates(t *testing.T) {
	gates, err := features.New()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../docs/reference/flags.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(page), "\n## Feature gates\n")
	if !found {
		t.Fatal("docs/reference/flags.md has no heading for feature gates")
	}
	text, _, _ = strings.Cut(text, "\n## ")
	listed, known := map[string]string{}, map[string]string{}
	row := regexp.MustCompile("(?m)^\\| `([A-Za-z]+)` \\| ([A-Z][A-Za-z]+) \\| `(true|false)` \\|")
	for _, match := range row.FindAllStringSubmatch(text, -1) {
		listed[match[1]] = match[2] + " " + match[3]
	}
	for name, spec := range gates.GetAll() {
		if name != "AllAlpha" && name != "AllBeta" { // these stand for others
			known[string(name)] = map[string]string{"ALPHA": "Alpha", "BETA": "Beta"}[string(spec.PreRelease)] + " " +
				strconv.FormatBool(spec.Default)
		}
		if wantDefault := spec.PreRelease == featuregate.Beta; spec.Default != wantDefault && name != "AllBeta" {
			t.Errorf("%s is %s, and its default is %t", name, spec.PreRelease, spec.Default)
		}
	}
	if diff := cmp.Diff(known, listed); diff != "" {
		t.Errorf("docs/reference/flags.md, feature gates (-code +page):\n%s", diff)
	}
}

// TestFeatureGatesFlag refuses gates that there are not.
func TestFeatureGatesFlag(t *testing.T) {
	for value, wantOn := range map[string]bool{
		"": true, "WireFailover=true": true, "WireFailover=false": false, "AllBeta=false": false,
	} {
		gates, err := features.New()
		if err != nil {
			t.Fatal(err)
		}
		if err := newManagerCommand(gates).ParseFlags([]string{"--feature-gates=" + value}); err != nil ||
			gates.Enabled(features.WireFailover) != wantOn {
			t.Errorf("%q: %v, WireFailover %t", value, err, gates.Enabled(features.WireFailover))
		}
	}
	for _, value := range []string{"WireFailovers=true", "WireFailover=perhaps", "WireFailover"} {
		gates, err := features.New()
		if err != nil {
			t.Fatal(err)
		}
		if err := newManagerCommand(gates).ParseFlags([]string{"--feature-gates=" + value}); err == nil {
			t.Errorf("%q is taken", value)
		}
	}
}
