package allocation

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// PortSet holds the ports of a Service, each with its protocol, in ascending order.
type PortSet []port

// port is 65,536 times the protocol's place in protocols, counted from 1, plus the
// number of the port.
type port uint32

var protocols = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}

// PortsOf returns the set of a Service's ports. All protocols that Services cannot have
// count as one.
func PortsOf(ports []corev1.ServicePort) PortSet {
	set := make(PortSet, len(ports))
	for i, p := range ports {
		protocol := slices.Index(protocols, cmp.Or(p.Protocol, corev1.ProtocolTCP))
		set[i] = port((protocol+1)<<16) | port(uint16(p.Port))
	}
	slices.Sort(set)
	return slices.Compact(set)
}

// portInCommon returns a port that both sets have, such as TCP/80, or empty. It takes at
// most as many steps as both sets have ports.
func (s PortSet) portInCommon(other PortSet) string {
	for len(s) > 0 && len(other) > 0 {
		switch {
		case s[0] == other[0]:
			return s[0].String()
		case s[0] < other[0]:
			s = s[1:]
		default:
			other = other[1:]
		}
	}
	return ""
}

// String is the protocol and the number, such as TCP/80.
func (p port) String() string {
	protocol := corev1.Protocol("unknown")
	if i := int(p>>16) - 1; i >= 0 {
		protocol = protocols[i]
	}
	return fmt.Sprintf("%s/%d", protocol, uint16(p))
}
