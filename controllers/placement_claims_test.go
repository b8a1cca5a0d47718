package controllers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

const claimedAddress = "10.1.0.9"

// claimBench has address 10.1.0.9 held by a node, of which the first successor has claimed it.
type claimBench struct {
	*placementBench
	holder, claimer string
	alive           []string // the nodes whose agents renew and report
	recorder        *events.FakeRecorder
}

func newClaimBench(t *testing.T) *claimBench {
	t.Helper()
	b := &claimBench{placementBench: successorsBench(t), alive: successorNodes, recorder: events.NewFakeRecorder(100)}
	b.NamesSuccessors, b.Recorder = true, b.recorder
	b.settle(b.PlacementReconciler)
	for _, a := range b.announcements() {
		for _, e := range a.Spec.Addresses {
			if e.Address == claimedAddress {
				b.holder, b.claimer = a.Spec.NodeName, e.Successors[0].NodeName
			}
		}
	}
	if b.holder == "" {
		t.Fatalf("nobody holds it: %v", b.entries())
	}
	b.claim(2, v1.StateAnnounced)
	return b
}

// claim has the agent of the claimer report a state of the address, by an epoch: that it has
// claimed the address, as a rule.
func (b *claimBench) claim(epoch int64, state v1.AddressState) {
	b.Helper()
	all, err := listAllAnnouncements(context.Background(), b.api, benchNamespace)
	if err != nil {
		b.Fatal(err)
	}
	for i := range all {
		a := &all[i]
		if a.Spec.Standby == nil || a.Spec.NodeName != b.claimer || a.Spec.Standby.Watched.NodeName != b.holder {
			continue
		}
		a.Status.Addresses = []v1.AddressStatus{
			{Address: claimedAddress, State: state, Epoch: epoch, LastTransitionTime: metav1.NewTime(b.now)},
		}
		if err := b.api.Status().Update(context.Background(), a); err != nil {
			b.Fatal(err)
		}
	}
}

// wait lets the manager place for a while, as often as it asks for, while agents renew.
func (b *claimBench) wait(d time.Duration) {
	b.Helper()
	for end := b.now.Add(d); b.now.Before(end); b.now = b.now.Add(500 * time.Millisecond) {
		b.renewLeases(b.PlacementReconciler, b.alive...)
		b.place(b.PlacementReconciler)
	}
}

// entryOf is the entry of a node for the address, as epoch, claim and what else matters.
func (b *claimBench) entryOf(node string) string {
	b.Helper()
	for _, a := range b.announcements() {
		for _, e := range a.Spec.Addresses {
			if a.Spec.NodeName != node || e.Address != claimedAddress {
				continue
			}
			line := fmt.Sprintf("%d %s", e.Epoch, e.ClaimPolicy)
			if e.HandingOver {
				line += " leaving"
			}
			if e.ContestedBy != nil {
				line += fmt.Sprintf(" contested by %s %d", e.ContestedBy.NodeName, e.ContestedBy.Epoch)
			}
			return fmt.Sprintf("%s, %d successors", line, len(e.Successors))
		}
	}
	return "none"
}

func (b *claimBench) want(what, holder, claimer string) {
	b.Helper()
	if diff := cmp.Diff([]string{holder, claimer}, []string{b.entryOf(b.holder), b.entryOf(b.claimer)}); diff != "" {
		b.Fatalf("%s: the entries of holder and claimer (-want +got):\n%s", what, diff)
	}
}

// failovers are the events of that name.
func (b *claimBench) failovers() (recorded []string) {
	for len(b.recorder.Events) > 0 {
		if e := <-b.recorder.Events; strings.Contains(e, v1.EventFailover) {
			recorded = append(recorded, e)
		}
	}
	return recorded
}

// counted is how many failovers of a cause are counted.
func (b *claimBench) counted(cause string) float64 {
	b.Helper()
	var metric dto.Metric
	if err := b.Metrics.failovers.WithLabelValues(cause).Write(&metric); err != nil {
		b.Fatal(err)
	}
	return metric.GetCounter().GetValue()
}

// TestClaimOfDeadHolder follows a claim of an address whose holder is dead.
func TestClaimOfDeadHolder(t *testing.T) {
	b := newClaimBench(t)
	b.alive = slices.DeleteFunc(slices.Clone(successorNodes), func(n string) bool { return n == b.holder })
	b.wait(2500 * time.Millisecond)
	b.want("the holder has time to renew", "1 Probe, 2 successors", "none")
	b.wait(1500 * time.Millisecond)
	b.want("the claim is adopted", "none", "2 Takeover, 0 successors")
	ofAddress := func(s string) bool { return strings.HasPrefix(s, claimedAddress+" ") }
	if got := b.standbys(b.claimer); slices.ContainsFunc(got, ofAddress) {
		t.Errorf("the claimer still follows the old holder: %v", got)
	}
	want := fmt.Sprintf("Moved %s from node %s to %s, as %s, its successor, has claimed it, and %s has an agent that "+
		"does not renew its Lease", claimedAddress, b.holder, b.claimer, b.claimer, b.holder)
	if got := b.failovers(); len(got) != 1 || !strings.Contains(got[0], want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := b.counted("HolderDead"); got != 1 {
		t.Errorf("%g failovers are counted", got)
	}
	b.report(b.alive...)
	b.wait(2 * time.Second)
	b.want("the new holder has a successor", "none", "2 Takeover, 1 successors")

	b.alive = successorNodes // the old holder is back
	b.report(b.alive...)
	b.wait(30 * time.Second)
	b.want("nothing moves back", "none", "2 Takeover, 2 successors")
	if got := b.failovers(); len(got) > 0 {
		t.Errorf("then %q", got)
	}
}

// TestClaimOfLivingHolder follows claims of an address whose holder is alive, and says so.
func TestClaimOfLivingHolder(t *testing.T) {
	b := newClaimBench(t)
	b.wait(2500 * time.Millisecond)
	b.want("nothing is decided", "1 Probe, 2 successors", "none")
	b.wait(time.Second)
	b.want("the holder is to ask", "1 Probe contested by "+b.claimer+" 2, 2 successors", "none")
	b.wait(time.Minute)
	b.want("the holder has not asked yet", "1 Probe contested by "+b.claimer+" 2, 2 successors", "none")
	b.report(b.holder)
	b.wait(time.Second)
	b.want("the holder has a higher epoch", "4 Probe, 0 successors", "none")
	b.report(b.holder)
	b.wait(8 * time.Second)
	b.want("no further reservations for a while", "4 Probe, 0 successors", "none")
	b.wait(4 * time.Second)
	b.want("then further ones", "4 Probe, 2 successors", "none")
	if got := b.failovers(); len(got) > 0 {
		t.Errorf("recorded: %q", got)
	}

	b.claim(2, v1.StateAnnounced) // the epoch of the claim that is refuted
	b.wait(time.Minute)
	b.want("an epoch that is not reserved any more", "4 Probe, 2 successors", "none")
}

// TestClaimOfYieldedAddress follows a claim to which the holder has yielded.
func TestClaimOfYieldedAddress(t *testing.T) {
	b := newClaimBench(t)
	for _, a := range b.announcements() {
		if a.Spec.NodeName != b.holder {
			continue
		}
		for i := range a.Status.Addresses {
			if s := &a.Status.Addresses[i]; s.Address == claimedAddress {
				s.State = v1.StateYielded
			}
		}
		if err := b.api.Status().Update(context.Background(), &a); err != nil {
			t.Fatal(err)
		}
	}
	b.renewLeases(b.PlacementReconciler, b.alive...)
	b.place(b.PlacementReconciler)
	b.want("the claim is adopted at once", "1 Probe leaving, 2 successors", "2 Takeover, 0 successors")
	b.place(b.PlacementReconciler)
	b.want("the claimer is the holder", "none", "2 Takeover, 0 successors")
	if got, want := b.failovers(), b.holder+" reports it Yielded"; len(got) != 1 || !strings.Contains(got[0], want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := b.counted("HolderYielded"); got != 1 {
		t.Errorf("%g failovers are counted", got)
	}
}

// TestClaimFailed has the kernel of a successor refuse the address: that is no claim.
func TestClaimFailed(t *testing.T) {
	b := newClaimBench(t)
	b.claim(2, v1.StateFailed)
	b.wait(time.Minute)
	b.want("the holder renews", "1 Probe, 2 successors", "none")
	b.alive = slices.DeleteFunc(slices.Clone(successorNodes), func(n string) bool { return n == b.holder })
	b.wait(5 * time.Second)
	if got := b.entryOf(b.claimer); strings.HasPrefix(got, "2 ") {
		t.Errorf("the claimer has %s", got)
	}
	if got := b.counted("LeaseExpired"); got == 0 {
		t.Error("nobody is elected")
	}
}

// TestHolderKnowsSuccessors checks that the first Announcement of each holder, and no further
// one, describes the nodes that its entries name, as the holder reaches them.
func TestHolderKnowsSuccessors(t *testing.T) {
	objects := []client.Object{benchAgent(), benchNode("n1"), benchNode("n2"), benchNode("n3")}
	for i := range 120 {
		objects = append(objects, benchService(fmt.Sprintf("a/s%d", i), fmt.Sprintf("10.1.0.%d", 1+i), "l", v1.PoolTypeLocal))
	}
	b := newBench(t, objects...)
	b.NamesSuccessors = true
	b.settle(b.PlacementReconciler)
	named, described, further := map[string][]string{}, map[string][]string{}, 0
	for _, a := range b.announcements() {
		node := a.Spec.NodeName
		for _, e := range a.Spec.Addresses {
			for _, s := range e.Successors {
				named[node] = append(named[node], s.NodeName)
			}
		}
		if a.Name != node {
			further++
			if len(a.Spec.Successors) > 0 {
				t.Errorf("%s describes %+v", a.Name, a.Spec.Successors)
			}
		}
		for _, s := range a.Spec.Successors {
			described[node] = append(described[node], s.NodeName)
			var n byte
			if _, err := fmt.Sscanf(s.NodeName, "n%d", &n); err != nil {
				t.Fatal(err)
			}
			want := v1.StandbyNode{
				NodeName: s.NodeName, Addresses: []string{fmt.Sprintf("10.1.0.%d", 200+n)},
				MACs: []string{fmt.Sprintf("02:00:00:00:00:%02x", n)},
			}
			if diff := cmp.Diff(want, s); diff != "" {
				t.Errorf("%s (-want +got):\n%s", a.Name, diff)
			}
		}
	}
	for node := range named {
		slices.Sort(named[node])
		named[node] = slices.Compact(named[node])
	}
	if diff := cmp.Diff(named, described); diff != "" || len(named) != 3 || further == 0 {
		t.Errorf("%d further Announcements, successors (-named +described):\n%s", further, diff)
	}
}

// TestFailoverDisabled has an LBNodeAgent without failover on the wire: its nodes are no
// successors, and have none.
func TestFailoverDisabled(t *testing.T) {
	b := successorsBench(t)
	b.NamesSuccessors = true
	b.settle(b.PlacementReconciler)
	if _, named := b.specs(false); len(named) == 0 {
		t.Fatal("no successors")
	}
	agent := benchAgent()
	if err := b.api.Get(context.Background(), client.ObjectKeyFromObject(agent), agent); err != nil {
		t.Fatal(err)
	}
	no := false
	agent.Spec.Local = &v1.LBNodeAgentLocal{Failover: &v1.Failover{Enabled: &no}}
	if err := b.api.Update(context.Background(), agent); err != nil {
		t.Fatal(err)
	}
	b.settle(b.PlacementReconciler)
	if _, named := b.specs(false); len(named) > 0 {
		t.Errorf("named: %v", named)
	}
	for _, node := range successorNodes {
		if told := b.standbys(node); len(told) > 0 {
			t.Errorf("%s is told %v", node, told)
		}
	}
}
