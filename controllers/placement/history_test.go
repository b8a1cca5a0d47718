package placement_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/partialwrite"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// A history is a small cluster in which the manager decides, agents act, late or not at all, and
// one step of the table below happens after another, in any order. What must hold all the time
// is listed in history_invariants_test.go; the manager and the agents are in
// history_manager_test.go and history_agent_test.go.

// kind is what may happen in a history besides what happens every day.
type kind int

const (
	// withDeletions is that a user deletes Announcements, past the policy that refuses that.
	withDeletions kind = 1 << iota
	// withFaults is that agents renew and do nothing else, that one lies, that Nodes are deleted
	// and answer on, that writes are refused, and that a leader is late to notice that it is none
	// any more.
	withFaults
	// withNames is that holders' entries name their successors.
	withNames
	// withClaims is that successors claim addresses, of dead holders and, where they are cut off
	// on the link, of living ones.
	withClaims
	// withPreferences is that the ServiceGroup prefers nodes and spreads its addresses, and changes
	// its mind.
	withPreferences
)

// step is something that happens to the cluster, or to one machine.
type step struct {
	name   string
	weight int
	// in is the kind of histories in which the step happens; 0 is all.
	in kind
	// do returns what the log says of the step besides its name and machine.
	do func(*world, *machine) string
}

// steps are those beside the decisions of the manager and the work of the agents.
var steps = []step{
	{"a Service gets an address", 6, 0, addAddress},
	{"a Service goes", 2, 0, removeAddress},
	{"its endpoints move", 4, 0, moveEndpoints},
	{"the agent crashes, and the kernel serves on", 2, 0, does(func(m *machine) { m.isCrashed = true })},
	{"the agent is late to renew", 2, 0, does(func(m *machine) { m.isCrashed, m.Liveness = true, placement.Late })},
	{"the Lease expires", 2, 0, does(func(m *machine) { m.isCrashed, m.Liveness = true, placement.Expired })},
	{"power fails", 2, 0, does(powerFails)},
	{"the agent is back", 4, 0, does(agentIsBack)},
	{"NotReady for long", 2, 0, toggles(func(m *machine) *bool { return &m.IsNotReadyForLong })},
	{"excluded", 2, 0, toggles(func(m *machine) *bool { return &m.IsExcluded })},
	{"cordoned", 3, 0, toggles(func(m *machine) *bool { return &m.HandsOverAsCordoned })},
	{"out of service", 2, 0, toggles(func(m *machine) *bool { return &m.IsOutOfService })},
	{"asked to hand an address over", 4, 0, askForHandover},
	{"shutting down", 2, 0, toggles(func(m *machine) *bool { return &m.IsShuttingDown })},
	{"leaving its LBNodeAgent", 2, 0, toggles(func(m *machine) *bool { return &m.IsLeaving })},
	{"without carrier", 2, 0, toggles(func(m *machine) *bool { return &m.Interfaces[0].IsDown })},
	{"runs an agent of", 2, 0, func(_ *world, m *machine) string {
		m.LBNodeAgent = map[string]string{"": "default"}[m.LBNodeAgent]
		return m.LBNodeAgent
	}},
	{"the kernel refuses an address", 2, 0, func(w *world, m *machine) string {
		return w.toggleRefusal(m.refusedByKernel)
	}},

	{"a user deletes the Announcement", 13, withDeletions, deleteAnnouncement},

	{"the agent renews, and does nothing else", 3, withFaults, does(func(m *machine) {
		m.isIdle, m.isCrashed, m.Liveness = true, false, placement.Fresh
	})},
	{"the agent becomes a liar, if there is none", 3, withFaults, becomeLiar},
	{"the Node object is deleted", 3, withFaults, does(func(m *machine) {
		m.isNodeDeleted, m.Liveness = true, placement.Expired
	})},
	{"the API server refuses an address", 3, withFaults, func(w *world, _ *machine) string {
		return w.toggleRefusal(w.refusedByServer)
	}},
	{"the leader pauses, or writes what it had decided from", 3, withFaults, pauseLeader},

	{"the ServiceGroup prefers other nodes", 13, withPreferences, preferOthers},

	{"the node is on the link again", 13, withClaims, does(func(m *machine) { m.isCutOff = false })},
	{"a successor is cut off, and takes its holder for dead", 13, withClaims, cutOffSuccessor},
	{"a holder dies, and its successors notice", 13, withClaims, killHolder},
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

func TestHistories(t *testing.T) { playHistories(t, histories(), 0) }

// TestFaultDeletionHistories has a user delete Announcements.
func TestFaultDeletionHistories(t *testing.T) { playHistories(t, histories(), withDeletions) }

// TestFaultHistories has faults and attacks, of all kinds at once.
func TestFaultHistories(t *testing.T) { playHistories(t, histories(), withFaults) }

// TestSuccessorHistories names successors in all kinds of histories.
func TestSuccessorHistories(t *testing.T) {
	playHistories(t, histories()/2, withNames, withNames|withFaults)
}

// TestPreferenceHistories has a ServiceGroup prefer some nodes, and then others.
func TestPreferenceHistories(t *testing.T) {
	playHistories(t, histories()/2, withPreferences, withPreferences|withFaults)
}

// TestClaimHistories has successors claim addresses; with faults, one node lies about that.
func TestClaimHistories(t *testing.T) {
	count := max(100, int(histories()/2)) // in fewer none may be refuted
	adopted, refuted := playHistories(t, uint64(count), withNames|withClaims, withNames|withClaims|withFaults)
	if adopted < count/2 || refuted < count/20 {
		t.Errorf("%d claims were adopted, and %d refuted, in %d histories", adopted, refuted, count)
	}
}

// playHistories plays histories of some kinds in turn, and returns how many claims of successors
// were adopted and refuted.
func playHistories(t *testing.T, count uint64, kinds ...kind) (adopted, refuted int) {
	for seed := range count {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			w := newWorld(t, rand.New(rand.NewPCG(seed, 1)), kinds[seed%uint64(len(kinds))])
			for range historySteps {
				w.now = w.now.Add(time.Duration(w.rng.Int64N(int64(400 * time.Millisecond))))
				switch w.rng.IntN(4) {
				case 0:
					w.takeStep()
				case 1:
					w.place()
				default:
					w.sync(w.anyMachine())
				}
				if w.rng.IntN(40) == 0 {
					w.settle()
				}
			}
			w.settle()
			adopted, refuted = adopted+w.adopted, refuted+w.refuted
		})
	}
	return adopted, refuted
}

// takeStep takes a step of the table.
func (w *world) takeStep() {
	var possible []step
	for _, s := range steps {
		if s.in == 0 || s.in&w.kind != 0 {
			possible = append(possible, slices.Repeat([]step{s}, s.weight)...)
		}
	}
	m, s := w.anyMachine(), possible[w.rng.IntN(len(possible))]
	w.note("%s: %s", m.Name, s.name)
	w.note("  %s", s.do(w, m))
	w.noteUnserved()
}

// settle lets everybody work until nothing changes any more, and checks what became of each
// address. What is late is decided before: an agent that renews works. No random number is drawn meanwhile, so what
// happens afterwards does not depend on how many rounds that takes.
func (w *world) settle() {
	w.note("settling")
	w.isSettling = true
	defer func() { w.isSettling = false }()
	for _, m := range w.machines {
		m.isCutOff = false
		if m.Liveness == placement.Late {
			m.Liveness = placement.Fresh
		}
		m.isCrashed = m.isCrashed && m.Liveness != placement.Fresh
	}
	const most = 80
	for range most {
		w.now = w.now.Add(3 * time.Second)
		changed := w.place()
		for _, m := range w.machines {
			before, kernel := m.reported, len(m.kernel)
			w.sync(m)
			if !m.isCrashed && !m.isIdle && !m.hasNoAnnouncement {
				m.report()
			}
			changed = changed || kernel != len(m.kernel) || !before.saysAlike(m.reported)
		}
		if !changed && w.isHeldBack() { // what is refused no more is tried again later
			w.now = w.now.Add(w.refusals.UntilRetry(w.now))
			continue
		}
		next := nextDeadline(w.inputs())
		if !changed && next == 0 {
			w.checkSettled()
			return
		}
		if !changed {
			w.now = w.now.Add(next)
		}
	}
	w.must(comesToRest, false, "not after %d rounds", most)
}

// saysAlike reports whether two reports say the same, whichever generation they are of.
func (r report) saysAlike(other report) bool {
	return r.revision == other.revision && maps.Equal(r.states, other.states) && maps.Equal(r.claims, other.claims)
}

// world is the cluster.
type world struct {
	t         *testing.T
	rng       *rand.Rand
	kind      kind
	now       time.Time
	log       []string
	machines  []*machine
	addresses []placement.Address
	// preference of the ServiceGroup of all addresses; nil for none.
	preference *placement.Preference
	// everUsed are all addresses that there ever were.
	everUsed map[netip.Addr]bool
	// isSettling is that no agent is late.
	isSettling bool

	// shared are the CommonAnnouncements, and sharedLog all their changes, in the order of the
	// API server's watch.
	shared    map[string]v1.CommonAnnouncementSpec
	sharedLog []sharedChange
	// refusedByServer are the addresses whose entries the API server refuses.
	refusedByServer map[netip.Addr]bool

	clocks   placement.Clocks
	refusals partialwrite.Refusals
	// last is what was decided last, and round counts the rounds of writes.
	last  placement.Result
	round int
	// pausedLeader is what an earlier leader has decided from, and is yet to write.
	pausedLeader *pausedLeader

	// givenEpochs says which node was given each epoch of an address.
	givenEpochs map[netip.Addr]map[int64]givenEpoch
	// adopted is how many claims were adopted, and refuted how many were not.
	adopted, refuted int
}

// newWorld is a cluster of two to six nodes with up to twelve addresses, or with so many that
// there are several CommonAnnouncements.
func newWorld(t *testing.T, rng *rand.Rand, kind kind) *world {
	w := &world{
		t: t, rng: rng, kind: kind, now: time.Unix(1000, 0), shared: map[string]v1.CommonAnnouncementSpec{},
		everUsed: map[netip.Addr]bool{}, refusedByServer: map[netip.Addr]bool{},
		givenEpochs: map[netip.Addr]map[int64]givenEpoch{},
	}
	for i := range 2 + rng.IntN(5) {
		w.machines = append(w.machines, newMachine(i))
	}
	if rng.IntN(4) == 0 {
		for i := range 25 {
			w.use(placement.Address{Addr: netip.AddrFrom4([4]byte{10, 9, 1, byte(1 + i)}), PoolType: v1.PoolTypeRemote})
		}
	}
	for range 1 + rng.IntN(12) {
		addAddress(w, nil)
	}
	return w
}

// use gives a Service an address, if no other has it.
func (w *world) use(a placement.Address) {
	if !slices.ContainsFunc(w.addresses, func(b placement.Address) bool { return b.Addr == a.Addr }) {
		a.Group, a.Mask, a.Services = "g", 24, []string{"a/b"}
		if a.Addr.Is6() {
			a.Mask = 64
		}
		a.Preference = w.preference
		w.addresses = append(w.addresses, a)
		w.everUsed[a.Addr] = true
	}
}

// preferOthers changes what the ServiceGroup of all addresses says of nodes.
func preferOthers(w *world, _ *machine) string {
	w.preference = &placement.Preference{}
	for range w.rng.IntN(3) {
		tier := labels.SelectorFromSet(labels.Set{"tier": fmt.Sprint(w.rng.IntN(3))})
		w.preference.Nodes = append(w.preference.Nodes, placement.PreferredNodes{Weight: 1 + w.rng.IntN(3), Selector: tier})
	}
	if w.rng.IntN(2) == 0 {
		w.preference.TopologyKey = "zone"
	}
	for i := range w.addresses {
		w.addresses[i].Preference = w.preference
	}
	return fmt.Sprint(w.preference)
}

// unattachedSubnet is the subnet of a local pool that no node is in: its addresses are Virtual.
var unattachedSubnet = netip.MustParsePrefix("10.8.0.0/24")

// isOfVirtualPool reports whether an address is Virtual unless an agent lies about its subnets.
func isOfVirtualPool(a *placement.Address) bool {
	return a.PoolType == v1.PoolTypeRemote || a.Subnet == unattachedSubnet
}

func (w *world) anyMachine() *machine { return w.machines[w.rng.IntN(len(w.machines))] }

// anyAddress is an address in use or, if there is none, one that does not matter.
func (w *world) anyAddress() *placement.Address {
	if len(w.addresses) == 0 {
		return &placement.Address{}
	}
	return &w.addresses[w.rng.IntN(len(w.addresses))]
}

func (w *world) note(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

// does is a step that changes a machine and has nothing more to say.
func does(change func(*machine)) func(*world, *machine) string {
	return func(_ *world, m *machine) string {
		change(m)
		return ""
	}
}

// toggles is a step that makes something of a machine true, or false if it is.
func toggles(flag func(*machine) *bool) func(*world, *machine) string {
	return func(_ *world, m *machine) string {
		*flag(m) = !*flag(m)
		return fmt.Sprint(*flag(m))
	}
}

// addAddress uses an address of one of the pools: a third are IPv6 or remote, and some are of a
// local pool that no node is in.
func addAddress(w *world, _ *machine) string {
	i := w.rng.IntN(24)
	a := placement.Address{Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + i)}), PoolType: v1.PoolTypeLocal}
	switch {
	case i%4 == 0:
		a.Addr = netip.MustParseAddr(fmt.Sprintf("fd00::%d", 1+i))
	case i%4 == 1:
		a.Addr, a.PoolType = netip.AddrFrom4([4]byte{10, 9, 0, byte(1 + i)}), v1.PoolTypeRemote
	case i%4 == 2 && i > 12:
		a.Addr, a.Subnet = netip.AddrFrom4([4]byte{10, 8, 0, byte(1 + i)}), unattachedSubnet
	}
	w.use(a)
	return a.Addr.String()
}

// askForHandover asks a node for the handover of an address that it may have or not, or for none any more.
func askForHandover(w *world, m *machine) string {
	if m.AddressToHandOver.IsValid() {
		m.AddressToHandOver = netip.Addr{}
		return "no more"
	}
	m.AddressToHandOver = w.anyAddress().Addr
	return m.AddressToHandOver.String()
}

func removeAddress(w *world, _ *machine) string {
	gone := w.anyAddress().Addr
	w.addresses = slices.DeleteFunc(w.addresses, func(a placement.Address) bool { return a.Addr == gone })
	return gone.String()
}

// moveEndpoints changes which nodes serve an address: any, some or none.
func moveEndpoints(w *world, _ *machine) string {
	a := w.anyAddress()
	a.ServingNodes = nil
	if w.rng.IntN(3) > 0 {
		a.ServingNodes = map[string]bool{}
		for _, m := range w.machines {
			if w.rng.IntN(3) == 0 {
				a.ServingNodes[m.Name] = true
			}
		}
	}
	return fmt.Sprintf("%s: %v", a.Addr, a.ServingNodes)
}

func powerFails(m *machine) {
	m.isCrashed, m.Liveness, m.IsNotReadyForLong = true, placement.Expired, true
	clear(m.kernel)
	clear(m.claimed)
}

// agentIsBack starts an agent that does what it should. If the Node object was deleted, the kubelet
// makes it anew.
func agentIsBack(m *machine) {
	if m.isNodeDeleted {
		m.isNodeDeleted, m.IsNotReadyForLong = false, false
	}
	m.isCrashed, m.isIdle, m.isLiar, m.Liveness = false, false, false, placement.Fresh
	m.Interfaces = m.Interfaces[:1]
}

// toggleRefusal has an address refused, or not any more.
func (w *world) toggleRefusal(refused map[netip.Addr]bool) string {
	a := w.anyAddress().Addr
	refused[a] = !refused[a]
	return fmt.Sprintf("%s: %t", a, refused[a])
}

// deleteAnnouncement deletes the Announcement of a machine. Its agent keeps what it has until there
// is another one.
func deleteAnnouncement(w *world, m *machine) string {
	if m.hasNoAnnouncement {
		return "that there is none of"
	}
	m.hasNoAnnouncement = true
	m.stored.entries, m.stored.announcesShared = nil, false
	m.stored.generation++
	m.unsharedSince = m.stored.generation
	m.reported.revision, m.reported.generation = 0, 0
	clear(m.reported.states)
	for a := range w.everUsed {
		w.endServing(a, m)
	}
	w.forgetEpochs()
	return ""
}

func becomeLiar(w *world, m *machine) string {
	if !slices.ContainsFunc(w.machines, func(m *machine) bool { return m.isLiar }) {
		m.isLiar, m.isIdle, m.isCrashed, m.Liveness = true, false, false, placement.Fresh
	}
	return ""
}

func pauseLeader(w *world, _ *machine) string {
	if w.pausedLeader == nil {
		w.pausedLeader = &pausedLeader{w.inputs(), w.announcements()}
		return "later"
	}
	result := placement.Place(w.pausedLeader.inputs)
	w.write(&w.pausedLeader.inputs, &result, w.pausedLeader.read)
	w.pausedLeader = nil
	return "now"
}

func cutOffSuccessor(w *world, _ *machine) string {
	successor, holder := w.anySuccessor()
	if successor == nil {
		return "of none"
	}
	successor.isCutOff = true
	w.claimAllOf(holder)
	return successor.Name + " of " + holder
}

// killHolder ends a machine. Its Lease may have expired already.
func killHolder(w *world, _ *machine) string {
	_, holder := w.anySuccessor()
	for _, m := range w.machines {
		if m.Name == holder {
			m.isCrashed = true
			clear(m.kernel)
			clear(m.claimed)
			if w.rng.IntN(2) == 0 {
				m.Liveness = placement.Expired
			}
		}
	}
	w.claimAllOf(holder)
	return holder
}
