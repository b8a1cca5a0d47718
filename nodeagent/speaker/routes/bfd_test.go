package routes_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/speaker/bfd"
	"github.com/purelb/purelb-operator/nodeagent/speaker/routes"
)

func TestWatch(t *testing.T) {
	watched := netip.MustParseAddr("2001:db8::1")
	peers := []routes.Peer{
		{Neighbour: netip.MustParseAddr("192.0.2.9"), RoutingPeer: purelbv1.RoutingPeer{SourceAddress: "192.0.2.12"}},
		{Neighbour: watched, RoutingPeer: purelbv1.RoutingPeer{
			BFDIntervalMilliseconds: 300, BFDMultiplier: 50, SourceAddress: "2001:db8::12",
		}},
	}
	how := map[netip.Addr]bfd.NeighbourSettings{watched: {
		Settings: bfd.Settings{Interval: 300 * time.Millisecond, Multiplier: 50}, Source: netip.MustParseAddr("2001:db8::12"),
	}}
	const patience = 20 * time.Second
	begin := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	var waits routes.BFDWaits
	for _, round := range []struct {
		what      string
		after     time.Duration // since begin
		bgp       purelbv1.SessionState
		bfd       bfd.State
		isWatched bool
	}{
		{"BGP is being opened", 0, "Active", bfd.Down, false},
		{"it takes long", patience - 1, "OpenConfirm", bfd.Down, false},
		{"the router may want BFD first", patience, "OpenConfirm", bfd.Down, true},
		{"BFD begins", patience + time.Second, "OpenConfirm", bfd.Init, true},
		{"BFD is up", patience + time.Second, "OpenConfirm", bfd.Up, true},
		{"BFD fails", patience + 2*time.Second, "Idle", bfd.Down, false},
		{"the library does not know the neighbour", patience + 3*time.Second, "", bfd.Down, false},
		{"BGP is up", patience + 4*time.Second, purelbv1.SessionEstablished, bfd.Down, true},
		{"BFD, too", patience + 5*time.Second, purelbv1.SessionEstablished, bfd.Up, true},
		{"BGP is opened anew", time.Hour, "Idle", bfd.Up, true},
		{"the router restarts", time.Hour + time.Second, "Idle", bfd.Down, false},
	} {
		sessions := []routes.Session{{Neighbour: netip.MustParseAddr("192.0.2.9"), State: round.bgp}}
		if round.bgp != "" {
			sessions = append(sessions, routes.Session{Neighbour: watched, State: round.bgp})
		}
		want := how
		if !round.isWatched {
			want = map[netip.Addr]bfd.NeighbourSettings{}
		}
		state := func(netip.Addr) bfd.State { return round.bfd }
		got, next := waits.DecideWatched(peers, sessions, state, begin.Add(round.after))
		waits = next
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", round.what, diff)
		}
		if sessions[0].BFD != "" {
			t.Errorf("%s: a session without BFD has it: %s", round.what, sessions[0].BFD)
		}
		wantText := "Down"
		if round.bfd == bfd.Up {
			wantText = "Up"
		}
		if len(sessions) > 1 && sessions[1].BFD != wantText {
			t.Errorf("%s: BFD is %s", round.what, sessions[1].BFD)
		}
	}
}
