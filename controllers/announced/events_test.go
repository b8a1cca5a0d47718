package announced_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/announced"
)

// eventsBetween lists, by reason, the events of Service a/b that are new when nodes report
// after instead of before.
func eventsBetween(before, after []v1.Announcement) string {
	_, memory := announced.NewEvents(announced.EventMemory{}, announced.PlacesOf("a/b", before, nil, nil), noNode)
	return reasonsOf(announced.NewEvents(memory, announced.PlacesOf("a/b", after, nil, nil), noNode))
}

func reasonsOf(events []announced.Event, _ announced.EventMemory) string {
	var reasons []string
	for _, e := range events {
		reasons = append(reasons, e.Reason)
	}
	return strings.Join(reasons, " ")
}

func noNode(string) string { return "" }

func TestNewEvents(t *testing.T) {
	state := func(s string, epoch int64) v1.Announcement {
		a := on("n1", [3]string{"10.0.0.1", "Local", s})
		a.Spec.Addresses[0].Epoch = epoch
		for i := range a.Status.Addresses {
			a.Status.Addresses[i].Epoch = epoch
		}
		return a
	}
	contested := func(a v1.Announcement) v1.Announcement {
		a.Status.Addresses[0].MAC = "02:00:00:00:00:99"
		return a
	}
	stale := state("Announced", 2)
	stale.Status.Addresses[0].Epoch = 1
	virtual := func(s string, epoch int64) v1.Announcement {
		a := state(s, epoch)
		a.Spec.Addresses[0].Type = v1.AnnounceVirtual
		return a
	}
	for _, row := range []struct {
		name          string
		before, after v1.Announcement
		want          string
	}{
		{"first report", state("", 2), state("Announced", 2), "AnnouncingLocal"},
		{"first report, Virtual", virtual("", 2), virtual("Announced", 2), "AnnouncingNonLocal"},
		{"no change", state("Announced", 2), state("Announced", 2), ""},
		{"a new epoch", state("Announced", 1), state("Announced", 2), "AnnouncingLocal"},
		{"a new epoch, and no report of it", state("Announced", 1), stale, ""},
		{"a new epoch, Virtual", virtual("Announced", 1), virtual("Announced", 2), ""},
		{"conflict", state("Announced", 2), state("Conflict", 2), "AddressConflict"},
		{"conflict goes on", state("Conflict", 2), state("Conflict", 2), ""},
		{"conflict is over", state("Conflict", 2), state("Announced", 2), "AnnouncingLocal"},
		{"withdrawn", state("Announced", 2), state("", 2), ""},
		{"refused", state("Pending", 2), state("Failed", 2), "AnnouncementFailed"},
		{"goes on being refused", state("Failed", 2), state("Failed", 2), ""},
		{"refused on another occasion", state("Failed", 2), state("Failed", 3), "AnnouncementFailed"},
		{"refused no more", state("Failed", 2), state("Announced", 2), "AnnouncingLocal"},
		{"another claims it", state("Announced", 2), contested(state("Announced", 2)), "AddressConflict"},
		{"given up to a device", state("Announced", 2), contested(state("Yielded", 2)), "AddressConflict"},
		{"another goes on claiming it", contested(state("Announced", 2)), contested(state("Announced", 2)), ""},
	} {
		if got := eventsBetween([]v1.Announcement{row.before}, []v1.Announcement{row.after}); got != row.want {
			t.Errorf("%s: %q, want %q", row.name, got, row.want)
		}
	}
}

// TestManyNodes checks that a Virtual address on many nodes gets no event for each node,
// also not when their number falls.
func TestManyNodes(t *testing.T) {
	nodes := func(n int) (all []v1.Announcement) {
		for i := range n {
			all = append(all, on(fmt.Sprintf("n%d", i), [3]string{"10.0.0.1", "Virtual", "Announced"}))
		}
		return all
	}
	const most = announced.MaxNodesWithOwnEvent
	for _, row := range []struct{ before, after, want int }{
		{0, most, most}, {0, most + 1, 0}, {most + 1, most, 0}, {most, most + 1, 0}, {most - 1, most, 1},
	} {
		if got := len(strings.Fields(eventsBetween(nodes(row.before), nodes(row.after)))); got != row.want {
			t.Errorf("from %d to %d nodes: %d events, want %d", row.before, row.after, got, row.want)
		}
	}
}

// TestRecallEvents restarts the manager: what the Service says of itself stands for the
// events that were recorded before.
func TestRecallEvents(t *testing.T) {
	places := announced.PlacesOf("a/b", []v1.Announcement{
		on("n1", [3]string{"10.0.0.1", "Local", "Announced"}, [3]string{"10.0.0.3", "Virtual", "Announced"}),
		on(
			"n2", [3]string{"10.0.0.2", "Local", "Announced"}, [3]string{"10.0.0.3", "Virtual", "Announced"},
			[3]string{"10.0.0.4", "Local", "Conflict"}, [3]string{"10.0.0.5", "Local", "Failed"},
		),
	}, nil, nil)
	for _, row := range []struct {
		name        string
		annotations map[string]string
		message     string // of the condition; there is none without
		want        string
	}{
		{
			"a new Service", nil, "",
			"AnnouncingLocal 10.0.0.1, AnnouncingLocal 10.0.0.2, AnnouncingNonLocal 10.0.0.3, AnnouncingNonLocal 10.0.0.3, " +
				"AddressConflict 10.0.0.4, AnnouncementFailed 10.0.0.5",
		},
		{"one Local address was announced", map[string]string{v1.AnnotationAnnouncingIPv4: "n1,eth0,10.0.0.1"},
			"1 of 6 announcements are made",
			"AnnouncingLocal 10.0.0.2, AddressConflict 10.0.0.4, AnnouncementFailed 10.0.0.5"},
		{"it was announced by another node", map[string]string{
			v1.AnnotationAnnouncingIPv4: "n1,eth0,10.0.0.1 n1,eth0,10.0.0.2",
		}, "2 of 6 announcements are made; 10.0.0.4 on n2 is Conflict (it answers)",
			"AnnouncingLocal 10.0.0.2, AnnouncementFailed 10.0.0.5"},
		{
			"nothing has changed", map[string]string{v1.AnnotationAnnouncingIPv4: "n1,eth0,10.0.0.1 n2,eth0,10.0.0.2"},
			"4 of 6 announcements are made; 10.0.0.4 on n2 is Conflict (it answers); 10.0.0.5 on n2 is Failed (refused)", "",
		},
		{
			"addresses that end alike", map[string]string{v1.AnnotationAnnouncingIPv4: "n1,eth0,10.0.0.1 n2,eth0,10.0.0.2"},
			"4 of 6 announcements are made; 110.0.0.4 on n2 is Conflict; 110.0.0.5 on n2 is Failed",
			"AddressConflict 10.0.0.4, AnnouncementFailed 10.0.0.5",
		},
	} {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Annotations: row.annotations}}
		if row.message != "" {
			svc.Status.Conditions = []metav1.Condition{{Type: v1.ConditionAnnounced, Message: row.message}}
		}
		events, memory := announced.NewEvents(announced.RestoreEventMemory(svc, places), places, noNode)
		var got []string
		for _, e := range events {
			got = append(got, e.Reason+" "+strings.Fields(e.Action)[1])
		}
		if diff := cmp.Diff(row.want, strings.Join(got, ", ")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.name, diff)
		}
		if again := reasonsOf(announced.NewEvents(memory, places, noNode)); again != "" {
			t.Errorf("%s: the next time %s", row.name, again)
		}
	}
}

func TestEventNotes(t *testing.T) {
	const mac = "02:00:00:00:00:99"
	for _, row := range []struct{ state, owner, want string }{
		{"Conflict", "", "Node n1 cannot announce 10.0.0.1: 02:00:00:00:00:99 answers for it"},
		{"Conflict", "n2", "Node n1 cannot announce 10.0.0.1: 02:00:00:00:00:99, which is node n2's " +
			"(kube-proxy in IPVS mode without strictARP answers for every address), answers for it"},
		{
			"Yielded", "",
			"Node n1 gave up 10.0.0.1 while it was cut off the API server: 02:00:00:00:00:99 claims it, and answers for it",
		},
		{"Yielded", "n2", ""}, // n2 is the next holder
		{"Announced", "", "Node n1 announces 10.0.0.1, but 02:00:00:00:00:99 claims it, too"},
		{"Announced", "n2", "Node n1 announces 10.0.0.1, but 02:00:00:00:00:99, which is node n2's " +
			"(kube-proxy in IPVS mode without strictARP answers for every address), claims it, too"},
	} {
		a := on("n1", [3]string{"10.0.0.1", "Local", row.state})
		a.Status.Addresses[0].MAC = mac
		events, _ := announced.NewEvents(announced.EventMemory{}, announced.PlacesOf("a/b", []v1.Announcement{a}, nil, nil),
			func(m string) string {
				if m != mac {
					t.Errorf("asked for MAC address %q", m)
				}
				return row.owner
			})
		got := ""
		for _, e := range events {
			if e.Announcement == nil || e.Announcement.Spec.NodeName != "n1" {
				t.Errorf("%s: about %+v", e.Note, e.Announcement)
			}
			if e.Reason == v1.EventAddressConflict {
				got = e.Note
			}
		}
		if got != row.want {
			t.Errorf("%s of %q: %q, want %q", row.state, row.owner, got, row.want)
		}
	}
	events, _ := announced.NewEvents(
		announced.EventMemory{},
		announced.PlacesOf("a/b", []v1.Announcement{on("n1", [3]string{"10.0.0.1", "Local", "Announced"})}, nil, nil), noNode,
	)
	if got, want := events[0].Note, "Announcing 10.0.0.1 from node n1 interface eth0"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
