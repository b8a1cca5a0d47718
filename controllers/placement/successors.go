package placement

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// Bounds of successors.
const (
	// maxWatchers is how many nodes watch a node on one of its links at most: all
	// successors of the addresses that the node holds there are among them.
	maxWatchers = 4
	// maxPreferredLinks is how many links of nodes a node watches at most because groups prefer it: few may be preferred,
	// and the addresses may be on many others.
	maxPreferredLinks = 16
	// successorDelay is how long a holder has had an address before its successors are
	// named. Successors of many new addresses are thus written together, and no address
	// waits for a write that names the successors of another.
	successorDelay = time.Second
)

// heldAddress is a Local address that stays with its holder.
type heldAddress struct {
	address *Address
	holder  *Node
	// stored is the holder's entry as it stands, and entryIndex is where among the holder's Entries of the Result the
	// one is that the holder is to have.
	stored     *judgedEntry
	entryIndex int
	// namedSuccessors are the successors that the stored entry names and that remain, first rank
	// first.
	namedSuccessors []v1.Successor
	// lacksFreshSuccessor means that watchers are to be found that may be named instead of all namedSuccessors.
	lacksFreshSuccessor bool
	// chosenByRank are the nodes of the successors, by rank; empty where there is none.
	chosenByRank [v1.MaxSuccessorsPerAddress]string
	// checks are what a node must pass to be named.
	checks []check
}

// holderLink is an interface of a node that holds Local addresses: the nodes that watch the
// node there are successors for these addresses alone.
type holderLink struct{ holder, iface string }

// noteHeld notes that an address stays with its holder, which was given its entry last, so that successors can be
// named.
func (p *placer) noteHeld(a *Address, e *judgedEntry) {
	holder := e.node
	if !p.inputs.NamesSuccessors || holder.IsFailoverDisabled {
		return
	}
	i := holder.interfaceFor(a.Addr)
	if i == nil {
		return // the holder's facts are unknown: its entry stays as it is
	}
	link := holderLink{holder.Name, i.Name}
	p.held[link] = append(p.held[link], &heldAddress{
		address: a, holder: holder, stored: e, entryIndex: len(p.result.Entries[holder.Name]) - 1, checks: p.checksToTake(a),
	})
}

// nameSuccessors names the successors of all Local addresses that stay with their holders.
// The entry of the holder is where they are named: its Announcement is written only if it is
// still as it was read, so that no two leaders reserve one epoch for two nodes.
func (p *placer) nameSuccessors() {
	links := slices.SortedFunc(maps.Keys(p.held), func(x, y holderLink) int {
		return cmp.Or(cmp.Compare(x.holder, y.holder), cmp.Compare(x.iface, y.iface))
	})
	mentions := map[holderLink]map[string]int{}
	for _, link := range links {
		for _, h := range p.held[link] {
			h.namedSuccessors = p.remainingSuccessors(h)
			h.lacksFreshSuccessor = p.lacksFreshSuccessor(h)
		}
		mentions[link] = countMentions(p.held[link])
		for name := range mentions[link] {
			p.watchedLinks[name]++
		}
	}
	for _, link := range links {
		held := p.held[link]
		watchers := p.chooseWatchers(link, held, mentions[link])
		for _, h := range held {
			if h.lacksFreshSuccessor && mayAnyBeNamed(h, watchers) {
				h.namedSuccessors = nil
			}
		}
		for rank := range v1.MaxSuccessorsPerAddress {
			chooseSuccessorsOfRank(rank, held, watchers)
		}
		for _, h := range held {
			p.writeSuccessors(h)
		}
	}
}

// remainingSuccessors returns the named successors that remain: those that pass the checks for holding the address, and
// whose Leases have not been expired for long. An agent that restarts, as all do on an upgrade, thus costs no
// write, and meanwhile the other successor claims.
func (p *placer) remainingSuccessors(h *heldAddress) []v1.Successor {
	return slices.DeleteFunc(p.withoutUnfitSuccessors(h.stored.Spec.Successors, h.address), func(s v1.Successor) bool {
		n := p.nodeByName[s.NodeName]
		return n == h.holder || n.IsExpiredForLong
	})
}

// lacksFreshSuccessor reports whether the Leases of all named successors have expired, so that others are to be named
// if there are any.
func (p *placer) lacksFreshSuccessor(h *heldAddress) bool {
	return !p.isMassExpiry && !p.isTooEarlyForSuccessors(h) && len(h.namedSuccessors) > 0 &&
		!slices.ContainsFunc(h.namedSuccessors, func(s v1.Successor) bool {
			return p.nodeByName[s.NodeName].Liveness != Expired
		})
}

// mayAnyBeNamed reports whether one of the watchers may be named as a successor for an address.
func mayAnyBeNamed(h *heldAddress, watchers map[string]*Node) bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(watchers)), func(n *Node) bool { return mayBeSuccessor(n, h) })
}

// isTooEarlyForSuccessors reports whether no further epochs are to be reserved for successors of an address yet.
func (p *placer) isTooEarlyForSuccessors(h *heldAddress) bool {
	return !p.hasLasted(h.stored.UnchangedFor, successorDelay) || h.holder.SuccessorWait > 0
}

// withoutUnfitSuccessors returns the successors of an address but those that are not to have the address,
// whether their agents renew or not. One whose claim counts stays: it withdraws the address when its epoch is
// not reserved any more.
func (p *placer) withoutUnfitSuccessors(successors []v1.Successor, a *Address) []v1.Successor {
	return slices.DeleteFunc(slices.Clone(successors), func(s v1.Successor) bool {
		n := p.nodeByName[s.NodeName]
		isFit := n != nil && !n.IsFailoverDisabled && reasonAgainst(n, a, holdChecksWithoutLease) == ""
		return !isFit && !p.hasClaimed(s, a)
	})
}

// hasClaimed reports whether a successor has claimed an address, and the claim counts.
func (p *placer) hasClaimed(s v1.Successor, a *Address) bool {
	n := p.nodeByName[s.NodeName]
	return n != nil && reasonAgainst(n, a, successorClaimChecks) == "" &&
		slices.ContainsFunc(p.claimsByAddress[a.Addr], func(c *SuccessorClaim) bool {
			return c.Node == s.NodeName && c.Epoch == s.Epoch
		})
}

// chooseWatchers returns the nodes that may be successors on a link, by name: those that are
// successors already, and up to maxWatchers in all of those that may take most of the
// addresses which have too few of them, and of these the ones that are preferred. mentions is what
// countMentions returns of the addresses.
func (p *placer) chooseWatchers(link holderLink, held []*heldAddress, mentions map[string]int) map[string]*Node {
	watchers, isComplete, needsOthers := map[string]*Node{}, true, false
	for _, h := range held {
		isComplete = isComplete && len(h.namedSuccessors) == v1.MaxSuccessorsPerAddress && !h.lacksFreshSuccessor
		needsOthers = needsOthers || h.lacksFreshSuccessor
	}
	byMentions := slices.SortedFunc(maps.Keys(mentions), func(x, y string) int {
		return cmp.Or(cmp.Compare(mentions[y], mentions[x]), cmp.Compare(x, y))
	})
	for _, name := range byMentions[:min(len(byMentions), maxWatchers)] {
		watchers[name] = p.nodeByName[name]
	}
	if isComplete && len(watchers) >= min(len(held), maxWatchers) {
		return watchers // the addresses are spread as far as they can be
	}
	if needsOthers && len(watchers) == maxWatchers && areAllExpired(watchers) {
		clear(watchers) // or there would be no place for others
	}
	lacking := slices.DeleteFunc(slices.Clone(held), func(h *heldAddress) bool { return hasEnoughWatchers(h, watchers) })
	candidates := p.watchCandidates(link, held, lacking)
	candidates = slices.DeleteFunc(candidates, func(c watchCandidate) bool { return watchers[c.node.Name] != nil })
	for len(watchers) < maxWatchers && len(candidates) > 0 {
		for k, h := range lacking {
			if hasEnoughWatchers(h, watchers) {
				continue
			}
			for i := range candidates {
				if candidates[i].mayTake[k] {
					candidates[i].gain++
				}
			}
		}
		best := slices.MaxFunc(candidates, watchCandidate.compare).node
		watchers[best.Name] = best
		p.watchedLinks[best.Name]++
		candidates = slices.DeleteFunc(candidates, func(c watchCandidate) bool { return c.node == best })
		for i := range candidates {
			candidates[i].gain = 0
		}
	}
	return watchers
}

// countMentions returns for how many of some addresses each node is named as a successor.
func countMentions(held []*heldAddress) map[string]int {
	mentions := map[string]int{}
	for _, h := range held {
		for _, s := range h.namedSuccessors {
			mentions[s.NodeName]++
		}
	}
	return mentions
}

// areAllExpired reports whether the Leases of all of some nodes have expired.
func areAllExpired(nodes map[string]*Node) bool {
	return !slices.ContainsFunc(slices.Collect(maps.Values(nodes)), func(n *Node) bool { return n.Liveness != Expired })
}

// watchCandidate is a node that may be named as a successor for some of the addresses on a link.
type watchCandidate struct {
	node  *Node
	score uint64
	// mayTake says which of the addresses that lack watchers the node may be named for, weight is how much it is
	// preferred for these, and gain is how many of them lack some still.
	mayTake []bool
	weight  int
	gain    int
}

func (c watchCandidate) compare(other watchCandidate) int {
	return cmp.Or(
		cmp.Compare(c.gain, other.gain), cmp.Compare(c.weight, other.weight), cmp.Compare(c.score, other.score),
		cmp.Compare(other.node.Name, c.node.Name),
	)
}

// watchCandidates are the nodes that may be named as successors for any of the addresses. lacking are those of the
// addresses that have too few watchers. NotReady nodes are only among them if there are no others. A node that watches
// very many links is not preferred.
func (p *placer) watchCandidates(link holderLink, held, lacking []*heldAddress) []watchCandidate {
	onLink := p.nodesInSubnetsOf(held)
	candidates := make([]watchCandidate, 0, len(onLink))
	mayTake := make([]bool, len(onLink)*len(lacking))
	for _, n := range onLink {
		mayPrefer := p.watchedLinks[n.Name] < maxPreferredLinks
		c := watchCandidate{node: n, mayTake: mayTake[:len(lacking)]}
		mayTake = mayTake[len(lacking):]
		for k, h := range lacking {
			if c.mayTake[k] = mayBeSuccessor(n, h); c.mayTake[k] && mayPrefer {
				c.weight += h.address.WeightOf(n)
			}
		}
		if slices.Contains(c.mayTake, true) ||
			slices.ContainsFunc(held, func(h *heldAddress) bool { return mayBeSuccessor(n, h) }) {
			c.score = linkScore(n.Name, link)
			candidates = append(candidates, c)
		}
	}
	if slices.ContainsFunc(candidates, func(c watchCandidate) bool { return !c.node.IsNotReady }) {
		candidates = slices.DeleteFunc(candidates, func(c watchCandidate) bool { return c.node.IsNotReady })
	}
	return candidates
}

// nodesInSubnetOf are the nodes with an interface in a subnet that contains an address, some of them more than once.
func (p *placer) nodesInSubnetOf(a netip.Addr) iter.Seq[*Node] {
	return func(yield func(*Node) bool) {
		for _, subnet := range p.subnetsWith(a) {
			for _, n := range p.nodesOfSubnet[subnet] {
				if !yield(n) {
					return
				}
			}
		}
	}
}

// nodesInSubnetsOf are the nodes with an interface in a subnet that contains one of the addresses, each once.
func (p *placer) nodesInSubnetsOf(held []*heldAddress) []*Node {
	subnets := map[netip.Prefix]bool{}
	for _, h := range held {
		for _, subnet := range p.subnetsWith(h.address.Addr) {
			subnets[subnet] = true
		}
	}
	var nodes []*Node
	for subnet := range subnets {
		nodes = append(nodes, p.nodesOfSubnet[subnet]...)
	}
	slices.SortFunc(nodes, func(a, b *Node) int { return cmp.Compare(a.Name, b.Name) })
	return slices.Compact(nodes)
}

// subnetsWith are the subnets of nodes that contain an address.
func (p *placer) subnetsWith(a netip.Addr) []netip.Prefix {
	if p.nodesOfSubnet == nil {
		p.nodesOfSubnet = map[netip.Prefix][]*Node{}
		for _, n := range p.nodes {
			for _, i := range n.Interfaces {
				for _, s := range i.Subnets {
					p.nodesOfSubnet[s.Masked()] = append(p.nodesOfSubnet[s.Masked()], n)
					p.subnetLengths = append(p.subnetLengths, s.Bits())
				}
			}
		}
		slices.Sort(p.subnetLengths)
		p.subnetLengths = slices.Compact(p.subnetLengths)
	}
	var subnets []netip.Prefix
	for _, bits := range p.subnetLengths {
		if subnet, err := a.Prefix(bits); err == nil && p.nodesOfSubnet[subnet] != nil {
			subnets = append(subnets, subnet)
		}
	}
	return subnets
}

// hasEnoughWatchers reports whether as many watchers as an address has successors are, or may be, successors for it.
func hasEnoughWatchers(h *heldAddress, watchers map[string]*Node) bool {
	count := 0
	for _, n := range watchers {
		isNamed := v1.ReservedEpochOf(h.namedSuccessors, n.Name) != 0
		if isNamed && !h.lacksFreshSuccessor || mayBeSuccessor(n, h) {
			count++
		}
	}
	return count >= v1.MaxSuccessorsPerAddress
}

// mayBeSuccessor reports whether a node may be named as a successor for an address.
func mayBeSuccessor(n *Node, h *heldAddress) bool {
	return n != h.holder && !n.IsFailoverDisabled && reasonAgainst(n, h.address, h.checks) == ""
}

// rankChoice chooses the successors of one rank for the addresses on a link.
type rankChoice struct {
	rank     int
	held     []*heldAddress
	watchers map[string]*Node
	// share is for how many addresses a watcher is of this rank at the most, as long as there are others, and count for
	// how many it is already.
	share int
	count map[string]int
}

// chooseSuccessorsOfRank chooses the successors of one rank. A named one remains, be it of another rank until now,
// unless it would be of the first rank for more than its share, or become so although others are preferred: the
// addresses of a dead node are spread over its watchers, unless one of these is preferred to all others.
func chooseSuccessorsOfRank(rank int, held []*heldAddress, watchers map[string]*Node) {
	if len(watchers) == 0 {
		return
	}
	c := &rankChoice{rank, held, watchers, (len(held) + len(watchers) - 1) / len(watchers), map[string]int{}}
	for _, h := range held {
		for _, s := range h.namedSuccessors {
			if watchers[s.NodeName] != nil && !c.isChosen(h, s.NodeName) && (rank > 0 || c.mayBeFirst(h, s.NodeName)) {
				c.choose(h, s.NodeName)
				break
			}
		}
	}
	for _, h := range held {
		if h.chosenByRank[rank] != "" {
			continue
		}
		if best := c.bestTaker(h); best != "" {
			c.choose(h, best)
		}
	}
}

func (c *rankChoice) choose(h *heldAddress, name string) {
	h.chosenByRank[c.rank] = name
	c.count[name]++
}

// isChosen reports whether a watcher is the successor of an earlier rank.
func (c *rankChoice) isChosen(h *heldAddress, name string) bool {
	return slices.Contains(h.chosenByRank[:c.rank], name)
}

// isTaker reports whether a watcher may be of this rank: it is named already, or may be.
func (c *rankChoice) isTaker(h *heldAddress, name string) bool {
	return !c.isChosen(h, name) &&
		(v1.ReservedEpochOf(h.namedSuccessors, name) != 0 || mayBeSuccessor(c.watchers[name], h))
}

// mayBeFirst reports whether a named successor remains, or comes to be, of the first rank before it is known who else
// does: the one that is so already, and any other only if no watcher is preferred to it.
func (c *rankChoice) mayBeFirst(h *heldAddress, name string) bool {
	isFirst := h.stored.Spec.Successors[0].NodeName == name
	return c.count[name] < c.share && (isFirst || !c.isOutweighed(h, name))
}

// isOutweighed reports whether another watcher that may take an address is preferred to one.
func (c *rankChoice) isOutweighed(h *heldAddress, name string) bool {
	weight := h.address.WeightOf(c.watchers[name])
	for other, n := range c.watchers {
		if h.address.WeightOf(n) > weight && c.isTaker(h, other) {
			return true
		}
	}
	return false
}

// bestTaker returns the watcher that is to be of this rank for an address; nothing if none may take it.
func (c *rankChoice) bestTaker(h *heldAddress) string {
	var takers []string
	for name := range c.watchers {
		if c.isTaker(h, name) {
			takers = append(takers, name)
		}
	}
	if len(takers) == 0 {
		return ""
	}
	return slices.MaxFunc(takers, func(x, y string) int {
		return cmp.Or(
			cmp.Compare(h.address.WeightOf(c.watchers[x]), h.address.WeightOf(c.watchers[y])),
			cmp.Compare(max(c.count[y]+1-c.share, 0), max(c.count[x]+1-c.share, 0)),
			cmp.Compare(rendezvousScore(x, h.address.Addr), rendezvousScore(y, h.address.Addr)),
			cmp.Compare(y, x),
		)
	})
}

// writeSuccessors writes the chosen successors into the entry that the holder is to have. A
// node that was named keeps its epoch, whatever its rank; others get epochs that no node was
// given and that are reserved for no other. While it is too early for these, named successors that were not
// chosen fill the places. If the Leases of all named successors have expired, and no other node may be named, the entry
// keeps them.
func (p *placer) writeSuccessors(h *heldAddress) {
	e := &p.result.Entries[h.holder.Name][h.entryIndex]
	isEarly := p.isTooEarlyForSuccessors(h)
	highest := p.highestEpoch(h.address.Addr)
	e.Successors = nil
	for _, name := range h.chosenByRank {
		epoch := v1.ReservedEpochOf(h.namedSuccessors, name)
		if name == "" || epoch == 0 && isEarly {
			continue
		}
		if epoch == 0 {
			highest++
			epoch = highest
			e.HighestEpoch = epoch
		}
		e.Successors = append(e.Successors, v1.Successor{NodeName: name, Epoch: epoch})
	}
	for _, s := range h.namedSuccessors {
		if isEarly && len(e.Successors) < v1.MaxSuccessorsPerAddress && v1.ReservedEpochOf(e.Successors, s.NodeName) == 0 {
			e.Successors = append(e.Successors, s)
		}
	}
	if len(e.Successors) == 0 && h.lacksFreshSuccessor {
		e.Successors = h.namedSuccessors
	}
}

// highestEpoch is the highest epoch of an address that any node was given, or that is
// reserved.
func (p *placer) highestEpoch(a netip.Addr) int64 {
	highest := int64(0)
	for _, e := range p.entriesByAddress[a] {
		highest = max(highest, e.Spec.Epoch, e.Spec.HighestEpoch)
	}
	return highest
}

// linkScore is the rendezvous hash of a node that watches, asks or witnesses, and a link.
func linkScore(node string, link holderLink) uint64 {
	var buffer [128]byte // placement asks for many scores: an array for the text is on the stack
	text := buffer[:0]
	for _, word := range [...]string{node, link.holder, link.iface} {
		text = append(append(text, word...), 0)
	}
	return xxhash.Sum64(text)
}
