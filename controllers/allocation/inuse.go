package allocation

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// Holder is a Service with addresses, as others who want them see it.
type Holder struct {
	Namespace, Name string
	// Ours is that it is for us to serve.
	Ours bool
	// Created and Branded decide who keeps an address that two have and do not
	// share: one that we gave it to, then the older.
	Created time.Time
	Branded bool
	// SharingKey is by which key it shares now, and AllocatedKey by which it
	// was given what it has.
	SharingKey, AllocatedKey string
	// AllocatedFrom is the group that its addresses were of when it got them.
	AllocatedFrom string
	Ports         []corev1.ServicePort
	Addresses     []netip.Addr
}

// String is namespace/name.
func (h *Holder) String() string { return h.Namespace + "/" + h.Name }

// HolderOf describes a Service. ours is whether it is for us to serve: others
// share with nobody.
func HolderOf(svc *corev1.Service, ours bool) *Holder {
	h := &Holder{
		Namespace: svc.Namespace,
		Name:      svc.Name,
		Ours:      ours,
		Created:   svc.CreationTimestamp.Time,
		Ports:     svc.Spec.Ports,
		Addresses: AddressesOf(svc),
	}
	if ours {
		h.SharingKey = svc.Annotations[v1.AnnotationAllowSharedIP]
		if h.Branded = svc.Annotations[v1.AnnotationAllocatedBy] == v1.Brand; h.Branded {
			h.AllocatedKey = svc.Annotations[v1.AnnotationAllocatedKey]
			h.AllocatedFrom = svc.Annotations[v1.AnnotationAllocatedFrom]
		}
	}
	return h
}

// AddressesOf is the addresses in a Service's status; what is not an address is
// left out.
func AddressesOf(svc *corev1.Service) []netip.Addr {
	var addrs []netip.Addr
	for _, in := range svc.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(in.IP); err == nil {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// before orders those that have one address: the first one keeps it.
func (h *Holder) before(other *Holder) int {
	if h.Branded != other.Branded {
		if h.Branded {
			return -1
		}
		return 1
	}
	return cmp.Or(h.Created.Compare(other.Created), cmp.Compare(h.Namespace, other.Namespace), cmp.Compare(h.Name, other.Name))
}

// InUse is who has each address. It is an index: all of it follows from the
// Services that were put in. It is not safe for concurrent use.
type InUse struct {
	services map[string]*Holder
	holders  map[netip.Addr][]*Holder // who is first keeps it
	sharers  map[string][]*Holder     // by sharing key, in the same order
	taken    addrSet
}

// NewInUse indexes Services.
func NewInUse(holders ...*Holder) *InUse {
	u := &InUse{services: map[string]*Holder{}, holders: map[netip.Addr][]*Holder{}, sharers: map[string][]*Holder{}}
	for _, h := range holders {
		u.Put(h)
	}
	return u
}

// Put replaces what is known of a Service. The Holder must not be changed
// afterwards.
func (u *InUse) Put(h *Holder) {
	u.Delete(h.String())
	if len(h.Addresses) == 0 {
		return
	}
	u.services[h.String()] = h
	for _, a := range h.Addresses {
		if insert(u.holders, a, h) {
			u.taken.add(a.WithZone(""))
		}
	}
	if h.SharingKey != "" {
		insert(u.sharers, h.SharingKey, h)
	}
}

// Delete forgets a Service, by namespace/name.
func (u *InUse) Delete(service string) {
	h := u.services[service]
	if h == nil {
		return
	}
	delete(u.services, service)
	for _, a := range h.Addresses {
		remove(u.holders, a, h)
		if len(u.holders[a]) == 0 {
			u.taken.remove(a.WithZone(""))
		}
	}
	remove(u.sharers, h.SharingKey, h)
}

// Holders is who has an address; the first one keeps it if they do not share.
func (u *InUse) Holders(a netip.Addr) []*Holder { return u.holders[a] }

// Of is what is known of a Service that has addresses, or nil.
func (u *InUse) Of(service string) *Holder { return u.services[service] }

// Len is how many addresses are in use.
func (u *InUse) Len() int { return len(u.holders) }

// in counts what is in use of a range.
func (u *InUse) in(r Range) int64 { return int64(u.taken.countIn(r.Addrs.From(), r.Addrs.To())) }

// insert adds h to those of one key, unless it is there already.
func insert[K comparable](index map[K][]*Holder, key K, h *Holder) bool {
	i, found := slices.BinarySearchFunc(index[key], h, (*Holder).before)
	if !found {
		index[key] = slices.Insert(index[key], i, h)
	}
	return !found
}

func remove[K comparable](index map[K][]*Holder, key K, h *Holder) {
	left := slices.DeleteFunc(index[key], func(other *Holder) bool { return other == h })
	if len(left) == 0 {
		delete(index, key)
	} else {
		index[key] = left
	}
}
