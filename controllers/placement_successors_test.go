package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

var successorNodes = []string{"n1", "n2", "n3"}

func successorsBench(t *testing.T) *placementBench {
	t.Helper()
	return newBench(t, benchAgent(), benchNode("n1"), benchNode("n2"), benchNode("n3"),
		benchService("a/one", "10.1.0.9", "l", v1.PoolTypeLocal), benchService("a/two", "10.1.0.10", "l", v1.PoolTypeLocal),
		benchService("a/remote", "10.9.0.9", "r", v1.PoolTypeRemote))
}

// settle lets a leader and all agents act for a while.
func (b *placementBench) settle(r *PlacementReconciler) {
	b.Helper()
	for range 6 {
		b.now = b.now.Add(500 * time.Millisecond)
		b.renewLeases(r, successorNodes...)
		b.place(r)
		b.report(successorNodes...)
	}
}

// specs are the specs of all Announcements by name, and how many successors their entries
// name. The successors, and the epochs that are reserved for them, are left out if told so.
func (b *placementBench) specs(leaveOut bool) (specs map[string]v1.AnnouncementSpec, named []string) {
	b.Helper()
	specs = map[string]v1.AnnouncementSpec{}
	for _, a := range b.announcements() {
		spec := a.DeepCopy().Spec
		for i := range spec.Addresses {
			e := &spec.Addresses[i]
			for _, s := range e.Successors {
				named = append(named, fmt.Sprintf("%s of %s: %s %d", e.Address, spec.NodeName, s.NodeName, s.Epoch))
			}
			if leaveOut {
				e.Successors, e.HighestEpoch = nil, 0
			}
		}
		if leaveOut {
			spec.Successors = nil
		}
		specs[a.Name] = spec
	}
	slices.Sort(named)
	return specs, named
}

// standbys are the addresses that a node is told to claim, in the words of specs.
func (b *placementBench) standbys(node string) []string {
	b.Helper()
	all, err := listAllAnnouncements(context.Background(), b.api, benchNamespace)
	if err != nil {
		b.Fatal(err)
	}
	told := []string{}
	for _, a := range all {
		if a.Spec.Standby == nil || a.Spec.NodeName != node {
			continue
		}
		for _, e := range a.Spec.Standby.Addresses {
			for _, s := range e.Successors {
				if s.NodeName == node {
					told = append(told, fmt.Sprintf("%s of %s: %s %d", e.Address, a.Spec.Standby.Watched.NodeName, node, s.Epoch))
				}
			}
		}
	}
	slices.Sort(told)
	return told
}

// TestWireFailoverGate compares what is written with the gate off, on, and off again: the
// successors are all that differs, and nothing is written again and again.
func TestWireFailoverGate(t *testing.T) {
	off := successorsBench(t)
	off.settle(off.PlacementReconciler)
	without, named := off.specs(false)
	if len(named) > 0 {
		t.Errorf("with the gate off: %v", named)
	}
	for _, spec := range without {
		if len(spec.Successors) > 0 {
			t.Errorf("with the gate off, %s knows of %v", spec.NodeName, spec.Successors)
		}
		for _, e := range spec.Addresses {
			if e.HighestEpoch != 0 {
				t.Errorf("with the gate off, epoch %d of %s is reserved", e.HighestEpoch, e.Address)
			}
		}
	}

	on := successorsBench(t)
	on.NamesSuccessors = true
	on.settle(on.PlacementReconciler)
	specs, named := on.specs(true)
	if diff := cmp.Diff(without, specs); diff != "" {
		t.Errorf("with the gate on, more than successors differ (-off +on):\n%s", diff)
	}
	var want []string
	for node, spec := range without {
		var others []string
		for _, n := range successorNodes {
			if n != node {
				others = append(others, n)
			}
		}
		for _, e := range spec.Addresses {
			for _, pair := range [][2]int{{2, 3}, {3, 2}} {
				if entry := fmt.Sprintf("%s of %s: %s %d", e.Address, node, others[0], pair[0]); slices.Contains(named, entry) {
					want = append(want, entry, fmt.Sprintf("%s of %s: %s %d", e.Address, node, others[1], pair[1]))
				}
			}
		}
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, named); diff != "" || len(named) != 4 {
		t.Errorf("two addresses with two successors each (-want +got):\n%s", diff)
	}
	for _, node := range successorNodes {
		want := slices.DeleteFunc(
			slices.Clone(named), func(line string) bool { return !strings.Contains(line, ": "+node+" ") },
		)
		if diff := cmp.Diff(want, on.standbys(node)); diff != "" {
			t.Errorf("what %s is told (-named +told):\n%s", node, diff)
		}
	}
	on.writes.Store(0)
	on.settle(on.PlacementReconciler)
	if on.writes.Load() > 0 {
		t.Errorf("%d writes although nothing changes", on.writes.Load())
	}

	leader := on.newLeader()
	on.settle(leader)
	specs, named = on.specs(true)
	if diff := cmp.Diff(without, specs); diff != "" || len(named) > 0 {
		t.Errorf("with the gate off again: %v, and (-want +got):\n%s", named, diff)
	}
	for _, node := range successorNodes {
		if told := on.standbys(node); len(told) > 0 {
			t.Errorf("with the gate off again, %s is told %v", node, told)
		}
	}
	on.writes.Store(0)
	on.settle(leader)
	if on.writes.Load() > 0 {
		t.Errorf("%d writes although nothing changes and the gate is off", on.writes.Load())
	}
}

// TestStandbyAddressesStay has an address come before all others, and go again: what a node is told of the others
// stays in the objects that say it.
func TestStandbyAddressesStay(t *testing.T) {
	const count = 210
	objects := []client.Object{benchAgent(), benchNode("n1"), benchNode("n2")}
	for i := range count {
		objects = append(objects, benchService(
			fmt.Sprintf("a/s%d", i), fmt.Sprintf("10.1.0.%d", 11+i), "l", v1.PoolTypeLocal,
		))
	}
	b := newBench(t, objects...)
	b.NamesSuccessors = true
	settle := func() map[string]string {
		b.settle(b.PlacementReconciler)
		all, err := listAllAnnouncements(context.Background(), b.api, benchNamespace)
		if err != nil {
			t.Fatal(err)
		}
		where := map[string]string{}
		for _, a := range all {
			for _, address := range standbyAddresses(&a) {
				where[a.Spec.NodeName+" "+address.Address] = a.Name
			}
		}
		return where
	}
	before := settle()
	first := benchService("a/first", "10.1.0.10", "l", v1.PoolTypeLocal)
	if err := b.api.Create(context.Background(), first); err != nil {
		t.Fatal(err)
	}
	during := settle()
	if err := b.api.Delete(context.Background(), first); err != nil {
		t.Fatal(err)
	}
	after := settle()
	if len(before) != count || len(during) != count+1 {
		t.Errorf("%d addresses are in standbys, then %d", len(before), len(during))
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("which object has which address (-before +after):\n%s", diff)
	}
	for address, name := range before {
		if during[address] != name {
			t.Errorf("%s was in %s, and then in %s", address, name, during[address])
		}
	}
}

// TestStandbyIsReplaced has a node that is told what to claim by an Announcement of another name, as another version of
// the manager may have written it: that goes once the node is told by the right one.
func TestStandbyIsReplaced(t *testing.T) {
	ctx := context.Background()
	b := successorsBench(t)
	b.NamesSuccessors = true
	b.settle(b.PlacementReconciler)
	names := func() (names []string) {
		all, err := listAllAnnouncements(ctx, b.api, benchNamespace)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range all {
			if a.Spec.Standby != nil {
				names = append(names, a.Name)
			}
		}
		return names
	}
	want := names()
	right := &v1.Announcement{}
	if err := b.api.Get(ctx, client.ObjectKey{Namespace: benchNamespace, Name: want[0]}, right); err != nil {
		t.Fatal(err)
	}
	other := right.DeepCopy()
	other.ObjectMeta = metav1.ObjectMeta{Name: "other", Namespace: benchNamespace, Labels: right.Labels}
	if err := errors.Join(b.api.Create(ctx, other), b.api.Delete(ctx, right)); err != nil {
		t.Fatal(err)
	}
	leader := b.newLeader()
	leader.NamesSuccessors, b.refuses = true, func(a *v1.Announcement) bool { return a.Spec.Standby != nil }
	b.settle(leader)
	if got := names(); !slices.Contains(got, "other") || slices.Contains(got, right.Name) {
		t.Errorf("while %s cannot be written there are %v", right.Name, got)
	}
	b.refuses = nil
	b.settle(leader)
	if got := names(); !slices.Equal(got, want) {
		t.Errorf("there are %v, want %v", got, want)
	}
}

// TestStandbyHasNoLabelOfItsNode checks that who waits for a node's Announcements by their label waits for none that
// may go meanwhile, and that a label of an earlier version is removed.
func TestStandbyHasNoLabelOfItsNode(t *testing.T) {
	ctx := t.Context()
	b := successorsBench(t)
	b.NamesSuccessors = true
	b.settle(b.PlacementReconciler)
	list := func() (labelled, standbys []v1.Announcement) {
		all, err := listAllAnnouncements(ctx, b.api, benchNamespace)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range all {
			if _, isLabelled := a.Labels[v1.LabelNode]; isLabelled {
				labelled = append(labelled, a)
			}
			if a.Spec.Standby != nil {
				standbys = append(standbys, a)
			}
		}
		return labelled, standbys
	}
	_, standbys := list()
	standbys[0].Labels = map[string]string{v1.LabelNode: standbys[0].Spec.NodeName, "a": "b"}
	if err := b.api.Update(ctx, &standbys[0]); err != nil {
		t.Fatal(err)
	}
	b.settle(b.PlacementReconciler)
	labelled, after := list()
	if len(labelled) != len(successorNodes) || len(after) != len(standbys) || after[0].Labels["a"] != "b" ||
		slices.ContainsFunc(labelled, func(a v1.Announcement) bool { return a.Spec.Standby != nil }) {
		t.Errorf("labelled are %+v, and there are %d with standby, then %d", labelled, len(standbys), len(after))
	}
	b.writes.Store(0)
	b.settle(b.PlacementReconciler)
	if b.writes.Load() > 0 {
		t.Errorf("%d writes although nothing changes", b.writes.Load())
	}
}

// TestAgentsRestart has the agents of all nodes but the holder restart, one after the other, each for longer than its
// Lease lasts: nothing is written. When the agent of a successor stays away, others are named once.
func TestAgentsRestart(t *testing.T) {
	names := strings.Fields("n1 n2 n3 n4 n5 n6")
	objects := []client.Object{benchAgent(), benchService("a/one", "10.1.0.9", "l", v1.PoolTypeLocal)}
	for _, n := range names {
		objects = append(objects, benchNode(n))
	}
	b := newBench(t, objects...)
	b.NamesSuccessors = true
	run := func(seconds int, without ...string) {
		running := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return slices.Contains(without, n) })
		for range 2 * seconds {
			b.now = b.now.Add(500 * time.Millisecond)
			b.renewLeases(b.PlacementReconciler, running...)
			b.place(b.PlacementReconciler)
			b.report(running...)
		}
	}
	run(5)
	_, named := b.specs(false)
	if len(named) != 2 {
		t.Fatalf("the successors are %v", named)
	}
	words := strings.Fields(named[0])
	holder, successor := strings.TrimSuffix(words[2], ":"), words[3]
	b.writes.Store(0)
	for _, n := range names {
		if n != holder {
			run(10, n)
			run(2)
		}
	}
	if b.writes.Load() > 0 {
		t.Errorf("%d writes while agents restart", b.writes.Load())
	}
	run(40, successor)
	_, replaced := b.specs(false)
	if len(replaced) != 2 || strings.Contains(strings.Join(replaced, "\n"), ": "+successor+" ") {
		t.Errorf("without %s the successors are %v", successor, replaced)
	}
	b.writes.Store(0)
	run(5, successor)
	run(5)
	if _, after := b.specs(false); b.writes.Load() > 0 {
		t.Errorf("%d writes when it is back; the successors are %v, and were %v", b.writes.Load(), after, replaced)
	}
}

// standbyAddresses are the addresses that an Announcement with standby names; another one names none.
func standbyAddresses(a *v1.Announcement) []v1.StandbyAddress {
	if a.Spec.Standby == nil {
		return nil
	}
	return a.Spec.Standby.Addresses
}
