package plan

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

// Bounds of the CRD.
const (
	maxLine       = 1024
	maxMessage    = 512
	maxSubnets    = 64
	maxGateways   = 16
	maxInterfaces = 64

	maxNodeGateways = 32
)

// Condition types of kstatus that are there only while they are true.
const (
	conditionReconciling = "Reconciling"
	conditionStalled     = "Stalled"
)

// Report is what the agent has to say after it has applied a Decision.
type Report struct {
	// Results are of the desired addresses of all the node's Announcements. Those in
	// Overrides take their place.
	Results, Overrides map[netip.Addr]Result
	// Shared are the CommonAnnouncements that the node is to announce.
	Shared []purelbv1.CommonAnnouncement
	// NotWithdrawn are addresses that are not desired, but could not be withdrawn. An
	// Announcement reports those that its status lists already, and those for which
	// TakesUnlisted is true; nil means none.
	NotWithdrawn  map[netip.Addr]Result
	TakesUnlisted func(netip.Addr) bool
	// Interfaces, Gateways and MACs are the node's facts; nil Interfaces keep those last reported.
	Interfaces []purelbv1.NodeInterface
	Gateways   []purelbv1.NodeGateway
	MACs       []string
	// FactsIn is the name of the Announcement whose status has the facts. Others have none,
	// but keep those that they have while OthersKeepFacts is set: the one named has not been
	// reported yet, and the manager is to know the facts all the time.
	FactsIn         string
	OthersKeepFacts bool
	// ReadyNote is added to the message of Ready.
	ReadyNote string
	// Now is the time of the report, in whole seconds, as the API stores it.
	Now metav1.Time
}

// Status returns the status that an Announcement is to have. It equals the present one if
// nothing has changed.
func Status(ann *purelbv1.Announcement, report Report) purelbv1.AnnouncementStatus {
	previous := statusesOf(ann)
	status := statusBuilder{
		AnnouncementStatus: purelbv1.AnnouncementStatus{
			ObservedGeneration: ann.Generation,
			Desired:            int32(len(ann.Spec.Addresses)),
		},
		previous: previous, isListed: make(map[netip.Addr]bool, len(ann.Spec.Addresses)),
		listed:    make([]addressedStatus, 0, len(ann.Spec.Addresses)),
		announced: make([]addressedEntry, 0, len(ann.Spec.Addresses)),
	}
	status.addFacts(ann, report)
	for i := range ann.Spec.Addresses {
		entry := addressedEntryOf(&ann.Spec.Addresses[i])
		result := report.resultOf(entry)
		if result.State != purelbv1.StateAnnounced && result.State != purelbv1.StateYielded &&
			wasRealised(previous[entry.addr], entry.Epoch) {
			result.Reason = ReasonLost
		}
		status.list(entry.addr, entry.Address, result, report.Now)
		if result.State == purelbv1.StateAnnounced {
			status.announced = append(status.announced, entry)
		}
	}
	if ann.Spec.IncludeCommonAnnouncements {
		status.addSharedEntries(report)
	}
	status.addNotWithdrawn(report)
	slices.SortFunc(status.listed, func(a, b addressedStatus) int {
		return cmp.Or(a.addr.Compare(b.addr), cmp.Compare(a.Address, b.Address))
	})
	status.Addresses = slices.Grow(status.Addresses, len(status.listed))
	for i := range status.listed {
		status.Addresses = append(status.Addresses, status.listed[i].AddressStatus)
	}
	status.addColumns()
	status.Conditions = conditions(ann, status.AnnouncementStatus, report)
	return status.AnnouncementStatus
}

// SameStatus reports whether two statuses say the same. Each sync compares all statuses, most of which are Addresses:
// these are compared without reflection.
func SameStatus(a, b purelbv1.AnnouncementStatus) bool {
	if !slices.EqualFunc(a.Addresses, b.Addresses, sameAddressStatus) {
		return false
	}
	a.Addresses, b.Addresses = nil, nil
	return equality.Semantic.DeepEqual(a, b)
}

func sameAddressStatus(a, b purelbv1.AddressStatus) bool {
	isSameTime := a.LastTransitionTime.Equal(&b.LastTransitionTime)
	a.LastTransitionTime, b.LastTransitionTime = metav1.Time{}, metav1.Time{}
	return isSameTime && a == b
}

// statusesOf returns the statuses of addresses that an Announcement has.
func statusesOf(ann *purelbv1.Announcement) map[netip.Addr]purelbv1.AddressStatus {
	statuses := make(map[netip.Addr]purelbv1.AddressStatus, len(ann.Status.Addresses))
	for _, s := range ann.Status.Addresses {
		statuses[parseAddrOrZero(s.Address)] = s
	}
	return statuses
}

// parseAddrOrZero returns the address of a text; it is not valid where the text is none.
func parseAddrOrZero(text string) netip.Addr {
	addr, _ := netip.ParseAddr(text)
	return addr
}

// addressedEntry is an entry and its address, which is not valid where the entry's text is none.
type addressedEntry struct {
	addr netip.Addr
	*purelbv1.AnnouncedAddress
}

func addressedEntryOf(entry *purelbv1.AnnouncedAddress) addressedEntry {
	return addressedEntry{parseAddrOrZero(entry.Address), entry}
}

// addressedStatus is the status of an address, and the address.
type addressedStatus struct {
	addr netip.Addr
	purelbv1.AddressStatus
}

// statusBuilder is a status that is being put together, without its Addresses, which are those listed.
type statusBuilder struct {
	purelbv1.AnnouncementStatus
	previous  map[netip.Addr]purelbv1.AddressStatus
	listed    []addressedStatus
	announced []addressedEntry
	// isListed are the addresses that are not to be listed again.
	isListed map[netip.Addr]bool
}

// list adds the status of an address.
func (s *statusBuilder) list(addr netip.Addr, text string, r Result, now metav1.Time) {
	s.isListed[addr] = true
	s.listed = append(s.listed, addressedStatus{addr, addressStatus(text, r, s.previous[addr], now)})
}

// hasRoom reports whether the status may list another address.
func (s *statusBuilder) hasRoom() bool { return len(s.listed) < purelbv1.MaxAddressesPerAnnouncement }

// addFacts adds the node's facts, if this Announcement's status has them.
func (s *statusBuilder) addFacts(ann *purelbv1.Announcement, report Report) {
	switch hasFacts := ann.Name == report.FactsIn; {
	case hasFacts && report.Interfaces != nil:
		s.Interfaces, s.Gateways, s.MACs = report.Interfaces, report.Gateways, report.MACs
	case hasFacts || report.OthersKeepFacts:
		s.Interfaces, s.Gateways, s.MACs = ann.Status.Interfaces, ann.Status.Gateways, ann.Status.MACs
	}
}

// addSharedEntries adds what became of the shared entries. Only those that are not announced are listed; if
// they are too many for a status, it says that no revision is realised.
func (s *statusBuilder) addSharedEntries(report Report) {
	revision, entries := int64(0), 0
	for i := range report.Shared {
		entries += len(report.Shared[i].Spec.Addresses)
	}
	s.announced = slices.Grow(s.announced, entries)
	fits := true
	for i := range report.Shared {
		spec := &report.Shared[i].Spec
		revision = max(revision, spec.Revision)
		s.Desired += int32(len(spec.Addresses))
		for j := range spec.Addresses {
			entry := addressedEntryOf(&spec.Addresses[j])
			result := report.resultOf(entry)
			switch {
			case result.State == purelbv1.StateAnnounced:
				s.announced = append(s.announced, entry)
			case s.isListed[entry.addr]: // the Announcement's own entry, for a moment
			case s.hasRoom():
				s.list(entry.addr, entry.Address, result, report.Now)
			default:
				fits = false
			}
		}
	}
	if !fits {
		revision = 0
	}
	s.CommonAnnouncementsRevision = &revision
}

// addNotWithdrawn adds the addresses that could not be withdrawn, as far as this status is the
// one to list them, and has room.
func (s *statusBuilder) addNotWithdrawn(report Report) {
	for _, addr := range slices.SortedFunc(maps.Keys(report.NotWithdrawn), netip.Addr.Compare) {
		_, wasListed := s.previous[addr]
		isForThis := wasListed || report.TakesUnlisted != nil && report.TakesUnlisted(addr)
		if isForThis && !s.isListed[addr] && s.hasRoom() {
			s.list(addr, addr.String(), report.NotWithdrawn[addr], report.Now)
		}
	}
}

// addColumns adds what the table of kubectl shows.
func (s *statusBuilder) addColumns() {
	s.Announced = int32(len(s.announced))
	slices.SortStableFunc(s.announced, func(a, b addressedEntry) int { return a.addr.Compare(b.addr) })
	var local []string
	virtual, services := make([]string, 0, len(s.announced)), make([]string, 0, len(s.announced))
	for _, entry := range s.announced {
		if entry.Type == purelbv1.AnnounceLocal {
			local = append(local, entry.Address)
		} else {
			virtual = append(virtual, entry.Address)
		}
		services = append(services, entry.Services...)
	}
	slices.Sort(services)
	s.Failing = describeFailing(s.Addresses)
	s.LocalAddresses = textlimit.ListWithin(local, maxLine)
	s.VirtualAddresses = textlimit.ListWithin(virtual, maxLine)
	s.Services = textlimit.ListWithin(slices.Compact(services), maxLine)
}

// describeFailing names the first address that is not announced, with its state, and says how many more
// there are. One that is Pending comes after all others: it may be announced in a moment.
func describeFailing(addresses []purelbv1.AddressStatus) string {
	var pending, others []string
	for i := range addresses {
		switch s := &addresses[i]; s.State {
		case purelbv1.StateAnnounced:
		case purelbv1.StatePending:
			pending = append(pending, s.Address+" "+string(s.State))
		default:
			others = append(others, s.Address+" "+string(s.State))
		}
	}
	return strings.Join(textlimit.First(slices.Concat(others, pending), 1), ", ")
}

// resultOf returns what became of an entry's address.
func (r *Report) resultOf(entry addressedEntry) Result {
	if !entry.addr.IsValid() {
		return Result{State: purelbv1.StateFailed, Epoch: entry.Epoch, Reason: ReasonInvalid, Message: "not an IP address"}
	}
	result, ok := r.Overrides[entry.addr]
	if !ok {
		result, ok = r.Results[entry.addr]
	}
	if !ok {
		return Result{State: purelbv1.StatePending, Epoch: entry.Epoch}
	}
	return result
}

// addressStatus is the status of an address that had the previous one, which is empty if it had none.
func addressStatus(address string, r Result, previous purelbv1.AddressStatus, now metav1.Time) purelbv1.AddressStatus {
	s := purelbv1.AddressStatus{
		Address: address, State: r.State, Epoch: r.Epoch, Interface: r.Interface, MAC: r.MAC,
		Reason: r.Reason, Message: textlimit.Shorten(r.Message, maxMessage), LastTransitionTime: now,
	}
	if previous.State == s.State && previous.State != "" {
		s.LastTransitionTime = previous.LastTransitionTime
	}
	return s
}

// conditions returns whether the node does all that the Announcement asks, as kstatus has it:
// Ready always, Reconciling and Stalled only while they are true.
func conditions(ann *purelbv1.Announcement, status purelbv1.AnnouncementStatus, report Report) []metav1.Condition {
	var pending, troubled []string
	for _, s := range status.Addresses {
		text := s.Address + " " + string(s.State)
		if s.Message != "" {
			text += ": " + s.Message
		}
		switch {
		case s.State == purelbv1.StatePending:
			pending = append(pending, text)
		case s.State != purelbv1.StateAnnounced || s.Reason != "":
			troubled = append(troubled, text)
		}
	}
	message := fmt.Sprintf("%d of %d addresses announced", status.Announced, status.Desired)
	for _, text := range textlimit.First(slices.Concat(troubled, pending), 1) {
		message += "; " + textlimit.Shorten(text, maxMessage)
	}
	if report.ReadyNote != "" {
		message += "; " + report.ReadyNote
	}

	ready := metav1.Condition{
		Type: purelbv1.ConditionReady, Status: metav1.ConditionTrue, Reason: purelbv1.ReasonAnnounced,
	}
	switch {
	case len(troubled) > 0:
		ready.Status, ready.Reason = metav1.ConditionFalse, purelbv1.ReasonDegraded
	case len(pending) > 0:
		ready.Status, ready.Reason = metav1.ConditionFalse, purelbv1.ReasonProgressing
	}
	result := []metav1.Condition{ready}
	if len(pending) > 0 {
		result = append(
			result,
			metav1.Condition{Type: conditionReconciling, Status: metav1.ConditionTrue, Reason: purelbv1.ReasonProgressing},
		)
	}
	if len(troubled) > 0 {
		result = append(
			result, metav1.Condition{Type: conditionStalled, Status: metav1.ConditionTrue, Reason: purelbv1.ReasonDegraded},
		)
	}
	for i := range result {
		c := &result[i]
		c.Message, c.ObservedGeneration, c.LastTransitionTime = message, ann.Generation, report.Now
		for _, old := range ann.Status.Conditions {
			if old.Type == c.Type && old.Status == c.Status {
				c.LastTransitionTime = old.LastTransitionTime
			}
		}
	}
	return result
}
