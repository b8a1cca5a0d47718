package allocation

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// Facts is what an allocation depends on, besides what is asked for.
type Facts struct {
	Catalog Catalog
	InUse   *InUse
	// Reserved is addresses that are never handed out, with what they are.
	Reserved map[netip.Addr]string
	// Announce is how addresses of a range of a local group are announced, or
	// empty while that is not known. It may be nil.
	Announce func(Range) v1.AnnounceType
}

// Result is what the Service is to have.
type Result struct {
	// Addresses in the order of the request's families. Addresses that cannot
	// be judged (their group is gone or invalid) are kept.
	Addresses []netip.Addr
	// Group and Type that the addresses are of; empty if what the Service had is
	// left as it was.
	Group string
	Type  v1.PoolType
	// Key by which the addresses are shared.
	Key string
	// Asked is the group that was asked for.
	Asked string
	// Reason is v1.ReasonAllocated if the request is met, else why not, with
	// Message for people.
	Reason  string
	Message string
	// Warning is what its author should know, or empty.
	Warning string
	// Lost says which addresses that the Service has are another's.
	Lost []string
}

// decision is one allocation while it is made.
type decision struct {
	*Request
	*Facts
	current []netip.Addr // what it has and no other is to keep
	named   map[Family]netip.Addr
	asked   string
	group   *Group // the one asked for, if it can be allocated from
	warning string
}

// Allocate decides which addresses a Service is to have. An address that it has
// is kept for as long as nothing else is asked for, and until there is another
// in its place. One that its group has lost is still the group's.
func Allocate(req *Request, facts *Facts) Result {
	d := &decision{Request: req, Facts: facts}
	var lost []string
	d.current, lost = d.mine()
	result := d.decide()
	result.Asked, result.Warning, result.Lost = d.asked, d.warning, lost
	return result
}

func (d *decision) decide() Result {
	if no := d.resolve(); no != nil {
		return d.keep(no)
	}
	var addrs []netip.Addr
	var missing []string // families
	var hard, partial *refusal
	for _, family := range d.Families {
		got, no := d.family(family)
		addrs = append(addrs, got...)
		switch {
		case no == nil:
		case len(got) > 0:
			partial = cmp.Or(partial, no)
		case no.reason == v1.ReasonExhausted:
			missing = append(missing, string(family))
		default:
			hard = cmp.Or(hard, no)
		}
	}
	if hard != nil {
		return d.keep(hard)
	}
	if len(missing) > 0 && (len(addrs) == 0 || d.Policy != corev1.IPFamilyPolicyPreferDualStack) {
		return d.keep(refuse(v1.ReasonExhausted, "ServiceGroup %s has no free %s address", d.asked, strings.Join(missing, " and no free ")))
	}
	result := Result{Addresses: addrs, Group: d.group.Name, Type: d.group.Type, Key: d.SharingKey, Reason: v1.ReasonAllocated}
	result.Message = Join(addrs) + " from pool " + d.group.Name
	if partial != nil {
		result.Reason, result.Message, result.Key = partial.reason, partial.message, d.keyFor(addrs)
	}
	return result
}

// keep leaves the Service with what it has.
func (d *decision) keep(no *refusal) Result {
	return Result{Addresses: d.current, Key: d.keyFor(d.current), Reason: no.reason, Message: no.message}
}

// keyFor is the key by which addresses that are kept are shared: the one they
// were given by, until nothing speaks against the one that the Service has now.
func (d *decision) keyFor(addrs []netip.Addr) string {
	if slices.ContainsFunc(addrs, func(a netip.Addr) bool { return d.unshared(a) != nil }) {
		return d.AllocatedKey
	}
	return d.SharingKey
}

// slot is one address that is wanted.
type slot struct {
	family Family
	ranges []Range    // any of them will do
	named  netip.Addr // the one that is asked for, if valid
	single bool       // it is to be of this range, no other
}

func (s *slot) contains(a netip.Addr) bool {
	return slices.ContainsFunc(s.ranges, func(r Range) bool { return r.Addrs.Contains(a) })
}

// family is the addresses that the Service is to have of a family. With
// addresses, a refusal is why these are not all, or not as they should be.
func (d *decision) family(family Family) (addrs []netip.Addr, no *refusal) {
	for _, s := range d.slots(family) {
		a, why := d.fill(s)
		no = cmp.Or(no, why)
		if a.IsValid() && !slices.Contains(addrs, a) {
			addrs = append(addrs, a)
		}
	}
	for _, a := range d.current {
		if FamilyOf(a) == family && !slices.Contains(addrs, a) && d.isExtra(a) {
			addrs, no = append(addrs, a), cmp.Or(no, d.contested(a))
		}
	}
	return addrs, no
}

// slots is the addresses of a family that are wanted: the one that is asked for
// by name, or one of every range that some node can announce, or one.
func (d *decision) slots(family Family) []slot {
	one := slot{family: family, named: d.named[family]}
	var each []slot
	for _, r := range d.group.Ranges {
		if r.Family() != family {
			continue
		}
		one.ranges = append(one.ranges, r)
		if d.announceable(r) {
			each = append(each, slot{family: family, ranges: []Range{r}, single: true})
		}
	}
	if one.named.IsValid() || !d.multi() || len(each) == 0 {
		return []slot{one}
	}
	return each
}

func (d *decision) multi() bool {
	switch d.MultiPool {
	case "true":
		return true
	case "false":
		return false
	}
	return d.group.MultiPool
}

// announceable reports whether some node can announce addresses of a range as
// its group means them to be; of what is not known yet it says yes.
func (d *decision) announceable(r Range) bool {
	return d.group.Type != v1.PoolTypeLocal || d.Announce == nil || d.Announce(r) != v1.AnnounceVirtual
}

// isExtra reports whether an address that no slot asks for is kept: one that we
// gave it when the group, or a node, still offered more ranges. Only the
// Service's own annotations take it away.
func (d *decision) isExtra(a netip.Addr) bool {
	if d.named[FamilyOf(a)].IsValid() || d.MultiPool == "false" || !d.Branded {
		return false
	}
	_, ok := d.group.RangeOf(a)
	return ok || d.isOrphan(a, d.AllocatedFrom)
}

// isOrphan reports whether an address that is not of the group was when it was
// given.
func (d *decision) isOrphan(a netip.Addr, from string) bool {
	_, in := d.group.RangeOf(a)
	return !in && from == d.group.Name
}

// fill finds the address of one slot. With an address, a refusal is what is
// wrong with it.
func (d *decision) fill(s slot) (netip.Addr, *refusal) {
	for _, a := range d.current {
		if FamilyOf(a) == s.family && d.keeps(s, a) {
			return a, d.clash(s, a)
		}
	}
	key, h := d.keyed(s)
	switch {
	case s.named.IsValid() && h != nil && key != s.named && !slices.Contains(h.Addresses, s.named):
		return netip.Addr{}, refuse(v1.ReasonSharingRefused, "%s: %s is not what the sharing key %q stands for, which is %s of Service %s",
			d.NamedIn, s.named, d.SharingKey, key, h)
	case s.named.IsValid():
		return valid(s.named, d.shareable(s.named))
	case h != nil:
		return valid(key, d.shareable(key))
	}
	if a, ok := d.tried(s); ok {
		return a, nil
	}
	if a, ok := d.firstFree(s.ranges); ok {
		return a, nil
	}
	if s.single {
		return netip.Addr{}, refuse(v1.ReasonExhausted, "range %s of ServiceGroup %s has no free address", s.ranges[0], d.asked)
	}
	return netip.Addr{}, refuse(v1.ReasonExhausted, "ServiceGroup %s has no free %s address", d.asked, s.family)
}

// keeps reports whether an address that the Service has is good for a slot.
func (d *decision) keeps(s slot, a netip.Addr) bool {
	if s.named.IsValid() {
		return a == s.named
	}
	return s.contains(a) || !s.single && d.isOrphan(a, d.AllocatedFrom)
}

// tried is an address for a slot that is set aside for the Service already,
// although it does not show it: writing it down has failed, or may have.
func (d *decision) tried(s slot) (netip.Addr, bool) {
	self := d.InUse.Of(d.String())
	if self == nil {
		return netip.Addr{}, false
	}
	for _, a := range self.Addresses {
		_, never := d.Reserved[a]
		r, _ := d.group.RangeOf(a)
		if s.contains(a) && !never && r.usable(a) && len(d.others(a)) == 0 {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// valid is an address unless it is refused.
func valid(a netip.Addr, no *refusal) (netip.Addr, *refusal) {
	if no != nil {
		return netip.Addr{}, no
	}
	return a, nil
}

// firstFree returns the first free address: of the first range that has one or,
// if the group balances, of the range with the fewest in use.
func (d *decision) firstFree(ranges []Range) (netip.Addr, bool) {
	if d.group.BalancePools {
		ranges = slices.Clone(ranges)
		slices.SortStableFunc(ranges, func(a, b Range) int { return cmp.Compare(d.InUse.in(a), d.InUse.in(b)) })
	}
	for _, r := range ranges {
		a, ok := d.InUse.taken.missing(r.Addrs.From())
		for ok && r.Addrs.Contains(a) {
			if _, never := d.Reserved[a]; !never && r.usable(a) {
				return a, true
			}
			if a = a.Next(); !a.IsValid() {
				break
			}
			a, ok = d.InUse.taken.missing(a)
		}
	}
	return netip.Addr{}, false
}

// Join lists addresses for messages.
func Join(addrs []netip.Addr) string {
	s := make([]string, len(addrs))
	for i, a := range addrs {
		s[i] = a.String()
	}
	return strings.Join(s, ", ")
}
