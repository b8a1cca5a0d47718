package plan

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

// decisionHistory is a random history of decisions, and of the world that they are about.
type decisionHistory struct {
	t      *testing.T
	random *rand.Rand
	log    []string
	now    time.Time

	memory  Memory
	defence *Defence
	kernel  []Address
	// refused are addresses that the kernel does not change.
	refused map[netip.Addr]bool
	// stations are the MACs that answer for addresses.
	stations map[netip.Addr]string
	// questions have not been answered yet, and silentAt is when a link was last silent about an
	// address.
	questions []ProbeQuestion
	silentAt  map[ProbeTarget]time.Time

	announcements    []purelbv1.Announcement
	standbys         []purelbv1.Announcement
	claims           map[netip.Addr]Claim // of which no decision knows yet
	common           []purelbv1.CommonAnnouncement
	isUpToDate       bool
	isFromCheckpoint bool
	hasNoAgent       bool
	missingAt        time.Time // zero while nothing is missing
	missing          []purelbv1.Announcement
	epoch            int64
}

// TestDecideHistories plays random histories of decisions. At each decision: Decide and Conclude
// change no argument and say the same twice; nothing of others is removed; nothing is added twice;
// no address is added without asking that is yielded, or that only an agent that is up to date may
// take over, and that no watcher has just claimed; and nothing is withdrawn while nothing is known, an
// Announcement is missing or the API server is away, nor what is claimed and not refused. At the end the kernel
// has what is desired, within a few decisions.
func TestDecideHistories(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		h := newDecisionHistory(t, seed)
		for range 60 {
			h.change()
			h.decide()
			h.now = h.now.Add(time.Duration(h.random.IntN(3000)) * time.Millisecond)
		}
		h.settle()
		if t.Failed() {
			t.Fatalf("seed %d:\n%s", seed, strings.Join(h.log, "\n"))
		}
	}
}

func newDecisionHistory(t *testing.T, seed uint64) *decisionHistory {
	h := &decisionHistory{
		t: t, random: rand.New(rand.NewPCG(seed, 1)), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), defence: NewDefence(),
		refused: map[netip.Addr]bool{}, stations: map[netip.Addr]string{}, silentAt: map[ProbeTarget]time.Time{},
		isUpToDate: true,
		kernel: []Address{
			on("eth0", "192.0.2.11/24", notOurs), on("eth0", "192.0.2.101/24", notOurs),
			on("kube-lb0", "198.51.100.9/32", notOurs),
		},
	}
	for _, name := range []string{"node1", "node1-b"} {
		h.announcements = append(h.announcements, purelbv1.Announcement{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: purelbv1.AnnouncementSpec{
				NodeName: "node1", LBNodeAgent: "default",
			},
		})
	}
	h.common = []purelbv1.CommonAnnouncement{{ObjectMeta: metav1.ObjectMeta{Name: "default", UID: "common"},
		Spec: purelbv1.CommonAnnouncementSpec{
			LBNodeAgent: "default", Revision: 1, Addresses: []purelbv1.AnnouncedAddress{
				virtual("198.51.100.1", 32), virtual("198.51.100.2", 32),
			},
		}}}
	return h
}

func (h *decisionHistory) note(format string, args ...any) {
	h.log = append(h.log, h.now.Format("04:05.000 ")+fmt.Sprintf(format, args...))
}

func (h *decisionHistory) fail(format string, args ...any) {
	h.t.Helper()
	h.note("FAIL "+format, args...)
	h.t.Errorf(format, args...)
}

func (h *decisionHistory) address() netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", 100+h.random.IntN(6)))
}

// change lets one random thing happen.
func (h *decisionHistory) change() {
	addr := h.address()
	switch h.random.IntN(15) {
	case 0, 1, 2, 3:
		h.changeEntry(addr)
	case 4:
		h.isUpToDate = !h.isUpToDate
		h.note("up to date: %v", h.isUpToDate)
	case 5:
		h.isFromCheckpoint = !h.isFromCheckpoint && h.missing == nil
		h.note("offline: %v", h.isFromCheckpoint)
	case 6:
		if h.stations[addr] == "" {
			h.stations[addr] = "02:00:00:00:00:02"
		} else {
			delete(h.stations, addr)
		}
		h.note("answers for %s: %q", addr, h.stations[addr])
	case 7:
		h.refused[addr] = !h.refused[addr]
		h.note("the kernel refuses %s: %v", addr, h.refused[addr])
	case 8:
		i := h.random.IntN(len(h.kernel))
		if a := h.kernel[i]; a.IsOurs {
			h.kernel = slices.Delete(slices.Clone(h.kernel), i, i+1)
			h.note("stripped %s", a.Prefix)
		}
	case 9:
		h.yieldOrFallSilent()
	case 10:
		h.deleteOrRestoreAnnouncement()
	case 11:
		spec := &h.announcements[0].Spec
		spec.IncludeCommonAnnouncements = !spec.IncludeCommonAnnouncements && h.missing == nil
		h.note("announces the shared entries: %v", spec.IncludeCommonAnnouncements)
	case 12:
		h.hasNoAgent = !h.hasNoAgent
		h.note("without an LBNodeAgent: %v", h.hasNoAgent)
	case 13:
		h.claim(addr)
	case 14:
		h.standbys = nil
		h.note("named for nothing")
	}
}

// claim makes a watcher claim an address for which the manager names the node.
func (h *decisionHistory) claim(addr netip.Addr) {
	h.epoch++
	ann := standby(func(a *purelbv1.StandbyAddress) {
		a.Address, a.Epoch, a.Successors[0].Epoch = addr.String(), 0, h.epoch
	})
	h.standbys = []purelbv1.Announcement{ann}
	if h.stations[addr] == "" {
		h.claims = map[netip.Addr]Claim{addr: {Interface: "eth0", Epoch: h.epoch, QuietAt: h.now}}
	}
	h.note("named for %s under epoch %d, claims it: %v", addr, h.epoch, h.claims != nil)
}

// changeEntry asks for an address, asks for it under another epoch, or asks for it no more.
func (h *decisionHistory) changeEntry(addr netip.Addr) {
	ann := &h.announcements[h.random.IntN(len(h.announcements))]
	h.epoch++
	has := func(e purelbv1.AnnouncedAddress) bool { return e.Address == addr.String() }
	entries := slices.Clone(ann.Spec.Addresses)
	ann.Generation++
	switch i := slices.IndexFunc(entries, has); {
	case i >= 0 && h.random.IntN(2) == 0:
		ann.Spec.Addresses = slices.Delete(entries, i, i+1)
		h.note("%s asks for %s no more", ann.Name, addr)
	case i >= 0:
		entries[i].Epoch, entries[i].HandingOver = h.epoch, h.random.IntN(4) == 0
		ann.Spec.Addresses = entries
		h.note("%s asks for %s under epoch %d, leaving %v", ann.Name, addr, h.epoch, entries[i].HandingOver)
	case !slices.ContainsFunc(
		h.announcements, func(a purelbv1.Announcement) bool { return slices.ContainsFunc(a.Spec.Addresses, has) },
	):
		entry := local(addr.String(), 24, func(a *purelbv1.AnnouncedAddress) { a.Epoch = h.epoch })
		if h.random.IntN(2) == 0 {
			entry.ClaimPolicy = purelbv1.ClaimTakeover
		}
		ann.Spec.Addresses = append(entries, entry)
		h.note("%s asks for %s under epoch %d (%s)", ann.Name, addr, h.epoch, entry.ClaimPolicy)
	}
}

// yieldOrFallSilent makes the listener yield a held address, or the stations silent to which
// addresses were yielded.
func (h *decisionHistory) yieldOrFallSilent() {
	if h.random.IntN(2) == 0 {
		if all := slices.SortedFunc(maps.Keys(h.defence.Held), netip.Addr.Compare); len(all) > 0 {
			addr := all[0]
			held := h.defence.Held[addr]
			h.defence.NoteYield(held, "02:00:00:00:00:03", h.now)
			if !h.refused[addr] {
				h.remove(held.Address)
			}
			h.note("yielded %s", addr)
			return
		}
	}
	for addr, y := range h.defence.Yields {
		y.Unanswered, y.AnsweredAt = silentQuestions, h.now.Add(-silentFor)
		h.defence.Yields[addr] = y
		h.note("silent about %s", addr)
	}
}

// deleteOrRestoreAnnouncement deletes an Announcement, or makes the missing ones anew.
func (h *decisionHistory) deleteOrRestoreAnnouncement() {
	if h.missing != nil {
		for _, ann := range h.missing {
			ann.UID += "-anew"
			ann.Status = purelbv1.AnnouncementStatus{}
			h.announcements = append(h.announcements, ann)
		}
		slices.SortFunc(h.announcements, func(a, b purelbv1.Announcement) int { return strings.Compare(a.Name, b.Name) })
		h.missing, h.missingAt = nil, time.Time{}
		h.note("made the missing Announcements anew")
		return
	}
	if h.isFromCheckpoint {
		return
	}
	i := h.random.IntN(len(h.announcements))
	h.missing = []purelbv1.Announcement{h.announcements[i]}
	h.announcements = slices.Delete(slices.Clone(h.announcements), i, i+1)
	if len(h.missing[0].Spec.Addresses) > 0 || h.missing[0].Spec.IncludeCommonAnnouncements {
		h.missingAt = h.now
	}
	h.note("deleted %s", h.missing[0].Name)
}

func (h *decisionHistory) remove(a Address) {
	h.kernel = slices.DeleteFunc(slices.Clone(h.kernel), func(b Address) bool {
		return b.IsOurs && a.Interface == b.Interface && a.Prefix == b.Prefix
	})
}

func (h *decisionHistory) inputs() Inputs {
	in := Inputs{
		Now: h.now, LBNodeAgentName: "default", LBNodeAgent: &purelbv1.LBNodeAgent{
			ObjectMeta: metav1.ObjectMeta{Name: "default"},
		},
		Announcements: slices.Clone(h.announcements), CommonAnnouncements: h.common, IsUpToDate: h.isUpToDate,
		IsFromCheckpoint: h.isFromCheckpoint,
		Observed: Observed{
			Interfaces: []NetworkInterface{{Name: "eth0", IsUp: true}, {Name: "kube-lb0", IsOurs: true, IsUp: true}},
			Addresses:  slices.Clone(h.kernel),
		},
		Held: maps.Clone(h.defence.Held), Yields: maps.Clone(h.defence.Yields),
		Standbys: h.standbys, Claims: h.claims,
	}
	h.claims = nil
	if h.hasNoAgent {
		in.LBNodeAgent = nil
	}
	if h.random.IntN(2) == 0 { // the answers have come
		for _, q := range h.questions {
			mac := h.stations[q.Target.Addr]
			if mac == "" {
				h.silentAt[q.Target] = h.now
			}
			in.ProbeAnswers = append(in.ProbeAnswers, ProbeAnswer{q.Target, ProbeState{AnsweredAt: h.now, MAC: mac}})
		}
		h.questions = nil
	}
	return in
}

// copyOf returns a copy of inputs and memory that shares nothing that a decision could change.
func copyOf(in Inputs, m Memory) (Inputs, Memory) {
	in.Announcements = slices.Clone(in.Announcements)
	for i := range in.Announcements {
		in.Announcements[i] = *in.Announcements[i].DeepCopy()
	}
	in.CommonAnnouncements = slices.Clone(in.CommonAnnouncements)
	for i := range in.CommonAnnouncements {
		in.CommonAnnouncements[i] = *in.CommonAnnouncements[i].DeepCopy()
	}
	in.Observed.Addresses = slices.Clone(in.Observed.Addresses)
	in.Observed.Interfaces = slices.Clone(in.Observed.Interfaces)
	in.Held, in.Yields = maps.Clone(in.Held), maps.Clone(in.Yields)
	in.ProbeAnswers = slices.Clone(in.ProbeAnswers)
	m.NonEmptyObjects, m.MissingSince = maps.Clone(m.NonEmptyObjects), maps.Clone(m.MissingSince)
	in.Claims, m.Claims = maps.Clone(in.Claims), maps.Clone(m.Claims)
	m.ProbeStates, m.ProxyWaitSince = maps.Clone(m.ProbeStates), maps.Clone(m.ProxyWaitSince)
	m.Additions = maps.Clone(m.Additions)
	return in, m
}

// decide gathers, decides, applies and reports as the agent does, and checks the decision.
func (h *decisionHistory) decide() Decision {
	in := h.inputs()
	inBefore, memoryBefore := copyOf(in, h.memory)
	memory, decision := Decide(h.memory, in)
	memoryAgain, decisionAgain := Decide(h.memory, in)
	h.same("Decide changes its inputs", inBefore, in)
	h.same("Decide changes its memory", memoryBefore, h.memory)
	h.same("Decide remembers another thing when it is called again", memory, memoryAgain)
	h.same("Decide decides another thing when it is called again", decision, decisionAgain)
	h.check(&in, decision)

	outcomes := h.apply(decision)
	_, memoryBefore = copyOf(in, memory)
	next, conclusion := Conclude(memory, in, decision, outcomes)
	nextAgain, conclusionAgain := Conclude(memory, in, decision, outcomes)
	h.same("Conclude changes its memory", memoryBefore, memory)
	h.same("Conclude remembers another thing when it is called again", next, nextAgain)
	h.same("Conclude says another thing when it is called again", conclusion, conclusionAgain)
	h.memory = next
	for _, a := range h.kernel {
		isHeld := slices.ContainsFunc(
			conclusion.Held, func(held Held) bool { return held.Prefix == a.Prefix && held.IsUndefended },
		)
		if decision.IsNothingKnown && a.IsOurs && a.Interface == "eth0" && !isHeld {
			h.fail("%s is not kept while nothing is known", a.Prefix)
		}
	}
	if !decision.IsNothingKnown {
		h.defence.UpdateYields(decision.Desired())
	}
	h.defence.SetHeld(conclusion.Held)
	for i, status := range conclusion.Statuses {
		h.announcements[i].Status = status
	}
	h.questions = append(h.questions, decision.Questions...)
	return decision
}

var compareDecisions = cmp.Options{
	compareNetip, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b time.Time) bool { return a.Equal(b) }),
	cmp.Comparer(func(a, b error) bool { return fmt.Sprint(a) == fmt.Sprint(b) }), cmp.AllowUnexported(Decision{}),
}

func (h *decisionHistory) same(what string, want, got any) {
	h.t.Helper()
	if diff := cmp.Diff(want, got, compareDecisions); diff != "" {
		h.fail("%s (-want +got):\n%s", what, diff)
	}
}

// check fails if a decision is not allowed.
func (h *decisionHistory) check(in *Inputs, decision Decision) {
	has := func(a Address) bool {
		return slices.ContainsFunc(
			h.kernel, func(b Address) bool { return b.IsOurs && a.Interface == b.Interface && a.Prefix == b.Prefix },
		)
	}
	isWithdrawingForbidden := decision.IsNothingKnown || in.IsFromCheckpoint ||
		!h.missingAt.IsZero() && h.now.Sub(h.missingAt) < missingObjectPatience
	added := map[Address]bool{}
	for _, op := range decision.Operations {
		h.note("  %s %s %s", op.Kind, op.Address.Prefix, op.Address.Interface)
		switch op.Kind {
		case Remove:
			if !has(op.Address) {
				h.fail("removes %s, which is not ours", op.Address.Prefix)
			}
			if op.Desired == nil && isWithdrawingForbidden {
				h.fail("withdraws %s", op.Address.Prefix)
			}
			if h.isClaimed(in, op.Address.Prefix.Addr()) && op.Desired == nil {
				h.fail("withdraws %s, which is claimed", op.Address.Prefix)
			}
		case Renew:
			if !has(op.Address) {
				h.fail("renews %s, which is not ours", op.Address.Prefix)
			}
		case Add:
			if added[op.Address] || has(op.Address) {
				h.fail("adds %s twice", op.Address.Prefix)
			}
			added[op.Address] = true
			h.checkAdd(in, op)
		case Replace:
			h.fail("replaces %s: no mask has changed", op.Address.Prefix)
		}
		if op.Probe {
			h.fail("%s %s is not decided", op.Kind, op.Address.Prefix)
		}
	}
}

// isClaimed reports whether the node has a claim of an address that the API server does not refuse.
func (h *decisionHistory) isClaimed(in *Inputs, addr netip.Addr) bool {
	for _, claims := range []map[netip.Addr]Claim{in.Claims, h.memory.Claims} {
		if c, isClaimed := claims[addr]; isClaimed && len(h.standbys) > 0 {
			s := h.standbys[0].Spec.Standby.Addresses[1]
			return s.Address == addr.String() && s.Successors[0].Epoch == c.Epoch
		}
	}
	return false
}

// checkAdd fails if an address is added without asking that the node may not just take.
func (h *decisionHistory) checkAdd(in *Inputs, op Operation) {
	d := op.Desired
	if !d.IsLocal {
		return
	}
	silentAt, wasSilent := h.silentAt[targetOf(d)]
	hasAsked := wasSilent && h.now.Sub(silentAt) <= SilenceValidFor
	held, isHeld := in.Held[d.Addr]
	isRepair := isHeld && held.Epoch == d.Epoch
	yield, isYielded := in.Yields[d.Addr]
	mayReclaim := op.Reclaim && yield.IsSilent(h.now) && hasAsked
	mayTakeOver := d.IsTakeover && in.IsUpToDate && !in.IsFromCheckpoint || d.IsProvisional && d.SkipsProbe
	switch isYielded = isYielded && yield.covers(d); {
	case isYielded && !mayReclaim:
		h.fail("adds %s, which is yielded, unasked", d.Addr)
	case !isYielded && !hasAsked && !isRepair && !mayTakeOver:
		h.fail("adds %s unasked", d.Addr)
	}
}

// apply applies a decision to the kernel as the agent does.
func (h *decisionHistory) apply(decision Decision) Outcomes {
	outcomes := Outcomes{Results: map[netip.Addr]Result{}, NotWithdrawn: map[netip.Addr]Result{}}
	refused := errors.New("refused")
	for _, op := range decision.Operations {
		addr := op.Address.Prefix.Addr()
		switch {
		case op.Kind == Remove && !h.refused[addr]:
			h.remove(op.Address)
		case op.Kind == Remove && op.Desired == nil:
			outcomes.NotWithdrawn[addr] = StillAnnouncedResult(
				&Desired{Interface: op.Address.Interface}, ReasonWithdrawFailed, refused,
			)
		case h.refused[addr]:
			outcomes.Results[addr] = FailedResult(op.Desired, ReasonAddFailed, refused)
		case op.Kind == Add:
			if result, isAllowed := h.defence.AllowChange(op.Desired, op.Reclaim, h.now); isAllowed {
				h.kernel = append(slices.Clone(h.kernel), op.Address)
				h.defence.NoteAdded(op.Desired, h.now)
			} else {
				outcomes.Results[addr] = result
			}
		}
	}
	for addr, p := range decision.AnsweredYields {
		h.defence.NoteProbeAnswer(addr, p)
	}
	return outcomes
}

// settle ends all that is wrong, and fails unless the kernel has what is desired a few decisions
// later.
func (h *decisionHistory) settle() {
	h.note("all faults end")
	clear(h.refused)
	clear(h.stations)
	h.isUpToDate, h.isFromCheckpoint, h.hasNoAgent, h.standbys = true, false, false, nil
	if h.missing != nil {
		h.deleteOrRestoreAnnouncement()
	}
	for i := range h.announcements {
		for j := range h.announcements[i].Spec.Addresses {
			h.announcements[i].Spec.Addresses[j].HandingOver = false
		}
	}
	h.decide()
	h.now = h.now.Add(missingObjectPatience)
	for range 20 {
		for addr, y := range h.defence.Yields { // nobody answers any more
			y.Unanswered, y.AnsweredAt = silentQuestions, h.now.Add(-silentFor)
			h.defence.Yields[addr] = y
		}
		h.decide()
		h.now = h.now.Add(time.Second)
	}
	var want, got []string
	for _, ann := range h.announcements {
		for _, entry := range ann.Spec.Addresses {
			want = append(want, entry.Address+"/32")
		}
	}
	if h.announcements[0].Spec.IncludeCommonAnnouncements {
		want = append(want, "198.51.100.1/32", "198.51.100.2/32")
	}
	for _, a := range h.kernel {
		if a.IsOurs {
			got = append(got, a.Prefix.String())
		}
	}
	slices.Sort(want)
	want = slices.Compact(want) // both Announcements may ask for an address
	slices.Sort(got)
	if foreign := slices.IndexFunc(want, func(p string) bool { return p == "192.0.2.101/32" }); foreign >= 0 {
		want = slices.Delete(want, foreign, foreign+1) // another has put that address on the interface
	}
	if !slices.Equal(want, got) {
		h.fail("the kernel has %v, want %v", got, want)
	}
	if n := len(slices.DeleteFunc(slices.Clone(h.kernel), func(a Address) bool { return a.IsOurs })); n != 3 {
		h.fail("%d addresses of others are left of 3", n)
	}
}
