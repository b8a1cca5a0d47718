package announced

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
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
}

// Summarise reports on a Service that has the given addresses. reasonUnplaced says why an
// address has no node, if the manager knows.
func Summarise(addrs []netip.Addr, places []Place, reasonUnplaced func(netip.Addr) string) Report {
	report := Report{Annotations: map[string]string{}}
	entries := map[string][]string{}
	var addedTo, waiting []string
	announced, unplaced := 0, slices.Clone(addrs)
	for _, p := range places {
		unplaced = slices.DeleteFunc(unplaced, func(a netip.Addr) bool { return a.String() == p.Address })
		if p.State != v1.StateAnnounced {
			waiting = append(waiting, describePlace(p))
			continue
		}
		announced++
		if p.Type != v1.AnnounceLocal {
			continue
		}
		name := v1.AnnotationAnnouncingIPv4
		if strings.Contains(p.Address, ":") {
			name = v1.AnnotationAnnouncingIPv6
		}
		entries[name] = append(entries[name], annotationEntry(p))
		addedTo = append(addedTo, p.Node+"/"+p.Interface)
	}
	for name, list := range entries {
		report.Annotations[name] = strings.Join(list, " ")
	}
	if len(addedTo) > 0 {
		slices.Sort(addedTo)
		report.Annotations[v1.AnnotationAddedTo] = strings.Join(slices.Compact(addedTo), " ")
	}
	reasons := make([]string, 0, len(unplaced))
	for _, a := range unplaced {
		s := fmt.Sprintf("%s has no node", a)
		if reason := reasonUnplaced(a); reason != "" {
			s += ": " + reason
		}
		reasons = append(reasons, s)
	}
	report.Condition = announcedCondition(announced, len(places), reasons, waiting)
	return report
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
// addresses that have no node, and of the announcements that wait.
func announcedCondition(announced, all int, unplaced, waiting []string) metav1.Condition {
	c := metav1.Condition{Type: v1.ConditionAnnounced, Status: metav1.ConditionFalse, Reason: v1.ReasonAnnouncing}
	c.Message = fmt.Sprintf("%d of %d announcements are made", announced, all)
	switch {
	case len(unplaced) > 0:
		c.Reason = v1.ReasonNotAnnounced
		for _, s := range textlimit.First(unplaced, maxNamedInCondition) {
			c.Message += messageSeparator + s
		}
	case announced == all:
		c.Status, c.Reason = metav1.ConditionTrue, v1.ReasonAnnounced
	}
	for _, s := range textlimit.First(waiting, maxNamedInCondition) {
		c.Message += messageSeparator + s
	}
	return c
}
