package plan

import (
	"maps"
	"slices"
	"strings"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

// maxMACs is the bound of the CRD.
const maxMACs = 64

// ethernetKinds are the kinds of interfaces that can be on a link of the node, whether they have
// an address or not. Kinds that come and go with pods (veth, tap, netkit) or are never on a link
// of the node (dummy, tunnels) are not among them: the list of MACs is to stay the same while pods
// come and go.
var ethernetKinds = []string{"device", "bond", "team", "vlan", "macvlan", "ipvlan", "openvswitch"}

// NodeMACs returns the Ethernet addresses by which the node's kernel may answer for an
// address, lower case with colons, at most 64: first those of the interfaces that NodeInterfaces
// has picked, then those of the node's other interfaces that can be on a link of the node,
// ascending. These are interfaces of hardware, or made of it, bridges that have one of these as
// a port, and all others that have an address of the node's own, as the end of a pod's veth has
// not. The addresses that the agent put there make no difference.
func NodeMACs(selection Selection, observed Observed, interfaces []purelbv1.NodeInterface) []string {
	var macs []string
	for _, nic := range interfaces {
		macs = append(macs, nic.MAC)
	}
	hasOwnAddress := map[string]bool{} // by link
	for _, a := range observed.Addresses {
		if !a.IsOurs && isGlobal(a.Prefix.Addr()) {
			hasOwnAddress[a.Interface] = true
		}
	}
	hasPort := map[string]bool{} // by bridge: one of the ethernetKinds
	for _, l := range observed.Interfaces {
		if slices.Contains(ethernetKinds, l.Kind) {
			hasPort[l.Master] = true
		}
	}
	var others []string
	for _, l := range observed.Interfaces {
		isVirtual := l.Kind == "dummy" || l.Kind == "ifb" || isExcluded(selection, l)
		if !isVirtual && (slices.Contains(ethernetKinds, l.Kind) || hasPort[l.Name] || hasOwnAddress[l.Name]) {
			others = append(others, l.MAC)
		}
	}
	slices.Sort(others)
	isListed := map[string]bool{}
	macs = slices.DeleteFunc(append(macs, others...), func(mac string) bool {
		isDuplicate := isListed[mac]
		isListed[mac] = true
		return isDuplicate || !isEthernet(mac)
	})
	return firstN(macs, maxMACs)
}

// podLinkKinds are the kinds of interfaces that come and go with pods: the node's ends of their cables, of which
// those of virtual machines are taps.
var podLinkKinds = []string{"veth", "tuntap", "netkit"}

// PodMACs returns the Ethernet addresses, ascending, that only interfaces of pods have: such an
// interface is on no link of the node, and the node's kernel does not answer with its MAC there. It
// is one of the podLinkKinds without a global address and without a default route or a subnet of a
// router's. Network plugins may give all of them the same MAC, which a station on the link may have,
// too. A MAC that another interface of the node has as well is not among them, as a bridge has the
// MAC of one of its ports.
func PodMACs(observed Observed) []string {
	isOnLink := map[string]bool{} // by name
	for _, a := range observed.Addresses {
		isOnLink[a.Interface] = isOnLink[a.Interface] || isGlobal(a.Prefix.Addr())
	}
	for _, r := range observed.Routes {
		isOnLink[r.Interface] = isOnLink[r.Interface] || r.Destination.Bits() == 0 || r.Origin == OriginRA
	}
	isPods := map[string]bool{} // by MAC
	for _, l := range observed.Interfaces {
		isPod := slices.Contains(podLinkKinds, l.Kind) && !isOnLink[l.Name]
		if others, isKnown := isPods[l.MAC]; isEthernet(l.MAC) {
			isPods[l.MAC] = isPod && (others || !isKnown)
		}
	}
	maps.DeleteFunc(isPods, func(_ string, isPod bool) bool { return !isPod })
	return slices.Sorted(maps.Keys(isPods))
}

// isEthernet reports whether the address of an interface is a MAC of six bytes, other than zero.
func isEthernet(mac string) bool {
	return len(mac) == len("00:00:00:00:00:00") && strings.Count(mac, ":") == 5 && mac != "00:00:00:00:00:00"
}
