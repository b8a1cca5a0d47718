package allocation

import (
	"net/netip"
	"slices"
)

// InUse is an index of the Services that have addresses in use, by address and by
// sharing key. All of it follows from the Services that were put in. It is not safe for
// concurrent use.
type InUse struct {
	serviceByName     map[string]*Service
	servicesByAddress map[netip.Addr][]*Service // in the order of compareForAddress
	servicesByKey     map[string][]*Service     // in the order of compareForKey
	addresses         addressSet
}

// NewInUse indexes Services.
func NewInUse(services ...*Service) *InUse {
	u := &InUse{
		serviceByName: map[string]*Service{}, servicesByAddress: map[netip.Addr][]*Service{},
		servicesByKey: map[string][]*Service{},
	}
	for _, s := range services {
		u.Put(s)
	}
	return u
}

// Put replaces what the index has of a Service. The caller must not change the Service
// afterwards.
func (u *InUse) Put(s *Service) {
	u.Delete(s.String())
	if len(s.Addresses) == 0 {
		return
	}
	u.serviceByName[s.String()] = s
	for _, a := range s.Addresses {
		if insertSorted(u.servicesByAddress, a, s, compareForAddress(a)) {
			u.addresses.add(a.WithZone(""))
		}
	}
	if s.SharingKey != "" {
		insertSorted(u.servicesByKey, s.SharingKey, s, compareForKey)
	}
}

// Delete removes a Service, by namespace/name.
func (u *InUse) Delete(service string) {
	s := u.serviceByName[service]
	if s == nil {
		return
	}
	delete(u.serviceByName, service)
	for _, a := range s.Addresses {
		removeService(u.servicesByAddress, a, s)
		if len(u.servicesByAddress[a]) == 0 {
			u.addresses.remove(a.WithZone(""))
		}
	}
	removeService(u.servicesByKey, s.SharingKey, s)
}

// ServicesWith returns the Services that have an address in use. The first one keeps the
// address, if they may not share it.
func (u *InUse) ServicesWith(a netip.Addr) []*Service { return u.servicesByAddress[a] }

// otherServiceWith returns a Service that has an address in use and is not the one of a
// name, or nil.
func (u *InUse) otherServiceWith(a netip.Addr, name string) *Service {
	for _, s := range u.servicesByAddress[a] {
		if s.String() != name {
			return s
		}
	}
	return nil
}

// Service returns what the index has of a Service, by namespace/name, or nil if that has
// no addresses.
func (u *InUse) Service(name string) *Service { return u.serviceByName[name] }

// namesWhere lists the Services that isMeant picks, as namespace/name, sorted.
func (u *InUse) namesWhere(isMeant func(*Service) bool) (names []string) {
	for name, s := range u.serviceByName {
		if isMeant(s) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Len is the number of addresses in use.
func (u *InUse) Len() int { return len(u.servicesByAddress) }

// countIn counts the addresses of a range that are in use.
func (u *InUse) countIn(r Range) int64 {
	return int64(u.addresses.countIn(r.Addrs.From(), r.Addrs.To()))
}

// insertSorted adds s to the Services of one key, unless it is there already.
func insertSorted[K comparable](index map[K][]*Service, key K, s *Service, compare func(a, b *Service) int) bool {
	i, found := slices.BinarySearchFunc(index[key], s, compare)
	if !found {
		index[key] = slices.Insert(index[key], i, s)
	}
	return !found
}

func removeService[K comparable](index map[K][]*Service, key K, s *Service) {
	left := slices.DeleteFunc(index[key], func(other *Service) bool { return other == s })
	if len(left) == 0 {
		delete(index, key)
	} else {
		index[key] = left
	}
}
