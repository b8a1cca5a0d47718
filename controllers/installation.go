package controllers

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/ipam"
)

// installationRecord is the name of the ConfigMap that says, in its key installationKey, of which
// installation the cluster is: with this id IPAM systems have recorded what Services hold. The
// manager makes it before it asks a system for the first time, and never changes it.
//
// A copy of a cluster has the ConfigMap, too. If the copy's manager has another id, it asks no
// system before a person has deleted the ConfigMap.
const (
	installationRecord = "purelb-installation"
	installationKey    = "id"
)

// +kubebuilder:rbac:groups="",resources=namespaces,resourceNames=kube-system,verbs=get
// +kubebuilder:rbac:groups="",resources=configmaps,namespace=purelb-system,verbs=create
// +kubebuilder:rbac:groups="",resources=configmaps,resourceNames=purelb-installation,namespace=purelb-system,verbs=get

// EnsureInstallation returns the manager's id, if the cluster is of that installation, and makes the
// record if there is none.
func (x *ExternalIPAM) EnsureInstallation(ctx context.Context) (types.UID, error) {
	own := x.installationID
	if own == "" {
		namespace := &corev1.Namespace{}
		if err := x.apiReader.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, namespace); err != nil {
			return "", err
		}
		own = namespace.UID
	}
	record, err := x.readInstallation(ctx)
	if apierrors.IsNotFound(err) {
		record = newInstallationRecord(x.namespace, own)
		if err = x.client.Create(ctx, record); apierrors.IsAlreadyExists(err) {
			record, err = x.readInstallation(ctx) // made meanwhile, for another IPAM system
		}
	}
	if err != nil {
		return "", err
	}
	return own, checkInstallation(record, own)
}

// readInstallation reads the record from the API server. Its error is IsNotFound if there is none.
func (x *ExternalIPAM) readInstallation(ctx context.Context) (*corev1.ConfigMap, error) {
	record := &corev1.ConfigMap{}
	err := x.apiReader.Get(ctx, client.ObjectKey{Namespace: x.namespace, Name: installationRecord}, record)
	return record, err
}

func newInstallationRecord(namespace string, own types.UID) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: installationRecord,
			Labels: map[string]string{
				"app.kubernetes.io/managed-by": "purelb-manager", "app.kubernetes.io/part-of": "purelb",
			},
		},
		Data: map[string]string{installationKey: string(own)},
	}
}

// checkInstallation returns an error of type *ipam.Error if a record is of another installation
// than the manager's own.
func checkInstallation(record *corev1.ConfigMap, own types.UID) error {
	recorded := strings.TrimSpace(record.Data[installationKey])
	if recorded == string(own) {
		return nil
	}
	const consequence = allocation.NetboxName + " is asked for nothing, and nothing is changed there"
	name := fmt.Sprintf("ConfigMap %s in namespace %s", record.Name, record.Namespace)
	message := fmt.Sprintf("%s says that this cluster is installation %s, and the manager's id is %s: %s. "+
		"If this cluster is a copy of %s, or is no longer to be %s, delete the ConfigMap: what "+
		allocation.NetboxName+" has recorded for %s then stays as it is. "+
		"Otherwise start the manager with --installation-id=%s",
		name, recorded, own, consequence, recorded, recorded, recorded, recorded)
	if ipam.CheckInstallationID(recorded) != nil {
		message = fmt.Sprintf("%s has no id of an installation in its key %s: %s. "+
			"If the manager's id is the right one, %s, delete the ConfigMap", name, installationKey, consequence, own)
	}
	return &ipam.Error{Reason: v1.ReasonOtherInstallation, Message: message, Scope: ipam.ScopeEndpoint}
}
