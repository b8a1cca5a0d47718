//go:build !routers

package gobgp

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/speaker/routes"
)

// Types of BGP messages (RFC 4271, RFC 2918).
const (
	openMessage, updateMessage, keepaliveMessage, refreshMessage = 1, 2, 4, 5
)

// rawMessage is a BGP message of any type and content.
func rawMessage(kind byte, body ...byte) []byte {
	length := 19 + len(body)
	return append(append(slices.Repeat([]byte{0xff}, 16), byte(length>>8), byte(length), kind), body...)
}

// rawOpen is an OPEN of a router in routerASN that knows IPv4 and requests to send all again.
func rawOpen(holdSeconds byte) []byte {
	return rawMessage(
		openMessage, 4, routerASN>>8, routerASN&0xff, 0, holdSeconds, 192, 0, 2, 3, // version, AS, hold time, identifier
		10, 2, 8, 1, 4, 0, 1, 0, 1, 2, 0, // capabilities
	)
}

// rawUpdate is an UPDATE with attributes and prefixes, each as it is in the message.
func rawUpdate(attributes []byte, prefixes ...byte) []byte {
	body := append([]byte{0, 0, byte(len(attributes) >> 8), byte(len(attributes))}, attributes...)
	return rawMessage(updateMessage, append(body, prefixes...)...)
}

// plain are the attributes that an IPv4 route has to have: origin, path and next hop.
var plain = []byte{
	0x40, 1, 1, 0, 0x40, 2, 4, 2, 1, routerASN >> 8, routerASN & 0xff, 0x40, 3, 4, 192, 0, 2, 3,
}

// hostileRouter is a router that means harm, in one way.
type hostileRouter struct {
	name string
	// first is what it sends at first, and holdSeconds the hold time of its OPEN if first is empty.
	first       []byte
	holdSeconds byte
	// rest is what it sends then, so many times. It then ends the connection, or waits until the node does.
	rest  []byte
	times int
	ends  bool
	// readsNone is that it reads nothing, and sends keepalives in the end.
	readsNone bool
	// isDone is that the node has met it: the node has connected so often, has been sent all so often, and says this
	// of the session.
	isDone func(connected, sentAll int32, session routes.Session) bool

	connected, sentAll atomic.Int32
}

// serve plays the router on a connection.
func (h *hostileRouter) serve(conn net.Conn) {
	defer conn.Close()
	h.connected.Add(1)
	if h.readsNone {
		_ = conn.(*net.TCPConn).SetReadBuffer(4096)
	}
	first := h.first
	if len(first) == 0 {
		first = append(rawOpen(h.holdSeconds), rawMessage(keepaliveMessage)...)
	}
	if _, err := conn.Write(first); err != nil {
		return
	}
	ended := make(chan struct{})
	if !h.readsNone {
		go func() {
			defer close(ended)
			_, _ = io.Copy(io.Discard, conn)
		}()
	}
	for range h.times {
		if _, err := conn.Write(h.rest); err != nil {
			return
		}
	}
	h.sentAll.Add(1)
	switch {
	case h.ends:
	case h.readsNone:
		for ; ; time.Sleep(time.Second) { // it stays alive by its keepalives
			if _, err := conn.Write(rawMessage(keepaliveMessage)); err != nil {
				return
			}
		}
	default:
		<-ended
	}
}

// start listens at an address of the loopback interface, and returns the router as a neighbour.
func (h *hostileRouter) start(t *testing.T, address string) routes.Peer {
	t.Helper()
	listener, err := net.Listen("tcp4", address+":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go h.serve(conn)
		}
	}()
	return routes.Peer{Neighbour: netip.MustParseAddr(address), RoutingPeer: purelbv1.RoutingPeer{
		Name: h.name, Address: address, SourceAddress: nodeAddress, PeerASN: routerASN, MyASN: nodeASN,
		Port: int32(listener.Addr().(*net.TCPAddr).Port), Families: []purelbv1.IPFamily{"IPv4"}, HoldSeconds: 90,
		KeepaliveSeconds: 30, ConnectSeconds: 1,
	}}
}

// hostileRouters are one for each way in which a router may harm a node.
func hostileRouters() []*hostileRouter {
	again := func(connected, _ int32, _ routes.Session) bool { return connected >= 3 }
	says := func(text string) func(int32, int32, routes.Session) bool {
		return func(_, _ int32, s routes.Session) bool { return strings.Contains(s.LastError, text) }
	}
	var table []byte // 300,000 routes, a thousand in each message
	for block := range 300 {
		var prefixes []byte
		for i := range 1000 {
			n := block*1000 + i
			prefixes = append(prefixes, 24, byte(10+n>>16), byte(n>>8), byte(n))
		}
		table = append(table, rawUpdate(plain, prefixes...)...)
	}
	routers := []*hostileRouter{
		{name: "sends a full table", rest: table, times: 1, holdSeconds: 90, isDone: says("more than its share")},
		{
			name: "asks for all again without end", rest: rawMessage(refreshMessage, 0, 1, 0, 1), times: 100_000,
			holdSeconds: 90, isDone: func(_, sentAll int32, s routes.Session) bool {
				return sentAll > 0 || s.LastError == errorOfRefreshes // by how fast the node takes them
			},
		},
		{
			// The node takes what it may keep for the router, maxUnread, or the hold time ends the session before.
			name: "asks for all again, and reads nothing", rest: rawMessage(refreshMessage, 0, 1, 0, 1), times: 20_000,
			holdSeconds: 3, readsNone: true, isDone: func(connected, sentAll int32, _ routes.Session) bool {
				return sentAll > 0 || connected >= 3 // by how fast the node takes them
			},
		},
		{
			name: "never ends its OPEN", first: rawOpen(90)[:25],
			isDone: func(_, sentAll int32, _ routes.Session) bool { return sentAll > 0 },
		},
		{name: "ends each session at once", ends: true, holdSeconds: 90, isDone: again},
	}
	for name, message := range map[string][]byte{
		"the marker is missing":        append(make([]byte, 16), 0, 19, keepaliveMessage),
		"a message shorter than any":   append(slices.Repeat([]byte{0xff}, 16), 0, 18, keepaliveMessage),
		"a message longer than all":    append(slices.Repeat([]byte{0xff}, 16), 0xff, 0xff, updateMessage),
		"a type that there is not":     rawMessage(99),
		"withdrawals beyond the end":   rawMessage(updateMessage, 0xff, 0xff, 0, 0),
		"attributes beyond the end":    rawMessage(updateMessage, 0, 0, 0xff, 0xff, 0x40, 1, 1, 0),
		"an attribute beyond the end":  rawUpdate([]byte{0x40, 1, 200, 0}, 24, 10, 0, 0),
		"a path beyond the end":        rawUpdate([]byte{0x40, 1, 1, 0, 0x40, 2, 4, 2, 200, 0, 1}, 24, 10, 0, 0),
		"a next hop of three bytes":    rawUpdate([]byte{0x40, 1, 1, 0, 0x40, 2, 0, 0x40, 3, 3, 1, 2, 3}, 24, 10, 0, 0),
		"an attribute twice":           rawUpdate(append(slices.Clone(plain), plain...), 24, 10, 0, 0),
		"no attributes":                rawUpdate(nil, 24, 10, 0, 0),
		"a prefix of 255 bits":         rawUpdate(plain, 255, 10, 0, 0),
		"IPv6 routes that are cut off": rawUpdate([]byte{0x80, 14, 5, 0, 2, 1, 16, 0xfe}),
		"a large community of a byte":  rawUpdate(append(slices.Clone(plain), 0xc0, 32, 1, 0), 24, 10, 0, 0),
	} {
		routers = append(routers, &hostileRouter{
			name: "malformed: " + name, rest: message, times: 1, ends: true, holdSeconds: 90, isDone: again,
		})
	}
	return routers
}

// TestAttackHostileNeighbours has a router that does as it should, beside one for each way of harming the node, all at
// once: its session stays up, and it keeps its routes, and hears of others. This test shows the row "it sends a full
// table or what no message may be, asks for all again without end, never ends its OPEN, or ends each session" of
// docs/trust.md.
func TestAttackHostileNeighbours(t *testing.T) {
	router, port := startRouter(t, nodeASN)
	losses := countLosses(t, router)
	node := startNode(t)
	good := gracefulRouter(port)
	change := func(c routes.Changes) {
		t.Helper()
		if refused := node.Apply(t.Context(), c); refused.Err() != nil {
			t.Fatal(refused.Err())
		}
	}
	var sessions map[netip.Addr]routes.Session
	// eventually asks for the sessions as the speaker does, until something is so.
	eventually := func(what func() string, isSo func() bool) {
		t.Helper()
		for end := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
			all, err := node.TendSessions(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			sessions = map[netip.Addr]routes.Session{}
			for _, s := range all {
				sessions[s.Neighbour] = s
			}
			if isSo() {
				return
			}
			if time.Now().After(end) {
				t.Fatal("not so: ", what())
			}
		}
	}
	has := func(want ...string) {
		t.Helper()
		eventually(func() string { return fmt.Sprintf("the router has %q", want) }, func() bool {
			got, err := routesOf(router)
			return err == nil && slices.Equal(got, want)
		})
	}
	add := func(prefix string) {
		t.Helper()
		change(routes.Changes{AddPaths: []routes.Path{{Prefix: netip.MustParsePrefix(prefix)}}})
	}
	change(routes.Changes{AddPeers: []routes.Peer{good}})
	add("198.51.100.1/32")
	has("198.51.100.1/32")
	eventually(func() string { return "the session is up" }, func() bool { return isUp(sessions[good.Neighbour]) })
	before := sessions[good.Neighbour]

	hostile := hostileRouters()
	var peers []routes.Peer
	for i, h := range hostile {
		peers = append(peers, h.start(t, fmt.Sprintf("127.0.1.%d", i+1)))
	}
	change(routes.Changes{AddPeers: peers})
	isDone := make([]bool, len(hostile))
	waitsFor := func() string {
		var out []string
		for i, h := range hostile {
			if !isDone[i] {
				out = append(out, fmt.Sprintf(
					"%s: connected %d times, sent all %d times: %+v", h.name, h.connected.Load(), h.sentAll.Load(),
					sessions[peers[i].Neighbour],
				))
			}
		}
		return strings.Join(out, "\n")
	}
	eventually(waitsFor, func() bool {
		for i, h := range hostile {
			isDone[i] = isDone[i] || h.isDone(h.connected.Load(), h.sentAll.Load(), sessions[peers[i].Neighbour])
		}
		return !slices.Contains(isDone, false)
	})
	add("198.51.100.2/32")
	has("198.51.100.1/32", "198.51.100.2/32")
	if after := sessions[good.Neighbour]; !isUp(after) || !after.Since.Equal(before.Since) {
		t.Errorf("the session of the router that does as it should: %+v, and before %+v", after, before)
	}
	if got := losses.Load(); got != 0 {
		t.Errorf("the router that does as it should has lost routes %d times", got)
	}
}

// TestAttackRefreshes has a router that asks for all routes again and again and reads nothing, with a hold time that
// ends nothing: the node ends the session, says why, and calls again. The session with another router stays up. This
// test shows the row "it asks for all routes again without end, and reads nothing" of docs/trust.md.
func TestAttackRefreshes(t *testing.T) {
	const networks, requests = 1000, 1000
	router, port := startRouter(t, nodeASN)
	losses := countLosses(t, router)
	node, good := startNode(t), gracefulRouter(port)
	changes := routes.Changes{AddPeers: []routes.Peer{good}}
	for i := range networks {
		changes.AddPaths = append(changes.AddPaths, routes.Path{
			Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}), 32),
		})
	}
	if refused := node.Apply(t.Context(), changes); refused.Err() != nil {
		t.Fatal(refused.Err())
	}
	before := sessionWith(t, node, "the router that does as it should", func(s routes.Session) bool {
		return isUp(s) && s.Advertised == networks
	})
	hostile := &hostileRouter{
		name: "asks for all again, and reads nothing", rest: rawMessage(refreshMessage, 0, 1, 0, 1), times: requests,
		holdSeconds: 0, readsNone: true,
	}
	peer := hostile.start(t, "127.0.1.1")
	if refused := node.Apply(t.Context(), routes.Changes{AddPeers: []routes.Peer{peer}}); refused.Err() != nil {
		t.Fatal(refused.Err())
	}
	var after routes.Session
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		all, err := node.TendSessions(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		isBounded := false
		for _, s := range all {
			if s.Neighbour == good.Neighbour {
				after = s
			} else if s.LastError == errorOfRefreshes {
				isBounded = true
			}
		}
		if isBounded && hostile.connected.Load() >= 2 { // it is called again
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the session goes on: %+v; connected %d times", all, hostile.connected.Load())
		}
	}
	if !isUp(after) || !after.Since.Equal(before.Since) || losses.Load() != 0 {
		t.Errorf("the router that does as it should: %+v, and before %+v; lost routes %d times", after, before, losses.Load())
	}
}

// TestNoteRefreshes counts the requests for all routes of a neighbour.
func TestNoteRefreshes(t *testing.T) {
	// A step is how many seconds it is since the one before, how many requests have come in all, and whether the
	// neighbour has read all that was sent.
	type step struct {
		seconds  int
		received uint64
		hasRead  bool
		want     bool
	}
	const ok, tooMany, unread, read = false, true, false, true
	for name, row := range map[string]struct {
		paths uint64
		steps []step
	}{
		"a few, unread for long": {500, []step{{1, 50, unread, ok}, {1000, 100, unread, ok}}},
		"too many, in one look":  {500, []step{{1, 101, unread, tooMany}}},
		"too many, one by one": {
			500, []step{{1, 60, unread, ok}, {1000, 100, unread, ok}, {1000, 101, unread, tooMany}},
		},
		"too many at once, all read":       {500, []step{{1, 101, read, tooMany}}},
		"many, all read":                   {500, []step{{11, 100, read, ok}, {11, 200, read, ok}, {11, 300, read, ok}}},
		"many within a window, all read":   {500, []step{{1, 60, read, ok}, {1, 120, read, tooMany}}},
		"many, and a pause":                {500, []step{{1, 60, unread, ok}, {11, 60, read, ok}, {1, 160, unread, ok}}},
		"of few routes":                    {1, []step{{1, 50_000, unread, ok}, {1, 50_001, unread, tooMany}}},
		"of very many routes":              {1_000_000, []step{{1, 10, unread, ok}, {1, 11, unread, tooMany}}},
		"the library begins to count anew": {500, []step{{1, 90, unread, ok}, {1, 20, unread, ok}, {1, 100, unread, ok}}},
	} {
		e, now := &sessionEvents{isUp: true}, time.Unix(0, 0)
		e.refreshesSince = now
		for i, s := range row.steps {
			now = now.Add(time.Duration(s.seconds) * time.Second)
			if got := e.noteRefreshes(s.received, row.paths, now, func() bool { return !s.hasRead }); got != s.want {
				t.Errorf("%s: step %d: %t", name, i+1, got)
			}
		}
	}
	e := &sessionEvents{}
	if e.noteRefreshes(1000, 1000, time.Unix(0, 0), func() bool { return true }) {
		t.Error("a session that is down")
	}
}
