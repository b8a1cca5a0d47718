package placement_test

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// invariant is what holds in each history.
type invariant string

// Of all decisions, and of what is stored.
const (
	sameAnswer    invariant = "the same inputs give the same answer, in whatever order they come"
	oneEntryEach  invariant = "a node has one entry for an address"
	epochOnce     invariant = "no epoch is given to two nodes"
	sharedOnce    invariant = "what was written is not written again"
	revisionsGrow invariant = "each CommonAnnouncement is written with a higher revision than all before it"
)

// Of Virtual addresses.
const (
	virtualEverywhere invariant = "a Virtual address is on every node that runs an agent, serves it and is not kept out"
	virtualPool       invariant = "while addresses of a pool are Virtual, new ones are, too"
	virtualStays      invariant = "no agent withdraws a Virtual address that its node is to have, before and after"
)

// Of Local addresses, at all times.
const (
	oneDefender     invariant = "at most one node may answer for an address and defend it"
	noPreemption    invariant = "the present holder keeps the address while it is eligible"
	makeBeforeBreak invariant = "a holder keeps its entry until another node has the address"
	lastPlaceStays  invariant = "an address loses its last entry only as the node leaves its LBNodeAgent"
	leavingFirst    invariant = "a takeover waits until a living holder's agent has seen, or was to see, that it leaves"
	partialEvidence invariant = "on mass expiry Takeover waits"
)

// Of a Local address that is newly given to a node.
const (
	nextEpoch    invariant = "the epoch grows by one at each change of owner"
	onlyEligible invariant = "an address is given to a node that is eligible, fresh and serves it"
	readyFirst   invariant = "a NotReady node is chosen last"
	fairShare    invariant = "no new choice puts a node above its share plus one"
	mostWeight   invariant = "no node that may be given an address is preferred to the one that is given it"
)

// Of successors, and of the Local addresses that they claim.
const (
	successorsRanked invariant = "successors are two other nodes, each with an epoch reserved above the holder's"
	successorsOnly   invariant = "naming successors changes nothing else that is decided"
	noTheftByReport  invariant = "no report takes an address from another node that renews its Lease"
	claimerRenews    invariant = "a claim is adopted only of a node whose agent renews its Lease"
	highestClaim     invariant = "of several claims that with the highest epoch is adopted"
	reservedClaim    invariant = "a claim counts only by the epoch that the holder's entry reserves for the claimer"
	epochsKept       invariant = "an adopted claim's entry keeps the highest epoch that was given out"
	contestedAsked   invariant = "a contested holder that has asked, and still announces, gets an epoch above the claim's"
)

// Of what is left when all have done their work.
const (
	comesToRest   invariant = "nothing changes any more once all have done their work"
	virtualServed invariant = "a Virtual address is in the kernel of exactly the nodes that are to have it, by one entry"
	oneHolder     invariant = "no two nodes have a Local address"
	everPlaced    invariant = "a Local address is on a node if one can have it"
	saysWhy       invariant = "of an address that is on no node something says why"
)

// must ends the test, with the history so far, if an invariant does not hold.
func (w *world) must(i invariant, holds bool, format string, args ...any) {
	if holds {
		return
	}
	w.t.Helper()
	for _, line := range w.log[max(0, len(w.log)-80):] {
		w.t.Log(line)
	}
	w.t.Fatalf("Not so: %s.\n%s", i, fmt.Sprintf(format, args...))
}

// decision is a result of placement, with the inputs that it was decided from.
type decision struct {
	*world
	inputs *placement.Inputs
	result *placement.Result
	nodes  nodesByName
	// isMassExpiry is that most Leases have expired.
	isMassExpiry bool
	locals       []*localDecision
	// count is how many Local addresses there are of each family, by its bits, and load how many each
	// node has, but those that no other may take.
	count map[int]int
	load  map[int]map[string]int
}

// localDecision is a Local address with its entries, before and after, by node.
type localDecision struct {
	placement.Address
	before map[string]placement.Entry
	after  map[string]v1.AnnouncedAddress
	// holder is the node that has the address, or empty, with its entry before.
	holder string
	held   placement.Entry
}

// checkDecision checks what holds of all decisions.
func (w *world) checkDecision(inputs *placement.Inputs, result *placement.Result) {
	diff := diffOfResults(*result, placement.Place(shuffled(w.rng, *inputs)))
	w.must(sameAnswer, diff == "", "%s", diff)
	twice := entriesTwice(*result)
	w.must(oneEntryEach, twice == "", "%s", twice)
	d := newDecision(w, inputs, result)
	for i := range inputs.Addresses {
		if a := &inputs.Addresses[i]; isOfVirtualPool(a) {
			d.checkVirtual(a)
		}
	}
	for _, l := range d.locals {
		d.checkEntries(l)
		d.checkStays(l)
		for name, e := range l.after {
			was, had := l.before[name]
			switch {
			case had && was.Spec.Epoch == e.Epoch: // it is not new
			case had && was.Spec.ContestedBy != nil && name == l.holder:
				d.checkRefuted(l, &was, &e)
			case slices.ContainsFunc(inputs.SuccessorClaims, func(c placement.SuccessorClaim) bool {
				return c.Addr == l.Addr && c.Node == name && c.Epoch == e.Epoch
			}):
				d.checkAdopted(l, name, &e)
			default:
				d.checkElected(l, name, &e)
			}
		}
	}
	if w.kind&withNames != 0 {
		w.checkSuccessors(inputs)
	}
}

func newDecision(w *world, inputs *placement.Inputs, result *placement.Result) *decision {
	d := &decision{
		world: w, inputs: inputs, result: result, nodes: nodesByName{}, count: map[int]int{},
		load: map[int]map[string]int{32: {}, 128: {}},
	}
	running, expired := 0, 0
	for i := range inputs.Nodes {
		n := &inputs.Nodes[i]
		d.nodes[n.Name] = n
		if !n.IsDeleted && n.LBNodeAgent != "" && !n.IsOutOfService {
			running++
			if n.Liveness == placement.Expired {
				expired++
			}
		}
	}
	d.isMassExpiry = 2*expired > running
	for _, a := range inputs.Addresses {
		if isOfVirtualPool(&a) {
			continue
		}
		l := &localDecision{Address: a, before: entriesBefore(inputs, a.Addr), after: entriesAfter(result, a.Addr)}
		l.holder = holderOf(l.before)
		l.held = l.before[l.holder]
		d.locals = append(d.locals, l)
		d.count[a.Addr.BitLen()]++
		winner, best := "", int64(-1)
		for name, e := range l.after {
			if !failed(l.before[name]) && e.Epoch > best {
				winner, best = name, e.Epoch
			}
		}
		if count, _ := d.candidates(l); count != 1 { // else there is no choice
			d.load[a.Addr.BitLen()][winner]++
		}
	}
	return d
}

func entriesBefore(inputs *placement.Inputs, a netip.Addr) map[string]placement.Entry {
	entries := map[string]placement.Entry{}
	for _, e := range inputs.Entries {
		if e.Addr == a {
			entries[e.Node] = e
		}
	}
	return entries
}

func entriesAfter(result *placement.Result, a netip.Addr) map[string]v1.AnnouncedAddress {
	entries := map[string]v1.AnnouncedAddress{}
	for name, all := range result.Entries {
		for _, e := range all {
			if e.Addr == a {
				entries[name] = e.AnnouncedAddress
			}
		}
	}
	return entries
}

// isAlive reports whether there is a holder, and its agent renews its Lease.
func (d *decision) isAlive(name string) bool {
	return name != "" && d.nodes[name].Liveness != placement.Expired
}

// candidates is how many nodes an address may be given to, and whether they are Ready.
func (d *decision) candidates(l *localDecision) (count int, areReady bool) {
	all := 0
	for name, n := range d.nodes {
		if name != l.holder && d.nodes.mayTake(n, &l.Address) && !failed(l.before[name]) {
			all++
			if !n.IsNotReady {
				count++
			}
		}
	}
	if count > 0 {
		return count, true
	}
	return all, false
}

// nodesByName are all nodes that there are.
type nodesByName map[string]*placement.Node

// eligible is the reference: which node may have a Local address at all.
func (nodes nodesByName) eligible(n *placement.Node, a *placement.Address) bool {
	return isInPlace(n) && n.AddressToHandOver != a.Addr && !n.Interfaces[0].IsDown && !nodes.isKeptOut(n,
		func(n *placement.Node) bool {
			return isInPlace(n) && !n.Interfaces[0].IsDown && serves(a, n.Name, true)
		})
}

// isInPlace reports whether nothing but a cordon keeps addresses from a node.
func isInPlace(n *placement.Node) bool {
	isOut := n.IsDeleted || n.IsLeaving || n.IsExcluded || n.IsOutOfService || n.IsShuttingDown
	return n.LBNodeAgent != "" && n.Liveness != placement.Expired && !isOut
}

// isKeptOut reports whether a node is cordoned while another one that is not may have an address.
func (nodes nodesByName) isKeptOut(n *placement.Node, mayHave func(*placement.Node) bool) bool {
	others := slices.Collect(maps.Values(nodes))
	return n.HandsOverAsCordoned && slices.ContainsFunc(others, func(other *placement.Node) bool {
		return !other.HandsOverAsCordoned && mayHave(other)
	})
}

// mayTake reports whether a node may be given a Local address.
func (nodes nodesByName) mayTake(n *placement.Node, a *placement.Address) bool {
	return nodes.eligible(n, a) && n.Liveness == placement.Fresh && serves(a, n.Name, true)
}

// serves reports whether an address's traffic may go to a node. strictly is
// whether it may not if it may go to no node.
func serves(a *placement.Address, node string, strictly bool) bool {
	return a.ServingNodes == nil || a.ServingNodes[node] || !strictly && len(a.ServingNodes) == 0
}

// failed reports whether the node of an entry is not to be asked again.
func failed(e placement.Entry) bool {
	isUnseenTakeover := e.ReportedState == v1.StateWaiting && e.Spec.ClaimPolicy == v1.ClaimTakeover && !e.IsObserved
	isUnreported := e.Addr.IsValid() && (e.ReportedState == "" || e.ReportedState == v1.StatePending || isUnseenTakeover)
	isOverdue := !e.Spec.HandingOver && e.UnchangedFor >= placement.ReactionTime
	return e.ReportedState == v1.StateFailed || isUnreported && (isOverdue || e.Spec.HandingOver && !e.IsObserved)
}

// holderOf is the one holder there is, or empty.
func holderOf(entries map[string]placement.Entry) (holder string) {
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		e := entries[name]
		if e.ReportedState == v1.StateAnnounced && (holder == "" || e.Spec.Epoch > entries[holder].Spec.Epoch) {
			holder = name
		}
	}
	return holder
}

// isVirtual reports whether an address of a pool that no node is in is Virtual: others of it are.
func (d *decision) isVirtual(a *placement.Address) bool {
	isInPool := func(addr netip.Addr) bool {
		return slices.ContainsFunc(d.inputs.Addresses, func(b placement.Address) bool {
			return b.Addr == addr && b.Subnet == a.Subnet
		})
	}
	return slices.ContainsFunc(d.inputs.SharedEntries, func(e placement.SharedEntry) bool { return isInPool(e.Addr) }) ||
		slices.ContainsFunc(d.inputs.Entries, func(e placement.Entry) bool {
			return e.Spec.Type == v1.AnnounceVirtual && isInPool(e.Addr)
		})
}

func (d *decision) checkVirtual(a *placement.Address) {
	after := entriesAfter(d.result, a.Addr)
	if a.PoolType != v1.PoolTypeRemote {
		if !d.isVirtual(a) {
			return // before any of its pool is announced it may become Local
		}
		if slices.ContainsFunc(d.inputs.Entries, func(e placement.Entry) bool {
			return e.Addr == a.Addr && e.Spec.Type == v1.AnnounceLocal
		}) {
			return // a liar has made it Local, and it may be so until no node has it
		}
		for name, e := range after {
			d.must(virtualPool, e.Type == v1.AnnounceVirtual, "%s: Local on %s", a.Addr, name)
		}
	}
	for name, n := range d.nodes {
		_, own := after[name]
		isShared := d.announcesShared(n, a.Addr)
		// Where all have it, some keep it for a moment that are not to have it.
		isCordoned := d.isKeptOutOfVirtual(n, a)
		isWanted := n.LBNodeAgent != "" && !n.IsLeaving && !n.IsExcluded && !isCordoned && serves(a, name, true)
		d.must(virtualEverywhere, isWanted && (own || isShared) || !isWanted && (!own || isCordoned),
			"%s: on %s it is %t, and shared %t", a.Addr, name, own, isShared)
	}
}

// isKeptOutOfVirtual reports whether a node has no Virtual address because it is cordoned.
func (d *decision) isKeptOutOfVirtual(n *placement.Node, a *placement.Address) bool {
	return d.nodes.isKeptOut(n, func(n *placement.Node) bool { return isInPlace(n) && serves(a, n.Name, true) })
}

// announcesShared reports whether a node is to announce an address by a shared entry.
func (d *decision) announcesShared(n *placement.Node, a netip.Addr) bool {
	return d.result.AnnouncesShared[n.Name] && slices.ContainsFunc(
		d.result.SharedEntries[n.LBNodeAgent], func(e placement.Placed) bool { return e.Addr == a },
	)
}

// checkEntries checks the entries of a Local address against each other and those before.
func (d *decision) checkEntries(l *localDecision) {
	epochs := map[int64]string{}
	var free []string // those who may answer and defend: neither handing over, nor waiting, nor failed, nor away
	for name, e := range l.after {
		other, twice := epochs[e.Epoch]
		d.must(epochOnce, !twice || e.Epoch <= 1, "%s: %s and %s have epoch %d", l.Addr, name, other, e.Epoch)
		epochs[e.Epoch] = name

		was, had := l.before[name]
		isSame := had && was.Spec.Epoch == e.Epoch
		isRealised := isSame && was.ReportedState == v1.StateAnnounced
		hasFailed := isSame && was.ReportedState == v1.StateFailed
		if !e.HandingOver && (isRealised || e.ClaimPolicy != v1.ClaimProbe) && !hasFailed && d.isAlive(name) {
			free = append(free, name)
		}
		if e.ClaimPolicy == v1.ClaimTakeover && l.holder != "" {
			d.checkTakeover(l, name, &was, had)
		}
	}
	d.must(oneDefender, len(free) <= 1, "%s: %v", l.Addr, free)
}

// checkTakeover checks a claim to take an address over from a holder. was is the claimer's entry
// before, if it had one.
func (d *decision) checkTakeover(l *localDecision, name string, was *placement.Entry, had bool) {
	isUpgraded := had && was.Spec.ClaimPolicy == v1.ClaimProbe
	h := &l.held
	switch {
	case isUpgraded && !d.isAlive(l.holder):
		d.must(partialEvidence, !d.isMassExpiry, "%s: %s takes over", l.Addr, name)
	case isUpgraded:
		wasToSee := h.UnchangedFor >= placement.ReactionTime && was.ReportedState == v1.StateWaiting
		d.must(leavingFirst, h.Spec.HandingOver && (h.IsObserved || wasToSee), "%s: from %s to %s", l.Addr, l.holder, name)
	case !had && d.isAlive(l.holder):
		now, stays := l.after[l.holder]
		d.must(leavingFirst, !stays || now.HandingOver && h.Spec.HandingOver && h.IsObserved,
			"%s: from %s to %s at once", l.Addr, l.holder, name)
	}
}

// checkStays checks that a Local address stays where it is, or somewhere.
func (d *decision) checkStays(l *localDecision) {
	e, has := l.after[l.holder]
	if l.holder != "" && d.nodes.eligible(d.nodes[l.holder], &l.Address) && serves(&l.Address, l.holder, false) {
		isHandover := false
		for name, e := range l.before {
			isHandover = isHandover ||
				name != l.holder && e.Spec.ClaimPolicy == v1.ClaimTakeover && e.Spec.Epoch > l.held.Spec.Epoch
		}
		isKept := has && !e.HandingOver && len(l.after) == 1
		d.must(noPreemption, isHandover || isKept, "%s: of %s, but the entries are now %v", l.Addr, l.holder, l.after)
	}
	holderLeaves := l.holder != "" && d.nodes[l.holder].IsLeaving
	d.must(makeBeforeBreak, l.holder == "" || has || holderLeaves, "%s: %s", l.Addr, l.holder)
	stays := slices.ContainsFunc(slices.Collect(maps.Keys(l.before)), func(name string) bool {
		return !d.nodes[name].IsLeaving
	})
	d.must(lastPlaceStays, !stays || holderLeaves || len(l.after) > 0, "%s: had %v", l.Addr, l.before)
}

// checkElected checks a node that was chosen.
func (d *decision) checkElected(l *localDecision, name string, e *v1.AnnouncedAddress) {
	top, n := int64(0), d.nodes[name]
	for _, e := range l.before {
		top = max(top, e.Spec.Epoch, e.Spec.HighestEpoch)
	}
	d.must(nextEpoch, e.Epoch == top+1, "%s: on %s it is %d after %d", l.Addr, name, e.Epoch, top)
	candidates, areReady := d.candidates(l)
	d.must(onlyEligible, d.nodes.mayTake(n, &l.Address) && candidates > 0, "%s: %s", l.Addr, name)
	d.must(readyFirst, !areReady || !n.IsNotReady, "%s: %s", l.Addr, name)
	bits := l.Addr.BitLen()
	share := (d.count[bits] + candidates - 1) / candidates
	for other, m := range d.nodes {
		mayBeElected := other != l.holder && d.nodes.mayTake(m, &l.Address) && !failed(l.before[other]) &&
			(!areReady || !m.IsNotReady)
		d.must(mostWeight, !mayBeElected || l.WeightOf(m) <= l.WeightOf(n), "%s: %s, and not %s", l.Addr, name, other)
	}
	d.must(fairShare, candidates == 1 || d.kind&withPreferences != 0 || d.load[bits][name] <= share+1,
		"%s: %s has %d of %d among %d", l.Addr, name, d.load[bits][name], d.count[bits], candidates)
}

// checkRefuted checks a holder that gets an epoch above that of a claim.
func (d *decision) checkRefuted(l *localDecision, was *placement.Entry, e *v1.AnnouncedAddress) {
	d.refuted++
	isOver := e.ContestedBy == nil && len(e.Successors) == 0 && e.Epoch > was.Spec.ContestedBy.Epoch
	d.must(contestedAsked, was.IsObserved && isOver, "%s: epoch %d: %+v", l.Addr, e.Epoch, was)
}

// checkAdopted checks a node that gets an address as it has claimed it.
func (d *decision) checkAdopted(l *localDecision, name string, e *v1.AnnouncedAddress) {
	d.adopted++
	d.must(noTheftByReport, !d.isAlive(l.holder), "%s: %s claims it, and %s renews", l.Addr, name, l.holder)
	d.must(claimerRenews, d.isAlive(name), "%s: %s", l.Addr, name)
	for _, c := range d.inputs.SuccessorClaims {
		counts := c.Addr == l.Addr && d.nodes.eligible(d.nodes[c.Node], &l.Address) && serves(&l.Address, c.Node, false)
		d.must(highestClaim, !counts || c.Epoch <= e.Epoch,
			"%s: %s by %d, not %s by %d", l.Addr, name, e.Epoch, c.Node, c.Epoch)
	}
	isReserved := slices.Contains(l.held.Spec.Successors, v1.Successor{NodeName: name, Epoch: e.Epoch})
	d.must(reservedClaim, l.holder == "" || isReserved, "%s: %s by %d, of %s", l.Addr, name, e.Epoch, l.holder)
	for other, was := range l.before {
		highest := max(was.Spec.HighestEpoch, was.Spec.Epoch)
		d.must(epochsKept, e.HighestEpoch >= highest,
			"%s: on %s %d, but %s had %d", l.Addr, name, e.HighestEpoch, other, highest)
	}
}

// checkSuccessors compares what is decided with successors and without. Claims are left out: they do
// change what is decided.
func (w *world) checkSuccessors(inputs *placement.Inputs) {
	with, without := *inputs, *inputs
	with.SuccessorClaims, without.NamesSuccessors = nil, false
	want, got := placement.Place(without), placement.Place(with)
	got.Successors, got.NextDeadline = want.Successors, want.NextDeadline
	for node, entries := range got.Entries {
		entries = slices.Clone(entries)
		for i := range entries {
			e := &entries[i]
			isReserved := false
			for k, s := range e.Successors {
				isReserved = isReserved || s.Epoch == e.HighestEpoch
				first := e.Successors[0]
				isRanked := k == 0 || s.NodeName != first.NodeName && s.Epoch != first.Epoch
				w.must(successorsRanked, isRanked && s.NodeName != node && s.Epoch > e.Epoch && s.Epoch <= e.HighestEpoch,
					"%s of %s, epoch %d, highest %d: %v", e.Address, node, e.Epoch, e.HighestEpoch, e.Successors)
			}
			e.Successors = nil
			if isReserved {
				e.HighestEpoch = entriesBefore(inputs, e.Addr)[node].Spec.HighestEpoch
			}
		}
		got.Entries[node] = entries
	}
	diff := diffOfResults(want, got)
	w.must(successorsOnly, diff == "", "without them first, then with them: %s", diff)
}

// diffOfResults says how two results differ, or nothing. Results that are alike, as nearly all are, are
// not compared by cmp, which takes many times as long.
func diffOfResults(a, b placement.Result) string {
	if reflect.DeepEqual(a, b) {
		return ""
	}
	return "-first +second\n" + cmp.Diff(a, b, cmpopts.EquateComparable(netip.Addr{}))
}

// givenEpoch is a node that was given an epoch, and whether no other had an entry then.
type givenEpoch struct {
	node    string
	isFirst bool
}

// noteEpochs checks the epochs that an entry gives and reserves. Two leaders may give the first
// one: of two claims with it the API server keeps one.
func (w *world) noteEpochs(m *machine, e, was *v1.AnnouncedAddress, isFirst bool) {
	a := addrOf(e)
	give := func(epoch int64, to givenEpoch) {
		old, twice := w.givenEpochs[a][epoch]
		isAlike := old.node == to.node || old.isFirst && to.isFirst
		w.must(epochOnce, !twice || isAlike, "%s: epoch %d: %v, %v", a, epoch, old, to)
		if w.givenEpochs[a] == nil {
			w.givenEpochs[a] = map[int64]givenEpoch{}
		}
		w.givenEpochs[a][epoch] = to
	}
	if e.Type == v1.AnnounceLocal && e.Epoch != was.Epoch {
		give(e.Epoch, givenEpoch{m.Name, isFirst})
	}
	for _, s := range e.Successors {
		give(s.Epoch, givenEpoch{s.NodeName, false})
	}
}

// forgetEpochs forgets the epochs of addresses that no node has an entry for: they begin anew.
func (w *world) forgetEpochs() {
	maps.DeleteFunc(w.givenEpochs, func(a netip.Addr, _ map[int64]givenEpoch) bool {
		return !slices.ContainsFunc(w.machines, func(m *machine) bool { return m.stored.entries[a].Address != "" })
	})
}

// isLocal reports whether a node is to have an address, as a Local one.
func (w *world) isLocal(a netip.Addr) bool {
	return slices.ContainsFunc(w.machines, func(m *machine) bool { return m.stored.entries[a].Type == v1.AnnounceLocal })
}

// isServed reports whether a Virtual address is to be on a node whatever happens.
func (w *world) isServed(a netip.Addr, m *machine) bool {
	isIn := m.LBNodeAgent != "" && !m.isNodeDeleted && !m.IsLeaving && !m.IsExcluded
	return isIn && !w.isLocal(a) && slices.ContainsFunc(w.addresses, func(b placement.Address) bool {
		return b.Addr == a && isOfVirtualPool(&b) && serves(&b, m.Name, true)
	})
}

// noteUnserved notes which machines are not to have which addresses now.
func (w *world) noteUnserved() {
	for _, m := range w.machines {
		for a := range w.everUsed {
			if !w.isServed(a, m) || m.HandsOverAsCordoned {
				w.endServing(a, m)
			}
		}
	}
}

// endServing notes that a machine is not to have an address just now.
func (w *world) endServing(a netip.Addr, m *machine) {
	delete(m.served, a)
	m.unserved[a] = len(w.sharedLog)
}

// checkSettled checks what has become of each address.
func (w *world) checkSettled() {
	inputs := w.inputs()
	d := newDecision(w, &inputs, &w.last)
	for i := range w.addresses {
		a := &w.addresses[i]
		switch {
		case w.refusedByServer[a.Addr] || isOfVirtualPool(a) && w.isLocal(a.Addr): // a liar made it Local
		case isOfVirtualPool(a):
			d.checkSettledVirtual(a)
		default:
			d.checkSettledLocal(a)
		}
	}
}

func (d *decision) checkSettledVirtual(a *placement.Address) {
	if a.PoolType != v1.PoolTypeRemote && d.result.Unplaced[a.Addr].Reason != "" {
		return // a liar makes it Local
	}
	for _, m := range d.machines {
		if m.isCrashed || m.isIdle || m.isLiar || m.hasNoAnnouncement {
			continue
		}
		_, own := m.stored.entries[a.Addr]
		d.must(virtualServed, !own || !d.announcesShared(&m.Node, a.Addr), "%s: on %s by two", a.Addr, m.Name)
		isCordoned := d.isKeptOutOfVirtual(&m.Node, a)
		d.must(virtualServed, m.refusedByKernel[a.Addr] || m.kernel[a.Addr] == (d.isServed(a.Addr, m) && !isCordoned),
			"%s: on %s it is %t", a.Addr, m.Name, m.kernel[a.Addr])
	}
}

func (d *decision) checkSettledLocal(a *placement.Address) {
	holder, waiting := holderOf(entriesBefore(d.inputs, a.Addr)), map[string]bool{}
	for _, e := range entriesBefore(d.inputs, a.Addr) {
		waiting[e.Node] = e.ReportedState == v1.StateWaiting
	}
	var can, has []string
	isServedOn := false // by a kernel from which no node is to take over, or of which the manager does not know
	for _, m := range d.machines {
		works, isExpired := !m.isIdle && !m.isLiar && !m.isNodeDeleted, m.Liveness == placement.Expired
		isBelieved := (m.Name == holder || waiting[m.Name]) && !m.isNodeDeleted
		if isBelieved && !works && d.nodes.eligible(&m.Node, a) && serves(a, m.Name, false) {
			return // it may lie about itself, and the manager cannot know
		}
		if works && d.nodes.eligible(&m.Node, a) && serves(a, m.Name, true) && !m.refusedByKernel[a.Addr] {
			can = append(can, m.Name)
		}
		if m.kernel[a.Addr] && works && !isExpired {
			has = append(has, m.Name)
		}
		isWithoutAgent := isExpired || m.isIdle || m.isNodeDeleted
		isUntouched := m.Name != holder || d.isMassExpiry || isExpired && !m.isNodeDeleted && !m.IsNotReadyForLong
		isServedOn = isServedOn || m.kernel[a.Addr] && isWithoutAgent && isUntouched
	}
	isNowhere := len(has) == 0 && !isServedOn
	d.must(oneHolder, len(has) <= 1, "%s: %v", a.Addr, has)
	d.must(everPlaced, !isNowhere || len(can) == 0, "%s: %v could; %v", a.Addr, can, d.result.Unplaced[a.Addr])
	// An agent that waits says why, also if it does nothing more afterwards.
	waits := slices.Contains(slices.Collect(maps.Values(waiting)), true)
	d.must(saysWhy, !isNowhere || waits || d.result.Unplaced[a.Addr].Reason != "", "%s", a.Addr)
}
