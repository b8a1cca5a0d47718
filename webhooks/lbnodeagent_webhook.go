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

// lbNodeAgents keeps out LBNodeAgents that an agent could not work by, and says
// which nodes are not what the author may think.
type lbNodeAgents struct {
	reader client.Reader
	Options
}

// ValidateCreate is asked about a new LBNodeAgent.
func (w *lbNodeAgents) ValidateCreate(ctx context.Context, a *v1.LBNodeAgent) (admission.Warnings, error) {
	if err := agents.OutOfScope(a, w.Namespace); err != nil {
		return nil, invalid("LBNodeAgent", a.Name, append(agents.Validate(a), err))
	}
	return w.judge(ctx, a)
}

// ValidateUpdate is asked about a change of an LBNodeAgent. One that leaves its
// specification as it is is never refused.
func (w *lbNodeAgents) ValidateUpdate(ctx context.Context, before, after *v1.LBNodeAgent) (admission.Warnings, error) {
	if equality.Semantic.DeepEqual(before.Spec, after.Spec) {
		return nil, nil
	}
	if err := agents.OutOfScope(after, w.Namespace); err != nil {
		return admission.Warnings{err.Error()}, nil // it has no effect, whatever it says
	}
	return w.judge(ctx, after)
}

// ValidateDelete is never asked.
func (w *lbNodeAgents) ValidateDelete(context.Context, *v1.LBNodeAgent) (admission.Warnings, error) {
	return nil, nil
}

func (w *lbNodeAgents) judge(ctx context.Context, a *v1.LBNodeAgent) (admission.Warnings, error) {
	if errs := agents.Validate(a); len(errs) > 0 {
		return nil, invalid("LBNodeAgent", a.Name, errs)
	}
	var all v1.LBNodeAgentList
	if err := w.reader.List(ctx, &all, client.InNamespace(w.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("list LBNodeAgents: %w", err))
	}
	var nodes corev1.NodeList
	if err := w.reader.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("list Nodes: %w", err))
	}
	return agents.Warnings(a, all.Items, nodes.Items), nil
}
