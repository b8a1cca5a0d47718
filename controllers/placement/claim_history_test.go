package placement_test

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// told is what a standby says of one address to a successor.
type told struct {
	holder             string
	holderEpoch, epoch int64
}

// wireState is what a machine has to do with claims.
type wireState struct {
	// told is what the manager tells the node.
	told map[netip.Addr]told
	// claimed are the addresses that the agent has claimed by rank, with the epochs, until it
	// has an entry for them. reportedClaims are those that the API server knows of.
	claimed, reportedClaims, unsentClaims map[netip.Addr]int64
	// yielded are the epochs by which the agent had what it has yielded to a successor.
	yielded map[netip.Addr]int64
	// isCutOff is that the node hears no other on the link, and none hears it.
	isCutOff bool
}

// hasYielded reports whether the agent has yielded an address that it had by its entry.
func (m *machine) hasYielded(e v1.AnnouncedAddress) bool {
	epoch, has := m.yielded[netip.MustParseAddr(e.Address)]
	return has && epoch == e.Epoch
}

// tell stores the standbys, and reports whether any has changed.
func (w *world) tell(inputs placement.Inputs) (changed bool) {
	tellings := map[string]map[netip.Addr]told{}
	for _, plan := range placement.PlanStandbys(inputs) {
		if tellings[plan.Watcher] == nil {
			tellings[plan.Watcher] = map[netip.Addr]told{}
		}
		for _, a := range plan.Standby.Addresses {
			for _, s := range a.Successors {
				if s.NodeName == plan.Watcher {
					tellings[plan.Watcher][netip.MustParseAddr(a.Address)] = told{plan.Standby.Watched.NodeName, a.Epoch, s.Epoch}
				}
			}
		}
	}
	for _, m := range w.nodes {
		changed = changed || !cmp.Equal(m.told, tellings[m.Name], cmpopts.EquateEmpty(), cmp.AllowUnexported(told{}))
		m.told = tellings[m.Name]
	}
	return changed
}

// reportedClaims are the claims that the API server knows of.
func (w *world) reportedClaims() (claims []placement.SuccessorClaim) {
	for _, m := range w.nodes {
		for a, epoch := range m.reportedClaims {
			claims = append(claims, placement.SuccessorClaim{Node: m.Name, Addr: a, Epoch: epoch})
		}
	}
	return claims
}

// disturbWire has a holder die, of which its successors notice, cuts a successor off on the link,
// so that it claims what a living node holds, or brings a machine back on the link.
func (w *world) disturbWire(m *machine) {
	kind := w.rng.IntN(3)
	var successors []*machine
	for _, o := range w.nodes {
		if len(o.view.told) > 0 {
			successors = append(successors, o)
		}
	}
	if kind == 0 || len(successors) == 0 {
		m.isCutOff = false
		w.note("%s: is on the link", m.Name)
		return
	}
	o := successors[w.rng.IntN(len(successors))]
	addresses := slices.SortedFunc(maps.Keys(o.view.told), netip.Addr.Compare)
	holder := o.view.told[addresses[w.rng.IntN(len(addresses))]].holder
	if kind == 1 {
		o.isCutOff = true
		w.note("%s: is cut off on the link, and takes %s for dead", o.Name, holder)
	} else {
		w.note("%s: dies", holder)
		w.kill(holder)
	}
	for _, o := range w.nodes {
		for _, a := range slices.SortedFunc(maps.Keys(o.view.told), netip.Addr.Compare) {
			if o.view.told[a].holder == holder {
				w.claimByRank(o, a)
			}
		}
	}
}

// kill has a machine end. Its Lease may have expired already.
func (w *world) kill(name string) {
	for _, m := range w.nodes {
		if m.Name != name {
			continue
		}
		m.isCrashed = true
		clear(m.kernel)
		clear(m.claimed)
		if w.rng.IntN(2) == 0 {
			m.Liveness = placement.Expired
		}
	}
}

// claimByRank has a successor claim an address, if nobody whom it hears answers for it.
func (w *world) claimByRank(m *machine, a netip.Addr) {
	_, own := m.view.spec[a]
	if m.isCrashed || m.isIdle || m.isLiar || m.kernel[a] || m.refusedByKernel[a] || own || w.answers(a, m) != "" {
		return
	}
	m.kernel[a], m.claimed[a] = true, m.view.told[a].epoch
	w.note("  agent %s: claims %s of %s, epoch %d", m.Name, a, m.view.told[a].holder, m.claimed[a])
	w.claimed(a, m)
}

// followClaims ends claims of a machine that the manager has decided about, and yields what the
// machine has to successors that it hears.
func (w *world) followClaims(m *machine) {
	for a, epoch := range m.claimed {
		t, isTold := m.view.told[a]
		_, own := m.view.spec[a]
		higher := slices.ContainsFunc(w.nodes, func(o *machine) bool {
			return o.claimed[a] > epoch && o.kernel[a] && !o.isCutOff && !m.isCutOff
		})
		switch {
		case own: // what is asked of it now counts
			delete(m.claimed, a)
		case !isTold || t.epoch != epoch || t.holderEpoch > epoch || higher:
			w.note("  agent %s: gives up its claim of %s, epoch %d", m.Name, a, epoch)
			delete(m.claimed, a)
			delete(m.kernel, a)
		}
	}
	for a, e := range m.view.spec {
		if !m.kernel[a] {
			continue
		}
		for _, o := range w.nodes {
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

// reportFalseClaims has a liar report that it has claimed all that it is told, and what others are.
func (w *world) reportFalseClaims(m *machine) {
	clear(m.claimed)
	m.reportedClaims = map[netip.Addr]int64{}
	if m.unsentClaims = m.reportedClaims; w.isSettling {
		return // or it would go on for ever
	}
	for _, o := range w.nodes {
		for a, t := range o.told {
			m.reportedClaims[a] = t.epoch
		}
	}
	for a, t := range m.told {
		m.reportedClaims[a] = t.epoch
	}
}

// checkClaim checks an entry with another epoch than before, if it comes from a claim, and
// reports whether it does.
func (w *world) checkClaim(
	inputs *placement.Inputs, a *placement.Address, before map[string]placement.Entry, node string, e v1.AnnouncedAddress,
) bool {
	holder := holderOf(before)
	isAlive := func(name string) bool {
		return slices.ContainsFunc(inputs.Nodes, func(n placement.Node) bool {
			return n.Name == name && n.Liveness != placement.Expired
		})
	}
	if was, had := before[node]; had && was.Spec.ContestedBy != nil && node == holder {
		if !was.IsObserved || e.ContestedBy != nil || len(e.Successors) > 0 || e.Epoch <= was.Spec.ContestedBy.Epoch {
			w.fail("%s: %s gets epoch %d: %+v", a.Addr, node, e.Epoch, was)
		}
		w.refuted++
		return true
	}
	if !slices.ContainsFunc(inputs.Claims, func(c placement.SuccessorClaim) bool {
		return c.Addr == a.Addr && c.Node == node && c.Epoch == e.Epoch
	}) {
		return false
	}
	w.adopted++
	switch {
	case holder != "" && isAlive(holder):
		w.fail("%s: the claim of %s is adopted, although %s announces it and renews", a.Addr, node, holder)
	case !isAlive(node):
		w.fail("%s: the claim of %s is adopted, whose Lease has expired", a.Addr, node)
	}
	for _, c := range inputs.Claims {
		n := slices.IndexFunc(inputs.Nodes, func(n placement.Node) bool { return n.Name == c.Node })
		if c.Addr == a.Addr && c.Epoch > e.Epoch && eligible(&inputs.Nodes[n]) && serves(a, c.Node, false) {
			w.fail("%s: the claim of %s by epoch %d is adopted, and not that of %s by %d",
				a.Addr, node, e.Epoch, c.Node, c.Epoch)
		}
	}
	for name, was := range before {
		if !slices.Contains(was.Spec.Successors, v1.Successor{NodeName: node, Epoch: e.Epoch}) && name == holder {
			w.fail("%s: the claim of %s is adopted, for whom %s does not reserve epoch %d", a.Addr, node, holder, e.Epoch)
		}
		if e.HighestEpoch < max(was.Spec.HighestEpoch, was.Spec.Epoch) {
			w.fail("%s: the entry of %s forgets epoch %d of %s", a.Addr, node, was.Spec.HighestEpoch, name)
		}
	}
	return true
}
