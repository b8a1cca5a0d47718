package lab

import (
	"context"
	"net/netip"
	"strings"
	"sync"
)

// AddressChange is a change of an address in the kernel of a host.
type AddressChange struct {
	// Link is the name of the interface.
	Link string
	// Prefix is the address and the length of its subnet's prefix.
	Prefix netip.Prefix
	// IsDeleted says that the interface has the address no more. Otherwise the address was added, or
	// its lifetime was renewed.
	IsDeleted bool
}

// AddressWatch notes how addresses of a host change.
type AddressWatch struct {
	monitor *monitor

	mu      sync.Mutex
	changes []AddressChange
}

// WatchAddresses notes how the kernel of a host changes addresses, until Stop. Unlike one that
// looks again and again, it misses no address that is there for a moment.
func (l *Lab) WatchAddresses(ctx context.Context, host string) (*AddressWatch, error) {
	w := &AddressWatch{}
	var err error
	w.monitor, err = startMonitor(ctx, host, w.note, "-oneline", "monitor", "address")
	return w, err
}

func (w *AddressWatch) note(line string) {
	if change, ok := parseAddressChange(line); ok {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.changes = append(w.changes, change)
	}
}

// Stop ends the watch, and returns all changes in the order in which they were made.
func (w *AddressWatch) Stop() []AddressChange {
	w.monitor.close()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changes
}

// parseAddressChange parses a line of "ip -oneline monitor address":
//
//	Deleted 2: eth0    inet 10.77.0.100/32 scope global eth0\       valid_lft …
func parseAddressChange(line string) (AddressChange, bool) {
	rest, isDeleted := strings.CutPrefix(line, "Deleted ")
	fields := strings.Fields(rest)
	if len(fields) < 4 || fields[2] != "inet" && fields[2] != "inet6" {
		return AddressChange{}, false
	}
	prefix, err := netip.ParsePrefix(fields[3])
	link, _, _ := strings.Cut(fields[1], "@")
	return AddressChange{Link: link, Prefix: prefix, IsDeleted: isDeleted}, err == nil
}
