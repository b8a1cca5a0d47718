package sim

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/order"
)

// The laws of a cluster, which hold whatever goes wrong. They read as the specification. Where there are two
// links, what they say of a Local address is about the link of that address alone: nodes hear each other there,
// a node cannot be reached there, and the client is one on it.
//
//  1. No two Services have the same address, and an address that a Service has stays its own until the
//     Service is deleted.
//  2. Nodes that hear each other, and whose agents work, do not both answer for a Local address for longer
//     than maxBoth.
//  3. A Local address leaves a node only if that node, or another that has had it lately, could not be reached
//     lately, or if the node was to be left: it was excluded, or not ready, or had no endpoint of a Service of
//     policy Local. A node that could be reached all the time keeps the address until another node has it,
//     unless no node has such an endpoint that may have the address. What befalls agents, managers and the API
//     server moves nothing.
//  4. Once nothing is wrong any more, and Settled has passed, each Service has an address of each of its
//     families. A Local one is answered for by one node, and reported as announced by that node alone. A Virtual
//     one is on all nodes. With policy Local these are nodes with an endpoint, so that none loses what comes to
//     it, unless no node of the link has one. A client sends to a Local one. An Announcement that says that it is the
//     only one of its node is that.
//  5. With the feature gate WireFailover, and one thing wrong at a time, a client reaches a Local address again
//     within maxAway, unless few nodes may have it because of policy Local, or a node that has it was wired
//     otherwise: as Linux does, it answers for IPv4 addresses by whatever interface is asked.
//  6. In such a history a node that hears no other gets no Local address that another node has, unless that one
//     is to be left.
//  7. A Virtual address leaves a node only when that is switched off or to be left. No Lease counts.
//  8. A Virtual address is on the virtual interface alone, and a Local one on no interface but that of its link,
//     apart from a while after interfaces have been renumbered. No node ever has an address on two interfaces.
//  9. No epoch of an address is given to two nodes while any has an entry of it. Two managers that both lead for a
//     moment may both give its first one.
//  10. A node to which no manager has given a Local address, and which so claims it, gets it only if no station
//     answers for it that the node hears, and that has answered for answersFor.
//  11. While no manager works, a Local address is claimed twice at the most for each time that something goes wrong
//     with nodes or links: by the two nodes that a manager has named for that.

// maxAway bounds for how long a client does not reach an address.
const maxAway = 1200 * time.Millisecond

// maxBoth bounds for how long two nodes may answer for an address that hear each other.
const maxBoth = 3 * time.Second

// readyWithin is how long it takes until other nodes are ready to follow the one that has got an address.
const readyWithin = 10 * time.Second

// lately is how long after a trouble has ended an address may still leave a node because of it.
const lately = time.Minute

type laws struct {
	cluster *Cluster
	// services returns those that exist.
	services   func() []*service
	violations []string
	// unreached and left are when nodes could not be reached, and were to be left.
	unreached spansByLink
	left      spans
	// rewired are when the cables of nodes' interfaces were swapped, and renumbered when these also had each
	// other's addresses.
	rewired, renumbered spans
	// owners are the Services by their addresses, and holders the nodes that answer for those, but for nodes
	// that have kept the address from an earlier Service.
	owners  map[netip.Addr]*service
	holders map[netip.Addr][]*Node
	kept    map[netip.Addr][]*Node
	// epochs are the nodes to which each epoch of an address was given, and twoLedAt is when two managers last led.
	epochs   map[netip.Addr]map[int64][]string
	twoLedAt time.Time
	// heldAt is when a node last answered for an address of a Service.
	heldAt map[netip.Addr]map[*Node]time.Time
	claims claimLaws
	// isStrict means that laws 5 and 6 hold.
	isStrict bool
	// reachedAt is when the client reached an address for the first time, and awaySince since when it does not
	// any more, though others had the time to get ready to follow the holder.
	reachedAt, awaySince map[netip.Addr]time.Time
	// bothSince is since when two nodes answer for an address that hear each other.
	bothSince map[netip.Addr]time.Time
	// Revisions of what the API server has, version of the nodes and the link, and time of the last look.
	servicesAt, announcementsAt int64
	version                     int
	lookedAt                    time.Time
}

func newLaws(c *Cluster) *laws {
	return &laws{
		cluster: c, unreached: spansByLink{}, left: spans{}, rewired: spans{}, renumbered: spans{},
		owners:  map[netip.Addr]*service{},
		holders: map[netip.Addr][]*Node{}, kept: map[netip.Addr][]*Node{},
		heldAt: map[netip.Addr]map[*Node]time.Time{}, bothSince: map[netip.Addr]time.Time{},
		epochs:    map[netip.Addr]map[int64][]string{},
		reachedAt: map[netip.Addr]time.Time{}, awaySince: map[netip.Addr]time.Time{},
		claims: newClaimLaws(),
	}
}

// broken notes that a law was broken.
func (l *laws) broken(what string, args ...any) {
	text := fmt.Sprintf(what, args...)
	l.cluster.Tell("LAW", "%s", text)
	l.violations = append(l.violations, text)
}

// spans say when something was so of nodes.
type spans map[*Node]*span

type span struct {
	// causes are how many causes there are now, and endedAt is when there was one last.
	causes  int
	endedAt time.Time
}

// begin notes that it is so of nodes, and end that it is so no more, for one cause of several.
func (s spans) begin(nodes ...*Node) {
	for _, n := range nodes {
		if s[n] == nil {
			s[n] = &span{}
		}
		s[n].causes++
	}
}

func (s spans) end(nodes ...*Node) {
	for _, n := range nodes {
		s[n].causes--
		s[n].endedAt = time.Now()
	}
}

// spansByLink say when something was so of nodes on links.
type spansByLink map[*Link]spans

// on returns what is so on a link.
func (s spansByLink) on(l *Link) spans {
	if s[l] == nil {
		s[l] = spans{}
	}
	return s[l]
}

// begin notes that it is so of nodes on all their links, and end that it is so no more, for one cause of several.
func (s spansByLink) begin(nodes ...*Node) {
	for _, n := range nodes {
		for _, c := range n.NICs {
			s.on(c.segment.Link).begin(n)
		}
	}
}

func (s spansByLink) end(nodes ...*Node) {
	for _, n := range nodes {
		for _, c := range n.NICs {
			s.on(c.segment.Link).end(n)
		}
	}
}

// isLately reports whether it is so of a node on any link, or was lately.
func (s spansByLink) isLately(n *Node) bool {
	return slices.ContainsFunc(n.NICs, func(c *NIC) bool { return s.on(c.segment.Link).isLately(n) })
}

// isLately reports whether it is so of a node, or was lately.
func (s spans) isLately(n *Node) bool { return s.wasWithin(n, lately) }

// wasWithin reports whether it is so of a node, or was within a while until now.
func (s spans) wasWithin(n *Node, while time.Duration) bool {
	have := s[n]
	return have != nil && (have.causes > 0 || time.Since(have.endedAt) < while)
}

// anyService and anyAnnouncement name kinds: inspect would spend most of its time on making objects for that.
var anyService, anyAnnouncement = &corev1.Service{}, &v1.Announcement{}

// inspect looks whether the laws hold.
func (l *laws) inspect() {
	leading := 0
	for _, r := range l.cluster.Replicas {
		if r.IsLeading() {
			leading++
		}
	}
	if leading > 1 {
		l.twoLedAt = time.Now()
	}
	l.noteManagers()
	if revision := l.cluster.Server.RevisionOf(anyService); l.servicesAt != revision {
		l.servicesAt = revision
		l.inspectOwners()
	}
	if revision := l.cluster.Server.RevisionOf(anyAnnouncement); l.announcementsAt != revision {
		l.announcementsAt = revision
		l.inspectEpochs()
		l.noteEntries()
	}
	if l.version == l.cluster.version && time.Since(l.lookedAt) < 100*time.Millisecond {
		return
	}
	l.version, l.lookedAt = l.cluster.version, time.Now()
	for addr, s := range order.ByKey(l.owners, netip.Addr.Compare) {
		l.inspectInterfaces(addr, s)
		if s.isHeldByAll() {
			l.inspectVirtual(addr, s)
		} else {
			l.inspectHolders(addr, s)
		}
	}
}

// inspectInterfaces is law 8.
func (l *laws) inspectInterfaces(addr netip.Addr, s *service) {
	for _, n := range l.cluster.Nodes {
		if !n.Kernel.Has("", addr) {
			continue
		}
		count := 0
		note := func(iface string, isRight bool) {
			if n.Kernel.Has(iface, addr) {
				count++
				if !isRight && !l.renumbered.isLately(n) {
					l.broken("%s has %s on %s", n.Name, addr, iface)
				}
			}
		}
		for _, c := range n.NICs {
			note(c.Name, !s.isHeldByAll() && c.segment.contains(addr))
		}
		note(VirtualInterface, s.isHeldByAll())
		if count > 1 {
			l.broken("%s has %s on %d interfaces", n.Name, addr, count)
		}
	}
}

// inspectVirtual is law 7.
func (l *laws) inspectVirtual(addr netip.Addr, s *service) {
	now := l.takers(addr)
	for _, before := range l.holders[addr] {
		if !slices.Contains(now, before) && !l.unreached.isLately(before) && !l.isLeft(before, s) {
			l.broken("%s leaves %s, with which nothing is wrong", addr, before.Name)
		}
	}
	l.holders[addr] = now
}

// takers returns the nodes that answer for an address, without those that have kept it from an earlier Service
// until now.
func (l *laws) takers(addr netip.Addr) []*Node {
	all := l.cluster.HoldersOf(addr)
	l.kept[addr] = slices.DeleteFunc(l.kept[addr], func(n *Node) bool { return !slices.Contains(all, n) })
	return slices.DeleteFunc(all, func(n *Node) bool { return slices.Contains(l.kept[addr], n) })
}

// inspectEpochs is law 9.
func (l *laws) inspectEpochs() {
	hasEntry := map[netip.Addr]bool{}
	for _, ann := range l.announcements() {
		for i := range ann.Spec.Addresses {
			a := &ann.Spec.Addresses[i]
			addr, err := netip.ParseAddr(a.Address)
			if err != nil {
				l.broken("%s: %v", ann.Name, err)
			}
			if a.Type != v1.AnnounceLocal || l.owners[addr] == nil {
				continue
			}
			hasEntry[addr] = true
			if l.epochs[addr] == nil {
				l.epochs[addr] = map[int64][]string{}
			}
			nodes := l.epochs[addr][a.Epoch]
			if slices.Contains(nodes, ann.Spec.NodeName) {
				continue
			}
			isFirst := a.Epoch == 1 && time.Since(l.twoLedAt) < maxBoth
			if len(nodes) > 0 && !isFirst {
				l.broken("%s of epoch %d is given to %v and to %s", addr, a.Epoch, nodes, ann.Spec.NodeName)
			}
			l.epochs[addr][a.Epoch] = append(nodes, ann.Spec.NodeName)
		}
	}
	maps.DeleteFunc(l.epochs, func(addr netip.Addr, _ map[int64][]string) bool { return !hasEntry[addr] })
}

// announcements returns those that there are. They must not be changed.
func (l *laws) announcements() []v1.Announcement {
	list := &v1.AnnouncementList{}
	err := l.cluster.Admin.List(
		context.Background(), list, client.InNamespace(Namespace), client.UnsafeDisableDeepCopy,
	)
	if err != nil {
		l.broken("list Announcements: %v", err)
	}
	return list.Items
}

// isLeft reports whether a node is to have no address of a Service, or was lately.
func (l *laws) isLeft(n *Node, s *service) bool {
	return l.left.isLately(n) || s.IsPolicyLocal && s.unserved.isLately(n)
}

// inspectOwners is law 1.
func (l *laws) inspectOwners() {
	owners := map[netip.Addr]*service{}
	for _, s := range l.services() {
		addrs, err := l.cluster.Addresses(s.Name)
		if err != nil {
			l.broken("%s: %v", s.Name, err)
		}
		for _, addr := range addrs {
			if other, isTaken := owners[addr]; isTaken {
				l.broken("%s is the address of %s and of %s", addr, other.Name, s.Name)
			}
			owners[addr] = s
			if l.owners[addr] != s {
				l.kept[addr], l.heldAt[addr] = l.cluster.HoldersOf(addr), map[*Node]time.Time{}
			}
		}
	}
	l.version-- // who has to hold what may have changed
	for addr, s := range order.ByKey(l.owners, netip.Addr.Compare) {
		if owners[addr] != s && slices.Contains(l.services(), s) {
			l.broken("%s has lost %s", s.Name, addr)
		}
		if owners[addr] != s {
			delete(l.holders, addr)
			delete(l.epochs, addr)
			delete(l.bothSince, addr)
			delete(l.reachedAt, addr)
			delete(l.awaySince, addr)
			l.claims.forget(addr)
		}
	}
	l.owners = owners
}

// inspectHolders is laws 3 and 6, and looks at the others that are about holders.
func (l *laws) inspectHolders(addr netip.Addr, s *service) {
	holders := l.takers(addr)
	for _, before := range l.holders[addr] {
		switch {
		case slices.Contains(holders, before) || l.isExcused(addr):
		case !l.isLeft(before, s):
			l.broken("%s leaves %s, with which nothing is wrong", addr, before.Name)
		case len(holders) == 0 && !s.IsPolicyLocal:
			l.broken("%s leaves %s, and no other node has it", addr, before.Name)
		}
	}
	for _, n := range holders {
		isNew := !slices.Contains(l.holders[addr], n)
		hears := func(other *Node) bool { return l.cluster.SegmentOf(addr).hears(n, other) }
		isRival := func(other *Node) bool { return other != n && !l.isLeft(other, s) }
		if isNew && l.isStrict && slices.ContainsFunc(holders, isRival) && !slices.ContainsFunc(l.cluster.Nodes, hears) {
			l.broken("%s, which hears nobody, has got %s", n.Name, addr)
		}
	}
	l.inspectClaims(addr, holders)
	l.holders[addr] = holders
	l.inspectReach(addr, s)
	for _, n := range holders {
		l.heldAt[addr][n] = time.Now()
	}
	l.inspectBoth(addr)
}

// inspectBoth is law 2.
func (l *laws) inspectBoth(addr netip.Addr) {
	all, isBoth, on := l.cluster.HoldersOf(addr), false, l.cluster.SegmentOf(addr)
	for i, a := range all {
		for _, b := range all[:i] {
			isBoth = isBoth || on.hears(a, b) && on.hears(b, a) && a.works() && b.works()
		}
	}
	switch since, was := l.bothSince[addr]; {
	case !isBoth:
		delete(l.bothSince, addr)
	case !was:
		l.bothSince[addr] = time.Now()
	case time.Since(since) > maxBoth:
		l.broken("%s is answered for by two nodes since %s", addr, time.Since(since))
		delete(l.bothSince, addr)
	}
}

// inspectReach is law 5.
func (l *laws) inspectReach(addr netip.Addr, s *service) {
	first, wasReached := l.reachedAt[addr]
	since, wasAway := l.awaySince[addr]
	switch isReached := l.cluster.SegmentOf(addr).client.reaches(addr, l.holders[addr]); {
	case isReached && !wasReached:
		l.reachedAt[addr] = time.Now()
	case isReached:
		delete(l.awaySince, addr)
	case wasReached && !wasAway && time.Since(first) > readyWithin:
		l.awaySince[addr] = time.Now()
	case l.hadLately(addr, l.rewired):
		delete(l.awaySince, addr)
	case wasAway && l.isStrict && !s.IsPolicyLocal && time.Since(since) > maxAway:
		l.broken("the client does not reach %s", addr)
		delete(l.awaySince, addr)
		delete(l.reachedAt, addr)
	}
}

// isExcused reports whether one of the nodes that had an address lately could not be reached lately.
func (l *laws) isExcused(addr netip.Addr) bool {
	return l.hadLately(addr, l.unreached.on(l.cluster.SegmentOf(addr).Link))
}

// hadLately reports whether something was lately so of one of the nodes that had an address lately.
func (l *laws) hadLately(addr netip.Addr, so spans) bool {
	for n, at := range l.heldAt[addr] {
		if time.Since(at) < lately && so.isLately(n) {
			return true
		}
	}
	return false
}

// works reports whether the node's agent runs.
func (n *Node) works() bool { return !n.isOff && !n.agent.isKilled && !n.agent.isPaused() }

// settled is law 4.
func (l *laws) settled() {
	l.inspect()
	announced := map[string][]string{}
	for _, ann := range l.announcements() {
		for _, a := range ann.Status.Addresses {
			if a.State == v1.StateAnnounced {
				announced[a.Address] = append(announced[a.Address], ann.Spec.NodeName)
			}
		}
	}
	for _, s := range l.services() {
		l.settledPolicy(s)
		addrs, err := l.cluster.Addresses(s.Name)
		if err != nil || len(addrs) != len(s.Families) {
			l.broken("settled: %s has the addresses %v %v", s.Name, addrs, err)
			continue
		}
		serving := s.mayHold(l.cluster)
		for _, addr := range addrs {
			holders, reported := l.cluster.HoldersOf(addr), announced[addr.String()]
			switch isAll := len(holders) == len(serving); {
			case len(serving) == 0 && len(holders) < 2: // no node of the link has an endpoint
			case slices.ContainsFunc(holders, func(n *Node) bool { return !slices.Contains(serving, n) }):
				l.broken("settled: %s is held by %v, of which not all have an endpoint", addr, namesOf(holders))
			case s.isHeldByAll() && !isAll:
				l.broken("settled: %s is held by %v alone", addr, namesOf(holders))
			case !s.isHeldByAll() && !l.cluster.SegmentOf(addr).client.reaches(addr, holders):
				l.broken("settled: the client does not reach %s", addr)
			case !s.isHeldByAll() && (len(holders) != 1 || !slices.Equal(namesOf(holders), reported)):
				l.broken("settled: %s is held by %v, and reported by %v", addr, namesOf(holders), reported)
			}
		}
	}
	l.settledKernels()
	l.settledSole()
}

// settledSole is the part of law 4 that is about Announcements which agents watch by their names.
func (l *laws) settledSole() {
	count, sole := map[string]int{}, map[string]bool{}
	for _, ann := range l.announcements() {
		count[ann.Spec.NodeName]++
		sole[ann.Spec.NodeName] = sole[ann.Spec.NodeName] || ann.Spec.Sole
	}
	for _, n := range l.cluster.Nodes {
		if sole[n.Name] && count[n.Name] > 1 {
			l.broken("settled: the agent of %s watches one Announcement, and there are %d", n.Name, count[n.Name])
		}
	}
}

// settledPolicy is the part of law 4 that is about a Service whose user has written policy Local, and has not said
// that this is meant for a Local address, too.
func (l *laws) settledPolicy(s *service) {
	policy, err := l.cluster.PolicyOf(s.Name)
	if s.WritesPolicyLocal && !s.isHeldByAll() && policy != corev1.ServiceExternalTrafficPolicyCluster {
		l.broken("settled: %s has policy %s %v, and the node that gets its traffic may have no endpoint", s.Name, policy, err)
	}
}

// mayHold returns the nodes that may hold the addresses of a Service: those of its link, if they are Local, and
// with an endpoint, if its policy is.
func (s *service) mayHold(c *Cluster) []*Node {
	return slices.DeleteFunc(slices.Clone(c.Nodes), func(n *Node) bool {
		isOnLink := s.isHeldByAll() || slices.ContainsFunc(n.NICs, func(c *NIC) bool { return c.segment.Group == s.Group })
		return !isOnLink || s.IsPolicyLocal && !slices.Contains(s.endpoints, n)
	})
}

// settledKernels is the part of law 4 that is about addresses which no Service has.
func (l *laws) settledKernels() {
	for _, n := range l.cluster.Nodes {
		observed, err := n.Kernel.Observe()
		if err != nil {
			l.broken("%s: %v", n.Name, err)
		}
		for _, a := range observed.Addresses {
			if _, isOwned := l.owners[a.Prefix.Addr()]; a.IsOurs && !isOwned {
				l.broken("settled: %s holds %s, which no Service has", n.Name, a.Prefix.Addr())
			}
		}
	}
}

// namesOf returns the names of nodes.
func namesOf(nodes []*Node) []string {
	var names []string
	for _, n := range nodes {
		names = append(names, n.Name)
	}
	return names
}
