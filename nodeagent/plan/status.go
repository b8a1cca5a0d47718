package plan

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

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
	// Stranded are addresses that are not desired, but could not be withdrawn. An
	// Announcement reports those that its status lists already, and those for which
	// TakesUnlisted is true; nil means none.
	Stranded      map[netip.Addr]Result
	TakesUnlisted func(netip.Addr) bool
	// Interfaces and MACs are the node's facts; nil Interfaces keep those last reported.
	Interfaces []purelbv1.NodeInterface
	MACs       []string
	// FactsIn is the name of the Announcement whose status has the facts. Others have none,
	// but keep those that they have while KeepFacts is set: the one named has not been
	// reported yet, and the manager is to know the facts all the time.
	FactsIn   string
	KeepFacts bool
	// Note is added to the message of Ready.
	Note string
	// Now is the time of the report, in whole seconds, as the API stores it.
	Now metav1.Time
}

// Status returns the status that an Announcement is to have. It equals the present one if
// nothing has changed.
func Status(ann *purelbv1.Announcement, report Report) purelbv1.AnnouncementStatus {
	status := statusInWork{purelbv1.AnnouncementStatus{
		ObservedGeneration: ann.Generation,
		Desired:            int32(len(ann.Spec.Addresses)),
	}}
	status.addFacts(ann, report)
	previous := map[string]purelbv1.AddressStatus{}
	for _, s := range ann.Status.Addresses {
		previous[s.Address] = s
	}

	var announced []*purelbv1.AnnouncedAddress
	listed := map[string]bool{}
	for i := range ann.Spec.Addresses {
		entry := &ann.Spec.Addresses[i]
		listed[entry.Address] = true
		result := report.resultOf(entry)
		if result.State != purelbv1.StateAnnounced && result.State != purelbv1.StateYielded &&
			wasRealised(&ann.Status, entry) {
			result.Reason = ReasonLost
		}
		status.Addresses = append(status.Addresses, addressStatus(entry.Address, result, previous, report.Now))
		if result.State == purelbv1.StateAnnounced {
			announced = append(announced, entry)
		}
	}
	if ann.Spec.IncludeCommonAnnouncements {
		announced = append(announced, status.addSharedEntries(report, previous, listed)...)
	}
	status.addStranded(report, previous, listed)
	slices.SortFunc(
		status.Addresses, func(a, b purelbv1.AddressStatus) int { return compareAddresses(a.Address, b.Address) },
	)
	status.addColumns(announced)
	status.Conditions = conditions(ann, status.AnnouncementStatus, report)
	return status.AnnouncementStatus
}

// statusInWork is a status that is being put together.
type statusInWork struct{ purelbv1.AnnouncementStatus }

// addFacts adds the node's facts, if this Announcement's status has them.
func (s *statusInWork) addFacts(ann *purelbv1.Announcement, report Report) {
	switch hasFacts := ann.Name == report.FactsIn; {
	case hasFacts && report.Interfaces != nil:
		s.Interfaces, s.MACs = report.Interfaces, report.MACs
	case hasFacts || report.KeepFacts:
		s.Interfaces, s.MACs = ann.Status.Interfaces, ann.Status.MACs
	}
}

// addSharedEntries adds what became of the shared entries, and returns those that are
// announced. Only the others are listed; if they are too many for a status, it says that no
// revision is realised.
func (s *statusInWork) addSharedEntries(
	report Report, previous map[string]purelbv1.AddressStatus, listed map[string]bool,
) (announced []*purelbv1.AnnouncedAddress) {
	revision := int64(0)
	fits := true
	for i := range report.Shared {
		spec := &report.Shared[i].Spec
		revision = max(revision, spec.Revision)
		s.Desired += int32(len(spec.Addresses))
		for j := range spec.Addresses {
			entry := &spec.Addresses[j]
			result := report.resultOf(entry)
			switch {
			case result.State == purelbv1.StateAnnounced:
				announced = append(announced, entry)
			case listed[entry.Address]: // the Announcement's own entry, for a moment
			case len(s.Addresses) < purelbv1.MaxAddressesPerAnnouncement:
				listed[entry.Address] = true
				s.Addresses = append(s.Addresses, addressStatus(entry.Address, result, previous, report.Now))
			default:
				fits = false
			}
		}
	}
	if !fits {
		revision = 0
	}
	s.CommonAnnouncementsRevision = &revision
	return announced
}

// addStranded adds the addresses that could not be withdrawn, as far as this status is the
// one to list them, and has room.
func (s *statusInWork) addStranded(report Report, previous map[string]purelbv1.AddressStatus, listed map[string]bool) {
	for _, addr := range slices.SortedFunc(maps.Keys(report.Stranded), netip.Addr.Compare) {
		text := addr.String()
		_, wasListed := previous[text]
		isForThis := wasListed || report.TakesUnlisted != nil && report.TakesUnlisted(addr)
		if isForThis && !listed[text] && len(s.Addresses) < purelbv1.MaxAddressesPerAnnouncement {
			s.Addresses = append(s.Addresses, addressStatus(text, report.Stranded[addr], previous, report.Now))
		}
	}
}

// addColumns adds what the table of kubectl shows.
func (s *statusInWork) addColumns(announced []*purelbv1.AnnouncedAddress) {
	s.Announced = int32(len(announced))
	var local, virtual, services []string
	for _, entry := range announced {
		if entry.Type == purelbv1.AnnounceLocal {
			local = append(local, entry.Address)
		} else {
			virtual = append(virtual, entry.Address)
		}
		services = append(services, entry.Services...)
	}
	slices.SortFunc(local, compareAddresses)
	slices.SortFunc(virtual, compareAddresses)
	slices.Sort(services)
	s.LocalAddresses = joinWithin(local)
	s.VirtualAddresses = joinWithin(virtual)
	s.Services = joinWithin(slices.Compact(services))
}

// resultOf returns what became of an entry's address.
func (r *Report) resultOf(entry *purelbv1.AnnouncedAddress) Result {
	addr, err := netip.ParseAddr(entry.Address)
	if err != nil {
		return Result{State: purelbv1.StateFailed, Epoch: entry.Epoch, Reason: ReasonInvalid, Message: "not an IP address"}
	}
	result, ok := r.Overrides[addr]
	if !ok {
		result, ok = r.Results[addr]
	}
	if !ok {
		return Result{State: purelbv1.StatePending, Epoch: entry.Epoch}
	}
	return result
}

func addressStatus(
	address string, r Result, previous map[string]purelbv1.AddressStatus, now metav1.Time,
) purelbv1.AddressStatus {
	s := purelbv1.AddressStatus{
		Address: address, State: r.State, Epoch: r.Epoch, Interface: r.Interface, MAC: r.MAC,
		Reason: r.Reason, Message: textlimit.Shorten(r.Message, maxMessage), LastTransitionTime: now,
	}
	if old, ok := previous[address]; ok && old.State == s.State {
		s.LastTransitionTime = old.LastTransitionTime
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
	if report.Note != "" {
		message += "; " + report.Note
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

// joinWithin joins items with commas; if they do not fit into maxLine bytes, it says how many
// more there are.
func joinWithin(items []string) string {
	joined := strings.Join(items, ",")
	if len(joined) <= maxLine {
		return joined
	}
	room := maxLine - len(" and  more") - len(strconv.Itoa(len(items)))
	length, n := 0, 0
	for _, item := range items {
		if length+len(item)+1 > room {
			break
		}
		length += len(item) + 1
		n++
	}
	rest := fmt.Sprintf("%d more", len(items)-n)
	if n == 0 {
		return rest
	}
	return strings.Join(items[:n], ",") + " and " + rest
}

// compareAddresses orders addresses as numbers, and texts that are no addresses as texts.
func compareAddresses(a, b string) int {
	x, _ := netip.ParseAddr(a)
	y, _ := netip.ParseAddr(b)
	return cmp.Or(x.Compare(y), cmp.Compare(a, b))
}
