package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/component-base/featuregate"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers"
	"github.com/purelb/purelb-operator/controllers/agents"
	"github.com/purelb/purelb-operator/controllers/ipam"
	"github.com/purelb/purelb-operator/controllers/ipam/netbox"
	"github.com/purelb/purelb-operator/internal/buildinfo"
	"github.com/purelb/purelb-operator/internal/features"
	"github.com/purelb/purelb-operator/internal/footprint"
	"github.com/purelb/purelb-operator/internal/httpserver"
	"github.com/purelb/purelb-operator/internal/logging"
	"github.com/purelb/purelb-operator/internal/revision"
	"github.com/purelb/purelb-operator/webhooks"
	"github.com/purelb/purelb-operator/webhooks/certs"
)

type managerOptions struct {
	namespace             string
	podName               string
	agentImage            string
	agentServiceAccount   string
	speakerServiceAccount string
	installationID        string
	isDefaultLoadBalancer bool
	leaderElect           bool
	httpserver.Options
	logLevel       string
	webhookPort    int
	webhookCertDir string
	pprofAddress   string
	features       featuregate.MutableFeatureGate
}

// restoreCheckInterval is how late a manager may learn that the API server's database was
// restored from a backup. An API server begins to answer before much is written to it.
const restoreCheckInterval = 5 * time.Second

// Names of the objects for the webhooks, as in config/webhook.
const (
	webhookService       = "purelb-webhook"
	webhookSecret        = "purelb-webhook-certificate" //nolint:gosec // the name of a Secret
	webhookConfiguration = "purelb-validating"
)

func newManagerCommand(gates featuregate.MutableFeatureGate) *cobra.Command {
	o := managerOptions{features: gates}
	cmd := &cobra.Command{
		Use:   "manager",
		Short: "Allocate addresses to Services, decide which node announces which address, and deploy the agents",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return runManager(cmd.Context(), o) },
	}
	f := cmd.Flags()
	f.StringVar(
		&o.namespace, "namespace", "purelb-system",
		"namespace of the manager, its ServiceGroups, LBNodeAgents and Announcements",
	)
	f.StringVar(
		&o.podName, "pod-name", "", "name of the manager's own pod; agents run its image unless --agent-image is set",
	)
	f.StringVar(&o.agentImage, "agent-image", "", "image of agents whose LBNodeAgent sets no image")
	f.StringVar(&o.agentServiceAccount, "agent-service-account", "purelb-agent", "service account as which agents run")
	f.StringVar(
		&o.speakerServiceAccount, "speaker-service-account", "purelb-speaker", "service account as which speakers run",
	)
	f.StringVar(&o.installationID, "installation-id", "",
		"id that the records of this installation in IPAM systems get, up to 36 characters of a-z, 0-9 and -; "+
			"the UID of the namespace kube-system if it is empty")
	f.BoolVar(
		&o.isDefaultLoadBalancer, "default-load-balancer", true,
		"serve Services of type LoadBalancer that have no loadBalancerClass",
	)
	f.BoolVar(&o.leaderElect, "leader-elect", true, "elect a leader among the replicas; without, every replica acts")
	o.AddFlags(f, ":8443", ":8081")
	logging.AddFlag(f, &o.logLevel)
	o.features.AddFlag(f)
	f.StringVar(
		&o.pprofAddress, "pprof-bind-address", "0",
		"address on which to serve profiles (/debug/pprof) to any client, without authentication; 0 to serve none",
	)
	f.IntVar(&o.webhookPort, "webhook-port", 9443, "port on which to serve the admission webhooks; 0 to serve none")
	f.StringVar(&o.webhookCertDir, "webhook-cert-dir", "/tmp/k8s-webhook-server/serving-certs",
		"folder with tls.crt and tls.key for the webhooks; without these files the manager makes a certificate")
	return cmd
}

// +kubebuilder:rbac:groups="",resources=pods,namespace=purelb-system,verbs=get
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

func runManager(ctx context.Context, o managerOptions) error {
	if o.installationID != "" {
		if err := ipam.CheckInstallationID(o.installationID); err != nil {
			return fmt.Errorf("--installation-id: %w", err)
		}
	}
	logger, err := logging.New(o.logLevel)
	if err != nil {
		return err
	}
	ctrl.SetLogger(logger)
	footprint.LimitHeap(logger)
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	// The client does not limit its requests; the API server does (priority and fairness). The
	// manager writes one object after the other, or a few at a time, and the change of one
	// address may concern many nodes.
	config.QPS = -1
	request, err := leaderLeaseRequest(config, o.namespace)
	if err != nil {
		return err
	}
	if err := awaitAPIServer(log.IntoContext(ctx, logger), o.HealthAddress, awaitInterval, request); err != nil {
		return err
	}
	var certificate *certs.Source // set before the webhook server starts
	makesCertificate := o.webhookPort != 0 && !certs.Provided(o.webhookCertDir)
	webhookOptions := webhooks.ServerOptions{Port: o.webhookPort, CertDir: o.webhookCertDir}
	if makesCertificate {
		webhookOptions.TLS = func(c *tls.Config) { certificate.Configure(c) }
	}
	mgr, err := newManager(config, o, webhookOptions)
	if err != nil {
		return err
	}
	image, err := agentImage(ctx, mgr.GetAPIReader(), o)
	if err != nil {
		return err
	}
	recorded, err := controllers.StartEvents(
		ctx, logger.WithName("events"), mgr.GetConfig(), mgr.GetHTTPClient(), mgr.GetScheme(),
	)
	if err != nil {
		return err
	}
	defer recorded.Stop()
	if err := errors.Join(addControllers(ctx, mgr, o, image, recorded.Recorder), setUpPolicies(ctx, mgr, o)); err != nil {
		return err
	}
	ready := map[string]healthz.Checker{"ping": healthz.Ping}
	if makesCertificate {
		if certificate, err = newCertificate(ctx, mgr, o.namespace); err != nil {
			return err
		}
		defer certificate.Close()
		ready["certificate"] = certificate.Ready
	}
	if o.webhookPort != 0 {
		// Every replica serves the webhooks, and is ready when it can.
		if err := webhooks.SetupWithManager(mgr,
			webhooks.Options{Namespace: o.namespace, IsDefaultLoadBalancer: o.isDefaultLoadBalancer}); err != nil {
			return fmt.Errorf("set up the webhooks: %w", err)
		}
		ready["webhooks"], ready["webhook-cache"] = mgr.GetWebhookServer().StartedChecker(),
			webhooks.CacheCheck(mgr.GetCache())
	}
	buildinfo.Register(metrics.Registry, version)
	if err := o.AddTo(ctx, mgr,
		httpserver.Checks{Live: map[string]healthz.Checker{"ping": healthz.Ping}, Ready: ready}); err != nil {
		return err
	}
	logger.Info(
		"Starting the manager", "version", version, "namespace", o.namespace, "agentImage", image, "wireFailover",
		o.features.Enabled(features.WireFailover),
	)
	return mgr.Start(ctx)
}

// newManager makes the controller-runtime manager, without controllers.
func newManager(config *rest.Config, o managerOptions, webhookOptions webhooks.ServerOptions) (manager.Manager, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("make the scheme: %w", err)
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                        scheme,
		WebhookServer:                 webhooks.NewServer(webhookOptions),
		Cache:                         controllers.CacheOptions(o.namespace),
		Metrics:                       httpserver.NoMetrics,
		PprofBindAddress:              o.pprofAddress,
		LeaderElection:                o.leaderElect,
		LeaderElectionID:              controllers.LeaderLease,
		LeaderElectionNamespace:       o.namespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 ptr.To(controllers.LeaderLeaseDuration),
		RenewDeadline:                 ptr.To(controllers.LeaderRenewDeadline),
		RetryPeriod:                   ptr.To(controllers.LeaderRetryPeriod),
	})
	if err != nil {
		return nil, fmt.Errorf("make the manager: %w", err)
	}
	return mgr, nil
}

// newCertificate makes the manager issue and renew the webhooks' certificate itself.
func newCertificate(ctx context.Context, mgr manager.Manager, namespace string) (*certs.Source, error) {
	// The manager's own client reads from its cache, which does not run yet.
	direct, err := client.New(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme()})
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return certs.New(ctx, mgr, direct, certs.Options{
		Namespace: namespace, Secret: webhookSecret, Service: webhookService, Configuration: webhookConfiguration,
	})
}

// agentImage returns the image of agents whose LBNodeAgent sets none: that of the flag, or else
// the manager's own.
func agentImage(ctx context.Context, c client.Reader, o managerOptions) (string, error) {
	if o.agentImage != "" {
		return o.agentImage, nil
	}
	if o.podName == "" {
		return "", errors.New("either --agent-image or --pod-name is needed")
	}
	pod := &corev1.Pod{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: o.namespace, Name: o.podName}, pod); err != nil {
		return "", fmt.Errorf("find out the manager's own image: %w", err)
	}
	for _, container := range pod.Spec.Containers {
		if container.Name == "manager" {
			return container.Image, nil
		}
	}
	return "", fmt.Errorf("pod %s has no container named manager: set --agent-image", o.podName)
}

// addControllers adds the controllers to mgr, with recorders by name. Every replica watches; only the
// leader's controllers run.
func addControllers(
	ctx context.Context, mgr manager.Manager, o managerOptions, image string, recorder func(string) events.EventRecorder,
) error {
	live := controllers.NewLivenessTracker(time.Now)
	if err := errors.Join(live.Watch(ctx, mgr.GetCache()), mgr.Add(live)); err != nil {
		return fmt.Errorf("watch agents: %w", err)
	}
	// The leader writes its Lease twice a second.
	restored := &revision.RestoreDetector{Subject: "Lease " + controllers.LeaderLease, Interval: restoreCheckInterval,
		Read: func(ctx context.Context) (string, error) {
			lease := &coordinationv1.Lease{}
			err := mgr.GetAPIReader().Get(ctx, client.ObjectKey{Namespace: o.namespace, Name: controllers.LeaderLease}, lease)
			return lease.ResourceVersion, err
		}}
	if err := mgr.Add(restored); err != nil {
		return fmt.Errorf("watch for a restore: %w", err)
	}
	// Every replica fills its caches, so that a standby can lead at once.
	for _, kind := range []client.Object{
		&corev1.Service{}, &corev1.Node{}, controllers.NamespaceMetadata(), &corev1.ServiceAccount{}, &appsv1.DaemonSet{},
		&discoveryv1.EndpointSlice{}, &corev1.Pod{},
		&v1.ServiceGroup{}, &v1.LBNodeAgent{}, &v1.Announcement{}, &v1.CommonAnnouncement{}, &v1.BGPPeer{}, &v1.NodeRouting{},
		&corev1.Secret{},
	} {
		if _, err := mgr.GetCache().GetInformer(ctx, kind, cache.BlockUntilSynced(false)); err != nil {
			return fmt.Errorf("watch %T: %w", kind, err)
		}
	}
	own, reasons := controllers.NewMetrics(metrics.Registry), &controllers.AddressExplanations{}
	c := mgr.GetClient()
	external := controllers.NewExternalIPAM(c, mgr.GetAPIReader(), controllers.ExternalIPAMOptions{
		Recorder: recorder("purelb-allocator"), Namespace: o.namespace,
		IsDefaultLoadBalancer: o.isDefaultLoadBalancer, Metrics: own, Now: time.Now,
		InstallationID: types.UID(o.installationID), Netbox: netbox.Options{Proxy: http.ProxyFromEnvironment},
	})
	return errors.Join(
		external.SetupWithManager(mgr),
		(&controllers.ServiceReconciler{
			Client: c, Recorder: recorder("purelb-allocator"), Namespace: o.namespace,
			IsDefaultLoadBalancer: o.isDefaultLoadBalancer, Metrics: own,
			IPAM: external,
		}).SetupWithManager(mgr),
		(&controllers.ServiceGroupReconciler{
			Client: c, Recorder: recorder("purelb-servicegroup"), Namespace: o.namespace,
			IsDefaultLoadBalancer: o.isDefaultLoadBalancer, Metrics: own,
			IPAM: external,
		}).SetupWithManager(mgr),
		(&controllers.LBNodeAgentReconciler{
			Client: c, Recorder: recorder("purelb-lbnodeagent"), Liveness: live, Namespace: o.namespace,
			Defaults: agents.Defaults{Image: image, ServiceAccount: o.agentServiceAccount},
		}).SetupWithManager(mgr),
		(&controllers.PlacementReconciler{
			Client: c, Recorder: recorder("purelb-placement"), Namespace: o.namespace,
			IsDefaultLoadBalancer: o.isDefaultLoadBalancer, Liveness: live,
			Now:     time.Now,
			Metrics: own, Explanations: reasons, NamesSuccessors: o.features.Enabled(features.WireFailover),
			SlowsLeases: o.features.Enabled(features.SlowLeases),
		}).SetupWithManager(mgr), //nolint:contextcheck // it only adds an index, which waits for nothing
		(&controllers.RoutingReconciler{
			Client: c, Recorder: recorder("purelb-routing"), Namespace: o.namespace, Now: time.Now,
			Defaults: agents.Defaults{Image: image, ServiceAccount: o.speakerServiceAccount},
		}).SetupWithManager(mgr),
		(&controllers.AnnouncedReconciler{
			Client: c, Recorder: recorder("purelb-lbnodeagent"), Namespace: o.namespace,
			IsDefaultLoadBalancer: o.isDefaultLoadBalancer,
			Now:                   time.Now, Explanations: reasons,
		}).SetupWithManager(mgr), //nolint:contextcheck // it only adds an index, which waits for nothing
	)
}
