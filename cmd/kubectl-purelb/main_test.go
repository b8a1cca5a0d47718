package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

const goodGroup = `
apiVersion: purelb.io/v1
kind: ServiceGroup
metadata: {name: good, namespace: purelb-system}
spec: {local: {v4pools: [{pool: 192.168.1.240/28, subnet: 192.168.1.0/24}]}}
`

// Scripts trust the exit codes.
func TestExitCodes(t *testing.T) {
	t.Setenv("KUBECONFIG", "/nonexistent")
	for _, test := range []struct {
		args        string
		in          string
		code        int
		out, errOut string
	}{
		{"validate -", goodGroup, 0, "1 object checked", ""},
		{"validate -", strings.Replace(goodGroup, "240/28", "241/28", 1), 0, "has host bits", ""},
		{"validate --strict -", strings.Replace(goodGroup, "240/28", "241/28", 1), 2, "has host bits", ""},
		{"validate -", strings.Replace(goodGroup, "240/28", "240-192.168.2.1", 1), 2, "spec.local.v4pools[0].pool", ""},
		{"validate -o json -", goodGroup, 0, `"errors": 0`, ""},
		{"validate -o yaml -", goodGroup, 0, "errors: 0", ""},
		{"validate -o xml -", goodGroup, 1, "", `--output is "xml"`},
		{"validate /nonexistent.yaml", "", 1, "", "no such file"},
		{"validate", "", 1, "", "requires at least 1 arg"},
		{"where here", "", 1, "", `"here" is not an address`},
		{"version --client", "", 0, "kubectl-purelb dev", ""},
		{"wehre", "", 1, "", "unknown command"},
		{"--help", "", 0, "The exit code is 0 if all is well", ""},
		{"completion bash", "", 0, "kubectl-purelb", ""},
	} {
		t.Run(test.args, func(t *testing.T) {
			var out, errOut bytes.Buffer
			code := run(t.Context(), strings.Fields(test.args), streams{in: strings.NewReader(test.in), out: &out, err: &errOut})
			if code != test.code || !strings.Contains(out.String(), test.out) ||
				!strings.Contains(errOut.String(), test.errOut) {
				t.Errorf("exit code %d, not %d\n%s\n%s", code, test.code, out.String(), errOut.String())
			}
			if strings.Contains(out.String(), "\x1b[") {
				t.Errorf("colours, but not on a terminal: %q", out.String())
			}
		})
	}
}

// Without an API server a command says so and ends.
func TestNoAPIServer(t *testing.T) {
	kubeconfig := t.TempDir() + "/kubeconfig"
	config := "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n" +
		"clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\nusers: [{name: u, user: {}}]\n"
	if err := os.WriteFile(kubeconfig, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{
		"status", "pools", "where 10.0.0.1", "explain service web", "plan drain node1", "plan lose", "drain node1",
		"undrain node1", "version",
	} {
		var out, errOut bytes.Buffer
		code := run(t.Context(), append(strings.Fields(args), "--kubeconfig", kubeconfig), streams{out: &out, err: &errOut})
		if code != exitError || !strings.Contains(errOut.String(), "connection refused") {
			t.Errorf("%s: exit code %d\n%s\n%s", args, code, out.String(), errOut.String())
		}
	}
}
