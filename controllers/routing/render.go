package routing

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/tcpmd5"
)

// Result is what Render decides.
type Result struct {
	// Specs are the NodeRoutings to be, by node: of all nodes whose LBNodeAgent has speakers.
	Specs map[string]v1.NodeRoutingSpec
	// LBNodeAgents that are to have speakers, sorted.
	LBNodeAgents []string
	// PasswordRefs are the keys of Secrets that the speakers of an LBNodeAgent need, by the name
	// of the file.
	PasswordRefs map[string]map[string]v1.SecretKeyRef
	// Peers is what became of each BGPPeer, by name.
	Peers map[string]*PeerResult
	// Groups are the conditions Advertised of ServiceGroups that are to have one, by name.
	Groups map[string]metav1.Condition
	// UnknownGroupsProblem says which addresses are withheld because nobody knows their ServiceGroup.
	UnknownGroupsProblem string
	// IsProvisional is that some rules are there only until agents have withdrawn addresses.
	IsProvisional bool
}

// PeerResult is what became of one BGPPeer.
type PeerResult struct {
	// Errors are what the BGPPeer's author has to put right.
	Errors field.ErrorList
	// SelectedNodes are the nodes that it selects.
	SelectedNodes []string
	// SessionsByNode is how many sessions it gives each node.
	SessionsByNode map[string]int
	// ConflictNodes are the nodes on which an older BGPPeer has the same neighbour.
	ConflictNodes []string
	// Problems say why a node has no session, or not all families.
	Problems []string
	// LacksSecret is that the Secret with the password does not exist, or not that key, and
	// PasswordProblem is why a password that exists cannot be one, or empty.
	LacksSecret     bool
	PasswordProblem string
}

// Render decides to which neighbours each node advertises what.
func Render(in Inputs) Result {
	r := Result{
		Specs: map[string]v1.NodeRoutingSpec{}, PasswordRefs: map[string]map[string]v1.SecretKeyRef{},
		Peers: map[string]*PeerResult{},
	}
	peers := slices.Clone(in.Peers)
	slices.SortFunc(peers, func(a, b v1.BGPPeer) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	peersByNode := map[string][]v1.RoutingPeer{}
	needsSpeaker := map[string]bool{}
	for i := range peers {
		p := &peers[i]
		result := &PeerResult{Errors: Validate(p), SessionsByNode: map[string]int{}}
		r.Peers[p.Name] = result
		if len(result.Errors) > 0 {
			continue
		}
		ref := p.Spec.PasswordSecretRef
		if ref != nil {
			password, exists := in.Password(*ref)
			if result.LacksSecret = !exists; exists {
				_, result.PasswordProblem = tcpmd5.ParsePassword(password)
			}
		}
		for _, n := range selectNodes(p, in.Nodes) {
			result.SelectedNodes = append(result.SelectedNodes, n.Name)
			needsSpeaker[n.LBNodeAgent] = true
			peersByNode[n.Name] = result.addPeers(p, n, in.storedPeers(n.Name, p.Name), peersByNode[n.Name])
			if ref != nil && result.SessionsByNode[n.Name] > 0 {
				if r.PasswordRefs[n.LBNodeAgent] == nil {
					r.PasswordRefs[n.LBNodeAgent] = map[string]v1.SecretKeyRef{}
				}
				r.PasswordRefs[n.LBNodeAgent][p.Name] = *ref
			}
		}
	}
	for name := range needsSpeaker {
		r.LBNodeAgents = append(r.LBNodeAgents, name)
	}
	slices.Sort(r.LBNodeAgents)
	rules := decideRules(&in)
	r.Groups, r.UnknownGroupsProblem, r.IsProvisional = rules.conditions, rules.unknownGroupsProblem, rules.isProvisional
	if rules.unknownGroupsProblem != "" {
		for _, p := range r.Peers {
			p.Problems = append(p.Problems, rules.unknownGroupsProblem)
		}
	}
	for i := range in.Nodes {
		if n := &in.Nodes[i]; needsSpeaker[n.LBNodeAgent] {
			r.Specs[n.Name] = v1.NodeRoutingSpec{
				NodeName: n.Name, LBNodeAgent: n.LBNodeAgent, Interface: v1.InterfaceName(n.VirtualInterface),
				RouterID: routerID(n).String(), DrainSince: in.drainSince(n), Peers: peersByNode[n.Name],
				Groups: rules.groups, ServiceCommunities: rules.serviceCommunities, Withheld: rules.withheld,
				Ignored: in.Ignored.ByNode[n.Name],
			}
		}
	}
	return r
}

// addPeers adds to a node's neighbours those that a BGPPeer gives the node. stored are those that it
// gave the node before.
func (r *PeerResult) addPeers(
	p *v1.BGPPeer, n *Node, stored []storedPeer, peers []v1.RoutingPeer,
) []v1.RoutingPeer {
	own, err := ownASN(p, n)
	if err != nil {
		r.Problems = append(r.Problems, err.Error())
		return peers
	}
	neighbours := neighboursOf(p, n, stored)
	switch {
	case len(neighbours) > 0:
	case n.HasReportedFacts:
		r.Problems = append(r.Problems, fmt.Sprintf("node %s reports no gateway of a default route", n.Name))
	default:
		r.Problems = append(r.Problems, fmt.Sprintf("the agent of node %s has yet to report its gateways", n.Name))
	}
	for _, at := range neighbours {
		if at.isKept && n.HasReportedFacts {
			r.Problems = append(r.Problems, fmt.Sprintf(
				"node %s reports no %s gateway any more, and keeps the session with %s", n.Name, v1.FamilyOf(at.addr), at.addr,
			))
		}
		peer := renderPeer(p, own, at)
		if slices.ContainsFunc(peers, func(other v1.RoutingPeer) bool { return isSameNeighbour(&other, &peer) }) {
			r.ConflictNodes = append(r.ConflictNodes, n.Name)
			continue
		}
		if len(peers) == v1.MaxRoutingPeers {
			r.Problems = append(
				r.Problems,
				fmt.Sprintf("node %s has %d neighbours already, the most that a node can have", n.Name, v1.MaxRoutingPeers),
			)
			break
		}
		if problem := setFamilies(p, n, at, stored, &peer); problem != "" {
			r.Problems = append(r.Problems, problem)
			if len(peer.Families) == 0 {
				continue
			}
		}
		r.SessionsByNode[n.Name]++
		peers = append(peers, peer)
	}
	return peers
}

// isSameNeighbour reports whether two peers would be one session: the same address on the same
// interface, or the one router of an interface.
func isSameNeighbour(a, b *v1.RoutingPeer) bool {
	return a.Address == b.Address && a.Interface == b.Interface
}

// neighbour is where a neighbour is: at an address, on an interface, or both.
type neighbour struct {
	addr  netip.Addr
	iface string
	// isKept is that the NodeRouting has the neighbour already, and the node's agent reports no gateway of its family
	// now.
	isKept bool
}

// neighboursOf returns where the neighbours are that a BGPPeer gives a node. Those of a family that a node is to
// discover stay as they are stored while its agent has yet to report gateways, and those with which it has a session
// while it reports none of that family, as when its default route is away: a session ends when its neighbour is gone.
func neighboursOf(p *v1.BGPPeer, n *Node, stored []storedPeer) []neighbour {
	switch {
	case p.Spec.Interface != "":
		return []neighbour{{iface: string(p.Spec.Interface)}}
	case p.Spec.PeerAddress != "":
		addr, err := netip.ParseAddr(p.Spec.PeerAddress)
		if err != nil {
			return nil // Validate says so
		}
		return []neighbour{{addr: addr}}
	}
	var found []neighbour
	hasFamily := map[v1.IPFamily]bool{}
	source, _ := netip.ParseAddr(p.Spec.SourceAddress)
	for _, g := range n.gateways() {
		gateway, err := netip.ParseAddr(g.Address)
		if err != nil || source.IsValid() && source.Is4() != gateway.Is4() {
			continue
		}
		at := neighbour{addr: gateway}
		if gateway.Is6() && gateway.IsLinkLocalUnicast() {
			at.iface = string(g.Interface)
		}
		if hasFamily[v1.FamilyOf(gateway)] = true; !slices.Contains(found, at) {
			found = append(found, at)
		}
	}
	for i := range stored {
		addr, err := netip.ParseAddr(stored[i].Address)
		if err != nil || hasFamily[v1.FamilyOf(addr)] || source.IsValid() && source.Is4() != addr.Is4() {
			continue
		}
		if stored[i].isUp || !n.HasReportedFacts {
			found = append(found, neighbour{addr: addr, iface: stored[i].Interface, isKept: true})
		}
	}
	return found
}

// reservedASNs are numbers that no autonomous system can have (RFC 6793, RFC 7300).
var reservedASNs = []uint32{23456, 65535, 4294967295}

// minConnectSeconds is how long a speaker waits at the least before it connects again.
const minConnectSeconds = 2

func ownASN(p *v1.BGPPeer, n *Node) (uint32, error) {
	if p.Spec.MyASN != nil {
		return uint32(*p.Spec.MyASN), nil //nolint:gosec // the schema bounds it
	}
	return asnOfLabel(n, p.Spec.MyASNLabel)
}

func asnOfLabel(n *Node, label string) (uint32, error) {
	value, exists := n.Labels[label]
	if !exists {
		return 0, fmt.Errorf("node %s has no label %s", n.Name, label)
	}
	asn, err := strconv.ParseUint(value, 10, 32)
	if err != nil || asn == 0 || slices.Contains(reservedASNs, uint32(asn)) {
		return 0, fmt.Errorf("label %s of node %s is %q, not the number of an autonomous system", label, n.Name, value)
	}
	return uint32(asn), nil
}

func renderPeer(p *v1.BGPPeer, own uint32, at neighbour) v1.RoutingPeer {
	peer := v1.RoutingPeer{
		Name: p.Name, Interface: at.iface, MyASN: int64(own), SourceAddress: p.Spec.SourceAddress,
		SourceInterface: string(p.Spec.SourceInterface),
		TTLSecurity:     p.Spec.TTLSecurity,
		Port:            179, HoldSeconds: secondsOr(p.Spec.HoldTime, 9),
		ConnectSeconds: max(secondsOr(p.Spec.ConnectTime, 2), minConnectSeconds),
		RestartSeconds: v1.DefaultRestartSeconds,
		PeerASN:        int64(p.Spec.PeerASN.Number()),
	}
	if at.addr.IsValid() {
		peer.Address = at.addr.String()
	}
	if p.Spec.PeerASN == v1.PeerASNInternal {
		peer.PeerASN = int64(own)
	}
	if p.Spec.Port != nil {
		peer.Port = *p.Spec.Port
	}
	peer.KeepaliveSeconds = secondsOr(p.Spec.KeepaliveTime, max(peer.HoldSeconds/3, 1))
	if p.Spec.PasswordSecretRef != nil {
		peer.PasswordFile = p.Name
	}
	if p.Spec.EBGPMultihop != nil {
		peer.EBGPMultihop = *p.Spec.EBGPMultihop
	}
	if g := p.Spec.GracefulRestart; g != nil {
		peer.RestartSeconds = secondsOr(g.RestartTime, v1.DefaultRestartSeconds)
	}
	if b := p.Spec.BFD; b != nil {
		peer.BFDIntervalMilliseconds, peer.BFDMultiplier = 300, 3
		if b.Interval != nil {
			peer.BFDIntervalMilliseconds = int32(b.Interval.Milliseconds()) //nolint:gosec // the schema bounds it
		}
		if b.Multiplier != nil {
			peer.BFDMultiplier = *b.Multiplier
		}
	}
	return peer
}

// secondsOr rounds a duration up to seconds; without one it is otherwise.
func secondsOr(d *metav1.Duration, otherwise int32) int32 {
	if d == nil {
		return otherwise
	}
	return int32(math.Ceil(float64(d.Duration) / float64(time.Second)))
}

// setFamilies sets which families the session carries, and the next hop of the family that is
// not the session's own. A family without a next hop is left out, and said to be.
func setFamilies(
	p *v1.BGPPeer, n *Node, at neighbour, stored []storedPeer, peer *v1.RoutingPeer,
) (problem string) {
	wanted := slices.Clone(p.Spec.Families)
	slices.Sort(wanted)
	switch {
	case !at.addr.IsValid():
		// The next hop of both families is the interface's link-local address (RFC 8950).
		peer.Families = wanted
		if len(wanted) == 0 {
			peer.Families = []v1.IPFamily{"IPv4", "IPv6"}
		}
		return ""
	case len(wanted) == 0:
		peer.Families = []v1.IPFamily{v1.FamilyOf(at.addr)}
		return ""
	}
	for _, family := range wanted {
		if family == v1.FamilyOf(at.addr) || family == "IPv4" && at.addr.IsLinkLocalUnicast() {
			peer.Families = append(peer.Families, family)
			continue
		}
		hop := nextHop(n, at, family, stored)
		if !hop.IsValid() {
			problem = fmt.Sprintf(
				"node %s has no %s address that could be the next hop of its %s routes", n.Name, family, family,
			)
			continue
		}
		peer.Families, peer.NextHop = append(peer.Families, family), hop.String()
	}
	return problem
}

// nextHop returns the node's address for the routes of a family that is not the session's own. It stays as it is stored
// until the node's agent has reported facts, and as long as the neighbour does without being reported.
func nextHop(n *Node, at neighbour, family v1.IPFamily, stored []storedPeer) netip.Addr {
	for i := range stored {
		hop, err := netip.ParseAddr(stored[i].NextHop)
		isSame := stored[i].Address == at.addr.String() && stored[i].Interface == at.iface
		if (at.isKept || !n.HasReportedFacts) && isSame && err == nil && v1.FamilyOf(hop) == family {
			return hop
		}
	}
	return ownAddress(n, at, family)
}

// ownAddress returns an address of the node, of one family: on the interface that is in the
// neighbour's subnet, or else as the kubelet reports it.
func ownAddress(n *Node, at neighbour, family v1.IPFamily) netip.Addr {
	for _, i := range n.Interfaces {
		isOnLink, own := false, netip.Addr{}
		for _, text := range i.Subnets {
			subnet, err := netip.ParsePrefix(text)
			if err != nil {
				continue
			}
			isOnLink = isOnLink || subnet.Masked().Contains(at.addr)
			if !own.IsValid() && v1.FamilyOf(subnet.Addr()) == family && subnet.Addr() != subnet.Masked().Addr() {
				own = subnet.Addr()
			}
		}
		if isOnLink && own.IsValid() {
			return own
		}
	}
	for _, a := range n.Addresses {
		if v1.FamilyOf(a) == family {
			return a
		}
	}
	return netip.Addr{}
}

// routerID is the node's first IPv4 address, or a number made of its name: only unique it has
// to be (RFC 6286).
func routerID(n *Node) netip.Addr {
	for _, a := range n.Addresses {
		if a.Is4() {
			return a
		}
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(n.Name))
	sum := h.Sum32()
	return netip.AddrFrom4([4]byte{byte(sum>>24)%223 +
		1, byte(sum >> 16), byte(sum >> 8), byte(sum)}) //nolint:gosec // the four bytes of the sum
}
