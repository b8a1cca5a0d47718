package webhooks

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers"
	"github.com/purelb/purelb-operator/controllers/routing"
)

// +kubebuilder:webhook:path=/validate-purelb-io-v1-bgppeer,mutating=false,failurePolicy=fail,sideEffects=None,timeoutSeconds=5,groups=purelb.io,resources=bgppeers,verbs=create;update,versions=v1,name=vbgppeer.purelb.io,admissionReviewVersions=v1,serviceName=purelb-webhook,serviceNamespace=purelb-system

// bgpPeerValidator refuses BGPPeers that no speaker could follow, and warns of nodes that do not get the
// session that the author may think they do.
type bgpPeerValidator struct {
	reader client.Reader
	Options
}

// ValidateCreate checks a new BGPPeer.
func (w *bgpPeerValidator) ValidateCreate(ctx context.Context, p *v1.BGPPeer) (admission.Warnings, error) {
	if err := routing.OutOfScopeError(p, w.Namespace); err != nil {
		return nil, invalidError("BGPPeer", p.Name, append(routing.Validate(p), err))
	}
	return w.admit(ctx, p)
}

// ValidateUpdate checks a change of a BGPPeer. A change that leaves the specification as it is
// is never refused.
func (w *bgpPeerValidator) ValidateUpdate(ctx context.Context, before, after *v1.BGPPeer) (admission.Warnings, error) {
	if equality.Semantic.DeepEqual(before.Spec, after.Spec) {
		return nil, nil
	}
	if err := routing.OutOfScopeError(after, w.Namespace); err != nil {
		return admission.Warnings{err.Error()}, nil // the object has no effect, whatever it says
	}
	return w.admit(ctx, after)
}

// ValidateDelete has nothing to say: the API server does not ask about deletions.
func (w *bgpPeerValidator) ValidateDelete(context.Context, *v1.BGPPeer) (admission.Warnings, error) {
	return nil, nil
}

// admit refuses a BGPPeer by its own specification, and warns of what others and nodes make of it.
func (w *bgpPeerValidator) admit(ctx context.Context, p *v1.BGPPeer) (admission.Warnings, error) {
	if errs := routing.Validate(p); len(errs) > 0 {
		return nil, invalidError("BGPPeer", p.Name, errs)
	}
	peers, err := controllers.ListBGPPeers(ctx, w.reader, w.Namespace)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	nodes, _, err := controllers.RoutingNodes(ctx, w.reader, w.Namespace)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return routing.PeerWarnings(p, peers, nodes), nil
}
