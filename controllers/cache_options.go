package controllers

import (
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/routing"
	"github.com/purelb/purelb-operator/internal/informer"
)

// CacheOptions limits what the manager watches to what it uses: PureLB's own kinds, except
// ServiceGroups, only in the manager's namespace, as well as Secrets; policies only if the manager has
// made them; of the pods only those of speakers.
// Of kinds that others write, the cache keeps what the manager reads.
func CacheOptions(namespace string) cache.Options {
	inNamespace := cache.ByObject{Namespaces: map[string]cache.Config{namespace: {}}}
	policies := cache.ByObject{Label: labels.SelectorFromSet(PolicyLabels())}
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		NewInformer:      informer.NewPersistent,
		ByObject: map[client.Object]cache.ByObject{
			&v1.LBNodeAgent{}:        inNamespace,
			&v1.Announcement{}:       inNamespace,
			&v1.CommonAnnouncement{}: inNamespace,
			&v1.BGPPeer{}:            inNamespace,
			&v1.NodeRouting{}:        inNamespace,
			&appsv1.DaemonSet{}:      inNamespace,
			&coordinationv1.Lease{}: {
				Namespaces: inNamespace.Namespaces, Transform: SlimLease,
			},
			&corev1.Service{}:            {Transform: SlimService},
			&discoveryv1.EndpointSlice{}: {Transform: SlimEndpointSlice},
			&corev1.Node{}:               {Transform: SlimNode},
			&corev1.Pod{}: {
				Namespaces: inNamespace.Namespaces, Label: labels.SelectorFromSet(routing.SpeakerLabels()), Transform: SlimPod,
			},
			&corev1.Namespace{}:                             {Transform: SlimNamespace},
			&admissionv1.ValidatingAdmissionPolicy{}:        policies,
			&admissionv1.ValidatingAdmissionPolicyBinding{}: policies,
			&flowcontrolv1.FlowSchema{}:                     policies,
			&corev1.ServiceAccount{}:                        inNamespace,
			&corev1.Secret{}:                                inNamespace,
		},
	}
}
