package announced

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

// MaxNodesWithOwnEvent is the number of nodes up to which each node that announces a
// Virtual address of a Service gets an event of its own.
const MaxNodesWithOwnEvent = 16

// Event is about one place of a Service.
type Event struct {
	// Type is corev1.EventTypeNormal or corev1.EventTypeWarning.
	Type, Reason, Action, Note string
	// Announcement is the object in which the node reports what the event says.
	Announcement *v1.Announcement
}

// EventMemory is what the events of one Service have said so far: what was announced,
// in conflict, and refused by kernels when the Service was last reconciled. It has 8 bytes for
// each place, and nothing of Virtual addresses on more than MaxNodesWithOwnEvent nodes.
type EventMemory struct {
	// announced, conflicts and failures are hashes of places, sorted.
	announced, conflicts, failures []uint64
	// hadManyNodes is that no events of Virtual addresses were due.
	hadManyNodes bool
}

// RestoreEventMemory derives the EventMemory of a Service that this process has not reconciled
// before from what the Service says of itself. The annotations list each Local address
// that was announced. Of Virtual addresses the Service only says whether the manager has
// reported on it: then what is announced now counts as announced before. So a restart of
// the manager repeats no event of a Service, and loses at most the Normal events of
// Virtual addresses that nodes began to announce while no manager reconciled the Service.
// The condition names up to three conflicts and failures; others are reported once more.
func RestoreEventMemory(svc *corev1.Service, places []Place) EventMemory {
	condition := meta.FindStatusCondition(svc.Status.Conditions, v1.ConditionAnnounced)
	listed := strings.Fields(
		svc.Annotations[v1.AnnotationAnnouncingIPv4] + " " + svc.Annotations[v1.AnnotationAnnouncingIPv6],
	)
	var announced, conflicts, failures []Place
	for _, p := range places {
		isInCondition := condition != nil && strings.Contains(condition.Message, messageSeparator+describeState(p))
		switch {
		case p.State != v1.StateAnnounced:
		case p.Type == v1.AnnounceVirtual && condition != nil, slices.Contains(listed, annotationEntry(p)):
			announced = append(announced, p)
		}
		if hasConflict(p) && isInCondition {
			conflicts = append(conflicts, p)
		}
		if p.State == v1.StateFailed && isInCondition {
			failures = append(failures, p)
		}
	}
	return newEventMemory(announced, conflicts, failures, CountNodes(places) > MaxNodesWithOwnEvent)
}

// NewEvents returns the events of a Service that are due now, given those that came
// before, and the memory for the next time. nodeByMAC names the node that has a MAC
// address, if one has it.
func NewEvents(before EventMemory, places []Place, nodeByMAC func(mac string) string) ([]Event, EventMemory) {
	hasManyNodes := CountNodes(places) > MaxNodesWithOwnEvent
	var events []Event
	var announced, conflicts, failures []Place
	for _, p := range places {
		// Virtual addresses may fail on all nodes alike.
		isDue := p.Type == v1.AnnounceLocal || !hasManyNodes && !before.hadManyNodes
		if p.State == v1.StateFailed {
			failures = append(failures, p)
			if isDue && !containsPlace(before.failures, p) {
				events = append(events, failedEvent(p))
			}
		}
		if p.State == v1.StateAnnounced {
			announced = append(announced, p)
			if isDue && !containsPlace(before.announced, p) {
				events = append(events, announcingEvent(p))
			}
		}
		if hasConflict(p) {
			conflicts = append(conflicts, p)
			if containsPlace(before.conflicts, p) {
				continue
			}
			if node := nodeByMAC(p.MAC); !isYieldedToNode(p, node) {
				events = append(events, Event{
					Type: corev1.EventTypeWarning, Reason: v1.EventAddressConflict, Action: "Claim " + p.Address,
					Note: conflictNote(p, node), Announcement: p.Announcement,
				})
			}
		}
	}
	return events, newEventMemory(announced, conflicts, failures, hasManyNodes)
}

// failedEvent says why a node does not have an address.
func failedEvent(p Place) Event {
	return Event{
		Type: corev1.EventTypeWarning, Reason: v1.EventAnnouncementFailed, Action: "Announce " + p.Address,
		Announcement: p.Announcement, Note: fmt.Sprintf(
			"Node %s cannot announce %s: %s", p.Node, p.Address, textlimit.Shorten(p.Message, maxReported),
		),
	}
}

func announcingEvent(p Place) Event {
	reason := v1.EventAnnouncingLocal
	if p.Type == v1.AnnounceVirtual {
		reason = v1.EventAnnouncingNonLocal
	}
	return Event{
		Type: corev1.EventTypeNormal, Reason: reason, Action: "Announce " + p.Address,
		Note:         fmt.Sprintf("Announcing %s from node %s interface %s", p.Address, p.Node, p.Interface),
		Announcement: p.Announcement,
	}
}

// newEventMemory remembers what events have said of places.
func newEventMemory(announced, conflicts, failures []Place, hasManyNodes bool) EventMemory {
	return EventMemory{
		announced: hashesOf(announced, hasManyNodes), conflicts: hashesOf(conflicts, false),
		failures: hashesOf(failures, hasManyNodes), hadManyNodes: hasManyNodes,
	}
}

// hashesOf returns sorted hashes of places, or of those with Local addresses only.
func hashesOf(places []Place, areLocalOnly bool) (hashes []uint64) {
	for _, p := range places {
		if p.Type == v1.AnnounceLocal || !areLocalOnly {
			hashes = append(hashes, placeHash(p))
		}
	}
	slices.Sort(hashes)
	return hashes
}

// containsPlace reports whether a place is among sorted hashes of places.
func containsPlace(hashes []uint64, p Place) bool {
	_, found := slices.BinarySearch(hashes, placeHash(p))
	return found
}

// placeHash tells places apart. A Local address that a node gives up and gets back has a new
// epoch, and is reported again. A Virtual one changes between an own and a shared entry,
// which have epochs of their own, without a report.
func placeHash(p Place) uint64 {
	epoch := p.Epoch
	if p.Type == v1.AnnounceVirtual {
		epoch = 0
	}
	return xxhash.Sum64String(fmt.Sprintf("%s %s %s %d", p.Node, p.Address, p.Type, epoch))
}

// hasConflict reports whether a node has met another device that answers for the address
// of a place, claims it, or was yielded to.
func hasConflict(p Place) bool {
	switch p.State {
	case v1.StateConflict:
		return true
	case v1.StateAnnounced, v1.StateYielded:
		return p.MAC != ""
	}
	return false
}

// isYieldedToNode reports whether a node has yielded an address to another node, which is
// the next holder: that is no conflict.
func isYieldedToNode(p Place, node string) bool { return p.State == v1.StateYielded && node != "" }

// conflictNote says what a node has met. owner is the node that has the other device's MAC
// address, or empty.
func conflictNote(p Place, owner string) string {
	device := p.MAC
	if owner != "" {
		device += ", which is node " + owner + "'s (kube-proxy in IPVS mode without strictARP answers for every address),"
	}
	switch p.State {
	case v1.StateAnnounced:
		return fmt.Sprintf("Node %s announces %s, but %s claims it, too", p.Node, p.Address, device)
	case v1.StateYielded:
		return fmt.Sprintf(
			"Node %s gave up %s while it was cut off the API server: %s claims it, and answers for it", p.Node, p.Address,
			device,
		)
	}
	return fmt.Sprintf("Node %s cannot announce %s: %s answers for it", p.Node, p.Address, device)
}
