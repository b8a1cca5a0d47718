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

// services warns the authors of Services of ours. It never refuses one.
type services struct {
	reader client.Reader
	Options
}

// ServiceHandler advises on Services by what reader has. It never refuses one,
// whatever goes wrong.
func ServiceHandler(reader client.Reader, scheme *runtime.Scheme, o Options) admission.Handler {
	return lenient{admission.WithValidator(scheme, &services{reader: reader, Options: o}).Handler}
}

// ValidateCreate is asked about a new Service.
func (w *services) ValidateCreate(ctx context.Context, svc *corev1.Service) (admission.Warnings, error) {
	return w.advise(ctx, svc), nil
}

// ValidateUpdate is asked about a change of a Service. Where it asks for the
// same as before, its author has been told already.
func (w *services) ValidateUpdate(ctx context.Context, before, after *corev1.Service) (admission.Warnings, error) {
	if !after.DeletionTimestamp.IsZero() || allocation.SameWish(before, after) {
		return nil, nil
	}
	return w.advise(ctx, after), nil
}

// ValidateDelete is never asked.
func (w *services) ValidateDelete(context.Context, *corev1.Service) (admission.Warnings, error) {
	return nil, nil
}

func (w *services) advise(ctx context.Context, svc *corev1.Service) admission.Warnings {
	if !controllers.IsOurs(svc, w.IsDefault) {
		return nil
	}
	s, err := controllers.Surroundings(ctx, w.reader, w.Namespace)
	if err == nil && allocation.NeedsNeighbours(svc) {
		s.Neighbours, err = controllers.Neighbours(ctx, w.reader, w.IsDefault)
	}
	if err != nil {
		log.FromContext(ctx).Error(err, "Cannot advise on Service", "namespace", svc.Namespace, "name", svc.Name)
		return nil
	}
	return s.Advise(svc)
}

// lenient allows what the handler refuses or fails to judge.
type lenient struct{ admission.Handler }

// Handle answers the API server.
func (l lenient) Handle(ctx context.Context, req admission.Request) (response admission.Response) {
	defer func() {
		if p := recover(); p != nil {
			log.FromContext(ctx).Info("Allowed a Service that could not be judged", "namespace", req.Namespace, "name", req.Name, "panic", p)
			response = admission.Allowed("")
		}
	}()
	response = l.Handler.Handle(ctx, req)
	if !response.Allowed {
		log.FromContext(ctx).Info("Allowed a Service that could not be judged", "namespace", req.Namespace, "name", req.Name, "answer", response.Result)
		response = admission.Allowed("")
	}
	return response
}
