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

// override sets externalTrafficPolicy Local to Cluster where it would lose
// traffic: the one thing of a Service's spec that is ever written. svc is the
// cache's copy, and is what was written afterwards.
func (r *AnnouncedReconciler) override(ctx context.Context, svc *corev1.Service, places []announced.Place) error {
	o := announced.OverrideOf(svc, places)
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
