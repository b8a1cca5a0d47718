package controllers

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/ipam"
	"github.com/purelb/purelb-operator/controllers/ipam/netbox"
	"github.com/purelb/purelb-operator/internal/tasks"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

// ExternalIPAM connects the allocator with the external IPAM systems of ServiceGroups.
type ExternalIPAM struct {
	client    client.Client
	apiReader client.Reader
	recorder  events.EventRecorder
	namespace string
	// installationID is empty for the UID of the namespace kube-system.
	installationID        types.UID
	isDefaultLoadBalancer bool
	broker                *ipam.Broker
	// index is the allocator's, which takes it from here.
	index *serviceIndex
	// serviceQueue and groupQueue are the queues of the reconcilers, once these run.
	serviceQueue, groupQueue atomic.Pointer[queue]
}

// ExternalIPAMOptions say how to reach external IPAM systems.
type ExternalIPAMOptions struct {
	Recorder              events.EventRecorder
	Namespace             string // the manager's, with the Secrets
	IsDefaultLoadBalancer bool   // PureLB serves Services without a loadBalancerClass
	// InstallationID tells the records of this installation from those of others. If it is
	// empty, the UID of the namespace kube-system does.
	InstallationID types.UID
	Netbox         netbox.Options
	Metrics        *Metrics
	Now            func() time.Time
	// Tasks runs what asks the systems; as goroutines, if it is nil.
	Tasks tasks.Runner
}

// +kubebuilder:rbac:groups="",resources=secrets,namespace=purelb-system,verbs=get

// NewExternalIPAM makes an ExternalIPAM. Until a manager runs it, it asks no system: groups wait.
func NewExternalIPAM(c client.Client, uncached client.Reader, o ExternalIPAMOptions) *ExternalIPAM {
	x := &ExternalIPAM{
		client: c, apiReader: uncached, recorder: o.Recorder, namespace: o.Namespace,
		isDefaultLoadBalancer: o.IsDefaultLoadBalancer,
		installationID:        o.InstallationID, index: newServiceIndex(o.IsDefaultLoadBalancer, o.Now),
	}
	x.broker = ipam.NewBroker(ipam.Options{
		Cluster: x, Now: o.Now, Tasks: o.Tasks,
		NewSystem: func(
			group string, config *allocation.Netbox, token string, installationID types.UID,
		) (ipam.System, error) {
			options := o.Netbox
			options.Now, options.Tasks = o.Now, o.Tasks
			options.Observe = func(outcome string, took time.Duration) { o.Metrics.ObserveIPAMRequest(group, outcome, took) }
			return netbox.NewSystem(config, token, installationID, options)
		},
		OnAnswersChanged: func(name types.NamespacedName) { enqueueIfRunning(&x.serviceQueue, name, 0) },
		OnObservationChanged: func(group string) {
			enqueueIfRunning(&x.groupQueue, types.NamespacedName{Namespace: x.namespace, Name: group}, ipamReportWait)
		},
		OnDifference: x.recordDifference,
	})
	return x
}

// SetupWithManager lets mgr run it while it leads.
func (x *ExternalIPAM) SetupWithManager(mgr interface {
	Add(runnable manager.Runnable) error
},
) error {
	return mgr.Add(x.broker)
}

// enqueueIfRunning enqueues a request, if the queue's reconciler runs.
func enqueueIfRunning(q *atomic.Pointer[queue], name types.NamespacedName, after time.Duration) {
	if to := q.Load(); to != nil {
		(*to).AddAfter(reconcile.Request{NamespacedName: name}, after)
	}
}

// queueSource lets others add to the queue of a reconciler.
func queueSource(to *atomic.Pointer[queue]) source.Source {
	return source.Func(func(_ context.Context, q queue) error {
		to.Store(&q)
		return nil
	})
}

// ownerOf describes a Service as the owner of addresses.
func ownerOf(svc *corev1.Service) ipam.Owner {
	return ipam.Owner{Namespace: svc.Namespace, Name: svc.Name, UID: svc.UID}
}

// releaseRecorded releases those of the addresses that a record says were allocated from an
// external group.
func (x *ExternalIPAM) releaseRecorded(record allocation.Record, addrs []netip.Addr) {
	if record.Type != v1.PoolTypeNetbox {
		return
	}
	for _, a := range addrs {
		if slices.Contains(record.Addresses, a) {
			x.broker.QueueRelease(record.Group, a)
		}
	}
}

// secretURLKey is the key of a Secret that says to which URL its token may be sent. Without it, whoever may
// write ServiceGroups could have the manager send any Secret of its namespace anywhere.
const secretURLKey = "url"

// Token reads the token for a NetBox from its Secret, which has to be for the URL of this NetBox. Its
// errors say nothing of what the Secret holds.
func (x *ExternalIPAM) Token(ctx context.Context, config *allocation.Netbox) (string, error) {
	s := &corev1.Secret{}
	err := x.apiReader.Get(ctx, client.ObjectKey{Namespace: x.namespace, Name: config.TokenSecret}, s)
	name := fmt.Sprintf("Secret %s in namespace %s", config.TokenSecret, x.namespace)
	switch {
	case apierrors.IsNotFound(err):
		return "", tokenError("there is no " + name + ": the token for NetBox is missing")
	case err != nil:
		return "", fmt.Errorf("read Secret %s: %w", config.TokenSecret, err)
	case len(s.Data[config.TokenKey]) == 0:
		return "", tokenError(name + " has no key " + config.TokenKey + ": the token for NetBox is missing")
	case len(s.Data[secretURLKey]) == 0:
		return "", tokenError(
			name + " has no key " + secretURLKey + " with the URL that its token may be sent to: it is sent nowhere",
		)
	case !config.HasURL(string(s.Data[secretURLKey])):
		return "", tokenError(
			name + " has another URL in its key " + secretURLKey + " than " + config.URL + ": its token is not sent there",
		)
	}
	return string(s.Data[config.TokenKey]), nil
}

func tokenError(message string) error {
	return &ipam.Error{Reason: v1.ReasonIPAMUnavailable, Message: message, Scope: ipam.ScopeEndpoint}
}

// Holders returns the addresses that Services have been allocated from a group.
func (x *ExternalIPAM) Holders(ctx context.Context, group string) (map[netip.Addr][]ipam.Owner, error) {
	services, err := listServices(ctx, x.client)
	if err != nil {
		return nil, err
	}
	holders := map[netip.Addr][]ipam.Owner{}
	for i := range services {
		if !IsOurs(&services[i], x.isDefaultLoadBalancer) {
			continue
		}
		if record := allocation.RecordOf(&services[i]); record.Group == group && record.Type == v1.PoolTypeNetbox {
			for _, a := range record.Addresses {
				holders[a] = append(holders[a], ownerOf(&services[i]))
			}
		}
	}
	for _, owners := range holders {
		ipam.SortOwners(owners)
	}
	return holders, nil
}

// IsInUse reports whether any Service has an address, or is about to.
func (x *ExternalIPAM) IsInUse(a netip.Addr) bool {
	return len(x.index.servicesWith([]netip.Addr{a})) > 0
}

// Objection says why an owner cannot have an address of an external group.
func (x *ExternalIPAM) Objection(ctx context.Context, owner ipam.Owner, group string) (func(netip.Addr) string, error) {
	inputs, _, err := allocationInputs(ctx, x.client, x.namespace)
	if err != nil {
		return nil, err
	}
	return func(a netip.Addr) string {
		for _, key := range x.index.servicesWith([]netip.Addr{a}) {
			if key != (client.ObjectKey{Namespace: owner.Namespace, Name: owner.Name}) {
				return fmt.Sprintf("%s is in use by %s", a, allocation.NameFor(owner.Namespace, key))
			}
		}
		return inputs.ObjectionTo(group, a)
	}, nil
}

// recordDifference records an event, for the Service and for its group, about an address of
// which the system has another record than it ought to.
func (x *ExternalIPAM) recordDifference(group string, owner ipam.Owner, text string) {
	text = textlimit.Shorten(text, maxNote)
	if owner.Name != "" {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: owner.Namespace, Name: owner.Name, UID: owner.UID}}
		x.recorder.Eventf(svc, nil, corev1.EventTypeWarning, v1.EventIPAMDrift, "Compare", "%s", text)
	}
	sg := &v1.ServiceGroup{}
	if err := x.client.Get(context.Background(), client.ObjectKey{Namespace: x.namespace, Name: group}, sg); err == nil {
		x.recorder.Eventf(sg, nil, corev1.EventTypeWarning, v1.EventIPAMDrift, "Compare", "%s", text)
	}
}
