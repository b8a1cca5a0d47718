package placement_test

import (
	"errors"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/partialwrite"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// pausedLeader is the inputs of a decision, and the Announcements that they were read from, by node.
type pausedLeader struct {
	inputs placement.Inputs
	read   map[string]announcement
}

// sharedChange is a CommonAnnouncement that was written or, if spec is nil, deleted.
type sharedChange struct {
	name string
	spec *v1.CommonAnnouncementSpec
}

func (c sharedChange) apply(to map[string]v1.CommonAnnouncementSpec) {
	if delete(to, c.name); c.spec != nil {
		to[c.name] = *c.spec
	}
}

// place is one round of the manager. It reports whether anything was written.
func (w *world) place() bool {
	inputs := w.inputs()
	result := placement.Place(inputs)
	w.checkDecision(&inputs, &result)
	w.last = result
	changed := w.writeShared(placement.SpecsOf(result.SharedEntries["default"]))
	w.noteUnserved()
	for _, e := range inputs.Entries { // agents that do not react are not waited for
		for _, m := range w.machines {
			isOverdue := !e.IsObserved && e.UnchangedFor >= placement.ReactionTime
			if e.Node == m.Name && e.Spec.Type == v1.AnnounceVirtual && isOverdue {
				w.endServing(e.Addr, m)
			}
		}
	}
	changed = w.write(&inputs, &result, w.announcements()) || changed
	return w.writeStandbys(inputs) || changed
}

// inputs reads the objects as controllers/placement_inputs.go does.
func (w *world) inputs() placement.Inputs {
	inputs := placement.Inputs{
		Addresses: slices.Clone(w.addresses), LingeringReports: map[netip.Addr][]placement.LingeringReport{},
		NamesSuccessors: w.kind&withNames != 0,
	}
	for _, c := range w.shared {
		for _, e := range c.Addresses {
			inputs.SharedEntries = append(inputs.SharedEntries, placement.SharedEntry{
				LBNodeAgent: c.LBNodeAgent, Addr: addrOf(&e), Spec: e,
			})
		}
	}
	var claims []placement.SuccessorClaim
	for _, m := range w.machines {
		for a, epoch := range m.reported.claims {
			claims = append(claims, placement.SuccessorClaim{Node: m.Name, Addr: a, Epoch: epoch})
		}
		if m.hasNoAnnouncement && m.isNodeDeleted {
			continue
		}
		inputs.Nodes = append(inputs.Nodes, m.asNode())
		for a, spec := range m.stored.entries {
			e := placement.Entry{Node: m.Name, Addr: a, Spec: spec, IsObserved: m.reported.generation >= m.stored.generation}
			if s, ok := m.reported.states[a]; ok && s.Epoch == spec.Epoch {
				e.ReportedState = s.State
			}
			inputs.Entries = append(inputs.Entries, e)
		}
		for a, s := range m.reported.states {
			if _, wanted := m.stored.entries[a]; !wanted && s.State == v1.StateAnnounced {
				inputs.LingeringReports[a] = append(inputs.LingeringReports[a], placement.LingeringReport{Node: m.Name})
			}
		}
	}
	inputs.AddClaims(claims)
	w.clocks.FillDurations(&inputs, w.now)
	return inputs
}

// asNode is what the manager knows of a node.
func (m *machine) asNode() placement.Node {
	if m.isNodeDeleted {
		return placement.Node{
			Name: m.Name, IsDeleted: true, IsNotReady: true, IsNotReadyForLong: true, Interfaces: m.Interfaces, MACs: m.MACs,
		}
	}
	n := m.Node
	n.SharedRevision, n.IsNotReady = m.reported.revision, m.IsNotReadyForLong
	if m.hasNoAnnouncement {
		n.HasReportedFacts, n.AreFactsAwaited = false, true
	}
	return n
}

func shuffled(rng *rand.Rand, f placement.Inputs) placement.Inputs {
	f.SharedEntries, f.Nodes, f.Entries = shuffle(rng, f.SharedEntries), shuffle(rng, f.Nodes), shuffle(rng, f.Entries)
	f.SuccessorClaims, f.Addresses = shuffle(rng, f.SuccessorClaims), shuffle(rng, f.Addresses)
	f.LingeringReports = maps.Clone(f.LingeringReports)
	for _, a := range inOrder(f.LingeringReports) {
		f.LingeringReports[a] = shuffle(rng, f.LingeringReports[a])
	}
	return f
}

func shuffle[T any](rng *rand.Rand, s []T) []T {
	s = slices.Clone(s)
	rng.Shuffle(len(s), func(i, j int) { s[i], s[j] = s[j], s[i] })
	return s
}

// announcements are the Announcements as they stand, by node.
func (w *world) announcements() map[string]announcement {
	all := map[string]announcement{}
	for _, m := range w.machines {
		all[m.Name] = m.stored
	}
	return all
}

// write makes the Announcements as decided from those that were read, as
// controllers/placement_write.go does: first those that have entries for contested claims, without
// the claims; where one is to change that is not as it was read, its addresses are given to no other node. write
// reports whether anything was written.
func (w *world) write(
	inputs *placement.Inputs, result *placement.Result, read map[string]announcement,
) (changed bool) {
	claims, blocked := placement.ReassignedAddresses(inputs, result), map[netip.Addr]bool{}
	isKnown := func(m *machine) bool {
		return slices.ContainsFunc(inputs.Nodes, func(n placement.Node) bool { return n.Name == m.Name })
	}
	for _, first := range []bool{true, false} {
		for _, m := range w.machines {
			known := m.stored // as read, or as written in this round
			isOutdated := m.stored.generation != read[m.Name].generation && (m.written != w.round || first)
			if isOutdated {
				known = read[m.Name]
			}
			stored := slices.Collect(maps.Values(known.entries))
			concerned := slices.DeleteFunc(inOrder(known.entries), func(a netip.Addr) bool { return !claims[a] })
			if !isKnown(m) || first && len(concerned) == 0 {
				continue
			}
			wanted := w.refusals.WithoutRefused(m.Name, placement.SpecsOf(result.Entries[m.Name]), stored, w.now)
			wanted = partialwrite.WithStored(wanted, stored, func(e *v1.AnnouncedAddress) bool {
				a := addrOf(e)
				return (first && claims[a] || blocked[a]) && known.entries[a].Epoch != e.Epoch
			})
			if known.has(wanted, result.AnnouncesShared[m.Name]) {
				continue
			}
			if isOutdated {
				w.note("  manager: %s is not as it was", m.Name)
				for _, a := range concerned {
					blocked[a] = true
				}
				continue
			}
			outcome := partialwrite.Write(wanted, stored, func(part []v1.AnnouncedAddress) (bool, error) {
				if w.refuses(part, m.stored.entries) {
					return true, errors.New("invalid")
				}
				changed = w.store(m, part, result.AnnouncesShared[m.Name], claims) || changed
				return false, nil
			})
			w.refusals.NoteWrite(m.Name, wanted, outcome, w.now)
		}
	}
	for _, m := range w.machines {
		switch {
		case !isKnown(m):
		case m.hasNoAnnouncement && !m.isNodeDeleted:
			m.hasNoAnnouncement, m.reported.generation, changed = false, 0, true
			m.stored.generation++
			m.seen = m.stored
		case !m.hasNoAnnouncement && m.isNodeDeleted && len(m.stored.entries) == 0:
			w.note("  manager: the Announcement of %s is deleted", m.Name)
			m.hasNoAnnouncement, changed = true, true
			clear(m.reported.states)
		}
	}
	w.round++
	return changed
}

// has reports whether an Announcement has some entries, and no others.
func (a *announcement) has(entries []v1.AnnouncedAddress, announcesShared bool) bool {
	return announcesShared == a.announcesShared && maps.EqualFunc(a.entries, byAddress(entries), placement.SameEntry)
}

// refuses reports whether the API server refuses some entries, of which others are stored.
func (w *world) refuses(entries []v1.AnnouncedAddress, stored map[netip.Addr]v1.AnnouncedAddress) bool {
	return slices.ContainsFunc(entries, func(e v1.AnnouncedAddress) bool {
		return w.refusedByServer[addrOf(&e)] && !placement.SameEntry(stored[addrOf(&e)], e)
	})
}

// isHeldBack reports whether an entry is not written because it was refused earlier.
func (w *world) isHeldBack() bool {
	refused := inOrder(w.refusals.Explanations())
	return slices.ContainsFunc(refused, func(a netip.Addr) bool { return !w.refusedByServer[a] })
}

// store is one write of an Announcement.
func (w *world) store(
	m *machine, entries []v1.AnnouncedAddress, announcesShared bool, claims map[netip.Addr]bool,
) bool {
	w.must(oneEntryEach, len(byAddress(entries)) == len(entries), "%s: %v", m.Name, entries)
	if m.stored.has(entries, announcesShared) {
		return false
	}
	before := m.stored.entries
	m.stored.entries, m.stored.announcesShared, m.written = byAddress(entries), announcesShared, w.round
	m.stored.generation++
	w.note("  manager: %s has %v, and the shared entries: %t", m.Name, inOrder(m.stored.entries), announcesShared)
	for _, a := range inOrder(m.stored.entries) {
		if e, was := m.stored.entries[a], before[a]; !placement.SameEntry(e, was) {
			w.note("  manager: %s on %s: %s epoch %d leaving %t", a, m.Name, e.ClaimPolicy, e.Epoch, e.HandingOver)
			w.noteEpochs(m, &e, &was, !claims[a])
		}
	}
	if !announcesShared {
		m.unsharedSince, m.served = m.stored.generation, map[netip.Addr]bool{}
	}
	w.forgetEpochs()
	return true
}

// writeShared writes the shared entries, and reports whether anything was written.
func (w *world) writeShared(all []v1.AnnouncedAddress) bool {
	const owner = "common/default"
	before, highest := len(w.sharedLog), placement.HighestRevision(w.shared)
	revise := func() map[string]v1.CommonAnnouncementSpec {
		var stored []v1.AnnouncedAddress
		for _, spec := range w.shared {
			stored = append(stored, spec.Addresses...)
		}
		wanted := w.refusals.WithoutRefused(owner, all, stored, w.now)
		return placement.ReviseShared("default", len(w.machines), wanted, w.shared)
	}
	changed := revise()
	for _, name := range slices.Sorted(maps.Keys(w.shared)) { // as controllers/placement_write.go does
		_, isWritten := changed[name]
		is := w.shared[name]
		if !isWritten && len(is.Addresses) == 0 && name != "default" && is.Revision < highest {
			w.noteShared(sharedChange{name: name})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(changed)) {
		stored := w.shared[name].Addresses
		outcome := partialwrite.Write(changed[name].Addresses, stored, func(part []v1.AnnouncedAddress) (bool, error) {
			is, exists := w.shared[name]
			if exists && placement.SameAddresses(is.Addresses, part) || !exists && len(part) == 0 {
				return false, nil
			}
			if w.refuses(part, byAddress(stored)) {
				return true, errors.New("invalid")
			}
			spec := changed[name]
			spec.Addresses = part
			highest++
			spec = placement.WithRevision(spec, highest)
			w.noteShared(sharedChange{name, &spec})
			return false, nil
		})
		w.refusals.NoteWrite(owner, changed[name].Addresses, outcome, w.now)
	}
	again := revise()
	w.must(sharedOnce, len(again) == 0, "%v", again)
	return len(w.sharedLog) > before
}

// noteShared makes a change of the CommonAnnouncements.
func (w *world) noteShared(c sharedChange) {
	w.note("  manager: CommonAnnouncement %s changes", c.name)
	w.must(revisionsGrow, !slices.ContainsFunc(w.sharedLog, func(earlier sharedChange) bool {
		return c.spec != nil && earlier.spec != nil && earlier.spec.Revision >= c.spec.Revision
	}), "%s: %+v", c.name, c.spec)
	w.sharedLog = append(w.sharedLog, c)
	c.apply(w.shared)
}

// writeStandbys stores what successors follow, and reports whether that has changed.
func (w *world) writeStandbys(inputs placement.Inputs) (changed bool) {
	follows := map[string]map[netip.Addr]following{}
	for _, plan := range placement.PlanStandbys(inputs) {
		if follows[plan.Watcher] == nil {
			follows[plan.Watcher] = map[netip.Addr]following{}
		}
		for _, a := range plan.Standby.Addresses {
			for _, s := range a.Successors {
				if s.NodeName == plan.Watcher {
					f := following{plan.Standby.Watched.NodeName, a.Epoch, s.Epoch}
					follows[plan.Watcher][netip.MustParseAddr(a.Address)] = f
				}
			}
		}
	}
	for _, m := range w.machines {
		changed = changed || !maps.Equal(m.stored.follows, follows[m.Name])
		m.stored.follows = follows[m.Name]
	}
	return changed
}

func byAddress(entries []v1.AnnouncedAddress) map[netip.Addr]v1.AnnouncedAddress {
	spec := map[netip.Addr]v1.AnnouncedAddress{}
	for _, e := range entries {
		spec[addrOf(&e)] = e
	}
	return spec
}

func addrOf(e *v1.AnnouncedAddress) netip.Addr { return netip.MustParseAddr(e.Address) }

// inOrder are the addresses that a map is of.
func inOrder[V any](m map[netip.Addr]V) []netip.Addr {
	return slices.SortedFunc(maps.Keys(m), netip.Addr.Compare)
}
