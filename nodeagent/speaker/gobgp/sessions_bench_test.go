//go:build !routers

package gobgp

import (
	"net/netip"
	"testing"

	"github.com/purelb/purelb-operator/nodeagent/speaker/routes"
)

// BenchmarkAtRest is what a speaker does again and again while a session is up and nothing changes, with 1,000 routes:
// to tend the sessions each few seconds, with and without a count of what was sent, and to look four times a second
// whether a neighbour may ask for more than it reads, with and without asking the library.
func BenchmarkAtRest(b *testing.B) {
	const networks = 1000
	_, port := startRouter(b, nodeASN)
	node := startNode(b)
	changes := routes.Changes{AddPeers: []routes.Peer{gracefulRouter(port)}}
	for i := range networks {
		changes.AddPaths = append(changes.AddPaths, routes.Path{
			Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}), 32),
		})
	}
	if refused := node.Apply(b.Context(), changes); refused.Err() != nil {
		b.Fatal(refused.Err())
	}
	sessionWith(b, node, "the session is up", func(s routes.Session) bool { return isUp(s) && s.Advertised == networks })
	tend := func(counts bool) func(b *testing.B) {
		return func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				node.isCountDue.Store(counts)
				sessions, err := node.TendSessions(b.Context())
				if err != nil || len(sessions) != 1 || sessions[0].Advertised != networks {
					b.Fatalf("%+v, %v", sessions, err)
				}
			}
		}
	}
	b.Run("tend sessions, counting", tend(true))
	b.Run("tend sessions", tend(false))
	b.Run("bound refreshes, asking", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := node.endSessionsWithUnreadRefreshes(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("bound refreshes", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			node.isAtRest()
		}
	})
}
