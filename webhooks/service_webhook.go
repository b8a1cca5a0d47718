package webhooks

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/purelb/purelb-operator/controllers"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

const servicePath = "/validate--v1-service"

// +kubebuilder:webhook:path=/validate--v1-service,mutating=false,failurePolicy=ignore,sideEffects=None,timeoutSeconds=2,groups="",resources=services,verbs=create;update,versions=v1,name=vservice.purelb.io,admissionReviewVersions=v1,serviceName=purelb-webhook,serviceNamespace=purelb-system

// serviceValidator warns the authors of Services that PureLB serves. It never refuses a Service.
type serviceValidator struct {
	reader client.Reader
	Options
}

// ServiceHandler returns a handler that advises on Services by what reader has. The handler
// never refuses a Service, whatever goes wrong.
func ServiceHandler(reader client.Reader, scheme *runtime.Scheme, o Options) admission.Handler {
	return allowingHandler{admission.WithValidator(scheme, &serviceValidator{reader: reader, Options: o}).Handler}
}

// ValidateCreate advises on a new Service.
func (w *serviceValidator) ValidateCreate(ctx context.Context, svc *corev1.Service) (admission.Warnings, error) {
	return w.advise(ctx, svc), nil
}

// ValidateUpdate advises on a change of a Service. If the Service asks for the same as
// before, its author has got the warnings already.
func (w *serviceValidator) ValidateUpdate(
	ctx context.Context, before, after *corev1.Service,
) (admission.Warnings, error) {
	if !after.DeletionTimestamp.IsZero() || allocation.RequestsAlike(before, after) {
		return nil, nil
	}
	return w.advise(ctx, after), nil
}

// ValidateDelete has nothing to say: the API server does not ask about deletions.
func (w *serviceValidator) ValidateDelete(context.Context, *corev1.Service) (admission.Warnings, error) {
	return nil, nil
}

func (w *serviceValidator) advise(ctx context.Context, svc *corev1.Service) admission.Warnings {
	if !controllers.IsOurs(svc, w.IsDefaultLoadBalancer) {
		return nil
	}
	a, err := controllers.AdmissionOf(ctx, w.reader, w.Namespace)
	if err == nil && allocation.DependsOnOtherServices(svc) {
		a.InUse, err = controllers.GatherInUse(ctx, w.reader, w.IsDefaultLoadBalancer)
	}
	if err != nil {
		log.FromContext(ctx).Error(err, "Cannot advise on Service", "namespace", svc.Namespace, "name", svc.Name)
		return nil
	}
	return a.Advise(svc)
}

// allowingHandler allows every request that its handler refuses or fails to answer.
type allowingHandler struct{ admission.Handler }

// Handle answers the API server.
func (h allowingHandler) Handle(ctx context.Context, req admission.Request) (response admission.Response) {
	defer func() {
		if p := recover(); p != nil {
			log.FromContext(ctx).Info(
				"Allowed a Service that could not be checked", "namespace", req.Namespace, "name", req.Name, "panic", p,
			)
			response = admission.Allowed("")
		}
	}()
	response = h.Handler.Handle(ctx, req)
	if !response.Allowed {
		log.FromContext(ctx).Info(
			"Allowed a Service that could not be checked", "namespace", req.Namespace, "name", req.Name, "answer",
			response.Result,
		)
		response = admission.Allowed("")
	}
	return response
}
