package neigh

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ProbeResult is the result of probing for an address.
type ProbeResult struct {
	// MAC is the station that has the address.
	MAC MAC
	// Err is set if the address could not be asked for, or answers may have been lost, so
	// that silence proves nothing.
	Err error
}

const (
	// A probe sends framesPerBatch frames and then reads answers for at least batchInterval:
	// the queues on the way, and the receiver's, hold some hundreds of frames.
	framesPerBatch = 64
	batchInterval  = 2 * time.Millisecond
	// maxLossyRounds is how many rounds are repeated because answers were lost.
	maxLossyRounds = 5
	// maxSendAttempts is how often sending a frame is tried again that found no room in the
	// interface's queue, batchInterval apart.
	maxSendAttempts = 25
)

var (
	errAnswersLost = errors.New("the kernel had no room for all answers")
	errNoCarrier   = errors.New("the interface has no carrier")
)

// Probe asks all questions in count rounds, and reads answers for an interval after each.
// It returns, by address, which station has answered or why the silence proves nothing. An
// address that is missing from the result no station has.
//
// Probe takes count intervals, and 2 ms more for each 64 frames; less, if every address is
// answered for. It ignores this node's own answers and those of IgnoredMACs. If the kernel
// dropped answers Probe repeats the round.
func (e *Ethernet) Probe(
	ctx context.Context, questions []Question, count int, interval time.Duration,
) map[netip.Addr]ProbeResult {
	type linkAndFamily struct {
		iface string
		is6   bool
	}
	groups := map[linkAndFamily][]Question{}
	for _, q := range questions {
		key := linkAndFamily{q.Interface, q.Addr.Is6()}
		groups[key] = append(groups[key], q)
	}
	answers := map[netip.Addr]ProbeResult{}
	var mu sync.Mutex
	var wait sync.WaitGroup
	for key, group := range groups {
		wait.Go(func() {
			macByAddr, err := e.probeLink(ctx, key.iface, group, count, interval)
			mu.Lock()
			defer mu.Unlock()
			for _, q := range group {
				if mac, ok := macByAddr[q.Addr]; ok {
					answers[q.Addr] = ProbeResult{MAC: mac}
				} else if err != nil {
					answers[q.Addr] = ProbeResult{Err: fmt.Errorf("probe for %s on %s: %w", q.Addr, key.iface, err)}
				}
			}
		})
	}
	wait.Wait()
	return answers
}

// linkProbe is one probe, for addresses of one family on one link.
type linkProbe struct {
	socket  *os.File
	source  MAC
	ownMACs map[MAC]bool
	// pending are the questions that were asked and that an answer, or a better one, may
	// yet settle, by address.
	pending map[netip.Addr]Question
	// answeredBy is the station that has answered, by address.
	answeredBy map[netip.Addr]MAC
	// unsettled counts the addresses that are pending or not yet asked for.
	unsettled int
}

// probeLink probes for addresses of one family on one link, and returns the stations that
// have answered, by address.
func (e *Ethernet) probeLink(
	ctx context.Context, iface string, questions []Question, count int, interval time.Duration,
) (map[netip.Addr]MAC, error) {
	nic, source, err := ethernetInterface(iface)
	if err != nil {
		return nil, err
	}
	// Without a carrier the kernel drops what is sent, and reports no error.
	if isUp := nic.Flags&net.FlagUp != 0; isUp && nic.Flags&net.FlagRunning == 0 {
		return nil, errNoCarrier
	}
	own, err := e.listOwnMACs()
	if err != nil {
		return nil, err
	}
	addrs := make([]netip.Addr, 0, len(questions))
	for _, q := range questions {
		addrs = append(addrs, q.Addr)
	}
	etherType := uint16(etherTypeARP)
	if addrs[0].Is6() {
		etherType = etherTypeIPv6
	}
	socket, err := openPacketSocket(nic, etherType, claimFilter(nic, addrs[0].Is6(), addrs))
	if err != nil {
		return nil, err
	}
	defer func() { _ = socket.Close() }()

	p := &linkProbe{
		socket: socket, source: source, ownMACs: own,
		pending: map[netip.Addr]Question{}, answeredBy: map[netip.Addr]MAC{}, unsettled: len(questions),
	}
	if err = p.run(ctx, questions, count, interval); err != nil || p.unsettled == 0 {
		return p.answeredBy, err
	}
	if nic, err = net.InterfaceByIndex(nic.Index); err == nil && nic.Flags&net.FlagRunning == 0 {
		err = errNoCarrier
	}
	return p.answeredBy, err
}

// run asks in count rounds. A round in which answers may have been lost does not count.
func (p *linkProbe) run(ctx context.Context, questions []Question, count int, interval time.Duration) error {
	for lossyRounds := 0; count > 0; {
		if err := p.runRound(ctx, questions, interval); err != nil || p.unsettled == 0 {
			return err
		}
		dropped, err := takeDropped(p.socket)
		if err != nil {
			return err
		}
		if dropped == 0 {
			count--
			continue
		}
		if lossyRounds++; lossyRounds > maxLossyRounds {
			return errAnswersLost
		}
	}
	return nil
}

// runRound asks for the addresses for which no station has answered, and reads answers.
func (p *linkProbe) runRound(ctx context.Context, questions []Question, interval time.Duration) error {
	// An address for which any station has answered is not asked for again: one of the nodes
	// would have answered within the whole round that has passed.
	for addr := range maps.Keys(p.answeredBy) {
		p.settle(addr)
	}
	sent := 0
	for _, q := range questions {
		if _, answered := p.answeredBy[q.Addr]; answered {
			continue
		}
		frames, err := q.Frames(p.source)
		if err != nil {
			return err
		}
		p.pending[q.Addr] = q
		for _, frame := range frames {
			if err := p.send(ctx, frame); err != nil {
				return err
			}
		}
		if sent += len(frames); sent >= framesPerBatch {
			sent = 0
			if err := p.readAnswers(ctx, batchInterval); err != nil {
				return err
			}
		}
	}
	if p.unsettled == 0 {
		return nil
	}
	return p.readAnswers(ctx, interval)
}

// send sends a frame as soon as the interface has room for it, and reads answers meanwhile.
func (p *linkProbe) send(ctx context.Context, frame []byte) error {
	for attempt := 1; ; attempt++ {
		err := writeNow(p.socket, frame)
		isFull := errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.EAGAIN)
		if !isFull || attempt > maxSendAttempts {
			return err
		}
		if err := p.readAnswers(ctx, batchInterval); err != nil {
			return err
		}
	}
}

// readAnswers reads answers for a while, or until every address is settled.
func (p *linkProbe) readAnswers(ctx context.Context, wait time.Duration) error {
	return readMessages(ctx, p.socket, time.Now().Add(wait), func(m Message) bool {
		q, isPending := p.pending[m.Addr]
		if isPending && !p.ownMACs[m.MAC] && !slices.Contains(q.IgnoredMACs, m.MAC) {
			p.recordAnswer(q, m.MAC)
		}
		return p.unsettled > 0
	})
}

// recordAnswer records which station has answered. It prefers a node that may have the
// address to any other station, so that no station hides the node by answering faster.
func (p *linkProbe) recordAnswer(q Question, mac MAC) {
	isNode := slices.Contains(q.NodeMACs, mac)
	if _, answered := p.answeredBy[q.Addr]; !answered || isNode {
		p.answeredBy[q.Addr] = mac
	}
	if isNode || len(q.NodeMACs) == 0 {
		p.settle(q.Addr)
	}
}

// settle stops waiting for an answer, or a better one, for an address.
func (p *linkProbe) settle(addr netip.Addr) {
	if _, isPending := p.pending[addr]; isPending {
		delete(p.pending, addr)
		p.unsettled--
	}
}
