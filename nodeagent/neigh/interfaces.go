package neigh

import (
	"errors"
	"maps"
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

// listOwnMACs returns the node's own MAC addresses, without those that only interfaces of pods have.
func (e *Ethernet) listOwnMACs() (map[MAC]bool, error) {
	own, err := listMACs()
	if err != nil {
		return nil, err
	}
	e.ownMu.Lock()
	defer e.ownMu.Unlock()
	maps.DeleteFunc(own, func(mac MAC, _ bool) bool { return e.podMACs[mac] })
	return own, nil
}

// listMACs returns the MAC addresses of all the node's interfaces: the node answers for
// an address on all its interfaces that are on the link.
func listMACs() (map[MAC]bool, error) {
	nics, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	macs := map[MAC]bool{}
	for _, nic := range nics {
		if len(nic.HardwareAddr) == len(MAC{}) {
			macs[MAC(nic.HardwareAddr)] = true
		}
	}
	return macs, nil
}
