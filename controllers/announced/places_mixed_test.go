package announced_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/announced"
)

// TestPlacesAmongOthers has entries of other Services before those of the Service, and
// entries that Services share.
func TestPlacesAmongOthers(t *testing.T) {
	own := on(
		"n1", [3]string{"10.0.0.1", "Local", "Announced"}, [3]string{"10.0.0.2", "Local", ""},
		[3]string{"10.0.0.3", "Local", ""},
	)
	own.Spec.Addresses[0].Services = []string{"a/other"}
	own.Spec.Addresses[2].Services = []string{"a/b", "a/other"}
	commons := shared("10.0.1.1 4 a/other", "10.0.1.2 4 a/b", "10.0.1.3 4 a/b a/other")
	var got []string
	for _, p := range announced.PlacesOf("a/b", []v1.Announcement{own}, commons, []v1.Announcement{announcer("n2", 4)}) {
		got = append(got, fmt.Sprintf("%s on %s shared %t", p.Address, p.Node, p.HasSharers))
	}
	want := []string{
		"10.0.0.2 on n1 shared false", "10.0.0.3 on n1 shared true", "10.0.1.2 on n2 shared false",
		"10.0.1.3 on n2 shared true",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("places (-want +got):\n%s", diff)
	}
}

// TestOwnAndSharedEntry has an address that a node is to announce by an entry of its own
// and by a shared one: the one that it announces counts.
func TestOwnAndSharedEntry(t *testing.T) {
	for _, row := range []struct {
		name     string
		revision int64 // of the shared entries that the node has realised; the entry is of revision 4
		epoch    int64 // of the entry of its own; the report is of epoch 1
		want     v1.AddressState
	}{
		{"its own is announced", 3, 1, v1.StateAnnounced},
		{"the shared one is announced", 4, 2, v1.StateAnnounced},
		{"neither is announced", 3, 2, v1.StatePending},
	} {
		a := announcer("n1", row.revision, "10.0.0.1 Announced 1")
		a.Spec.Addresses = []v1.AnnouncedAddress{
			{Address: "10.0.0.1", Interface: "kube-lb0", Type: v1.AnnounceVirtual, Epoch: row.epoch, Services: []string{"a/b"}},
		}
		places := announced.PlacesOf("a/b", []v1.Announcement{a}, shared("10.0.0.1 4 a/b"), []v1.Announcement{a})
		if len(places) != 1 || places[0].State != row.want {
			t.Errorf("%s: %+v", row.name, places)
		}
	}
}

func TestNodeByMAC(t *testing.T) {
	reporting := func(node string, interfaceMAC string, macs ...string) v1.Announcement {
		return v1.Announcement{
			Spec:   v1.AnnouncementSpec{NodeName: node},
			Status: v1.AnnouncementStatus{MACs: macs, Interfaces: []v1.NodeInterface{{Name: "eth0", MAC: interfaceMAC}}},
		}
	}
	all := []v1.Announcement{
		reporting("n1", "02::1", "02::11", "02::99"),
		reporting("n1", "02::1"), // a second Announcement of the node
		reporting("n2", "02::2", "02::99"),
		reporting("n3", ""),
	}
	for mac, want := range map[string]string{
		"02::1":  "n1",
		"02::11": "n1",
		"02::2":  "n2",
		"02::99": "", // two nodes report it
		"02::42": "",
		"":       "",
	} {
		if got := announced.NodeByMAC(all, mac); got != want {
			t.Errorf("%q is %q's, want %q", mac, got, want)
		}
	}
}

// TestThreeWait names all that wait, since they are no more than can be named.
func TestThreeWait(t *testing.T) {
	var nodes []v1.Announcement
	for _, node := range []string{"n1", "n2", "n3"} {
		nodes = append(nodes, on(node, [3]string{"10.0.0.1", "Virtual", ""}))
	}
	report := announced.Summarise(
		[]netip.Addr{netip.MustParseAddr("10.0.0.1")}, announced.PlacesOf("a/b", nodes, nil, nil),
		unexplained,
	)
	const want = "0 of 3 announcements are made; 10.0.0.1 on n1 is Pending; 10.0.0.1 on n2 is Pending; 10.0.0.1 on n3 " +
		"is Pending"
	if report.Condition.Message != want {
		t.Errorf("%q, want %q", report.Condition.Message, want)
	}
}

// TestSecondConflict has one conflict that was reported before, and another that is new.
func TestSecondConflict(t *testing.T) {
	known := on("n1", [3]string{"10.0.0.1", "Local", "Conflict"}, [3]string{"10.0.0.2", "Local", ""})
	both := on("n1", [3]string{"10.0.0.1", "Local", "Conflict"}, [3]string{"10.0.0.2", "Local", "Conflict"})
	if got := eventsBetween([]v1.Announcement{known}, []v1.Announcement{both}); got != "AddressConflict" {
		t.Errorf("events %q", got)
	}
}

// TestLocalBesideManyNodes has a Local address of a Service whose Virtual address is on
// many nodes: its event is not repeated.
func TestLocalBesideManyNodes(t *testing.T) {
	nodes := []v1.Announcement{on("a", [3]string{"10.0.0.9", "Local", "Announced"})}
	for i := range announced.MaxNodesWithOwnEvent {
		nodes = append(nodes, on(fmt.Sprintf("n%d", i), [3]string{"10.0.0.1", "Virtual", "Announced"}))
	}
	places := announced.PlacesOf("a/b", nodes, nil, nil)
	events, memory := announced.NewEvents(announced.EventMemory{}, places, noNode)
	if got := reasonsOf(events, memory); got != "AnnouncingLocal" {
		t.Errorf("events %q", got)
	}
	if got := reasonsOf(announced.NewEvents(memory, places, noNode)); got != "" {
		t.Errorf("the next time: events %q", got)
	}
}

// TestRecallOnManyNodes restarts the manager while a Virtual address is on as many nodes
// as get events of their own: the node that announces it later gets one.
func TestRecallOnManyNodes(t *testing.T) {
	var nodes []v1.Announcement
	for i := range announced.MaxNodesWithOwnEvent {
		nodes = append(nodes, on(fmt.Sprintf("n%02d", i), [3]string{"10.0.0.1", "Virtual", "Announced"}))
	}
	last := &nodes[len(nodes)-1]
	last.Status.Addresses[0].State = v1.StatePending
	svc := &corev1.Service{Status: corev1.ServiceStatus{Conditions: []metav1.Condition{{Type: v1.ConditionAnnounced}}}}
	memory := announced.RestoreEventMemory(svc, announced.PlacesOf("a/b", nodes, nil, nil))
	last.Status.Addresses[0].State = v1.StateAnnounced
	events, _ := announced.NewEvents(memory, announced.PlacesOf("a/b", nodes, nil, nil), noNode)
	if len(events) != 1 || !strings.Contains(events[0].Note, last.Spec.NodeName) {
		t.Errorf("events %+v", events)
	}
}
