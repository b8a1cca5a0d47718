// Command purelb contains two programs of PureLB: the manager, which decides which address a
// Service gets and which node announces the address, and the agent, which makes the kernel of
// its node announce. The third one, which speaks BGP, is in the folder speaker.
//
// All configuration of these two enters here, as flags. Each program builds a controller-runtime manager
// from its flags, adds its controllers and serves metrics and health checks.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/purelb/purelb-operator/internal/features"
)

// version is the version of the program; the linker sets it.
var version = "dev"

func main() {
	root := &cobra.Command{
		Use:           "purelb",
		Short:         "Service load balancer for Kubernetes clusters without a cloud",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	gates, err := features.New()
	if err == nil {
		root.AddCommand(newManagerCommand(gates), newAgentCommand())
		err = root.ExecuteContext(ctrl.SetupSignalHandler())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}
