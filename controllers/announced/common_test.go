package announced_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/announced"
)

// member is the Announcement of a node that has made what is common up to a
// revision, 0 for nothing at all. But for some addresses, as address, state, epoch.
func member(node string, revision int64, but ...string) v1.Announcement {
	a := v1.Announcement{Spec: v1.AnnouncementSpec{NodeName: node, LBNodeAgent: "default", Common: true}}
	if revision > 0 {
		a.Status.CommonRevision = &revision
	}
	for _, s := range but {
		words := strings.Fields(s)
		status := v1.AddressStatus{Address: words[0], State: v1.AddressState(words[1]), Message: "so it is"}
		if _, err := fmt.Sscan(words[2], &status.Epoch); err != nil {
			panic(err)
		}
		a.Status.Addresses = append(a.Status.Addresses, status)
	}
	return a
}

// common is what is asked of all nodes: address, epoch and Service.
func common(entries ...string) []v1.CommonAnnouncement {
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

func TestCommonPlaces(t *testing.T) {
	apart := member("n1", 4)
	apart.Spec.Common = false
	another := member("n1", 4)
	another.Spec.LBNodeAgent = "another"
	itself := member("n1", 4, "10.0.0.1 Announced 0")
	itself.Spec.Addresses = []v1.AnnouncedAddress{{Address: "10.0.0.1", Interface: "kube-lb0", Type: v1.AnnounceVirtual, Services: []string{"a/b"}}}
	for _, row := range []struct {
		name  string
		own   []v1.Announcement
		nodes []v1.Announcement
		want  string
	}{
		{"made", nil, []v1.Announcement{member("n2", 4), member("n1", 5)}, "n1 Announced, n2 Announced"},
		{"not yet", nil, []v1.Announcement{member("n1", 3), member("n2", 0)}, "n1 Pending, n2 Pending"},
		{"not this", nil, []v1.Announcement{member("n1", 4, "10.0.0.1 Failed 4"), member("n2", 9, "10.0.0.9 Failed 4")}, "n1 Failed so it is, n2 Announced"},
		{"not as it was before", nil, []v1.Announcement{member("n1", 4, "10.0.0.1 Failed 3"), member("n2", 3, "10.0.0.1 Failed 3")}, "n1 Announced, n2 Pending"},
		{"not asked for there", nil, []v1.Announcement{apart, another}, ""},
		{"by itself, too", []v1.Announcement{itself}, []v1.Announcement{itself}, "n1 Announced"},
	} {
		t.Run(row.name, func(t *testing.T) {
			var got []string
			for _, p := range announced.PlacesOf("a/b", row.own, common("10.0.0.1 4 a/b", "10.0.0.2 4 a/c"), row.nodes) {
				got = append(got, strings.TrimSpace(p.Node+" "+string(p.State)+" "+p.Message))
			}
			if diff := cmp.Diff(row.want, strings.Join(got, ", ")); diff != "" {
				t.Errorf("places (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCommonDifference(t *testing.T) {
	commons := common("10.0.0.1 4 a/b a/c", "10.0.0.2 5 a/d", "10.0.0.3 2 a/e")
	gone := v1.Announcement{}
	for _, row := range []struct {
		name               string
		before, after      v1.Announcement
		services, realised string
	}{
		{"nothing", member("n", 4), member("n", 4), "", ""},
		{"the next revision", member("n", 4), member("n", 5), "a/d", "10.0.0.2"},
		{"several", member("n", 2), member("n", 5), "a/b a/c a/d", "10.0.0.1 10.0.0.2"},
		{"the first report", member("n", 0), member("n", 4), "a/b a/c a/e", "10.0.0.1 10.0.0.3"},
		{"one fails", member("n", 5), member("n", 5, "10.0.0.2 Failed 5"), "a/d", ""},
		{"one fails no more", member("n", 5, "10.0.0.2 Failed 5"), member("n", 5), "a/d", "10.0.0.2"},
		{"a new node", gone, member("n", 0), "a/b a/c a/d a/e", ""},
		{"it takes no part any more", member("n", 5), gone, "a/b a/c a/d a/e", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			services, entries := announced.CommonDifference(&row.before, &row.after, commons)
			var realised []string
			for _, e := range entries {
				realised = append(realised, e.Address)
			}
			if diff := cmp.Diff([]string{row.services, row.realised}, []string{strings.Join(services, " "), strings.Join(realised, " ")}); diff != "" {
				t.Errorf("Services and realised addresses (-want +got):\n%s", diff)
			}
			if changed := announced.CommonChanged(&row.before, &row.after); changed != (row.services != "") {
				t.Errorf("changed: %t", changed)
			}
		})
	}
}

func TestCommonRewritten(t *testing.T) {
	for _, row := range []struct{ name, before, after, want string }{
		{"nothing", "10.0.0.1 4 a/b", "10.0.0.1 4 a/b", ""},
		{"one comes", "10.0.0.1 4 a/b", "10.0.0.1 4 a/b,10.0.0.2 5 a/c", "a/c"},
		{"one goes", "10.0.0.1 4 a/b,10.0.0.2 5 a/c", "10.0.0.2 5 a/c", "a/b"},
		{"another shares it", "10.0.0.1 4 a/b", "10.0.0.1 5 a/b a/c", "a/b a/c"},
		{"another has it", "10.0.0.1 4 a/b", "10.0.0.1 5 a/c", "a/b a/c"},
	} {
		t.Run(row.name, func(t *testing.T) {
			before, after := common(strings.Split(row.before, ",")...), common(strings.Split(row.after, ",")...)
			if diff := cmp.Diff(row.want, strings.Join(announced.CommonRewritten(&before[0], &after[0]), " ")); diff != "" {
				t.Errorf("Services (-want +got):\n%s", diff)
			}
		})
	}
}
