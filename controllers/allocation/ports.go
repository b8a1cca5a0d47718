package allocation

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/purelb/purelb-operator/internal/textlimit"
)

// PortSet holds the ports of a Service, each with its protocol, in ascending order.
type PortSet []port

// port is 65,536 times the protocol's place in protocolNames, plus the number of the port.
type port uint32

// protocolNames begin with the one for all protocols that Services cannot have.
var protocolNames = []string{
	"unknown", string(corev1.ProtocolTCP), string(corev1.ProtocolUDP), string(corev1.ProtocolSCTP),
}

// MaxRecordedPorts is how many ports a Service can have that shares an address with a
// Service of another namespace: a record has room for so many.
const MaxRecordedPorts = 256

// PortsOf returns the set of a Service's ports. All protocols that Services cannot have
// count as one.
func PortsOf(ports []corev1.ServicePort) PortSet {
	set := make(PortSet, len(ports))
	for i, p := range ports {
		protocol := max(0, slices.Index(protocolNames, string(cmp.Or(p.Protocol, corev1.ProtocolTCP))))
		set[i] = port(protocol<<16) | port(uint16(p.Port))
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

// containsAll reports whether the set has all ports of another one.
func (s PortSet) containsAll(other PortSet) bool {
	for _, p := range other {
		if _, found := slices.BinarySearch(s, p); !found {
			return false
		}
	}
	return true
}

// String lists the ports, such as TCP/80,UDP/53. Records store this text, and parsePorts reads it.
func (s PortSet) String() string {
	return strings.Join(textlimit.Texts(s), ",")
}

// parsePorts reads what String of a PortSet of at most MaxRecordedPorts writes.
func parsePorts(list string) (PortSet, bool) {
	var set PortSet
	for text := range strings.SplitSeq(list, ",") {
		protocol, number, _ := strings.Cut(text, "/")
		i := slices.Index(protocolNames, protocol)
		n, err := strconv.ParseUint(number, 10, 16)
		if i < 0 || err != nil || len(set) == MaxRecordedPorts {
			return nil, false
		}
		set = append(set, port(i<<16)|port(n))
	}
	slices.Sort(set)
	return slices.Compact(set), true
}

// String is the protocol and the number, such as TCP/80.
func (p port) String() string { return fmt.Sprintf("%s/%d", protocolNames[p>>16], uint16(p)) }
