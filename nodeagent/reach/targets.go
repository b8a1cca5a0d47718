package reach

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// Key tells the addresses apart for which a node asks.
type Key struct {
	// Interface of the node, on whose link it asks.
	Interface string
	Addr      netip.Addr
}

// Compare orders Keys.
func (k Key) Compare(other Key) int {
	return cmp.Or(strings.Compare(k.Interface, other.Interface), k.Addr.Compare(other.Addr))
}

// Target is an address that a node asks for.
type Target struct {
	Holder string
	// HolderMACs are by which the holder may answer; any station's answer counts if there are none.
	HolderMACs []string
	Epoch      int64
	// The node has turn number Turn, from 0, of Turns.
	Turn, Turns int
	// HolderAddr is an address of the holder's own, and WitnessAddrs are addresses of other
	// askers: not valid, or none, if there is none of the family that can be asked for.
	HolderAddr   netip.Addr
	WitnessAddrs []netip.Addr
	// Stored is what the node has reported of the address, under any epoch.
	Stored v1.Reachability
}

// Targets returns what the Announcements with asking of a node ask it to find out. hasSenderFor says
// whether the node can ask for an address by an interface.
func Targets(
	askings []v1.Announcement, nodeName string, hasSenderFor func(iface string, addr netip.Addr) bool,
) map[Key]Target {
	targets := map[Key]Target{}
	for i := range askings {
		asking := askings[i].Spec.Asking
		iface := string(asking.Interface)
		ownAddr := map[bool]netip.Addr{} // of the holder, by whether it is IPv6
		witnesses := map[bool][]netip.Addr{}
		for _, isIPv6 := range []bool{false, true} {
			ownAddr[isIPv6] = ownAddressOf(&asking.Holder, iface, isIPv6, hasSenderFor)
			for k := range asking.Askers {
				if n := &asking.Askers[k]; n.NodeName != nodeName {
					if addr := ownAddressOf(n, iface, isIPv6, hasSenderFor); addr.IsValid() {
						witnesses[isIPv6] = append(witnesses[isIPv6], addr)
					}
				}
			}
		}
		turn := slices.IndexFunc(asking.Askers, func(n v1.StandbyNode) bool { return n.NodeName == nodeName })
		for _, a := range asking.Addresses {
			addr, err := netip.ParseAddr(a.Address)
			key := Key{iface, addr}
			// While an address moves from one Announcement to another it may be in both.
			if known, isKnown := targets[key]; err != nil || isKnown && known.Epoch >= a.Epoch {
				continue
			}
			targets[key] = Target{
				Holder: asking.Holder.NodeName, HolderMACs: asking.Holder.MACs, Epoch: a.Epoch,
				Turn: max(turn, 0), Turns: max(len(asking.Askers), 1),
				HolderAddr: ownAddr[addr.Is6()], WitnessAddrs: witnesses[addr.Is6()],
				Stored: storedOf(&askings[i], a.Address),
			}
		}
	}
	return targets
}

// ownAddressOf returns the first address of a node's own that is of a family and can be asked for.
func ownAddressOf(n *v1.StandbyNode, iface string, isIPv6 bool, hasSenderFor func(string, netip.Addr) bool) netip.Addr {
	for _, text := range n.Addresses {
		if addr, err := netip.ParseAddr(text); err == nil && addr.Is6() == isIPv6 && hasSenderFor(iface, addr) {
			return addr
		}
	}
	return netip.Addr{}
}

// storedOf returns what the status of an Announcement says of an address; it has no address if that
// is nothing.
func storedOf(ann *v1.Announcement, address string) v1.Reachability {
	for _, r := range ann.Status.Reachability {
		if r.Address == address {
			return r
		}
	}
	return v1.Reachability{}
}
