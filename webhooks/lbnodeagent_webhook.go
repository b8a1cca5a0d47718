package webhooks

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers"
	"github.com/purelb/purelb-operator/controllers/agents"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

// +kubebuilder:webhook:path=/validate-purelb-io-v1-lbnodeagent,mutating=false,failurePolicy=fail,sideEffects=None,timeoutSeconds=5,groups=purelb.io,resources=lbnodeagents,verbs=create;update;delete,versions=v1,name=vlbnodeagent.purelb.io,admissionReviewVersions=v1,serviceName=purelb-webhook,serviceNamespace=purelb-system

// lbNodeAgentValidator refuses LBNodeAgents that an agent could not follow, and changes that would
// leave addresses without a node to announce them. It warns of nodes that the LBNodeAgent
// does not get, although its author may think so.
type lbNodeAgentValidator struct {
	reader client.Reader
	// apiReader reads LBNodeAgents from the API server: of two deletions one after the other, the
	// cache may not show the first yet.
	apiReader client.Reader
	reviews   subjectReviewer
	Options
}

var lbNodeAgentResource = schema.GroupResource{Group: v1.GroupVersion.Group, Resource: "lbnodeagents"}

// ValidateCreate checks a new LBNodeAgent.
func (w *lbNodeAgentValidator) ValidateCreate(ctx context.Context, a *v1.LBNodeAgent) (admission.Warnings, error) {
	if err := agents.OutOfScopeError(a, w.Namespace); err != nil {
		return nil, invalidError("LBNodeAgent", a.Name, append(agents.Validate(a), err))
	}
	warnings, err := w.validate(ctx, nil, a)
	if err != nil {
		return warnings, err
	}
	return w.admitWithdrawal(ctx, nil, a, warnings)
}

// ValidateUpdate checks a change of an LBNodeAgent. A change that leaves the specification
// as it is is never refused.
func (w *lbNodeAgentValidator) ValidateUpdate(
	ctx context.Context, before, after *v1.LBNodeAgent,
) (admission.Warnings, error) {
	if equality.Semantic.DeepEqual(before.Spec, after.Spec) {
		return nil, nil
	}
	if err := agents.OutOfScopeError(after, w.Namespace); err != nil {
		return admission.Warnings{err.Error()}, nil // the object has no effect, whatever it says
	}
	warnings, err := w.validate(ctx, before, after)
	if err != nil || agents.StrandingField(before, after) == nil {
		return warnings, err
	}
	return w.admitWithdrawal(ctx, before, after, warnings)
}

// ValidateDelete checks the deletion of an LBNodeAgent.
func (w *lbNodeAgentValidator) ValidateDelete(ctx context.Context, a *v1.LBNodeAgent) (admission.Warnings, error) {
	if a.Namespace != w.Namespace {
		return nil, nil // the object has no effect
	}
	inUse, err := w.describeStranded(ctx, a, nil)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if inUse == "" {
		return nil, nil
	}
	warning, refusal := agents.AdmitWithdrawal(a, inUse)
	if refusal == "" {
		return admission.Warnings{warning}, nil
	}
	return nil, refuseUnlessNamespaceController(ctx, w.reviews, lbNodeAgentResource, a, refusal)
}

// admitWithdrawal refuses, or adds a warning about, addresses that would have no node any more to
// announce them if an LBNodeAgent were changed to after or, where before is nil, created.
func (w *lbNodeAgentValidator) admitWithdrawal(
	ctx context.Context, before, after *v1.LBNodeAgent, warnings admission.Warnings,
) (admission.Warnings, error) {
	inUse, err := w.describeStranded(ctx, before, after)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if inUse == "" {
		return warnings, nil
	}
	warning, refusal := agents.AdmitWithdrawal(after, inUse)
	path := agents.StrandingField(before, after)
	if refusal != "" {
		return warnings, invalidError("LBNodeAgent", after.Name, field.ErrorList{field.Forbidden(path, refusal)})
	}
	return append(warnings, fmt.Sprintf("%s: %s", path, warning)), nil
}

// describeStranded says which addresses would have no node any more to announce them if an LBNodeAgent
// were changed from before to after. Without before it is created, without after deleted. What
// describeStranded returns is empty if there are no such addresses.
func (w *lbNodeAgentValidator) describeStranded(ctx context.Context, before, after *v1.LBNodeAgent) (string, error) {
	var all v1.LBNodeAgentList
	if err := w.apiReader.List(ctx, &all, client.InNamespace(w.Namespace)); err != nil {
		return "", fmt.Errorf("list LBNodeAgents: %w", err)
	}
	others := slices.DeleteFunc(all.Items, func(a v1.LBNodeAgent) bool {
		return before != nil && a.Name == before.Name || after != nil && a.Name == after.Name
	})
	with := func(a *v1.LBNodeAgent) []v1.LBNodeAgent {
		if a == nil {
			return others
		}
		return append(slices.Clone(others), *a)
	}
	stranded, err := controllers.StrandedAddresses(
		ctx, w.reader, w.Namespace, w.IsDefaultLoadBalancer, with(before), with(after),
	)
	if err != nil || len(stranded) == 0 {
		return "", err
	}
	services := map[string]bool{}
	for _, a := range stranded {
		for _, name := range a.Services {
			services[name] = true
		}
	}
	return allocation.DescribeInUse(len(stranded), slices.Sorted(maps.Keys(services))), nil
}

// validate checks an LBNodeAgent that replaces before or, where before is nil, is new.
func (w *lbNodeAgentValidator) validate(
	ctx context.Context, before, a *v1.LBNodeAgent,
) (admission.Warnings, error) {
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
	var announcements v1.AnnouncementList
	if err := w.reader.List(
		ctx, &announcements, client.InNamespace(w.Namespace), client.UnsafeDisableDeepCopy,
	); err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("list Announcements: %w", err))
	}
	if errs := agents.CheckVirtualInterface(before, a, nodes.Items, announcements.Items); len(errs) > 0 {
		return nil, invalidError("LBNodeAgent", a.Name, errs)
	}
	return agents.SelectionWarnings(a, all.Items, nodes.Items), nil
}
