package allocation

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// Annotations of Services: those for users, then those that the manager writes.
var (
	userAnnotations = []string{
		v1.AnnotationServiceGroup, v1.AnnotationAddresses, v1.AnnotationAllowSharedIP, v1.AnnotationMultiPool, v1.AnnotationAllowLocal,
	}
	ownAnnotations = []string{
		v1.AnnotationAllocatedBy, v1.AnnotationAllocatedFrom, v1.AnnotationAllocatedKey, v1.AnnotationPoolType,
		v1.AnnotationAnnouncingIPv4, v1.AnnotationAnnouncingIPv6, v1.AnnotationAddedTo, v1.AnnotationLocalOverride,
	}
)

// annotationPrefix is that of all annotations of ours.
const annotationPrefix = "purelb.io/"

// SameWish reports whether two versions of a Service ask for the same.
func SameWish(before, after *corev1.Service) bool {
	return equality.Semantic.DeepEqual(before.Spec, after.Spec) && equality.Semantic.DeepEqual(wishes(before), wishes(after))
}

func wishes(svc *corev1.Service) map[string]string {
	ours := map[string]string{}
	for name, value := range svc.Annotations {
		if strings.HasPrefix(name, annotationPrefix) && !slices.Contains(ownAnnotations, name) {
			ours[name] = value
		}
	}
	return ours
}

// NeedsNeighbours reports whether advice on a Service depends on others.
func NeedsNeighbours(svc *corev1.Service) bool {
	return svc.Annotations[v1.AnnotationAddresses] != "" || svc.Annotations[v1.AnnotationAllowSharedIP] != "" || svc.Spec.LoadBalancerIP != ""
}

// Advise returns what the author of a Service of ours should know. A Service is
// never refused: it waits, and says why.
func (s *Surroundings) Advise(svc *corev1.Service) []string {
	a := advice{
		s:       s,
		svc:     svc,
		key:     svc.Namespace + "/" + svc.Name,
		catalog: NewCatalog(s.Groups, s.Namespace),
	}
	a.group = cmp.Or(svc.Annotations[v1.AnnotationServiceGroup], v1.DefaultServiceGroup)
	a.annotations()
	a.requested()
	a.serviceGroup()
	a.sharing()
	a.trafficPolicy()
	return a.warnings
}

// advice is what is known, and said so far, of one Service.
type advice struct {
	s        *Surroundings
	svc      *corev1.Service
	key      string
	catalog  Catalog
	group    string // by annotation, or that of the first address asked for
	warnings []string
}

func (a *advice) warn(format string, args ...any) {
	a.warnings = append(a.warnings, fmt.Sprintf(format, args...))
}

// annotations looks at their names, and at values that are yes or no.
func (a *advice) annotations() {
	wished := wishes(a.svc)
	for _, name := range slices.Sorted(maps.Keys(wished)) {
		if slices.Contains(userAnnotations, name) {
			continue
		}
		word := strings.TrimPrefix(name, annotationPrefix)
		known := make([]string, len(userAnnotations))
		for i, u := range userAnnotations {
			known[i] = strings.TrimPrefix(u, annotationPrefix)
		}
		if guess, ok := nearest(word, known); ok {
			a.warn("annotation %s is not known; did you mean %s%s?", name, annotationPrefix, guess)
		} else {
			a.warn("annotation %s is not known; known are %s", name, strings.Join(userAnnotations, ", "))
		}
	}
	for _, name := range []string{v1.AnnotationMultiPool, v1.AnnotationAllowLocal} {
		if value, set := wished[name]; set && value != "true" && value != "false" {
			a.warn(`annotation %s is %q: it must be "true" or "false"`, name, value)
		}
	}
}

// requested looks at the addresses that the Service asks for by name.
func (a *advice) requested() {
	if a.svc.Spec.LoadBalancerIP != "" {
		a.warn("spec.loadBalancerIP is deprecated; use annotation %s", v1.AnnotationAddresses)
	}
	list, where := namedBy(a.svc)
	named, errs := parseNamed(list, where, a.svc.Spec.IPFamilies)
	for _, err := range errs {
		a.warn("%v", err)
	}
	for _, family := range []Family{IPv4, IPv6} {
		if addr, ok := named[family]; ok {
			a.address(where, addr)
		}
	}
}

// address looks at one address that the Service asks for.
func (a *advice) address(where string, addr netip.Addr) {
	group, r, pooled := a.catalog.GroupOf(addr)
	if !pooled {
		a.warn("%s: %s is in no pool of a ServiceGroup", where, addr)
		return
	}
	if asked := a.svc.Annotations[v1.AnnotationServiceGroup]; asked != "" && asked != group.Name {
		a.warn("%s: %s is of ServiceGroup %s, not of %s, which annotation %s asks for", where, addr, group.Name, asked, v1.AnnotationServiceGroup)
	}
	a.group = group.Name
	if what, never := a.s.Reserved[addr]; never {
		a.warn("%s: %s is %s: it is never handed out", where, addr, what)
	} else if !r.usable(addr) {
		a.warn("%s: %s", where, r.unusable(addr))
	}
	var holders []string
	for i := range a.s.Neighbours {
		n := &a.s.Neighbours[i]
		if n.String() != a.key && slices.Contains(n.Addresses, addr) && !a.shares(n) {
			holders = append(holders, n.String())
		}
	}
	if len(holders) > 0 {
		a.warn("%s: %s is in use by Service %s", where, addr, slices.Min(holders))
	}
}

// serviceGroup looks at the group that the Service asks for.
func (a *advice) serviceGroup() {
	verdict, exists := a.catalog[a.group]
	switch {
	case exists && !verdict.Ready():
		a.warn("ServiceGroup %s is not ready: %s", a.group, verdict.Message)
	case exists:
	default:
		if guess, ok := nearest(a.group, slices.Sorted(maps.Keys(a.catalog))); ok {
			a.warn("there is no ServiceGroup %s; did you mean %s?", a.group, guess)
		} else {
			a.warn("there is no ServiceGroup %s in namespace %s: the Service waits until there is", a.group, a.s.Namespace)
		}
	}
}

// shares reports whether the Service has the same sharing key as a neighbour.
func (a *advice) shares(n *Neighbour) bool {
	key := a.svc.Annotations[v1.AnnotationAllowSharedIP]
	return key != "" && key == n.SharingKey
}

// sharing looks at the Services with the same key for the same group.
func (a *advice) sharing() {
	verdict, exists := a.catalog[a.group]
	var clashing, foreign []string
	for i := range a.s.Neighbours {
		n := &a.s.Neighbours[i]
		if n.String() == a.key || !a.shares(n) || n.Group != a.group || !intersect(a.svc.Spec.IPFamilies, n.Families) {
			continue
		}
		switch port := commonPort(a.svc.Spec.Ports, n.Ports); {
		case n.Namespace != a.svc.Namespace && exists && !verdict.Group.ShareAcrossNamespaces:
			foreign = append(foreign, n.String())
		case port != "":
			clashing = append(clashing, fmt.Sprintf("%s (%s)", n, port))
		}
	}
	slices.Sort(clashing)
	slices.Sort(foreign)
	if len(clashing) > 0 {
		a.warn("annotation %s: no address can be shared with a Service that has a port in common: %s",
			v1.AnnotationAllowSharedIP, listing(clashing, ", "))
	}
	if len(foreign) > 0 {
		a.warn("annotation %s: ServiceGroup %s does not share across namespaces, and the key is that of %s",
			v1.AnnotationAllowSharedIP, a.group, listing(foreign, ", "))
	}
}

// intersect reports whether two Services have a family in common; of one that
// has none yet, nothing is known.
func intersect(a, b []Family) bool {
	return len(a) == 0 || len(b) == 0 || slices.ContainsFunc(a, func(f Family) bool { return slices.Contains(b, f) })
}

// trafficPolicy looks at where the Service can keep its policy Local.
func (a *advice) trafficPolicy() {
	if a.svc.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal || a.svc.Annotations[v1.AnnotationAllowLocal] == "true" {
		return
	}
	verdict, exists := a.catalog[a.group]
	if !exists || !verdict.Ready() || verdict.Group.Type != v1.PoolTypeLocal || a.s.Announce == nil {
		return
	}
	for _, r := range verdict.Group.Ranges {
		if intersect(a.svc.Spec.IPFamilies, []Family{r.Family()}) && a.s.Announce(r) == v1.AnnounceLocal {
			a.warn("spec.externalTrafficPolicy: Local is not supported on a Local address, such as those of range %s of ServiceGroup %s: "+
				"one node gets all traffic. It is set to Cluster; to keep Local, and the address on a node with an endpoint, "+
				"set annotation %s to \"true\"", r, a.group, v1.AnnotationAllowLocal)
			return
		}
	}
}
