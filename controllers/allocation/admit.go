package allocation

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// Surroundings is what a ServiceGroup, or a Service, that is about to be
// written is judged against.
type Surroundings struct {
	// Namespace is where ServiceGroups count.
	Namespace string
	// Groups is all ServiceGroups of that namespace as they are stored.
	Groups []v1.ServiceGroup
	// Neighbours is all Services that have an address or a sharing key. It can
	// be left out for a ServiceGroup that is made, and for a Service unless it
	// NeedsNeighbours.
	Neighbours []Neighbour
	// Reserved is addresses that are never handed out, with what they are.
	Reserved map[netip.Addr]string
	// Announce is how addresses of a range of a local group are announced, or
	// empty while that is not known.
	Announce func(Range) v1.AnnounceType
}

// Neighbour is one Service, as others see it.
type Neighbour struct {
	Namespace, Name string
	// Served is that its addresses are of ours.
	Served bool
	// Group that its addresses are of or, while it has none, that it asks for.
	Group      string
	SharingKey string
	Ports      []corev1.ServicePort
	Families   []Family
	Addresses  []netip.Addr
}

// String is namespace/name.
func (n *Neighbour) String() string { return n.Namespace + "/" + n.Name }

// AdmitCreate judges a ServiceGroup that is about to be made.
func (s *Surroundings) AdmitCreate(sg *v1.ServiceGroup) (warnings []string, errs field.ErrorList) {
	v := s.judge(sg)
	return s.warn(v), v.Errors
}

// AdmitUpdate judges a change of a ServiceGroup. One that leaves its
// specification as it is is never refused.
func (s *Surroundings) AdmitUpdate(before, after *v1.ServiceGroup) (warnings []string, errs field.ErrorList) {
	if equality.Semantic.DeepEqual(before.Spec, after.Spec) {
		return nil, nil
	}
	v := s.judge(after)
	if v.Reason == v1.ReasonOutOfScope {
		return []string{v.Errors[0].Error()}, nil // it has no effect, whatever it says
	}
	warnings = s.warn(v)
	if len(v.Errors) > 0 {
		return warnings, v.Errors
	}
	stranded := s.stranded(before, after)
	changed := ""
	if was, is := typeOf(before), v.Group.Type; was != is && was != "" {
		if used := s.used(before); used.addresses > 0 {
			stranded, changed = used, fmt.Sprintf("changes the group from %s to %s", was, is)
		}
	}
	switch {
	case stranded.addresses == 0:
	case allowsOrphans(after):
		warnings = append(warnings, "spec: "+stranded.warning(changed))
	default:
		errs = field.ErrorList{field.Forbidden(field.NewPath("spec"), stranded.refusal(changed))}
	}
	return warnings, errs
}

// AdmitDelete judges the deletion of a ServiceGroup: refusal is why it is not
// to be, or empty.
func (s *Surroundings) AdmitDelete(sg *v1.ServiceGroup) (warnings []string, refusal string) {
	if sg.Namespace != s.Namespace || !sg.DeletionTimestamp.IsZero() {
		return nil, ""
	}
	stranded := s.stranded(sg, nil)
	switch {
	case stranded.addresses == 0:
		return nil, ""
	case allowsOrphans(sg):
		return []string{stranded.warning("")}, ""
	default:
		return nil, stranded.refusal("")
	}
}

func allowsOrphans(sg *v1.ServiceGroup) bool {
	return sg.Annotations[v1.AnnotationAllowOrphans] == "true"
}

func typeOf(sg *v1.ServiceGroup) v1.PoolType {
	group, _, _ := ParseGroup(sg)
	return group.Type
}

// judge gives the verdict that the group would get if all others were older.
func (s *Surroundings) judge(sg *v1.ServiceGroup) *Verdict {
	if sg.Namespace != s.Namespace {
		return OutOfScope(sg, s.Namespace)
	}
	_, accepted := newCatalog(s.without(sg.Name), s.Namespace)
	return accepted.judge(sg)
}

func (s *Surroundings) without(name string) []v1.ServiceGroup {
	return slices.DeleteFunc(slices.Clone(s.Groups), func(sg v1.ServiceGroup) bool { return sg.Name == name })
}

func (s *Surroundings) warn(v *Verdict) []string {
	warnings := slices.Clone(v.Warnings)
	if v.Reason == v1.ReasonUnsupported {
		warnings = append(warnings, v.Message)
	}
	return append(warnings, ReservedWarnings(&v.Group, s.Reserved)...)
}

// ReservedWarnings says which addresses of the group are never handed out
// because nodes use them.
func ReservedWarnings(group *Group, reserved map[netip.Addr]string) []string {
	all := setOf(group.Ranges)
	in := make([][]netip.Addr, len(group.Ranges))
	for a := range reserved {
		if !all.Contains(a) {
			continue
		}
		for i := range group.Ranges {
			if group.Ranges[i].Addrs.Contains(a) {
				in[i] = append(in[i], a)
			}
		}
	}
	var warnings []string
	for i, addrs := range in {
		if len(addrs) == 0 {
			continue
		}
		slices.SortFunc(addrs, netip.Addr.Compare)
		names := make([]string, len(addrs))
		for j, a := range addrs {
			names[j] = fmt.Sprintf("%s, %s", a, reserved[a])
		}
		warnings = append(warnings, fmt.Sprintf("%s: range %s covers what is never handed out: %s",
			group.Ranges[i].Path, group.Ranges[i], listing(names, "; ")))
	}
	return warnings
}

// stranding is addresses in use that a change would leave outside every pool,
// or in a pool of another kind.
type stranding struct {
	addresses int
	services  []string
}

func (s stranding) String() string {
	return fmt.Sprintf("%s in use by %s (%s)", count(s.addresses, "address"), count(len(s.services), "Service"), listing(s.services, ", "))
}

func (s stranding) refusal(changed string) string {
	cure := fmt.Sprintf("annotate the ServiceGroup with %s=true, and they stay as they are until their Services go", v1.AnnotationAllowOrphans)
	if changed != "" {
		return fmt.Sprintf("%s with %s: make another ServiceGroup instead, or %s", changed, s, cure)
	}
	return fmt.Sprintf("leaves %s outside every pool: keep them in one, or %s", s, cure)
}

func (s stranding) warning(changed string) string {
	if changed != "" {
		return fmt.Sprintf("%s with %s: they stay as they are until their Services go", changed, s)
	}
	return fmt.Sprintf("leaves %s outside every pool: they stay as they are until their Services go", s)
}

// stranded is what is in use of a group and would be in no pool any more if it
// were changed to after or, where that is nil, deleted.
func (s *Surroundings) stranded(before, after *v1.ServiceGroup) stranding {
	groups := s.without(before.Name)
	if after != nil {
		groups = append(groups, *after)
	}
	remain := NewCatalog(groups, s.Namespace).addresses()
	return s.count(before, func(a netip.Addr) bool { return !remain.Contains(a) })
}

// used is all that is in use of a group.
func (s *Surroundings) used(sg *v1.ServiceGroup) stranding {
	return s.count(sg, func(netip.Addr) bool { return true })
}

func (s *Surroundings) count(sg *v1.ServiceGroup, which func(netip.Addr) bool) stranding {
	// Of a group that is not valid, too, what can be read of it counts: its
	// addresses may be from a time when it was.
	group, _, _ := ParseGroup(sg)
	of := setOf(group.Ranges)
	addresses, services := map[netip.Addr]bool{}, map[string]bool{}
	for i := range s.Neighbours {
		n := &s.Neighbours[i]
		for _, a := range n.Addresses {
			if n.Served && of.Contains(a) && which(a) {
				addresses[a], services[n.String()] = true, true
			}
		}
	}
	return stranding{len(addresses), slices.Sorted(maps.Keys(services))}
}

// addresses is the addresses of all groups that can be allocated from.
func (c Catalog) addresses() *netipx.IPSet {
	var all []Range
	for _, v := range c {
		if v.Ready() {
			all = append(all, v.Group.Ranges...)
		}
	}
	return setOf(all)
}

func setOf(ranges []Range) *netipx.IPSet {
	var b netipx.IPSetBuilder
	for _, r := range ranges {
		b.AddRange(r.Addrs)
	}
	set, err := b.IPSet()
	if err != nil {
		return &netipx.IPSet{} // only for ranges that are not valid
	}
	return set
}

// count is "1 range" or "2 ranges".
func count(n int, noun string) string {
	switch {
	case n == 1:
		return "1 " + noun
	case strings.HasSuffix(noun, "s"):
		return fmt.Sprintf("%d %ses", n, noun)
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// listing names five, and says how many more there are.
func listing(names []string, separator string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, separator)
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], separator), len(names)-most)
}
