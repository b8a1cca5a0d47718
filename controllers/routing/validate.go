package routing

import (
	"fmt"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

// OutOfScopeError is the error of a BGPPeer outside the manager's namespace, or nil.
func OutOfScopeError(p *v1.BGPPeer, namespace string) *field.Error {
	if p.Namespace == namespace {
		return nil
	}
	return field.Invalid(field.NewPath("metadata", "namespace"), p.Namespace,
		fmt.Sprintf("only BGPPeers in namespace %s count: move it there", namespace))
}

// Validate checks what the schema of a BGPPeer cannot.
func Validate(p *v1.BGPPeer) field.ErrorList {
	var errs field.ErrorList
	spec := field.NewPath("spec")
	if _, err := metav1.LabelSelectorAsSelector(p.Spec.NodeSelector); err != nil {
		errs = append(errs, field.Invalid(spec.Child("nodeSelector"), field.OmitValueType{}, err.Error()))
	}
	if label := p.Spec.MyASNLabel; label != "" {
		for _, why := range validation.IsQualifiedName(label) {
			errs = append(errs, field.Invalid(spec.Child("myASNLabel"), label, "no node can have this label: "+why))
		}
	}
	errs = append(errs, validateAddress(spec.Child("peerAddress"), p.Spec.PeerAddress)...)
	errs = append(errs, validateAddress(spec.Child("sourceAddress"), p.Spec.SourceAddress)...)
	if p.Spec.MyASN != nil && isInternal(p.Spec.PeerASN, uint32(*p.Spec.MyASN)) { //nolint:gosec // the schema bounds it
		const why = "is for external neighbours: an internal one may be any number of hops away"
		if p.Spec.EBGPMultihop != nil {
			errs = append(errs, field.Invalid(spec.Child("ebgpMultihop"), *p.Spec.EBGPMultihop, why))
		}
		if p.Spec.TTLSecurity {
			errs = append(errs, field.Invalid(spec.Child("ttlSecurity"), true, why))
		}
	}
	return errs
}

func validateAddress(path *field.Path, text string) field.ErrorList {
	if text == "" {
		return nil
	}
	addr, err := netip.ParseAddr(text)
	why := ""
	switch {
	case err != nil:
		why = "must be an IP address"
	case addr.Is4In6():
		why = fmt.Sprintf("write it as an IPv4 address: %s", addr.Unmap())
	case addr.IsUnspecified(), addr.IsMulticast(), addr.IsLoopback():
		why = "must be the address of one host on the network"
	case addr.Is6() && addr.IsLinkLocalUnicast():
		why = "a link-local address of IPv6 says nothing without its interface: set spec.interface instead, or spec.discover"
	}
	if why == "" {
		return nil
	}
	return field.ErrorList{field.Invalid(path, text, why)}
}

func isInternal(peer v1.PeerASN, own uint32) bool {
	return peer == v1.PeerASNInternal || peer.Number() == own && own != 0
}

// PeerWarnings is what the author of a BGPPeer may not have meant: nodes are all nodes with their
// labels and gateways.
func PeerWarnings(p *v1.BGPPeer, peers []v1.BGPPeer, nodes []Node) []string {
	var warnings []string
	selected := selectNodes(p, nodes)
	if len(selected) == 0 {
		warnings = append(warnings, "spec.nodeSelector: selects none of the nodes that run an agent, now")
	}
	if label := p.Spec.MyASNLabel; label != "" {
		var lacking []string
		for _, n := range selected {
			if _, err := asnOfLabel(n, label); err != nil {
				lacking = append(lacking, n.Name)
			}
		}
		if len(lacking) > 0 {
			warnings = append(
				warnings,
				fmt.Sprintf(
					"spec.myASNLabel: not the number of an autonomous system on %s", textlimit.List(lacking, maxNamedInMessage, ", "),
				),
			)
		}
	}
	if iface := string(p.Spec.SourceInterface); iface != "" {
		var virtual []string
		for _, n := range selected {
			if n.VirtualInterface == iface {
				virtual = append(virtual, n.Name)
			}
		}
		if len(virtual) > 0 {
			warnings = append(
				warnings,
				fmt.Sprintf(
					"spec.sourceInterface: %s is the virtual interface of %s: its addresses are those of Services, and no session "+
						"comes from them", iface, textlimit.List(virtual, maxNamedInMessage, ", "),
				),
			)
		}
	}
	for i := range peers {
		other := &peers[i]
		if other.Name == p.Name || other.Namespace != p.Namespace {
			continue
		}
		if both := nodesWithNeighbourOfBoth(p, other, nodes); len(both) > 0 {
			warnings = append(
				warnings,
				fmt.Sprintf(
					"spec.%s: BGPPeer %s has this neighbour on %s already: the older of the two counts there", neighbourField(p),
					other.Name, textlimit.List(both, maxNamedInMessage, ", "),
				),
			)
		}
	}
	return warnings
}

// neighbourField returns the field by which a BGPPeer says who the neighbour is.
func neighbourField(p *v1.BGPPeer) string {
	switch {
	case p.Spec.Interface != "":
		return "interface"
	case p.Spec.PeerAddress != "":
		return "peerAddress"
	}
	return "discover"
}

// nodesWithNeighbourOfBoth returns the nodes to which two BGPPeers give the same neighbour.
func nodesWithNeighbourOfBoth(p, other *v1.BGPPeer, nodes []Node) []string {
	var both []string
	others := selectNodes(other, nodes)
	for _, n := range selectNodes(p, nodes) {
		if !slices.Contains(others, n) {
			continue
		}
		theirs := neighboursOf(other, n, nil)
		if slices.ContainsFunc(neighboursOf(p, n, nil), func(at neighbour) bool { return slices.Contains(theirs, at) }) {
			both = append(both, n.Name)
		}
	}
	return both
}

// selectNodes returns the nodes that a BGPPeer selects.
func selectNodes(p *v1.BGPPeer, nodes []Node) []*Node {
	selector := labels.Everything()
	if p.Spec.NodeSelector != nil {
		var err error
		if selector, err = metav1.LabelSelectorAsSelector(p.Spec.NodeSelector); err != nil {
			return nil // Validate says so
		}
	}
	var selected []*Node
	for i := range nodes {
		if nodes[i].LBNodeAgent != "" && selector.Matches(labels.Set(nodes[i].Labels)) {
			selected = append(selected, &nodes[i])
		}
	}
	return selected
}
