package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
	"github.com/purelb/purelb-operator/internal/mergepatch"
	"github.com/purelb/purelb-operator/internal/order"
)

// RebalancePlan is what spreading the Local addresses again would do.
type RebalancePlan struct {
	// Moves are the handovers, in their order.
	Moves []RebalanceMove `json:"moves"`
	// Before and After say how many Local addresses each node has.
	Before []NodeLoad `json:"before"`
	After  []NodeLoad `json:"after"`
	// OnTheirWay is how many Local addresses are on their way to a node. They are in neither.
	OnTheirWay int      `json:"onTheirWay,omitempty"`
	Unread     []Unread `json:"unread,omitempty"`
}

// RebalanceMove is one handover.
type RebalanceMove struct {
	Address  string   `json:"address"`
	Services []string `json:"services"`
	From     string   `json:"from"`
	To       string   `json:"to"`
	// FromHas and ToHas are how many addresses of the family the nodes have before it.
	FromHas int `json:"fromHas"`
	ToHas   int `json:"toHas"`
	// Preference says why the address's ServiceGroup prefers the second node; empty if it does not.
	Preference string `json:"preference,omitempty"`
}

// NodeLoad is how many Local addresses a node has.
type NodeLoad struct {
	Node string `json:"node"`
	IPv4 int    `json:"ipv4"`
	IPv6 int    `json:"ipv6"`
}

// PlanRebalance plans handovers, one after the other, until no address has a node that its ServiceGroup
// prefers to the one that has the address, and of each family no node has two addresses more than another one
// that may take one of them and is preferred no less.
func PlanRebalance(c *Cluster) *RebalancePlan {
	r := &RebalancePlan{Moves: []RebalanceMove{}, Unread: c.unreadOf(placementKinds...)}
	inputs := withoutRequests(c.PlacementInputs)
	now := placement.Place(inputs)
	r.Before, r.OnTheirWay = loadsOf(&inputs, &now), len(now.Moves)
	for {
		move, asked := nextHandover(inputs)
		if move == nil {
			break
		}
		now, _ = placement.Predict(asked)
		if !slices.Equal(now.NodesOf(&asked, netip.MustParseAddr(move.Address)), []string{move.To}) {
			break // it would not arrive, and be planned again and again
		}
		r.Moves = append(r.Moves, *move)
		inputs.Entries, inputs.SharedEntries = placement.AssumeRealised(inputs, &now)
		inputs.LingeringReports = nil
	}
	now = placement.Place(inputs)
	r.After = loadsOf(&inputs, &now)
	return r
}

// withoutRequests returns inputs in which no node is asked to hand an address over.
func withoutRequests(inputs placement.Inputs) placement.Inputs {
	inputs.Nodes = slices.Clone(inputs.Nodes)
	for i := range inputs.Nodes {
		inputs.Nodes[i].AddressToHandOver = netip.Addr{}
	}
	return inputs
}

// nextHandover chooses a handover to a node that is preferred or, if there is none, one from one of the nodes
// with the most addresses of a family to one that has at least two fewer, as the manager would choose it. It
// returns the inputs in which the node is asked for it. The move is nil if there is none. Each makes the sum of
// all weights more or, with the same, that of the squares of what domains have less or, with the same, that of
// the squares of all loads less, so they come to an end.
func nextHandover(inputs placement.Inputs) (*RebalanceMove, placement.Inputs) {
	now := placement.Place(inputs)
	held := heldAddresses(&inputs, &now)
	preferences := newPreferences(&inputs, held)
	if move, asked := preferences.nextPreferredHandover(inputs); move != nil {
		return move, asked
	}
	for _, family := range []v1.IPFamily{v1.FamilyOf(netip.IPv4Unspecified()), v1.FamilyOf(netip.IPv6Unspecified())} {
		byNode := held[family]
		least := len(inputs.Addresses)
		for i := range inputs.Nodes {
			if n := &inputs.Nodes[i]; n.LBNodeAgent != "" {
				least = min(least, len(byNode[n.Name]))
			}
		}
		for _, from := range mostLoadedFirst(byNode) {
			if len(byNode[from])-least < 2 { // nor do the nodes that follow have enough
				break
			}
			for _, a := range byNode[from] {
				to, asked := withHandoverRequest(inputs, from, a.Addr)
				if to != "" && len(byNode[from])-len(byNode[to]) >= 2 && preferences.compare(&a, from, to) >= 0 {
					return moveOf(&a, from, to, byNode), asked
				}
			}
		}
	}
	return nil, inputs
}

// mostLoadedFirst lists the nodes that hold addresses.
func mostLoadedFirst(byNode map[string][]placement.Address) []string {
	return slices.SortedFunc(maps.Keys(byNode), func(x, y string) int {
		return cmp.Or(cmp.Compare(len(byNode[y]), len(byNode[x])), cmp.Compare(x, y))
	})
}

// withHandoverRequest returns inputs in which a node is asked to hand over an address, and to which node it goes then.
func withHandoverRequest(inputs placement.Inputs, from string, addr netip.Addr) (to string, asked placement.Inputs) {
	asked = withoutRequests(inputs)
	i := slices.IndexFunc(asked.Nodes, func(n placement.Node) bool { return n.Name == from })
	asked.Nodes[i].AddressToHandOver = addr
	return placement.Place(asked).Moves[addr].To, asked
}

func moveOf(a *placement.Address, from, to string, byNode map[string][]placement.Address) *RebalanceMove {
	return &RebalanceMove{
		Address: a.Addr.String(), Services: a.Services, From: from, To: to,
		FromHas: len(byNode[from]), ToHas: len(byNode[to]),
	}
}

// preferences are what ServiceGroups prefer, and how many addresses each domain has.
type preferences struct {
	nodes map[string]*placement.Node
	held  map[v1.IPFamily]map[string][]placement.Address
	count map[placement.GroupDomain]int
}

func newPreferences(
	inputs *placement.Inputs, held map[v1.IPFamily]map[string][]placement.Address,
) *preferences {
	p := &preferences{nodes: map[string]*placement.Node{}, held: held, count: map[placement.GroupDomain]int{}}
	for i := range inputs.Nodes {
		p.nodes[inputs.Nodes[i].Name] = &inputs.Nodes[i]
	}
	for _, byNode := range held {
		for name, addresses := range byNode {
			for i := range addresses {
				p.count[addresses[i].DomainOf(p.nodes[name])]++
			}
		}
	}
	return p
}

// compare is positive if the ServiceGroup of an address that a node holds prefers another node, and negative
// if it prefers the one that holds the address.
func (p *preferences) compare(a *placement.Address, from, to string) int {
	source, target := p.nodes[from], p.nodes[to]
	if weight := cmp.Compare(a.WeightOf(target), a.WeightOf(source)); weight != 0 {
		return weight
	}
	if a.DomainOf(source) == a.DomainOf(target) {
		return 0
	}
	return cmp.Compare(p.count[a.DomainOf(source)], p.count[a.DomainOf(target)]+1)
}

// nextPreferredHandover chooses a handover of an address to a node that its ServiceGroup prefers.
func (p *preferences) nextPreferredHandover(inputs placement.Inputs) (*RebalanceMove, placement.Inputs) {
	for _, byNode := range order.ByKey(p.held, cmp.Compare) {
		for _, from := range mostLoadedFirst(byNode) {
			for i := range byNode[from] {
				a := &byNode[from][i]
				isBetter := func(to string) bool { return p.compare(a, from, to) > 0 }
				if a.Preference == nil || !slices.ContainsFunc(slices.Collect(maps.Keys(p.nodes)), isBetter) {
					continue
				}
				if to, asked := withHandoverRequest(inputs, from, a.Addr); to != "" && isBetter(to) {
					move := moveOf(a, from, to, byNode)
					move.Preference = p.describe(a, from, to)
					return move, asked
				}
			}
		}
	}
	return nil, inputs
}

// describe says why the ServiceGroup of an address prefers another node than the one that holds it.
func (p *preferences) describe(a *placement.Address, from, to string) string {
	source, target := p.nodes[from], p.nodes[to]
	if a.WeightOf(source) != a.WeightOf(target) {
		return fmt.Sprintf("%s has weight %d, %s has %d", from, a.WeightOf(source), to, a.WeightOf(target))
	}
	mine, other := a.DomainOf(source), a.DomainOf(target)
	return fmt.Sprintf("%s has %d of ServiceGroup %s, %s has %d", mine, p.count[mine], a.Group, other, p.count[other])
}

// heldAddresses lists the Local addresses that stay with their holders, by family and holder.
func heldAddresses(inputs *placement.Inputs, result *placement.Result) map[v1.IPFamily]map[string][]placement.Address {
	held := map[v1.IPFamily]map[string][]placement.Address{}
	addresses := slices.SortedFunc(
		slices.Values(inputs.Addresses), func(a, b placement.Address) int { return a.Addr.Compare(b.Addr) },
	)
	for _, a := range addresses {
		family, nodes := v1.FamilyOf(a.Addr), result.NodesOf(inputs, a.Addr)
		_, moves := result.Moves[a.Addr]
		isLocal := len(nodes) == 1 && slices.ContainsFunc(result.Entries[nodes[0]], func(e placement.Placed) bool {
			return e.Addr == a.Addr && e.Type == v1.AnnounceLocal
		})
		if moves || !isLocal {
			continue
		}
		if held[family] == nil {
			held[family] = map[string][]placement.Address{}
		}
		held[family][nodes[0]] = append(held[family][nodes[0]], a)
	}
	return held
}

// loadsOf says how many Local addresses each node has that runs an agent.
func loadsOf(inputs *placement.Inputs, result *placement.Result) []NodeLoad {
	loads := []NodeLoad{}
	held := heldAddresses(inputs, result)
	for i := range inputs.Nodes {
		if n := &inputs.Nodes[i]; n.LBNodeAgent != "" {
			loads = append(loads, NodeLoad{
				n.Name, len(held[v1.FamilyOf(netip.IPv4Unspecified())][n.Name]),
				len(held[v1.FamilyOf(netip.IPv6Unspecified())][n.Name]),
			})
		}
	}
	slices.SortFunc(loads, func(x, y NodeLoad) int { return cmp.Compare(x.Node, y.Node) })
	return loads
}

// WriteText writes the handovers, and what nodes have before and after them.
func (r *RebalancePlan) WriteText(w io.Writer, style Style) error {
	t := newTextWriter(w, style)
	if len(r.Moves) == 0 {
		t.line("Nothing to move: no ServiceGroup prefers other nodes for an address, and no node has two addresses more " +
			"than another one that may take one of them.")
	} else {
		t.header("ADDRESS", "SERVICES", "FROM", "TO", "WHY")
		for _, m := range r.Moves {
			t.row(m.Address, strings.Join(m.Services, ","), m.From, m.To, m.why())
		}
	}
	t.line("")
	t.header("NODE", "IPV4", "IPV6")
	for i, b := range r.Before {
		t.row(b.Node, countChange(b.IPv4, r.After[i].IPv4), countChange(b.IPv6, r.After[i].IPv6))
	}
	if r.OnTheirWay > 0 {
		t.line(addressCount(r.OnTheirWay) + " on the way to a node: not counted")
	}
	t.unread(r.Unread)
	return t.flush()
}

func (m *RebalanceMove) why() string {
	if m.Preference != "" {
		return m.Preference
	}
	return fmt.Sprintf("%s has %d, %s has %d", m.From, m.FromHas, m.To, m.ToHas)
}

// countChange writes a number, and what becomes of it.
func countChange(before, after int) string {
	if before == after {
		return fmt.Sprint(before)
	}
	return fmt.Sprintf("%d → %d", before, after)
}

// RebalanceOutcome is what came of spreading the Local addresses again.
type RebalanceOutcome struct {
	// Moved are the handovers that are over, with the nodes that have the addresses now.
	Moved []RebalanceMove `json:"moved"`
}

// Rebalance spreads the Local addresses again: one handover after the other, each planned anew from what read
// returns, and never more than there were to do at first. It writes to w what it does. It begins with none
// while other addresses are on their way. An address that does not arrive within patience stays where it is,
// and ends it.
func Rebalance(
	ctx context.Context, c client.Client, namespace string, read func(context.Context) (*Cluster, error),
	patience time.Duration, w io.Writer,
) (*RebalanceOutcome, error) {
	most, result := -1, &RebalanceOutcome{Moved: []RebalanceMove{}}
	for done := 0; ; done++ {
		plan, err := planOnceSettled(ctx, read, patience)
		if err != nil {
			return result, err
		}
		if most < 0 {
			most = len(plan.Moves)
		}
		if done == most || len(plan.Moves) == 0 {
			_, _ = fmt.Fprintf(w, "%s moved\n", addressCount(done))
			return result, nil
		}
		m := &plan.Moves[0]
		_, _ = fmt.Fprintf(w, "%d of %d: %s of %s leaves %s, for %s: %s\n",
			done+1, most, m.Address, printableLine(strings.Join(m.Services, ", ")), m.From, m.To, m.why())
		to, err := handOver(ctx, c, namespace, m.From, m.Address, patience)
		if err != nil {
			return result, err
		}
		m.To = to
		result.Moved = append(result.Moved, *m)
		_, _ = fmt.Fprintf(w, "%d of %d: %s is on %s\n", done+1, most, m.Address, to)
	}
}

// planOnceSettled plans as soon as no address is on its way. It is an error if one still is after some time, if
// somebody else asks for a handover, and if not all can be read.
func planOnceSettled(
	ctx context.Context, read func(context.Context) (*Cluster, error), patience time.Duration,
) (*RebalancePlan, error) {
	end := time.After(patience)
	for {
		cluster, err := read(ctx)
		if err != nil {
			return nil, err
		}
		for i := range cluster.Nodes {
			if a := cluster.Nodes[i].Annotations[v1.AnnotationHandover]; a != "" {
				return nil, fmt.Errorf("node %s is asked to hand over %s already: wait, or, if nobody does that any more: "+
					"kubectl annotate node %s %s-", cluster.Nodes[i].Name, printableLine(a), cluster.Nodes[i].Name,
					v1.AnnotationHandover)
			}
		}
		plan := PlanRebalance(cluster)
		switch {
		case len(plan.Unread) > 0:
			return nil, fmt.Errorf("nothing is moved, since %s", describeUnread(plan.Unread))
		case plan.OnTheirWay == 0:
			return plan, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-end:
			return nil, fmt.Errorf("nothing is moved, since %s on the way to a node: kubectl purelb status",
				addressCount(plan.OnTheirWay))
		case <-time.After(pollInterval):
		}
	}
}

// handOver has a node hand over one address, and waits until another node announces it and the node does not
// have it any more. It returns the other node. Nobody asks any more afterwards, whatever happens.
func handOver(
	ctx context.Context, c client.Client, namespace, from, address string, patience time.Duration,
) (to string, err error) {
	node := &corev1.Node{}
	node.Name = from
	ask := func(ctx context.Context, value *string) error {
		annotations := map[string]*string{v1.AnnotationHandover: value}
		return mergepatch.Write(ctx, c, node, map[string]any{"metadata": map[string]any{"annotations": annotations}})
	}
	if err := ask(ctx, &address); err != nil {
		return "", err
	}
	defer func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if failed := ask(ending, nil); failed != nil {
			err = errors.Join(err, fmt.Errorf("node %s is still asked: kubectl annotate node %s %s-: %w",
				from, from, v1.AnnotationHandover, failed))
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		to, failed := newHolderOf(ctx, c, namespace, from, address)
		switch {
		case failed == nil && to != "":
			return to, nil
		case apierrors.IsForbidden(failed):
			return "", failed
		}
		select {
		case <-ctx.Done():
			return "", errors.Join(fmt.Errorf("node %s still has %s, or no other node announces it: kubectl purelb where %s. "+
				"Managers of releases before this one do not know what they are asked for", from, address, address), failed)
		case <-time.After(pollInterval):
		}
	}
}

// newHolderOf returns the node that announces an address, if it is not the one that is to hand it over, and that
// one does not have it any more.
func newHolderOf(ctx context.Context, c client.Reader, namespace, from, address string) (to string, err error) {
	var list v1.AnnouncementList
	if err := c.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return "", err
	}
	for i := range list.Items {
		a := &list.Items[i]
		isAnnounced := slices.ContainsFunc(a.Status.Addresses, func(s v1.AddressStatus) bool {
			return s.Address == address && s.State == v1.StateAnnounced
		})
		isWanted := slices.ContainsFunc(
			a.Spec.Addresses, func(e v1.AnnouncedAddress) bool { return e.Address == address },
		)
		switch {
		case !a.IsForAnnouncing():
		case a.Spec.NodeName == from && (isWanted || isAnnounced):
			return "", nil
		case a.Spec.NodeName != from && isWanted && isAnnounced:
			to = a.Spec.NodeName
		}
	}
	return to, nil
}
