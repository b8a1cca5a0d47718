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
					x.noteAnswer(neigh.Heard{Number: number, IsEcho: true, Addr: addr, MAC: o.mac})
				}
			})
		}
	}
	return nil
}

func (x portExchange) Drain(heard func(neigh.Heard)) error {
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

// failover is a segment with node1, which holds 192.0.2.1 under epoch 3, its successors node2 and
// node3, and node4, which has no agent. There is no manager.
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
		NodeName: fmt.Sprintf("node%d", i), Addresses: []string{fmt.Sprintf("192.0.2.%d", 10+i)}, MACs: []string{neigh.MAC{2, 0, 0, 0, 1, byte(i)}.String()},
	}
}

func newFailover(t *testing.T, isFresh bool) *failover {
	f := &failover{segment: &segment{}, t: t, mayClaim: [4]bool{true, true, true, true}}
	successors := []purelbv1.Successor{{NodeName: "node2", Epoch: 4}, {NodeName: "node3", Epoch: 5}}
	for i := 1; i <= 4; i++ {
		self := nodeNamed(i)
		ann := announcementOf(self.NodeName)
		ann.Spec.NodeName = self.NodeName
		w := newWorld(t, settings(), ann)
		w.kernel.Strip("eth0", netip.MustParsePrefix("192.0.2.11/24"))
		w.kernel.Put(plan.Address{Interface: "eth0", Prefix: netip.MustParsePrefix(self.Addresses[0] + "/24"), Valid: plan.Forever, Preferred: plan.Forever})
		w.NodeName = self.NodeName
		switch i {
		case 1:
			w.edit("node1", func(s *purelbv1.AnnouncementSpec) {
				s.Addresses = []purelbv1.AnnouncedAddress{local(claimed, func(a *purelbv1.AnnouncedAddress) { a.Epoch, a.Successors, a.PreviousMACs = 3, successors, nil })}
				s.Successors = []purelbv1.StandbyNode{nodeNamed(2), nodeNamed(3)}
			})
		case 2, 3:
			other := nodeNamed(5 - i)
			standby := announcementOf(self.NodeName + "-standby")
			standby.Spec.NodeName = self.NodeName
			standby.Spec.Standby = &purelbv1.Standby{
				Watched: nodeNamed(1), Interface: "eth0", Witnesses: []purelbv1.StandbyNode{other, nodeNamed(4)}, Others: []purelbv1.StandbyNode{other},
				Addresses: []purelbv1.StandbyAddress{{Address: claimed, ServiceGroup: "default", Epoch: 3, Successors: successors}},
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
	var before []string
	begun := time.Now()
	for time.Since(begun) < d {
		time.Sleep(5 * time.Millisecond)
		if now := f.holders(); !slices.Equal(now, before) {
			f.note("%v have it", now)
			before, settled = now, time.Since(begun)
		}
		for i, p := range f.ports {
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
			f := newFailover(t, isFresh)
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

// When the first successor dies, too, the second one claims the address.
func TestSecondFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFailover(t, true)
		for i, want := range []string{"[node1]", "[node2]", "[node3]"} {
			f.run(15 * time.Second)
			if got := fmt.Sprint(f.holders()); got != want {
				t.Fatalf("%s have it, want %s", got, want)
			}
			f.setCutOff(i, true)
		}
	})
}
