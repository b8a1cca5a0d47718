// Command purelb is both programs of PureLB: the manager, which decides which
// Service gets which address and which node announces it, and the agent, which
// makes one node announce.
package main

import (
	"fmt"
	"os"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"go.uber.org/zap/zapcore"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
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

// newLogger makes a JSON logger: level is error, info or debug.
func newLogger(level string) (logr.Logger, error) {
	levels := map[string]zapcore.Level{"error": zapcore.ErrorLevel, "info": zapcore.InfoLevel, "debug": zapcore.DebugLevel}
	l, known := levels[level]
	if !known {
		return logr.Logger{}, fmt.Errorf("--log-level=%s: must be error, info or debug", level)
	}
	return zap.New(zap.Level(l), zap.UseDevMode(false), zap.StacktraceLevel(zapcore.PanicLevel)), nil
}
