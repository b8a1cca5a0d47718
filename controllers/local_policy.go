package controllers

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/announced"
)

// overrideLocalPolicy sets externalTrafficPolicy Local of a Service to Cluster where Local
// would lose traffic. The manager writes nothing else of a Service's spec, ever. svc is a
// copy of the cache's object, and afterwards what was written.
//
// The annotation local-override says for which spec this was done. It is written together
// with the policy, and each event goes with a change of it: so each is recorded once, by
// whichever manager makes the change.
func (r *AnnouncedReconciler) overrideLocalPolicy(ctx context.Context, svc *corev1.Service, places []announced.Place) error {
	o := announced.OverrideOf(svc, isOurs(svc, r.IsDefault), places)
	if o.Annotation == svc.Annotations[v1.AnnotationLocalOverride] && !o.ToCluster {
		return nil
	}
	patch := client.MergeFromWithOptions(svc.DeepCopy(), client.MergeFromWithOptimisticLock{})
	if o.Annotation == "" {
		delete(svc.Annotations, v1.AnnotationLocalOverride)
	} else {
		metav1.SetMetaDataAnnotation(&svc.ObjectMeta, v1.AnnotationLocalOverride, o.Annotation)
	}
	if o.ToCluster {
		svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	}
	if err := r.Client.Patch(ctx, svc, patch, client.FieldOwner(ownerLocalPolicy)); err != nil {
		return fmt.Errorf("set externalTrafficPolicy of Service: %w", err)
	}
	if o.Event != "" {
		r.Recorder.Eventf(svc, nil, corev1.EventTypeWarning, o.Event, "Override", "%s", o.Message)
	}
	return nil
}
