package link

import (
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// AddressProtocol is the IFA_PROTO with which the agent tags its addresses (if_addr.h: who or
// what added the address). The kernel itself uses 0 to 3; the other numbers are for
// user space, where nobody assigns them.
const AddressProtocol = 0x70

// maxDumpAttempts is how often a listing is tried that changes interrupt.
const maxDumpAttempts = 5

// Netlink reads and changes the interfaces of the network namespace in which it was
// opened.
type Netlink struct {
	handle *netlink.Handle
	// addrAdd is handle.AddrAdd; tests replace it to behave as older kernels do.
	addrAdd func(netlink.Link, *netlink.Addr) error
	// ownershipFile records the agent's addresses where the kernel keeps no tags; nil
	// for no file.
	ownershipFile *OwnershipFile
	known         known
	// keepsTags says whether the kernel keeps tags; nil until Add has found out. A new
	// process finds out again with the first address that it adds. Add, which alone
	// uses the field, is not for concurrent use.
	keepsTags *bool
	// routeLimit is how long Add waits for a local route; tests wait longer, however busy the machine is.
	routeLimit time.Duration
}

// Open opens a netlink socket. It is never closed, because the agent uses it for as
// long as it runs. The OwnershipFile is used where the kernel keeps no tags; it may be
// nil.
func Open(ownership *OwnershipFile) (*Netlink, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	n := &Netlink{handle: handle, addrAdd: handle.AddrAdd, ownershipFile: ownership, routeLimit: localRouteLimit}
	if ownership != nil && len(ownership.recorded) > 0 {
		n.keepsTags = new(bool) // since the machine booted this kernel has kept no tag
	}
	return n, nil
}

// dump lists objects of the kernel. It lists again if the kernel says that a change
// interrupted the listing: an object that is missing from an interrupted listing may
// still exist.
func dump[T any](what string, list func() ([]T, error)) ([]T, error) {
	var err error
	for range maxDumpAttempts {
		var items []T
		if items, err = list(); err == nil {
			return items, nil
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return nil, fmt.Errorf("list %s: %w", what, err)
}
