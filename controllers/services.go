package controllers

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

// isOurs reports whether a Service is for us to serve. isDefault is whether we
// serve Services without a class.
func isOurs(svc *corev1.Service, isDefault bool) bool {
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return false
	}
	if svc.Spec.LoadBalancerClass == nil {
		return isDefault
	}
	return *svc.Spec.LoadBalancerClass == v1.LoadBalancerClass
}

// isBranded reports whether we have given a Service addresses.
func isBranded(svc *corev1.Service) bool {
	return svc.Annotations[v1.AnnotationAllocatedBy] == v1.Brand
}

// groupOf is the ServiceGroup that a Service asks for.
func groupOf(svc *corev1.Service) string {
	return cmp.Or(svc.Annotations[v1.AnnotationServiceGroup], v1.DefaultServiceGroup)
}

// ingressOf is the addresses in a Service's status; what is not an address is
// left out.
func ingressOf(svc *corev1.Service) []netip.Addr {
	var addrs []netip.Addr
	for _, in := range svc.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(in.IP); err == nil {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// isPending reports whether a Service waits for an address.
func isPending(svc *corev1.Service) bool {
	return meta.IsStatusConditionFalse(svc.Status.Conditions, v1.ConditionAllocated)
}

// keyOf is namespace/name.
func keyOf(obj client.Object) string { return client.ObjectKeyFromObject(obj).String() }

// listServices lists all Services, oldest first. The objects are the cache's
// own: they must not be changed.
func listServices(ctx context.Context, c client.Reader) ([]corev1.Service, error) {
	var list corev1.ServiceList
	if err := c.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list Services: %w", err)
	}
	services := slices.Clone(list.Items)
	slices.SortFunc(services, func(a, b corev1.Service) int {
		if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
			return c
		}
		return cmp.Compare(keyOf(&a), keyOf(&b))
	})
	return services, nil
}

// inUse is which Service has each address; of two, the older. Addresses of
// Services that are not ours count too: they must not be given away.
// addresses says what a Service has, which may be more than the cache knows.
func inUse(services []corev1.Service, addresses func(*corev1.Service) []netip.Addr) allocation.InUse {
	used := allocation.InUse{}
	for i := range services {
		for _, a := range addresses(&services[i]) {
			if _, taken := used[a]; !taken {
				used[a] = keyOf(&services[i])
			}
		}
	}
	return used
}

// written remembers, for each Service, what the allocator has written and the
// cache does not show yet.
type written map[types.UID]write

type write struct {
	addrs []netip.Addr
	// stale is the resource versions from before the write.
	stale []string
	// doubtful is that nobody knows whether the write went through.
	doubtful bool
}

// note remembers that a Service which the cache shows at the stale resource
// versions is being given addrs, beside what an earlier write may have given it.
// The result takes that back.
func (w written) note(svc *corev1.Service, addrs []netip.Addr, stale ...string) (undo func()) {
	before, wrote := w[svc.UID]
	if wrote && before.doubtful && w.isStale(svc) {
		addrs = append(slices.Clone(addrs), before.addrs...)
	}
	w[svc.UID] = write{addrs: addrs, stale: stale}
	return func() {
		delete(w, svc.UID)
		if wrote {
			w[svc.UID] = before
		}
	}
}

// doubt remembers that the last write may not have gone through.
func (w written) doubt(svc *corev1.Service) {
	if last, wrote := w[svc.UID]; wrote {
		last.doubtful = true
		w[svc.UID] = last
	}
}

// isStale reports whether the cache shows a Service as it was before a write.
func (w written) isStale(svc *corev1.Service) bool {
	last, wrote := w[svc.UID]
	return wrote && slices.Contains(last.stale, svc.ResourceVersion)
}

// isBehind reports whether the cache is certain to show something newer of a
// Service soon.
func (w written) isBehind(svc *corev1.Service) bool { return w.isStale(svc) && !w[svc.UID].doubtful }

// addresses is what a Service has, as far as this process knows: what it shows
// and, until the cache has caught up, what was written.
func (w written) addresses(svc *corev1.Service) []netip.Addr {
	shown := ingressOf(svc)
	if w.isStale(svc) {
		return append(shown, w[svc.UID].addrs...)
	}
	return shown
}

// prune forgets what the cache shows by now, and Services that are gone.
func (w written) prune(services []corev1.Service) {
	current := make(map[types.UID]bool, len(w))
	for i := range services {
		if w.isStale(&services[i]) {
			current[services[i].UID] = true
		}
	}
	for uid := range w {
		if !current[uid] {
			delete(w, uid)
		}
	}
}
