// Command speaker advertises the Virtual addresses of its node to routers by BGP. It is a program
// of its own, in the same image as purelb, because the BGP library would make every agent and the
// manager larger by half, in memory and on disk.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/buildinfo"
	"github.com/purelb/purelb-operator/internal/footprint"
	"github.com/purelb/purelb-operator/internal/httpserver"
	"github.com/purelb/purelb-operator/internal/informer"
	"github.com/purelb/purelb-operator/internal/logging"
	"github.com/purelb/purelb-operator/internal/revision"
	"github.com/purelb/purelb-operator/nodeagent/link"
	"github.com/purelb/purelb-operator/nodeagent/speaker"
	"github.com/purelb/purelb-operator/nodeagent/speaker/bfd/udp"
	"github.com/purelb/purelb-operator/nodeagent/speaker/gobgp"
)

const (
	// maxProcs is enough for a speaker, which mostly waits.
	maxProcs = 2
	// restoreCheckInterval is how often a speaker looks whether the API server's database was restored
	// from a backup. There are many speakers, and sessions go on meanwhile.
	restoreCheckInterval = 30 * time.Second
)

// nodeOfRoutingField is the field of NodeRoutings by which the API server selects.
const nodeOfRoutingField = "spec.nodeName"

// version is the version of the program; the linker sets it.
var version = "dev"

type options struct {
	nodeName, namespace   string
	stateDir, passwordDir string
	unitDir               string
	logLevel              string
	httpserver.Options
}

func main() {
	if err := newCommand().ExecuteContext(ctrl.SetupSignalHandler()); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:           "purelb-speaker",
		Short:         "Advertise the Virtual addresses of this node by BGP",
		Version:       version,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.nodeName, "node-name", "", "name of the node on which the speaker runs")
	f.StringVar(&o.namespace, "namespace", "purelb-system", "namespace of the manager and of the NodeRoutings")
	f.StringVar(&o.stateDir, "state-dir", "/var/lib/purelb", "folder for the checkpoint and the lock")
	f.StringVar(
		&o.passwordDir, "password-dir", "/etc/purelb/passwords", "folder with the passwords of neighbours, a file each",
	)
	f.StringVar(
		&o.unitDir, "systemd-unit-dir", "/run/systemd/units",
		"folder in which systemd keeps a link for each active service, by which a shutdown of the node is noticed",
	)
	o.AddFlags(f, ":7474", ":7475")
	logging.AddFlag(f, &o.logLevel)
	return cmd
}

func run(ctx context.Context, o options) error {
	if o.nodeName == "" {
		return errors.New("--node-name is needed")
	}
	logger, err := logging.New(o.logLevel)
	if err != nil {
		return err
	}
	ctrl.SetLogger(logger)
	trimmer := footprint.KeepSmall(logger, maxProcs)
	kernel, err := link.OpenReader(filepath.Join(o.stateDir, link.OwnershipFileName))
	if err != nil {
		return err
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	config.QPS = -1 // the API server limits requests (priority and fairness)
	mgr, err := newManager(config, o)
	if err != nil {
		return err
	}
	buildinfo.Register(metrics.Registry, version)
	s := &speaker.Speaker{
		Cache: mgr.GetCache(), Client: mgr.GetClient(), Kernel: kernel,
		NewBGPServer: func(changed func()) speaker.BGPServer { return gobgp.New(logger.WithName("gobgp"), changed) },
		StartBFD: func(ctx context.Context, changed func(), failed func(netip.Addr)) (speaker.BFD, error) {
			return udp.Start(ctx, logger.WithName("bfd"), changed, failed)
		},
		Hello:         speaker.SendHello,
		ProxyForwards: proxyCheck{proxyHealthURL, proxyMetricsURL}.forwards, Metrics: speaker.NewMetrics(metrics.Registry),
		NodeName: o.nodeName, Namespace: o.namespace, StateDir: o.stateDir, PasswordDir: o.passwordDir,
		UnitDir: o.unitDir,
	}
	// The speaker writes little, but each answer with a list has the version of the whole database.
	restored := &revision.RestoreDetector{Subject: "the list of NodeRoutings", Interval: restoreCheckInterval,
		Read: func(ctx context.Context) (string, error) {
			list := &purelbv1.NodeRoutingList{}
			err := mgr.GetAPIReader().List(
				ctx, list, client.InNamespace(o.namespace), client.MatchingFields{nodeOfRoutingField: o.nodeName},
			)
			return list.ResourceVersion, err
		}}
	if err := errors.Join(
		s.SetupWithManager(mgr), mgr.Add(trimmer), mgr.Add(restored),
		o.AddTo(ctx, mgr, httpserver.Checks{
			Live:  map[string]healthz.Checker{"work": func(*http.Request) error { return s.Healthy() }},
			Ready: map[string]healthz.Checker{"neighbours": func(*http.Request) error { return s.Ready() }},
		}),
	); err != nil {
		return fmt.Errorf("set up the speaker: %w", err)
	}
	logger.Info("Starting the speaker", "version", version, "node", o.nodeName, "namespace", o.namespace)
	return mgr.Start(ctx)
}

// newManager makes a controller manager that watches the node's NodeRouting, and knows its kind
// without asking the API server.
func newManager(config *rest.Config, o options) (ctrl.Manager, error) {
	scheme := k8sruntime.NewScheme()
	if err := purelbv1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("make the scheme: %w", err)
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"NodeRouting", "NodeRoutingList"} {
		mapper.Add(purelbv1.GroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme, Metrics: httpserver.NoMetrics,
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return mapper, nil },
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			NewInformer:      informer.NewPersistent,
			ByObject: map[client.Object]cache.ByObject{
				&purelbv1.NodeRouting{}: {
					Namespaces: map[string]cache.Config{o.namespace: {}},
					Field:      fields.OneTermEqualSelector(nodeOfRoutingField, o.nodeName),
				},
			},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("make the manager: %w", err)
	}
	return mgr, nil
}
