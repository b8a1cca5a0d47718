package gobgp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	api "github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/speaker/routes"
)

// sessionStates of the library, in words.
var sessionStates = map[api.PeerState_SessionState]purelbv1.SessionState{
	api.PeerState_SESSION_STATE_IDLE: "Idle", api.PeerState_SESSION_STATE_CONNECT: "Connect",
	api.PeerState_SESSION_STATE_ACTIVE:   "Active",
	api.PeerState_SESSION_STATE_OPENSENT: "OpenSent", api.PeerState_SESSION_STATE_OPENCONFIRM: "OpenConfirm",
	api.PeerState_SESSION_STATE_ESTABLISHED: purelbv1.SessionEstablished,
}

// countInterval is the longest time after which the library is asked again how many routes it has sent to each
// neighbour, which it finds out for each route anew.
const countInterval = time.Minute

// errorOfStalled is the error of a neighbour that sends keepalives and reads nothing.
const errorOfStalled = "the neighbour takes nothing of what the node sends: the session begins anew"

// errorOfBFD is the error of a neighbour whose BFD has failed.
const errorOfBFD = "BFD is down: the neighbour's BFD does not answer, or the link is dead"

// errorOfSilence is the error of a neighbour of which nothing was heard for the hold time.
const errorOfSilence = "nothing came from the neighbour for the hold time"

// errorOfOwnAS is the error of a neighbour that is to be external, and is not.
const errorOfOwnAS = "the neighbour is in the node's own autonomous system, and peerASN is External: say Internal"

// errorOfLimit is the error of a neighbour that ended the session for the number of routes, and opens none since: that
// it closes connections then says less.
const errorOfLimit = "the neighbour ended the session, as the node sends more routes than it takes (its " +
	"maximum-prefix): raise that, or advertise networks instead of addresses (aggregation of the ServiceGroup's " +
	"pools), and clear the session on the router"

// TendSessions returns the sessions with all neighbours. It opens those again that have ended, or were ended for
// what neighbours sent a while ago, and ends two kinds: those with neighbours that are to be external and
// are not, and those whose neighbours read nothing. For these the library would keep every change,
// without bound (RFC 9687).
func (s *Server) TendSessions(ctx context.Context) ([]routes.Session, error) {
	s.redialDue(ctx)
	peers, err := s.listPeers(ctx)
	if err != nil {
		return nil, err
	}
	var sessions []routes.Session
	var ofOwnAS, stalled []netip.Addr
	for _, p := range peers {
		session, hasStalled, ok := s.sessionOf(p)
		if !ok {
			continue
		}
		if err := s.fillUnsent(&session); err != nil {
			s.isCountDue.Store(true)
			return nil, err
		}
		if session.State == purelbv1.SessionEstablished && (!session.HasSentAll || len(session.Unsent) > 0) {
			s.isCountDue.Store(true)
		}
		sessions = append(sessions, session)
		switch {
		case isOfOwnAS(p):
			ofOwnAS = append(ofOwnAS, session.Neighbour)
		case hasStalled:
			stalled = append(stalled, session.Neighbour)
		}
	}
	for _, addr := range ofOwnAS {
		err = errors.Join(err, s.endSession(addr, errorOfOwnAS, func() error {
			s.noteRest(addr)
			return s.bgp.DisablePeer(ctx, &api.DisablePeerRequest{Address: addr.String()})
		}))
	}
	for _, addr := range stalled {
		err = errors.Join(err, s.endSession(addr, errorOfStalled, func() error {
			return s.bgp.ResetPeer(ctx, &api.ResetPeerRequest{Address: addr.String()})
		}))
	}
	if err != nil {
		s.log.Error(err, "A session goes on")
	}
	for _, addr := range s.takeRested() {
		_ = s.bgp.EnablePeer(ctx, &api.EnablePeerRequest{Address: addr.String()})
	}
	return sessions, nil
}

// listPeers returns the library's neighbours with how many routes it has sent to each. It asks the library for that
// number only after Apply, after an event of a session, as long as a session has not been sent all routes, and after
// countInterval. Otherwise it fills in the number that the library said last.
func (s *Server) listPeers(ctx context.Context) ([]*api.Peer, error) {
	now := time.Now()
	counts := s.isCountDue.Swap(false) || now.Sub(s.countedAt) >= countInterval
	for {
		var peers []*api.Peer
		isCounted := true
		err := s.bgp.ListPeer(ctx, &api.ListPeerRequest{EnableAdvertised: counts}, func(p *api.Peer) {
			peers, isCounted = append(peers, p), isCounted && (counts || s.fillAdvertised(p))
		})
		if err != nil {
			s.isCountDue.Store(true)
			return nil, fmt.Errorf("list sessions: %w", err)
		}
		if counts {
			s.countedAt, s.advertised = now, advertisedOf(peers)
			return peers, nil
		}
		if isCounted {
			return peers, nil
		}
		counts = true
	}
}

// advertisedRoutes are how many routes of each of the AfiSafis a session has been sent that is up since then.
type advertisedRoutes struct {
	since  int64 // in seconds since 1970
	routes []uint64
}

// advertisedOf returns what the library has counted, by neighbour with which a session is up.
func advertisedOf(peers []*api.Peer) map[string]advertisedRoutes {
	all := map[string]advertisedRoutes{}
	for _, p := range peers {
		if p.GetState().GetSessionState() != api.PeerState_SESSION_STATE_ESTABLISHED {
			continue
		}
		counted := advertisedRoutes{since: p.GetTimers().GetState().GetUptime().GetSeconds()}
		for _, f := range p.AfiSafis {
			counted.routes = append(counted.routes, f.GetState().GetAdvertised())
		}
		all[p.GetState().GetNeighborAddress()] = counted
	}
	return all
}

// fillAdvertised gives a neighbour the last count of the routes that it was sent, and reports whether that is one of
// this session. A neighbour without a session has been sent none.
func (s *Server) fillAdvertised(p *api.Peer) bool {
	if p.GetState().GetSessionState() != api.PeerState_SESSION_STATE_ESTABLISHED {
		return true
	}
	counted, ok := s.advertised[p.GetState().GetNeighborAddress()]
	since := p.GetTimers().GetState().GetUptime().GetSeconds()
	if !ok || counted.since != since || len(counted.routes) != len(p.AfiSafis) {
		return false
	}
	for i, f := range p.AfiSafis {
		if f.State == nil {
			return false
		}
		f.State.Advertised = counted.routes[i]
	}
	return true
}

// fillUnsent lists what a session has not sent of the routes that the library has. The library finds that out for
// each route anew: it is asked only if it has sent fewer than it has.
func (s *Server) fillUnsent(session *routes.Session) error {
	isToBeSent := func(p netip.Prefix) bool { return slices.Contains(session.Families, purelbv1.FamilyOf(p.Addr())) }
	count := 0
	for p := range s.prefixes {
		if isToBeSent(p) {
			count++
		}
	}
	if session.Advertised == count {
		return nil
	}
	unsent := maps.Clone(s.prefixes)
	maps.DeleteFunc(unsent, func(p netip.Prefix, _ bool) bool { return !isToBeSent(p) })
	for _, family := range session.Families {
		if session.Advertised == 0 {
			break
		}
		request := apiutil.ListPathRequest{
			TableType: api.TableType_TABLE_TYPE_ADJ_OUT, Name: session.Neighbour.String(), Family: bgpFamily(family),
		}
		err := s.bgp.ListPath(request, func(route bgp.NLRI, _ []*apiutil.Path) {
			if p, err := netip.ParsePrefix(route.String()); err == nil {
				delete(unsent, p)
			}
		})
		if err != nil {
			return fmt.Errorf("list the routes sent to %s: %w", session.Neighbour, err)
		}
	}
	session.Unsent = slices.SortedFunc(maps.Keys(unsent), netip.Prefix.Compare)
	return nil
}

// isOfOwnAS reports whether a neighbour may be in any autonomous system but the node's, and is in that.
func isOfOwnAS(p *api.Peer) bool {
	return p.GetState().GetSessionState() == api.PeerState_SESSION_STATE_ESTABLISHED && p.GetConf().GetPeerAsn() == 0 &&
		p.GetState().GetPeerAsn() == p.GetConf().GetLocalAsn()
}

// endSession ends a session that is up, and that the speaker does not end already: end asks the library to. Why
// is noted first, as the session may end while end runs.
func (s *Server) endSession(addr netip.Addr, why string, end func() error) error {
	s.mu.Lock()
	e := s.sessions[addr]
	isToEnd := e != nil && e.isUp && e.endReason == ""
	if isToEnd {
		e.endReason = why
	}
	s.mu.Unlock()
	if !isToEnd {
		return nil
	}
	err := end()
	if err == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e.endReason = ""
	return fmt.Errorf("end the session with %s: %w", addr, err)
}

// noteSilence takes that the hold time of a session that is up is over. With graceful restart the library says of the
// end of the session only that the connection was closed.
func (s *Server) noteSilence(addr netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.sessions[addr]; e != nil && e.isUp && e.endReason == "" {
		e.endReason = errorOfSilence
	}
}

// noteRest notes that a session is not opened again for a while.
func (s *Server) noteRest(addr netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.sessions[addr]; e != nil {
		e.restsSince = time.Now()
	}
}

// sessionOf returns the session with a neighbour, and whether that has stalled.
func (s *Server) sessionOf(p *api.Peer) (session routes.Session, hasStalled, ok bool) {
	addr, err := netip.ParseAddr(p.GetState().GetNeighborAddress())
	if err != nil {
		return routes.Session{}, false, false
	}
	session = routes.Session{Neighbour: addr, State: sessionStates[p.State.SessionState], PeerASN: p.State.PeerAsn}
	if session.State == "" {
		session.State = "Idle"
	}
	if session.State == purelbv1.SessionEstablished {
		session.Families = negotiatedFamilies(p, addr)
	}
	session.HasSentAll = session.State == purelbv1.SessionEstablished && !p.GetGracefulRestart().GetLocalRestarting()
	if session.HasSentAll {
		for _, f := range p.AfiSafis {
			session.Advertised += int(f.GetState().GetAdvertised()) //nolint:gosec // there are not that many
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.sessions[addr]; e != nil {
		session.Since, session.LastError = e.since, e.lastError
		hold := time.Duration(p.GetTimers().GetState().GetNegotiatedHoldTime()) * time.Second //nolint:gosec // it has 16 bits
		hasStalled = e.noteSent(
			session.State == purelbv1.SessionEstablished, p.State.GetMessages().GetSent().GetTotal(), hold, time.Now(),
		)
	}
	return session, hasStalled, true
}

// noteSent notes how many messages the library has sent to a neighbour, and reports whether the session has
// stalled: no message could be sent for twice the hold time, although keepalives are due thrice in it.
// Without a hold time there are no keepalives, and none shows that.
func (e *sessionEvents) noteSent(isUp bool, sent uint64, hold time.Duration, now time.Time) (hasStalled bool) {
	if !isUp || sent != e.messagesSent || hold == 0 {
		e.messagesSent, e.sentAt = sent, now
	}
	return now.Sub(e.sentAt) > 2*hold
}

// negotiatedFamilies are the families that both sides of a session have said they know. Between link-local addresses of
// IPv6 the next hop of IPv4 routes is one of IPv6, and the neighbour has to take such (RFC 8950): others drop the
// routes.
func negotiatedFamilies(p *api.Peer, neighbour netip.Addr) []purelbv1.IPFamily {
	var families []purelbv1.IPFamily
	remote, takesIPv6NextHop := map[api.Family_Afi]bool{}, false
	for _, c := range p.State.RemoteCap {
		takesIPv6NextHop = takesIPv6NextHop || slices.ContainsFunc(
			c.GetExtendedNexthop().GetTuples(), func(t *api.ExtendedNexthopCapabilityTuple) bool {
				return t.GetNlriFamily().GetAfi() == api.Family_AFI_IP && t.GetNexthopFamily().GetAfi() == api.Family_AFI_IP6
			},
		)
		if mp := c.GetMultiProtocol(); mp != nil && mp.Family.GetSafi() == api.Family_SAFI_UNICAST {
			remote[mp.Family.GetAfi()] = true
		}
	}
	for _, f := range p.AfiSafis {
		switch afi := f.GetConfig().GetFamily().GetAfi(); {
		case !remote[afi]:
		case afi == api.Family_AFI_IP && neighbour.Is6() && neighbour.IsLinkLocalUnicast() && !takesIPv6NextHop:
		case afi == api.Family_AFI_IP:
			families = append(families, "IPv4")
		case afi == api.Family_AFI_IP6:
			families = append(families, "IPv6")
		}
	}
	return families
}

// onPeerUpdate takes a change of a session. One with a neighbour that was removed meanwhile says nothing.
func (s *Server) onPeerUpdate(event *apiutil.WatchEventMessage_PeerEvent, at time.Time) {
	if event.Type != apiutil.PEER_EVENT_STATE {
		return
	}
	addr := event.Peer.State.NeighborAddress
	s.mu.Lock()
	e := s.sessions[addr]
	if e == nil {
		s.mu.Unlock()
		return
	}
	s.isCountDue.Store(true)
	isUp := event.Peer.State.SessionState == bgp.BGP_FSM_ESTABLISHED
	why := explainDisconnect(event.Peer.State.DisconnectReason, event.Peer.State.DisconnectMessage)
	switch {
	case isUp != e.isUp:
		if e.isUp, e.since = isUp, at; isUp {
			e.ended = make(chan struct{})
			e.redial.noteUp(at)
			break
		}
		close(e.ended)
		e.lastError, e.endReason = cmp.Or(e.endReason, why), ""
		e.redial.noteDown(at)
		time.AfterFunc(time.Until(e.redial.callAt), s.changed)
	case e.lastError == errorOfLimit:
	case event.Peer.State.DisconnectReason == api.PeerState_DISCONNECT_REASON_INVALID_MSG:
		e.lastError = errorOfRefusal // the one message that is not expected in answer to OPEN
	}
	if event.Peer.State.AdminState == api.PeerState_ADMIN_STATE_PFX_CT && e.restsSince.IsZero() {
		e.restsSince = at
		e.lastError = fmt.Sprintf(
			"the neighbour sent more than its share of the %d routes that all may send: let it send none, the node takes none",
			maxReceivedPrefixes,
		)
	}
	s.mu.Unlock()
	s.changed()
}

// remember begins to note what happens to the session with a neighbour, or goes on with it.
func (s *Server) remember(addr netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions[addr] == nil {
		s.sessions[addr] = &sessionEvents{}
	}
}

// forget ends that. What the library reports later of the session is not noted.
func (s *Server) forget(addr netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, addr)
}

// noteConnectError takes why the library could not connect to a neighbour, unless that was removed meanwhile. The
// library has to be given a link-local neighbour anew if the node does not have the source address: it looks up the
// interface's link-local address only then, and the interface may have another one since, as when it was made anew.
func (s *Server) noteConnectError(addr netip.Addr, why string) {
	s.mu.Lock()
	e := s.sessions[addr]
	differs := e != nil && e.lastError != why && e.lastError != errorOfLimit
	if differs {
		e.lastError = why
	}
	needsRedial := e != nil && addr.Zone() != "" && why == errorOfNoSource
	if needsRedial {
		e.redial.callAt = time.Now()
	}
	s.mu.Unlock()
	if differs || needsRedial {
		s.changed()
	}
}

// takeRested returns the neighbours whose sessions have rested, and are to be opened again.
func (s *Server) takeRested() []netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	var due []netip.Addr
	for addr, e := range s.sessions {
		if !e.restsSince.IsZero() && time.Since(e.restsSince) > restTime {
			e.restsSince = time.Time{}
			due = append(due, addr)
		}
	}
	return due
}

// explainDisconnect says in words why a session ended, or was not opened.
func explainDisconnect(reason api.PeerState_DisconnectReason, message string) string {
	switch reason {
	case api.PeerState_DISCONNECT_REASON_HOLD_TIMER_EXPIRED:
		return errorOfSilence
	case api.PeerState_DISCONNECT_REASON_NOTIFICATION_SENT, api.PeerState_DISCONNECT_REASON_NOTIFICATION_RECEIVED:
		return explainNotification(message)
	case api.PeerState_DISCONNECT_REASON_READ_FAILED, api.PeerState_DISCONNECT_REASON_WRITE_FAILED,
		api.PeerState_DISCONNECT_REASON_GRACEFUL_RESTART:
		return "the neighbour closed the connection: it restarts, or has forgotten this node"
	case api.PeerState_DISCONNECT_REASON_INVALID_MSG:
		return "the neighbour sent a message that is not valid"
	case api.PeerState_DISCONNECT_REASON_HARD_RESET:
		return "the neighbour reset the session"
	}
	return ""
}

// explainNotification says what a BGP notification means.
func explainNotification(message string) string {
	const byNeighbour = "the neighbour ended the session"
	by, text := byNeighbour, strings.TrimPrefix(message, "notification-received ")
	if sent, isSent := strings.CutPrefix(message, "notification-sent "); isSent {
		by, text = "the node ended the session", sent
	}
	lower := strings.ToLower(text)
	switch {
	case strings.Contains(lower, "bad peer as"):
		return "the neighbour expects the node in another autonomous system: compare myASN with the router's configuration"
	case strings.Contains(lower, "maximum number of prefixes") && by == byNeighbour: // RFC 4486
		return errorOfLimit
	case strings.Contains(lower, "hold timer"):
		return by + ", because nothing came for the hold time"
	}
	return by + ": " + text
}
