package webhooks

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/routing"
)

// +kubebuilder:webhook:path=/validate-purelb-io-v1-servicegroup,mutating=false,failurePolicy=fail,sideEffects=None,timeoutSeconds=5,groups=purelb.io,resources=servicegroups,verbs=create;update;delete,versions=v1,name=vservicegroup.purelb.io,admissionReviewVersions=v1,serviceName=purelb-webhook,serviceNamespace=purelb-system

// serviceGroupValidator refuses ServiceGroups that the manager could not allocate from, and changes
// that would leave allocated addresses outside every pool.
type serviceGroupValidator struct {
	reader  client.Reader
	reviews subjectReviewer
	Options
}

var serviceGroupResource = schema.GroupResource{Group: v1.GroupVersion.Group, Resource: "servicegroups"}

// ValidateCreate checks a new ServiceGroup.
func (w *serviceGroupValidator) ValidateCreate(ctx context.Context, sg *v1.ServiceGroup) (admission.Warnings, error) {
	a, err := w.admissionWithInUse(ctx)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	warnings, errs := a.AdmitCreate(sg)
	bgpWarnings, bgpErrs, err := w.admitBGP(ctx, a, nil, sg)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return append(warnings, bgpWarnings...), invalidError("ServiceGroup", sg.Name, append(errs, bgpErrs...))
}

// ValidateUpdate checks a change of a ServiceGroup.
func (w *serviceGroupValidator) ValidateUpdate(
	ctx context.Context, before, after *v1.ServiceGroup,
) (admission.Warnings, error) {
	a, err := w.admissionWithInUse(ctx)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	warnings, errs := a.AdmitUpdate(before, after)
	if !equality.Semantic.DeepEqual(before.Spec, after.Spec) {
		bgpWarnings, bgpErrs, err := w.admitBGP(ctx, a, before, after)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		warnings, errs = append(warnings, bgpWarnings...), append(errs, bgpErrs...)
	}
	return warnings, invalidError("ServiceGroup", after.Name, errs)
}

// admitBGP checks how the addresses of a ServiceGroup are advertised that is created or, with before, changed.
func (w *serviceGroupValidator) admitBGP(
	ctx context.Context, a *allocation.Admission, before, sg *v1.ServiceGroup,
) (admission.Warnings, field.ErrorList, error) {
	if sg.Namespace != w.Namespace {
		return nil, nil, nil // the group has no effect
	}
	peers, err := controllers.ListBGPPeers(ctx, w.reader, w.Namespace)
	if err != nil {
		return nil, nil, err
	}
	warnings, errs := routing.AdmitGroup(before, sg, a.Groups, peers, a.ServicesWithPolicyLocal(sg.Name))
	return warnings, errs, nil
}

// ValidateDelete checks the deletion of a ServiceGroup.
func (w *serviceGroupValidator) ValidateDelete(ctx context.Context, sg *v1.ServiceGroup) (admission.Warnings, error) {
	a, err := w.admissionWithInUse(ctx)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	warnings, refusal := a.AdmitDelete(sg)
	if refusal == "" {
		return warnings, nil
	}
	return nil, refuseUnlessNamespaceController(ctx, w.reviews, serviceGroupResource, sg, refusal)
}

// admissionWithInUse reads what a change of a ServiceGroup is checked against.
func (w *serviceGroupValidator) admissionWithInUse(ctx context.Context) (*allocation.Admission, error) {
	return controllers.AdmissionOfGroups(ctx, w.reader, w.Namespace, w.IsDefaultLoadBalancer)
}

// invalidError returns the answer for errors in fields, or nil if there are none.
func invalidError(kind, name string, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(v1.GroupVersion.WithKind(kind).GroupKind(), name, errs)
}
