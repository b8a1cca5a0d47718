package placement_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// machine is a node, its kernel and its agent.
type machine struct {
	placement.Node
	// isCrashed is that the agent does nothing; the kernel serves on. isIdle is that it renews its
	// Lease and does nothing else, and isLiar that it reports what suits it.
	isCrashed, isIdle, isLiar bool
	// isCutOff is that the node hears no other on the link, and none hears it.
	isCutOff bool
	// isNodeDeleted is that there is no Node object, and hasNoAnnouncement that the manager,
	// or a user, has deleted the node's Announcement.
	isNodeDeleted, hasNoAnnouncement bool

	// kernel are the addresses that the kernel has, and refusedByKernel those that it refuses.
	kernel, refusedByKernel map[netip.Addr]bool
	// stored is the node's Announcement, which was written last in the round written. seen is
	// what the agent has seen of it, and seenShared of the shared entries: not always the
	// latest. seenChanges is how many of the changes in the world's sharedLog.
	stored, seen announcement
	written      int
	seenShared   map[string]v1.CommonAnnouncementSpec
	seenChanges  int
	// reported is what the API server has of the agent's reports, and unsent the latest one.
	reported, unsent report
	// claimed are the addresses that the agent has claimed as a successor, with the epochs,
	// until it has an entry for them. yielded are the epochs by which the agent had what it has
	// yielded to a successor.
	claimed, yielded map[netip.Addr]int64

	// served are the Virtual addresses that the node was to have all the time since its agent
	// last observed what it is to have.
	served map[netip.Addr]bool
	// unserved is how many changes of the world's sharedLog there were when it was last
	// not to have an address, or too late: until it has seen them it may withdraw it.
	unserved map[netip.Addr]int
	// unsharedSince is the generation that last did not ask for the shared entries.
	unsharedSince int
}

// announcement is what a node is asked to do.
type announcement struct {
	entries         map[netip.Addr]v1.AnnouncedAddress
	announcesShared bool
	generation      int
	// follows are the addresses that the node is a successor for.
	follows map[netip.Addr]following
}

// following is what a standby says of one address to a successor.
type following struct {
	holder             string
	holderEpoch, epoch int64
}

// report is what an agent says: of the entries of a generation, up to which revision it has
// realised the shared entries, and what it has claimed as a successor.
type report struct {
	states     map[netip.Addr]v1.AddressStatus
	generation int
	revision   int64
	claims     map[netip.Addr]int64
}

func newMachine(i int) *machine {
	eth0 := placement.Interface{
		Name: "eth0", MAC: fmt.Sprintf("02:00:00:00:00:%02x", i), Subnets: []netip.Prefix{
			netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(200 + i)}), 24), netip.MustParsePrefix("fd00::/64"),
		},
	}
	return &machine{
		Node: placement.Node{
			Name: fmt.Sprintf("node%d", i), Labels: map[string]string{"tier": fmt.Sprint(i % 3), "zone": fmt.Sprint(i % 2)},
			LBNodeAgent: "default", VirtualInterface: "kube-lb0",
			Liveness: placement.Fresh, HasReportedFacts: true, Interfaces: []placement.Interface{eth0},
			MACs: []string{fmt.Sprintf("06:00:00:00:00:%02x", i)},
		},
		kernel: map[netip.Addr]bool{}, refusedByKernel: map[netip.Addr]bool{},
		reported:   report{states: map[netip.Addr]v1.AddressStatus{}},
		unsent:     report{states: map[netip.Addr]v1.AddressStatus{}},
		seenShared: map[string]v1.CommonAnnouncementSpec{}, unserved: map[netip.Addr]int{},
		claimed: map[netip.Addr]int64{}, yielded: map[netip.Addr]int64{},
	}
}

// sync is one round of a node's agent.
func (w *world) sync(m *machine) {
	hasNothing := len(m.stored.entries) == 0 && len(m.kernel) == 0
	if m.isCrashed || m.isIdle || m.hasNoAnnouncement || m.LBNodeAgent == "" && hasNothing {
		return
	}
	if m.isLiar {
		w.lie(m)
		return
	}
	w.observe(m)
	w.followClaims(m)
	w.yieldToSuccessors(m)
	shared := map[netip.Addr]bool{}
	if m.seen.announcesShared {
		for _, c := range m.seenShared {
			for _, e := range c.Addresses {
				shared[addrOf(&e)], m.kernel[addrOf(&e)] = true, true
			}
		}
	}
	states := map[netip.Addr]v1.AddressStatus{}
	for _, a := range inOrder(m.seen.entries) {
		e := m.seen.entries[a]
		s := v1.AddressStatus{Address: e.Address, Epoch: e.Epoch, State: w.realise(m, a, &e)}
		if was := m.unsent.states[a]; s.State != was.State || s.Epoch != was.Epoch {
			w.note("  agent %s: %s is %s, epoch %d", m.Name, a, s.State, s.Epoch)
		}
		states[a] = s
	}
	for _, a := range inOrder(m.kernel) {
		if _, own := m.seen.entries[a]; !own && !shared[a] && m.claimed[a] == 0 {
			delete(m.kernel, a)
			w.note("  agent %s: withdraws %s", m.Name, a)
			w.must(virtualStays, !m.served[a] || !w.isServed(a, m), "%s withdraws %s", m.Name, a)
		}
	}
	m.served = map[netip.Addr]bool{}
	for a := range m.kernel {
		hasSeenAll := m.seenChanges >= m.unserved[a] && m.seen.generation >= m.unsharedSince
		m.served[a] = hasSeenAll && w.isServed(a, m)
	}
	m.unsent = report{states: states, generation: m.seen.generation, claims: maps.Clone(m.claimed)}
	if m.seen.announcesShared {
		m.unsent.revision = placement.HighestRevision(m.seenShared)
	}
	if w.isSettling || w.rng.IntN(3) > 0 {
		m.report()
	}
}

// observe lets an agent see what is asked of it, by two watches of which either may be late.
func (w *world) observe(m *machine) {
	if w.isSettling || w.rng.IntN(4) > 0 {
		m.seen = m.stored
	}
	if w.isSettling || w.rng.IntN(4) > 0 {
		from := m.seenChanges
		if m.seenChanges = len(w.sharedLog); !w.isSettling {
			m.seenChanges = from + w.rng.IntN(len(w.sharedLog)-from+1)
		}
		for _, c := range w.sharedLog[from:m.seenChanges] {
			c.apply(m.seenShared)
		}
	}
}

// realise does what an entry asks, and returns what became of it.
func (w *world) realise(m *machine, a netip.Addr, e *v1.AnnouncedAddress) v1.AddressState {
	by := w.answers(a, m)
	yieldedEpoch, hasYielded := m.yielded[a]
	switch {
	case m.kernel[a]:
		return v1.StateAnnounced
	case hasYielded && yieldedEpoch == e.Epoch && by != "":
		return v1.StateYielded
	case m.refusedByKernel[a]:
		return v1.StateFailed
	case e.HandingOver:
		return v1.StateYielded
	case e.Type == v1.AnnounceLocal && e.ClaimPolicy == v1.ClaimProbe && slices.Contains(e.PreviousMACs, by):
		return v1.StateWaiting
	case e.Type == v1.AnnounceLocal && e.ClaimPolicy == v1.ClaimProbe && by != "":
		return v1.StateConflict
	}
	m.kernel[a] = true
	if e.Type == v1.AnnounceLocal {
		w.announce(a, m)
	}
	return v1.StateAnnounced
}

// report sends the latest report.
func (m *machine) report() {
	m.reported = m.unsent
	m.reported.states = maps.Clone(m.unsent.states)
}

// answers is the MAC address by which the kernel of another node answers for an
// address, or empty. A node with two interfaces on the link answers by either.
func (w *world) answers(a netip.Addr, but *machine) string {
	for i, m := range w.machines {
		if m != but && m.kernel[a] && !m.isCutOff && !but.isCutOff {
			if b := a.As16(); (int(b[15])+i)%2 == 0 {
				return m.MACs[0]
			}
			return m.Interfaces[0].MAC
		}
	}
	return ""
}

// announce is a gratuitous claim: every other agent that is at work and may not
// defend the address gives way at once. Its report comes later.
func (w *world) announce(a netip.Addr, by *machine) {
	for _, m := range w.machines {
		if m == by || m.isCrashed || m.isIdle || !m.kernel[a] || m.isCutOff || by.isCutOff {
			continue
		}
		if e, has := m.stored.entries[a]; !has || e.HandingOver || m.Liveness == placement.Expired || m.isNodeDeleted {
			delete(m.kernel, a)
			delete(m.claimed, a)
			m.unsent.states[a] = v1.AddressStatus{Address: a.String(), State: v1.StateYielded, Epoch: e.Epoch}
			w.note("  agent %s: yields %s to %s", m.Name, a, by.Name)
		}
	}
}

// anySuccessor is a machine that is a successor, with one of the holders that it follows.
func (w *world) anySuccessor() (successor *machine, holder string) {
	successors := slices.DeleteFunc(slices.Clone(w.machines), func(m *machine) bool { return len(m.seen.follows) == 0 })
	if len(successors) == 0 {
		return nil, ""
	}
	successor = successors[w.rng.IntN(len(successors))]
	followed := inOrder(successor.seen.follows)
	return successor, successor.seen.follows[followed[w.rng.IntN(len(followed))]].holder
}

// claimAllOf has all successors of a holder claim its addresses, if nobody whom they hear answers.
func (w *world) claimAllOf(holder string) {
	for _, m := range w.machines {
		for _, a := range inOrder(m.seen.follows) {
			f := m.seen.follows[a]
			_, own := m.seen.entries[a]
			works := !m.isCrashed && !m.isIdle && !m.isLiar
			if f.holder != holder || !works || m.kernel[a] || m.refusedByKernel[a] || own || w.answers(a, m) != "" {
				continue
			}
			m.kernel[a], m.claimed[a] = true, f.epoch
			w.note("  agent %s: claims %s of %s, epoch %d", m.Name, a, holder, f.epoch)
			w.announce(a, m)
		}
	}
}

// followClaims ends claims of a machine that the manager has decided about, or that meet a higher one.
func (w *world) followClaims(m *machine) {
	for a, epoch := range m.claimed {
		f, isFollowed := m.seen.follows[a]
		_, own := m.seen.entries[a]
		meetsHigher := slices.ContainsFunc(w.machines, func(o *machine) bool {
			return o.claimed[a] > epoch && o.kernel[a] && !o.isCutOff && !m.isCutOff
		})
		switch {
		case own: // what is asked of it now counts
			delete(m.claimed, a)
		case !isFollowed || f.epoch != epoch || f.holderEpoch > epoch || meetsHigher:
			w.note("  agent %s: gives up its claim of %s, epoch %d", m.Name, a, epoch)
			delete(m.claimed, a)
			delete(m.kernel, a)
		}
	}
}

// yieldToSuccessors yields what a machine has to successors that it hears, or is asked to ask.
func (w *world) yieldToSuccessors(m *machine) {
	for _, a := range inOrder(m.seen.entries) {
		e := m.seen.entries[a]
		if !m.kernel[a] {
			continue
		}
		for _, o := range w.machines {
			by := v1.Successor{NodeName: o.Name, Epoch: o.claimed[a]}
			isAsked := e.ContestedBy != nil && e.ContestedBy.NodeName == o.Name
			hears := isAsked || slices.Contains(e.Successors, by) && (w.isSettling || w.rng.IntN(2) == 0)
			if o != m && hears && o.kernel[a] && o.claimed[a] > 0 && !o.isCutOff && !m.isCutOff {
				w.note("  agent %s: yields %s to its successor %s", m.Name, a, o.Name)
				delete(m.kernel, a)
				m.yielded[a] = e.Epoch
			}
		}
	}
}

// lie reports all addresses there are as announced, those of others, too, a revision that there
// never was, now and then an epoch of which there is none higher, a subnet that no node is in, and
// that the machine has claimed all that it follows, and what others follow.
func (w *world) lie(m *machine) {
	clear(m.kernel)
	clear(m.claimed)
	m.reported = report{
		states: map[netip.Addr]v1.AddressStatus{}, generation: m.stored.generation, revision: 1 << 60,
		claims: map[netip.Addr]int64{},
	}
	for i := range 30 {
		for _, a := range []netip.Addr{
			netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), netip.MustParseAddr(fmt.Sprintf("fd00::%d", i+1)),
			netip.AddrFrom4([4]byte{10, 8, 0, byte(i)}),
		} {
			s := v1.AddressStatus{Address: a.String(), State: v1.StateAnnounced, Epoch: m.stored.entries[a].Epoch}
			if i%5 == 0 {
				s.Epoch = 1 << 60
			}
			m.reported.states[a] = s
		}
	}
	if len(m.Interfaces) == 1 {
		m.Interfaces = append(m.Interfaces, placement.Interface{
			Name: "eth9", MAC: m.Interfaces[0].MAC, Subnets: []netip.Prefix{unattachedSubnet},
		})
	}
	if !w.isSettling { // or it would go on for ever
		for _, o := range append(slices.Clone(w.machines), m) {
			for a, f := range o.stored.follows {
				m.reported.claims[a] = f.epoch
			}
		}
	}
	m.unsent = m.reported
}
