// Command purelb is both programs of PureLB: the manager, which decides which
// Service gets which address and which node announces it, and the agent, which
// makes one node announce.
package main

import (
	"fmt"
	"os"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/zap/zapcore"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/purelb/purelb-operator/internal/metricsauth"
)

// version is set by the linker.
var version = "dev"

func main() {
	root := &cobra.Command{
		Use:           "purelb",
		Short:         "Service load balancer for Kubernetes clusters without a cloud",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newManagerCommand(), newAgentCommand())
	if err := root.ExecuteContext(ctrl.SetupSignalHandler()); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

// serving is what both programs serve beside their work.
type serving struct {
	metricsAddress string
	metricsSecure  bool
	healthAddress  string
	logLevel       string
}

// addFlags adds the flags, with the default addresses.
func (s *serving) addFlags(f *pflag.FlagSet, metricsAddress, healthAddress string) {
	f.StringVar(&s.metricsAddress, "metrics-bind-address", metricsAddress, "where to serve metrics; 0 for nowhere")
	f.BoolVar(&s.metricsSecure, "metrics-secure", true, "serve metrics by HTTPS, to clients that may read them")
	f.StringVar(&s.healthAddress, "health-probe-bind-address", healthAddress, "where to serve /healthz and /readyz")
	f.StringVar(&s.logLevel, "log-level", "info", "error, info or debug")
}

// metricsOptions is how metrics are served.
func (s *serving) metricsOptions() metricsserver.Options {
	o := metricsserver.Options{BindAddress: s.metricsAddress, SecureServing: s.metricsSecure}
	if s.metricsSecure {
		o.FilterProvider = metricsauth.Filter
	}
	return o
}

// newLogger makes a JSON logger: level is error, info or debug.
func newLogger(level string) (logr.Logger, error) {
	levels := map[string]zapcore.Level{"error": zapcore.ErrorLevel, "info": zapcore.InfoLevel, "debug": zapcore.DebugLevel}
	l, known := levels[level]
	if !known {
		return logr.Logger{}, fmt.Errorf("--log-level=%s: must be error, info or debug", level)
	}
	return zap.New(zap.Level(l), zap.UseDevMode(false), zap.StacktraceLevel(zapcore.PanicLevel)), nil
}
