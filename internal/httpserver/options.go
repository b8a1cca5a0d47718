package httpserver

import (
	"context"
	"errors"

	"github.com/spf13/pflag"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// NoMetrics keeps controller-runtime from serving metrics: this package does.
var NoMetrics = metricsserver.Options{BindAddress: "0"}

// Options say where a program serves metrics and health checks.
type Options struct {
	MetricsAddress string
	MetricsSecure  bool
	HealthAddress  string
}

// AddFlags adds the flags, with a program's default addresses.
func (o *Options) AddFlags(f *pflag.FlagSet, metricsAddress, healthAddress string) {
	f.StringVar(
		&o.MetricsAddress, "metrics-bind-address", metricsAddress, "address on which to serve metrics; 0 to serve none",
	)
	f.BoolVar(
		&o.MetricsSecure, "metrics-secure", true,
		"serve metrics over HTTPS, and only to clients that the API server authenticates and authorizes",
	)
	f.StringVar(
		&o.HealthAddress, "health-probe-bind-address", healthAddress, "address on which to serve /healthz and /readyz",
	)
}

// AddTo makes a manager serve metrics and health checks, from its start on.
func (o *Options) AddTo(ctx context.Context, mgr manager.Manager, checks Checks) error {
	return errors.Join(
		addMetrics(ctx, mgr, o.MetricsAddress, o.MetricsSecure), addHealth(ctx, mgr, o.HealthAddress, checks),
	)
}
