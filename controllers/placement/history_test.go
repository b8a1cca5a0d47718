package placement_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/partialwrite"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// world is a cluster whose agents follow their entries with delay.
type world struct {
	t         *testing.T
	rng       *rand.Rand
	nodes     []*machine
	addresses []placement.Address
	last      placement.Result
	shared    map[string]v1.CommonAnnouncementSpec
	// sharedLog has all changes of shared, in the order of the API server's watch.
	sharedLog    []sharedChange
	isSettling   bool // no agent is late
	hasFaults    bool // there are faults and attacks
	hasDeletions bool // a user deletes Announcements
	// namesSuccessors is that holders' entries name their successors.
	namesSuccessors bool
	// hasClaims is that successors claim addresses.
	hasClaims bool
	// adopted is how many claims were adopted, and refuted how many were not.
	adopted, refuted int
	log              []string

	now      time.Time
	clocks   placement.Clocks
	refusals partialwrite.Refusals
	// everUsed are all addresses that there ever were.
	everUsed map[netip.Addr]bool
	// refusedByServer are the addresses whose entries the API server refuses.
	refusedByServer map[netip.Addr]bool
	// pausedLeader is what an earlier leader has decided from, and is yet to write.
	pausedLeader *pausedLeader
	// givenEpochs says which node was given each epoch of an address.
	givenEpochs map[netip.Addr]map[int64]claim
	// round counts the rounds of writes.
	round int
}

// pausedLeader is the inputs of a decision, and of which generations the Announcements were
// that they were read from.
type pausedLeader struct {
	inputs      placement.Inputs
	generations map[string]int
}

// claim is a node that was given an epoch, and whether no other had an entry then.
type claim struct {
	node  string
	first bool
}

// sharedChange is a CommonAnnouncement that was written or, if spec is nil, deleted.
type sharedChange struct {
	name string
	spec *v1.CommonAnnouncementSpec
}

// machine is a node, its kernel and its agent.
type machine struct {
	placement.Node
	// isCrashed is that the agent does nothing; the kernel serves on.
	isCrashed bool
	// isIdle is that the agent renews its Lease, and does nothing else.
	isIdle bool
	// isLiar is that the agent reports what suits it.
	isLiar bool
	// isNodeDeleted is that there is no Node object, and hasNoAnnouncement that the manager,
	// or a user, has deleted the node's Announcement.
	isNodeDeleted, hasNoAnnouncement bool
	// refusedByKernel are addresses that the kernel refuses.
	refusedByKernel map[netip.Addr]bool
	kernel          map[netip.Addr]bool

	spec            map[netip.Addr]v1.AnnouncedAddress
	announcesShared bool
	generation      int
	written         int // in which round it was written last
	// view is what the agent has seen of it, and seenShared of the shared entries: not
	// always the latest. seenChanges is how many of the changes in the world's sharedLog.
	view        view
	seenShared  map[string]v1.CommonAnnouncementSpec
	seenChanges int
	// reportedRevision is the revision that the agent reports.
	reportedRevision int64

	status   map[netip.Addr]v1.AddressStatus
	observed int
	// unsent is a report that the API server has not got yet.
	unsent           map[netip.Addr]v1.AddressStatus
	unsentRevision   int64
	unsentGeneration int
	// served are the Virtual addresses that the node was to have all the time since its agent
	// last observed what it is to have.
	served map[netip.Addr]bool
	wireState
	// unserved is how many changes of the world's sharedLog there were when it was last
	// not to have an address, or too late: until it has seen them it may withdraw it.
	unserved map[netip.Addr]int
	// unsharedSince is the generation that last did not ask for the shared entries.
	unsharedSince int
}

// view is what an agent has seen of its own Announcement.
type view struct {
	spec            map[netip.Addr]v1.AnnouncedAddress
	announcesShared bool
	generation      int
	// told is what the node is told as a successor.
	told map[netip.Addr]told
}

func (w *world) note(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	from := max(0, len(w.log)-60)
	for _, line := range w.log[from:] {
		w.t.Log(line)
	}
	w.t.Fatalf(format, args...)
}

// inputs reads the Announcements as controllers/placement_inputs.go does.
func (w *world) inputs() (f placement.Inputs) {
	f = placement.Inputs{
		Addresses: slices.Clone(w.addresses), LingeringReports: map[netip.Addr][]placement.LingeringReport{}, NamesSuccessors: w.namesSuccessors,
	}
	defer func() { w.clocks.FillDurations(&f, w.now) }()
	for _, c := range w.shared {
		for _, e := range c.Addresses {
			f.SharedEntries = append(f.SharedEntries, placement.SharedEntry{LBNodeAgent: c.LBNodeAgent, Addr: netip.MustParseAddr(e.Address), Spec: e})
		}
	}
	for _, m := range w.nodes {
		if m.hasNoAnnouncement && m.isNodeDeleted {
			continue
		}
		n := m.Node
		n.SharedRevision, n.IsNotReady = m.reportedRevision, m.IsNotReadyForLong
		if m.hasNoAnnouncement {
			n.HasReportedFacts, n.AreFactsAwaited = false, true
		}
		if m.isNodeDeleted {
			n = placement.Node{Name: m.Name, IsDeleted: true, IsNotReady: true, IsNotReadyForLong: true, Interfaces: m.Interfaces, MACs: m.MACs}
		}
		f.Nodes = append(f.Nodes, n)
		for addr, spec := range m.spec {
			e := placement.Entry{Node: m.Name, Addr: addr, Spec: spec, IsObserved: m.observed >= m.generation}
			if s, ok := m.status[addr]; ok && s.Epoch == spec.Epoch {
				e.ReportedState = s.State
			}
			f.Entries = append(f.Entries, e)
		}
		for addr, s := range m.status {
			if _, wanted := m.spec[addr]; !wanted && s.State == v1.StateAnnounced {
				f.LingeringReports[addr] = append(f.LingeringReports[addr], placement.LingeringReport{Node: m.Name})
			}
		}
	}
	f.AddClaims(w.reportedClaims())
	return f
}

func shuffled(rng *rand.Rand, f placement.Inputs) placement.Inputs {
	swap := func(n int, s func(i, j int)) { rng.Shuffle(n, s) }
	f.Nodes, f.Entries, f.Addresses, f.SharedEntries = slices.Clone(f.Nodes), slices.Clone(f.Entries), slices.Clone(f.Addresses), slices.Clone(f.SharedEntries)
	swap(len(f.SharedEntries), func(i, j int) { f.SharedEntries[i], f.SharedEntries[j] = f.SharedEntries[j], f.SharedEntries[i] })
	swap(len(f.Nodes), func(i, j int) { f.Nodes[i], f.Nodes[j] = f.Nodes[j], f.Nodes[i] })
	swap(len(f.Entries), func(i, j int) { f.Entries[i], f.Entries[j] = f.Entries[j], f.Entries[i] })
	f.Claims = slices.Clone(f.Claims)
	swap(len(f.Claims), func(i, j int) { f.Claims[i], f.Claims[j] = f.Claims[j], f.Claims[i] })
	swap(len(f.Addresses), func(i, j int) { f.Addresses[i], f.Addresses[j] = f.Addresses[j], f.Addresses[i] })
	lingering := map[netip.Addr][]placement.LingeringReport{}
	for a, names := range f.LingeringReports {
		names = slices.Clone(names)
		swap(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		lingering[a] = names
	}
	f.LingeringReports = lingering
	return f
}

// place is one round of the manager. It reports whether anything was written.
func (w *world) place() bool {
	inputs := w.inputs()
	result := placement.Place(inputs)
	if diff := cmp.Diff(result, placement.Place(shuffled(w.rng, inputs)), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		w.fail("inputs in another order give another result:\n%s", diff)
	}
	w.check(&inputs, &result)
	if w.namesSuccessors {
		w.checkSuccessors(&inputs)
	}
	w.last = result
	changed := w.writeShared(result.SharedEntries["default"])
	w.noteUnserved()
	for _, e := range inputs.Entries { // agents that do not react are not waited for
		for _, m := range w.nodes {
			if e.Node == m.Name && e.Spec.Type == v1.AnnounceVirtual && !e.IsObserved && e.UnchangedFor >= placement.ReactionTime {
				w.endServing(e.Addr, m)
			}
		}
	}
	changed = w.write(&inputs, &result, w.generations()) || changed
	return w.tell(inputs) || changed
}

func (w *world) generations() map[string]int {
	all := map[string]int{}
	for _, m := range w.nodes {
		all[m.Name] = m.generation
	}
	return all
}

// write makes the Announcements as decided from those of some generations, as
// controllers/placement_write.go does. It reports whether anything was written.
func (w *world) write(inputs *placement.Inputs, result *placement.Result, generations map[string]int) (changed bool) {
	claims, blocked := placement.ContestedClaims(inputs, result), map[netip.Addr]bool{}
	known := map[string]bool{}
	for i := range inputs.Nodes {
		known[inputs.Nodes[i].Name] = true
	}
	for _, first := range []bool{true, false} {
		for _, m := range w.nodes {
			stored := slices.Collect(maps.Values(m.spec))
			has := func(e *v1.AnnouncedAddress) bool { return m.spec[netip.MustParseAddr(e.Address)].Epoch == e.Epoch }
			concerned := slices.DeleteFunc(slices.Collect(maps.Keys(m.spec)), func(a netip.Addr) bool { return !claims[a] })
			if !known[m.Name] || first && len(concerned) == 0 {
				continue
			}
			wanted := w.refusals.WithoutRefused(m.Name, result.Entries[m.Name], stored, w.now)
			wanted = partialwrite.WithStored(wanted, stored, func(e *v1.AnnouncedAddress) bool {
				a := netip.MustParseAddr(e.Address)
				return (first && claims[a] || blocked[a]) && !has(e)
			})
			if w.same(m, wanted, result.AnnouncesShared[m.Name]) {
				continue
			}
			if m.generation != generations[m.Name] && (m.written != w.round || first) {
				w.note("  manager: %s is not as it was", m.Name)
				for _, a := range concerned {
					blocked[a] = true
				}
				continue
			}
			refused, err := partialwrite.Write(wanted, stored, func(part []v1.AnnouncedAddress) (bool, error) {
				for _, e := range part {
					if a := netip.MustParseAddr(e.Address); w.refusedByServer[a] && !cmp.Equal(m.spec[a], e) {
						return true, errors.New("invalid")
					}
				}
				changed = w.store(m, part, result.AnnouncesShared[m.Name], claims) || changed
				return false, nil
			})
			w.refusals.NoteWrite(m.Name, wanted, refused, err, w.now)
		}
	}
	for _, m := range w.nodes {
		if m.hasNoAnnouncement && !m.isNodeDeleted && known[m.Name] {
			m.hasNoAnnouncement, m.observed, changed = false, 0, true
			m.generation++
			m.view = view{m.spec, m.announcesShared, m.generation, m.told}
		}
		if m.isNodeDeleted && !m.hasNoAnnouncement && known[m.Name] && len(m.spec) == 0 {
			w.note("  manager: the Announcement of %s is deleted", m.Name)
			m.hasNoAnnouncement, changed = true, true
			clear(m.status)
		}
	}
	w.round++
	return changed
}

func (w *world) same(m *machine, wanted []v1.AnnouncedAddress, announcesShared bool) bool {
	return announcesShared == m.announcesShared && cmp.Equal(m.spec, byAddress(wanted), cmpopts.EquateEmpty())
}

func byAddress(entries []v1.AnnouncedAddress) map[netip.Addr]v1.AnnouncedAddress {
	spec := map[netip.Addr]v1.AnnouncedAddress{}
	for _, e := range entries {
		spec[netip.MustParseAddr(e.Address)] = e
	}
	return spec
}

// store is one write of an Announcement.
func (w *world) store(m *machine, entries []v1.AnnouncedAddress, announcesShared bool, claims map[netip.Addr]bool) bool {
	spec := byAddress(entries)
	if len(spec) != len(entries) {
		w.fail("%s has two entries for one address: %v", m.Name, entries)
	}
	if w.same(m, entries, announcesShared) {
		return false
	}
	if announcesShared != m.announcesShared {
		w.note("  manager: %s announces the shared entries: %t", m.Name, announcesShared)
	}
	for a := range w.changes(m.spec, spec) {
		w.note("  manager: %s on %s: %s -> %s", a, m.Name, short(m.spec, a), short(spec, a))
		if e, has := spec[a]; has && e.Type == v1.AnnounceLocal && e.Epoch != m.spec[a].Epoch {
			w.giveEpoch(a, e.Epoch, claim{m.Name, !claims[a]})
		}
		for _, s := range spec[a].Successors {
			w.giveEpoch(a, s.Epoch, claim{s.NodeName, false})
		}
	}
	m.spec, m.announcesShared, m.written = spec, announcesShared, w.round
	m.generation++
	if !announcesShared {
		m.unsharedSince, m.served = m.generation, map[netip.Addr]bool{}
	}
	w.forgetEpochs()
	return true
}

// giveEpoch notes that a node was given an epoch, or that the epoch is reserved for the node.
func (w *world) giveEpoch(a netip.Addr, epoch int64, is claim) {
	if was, twice := w.givenEpochs[a][epoch]; twice && was.node != is.node && (!was.first || !is.first) {
		w.fail("%s: epoch %d is given to %s and to %s", a, epoch, was.node, is.node)
	}
	if w.givenEpochs[a] == nil {
		w.givenEpochs[a] = map[int64]claim{}
	}
	w.givenEpochs[a][epoch] = is
}

// forgetEpochs forgets the epochs of addresses that no node has an entry for: they begin anew.
func (w *world) forgetEpochs() {
	for a := range w.givenEpochs {
		if !slices.ContainsFunc(w.nodes, func(m *machine) bool { _, has := m.spec[a]; return has }) {
			delete(w.givenEpochs, a)
		}
	}
}

// writeShared writes the shared entries.
func (w *world) writeShared(all []v1.AnnouncedAddress) bool {
	highest := placement.HighestRevision(w.shared)
	var entries []v1.AnnouncedAddress
	for _, spec := range w.shared {
		entries = append(entries, spec.Addresses...)
	}
	wanted := w.refusals.WithoutRefused("common/default", all, entries, w.now)
	changed, before := placement.ReviseShared("default", len(w.nodes), wanted, w.shared), len(w.sharedLog)
	for name, spec := range w.shared { // as controllers/placement_write.go does
		if _, written := changed[name]; !written && len(spec.Addresses) == 0 && name != "default" && spec.Revision < highest {
			w.sharedLog = append(w.sharedLog, sharedChange{name: name})
			w.note("  manager: CommonAnnouncement %s is deleted", name)
			delete(w.shared, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(changed)) {
		stored := w.shared[name].Addresses
		refused, err := partialwrite.Write(changed[name].Addresses, stored, func(part []v1.AnnouncedAddress) (bool, error) {
			is, there := w.shared[name]
			if there && placement.SameAddresses(is.Addresses, part) || !there && len(part) == 0 {
				return false, nil
			}
			was := byAddress(stored)
			for _, e := range part {
				if a := netip.MustParseAddr(e.Address); w.refusedByServer[a] && !cmp.Equal(was[a], e) {
					return true, errors.New("invalid")
				}
			}
			spec := changed[name]
			spec.Addresses = part
			highest++
			spec = placement.WithRevision(spec, highest)
			for _, c := range w.sharedLog {
				if c.spec != nil && c.spec.Revision >= spec.Revision {
					w.fail("%s: revision %d after %d", name, spec.Revision, c.spec.Revision)
				}
			}
			c := sharedChange{name, &spec}
			w.sharedLog = append(w.sharedLog, c)
			w.note("  manager: CommonAnnouncement %s is %v, revision %d", name, addressesOf(spec), spec.Revision)
			c.apply(w.shared)
			return false, nil
		})
		w.refusals.NoteWrite("common/default", changed[name].Addresses, refused, err, w.now)
	}
	entries = nil
	for _, spec := range w.shared {
		entries = append(entries, spec.Addresses...)
	}
	if again := placement.ReviseShared("default", len(w.nodes), w.refusals.WithoutRefused("common/default", all, entries, w.now), w.shared); len(again) > 0 {
		w.fail("shared entries are written a second time: %v", again)
	}
	return len(w.sharedLog) > before
}

func (c sharedChange) apply(to map[string]v1.CommonAnnouncementSpec) {
	if delete(to, c.name); c.spec != nil {
		to[c.name] = *c.spec
	}
}

func addressesOf(spec v1.CommonAnnouncementSpec) (all []string) {
	for _, e := range spec.Addresses {
		all = append(all, e.Address)
	}
	return all
}

func (w *world) changes(a, b map[netip.Addr]v1.AnnouncedAddress) map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for addr := range a {
		out[addr] = !cmp.Equal(a[addr], b[addr])
	}
	for addr := range b {
		out[addr] = !cmp.Equal(a[addr], b[addr])
	}
	for addr, differs := range out {
		if !differs {
			delete(out, addr)
		}
	}
	return out
}

func short(spec map[netip.Addr]v1.AnnouncedAddress, a netip.Addr) string {
	e, ok := spec[a]
	if !ok {
		return "none"
	}
	return fmt.Sprintf("%s epoch %d leaving %t", e.Claim, e.Epoch, e.Leaving)
}

// eligible is the reference: which node may have a Local address at all.
func eligible(n *placement.Node) bool {
	return !n.IsDeleted && n.LBNodeAgent != "" && !n.IsLeaving && !n.IsExcluded && !n.IsOutOfService && !n.IsShuttingDown && n.Liveness != placement.Expired && !n.Interfaces[0].IsDown
}

// serves reports whether an address's traffic may go to a node. strictly is
// whether it may not if it may go to no node.
func serves(a *placement.Address, node string, strictly bool) bool {
	return a.ServingNodes == nil || a.ServingNodes[node] || !strictly && len(a.ServingNodes) == 0
}

// holderOf is the one holder there is, or empty.
func holderOf(entries map[string]placement.Entry) (holder string) {
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		if e := entries[name]; e.ReportedState == v1.StateAnnounced && (holder == "" || e.Spec.Epoch > entries[holder].Spec.Epoch) {
			holder = name
		}
	}
	return holder
}

// hasLocal reports whether some entry is of a Local address.
func hasLocal(entries map[string]placement.Entry) bool {
	for _, e := range entries {
		if e.Spec.Type == v1.AnnounceLocal {
			return true
		}
	}
	return false
}

// candidates is how many nodes an address may be given to, and whether they are Ready.
func (w *world) candidates(a *placement.Address, nodes map[string]*placement.Node, before map[string]placement.Entry, holder string) (count int, ready bool) {
	all := 0
	for name, n := range nodes {
		if name != holder && eligible(n) && serves(a, name, true) && n.Liveness == placement.Fresh && !failed(before[name]) {
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

// failed reports whether the node of an entry is not to be asked again.
func failed(e placement.Entry) bool {
	unreported := e.Addr.IsValid() && (e.ReportedState == "" || e.ReportedState == v1.StatePending ||
		e.ReportedState == v1.StateStandby && e.Spec.Claim == v1.ClaimTakeover && !e.IsObserved)
	return e.ReportedState == v1.StateFailed || unreported && !e.Spec.Leaving && e.UnchangedFor >= placement.ReactionTime || unreported && e.Spec.Leaving && !e.IsObserved
}

// check compares one result with the inputs that it was decided from.
func (w *world) check(inputs *placement.Inputs, result *placement.Result) {
	node := map[string]*placement.Node{}
	for i := range inputs.Nodes {
		node[inputs.Nodes[i].Name] = &inputs.Nodes[i]
	}
	if twice := entriesTwice(*result); twice != "" {
		w.fail("two entries: %s", twice)
	}
	after := map[netip.Addr]map[string]v1.AnnouncedAddress{}
	for name, entries := range result.Entries {
		for _, e := range entries {
			a := netip.MustParseAddr(e.Address)
			if after[a] == nil {
				after[a] = map[string]v1.AnnouncedAddress{}
			}
			after[a][name] = e
		}
	}
	state := map[netip.Addr]map[string]placement.Entry{}
	for _, e := range inputs.Entries {
		if state[e.Addr] == nil {
			state[e.Addr] = map[string]placement.Entry{}
		}
		state[e.Addr][e.Node] = e
	}
	running, expired := 0, 0
	for _, n := range node {
		if !n.IsDeleted && n.LBNodeAgent != "" && !n.IsOutOfService {
			running++
			if n.Liveness == placement.Expired {
				expired++
			}
		}
	}
	mass := 2*expired > running
	locals, load := map[int]int{}, map[int]map[string]int{32: {}, 128: {}}
	winner := map[netip.Addr]string{}
	forced := map[int]map[string]int{32: {}, 128: {}} // addresses for which there is no choice
	for _, a := range inputs.Addresses {
		if a.PoolType == v1.PoolTypeRemote || a.Subnet == unattachedSubnet {
			continue
		}
		locals[a.Addr.BitLen()]++
		best := int64(-1)
		for name, e := range after[a.Addr] {
			if !failed(state[a.Addr][name]) && e.Epoch > best {
				winner[a.Addr], best = name, e.Epoch
			}
		}
		load[a.Addr.BitLen()][winner[a.Addr]]++
		if n, _ := w.candidates(&a, node, state[a.Addr], holderOf(state[a.Addr])); n == 1 {
			forced[a.Addr.BitLen()][winner[a.Addr]]++
		}
	}

	for _, a := range inputs.Addresses {
		entries, before := after[a.Addr], state[a.Addr]
		if w.isVirtual(inputs, &a) && !hasLocal(before) {
			for name, e := range entries {
				if e.Type == v1.AnnounceLocal {
					w.fail("%s: Local on %s, although its pool has Virtual addresses", a.Addr, name)
				}
			}
		}
		if a.Subnet == unattachedSubnet && !w.isVirtual(inputs, &a) {
			continue // before any of its pool is announced it may become Local
		}
		if a.PoolType == v1.PoolTypeRemote || a.Subnet == unattachedSubnet {
			for name, n := range node {
				_, own := entries[name]
				isShared := result.AnnouncesShared[name] && slices.ContainsFunc(result.SharedEntries[n.LBNodeAgent], func(e v1.AnnouncedAddress) bool { return e.Address == a.Addr.String() })
				// Where all have it, some keep it for a moment that are not to have it.
				wanted := n.LBNodeAgent != "" && !n.IsLeaving && !n.IsExcluded && serves(&a, name, true)
				if wanted && !own && !isShared || own && !wanted {
					w.fail("virtual %s: on %s it is %t, and shared %t", a.Addr, name, own, isShared)
				}
			}
			continue
		}

		holder, top := holderOf(before), int64(0)
		highest := before[holder].Spec.Epoch
		for _, e := range before {
			top = max(top, e.Spec.Epoch, e.Spec.HighestEpoch)
		}

		epochs := map[int64]string{}
		var free []string // those who may answer and defend: neither leaving, nor waiting, nor failed, nor away
		for name, e := range entries {
			if other, twice := epochs[e.Epoch]; twice && e.Epoch > 1 {
				w.fail("%s: %s and %s have epoch %d", a.Addr, name, other, e.Epoch)
			}
			epochs[e.Epoch] = name
			was, had := before[name]
			if e.Claim == v1.ClaimTakeover && had && was.Spec.Claim == v1.ClaimProbe && holder != "" && node[holder].Liveness == placement.Expired && mass {
				w.fail("%s: %s takes over although most Leases have expired", a.Addr, name)
			}
			if e.Claim == v1.ClaimTakeover && had && was.Spec.Claim == v1.ClaimProbe && holder != "" && node[holder].Liveness != placement.Expired {
				if h := before[holder]; !h.Spec.Leaving || !h.IsObserved && (h.UnchangedFor < placement.ReactionTime || was.ReportedState != v1.StateStandby) {
					w.fail("%s: %s takes over from %s, which may not know that", a.Addr, name, holder)
				}
			}
			realised := had && was.ReportedState == v1.StateAnnounced && was.Spec.Epoch == e.Epoch
			failed := had && was.ReportedState == v1.StateFailed && was.Spec.Epoch == e.Epoch
			waits := e.Claim == v1.ClaimProbe && !realised
			if !e.Leaving && !waits && !failed && node[name].Liveness != placement.Expired {
				free = append(free, name)
			}
			if e.Claim == v1.ClaimTakeover && !had && holder != "" && node[holder].Liveness != placement.Expired {
				was := before[holder]
				if now, ok := entries[holder]; ok && (!now.Leaving || !was.Spec.Leaving || !was.IsObserved) {
					w.fail("%s: %s takes over before %s knows that it is leaving", a.Addr, name, holder)
				}
			}
		}
		if len(free) > 1 {
			w.fail("%s: %v may all have it", a.Addr, free)
		}

		// An eligible holder keeps it, unless a handover is under way.
		if holder != "" && eligible(node[holder]) && serves(&a, holder, false) {
			handover := false
			for name, e := range before {
				handover = handover || (name != holder && e.Spec.Claim == v1.ClaimTakeover && e.Spec.Epoch > highest)
			}
			e, has := entries[holder]
			if !handover && (!has || e.Leaving || len(entries) != 1) {
				w.fail("%s: %s is an eligible holder, but the entries are now %v", a.Addr, holder, entries)
			}
		}
		// A holder never loses its entry before another has the address.
		if _, has := entries[holder]; holder != "" && !has && !node[holder].IsLeaving {
			w.fail("%s: the holder %s lost its entry", a.Addr, holder)
		}
		// An address does not lose its last place, but by nodes that leave.
		staying := 0
		for name := range before {
			if !node[name].IsLeaving {
				staying++
			}
		}
		gone := holder != "" && node[holder].IsLeaving
		if staying > 0 && !gone && len(entries) == 0 {
			w.fail("%s: had %v and now has no entry at all", a.Addr, before)
		}

		// New choices.
		for name, e := range entries {
			if _, had := before[name]; had && before[name].Spec.Epoch == e.Epoch {
				continue
			}
			if w.checkClaim(inputs, &a, before, name, e) {
				continue
			}
			if e.Epoch != top+1 {
				w.fail("%s: a new entry on %s has epoch %d after %d", a.Addr, name, e.Epoch, top)
			}
			if node[name].Liveness != placement.Fresh || !eligible(node[name]) || !serves(&a, name, true) {
				w.fail("%s: newly given to %s, which may not have it", a.Addr, name)
			}
			candidates, ready := w.candidates(&a, node, before, holder)
			if ready && node[name].IsNotReady {
				w.fail("%s: newly given to %s, which is not Ready", a.Addr, name)
			}
			bits := a.Addr.BitLen()
			share := (locals[bits] + candidates - 1) / candidates
			if got := load[bits][name] - forced[bits][name]; got > share+1 && candidates > 1 {
				w.fail("%s: newly given to %s, which then has %d of %d among %d", a.Addr, name, got, locals[bits], candidates)
			}
		}
	}
}

// observe lets an agent see what is asked of it, by two watches of which either may be
// late.
func (w *world) observe(m *machine) {
	if w.isSettling || w.rng.IntN(4) > 0 {
		m.view = view{m.spec, m.announcesShared, m.generation, m.told}
	}
	if w.isSettling || w.rng.IntN(4) > 0 {
		seen := m.seenChanges
		if m.seenChanges = len(w.sharedLog); !w.isSettling {
			m.seenChanges = seen + w.rng.IntN(len(w.sharedLog)-seen+1)
		}
		for _, c := range w.sharedLog[seen:m.seenChanges] {
			c.apply(m.seenShared)
		}
	}
}

// isServed reports whether a Virtual address is to be on a node whatever happens.
func (w *world) isServed(a netip.Addr, m *machine) bool {
	return m.LBNodeAgent != "" && !m.isNodeDeleted && !m.IsLeaving && !m.IsExcluded && slices.ContainsFunc(w.addresses, func(b placement.Address) bool {
		return b.Addr == a && (b.PoolType == v1.PoolTypeRemote || b.Subnet == unattachedSubnet) && serves(&b, m.Name, true)
	})
}

// sync is one round of a node's agent.
func (w *world) sync(m *machine) {
	if m.isCrashed || m.isIdle || m.hasNoAnnouncement || m.LBNodeAgent == "" && len(m.spec) == 0 && len(m.kernel) == 0 {
		return
	}
	if m.isLiar {
		w.reportLies(m)
		return
	}
	w.observe(m)
	w.followClaims(m)
	status, shared := map[netip.Addr]v1.AddressStatus{}, map[netip.Addr]v1.AnnouncedAddress{}
	if m.view.announcesShared {
		for _, c := range m.seenShared {
			for _, e := range c.Addresses {
				shared[netip.MustParseAddr(e.Address)] = e
			}
		}
	}
	for a := range shared {
		m.kernel[a] = true
	}
	for a, e := range m.view.spec {
		was := m.unsent[a]
		now := v1.AddressStatus{Address: e.Address, Epoch: e.Epoch, State: v1.StateAnnounced}
		switch {
		case m.kernel[a]:
		case m.hasYielded(e) && w.answers(a, m) != "":
			now.State = v1.StateYielded
		case m.refusedByKernel[a]:
			now.State = v1.StateFailed
		case e.Leaving:
			now.State = v1.StateYielded
		case e.Type == v1.AnnounceLocal && e.Claim == v1.ClaimProbe && w.answers(a, m) != "":
			if now.State = v1.StateConflict; slices.Contains(e.PreviousMACs, w.answers(a, m)) {
				now.State = v1.StateStandby
			}
		default:
			m.kernel[a] = true
			if e.Type == v1.AnnounceLocal {
				w.claimed(a, m)
			}
		}
		if now.State != was.State || now.Epoch != was.Epoch {
			w.note("  agent %s: %s is %s, epoch %d", m.Name, a, now.State, now.Epoch)
		}
		status[a] = now
	}
	for a := range m.kernel {
		_, own := m.view.spec[a]
		if _, isShared := shared[a]; !own && !isShared && m.claimed[a] == 0 {
			delete(m.kernel, a)
			w.note("  agent %s: withdraws %s", m.Name, a)
			if m.served[a] && w.isServed(a, m) {
				w.fail("%s withdraws %s, which it is to have, before and after", m.Name, a)
			}
		}
	}
	m.served = map[netip.Addr]bool{}
	for a := range m.kernel {
		m.served[a] = w.isServed(a, m) && m.seenChanges >= m.unserved[a] && m.view.generation >= m.unsharedSince
	}
	m.unsent, m.unsentGeneration, m.unsentRevision, m.unsentClaims = status, m.view.generation, 0, maps.Clone(m.claimed)
	if m.view.announcesShared {
		m.unsentRevision = placement.HighestRevision(m.seenShared)
	}
	if w.rng.IntN(3) > 0 {
		m.report()
	}
}

// reportLies reports all addresses there are as announced, those of others, too, a revision
// that there never was, and now and then an epoch of which there is none higher.
func (w *world) reportLies(m *machine) {
	clear(m.kernel)
	m.status, m.observed, m.reportedRevision = map[netip.Addr]v1.AddressStatus{}, m.generation, 1<<60
	for i := range 30 {
		for _, a := range []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), netip.MustParseAddr(fmt.Sprintf("fd00::%d", i+1)), netip.AddrFrom4([4]byte{10, 8, 0, byte(i)})} {
			s := v1.AddressStatus{Address: a.String(), State: v1.StateAnnounced, Epoch: m.spec[a].Epoch}
			if i%5 == 0 {
				s.Epoch = 1 << 60
			}
			m.status[a] = s
		}
	}
	if len(m.Interfaces) == 1 {
		m.Interfaces = append(m.Interfaces, placement.Interface{Name: "eth9", MAC: m.Interfaces[0].MAC, Subnets: []netip.Prefix{unattachedSubnet}})
	}
	w.reportFalseClaims(m)
	m.unsent, m.unsentGeneration, m.unsentRevision = m.status, m.observed, m.reportedRevision
}

func (m *machine) report() {
	m.status, m.observed, m.reportedRevision, m.reportedClaims = maps.Clone(m.unsent), m.unsentGeneration, m.unsentRevision, m.unsentClaims
}

// answers is the MAC address by which the kernel of another node answers for an
// address, or empty. A node with two interfaces on the link answers by either.
func (w *world) answers(a netip.Addr, but *machine) string {
	for i, m := range w.nodes {
		if m != but && m.kernel[a] && !m.isCutOff && !but.isCutOff {
			if b := a.As16(); (int(b[15])+i)%2 == 0 {
				return m.MACs[0]
			}
			return m.Interfaces[0].MAC
		}
	}
	return ""
}

// claimed is a gratuitous claim: every other agent that is at work and may not
// defend the address gives way at once. Its report comes later.
func (w *world) claimed(a netip.Addr, by *machine) {
	for _, m := range w.nodes {
		if m == by || m.isCrashed || m.isIdle || !m.kernel[a] || m.isCutOff || by.isCutOff {
			continue
		}
		if e, has := m.spec[a]; !has || e.Leaving || m.Liveness == placement.Expired || m.isNodeDeleted {
			delete(m.kernel, a)
			delete(m.claimed, a)
			m.unsent[a] = v1.AddressStatus{Address: a.String(), State: v1.StateYielded, Epoch: e.Epoch}
			w.note("  agent %s: yields %s to %s", m.Name, a, by.Name)
		}
	}
}

func newWorld(t *testing.T, rng *rand.Rand) *world {
	w := &world{t: t, rng: rng, shared: map[string]v1.CommonAnnouncementSpec{}, now: time.Unix(1000, 0), refusedByServer: map[netip.Addr]bool{}, everUsed: map[netip.Addr]bool{}, givenEpochs: map[netip.Addr]map[int64]claim{}}
	for i := range 2 + rng.IntN(5) {
		name := fmt.Sprintf("node%d", i)
		m := &machine{
			Node: placement.Node{
				Name: name, LBNodeAgent: "default", VirtualInterface: "kube-lb0", Liveness: placement.Fresh, HasReportedFacts: true,
				Interfaces: []placement.Interface{{Name: "eth0", MAC: fmt.Sprintf("02:00:00:00:00:%02x", i), Subnets: []netip.Prefix{
					netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(200 + i)}), 24), netip.MustParsePrefix("fd00::/64")}}},
				MACs: []string{fmt.Sprintf("06:00:00:00:00:%02x", i)},
			},
			refusedByKernel: map[netip.Addr]bool{}, kernel: map[netip.Addr]bool{}, status: map[netip.Addr]v1.AddressStatus{}, unsent: map[netip.Addr]v1.AddressStatus{},
			seenShared: map[string]v1.CommonAnnouncementSpec{}, unserved: map[netip.Addr]int{}, wireState: wireState{claimed: map[netip.Addr]int64{}, yielded: map[netip.Addr]int64{}},
		}
		w.nodes = append(w.nodes, m)
	}
	if rng.IntN(4) == 0 { // so many that there are several CommonAnnouncements
		for i := range 25 {
			w.addresses = append(w.addresses, placement.Address{Addr: netip.AddrFrom4([4]byte{10, 9, 1, byte(1 + i)}), Group: "g", PoolType: v1.PoolTypeRemote, Mask: 24, Services: []string{"a/b"}})
			w.everUsed[w.addresses[i].Addr] = true
		}
	}
	return w
}

// unattachedSubnet is the subnet of a local pool that no node is in: its addresses are Virtual.
var unattachedSubnet = netip.MustParsePrefix("10.8.0.0/24")

// isVirtual reports whether an address is of a pool that has Virtual addresses.
func (w *world) isVirtual(f *placement.Inputs, a *placement.Address) bool {
	return a.Subnet == unattachedSubnet && slices.ContainsFunc(f.Addresses, func(b placement.Address) bool {
		return b.Subnet == unattachedSubnet && (slices.ContainsFunc(f.SharedEntries, func(e placement.SharedEntry) bool { return e.Addr == b.Addr }) ||
			slices.ContainsFunc(f.Entries, func(e placement.Entry) bool { return e.Addr == b.Addr && e.Spec.Type == v1.AnnounceVirtual }))
	})
}

func (w *world) addAddress() {
	i := w.rng.IntN(24)
	a := placement.Address{Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + i)}), Group: "g", PoolType: v1.PoolTypeLocal, Mask: 24, Services: []string{"a/b"}}
	switch i % 4 {
	case 0:
		a.Addr = netip.MustParseAddr(fmt.Sprintf("fd00::%d", 1+i))
		a.Mask = 64
	case 1:
		a.Addr, a.PoolType = netip.AddrFrom4([4]byte{10, 9, 0, byte(1 + i)}), v1.PoolTypeRemote
	case 2:
		if i > 12 {
			a.Addr, a.Subnet = netip.AddrFrom4([4]byte{10, 8, 0, byte(1 + i)}), unattachedSubnet
		}
	}
	if !slices.ContainsFunc(w.addresses, func(b placement.Address) bool { return b.Addr == a.Addr }) {
		w.addresses = append(w.addresses, a)
		w.everUsed[a.Addr] = true
		w.note("address %s", a.Addr)
	}
}

// disturb does one random thing.
func (w *world) disturb() {
	defer func() {
		w.noteUnserved()
	}()
	m := w.nodes[w.rng.IntN(len(w.nodes))]
	if w.hasFaults && w.rng.IntN(4) == 0 {
		w.injectFault(m)
		return
	}
	if w.hasClaims && w.rng.IntN(2) == 0 {
		w.disturbWire(m)
		return
	}
	if w.hasDeletions && w.rng.IntN(4) == 0 {
		w.deleteAnnouncement(m)
		return
	}
	switch w.rng.IntN(20) {
	case 0, 1, 2:
		w.addAddress()
	case 3:
		if len(w.addresses) > 0 {
			i := w.rng.IntN(len(w.addresses))
			w.note("address %s goes", w.addresses[i].Addr)
			w.addresses = slices.Delete(w.addresses, i, i+1)
		}
	case 4:
		m.isCrashed = true
		w.note("%s: agent crashes", m.Name)
	case 5, 6:
		if m.isNodeDeleted { // the kubelet makes the Node object anew
			m.isNodeDeleted, m.IsNotReadyForLong = false, false
		}
		m.isCrashed, m.isIdle, m.isLiar, m.Liveness = false, false, false, placement.Fresh
		m.Interfaces = m.Interfaces[:1]
		w.note("%s: agent is back", m.Name)
	case 7:
		m.isCrashed, m.Liveness = true, placement.Late
		w.note("%s: agent is late", m.Name)
	case 8:
		m.isCrashed, m.Liveness = true, placement.Expired
		w.note("%s: Lease expires", m.Name)
	case 9:
		m.IsNotReadyForLong = !m.IsNotReadyForLong
		w.note("%s: NotReady %t", m.Name, m.IsNotReadyForLong)
	case 10:
		m.IsExcluded = !m.IsExcluded
		w.note("%s: Excluded %t", m.Name, m.IsExcluded)
	case 11:
		m.IsOutOfService = !m.IsOutOfService
		w.note("%s: OutOfService %t", m.Name, m.IsOutOfService)
	case 12:
		m.isCrashed, m.Liveness, m.IsNotReadyForLong = true, placement.Expired, true
		clear(m.kernel)
		clear(m.claimed)
		w.note("%s: power fails", m.Name)
	case 13:
		if m.LBNodeAgent == "" {
			m.LBNodeAgent = "default"
		} else {
			m.LBNodeAgent = ""
		}
		w.note("%s: Agent %q", m.Name, m.LBNodeAgent)
	case 14:
		if len(w.addresses) > 0 {
			a := w.addresses[w.rng.IntN(len(w.addresses))].Addr
			m.refusedByKernel[a] = !m.refusedByKernel[a]
			w.note("%s: %s broken %t", m.Name, a, m.refusedByKernel[a])
		}
	case 16:
		m.IsLeaving = !m.IsLeaving
		w.note("%s: Leaving %t", m.Name, m.IsLeaving)
	case 17:
		m.Interfaces[0].IsDown = !m.Interfaces[0].IsDown
		w.note("%s: Down %t", m.Name, m.Interfaces[0].IsDown)
	case 18, 19:
		w.moveEndpoints()
	case 15:
		m.IsShuttingDown = !m.IsShuttingDown
		w.note("%s: ShuttingDown %t", m.Name, m.IsShuttingDown)
	}
}

// noteUnserved notes which machines are not to have which addresses now.
func (w *world) noteUnserved() {
	for _, m := range w.nodes {
		for a := range w.everUsed {
			if !w.isServed(a, m) {
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

// injectFault is a fault, or an attack.
func (w *world) injectFault(m *machine) {
	switch w.rng.IntN(5) {
	case 0:
		m.isIdle, m.isCrashed, m.Liveness = true, false, placement.Fresh
		w.note("%s: agent renews, and does nothing else", m.Name)
	case 1:
		if !slices.ContainsFunc(w.nodes, func(m *machine) bool { return m.isLiar }) {
			m.isLiar, m.isIdle, m.isCrashed, m.Liveness = true, false, false, placement.Fresh
			w.note("%s: is a liar", m.Name)
		}
	case 2:
		m.isNodeDeleted, m.Liveness = true, placement.Expired
		w.note("%s: its Node object is deleted", m.Name)
	case 3:
		if len(w.addresses) > 0 {
			a := w.addresses[w.rng.IntN(len(w.addresses))].Addr
			w.refusedByServer[a] = !w.refusedByServer[a]
			w.note("%s: refused %t", a, w.refusedByServer[a])
		}
	case 4:
		if w.pausedLeader == nil {
			w.pausedLeader = &pausedLeader{w.inputs(), w.generations()}
			w.note("the leader pauses")
			return
		}
		w.note("the old leader writes what it had decided")
		result := placement.Place(w.pausedLeader.inputs)
		w.write(&w.pausedLeader.inputs, &result, w.pausedLeader.generations)
		w.pausedLeader = nil
	}
}

// deleteAnnouncement has a user delete the Announcement of a machine. Its agent keeps
// what it has until there is another.
func (w *world) deleteAnnouncement(m *machine) {
	if m.hasNoAnnouncement {
		return
	}
	w.note("%s: its Announcement is deleted", m.Name)
	m.hasNoAnnouncement, m.spec, m.announcesShared = true, nil, false
	m.reportedRevision, m.observed = 0, 0
	m.generation++
	m.unsharedSince = m.generation
	clear(m.status)
	for a := range w.everUsed {
		w.endServing(a, m)
	}
	w.forgetEpochs()
}

// moveEndpoints changes which nodes serve an address.
func (w *world) moveEndpoints() {
	if len(w.addresses) == 0 {
		return
	}
	a := &w.addresses[w.rng.IntN(len(w.addresses))]
	a.ServingNodes = nil
	if w.rng.IntN(3) > 0 {
		a.ServingNodes = map[string]bool{}
		for _, m := range w.nodes {
			if w.rng.IntN(3) == 0 {
				a.ServingNodes[m.Name] = true
			}
		}
	}
	w.note("%s: served by %v", a.Addr, a.ServingNodes)
}

// settle lets everybody work until nothing changes.
func (w *world) settle() {
	w.note("settling")
	w.isSettling = true
	defer func() { w.isSettling = false }()
	for _, m := range w.nodes {
		m.isCutOff = false
		// What is late is decided sooner or later.
		if m.Liveness == placement.Late {
			m.isCrashed, m.Liveness = false, placement.Fresh
		}
		if m.Liveness == placement.Fresh {
			m.isCrashed = false
		}
	}
	const most = 80
	for range most {
		w.now = w.now.Add(3 * time.Second)
		changed := w.place()
		for _, m := range w.nodes {
			before, kernel, revision, claims := m.status, len(m.kernel), m.reportedRevision, m.reportedClaims
			w.sync(m)
			if !m.isCrashed && !m.isIdle && !m.hasNoAnnouncement {
				m.report()
			}
			changed = changed || !cmp.Equal(before, m.status, cmpopts.EquateEmpty()) || kernel != len(m.kernel) || revision != m.reportedRevision || !cmp.Equal(claims, m.reportedClaims, cmpopts.EquateEmpty())
		}
		if !changed && w.isHeldBack() { // what is refused no more is tried again later
			w.now = w.now.Add(w.refusals.UntilRetry(w.now))
			continue
		}
		next := nextDeadline(w.inputs())
		if !changed && next == 0 {
			w.settled()
			return
		}
		if !changed {
			w.now = w.now.Add(next)
		}
	}
	w.fail("does not settle")
}

// isHeldBack reports whether an entry is not written because it was refused earlier.
func (w *world) isHeldBack() bool {
	for a := range w.refusals.Explanations() {
		if !w.refusedByServer[a] {
			return true
		}
	}
	return false
}

// settled checks what has become of each address.
func (w *world) settled() {
	running, expired := 0, 0
	for _, m := range w.nodes {
		if m.LBNodeAgent != "" && !m.IsOutOfService && !m.isNodeDeleted {
			running++
			if m.Liveness == placement.Expired {
				expired++
			}
		}
	}
	for _, a := range w.addresses {
		switch {
		case w.refusedByServer[a.Addr] || a.Subnet == unattachedSubnet && slices.ContainsFunc(w.nodes, func(m *machine) bool { return m.spec[a.Addr].Type == v1.AnnounceLocal }):
		case a.PoolType == v1.PoolTypeRemote || a.Subnet == unattachedSubnet:
			w.settledVirtual(a)
		default:
			w.settledLocal(a, 2*expired > running)
		}
	}
}

func (w *world) settledVirtual(a placement.Address) {
	if a.Subnet == unattachedSubnet && w.last.Unplaced[a.Addr].Reason != "" {
		return // a liar makes it Local
	}
	for _, m := range w.nodes {
		if m.isCrashed || m.isIdle || m.isLiar || m.hasNoAnnouncement {
			continue
		}
		if own, isShared := m.spec[a.Addr], w.last.AnnouncesShared[m.Name] && slices.Contains(addressesOf(v1.CommonAnnouncementSpec{Addresses: w.last.SharedEntries["default"]}), a.Addr.String()); isShared && own.Address != "" {
			w.fail("%s: %s has an own and a shared entry", a.Addr, m.Name)
		}
		if !m.refusedByKernel[a.Addr] && m.kernel[a.Addr] != w.isServed(a.Addr, m) {
			w.fail("%s: on %s it is %t", a.Addr, m.Name, m.kernel[a.Addr])
		}
	}
}

// holder is the machine that is recorded as holding an address, or nil.
func (w *world) holder(a netip.Addr) (holder *machine) {
	for _, m := range w.nodes {
		e, has := m.spec[a]
		if s := m.status[a]; has && s.State == v1.StateAnnounced && s.Epoch == e.Epoch && (holder == nil || e.Epoch > holder.spec[a].Epoch) {
			holder = m
		}
	}
	return holder
}

func (w *world) settledLocal(a placement.Address, massExpiry bool) {
	holder := w.holder(a.Addr)
	if holder != nil && (holder.isIdle || holder.isLiar) && !holder.isNodeDeleted && eligible(&holder.Node) && serves(&a, holder.Name, false) {
		return // it may lie about itself, and the manager cannot know
	}
	var can, has []string
	kernelAway := false
	for _, m := range w.nodes {
		works := !m.isIdle && !m.isLiar && !m.isNodeDeleted
		if works && eligible(&m.Node) && serves(&a, m.Name, true) && !m.refusedByKernel[a.Addr] {
			can = append(can, m.Name)
		}
		if m.kernel[a.Addr] && works && m.Liveness != placement.Expired {
			has = append(has, m.Name)
		}
		// Its kernel serves on, and no node is to take over, or the manager does not know it.
		kernelAway = kernelAway || m.kernel[a.Addr] && (m.Liveness == placement.Expired || m.isIdle || m.isNodeDeleted) && (m != holder || massExpiry || m.Liveness == placement.Expired && !m.isNodeDeleted && !m.IsNotReadyForLong)
	}
	if len(has) > 1 {
		w.fail("%s: %v all have it", a.Addr, has)
	}
	if len(can) > 0 && len(has) == 0 && !kernelAway {
		w.fail("%s: no node has it, but %v could; %v", a.Addr, can, w.last.Unplaced[a.Addr])
	}
	if len(can) == 0 && len(has) == 0 && !kernelAway && w.last.Unplaced[a.Addr].Reason == "" {
		w.fail("%s: no node has it, and nothing says why", a.Addr)
	}
}

const historySteps = 120

// histories is how many are played; with -short, as under the race detector, which finds
// nothing in what runs by itself, a tenth.
func histories() uint64 {
	if testing.Short() {
		return 40
	}
	return 400
}

func TestHistories(t *testing.T) {
	for seed := range histories() {
		history(t, seed, historySteps, func(*world) {})
	}
}

// TestFaultDeletionHistories has a user delete Announcements, past the policy that
// refuses that.
func TestFaultDeletionHistories(t *testing.T) {
	for seed := range histories() {
		history(t, seed, historySteps, func(w *world) { w.hasDeletions = true })
	}
}

// TestFaultHistories has agents that renew and do nothing else, one that lies, Nodes
// that are deleted and answer on, writes that are refused, and a leader that is late to
// notice that it is none any more.
func TestFaultHistories(t *testing.T) {
	for seed := range histories() {
		history(t, seed, historySteps, func(w *world) { w.hasFaults = true })
	}
}

// TestSuccessorHistories names successors in all kinds of histories.
func TestSuccessorHistories(t *testing.T) {
	for seed := range histories() / 2 {
		history(t, seed, historySteps, func(w *world) { w.namesSuccessors, w.hasFaults = true, seed%2 == 1 })
	}
}

// TestClaimHistories has successors claim addresses, of dead holders and, where they are cut off
// on the link, of living ones; with faults, one node lies about that.
func TestClaimHistories(t *testing.T) {
	adopted, refuted := 0, 0
	for seed := range histories() / 2 {
		var last *world
		history(t, seed, historySteps, func(w *world) {
			last = w
			w.namesSuccessors, w.hasClaims, w.hasFaults = true, true, seed%2 == 1
		})
		adopted, refuted = adopted+last.adopted, refuted+last.refuted
	}
	if count := int(histories() / 2); adopted < count/2 || refuted < count/20 {
		t.Errorf("%d claims were adopted, and %d refuted, in %d histories", adopted, refuted, count)
	}
}

func history(t *testing.T, seed uint64, steps int, kind func(*world)) {
	t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
		rng := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(t, rng)
		kind(w)
		for range 1 + rng.IntN(12) {
			w.addAddress()
		}
		for range steps {
			w.now = w.now.Add(time.Duration(rng.Int64N(int64(400 * time.Millisecond))))
			switch rng.IntN(4) {
			case 0:
				w.disturb()
			case 1:
				w.place()
			default:
				w.sync(w.nodes[rng.IntN(len(w.nodes))])
			}
			if rng.IntN(40) == 0 {
				w.settle()
			}
		}
		w.settle()
	})
}
