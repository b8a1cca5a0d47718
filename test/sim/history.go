package sim

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// History plays what users, nodes, links and the control plane may do in a cluster, at random.
type History struct {
	*Cluster
	Profile
	laws      *laws
	announced *announcedLaws
	// routing has what histories with routers need; nil in others.
	routing *routingHistory
	// netbox has what histories with a NetBox need; nil in others.
	netbox *netboxHistory
	// calmUntil is until when nothing else goes wrong, or is over.
	calmUntil time.Time
	// random decides what the present step does, and steps counts them.
	random *rand.Rand
	steps  int
	// services are those that exist, in the order in which they were created.
	services []*service
	created  int
	// troubles are what is wrong now, by name, each with what ends it.
	troubles map[string]func() error
	err      error
}

// Profile is what a history is like.
type Profile struct {
	// MaxTroubles is how much is wrong at a time at the most. Between two troubles there is time to recover
	// if it is 1.
	MaxTroubles int
	// HasRouters means that users and routers do what concerns BGP, too.
	HasRouters bool
	// While is how long it is.
	While time.Duration
	// Skips, if set, says which steps, counted from 0, are left out.
	Skips func(step int) bool
}

// maxServices is how many Services exist at a time at the most.
const maxServices = 6

// PlayHistory plays a history of a seed for a while in a cluster that has just been started, ends all that
// is wrong, waits until it has settled, and returns how the laws were broken.
func PlayHistory(c *Cluster, profile Profile) ([]string, error) {
	h := newHistory(c, profile)
	end := time.Now().Add(profile.While)
	for ; time.Now().Before(end) && h.err == nil; h.steps++ {
		// What a step does depends on no other step, so that steps can be left out.
		h.random = rand.New(rand.NewPCG(c.seed, uint64(h.steps+1))) //nolint:gosec // it grows from 1
		h.Run(h.Between(0, 6*time.Second))
		if profile.Skips == nil || !profile.Skips(h.steps) {
			h.step()
		}
	}
	return h.finish()
}

// newHistory returns one in which nothing has happened yet.
func newHistory(c *Cluster, profile Profile) *History {
	h := &History{
		Cluster: c, Profile: profile, laws: newLaws(c), random: c.random, troubles: map[string]func() error{},
	}
	h.laws.isStrict = profile.MaxTroubles == 1 && c.WireFailover
	h.laws.services = func() []*service { return h.services }
	c.OnReady = func(n *Node, isReady bool) {
		if isReady {
			h.laws.left.end(n)
		} else {
			h.laws.left.begin(n)
		}
	}
	h.announced = newAnnouncedLaws(h)
	h.Inspect = func() {
		h.laws.inspect()
		h.announced.inspect()
	}
	if h.HasRouters {
		h.beginRouting()
	}
	if c.NetBox != nil {
		h.beginNetBox()
	}
	return h
}

// finish ends all that is wrong, waits until all has settled, and returns how the laws were broken.
func (h *History) finish() ([]string, error) {
	for _, name := range slices.Sorted(maps.Keys(h.troubles)) {
		h.endTrouble(name)
	}
	if h.netbox != nil {
		h.Run(netboxSettled)
	}
	h.Run(Settled)
	h.Inspect, h.OnReady = nil, nil
	h.laws.settled()
	h.announced.settled()
	if h.routing != nil {
		h.routing.settled()
	}
	if h.netbox != nil {
		h.settleNetBox()
	}
	return h.laws.violations, h.err
}

// Between returns a duration of at least shortest and less than longest.
func (h *History) Between(shortest, longest time.Duration) time.Duration {
	return between(h.random, shortest, longest)
}

// Chance is true so often, of 1.
func (h *History) Chance(of float64) bool { return h.random.Float64() < of }

// Pick returns a number from 0 to count-1.
func (h *History) Pick(count int) int { return h.random.IntN(count) }

// deed is something that may be done, with how likely it is.
type deed struct {
	weight int
	do     func()
}

// step does one thing.
func (h *History) step() {
	isCalm := time.Now().Before(h.calmUntil)
	if len(h.troubles) > 0 && !isCalm && (len(h.troubles) >= h.MaxTroubles || h.Chance(0.4)) {
		names := slices.Sorted(maps.Keys(h.troubles))
		h.endTrouble(names[h.Pick(len(names))])
		return
	}
	deeds := []deed{{6, h.createService}, {3, h.deleteService}, {2, h.moveEndpoints}}
	switch {
	case h.netbox != nil:
		deeds = h.netboxDeeds()
	case !isCalm:
		deeds = append(deeds, h.troublesome()...)
		if h.HasRouters {
			deeds = append(deeds, h.routingDeeds()...)
		}
	}
	all := 0
	for _, d := range deeds {
		all += d.weight
	}
	picked := h.Pick(all)
	for _, d := range deeds {
		if picked -= d.weight; picked < 0 {
			d.do()
			return
		}
	}
}

// troublesome are the deeds by which something goes wrong.
func (h *History) troublesome() []deed {
	deeds := []deed{
		{2, h.powerOff}, {2, h.loseCarrier}, {2, h.cutOff}, {2, h.killAgent},
		{1, h.restartAgent}, {2, h.pauseAgent}, {1, h.exclude},
		{1, h.apiAway}, {1, h.killManager}, {1, h.stopManager},
		{1, h.sleep}, {1, h.hangDisk}, {1, h.refuseWrites}, {2, h.pauseManager},
		{2, h.cutManager}, {1, h.starveAgents}, {1, h.claim}, {1, h.forget},
		{1, h.lose}, {1, h.split}, {1, h.cutOneWay}, {1, h.dropEchoes},
	}
	if len(h.Segments) > 1 {
		deeds = append(deeds, deed{2, h.swapCables}, deed{3, h.renumber}, deed{2, h.stopFlooding})
	}
	if h.hasWrongClocks {
		deeds = append(deeds, deed{4, h.changeClock})
	}
	return deeds
}

// recover leaves time to recover, if one thing is to be wrong at a time.
func (h *History) recover() {
	if h.MaxTroubles == 1 {
		h.calmUntil = time.Now().Add(recoverWithin)
	}
}

// longTrouble is how long one thing is wrong at the most.
const longTrouble = 20 * time.Second

// recoverWithin is how long it takes until all nodes watch again those that they are to follow.
const recoverWithin = 45 * time.Second

// excuses are noted while there is a trouble, of the nodes that it concerns.
type excuses interface {
	begin(nodes ...*Node)
	end(nodes ...*Node)
}

// begin begins a trouble that concerns nodes, all if there are none, unless it is there already. It is
// noted as what the laws excuse, if there is anything.
func (h *History) begin(excuses excuses, what string, nodes []*Node, begin, end func() error) {
	name := what
	for _, n := range nodes {
		name += " " + n.Name
	}
	if _, isThere := h.troubles[name]; isThere {
		return
	}
	h.Tell("", "%s", name)
	h.version++
	h.note(begin())
	if len(nodes) == 0 {
		nodes = h.Nodes
	}
	if excuses != nil {
		excuses.begin(nodes...)
		h.laws.claims.beginOutage()
	}
	if h.MaxTroubles == 1 {
		h.calmUntil = time.Now().Add(h.Between(0, longTrouble))
	}
	h.troubles[name] = func() error {
		if excuses != nil {
			excuses.end(nodes...)
			h.laws.claims.endOutage()
		}
		return end()
	}
}

func (h *History) endTrouble(name string) {
	end := h.troubles[name]
	delete(h.troubles, name)
	h.recover()
	h.Tell("", "over: %s", name)
	h.version++
	h.note(end())
}

func (h *History) note(err error) {
	if h.err == nil {
		h.err = err
	}
}

func (h *History) anyNode() *Node { return h.Nodes[h.Pick(len(h.Nodes))] }

// service is a Service that exists.
type service struct {
	Service
	uid       types.UID
	endpoints []*Node
	// unserved says when nodes had no endpoint.
	unserved spans
}

// isHeldByAll reports whether the addresses of the Service are Virtual.
func (s *service) isHeldByAll() bool { return s.Group == GroupVirtual || s.isOfNetBox() }

// isOfNetBox reports whether the addresses of the Service are NetBox's.
func (s *service) isOfNetBox() bool { return s.Group == GroupNetBox || s.Group == GroupTenant }

func (h *History) createService() {
	if len(h.services) >= maxServices {
		return
	}
	s := Service{IsPolicyLocal: h.Chance(0.2)}
	ipv4, ipv6 := corev1.IPv4Protocol, corev1.IPv6Protocol
	choices := [][]corev1.IPFamily{{ipv4}, {ipv4}, {ipv6}, {ipv4, ipv6}}
	s.Families = choices[h.Pick(len(choices))]
	if on := h.anySegment(); h.Chance(0.25) || h.HasRouters && h.Chance(0.5) {
		s.Group = GroupVirtual
	} else {
		s.Group = on.Group
	}
	if h.netbox != nil && h.Chance(0.8) {
		s.Group = []string{GroupNetBox, GroupTenant}[h.Pick(2)]
	}
	h.create(s)
}

// create creates a Service, which gets a name, with endpoints on some nodes.
func (h *History) create(wanted Service) {
	h.created++
	wanted.Name = fmt.Sprint("s", h.created)
	s := &service{Service: wanted, unserved: spans{}}
	h.Tell("user", "creates %s: %s %v, policy Local %v", s.Name, s.Group, s.Families, s.IsPolicyLocal)
	uid, err := h.CreateService(s.Service)
	h.note(err)
	s.uid = uid
	s.unserved.begin(h.Nodes...)
	h.setEndpoints(s)
	h.services = append(h.services, s)
}

// setEndpoints gives a Service endpoints on some nodes.
func (h *History) setEndpoints(s *service) {
	var nodes []*Node
	for _, n := range h.Nodes {
		if h.Chance(0.6) {
			nodes = append(nodes, n)
		}
	}
	if len(nodes) == 0 {
		nodes = []*Node{h.anyNode()}
	}
	h.setEndpointsOn(s, nodes)
}

// setEndpointsOn gives a Service endpoints on nodes.
func (h *History) setEndpointsOn(s *service, nodes []*Node) {
	for _, n := range h.Nodes {
		has, had := slices.Contains(nodes, n), slices.Contains(s.endpoints, n)
		if has && !had {
			s.unserved.end(n)
		}
		if had && !has {
			s.unserved.begin(n)
		}
	}
	s.endpoints = nodes
	h.version++
	h.Tell("", "endpoints of %s: %s", s.Name, strings.Join(namesOf(nodes), " "))
	h.note(h.SetEndpoints(s.Service, nodes))
}

func (h *History) moveEndpoints() {
	if len(h.services) > 0 {
		h.setEndpoints(h.services[h.Pick(len(h.services))])
	}
}

func (h *History) deleteService() {
	if len(h.services) == 0 {
		return
	}
	i := h.Pick(len(h.services))
	s := h.services[i]
	h.Tell("user", "deletes %s", s.Name)
	h.services = slices.Delete(h.services, i, i+1)
	h.note(h.DeleteService(s.Service))
}

func doing(do func()) func() error {
	return func() error {
		do()
		return nil
	}
}

func (h *History) powerOff() {
	n := h.anyNode()
	if n.isOff {
		return
	}
	h.begin(h.laws.unreached, "no power", []*Node{n}, doing(func() {
		h.PowerOff(n)
		if h.Chance(0.3) {
			h.Tell(n.Name, "the disk loses what was written last")
			n.Disk.loseLast()
		}
	}), func() error { return h.PowerOn(n) })
}

func (h *History) sleep() {
	n := h.anyNode()
	if n.isOff {
		return
	}
	h.begin(h.laws.unreached, "asleep", []*Node{n}, doing(func() { h.Sleep(n) }), doing(func() { h.Wake(n) }))
}

func (h *History) hangDisk() {
	n := h.anyNode()
	h.begin(nil, "the disk hangs", []*Node{n},
		doing(func() { n.Disk.Hangs = true }), doing(func() { n.Disk.Hangs = false }))
}

func (h *History) refuseWrites() {
	n := h.anyNode()
	h.begin(nil, "the disk refuses", []*Node{n},
		doing(func() { n.Disk.Refuses = true }), doing(func() { n.Disk.Refuses = false }))
}

func (h *History) loseCarrier() {
	n, c := h.anyNIC()
	h.begin(h.laws.unreached.on(c.segment.Link), "no carrier"+h.nameOf(c.segment), []*Node{n},
		doing(func() { n.SetCarrier(c, false) }), doing(func() { n.SetCarrier(c, true) }))
}

func (h *History) cutOff() {
	n := h.anyNode()
	h.begin(nil, "cut off the API server", []*Node{n},
		doing(func() { h.SetCut(n, true) }), doing(func() { h.SetCut(n, h.isAway) }))
}

func (h *History) killAgent() {
	n := h.anyNode()
	if n.isOff || n.agent.isKilled {
		return
	}
	h.begin(nil, "no agent", []*Node{n}, doing(n.KillAgent), func() error {
		if n.isOff && !n.isAsleep || !n.agent.isKilled {
			return nil
		}
		return n.StartAgent()
	})
}

// restartAgent stops an agent as the kubelet does, which asks first, and starts another one.
func (h *History) restartAgent() {
	n := h.anyNode()
	if n.isOff || n.agent.isKilled || n.agent.isPaused() {
		return
	}
	a := n.agent
	h.Tell("", "the agent of %s is to end", n.Name)
	h.recover()
	a.Stop()
	h.After(h.Between(10*time.Millisecond, restartAfter), func() {
		if n.agent == a && !a.isKilled {
			n.KillAgent()
			h.After(restartAfter, func() { n.startAgain(a) })
		}
	})
}

// claim makes a stranger claim an address, once and by mistake. Agents that are fresh defend it: nothing may
// have been wrong for a while.
func (h *History) claim() {
	addrs := slices.SortedFunc(maps.Keys(h.laws.owners), netip.Addr.Compare)
	if h.MaxTroubles != 1 || len(h.troubles) > 0 || len(addrs) == 0 {
		return
	}
	addr := addrs[h.Pick(len(addrs))]
	h.Tell("stranger", "claims %s", addr)
	h.recover()
	h.SegmentOf(addr).stranger.claim(addr)
}

func (h *History) pauseAgent() {
	n := h.anyNode()
	if n.isOff || n.agent.isPaused() {
		return
	}
	a := n.agent
	h.begin(nil, "paused agent", []*Node{n}, doing(a.Pause), doing(a.Resume))
}

func (h *History) exclude() {
	n := h.anyNode()
	h.begin(h.laws.left, "excluded", []*Node{n},
		func() error { return h.SetExcluded(n, true) }, func() error { return h.SetExcluded(n, false) })
}

func (h *History) apiAway() {
	h.begin(nil, "the API server is away", nil, doing(func() { h.SetAway(true) }), doing(func() { h.SetAway(false) }))
}

func (h *History) anyReplica() *Replica { return h.Replicas[h.Pick(len(h.Replicas))] }

// killManager ends a manager as the kernel does, and stopManager as the kubelet does, which asks first.
func (h *History) killManager() {
	if r := h.anyReplica(); !r.isKilled {
		h.Tell("", "%s crashes", r.name)
		h.recover()
		r.Crash()
	}
}

func (h *History) stopManager() {
	if r := h.anyReplica(); !r.isKilled {
		h.Tell("", "%s is to end", r.name)
		h.recover()
		r.Stop()
	}
}

func (h *History) pauseManager() {
	r := h.anyReplica()
	if r.isKilled || r.isPaused() {
		return
	}
	m, pause := r.Manager, r.Pause
	if h.Chance(0.7) {
		pause = m.PauseInRequest
	}
	h.begin(nil, "paused "+m.name, nil, doing(pause), doing(m.Resume))
}

func (h *History) cutManager() {
	r := h.anyReplica()
	h.begin(nil, fmt.Sprint("cut off the API server: manager ", r.number), nil,
		doing(func() { r.SetCut(true) }), doing(func() { r.SetCut(false) }))
}

// starveAgents keeps all agents from the API server, which goes on answering managers and kubelets.
func (h *History) starveAgents() {
	set := func(isStarved bool) func() error {
		return doing(func() {
			for _, n := range h.Nodes {
				n.isAgentStarved = isStarved
				n.SetCut(n.isCut)
			}
		})
	}
	h.begin(nil, "the API server does not answer agents", nil, set(true), set(false))
}

func (h *History) forget() {
	on := h.anySegment()
	h.Tell("", "the switch%s forgets", h.nameOf(on))
	on.Forget()
}

func (h *History) lose() {
	on := h.anySegment()
	h.begin(h.laws.unreached.on(on.Link), "frames get lost"+h.nameOf(on), nil,
		doing(func() { on.Loss = 0.1 }), doing(func() { on.Loss = 0 }))
}

func (h *History) split() {
	n, c := h.anyNIC()
	on, side := c.segment, []*Port{c.port}
	h.begin(h.laws.unreached.on(on.Link), "the link is split"+h.nameOf(on), []*Node{n},
		doing(func() { on.Split(side, true) }), doing(func() { on.Split(side, false) }))
}

func (h *History) cutOneWay() {
	from, c := h.anyNIC()
	to, on := h.anyNode(), c.segment
	a, b := from.portOn(on), to.portOn(on)
	if from == to || a == nil || b == nil {
		return
	}
	h.begin(h.laws.unreached.on(on.Link), "one way cut"+h.nameOf(on), []*Node{from, to},
		doing(func() { on.Cut(a, b, true) }), doing(func() { on.Cut(a, b, false) }))
}

func (h *History) dropEchoes() {
	n := h.anyNode()
	h.begin(nil, "echoes are dropped", []*Node{n},
		doing(func() { n.DropsEchoes = true }), doing(func() { n.DropsEchoes = false }))
}
