package gitops

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// TestUndeployWithoutManager runs config/undeploy.sh in clusters in which managers are ready, and none is: there the
// LBNodeAgents go although nobody removes their finalizers, and the manifests in both.
func TestUndeployWithoutManager(t *testing.T) {
	for ready, want := range map[string][]string{
		"2": {
			"annotate lbnodeagents --all --overwrite purelb.io/allow-withdrawal=true",
			"delete lbnodeagents --all --timeout=5m",
		},
		"": {
			"annotate lbnodeagents --all --overwrite purelb.io/allow-withdrawal=true",
			"delete lbnodeagents --all --wait=false",
			`patch lbnodeagent.purelb.io/default --type=merge -p {"metadata":{"finalizers":null}}`,
			"label nodes -l purelb.io/agent purelb.io/agent-",
		},
	} {
		t.Run("ready: "+ready, func(t *testing.T) {
			g := NewWithT(t)
			dir := t.TempDir()
			program := fmt.Sprintf(`#!/bin/sh
case "$*" in
*"get deployment"*) printf '%%s' '%s' ;;
*"get lbnodeagents"*) echo lbnodeagent.purelb.io/default ;;
"get crd -o name") echo customresourcedefinition.apiextensions.k8s.io/lbnodeagents.purelb.io ;;
"get crd"*) ;;
*) echo "$*" | sed 's/^-n purelb-system //' >>'%s/calls' ;;
esac
`, ready, dir)
			kubectl := filepath.Join(dir, "kubectl")
			g.Expect(os.WriteFile(kubectl, []byte(program), 0o700)).To(Succeed()) //nolint:gosec // it is run
			command := exec.Command("/bin/sh", filepath.Join(root, "config", "undeploy.sh"))
			command.Env = append(os.Environ(), "KUBECTL="+kubectl, "PATIENCE_SECONDS=0")
			text, err := command.CombinedOutput()
			g.Expect(err).NotTo(HaveOccurred(), "%s", text)
			g.Expect(strings.Contains(string(text), "ip link delete kube-lb0")).To(Equal(ready == ""), "%s", text)
			calls, err := os.ReadFile(filepath.Join(dir, "calls"))
			g.Expect(err).NotTo(HaveOccurred())
			want := append(
				want, "annotate customresourcedefinition.apiextensions.k8s.io/lbnodeagents.purelb.io --overwrite "+
					"purelb.io/allow-deletion=true", "delete --ignore-not-found --timeout=5m -f -",
			)
			g.Expect(strings.Split(strings.TrimSpace(string(calls)), "\n")).To(Equal(want))
		})
	}
}
