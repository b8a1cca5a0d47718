package controllers

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// checkSole fails the test if the manager creates an Announcement for a node that has one with `sole: true`, which is
// all that the node's agent watches.
func (b *placementBench) checkSole(created *v1.Announcement) {
	b.Helper()
	for _, a := range b.allAnnouncements() {
		if a.Spec.Sole && a.Spec.NodeName == created.Spec.NodeName {
			b.Errorf("%s is created while %s is sole", created.Name, a.Name)
		}
	}
}

// allAnnouncements are those with standby and asking, too.
func (b *placementBench) allAnnouncements() []v1.Announcement {
	b.Helper()
	all, err := listAllAnnouncements(context.Background(), b.api, benchNamespace)
	if err != nil {
		b.Fatal(err)
	}
	return all
}

// kinds says of each node whether it has one Announcement, a sole one, or several.
func (b *placementBench) kinds() map[string]string {
	b.Helper()
	count, kinds := map[string]int{}, map[string]string{}
	for _, a := range b.allAnnouncements() {
		n := a.Spec.NodeName
		count[n]++
		switch {
		case count[n] > 1 && (a.Spec.Sole || kinds[n] == "sole"):
			b.Errorf("%s is sole beside others", n)
		case count[n] > 1:
			kinds[n] = "several"
		case a.Spec.Sole:
			kinds[n] = "sole"
		default:
			kinds[n] = "one"
		}
	}
	return kinds
}

func (b *placementBench) expectKinds(what string, n1, n2, n3 string) {
	b.Helper()
	if diff := cmp.Diff(map[string]string{"n1": n1, "n2": n2, "n3": n3}, b.kinds()); diff != "" {
		b.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// createLocal creates so many Services with Local addresses.
func (b *placementBench) createLocal(count int) (created []*corev1.Service) {
	b.Helper()
	for i := range count {
		s := benchService(fmt.Sprintf("a/local%d", i), fmt.Sprintf("10.1.0.%d", 100+i), "l", v1.PoolTypeLocal)
		if err := b.api.Create(context.Background(), s); err != nil {
			b.Fatal(err)
		}
		created = append(created, s)
	}
	return created
}

// TestSole has nodes with Virtual addresses: the manager writes `sole: true` to the one Announcement of each, takes it
// back when Local addresses come, and writes it again when these have gone.
func TestSole(t *testing.T) {
	b := newBench(t, benchAgent(), benchNode("n1"), benchNode("n2"), benchNode("n3"),
		benchService("a/remote", "10.9.0.9", "r", v1.PoolTypeRemote))
	b.NamesSuccessors = true
	b.place(b.PlacementReconciler)
	b.expectKinds("no interfaces are reported", "one", "one", "one")
	b.settle(b.PlacementReconciler)
	b.expectKinds("Virtual addresses alone", "sole", "sole", "sole")

	b.setExcluded("n2", true)
	b.setExcluded("n3", true)
	local := b.createLocal(30)
	b.settle(b.PlacementReconciler)
	b.expectKinds("more Local addresses than one Announcement has", "several", "one", "one")

	b.setExcluded("n2", false)
	b.settle(b.PlacementReconciler)
	b.expectKinds("a successor is told", "several", "several", "one")

	for _, s := range local {
		if err := b.api.Delete(context.Background(), s); err != nil {
			t.Fatal(err)
		}
	}
	b.settle(b.PlacementReconciler)
	b.expectKinds("they are gone", "sole", "sole", "sole")
}

// TestFaultSoleStays has the API server refuse to take back that an Announcement is the only one: no other one is
// created until it has. This test shows the row "it refuses to take back that a node has one Announcement" of
// docs/trust.md.
func TestFaultSoleStays(t *testing.T) {
	b := newBench(t, benchAgent(), benchNode("n1"), benchNode("n2"), benchNode("n3"))
	b.settle(b.PlacementReconciler)
	b.expectKinds("nothing", "sole", "sole", "sole")

	b.NamesSuccessors = true
	b.refuses = func(a *v1.Announcement) bool { return a.Name == a.Spec.NodeName && !a.Spec.Sole }
	b.setExcluded("n3", true)
	b.createLocal(60)
	b.settle(b.PlacementReconciler)
	b.expectKinds("nothing is taken back", "sole", "sole", "sole")

	b.refuses = nil
	b.now = b.now.Add(time.Minute)
	b.settle(b.PlacementReconciler)
	b.expectKinds("it is taken back", "several", "several", "one")
}

// TestEndSole has a node that is to watch another one although no Local address can come to it, as while what is known
// of its interfaces changes. The manager writes `sole: false` before it creates the Announcement with standby, once.
func TestEndSole(t *testing.T) {
	ctx := context.Background()
	b := newBench(t, benchAgent(), benchNode("n1"), benchNode("n2"), benchNode("n3"))
	b.settle(b.PlacementReconciler)
	announcing := storedAnnouncements{}
	for _, a := range b.announcements() {
		announcing[a.Spec.NodeName] = append(announcing[a.Spec.NodeName], &a)
	}
	standby := func(node, watched string) *v1.AnnouncementSpec {
		return &v1.AnnouncementSpec{NodeName: node, Standby: &v1.Standby{Watched: v1.StandbyNode{NodeName: watched}}}
	}
	wanted := map[string]*v1.AnnouncementSpec{
		"n1-x": standby("n1", "n2"), "n1-y": standby("n1", "n3"), "n2-x": standby("n2", "n1"),
	}
	in, err := gatherCluster(ctx, b.Client, benchNamespace)
	if err != nil {
		t.Fatal(err)
	}
	inputs := in.placementInputs(b.Liveness.LivenessOf, b.now, true)
	before := b.writes.Load()
	if err := b.writeAssignments(ctx, nil, wanted, &inputs, announcing); err != nil {
		t.Fatal(err)
	}
	if writes := b.writes.Load() - before; writes != 5 {
		t.Errorf("%d writes for three Announcements of two nodes", writes)
	}
	b.expectKinds("two have others", "several", "several", "sole")
	// What the next placement finds is as it would write it.
	b.place(b.PlacementReconciler)
	b.kinds()
}
