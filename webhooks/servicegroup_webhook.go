package webhooks

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

// namespaceController deletes what is in a namespace that goes. Refused, it
// would try for ever.
const namespaceController = "system:serviceaccount:kube-system:namespace-controller"

// +kubebuilder:webhook:path=/validate-purelb-io-v1-servicegroup,mutating=false,failurePolicy=fail,sideEffects=None,timeoutSeconds=5,groups=purelb.io,resources=servicegroups,verbs=create;update;delete,versions=v1,name=vservicegroup.purelb.io,admissionReviewVersions=v1,serviceName=purelb-webhook,serviceNamespace=purelb-system

// serviceGroups keeps out ServiceGroups that cannot be allocated from, and
// changes that would pull addresses away from Services.
type serviceGroups struct {
	reader client.Reader
	Options
}

// ValidateCreate is asked about a new ServiceGroup.
func (w *serviceGroups) ValidateCreate(ctx context.Context, sg *v1.ServiceGroup) (admission.Warnings, error) {
	s, err := controllers.Surroundings(ctx, w.reader, w.Namespace)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	warnings, errs := s.AdmitCreate(sg)
	return warnings, invalid("ServiceGroup", sg.Name, errs)
}

// ValidateUpdate is asked about a change of a ServiceGroup.
func (w *serviceGroups) ValidateUpdate(ctx context.Context, before, after *v1.ServiceGroup) (admission.Warnings, error) {
	s, err := w.inUse(ctx)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	warnings, errs := s.AdmitUpdate(before, after)
	return warnings, invalid("ServiceGroup", after.Name, errs)
}

// ValidateDelete is asked about the deletion of a ServiceGroup.
func (w *serviceGroups) ValidateDelete(ctx context.Context, sg *v1.ServiceGroup) (admission.Warnings, error) {
	if req, err := admission.RequestFromContext(ctx); err == nil && req.UserInfo.Username == namespaceController {
		return nil, nil
	}
	s, err := w.inUse(ctx)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	warnings, refusal := s.AdmitDelete(sg)
	if refusal != "" {
		groups := schema.GroupResource{Group: v1.GroupVersion.Group, Resource: "servicegroups"}
		return warnings, apierrors.NewForbidden(groups, sg.Name, errors.New(refusal))
	}
	return warnings, nil
}

// inUse is the surroundings, with what is in use.
func (w *serviceGroups) inUse(ctx context.Context) (*allocation.Surroundings, error) {
	s, err := controllers.Surroundings(ctx, w.reader, w.Namespace)
	if err != nil {
		return nil, err
	}
	s.Neighbours, err = controllers.Neighbours(ctx, w.reader, w.IsDefault)
	return s, err
}

// invalid is the answer for errors in fields, or nil for none.
func invalid(kind, name string, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(v1.GroupVersion.WithKind(kind).GroupKind(), name, errs)
}
