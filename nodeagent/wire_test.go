package nodeagent

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
	"github.com/purelb/purelb-operator/nodeagent/link"
	"github.com/purelb/purelb-operator/nodeagent/neigh"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// neighbour is the MAC of the station at the other end of eth0.
var neighbour = neigh.MAC{2, 0, 0, 0, 0, 0xbb}

// soonEnough ends waits for what never comes. How long something takes is measured by
// make bench, not here: other programs may be using the machine.
const soonEnough = slowness * 30 * time.Second

// wire is an agent on a real kernel and a real link, with one neighbour, and what
// that one hears.
type wire struct {
	*world
	neighbour nstest.Neighbour
	socket    *os.File
	stop      func() // stops the agent, and waits

	mu    sync.Mutex
	heard []neigh.Message
	// probed is called with the address of each ARP probe.
	probed func(netip.Addr)
	// leastProbeInterval is how long probes wait for answers at least that the test gives: it may be
	// late on a busy machine.
	leastProbeInterval time.Duration
}

// patientNeighbours are neighbours whose probes wait longer for answers.
type patientNeighbours struct {
	Neighbours
	leastInterval time.Duration
}

// Probe ends as soon as it would with the agent's interval, if all that it needs is answered.
func (p patientNeighbours) Probe(
	ctx context.Context, questions []neigh.Question, count int, interval time.Duration,
) map[netip.Addr]neigh.ProbeResult {
	return p.Neighbours.Probe(ctx, questions, count, max(interval, p.leastInterval))
}

// newWire makes eth0, with an address, and an agent that works there, fresh if
// asked for, until the test ends.
func newWire(t *testing.T, fresh bool, addresses ...purelbv1.AnnouncedAddress) *wire {
	t.Helper()
	return newWireBy(t, plugVeth, fresh, addresses...)
}

// plugPatiently returns plugVeth for an agent whose probes wait at least so long for answers.
func plugPatiently(leastInterval time.Duration) func(*wire) {
	return func(w *wire) {
		w.t.Helper()
		w.leastProbeInterval = leastInterval
		plugVeth(w)
	}
}

// plugVeth makes eth0 of the node and of the neighbour as the two ends of a cable.
func plugVeth(w *wire) {
	w.t.Helper()
	nstest.Run(w.t, "ip link add eth0 address 02:00:00:00:00:aa type veth peer name far address %s", neighbour)
	w.t.Cleanup(func() { nstest.Run(w.t, "ip link del eth0") }) // before the neighbour goes, and the cable with it
	w.neighbour.MoveLink(w.t, "far")
	w.neighbour.Run(w.t, "ip link set far name eth0")
}

// newWireBy is newWire with links that plug makes.
func newWireBy(t *testing.T, plug func(*wire), fresh bool, addresses ...purelbv1.AnnouncedAddress) *wire {
	t.Helper()
	w := &wire{world: newWorld(t, settings(), announcementOf("node1", addresses...)), neighbour: nstest.NewNeighbour(t)}
	plug(w)
	w.neighbour.Run(t, "ip link set eth0 up")
	nstest.Run(t, "ip link set eth0 up")
	nstest.Run(t, "ip addr add 192.0.2.11/24 dev eth0")
	nstest.Run(t, "ip addr add 2001:db8::11/64 dev eth0 nodad")
	w.capture()
	w.start(fresh)
	return w
}

// start starts an agent, as a process does.
func (w *wire) start(fresh bool) {
	w.t.Helper()
	kernel, err := link.Open(nil)
	if err != nil {
		w.t.Fatal(err)
	}
	neighbours, err := neigh.Open()
	if err != nil {
		w.t.Fatal(err)
	}
	w.Kernel, w.Neighbours = kernel, patientNeighbours{neighbours, w.leastProbeInterval}
	w.OpenExchange = func(iface string) (Exchange, error) { return neighbours.OpenExchange(iface) }
	w.prepare()
	agent := w.Agent
	ctx, stop := context.WithCancel(w.t.Context())
	var wait sync.WaitGroup
	wait.Go(func() { _ = agent.defender.Start(ctx) })
	wait.Go(func() { _ = agent.announcer.Start(ctx) })
	wait.Go(func() { _ = agent.watching.Start(ctx) })
	wait.Go(func() { _ = agent.reachability.Start(ctx) })
	wait.Go(func() { _ = agent.reporter.Start(ctx) })
	wait.Go(func() {
		_ = kernel.Watch(ctx, func() { pacing.Signal(agent.wake) })
	})
	renew := func() {
		if fresh {
			agent.freshness.noteRenewed(time.Now())
		}
	}
	renew()
	wait.Go(func() { w.work(ctx) })
	wait.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Second): // to stay fresh
				renew()
				pacing.Signal(agent.wake)
			}
		}
	})
	w.stop = sync.OnceFunc(func() {
		stop()
		wait.Wait()
	})
	w.t.Cleanup(w.stop)
}

// capture notes what the neighbour hears.
func (w *wire) capture() {
	w.t.Helper()
	w.neighbour.Call(w.t, func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		nic, err := interfaceIndex("eth0")
		if err != nil {
			return err
		}
		w.socket = os.NewFile(uintptr(fd), "capture")
		// What is sent for a thousand addresses at once has to fit, also on a busy machine.
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: unix.ETH_P_ALL << 8, Ifindex: nic})
	})
	w.t.Cleanup(func() { _ = w.socket.Close() })
	go func() {
		buffer := make([]byte, 2048)
		for {
			n, err := w.socket.Read(buffer)
			if err != nil {
				return
			}
			w.note(buffer[:n])
		}
	}()
}

func interfaceIndex(name string) (int, error) {
	request, err := unix.NewIfreq(name)
	if err != nil {
		return 0, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(fd) }()
	err = unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, request)
	return int(request.Uint32()), err
}

func (w *wire) note(frame []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if m, err := neigh.ParseMessage(frame); err == nil && m.MAC != neighbour {
		w.heard = append(w.heard, m)
	}
	const arpProbe = 42
	if len(frame) >= arpProbe && frame[12] == 0x08 && frame[13] == 0x06 && frame[21] == 1 &&
		[4]byte(frame[28:]) == [4]byte{} && w.probed != nil {
		w.probed(netip.AddrFrom4([4]byte(frame[38:])))
	}
}

// claims is what the neighbour has heard the node claim of an address.
func (w *wire) claims(address string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, m := range w.heard {
		if m.Addr.String() == address && m.IsGratuitous {
			n++
		}
	}
	return n
}

// claim makes the neighbour claim an address.
func (w *wire) claim(address string) {
	w.t.Helper()
	w.neighbour.Call(w.t, func() error {
		there, err := neigh.Open()
		if err != nil {
			return err
		}
		return there.Announce("eth0", netip.MustParseAddr(address))
	})
}

// has reports whether the node has an address.
func (w *wire) has(address string) bool {
	o, err := w.Kernel.Observe()
	if err != nil {
		w.t.Error(err)
	}
	return slices.ContainsFunc(o.Addresses, func(a plan.Address) bool { return a.Prefix.Addr().String() == address })
}

// within waits until a condition is true, and returns how long that took.
func (w *wire) within(what string, condition func() bool) time.Duration {
	w.t.Helper()
	start := time.Now()
	for !condition() {
		if time.Since(start) > soonEnough {
			w.t.Fatalf("not after %s: %s; states: %s", time.Since(start), what, w.states("node1"))
		}
		time.Sleep(time.Millisecond)
	}
	return time.Since(start)
}

// isAnnounced waits until these addresses are, and no others, and the agent
// listens.
func (w *wire) isAnnounced(addresses ...string) {
	w.t.Helper()
	for _, a := range addresses {
		w.within(a+" is announced", func() bool { return w.claims(a) >= 3 })
	}
	w.within("the states are reported", func() bool {
		return len(w.get("node1").Status.Addresses) > 0 && int(w.get("node1").Status.Announced) == len(addresses)
	})
	time.Sleep(100 * time.Millisecond) // it listens by now
}

// An agent that is not fresh gives way to whoever claims its address and answers for
// it, at once.
func TestWireYield(t *testing.T) {
	if !nstest.RunInOwnNamespace(t) {
		return
	}
	w := newWire(
		t, false, local("192.0.2.1"), local("2001:db8::1", func(a *purelbv1.AnnouncedAddress) { a.PrefixLength = 64 }),
	)
	w.isAnnounced("192.0.2.1", "2001:db8::1")
	for _, address := range []string{"192.0.2.1", "2001:db8::1"} {
		bits := "/24"
		if netip.MustParseAddr(address).Is6() {
			bits = "/64 nodad"
		}
		w.neighbour.Run(t, "ip addr add %s%s dev eth0", address, bits)
		start := time.Now()
		w.claim(address)
		w.within(address+" is gone", func() bool { return !w.has(address) })
		t.Logf("%s: given up after %s", address, time.Since(start))
		if n := w.claims(address); n != 3 {
			t.Errorf("%s was claimed %d times, and not only when it was added", address, n)
		}
	}
	w.within("the states are reported", func() bool {
		return w.states("node1") == "192.0.2.1 Yielded Yielded"+neighbour.String()+", 2001:db8::1 Yielded Yielded"+
			neighbour.String()
	})
	// The address stays yielded, and the agent claims it again when the link is silent.
	time.Sleep(2 * time.Second)
	if w.has("192.0.2.1") || w.has("2001:db8::1") {
		t.Error("claimed again although it is answered for")
	}
	w.neighbour.Run(t, "ip addr flush dev eth0")
	start := time.Now()
	for !w.has("192.0.2.1") || !w.has("2001:db8::1") {
		if time.Since(start) > soonEnough {
			t.Fatalf("not claimed again: %s", w.states("node1"))
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Logf("claimed again after %s of silence", time.Since(start))
}

// A station claims the address of an agent that is not fresh, for a second, and does not
// answer for it: it stays.
func TestAttackWireForgedClaim(t *testing.T) {
	if !nstest.RunInOwnNamespace(t) {
		return
	}
	w := newWire(
		t, false, local("192.0.2.1"), local("2001:db8::1", func(a *purelbv1.AnnouncedAddress) { a.PrefixLength = 64 }),
	)
	w.isAnnounced("192.0.2.1", "2001:db8::1")
	for range 50 {
		for _, address := range []string{"192.0.2.1", "2001:db8::1"} {
			w.claim(address)
			if !w.has(address) {
				t.Fatalf("%s was given up to a claim that nobody answers for", address)
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	w.within("it is reported", func() bool {
		return w.states("node1") == "192.0.2.1 Announced Contested"+neighbour.String()+", 2001:db8::1 Announced Contested"+
			neighbour.String()
	})
}

// A proxying gateway answers before the previous holder, or somebody in nobody's name:
// the node waits for the previous holder.
func TestAttackWireHiddenHolder(t *testing.T) {
	if !nstest.RunInOwnNamespace(t) {
		return
	}
	gateway := neigh.MAC{2, 0, 0, 0, 0, 0xcc}
	from := func(mac neigh.MAC, addr netip.Addr) []byte {
		frame := answer(addr)
		copy(frame[6:], gateway[:])
		copy(frame[22:], mac[:])
		return frame
	}
	for name, first := range map[string]neigh.MAC{"the gateway": gateway, "nobody": {}} {
		t.Run(name, func(t *testing.T) {
			// If a frame is lost, the agent asks again long before the test gives up.
			w := newWireBy(t, plugPatiently(soonEnough/6), true)
			var probes atomic.Int32
			w.mu.Lock()
			w.probed = func(addr netip.Addr) {
				_, _ = w.socket.Write(from(first, addr))
				_, _ = w.socket.Write(from(oldHolder, addr))
				probes.Add(1)
			}
			w.mu.Unlock()
			nstest.Run(t, "ip neigh replace 192.0.2.254 lladdr %s dev eth0", gateway)
			nstest.Run(t, "ip route add default via 192.0.2.254")
			w.edit("node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses = []purelbv1.AnnouncedAddress{local("192.0.2.1")} })
			pacing.Signal(w.wake)
			w.within(
				"it waits", func() bool { return w.states("node1") == "192.0.2.1 Waiting PreviousHolder"+oldHolder.String() },
			)
			before := probes.Load()
			w.within("the agent has probed again", func() bool { return probes.Load() > before+2 })
			if w.has("192.0.2.1") {
				t.Error("it was claimed although its previous holder answers")
			}
		})
	}
}

// A station has the MAC that the network plugin gives to the node's ends of all pods' cables: the
// node hears its answers and its claims.
func TestAttackWirePodMAC(t *testing.T) {
	if !nstest.RunInOwnNamespace(t) {
		return
	}
	const podMAC = "ee:ee:ee:ee:ee:ee"
	w := newWireBy(t, plugPatiently(soonEnough/6), true)
	nstest.Run(t, "ip link add cali1 address %s type veth peer name pod1", podMAC)
	t.Cleanup(func() { nstest.Run(t, "ip link del cali1") })
	nstest.Run(t, "ip link set cali1 up")
	w.neighbour.Run(t, "ip link set eth0 address %s", podMAC)
	w.neighbour.Run(t, "ip addr add 192.0.2.1/24 dev eth0")
	w.edit("node1", func(s *purelbv1.AnnouncementSpec) {
		s.Addresses = []purelbv1.AnnouncedAddress{local("192.0.2.1"), local("192.0.2.2")}
	})
	pacing.Signal(w.wake)
	w.within("it hears the answer", func() bool {
		return w.states("node1") == "192.0.2.1 Conflict Answered"+podMAC+", 192.0.2.2 Announced"
	})
	w.within("it hears the claim", func() bool {
		w.claim("192.0.2.2")
		return strings.HasSuffix(w.states("node1"), "192.0.2.2 Announced Contested"+podMAC)
	})
	if w.has("192.0.2.1") {
		t.Error("the node has claimed an address that the station has")
	}
}

// A second station that has the address is noticed without a word: by asking.
func TestWireSuspect(t *testing.T) {
	if !nstest.RunInOwnNamespace(t) {
		return
	}
	w := newWire(t, false, local("192.0.2.1"))
	w.isAnnounced("192.0.2.1")
	w.neighbour.Run(t, "ip addr add 192.0.2.1/24 dev eth0")
	t.Logf("given up after %s", w.within("the address is gone", func() bool { return !w.has("192.0.2.1") }))
}

// An agent that is fresh defends once, and says who it is.
func TestWireDefend(t *testing.T) {
	if !nstest.RunInOwnNamespace(t) {
		return
	}
	w := newWire(t, true, local("192.0.2.1"))
	w.isAnnounced("192.0.2.1")
	const defendInterval = 10 * time.Second // as package plan has it
	began := time.Now()
	for range 5 {
		w.claim("192.0.2.1")
		time.Sleep(100 * time.Millisecond)
	}
	w.within(
		"it is reported", func() bool { return w.states("node1") == "192.0.2.1 Announced Contested"+neighbour.String() },
	)
	w.within("it is defended", func() bool { return w.claims("192.0.2.1") > 3 })
	n := w.claims("192.0.2.1")
	if most := 3 + 1 + int(time.Since(began)/defendInterval); n > most {
		t.Errorf("claimed %d times in all, want 3 when it was added, and 1 for defence each %s", n, defendInterval)
	}
	if !w.has("192.0.2.1") {
		t.Error("it was given up")
	}
}

// Nothing is said of an address that is renewed, or found by the next agent; and
// one that is stripped is back at once.
func TestWireQuiet(t *testing.T) {
	if !nstest.RunInOwnNamespace(t) {
		return
	}
	w := newWire(t, true)
	w.edit("node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses = []purelbv1.AnnouncedAddress{local("192.0.2.1")} })
	pacing.Signal(w.wake)
	w.isAnnounced("192.0.2.1")
	w.stop()
	w.start(true)
	if err := w.Kernel.Renew(plan.Address{
		Interface: "eth0", Prefix: netip.MustParsePrefix("192.0.2.1/32"), NoPrefixRoute: true, Valid: 20 * time.Second,
		Preferred: 20 * time.Second,
	}); err != nil {
		t.Fatal(err)
	}
	lifetime := func() time.Duration {
		o, _ := w.Kernel.Observe()
		for _, a := range o.Addresses {
			if a.Prefix.Addr().String() == "192.0.2.1" {
				return a.Valid
			}
		}
		return 0
	}
	w.within("it is renewed", func() bool { return lifetime() > 250*time.Second })
	time.Sleep(time.Second)
	if n := w.claims("192.0.2.1"); n != 3 {
		t.Errorf("claimed %d times, want 3 when it was added", n)
	}
	nstest.Run(t, "ip addr del 192.0.2.1/32 dev eth0")
	took := w.within("it is back", func() bool { return w.has("192.0.2.1") })
	t.Logf("stripped and back after %s", took)
}

// Another program removes the node's own address and adds it again: the agent's addresses go
// behind it, so that the node does not send from them. While the node has no address of its own, the
// agent adds none.
func TestWireOwnAddressFirst(t *testing.T) {
	if !nstest.RunInOwnNamespace(t) {
		return
	}
	w := newWire(t, true, local("192.0.2.1"), local("192.0.2.2"))
	w.isAnnounced("192.0.2.1", "192.0.2.2")
	isOwnFirst := func() bool {
		o, err := w.Kernel.Observe()
		if err != nil {
			t.Fatal(err)
		}
		all := slices.DeleteFunc(
			o.Addresses, func(a plan.Address) bool { return a.Interface != "eth0" || a.Prefix.Addr().Is6() },
		)
		return len(all) == 3 && !all[0].IsOurs
	}
	nstest.Run(t, "ip addr del 192.0.2.11/24 dev eth0")
	nstest.Run(t, "ip addr add 192.0.2.11/24 dev eth0")
	t.Logf("the node's own is the first again after %s", w.within("the node's own is the first", isOwnFirst))
	nstest.Run(t, "ip route add default via 203.0.113.254 dev eth0 onlink") // in no subnet of the node's
	if out := nstest.Run(t, "ip route get 198.51.100.9"); !strings.Contains(out, " src 192.0.2.11 ") {
		t.Errorf("the node sends from an address of the agent's: %s", out)
	}
	if n := w.claims("192.0.2.1"); n != 3 {
		t.Errorf("claimed %d times, want 3 when it was added", n)
	}

	nstest.Run(t, "ip -4 addr flush dev eth0")
	w.within("the agent waits", func() bool {
		return w.states("node1") == "192.0.2.1 Pending Lost, 192.0.2.2 Pending Lost"
	})
	if w.has("192.0.2.1") || w.has("192.0.2.2") {
		t.Error("the agent has added an address to an interface without one")
	}
	nstest.Run(t, "ip addr add 192.0.2.11/24 dev eth0")
	w.within("the addresses are back, behind the node's own", isOwnFirst)
}

// Many addresses at once are claimed as one, and announced all.
func TestWireMany(t *testing.T) {
	if !nstest.RunInOwnNamespace(t) {
		return
	}
	const slicesOfNode, each = 10, 100
	w := newWire(t, true)
	w.stop()
	for s := range slicesOfNode {
		ann := announcementOf(fmt.Sprintf("node1-%d", s))
		for i := range each {
			ann.Spec.Addresses = append(ann.Spec.Addresses, local(fmt.Sprintf("198.18.%d.%d", s, i+1)))
		}
		if err := w.Client.Create(t.Context(), ann); err != nil {
			t.Fatal(err)
		}
	}
	start := time.Now()
	w.start(true)
	announced := func() (n int) {
		for _, ann := range w.list() {
			n += int(ann.Status.Announced)
		}
		return n
	}
	claimed := func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		all := map[netip.Addr]bool{}
		for _, m := range w.heard {
			all[m.Addr] = true
		}
		return len(all)
	}
	for announced() < slicesOfNode*each || claimed() < slicesOfNode*each {
		if time.Since(start) > soonEnough {
			t.Fatalf("after %s: %d reported, %d claimed", time.Since(start), announced(), claimed())
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Logf("%d addresses after %s", slicesOfNode*each, time.Since(start))
	start = time.Now()
	nstest.Run(t, "ip addr flush dev eth0 to 198.18.0.0/15")
	for {
		o, err := w.Kernel.Observe()
		if err != nil {
			t.Fatal(err)
		}
		if len(o.Addresses) > slicesOfNode*each {
			break
		}
		if time.Since(start) > soonEnough {
			t.Fatalf("after %s there are %d", time.Since(start), len(o.Addresses))
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Logf("stripped, they are back after %s", time.Since(start))
}

// A gateway that answers for every address is nobody; another that does is named.
func TestWireProxy(t *testing.T) {
	if !nstest.RunInOwnNamespace(t) {
		return
	}
	for name, c := range map[string]struct {
		gateway, want string
		leastInterval time.Duration
	}{
		"the gateway":     {neighbour.String(), "192.0.2.1 Announced", 0}, // no answer counts
		"another station": {"02:00:00:00:00:cc", "192.0.2.1 Conflict Answered" + neighbour.String(), 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWireBy(t, plugPatiently(c.leastInterval), true)
			w.mu.Lock()
			w.probed = func(addr netip.Addr) { _, _ = w.socket.Write(answer(addr)) }
			w.mu.Unlock()
			nstest.Run(t, "ip neigh replace 192.0.2.254 lladdr %s dev eth0", c.gateway)
			nstest.Run(t, "ip route add default via 192.0.2.254")
			w.edit("node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses = []purelbv1.AnnouncedAddress{local("192.0.2.1")} })
			pacing.Signal(w.wake)
			w.within("the state is "+c.want, func() bool { return w.states("node1") == c.want })
			// It stays so.
			time.Sleep(2 * plan.ReprobeInterval)
			w.expect("state", c.want, w.states("node1"))
		})
	}
}

// answer is the neighbour's answer to an ARP probe.
func answer(addr netip.Addr) []byte {
	frame := append([]byte{2, 0, 0, 0, 0, 0xaa}, neighbour[:]...)
	frame = append(frame, 0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 2)
	frame = append(append(frame, neighbour[:]...), addr.AsSlice()...)
	return append(frame, 2, 0, 0, 0, 0, 0xaa, 0, 0, 0, 0)
}
