package allocation

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// others is who else has an address.
func (d *decision) others(a netip.Addr) []*Holder {
	holders := d.InUse.Holders(a)
	if !slices.ContainsFunc(holders, d.is) {
		return holders
	}
	return slices.DeleteFunc(slices.Clone(holders), d.is)
}

// is reports whether a Holder is the Service itself.
func (d *decision) is(h *Holder) bool { return h.Name == d.Name && h.Namespace == d.Namespace }

// shareable is why the Service cannot come to share an address with those who have
// it, or nil.
func (d *decision) shareable(a netip.Addr) *refusal {
	for _, h := range d.others(a) {
		if h.Ours && d.isTorn(h) {
			return refuse(v1.ReasonSharingRefused, "%s is in use by Service %s, which still shares what it has by the key %q", a, h, h.AllocatedKey)
		}
	}
	return d.unshared(a)
}

// unshared is why the Service does not share an address with those who have it, or
// nil.
func (d *decision) unshared(a netip.Addr) *refusal {
	for _, h := range d.others(a) {
		if no := d.shareWith(a, h); no != nil {
			return no
		}
	}
	return nil
}

// isTorn reports whether a Service cannot share by the key that it has now, because of
// those with whom it shares by the one that it had: see keyFor.
func (d *decision) isTorn(h *Holder) bool {
	its := &decision{Request: &Request{Holder: *h}, Facts: d.Facts}
	return h.AllocatedKey != "" && h.AllocatedKey != h.SharingKey &&
		slices.ContainsFunc(h.Addresses, func(a netip.Addr) bool { return its.unshared(a) != nil })
}

func (d *decision) shareWith(a netip.Addr, h *Holder) *refusal {
	group, _, pooled := d.Catalog.GroupOf(a)
	across := pooled && group.ShareAcrossNamespaces
	switch {
	case d.SharingKey == "":
		return refuse(v1.ReasonAddressInUse, "%s is in use by Service %s", a, h)
	case h.SharingKey == "":
		return refuse(v1.ReasonSharingRefused, "%s is in use by Service %s, which does not share it: it has no annotation %s", a, h, v1.AnnotationAllowSharedIP)
	case h.SharingKey != d.SharingKey:
		return refuse(v1.ReasonSharingRefused, "%s is in use by Service %s, which shares it by the key %q, not %q", a, h, h.SharingKey, d.SharingKey)
	case h.Namespace != d.Namespace && !across:
		return refuse(v1.ReasonSharingRefused, "%s is in use by Service %s of another namespace, and its ServiceGroup does not share across namespaces", a, h)
	}
	if port := commonPort(d.Ports, h.Ports); port != "" {
		return refuse(v1.ReasonPortConflict, "%s cannot be shared with Service %s: both have port %s", a, h, port)
	}
	return nil
}

// keyed is the address that the sharing key stands for in a slot, and the
// Service that decides it: of others with the key, the first that has one.
func (d *decision) keyed(s slot) (netip.Addr, *Holder) {
	if d.SharingKey == "" {
		return netip.Addr{}, nil
	}
	for _, h := range d.InUse.sharers[d.SharingKey] {
		if d.is(h) || h.Namespace != d.Namespace && !d.group.ShareAcrossNamespaces {
			continue
		}
		for _, a := range h.Addresses {
			if FamilyOf(a) == s.family && (s.contains(a) || !s.single && d.isOrphan(a, h.AllocatedFrom)) {
				return a, h
			}
		}
	}
	return netip.Addr{}, nil
}

// contested is what is wrong with an address that the Service has and keeps, if those
// who have it, too, share it no more.
func (d *decision) contested(a netip.Addr) *refusal {
	for _, h := range d.others(a) {
		no := d.shareWith(a, h)
		if no == nil || h.Ours && !d.together(h) && d.before(h) < 0 {
			continue // of two that never shared it, the other is to go
		}
		if no.reason == v1.ReasonAddressInUse {
			no.reason = v1.ReasonSharingRefused
			no.message += fmt.Sprintf(", too, and this one no longer shares it: give both the same annotation %s, or ask for another address", v1.AnnotationAllowSharedIP)
		}
		return no
	}
	return nil
}

// clash is what is wrong with an address that the Service has and keeps for a slot:
// it is contested, or the key stands for another.
func (d *decision) clash(s slot, a netip.Addr) *refusal {
	if no := d.contested(a); no != nil {
		return no
	}
	other, h := d.keyed(s)
	if h == nil || slices.Contains(h.Addresses, a) || d.before(h) < 0 {
		return nil
	}
	return refuse(v1.ReasonSharingRefused, "the sharing key %q stands for %s, which Service %s has, but this one has %s, and keeps it: to share, ask for %s by annotation %s",
		d.SharingKey, other, h, a, other, v1.AnnotationAddresses)
}

// mine is what the Service has, without repetitions and without what others
// have and are to keep; lost says whose that is.
func (d *decision) mine() (current []netip.Addr, lost []string) {
	for _, a := range d.Addresses {
		if slices.Contains(current, a) {
			continue
		}
		winner := slices.IndexFunc(d.others(a), func(h *Holder) bool {
			return !d.together(h) && h.before(&d.Holder) < 0 && d.shareWith(a, h) != nil
		})
		if winner < 0 {
			current = append(current, a)
		} else {
			lost = append(lost, fmt.Sprintf("%s is Service %s's", a, d.others(a)[winner]))
		}
	}
	return current, lost
}

// together reports whether the Service and another have been given their
// addresses by the same sharing key, whatever has become of their annotations.
func (d *decision) together(h *Holder) bool {
	return h.AllocatedKey != "" && h.AllocatedKey == d.AllocatedKey
}

// commonPort is a port that both lists have, such as TCP/80, or empty.
func commonPort(a, b []corev1.ServicePort) string {
	for _, p := range a {
		for _, q := range b {
			if p.Port == q.Port && cmp.Or(p.Protocol, corev1.ProtocolTCP) == cmp.Or(q.Protocol, corev1.ProtocolTCP) {
				return fmt.Sprintf("%s/%d", cmp.Or(p.Protocol, corev1.ProtocolTCP), p.Port)
			}
		}
	}
	return ""
}
