package plugin

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/announced"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// Explanation is the story of one Service.
type Explanation struct {
	Service string `json:"service"`
	// Summary in one sentence.
	Summary string `json:"summary"`
	// WaitsFor is what the Service waits for; empty if it has what it asks for.
	WaitsFor  []string             `json:"waiting,omitempty"`
	Group     string               `json:"group,omitempty"`
	WhyGroup  string               `json:"whyGroup,omitempty"`
	Addresses []AddressExplanation `json:"addresses,omitempty"`
	Unread    []Unread             `json:"unread,omitempty"`
}

// AddressExplanation is the story of one address.
type AddressExplanation struct {
	Address string `json:"address"`
	// Pool that the address is of: group, range and subnet.
	Pool string `json:"pool,omitempty"`
	// WhyAddress says why it is this address.
	WhyAddress string          `json:"whyAddress,omitempty"`
	Announce   v1.AnnounceType `json:"announce,omitempty"`
	// WhyType says why it is announced in this way.
	WhyType string `json:"whyAnnounce,omitempty"`
	// Phase of a Local address.
	Phase      placement.Phase `json:"phase,omitempty"`
	SharedWith []string        `json:"sharedWith,omitempty"`
	// Holder of a Local address.
	Holder string `json:"holder,omitempty"`
	// Successors of the holder, the first one first: the nodes that are to claim the address
	// when the holder dies.
	Successors []string `json:"successors,omitempty"`
	// Nodes that have or could have the address, and those that could not, each with the
	// reason.
	Nodes []NodeExplanation `json:"nodes,omitempty"`
	// Reachable says whether other nodes get answers for a Local address, and AskedBy what each of them has
	// found out; both are empty unless the LBNodeAgent has it asked for.
	Reachable string         `json:"reachable,omitempty"`
	AskedBy   []AskerFinding `json:"askedBy,omitempty"`
	// BGP says how far a Virtual address is advertised, and Sessions in which of them it is.
	BGP      string               `json:"bgp,omitempty"`
	Sessions []SessionAdvertising `json:"advertisedTo,omitempty"`
	// ServiceCommunities are those that the routes to it have because its Service asks for them.
	ServiceCommunities []string `json:"serviceCommunities,omitempty"`
}

// NodeExplanation says of one node what it has to do with an address.
type NodeExplanation struct {
	Node      string `json:"node"`
	State     string `json:"state"` // that its agent reports; "-" for none
	Interface string `json:"interface,omitempty"`
	Since     string `json:"since,omitempty"` // RFC 3339
	Why       string `json:"why,omitempty"`
}

// ExplainService tells the story of a Service. It is an error if there is no such Service.
func ExplainService(c *Cluster, namespace, name string) (*Explanation, error) {
	svc := c.service(namespace, name)
	if svc == nil {
		if c.isUnread(kindServices) {
			return nil, c.unreadError(kindServices)
		}
		return nil, fmt.Errorf("there is no Service %s/%s", namespace, name)
	}
	e := &Explanation{Service: controllers.KeyOf(svc), Unread: c.unreadOf(placementKinds...)}
	if !c.isOurs(svc) {
		e.Summary = whyNotOurs(svc)
		e.noteUnread()
		return e, nil
	}
	e.Group, e.WhyGroup = groupOf(c, svc)
	addresses := allocation.AddressesToAnnounce(svc)
	places := announced.PlacesOf(controllers.KeyOf(svc), c.Announcements, c.Commons, c.Announcements)
	for _, a := range addresses {
		e.Addresses = append(e.Addresses, explanationOf(c, svc, a, places))
	}
	if slices.ContainsFunc(e.Addresses, func(a AddressExplanation) bool { return a.Announce == v1.AnnounceVirtual }) {
		e.Unread = append(e.Unread, c.unreadOf(kindBGPPeers, kindNodeRoutings)...)
	}
	e.WaitsFor = e.waiting(svc)
	switch {
	case len(addresses) == 0:
		e.Summary = "has no address yet"
	case len(e.WaitsFor) > 0:
		e.Summary = fmt.Sprintf("has %s, but not all is done", allocation.JoinAddresses(addresses))
	default:
		e.Summary = fmt.Sprintf("has %s, announced", allocation.JoinAddresses(addresses))
	}
	e.noteUnread()
	return e, nil
}

// waiting says what a Service waits for: what its conditions say, and what no manager has seen yet.
func (e *Explanation) waiting(svc *corev1.Service) (waiting []string) {
	for _, conditionType := range []string{
		v1.ConditionAllocated, v1.ConditionAnnounced, v1.ConditionAdvertised, v1.ConditionServiceReachable,
	} {
		condition := meta.FindStatusCondition(svc.Status.Conditions, conditionType)
		switch {
		case condition == nil && conditionType == v1.ConditionAllocated:
			waiting = append(waiting, "the manager has not looked at it yet: is a manager running?")
		case condition != nil && condition.Status == metav1.ConditionUnknown &&
			slices.Contains([]string{v1.ConditionAdvertised, v1.ConditionServiceReachable}, conditionType):
			// Routing software of the user's own advertises the addresses, and nobody has got or missed an answer.
		case condition != nil && condition.Status != metav1.ConditionTrue &&
			(conditionType == v1.ConditionAllocated || len(e.Addresses) > 0):
			waiting = append(waiting, condition.Reason+": "+condition.Message)
		}
	}
	for i := range e.Addresses {
		if a := &e.Addresses[i]; a.Phase == placement.FailingOver && len(waiting) == 0 {
			waiting = append(waiting, fmt.Sprintf("%s is %s: the agent of %s does not renew its Lease", a.Address, a.Phase,
				a.Holder))
		}
	}
	return waiting
}

// noteUnread says that the story may be another one, where something could not be read.
func (e *Explanation) noteUnread() {
	if len(e.Unread) > 0 {
		e.Summary += " (not all is known, since " + describeUnread(e.Unread) + ")"
	}
}

// whyNotOurs says why PureLB does not serve a Service.
func whyNotOurs(svc *corev1.Service) string {
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return fmt.Sprintf("is of type %s: PureLB serves Services of type LoadBalancer only", svc.Spec.Type)
	}
	if svc.Spec.LoadBalancerClass == nil {
		return "has no loadBalancerClass, and the manager runs with --default-load-balancer=false: set loadBalancerClass: " +
			v1.LoadBalancerClass
	}
	return fmt.Sprintf("has loadBalancerClass %s: PureLB serves %s", *svc.Spec.LoadBalancerClass, v1.LoadBalancerClass)
}

// groupOf says from which ServiceGroup a Service has or would get its addresses, and why.
func groupOf(c *Cluster, svc *corev1.Service) (group, why string) {
	record := allocation.RecordOf(svc)
	requested := allocation.RequestedGroup(svc)
	switch {
	case allocation.RequestsAddresses(svc):
		why = "the Service asks for addresses, and these are in it"
	case requested != "":
		why = "annotation " + v1.AnnotationServiceGroup + " names it"
	default:
		why, requested = whyGroupOfUnnamed(c, svc, record)
	}
	if record.Group == "" {
		return requested, why
	}
	if record.Group != requested && !allocation.RequestsAddresses(svc) {
		why = fmt.Sprintf("its addresses are of it; it now asks for %s", requested)
	}
	if c.Admission.Catalog[record.Group] == nil && !c.isUnread(kindServiceGroups) {
		why += "; the group is gone, and the Service keeps what it has"
	}
	return record.Group, why
}

// whyGroupOfUnnamed says why a Service that names no ServiceGroup has addresses of one, and which one
// it asks for.
func whyGroupOfUnnamed(c *Cluster, svc *corev1.Service, record allocation.Record) (why, requested string) {
	verdict := c.Admission.Catalog[record.Group]
	isReserved := func(a netip.Addr) bool { return verdict.Group.Reservations[a] == controllers.KeyOf(svc) }
	switch {
	case verdict == nil && record.Group != "" && c.isUnread(kindServiceGroups):
		return "its addresses are of it", record.Group
	case verdict == nil:
		return "the Service names no other", v1.DefaultServiceGroup
	case slices.ContainsFunc(record.Addresses, isReserved):
		return "the Service names none, and an address of this one is reserved for it", record.Group
	case record.Group == v1.DefaultServiceGroup:
		return "the Service names no other", v1.DefaultServiceGroup
	case verdict.Group.AutoAssign:
		return "the Service names none, and this one has autoAssign: true", record.Group
	}
	return "the Service named it, or an address of it, before; it names none now", record.Group
}

func explanationOf(c *Cluster, svc *corev1.Service, a netip.Addr, places []announced.Place) AddressExplanation {
	e := AddressExplanation{Address: a.String()}
	group, r, found := c.Admission.Catalog.GroupContaining(a)
	switch {
	case found:
		e.Pool = fmt.Sprintf("ServiceGroup %s, range %s in %s", group.Name, r, r.Subnet)
	case c.isUnread(kindServiceGroups):
		e.Pool = "not known"
	default:
		e.Pool = "of no pool any more: the Service keeps it"
	}
	for _, s := range c.Admission.InUse.ServicesWith(a) {
		if s.String() != controllers.KeyOf(svc) {
			e.SharedWith = append(e.SharedWith, s.String())
		}
	}
	e.WhyAddress = whyAddress(svc, a, group, found, len(e.SharedWith) > 0)
	if slices.ContainsFunc([]string{kindNodes, kindLBNodeAgents, kindAnnouncements}, c.isUnread) {
		return e // where it is, and why, is not known
	}
	inputs := c.PlacementInputs
	inputs.NamesSuccessors = areSuccessorsNamed(&inputs)
	verdict, known := placement.ExplainAddress(inputs, a)
	if known {
		e.Phase = verdict.Phase
		e.Announce = verdict.Type
		e.WhyType = whyType(group, found, verdict)
		e.Holder, e.Successors = verdict.Holder, verdict.Successors
	}
	e.Nodes = explainNodes(a, verdict, places)
	e.Reachable, e.AskedBy = explainReach(c, a, places)
	if e.Announce == v1.AnnounceVirtual {
		name := ""
		if found {
			name = group.Name
		}
		e.BGP, e.Sessions = explainBGP(c, a, name, places)
		e.ServiceCommunities = communitiesOf(c, a)
	}
	return e
}

// whyAddress says why a Service has this address and no other.
func whyAddress(svc *corev1.Service, a netip.Addr, group *allocation.Group, inPool, isShared bool) string {
	request := allocation.RequestOf(svc)
	requested, _ := request.AddressesByFamily()
	switch {
	case requested[allocation.FamilyOf(a)] == a:
		return request.RequestedAddressesIn + " asks for it"
	case inPool && group.Reservations[a] == controllers.KeyOf(svc):
		return "it is reserved for the Service"
	case isShared:
		return fmt.Sprintf("Services with the sharing key %q have it", allocation.SharingKeyOf(svc))
	case inPool && group.BalancePools:
		return "it was free in the range with the fewest addresses in use"
	case inPool && group.MultiPool:
		return "the Service gets one address of every range"
	case inPool:
		return "it was the first free address when it was allocated"
	}
	return ""
}

// whyType says why an address is Local or Virtual.
func whyType(group *allocation.Group, inPool bool, v placement.AddressVerdict) string {
	switch {
	case v.Type == "":
		return v.WaitsFor.Message
	case v.Type == v1.AnnounceLocal:
		return "a node has an interface in its subnet: one node answers for it"
	case inPool && group.Type == v1.PoolTypeRemote:
		return "its group is of type remote: every node has it on its virtual interface, for routers to reach"
	}
	return "no node has an interface in its subnet: every node has it on its virtual interface, for routers to reach"
}

// explainNodes joins what agents report with what placement says of each node.
func explainNodes(a netip.Addr, verdict placement.AddressVerdict, places []announced.Place) []NodeExplanation {
	placeOfNode := map[string]announced.Place{}
	for _, p := range places {
		if p.Address == a.String() {
			placeOfNode[p.Node] = p
		}
	}
	var nodes []NodeExplanation
	for _, v := range verdict.Nodes {
		n := NodeExplanation{Node: v.Node, State: "-", Why: v.Why}
		if p, isPlace := placeOfNode[v.Node]; isPlace {
			n.State, n.Interface, n.Since = string(p.State), p.Interface, stateSince(p, a)
			if p.Message != "" {
				n.Why = p.Message
			} else if n.Why == "" && verdict.Type == v1.AnnounceLocal {
				n.Why = "holds it"
			}
			delete(placeOfNode, v.Node)
		}
		nodes = append(nodes, n)
	}
	for node, p := range placeOfNode {
		nodes = append(
			nodes,
			NodeExplanation{
				Node: node, State: string(p.State), Interface: p.Interface, Since: stateSince(p, a),
				Why: "has no Node object any more",
			},
		)
	}
	slices.SortFunc(nodes, func(x, y NodeExplanation) int { return strings.Compare(x.Node, y.Node) })
	return nodes
}

// stateSince is when the state that an agent reports began.
func stateSince(p announced.Place, a netip.Addr) string {
	for i := range p.Announcement.Status.Addresses {
		if s := &p.Announcement.Status.Addresses[i]; s.Address == a.String() && s.State == p.State &&
			!s.LastTransitionTime.IsZero() {
			return s.LastTransitionTime.UTC().Format("2006-01-02T15:04:05Z")
		}
	}
	return ""
}

// WriteText writes the story for people.
func (e *Explanation) WriteText(w io.Writer, style Style) error {
	t := newTextWriter(w, style)
	t.line(fmt.Sprintf("Service %s %s", e.Service, e.Summary))
	for _, s := range e.WaitsFor {
		t.line("Waits: " + s)
	}
	if e.Group != "" {
		t.line(fmt.Sprintf("ServiceGroup %s: %s", e.Group, e.WhyGroup))
	}
	for i := range e.Addresses {
		e.Addresses[i].write(t)
	}
	t.unread(e.Unread)
	return t.flush()
}

func (a *AddressExplanation) write(t *textWriter) {
	t.section("Address " + a.Address)
	for _, part := range [][2]string{
		{"Pool", a.Pool}, {"Why this one", a.WhyAddress}, {"Shared with", strings.Join(a.SharedWith, ", ")},
	} {
		if part[1] != "" {
			t.line("  " + part[0] + ": " + part[1])
		}
	}
	switch {
	case a.Announce != "":
		t.line(fmt.Sprintf("  %s: %s", a.Announce, a.WhyType))
	case a.WhyType != "":
		t.line("  Not announced: " + a.WhyType)
	}
	if a.Phase != "" {
		t.line(fmt.Sprintf("  Phase: %s (%s)", a.Phase, a.Phase.Meaning()))
	}
	if len(a.Successors) > 0 {
		t.line("  Successors: " + strings.Join(a.Successors, ", then "))
	}
	if len(a.Nodes) > 0 {
		a.writeNodes(t)
	}
	if a.Reachable != "" {
		t.line("  Reachable: " + a.Reachable)
	}
	if len(a.AskedBy) > 0 {
		t.header("  NODE", "ASKED", "REACHABLE", "LAST ANSWER", "WHY")
		for _, by := range a.AskedBy {
			t.row("  "+by.Node, by.Holder, by.Reachable, by.LastReachable, by.Why)
		}
	}
	if a.BGP != "" {
		t.line("  BGP: " + a.BGP)
	}
	if len(a.ServiceCommunities) > 0 {
		t.line("  Communities that its Service asks for: " + strings.Join(a.ServiceCommunities, ", "))
	}
	if len(a.Sessions) == 0 {
		return
	}
	t.header("  NODE", "PEER", "NEIGHBOUR", "ADVERTISED", "WHY")
	for _, s := range a.Sessions {
		isAdvertised := "no"
		if s.IsAdvertised {
			isAdvertised = "yes"
		}
		t.row("  "+s.Node, s.Peer, s.Neighbor, isAdvertised, s.Why)
	}
}

func (a *AddressExplanation) writeNodes(t *textWriter) {
	t.header("  NODE", "STATE", "INTERFACE", "SINCE", "WHY")
	for _, n := range a.Nodes {
		name := "  " + n.Node
		if n.Node == a.Holder {
			name = "* " + n.Node
		}
		t.row(name, n.State, n.Interface, n.Since, n.Why)
	}
}
