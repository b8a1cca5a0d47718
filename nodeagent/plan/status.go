package plan

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
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

// Report is what the agent has to say after it applied a Plan.
type Report struct {
	// Results of the desired addresses of all the node's Announcements.
	Results map[netip.Addr]Result
	// Commons is what the node announces of what is common.
	Commons []purelbv1.CommonAnnouncement
	// Stranded are addresses that are not desired, but could not be withdrawn,
	// or are not yet (ReasonWithdrawing).
	Stranded map[netip.Addr]Result
	// Inherited are addresses that an Announcement asked for which was deleted, or
	// that are no longer common: this one reports them instead.
	Inherited map[netip.Addr]Result
	// Interfaces is the node's facts; nil keeps those last reported.
	Interfaces []purelbv1.NodeInterface
	// Note is added to the message of Ready.
	Note string
	// Now is when; whole seconds, as the API stores it.
	Now metav1.Time
}

// Status is the status that an Announcement is to have. It equals the present
// one if nothing changed.
func Status(ann *purelbv1.Announcement, report Report) purelbv1.AnnouncementStatus {
	status := statusInWork{purelbv1.AnnouncementStatus{
		ObservedGeneration: ann.Generation,
		Desired:            int32(len(ann.Spec.Addresses)),
		Interfaces:         report.Interfaces,
	}}
	if report.Interfaces == nil {
		status.Interfaces = ann.Status.Interfaces
	}
	previous := map[string]purelbv1.AddressStatus{}
	for _, s := range ann.Status.Addresses {
		previous[s.Address] = s
	}

	var announced []purelbv1.AnnouncedAddress
	inSpec := map[string]bool{}
	for _, entry := range ann.Spec.Addresses {
		inSpec[entry.Address] = true
		result := resultOf(entry, report.Results)
		if result.State != purelbv1.StateAnnounced && result.State != purelbv1.StateYielded && realised(ann.Status, entry) {
			result.Reason = ReasonLost
		}
		status.Addresses = append(status.Addresses, addressStatus(entry.Address, result, previous, report.Now))
		if result.State == purelbv1.StateAnnounced {
			announced = append(announced, entry)
		}
	}
	if ann.Spec.Common {
		announced = append(announced, status.addCommon(report, previous, inSpec)...)
	}
	for addr, result := range besides(ann, report) {
		if !inSpec[addr.String()] && len(status.Addresses) < purelbv1.MaxAddressesPerAnnouncement {
			status.Addresses = append(status.Addresses, addressStatus(addr.String(), result, previous, report.Now))
		}
	}
	slices.SortFunc(status.Addresses, func(a, b purelbv1.AddressStatus) int { return compareAddresses(a.Address, b.Address) })
	status.summarise(announced)
	status.Conditions = conditions(ann, status.AnnouncementStatus, report)
	return status.AnnouncementStatus
}

// statusInWork is a status that is being put together.
type statusInWork struct{ purelbv1.AnnouncementStatus }

// addCommon adds what has become of what is common, and returns what is announced of
// it. Only what is not is listed; if that is too much, no revision is reported as
// made.
func (s *statusInWork) addCommon(report Report, previous map[string]purelbv1.AddressStatus, listed map[string]bool) (announced []purelbv1.AnnouncedAddress) {
	revision := int64(0)
	fits := true
	for _, c := range report.Commons {
		revision = max(revision, c.Spec.Revision)
		s.Desired += int32(len(c.Spec.Addresses))
		for _, entry := range c.Spec.Addresses {
			result := resultOf(entry, report.Results)
			switch {
			case result.State == purelbv1.StateAnnounced:
				announced = append(announced, entry)
			case listed[entry.Address]: // by itself, for a moment
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
	s.CommonRevision = &revision
	return announced
}

// summarise adds the columns of the table.
func (s *statusInWork) summarise(announced []purelbv1.AnnouncedAddress) {
	s.Announced = int32(len(announced))
	var local, virtual, services []string
	for i := range announced {
		if announced[i].Type == purelbv1.AnnounceLocal {
			local = append(local, announced[i].Address)
		} else {
			virtual = append(virtual, announced[i].Address)
		}
		services = append(services, announced[i].Services...)
	}
	slices.SortFunc(local, compareAddresses)
	slices.SortFunc(virtual, compareAddresses)
	slices.Sort(services)
	s.LocalAddresses = line(local)
	s.VirtualAddresses = line(virtual)
	s.Services = line(slices.Compact(services))
}

// Inherit adds to what is inherited the addresses that could not be withdrawn and are
// in no Announcement's status: they were common.
func Inherit(inherited, stranded map[netip.Addr]Result, announcements []purelbv1.Announcement) map[netip.Addr]Result {
	listed := map[string]bool{}
	for i := range announcements {
		for _, s := range announcements[i].Status.Addresses {
			listed[s.Address] = true
		}
	}
	all := map[netip.Addr]Result{}
	maps.Copy(all, inherited)
	for addr, result := range stranded {
		if result.Reason == ReasonWithdrawFailed && !listed[addr.String()] {
			all[addr] = result
		}
	}
	return all
}

// besides is what an Announcement's status lists besides what it asks for,
// ascending by address: what it has inherited, and those of the report's Stranded
// that are in its status. One that could not be withdrawn is not withdrawn: it stays
// where it was. One that no status had yet is in those that are new.
func besides(ann *purelbv1.Announcement, report Report) iter.Seq2[netip.Addr, Result] {
	listed := maps.Clone(report.Inherited)
	if listed == nil {
		listed = map[netip.Addr]Result{}
	}
	for addr, result := range report.Stranded {
		if result.Reason == ReasonWithdrawing && ann.Status.ObservedGeneration == 0 ||
			slices.ContainsFunc(ann.Status.Addresses, func(s purelbv1.AddressStatus) bool { return s.Address == addr.String() }) {
			listed[addr] = result
		}
	}
	return func(yield func(netip.Addr, Result) bool) {
		for _, addr := range slices.SortedFunc(maps.Keys(listed), netip.Addr.Compare) {
			if !yield(addr, listed[addr]) {
				return
			}
		}
	}
}

func resultOf(entry purelbv1.AnnouncedAddress, results map[netip.Addr]Result) Result {
	addr, err := netip.ParseAddr(entry.Address)
	if err != nil {
		return Result{State: purelbv1.StateFailed, Epoch: entry.Epoch, Reason: ReasonInvalid, Message: "not an IP address"}
	}
	result, ok := results[addr]
	if !ok {
		return Result{State: purelbv1.StatePending, Epoch: entry.Epoch}
	}
	return result
}

func addressStatus(address string, r Result, previous map[string]purelbv1.AddressStatus, now metav1.Time) purelbv1.AddressStatus {
	s := purelbv1.AddressStatus{
		Address: address, State: r.State, Epoch: r.Epoch, Interface: r.Interface, MAC: r.MAC,
		Reason: r.Reason, Message: truncate(r.Message, maxMessage), LastTransitionTime: now,
	}
	if old, ok := previous[address]; ok && old.State == s.State {
		s.LastTransitionTime = old.LastTransitionTime
	}
	return s
}

// conditions says whether the node does all that the Announcement asks, as
// kstatus has it: Ready always, Reconciling and Stalled only while true.
func conditions(ann *purelbv1.Announcement, status purelbv1.AnnouncementStatus, report Report) []metav1.Condition {
	var pending, troubled []string
	for _, s := range status.Addresses {
		text := s.Address + " " + string(s.State)
		if s.Message != "" {
			text += ": " + s.Message
		}
		switch {
		case s.State == purelbv1.StatePending || s.Reason == ReasonWithdrawing:
			pending = append(pending, text)
		case s.State != purelbv1.StateAnnounced || s.Reason != "":
			troubled = append(troubled, text)
		}
	}
	message := fmt.Sprintf("%d of %d addresses announced", status.Announced, status.Desired)
	if list := slices.Concat(troubled, pending); len(list) > 0 {
		message += "; " + truncate(list[0], maxMessage)
		if len(list) > 1 {
			message += fmt.Sprintf("; and %d more", len(list)-1)
		}
	}
	if report.Note != "" {
		message += "; " + report.Note
	}

	ready := metav1.Condition{Type: purelbv1.ConditionReady, Status: metav1.ConditionTrue, Reason: purelbv1.ReasonAnnounced}
	switch {
	case len(troubled) > 0:
		ready.Status, ready.Reason = metav1.ConditionFalse, purelbv1.ReasonDegraded
	case len(pending) > 0:
		ready.Status, ready.Reason = metav1.ConditionFalse, purelbv1.ReasonProgressing
	}
	result := []metav1.Condition{ready}
	if len(pending) > 0 {
		result = append(result, metav1.Condition{Type: conditionReconciling, Status: metav1.ConditionTrue, Reason: purelbv1.ReasonProgressing})
	}
	if len(troubled) > 0 {
		result = append(result, metav1.Condition{Type: conditionStalled, Status: metav1.ConditionTrue, Reason: purelbv1.ReasonDegraded})
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

// line joins items with commas; of those that do not fit into a line it says
// how many there are.
func line(items []string) string {
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

// truncate cuts s to at most n bytes, between runes.
func truncate(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n-len("…")], "") + "…"
}

// compareAddresses orders addresses as numbers, and what is none by its text.
func compareAddresses(a, b string) int {
	x, _ := netip.ParseAddr(a)
	y, _ := netip.ParseAddr(b)
	return cmp.Or(x.Compare(y), cmp.Compare(a, b))
}
