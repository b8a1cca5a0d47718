package gobgp

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	api "github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/speaker/routes"
)

const (
	// deferralSeconds is how long the library waits, after a restart, for neighbours to send
	// their routes.
	deferralSeconds = 1
	// idleSeconds is how long the library waits after it has reset a session, before it
	// connects again.
	idleSeconds = 5
	// maxReceivedPrefixes is how many routes of one family all neighbours of the node together may
	// send: the library keeps them, although the node takes none. Each neighbour has the share of as
	// many neighbours as there are when it is added.
	maxReceivedPrefixes = 10000
	// restTime is after how long a session is opened again that was ended for what the neighbour is or
	// sends, and would be at once again.
	restTime = time.Minute
	// unusedASN is the library's own autonomous system, which is never seen: each session has one of its own.
	unusedASN = 64512
	// exportPolicy and importPolicy are the names of the two policies.
	exportPolicy, importPolicy = "purelb-export", "purelb-import"
)

// Server is the BGP library, with what this package remembers of its sessions.
type Server struct {
	bgp *server.BgpServer
	log logr.Logger
	// changed is called when a session changes.
	changed func()
	// neighbours are those that the library has.
	neighbours map[netip.Addr]neighbour
	// prefixes are those of the node's routes that the library has, and pathCount is how many.
	prefixes  map[netip.Prefix]bool
	pathCount atomic.Int64
	// advertised is how many routes the library said at countedAt that it had sent to each neighbour. TendSessions asks it
	// again if isCountDue is true.
	advertised map[string]advertisedRoutes
	countedAt  time.Time
	isCountDue atomic.Bool
	// endWatching ends what watches the sessions: boundRefreshes, and the library's events; nil before the start.
	endWatching context.CancelFunc

	// mu protects sessions: what the library reports only as it happens, by neighbour that it has. It is
	// lost with the process, and then says nothing of earlier sessions.
	mu       sync.Mutex
	sessions map[netip.Addr]*sessionEvents
}

// neighbour is a neighbour that the library has, and how many routes of each family it may send.
type neighbour struct {
	routes.Peer
	maxReceived int
}

// sessionEvents is what happened to a session.
type sessionEvents struct {
	since     time.Time
	isUp      bool
	lastError string
	// endReason is why the session ends, which is up until the library says that it has ended: as the speaker ends it,
	// or as its hold time is over; empty otherwise. ended is closed when a session that is up has ended.
	endReason string
	ended     chan struct{}
	// restsSince is since when a session is not opened again for a while; zero if it does not rest.
	restsSince time.Time
	// messagesSent is how many messages the library has sent to the neighbour, and sentAt when that last changed.
	messagesSent uint64
	sentAt       time.Time
	// refreshes is how many requests for all routes the neighbour had made at refreshesSince, when nothing waited for it.
	refreshes      uint64
	refreshesSince time.Time
	redial         redialSchedule
}

// New makes a library that calls changed when a session changes.
func New(log logr.Logger, changed func()) *Server {
	s := &Server{
		log: log, changed: changed,
		neighbours: map[netip.Addr]neighbour{}, prefixes: map[netip.Prefix]bool{}, sessions: map[netip.Addr]*sessionEvents{},
	}
	level := &slog.LevelVar{}
	level.Set(slog.LevelDebug) // the handler passes on less
	s.bgp = server.NewBgpServer(server.LoggerOption(slog.New(&logHandler{server: s}), level))
	return s
}

// Start begins to work as the router with an identifier. It connects to neighbours, and listens
// on no port. After an error nothing is left running.
func (s *Server) Start(ctx context.Context, routerID netip.Addr) error {
	go s.bgp.Serve()
	ctx, s.endWatching = context.WithCancel(ctx)
	if err := s.startLibrary(ctx, routerID); err != nil {
		s.endWatching()
		s.bgp.Stop()
		return err
	}
	go s.boundRefreshes(ctx)
	return nil
}

// startLibrary starts the library, which has no neighbours and takes no routes but the node's own.
func (s *Server) startLibrary(ctx context.Context, routerID netip.Addr) error {
	err := s.bgp.StartBgp(ctx, &api.StartBgpRequest{Global: &api.Global{
		Asn: unusedASN, RouterId: routerID.String(), ListenPort: -1,
		Families: []uint32{0, 1}, // the library numbers unicast of IPv4 and of IPv6 so
	}})
	if err != nil {
		return fmt.Errorf("start BGP: %w", err)
	}
	if err := s.setRules(ctx, nil); err != nil {
		return err
	}
	for _, a := range []*api.PolicyAssignment{
		{
			Name: "global", Direction: api.PolicyDirection_POLICY_DIRECTION_IMPORT,
			DefaultAction: api.RouteAction_ROUTE_ACTION_REJECT, Policies: []*api.Policy{{Name: importPolicy}},
		},
		{
			Name: "global", Direction: api.PolicyDirection_POLICY_DIRECTION_EXPORT,
			DefaultAction: api.RouteAction_ROUTE_ACTION_ACCEPT, Policies: []*api.Policy{{Name: exportPolicy}},
		},
	} {
		if err := s.bgp.SetPolicyAssignment(ctx, &api.SetPolicyAssignmentRequest{Assignment: a}); err != nil {
			return fmt.Errorf("set the policy: %w", err)
		}
	}
	return s.bgp.WatchEvent(ctx, server.WatchEventMessageCallbacks{OnPeerUpdate: s.onPeerUpdate}, server.WatchPeer())
}

// Apply makes the changes, in their order, and returns what the library refuses. It goes on after that, so
// that one neighbour that the library does not take holds up no other. Only without their rules no paths and no
// neighbours are added.
func (s *Server) Apply(ctx context.Context, c routes.Changes) routes.Refusals {
	s.isCountDue.Store(true)
	refused := routes.Refusals{Paths: map[netip.Prefix]error{}, Peers: map[netip.Addr]error{}}
	for _, prefix := range c.RemovePaths {
		setError(refused.Paths, prefix, s.removePath(prefix))
	}
	if c.ReplacesRules {
		refused.Rules = s.setRules(ctx, c.Rules)
	}
	for _, p := range c.AddPaths {
		err := refused.Rules
		if err == nil {
			err = s.addPath(p)
		}
		setError(refused.Paths, p.Prefix, err)
	}
	for _, p := range c.RemovePeers {
		if err := s.removePeer(ctx, p.Neighbour); err != nil { // the library does not have the neighbour
			s.log.Error(err, "A neighbour is gone already")
		}
	}
	for _, p := range c.UpdatePeers {
		setError(refused.Peers, p.Neighbour, s.updatePeer(ctx, p))
	}
	for _, p := range c.ReopenPeers {
		setError(refused.Peers, p.Neighbour, s.reopenPeer(ctx, p))
	}
	share := maxReceivedPrefixes / max(1, len(s.neighbours)+len(c.AddPeers))
	for _, p := range c.AddPeers {
		err := refused.Rules // by the rules before, a new neighbour might be sent all routes
		if err == nil {
			err = s.addPeer(ctx, neighbour{p, share})
		}
		setError(refused.Peers, p.Neighbour, err)
	}
	if c.ResendsRoutes && refused.Rules == nil {
		refused.Rules = s.bgp.ResetPeer(
			ctx, &api.ResetPeerRequest{Address: "all", Soft: true, Direction: api.ResetPeerRequest_DIRECTION_OUT},
		)
	}
	return refused
}

// setError keeps an error, if it is one.
func setError[K comparable](errs map[K]error, key K, err error) {
	if err != nil {
		errs[key] = err
	}
}

func (s *Server) addPeer(ctx context.Context, n neighbour) error {
	s.remember(n.Neighbour) // before the library reports anything of it
	if err := s.bgp.AddPeer(ctx, &api.AddPeerRequest{Peer: peerOf(n.Peer, n.maxReceived)}); err != nil {
		s.forget(n.Neighbour)
		return fmt.Errorf("add neighbour %s: %w", n.Neighbour, err)
	}
	s.neighbours[n.Neighbour] = n
	return nil
}

// removePeer removes a neighbour. A session that is up is ended with a message, upon which the neighbour
// drops the routes.
func (s *Server) removePeer(ctx context.Context, addr netip.Addr) error {
	s.forget(addr)
	return s.deletePeer(ctx, addr)
}

// deletePeer removes a neighbour of which sessions remembers what happened.
func (s *Server) deletePeer(ctx context.Context, addr netip.Addr) error {
	delete(s.neighbours, addr)
	if err := s.bgp.DeletePeer(ctx, &api.DeletePeerRequest{Address: addr.String()}); err != nil {
		return fmt.Errorf("remove neighbour %s: %w", addr, err)
	}
	return nil
}

// updatePeer gives a neighbour settings that need no new session.
func (s *Server) updatePeer(ctx context.Context, p routes.Peer) error {
	n := neighbour{p, s.neighbours[p.Neighbour].maxReceived}
	if _, err := s.bgp.UpdatePeer(ctx, &api.UpdatePeerRequest{Peer: peerOf(p, n.maxReceived)}); err != nil {
		return fmt.Errorf("change neighbour %s: %w", p.Neighbour, err)
	}
	s.neighbours[p.Neighbour] = n
	return nil
}

// reopenPeer opens the session with a neighbour anew, with other settings. A neighbour that supports
// graceful restart keeps the routes.
func (s *Server) reopenPeer(ctx context.Context, p routes.Peer) error {
	before := s.neighbours[p.Neighbour]
	if before.RestartSeconds > 0 {
		s.closeSession(ctx, before.Peer)
		p.SetsRestartState = p.RestartSeconds > 0
	}
	if err := s.removePeer(ctx, p.Neighbour); err != nil {
		return err
	}
	return s.addPeer(ctx, neighbour{p, before.maxReceived})
}

// ResetSession ends the session with a neighbour with a message, upon which the neighbour drops the routes although
// it supports graceful restart, and opens it again. A session that is not up is left alone: the library
// would keep the message for the next one.
func (s *Server) ResetSession(ctx context.Context, neighbour netip.Addr) error {
	return s.endSession(neighbour, errorOfBFD, func() error {
		return s.bgp.ResetPeer(ctx, &api.ResetPeerRequest{Address: neighbour.String(), Communication: "BFD is down"})
	})
}

// Stop ends all sessions. With graceful restart neighbours that support it keep the routes for
// the restart time; without, they drop them at once. If the sessions have not ended when ctx does, Stop returns its
// error, and what is left of them ends with the process.
func (s *Server) Stop(ctx context.Context, graceful bool) error {
	if s.endWatching != nil {
		s.endWatching()
	}
	err := within(ctx, func() error {
		// The library waits for its sessions' goroutines, whatever becomes of a context.
		err := s.bgp.StopBgp(ctx, &api.StopBgpRequest{AllowGracefulRestart: graceful})
		// StopBgp leaves the library's own BFD running, which only Stop ends. There are no sessions any more for the
		// StopBgp in it, which fails.
		s.bgp.Stop()
		return err
	})
	if err != nil {
		return fmt.Errorf("stop BGP: %w", err)
	}
	return nil
}

// within returns what a function returns that heeds no context or, if the context ends first, its error. The
// function goes on then.
func within(ctx context.Context, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Server) addPath(p routes.Path) error {
	nlri, err := bgp.NewIPAddrPrefix(p.Prefix)
	if err != nil {
		return fmt.Errorf("advertise %s: %w", p.Prefix, err)
	}
	path := &apiutil.Path{
		Family: familyOf(p.Prefix), Nlri: nlri, Age: time.Now().Unix(), Attrs: attributesOf(p, nlri),
	}
	if _, err := s.bgp.AddPath(apiutil.AddPathRequest{Paths: []*apiutil.Path{path}}); err != nil {
		return fmt.Errorf("advertise %s: %w", p.Prefix, err)
	}
	s.prefixes[p.Prefix] = true
	s.pathCount.Store(int64(len(s.prefixes)))
	return nil
}

func (s *Server) removePath(prefix netip.Prefix) error {
	nlri, err := bgp.NewIPAddrPrefix(prefix)
	if err != nil {
		return fmt.Errorf("withdraw %s: %w", prefix, err)
	}
	path := &apiutil.Path{
		Family: familyOf(prefix), Nlri: nlri, Attrs: attributesOf(routes.Path{Prefix: prefix}, nlri),
	}
	if err := s.bgp.DeletePath(apiutil.DeletePathRequest{Paths: []*apiutil.Path{path}}); err != nil {
		return fmt.Errorf("withdraw %s: %w", prefix, err)
	}
	delete(s.prefixes, prefix)
	s.pathCount.Store(int64(len(s.prefixes)))
	return nil
}

func familyOf(prefix netip.Prefix) bgp.Family { return bgpFamily(purelbv1.FamilyOf(prefix.Addr())) }

func bgpFamily(f purelbv1.IPFamily) bgp.Family {
	if f == "IPv4" {
		return bgp.RF_IPv4_UC
	}
	return bgp.RF_IPv6_UC
}

// attributesOf returns the attributes of a route. The unspecified next hop stands for the
// node's address in each session.
func attributesOf(p routes.Path, nlri bgp.NLRI) []bgp.PathAttributeInterface {
	attributes := []bgp.PathAttributeInterface{bgp.NewPathAttributeOrigin(bgp.BGP_ORIGIN_ATTR_TYPE_IGP)}
	if p.Prefix.Addr().Is4() {
		if hop, err := bgp.NewPathAttributeNextHop(netip.IPv4Unspecified()); err == nil {
			attributes = append(attributes, hop)
		}
	} else if reach, err := bgp.NewPathAttributeMpReachNLRI(
		bgp.RF_IPv6_UC, []bgp.PathNLRI{{NLRI: nlri}}, netip.IPv6Unspecified(),
	); err == nil {
		attributes = append(attributes, reach)
	}
	if p.MED != nil {
		attributes = append(attributes, bgp.NewPathAttributeMultiExitDisc(*p.MED))
	}
	if p.LocalPref != nil {
		attributes = append(attributes, bgp.NewPathAttributeLocalPref(*p.LocalPref))
	}
	if len(p.Communities) > 0 {
		attributes = append(attributes, bgp.NewPathAttributeCommunities(p.Communities))
	}
	if len(p.LargeCommunities) > 0 {
		var large []*bgp.LargeCommunity
		for _, c := range p.LargeCommunities {
			large = append(large, &bgp.LargeCommunity{ASN: c[0], LocalData1: c[1], LocalData2: c[2]})
		}
		attributes = append(attributes, bgp.NewPathAttributeLargeCommunities(large))
	}
	return attributes
}
