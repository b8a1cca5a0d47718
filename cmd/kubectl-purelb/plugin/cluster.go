package plugin

import (
	"context"
	"fmt"
	"strconv"
	"strings"

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
	// IsDefaultLoadBalancer is whether the manager serves Services without a loadBalancerClass.
	IsDefaultLoadBalancer bool
	Admission             *allocation.Admission
	PlacementInputs       placement.Inputs
}

// NewCluster derives from objects what the manager derives from them. The flags of the manager's
// Deployment count; if it cannot be read, their defaults. It is an error if namespace is not where
// PureLB is.
func NewCluster(ctx context.Context, o *Objects, namespace string) (*Cluster, error) {
	if err := checkNamespace(o.LBNodeAgents, namespace); err != nil {
		return nil, err
	}
	c := &Cluster{Objects: o, Namespace: namespace, IsDefaultLoadBalancer: true}
	if d := o.managerDeployment(); d != nil {
		for _, container := range d.Spec.Template.Spec.Containers {
			for _, arg := range container.Args {
				name, text, hasText := strings.Cut(arg, "=")
				if isSet, err := strconv.ParseBool(text); name == "--default-load-balancer" && (!hasText || err == nil) {
					c.IsDefaultLoadBalancer = !hasText || isSet
				}
			}
		}
	}
	var err error
	if c.Admission, err = controllers.AdmissionOfGroups(ctx, o, namespace, c.IsDefaultLoadBalancer); err != nil {
		return nil, err
	}
	c.PlacementInputs, err = controllers.PlacementInputs(
		ctx, o, namespace, c.IsDefaultLoadBalancer, c.livenessOf, newestRenewal(o.Leases),
	)
	return c, err
}

// checkNamespace says where PureLB seems to be, if it is not in namespace: if all LBNodeAgents are
// elsewhere.
func checkNamespace(all []v1.LBNodeAgent, namespace string) error {
	if len(all) == 0 || len(inNamespace(all, namespace)) > 0 {
		return nil
	}
	return fmt.Errorf("namespace %s has no LBNodeAgent, and %s has: if PureLB is there, say --purelb-namespace=%s",
		namespace, all[0].Namespace, all[0].Namespace)
}

// unreadError is the error of a command that cannot do without a kind that is unread.
func (c *Cluster) unreadError(kind string) error {
	return fmt.Errorf("cannot read %s: %s", kind, c.unreadOf(kind)[0].Reason)
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
func (c *Cluster) isOurs(svc *corev1.Service) bool {
	return controllers.IsOurs(svc, c.IsDefaultLoadBalancer)
}
