package allocation

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// Inputs are what an allocation depends on, besides the request.
type Inputs struct {
	Catalog Catalog
	InUse   *InUse
	// NodeAddresses are the addresses that no Service gets, each with what it is, and
	// ExcessNodeAddresses what nodes report beyond them.
	NodeAddresses       map[netip.Addr]string
	ExcessNodeAddresses []ExcessAddresses
	// NamespaceLabels are the labels of each namespace. They are needed only if
	// Catalog.SelectsNamespaces.
	NamespaceLabels map[string]map[string]string
	// AnnounceType says how nodes announce addresses of a range of a local group. It
	// returns an empty text while no node has reported its interfaces. It may be nil.
	AnnounceType func(Range) v1.AnnounceType
	// AreFactsComplete reports whether all agents have reported their nodes' interfaces. It looks at every node:
	// ServiceGroups ask that, and no Service does. It is set where AnnounceType is.
	AreFactsComplete func() bool
	// Offers are what external IPAM systems have answered to requests of the Service.
	Offers map[IPAMRequest]Offer
	// FormerOwners are deleted Services with the addresses that they had, and Now is what their
	// ages are counted by. Both are needed for allocations alone: no request is refused by them.
	FormerOwners FormerOwners
	Now          time.Time
}

// IPAMRequest is an address that a Service is to get from an external group.
type IPAMRequest struct {
	Group  string
	Family Family
	// Address is the one that it has to be, or not valid if any will do.
	Address netip.Addr
	// IsShown says that the Service shows that address already: another controller has
	// allocated it.
	IsShown bool
}

// Offer is the answer of an external IPAM system to a request: an address that is recorded
// there as the Service's, or why there is none.
type Offer struct {
	Address netip.Addr
	// Reason of package v1 and Message are empty if there is an address.
	Reason, Message string
	// IsWaiting says that the system has not answered the request yet, and that the reason is
	// why this takes long.
	IsWaiting bool
}

// isOutstanding reports whether the system has still to decide on the request.
func (o *Offer) isOutstanding() bool {
	return o.IsWaiting || o.Reason == v1.ReasonIPAMUnavailable || o.Reason == v1.ReasonOtherInstallation
}

// Result is what a Service is to have.
type Result struct {
	// Addresses in the order of the request's families. The Service keeps addresses whose
	// group is gone or invalid, because nothing can be said against them.
	Addresses []netip.Addr
	// Group and Type that the addresses are of. If the Service keeps them, these may be a
	// group's that is gone, and Type may be what the group was before it was changed.
	Group string
	Type  v1.PoolType
	// Key is the sharing key by which the Service has the addresses, and Ports are those with
	// which it has them by that key: see Record.
	Key   string
	Ports PortSet
	// KeepsAllocation says that the request is refused, and that the Service keeps what
	// it was allocated of its families.
	KeepsAllocation bool
	// IPAMRequests are what the Service needs of external IPAM systems. Those that it has no
	// more use for are missing: what was offered to them is to be released.
	IPAMRequests []IPAMRequest
	// IsAwaitingIPAM says that an IPAM system has not answered a request yet, so that nothing can be said
	// about the Service.
	IsAwaitingIPAM bool
	// RequestedGroup is the group that the Service asks for, or empty if no group has
	// that name.
	RequestedGroup string
	// Reason is v1.ReasonAllocated if the request is met. Any other reason says why not,
	// and Message says it to people.
	Reason  string
	Message string
	// Warning is what the Service's author should know, or empty.
	Warning string
	// LostAddresses are those that the Service has or shows, and that another Service
	// keeps.
	LostAddresses []LostAddress
}

// Record returns what is allocated to the Service by the result.
func (r *Result) Record() Record {
	if len(r.Addresses) == 0 {
		return Record{}
	}
	return Record{Addresses: r.Addresses, Group: r.Group, Type: r.Type, Key: r.Key, Ports: r.Ports}
}

// AddressesToShow are the addresses that the Service is to show: those that it is to
// have. If there are none, the Service goes on showing what other controllers have
// written there, except for what another Service of ours has.
func (r *Result) AddressesToShow(svc *corev1.Service) []netip.Addr {
	if len(r.Addresses) > 0 {
		return r.Addresses
	}
	withdrawn := RecordOf(svc).Addresses
	return slices.DeleteFunc(ShownAddresses(svc), func(a netip.Addr) bool {
		return slices.Contains(withdrawn, a) ||
			slices.ContainsFunc(r.LostAddresses, func(l LostAddress) bool { return l.Address == a })
	})
}

// LostAddress is an address that another Service keeps.
type LostAddress struct {
	Address netip.Addr
	Service string // that keeps it, as namespace/name
	// IsOfOtherNamespace says that Service is of another namespace than the one that loses
	// the address, whose users are not told the name.
	IsOfOtherNamespace bool
}

// String says to the users of the Service that loses the address which one keeps it.
func (l LostAddress) String() string {
	if l.IsOfOtherNamespace {
		return fmt.Sprintf("%s is that of %s", l.Address, unnamedService)
	}
	return fmt.Sprintf("%s is Service %s's", l.Address, l.Service)
}

// refusal is why a request cannot be met: a reason of package v1, and a message for
// people.
type refusal struct {
	reason, message string
	// isOfExternalSystem says that an external IPAM system has refused a request, or has still
	// to decide on it: isOutstanding.
	isOfExternalSystem, isOutstanding bool
}

func refuse(reason, format string, args ...any) *refusal {
	return &refusal{reason: reason, message: fmt.Sprintf(format, args...)}
}

// warn adds to what the Service's author should know.
func (d *decision) warn(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if d.warning != "" {
		text = d.warning + "; " + text
	}
	d.warning = text
}

// decision is one allocation while it is made.
type decision struct {
	*Request
	*Inputs
	// ownAddresses are what the Service has or may adopt, and no other Service keeps.
	ownAddresses  []netip.Addr
	lostAddresses []LostAddress
	// requestedByFamily are the addresses that the Service asks for.
	requestedByFamily map[Family]netip.Addr
	// groupName names the group to allocate from, and group is that group, if it is ready.
	groupName string
	group     *Group
	// isAutomatic says that the Service names no group, and has nothing that decides one.
	isAutomatic bool
	// getsNothingNew says that the Service's namespace may not use the group any more: the
	// Service keeps what it has of the group, and gets nothing else of it.
	getsNothingNew bool
	warning        string
	// ipamRequests are made to external systems while slots are filled, refusedIPAMRequests those of
	// them that were refused.
	ipamRequests, refusedIPAMRequests []IPAMRequest
	isAwaitingIPAM                    bool
}

// Allocate decides which addresses a Service is to have. The Service keeps an address
// that it has while it asks for nothing else, and until there is another in its place. It
// also keeps an address that has left the pools of its group.
func Allocate(req *Request, inputs *Inputs) Result { return newDecision(req, inputs).allocate() }

func newDecision(req *Request, inputs *Inputs) *decision {
	d := &decision{Request: req, Inputs: inputs}
	d.ownAddresses, d.lostAddresses = d.findOwnAddresses()
	return d
}

// allocate decides, and says what the author of the Service should know.
func (d *decision) allocate() Result {
	result := d.allocateFamilies()
	d.warnOfReservedAddresses(result.Addresses)
	d.warnOfCommunities(&result)
	result.Warning, result.LostAddresses = d.warning, d.lostAddresses
	if _, exists := d.Catalog[d.groupName]; exists {
		result.RequestedGroup = d.groupName
	}
	return result
}

// allocateFamilies chooses the group, and an address of each family that the Service asks for.
func (d *decision) allocateFamilies() Result {
	if refused := d.chooseGroup(); refused != nil {
		return d.keepAllocation(refused)
	}
	var addrs []netip.Addr
	var missing shortage
	var fatal, partial *refusal
	for _, family := range d.Families {
		found, refused := d.allocateFamily(family)
		addrs = append(addrs, found...)
		switch {
		case refused == nil:
		case len(found) > 0:
			partial = cmp.Or(partial, refused)
		case refused.isOfExternalSystem, refused.reason == v1.ReasonExhausted, refused.reason == v1.ReasonNotAllowed:
			missing.add(family, refused)
		default:
			fatal = cmp.Or(fatal, refused)
		}
	}
	if fatal != nil {
		d.ipamRequests = nil
		return d.keepAllocation(fatal)
	}
	if result, isRefused := d.resultOfShortage(&missing, len(addrs) > 0); isRefused {
		return result
	}
	result := Result{
		Addresses: addrs, Group: d.group.Name, Type: d.typeOf(addrs), Reason: v1.ReasonAllocated,
		IPAMRequests: d.ipamRequests,
	}
	result.Message = JoinAddresses(addrs) + " from pool " + d.group.Name
	if len(missing.families) > 0 {
		result.Message += fmt.Sprintf("; by PreferDualStack it gets an %s address, too, as soon as ServiceGroup %s has one "+
			"that is free",
			strings.Join(missing.families, " and an "), d.groupName)
	}
	result.Key, result.Ports = d.SharingKey, d.portsToRecord()
	if partial != nil {
		result.Reason, result.Message = partial.reason, partial.message
		result.Key, result.Ports = d.sharingTermsFor(addrs)
	}
	return result
}

// typeOf returns the kind that addresses which the Service is to have of the group are of. That is
// the group's kind, unless all of them have left the ranges of the group. These are announced and,
// by an external system, recorded as those of the kind that the group was of when it had them.
func (d *decision) typeOf(addrs []netip.Addr) v1.PoolType {
	isOfGroup := func(a netip.Addr) bool { return !d.hasAllocated(a) || !d.isOrphan(a, d.Allocated.Group) }
	if len(addrs) == 0 || slices.ContainsFunc(addrs, isOfGroup) {
		return d.group.Type
	}
	return d.Allocated.Type
}

// shortage is which families of a Service have no address, and why.
type shortage struct {
	families []string
	// exhausted are those for which the group itself has none.
	exhausted []string
	// refused is why an external system refuses a request, or why the Service's namespace may
	// not use the group, and outstanding why an external system has still to decide.
	refused, outstanding *refusal
}

func (s *shortage) add(family Family, refused *refusal) {
	s.families = append(s.families, string(family))
	switch {
	case refused.isOutstanding:
		s.outstanding = cmp.Or(s.outstanding, refused)
	case refused.isOfExternalSystem, refused.reason == v1.ReasonNotAllowed:
		s.refused = cmp.Or(s.refused, refused)
	default:
		s.exhausted = append(s.exhausted, string(family))
	}
}

// isFinal reports whether there is no address for one of the families, whatever an
// external system decides.
func (s *shortage) isFinal() bool { return s.refused != nil || len(s.exhausted) > 0 }

// resultOfShortage returns what becomes of the Service if it gets nothing for now because of a
// shortage.
func (d *decision) resultOfShortage(missing *shortage, hasSome bool) (result Result, isRefused bool) {
	isRefused = len(missing.families) > 0 && (!hasSome || d.FamilyPolicy != corev1.IPFamilyPolicyPreferDualStack)
	switch {
	case missing.isFinal() && d.FamilyPolicy != corev1.IPFamilyPolicyPreferDualStack:
		// What was offered for the other family is released, and requested no more as long as
		// this one has none: it would be allocated and released at each look.
	case d.isAwaitingIPAM:
		result = d.keepAllocation(refuse(
			v1.ReasonWaitingForIPAM, "the IPAM system of ServiceGroup %s has not answered yet", d.groupName,
		))
		result.IPAMRequests, result.IsAwaitingIPAM = d.ipamRequests, true
		return result, true
	case isRefused && missing.outstanding != nil:
		result = d.keepAllocation(missing.outstanding)
		result.IPAMRequests = d.ipamRequests
		return result, true
	}
	if isRefused {
		result = d.keepAllocation(cmp.Or(missing.refused, d.exhaustedRefusal(missing.exhausted...)))
		result.IPAMRequests = d.refusedIPAMRequests
	}
	return result, isRefused
}

// keepAllocation leaves the Service with what it was allocated, apart from addresses of families
// that the Service does not have any more: no packet to them would be for it. The Service adopts
// nothing.
func (d *decision) keepAllocation(refused *refusal) Result {
	kept := slices.DeleteFunc(slices.Clone(d.ownAddresses), func(a netip.Addr) bool {
		return !d.hasAllocated(a) || !d.hasFamilyOf(a)
	})
	result := Result{Addresses: kept, KeepsAllocation: true, Reason: refused.reason, Message: refused.message}
	if len(kept) > 0 {
		result.Group, result.Type = d.Allocated.Group, d.Allocated.Type
		result.Key, result.Ports = d.sharingTermsFor(kept)
	}
	return result
}

// hasFamilyOf reports whether an address is of a family of the Service. The API server gives every
// Service of type LoadBalancer at least one family. Where none is known, all addresses are.
func (d *decision) hasFamilyOf(a netip.Addr) bool {
	return len(d.Families) == 0 || slices.Contains(d.Families, FamilyOf(a))
}

// sharingTermsFor returns the key and the ports by which the Service has addresses that it
// keeps: those by which it was given them, until those that it has now let it share all of
// them.
func (d *decision) sharingTermsFor(addrs []netip.Addr) (key string, ports PortSet) {
	if slices.ContainsFunc(addrs, func(a netip.Addr) bool { return d.refuseToShareWithAll(a) != nil }) {
		return d.Allocated.Key, d.Allocated.Ports
	}
	return d.SharingKey, d.portsToRecord()
}

// portsToRecord returns the ports of the Service, if it may share with other namespaces and a
// record has room.
func (d *decision) portsToRecord() PortSet {
	if d.SharingKey == "" || d.HasPolicyLocal || len(d.Ports) > MaxRecordedPorts {
		return nil
	}
	return d.Ports
}
