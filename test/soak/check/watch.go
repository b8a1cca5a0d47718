package check

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Bounds of what may happen to an address.
const (
	// PlannedDouble is for how long two nodes may answer for an address while no node is
	// cut off: a handover takes less than 0.1 s, and this machine runs a whole cluster.
	PlannedDouble = time.Second
	// ReturnDouble is the same while a node that was cut off returns: it yields when it
	// hears or sees another node's answer, for which it asks each second.
	ReturnDouble = 4 * time.Second
	// DeafDouble is the same while the agent of one of the nodes does not run: then the
	// node's addresses end with their lifetime.
	DeafDouble = 330 * time.Second
	// CalmSilence is for how long an address may be without an answer while every node
	// works.
	CalmSilence = 2 * time.Second
	// FailoverSilence is the same while a node is cut off and the API server works: the
	// Lease expires after 3 s, and the leading manager, which takes as long to replace, may
	// have been there.
	FailoverSilence = 20 * time.Second
	// ClaimSilence is the same while a node is cut off whose addresses other nodes watch,
	// whether or not anybody decides. They claim within a second; an address that was being
	// handed over, or whose successors were being named anew, takes up to 3 s.
	ClaimSilence = 3 * time.Second
	// MissingVirtual is for how long a node may be without a Virtual address.
	MissingVirtual = 5 * time.Second
	// A busy machine makes everything late. The bounds grow by lateFactor times what a
	// clock that does nothing else is late, and by maxLate at most.
	lateFactor = 10
	maxLate    = 5 * time.Second
	// episodeEnd is how long after the last double answer the next one is another event.
	episodeEnd = 10 * time.Second
)

// Weather is what disturbs the cluster now, or did a moment ago.
type Weather struct {
	// Cut are nodes that are cut off the link or the API server, or without power.
	Cut []string
	// Deaf are nodes whose agents do not run or are stopped.
	Deaf []string
	// NoDecisions says that nobody can move addresses: the API server is away, or no
	// manager runs.
	NoDecisions bool
	// Watched says that other nodes have watched each holder of an address since the
	// cluster was at rest, and that nothing but Cut has disturbed the wire or an agent since.
	Watched bool
	// Able are the nodes that could take an address.
	Able []string
	// Late is for how long the machine lately let a process wait that wanted to run.
	Late time.Duration
}

// slack returns by how much bounds grow because the machine is busy.
func (w Weather) slack() time.Duration { return min(lateFactor*w.Late, maxLate) }

// Watch judges single observations. It keeps, for each address, what it needs to measure
// for how long something is wrong, and forgets an address with Forget.
type Watch struct {
	// Nodes are the names of nodes by MAC address.
	Nodes     map[string]string
	addresses map[netip.Addr]*watched
	services  map[string]*allocation
	missing   map[missingKey]time.Duration
	found     []string
	remarks   []string
	// Longest are the longest double answer and silence so far, by class.
	Longest map[string]time.Duration
}

// watched is an address that is asked for.
type watched struct {
	lastDouble                time.Time
	double                    map[string]time.Duration // by class
	settled                   bool
	reportedDouble, wasSilent bool
	// How long nobody has answered: while every node works, while a node is cut off that is
	// watched, and while one is that is not.
	calmSilence, claimSilence, cutSilence time.Duration
}

// allocation is what is known of the addresses of a Service.
type allocation struct {
	pinned []netip.Addr
	edited bool
}

type missingKey struct {
	node    string
	address netip.Addr
}

// NewWatch returns a Watch for nodes by MAC address.
func NewWatch(nodes map[string]string) *Watch {
	return &Watch{
		Nodes: nodes, addresses: map[netip.Addr]*watched{}, services: map[string]*allocation{},
		missing: map[missingKey]time.Duration{}, Longest: map[string]time.Duration{},
	}
}

// Violations returns what was found so far.
func (w *Watch) Violations() []string { return w.found }

// Remarks returns what came to half of a bound since the last call.
func (w *Watch) Remarks() []string {
	all := w.remarks
	w.remarks = nil
	return all
}

func (w *Watch) remark(format string, args ...any) {
	if len(w.remarks) < 100 {
		w.remarks = append(w.remarks, fmt.Sprintf(format, args...))
	}
}

func (w *Watch) report(format string, args ...any) {
	if len(w.found) < 100 {
		w.found = append(w.found, fmt.Sprintf(format, args...))
	}
}

func (w *Watch) address(a netip.Addr) *watched {
	if w.addresses[a] == nil {
		w.addresses[a] = &watched{double: map[string]time.Duration{}}
	}
	return w.addresses[a]
}

// Answered takes the MACs that answered one question for an address at a time. covers is
// for how long the answer stands: until the next question.
func (w *Watch) Answered(at time.Time, a netip.Addr, macs []string, covers time.Duration, weather Weather) {
	var holders []string
	for _, mac := range macs {
		if node := w.Nodes[mac]; node != "" && !slices.Contains(holders, node) {
			holders = append(holders, node)
		}
	}
	x := w.address(a)
	if len(holders) > 1 {
		w.countDouble(at, a, x, holders, covers, weather)
	}
	if len(holders) > 0 {
		x.forgetSilence()
		return
	}
	w.countSilence(at, a, x, covers, weather)
}

func (w *Watch) countDouble(
	at time.Time, a netip.Addr, x *watched, holders []string, covers time.Duration, weather Weather,
) {
	if at.Sub(x.lastDouble) > episodeEnd {
		x.double, x.reportedDouble = map[string]time.Duration{}, false
	}
	x.lastDouble = at
	class, bound := "planned", PlannedDouble
	switch {
	case meet(holders, weather.Deaf):
		class, bound = "agent away", DeafDouble
	case meet(holders, weather.Cut):
		class, bound = "cut off", ReturnDouble
	}
	before := x.double[class]
	x.double[class] += covers
	w.note("two answer, "+class, x.double[class])
	if half := bound / 2; before <= half && x.double[class] > half {
		w.remark("%s: %s answered for %s for more than %s (%s)", stamp(at), strings.Join(holders, " and "), a, half, class)
	}
	bound += weather.slack()
	if x.double[class] > bound && !x.reportedDouble {
		x.reportedDouble = true
		w.report(
			"%s: %s answered for %s for more than %s (%s; cut off %v, agents away %v)", stamp(at),
			strings.Join(holders, " and "), a, bound, class, weather.Cut, weather.Deaf,
		)
	}
}

func (w *Watch) countSilence(at time.Time, a netip.Addr, x *watched, covers time.Duration, weather Weather) {
	canMove := slices.ContainsFunc(
		weather.Able, func(n string) bool { return !slices.Contains(weather.Cut, n) && !slices.Contains(weather.Deaf, n) },
	)
	switch {
	case !x.settled:
		return
	case len(weather.Cut) == 0 && len(weather.Deaf) == 0:
		x.calmSilence += covers
		w.note("silence, nodes work", x.calmSilence)
	case !canMove:
		return
	case weather.Watched:
		x.claimSilence += covers
		w.note("silence, watched node cut off", x.claimSilence)
	case weather.NoDecisions:
		return
	default:
		x.cutSilence += covers
		w.note("silence, node cut off", x.cutSilence)
	}
	if x.wasSilent {
		return
	}
	if half := CalmSilence / 2; x.calmSilence > half && x.calmSilence-covers <= half {
		w.remark("%s: nobody answers for %s for more than %s", stamp(at), a, half)
	}
	slack := weather.slack()
	if x.calmSilence > CalmSilence+slack || x.claimSilence > ClaimSilence+slack || x.cutSilence > FailoverSilence+slack {
		x.wasSilent = true
		w.report(
			"%s: nobody answers for %s, for %s while every node works, %s while a node that is watched is cut off "+
				"and %s while one is that is not (cut off %v, agents away %v, nobody decides %t)", stamp(at), a,
			x.calmSilence, x.claimSilence, x.cutSilence, weather.Cut, weather.Deaf, weather.NoDecisions,
		)
	}
}

func (x *watched) forgetSilence() {
	x.calmSilence, x.claimSilence, x.cutSilence, x.wasSilent = 0, 0, 0, false
}

// Settle says that the cluster is at rest and one node answers for an address, which no
// user changes until Unsettle.
func (w *Watch) Settle(a netip.Addr) {
	x := w.address(a)
	x.forgetSilence()
	x.settled = true
}

// Unsettle says that a user's edit may take an address away.
func (w *Watch) Unsettle(a netip.Addr) { w.address(a).settled = false }

// Forget forgets an address that no Service has.
func (w *Watch) Forget(a netip.Addr) { delete(w.addresses, a) }

// Holds takes whether a node has a Virtual address that it is to have.
func (w *Watch) Holds(at time.Time, node string, a netip.Addr, holds bool, covers time.Duration, weather Weather) {
	key := missingKey{node, a}
	if holds || slices.Contains(weather.Cut, node) || slices.Contains(weather.Deaf, node) {
		delete(w.missing, key)
		return
	}
	before, bound := w.missing[key], MissingVirtual+weather.slack()
	w.missing[key] += covers
	w.note("Virtual address missing", w.missing[key])
	if half := MissingVirtual / 2; before <= half && w.missing[key] > half {
		w.remark("%s: %s is without %s for more than %s", stamp(at), node, a, half)
	}
	if before <= bound && w.missing[key] > bound {
		w.report("%s: %s is without %s for more than %s", stamp(at), node, a, bound)
	}
}

// Edited says that a user's edit may change the addresses of a Service.
func (w *Watch) Edited(service string) { w.allocation(service).edited = true }

// Removed says that a user deletes a Service.
func (w *Watch) Removed(service string) { delete(w.services, service) }

// Pin says that the edits of a Service have had their effect.
func (w *Watch) Pin(service string, addresses []netip.Addr) {
	w.services[service] = &allocation{pinned: slices.Clone(addresses)}
}

// Pinned returns the addresses that a Service must keep.
func (w *Watch) Pinned(service string) []netip.Addr {
	if x := w.services[service]; x != nil {
		return x.pinned
	}
	return nil
}

func (w *Watch) allocation(service string) *allocation {
	if w.services[service] == nil {
		w.services[service] = &allocation{}
	}
	return w.services[service]
}

// Ingress takes the addresses of a Service after a change of the Service.
func (w *Watch) Ingress(at time.Time, service string, addresses []netip.Addr) {
	x := w.allocation(service)
	if !x.edited {
		for _, a := range x.pinned {
			if !slices.Contains(addresses, a) {
				w.report("%s: Service %s has lost %s, which nobody took away: now it has %v", stamp(at), service, a, addresses)
			}
		}
	}
	x.pinned = slices.Clone(addresses)
}

func (w *Watch) note(class string, d time.Duration) { w.Longest[class] = max(w.Longest[class], d) }

// Summary returns the longest of each class.
func (w *Watch) Summary() string {
	var parts []string
	for _, class := range slices.Sorted(maps.Keys(w.Longest)) {
		parts = append(parts, fmt.Sprintf("%s %s", class, w.Longest[class]))
	}
	return strings.Join(parts, "; ")
}

func meet(a, b []string) bool {
	return slices.ContainsFunc(a, func(x string) bool { return slices.Contains(b, x) })
}

func stamp(at time.Time) string { return at.UTC().Format("15:04:05.000") }
