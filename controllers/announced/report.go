package announced

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

// AnnotationNames are the annotations that a Report may have.
var AnnotationNames = []string{v1.AnnotationAnnouncingIPv4, v1.AnnotationAnnouncingIPv6, v1.AnnotationAddedTo}

// Report is what a Service is to say of its addresses. The zero value is the report of a
// Service that has none.
type Report struct {
	// Annotations that the Service is to have. It is to have no others of
	// AnnotationNames.
	Annotations map[string]string
	// Condition of type v1.ConditionAnnounced.
	Condition metav1.Condition
	// DependsOnSilence is that the condition says what it says because agents do not renew their Leases.
	DependsOnSilence bool
}

// Summarise reports on a Service that has the given addresses. explain says why an
// address has no node, if the manager knows.
func Summarise(addrs []netip.Addr, places []Place, explain func(netip.Addr) placement.Explanation) Report {
	report := Report{Annotations: announcingAnnotations(places)}
	silent := silentHolders(addrs, explain)
	var waiting, doubted []string
	announced, all, unplaced := 0, 0, slices.Clone(addrs)
	for _, p := range places {
		why, isSilent := silent[p.Address]
		isSilent = isSilent && (why.AreAllSilent || why.SilentHolder == p.Node) && p.State == v1.StateAnnounced
		report.DependsOnSilence = report.DependsOnSilence || isSilent
		if isSilent && why.IsHolderDown {
			continue
		}
		all++
		unplaced = slices.DeleteFunc(unplaced, func(a netip.Addr) bool { return a.String() == p.Address })
		switch {
		case isSilent:
			doubted = append(doubted, describeDoubt(p, why))
		case p.State == v1.StateAnnounced:
			announced++
		default:
			waiting = append(waiting, describePlace(p))
		}
	}
	reasons := make([]string, 0, len(unplaced))
	for _, a := range unplaced {
		s := fmt.Sprintf("%s has no node", a)
		if reason := explain(a).Message; reason != "" {
			s += ": " + reason
		}
		reasons = append(reasons, s)
	}
	report.Condition = announcedCondition(announced, all, reasons, waiting, slices.Compact(doubted))
	return report
}

// describeDoubt says of a place why it is not known whether the address is announced there: of one that all nodes are
// silent about, once for all of them.
func describeDoubt(p Place, why placement.Explanation) string {
	who := p.Node
	if why.AreAllSilent {
		who = "any node"
	}
	return fmt.Sprintf("whether %s still announces %s is not known: %s", who, p.Address, why.Message)
}

// announcingAnnotations are the annotations that say which nodes report that they announce Local addresses.
func announcingAnnotations(places []Place) map[string]string {
	entries := map[string][]string{}
	var addedTo []string
	for _, p := range places {
		if p.State != v1.StateAnnounced || p.Type != v1.AnnounceLocal {
			continue
		}
		name := v1.AnnotationAnnouncingIPv4
		if strings.Contains(p.Address, ":") {
			name = v1.AnnotationAnnouncingIPv6
		}
		entries[name] = append(entries[name], annotationEntry(p))
		addedTo = append(addedTo, p.Node+"/"+p.Interface)
	}
	annotations := map[string]string{}
	for name, list := range entries {
		annotations[name] = strings.Join(list, " ")
	}
	if len(addedTo) > 0 {
		slices.Sort(addedTo)
		annotations[v1.AnnotationAddedTo] = strings.Join(slices.Compact(addedTo), " ")
	}
	return annotations
}

// silentHolders are, by the text of the address, the explanations of reports that may be out of date.
func silentHolders(
	addrs []netip.Addr, explain func(netip.Addr) placement.Explanation,
) map[string]placement.Explanation {
	silent := map[string]placement.Explanation{}
	for _, a := range addrs {
		if why := explain(a); why.SilentHolder != "" || why.AreAllSilent {
			silent[a.String()] = why
		}
	}
	return silent
}

// annotationEntry is a Local address in an annotation.
func annotationEntry(p Place) string { return fmt.Sprintf("%s,%s,%s", p.Node, p.Interface, p.Address) }

// maxReported is how many bytes a report quotes of what an agent says of an address.
const maxReported = 512

// describePlace says of a place that is not announced what is the matter.
func describePlace(p Place) string {
	s := describeState(p)
	if p.Message != "" {
		s += " (" + textlimit.Shorten(p.Message, maxReported) + ")" // the agent has written it
	}
	return s
}

func describeState(p Place) string {
	return fmt.Sprintf("%s on %s is %s", p.Address, p.Node, p.State)
}

// messageSeparator stands before each thing that a message names.
const messageSeparator = "; "

// announcedCondition says how many of all announcements are made, and names up to three of the
// addresses that have no node, of the announcements that wait, and of those that are doubted.
func announcedCondition(announced, all int, unplaced, waiting, doubted []string) metav1.Condition {
	c := metav1.Condition{Type: v1.ConditionAnnounced, Status: metav1.ConditionFalse, Reason: v1.ReasonAnnouncing}
	c.Message = fmt.Sprintf("%d of %d announcements are made", announced, all)
	switch {
	case len(unplaced) > 0:
		c.Reason = v1.ReasonNotAnnounced
		for _, s := range textlimit.First(unplaced, maxNamedInCondition) {
			c.Message += messageSeparator + s
		}
	case len(waiting) == 0 && len(doubted) > 0:
		c.Status, c.Reason = metav1.ConditionUnknown, v1.ReasonHolderSilent
	case announced == all:
		c.Status, c.Reason = metav1.ConditionTrue, v1.ReasonAnnounced
	}
	for _, list := range [][]string{waiting, doubted} {
		for _, s := range textlimit.First(list, maxNamedInCondition) {
			c.Message += messageSeparator + s
		}
	}
	return c
}
