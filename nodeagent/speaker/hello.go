package speaker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/speaker/routes"
)

const (
	// helloInterval is how often the speaker says hello to gateways.
	helloInterval = 10 * time.Second
	// discardPort is of the service that ignores what it gets (RFC 863).
	discardPort = 9
)

// sayHello sends a datagram to the gateways of the node from each next hop that an open session of the other family
// advertises. Linux leaves out of a group of next hops those that it once could not resolve, and does not try them
// again by itself: a router would send nothing to a node that was away for some seconds, as the packets of a session of
// that family would make it. It learns the node's MAC address when the node resolves the router's, or as it answers.
func (s *Speaker) sayHello(ctx context.Context, sessions []routes.Session) {
	now := s.Tasks.Now()
	if now.Before(s.state.nextHello) {
		return
	}
	for _, hop := range advertisedNextHops(s.state.held.Peers, sessions) {
		s.state.nextHello = now.Add(helloInterval)
		gateways, err := s.Kernel.GatewaysFrom(hop)
		for _, gateway := range gateways {
			err = errors.Join(err, s.Hello(hop, gateway))
		}
		if err == nil && len(gateways) == 0 {
			err = errors.New("the node has no gateway of this family")
		}
		if err != nil {
			log.FromContext(ctx).V(1).Info("A gateway may not send to a next hop", "nextHop", hop.String(), "error", err.Error())
		}
	}
}

// advertisedNextHops returns the next hops, in order, that open sessions advertise for the family that is not their
// own.
func advertisedNextHops(peers []routes.Peer, sessions []routes.Session) []netip.Addr {
	var hops []netip.Addr
	for i := range peers {
		hop, err := netip.ParseAddr(peers[i].NextHop)
		isOpen := slices.ContainsFunc(sessions, func(one routes.Session) bool {
			return one.Neighbour == peers[i].Neighbour && one.State == purelbv1.SessionEstablished
		})
		if err == nil && isOpen && !slices.Contains(hops, hop) {
			hops = append(hops, hop)
		}
	}
	slices.SortFunc(hops, netip.Addr.Compare)
	return hops
}

// SendHello sends a datagram from an address of the node to a gateway, which may answer that nobody wants it.
func SendHello(from, to netip.Addr) error {
	socket, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)),
		net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, discardPort)))
	if err != nil {
		return fmt.Errorf("say hello to %s from %s: %w", to, from, err)
	}
	defer func() { _ = socket.Close() }()
	if _, err := socket.Write([]byte{0}); err != nil {
		return fmt.Errorf("say hello to %s from %s: %w", to, from, err)
	}
	return nil
}
