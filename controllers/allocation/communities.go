package allocation

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

const (
	// maxCommunityList is the longest list of communities that a Service may ask for, in bytes.
	maxCommunityList = 1024
	// maxRefusedCommunities is how many communities that a Service does not get are named to its author.
	maxRefusedCommunities = 8
	// maxCommunity is the longest community, in bytes.
	maxCommunity = 32
)

// CommunitiesText returns the list of communities that a Service asks for, as its author wrote it. Of a
// list longer than it may be, only that it is longer counts.
func CommunitiesText(svc *corev1.Service) string {
	list := svc.Annotations[v1.AnnotationBGPCommunities]
	return list[:min(len(list), maxCommunityList+1)]
}

// GrantCommunities returns those communities of a list, separated by commas, that a ServiceGroup allows, and of
// the others why the Service does not get them. Whatever the list says, nothing is granted but values that are
// allowed, as the ServiceGroup writes them, and sorted.
func GrantCommunities(list string, allowed *v1.RouteCommunities) (granted v1.RouteCommunities, refused []string) {
	if strings.TrimSpace(list) == "" {
		return granted, nil
	}
	if len(list) > maxCommunityList {
		return granted, []string{fmt.Sprintf("it is too long: it may have %d bytes", maxCommunityList)}
	}
	if allowed == nil {
		allowed = &v1.RouteCommunities{}
	}
	communities, large := map[uint32]bool{}, map[[3]uint32]bool{}
	for text := range strings.SplitSeq(list, ",") {
		text = strings.TrimSpace(text)
		number, isCommunity := v1.Community(text).Number()
		numbers, isLarge := v1.LargeCommunity(text).Numbers()
		isAllowed := false
		switch {
		case isCommunity:
			communities[number] = true
			isAllowed = slices.ContainsFunc(allowed.Communities, func(c v1.Community) bool {
				n, ok := c.Number()
				return ok && n == number
			})
		case isLarge:
			large[numbers] = true
			isAllowed = slices.ContainsFunc(allowed.LargeCommunities, func(c v1.LargeCommunity) bool {
				n, ok := c.Numbers()
				return ok && n == numbers
			})
		default:
			refused = append(refused, fmt.Sprintf("%q is not a community", text[:min(len(text), maxCommunity)]))
			continue
		}
		if !isAllowed {
			refused = append(refused, text[:min(len(text), maxCommunity)]+" is not allowed")
		}
	}
	for _, c := range allowed.Communities {
		if number, ok := c.Number(); ok && communities[number] {
			granted.Communities = append(granted.Communities, c)
		}
	}
	for _, c := range allowed.LargeCommunities {
		if numbers, ok := c.Numbers(); ok && large[numbers] {
			granted.LargeCommunities = append(granted.LargeCommunities, c)
		}
	}
	slices.Sort(granted.Communities)
	slices.Sort(granted.LargeCommunities)
	return granted, refused
}

// IsOlder reports whether a Service is older than another one: of the Services that share an address, the oldest
// decides which communities its routes have.
func IsOlder(svc, other *corev1.Service) bool {
	return ServiceOf(svc, false).compareAge(ServiceOf(other, false)) < 0
}

// warnOfCommunities says which communities that the Service asks for the routes to its addresses do not have, and
// why.
func (d *decision) warnOfCommunities(result *Result) {
	const name = "annotation " + v1.AnnotationBGPCommunities
	group := d.group
	if verdict := d.Catalog[result.Group]; verdict != nil {
		group = &verdict.Group
	}
	if d.CommunitiesText == "" || group == nil {
		return
	}
	granted, refused := GrantCommunities(d.CommunitiesText, group.AllowServices)
	switch {
	case group.AllowServices == nil || group.AllowServices.IsEmpty():
		d.warn("%s: ServiceGroup %s allows Services no communities: it has no spec.bgp.allowServices", name, group.Name)
		return
	case len(refused) > 0:
		d.warn("%s: %s: spec.bgp.allowServices of ServiceGroup %s says which the routes may have",
			name, textlimit.List(refused, maxRefusedCommunities, ", "), group.Name)
	}
	if granted.IsEmpty() {
		return
	}
	for _, a := range result.Addresses {
		if older := d.oldestBefore(a); older != nil {
			d.warn("%s: has no effect on %s: of the Services that share it, the oldest decides: %s",
				name, a, older.nameFor(d.Namespace))
			continue
		}
		if r, isInRange := group.RangeContaining(a); isInRange && r.Mask < a.BitLen() && !d.HasPolicyLocal {
			d.warn("%s: has no effect on a route to more addresses than one, as ServiceGroup %s has them (/%d)",
				name, group.Name, r.Mask)
		}
	}
}

// oldestBefore returns the oldest Service to which an address is allocated that is older than this one, or nil.
func (d *decision) oldestBefore(a netip.Addr) *Service {
	oldest := &d.Service
	for _, s := range d.InUse.ServicesWith(a) {
		if !d.isSelf(s) && s.hasAllocated(a) && s.compareAge(oldest) < 0 {
			oldest = s
		}
	}
	if oldest == &d.Service {
		return nil
	}
	return oldest
}
