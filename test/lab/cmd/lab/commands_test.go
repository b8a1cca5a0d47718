package main

import (
	"slices"
	"testing"

	"github.com/spf13/cobra"
)

// TestKubectlArguments checks that arguments which begin with flags reach kubectl, and that
// the lab's own flags come before the command.
func TestKubectlArguments(t *testing.T) {
	tests := map[string]struct {
		line, want []string
		stateDir   string
	}{
		"flags first":     {[]string{"kubectl", "-n", "x", "get", "pods"}, []string{"-n", "x", "get", "pods"}, "/default"},
		"a command first": {[]string{"kubectl", "get", "pods", "-n", "x"}, []string{"get", "pods", "-n", "x"}, "/default"},
		"two hyphens": {
			[]string{"kubectl", "--", "-n", "x", "get", "pods"}, []string{"-n", "x", "get", "pods"}, "/default",
		},
		"hyphens later": {[]string{"kubectl", "exec", "a", "--", "ls"}, []string{"exec", "a", "--", "ls"}, "/default"},
		"the lab's flags": {
			[]string{"--state-dir", "/s", "kubectl", "-n", "x", "get", "pods"}, []string{"-n", "x", "get", "pods"}, "/s",
		},
		"kubectl's help": {[]string{"kubectl", "--help"}, []string{"--help"}, "/default"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f := &flags{}
			root := newCommandOf(f)
			f.stateDir = "/default"
			kubectl, _, err := root.Find([]string{"kubectl"})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			kubectl.RunE = func(_ *cobra.Command, args []string) error {
				got = command(args)
				return nil
			}
			root.SetArgs(test.line)
			if err := root.Execute(); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, test.want) || f.stateDir != test.stateDir {
				t.Errorf("kubectl gets %q of the lab in %s, want %q of %s", got, f.stateDir, test.want, test.stateDir)
			}
		})
	}
}
