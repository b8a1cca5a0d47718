package allocation

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// Request is what a Service asks for, together with what it has.
type Request struct {
	Service
	// RequestedGroup is the ServiceGroup that the Service names, or empty.
	RequestedGroup string
	// Families in order of preference.
	Families     []Family
	FamilyPolicy corev1.IPFamilyPolicy
	// RequestedAddressesText is the list of addresses that the Service asks for, as its author
	// wrote it, and RequestedAddressesIn names the annotation or field.
	RequestedAddressesText, RequestedAddressesIn string
	// MultiPool is "true" or "false". Any other text leaves the choice to the group.
	MultiPool string
	// CommunitiesText is the list of communities that the Service asks for, as its author wrote it.
	CommunitiesText string
	// TooLongMessage says which text on the Service exceeds its bound and was not read, or is
	// empty.
	TooLongMessage string
}

// The manager copies what users write on a Service into conditions, events and records,
// so these texts have bounds, in bytes. No name of a ServiceGroup, and no list of two
// addresses, is longer.
const (
	MaxSharingKey  = 253
	maxGroupName   = 253
	maxAddressList = 1024
	// MaxRequestText is the longest of these bounds. Of a longer text only that it is longer
	// counts.
	MaxRequestText = maxAddressList
)

// SharingKeyOf returns the sharing key of a Service. It is empty if the Service has none,
// or one longer than MaxSharingKey.
func SharingKeyOf(svc *corev1.Service) string {
	return emptyIfLonger(svc.Annotations[v1.AnnotationAllowSharedIP], MaxSharingKey)
}

// RequestedGroup returns the ServiceGroup that a Service names. It is empty if the Service
// names none, or a text longer than a name can be.
func RequestedGroup(svc *corev1.Service) string {
	return emptyIfLonger(svc.Annotations[v1.AnnotationServiceGroup], maxGroupName)
}

func emptyIfLonger(text string, most int) string {
	if len(text) > most {
		return ""
	}
	return text
}

// describeTooLong says which request on a Service is longer than it may be, or returns an
// empty text.
func describeTooLong(svc *corev1.Service) string {
	list, where := requestedAddresses(svc)
	for _, request := range []struct {
		where, text string
		most        int
	}{
		{"annotation " + v1.AnnotationServiceGroup, svc.Annotations[v1.AnnotationServiceGroup], maxGroupName},
		{"annotation " + v1.AnnotationAllowSharedIP, svc.Annotations[v1.AnnotationAllowSharedIP], MaxSharingKey},
		{where, list, maxAddressList},
	} {
		if len(request.text) > request.most {
			return fmt.Sprintf("%s is too long: it may have %d bytes", request.where, request.most)
		}
	}
	return ""
}

// RequestOf reads what a Service that PureLB serves asks for and has.
func RequestOf(svc *corev1.Service) *Request {
	req := &Request{
		Service:         *ServiceOf(svc, true),
		RequestedGroup:  RequestedGroup(svc),
		Families:        svc.Spec.IPFamilies,
		FamilyPolicy:    ptr.Deref(svc.Spec.IPFamilyPolicy, corev1.IPFamilyPolicySingleStack),
		MultiPool:       svc.Annotations[v1.AnnotationMultiPool],
		CommunitiesText: CommunitiesText(svc),
		TooLongMessage:  describeTooLong(svc),
	}
	req.RequestedAddressesText, req.RequestedAddressesIn = requestedAddresses(svc)
	req.RequestedAddressesText = emptyIfLonger(req.RequestedAddressesText, maxAddressList)
	return req
}

// requestedAddresses returns the list of addresses that a Service asks for, and the
// annotation or field that the list is in.
func requestedAddresses(svc *corev1.Service) (list, where string) {
	if list := svc.Annotations[v1.AnnotationAddresses]; strings.TrimSpace(list) != "" {
		return list, "annotation " + v1.AnnotationAddresses
	}
	return svc.Spec.LoadBalancerIP, "spec.loadBalancerIP"
}

// RequestsAddresses reports whether a Service asks for particular addresses.
func RequestsAddresses(svc *corev1.Service) bool {
	list, _ := requestedAddresses(svc)
	return list != ""
}

// AddressesByFamily returns the addresses that a request asks for, at most one of each family, and why it cannot be
// fulfilled by any ServiceGroup; why is empty if one may.
func (r *Request) AddressesByFamily() (byFamily map[Family]netip.Addr, why string) {
	byFamily, errs := parseRequestedAddresses(r.RequestedAddressesText, r.RequestedAddressesIn, r.Families)
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	return byFamily, strings.Join(texts, "; ")
}

// parseRequestedAddresses reads a list of addresses, at most one of each family. A
// Service may ask for addresses of its families only, unless families is empty.
func parseRequestedAddresses(list, where string, families []Family) (map[Family]netip.Addr, []error) {
	byFamily := map[Family]netip.Addr{}
	if strings.TrimSpace(list) == "" {
		return byFamily, nil
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
		other, isSecond := byFamily[family]
		switch {
		case isSecond && other != addr:
			errs = append(
				errs, fmt.Errorf("%s: %s and %s are both %s: ask for one of each family at most", where, other, addr, family),
			)
		case len(families) > 0 && !slices.Contains(families, family):
			errs = append(errs, fmt.Errorf("%s: %s is %s, which is not in spec.ipFamilies", where, addr, family))
		default:
			byFamily[family] = addr
		}
	}
	return byFamily, errs
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
