package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/purelb/purelb-operator/test/lab/internal/debian"
	"github.com/purelb/purelb-operator/test/lab/internal/process"
)

// PrometheusAddress is where the lab's Prometheus answers, on the control plane.
const PrometheusAddress = "127.0.0.1:9090"

// PrometheusConfig is the name of the configuration among the files of a Prometheus.
const PrometheusConfig = "prometheus.yml"

const prometheusProcess = "prometheus"

// PrometheusOptions say what a Prometheus watches, and what it knows from the start.
type PrometheusOptions struct {
	// Files are those of the folder in which Prometheus runs, by name: PrometheusConfig, and what
	// that names.
	Files map[string]string
	// History has samples of the past, as OpenMetrics, if it is not empty.
	History string
}

// StartPrometheus runs Debian's Prometheus on the control plane, where pods and nodes can be
// reached. It replaces one that runs already, whose samples are lost. The package is downloaded to
// the user's cache folder the first time. StartPrometheus does not wait until Prometheus answers.
func (l *Lab) StartPrometheus(ctx context.Context, options PrometheusOptions, say func(string)) error {
	if err := l.StopPrometheus(ctx); err != nil {
		return err
	}
	cacheDir, err := DefaultCacheDir()
	if err != nil {
		return err
	}
	programs, err := debian.Prometheus(ctx, cacheDir, say)
	if err != nil {
		return err
	}
	dir := l.path(prometheusProcess)
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("start Prometheus: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("start Prometheus: %w", err)
	}
	for name, text := range options.Files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return fmt.Errorf("start Prometheus: %w", err)
		}
	}
	config, data := filepath.Join(dir, PrometheusConfig), filepath.Join(dir, "data")
	tool := filepath.Join(programs, "promtool")
	if _, err := l.Exec(ctx, ControlPlane, tool, "check", "config", config); err != nil {
		return fmt.Errorf("start Prometheus: %w", err)
	}
	if options.History != "" {
		history := filepath.Join(dir, "history.txt")
		if err := os.WriteFile(history, []byte(options.History), 0o600); err != nil {
			return fmt.Errorf("start Prometheus: %w", err)
		}
		if _, err := l.Exec(
			ctx, ControlPlane, tool, "tsdb", "create-blocks-from", "openmetrics", history, data,
		); err != nil {
			return fmt.Errorf("start Prometheus: %w", err)
		}
	}
	if err := process.Start(l.pidFile(prometheusProcess), l.logFile(prometheusProcess), ExecArgv(
		ControlPlane, filepath.Join(programs, "prometheus"), "--config.file="+config, "--storage.tsdb.path="+data,
		"--web.listen-address="+PrometheusAddress,
	)...); err != nil {
		return fmt.Errorf("start Prometheus: %w", err)
	}
	return nil
}

// StopPrometheus ends what StartPrometheus has started.
func (l *Lab) StopPrometheus(ctx context.Context) error {
	return process.Kill(ctx, l.pidFile(prometheusProcess))
}
