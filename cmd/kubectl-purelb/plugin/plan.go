package plugin

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers"
	"github.com/purelb/purelb-operator/controllers/agents"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/placement"
	"github.com/purelb/purelb-operator/webhooks"
)

// Plan is what a change would do.
type Plan struct {
	Change string `json:"change"`
	// Summary in one sentence.
	Summary string `json:"summary"`
	// Breaks is that an address would be without a node, or a file would be refused.
	Breaks bool `json:"breaks"`
	// Refusals and Warnings are what admission would say.
	Refusals []string `json:"refusals,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
	// Moves are the addresses whose nodes change.
	Moves []PlannedMove `json:"moves,omitempty"`
	// NewlyServed are Services that wait now and would get addresses.
	NewlyServed []string `json:"served,omitempty"`
	// Skipped is how many objects of the files are of kinds that a plan does not know.
	Skipped int `json:"skipped,omitempty"`
	// Unread are the kinds that could not be read and that the plan depends on: it may be wrong.
	Unread []Unread `json:"-"`
}

// PlannedMove is one address whose nodes change.
type PlannedMove struct {
	Address  string   `json:"address"`
	Services []string `json:"services"`
	From     []string `json:"from"`
	To       []string `json:"to"`
	// How is Handover (no request is lost), Failover (an outage), Withdrawn, Announced, or
	// Unplaced, and Reason says of the last why no node takes it.
	How    string `json:"how"`
	Reason string `json:"reason,omitempty"`
}

// How addresses move in a Plan, besides placement.Handover and placement.Failover.
const (
	howWithdrawn = "Withdrawn" // a node stops to announce a Virtual address; others go on
	howAnnounced = "Announced" // nodes begin to announce it
	howUnplaced  = "Unplaced"  // no node would have it
)

// PlanDrain is what excluding a node from load balancing would do.
func PlanDrain(c *Cluster, node string) (*Plan, error) {
	return planNode(c, node, "draining node "+node, func(_ *placement.Inputs, n *placement.Node) { n.IsExcluded = true })
}

// PlanLose is what the sudden death of a node would do: its successors claim its addresses, and of those that have
// none the manager gives each to a node.
func PlanLose(c *Cluster, node string) (*Plan, error) {
	return planNode(c, node, "losing node "+node, func(inputs *placement.Inputs, n *placement.Node) {
		n.Liveness, n.IsNotReady, n.IsNotReadyForLong = placement.Expired, true, true
		inputs.NamesSuccessors = areSuccessorsNamed(inputs)
		inputs.AssumeClaims(node)
	})
}

// areSuccessorsNamed reports whether entries name successors. The feature gate WireFailover, which is the manager's, is
// on then.
func areSuccessorsNamed(inputs *placement.Inputs) bool {
	return slices.ContainsFunc(inputs.Entries, func(e placement.Entry) bool { return len(e.Spec.Successors) > 0 })
}

func planNode(c *Cluster, node, change string, apply func(*placement.Inputs, *placement.Node)) (*Plan, error) {
	if c.isUnread(kindNodes) {
		return nil, c.unreadError(kindNodes)
	}
	after := c.PlacementInputs
	after.Nodes = slices.Clone(c.PlacementInputs.Nodes)
	i := slices.IndexFunc(after.Nodes, func(n placement.Node) bool { return n.Name == node })
	if i < 0 {
		return nil, fmt.Errorf("there is no Node %s", node)
	}
	apply(&after, &after.Nodes[i])
	plan := &Plan{Change: change, Unread: c.unreadOf(placementKinds...)}
	plan.addMoves(c.PlacementInputs, after)
	plan.conclude()
	return plan, nil
}

// addMoves compares where addresses settle before and after a change, which may have several steps.
func (p *Plan) addMoves(before placement.Inputs, steps ...placement.Inputs) {
	was, _ := placement.Predict(before)
	moves := map[netip.Addr]placement.Move{}
	hasGap := map[netip.Addr]bool{} // by address: no node has it in some step
	var is placement.Result
	var after placement.Inputs
	for i := range steps {
		if i > 0 { // what the step before has led to
			steps[i].Entries, steps[i].SharedEntries = placement.AssumeRealised(after, &is)
		}
		after = steps[i]
		maps.Copy(moves, placement.Place(after).Moves)
		is, _ = placement.Predict(after)
		for _, a := range after.Addresses {
			hasGap[a.Addr] = hasGap[a.Addr] || len(is.NodesOf(&after, a.Addr)) == 0
		}
	}
	isAlive := map[string]bool{}
	for i := range after.Nodes {
		isAlive[after.Nodes[i].Name] = after.Nodes[i].Liveness != placement.Expired
	}
	addresses := slices.SortedFunc(
		slices.Values(after.Addresses), func(a, b placement.Address) int { return a.Addr.Compare(b.Addr) },
	)
	for i := range addresses {
		a := &addresses[i]
		from := was.NodesOf(&before, a.Addr)
		to := slices.DeleteFunc(is.NodesOf(&after, a.Addr), func(node string) bool { return !isAlive[node] })
		hasOutage := hasGap[a.Addr] && len(from) > 0 && len(to) > 0
		if slices.Equal(from, to) && !hasOutage {
			continue
		}
		move := PlannedMove{
			Address: a.Addr.String(), Services: a.Services, From: from, To: to, How: howMoved(from, to, moves[a.Addr].Kind),
		}
		if hasOutage {
			move.How = string(placement.Failover)
		}
		if move.How == howUnplaced {
			move.Reason = cmp.Or(
				is.Unplaced[a.Addr].Message, "no other node that is to have it has an agent that renews its Lease",
			)
		}
		p.Moves = append(p.Moves, move)
	}
}

func howMoved(from, to []string, kind placement.MoveKind) string {
	switch {
	case len(to) == 0:
		return howUnplaced
	case kind == placement.Handover || kind == placement.Failover:
		return string(kind)
	case len(to) < len(from):
		return howWithdrawn
	}
	return howAnnounced
}

// conclude says in one sentence what the change would do.
func (p *Plan) conclude() {
	counts := map[string]int{}
	for _, m := range p.Moves {
		counts[m.How]++
	}
	p.Breaks = p.Breaks || counts[howUnplaced] > 0 || len(p.Refusals) > 0
	var parts []string
	for _, part := range []struct {
		n    int
		text string
	}{
		{counts[howUnplaced], "without any node"},
		{counts[string(placement.Failover)], "moved after an outage (failover)"},
		{counts[string(placement.Handover)], "moved without a lost request (handover)"},
		{counts[howWithdrawn], "announced by fewer nodes"},
		{counts[howAnnounced], "announced by more or other nodes"},
	} {
		if part.n > 0 {
			parts = append(parts, fmt.Sprintf("%s %s", addressCount(part.n), part.text))
		}
	}
	if len(p.NewlyServed) > 0 {
		parts = append(parts, count(len(p.NewlyServed), "waiting Service")+" served")
	}
	switch {
	case len(p.Refusals) > 0:
		p.Summary = "would be refused"
	case len(parts) == 0:
		p.Summary = "nothing moves"
	default:
		p.Summary = strings.Join(parts, "; ")
	}
	if len(p.Unread) > 0 {
		p.Summary = "unknown, since " + describeUnread(p.Unread) + "; by what was read: " + p.Summary
	}
}

func addressCount(n int) string {
	if n == 1 {
		return "1 address"
	}
	return fmt.Sprintf("%d addresses", n)
}

// PlanApply is what applying ServiceGroups, LBNodeAgents and BGPPeers would do.
func PlanApply(ctx context.Context, c *Cluster, files *Files) (*Plan, error) {
	all, err := loadSchemas()
	if err != nil {
		return nil, err
	}
	plan := &Plan{
		Change: "applying " + strings.Join(files.names(), ", "),
		Unread: c.unreadOf(append([]string{kindBGPPeers}, placementKinds...)...),
	}
	changed := *c.Objects
	for i := range files.Broken {
		b := &files.Broken[i]
		plan.Refusals = append(plan.Refusals, fmt.Sprintf("%s: %s: %s", b.File, b, b.Why))
	}
	options := webhooks.Options{Namespace: c.Namespace, IsDefaultLoadBalancer: c.IsDefaultLoadBalancer}
	for i := range files.Objects { // each is applied to what those before it have changed
		f := &files.Objects[i]
		object, errs := all.objectToAdmit(ctx, f, c.Namespace)
		for _, err := range errs {
			plan.Refusals = append(plan.Refusals, f.String()+": "+err.Error())
		}
		if _, isService := object.(*corev1.Service); object == nil || isService {
			if len(errs) == 0 {
				plan.Skipped++
			}
			continue
		}
		before := changed.storedNamesake(object)
		if before != nil {
			keepStoredFields(before, object)
		}
		warnings, refusals, err := predictAdmission(ctx, &changed, options, before, object)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		for _, warning := range warnings {
			plan.Warnings = append(plan.Warnings, f.String()+": "+warning)
		}
		for _, refusal := range refusals {
			plan.Refusals = append(plan.Refusals, f.String()+": "+refusal)
		}
		changed.put(object)
	}
	if len(plan.Refusals) == 0 {
		steps, after, err := rollOut(ctx, &changed, c.Namespace)
		if err != nil {
			return nil, err
		}
		plan.addMoves(c.PlacementInputs, steps...)
		plan.NewlyServed = servedBy(c, after)
	}
	plan.conclude()
	return plan, nil
}

// keepStoredFields makes of an object of a file what kubectl apply would make of the object that is there:
// status and identity stay, as do labels and annotations that the file does not have.
func keepStoredFields(stored, applied client.Object) {
	switch x := applied.(type) {
	case *v1.ServiceGroup:
		x.Status = stored.(*v1.ServiceGroup).Status
	case *v1.LBNodeAgent:
		x.Status = stored.(*v1.LBNodeAgent).Status
	case *v1.BGPPeer:
		x.Status = stored.(*v1.BGPPeer).Status
	}
	applied.SetUID(stored.GetUID())
	applied.SetCreationTimestamp(stored.GetCreationTimestamp())
	applied.SetGeneration(stored.GetGeneration())
	applied.SetLabels(overlaid(stored.GetLabels(), applied.GetLabels()))
	applied.SetAnnotations(overlaid(stored.GetAnnotations(), applied.GetAnnotations()))
}

// overlaid returns what is in either map; the second one counts.
func overlaid(below, above map[string]string) map[string]string {
	all := map[string]string{}
	maps.Copy(all, below)
	maps.Copy(all, above)
	return all
}

// rollOut returns the steps in which nodes come to run the agents that the LBNodeAgents want, and the cluster at the
// end. In each step some nodes hand over what they have; in the next one they run the agents of their new LBNodeAgents.
// Nodes that would wait for agents which do not work now get theirs at the end, all at once.
func rollOut(ctx context.Context, o *Objects, namespace string) ([]placement.Inputs, *Cluster, error) {
	var steps []placement.Inputs
	relabelled := map[string]bool{} // each once: a selector of the label itself would change it for ever
	for {
		c, err := NewCluster(ctx, o, namespace)
		if err != nil {
			return nil, nil, err
		}
		steps = append(steps, c.PlacementInputs)
		leaving := map[string]bool{}
		for i := range c.PlacementInputs.Nodes {
			if n := &c.PlacementInputs.Nodes[i]; n.IsLeaving && !n.IsDeleted && !relabelled[n.Name] {
				leaving[n.Name], relabelled[n.Name] = true, true
			}
		}
		if len(leaving) == 0 {
			break
		}
		relabel(o, namespace, leaving)
	}
	everyNode := map[string]bool{}
	for i := range o.Nodes {
		everyNode[o.Nodes[i].Name] = true
	}
	relabel(o, namespace, everyNode)
	after, err := NewCluster(ctx, o, namespace)
	if err != nil {
		return nil, nil, err
	}
	return append(steps, after.PlacementInputs), after, nil
}

// relabel gives some nodes the label of the agent that they would run, and has their Announcements be for that one.
func relabel(o *Objects, namespace string, nodes map[string]bool) {
	all := inNamespace(o.LBNodeAgents, namespace)
	o.Nodes, o.Announcements = slices.Clone(o.Nodes), slices.Clone(o.Announcements)
	newName := map[string]string{}
	for i := range o.Nodes {
		if !nodes[o.Nodes[i].Name] {
			continue
		}
		n := o.Nodes[i].DeepCopy()
		delete(n.Labels, v1.LabelAgent)
		if name := agents.LBNodeAgentFor(all, n.Labels); name != "" {
			if n.Labels == nil {
				n.Labels = map[string]string{}
			}
			n.Labels[v1.LabelAgent], newName[n.Name] = name, name
		}
		o.Nodes[i] = *n
	}
	for i := range o.Announcements {
		spec := &o.Announcements[i].Spec // not shared with what was read, as its fields are
		if name := newName[spec.NodeName]; name != "" {
			spec.LBNodeAgent, spec.AgentLeaving = name, false
		}
	}
}

// servedBy lists the Services that wait for addresses now, and would get them.
func servedBy(before, after *Cluster) []string {
	var served []string
	for i := range before.Services {
		svc := &before.Services[i]
		if !before.isOurs(svc) || len(svc.Status.LoadBalancer.Ingress) > 0 {
			continue
		}
		result := allocation.Allocate(allocation.RequestOf(svc), &after.Admission.Inputs)
		if len(result.Addresses) > 0 {
			served = append(served, controllers.KeyOf(svc))
			after.Admission.InUse.Put(allocation.ServiceOf(svc, true).WithPendingAddresses(result.Addresses))
		}
	}
	return served
}

func (p *Plan) write(t *textWriter) {
	health := Healthy
	switch {
	case len(p.Unread) > 0:
		health = Unknown
	case p.Breaks:
		health = Critical
	}
	t.healthLine(health, strings.ToUpper(p.Change[:1])+p.Change[1:]+": "+p.Summary)
	for _, s := range p.Refusals {
		t.line("Refused: " + s)
	}
	for _, s := range p.Warnings {
		t.line("Warning: " + s)
	}
	if len(p.Moves) > 0 {
		t.header("ADDRESS", "SERVICES", "FROM", "TO", "HOW", "REASON")
		for _, m := range p.Moves {
			t.row(
				m.Address, strings.Join(m.Services, ","), nodeList(m.From, t.style.Wide), nodeList(m.To, t.style.Wide), m.How,
				m.Reason,
			)
		}
	}
	for _, s := range p.NewlyServed {
		t.line("Served: " + s)
	}
	if p.Skipped > 0 {
		t.line("Not in the plan: " + count(p.Skipped, "object") + " of other kinds")
	}
	t.unread(p.Unread)
}

// nodeList names nodes: all of them if wide, else how many there are if they are more than three.
func nodeList(nodes []string, wide bool) string {
	switch {
	case len(nodes) == 0:
		return "-"
	case len(nodes) > 3 && !wide:
		return count(len(nodes), "node")
	}
	return strings.Join(nodes, ",")
}

// nodesWithAgent lists the nodes that run an agent.
func nodesWithAgent(nodes []corev1.Node) (names []string) {
	for i := range nodes {
		if nodes[i].Labels[v1.LabelAgent] != "" {
			names = append(names, nodes[i].Name)
		}
	}
	slices.Sort(names)
	return names
}

// PlanList are the plans that a command prints.
type PlanList struct {
	Plans []*Plan `json:"plans"`
	// Unread are the kinds that could not be read and that the plans depend on.
	Unread []Unread `json:"unread,omitempty"`
}

// OnePlan makes a list of one plan.
func OnePlan(plan *Plan, err error) (*PlanList, error) {
	if err != nil {
		return nil, err
	}
	return &PlanList{Plans: []*Plan{plan}, Unread: plan.Unread}, nil
}

// PlanLoseEach is what the death of each single node would do: whether the cluster is N-1 safe.
func PlanLoseEach(c *Cluster) (*PlanList, error) {
	list := &PlanList{Plans: []*Plan{}, Unread: c.unreadOf(placementKinds...)}
	for _, name := range nodesWithAgent(c.Nodes) {
		plan, err := PlanLose(c, name)
		if err != nil {
			return nil, err
		}
		list.Plans = append(list.Plans, plan)
	}
	return list, nil
}

// BreaksAny reports whether one of the plans breaks something.
func (l *PlanList) BreaksAny() bool {
	return slices.ContainsFunc(l.Plans, func(p *Plan) bool { return p.Breaks })
}

// WriteText writes the plans for people.
func (l *PlanList) WriteText(w io.Writer, style Style) error {
	t := newTextWriter(w, style)
	for _, p := range l.Plans {
		t.emptyLine()
		p.write(t)
	}
	if len(l.Plans) == 0 {
		if len(l.Unread) == 0 {
			t.line("No node runs an agent.")
		}
		t.unread(l.Unread)
	}
	return t.flush()
}
