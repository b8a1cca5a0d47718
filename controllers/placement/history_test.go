package placement_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// world is a cluster in which agents follow their entries with delay.
type world struct {
	t         *testing.T
	rng       *rand.Rand
	nodes     []*machine
	addresses []placement.Address
	last      placement.Result
	commons   map[string]v1.CommonAnnouncementSpec
	// commonLog is all that has become of them, in the order of the API server's watch.
	commonLog []commonChange
	settling  bool // nobody is late
	log       []string
}

// commonChange is a CommonAnnouncement that was written or, if spec is nil, deleted.
type commonChange struct {
	name string
	spec *v1.CommonAnnouncementSpec
}

// machine is a node, its kernel and its agent.
type machine struct {
	placement.Node
	// crashed is that the agent does nothing; the kernel serves on.
	crashed bool
	// broken is addresses that the kernel refuses.
	broken map[netip.Addr]bool
	kernel map[netip.Addr]bool

	spec       map[netip.Addr]v1.AnnouncedAddress
	joins      bool
	generation int
	// What the agent has seen of it, and of what is common: not always the latest.
	view    view
	commons map[string]v1.CommonAnnouncementSpec
	changes int // of the world's, that it has seen
	// made is the revision that it reports.
	made int64

	status   map[netip.Addr]v1.AddressStatus
	observed int
	// unsent is a report that the API server has not got yet.
	unsent         map[netip.Addr]v1.AddressStatus
	unsentRevision int64
	seen           int
	// served is the Virtual addresses that it was to have all the time since it last
	// looked.
	served map[netip.Addr]bool
}

// view is what an agent has seen of its own Announcement.
type view struct {
	spec       map[netip.Addr]v1.AnnouncedAddress
	joins      bool
	generation int
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

// facts reads the Announcements as controllers/facts.go does.
func (w *world) facts() placement.Facts {
	f := placement.Facts{Addresses: slices.Clone(w.addresses), Lingering: map[netip.Addr][]string{}}
	for _, c := range w.commons {
		for _, e := range c.Addresses {
			f.Common = append(f.Common, placement.CommonEntry{Agent: c.LBNodeAgent, Addr: netip.MustParseAddr(e.Address), Spec: e})
		}
	}
	for _, m := range w.nodes {
		n := m.Node
		n.CommonRevision = m.made
		f.Nodes = append(f.Nodes, n)
		for addr, spec := range m.spec {
			e := placement.Entry{Node: m.Name, Addr: addr, Spec: spec, Observed: m.observed >= m.generation}
			if s, ok := m.status[addr]; ok && s.Epoch == spec.Epoch {
				e.State = s.State
			}
			f.Entries = append(f.Entries, e)
		}
		for addr, s := range m.status {
			if _, wanted := m.spec[addr]; !wanted && s.State == v1.StateAnnounced {
				f.Lingering[addr] = append(f.Lingering[addr], m.Name)
			}
		}
	}
	return f
}

func shuffled(rng *rand.Rand, f placement.Facts) placement.Facts {
	swap := func(n int, s func(i, j int)) { rng.Shuffle(n, s) }
	f.Nodes, f.Entries, f.Addresses, f.Common = slices.Clone(f.Nodes), slices.Clone(f.Entries), slices.Clone(f.Addresses), slices.Clone(f.Common)
	swap(len(f.Common), func(i, j int) { f.Common[i], f.Common[j] = f.Common[j], f.Common[i] })
	swap(len(f.Nodes), func(i, j int) { f.Nodes[i], f.Nodes[j] = f.Nodes[j], f.Nodes[i] })
	swap(len(f.Entries), func(i, j int) { f.Entries[i], f.Entries[j] = f.Entries[j], f.Entries[i] })
	swap(len(f.Addresses), func(i, j int) { f.Addresses[i], f.Addresses[j] = f.Addresses[j], f.Addresses[i] })
	lingering := map[netip.Addr][]string{}
	for a, names := range f.Lingering {
		names = slices.Clone(names)
		swap(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		lingering[a] = names
	}
	f.Lingering = lingering
	return f
}

// place is one round of the manager. It reports whether anything was written.
func (w *world) place() bool {
	facts := w.facts()
	result := placement.Place(facts)
	if diff := cmp.Diff(result, placement.Place(shuffled(w.rng, facts)), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		w.fail("facts in another order give another result:\n%s", diff)
	}
	w.check(&facts, &result)
	w.last = result
	changed := w.revise(result.Common["default"])
	for _, m := range w.nodes {
		spec := map[netip.Addr]v1.AnnouncedAddress{}
		for _, e := range result.Entries[m.Name] {
			a := netip.MustParseAddr(e.Address)
			if _, twice := spec[a]; twice {
				w.fail("%s has two entries for %s", m.Name, a)
			}
			spec[a] = e
		}
		if joins := result.Joins[m.Name]; joins != m.joins {
			w.note("  manager: %s joins %t", m.Name, joins)
			m.joins, changed = joins, true
			m.generation++
		}
		if !cmp.Equal(m.spec, spec, cmpopts.EquateEmpty()) {
			for a := range w.changes(m.spec, spec) {
				w.note("  manager: %s on %s: %s -> %s", a, m.Name, short(m.spec, a), short(spec, a))
			}
			m.spec, changed = spec, true
			m.generation++
		}
	}
	return changed
}

// revise writes what is common.
func (w *world) revise(wanted []v1.AnnouncedAddress) bool {
	before, highest := len(w.commonLog), placement.Highest(w.commons)
	changed := placement.Revise("default", len(w.nodes), highest, wanted, w.commons)
	for name, spec := range w.commons { // as controllers/placement_controller.go does
		if _, written := changed[name]; !written && len(spec.Addresses) == 0 && name != "default" && spec.Revision < highest {
			w.commonLog = append(w.commonLog, commonChange{name: name})
			w.note("  manager: common %s is deleted", name)
		}
	}
	for name, spec := range changed {
		for _, c := range w.commonLog {
			if c.spec != nil && c.spec.Revision >= spec.Revision {
				w.fail("%s: revision %d after %d", name, spec.Revision, c.spec.Revision)
			}
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(changed), func(a, b string) int { return int(changed[a].Revision - changed[b].Revision) }) {
		spec := changed[name]
		w.commonLog = append(w.commonLog, commonChange{name, &spec})
		w.note("  manager: common %s is %v, revision %d", name, addressesOf(spec), spec.Revision)
	}
	for _, c := range w.commonLog[before:] {
		c.apply(w.commons)
	}
	if again := placement.Revise("default", len(w.nodes), placement.Highest(w.commons), wanted, w.commons); len(again) > 0 {
		w.fail("what is common is written a second time: %v", again)
	}
	return len(changed) > 0
}

func (c commonChange) apply(to map[string]v1.CommonAnnouncementSpec) {
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

// eligible is the reference: who may have a Local address at all.
func eligible(n *placement.Node) bool {
	return n.Agent != "" && !n.Leaving && !n.Excluded && !n.OutOfService && !n.ShuttingDown && n.Liveness != placement.Expired && !n.Interfaces[0].Down
}

// serves reports whether an address's traffic may go to a node. strictly is
// whether it may not if it may go to no node.
func serves(a *placement.Address, node string, strictly bool) bool {
	return a.Only == nil || a.Only[node] || !strictly && len(a.Only) == 0
}

// check compares one result with the facts that it was decided from.
func (w *world) check(facts *placement.Facts, result *placement.Result) {
	node := map[string]*placement.Node{}
	for i := range facts.Nodes {
		node[facts.Nodes[i].Name] = &facts.Nodes[i]
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
	for _, e := range facts.Entries {
		if state[e.Addr] == nil {
			state[e.Addr] = map[string]placement.Entry{}
		}
		state[e.Addr][e.Node] = e
	}
	running, expired := 0, 0
	for _, n := range node {
		if n.Agent != "" && !n.OutOfService {
			running++
			if n.Liveness == placement.Expired {
				expired++
			}
		}
	}
	mass := 2*expired > running
	locals, load := map[int]int{}, map[int]map[string]int{32: {}, 128: {}}
	winner := map[netip.Addr]string{}
	for _, a := range facts.Addresses {
		if a.PoolType == v1.PoolTypeRemote {
			continue
		}
		locals[a.Addr.BitLen()]++
		best := int64(-1)
		for name, e := range after[a.Addr] {
			if state[a.Addr][name].State != v1.StateFailed && e.Epoch > best {
				winner[a.Addr], best = name, e.Epoch
			}
		}
		load[a.Addr.BitLen()][winner[a.Addr]]++
	}

	for _, a := range facts.Addresses {
		entries, before := after[a.Addr], state[a.Addr]
		if a.PoolType == v1.PoolTypeRemote {
			for name, n := range node {
				_, own := entries[name]
				common := result.Joins[name] && slices.ContainsFunc(result.Common[n.Agent], func(e v1.AnnouncedAddress) bool { return e.Address == a.Addr.String() })
				// Where all have it, some keep it for a moment that are not to have it.
				wanted := n.Agent != "" && !n.Leaving && !n.Excluded && serves(&a, name, true)
				if wanted && !own && !common || own && !wanted {
					w.fail("virtual %s: on %s it is %t, and in common %t", a.Addr, name, own, common)
				}
			}
			continue
		}

		// The one holder there is.
		var holder string
		highest, top := int64(-1), int64(0)
		for name, e := range before {
			top = max(top, e.Spec.Epoch)
			if e.State == v1.StateAnnounced && e.Spec.Epoch > highest {
				holder, highest = name, e.Spec.Epoch
			}
		}

		epochs := map[int64]string{}
		var free []string // those who may answer and defend: neither leaving, nor waiting, nor failed, nor away
		for name, e := range entries {
			if other, twice := epochs[e.Epoch]; twice {
				w.fail("%s: %s and %s have epoch %d", a.Addr, name, other, e.Epoch)
			}
			epochs[e.Epoch] = name
			was, had := before[name]
			if e.Claim == v1.ClaimTakeover && had && was.Spec.Claim == v1.ClaimProbe && holder != "" && node[holder].Liveness == placement.Expired && mass {
				w.fail("%s: %s takes over although most Leases have expired", a.Addr, name)
			}
			realised := had && was.State == v1.StateAnnounced && was.Spec.Epoch == e.Epoch
			failed := had && was.State == v1.StateFailed && was.Spec.Epoch == e.Epoch
			waits := e.Claim == v1.ClaimProbe && !realised
			if !e.Leaving && !waits && !failed && node[name].Liveness != placement.Expired {
				free = append(free, name)
			}
			if e.Claim == v1.ClaimTakeover && !had && holder != "" && node[holder].Liveness != placement.Expired {
				was := before[holder]
				if now, ok := entries[holder]; ok && (!now.Leaving || !was.Spec.Leaving || !was.Observed) {
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
		if _, has := entries[holder]; holder != "" && !has && !node[holder].Leaving {
			w.fail("%s: the holder %s lost its entry", a.Addr, holder)
		}
		// An address does not lose its last place, but by nodes that leave.
		staying := 0
		for name := range before {
			if !node[name].Leaving {
				staying++
			}
		}
		gone := holder != "" && node[holder].Leaving
		if staying > 0 && !gone && len(entries) == 0 && len(facts.Lingering[a.Addr]) == 0 {
			w.fail("%s: had %v and now has no entry at all", a.Addr, before)
		}

		// New choices.
		for name, e := range entries {
			if _, had := before[name]; had && before[name].Spec.Epoch == e.Epoch {
				continue
			}
			if e.Epoch != top+1 {
				w.fail("%s: a new entry on %s has epoch %d after %d", a.Addr, name, e.Epoch, top)
			}
			if node[name].Liveness != placement.Fresh || !eligible(node[name]) || !serves(&a, name, true) {
				w.fail("%s: newly given to %s, which may not have it", a.Addr, name)
			}
			candidates := 0
			for other, n := range node {
				if other != holder && eligible(n) && serves(&a, other, true) && n.Liveness == placement.Fresh && before[other].State != v1.StateFailed {
					candidates++
				}
			}
			bits := a.Addr.BitLen()
			share := (locals[bits] + candidates - 1) / candidates
			if got := load[bits][name]; got > share+1 && !slices.Contains(facts.Lingering[a.Addr], name) {
				w.fail("%s: newly given to %s, which then has %d of %d among %d", a.Addr, name, got, locals[bits], candidates)
			}
		}
	}
}

// look lets an agent see what is asked of it, by two watches of which either may be
// late.
func (w *world) look(m *machine) {
	if w.settling || w.rng.IntN(4) > 0 {
		m.view = view{m.spec, m.joins, m.generation}
	}
	if w.settling || w.rng.IntN(4) > 0 {
		seen := m.changes
		if m.changes = len(w.commonLog); !w.settling {
			m.changes = seen + w.rng.IntN(len(w.commonLog)-seen+1)
		}
		for _, c := range w.commonLog[seen:m.changes] {
			c.apply(m.commons)
		}
	}
}

// isServed reports whether a Virtual address is to be on a node whatever happens.
func (w *world) isServed(a netip.Addr, m *machine) bool {
	return m.Agent != "" && !m.Leaving && !m.Excluded && slices.ContainsFunc(w.addresses, func(b placement.Address) bool {
		return b.Addr == a && b.PoolType == v1.PoolTypeRemote && serves(&b, m.Name, true)
	})
}

// sync is one round of a node's agent.
func (w *world) sync(m *machine) {
	if m.crashed || m.Agent == "" && len(m.spec) == 0 && len(m.kernel) == 0 {
		return
	}
	w.look(m)
	status, common := map[netip.Addr]v1.AddressStatus{}, map[netip.Addr]v1.AnnouncedAddress{}
	if m.view.joins {
		for _, c := range m.commons {
			for _, e := range c.Addresses {
				common[netip.MustParseAddr(e.Address)] = e
			}
		}
	}
	for a := range common {
		m.kernel[a] = true
	}
	for a, e := range m.view.spec {
		was := m.unsent[a]
		now := v1.AddressStatus{Address: e.Address, Epoch: e.Epoch, State: v1.StateAnnounced}
		switch {
		case m.kernel[a]:
		case m.broken[a]:
			now.State = v1.StateFailed
		case e.Leaving:
			now.State = v1.StateYielded
		case e.Type == v1.AnnounceLocal && e.Claim == v1.ClaimProbe && w.answers(a, m):
			now.State = v1.StateStandby
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
		if _, inCommon := common[a]; !own && !inCommon {
			delete(m.kernel, a)
			w.note("  agent %s: withdraws %s", m.Name, a)
			if m.served[a] && w.isServed(a, m) {
				w.fail("%s withdraws %s, which it is to have, before and after", m.Name, a)
			}
		}
	}
	m.served = map[netip.Addr]bool{}
	for a := range m.kernel {
		m.served[a] = w.isServed(a, m)
	}
	m.unsent, m.seen, m.unsentRevision = status, m.view.generation, 0
	if m.view.joins {
		m.unsentRevision = placement.Highest(m.commons)
	}
	if w.rng.IntN(3) > 0 {
		m.report()
	}
}

func (m *machine) report() {
	m.status, m.observed, m.made = maps.Clone(m.unsent), m.seen, m.unsentRevision
}

// answers reports whether the kernel of another node has the address.
func (w *world) answers(a netip.Addr, but *machine) bool {
	return slices.ContainsFunc(w.nodes, func(m *machine) bool { return m != but && m.kernel[a] })
}

// claimed is a gratuitous claim: every other agent that is at work and may not
// defend the address gives way at once. Its report comes later.
func (w *world) claimed(a netip.Addr, by *machine) {
	for _, m := range w.nodes {
		if m == by || m.crashed || !m.kernel[a] {
			continue
		}
		if e, has := m.spec[a]; !has || e.Leaving || m.Liveness == placement.Expired {
			delete(m.kernel, a)
			m.unsent[a] = v1.AddressStatus{Address: a.String(), State: v1.StateYielded, Epoch: e.Epoch}
			w.note("  agent %s: yields %s to %s", m.Name, a, by.Name)
		}
	}
}

func newWorld(t *testing.T, rng *rand.Rand) *world {
	w := &world{t: t, rng: rng, commons: map[string]v1.CommonAnnouncementSpec{}}
	for i := range 2 + rng.IntN(5) {
		name := fmt.Sprintf("node%d", i)
		m := &machine{
			Node: placement.Node{
				Name: name, Agent: "default", VirtualInterface: "kube-lb0", Liveness: placement.Fresh, Reported: true,
				Interfaces: []placement.Interface{{Name: "eth0", MAC: fmt.Sprintf("02:00:00:00:00:%02x", i), Subnets: []netip.Prefix{
					netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(200 + i)}), 24), netip.MustParsePrefix("fd00::/64")}}},
			},
			broken: map[netip.Addr]bool{}, kernel: map[netip.Addr]bool{}, status: map[netip.Addr]v1.AddressStatus{}, unsent: map[netip.Addr]v1.AddressStatus{},
			commons: map[string]v1.CommonAnnouncementSpec{},
		}
		w.nodes = append(w.nodes, m)
	}
	if rng.IntN(4) == 0 { // so many that there are several CommonAnnouncements
		for i := range 25 {
			w.addresses = append(w.addresses, placement.Address{Addr: netip.AddrFrom4([4]byte{10, 9, 1, byte(1 + i)}), Group: "g", PoolType: v1.PoolTypeRemote, Mask: 24, Services: []string{"a/b"}})
		}
	}
	return w
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
	}
	if !slices.ContainsFunc(w.addresses, func(b placement.Address) bool { return b.Addr == a.Addr }) {
		w.addresses = append(w.addresses, a)
		w.note("address %s", a.Addr)
	}
}

// disturb does one random thing.
func (w *world) disturb() {
	defer func() {
		for _, m := range w.nodes {
			maps.DeleteFunc(m.served, func(a netip.Addr, _ bool) bool { return !w.isServed(a, m) })
		}
	}()
	m := w.nodes[w.rng.IntN(len(w.nodes))]
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
		m.crashed = true
		w.note("%s: agent crashes", m.Name)
	case 5, 6:
		m.crashed, m.Liveness = false, placement.Fresh
		w.note("%s: agent is back", m.Name)
	case 7:
		m.crashed, m.Liveness = true, placement.Late
		w.note("%s: agent is late", m.Name)
	case 8:
		m.crashed, m.Liveness = true, placement.Expired
		w.note("%s: Lease expires", m.Name)
	case 9:
		m.Sick = !m.Sick
		w.note("%s: Sick %t", m.Name, m.Sick)
	case 10:
		m.Excluded = !m.Excluded
		w.note("%s: Excluded %t", m.Name, m.Excluded)
	case 11:
		m.OutOfService = !m.OutOfService
		w.note("%s: OutOfService %t", m.Name, m.OutOfService)
	case 12:
		m.crashed, m.Liveness, m.Sick = true, placement.Expired, true
		clear(m.kernel)
		w.note("%s: power fails", m.Name)
	case 13:
		if m.Agent == "" {
			m.Agent = "default"
		} else {
			m.Agent = ""
		}
		w.note("%s: Agent %q", m.Name, m.Agent)
	case 14:
		if len(w.addresses) > 0 {
			a := w.addresses[w.rng.IntN(len(w.addresses))].Addr
			m.broken[a] = !m.broken[a]
			w.note("%s: %s broken %t", m.Name, a, m.broken[a])
		}
	case 16:
		m.Leaving = !m.Leaving
		w.note("%s: Leaving %t", m.Name, m.Leaving)
	case 17:
		m.Interfaces[0].Down = !m.Interfaces[0].Down
		w.note("%s: Down %t", m.Name, m.Interfaces[0].Down)
	case 18, 19:
		w.moveEndpoints()
	case 15:
		m.ShuttingDown = !m.ShuttingDown
		w.note("%s: ShuttingDown %t", m.Name, m.ShuttingDown)
	}
}

// moveEndpoints changes which nodes serve an address.
func (w *world) moveEndpoints() {
	if len(w.addresses) == 0 {
		return
	}
	a := &w.addresses[w.rng.IntN(len(w.addresses))]
	a.Only = nil
	if w.rng.IntN(3) > 0 {
		a.Only = map[string]bool{}
		for _, m := range w.nodes {
			if w.rng.IntN(3) == 0 {
				a.Only[m.Name] = true
			}
		}
	}
	w.note("%s: served by %v", a.Addr, a.Only)
}

// settle lets everybody work until nothing changes.
func (w *world) settle() {
	w.note("settling")
	w.settling = true
	defer func() { w.settling = false }()
	for _, m := range w.nodes {
		// What is late is decided sooner or later.
		if m.Liveness == placement.Late {
			m.crashed, m.Liveness = false, placement.Fresh
		}
		if m.Liveness == placement.Fresh {
			m.crashed = false
		}
	}
	const most = 40
	for range most {
		changed := w.place()
		for _, m := range w.nodes {
			before, kernel := m.status, len(m.kernel)
			w.sync(m)
			if !m.crashed {
				m.report()
			}
			changed = changed || !cmp.Equal(before, m.status, cmpopts.EquateEmpty()) || kernel != len(m.kernel)
		}
		if !changed {
			w.settled()
			return
		}
	}
	w.fail("does not settle")
}

// settled checks what has become of each Local address.
func (w *world) settled() {
	for _, a := range w.addresses {
		if a.PoolType == v1.PoolTypeRemote {
			for _, m := range w.nodes {
				if own, inCommon := m.spec[a.Addr], w.last.Joins[m.Name] && slices.Contains(addressesOf(v1.CommonAnnouncementSpec{Addresses: w.last.Common["default"]}), a.Addr.String()); !m.crashed && inCommon && own.Address != "" {
					w.fail("%s: %s has it by itself and in common", a.Addr, m.Name)
				}
				if !m.crashed && !m.broken[a.Addr] && m.kernel[a.Addr] != w.isServed(a.Addr, m) {
					w.fail("%s: on %s it is %t", a.Addr, m.Name, m.kernel[a.Addr])
				}
			}
			continue
		}
		var can, has []string
		kernelAway := false
		for _, m := range w.nodes {
			if eligible(&m.Node) && serves(&a, m.Name, true) && !m.broken[a.Addr] {
				can = append(can, m.Name)
			}
			if m.kernel[a.Addr] && m.Liveness != placement.Expired {
				has = append(has, m.Name)
			}
			kernelAway = kernelAway || m.kernel[a.Addr] && m.Liveness == placement.Expired
		}
		if len(has) > 1 {
			w.fail("%s: %v all have it", a.Addr, has)
		}
		if len(can) > 0 && len(has) == 0 && !kernelAway {
			w.fail("%s: nobody has it, but %v could; %v", a.Addr, can, w.last.Unplaced[a.Addr])
		}
		if len(can) == 0 && len(has) == 0 && !kernelAway && w.last.Unplaced[a.Addr].Reason == "" {
			w.fail("%s: nobody has it, and nothing says why", a.Addr)
		}
	}
}

func TestHistories(t *testing.T) {
	const histories, steps = 400, 120
	for seed := range uint64(histories) {
		history(t, seed, steps)
	}
}

func history(t *testing.T, seed uint64, steps int) {
	t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
		rng := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(t, rng)
		for range 1 + rng.IntN(12) {
			w.addAddress()
		}
		for range steps {
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
