package controllers

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// TestUntilRoutesWithdrawn says for how long an excluded node keeps its Virtual addresses.
func TestUntilRoutesWithdrawn(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	const unset = -time.Second
	routing := func(peers int, drains time.Duration, isDrained bool, generation, observed int64) *v1.NodeRouting {
		r := &v1.NodeRouting{
			Spec:   v1.NodeRoutingSpec{Peers: make([]v1.RoutingPeer, peers)},
			Status: v1.NodeRoutingStatus{Drained: isDrained, ObservedGeneration: observed},
		}
		r.Generation = generation
		if drains != unset {
			r.Spec.DrainSince = &metav1.Time{Time: now.Add(-drains)}
		}
		return r
	}
	for _, row := range []struct {
		name    string
		routing *v1.NodeRouting
		want    time.Duration
	}{
		{"no speaker", nil, 0},
		{"no neighbour", routing(0, time.Second, false, 1, 1), 0},
		{"about to drain", routing(1, unset, false, 1, 1), 30 * time.Second},
		{"drains since a moment to come", routing(1, -time.Hour, false, 1, 1), 30 * time.Second},
		{"drains", routing(1, 8*time.Second, false, 2, 2), 22 * time.Second},
		{"has drained", routing(1, 8*time.Second, true, 2, 2), 0},
		{"had drained the time before", routing(1, time.Second, true, 4, 3), 29 * time.Second},
		{"the speaker does not answer", routing(1, time.Minute, false, 2, 1), 0},
	} {
		if got := untilRoutesWithdrawn(row.routing, now); got != row.want {
			t.Errorf("%s: %s, not %s", row.name, got, row.want)
		}
	}
}

// TestCordoned says which nodes hand their addresses over: those that take no new pods, where their LBNodeAgent
// says so.
func TestCordoned(t *testing.T) {
	for _, row := range []struct {
		name          string
		policy        v1.UnschedulablePolicy
		unschedulable bool
		taint         string
		want          bool
	}{
		{"schedulable", v1.UnschedulableHandOver, false, "", false},
		{"cordoned", v1.UnschedulableHandOver, true, "", true},
		{"tainted as one that is cordoned", v1.UnschedulableHandOver, false, "node.kubernetes.io/unschedulable", true},
		{"about to be deleted", v1.UnschedulableHandOver, false, "ToBeDeletedByClusterAutoscaler", true},
		{"not chosen for deletion yet", v1.UnschedulableHandOver, false, "DeletionCandidateOfClusterAutoscaler", false},
		{"tainted otherwise", v1.UnschedulableHandOver, false, "dedicated", false},
		{"ignored", v1.UnschedulableIgnore, true, "node.kubernetes.io/unschedulable", false},
		{"of an LBNodeAgent from before", "", true, "", false},
	} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{v1.LabelAgent: "default"}}}
		if n.Spec.Unschedulable = row.unschedulable; row.taint != "" {
			n.Spec.Taints = []corev1.Taint{{Key: row.taint, Effect: corev1.TaintEffectNoSchedule}}
		}
		c := &cluster{lbNodeAgents: []v1.LBNodeAgent{
			{ObjectMeta: metav1.ObjectMeta{Name: "another"}, Spec: v1.LBNodeAgentSpec{OnUnschedulable: "HandOver"}},
			{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: v1.LBNodeAgentSpec{OnUnschedulable: row.policy}},
		}}
		if got := c.placementNode(n, nil, 0, time.Unix(100, 0)).HandsOverAsCordoned; got != row.want {
			t.Errorf("%s: %t", row.name, got)
		}
	}
}

// TestVirtualElsewhere says when a cordoned node's routes are withdrawn: as soon as no address would be
// without a route.
func TestVirtualElsewhere(t *testing.T) {
	for _, row := range []struct {
		name          string
		node, another string // what they are to announce; "shared" is what all nodes announce
		stays, want   bool
	}{
		{"both have all", "shared 10.0.0.1", "shared 10.0.0.1 10.0.0.2", true, true},
		{"one address is on the node alone", "shared 10.0.0.1", "shared", true, false},
		{"the other does not announce what all announce", "shared", "10.0.0.1", true, false},
		{"the other goes, too", "shared 10.0.0.1", "shared 10.0.0.1", false, false},
		{"the node has none", "", "", true, true},
		{"Local ones do not count", "local", "", true, true},
	} {
		var announcements []v1.Announcement
		for name, words := range map[string]string{"n1": row.node, "n2": row.another} {
			a := v1.Announcement{Spec: v1.AnnouncementSpec{NodeName: name}}
			for _, word := range strings.Fields(words) {
				e := v1.AnnouncedAddress{Address: word, Type: v1.AnnounceVirtual}
				switch word {
				case "shared":
					a.Spec.IncludeCommonAnnouncements = true
					continue
				case "local":
					e = v1.AnnouncedAddress{Address: "192.0.2.1", Type: v1.AnnounceLocal}
				}
				a.Spec.Addresses = append(a.Spec.Addresses, e)
			}
			announcements = append(announcements, a)
		}
		slices.SortFunc(announcements, func(x, y v1.Announcement) int {
			return strings.Compare(x.Spec.NodeName, y.Spec.NodeName)
		})
		if got := areVirtualElsewhere("n1", map[string]bool{"n2": row.stays}, announcements); got != row.want {
			t.Errorf("%s: %t", row.name, got)
		}
	}
}
