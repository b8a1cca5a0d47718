package lab

import (
	"fmt"
	"net/netip"
	"time"
)

// Asker sends ARP or ND requests for any addresses of a family, from a host on the nodes'
// link. As those of a Meter, they come from a station that does not exist. One goroutine
// may call Ask while another calls Answer.
type Asker struct{ wire *wire }

// OpenAsker opens an Asker for the family of an address.
func OpenAsker(host string, like netip.Addr) (*Asker, error) {
	w, err := listenWire(host, like)
	if err != nil {
		return nil, fmt.Errorf("ask from %s: %w", host, err)
	}
	return &Asker{w}, nil
}

// Ask sends one request.
func (a *Asker) Ask(address netip.Addr) error {
	request, err := requestFrame(address)
	if err != nil {
		return fmt.Errorf("ask for %s: %w", address, err)
	}
	return a.wire.send(request, address)
}

// Answer waits 100 ms for an answer. It returns the address, the MAC of the station that
// answered, and when the kernel got the answer.
func (a *Asker) Answer() (address netip.Addr, mac string, at time.Time, ok bool) {
	c, ok := a.wire.receive()
	return c.address, c.mac, c.at, ok && c.answersAsker
}

// Heard is a message by which a station says that it has an address.
type Heard struct {
	Address netip.Addr
	// MAC of the station, in lower case.
	MAC string
	// IsAnswer means that the message answers the Asker, and IsToAll that it is for all stations.
	IsAnswer, IsToAll bool
}

// Hear waits 100 ms for a message, and reports whether one has come. It takes the place of Answer.
func (a *Asker) Hear() (Heard, bool) {
	c, ok := a.wire.receive()
	return Heard{c.address, c.mac, c.answersAsker, c.isToAll}, ok
}

// Close closes the Asker. No call of Answer or Hear may be under way.
func (a *Asker) Close() error { return a.wire.close() }
