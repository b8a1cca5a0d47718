package neigh

import (
	"errors"
	"net"
)

// ethernetInterface returns an interface and its MAC address.
func ethernetInterface(name string) (*net.Interface, MAC, error) {
	nic, err := net.InterfaceByName(name)
	if err != nil {
		return nil, MAC{}, err
	}
	if len(nic.HardwareAddr) != len(MAC{}) {
		return nil, MAC{}, errors.New("not an Ethernet interface")
	}
	return nic, MAC(nic.HardwareAddr), nil
}

// listOwnMACs returns the MAC addresses of all the node's interfaces: the node answers for
// an address on all its interfaces that are on the link.
func listOwnMACs() (map[MAC]bool, error) {
	nics, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	own := map[MAC]bool{}
	for _, nic := range nics {
		if len(nic.HardwareAddr) == len(MAC{}) {
			own[MAC(nic.HardwareAddr)] = true
		}
	}
	return own, nil
}
