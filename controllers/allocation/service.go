package allocation

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/purelb/purelb-operator/internal/order"
)

// Service is a Service as the allocator sees it: what was allocated to it, which
// addresses it has in use, and how it shares them.
type Service struct {
	Namespace, Name string
	// IsOurs says whether PureLB serves the Service. Any other Service keeps the
	// addresses that it shows, and shares them with nobody.
	IsOurs bool
	// Created decides which of two Services keeps an address that they may not share:
	// the one to which the address is allocated, then the one whose address is not only about
	// to be written, then the one that keeps to its terms, then the older one.
	Created time.Time
	// Allocated is what the manager has allocated to the Service. Other controllers have
	// written every further address that the Service shows.
	Allocated Record
	// SharingKey is the key in the Service's annotation now. Allocated.Key is the key by
	// which the Service was given its addresses.
	SharingKey string
	// IsPolicyLocalUpToGroup says that the Service has externalTrafficPolicy Local, and that
	// its ServiceGroup decides whether the policy stays.
	IsPolicyLocalUpToGroup bool
	// HasPolicyLocal says that the Service has externalTrafficPolicy Local.
	HasPolicyLocal bool
	// Ports are empty unless the Service shares.
	Ports PortSet
	// Addresses are all that the Service has in use: see AddressesAllocatedOrShown. Addresses
	// that the manager is about to write to the Service are among them.
	Addresses []netip.Addr
	// pending are those of Allocated.Addresses that the manager is about to write.
	pending []netip.Addr
}

// String is namespace/name.
func (s *Service) String() string { return s.Namespace + "/" + s.Name }

// unnamedService is how users of one namespace are told of a Service of another one.
const unnamedService = "a Service of another namespace"

// nameFor names the Service to users of a namespace.
func (s *Service) nameFor(namespace string) string {
	return NameFor(namespace, types.NamespacedName{Namespace: s.Namespace, Name: s.Name})
}

// NameFor names a Service to users of a namespace. They learn nothing of the Services of other namespaces.
func NameFor(namespace string, service types.NamespacedName) string {
	if service.Namespace != namespace {
		return unnamedService
	}
	return "Service " + service.String()
}

// ServiceOf describes a Service. isOurs says whether PureLB serves it.
func ServiceOf(svc *corev1.Service, isOurs bool) *Service {
	s := &Service{
		Namespace: svc.Namespace,
		Name:      svc.Name,
		IsOurs:    isOurs,
		Created:   svc.CreationTimestamp.Time,
		Addresses: AddressesAllocatedOrShown(svc),
	}
	if isOurs {
		s.Allocated, s.SharingKey = RecordOf(svc), SharingKeyOf(svc)
		s.HasPolicyLocal, s.IsPolicyLocalUpToGroup = HasPolicyLocal(svc), hasPolicyLocalByGroup(svc)
		if s.SharingKey != "" || s.Allocated.Key != "" {
			s.Ports = PortsOf(svc.Spec.Ports)
		}
	}
	return s
}

// WithPendingAddresses returns a copy of the Service to which addrs are allocated, too:
// the manager is about to write them, or may have written them.
func (s *Service) WithPendingAddresses(addrs []netip.Addr) *Service {
	with := *s
	with.Addresses, with.Allocated.Addresses = union(s.Addresses, addrs), union(s.Allocated.Addresses, addrs)
	with.pending = with.Allocated.Addresses[len(s.Allocated.Addresses):]
	return &with
}

// hasAllocated reports whether the manager has allocated an address to the Service.
func (s *Service) hasAllocated(a netip.Addr) bool { return slices.Contains(s.Allocated.Addresses, a) }

// compareAge orders Services, the older first.
func (s *Service) compareAge(other *Service) int {
	return cmp.Or(
		s.Created.Compare(other.Created), cmp.Compare(s.Namespace, other.Namespace), cmp.Compare(s.Name, other.Name),
	)
}

// compareForKey orders the Services with one sharing key. The key stands for the
// address of the first: Services that have been given addresses come first, then the
// older ones.
func compareForKey(s, other *Service) int {
	return cmp.Or(order.TrueFirst(len(s.Allocated.Addresses) > 0, len(other.Allocated.Addresses) > 0), s.compareAge(other))
}

// keepsSharingTerms reports whether a Service still has the key and no other ports than those by
// which it was given its addresses, and policy Cluster, without which it shares with no other
// namespace. Who adds a port, or changes the key or the policy, does not take an address from
// a Service of another namespace, however old that one is.
func (s *Service) keepsSharingTerms() bool {
	return len(s.Allocated.Ports) == 0 ||
		s.SharingKey == s.Allocated.Key && !s.HasPolicyLocal && s.Allocated.Ports.containsAll(s.Ports)
}

// compareForAddress orders the Services that have an address in use: the first one keeps
// it, if they may not share it. A Service that has the address in its record does not lose
// it to one whose record may never be written, nor to one that departs from its terms.
func compareForAddress(a netip.Addr) func(s, other *Service) int {
	return func(s, other *Service) int {
		return cmp.Or(
			order.TrueFirst(s.hasAllocated(a), other.hasAllocated(a)),
			order.TrueFirst(!slices.Contains(s.pending, a), !slices.Contains(other.pending, a)),
			order.TrueFirst(s.keepsSharingTerms(), other.keepsSharingTerms()),
			s.compareAge(other),
		)
	}
}

// ShownAddresses are the addresses in a Service's status.loadBalancer.ingress, in that
// order. Entries that are not addresses are left out.
func ShownAddresses(svc *corev1.Service) []netip.Addr {
	if len(svc.Status.LoadBalancer.Ingress) == 0 {
		return nil
	}
	addrs := make([]netip.Addr, 0, len(svc.Status.LoadBalancer.Ingress))
	for _, in := range svc.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(in.IP); err == nil {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// AddressesAllocatedOrShown are the addresses that a Service has in use: those that its record
// says are allocated to it, and those that it shows besides. Nobody else is allocated
// any of them. Everything that asks what is in use asks this function.
func AddressesAllocatedOrShown(svc *corev1.Service) []netip.Addr {
	return union(RecordOf(svc).Addresses, ShownAddresses(svc))
}

// union is all of a, then what of b is not in a.
func union(a, b []netip.Addr) []netip.Addr {
	all := slices.Clone(a)
	for _, addr := range b {
		if !slices.Contains(all, addr) {
			all = append(all, addr)
		}
	}
	return all
}
