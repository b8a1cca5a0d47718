package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers"
	"github.com/purelb/purelb-operator/controllers/agents"
	"github.com/purelb/purelb-operator/internal/informer"
	"github.com/purelb/purelb-operator/webhooks"
	"github.com/purelb/purelb-operator/webhooks/certs"
)

// Leader election of the manager. A leader that stops is replaced at once. One
// that dies is replaced after leaseDuration from when the standby last saw it
// renew, which may be two retries off: a retry takes 1 to 2.2 retryPeriods. That
// is 6.2 s at the most, and leaves room for a failover within single-digit
// seconds when the leader's node was also the holder.
const (
	leaseDuration = 4 * time.Second
	renewDeadline = 3 * time.Second
	retryPeriod   = 500 * time.Millisecond
)

type managerOptions struct {
	namespace           string
	podName             string
	agentImage          string
	agentServiceAccount string
	isDefault           bool
	leaderElect         bool
	serving
	webhookPort    int
	webhookCertDir string
	pprofAddress   string
}

// leaderLease is the Lease of the leading replica.
const leaderLease = "manager.purelb.io"

// Names of what the webhooks' certificate is for, as in config/webhook.
const (
	webhookService       = "purelb-webhook"
	webhookSecret        = "purelb-webhook-certificate"
	webhookConfiguration = "purelb-validating"
)

func newManagerCommand() *cobra.Command {
	var o managerOptions
	cmd := &cobra.Command{
		Use:   "manager",
		Short: "Allocate addresses, place them on nodes, run the agents",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return runManager(cmd.Context(), o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.namespace, "namespace", "purelb-system", "namespace of the manager, its ServiceGroups, LBNodeAgents and Announcements")
	f.StringVar(&o.podName, "pod-name", "", "name of the manager's own pod; its image is the agents', unless --agent-image says otherwise")
	f.StringVar(&o.agentImage, "agent-image", "", "image of agents whose LBNodeAgent names none")
	f.StringVar(&o.agentServiceAccount, "agent-service-account", "purelb-agent", "service account that agents run as")
	f.BoolVar(&o.isDefault, "default-load-balancer", true, "serve Services of type LoadBalancer that have no loadBalancerClass")
	f.BoolVar(&o.leaderElect, "leader-elect", true, "elect one leader among the replicas")
	o.addFlags(f, ":8443", ":8081")
	f.StringVar(&o.pprofAddress, "pprof-bind-address", "0", "where to serve profiles (/debug/pprof), to anybody who can reach it; 0 for nowhere")
	f.IntVar(&o.webhookPort, "webhook-port", 9443, "where to serve admission webhooks; 0 for nowhere")
	f.StringVar(&o.webhookCertDir, "webhook-cert-dir", "/tmp/k8s-webhook-server/serving-certs",
		"folder with tls.crt and tls.key for the webhooks; without them, the manager makes its own certificate")
	return cmd
}

// +kubebuilder:rbac:groups="",resources=pods,namespace=purelb-system,verbs=get
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

func runManager(ctx context.Context, o managerOptions) error {
	logger, err := newLogger(o.logLevel)
	if err != nil {
		return err
	}
	ctrl.SetLogger(logger)
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1.AddToScheme(scheme)); err != nil {
		return fmt.Errorf("make the scheme: %w", err)
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	// The API server's own fairness is what limits the manager: it writes one by
	// one, or a few at the same time, and one address may concern many nodes.
	config.QPS = -1
	ask, err := askForLease(config, o.namespace)
	if err != nil {
		return err
	}
	if err := await(log.IntoContext(ctx, logger), o.healthAddress, awaitInterval, ask); err != nil {
		return err
	}
	var certificate *certs.Source // set before the server starts
	own := o.webhookPort != 0 && !certs.Provided(o.webhookCertDir)
	webhookOptions := webhook.Options{Port: o.webhookPort, CertDir: o.webhookCertDir}
	if own {
		webhookOptions.TLSOpts = []func(*tls.Config){func(c *tls.Config) { certificate.Configure(c) }}
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                        scheme,
		WebhookServer:                 webhook.NewServer(webhookOptions),
		Cache:                         cacheOptions(o.namespace),
		Metrics:                       o.metricsOptions(),
		HealthProbeBindAddress:        o.healthAddress,
		PprofBindAddress:              o.pprofAddress,
		LeaderElection:                o.leaderElect,
		LeaderElectionID:              leaderLease,
		LeaderElectionNamespace:       o.namespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 ptr.To(leaseDuration),
		RenewDeadline:                 ptr.To(renewDeadline),
		RetryPeriod:                   ptr.To(retryPeriod),
	})
	if err != nil {
		return fmt.Errorf("make the manager: %w", err)
	}
	image, err := agentImage(ctx, mgr.GetAPIReader(), o)
	if err != nil {
		return err
	}
	if err := errors.Join(setUp(ctx, mgr, o, image), setUpPolicies(ctx, mgr, o)); err != nil {
		return err
	}
	if err := errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("ping", healthz.Ping)); err != nil {
		return fmt.Errorf("add health checks: %w", err)
	}
	if own {
		if certificate, err = newCertificate(ctx, mgr, o.namespace); err != nil {
			return err
		}
		defer certificate.Close()
		if err := mgr.AddReadyzCheck("certificate", certificate.Ready); err != nil {
			return fmt.Errorf("add health checks: %w", err)
		}
	}
	if o.webhookPort != 0 {
		if err := setUpWebhooks(mgr, o); err != nil {
			return err
		}
	}
	logger.Info("Starting the manager", "version", version, "namespace", o.namespace, "agentImage", image)
	return mgr.Start(ctx)
}

// newCertificate makes the webhooks' certificate the manager's own affair.
func newCertificate(ctx context.Context, mgr manager.Manager, namespace string) (*certs.Source, error) {
	// The manager's client reads from its cache, which does not run yet.
	direct, err := client.New(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme()})
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return certs.New(ctx, mgr, direct, certs.Options{
		Namespace: namespace, Secret: webhookSecret, Service: webhookService, Configuration: webhookConfiguration,
	})
}

// setUpWebhooks serves them on every replica, which is ready only when they
// answer.
func setUpWebhooks(mgr manager.Manager, o managerOptions) error {
	if err := webhooks.SetupWithManager(mgr, webhooks.Options{Namespace: o.namespace, IsDefault: o.isDefault}); err != nil {
		return fmt.Errorf("set up the webhooks: %w", err)
	}
	if err := mgr.AddReadyzCheck("webhooks", mgr.GetWebhookServer().StartedChecker()); err != nil {
		return fmt.Errorf("add health checks: %w", err)
	}
	return nil
}

// cacheOptions limits what is watched to what is used: of our own kinds, all
// but ServiceGroups only in our namespace; of policies, our own.
func cacheOptions(namespace string) cache.Options {
	own := cache.ByObject{Namespaces: map[string]cache.Config{namespace: {}}}
	policies := cache.ByObject{Label: labels.SelectorFromSet(controllers.PolicyLabels())}
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		NewInformer:      informer.NewPersistent,
		ByObject: map[client.Object]cache.ByObject{
			&v1.LBNodeAgent{}:                               own,
			&v1.Announcement{}:                              own,
			&v1.CommonAnnouncement{}:                        own,
			&appsv1.DaemonSet{}:                             own,
			&coordinationv1.Lease{}:                         own,
			&discoveryv1.EndpointSlice{}:                    {Transform: slimEndpoints},
			&admissionv1.ValidatingAdmissionPolicy{}:        policies,
			&admissionv1.ValidatingAdmissionPolicyBinding{}: policies,
			&flowcontrolv1.FlowSchema{}:                     policies,
			&corev1.Secret{}: {
				Namespaces: own.Namespaces, Field: fields.OneTermEqualSelector("metadata.name", webhookSecret),
			},
		},
	}
}

// slimEndpoints drops what nobody reads of an EndpointSlice: there are as many as
// there are Services, or more.
func slimEndpoints(obj any) (any, error) {
	slice, ok := obj.(*discoveryv1.EndpointSlice)
	if !ok {
		return obj, nil
	}
	slice.ManagedFields, slice.Ports, slice.Annotations = nil, nil, nil
	for i, e := range slice.Endpoints {
		slice.Endpoints[i] = discoveryv1.Endpoint{NodeName: e.NodeName, Conditions: e.Conditions}
	}
	return slice, nil
}

// agentImage is the image that agents run unless their LBNodeAgent says
// otherwise: by flag, or else the manager's own.
func agentImage(ctx context.Context, c client.Reader, o managerOptions) (string, error) {
	if o.agentImage != "" {
		return o.agentImage, nil
	}
	if o.podName == "" {
		return "", errors.New("either --agent-image or --pod-name is needed")
	}
	pod := &corev1.Pod{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: o.namespace, Name: o.podName}, pod); err != nil {
		return "", fmt.Errorf("look up the manager's own image: %w", err)
	}
	for _, container := range pod.Spec.Containers {
		if container.Name == "manager" {
			return container.Image, nil
		}
	}
	return "", fmt.Errorf("pod %s has no container named manager: set --agent-image", o.podName)
}

// setUp adds the controllers to mgr.
func setUp(ctx context.Context, mgr manager.Manager, o managerOptions, image string) error {
	live := controllers.NewLiveness(time.Now)
	if err := errors.Join(live.Watch(ctx, mgr.GetCache()), mgr.Add(live)); err != nil {
		return fmt.Errorf("watch agents: %w", err)
	}
	// A standby replica is to take over with warm caches.
	for _, kind := range []client.Object{
		&corev1.Service{}, &corev1.Node{}, &appsv1.DaemonSet{}, &discoveryv1.EndpointSlice{},
		&v1.ServiceGroup{}, &v1.LBNodeAgent{}, &v1.Announcement{}, &v1.CommonAnnouncement{},
	} {
		if _, err := mgr.GetCache().GetInformer(ctx, kind, cache.BlockUntilSynced(false)); err != nil {
			return fmt.Errorf("watch %T: %w", kind, err)
		}
	}
	own, reasons := controllers.NewMetrics(metrics.Registry), controllers.NewReasons()
	c := mgr.GetClient()
	recorder := func(name string) events.EventRecorder {
		return controllers.BoundedRecorder{EventRecorder: mgr.GetEventRecorder(name)}
	}
	return errors.Join(
		(&controllers.ServiceReconciler{
			Client: c, Recorder: recorder("purelb-allocator"), Namespace: o.namespace, IsDefault: o.isDefault, Metrics: own,
		}).SetupWithManager(mgr),
		(&controllers.ServiceGroupReconciler{
			Client: c, Recorder: recorder("purelb-servicegroup"), Namespace: o.namespace, Metrics: own,
		}).SetupWithManager(mgr),
		(&controllers.LBNodeAgentReconciler{
			Client: c, Recorder: recorder("purelb-lbnodeagent"), Liveness: live, Namespace: o.namespace,
			Defaults: agents.Defaults{Image: image, ServiceAccount: o.agentServiceAccount},
		}).SetupWithManager(mgr),
		(&controllers.PlacementReconciler{
			Client: c, Recorder: recorder("purelb-placement"), Namespace: o.namespace, IsDefault: o.isDefault, Liveness: live, Now: time.Now,
			Metrics: own, Reasons: reasons,
		}).SetupWithManager(mgr),
		(&controllers.AnnouncedReconciler{
			Client: c, Recorder: recorder("purelb-lbnodeagent"), Namespace: o.namespace, IsDefault: o.isDefault, Reasons: reasons,
		}).SetupWithManager(mgr),
	)
}
