package main

import (
	"strings"
	"testing"

	"github.com/purelb/purelb-operator/internal/features"
)

// TestInstallationIDFlag refuses ids that marks have no room for, or that are not found by them,
// before the manager looks for an API server.
func TestInstallationIDFlag(t *testing.T) {
	t.Setenv("KUBECONFIG", "/nonexistent") // where a manager with an id that is taken ends
	for id, isTaken := range map[string]bool{
		"": true, "staging": true, "3b6f0b52-3b1c-4a0e-9a52-5d1a5f0c7a01": true,
		"Staging": false, "a/b": false, "-": false, " ": false, strings.Repeat("a", 37): false,
	} {
		gates, err := features.New()
		if err != nil {
			t.Fatal(err)
		}
		command := newManagerCommand(gates)
		command.SilenceUsage, command.SilenceErrors = true, true
		command.SetArgs([]string{"--installation-id=" + id})
		err = command.ExecuteContext(t.Context())
		isRefused := err != nil && strings.HasPrefix(err.Error(), "--installation-id: ")
		if isRefused == isTaken || err == nil {
			t.Errorf("%q: %v", id, err)
		}
		if isRefused && !strings.Contains(err.Error(), "1 to 36 characters of a-z, 0-9 and -") {
			t.Errorf("%q: %v does not say what is taken", id, err)
		}
	}
}
