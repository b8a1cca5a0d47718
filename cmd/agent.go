package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/purelb/purelb-operator/internal/footprint"
	"github.com/purelb/purelb-operator/nodeagent"
	"github.com/purelb/purelb-operator/nodeagent/link"
	"github.com/purelb/purelb-operator/nodeagent/neigh"
)

// An agent runs on every node, so it is to be small.
const (
	// gcPercent is half the usual growth of the heap between collections: so
	// little is allocated that it costs next to nothing.
	gcPercent = 50
	// maxProcs is enough for what an agent does, which is mostly to wait. Go would
	// use, and keep memory for, each processor of the node: some 5 MiB for 64.
	maxProcs = 1
	// startTime is after how long the memory that only the start needs is given
	// back.
	startTime = 15 * time.Second
)

type agentOptions struct {
	nodeName    string
	namespace   string
	lbNodeAgent string
	checkpoint  string
	serving
}

func newAgentCommand() *cobra.Command {
	var o agentOptions
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Make this node announce the addresses that it is given",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return runAgent(cmd.Context(), o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.nodeName, "node-name", "", "name of the node that the agent runs on")
	f.StringVar(&o.namespace, "namespace", "purelb-system", "namespace of the manager, its LBNodeAgents and Announcements")
	f.StringVar(&o.lbNodeAgent, "lbnodeagent", "default", "name of the LBNodeAgent whose settings apply")
	f.StringVar(&o.checkpoint, "checkpoint", "", "file in which to keep what the agent was last told, for a start while the API server is away; none if empty")
	o.addFlags(f, ":7472", ":7473")
	return cmd
}

// openKernel opens the kernel. Where it does not say which addresses are ours, that
// is kept beside the checkpoint.
func (o agentOptions) openKernel(logger logr.Logger) (*link.Netlink, error) {
	if o.checkpoint == "" {
		return link.Open(nil)
	}
	ledger, err := link.OpenLedger(filepath.Join(filepath.Dir(o.checkpoint), "addresses.json"))
	if err != nil {
		logger.Error(err, "On a kernel before 5.18, addresses of an earlier run of the agent are not known to be its own")
	}
	return link.Open(ledger)
}

func runAgent(ctx context.Context, o agentOptions) error {
	if o.nodeName == "" {
		return errors.New("--node-name is needed")
	}
	logger, err := newLogger(o.logLevel)
	if err != nil {
		return err
	}
	ctrl.SetLogger(logger)
	debug.SetGCPercent(gcPercent)
	runtime.GOMAXPROCS(maxProcs)
	kernel, err := o.openKernel(logger)
	if err != nil {
		return err
	}
	neighbours, err := neigh.Open()
	if err != nil {
		return err
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	// The API server's own fairness is what limits an agent.
	config.QPS = -1
	dialer := nodeagent.NewDialer()
	config.Dial = dialer.DialContext

	options, err := nodeagent.ManagerOptions(o.nodeName, o.namespace, o.lbNodeAgent)
	if err != nil {
		return err
	}
	options.Metrics = o.metricsOptions()
	options.HealthProbeBindAddress = o.healthAddress
	mgr, err := ctrl.NewManager(config, options)
	if err != nil {
		return fmt.Errorf("make the manager: %w", err)
	}
	agent := &nodeagent.Agent{
		Client:      mgr.GetClient(),
		Live:        mgr.GetAPIReader(),
		Kernel:      kernel,
		Neighbours:  neighbours,
		Proxy:       nodeagent.HTTPProxy{},
		Metrics:     nodeagent.NewMetrics(metrics.Registry),
		NodeName:    o.nodeName,
		Namespace:   o.namespace,
		LBNodeAgent: o.lbNodeAgent,
		Checkpoint:  o.checkpoint,
		Reconnect:   dialer.CloseAll,
	}
	if err := agent.SetupWithManager(mgr); err != nil {
		return fmt.Errorf("set up the agent: %w", err)
	}
	trimmer := footprint.Trimmer{After: startTime, Failed: func(err error) { logger.Error(err, "Memory is not given back") }}
	if err := mgr.Add(trimmer); err != nil {
		return fmt.Errorf("set up the agent: %w", err)
	}
	// Whether the API server is there says nothing about the agent: restarting
	// it would not help.
	if err := errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("ping", healthz.Ping)); err != nil {
		return fmt.Errorf("add health checks: %w", err)
	}
	logger.Info("Starting the agent", "version", version, "node", o.nodeName, "namespace", o.namespace, "lbnodeagent", o.lbNodeAgent)
	return mgr.Start(ctx)
}
