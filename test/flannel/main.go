// Command flannel-address prints the IPv4 and the IPv6 address that flannel takes for the node's
// own when it is told neither: each the first one of the interface of the default route.
package main

import (
	"fmt"
	"net"
	"os"

	"github.com/flannel-io/flannel/pkg/ip"
)

func main() {
	v4, err := first(ip.GetDefaultGatewayInterface, ip.GetInterfaceIP4Addrs)
	if err != nil {
		fmt.Fprintln(os.Stderr, "flannel-address:", err)
		os.Exit(1)
	}
	v6, err := first(ip.GetDefaultV6GatewayInterface, ip.GetInterfaceIP6Addrs)
	if err != nil { // flannel looks for an IPv6 address only where it is told to
		fmt.Println(v4)
		return
	}
	fmt.Println(v4, v6)
}

// first returns the first address of an interface, which is the one that flannel takes.
func first(
	findInterface func() (*net.Interface, error), listAddresses func(*net.Interface) ([]net.IP, error),
) (net.IP, error) {
	nic, err := findInterface()
	if err != nil {
		return nil, err
	}
	addresses, err := listAddresses(nic)
	if err != nil {
		return nil, err
	}
	return addresses[0], nil
}
