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
	// Namespace is where ServiceGroups and LBNodeAgents count.
	Namespace string
	// IsDefault is whether Services without a loadBalancerClass are ours.
	IsDefault bool
}

// SetupWithManager serves the webhooks on the manager's webhook server. They
// read from its cache.
func SetupWithManager(mgr ctrl.Manager, o Options) error {
	groups := &serviceGroups{reader: mgr.GetClient(), Options: o}
	if err := ctrl.NewWebhookManagedBy(mgr, &v1.ServiceGroup{}).WithValidator(groups).Complete(); err != nil {
		return fmt.Errorf("set up the webhook for ServiceGroups: %w", err)
	}
	agents := &lbNodeAgents{reader: mgr.GetClient(), Options: o}
	if err := ctrl.NewWebhookManagedBy(mgr, &v1.LBNodeAgent{}).WithValidator(agents).Complete(); err != nil {
		return fmt.Errorf("set up the webhook for LBNodeAgents: %w", err)
	}
	services := ServiceHandler(mgr.GetClient(), mgr.GetScheme(), o)
	mgr.GetWebhookServer().Register(servicePath, &admission.Webhook{Handler: services})
	if err := mgr.AddReadyzCheck("webhook-cache", synced(mgr.GetCache())); err != nil {
		return fmt.Errorf("add the readiness check of the webhooks: %w", err)
	}
	return nil
}

// synced is that the webhooks can answer: asked before, they would fail, or
// keep the API server waiting.
func synced(c cache.Cache) healthz.Checker {
	return func(req *http.Request) error {
		ctx, cancel := context.WithTimeout(req.Context(), 100*time.Millisecond)
		defer cancel()
		if !c.WaitForCacheSync(ctx) {
			return errors.New("the cache is not filled yet")
		}
		return nil
	}
}
