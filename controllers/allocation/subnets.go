package allocation

import (
	"fmt"
	"net/netip"
	"slices"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

// SubnetsNotFound returns the subnets of a group of type local that no node is in, in the order
// of its ranges: their addresses are Virtual, which the group's author may not have meant. Unless
// AreFactsComplete, an agent that has yet to report its node's interfaces may have them.
func (in *Inputs) SubnetsNotFound(group *Group) []netip.Prefix {
	if group.Type != v1.PoolTypeLocal || in.AnnounceType == nil {
		return nil
	}
	var subnets []netip.Prefix
	for _, r := range group.Ranges {
		if in.AnnounceType(r) == v1.AnnounceVirtual && !slices.Contains(subnets, r.Subnet) {
			subnets = append(subnets, r.Subnet)
		}
	}
	return subnets
}

// DescribeSubnetsNotFound says what becomes of the addresses of subnets that no node is in. It is
// empty if there are none.
func DescribeSubnetsNotFound(subnets []netip.Prefix) string {
	if len(subnets) == 0 {
		return ""
	}
	return fmt.Sprintf("no node has an interface in %s: the addresses are Virtual, and only routers make packets come; "+
		"correct the subnet or spec.local of the LBNodeAgents or, if that is meant, make the group one of kind remote",
		textlimit.List(textlimit.Texts(subnets), maxNamedInMessage, ", "))
}

// subnetWarnings is DescribeSubnetsNotFound as a warning about a group.
func (in *Inputs) subnetWarnings(group *Group) []string {
	if text := DescribeSubnetsNotFound(in.SubnetsNotFound(group)); text != "" && in.AreFactsComplete() {
		return []string{"spec.local: " + text}
	}
	return nil
}

// AnnouncedAs says how nodes announce the addresses of ranges. It is empty while that of one of them
// is not known.
func AnnouncedAs(pools []v1.PoolStatus) v1.AnnouncedAs {
	as := v1.AnnouncedAs("")
	for i := range pools {
		switch one := v1.AnnouncedAs(pools[i].Announce); {
		case one == "":
			return ""
		case as == "" || as == one:
			as = one
		default:
			as = v1.AnnouncedAsMixed
		}
	}
	return as
}
