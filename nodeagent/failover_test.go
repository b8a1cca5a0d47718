package nodeagent

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/link/linktest"
	"github.com/purelb/purelb-operator/nodeagent/neigh"
	"github.com/purelb/purelb-operator/nodeagent/plan"
	"github.com/purelb/purelb-operator/nodeagent/watch"
	"github.com/purelb/purelb-operator/test/seeds"
)

// portExchange is the Exchange of a port.
type portExchange struct{ *port }

func (x portExchange) SendEcho(addr, _ netip.Addr, station neigh.MAC, number uint16) error {
	for _, o := range x.others() {
		if o.mac == station {
			time.AfterFunc(delay, func() {
				if o.has(addr) {
					x.noteAnswer(neigh.ExchangeAnswer{Sequence: number, IsEcho: true, Addr: addr, MAC: o.mac})
				}
			})
		}
	}
	return nil
}

func (x portExchange) Drain(heard func(neigh.ExchangeAnswer)) error {
	x.mu.Lock()
	answers := x.answers
	x.answers = nil
	x.mu.Unlock()
	for _, h := range answers {
		heard(h)
	}
	return nil
}

func (portExchange) Close() error { return nil }

// failover is a segment with node1, which holds 192.0.2.1 under epoch 3, its successors node2, the first
// one, and node3, and node4, which has no Announcement with standby. There is no manager.
type failover struct {
	*segment
	t     *testing.T
	nodes []*world
	// mayClaim says which nodes may have the address that had it not when they were cut off, and cutOffAt
	// when that was.
	mayClaim [4]bool
	cutOffAt [4]time.Time
	log      []string
}

var claimedAddr = netip.MustParseAddr(claimed)

func nodeNamed(i int) purelbv1.StandbyNode {
	return purelbv1.StandbyNode{
		NodeName: fmt.Sprintf("node%d", i), Addresses: []string{fmt.Sprintf("192.0.2.%d", 10+i)}, MACs: []string{
			neigh.MAC{2, 0, 0, 0, 1, byte(i)}.String(),
		},
	}
}

// newFailover makes a failover with the epochs that are reserved for the first and the second successor.
func newFailover(t *testing.T, isFresh bool, firstEpoch, secondEpoch int64) *failover {
	f := &failover{segment: &segment{}, t: t, mayClaim: [4]bool{true, true, true, true}}
	successors := []purelbv1.Successor{{NodeName: "node2", Epoch: firstEpoch}, {NodeName: "node3", Epoch: secondEpoch}}
	for i := 1; i <= 4; i++ {
		self := nodeNamed(i)
		ann := announcementOf(self.NodeName)
		ann.Spec.NodeName = self.NodeName
		w := newWorld(t, settings(), ann)
		w.kernel.Strip("eth0", netip.MustParsePrefix("192.0.2.11/24"))
		w.kernel.Put(plan.Address{
			Interface: "eth0", Prefix: netip.MustParsePrefix(self.Addresses[0] + "/24"), Valid: plan.Forever,
			Preferred: plan.Forever,
		})
		w.NodeName = self.NodeName
		switch i {
		case 1:
			w.edit("node1", func(s *purelbv1.AnnouncementSpec) {
				s.Addresses = []purelbv1.AnnouncedAddress{
					local(claimed, func(a *purelbv1.AnnouncedAddress) { a.Epoch, a.Successors, a.PreviousMACs = 3, successors, nil }),
				}
				s.Successors = []purelbv1.StandbyNode{nodeNamed(2), nodeNamed(3)}
			})
		case 2, 3:
			other := nodeNamed(5 - i)
			standby := announcementOf(self.NodeName + "-standby")
			standby.Spec.NodeName = self.NodeName
			standby.Spec.Standby = &purelbv1.Standby{
				Watched: nodeNamed(1), Interface: "eth0", Witnesses: []purelbv1.StandbyNode{other, nodeNamed(4)},
				OtherSuccessors: []purelbv1.StandbyNode{other},
				Addresses: []purelbv1.StandbyAddress{
					{Address: claimed, ServiceGroup: "default", Epoch: 3, Successors: successors},
				},
			}
			if err := w.Client.Create(t.Context(), standby); err != nil {
				t.Fatal(err)
			}
		}
		f.connect(w, neigh.MAC{2, 0, 0, 0, 1, byte(i)})
		go func() {
			for isFresh && t.Context().Err() == nil {
				w.freshness.noteRenewed(time.Now())
				select {
				case <-t.Context().Done():
				case <-time.After(time.Second):
				}
			}
		}()
		f.nodes = append(f.nodes, w)
	}
	return f
}

func (f *failover) note(format string, args ...any) {
	f.log = append(f.log, time.Now().Format("04:05.000 ")+fmt.Sprintf(format, args...))
}

// holders are the nodes on the link that have the address.
func (f *failover) holders() []string {
	var names []string
	for i, p := range f.ports {
		if !p.isCutOff && p.has(claimedAddr) {
			names = append(names, fmt.Sprintf("node%d", i+1))
		}
	}
	return names
}

// setCutOff cuts a node off the link, or ends that.
func (f *failover) setCutOff(i int, isCutOff bool) {
	f.mu.Lock()
	f.ports[i].isCutOff = isCutOff
	f.mu.Unlock()
	_, yields := f.nodes[i].defender.heldAndYields()
	_, isYielded := yields[claimedAddr]
	f.mayClaim[i] = !isCutOff || isYielded || f.ports[i].has(claimedAddr)
	f.cutOffAt[i] = time.Now()
	f.note("node%d is cut off: %v", i+1, isCutOff)
}

// run lets time pass, and returns after how much of it the holders changed last. A node that is cut off
// may keep the address, claim an address again that it has yielded, and end the round in which it was cut
// off.
func (f *failover) run(d time.Duration) (settled time.Duration) {
	before := f.holders()
	begun := time.Now()
	for time.Since(begun) < d {
		time.Sleep(5 * time.Millisecond)
		if now := f.holders(); !slices.Equal(now, before) {
			f.note("%v have it", now)
			before, settled = now, time.Since(begun)
		}
		for i, p := range f.ports[:len(f.nodes)] {
			if f.mayClaim[i] || !p.has(claimedAddr) {
				continue
			}
			if time.Since(f.cutOffAt[i]) > watch.DefaultInterval+50*time.Millisecond {
				f.t.Errorf("node%d claims although it is cut off", i+1)
			}
			f.mayClaim[i] = true
		}
	}
	return settled
}

// Nodes are cut off the link and come back, without an API server or a manager. Who is cut off before
// it claims, claims nothing; a second after the link is whole again, one node has the address. This test
// shows the row "it is cut off its link and comes back while no manager works" of docs/trust.md.
func TestFaultSilentNodes(t *testing.T) {
	seed, worst := seeds.First(t), time.Duration(0)
	rounds := 60
	if testing.Short() { // with the race detector: the gate plays all of them without it, too
		rounds /= 10
	}
	for round := range rounds {
		isFresh, isDead := round%2 == 0, round%3 == 0
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, uint64(round)))
			f := newFailover(t, isFresh, 4, 5)
			f.run(15*time.Second + time.Duration(random.Int64N(int64(time.Second))))
			for range 1 + random.IntN(6) {
				i := random.IntN(3)
				f.setCutOff(i, !f.ports[i].isCutOff)
				f.run(time.Duration(random.Int64N(int64(3 * time.Second))))
			}
			for i := range 3 {
				f.setCutOff(i, i == 0 && isDead)
			}
			settled := f.run(15 * time.Second)
			worst = max(worst, settled)
			if holders := f.holders(); len(holders) != 1 || settled > time.Second {
				t.Errorf("round %d, fresh %v: after %s %v have it", round, isFresh, settled, holders)
			}
			if t.Failed() {
				t.Fatal(strings.Join(f.log, "\n"))
			}
		})
	}
	t.Logf("one node has it after %s at the latest", worst)
}

// mustSettle lets time pass, and fails the test unless one node, and no other, has the address in the end,
// and the holders changed last between atLeast and atMost from now.
func (f *failover) mustSettle(what string, i int, d, atLeast, atMost time.Duration) {
	f.t.Helper()
	settled, want := f.run(d), []string{fmt.Sprintf("node%d", i+1)}
	if got := f.holders(); !slices.Equal(got, want) || settled < atLeast || settled > atMost {
		f.t.Fatalf("%s: %v have it after %s, want %v after %s to %s\n%s",
			what, got, settled, want, atLeast, atMost, strings.Join(f.log, "\n"))
	}
}

// The node that held the address dies, and later the successor that has claimed it, with cuts before and
// between, and without an API server or a manager. The other successor has the address after five misses,
// and the delay of its rank, and not before. When all are back, the successor with the higher epoch has it. This
// test shows the row "it dies, and the node that has claimed its addresses does, too" of docs/trust.md.
func TestFaultSecondNodeDies(t *testing.T) {
	seed := seeds.First(t)
	rounds := 60
	if testing.Short() {
		rounds /= 10
	}
	for round := range rounds {
		isFresh, epochs := round%2 == 0, []int64{4, 5}
		if round%4 < 2 {
			slices.Reverse(epochs)
		}
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, uint64(round)))
			upTo := func(d time.Duration) time.Duration { return time.Duration(random.Int64N(int64(d))) }
			f := newFailover(t, isFresh, epochs[0], epochs[1])
			f.run(15*time.Second + upTo(time.Second))
			f.setCutOff(0, true)
			for range random.IntN(4) {
				f.run(upTo(2 * time.Second))
				i := 1 + random.IntN(2)
				f.setCutOff(i, !f.ports[i].isCutOff)
			}
			for i := range 2 {
				f.setCutOff(1+i, false)
			}
			f.run(time.Second)
			first := 1
			if f.ports[2].has(claimedAddr) {
				first = 2
			}
			other := 3 - first
			f.mustSettle("the first one has died", first, 2*time.Second, 0, 0)
			for range random.IntN(3) {
				f.setCutOff(first, true)
				f.run(upTo(350 * time.Millisecond))
				f.setCutOff(first, false)
				f.run(2*watch.DefaultInterval + upTo(time.Second))
			}
			f.mustSettle("it was cut off for a moment", first, time.Second, 0, 0)

			_, yields := f.nodes[other].defender.heldAndYields()
			atLeast := 5*watch.DefaultInterval + time.Duration(other-1)*200*time.Millisecond
			if _, hasYielded := yields[claimedAddr]; hasYielded {
				atLeast = 0 // it asks each 100 ms
			}
			f.setCutOff(first, true)
			f.mustSettle("the second one has died", other, 3*time.Second+upTo(10*time.Second), atLeast, 850*time.Millisecond)

			highest := 1
			if epochs[1] > epochs[0] {
				highest = 2
			}
			back := []int{0, first}
			random.Shuffle(len(back), func(i, j int) { back[i], back[j] = back[j], back[i] })
			f.setCutOff(back[0], false)
			f.run(upTo(2 * time.Second))
			f.setCutOff(back[1], false)
			f.mustSettle("all are back", highest, 10*time.Second, 0, time.Second)
		})
	}
}

// Of two nodes and a gateway, without an API server or a manager, one dies, or the other is cut off.
func TestTwoNodesAndAGateway(t *testing.T) {
	gateway := netip.MustParseAddr("192.0.2.254") // as newWorld says
	for name, c := range map[string]struct {
		cutOff     int
		hasGateway bool
		want       []string
	}{
		"the holder dies":                     {0, true, []string{"node2"}},
		"the successor is cut off":            {1, true, []string{"node1"}},
		"the holder dies, and has no gateway": {0, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFailover(t, true, 4, 5)
				for i := 2; i < 4; i++ { // node3 and node4 do not exist
					f.setCutOff(i, true)
				}
				f.nodes[1].edit("node2-standby", func(s *purelbv1.AnnouncementSpec) { s.Standby.Witnesses = nil })
				kernel := linktest.New(plan.NetworkInterface{Name: "eth0", IsUp: true})
				if c.hasGateway {
					kernel.Put(plan.Address{Interface: "eth0", Prefix: netip.PrefixFrom(gateway, 24), Valid: plan.Forever})
				}
				f.mu.Lock()
				f.ports = append(f.ports, &port{segment: f.segment, mac: neigh.MAC{2, 0, 0, 0, 1, 254}, kernel: kernel})
				f.mu.Unlock()
				f.run(15 * time.Second)
				f.setCutOff(c.cutOff, true)
				f.run(15 * time.Second)
				if got := f.holders(); !slices.Equal(got, c.want) {
					t.Errorf("%v have it, want %v\n%s", got, c.want, strings.Join(f.log, "\n"))
				}
			})
		})
	}
}
