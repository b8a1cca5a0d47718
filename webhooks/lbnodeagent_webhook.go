package webhooks

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/agents"
)

// +kubebuilder:webhook:path=/validate-purelb-io-v1-lbnodeagent,mutating=false,failurePolicy=fail,sideEffects=None,timeoutSeconds=5,groups=purelb.io,resources=lbnodeagents,verbs=create;update,versions=v1,name=vlbnodeagent.purelb.io,admissionReviewVersions=v1,serviceName=purelb-webhook,serviceNamespace=purelb-system

// lbNodeAgents refuses LBNodeAgents that an agent could not follow, and warns of nodes that
// the LBNodeAgent does not get, although its author may think so.
type lbNodeAgents struct {
	reader client.Reader
	Options
}

// ValidateCreate checks a new LBNodeAgent.
func (w *lbNodeAgents) ValidateCreate(ctx context.Context, a *v1.LBNodeAgent) (admission.Warnings, error) {
	if err := agents.OutOfScope(a, w.Namespace); err != nil {
		return nil, invalidError("LBNodeAgent", a.Name, append(agents.Validate(a), err))
	}
	return w.validate(ctx, a)
}

// ValidateUpdate checks a change of an LBNodeAgent. A change that leaves the specification
// as it is is never refused.
func (w *lbNodeAgents) ValidateUpdate(ctx context.Context, before, after *v1.LBNodeAgent) (admission.Warnings, error) {
	if equality.Semantic.DeepEqual(before.Spec, after.Spec) {
		return nil, nil
	}
	if err := agents.OutOfScope(after, w.Namespace); err != nil {
		return admission.Warnings{err.Error()}, nil // the object has no effect, whatever it says
	}
	return w.validate(ctx, after)
}

// ValidateDelete has nothing to say: the API server does not ask about deletions.
func (w *lbNodeAgents) ValidateDelete(context.Context, *v1.LBNodeAgent) (admission.Warnings, error) {
	return nil, nil
}

func (w *lbNodeAgents) validate(ctx context.Context, a *v1.LBNodeAgent) (admission.Warnings, error) {
	if errs := agents.Validate(a); len(errs) > 0 {
		return nil, invalidError("LBNodeAgent", a.Name, errs)
	}
	var all v1.LBNodeAgentList
	if err := w.reader.List(ctx, &all, client.InNamespace(w.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("list LBNodeAgents: %w", err))
	}
	var nodes corev1.NodeList
	if err := w.reader.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("list Nodes: %w", err))
	}
	return agents.SelectionWarnings(a, all.Items, nodes.Items), nil
}
