package announced_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/announced"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// on is an Announcement of a node; each entry is address, type and state.
func on(node string, entries ...[3]string) v1.Announcement {
	a := v1.Announcement{Spec: v1.AnnouncementSpec{NodeName: node}}
	for _, e := range entries {
		iface := v1.InterfaceName("eth0")
		if e[1] == "Virtual" {
			iface = "kube-lb0"
		}
		a.Spec.Addresses = append(a.Spec.Addresses, v1.AnnouncedAddress{
			Address: e[0], Type: v1.AnnounceType(e[1]), Interface: iface, Epoch: 2, Services: []string{"a/b"}})
		if e[2] != "" {
			a.Status.Addresses = append(
				a.Status.Addresses, v1.AddressStatus{Address: e[0], State: v1.AddressState(e[2]), Epoch: 2},
			)
		}
	}
	return a
}

// unexplained has nothing to say of any address.
func unexplained(netip.Addr) placement.Explanation { return placement.Explanation{} }

// TestSilentVirtual has two nodes that report that they announce a Virtual address, while neither node's agent renews
// its Lease.
func TestSilentVirtual(t *testing.T) {
	const (
		addr    = "198.51.100.1"
		message = "n1 has an agent that does not renew its Lease; n2 has one, too"
		doubt   = "whether any node still announces 198.51.100.1 is not known: " + message
	)
	for _, row := range []struct {
		name, want string
		isDown     bool
		states     [2]string
	}{
		{"both", "Unknown HolderSilent: 0 of 2 announcements are made; " + doubt, false, [2]string{"Announced", "Announced"}},
		{"one has yet to", "False Announcing: 0 of 2 announcements are made; 198.51.100.1 on n2 is Pending; " + doubt, false,
			[2]string{"Announced", "Pending"}},
		{"both are down", "False NotAnnounced: 0 of 0 announcements are made; 198.51.100.1 has no node: " + message, true,
			[2]string{"Announced", "Announced"}},
	} {
		report := announced.Summarise(
			[]netip.Addr{netip.MustParseAddr(addr)},
			announced.PlacesOf("a/b", []v1.Announcement{
				on("n1", [3]string{addr, "Virtual", row.states[0]}), on("n2", [3]string{addr, "Virtual", row.states[1]}),
			}, nil, nil),
			func(netip.Addr) placement.Explanation {
				return placement.Explanation{
					Reason: v1.ReasonHolderSilent, Message: message, AreAllSilent: true, IsHolderDown: row.isDown,
				}
			},
		)
		c := report.Condition
		if got := string(c.Status) + " " + c.Reason + ": " + c.Message; got != row.want || !report.DependsOnSilence {
			t.Errorf("%s: got  %s\nwant %s", row.name, got, row.want)
		}
	}
}

// TestSilentHolder has nodes that report that they announce addresses, while their agents do not renew their Leases and
// no other node may take them.
func TestSilentHolder(t *testing.T) {
	const (
		a, b    = "10.0.0.1", "10.0.0.2"
		message = "n1 has an agent that does not renew its Lease"
	)
	silent := placement.Explanation{Reason: v1.ReasonNoEligibleNode, Message: message, SilentHolder: "n1"}
	down, other := silent, silent
	down.IsHolderDown = true
	other.SilentHolder = "n2"
	for _, row := range []struct {
		name   string
		why    map[string]placement.Explanation
		states [2]string
		want   string
	}{
		{"one", map[string]placement.Explanation{a: silent}, [2]string{"Announced", "Announced"},
			"Unknown HolderSilent: 1 of 2 announcements are made; whether n1 still announces 10.0.0.1 is not known: " + message},
		{"both", map[string]placement.Explanation{a: silent, b: silent}, [2]string{"Announced", "Announced"},
			"Unknown HolderSilent: 0 of 2 announcements are made; whether n1 still announces 10.0.0.1 is not known: " + message +
				"; whether n1 still announces 10.0.0.2 is not known: " + message},
		{"one waits", map[string]placement.Explanation{a: silent}, [2]string{"Announced", "Pending"},
			"False Announcing: 0 of 2 announcements are made; 10.0.0.2 on n1 is Pending; " +
				"whether n1 still announces 10.0.0.1 is not known: " + message},
		{"its node is down", map[string]placement.Explanation{a: down}, [2]string{"Announced", "Announced"},
			"False NotAnnounced: 1 of 1 announcements are made; 10.0.0.1 has no node: " + message},
		{"another node", map[string]placement.Explanation{a: other}, [2]string{"Announced", "Announced"},
			"True Announced: 2 of 2 announcements are made"},
		{"one that keeps it", map[string]placement.Explanation{a: {Message: message}}, [2]string{"Announced", "Announced"},
			"True Announced: 2 of 2 announcements are made"},
	} {
		node := on("n1", [3]string{a, "Local", row.states[0]}, [3]string{b, "Local", row.states[1]})
		report := announced.Summarise(
			[]netip.Addr{netip.MustParseAddr(a), netip.MustParseAddr(b)},
			announced.PlacesOf("a/b", []v1.Announcement{node}, nil, nil),
			func(a netip.Addr) placement.Explanation { return row.why[a.String()] },
		)
		c := report.Condition
		if got := string(c.Status) + " " + c.Reason + ": " + c.Message; got != row.want {
			t.Errorf("%s: got  %s\nwant %s", row.name, got, row.want)
		}
		reported := 2
		if row.states[1] != "Announced" {
			reported = 1
		}
		if got := strings.Fields(report.Annotations[v1.AnnotationAnnouncingIPv4]); len(got) != reported {
			t.Errorf("%s: the annotation names %q", row.name, got)
		}
		if want := row.why[a].SilentHolder == "n1"; report.DependsOnSilence != want {
			t.Errorf("%s: depends on silence: %t", row.name, report.DependsOnSilence)
		}
	}
	if report := announced.Summarise(
		[]netip.Addr{netip.MustParseAddr(a)},
		announced.PlacesOf(
			"a/b", []v1.Announcement{on("n1", [3]string{a, "Local", "Announced"}), on("n2", [3]string{a, "Local", "Announced"})},
			nil, nil,
		),
		func(netip.Addr) placement.Explanation { return down },
	); report.Condition.Message != "1 of 1 announcements are made" {
		t.Errorf("another node reports it, too: %s", report.Condition.Message)
	}
}

func TestSummarise(t *testing.T) {
	stale := on("n1", [3]string{"10.0.0.1", "Local", "Announced"})
	stale.Status.Addresses[0].Epoch = 1
	for _, row := range []struct {
		name          string
		addrs         string
		announcements []v1.Announcement
		annotations   map[string]string
		condition     string
	}{
		{
			"nowhere", "10.0.0.1", nil, map[string]string{},
			"False NotAnnounced: 0 of 0 announcements are made; 10.0.0.1 has no node",
		},
		{"Local", "10.0.0.1 fd00::1", []v1.Announcement{
			on("n2", [3]string{"fd00::1", "Local", "Announced"}), on("n1", [3]string{"10.0.0.1", "Local", "Announced"}),
		},
			map[string]string{
				v1.AnnotationAnnouncingIPv4: "n1,eth0,10.0.0.1", v1.AnnotationAnnouncingIPv6: "n2,eth0,fd00::1",
				v1.AnnotationAddedTo: "n1/eth0 n2/eth0",
			},
			"True Announced: 2 of 2 announcements are made"},
		{"two on one node", "10.0.0.1 10.0.0.2", []v1.Announcement{
			on("n1", [3]string{"10.0.0.2", "Local", "Announced"}, [3]string{"10.0.0.1", "Local", "Announced"}),
		},
			map[string]string{v1.AnnotationAnnouncingIPv4: "n1,eth0,10.0.0.1 n1,eth0,10.0.0.2", v1.AnnotationAddedTo: "n1/eth0"},
			"True Announced: 2 of 2 announcements are made"},
		{"Virtual", "10.0.0.1", []v1.Announcement{
			on("n1", [3]string{"10.0.0.1", "Virtual", "Announced"}), on("n2", [3]string{"10.0.0.1", "Virtual", ""}),
		},
			map[string]string{}, "False Announcing: 1 of 2 announcements are made; 10.0.0.1 on n2 is Pending"},
		{"a report of an earlier epoch", "10.0.0.1", []v1.Announcement{stale}, map[string]string{},
			"False Announcing: 0 of 1 announcements are made; 10.0.0.1 on n1 is Pending"},
		{"one of two nowhere", "10.0.0.1 fd00::1", []v1.Announcement{on("n1", [3]string{"10.0.0.1", "Virtual", "Announced"})},
			map[string]string{}, "False NotAnnounced: 1 of 1 announcements are made; fd00::1 has no node"},
		{
			"many nowhere", "10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4", nil, map[string]string{},
			"False NotAnnounced: 0 of 0 announcements are made; 10.0.0.1 has no node; 10.0.0.2 has no node; " +
				"10.0.0.3 has no node; and 1 more",
		},
		{"many wait", "10.0.0.1",
			[]v1.Announcement{on("n1", [3]string{"10.0.0.1", "Virtual", "Failed"}),
				on("n2", [3]string{"10.0.0.1", "Virtual", ""}),
				on("n3", [3]string{"10.0.0.1", "Virtual", ""}), on("n4", [3]string{"10.0.0.1", "Virtual", ""})},
			map[string]string{},
			"False Announcing: 0 of 4 announcements are made; 10.0.0.1 on n1 is Failed; 10.0.0.1 on n2 is Pending; 10.0.0.1 " +
				"on n3 is Pending; and 1 more"},
	} {
		t.Run(row.name, func(t *testing.T) {
			var addrs []netip.Addr
			for _, a := range strings.Fields(row.addrs) {
				addrs = append(addrs, netip.MustParseAddr(a))
			}
			got := announced.Summarise(addrs, announced.PlacesOf("a/b", row.announcements, nil, nil), unexplained)
			if diff := cmp.Diff(row.annotations, got.Annotations); diff != "" {
				t.Errorf("annotations (-want +got):\n%s", diff)
			}
			c := got.Condition
			if diff := cmp.Diff(row.condition, string(c.Status)+" "+c.Reason+": "+c.Message); diff != "" ||
				c.Type != v1.ConditionAnnounced {
				t.Errorf("condition %s (-want +got):\n%s", c.Type, diff)
			}
		})
	}
	if places := announced.PlacesOf(
		"a/c", []v1.Announcement{on("n1", [3]string{"10.0.0.1", "Local", "Announced"})}, nil, nil,
	); len(places) != 0 {
		t.Errorf("places of another Service: %v", places)
	}
}

func TestChanged(t *testing.T) {
	make := func(change func(*v1.Announcement)) *v1.Announcement {
		a := on("n1", [3]string{"10.0.0.1", "Local", "Announced"}, [3]string{"10.0.0.2", "Local", "Announced"})
		a.Spec.Addresses[1].Services = []string{"a/c", "a/d"}
		change(&a)
		return &a
	}
	same := func(*v1.Announcement) {}
	for _, row := range []struct {
		name          string
		before, after func(*v1.Announcement)
		want          string
	}{
		{"nothing", same, same, ""},
		{"facts only", same, func(a *v1.Announcement) { a.Status.Interfaces = []v1.NodeInterface{{Name: "eth0"}} }, ""},
		{"a state", same, func(a *v1.Announcement) { a.Status.Addresses[0].State = v1.StateConflict }, "a/b"},
		{"an entry", same, func(a *v1.Announcement) { a.Spec.Addresses[1].HandingOver = true }, "a/c a/d"},
		{
			"a sharer more", same, func(a *v1.Announcement) { a.Spec.Addresses[0].Services = []string{"a/b", "a/e"} }, "a/b a/e",
		},
		{"an entry less", same, func(a *v1.Announcement) { a.Spec.Addresses = a.Spec.Addresses[1:] }, "a/b"},
		{"an entry more", func(a *v1.Announcement) {
			a.Spec.Addresses, a.Status.Addresses = a.Spec.Addresses[:1], a.Status.Addresses[:1]
		}, same, "a/c a/d"},
		{"a report less", same, func(a *v1.Announcement) { a.Status.Addresses = a.Status.Addresses[:1] }, "a/c a/d"},
	} {
		if got := strings.Join(announced.ServicesOfChangedEntries(make(row.before), make(row.after)), " "); got != row.want {
			t.Errorf("%s: %q, want %q", row.name, got, row.want)
		}
	}
	if got := strings.Join(announced.ServicesOfAnnouncement(make(same)), " "); got != "a/b a/c a/d" {
		t.Errorf("all: %q", got)
	}
}
