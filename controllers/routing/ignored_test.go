package routing_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/routing"
)

// announcementOf says what a node is to announce and what it reports as announced, each as addresses with spaces
// between them. One with a ! is reported as Failed.
func announcementOf(node, desired, reported string) v1.Announcement {
	a := v1.Announcement{
		ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: v1.AnnouncementSpec{NodeName: node, LBNodeAgent: "default"},
	}
	a.Spec.Addresses = virtualEntries(desired)
	for _, text := range strings.Fields(reported) {
		s := v1.AddressStatus{Address: strings.TrimPrefix(text, "!"), State: v1.StateAnnounced}
		if s.Address != text {
			s.State = v1.StateFailed
		}
		a.Status.Addresses = append(a.Status.Addresses, s)
	}
	return a
}

func virtualEntries(texts string) (entries []v1.AnnouncedAddress) {
	for _, text := range strings.Fields(texts) {
		entries = append(entries, v1.AnnouncedAddress{Address: text, Type: v1.AnnounceVirtual})
	}
	return entries
}

// TestIgnoredAddresses has a node n1 which still has 10.1.0.1, for the time in which agents withdraw addresses.
func TestIgnoredAddresses(t *testing.T) {
	left := announcementOf("n1", "", "10.1.0.1")
	local := announcementOf("n1", "10.1.0.1", "10.1.0.1")
	local.Spec.Addresses[0].Type = v1.AnnounceLocal
	leaving := func(n *routing.Node) { n.IsStaying = false }
	for _, row := range []struct {
		name          string
		change        map[string]func(*routing.Node)
		announcements []v1.Announcement
		shared        string // what all nodes announce
		want          map[string]string
		after         time.Duration
		isClean       bool // no address lingers
	}{
		{
			name: "the agent has time", after: -time.Millisecond,
			announcements: []v1.Announcement{left, announcementOf("n2", "10.1.0.1", "10.1.0.1")},
		},
		{
			name: "another node announces it",
			announcements: []v1.Announcement{
				announcementOf("n1", "10.1.0.9", "10.1.0.1 10.1.0.9"), announcementOf("n2", "10.1.0.1", "10.1.0.1"),
			},
			want: map[string]string{"n1": "10.1.0.1-10.1.0.1"},
		},
		{
			name: "the node is to announce it", isClean: true,
			announcements: []v1.Announcement{
				announcementOf("n1", "10.1.0.1", "10.1.0.1"), announcementOf("n2", "10.1.0.1", "10.1.0.1"),
			},
		},
		{name: "the node is to announce it as a Local one", isClean: true, announcements: []v1.Announcement{local}},
		{
			name: "it is in another Announcement of the node", isClean: true,
			announcements: []v1.Announcement{
				left, announcementOf("n1", "10.1.0.1", ""), announcementOf("n2", "10.1.0.1", "10.1.0.1"),
			},
		},
		{
			name: "all nodes are to announce it", isClean: true, shared: "10.1.0.1",
			announcements: []v1.Announcement{left, announcementOf("n2", "10.1.0.1", "10.1.0.1")},
		},
		{
			name:          "no other node is to announce it",
			announcements: []v1.Announcement{left, announcementOf("n2", "", "10.1.0.1")},
		},
		{
			name:          "the other node has yet to announce it",
			announcements: []v1.Announcement{left, announcementOf("n2", "10.1.0.1", "!10.1.0.1")},
		},
		{
			name:          "the other node is about to go",
			change:        map[string]func(*routing.Node){"n2": leaving},
			announcements: []v1.Announcement{left, announcementOf("n2", "10.1.0.1", "10.1.0.1")},
		},
		{
			name: "it has never been there", isClean: true,
			announcements: []v1.Announcement{
				announcementOf("n1", "", "!10.1.0.1"), announcementOf("n2", "10.1.0.1", "10.1.0.1"),
			},
		},
		{
			name:          "two agents are dead, and the other node has it",
			announcements: []v1.Announcement{left, announcementOf("n2", "10.1.0.1", "10.1.0.1")},
			want:          map[string]string{"n1": "10.1.0.1-10.1.0.1"},
		},
		{
			name:          "two agents are dead, and the other node was to get it",
			announcements: []v1.Announcement{left, announcementOf("n2", "10.1.0.1", "")},
		},
		{
			name: "two agents are dead whose nodes are both not to announce it",
			announcements: []v1.Announcement{
				left, announcementOf("n2", "", "10.1.0.1"), announcementOf("n3", "10.1.0.1", "10.1.0.1"),
			},
			want: map[string]string{"n1": "10.1.0.1-10.1.0.1", "n2": "10.1.0.1-10.1.0.1"},
		},
		{
			name: "neighbouring addresses, both families",
			announcements: []v1.Announcement{
				announcementOf("n1", "", "10.1.0.1 10.1.0.2 10.1.0.4 fd00::1"),
				announcementOf("n2", "10.1.0.1 10.1.0.2 10.1.0.4 fd00::1", "10.1.0.1 10.1.0.2 10.1.0.4 fd00::1"),
			},
			want: map[string]string{"n1": "10.1.0.1-10.1.0.2 10.1.0.4-10.1.0.4 fd00::1-fd00::1"},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			var nodes []routing.Node
			for i := range 3 {
				n := routing.Node{Name: fmt.Sprint("n", i+1), LBNodeAgent: "default", IsStaying: true}
				if change := row.change[n.Name]; change != nil {
					change(&n)
				}
				nodes = append(nodes, n)
			}
			var commons []v1.CommonAnnouncement
			if row.shared != "" {
				row.announcements[0].Spec.IncludeCommonAnnouncements = true
				commons = append(commons, v1.CommonAnnouncement{
					Spec: v1.CommonAnnouncementSpec{LBNodeAgent: "default", Addresses: virtualEntries(row.shared)},
				})
			}
			first := routing.IgnoredAddresses(nodes, row.announcements, commons, nil, began)
			if len(first.ByNode) > 0 {
				t.Errorf("ignored at once: %v", first.ByNode)
			}
			now := began.Add(first.Wait + row.after)
			got := routing.IgnoredAddresses(nodes, row.announcements, commons, first.LingeringSince, now)
			texts := map[string]string{}
			for node, ranges := range got.ByNode {
				texts[node] = strings.Join(ranges, " ")
			}
			want := row.want
			if want == nil {
				want = map[string]string{}
			}
			if diff := cmp.Diff(want, texts); diff != "" {
				t.Errorf("ignored (-want +got):\n%s", diff)
			}
			isLeft := len(got.LingeringSince) > 0
			if isLeft == row.isClean || isLeft != (got.Wait > 0) || got.Wait > first.Wait || len(want) > 0 && !isLeft {
				t.Errorf("left since %v, and waits %s", got.LingeringSince, got.Wait)
			}
		})
	}
}

// TestTooManyIgnoredAddresses has more addresses than fit: the rest of them stays advertised, and none between them is
// ignored.
func TestTooManyIgnoredAddresses(t *testing.T) {
	texts := ""
	for i := range v1.MaxIgnoredRanges + 10 {
		texts += fmt.Sprintf(" 10.1.%d.%d", i/100, i%100*2)
	}
	nodes := []routing.Node{{Name: "n1"}, {Name: "n2", IsStaying: true}}
	announcements := []v1.Announcement{announcementOf("n1", "", texts), announcementOf("n2", texts, texts)}
	first := routing.IgnoredAddresses(nodes, announcements, nil, nil, began)
	got := routing.IgnoredAddresses(nodes, announcements, nil, first.LingeringSince, began.Add(first.Wait))
	if ranges := got.ByNode["n1"]; len(ranges) != v1.MaxIgnoredRanges || ranges[255] != "10.1.2.110-10.1.2.110" {
		t.Errorf("%d ranges, the last one %s", len(ranges), ranges[len(ranges)-1])
	}
}

// TestRenderIgnored says it in the NodeRouting of that node.
func TestRenderIgnored(t *testing.T) {
	in := communitiesInputs(t)
	in.Nodes = append(in.Nodes, node("n2", 12, ""))
	in.Ignored = routing.IgnoredRanges{ByNode: map[string][]string{"n1": {"10.1.0.1-10.1.0.1"}}}
	r := routing.Render(in)
	for i, n := range in.Nodes {
		if got, want := len(r.Specs[n.Name].Ignored) == 1, i == 0; got != want {
			t.Errorf("%s ignores %v", n.Name, r.Specs[n.Name].Ignored)
		}
	}
}
