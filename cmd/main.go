// Command purelb contains both programs of PureLB: the manager, which decides which address a
// Service gets and which node announces the address, and the agent, which makes the kernel of
// its node announce.
//
// All configuration enters here, as flags. Each program builds a controller-runtime manager
// from its flags, adds its controllers and serves metrics and health checks.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/purelb/purelb-operator/internal/buildinfo"
	"github.com/purelb/purelb-operator/internal/features"
	"github.com/purelb/purelb-operator/internal/httpserver"
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

// servingOptions are the flags of both programs for metrics, health checks and logging.
type servingOptions struct {
	metricsAddress string
	metricsSecure  bool
	healthAddress  string
	logLevel       string
}

// addFlags adds the flags, with a program's default addresses.
func (s *servingOptions) addFlags(f *pflag.FlagSet, metricsAddress, healthAddress string) {
	f.StringVar(
		&s.metricsAddress, "metrics-bind-address", metricsAddress, "address on which to serve metrics; 0 to serve none",
	)
	f.BoolVar(
		&s.metricsSecure, "metrics-secure", true,
		"serve metrics over HTTPS, and only to clients that the API server authenticates and authorizes",
	)
	f.StringVar(
		&s.healthAddress, "health-probe-bind-address", healthAddress, "address on which to serve /healthz and /readyz",
	)
	f.StringVar(&s.logLevel, "log-level", "info", "least severe level to log: error, info or debug")
}

// addTo makes a manager serve metrics and health checks.
func (s *servingOptions) addTo(ctx context.Context, mgr manager.Manager, checks httpserver.Checks) error {
	buildinfo.Register(metrics.Registry, version)
	return errors.Join(
		httpserver.AddMetrics(ctx, mgr, s.metricsAddress, s.metricsSecure),
		httpserver.AddHealth(ctx, mgr, s.healthAddress, checks),
	)
}

// noMetrics keeps controller-runtime from serving metrics: package httpserver does.
var noMetrics = metricsserver.Options{BindAddress: "0"}
