package webhooks

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// Options of the webhooks.
type Options struct {
	// Namespace is the manager's, where ServiceGroups, LBNodeAgents and BGPPeers have an effect.
	Namespace string
	// IsDefaultLoadBalancer is whether PureLB serves Services without a loadBalancerClass.
	IsDefaultLoadBalancer bool
}

// SetupWithManager serves the webhooks on the manager's webhook server. The webhooks
// read from the manager's cache.
func SetupWithManager(mgr ctrl.Manager, o Options) error {
	groups := &serviceGroupValidator{reader: mgr.GetClient(), reviews: mgr.GetClient(), Options: o}
	if err := ctrl.NewWebhookManagedBy(mgr, &v1.ServiceGroup{}).WithValidator(groups).Complete(); err != nil {
		return fmt.Errorf("set up the webhook for ServiceGroups: %w", err)
	}
	agents := &lbNodeAgentValidator{
		reader: mgr.GetClient(), apiReader: mgr.GetAPIReader(), reviews: mgr.GetClient(), Options: o,
	}
	if err := ctrl.NewWebhookManagedBy(mgr, &v1.LBNodeAgent{}).WithValidator(agents).Complete(); err != nil {
		return fmt.Errorf("set up the webhook for LBNodeAgents: %w", err)
	}
	peers := &bgpPeerValidator{reader: mgr.GetClient(), Options: o}
	if err := ctrl.NewWebhookManagedBy(mgr, &v1.BGPPeer{}).WithValidator(peers).Complete(); err != nil {
		return fmt.Errorf("set up the webhook for BGPPeers: %w", err)
	}
	services := ServiceHandler(mgr.GetClient(), mgr.GetScheme(), o)
	mgr.GetWebhookServer().Register(servicePath, &admission.Webhook{Handler: services})
	return nil
}

// cacheCheckTimeout is how long one readiness check waits for the cache. The kubelet gives a
// check one second.
const cacheCheckTimeout = 100 * time.Millisecond

// CacheCheck returns a readiness check that fails until the cache is filled. Before that, the
// webhooks would fail, or keep the API server waiting.
func CacheCheck(c cache.Cache) healthz.Checker {
	return func(req *http.Request) error {
		ctx, cancel := context.WithTimeout(req.Context(), cacheCheckTimeout)
		defer cancel()
		if !c.WaitForCacheSync(ctx) {
			return errors.New("the cache is not filled yet")
		}
		return nil
	}
}
