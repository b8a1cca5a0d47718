package placement

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// Preference says which nodes are given Local addresses of a group rather than others. It decides
// where an address goes, and moves none that a node has.
type Preference struct {
	Nodes []PreferredNodes
	// TopologyKey is the label of nodes over whose values addresses are spread; empty for none.
	TopologyKey string
}

// PreferredNodes are nodes that are preferred by a weight.
type PreferredNodes struct {
	Weight   int
	Selector labels.Selector
}

// ParsePreference parses what a ServiceGroup says of nodes. The result is nil if it says nothing.
func ParsePreference(spec *v1.ServiceGroupSpec, path *field.Path) (*Preference, field.ErrorList) {
	if len(spec.PreferredNodes) == 0 && spec.TopologyKey == "" {
		return nil, nil
	}
	preference := &Preference{TopologyKey: spec.TopologyKey}
	nodesPath, keyPath := path.Child("preferredNodes"), path.Child("topologyKey")
	var errs field.ErrorList
	for i, nodes := range spec.PreferredNodes {
		selector, err := metav1.LabelSelectorAsSelector(&nodes.NodeSelector)
		if err != nil {
			at := nodesPath.Index(i).Child("nodeSelector")
			errs = append(errs, field.Invalid(at, field.OmitValueType{}, err.Error()))
			continue
		}
		preference.Nodes = append(preference.Nodes, PreferredNodes{int(nodes.Weight), selector})
	}
	if spec.TopologyKey != "" && len(validation.IsQualifiedName(spec.TopologyKey)) > 0 {
		const why = "must be the name of a label, such as topology.kubernetes.io/zone"
		errs = append(errs, field.Invalid(keyPath, spec.TopologyKey, why))
	}
	if spec.Remote != nil {
		const why = "addresses of remote pools are Virtual: all nodes have them"
		if len(spec.PreferredNodes) > 0 {
			errs = append(errs, field.Forbidden(nodesPath, why))
		}
		if spec.TopologyKey != "" {
			errs = append(errs, field.Forbidden(keyPath, why))
		}
	}
	return preference, errs
}

// WeightOf is how much a node is preferred for the address: the sum of the weights of what selects
// it.
func (a *Address) WeightOf(n *Node) int {
	weight := 0
	if a.Preference != nil {
		for _, p := range a.Preference.Nodes {
			if p.Selector.Matches(labels.Set(n.Labels)) {
				weight += p.Weight
			}
		}
	}
	return weight
}

// GroupDomain is one value of the label over which the addresses of a group, of one family, are spread.
// It is zero if they are not spread.
type GroupDomain struct {
	Group      string
	FamilyBits int
	Key, Value string
}

// DomainOf is the domain of a node for the address. Nodes without the label are in one together.
func (a *Address) DomainOf(n *Node) GroupDomain {
	if a.Preference == nil || a.Preference.TopologyKey == "" {
		return GroupDomain{}
	}
	key := a.Preference.TopologyKey
	return GroupDomain{a.Group, familyBits(a.Addr), key, n.Labels[key]}
}

// String is key=value.
func (d GroupDomain) String() string { return d.Key + "=" + d.Value }

// countLocal counts a Local address of a node.
func (p *placer) countLocal(n *Node, a *Address) {
	p.localCountOfNode[familyBits(a.Addr)][n.Name]++
	if d := a.DomainOf(n); d != (GroupDomain{}) {
		p.localCountOfGroupDomain[d]++
	}
}

// onlyLargest returns the nodes for which size is the largest.
func onlyLargest(nodes []*Node, size func(*Node) int) []*Node {
	var largest []*Node
	for _, n := range nodes {
		if len(largest) > 0 && size(n) > size(largest[0]) {
			largest = nil
		}
		if len(largest) == 0 || size(n) == size(largest[0]) {
			largest = append(largest, n)
		}
	}
	return largest
}

// describeRank says of a node that may take an address what the choice among such nodes depends on.
func (p *placer) describeRank(n *Node, a *Address) string {
	text := fmt.Sprintf("this node has %d", p.localCountOfNode[familyBits(a.Addr)][n.Name])
	if a.Preference == nil {
		return text
	}
	if len(a.Preference.Nodes) > 0 {
		text += fmt.Sprintf("; weight %d", a.WeightOf(n))
	}
	if d := a.DomainOf(n); d != (GroupDomain{}) {
		text += fmt.Sprintf("; %s has %d of ServiceGroup %s", d, p.localCountOfGroupDomain[d], d.Group)
	}
	return text
}

// reasonForOther says why a node that may take an address was not chosen, and other was.
func (p *placer) reasonForOther(n, other *Node, a *Address) string {
	mine, others := a.DomainOf(n), a.DomainOf(other)
	switch {
	case a.WeightOf(n) < a.WeightOf(other):
		return fmt.Sprintf("has weight %d, and %s has %d", a.WeightOf(n), other.Name, a.WeightOf(other))
	case p.localCountOfGroupDomain[mine] > p.localCountOfGroupDomain[others]:
		return fmt.Sprintf("is where %s has %d of ServiceGroup %s, and %s has %d",
			mine, p.localCountOfGroupDomain[mine], mine.Group, others, p.localCountOfGroupDomain[others])
	}
	return fmt.Sprintf("has %d already, or ranks lower for this one", p.localCountOfNode[familyBits(a.Addr)][n.Name])
}
