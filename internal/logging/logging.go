// Package logging makes the logger of a program.
package logging

import (
	"fmt"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"go.uber.org/zap/zapcore"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
)

// AddFlag adds the flag --log-level.
func AddFlag(f *pflag.FlagSet, level *string) {
	f.StringVar(level, "log-level", "info", "least severe level to log: error, info or debug")
}

// New makes a logger that writes JSON, from the value of --log-level on: error, info or debug.
func New(level string) (logr.Logger, error) {
	levels := map[string]zapcore.Level{"error": zapcore.ErrorLevel, "info": zapcore.InfoLevel, "debug": zapcore.DebugLevel}
	l, known := levels[level]
	if !known {
		return logr.Logger{}, fmt.Errorf("--log-level=%s: must be error, info or debug", level)
	}
	return zap.New(zap.Level(l), zap.UseDevMode(false), zap.StacktraceLevel(zapcore.PanicLevel)), nil
}
