package plan

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

const (
	watchedMAC = "02:00:00:00:00:02"
	lowerMAC   = "02:00:00:00:00:03"
	higherMAC  = "02:00:00:00:00:05"
)

// standby is an Announcement that names node1 as a successor of node2, which has heldAddr under
// epoch 3: epoch 4 is reserved for node1.
func standby(edit ...func(*purelbv1.StandbyAddress)) purelbv1.Announcement {
	address := purelbv1.StandbyAddress{
		Address: heldAddr.String(), ServiceGroup: "default", Epoch: 3,
		Successors: []purelbv1.Successor{{NodeName: "node1", Epoch: 4}},
	}
	for _, e := range edit {
		e(&address)
	}
	ann := announcement()
	ann.Name, ann.UID, ann.Spec.LBNodeAgent = "node1-standby", "node1-standby", "default"
	ann.Spec.Standby = &purelbv1.Standby{
		Watched:   purelbv1.StandbyNode{NodeName: "node2", MACs: []string{watchedMAC}},
		Interface: "eth0",
		OtherSuccessors: []purelbv1.StandbyNode{
			{NodeName: "node3", MACs: []string{lowerMAC}}, {NodeName: "node5", MACs: []string{higherMAC}},
		},
		Addresses: []purelbv1.StandbyAddress{
			{Address: "192.0.2.99", Epoch: 3, Successors: []purelbv1.Successor{{NodeName: "node1", Epoch: 4}}}, address,
		},
	}
	return ann
}

func epochIs(epoch int64) func(*purelbv1.AnnouncedAddress) {
	return func(a *purelbv1.AnnouncedAddress) { a.Epoch = epoch }
}

// An address that is claimed is added without asking, and kept until an entry asks for it or the
// API server says that the claim is refused.
func TestClaims(t *testing.T) {
	t.Parallel()
	type edits = []func(*Inputs)
	isFromCheckpoint := func(in *Inputs) { in.IsFromCheckpoint = true }
	isHeld := func(in *Inputs) { in.Observed.Addresses = append(in.Observed.Addresses, on("eth0", "192.0.2.1/32")) }
	isNamed := func(edit ...func(*purelbv1.StandbyAddress)) func(*Inputs) {
		return func(in *Inputs) { in.Standbys = []purelbv1.Announcement{standby(edit...)} }
	}
	after := func(wait time.Duration) func(*Inputs) { return func(in *Inputs) { in.Now = begin.Add(wait) } }
	asks := func(edit ...func(*purelbv1.AnnouncedAddress)) func(*Inputs) {
		return func(in *Inputs) {
			in.Announcements[0].Spec.Addresses = []purelbv1.AnnouncedAddress{local("192.0.2.1", 24, edit...)}
		}
	}
	lives := func(name string) func(*Inputs) {
		return func(in *Inputs) { in.LivingNodes = map[WatchedNode]bool{{"eth0", name}: true} }
	}
	yields := func(in *Inputs) {
		in.Yields = map[netip.Addr]YieldedAddress{heldAddr: {Epoch: 4, MAC: stranger, AnsweredAt: begin}}
	}
	claimed := []string{"Add eth0 192.0.2.1/32"}
	withdrawn := []string{"Remove eth0 192.0.2.1/32"}
	for name, c := range map[string]struct {
		isKnown bool // the claim was made before
		edits   edits
		want    []string
		asks    bool // the link
		claims  int  // that remain
		epoch   int64
	}{
		"a watcher has just claimed it": {false, edits{isNamed()}, claimed, false, 1, 4},
		"not long ago":                  {true, edits{isNamed(), after(watcherSilenceValidFor - 1)}, claimed, false, 1, 4},
		"long ago":                      {true, edits{isNamed(), after(watcherSilenceValidFor)}, nil, true, 1, 4},
		"the clock was set back":        {true, edits{isNamed(), after(-1)}, nil, true, 1, 4},
		"by what the checkpoint says":   {false, edits{isNamed(), isFromCheckpoint}, claimed, false, 1, 4},
		"while nothing is known": {
			false, edits{isNamed(), func(in *Inputs) { in.LBNodeAgent = nil }}, nil, false, 1, 0,
		},
		"the manager named it no more": {false, edits{}, nil, false, 0, 0},
		"held":                         {true, edits{isNamed(), isHeld, after(time.Hour)}, nil, false, 1, 4},
		"held on a start without an API server": {
			true, edits{isNamed(), isHeld, isFromCheckpoint, after(time.Hour)}, nil, false, 1, 4,
		},
		"the node lives, and this one has not added it": {true, edits{isNamed(), lives("node2")}, nil, false, 0, 0},
		"the node lives, and this one has it":           {true, edits{isNamed(), isHeld, lives("node2")}, nil, false, 1, 4},
		"the node lives, and this one has yielded it": {
			true, edits{isNamed(), isHeld, lives("node2"), yields}, withdrawn, false, 0, 0,
		},
		"the node lives, and this one has it, and yielded it before": {
			true, edits{isNamed(), isHeld, lives("node2"), func(in *Inputs) {
				in.Yields = map[netip.Addr]YieldedAddress{heldAddr: {Epoch: 3, MAC: stranger, AnsweredAt: begin}}
			}}, nil, false, 1, 4,
		},
		"the node lives, and this one has another address": {
			true, edits{isNamed(), lives("node2"), func(in *Inputs) {
				in.Observed.Addresses = append(in.Observed.Addresses, on("eth0", "192.0.2.50/32"))
			}}, []string{"Remove eth0 192.0.2.50/32"}, false, 0, 0,
		},
		"another node lives":                      {true, edits{isNamed(), lives("node3")}, claimed, false, 1, 4},
		"the node has lived until it was claimed": {false, edits{isNamed(), lives("node2")}, claimed, false, 1, 4},
		"yielded, while the node is silent":       {true, edits{isNamed(), yields}, nil, false, 1, 4},
		"adopted":                                 {true, edits{isNamed(), isHeld, asks(epochIs(4))}, nil, false, 0, 4},
		"adopted, and no successor any more":      {true, edits{isHeld, asks(epochIs(4))}, nil, false, 0, 4},
		"given to the node under a higher epoch":  {true, edits{isNamed(), isHeld, asks(epochIs(7))}, nil, false, 0, 7},
		"given to the node under a higher epoch, says the checkpoint": {
			true, edits{isNamed(), isHeld, asks(epochIs(7)), isFromCheckpoint}, nil, false, 1, 7,
		},
		"the node had it before": {
			true, edits{isNamed(), isHeld, asks(epochIs(2), leaving)}, nil, false, 1, 4,
		},
		"refused: named no more": {true, edits{isHeld}, withdrawn, false, 0, 0},
		"refused: another address is named": {
			true, edits{isHeld, isNamed(func(a *purelbv1.StandbyAddress) { a.Address = "192.0.2.98" })}, withdrawn, false, 0, 0,
		},
		"refused: named under another epoch": {
			true, edits{isHeld, isNamed(func(a *purelbv1.StandbyAddress) { a.Successors[0].Epoch = 5 })}, withdrawn, false, 0, 0,
		},
		"refused: another node is named": {
			true, edits{isHeld, isNamed(func(a *purelbv1.StandbyAddress) { a.Successors[0].NodeName = "node4" })}, withdrawn,
			false, 0, 0,
		},
		"the holder's epoch is no higher": {
			true, edits{isHeld, isNamed(func(a *purelbv1.StandbyAddress) { a.Epoch = 4 })}, nil, false, 1, 4,
		},
		"refused: the holder has a higher epoch": {
			true, edits{isHeld, isNamed(func(a *purelbv1.StandbyAddress) { a.Epoch = 5 })}, withdrawn, false, 0, 0,
		},
		"refused, while nothing is known": {true, edits{isHeld, func(in *Inputs) { in.LBNodeAgent = nil }}, nil, false, 1, 0},
		"refused, says the checkpoint":    {true, edits{isHeld, isFromCheckpoint}, nil, false, 1, 4},
	} {
		in := inputsFor()
		claim := map[netip.Addr]Claim{heldAddr: {Interface: "eth0", Epoch: 4, PreviousHolder: "node2", QuietAt: begin}}
		memory := Memory{}
		if c.isKnown {
			memory.Claims = claim
		} else {
			in.Claims = claim
		}
		for _, e := range c.edits {
			e(&in)
		}
		memory, decision := Decide(memory, in)
		if diff := cmp.Diff(c.want, operationsOf(decision)); diff != "" {
			t.Errorf("%s: operations (-want +got):\n%s", name, diff)
		}
		if asks := len(decision.Questions) > 0; asks != c.asks || len(memory.Claims) != c.claims {
			t.Errorf("%s: asks %v, want %v; %d claims remain, want %d", name, asks, c.asks, len(memory.Claims), c.claims)
		}
		epoch := int64(0)
		for _, d := range decision.Desired() {
			epoch = d.Epoch
		}
		if epoch != c.epoch {
			t.Errorf("%s: desired under epoch %d, want %d", name, epoch, c.epoch)
		}
	}
}

// Once the claim is adopted the address is as the entry says, also while the checkpoint alone says so.
func TestAdoptedClaimIsNotProvisional(t *testing.T) {
	t.Parallel()
	for _, isFromCheckpoint := range []bool{false, true} {
		in := inputsFor(local("192.0.2.1", 24, epochIs(4)))
		in.IsFromCheckpoint = isFromCheckpoint
		_, decision := Decide(Memory{Claims: map[netip.Addr]Claim{heldAddr: {Interface: "eth0", Epoch: 4}}}, in)
		desired := decision.Desired()
		if len(desired) != 1 || desired[0].IsProvisional {
			t.Errorf("checkpoint %v: %+v, want what the entry says", isFromCheckpoint, desired)
		}
	}
}

// The desired address of a claim says since when its previous holder has been silent: for Claim.SilentFor before
// Claim.QuietAt.
func TestClaimSaysSinceWhen(t *testing.T) {
	t.Parallel()
	in := inputsFor()
	in.Standbys = []purelbv1.Announcement{standby()}
	in.Claims = map[netip.Addr]Claim{heldAddr: {Interface: "eth0", Epoch: 4, QuietAt: begin, SilentFor: time.Second}}
	_, decision := Decide(Memory{}, in)
	desired := decision.Desired()
	if len(desired) != 1 || !desired[0].SilentSince.Equal(begin.Add(-time.Second)) {
		t.Errorf("%+v, want silence since a second", desired)
	}
}

// The Announcement that is missing may ask for the address.
func TestNoClaimEndsWhileAnAnnouncementIsMissing(t *testing.T) {
	t.Parallel()
	memory := Memory{
		Claims:          map[netip.Addr]Claim{heldAddr: {Interface: "eth0", Epoch: 4}},
		NonEmptyObjects: map[ObjectID]bool{{"Announcement", "node1-b", "node1-b"}: true},
	}
	in := inputsFor()
	in.Observed.Addresses = append(in.Observed.Addresses, on("eth0", "192.0.2.1/32"))
	for _, c := range []struct {
		after  time.Duration
		claims int
	}{{0, 1}, {missingObjectPatience - 1, 1}, {missingObjectPatience, 0}} {
		in.Now = begin.Add(c.after)
		var decision Decision
		memory, decision = Decide(memory, in)
		if len(memory.Claims) != c.claims || len(decision.Operations) != 1-c.claims {
			t.Errorf("after %s: %d claims, %v", c.after, len(memory.Claims), operationsOf(decision))
		}
	}
}

// What is claimed waits for nothing that the agent does besides.
func TestClaimsComeFirst(t *testing.T) {
	t.Parallel()
	in := inputsFor(virtual("198.51.100.1", 32), local("192.0.2.0", 32, takeover))
	in.Observed.Addresses = []Address{ownAddress, on("eth0", "192.0.2.9/32"), on("kube-lb0", "198.51.100.1/31")}
	in.Standbys = []purelbv1.Announcement{standby()}
	in.Claims = map[netip.Addr]Claim{heldAddr: {Interface: "eth0", Epoch: 4, QuietAt: begin}}
	_, decision := Decide(Memory{}, in)
	want := []string{
		"Add eth0 192.0.2.1/32", "Add kube-lb0 198.51.100.1/32", "Remove eth0 192.0.2.9/32",
		"Remove kube-lb0 198.51.100.1/31", "Add eth0 192.0.2.0/32",
	}
	if diff := cmp.Diff(want, operationsOf(decision)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The listener knows the node from which the address was claimed, and the other successors. The
// node itself is none of them, even if the Announcement says how it is reached.
func TestClaimedIsHeldProvisionally(t *testing.T) {
	t.Parallel()
	in := inputsFor()
	in.Standbys = []purelbv1.Announcement{standby(func(a *purelbv1.StandbyAddress) {
		a.Successors = []purelbv1.Successor{
			{NodeName: "node5", Epoch: 5}, {NodeName: "node1", Epoch: 4}, {NodeName: "node3", Epoch: 2},
		}
	})}
	others := &in.Standbys[0].Spec.Standby.OtherSuccessors
	*others = append(*others, purelbv1.StandbyNode{NodeName: "node1", MACs: []string{"02:00:00:00:00:01"}})
	in.Claims = map[netip.Addr]Claim{heldAddr: {Interface: "eth0", Epoch: 4, QuietAt: begin}}
	_, conclusion := conclude(in, Outcomes{})
	want := []Held{{
		Address: Settings{Local: SettingsOf(&purelbv1.LBNodeAgent{}).Local}.kernelAddress(&Desired{
			Addr: heldAddr, Prefix: netip.PrefixFrom(heldAddr, 32), Interface: "eth0", IsLocal: true,
		}),
		Epoch: 4, PreviousMACs: []string{watchedMAC}, HigherEpochMACs: []string{higherMAC},
		LowerEpochMACs: []string{lowerMAC}, IsProvisional: true,
	}}
	if diff := cmp.Diff(want, conclusion.Held, compareNetip); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The Announcement with standby that names an address says what became of its claim.
func TestClaimsAreReported(t *testing.T) {
	t.Parallel()
	claim := map[netip.Addr]Claim{
		heldAddr: {Interface: "eth0", Epoch: 4, PreviousHolder: "node2", SilentFor: 604 * time.Millisecond, QuietAt: begin},
	}
	for name, c := range map[string]struct {
		claims   map[netip.Addr]Claim
		entries  []purelbv1.AnnouncedAddress
		outcomes Outcomes
		want     []string
	}{
		"no claim": {nil, nil, Outcomes{}, nil},
		"claimed":  {claim, nil, Outcomes{}, []string{"192.0.2.1 Announced 4 eth0  node2 had not answered for 600ms"}},
		"the kernel refuses": {
			claim, nil, Outcomes{
				Results: map[netip.Addr]Result{heldAddr: FailedResult(&Desired{Epoch: 4}, ReasonAddFailed, errors.New("refused"))},
			},
			[]string{"192.0.2.1 Failed 4  AddFailed refused"},
		},
		"adopted": {
			claim, []purelbv1.AnnouncedAddress{local("192.0.2.1", 32, epochIs(4), takeover)}, Outcomes{}, []string{
				"192.0.2.1 Announced 4 eth0  ",
			},
		},
		"given to the node under a higher epoch": {
			claim, []purelbv1.AnnouncedAddress{local("192.0.2.1", 32, epochIs(7), takeover)}, Outcomes{}, nil,
		},
	} {
		in := inputsFor(c.entries...)
		in.Standbys, in.Claims = []purelbv1.Announcement{standby()}, maps.Clone(c.claims)
		_, conclusion := conclude(in, c.outcomes)
		if len(conclusion.StandbyAddressStatuses) != 1 || len(conclusion.Statuses) != 1 ||
			len(conclusion.Statuses[0].Addresses) != len(c.entries) {
			t.Fatalf("%s: %+v", name, conclusion)
		}
		var got []string
		for _, s := range conclusion.StandbyAddressStatuses[0] {
			got = append(got, fmt.Sprintf("%s %s %d %s %s %s", s.Address, s.State, s.Epoch, s.Interface, s.Reason, s.Message))
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A holder knows by which MACs its successors claim, and whom the manager asks it to ask.
func TestHolderKnowsItsSuccessors(t *testing.T) {
	t.Parallel()
	successors := func(all ...purelbv1.Successor) func(*purelbv1.AnnouncedAddress) {
		return func(a *purelbv1.AnnouncedAddress) { a.Successors = all }
	}
	contestedBy := func(name string, epoch int64) func(*purelbv1.AnnouncedAddress) {
		return func(a *purelbv1.AnnouncedAddress) { a.ContestedBy = &purelbv1.Successor{NodeName: name, Epoch: epoch} }
	}
	first := announcement(virtual("198.51.100.1", 32))
	first.Spec.Successors = []purelbv1.StandbyNode{
		{
			NodeName: "node2", MACs: []string{"02:00:00:00:02:01", "02:00:00:00:02:02"},
			Addresses: []string{"192.0.2.12", "no address"},
		}, {
			NodeName: "node3", MACs: []string{"02:00:00:00:03:01"}, Addresses: []string{"192.0.2.13"},
		}, {NodeName: "node4"},
	}
	second := announcement(
		local("192.0.2.1", 32),
		local(
			"192.0.2.2", 32,
			successors(purelbv1.Successor{NodeName: "node2", Epoch: 4}, purelbv1.Successor{NodeName: "node3", Epoch: 5}),
		),
		local(
			"192.0.2.3", 32,
			successors(purelbv1.Successor{NodeName: "node2", Epoch: 3}, purelbv1.Successor{NodeName: "node5", Epoch: 4}),
		),
		local("192.0.2.4", 32, contestedBy("node2", 4)),
		local("192.0.2.5", 32, contestedBy("node4", 4)),
		local("192.0.2.6", 32, contestedBy("node3", 2)),
	)
	second.Name = "node1-b"
	desired, _ := MergeDesired([]purelbv1.Announcement{first, second}, nil)
	var got []string
	for _, d := range desired {
		got = append(got, fmt.Sprint(d.Addr, d.HigherEpochMACs, d.Contest))
	}
	want := []string{
		"192.0.2.1 [] {0  []}",
		"192.0.2.2 [02:00:00:00:02:01 02:00:00:00:02:02 02:00:00:00:03:01] {0  []}",
		"192.0.2.3 [] {0  []}",
		"192.0.2.4 [02:00:00:00:02:01 02:00:00:00:02:02] {4 02:00:00:00:02:01 [192.0.2.12 192.0.2.13]}",
		"192.0.2.5 [] {0  []}",
		"192.0.2.6 [] {2 02:00:00:00:03:01 [192.0.2.12 192.0.2.13]}",
		"198.51.100.1 [] {0  []}",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The status of a generation in which the manager asks the node to check a claim waits for what the
// other node answers.
func TestStatusWaitsForTheCheck(t *testing.T) {
	t.Parallel()
	contested := func(a *purelbv1.AnnouncedAddress) { a.ContestedBy = &purelbv1.Successor{NodeName: "node2", Epoch: 4} }
	yielded := Outcomes{Results: map[netip.Addr]Result{heldAddr: YieldedAddress{Epoch: 3, MAC: watchedMAC}.Result()}}
	for name, c := range map[string]struct {
		macs     []string
		checked  int64
		outcomes Outcomes
		want     int64
	}{
		"not checked yet":           {[]string{watchedMAC}, 0, Outcomes{}, 6},
		"an earlier one is checked": {[]string{watchedMAC}, 3, Outcomes{}, 6},
		"checked":                   {[]string{watchedMAC}, 4, Outcomes{}, 7},
		"yielded":                   {[]string{watchedMAC}, 0, yielded, 7},
		"nobody can be asked":       {nil, 0, Outcomes{}, 7},
	} {
		in := inputsFor(local("192.0.2.1", 32, contested))
		in.Observed.Addresses = append(in.Observed.Addresses, on("eth0", "192.0.2.1/32"))
		in.Announcements[0].Spec.Successors = []purelbv1.StandbyNode{{NodeName: "node2", MACs: c.macs}}
		in.Announcements[0].Status.ObservedGeneration = 6
		in.CheckedContestEpochs = map[netip.Addr]int64{heldAddr: c.checked}
		if _, conclusion := conclude(in, c.outcomes); conclusion.Statuses[0].ObservedGeneration != c.want {
			t.Errorf("%s: observed generation %d, want %d", name, conclusion.Statuses[0].ObservedGeneration, c.want)
		}
	}
}
