package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestFlags compares the tables of docs/reference/flags.md with the flags of both
// programs and their defaults.
func TestFlags(t *testing.T) {
	page, err := os.ReadFile("../docs/reference/flags.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range []*cobra.Command{newManagerCommand(), newAgentCommand()} {
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
