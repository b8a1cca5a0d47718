package lab

import (
	"fmt"
	"net/netip"
	"time"
)

// Asker asks, from a host on the nodes' link, who has which addresses of a
// family, as a Meter asks for one: by ARP or ND, from a station that does not
// exist. One goroutine may ask while another listens.
type Asker struct{ wire *wire }

// OpenAsker opens one for the family of an address.
func OpenAsker(host string, like netip.Addr) (*Asker, error) {
	w, err := listenWire(host, like)
	if err != nil {
		return nil, fmt.Errorf("ask from %s: %w", host, err)
	}
	return &Asker{w}, nil
}

// Ask asks once.
func (a *Asker) Ask(address netip.Addr) error {
	request, err := question(address)
	if err != nil {
		return fmt.Errorf("ask for %s: %w", address, err)
	}
	return a.wire.send(request, address)
}

// Answer waits for an answer for 100 ms and returns for which address it is, who
// has sent it, and when the kernel got it.
func (a *Asker) Answer() (address netip.Addr, mac string, at time.Time, ok bool) {
	c, ok := a.wire.hear()
	return c.address, c.mac, c.at, ok && c.asked
}

// Close closes it. Nobody may be listening any more.
func (a *Asker) Close() error { return a.wire.close() }
