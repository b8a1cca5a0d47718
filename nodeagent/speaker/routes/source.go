package routes

import (
	"cmp"
	"fmt"
	"net/netip"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/order"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// sourceOn returns the one of an interface's addresses from which the node reaches a neighbour: the lowest one of
// the neighbour's family that is the node's own, may be reached from beyond the link, and stays; or, to a link-local
// neighbour of IPv4, rather one that is link-local, too.
func sourceOn(addresses []plan.Address, iface string, neighbour netip.Addr) (netip.Addr, error) {
	var source netip.Addr
	isOnLink := func(addr netip.Addr) bool { return neighbour.IsLinkLocalUnicast() && addr.IsLinkLocalUnicast() }
	for _, a := range addresses {
		addr := a.Prefix.Addr()
		if addr.Is4() != neighbour.Is4() || a.IsOurs || a.IsTemporary || !addr.IsGlobalUnicast() && !isOnLink(addr) {
			continue
		}
		if !source.IsValid() || cmp.Or(order.TrueFirst(isOnLink(addr), isOnLink(source)), addr.Compare(source)) < 0 {
			source = addr
		}
	}
	if !source.IsValid() {
		return source, fmt.Errorf(
			"the node's interface %s has no %s address of its own: see sourceInterface of the BGPPeer", iface,
			purelbv1.FamilyOf(neighbour),
		)
	}
	return source, nil
}
