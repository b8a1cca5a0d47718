package plan

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

// ownAddress is the node's own.
var ownAddress = on("eth0", "192.0.2.11/24", notOurs)

// inputsFor are the Inputs of an agent that is up to date and has one Announcement.
func inputsFor(entries ...purelbv1.AnnouncedAddress) Inputs {
	ann := announcement(entries...)
	ann.UID, ann.Spec.LBNodeAgent = "node1", "default"
	return Inputs{
		Now: begin, LBNodeAgentName: "default", LBNodeAgent: &purelbv1.LBNodeAgent{}, IsUpToDate: true,
		IsFirstAnnouncementReported: true,
		Announcements:               []purelbv1.Announcement{ann},
		Observed: Observed{Interfaces: []NetworkInterface{
			{Name: "eth0", Kind: "device", MAC: "02:00:00:00:00:11", IsUp: true}, {
				Name: "kube-lb0", Kind: "dummy", IsOurs: true, IsUp: true,
			},
		}, Addresses: []Address{ownAddress}},
	}
}

// operationsOf says in short what a decision does to the kernel.
func operationsOf(decision Decision) []string {
	var all []string
	for _, op := range decision.Operations {
		text := fmt.Sprintf("%s %s %s", op.Kind, op.Address.Interface, op.Address.Prefix)
		if op.AwaitProxy {
			text += " once the proxy serves it"
		}
		all = append(all, text)
	}
	return all
}

// The link is told again of an address when the claim of another node has ended in favour of this one, and in
// no other case.
func TestReaffirm(t *testing.T) {
	t.Parallel()
	withContest := func(h *Held) { h.Contest = Contest{Epoch: 3, MAC: "02:00:00:00:00:12"} }
	contested := func(a *purelbv1.AnnouncedAddress) {
		a.ContestedBy = &purelbv1.Successor{NodeName: "node2", Epoch: 3}
	}
	for name, c := range map[string]struct {
		held  Held
		entry func(*purelbv1.AnnouncedAddress)
		want  int
	}{
		"the manager refutes the claim": {
			heldOn("eth0", heldAddr, withContest), func(a *purelbv1.AnnouncedAddress) { a.Epoch = 4 }, 1,
		},
		"the other node gives up": {heldOn("eth0", heldAddr, withContest), func(*purelbv1.AnnouncedAddress) {}, 1},
		"the claim goes on":       {heldOn("eth0", heldAddr, withContest), contested, 0},
		"the claim begins":        {heldOn("eth0", heldAddr), contested, 0},
		"there was no claim":      {heldOn("eth0", heldAddr), func(a *purelbv1.AnnouncedAddress) { a.Epoch = 4 }, 0},
		"it was held elsewhere":   {heldOn("eth1", heldAddr, withContest), func(*purelbv1.AnnouncedAddress) {}, 0},
		"another address was held": {
			heldOn("eth0", netip.MustParseAddr("192.0.2.2"), withContest), func(*purelbv1.AnnouncedAddress) {}, 0,
		},
		"it is handed over": {
			heldOn("eth0", heldAddr, withContest), func(a *purelbv1.AnnouncedAddress) { a.HandingOver = true }, 0,
		},
	} {
		in := inputsFor(local("192.0.2.1", 24))
		in.Announcements[0].Spec.Successors = []purelbv1.StandbyNode{{NodeName: "node2", MACs: []string{"02:00:00:00:00:12"}}}
		c.entry(&in.Announcements[0].Spec.Addresses[0])
		in.Held = holding(c.held).Held
		if _, decision := Decide(Memory{}, in); len(decision.ToReannounce) != c.want {
			t.Errorf("%s: %d, want %d", name, len(decision.ToReannounce), c.want)
		}
	}
}

func TestWhatWasStrippedIsPutBackAtOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		held     []Held
		validFor time.Duration
		isAdd    bool
	}{
		"held until now":           {[]Held{heldOn("eth0", heldAddr)}, time.Second, true},
		"held until it expired":    {[]Held{heldOn("eth0", heldAddr)}, 0, false},
		"held under another epoch": {[]Held{heldOn("eth0", heldAddr, func(h *Held) { h.Epoch = 2 })}, time.Second, false},
		"held elsewhere":           {[]Held{heldOn("eth1", heldAddr)}, time.Second, false},
		"not held":                 {nil, time.Second, false},
	} {
		in := inputsFor(local("192.0.2.1", 24))
		in.Held = holding(c.held...).Held
		in.Observed.Addresses = []Address{ownAddress, on("eth0", "192.0.2.9/32")}
		_, decision := Decide(Memory{ValidUntil: map[netip.Addr]time.Time{heldAddr: in.Now.Add(c.validFor)}}, in)
		operations := []string{"Remove eth0 192.0.2.9/32"}
		if c.isAdd {
			operations = append(operations, "Add eth0 192.0.2.1/32")
		}
		if diff := cmp.Diff(operations, operationsOf(decision)); diff != "" || len(decision.Questions) == 1 == c.isAdd {
			t.Errorf("%s: %d questions, operations (-want +got):\n%s", name, len(decision.Questions), diff)
		}
		want := probingResult(&decision.desired[0])
		if c.isAdd {
			want = AnnouncedResult(&decision.desired[0])
		}
		if got := decision.results[heldAddr]; got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

// A Virtual address whose traffic stays on the node waits for the service proxy, up to 5 s.
func TestVirtualAddressesAwaitTheProxy(t *testing.T) {
	t.Parallel()
	withPort := func(a purelbv1.AnnouncedAddress) purelbv1.AnnouncedAddress {
		a.HealthCheckNodePort = 30000
		return a
	}
	for name, c := range map[string]struct {
		entry   purelbv1.AnnouncedAddress
		kernel  []Address
		after   time.Duration
		want    []string
		isAsked bool
	}{
		"at once": {
			withPort(virtual("198.51.100.1", 32)), nil, 0, []string{"Add kube-lb0 198.51.100.1/32 once the proxy serves it"},
			true,
		},
		"nearly 5 s later": {
			withPort(virtual("198.51.100.1", 32)), nil, 5*time.Second - 1,
			[]string{"Add kube-lb0 198.51.100.1/32 once the proxy serves it"}, true,
		},
		"5 s later": {
			withPort(virtual("198.51.100.1", 32)), nil, 5 * time.Second, []string{"Add kube-lb0 198.51.100.1/32"}, true,
		},
		"its traffic goes to any node": {
			virtual("198.51.100.1", 32), nil, 0, []string{"Add kube-lb0 198.51.100.1/32"}, false,
		},
		"a Local address": {
			withPort(local("192.0.2.1", 24, takeover)), nil, 0, []string{"Add eth0 192.0.2.1/32"}, false,
		},
		"is there": {
			withPort(virtual("198.51.100.1", 32)), []Address{on("kube-lb0", "198.51.100.1/32")}, 0, nil, false,
		},
		"is there with another mask": {
			withPort(virtual("198.51.100.1", 32)), []Address{on("kube-lb0", "198.51.100.1/24")}, 0,
			[]string{"Add kube-lb0 198.51.100.1/32", "Remove kube-lb0 198.51.100.1/24"}, false,
		},
		"is there, to be renewed": {
			withPort(virtual("198.51.100.1", 32)), []Address{on("kube-lb0", "198.51.100.1/32", left(time.Second))}, 0,
			[]string{"Renew kube-lb0 198.51.100.1/32"}, false,
		},
		"another one is removed": {
			withPort(virtual("198.51.100.1", 32)), []Address{on("kube-lb0", "198.51.100.2/32")}, 0,
			[]string{"Remove kube-lb0 198.51.100.2/32", "Add kube-lb0 198.51.100.1/32 once the proxy serves it"}, true,
		},
	} {
		in := inputsFor(c.entry)
		in.Observed.Addresses = append([]Address{ownAddress}, c.kernel...)
		memory, _ := Decide(Memory{}, in)
		in.Now = begin.Add(c.after)
		memory, decision := Decide(memory, in)
		if diff := cmp.Diff(c.want, operationsOf(decision)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		var want map[netip.Addr]time.Time
		if c.isAsked {
			want = map[netip.Addr]time.Time{netip.MustParseAddr("198.51.100.1"): begin}
		}
		if got := memory.ProxyWaitSince; len(got) != len(want) ||
			c.isAsked && !got[netip.MustParseAddr("198.51.100.1")].Equal(begin) {
			t.Errorf("%s: waits since %v, want %v", name, got, want)
		}
	}
}

func TestVirtualInterfacesOfNoUseAreRemoved(t *testing.T) {
	t.Parallel()
	going := func(ann *purelbv1.Announcement) { ann.Spec.AgentLeaving = true }
	for name, c := range map[string]struct {
		entries []purelbv1.AnnouncedAddress
		edit    func(*purelbv1.Announcement)
		want    []string
	}{
		"the agent stays": {nil, nil, []string{"old-lb0"}},
		"the agent goes":  {nil, going, []string{"kube-lb0", "old-lb0"}},
		"the agent goes, but has to leave": {
			[]purelbv1.AnnouncedAddress{virtual("198.51.100.1", 32)}, going, []string{"old-lb0"},
		},
	} {
		in := inputsFor(c.entries...)
		in.Observed.Interfaces = append(
			in.Observed.Interfaces, NetworkInterface{Name: "old-lb0", IsOurs: true},
			NetworkInterface{Name: "kube-ipvs0", Kind: "dummy"},
		)
		if c.edit != nil {
			c.edit(&in.Announcements[0])
		}
		_, decision := Decide(Memory{}, in)
		if diff := cmp.Diff(c.want, decision.VirtualsToRemove); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestVirtualInterfaceIsMadeWhereItIsNeeded(t *testing.T) {
	t.Parallel()
	elsewhere := virtual("198.51.100.1", 32)
	elsewhere.Interface = "old-lb0"
	localThere := local("192.0.2.1", 24)
	localThere.Interface = "kube-lb0"
	for name, c := range map[string]struct {
		entry     purelbv1.AnnouncedAddress
		isThere   bool
		ensure    string
		isMissing bool
	}{
		"missing":                        {virtual("198.51.100.1", 32), false, "kube-lb0", true},
		"there":                          {virtual("198.51.100.1", 32), true, "kube-lb0", false},
		"only Local addresses":           {local("192.0.2.1", 24), false, "", false},
		"desired on another interface":   {elsewhere, false, "", false},
		"Local addresses do not need it": {localThere, false, "", false},
	} {
		in := inputsFor(c.entry)
		if !c.isThere {
			in.Observed.Interfaces = in.Observed.Interfaces[:1]
		}
		_, decision := Decide(Memory{}, in)
		if decision.VirtualToEnsure != c.ensure || decision.IsVirtualMissing != c.isMissing {
			t.Errorf("%s: ensures %q, missing %v", name, decision.VirtualToEnsure, decision.IsVirtualMissing)
		}
	}
}

// While nothing is known the agent keeps what the kernel has, renews it, and says nothing.
func TestNothingKnown(t *testing.T) {
	t.Parallel()
	badSettings := &purelbv1.LBNodeAgent{
		Spec: purelbv1.LBNodeAgentSpec{Local: &purelbv1.LBNodeAgentLocal{LocalInterface: "eth["}},
	}
	for name, c := range map[string]struct {
		edit      func(*Inputs)
		isUnknown bool
		isErr     bool
	}{
		"known":                    {func(*Inputs) {}, false, false},
		"known, with bad settings": {func(in *Inputs) { in.LBNodeAgent = badSettings }, false, true},
		"offline, with bad settings": {
			func(in *Inputs) { in.LBNodeAgent, in.IsFromCheckpoint = badSettings, true }, false, false,
		},
		"no LBNodeAgent": {func(in *Inputs) { in.LBNodeAgent = nil }, true, false},
		"no Announcement": {
			func(in *Inputs) { in.LBNodeAgent, in.Announcements = badSettings, nil }, true, false,
		},
		"for another LBNodeAgent": {func(in *Inputs) { in.LBNodeAgentName = "new" }, true, false},
		"one for another LBNodeAgent": {
			func(in *Inputs) { in.Announcements = append(in.Announcements, announcement()) }, true, false,
		},
	} {
		in := inputsFor(local("192.0.2.1", 24))
		in.Observed.Addresses = []Address{
			on("eth0", "192.0.2.11/24", notOurs), on("kube-lb0", "198.51.100.1/32"),
			on("eth0", "192.0.2.1/32", left(time.Second)), on("eth0", "192.0.2.9/32", left(250*time.Second)),
		}
		c.edit(&in)
		memory, decision := Decide(Memory{}, in)
		if decision.IsNothingKnown != c.isUnknown || decision.Err != nil != c.isErr {
			t.Errorf("%s: nothing known %v, %v", name, decision.IsNothingKnown, decision.Err)
		}
		if !c.isUnknown {
			continue
		}
		if diff := cmp.Diff([]string{"Renew eth0 192.0.2.1/32"}, operationsOf(decision)); diff != "" ||
			decision.DecideIn != 50*time.Second {
			t.Errorf("%s: decides again in %s; operations (-want +got):\n%s", name, decision.DecideIn, diff)
		}
		if len(decision.VirtualsToRemove) > 0 || decision.VirtualToEnsure != "" {
			t.Errorf("%s: the virtual interface changes: %+v", name, decision)
		}
		_, conclusion := Conclude(memory, in, decision, Outcomes{})
		var held []string
		for _, h := range conclusion.Held {
			held = append(held, fmt.Sprintf("%s undefended %v", h.Prefix, h.IsUndefended))
		}
		if diff := cmp.Diff([]string{"192.0.2.1/32 undefended true", "192.0.2.9/32 undefended true"}, held); diff != "" ||
			conclusion.Statuses != nil || conclusion.Announced != nil {
			t.Errorf("%s: reports %v; held (-want +got):\n%s", name, conclusion.Statuses, diff)
		}
	}
}

// While the API server is away the agent withdraws nothing that the checkpoint does not ask for,
// and takes nothing over.
func TestOffline(t *testing.T) {
	t.Parallel()
	in := inputsFor(local("192.0.2.1", 24, takeover), local("192.0.2.2", 24))
	in.IsFromCheckpoint = true
	in.Observed.Interfaces = append(in.Observed.Interfaces, NetworkInterface{Name: "eth1", IsUp: true})
	in.Observed.Addresses = []Address{
		ownAddress, on("eth0", "192.0.2.9/32", left(210*time.Second)), on("eth1", "192.0.2.2/32"),
		on("eth0", "192.0.2.8/32", left(time.Second)),
	}
	memory, decision := Decide(Memory{}, in)
	if diff := cmp.Diff([]string{"Remove eth1 192.0.2.2/32", "Renew eth0 192.0.2.8/32"},
		operationsOf(decision)); diff != "" {
		t.Errorf("operations (-want +got):\n%s", diff)
	}
	if len(decision.Questions) != 2 || decision.DecideIn != 10*time.Second || decision.interfaces != nil {
		t.Errorf(
			"%d questions, decides again in %s, facts %v", len(decision.Questions), decision.DecideIn, decision.interfaces,
		)
	}
	if len(memory.NonEmptyObjects) > 0 {
		t.Errorf("remembers what the checkpoint asks for: %v", memory.NonEmptyObjects)
	}
	if _, conclusion := Conclude(memory, in, decision, Outcomes{}); conclusion.Statuses != nil ||
		conclusion.Announced != nil || len(conclusion.Held) != 2 {
		t.Errorf("%+v", conclusion)
	}
}

// While an Announcement is missing that asked for addresses, for up to 15 s, nothing is withdrawn.
func TestMissingAnnouncements(t *testing.T) {
	t.Parallel()
	const second = time.Second
	other := func(edit ...func(*purelbv1.Announcement)) purelbv1.Announcement {
		ann := announcement()
		ann.Name, ann.UID, ann.Spec.LBNodeAgent = "node1-b", "node1-b", "default"
		for _, e := range edit {
			e(&ann)
		}
		return ann
	}
	asks := func(ann *purelbv1.Announcement) {
		ann.Spec.Addresses = []purelbv1.AnnouncedAddress{local("192.0.2.9", 24)}
	}
	asksForShared := func(ann *purelbv1.Announcement) { ann.Spec.IncludeCommonAnnouncements = true }
	addTwo := func(in *Inputs) {
		in.Announcements = append(
			in.Announcements, other(asks),
			other(asks, func(ann *purelbv1.Announcement) { ann.Name, ann.UID = "node1-c", "node1-c" }),
		)
	}
	shared := func(addresses ...purelbv1.AnnouncedAddress) []purelbv1.CommonAnnouncement {
		common := purelbv1.CommonAnnouncement{Spec: purelbv1.CommonAnnouncementSpec{Addresses: addresses}}
		common.Name, common.UID = "default", "common"
		return []purelbv1.CommonAnnouncement{common}
	}
	for name, c := range map[string]struct {
		before  func(*Inputs)
		after   []func(*Inputs)
		times   []time.Duration // of each of after
		missing int             // at the last of them
		waitFor time.Duration   // decides again in
	}{
		"nothing was there before": {func(*Inputs) {}, []func(*Inputs){func(*Inputs) {}}, []time.Duration{0}, 0, 0},
		"one that asked for addresses": {
			func(in *Inputs) { in.Announcements = append(in.Announcements, other(asks)) }, []func(*Inputs){func(*Inputs) {}},
			[]time.Duration{0}, 1, 15 * second,
		},
		"one that asked for the shared entries": {
			func(in *Inputs) { in.Announcements = append(in.Announcements, other(asksForShared)) }, []func(*Inputs){
				func(*Inputs) {},
			}, []time.Duration{0}, 1, 15 * second,
		},
		"one that asked for nothing": {
			func(in *Inputs) { in.Announcements = append(in.Announcements, other()) }, []func(*Inputs){func(*Inputs) {}},
			[]time.Duration{0}, 0, 0,
		},
		"shared entries": {
			func(in *Inputs) { in.CommonAnnouncements = shared(virtual("198.51.100.1", 32)) }, []func(*Inputs){func(*Inputs) {}},
			[]time.Duration{0}, 1, 15 * second,
		},
		"no shared entries": {
			func(in *Inputs) { in.CommonAnnouncements = shared() }, []func(*Inputs){func(*Inputs) {}}, []time.Duration{0}, 0, 0,
		},
		"nearly 15 s": {
			func(in *Inputs) { in.Announcements = append(in.Announcements, other(asks)) }, []func(*Inputs){
				func(*Inputs) {}, func(*Inputs) {},
			}, []time.Duration{0, 15*second - 1}, 1, 1,
		},
		"15 s": {
			addTwo, []func(*Inputs){func(*Inputs) {}, func(*Inputs) {}}, []time.Duration{0, 15 * second}, 0, 0,
		},
		"the clock was set back": {
			func(in *Inputs) { in.Announcements = append(in.Announcements, other(asks)) }, []func(*Inputs){
				func(*Inputs) {}, func(*Inputs) {},
			}, []time.Duration{0, -1}, 0, 0,
		},
		"comes back, made anew": {
			func(in *Inputs) { in.Announcements = append(in.Announcements, other(asks)) },
			[]func(*Inputs){func(*Inputs) {}, func(in *Inputs) {
				in.Announcements = append(in.Announcements, other(func(ann *purelbv1.Announcement) { ann.UID = "anew" }))
			}}, []time.Duration{0, second}, 1, 14 * second,
		},
		"comes back, the same": {
			func(in *Inputs) { in.Announcements = append(in.Announcements, other(asks)) },
			[]func(*Inputs){func(*Inputs) {}, func(in *Inputs) { in.Announcements = append(in.Announcements, other()) }},
			[]time.Duration{0, second}, 0, 0,
		},
		"the time does not count while nothing is known": {
			addTwo,
			[]func(*Inputs){func(*Inputs) {}, func(in *Inputs) { in.LBNodeAgent = nil }, func(*Inputs) {}}, []time.Duration{
				0, 10 * second, 20 * second,
			}, 2, 15 * second,
		},
	} {
		in := inputsFor()
		in.Observed.Addresses = []Address{ownAddress, on("eth0", "192.0.2.9/32")}
		first := in
		c.before(&first)
		memory, _ := Decide(Memory{}, first)
		var decision Decision
		for i, change := range c.after {
			next := in
			next.Now = begin.Add(c.times[i])
			change(&next)
			memory, decision = Decide(memory, next)
		}
		if isKept := len(decision.Operations) == 0; isKept != (c.missing > 0) {
			t.Errorf("%s: %v, and %d are missing", name, operationsOf(decision), c.missing)
		}
		if decision.DecideIn != c.waitFor {
			t.Errorf("%s: decides again in %s, want %s", name, decision.DecideIn, c.waitFor)
		}
		if got := len(memory.MissingSince); got != c.missing {
			t.Errorf("%s: %d are remembered as missing, want %d", name, got, c.missing)
		}
	}
}

func TestProbesAreRepeated(t *testing.T) {
	t.Parallel()
	target := ProbeTarget{"eth0", heldAddr}
	failure := errors.New("no permission")
	for name, c := range map[string]struct {
		answer  ProbeState
		after   time.Duration // since the answer
		want    []string
		isAsked bool
		state   string
	}{
		"silence": {ProbeState{}, 0, []string{"Add eth0 192.0.2.1/32"}, false, "Announced "},
		"silence, a while ago": {
			ProbeState{}, 10*time.Second - 1, []string{"Add eth0 192.0.2.1/32"}, false, "Announced ",
		},
		"silence, long ago":        {ProbeState{}, 10 * time.Second, nil, true, "Pending Probing"},
		"an answer":                {ProbeState{MAC: stranger}, 0, nil, false, "Conflict Answered"},
		"an answer, a while ago":   {ProbeState{MAC: stranger}, time.Second - 1, nil, false, "Conflict Answered"},
		"an answer, long ago":      {ProbeState{MAC: stranger}, time.Second, nil, true, "Conflict Answered"},
		"no question, a while ago": {ProbeState{Err: failure}, time.Second - 1, nil, false, "Failed ProbeFailed"},
		"no question, long ago":    {ProbeState{Err: failure}, time.Second, nil, true, "Failed ProbeFailed"},
		"still asking":             {ProbeState{IsAsking: true}, time.Hour, nil, false, "Pending Probing"},
		"still asking once more":   {ProbeState{IsAsking: true, MAC: stranger}, time.Hour, nil, false, "Conflict Answered"},
	} {
		in := inputsFor(local("192.0.2.1", 24))
		c.answer.AnsweredAt = begin
		in.ProbeAnswers = []ProbeAnswer{{target, c.answer}}
		in.Now = begin.Add(c.after)
		memory, decision := Decide(Memory{}, in)
		if diff := cmp.Diff(c.want, operationsOf(decision)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if got := len(decision.Questions) == 1; got != c.isAsked {
			t.Errorf("%s: asks %v", name, got)
		}
		if r := decision.results[heldAddr]; string(r.State)+" "+r.Reason != c.state {
			t.Errorf("%s: %s %s, want %s", name, r.State, r.Reason, c.state)
		}
		if isErr := c.answer.Err != nil; decision.Err != nil != isErr {
			t.Errorf("%s: %v", name, decision.Err)
		}
		if isAnswered := c.answer.MAC != ""; isAnswered && decision.DecideIn != time.Second {
			t.Errorf("%s: decides again in %s", name, decision.DecideIn)
		}
		if p := memory.ProbeStates[target]; p.IsAsking != (c.isAsked || c.answer.IsAsking) || p.MAC != c.answer.MAC {
			t.Errorf("%s: remembers %+v", name, p)
		}
	}
}

// A question of no use any more is remembered, since the link will answer it. An answer of no use
// is forgotten.
func TestProbesOfNoUse(t *testing.T) {
	t.Parallel()
	asking, answered := ProbeTarget{"eth0", heldAddr}, ProbeTarget{"eth0", nth(1)}
	memory, _ := Decide(
		Memory{ProbeStates: map[ProbeTarget]ProbeState{
			asking: {IsAsking: true}, answered: {AnsweredAt: begin, MAC: stranger},
		}},
		inputsFor(),
	)
	if len(memory.ProbeStates) != 1 || !memory.ProbeStates[asking].IsAsking {
		t.Errorf("remembers %v", memory.ProbeStates)
	}
}

// Renewals come after all other operations, and first those of addresses whose lifetimes end first.
func TestRenewalsComeLast(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		edit func(*Inputs)
		want []string
	}{
		"desired": {func(*Inputs) {}, []string{
			"Remove eth0 192.0.2.9/32", "Add eth0 192.0.2.4/32", "Add kube-lb0 198.51.100.1/32",
			"Renew eth0 192.0.2.2/32", "Renew eth0 192.0.2.3/32", "Renew eth0 192.0.2.1/32",
		}},
		"some are kept": {func(in *Inputs) { in.IsFromCheckpoint = true }, []string{
			"Add kube-lb0 198.51.100.1/32", "Renew eth0 192.0.2.2/32", "Renew eth0 192.0.2.9/32", "Renew eth0 192.0.2.3/32",
			"Renew eth0 192.0.2.1/32",
		}},
		"nothing is known": {func(in *Inputs) { in.LBNodeAgent = nil }, []string{
			"Renew eth0 192.0.2.2/32", "Renew eth0 192.0.2.9/32", "Renew eth0 192.0.2.3/32", "Renew eth0 192.0.2.1/32",
		}},
	} {
		in := inputsFor(
			local("192.0.2.1", 24), local("192.0.2.2", 24), local("192.0.2.3", 24), local("192.0.2.4", 24, takeover),
			virtual("198.51.100.1", 32),
		)
		in.Observed.Addresses = append(in.Observed.Addresses, on("eth0", "192.0.2.1/32", left(190*time.Second)),
			on("eth0", "192.0.2.2/32", left(50*time.Second)),
			on("eth0", "192.0.2.3/32", left(100*time.Second)), on("eth0", "192.0.2.9/32", left(60*time.Second)))
		c.edit(&in)
		_, decision := Decide(Memory{}, in)
		if diff := cmp.Diff(c.want, operationsOf(decision)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// Renewals that were left for the next decision have renewed nothing.
func TestUnrenewed(t *testing.T) {
	t.Parallel()
	in := inputsFor(local("192.0.2.1", 24), local("192.0.2.2", 24))
	in.Observed.Addresses = append(
		in.Observed.Addresses, on("eth0", "192.0.2.1/32", left(50*time.Second)),
		on("eth0", "192.0.2.2/32", left(100*time.Second)),
	)
	memory, _ := conclude(in, Outcomes{Unrenewed: 1})
	want := map[netip.Addr]time.Time{
		netip.MustParseAddr("192.0.2.1"): begin.Add(300 * time.Second),
		netip.MustParseAddr("192.0.2.2"): begin.Add(100 * time.Second),
	}
	if diff := cmp.Diff(want, memory.ValidUntil); diff != "" {
		t.Errorf("valid until (-want +got):\n%s", diff)
	}
}

// An addition that did not come about makes nothing last longer.
func TestFailedAdditionLastsNotLonger(t *testing.T) {
	t.Parallel()
	in := inputsFor(local("192.0.2.1", 24, takeover), local("192.0.2.2", 24, takeover))
	refused := FailedResult(&Desired{Epoch: 3}, ReasonAddFailed, errors.New("refused"))
	memory, _ := conclude(in, Outcomes{Results: map[netip.Addr]Result{netip.MustParseAddr("192.0.2.2"): refused}})
	want := map[netip.Addr]time.Time{netip.MustParseAddr("192.0.2.1"): begin.Add(300 * time.Second)}
	if diff := cmp.Diff(want, memory.ValidUntil); diff != "" {
		t.Errorf("valid until (-want +got):\n%s", diff)
	}
}

// What the checkpoint asks for the agent claims only after it has asked the link, also where the entry says that it
// need not: another node may have been given the address while this one was away.
func TestCheckpointSkipsNoProbe(t *testing.T) {
	t.Parallel()
	for _, isFromCheckpoint := range []bool{false, true} {
		in := inputsFor(local("2001:db8::1", 64, skipProbe))
		in.IsFromCheckpoint = isFromCheckpoint
		_, decision := Decide(Memory{}, in)
		if hasAsked := len(decision.Questions) == 1; hasAsked != isFromCheckpoint {
			t.Errorf("by the checkpoint %t: asks %t, and does %v", isFromCheckpoint, hasAsked, operationsOf(decision))
		}
	}
}

// An agent that does not know the objects to be up to date asks the link for what it is to take over, and says so: once
// it has listed it need not ask.
func TestAsksForTakeover(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		entry      purelbv1.AnnouncedAddress
		isUpToDate bool
		want       bool
	}{
		"a takeover":             {local("192.0.2.1", 24, takeover), false, true},
		"up to date":             {local("192.0.2.1", 24, takeover), true, false},
		"no takeover":            {local("192.0.2.1", 24), false, false},
		"a takeover, not probed": {local("192.0.2.1", 24, takeover, skipProbe), false, false},
		"a Virtual address":      {virtual("198.51.100.1", 32), false, false},
	} {
		in := inputsFor(c.entry)
		in.IsUpToDate = c.isUpToDate
		_, decision := Decide(Memory{}, in)
		if decision.AsksForTakeover != c.want || c.want && len(decision.Questions) == 0 {
			t.Errorf("%s: asks for a takeover %t, %d questions", name, decision.AsksForTakeover, len(decision.Questions))
		}
	}
}
