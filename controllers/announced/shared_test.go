package announced_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/announced"
)

// announcer is the Announcement of a node that has realised the shared entries up to a
// revision, 0 for none, but for some addresses, as address, state, epoch.
func announcer(node string, revision int64, exceptions ...string) v1.Announcement {
	a := v1.Announcement{
		Spec: v1.AnnouncementSpec{NodeName: node, LBNodeAgent: "default", IncludeCommonAnnouncements: true},
	}
	if revision > 0 {
		a.Status.CommonAnnouncementsRevision = &revision
	}
	for _, s := range exceptions {
		words := strings.Fields(s)
		status := v1.AddressStatus{Address: words[0], State: v1.AddressState(words[1]), Message: "so it is"}
		if _, err := fmt.Sscan(words[2], &status.Epoch); err != nil {
			panic(err)
		}
		a.Status.Addresses = append(a.Status.Addresses, status)
	}
	return a
}

// shared is a CommonAnnouncement with the given entries: address, epoch and Services.
func shared(entries ...string) []v1.CommonAnnouncement {
	c := v1.CommonAnnouncement{Spec: v1.CommonAnnouncementSpec{LBNodeAgent: "default"}}
	for _, s := range entries {
		words := strings.Fields(s)
		e := v1.AnnouncedAddress{Address: words[0], Interface: "kube-lb0", Type: v1.AnnounceVirtual, Services: words[2:]}
		if _, err := fmt.Sscan(words[1], &e.Epoch); err != nil {
			panic(err)
		}
		c.Spec.Addresses = append(c.Spec.Addresses, e)
	}
	return []v1.CommonAnnouncement{c}
}

func TestSharedPlaces(t *testing.T) {
	excluded := announcer("n1", 4)
	excluded.Spec.IncludeCommonAnnouncements = false
	another := announcer("n1", 4)
	another.Spec.LBNodeAgent = "another"
	alsoOwn := announcer("n1", 4, "10.0.0.1 Announced 0")
	alsoOwn.Spec.Addresses = []v1.AnnouncedAddress{
		{Address: "10.0.0.1", Interface: "kube-lb0", Type: v1.AnnounceVirtual, Services: []string{"a/b"}},
	}
	for _, row := range []struct {
		name  string
		own   []v1.Announcement
		nodes []v1.Announcement
		want  string
	}{
		{"made", nil, []v1.Announcement{announcer("n2", 4), announcer("n1", 5)}, "n1 Announced, n2 Announced"},
		{"not yet", nil, []v1.Announcement{announcer("n1", 3), announcer("n2", 0)}, "n1 Pending, n2 Pending"},
		{
			"not this", nil, []v1.Announcement{announcer("n1", 4, "10.0.0.1 Failed 4"), announcer("n2", 9, "10.0.0.9 Failed 4")},
			"n1 Failed so it is, n2 Announced",
		},
		{
			"not as it was before", nil,
			[]v1.Announcement{announcer("n1", 4, "10.0.0.1 Failed 3"), announcer("n2", 3, "10.0.0.1 Failed 3")},
			"n1 Announced, n2 Pending",
		},
		{"not asked for there", nil, []v1.Announcement{excluded, another}, ""},
		{"by an own entry, too", []v1.Announcement{alsoOwn}, []v1.Announcement{alsoOwn}, "n1 Announced"},
	} {
		t.Run(row.name, func(t *testing.T) {
			var got []string
			for _, p := range announced.PlacesOf("a/b", row.own, shared("10.0.0.1 4 a/b", "10.0.0.2 4 a/c"), row.nodes) {
				got = append(got, strings.TrimSpace(p.Node+" "+string(p.State)+" "+p.Message))
			}
			if diff := cmp.Diff(row.want, strings.Join(got, ", ")); diff != "" {
				t.Errorf("places (-want +got):\n%s", diff)
			}
		})
	}
}

func TestServicesOfSharedReport(t *testing.T) {
	commons := shared("10.0.0.1 4 a/b a/c", "10.0.0.2 5 a/d", "10.0.0.3 2 a/e")
	gone := v1.Announcement{}
	for _, row := range []struct {
		name          string
		before, after v1.Announcement
		services      string
	}{
		{"nothing", announcer("n", 4), announcer("n", 4), ""},
		{"the next revision", announcer("n", 4), announcer("n", 5), "a/d"},
		{"several", announcer("n", 2), announcer("n", 5), "a/b a/c a/d"},
		{"the first report", announcer("n", 0), announcer("n", 4), "a/b a/c a/e"},
		{"one fails", announcer("n", 5), announcer("n", 5, "10.0.0.2 Failed 5"), "a/d"},
		{"one fails no more", announcer("n", 5, "10.0.0.2 Failed 5"), announcer("n", 5), "a/d"},
		{"a new node", gone, announcer("n", 0), "a/b a/c a/d a/e"},
		{"the node does not announce the shared entries any more", announcer("n", 5), gone, "a/b a/c a/d a/e"},
	} {
		t.Run(row.name, func(t *testing.T) {
			services := strings.Join(announced.ServicesOfChangedSharedReport(&row.before, &row.after, commons), " ")
			if services != row.services {
				t.Errorf("Services %q, want %q", services, row.services)
			}
			if changed := announced.SharedReportChanged(&row.before, &row.after); changed != (row.services != "") {
				t.Errorf("changed: %t", changed)
			}
		})
	}
}

func TestServicesOfRewrite(t *testing.T) {
	for _, row := range []struct{ name, before, after, want string }{
		{"nothing", "10.0.0.1 4 a/b", "10.0.0.1 4 a/b", ""},
		{"one comes", "10.0.0.1 4 a/b", "10.0.0.1 4 a/b,10.0.0.2 5 a/c", "a/c"},
		{"one goes", "10.0.0.1 4 a/b,10.0.0.2 5 a/c", "10.0.0.2 5 a/c", "a/b"},
		{"another shares it", "10.0.0.1 4 a/b", "10.0.0.1 5 a/b a/c", "a/b a/c"},
		{"another has it", "10.0.0.1 4 a/b", "10.0.0.1 5 a/c", "a/b a/c"},
	} {
		t.Run(row.name, func(t *testing.T) {
			before, after := shared(strings.Split(row.before, ",")...), shared(strings.Split(row.after, ",")...)
			services := announced.ServicesOfChangedCommonAnnouncement(&before[0], &after[0])
			if diff := cmp.Diff(row.want, strings.Join(services, " ")); diff != "" {
				t.Errorf("Services (-want +got):\n%s", diff)
			}
		})
	}
}
