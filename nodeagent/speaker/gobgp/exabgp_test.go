//go:build routers

package gobgp_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
	"github.com/purelb/purelb-operator/nodeagent/internal/routertest"
	"github.com/purelb/purelb-operator/nodeagent/speaker/routes"
)

// TestAttackExaBGP has ExaBGP harm the node in several ways at once, from an address for each: the session with FRR
// stays up, and FRR keeps its route and hears of another. This test shows the row "it sends a full table or what no
// message may be, asks for all again without end, never ends its OPEN, or ends each session" of docs/trust.md.
func TestAttackExaBGP(t *testing.T) {
	where, switched := newLink(t)
	good := routertest.StartFRR(t, where, bgpd)
	s := newSpeaker(t)
	d := routes.Config{Peers: []routes.Peer{peer("192.0.2.1")}, Paths: []routes.Path{path("198.51.100.1/32")}}
	s.hold(t, d)
	s.hasRoutes(t, good, "ipv4", "198.51.100.1/32")
	before := s.session(t, "192.0.2.1")

	says := func(text string) func(routes.Session, string, int) bool {
		return func(s routes.Session, _ string, _ int) bool { return strings.Contains(s.LastError, text) }
	}
	rows := []struct {
		name, script string
		// isMet is that the node has met it: by its session, what ExaBGP logs, and how many bytes have come.
		isMet func(session routes.Session, log string, received int) bool
	}{
		{
			name: "sends a full table",
			script: `for b in $(seq 100 199); do
  nlri=; for c in $(seq 0 255); do nlri="$nlri 10.$b.$c.0/24"; done
  echo "announce attributes next-hop self origin igp as-path [ 65000 ] nlri $nlri"
done
exec cat
`,
			isMet: says("more than its share"),
		},
		{
			name: "sends an attribute that has to be known, and is not",
			script: `echo "announce route 10.0.0.0/24 next-hop self attribute [ 0x63 0x40 0x01 ]"
exec cat
`,
			isMet: says("unrecognized well known attribute"),
		},
		{
			name: "ends each session at once",
			script: `while :; do echo "neighbor 192.0.2.11 teardown 6"; sleep 0.1; done
`,
			isMet: func(_ routes.Session, log string, _ int) bool { return strings.Count(log, "teardown scheduled") >= 3 },
		},
		{
			name: "asks for all routes again and again",
			script: `while :; do echo "announce route-refresh ipv4 unicast"; sleep 0.01; done
`,
			isMet: func(_ routes.Session, _ string, received int) bool { return received >= 50*23 },
		},
	}
	exa := make([]*routertest.ExaBGP, len(rows))
	for i, row := range rows {
		address := fmt.Sprintf("192.0.2.%d", i+2)
		switched.Run(t, "ip addr add %s/24 dev br0", address)
		exa[i] = routertest.StartExaBGP(t, switched, address, fmt.Sprintf(`
neighbor 192.0.2.11 {
  router-id %[1]s;
  local-address %[1]s;
  local-as 65000;
  peer-as 65001;
  hold-time 9;
  passive true;
  capability { route-refresh enable; }
  family { ipv4 unicast; }
  api { processes [ script ]; }
}
`, address), row.script)
		d.Peers = append(d.Peers, peer(address))
	}
	s.hold(t, d)
	for i, row := range rows {
		eventually(t, "ExaBGP "+row.name, func() bool {
			address := d.Peers[i+1].Address
			return row.isMet(s.session(t, address), exa[i].Log(), receivedFrom(t, address))
		}, func() string {
			address, log := d.Peers[i+1].Address, exa[i].Log()
			return fmt.Sprintf(
				"%+v, %d bytes received\n%s", s.session(t, address), receivedFrom(t, address), log[max(0, len(log)-8000):],
			)
		})
	}
	d.Paths = append(d.Paths, path("198.51.100.2/32"))
	s.hold(t, d)
	eventually(t, "FRR has both routes", func() bool { return len(good.Routes("ipv4")) == 2 }, func() string {
		return good.Show("show bgp ipv4 unicast")
	})
	if after := s.session(t, "192.0.2.1"); !after.Since.Equal(before.Since) {
		t.Errorf("the session with FRR: %+v, and before %+v", after, before)
	}
}

// receivedFrom returns how many bytes have come by the connections that the node has with an address.
func receivedFrom(t *testing.T, address string) int {
	t.Helper()
	sum := 0
	for field := range strings.FieldsSeq(nstest.Run(t, "ss -tinH dst %s", address)) {
		if text, isReceived := strings.CutPrefix(field, "bytes_received:"); isReceived {
			n, err := strconv.Atoi(text)
			if err != nil {
				t.Fatal(err)
			}
			sum += n
		}
	}
	return sum
}
