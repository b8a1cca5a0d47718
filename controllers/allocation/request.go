package allocation

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// Request is what a Service asks for and, as a Holder, what it has.
type Request struct {
	Holder
	// Group that it names, or empty.
	Group string
	// Families in order of preference.
	Families []Family
	Policy   corev1.IPFamilyPolicy
	// Named is the addresses that it asks for, as written, and NamedIn where.
	Named, NamedIn string
	// MultiPool is "true", "false", or anything else for what the group says.
	MultiPool string
}

// RequestOf reads a Service of ours.
func RequestOf(svc *corev1.Service) *Request {
	req := &Request{
		Holder:    *HolderOf(svc, true),
		Group:     svc.Annotations[v1.AnnotationServiceGroup],
		Families:  svc.Spec.IPFamilies,
		Policy:    ptr.Deref(svc.Spec.IPFamilyPolicy, corev1.IPFamilyPolicySingleStack),
		MultiPool: svc.Annotations[v1.AnnotationMultiPool],
	}
	req.Named, req.NamedIn = namedBy(svc)
	return req
}

// namedBy is the addresses that a Service asks for by name, and where it does.
func namedBy(svc *corev1.Service) (list, where string) {
	if list := svc.Annotations[v1.AnnotationAddresses]; strings.TrimSpace(list) != "" {
		return list, "annotation " + v1.AnnotationAddresses
	}
	return svc.Spec.LoadBalancerIP, "spec.loadBalancerIP"
}

// Names reports whether a Service asks for addresses by name.
func Names(svc *corev1.Service) bool {
	list, _ := namedBy(svc)
	return list != ""
}

// parseNamed reads a list of addresses, at most one of each family. families,
// if any are known, is those that may be asked for.
func parseNamed(list, where string, families []Family) (map[Family]netip.Addr, []error) {
	named := map[Family]netip.Addr{}
	if strings.TrimSpace(list) == "" {
		return named, nil
	}
	var errs []error
	for text := range strings.SplitSeq(list, ",") {
		text = strings.TrimSpace(text)
		addr, err := parseAddress(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %q %w", where, text, err))
			continue
		}
		family := FamilyOf(addr)
		other, two := named[family]
		switch {
		case two && other != addr:
			errs = append(errs, fmt.Errorf("%s: %s and %s are both %s: ask for one of each family at most", where, other, addr, family))
		case len(families) > 0 && !slices.Contains(families, family):
			errs = append(errs, fmt.Errorf("%s: %s is %s, which is not in spec.ipFamilies", where, addr, family))
		default:
			named[family] = addr
		}
	}
	return named, errs
}

func parseAddress(s string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(s)
	switch {
	case err != nil:
		return addr, errors.New("is not an address")
	case addr.Is4In6():
		return addr, fmt.Errorf("is an IPv4-mapped IPv6 address; write it as %s", addr.Unmap())
	case addr.Zone() != "":
		return addr, errors.New("has a zone")
	}
	return addr, nil
}

// refusal is why something cannot be had: a reason of package v1, and a message
// for people.
type refusal struct{ reason, message string }

func refuse(reason, format string, args ...any) *refusal {
	return &refusal{reason, fmt.Sprintf(format, args...)}
}

// resolve finds out which addresses are asked for by name, and of which group.
func (d *decision) resolve() *refusal {
	named, errs := parseNamed(d.Named, d.NamedIn, d.Families)
	d.asked = cmp.Or(d.Group, d.present())
	if len(errs) > 0 {
		return refuse(v1.ReasonInvalid, "%v", errors.Join(errs...))
	}
	d.named = named
	if no := d.groupOfNamed(); no != nil {
		return no
	}
	verdict, exists := d.Catalog[d.asked]
	switch {
	case !exists:
		return refuse(v1.ReasonNoSuchGroup, "there is no ServiceGroup %s", d.asked)
	case !verdict.Ready():
		return refuse(v1.ReasonGroupNotReady, "ServiceGroup %s is not ready: %s", d.asked, verdict.Message)
	}
	d.group = &verdict.Group
	return nil
}

// present is the group of what the Service has or, if it has nothing, the one
// for Services that ask for none.
func (d *decision) present() string {
	if len(d.current) > 0 && d.AllocatedFrom != "" {
		return d.AllocatedFrom
	}
	for _, a := range d.current { // to be adopted
		if group, _, pooled := d.Catalog.GroupOf(a); pooled {
			return group.Name
		}
	}
	return v1.DefaultServiceGroup
}

// groupOfNamed makes the group of the addresses asked for the one asked for.
func (d *decision) groupOfNamed() *refusal {
	of, first := "", netip.Addr{}
	for _, family := range d.Families {
		a, ok := d.named[family]
		if !ok {
			continue
		}
		name := d.AllocatedFrom
		if group, r, pooled := d.Catalog.GroupOf(a); pooled {
			name = group.Name
			if why := d.never(a, r); why != nil {
				d.asked = name
				return why
			}
		} else if !slices.Contains(d.current, a) || name == "" {
			return refuse(v1.ReasonAddressOutsidePool, "%s: %s is in no pool of a ServiceGroup that is ready", d.NamedIn, a)
		}
		if of != "" && of != name {
			return refuse(v1.ReasonInvalid, "%s: %s is of ServiceGroup %s, and %s of %s: ask for addresses of one", d.NamedIn, first, of, a, name)
		}
		of, first = name, a
	}
	if of == "" {
		return nil
	}
	if d.Group != "" && d.Group != of {
		d.warning = fmt.Sprintf("annotation %s asks for ServiceGroup %s, but %s is of %s, and that decides", v1.AnnotationServiceGroup, d.Group, first, of)
	}
	d.asked = of
	return nil
}

// never is why an address of a pool is not handed out to anybody, or nil. Who
// has it already may keep and share it.
func (d *decision) never(a netip.Addr, r Range) *refusal {
	if len(d.InUse.Holders(a)) > 0 {
		return nil
	}
	if what, reserved := d.Reserved[a]; reserved {
		return refuse(v1.ReasonAddressInUse, "%s: %s is %s: it is never handed out", d.NamedIn, a, what)
	}
	if !r.usable(a) {
		return refuse(v1.ReasonAddressOutsidePool, "%s: %s", d.NamedIn, r.unusable(a))
	}
	return nil
}
