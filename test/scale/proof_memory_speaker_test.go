//go:build proof

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	nodeagents "github.com/purelb/purelb-operator/controllers/agents"
	"github.com/purelb/purelb-operator/controllers/routing"
	"github.com/purelb/purelb-operator/nodeagent/link"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// The worst that may be done to the speaker of a node.
const (
	rangesPerGroup  = 131
	sentRoutes      = 1_000_000 // of each family, by each neighbour
	pathLength      = 5         // autonomous systems on the way of these routes
	sentCommunities = 10        // of each of these routes
	changingRoutes  = 500       // come and go while neighbours do not read
	// divided by the networks: so often these routes come and go, as the kernel lists all for each
	allChanges  = 50_000
	holdSeconds = 9
)

// TestProofMemorySpeakerOfManyNeighbours and TestProofMemorySpeakerOfManyNetworks give a speaker as many
// neighbours, or as much to advertise, as a node can have. Some neighbours read nothing, and all of them
// send a full table. The speaker is killed meanwhile. It needs less than the memory of its container all
// the time.
func TestProofMemorySpeakerOfManyNeighbours(t *testing.T) {
	makeTrials(t, func(t *testing.T, random *rand.Rand) { trySpeaker(t, random, v1.MaxRoutingPeers, 1000) })
}

func TestProofMemorySpeakerOfManyNetworks(t *testing.T) {
	makeTrials(t, func(t *testing.T, random *rand.Rand) { trySpeaker(t, random, 4, nodeAddresses) })
}

// speakerPath returns the path of purelb-speaker, which was built before the tests.
func speakerPath(t *testing.T) string {
	t.Helper()
	path := os.Getenv("PURELB_SPEAKER")
	if path == "" {
		t.Fatal("PURELB_SPEAKER is not set: run make proof-memory, which builds the program and says where it is")
	}
	return path
}

// speakerTrial is a speaker of which its node, its neighbours and clients want more and more.
type speakerTrial struct {
	*nodeProgram
	cluster     *cluster
	kernel      *link.Netlink
	nodeRouting *v1.NodeRouting
	routers     []*router
	addresses   []netip.Addr
	// stopReaders ends those who read metrics, and returns how often they did. stopStalls ends the clients that stall.
	stopReaders func() int
	stopStalls  []func()
}

// speakerSteps are the steps of a trial with so many neighbours and networks.
func speakerSteps(neighbours, networks int) []trialStep[*speakerTrial] {
	changes := allChanges / networks
	return []trialStep[*speakerTrial]{
		{"10 networks, no neighbour", func(t *testing.T, s *speakerTrial, name string) { s.await(t, name, 0, 10) }},
		{
			fmt.Sprintf(
				"%d networks, %d neighbours, %d groups with %d ranges each", networks, neighbours, v1.MaxRoutingGroups,
				rangesPerGroup,
			),
			func(t *testing.T, s *speakerTrial, name string) {
				before := s.nodeRouting.DeepCopy()
				s.nodeRouting.Spec.Peers, s.nodeRouting.Spec.Groups = greatestRouting(s.routers)
				if err := s.cluster.admin.Patch(t.Context(), s.nodeRouting, client.MergeFrom(before)); err != nil {
					t.Fatal(err)
				}
				change(t, s.addresses[10:], s.kernel.Add)
				s.awaitAll(t, name)
				s.awaitRouters(t, "the neighbours have all routes", func(r *router) bool { return r.updates.Load() > 0 })
			},
		},
		{
			fmt.Sprintf("%d clients that stall at each server, and %d that read metrics", slowClients, metricsReaders),
			func(t *testing.T, s *speakerTrial, name string) {
				s.stopReaders = s.readMetrics(t, s.cluster, "127.0.0.1:7474")
				s.stopStalls = []func(){
					stall(t.Context(), "127.0.0.1:7474", true, stalledRequest()),
					stall(t.Context(), "127.0.0.1:7475", false, stalledRequest()),
				}
				s.awaitAll(t, name)
			},
		},
		{
			fmt.Sprintf("half of the neighbours read nothing, while %d routes come and go %d times", changingRoutes, changes),
			func(t *testing.T, s *speakerTrial, _ string) {
				for _, r := range s.routers[:neighbours/2] {
					r.become(readsNothing)
				}
				for range changes {
					change(t, s.addresses[:changingRoutes], s.kernel.Remove)
					change(t, s.addresses[:changingRoutes], s.kernel.Add)
				}
			},
		},
		{
			fmt.Sprintf("each neighbour sends %d routes of each family", sentRoutes),
			func(t *testing.T, s *speakerTrial, name string) {
				s.setAll(sendsTable)
				s.awaitFloods(t, name)
			},
		},
		{"killed, with all of that", func(t *testing.T, s *speakerTrial, name string) {
			s.kill(t)
			s.start(t)
			for _, r := range s.routers {
				r.floods.Store(0)
			}
			s.awaitFloods(t, name)
		}},
		{"in the end", func(t *testing.T, s *speakerTrial, name string) {
			for _, stop := range s.stopStalls {
				stop()
			}
			if read := s.stopReaders(); read == 0 {
				t.Error("nobody has read the metrics")
			}
			s.setAll(reads)
			s.awaitAll(t, name)
		}},
	}
}

func trySpeaker(t *testing.T, random *rand.Rand, neighbours, networks int) {
	c, settings, folder := startNode(t)
	s := &speakerTrial{cluster: c, routers: make([]*router, neighbours), addresses: virtualAddresses(networks)}
	for i := range s.routers {
		s.routers[i] = startRouter(t, i, random)
	}
	var err error
	if s.kernel, err = link.Open(nil); err != nil {
		t.Fatal(err)
	}
	if _, err := s.kernel.EnsureVirtual("kube-lb0"); err != nil {
		t.Fatal(err)
	}
	change(t, s.addresses[:10], s.kernel.Add)
	s.nodeRouting = &v1.NodeRouting{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: nodeName(0)},
		Spec: v1.NodeRoutingSpec{
			NodeName: nodeName(0), LBNodeAgent: lbNodeAgent, Interface: "kube-lb0", RouterID: "10.80.0.1",
		}}
	create(t, c, s.nodeRouting)
	s.nodeProgram = newNodeProgram(
		t, c, "purelb-speaker", speakerPath(t), folder,
		routing.SpeakerDaemonSet(settings, nodeagents.Defaults{}, "").Spec.Template.Spec.Containers[0],
	)
	s.start(t)
	for _, step := range speakerSteps(neighbours, networks) {
		step.do(t, s, step.name)
		s.check(t, step.name)
	}
}

// change changes addresses of the virtual interface.
func change(t *testing.T, addresses []netip.Addr, do func(plan.Address) error) {
	t.Helper()
	for _, addr := range addresses {
		err := do(plan.Address{
			Interface: "kube-lb0", Prefix: netip.PrefixFrom(addr, addr.BitLen()), Valid: plan.Forever, Preferred: plan.Forever,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// await waits until the speaker reports so many sessions and networks.
func (s *speakerTrial) await(t *testing.T, when string, established, networks int32) {
	t.Helper()
	wait(t, fmt.Sprintf("the speaker has %d sessions and %d networks: %s", established, networks, when),
		func() (bool, error) {
			now := &v1.NodeRouting{}
			err := s.cluster.admin.Get(t.Context(), client.ObjectKeyFromObject(s.nodeRouting), now)
			return now.Status.Established == established && now.Status.Networks == networks, err
		})
}

// awaitAll waits until the speaker reports all sessions and networks.
func (s *speakerTrial) awaitAll(t *testing.T, when string) {
	t.Helper()
	s.await(t, when, int32(len(s.routers)), int32(len(s.addresses)))
}

// awaitRouters waits until something is so of each neighbour.
func (s *speakerTrial) awaitRouters(t *testing.T, what string, isSo func(*router) bool) {
	t.Helper()
	wait(t, what, func() (bool, error) {
		return !slices.ContainsFunc(s.routers, func(r *router) bool { return !isSo(r) }), nil
	})
}

func (s *speakerTrial) awaitFloods(t *testing.T, when string) {
	t.Helper()
	s.awaitRouters(
		t, "each neighbour has sent until the session was ended: "+when, func(r *router) bool { return r.floods.Load() > 0 },
	)
}

func (s *speakerTrial) setAll(mode routerMode) {
	for _, r := range s.routers {
		r.become(mode)
	}
}

// greatestRouting returns as many neighbours and groups as a NodeRouting may have, the groups with all
// that they may say.
func greatestRouting(routers []*router) ([]v1.RoutingPeer, []v1.RoutingGroup) {
	var peers []v1.RoutingPeer
	for _, r := range routers {
		peers = append(peers, v1.RoutingPeer{
			Name: r.name, Address: r.address.String(), PeerASN: routerASN, MyASN: 65001, Port: 179, Families: []v1.IPFamily{
				"IPv4", "IPv6",
			},
			NextHop: "2001:db8::1", HoldSeconds: holdSeconds, KeepaliveSeconds: holdSeconds / 3, ConnectSeconds: 1,
			RestartSeconds: 30,
		})
	}
	var groups []v1.RoutingGroup
	for g := range v1.MaxRoutingGroups {
		group := v1.RoutingGroup{Name: fmt.Sprintf("%s%03d", strings.Repeat("g", 250), g),
			ServiceGroupBGP: v1.ServiceGroupBGP{
				Advertise: ptr.To(true), LocalPref: ptr.To[int64](100), MED: ptr.To[int64](100), Prepend: 16,
			}}
		// Ranges of two addresses each, of both families by turns: those of all groups hold the node's.
		for r := range rangesPerGroup {
			first, last := uint32(2*(g*(rangesPerGroup/2+1)+r/2)), uint32(2*(g*(rangesPerGroup/2+1)+r/2)+1)
			address := virtualIPv4
			if r%2 == 1 {
				address = virtualIPv6
			}
			group.Ranges = append(group.Ranges, fmt.Sprintf("%s-%s", address(first), address(last)))
		}
		for i := range 32 {
			group.Communities = append(group.Communities, v1.Community(fmt.Sprintf("%d:%d", 65001+g, i)))
			group.LargeCommunities = append(
				group.LargeCommunities, v1.LargeCommunity(fmt.Sprintf("%d:%d:%d", 4200000000+g, g, i)),
			)
			if i < len(routers)-1 {
				group.Peers = append(group.Peers, routers[i].name)
			}
		}
		groups = append(groups, group)
	}
	return peers, groups
}

// virtualIPv4 and virtualIPv6 return addresses of the subnets of virtualAddresses.
func virtualIPv4(number uint32) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 200, byte(number >> 8), byte(number)})
}

func virtualIPv6(number uint32) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf("2001:db8:200::%x", number))
}

const routerASN = 65000

// routerMode is how a router treats its sessions.
type routerMode int32

const (
	// reads everything that the speaker sends.
	reads routerMode = iota
	// readsNothing after the session is up, so that the speaker can send no more than the buffers
	// of the connection hold. It goes on to send keepalives.
	readsNothing
	// sendsTable sends sentRoutes of each family, by turns, until the speaker ends the session.
	sendsTable
)

// router is a BGP neighbour of the speaker.
type router struct {
	name    string
	address netip.Addr
	mode    atomic.Int32
	updates atomic.Int64 // that it has read
	floods  atomic.Int64 // sessions that ended while it sent its table

	mu   sync.Mutex
	conn net.Conn // of the present session
}

// startRouter starts a router with a number, which works until the test ends.
func startRouter(t *testing.T, number int, random *rand.Rand) *router {
	t.Helper()
	r := &router{
		name:    fmt.Sprintf("%s%02d", strings.Repeat("r", 60), number),
		address: netip.AddrFrom4([4]byte{10, 90, 0, byte(1 + number)}),
	}
	ip(t, "addr add %s/32 dev lo", r.address)
	listener, err := net.Listen("tcp", netip.AddrPortFrom(r.address, 179).String())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	random = rand.New(rand.NewPCG(random.Uint64(), 0))
	var sessions sync.WaitGroup
	sessions.Go(func() {
		for ctx.Err() == nil {
			if conn, err := listener.Accept(); err == nil {
				_ = r.serve(ctx, conn, random)
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = listener.Close()
		r.become(reads)
		sessions.Wait()
	})
	return r
}

// become changes the mode, and ends the session.
func (r *router) become(mode routerMode) {
	r.mode.Store(int32(mode))
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conn != nil {
		_ = r.conn.Close()
	}
}

// serve has one session.
func (r *router) serve(ctx context.Context, conn net.Conn, random *rand.Rand) error {
	r.mu.Lock()
	r.conn = conn
	r.mu.Unlock()
	defer conn.Close()
	mode := routerMode(r.mode.Load())
	if tcp, ok := conn.(*net.TCPConn); ok && mode == readsNothing {
		_ = tcp.SetReadBuffer(4096)
	}
	if _, err := readMessage(conn); err != nil { // OPEN
		return err
	}
	if _, err := conn.Write(append(openMessage(r.address), message(typeKeepalive, nil)...)); err != nil {
		return err
	}
	kind, err := readMessage(conn)
	if err != nil || kind != typeKeepalive {
		return errors.Join(err, errors.New("the session is not up"))
	}
	var sending sync.Mutex // a message is written as a whole
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer conn.Close()
	defer cancel()
	work.Go(func() {
		for tick := time.NewTicker(holdSeconds * time.Second / 3); ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				sending.Lock()
				_, err := conn.Write(message(typeKeepalive, nil))
				sending.Unlock()
				if err != nil { // the speaker has ended the session
					_ = conn.Close()
				}
			}
		}
	})
	switch mode {
	case readsNothing:
		for {
			if _, err := conn.Write(nil); err != nil || ctx.Err() != nil || routerMode(r.mode.Load()) != readsNothing {
				return err
			}
			time.Sleep(time.Second / 10)
		}
	case sendsTable:
		work.Go(func() { _, _ = io.Copy(io.Discard, conn) })
		defer r.floods.Add(1)
		for i := range uint32(sentRoutes) {
			for _, update := range [][]byte{updateIPv4(r.address, i, random), updateIPv6(i, random)} {
				sending.Lock()
				_, err := conn.Write(update)
				sending.Unlock()
				if err != nil {
					return err
				}
			}
		}
		return nil
	case reads:
	}
	for {
		kind, err := readMessage(conn)
		if err != nil {
			return err
		}
		if kind == typeUpdate {
			r.updates.Add(1)
		}
	}
}

// The types of BGP messages (RFC 4271 section 4.1).
const (
	typeOpen      = 1
	typeUpdate    = 2
	typeKeepalive = 4
)

// readMessage reads a BGP message, and returns its type.
func readMessage(conn net.Conn) (byte, error) {
	header := make([]byte, 19)
	if _, err := io.ReadFull(conn, header); err != nil {
		return 0, err
	}
	_, err := io.CopyN(io.Discard, conn, int64(binary.BigEndian.Uint16(header[16:]))-19)
	return header[18], err
}

// message builds a BGP message (RFC 4271 section 4.1).
func message(kind byte, body []byte) []byte {
	m := make([]byte, 16, 19+len(body))
	for i := range m {
		m[i] = 0xff
	}
	m = binary.BigEndian.AppendUint16(m, uint16(19+len(body)))
	return append(append(m, kind), body...)
}

// openMessage builds an OPEN with the capabilities for both families and long numbers of autonomous
// systems (RFC 4760, RFC 6793).
func openMessage(id netip.Addr) []byte {
	capabilities := []byte{1, 4, 0, 1, 0, 1, 1, 4, 0, 2, 0, 1, 65, 4, 0, 0, routerASN >> 8, routerASN & 0xff}
	body := []byte{4, routerASN >> 8, routerASN & 0xff, 0, holdSeconds}
	body = append(body, id.AsSlice()...)
	body = append(body, byte(2+len(capabilities)), 2, byte(len(capabilities)))
	return message(typeOpen, append(body, capabilities...))
}

// updateIPv4 builds an UPDATE with one route.
func updateIPv4(hop netip.Addr, number uint32, random *rand.Rand) []byte {
	attributes := append(commonAttributes(random), 0x40, 3, 4) // NEXT_HOP
	attributes = append(attributes, hop.AsSlice()...)
	return update(attributes, []byte{24, 20 + byte(number>>16), byte(number >> 8), byte(number)})
}

// updateIPv6 builds an UPDATE with one route (RFC 4760 section 3).
func updateIPv6(number uint32, random *rand.Rand) []byte {
	reach := []byte{0, 2, 1, 16}
	hop := netip.MustParseAddr("2001:db8::fe").As16()
	reach = append(
		append(reach, hop[:]...), 0, 48, 0x20, 0x01, 0x10+byte(number>>24), byte(number>>16), byte(number>>8), byte(number),
	)
	return update(append(append(commonAttributes(random), 0x80, 14, byte(len(reach))), reach...), nil)
}

// commonAttributes builds ORIGIN, AS_PATH and COMMUNITIES, which differ from route to route.
func commonAttributes(random *rand.Rand) []byte {
	attributes := []byte{0x40, 1, 1, 0, 0x40, 2, 2 + 4*pathLength, 2, pathLength}
	attributes = binary.BigEndian.AppendUint32(attributes, routerASN)
	for range pathLength - 1 {
		attributes = binary.BigEndian.AppendUint32(attributes, 1000+random.Uint32N(60_000))
	}
	attributes = append(attributes, 0xc0, 8, 4*sentCommunities)
	for range sentCommunities {
		attributes = binary.BigEndian.AppendUint32(attributes, routerASN<<16|random.Uint32N(1<<16))
	}
	return attributes
}

func update(attributes, reachable []byte) []byte {
	body := binary.BigEndian.AppendUint16([]byte{0, 0}, uint16(len(attributes)))
	return message(typeUpdate, append(append(body, attributes...), reachable...))
}
