package plugin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// managerName is the name of the manager's Deployment, and of the label of its pods.
const managerName = "purelb-manager"

// Cluster is a cluster as the plugin read it, and what the manager derives from that.
type Cluster struct {
	*Objects
	// Namespace is the manager's.
	Namespace string
	// IsDefault is whether the manager serves Services without a loadBalancerClass.
	IsDefault bool
	Admission *allocation.Admission
	Inputs    placement.Inputs
}

// NewCluster derives from objects what the manager derives from them. The flags of the manager's
// Deployment count; if it cannot be read, their defaults.
func NewCluster(ctx context.Context, o *Objects, namespace string) (*Cluster, error) {
	c := &Cluster{Objects: o, Namespace: namespace, IsDefault: true}
	for i := range o.Deployments {
		if d := &o.Deployments[i]; d.Name == managerName {
			for _, container := range d.Spec.Template.Spec.Containers {
				c.IsDefault = c.IsDefault && !slices.Contains(container.Args, "--default-load-balancer=false")
			}
		}
	}
	var err error
	if c.Admission, err = controllers.AdmissionOf(ctx, o, namespace); err != nil {
		return nil, err
	}
	if c.Admission.InUse, err = controllers.InUse(ctx, o, c.IsDefault); err != nil {
		return nil, err
	}
	newest := newestRenewal(o.Leases)
	c.Inputs, err = controllers.PlacementInputs(ctx, o, namespace, c.IsDefault, c.livenessAt(newest), newest)
	return c, err
}

// newestRenewal is when the last of all Leases was renewed: the leading manager renews its own
// every two seconds, so this is the time of the cluster, whatever clock the user's machine has.
func newestRenewal(leases []coordinationv1.Lease) time.Time {
	var newest time.Time
	for i := range leases {
		if t := leases[i].Spec.RenewTime; t != nil && t.After(newest) {
			newest = t.Time
		}
	}
	return newest
}

// livenessAt returns what the Leases say of agents. Where Leases could not be read, every agent
// counts as alive.
func (c *Cluster) livenessAt(now time.Time) func(node string) placement.Liveness {
	leaseOfNode := map[string]*coordinationv1.Lease{}
	for i := range c.Leases {
		if name, isAgents := strings.CutPrefix(c.Leases[i].Name, v1.LeasePrefix); isAgents {
			leaseOfNode[name] = &c.Leases[i]
		}
	}
	return func(node string) placement.Liveness {
		if c.isUnread("Leases") {
			return placement.Fresh
		}
		lease := leaseOfNode[node]
		if lease == nil || lease.Spec.RenewTime == nil || lease.Spec.LeaseDurationSeconds == nil {
			return placement.Expired
		}
		duration := time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second
		switch age := now.Sub(lease.Spec.RenewTime.Time); {
		case age >= duration:
			return placement.Expired
		case age > duration*2/3:
			return placement.Late
		}
		return placement.Fresh
	}
}

func (c *Cluster) isUnread(kind string) bool {
	return slices.ContainsFunc(c.Unread, func(u Unread) bool { return u.Kind == kind })
}

// cannotRead is the error of a command that cannot do without a kind that is unread.
func (c *Cluster) cannotRead(kind string) error {
	i := slices.IndexFunc(c.Unread, func(u Unread) bool { return u.Kind == kind })
	return fmt.Errorf("cannot read %s: %s", kind, c.Unread[i].Reason)
}

// service returns a Service, or nil.
func (c *Cluster) service(namespace, name string) *corev1.Service {
	for i := range c.Services {
		if s := &c.Services[i]; s.Namespace == namespace && s.Name == name {
			return s
		}
	}
	return nil
}

// isOurs reports whether PureLB serves a Service.
func (c *Cluster) isOurs(svc *corev1.Service) bool { return controllers.IsOurs(svc, c.IsDefault) }

func keyOf(svc *corev1.Service) string { return svc.Namespace + "/" + svc.Name }
