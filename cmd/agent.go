package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/purelb/purelb-operator/internal/buildinfo"
	"github.com/purelb/purelb-operator/internal/footprint"
	"github.com/purelb/purelb-operator/internal/httpserver"
	"github.com/purelb/purelb-operator/internal/logging"
	"github.com/purelb/purelb-operator/nodeagent"
	"github.com/purelb/purelb-operator/nodeagent/link"
	"github.com/purelb/purelb-operator/nodeagent/neigh"
)

// maxProcs is enough for the agent, which mostly waits.
const maxProcs = 1

type agentOptions struct {
	nodeName    string
	namespace   string
	lbNodeAgent string
	checkpoint  string
	httpserver.Options
	logLevel string
}

func newAgentCommand() *cobra.Command {
	var o agentOptions
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Make this node announce the addresses in its Announcements",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return runAgent(cmd.Context(), o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.nodeName, "node-name", "", "name of the node on which the agent runs")
	f.StringVar(&o.namespace, "namespace", "purelb-system", "namespace of the manager, its LBNodeAgents and Announcements")
	f.StringVar(&o.lbNodeAgent, "lbnodeagent", "default", "name of the LBNodeAgent whose settings apply")
	f.StringVar(
		&o.checkpoint, "checkpoint", "",
		"file in which the agent keeps its last Announcements, for a start while the API server is away; empty to keep none",
	)
	o.AddFlags(f, ":7472", ":7473")
	logging.AddFlag(f, &o.logLevel)
	return cmd
}

// openKernel opens the kernel's network interfaces. The file for kernels that keep no tag of
// the agent's addresses is beside the checkpoint.
func (o agentOptions) openKernel(logger logr.Logger) (*link.Netlink, nodeagent.Ownership, error) {
	if o.checkpoint == "" {
		kernel, err := link.Open(nil)
		return kernel, nil, err
	}
	ownership, err := link.OpenOwnershipFile(filepath.Join(filepath.Dir(o.checkpoint), link.OwnershipFileName))
	if err != nil {
		logger.Error(
			err,
			"Cannot read which addresses an earlier run of the agent has added: on a kernel before 5.18 the agent does not "+
				"recognise them",
		)
	}
	kernel, err := link.Open(ownership)
	return kernel, ownership, err
}

func runAgent(ctx context.Context, o agentOptions) error {
	if o.nodeName == "" {
		return errors.New("--node-name is needed")
	}
	logger, err := logging.New(o.logLevel)
	if err != nil {
		return err
	}
	ctrl.SetLogger(logger)
	trimmer := footprint.KeepSmall(logger, maxProcs)
	kernel, ownership, err := o.openKernel(logger)
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
	// The client does not limit its requests; the API server does (priority and fairness).
	config.QPS = -1
	dialer, unacknowledged := nodeagent.NewDialer()
	config.Dial = dialer.DialContext
	if err := nodeagent.PingAPIServer(); err != nil {
		return err
	}

	options, err := nodeagent.ManagerOptions(o.nodeName, o.namespace, o.lbNodeAgent)
	if err != nil {
		return err
	}
	options.Metrics = httpserver.NoMetrics
	mgr, err := ctrl.NewManager(config, options)
	if err != nil {
		return fmt.Errorf("make the manager: %w", err)
	}
	agent := &nodeagent.Agent{
		Client:          mgr.GetClient(),
		APIReader:       mgr.GetAPIReader(),
		Kernel:          kernel,
		Neighbours:      neighbours,
		Proxy:           nodeagent.ProxyHealthCheck{},
		Metrics:         nodeagent.NewMetrics(metrics.Registry),
		NodeName:        o.nodeName,
		Namespace:       o.namespace,
		LBNodeAgentName: o.lbNodeAgent,
		CheckpointPath:  o.checkpoint,
		Ownership:       ownership,
		Reconnect:       dialer.CloseAll,
		Unacknowledged:  unacknowledged,
		OpenExchange:    func(iface string) (nodeagent.Exchange, error) { return neighbours.OpenExchange(iface) },
	}
	if err := agent.SetupWithManager(mgr); err != nil {
		return fmt.Errorf("set up the agent: %w", err)
	}
	if err := mgr.Add(trimmer); err != nil {
		return fmt.Errorf("set up the agent: %w", err)
	}
	// The kubelet restarts an agent that has stopped working. The health check ignores whether
	// the API server answers, because a restart would not change that.
	buildinfo.Register(metrics.Registry, version)
	if err := o.AddTo(ctx, mgr, httpserver.Checks{
		Live:  map[string]healthz.Checker{"work": agent.Healthy},
		Ready: map[string]healthz.Checker{"ping": healthz.Ping},
	}); err != nil {
		return err
	}
	logger.Info(
		"Starting the agent", "version", version, "node", o.nodeName, "namespace", o.namespace, "lbnodeagent", o.lbNodeAgent,
	)
	return mgr.Start(ctx)
}
