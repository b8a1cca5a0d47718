package routes

import (
	"net/netip"
	"slices"
	"time"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/speaker/bfd"
)

// maxWaitForBGP is how long BFD waits for BGP: longer than a session takes to come up with a router that is
// there.
const maxWaitForBGP = 20 * time.Second

// BFDWaits are the neighbours for which BFD waits until BGP is up, by when that began; for maxWaitForBGP they are not
// watched. It is lost with the process, and then BFD waits anew.
type BFDWaits map[netip.Addr]time.Time

// DecideWatched returns the neighbours to watch by BFD, and how, and which ones wait; it notes in sessions how BFD is,
// of those that have it. BFD begins when BGP is up: FRR makes its BFD session anew then, and ends BGP if the
// one before was up. It goes on when BGP goes down, so that it stays up while BGP is opened anew. A router
// may want BFD first, so that BFD waits for a while only.
func (w BFDWaits) DecideWatched(
	peers []Peer, sessions []Session, state func(netip.Addr) bfd.State, now time.Time,
) (watched map[netip.Addr]bfd.NeighbourSettings, next BFDWaits) {
	watched, next = map[netip.Addr]bfd.NeighbourSettings{}, BFDWaits{}
	for _, p := range peers {
		if p.BFDIntervalMilliseconds == 0 {
			continue
		}
		isUp := state(p.Neighbour) == bfd.Up
		i := slices.IndexFunc(sessions, func(s Session) bool { return s.Neighbour == p.Neighbour })
		if i >= 0 {
			sessions[i].BFD = bfd.Down.String()
			if isUp {
				sessions[i].BFD = bfd.Up.String()
			}
		}
		if !isUp && (i < 0 || sessions[i].State != purelbv1.SessionEstablished) {
			since, waits := w[p.Neighbour]
			if !waits {
				since = now
			}
			next[p.Neighbour] = since
			if now.Sub(since) < maxWaitForBGP {
				continue
			}
		}
		watched[p.Neighbour] = bfdSettingsOf(p)
	}
	return watched, next
}

// bfdSettingsOf returns how a neighbour is watched.
func bfdSettingsOf(p Peer) bfd.NeighbourSettings {
	n := bfd.NeighbourSettings{Settings: bfd.Settings{
		Interval: time.Duration(p.BFDIntervalMilliseconds) * time.Millisecond, Multiplier: uint8(p.BFDMultiplier),
	}}
	if source, err := netip.ParseAddr(p.SourceAddress); err == nil {
		n.Source = source
	}
	return n
}
