package neigh

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
)

// fabricRules say what a fabric does with questions. The bridges of Linux differ in that: those of 6.18 do neither of
// what isSenderOptional and answersDirect say, and those of Debian's 6.1.192 do both.
type fabricRules struct {
	// stations has the stations that the fabric knows, by their addresses. It does not learn when one dies.
	stations map[netip.Addr]MAC
	// With isSenderOptional the fabric answers and floods questions without a sender as it does those with one;
	// without it, it answers none of them, and floods none.
	isSenderOptional bool
	// With answersDirect the fabric also answers questions that are for one station alone.
	answersDirect bool
}

// fabric is an Ethernet switch in user space that suppresses ARP and neighbour discovery between its ports, as the
// switches of an EVPN fabric do. It answers for the stations that it knows, and floods neither what it has answered nor
// announcements. It forwards whatever is for one station alone.
type fabric struct {
	rules fabricRules
	ports []*os.File

	mu sync.Mutex
	// passages counts the frames that the fabric has received, by what has become of them.
	passages map[passage]int
}

// passage is what a frame says of an address, and what the fabric has done with it. A frame that is neither a question
// nor a claim has no address.
type passage struct {
	addr                    netip.Addr
	isClaim                 bool
	hasSender               bool // of a question
	isDirect                bool
	isAnswered, isForwarded bool
}

// startFabric starts a fabric between links of a namespace, which ends with the test. Port 0 is the first link.
func startFabric(t *testing.T, within nstest.Neighbour, rules fabricRules, links ...string) *fabric {
	t.Helper()
	f := &fabric{rules: rules, passages: map[passage]int{}}
	for _, link := range links {
		f.ports = append(f.ports, packetSocket(t, within, link, allEtherTypes))
	}
	var wait sync.WaitGroup
	for i := range f.ports {
		wait.Go(func() {
			if err := f.serve(t.Context(), i); err != nil {
				t.Errorf("the fabric fails at %s: %v", links[i], err)
			}
		})
	}
	t.Cleanup(wait.Wait) // the test's context has ended by then
	return f
}

// serve handles what a port receives, until ctx ends.
func (f *fabric) serve(ctx context.Context, port int) error {
	stop := context.AfterFunc(ctx, func() { _ = f.ports[port].SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buffer := make([]byte, 2048)
	for {
		n, err := f.ports[port].Read(buffer)
		if err == nil && n >= ethernetHeaderLength {
			err = f.handle(port, buffer[:n])
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// handle answers a frame, forwards it, or does both or neither.
func (f *fabric) handle(port int, frame []byte) error {
	p := passage{isDirect: !isGroup(frame[0]), isForwarded: true}
	q, isQuestion := parseQuestion(frame)
	station, isKnown := f.rules.stations[q.Addr]
	p.addr, p.hasSender = q.Addr, isQuestion && !q.Sender.IsUnspecified()
	switch {
	case !isQuestion:
		if m, err := ParseMessage(frame); err == nil {
			p.addr, p.isClaim, p.isForwarded = m.Addr, true, p.isDirect || !m.IsGratuitous
		}
	case !p.hasSender && !f.rules.isSenderOptional:
		p.isForwarded = p.isDirect
	case isKnown && (!p.isDirect || f.rules.answersDirect):
		p.isAnswered, p.isForwarded = true, p.isDirect
	}
	var errs error
	if p.isAnswered {
		answer, err := buildAnswer(q, MAC(frame[6:12]), station)
		if errs = err; err == nil {
			errs = f.send(port, answer)
		}
	}
	for other := range f.ports {
		if other != port && p.isForwarded {
			errs = errors.Join(errs, f.send(other, frame))
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.passages[p]++
	return errs
}

// send sends a frame from a port.
func (f *fabric) send(port int, frame []byte) error {
	_, err := f.ports[port].Write(frame)
	return err
}

// count returns how many frames the fabric has received that match.
func (f *fabric) count(matches func(passage) bool) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for p, times := range f.passages {
		if matches(p) {
			n += times
		}
	}
	return n
}

// parseQuestion reads the question in a frame: an ARP request that announces nothing, or a solicitation.
func parseQuestion(frame []byte) (q Question, isQuestion bool) {
	p := frame[ethernetHeaderLength:]
	switch binary.BigEndian.Uint16(frame[12:]) {
	case etherTypeARP:
		if len(p) >= arpLength && binary.BigEndian.Uint16(p[6:]) == arpRequest {
			q.Sender, q.Addr = netip.AddrFrom4([4]byte(p[14:])), netip.AddrFrom4([4]byte(p[24:]))
			return q, q.Sender != q.Addr
		}
	case etherTypeIPv6:
		if len(p) >= ipv6HeaderLength+ndLength && p[6] == protocolICMPv6 && p[ipv6HeaderLength] == icmpSolicitation {
			q.Sender, q.Addr = netip.AddrFrom16([16]byte(p[8:])), netip.AddrFrom16([16]byte(p[ipv6HeaderLength+8:]))
			return q, true
		}
	}
	return Question{}, false
}

// buildAnswer builds the answer to the question of a station, as another station would send it.
func buildAnswer(q Question, asker, station MAC) ([]byte, error) {
	if q.Addr.Is4() {
		frame, err := buildARPRequest(asker, station, q.Addr, q.Sender)
		if err != nil {
			return nil, err
		}
		frame[ethernetHeaderLength+7] = arpReply
		copy(frame[ethernetHeaderLength+18:], asker[:])
		return frame, nil
	}
	if q.Sender.IsUnspecified() {
		return UnsolicitedNA(station, q.Addr)
	}
	message := buildND(icmpAdvertisement, flagSolicited|flagOverride, q.Addr)
	message = slices.Concat(message, []byte{optionTargetLinkLayer, 1}, station[:])
	return wrapIPv6(asker, station, q.Addr, q.Sender, message), nil
}
