package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

// TestFlags compares the table of docs/reference/flags.md with the flags of the program and
// their defaults.
func TestFlags(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/flags.md")
	if err != nil {
		t.Fatal(err)
	}
	flags := map[string]string{}
	newCommand().Flags().VisitAll(func(f *pflag.Flag) { flags["--"+f.Name] = f.DefValue })
	_, text, found := strings.Cut(string(page), "\n## purelb-speaker\n")
	if !found {
		t.Fatal("docs/reference/flags.md has no heading for purelb-speaker")
	}
	listed := map[string]string{}
	row := regexp.MustCompile("(?m)^\\| `(--[a-z-]+)` \\| (?:`([^`]*)`)? *\\|")
	for _, match := range row.FindAllStringSubmatch(text, -1) {
		listed[match[1]] = match[2]
	}
	if diff := cmp.Diff(flags, listed); diff != "" {
		t.Errorf("docs/reference/flags.md (-code +page):\n%s", diff)
	}
}
