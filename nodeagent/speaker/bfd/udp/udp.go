package udp

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"

	"github.com/purelb/purelb-operator/nodeagent/speaker/bfd"
)

const (
	// niceness is the nice value of the thread where it may have one: that of the kernel's own threads
	// which must not wait.
	niceness = -20
	// maxPackets is how many packets of a socket are taken in one round: more than a socket keeps.
	maxPackets = 1024
	// retryInterval is how soon a socket that could not be opened is tried again.
	retryInterval = time.Second
	// lingerTime is how long sessions go on at the end. The sessions of BGP have just been closed, which
	// neighbours that support graceful restart have to notice first: BFD that ends before is a failure to them.
	lingerTime = 500 * time.Millisecond
	// stopPackets is how many packets say that a session ends as planned: one may be lost.
	stopPackets = 3
)

// BFD is the sessions of the node.
type BFD struct {
	log logr.Logger
	// changed is called when the state of a session has changed, and failed when a session has failed:
	// both from the goroutine that owns the sessions, which waits for them.
	changed func()
	failed  func(neighbour netip.Addr)

	// ended is closed when all is over.
	ended chan struct{}

	// mu protects what other goroutines want and ask, and wake, an eventfd, until it is closed.
	mu     sync.Mutex
	wake   int
	wanted map[netip.Addr]bfd.NeighbourSettings
	states map[netip.Addr]bfd.State

	// What follows belongs to the one goroutine. All of it is lost with the process.
	sessions map[netip.Addr]*session
	// listeners are the sockets that receive, of IPv4 and of IPv6.
	listeners [2]listener
	buffer    [512]byte
	control   [256]byte
}

// session is the session with one neighbour.
type session struct {
	*bfd.Session
	settings bfd.NeighbourSettings
	out      sender
}

// Start begins without a session. When ctx ends, neighbours hear soon that the sessions end as planned, and
// Wait returns.
func Start(ctx context.Context, log logr.Logger, changed func(), failed func(neighbour netip.Addr)) (*BFD, error) {
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("make an eventfd: %w", err)
	}
	b := &BFD{
		log: log, changed: changed, failed: failed, wake: wake, ended: make(chan struct{}),
		wanted: map[netip.Addr]bfd.NeighbourSettings{}, states: map[netip.Addr]bfd.State{},
		sessions:  map[netip.Addr]*session{},
		listeners: [2]listener{{fd: noDescriptor}, {fd: noDescriptor, is6: true}},
	}
	stopWaking := context.AfterFunc(ctx, b.signal)
	go func() {
		defer close(b.ended)
		defer stopWaking()
		b.run(ctx)
	}()
	return b, nil
}

// Wait returns when the sessions have ended.
func (b *BFD) Wait() { <-b.ended }

// Sync makes the sessions those with these neighbours: others end, as planned, and those whose settings
// differ stay up. Link-local neighbours have a zone, which is the name of the interface.
func (b *BFD) Sync(wanted map[netip.Addr]bfd.NeighbourSettings) {
	b.mu.Lock()
	b.wanted = maps.Clone(wanted)
	b.mu.Unlock()
	b.signal()
}

// State returns the state of the session with a neighbour: Down if it has not begun yet.
func (b *BFD) State(neighbour netip.Addr) bfd.State {
	b.mu.Lock()
	defer b.mu.Unlock()
	if state, known := b.states[neighbour]; known {
		return state
	}
	return bfd.Down
}

// signal wakes the goroutine.
func (b *BFD) signal() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.wake != noDescriptor {
		_, _ = unix.Write(b.wake, binary.NativeEndian.AppendUint64(nil, 1)) // it fails if it is signalled already
	}
}

// run is the goroutine.
func (b *BFD) run(ctx context.Context) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer b.prioritise()()
	var end time.Time
	for {
		if ctx.Err() != nil && end.IsZero() {
			end = time.Now().Add(lingerTime)
		}
		b.syncSessions()
		if !end.IsZero() && (len(b.sessions) == 0 || !time.Now().Before(end)) {
			break
		}
		b.wait(end)
		now := time.Now() // what came until now is taken first, however long that lasts
		b.receive()
		for neighbour, s := range b.sessions {
			b.apply(neighbour, s, s.Advance(now))
		}
	}
	for _, s := range b.sessions {
		b.end(s)
	}
	for i := range b.listeners {
		b.listeners[i].close()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	_ = unix.Close(b.wake)
	b.wake, b.states = noDescriptor, nil
}

// prioritise lowers the nice value of the calling thread, if it may, and returns what restores it.
func (b *BFD) prioritise() (restore func()) {
	const callingThread = 0
	before, err := unix.Getpriority(unix.PRIO_PROCESS, callingThread)
	if err == nil {
		err = unix.Setpriority(unix.PRIO_PROCESS, callingThread, niceness)
	}
	if err != nil {
		b.log.V(1).Info("BFD has no priority over other threads", "error", err.Error())
		return func() {}
	}
	return func() {
		_ = unix.Setpriority(unix.PRIO_PROCESS, callingThread, 20-before) // the system call returns 20 minus the nice value
	}
}

// syncSessions begins and ends sessions, changes settings, and listens where there are sessions.
func (b *BFD) syncSessions() {
	b.mu.Lock()
	wanted := b.wanted
	for neighbour, s := range b.sessions {
		// Another source address is another session for the neighbour.
		if settings, stays := wanted[neighbour]; !stays || settings.Source != s.settings.Source {
			b.end(s)
			delete(b.sessions, neighbour)
			delete(b.states, neighbour)
		}
	}
	b.mu.Unlock()
	needs := [2]bool{}
	for neighbour, settings := range wanted {
		needs[familyIndex(neighbour)] = true
		s, exists := b.sessions[neighbour]
		switch {
		case !exists:
			b.sessions[neighbour] = b.begin(neighbour, settings)
		case s.settings != settings:
			s.settings = settings
			s.Set(settings.Settings)
		}
	}
	for i := range b.listeners {
		l := &b.listeners[i]
		if !needs[i] {
			l.close()
			continue
		}
		if err := l.open(time.Now()); err != nil {
			b.log.Error(err, "BFD does not hear its neighbours")
		}
	}
}

// begin makes a session.
func (b *BFD) begin(neighbour netip.Addr, settings bfd.NeighbourSettings) *session {
	number := make([]byte, 4)
	isFree := func(n uint32) bool {
		for _, s := range b.sessions {
			if s.Discriminator() == n {
				return false
			}
		}
		return n != 0
	}
	for {
		_, _ = rand.Read(number) // it never fails
		if n := binary.NativeEndian.Uint32(number); isFree(n) {
			return &session{
				Session:  bfd.New(settings.Settings, n, mathrand.Float64),
				settings: settings, out: sender{neighbour: neighbour, source: settings.Source, fd: noDescriptor},
			}
		}
	}
}

// end tells the neighbour that a session ends as planned. A neighbour that hears none of the packets takes the silence
// for a failure.
func (b *BFD) end(s *session) {
	packet := s.Stop()
	for range stopPackets {
		_ = s.out.send(packet)
	}
	s.out.close()
}

// wait returns when a packet has come, a deadline is over, or somebody has signalled; at the end, if that is
// not zero.
func (b *BFD) wait(end time.Time) {
	next := end
	sooner := func(at time.Time) {
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	for _, s := range b.sessions {
		sooner(s.Deadline())
	}
	files := []unix.PollFd{{Fd: int32(b.wake), Events: unix.POLLIN}} //nolint:gosec // a file descriptor
	for _, l := range b.listeners {
		if l.fd != noDescriptor {
			files = append(files, unix.PollFd{Fd: int32(l.fd), Events: unix.POLLIN}) //nolint:gosec // a file descriptor
		}
		sooner(l.retryAt)
	}
	var timeout *unix.Timespec
	if !next.IsZero() {
		left := unix.NsecToTimespec(max(0, time.Until(next)).Nanoseconds())
		timeout = &left
	}
	// An error is a signal of the runtime's: the next round waits again.
	_, _ = unix.Ppoll(files, timeout, nil)
	_, _ = unix.Read(b.wake, b.buffer[:8])
}

// receive takes the packets that have come.
func (b *BFD) receive() {
	for i := range b.listeners {
		l := &b.listeners[i]
		for range maxPackets {
			if l.fd == noDescriptor {
				break
			}
			from, ttl, n, err := l.receive(b.buffer[:], b.control[:])
			if errors.Is(err, unix.EAGAIN) {
				break
			}
			packet, parseErr := bfd.Parse(b.buffer[:n], ttl)
			if err != nil || parseErr != nil {
				continue
			}
			neighbour := b.neighbourAt(l, from)
			if s, known := b.sessions[neighbour]; known {
				b.apply(neighbour, s, s.Receive(packet, time.Now()))
			}
		}
	}
}

// neighbourAt returns the neighbour with an address, and the name of its interface as the zone if the
// address is link-local. Interfaces may be renamed and made anew: what they are called is asked each time.
func (b *BFD) neighbourAt(l *listener, from source) netip.Addr {
	if !from.addr.IsLinkLocalUnicast() || from.addr.Is4() {
		return from.addr
	}
	for neighbour := range b.sessions {
		if neighbour.WithZone("") != from.addr {
			continue
		}
		if index, err := interfaceIndex(l.fd, neighbour.Zone()); err == nil && index == from.index {
			return neighbour
		}
	}
	return from.addr
}

// apply does what a session wants.
func (b *BFD) apply(neighbour netip.Addr, s *session, o bfd.Outcome) {
	if o.Send != nil {
		if err := s.out.send(*o.Send); s.out.noteSent(err) {
			b.log.Error(err, "BFD cannot send to a neighbour", "neighbour", neighbour.String())
		}
	}
	if !o.HasChanged {
		return
	}
	state := s.State()
	b.mu.Lock()
	before := cmp.Or(b.states[neighbour], bfd.Down)
	b.states[neighbour] = state
	b.mu.Unlock()
	if state == bfd.Up || before == bfd.Up {
		b.log.Info("BFD session changes", "neighbour", neighbour.String(), "from", before.String(), "to", state.String(),
			"because", s.Diagnostic().String(), "hasFailed", o.HasFailed)
	}
	if o.HasFailed {
		b.failed(neighbour)
	}
	b.changed()
}
