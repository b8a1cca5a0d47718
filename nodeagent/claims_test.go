package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/nodeagent/neigh"
	"github.com/purelb/purelb-operator/nodeagent/plan"
	"github.com/purelb/purelb-operator/nodeagent/watch"
)

var node2MAC, node3MAC = oldHolder, stranger

// linkedNeighbours are neighbours whose answers an Exchange hears, too.
type linkedNeighbours struct {
	*neighbours
	x *memoryExchange
}

// Ask is answered at once by the station that has the address.
func (n linkedNeighbours) Ask(q neigh.Question) error {
	n.x.mu.Lock()
	if mac, answers := n.x.stations[q.Addr]; answers {
		n.x.heard = append(n.x.heard, neigh.ExchangeAnswer{Addr: q.Addr, MAC: mac, IsDirectAnswer: true})
	}
	n.x.mu.Unlock()
	return n.neighbours.Ask(q)
}

// claiming is a world whose agent watches node2, which has 192.0.2.1 under epoch 3: epoch 4 is
// reserved for this node. node3 is the witness, and the other successor.
type claiming struct {
	*world
	x *memoryExchange
}

const claimed = "192.0.2.1"

func newClaiming(t *testing.T, checkpoint string, edit ...func(*purelbv1.StandbyAddress)) *claiming {
	t.Helper()
	standby := standbyFor("eth0", node2MAC, node3MAC)
	for _, e := range edit {
		e(&standby.Spec.Standby.Addresses[0])
	}
	standby.Spec.Standby.OtherSuccessors = standby.Spec.Standby.Witnesses
	w := &claiming{
		newWorld(t, settings(), announcementOf("node1"), standby), &memoryExchange{stations: map[netip.Addr]neigh.MAC{}},
	}
	w.Neighbours, w.CheckpointPath = linkedNeighbours{w.neighbours, w.x}, checkpoint
	w.OpenExchange = func(string) (Exchange, error) { return w.x, nil }
	w.prepare()
	w.loadCheckpoint()
	return w
}

// start starts the agent, and returns a function that ends it.
func (w *claiming) start(isFresh bool) (stop func()) {
	ctx, stop := context.WithCancel(w.t.Context())
	for _, start := range []func() error{
		func() error { return w.watching.Start(ctx) }, func() error { return w.defender.Start(ctx) }, func() error {
			return w.announcer.Start(ctx)
		},
		func() error { return w.reporter.Start(ctx) }, func() error { return w.checkpointSaver.Start(ctx) },
	} {
		go func() { _ = start() }()
	}
	go func() {
		for isFresh && ctx.Err() == nil {
			w.freshness.noteRenewed(time.Now())
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}()
	if w.state.objects.isFromCheckpoint {
		pacing.Signal(w.wake)
		go func() { _ = w.Start(ctx) }()
	} else {
		go w.work(ctx)
	}
	return stop
}

// setStation makes a node answer for its own address and for the claimed one, or be silent.
func (w *claiming) setStation(own string, mac neigh.MAC, isAlive, hasClaimed bool) {
	w.x.unset(own)
	if isAlive {
		w.x.set(own, mac)
	}
	w.x.unset(claimed)
	w.neighbours.unset(claimed)
	if isAlive && hasClaimed {
		w.x.set(claimed, mac)
		w.neighbours.set(claimed, mac)
	}
}

// watch lets node2 be watched, and returns between two rounds, so that it is certain which of them sees
// first what happens next.
func (w *claiming) watch() {
	w.x.set("192.0.2.13", node3MAC)
	w.setStation("192.0.2.12", node2MAC, true, true)
	time.Sleep(10*time.Second + watch.DefaultInterval/2)
}

// claim lets node2 be watched, and die, and returns once this node has claimed its address.
func (w *claiming) claim() {
	w.t.Helper()
	w.watch()
	w.expect("changes while node2 is alive", []string(nil), w.kernel.TakeCalls())
	w.setStation("192.0.2.12", node2MAC, false, false)
	time.Sleep(700 * time.Millisecond)
	w.expect("changes once node2 is dead", []string{"Add 192.0.2.1/32 eth0"}, w.kernel.TakeCalls())
	w.expect("announcements at once", 1, len(w.neighbours.heard()))
}

// change lets the manager change something, and the agent do what follows.
func (w *claiming) change(what string, change func(), want ...string) {
	w.t.Helper()
	time.Sleep(3 * time.Second)
	w.kernel.TakeCalls()
	change()
	pacing.Signal(w.wake)
	time.Sleep(3 * time.Second)
	w.expect("changes: "+what, want, w.kernel.TakeCalls())
}

func (w *claiming) deleteStandby() {
	if err := w.Client.Delete(w.t.Context(), standbyFor("eth0", node2MAC, node3MAC)); err != nil {
		w.t.Fatal(err)
	}
}

// A dead node's address is added and announced although every request to the API server hangs. When
// the API server answers, the claim is reported. The manager adopts it without a gap.
func TestClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newClaiming(t, "")
		w.start(true)
		time.Sleep(5 * time.Second)
		w.made()
		w.fail(errHanging)
		w.heartbeatLists <- listRequest{timeout: time.Hour}
		pacing.Signal(w.listsChanged)
		w.claim()
		w.expect("requests that were answered", []string(nil), w.made())
		time.Sleep(2 * time.Second)
		w.expect("announcements", 3, len(w.neighbours.heard()))
		w.expect("questions before it was added", [][]string(nil), w.neighbours.probes)
		w.fail(nil)
		time.Sleep(2 * hangs) // the requests end
		w.expect("state", "192.0.2.1 Announced", w.states("node1-standby"))
		status := w.get("node1-standby").Status.Addresses[0]
		w.expect("status", purelbv1.AddressStatus{
			Address: claimed, State: purelbv1.StateAnnounced, Epoch: 4, Interface: "eth0",
			Message:            "node2 had not answered for 600ms",
			LastTransitionTime: status.LastTransitionTime,
		}, status)
		w.expect("states of the other Announcement", "", w.states("node1"))

		announced := len(w.neighbours.heard())
		w.change("adopted", func() {
			w.edit("node1", func(s *purelbv1.AnnouncementSpec) {
				s.Addresses = []purelbv1.AnnouncedAddress{
					local(claimed, takeover, func(a *purelbv1.AnnouncedAddress) { a.Epoch = 4 }),
				}
			})
		})
		w.expect("state", "192.0.2.1 Announced", w.states("node1"))
		w.change("no successor any more", w.deleteStandby)
		w.expect("announcements", announced, len(w.neighbours.heard()))
		w.change(
			"asked for no more", func() { w.edit("node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses = nil }) },
			"Remove 192.0.2.1/32 eth0",
		)
	})
}

// The second successor claims later, and at once when its time has come.
func TestSecondSuccessorClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newClaiming(t, "", func(a *purelbv1.StandbyAddress) {
			a.Successors = []purelbv1.Successor{{NodeName: "node3", Epoch: 4}, {NodeName: "node1", Epoch: 5}}
		})
		w.start(true)
		w.watch()
		w.setStation("192.0.2.12", node2MAC, false, false)
		time.Sleep(650 * time.Millisecond)
		w.expect("changes in the time of the first successor", []string(nil), w.kernel.TakeCalls())
		time.Sleep(250 * time.Millisecond)
		w.expect("changes then", []string{"Add 192.0.2.1/32 eth0"}, w.kernel.TakeCalls())
	})
}

// A claim that the manager refuses is withdrawn.
func TestRefusedClaim(t *testing.T) {
	for name, refuse := range map[string]func(*claiming){
		"another node has the address": (*claiming).deleteStandby,
		"the holder has a higher epoch": func(w *claiming) {
			w.edit("node1-standby", func(s *purelbv1.AnnouncementSpec) { s.Standby.Addresses[0].Epoch = 5 })
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newClaiming(t, "")
				w.start(true)
				w.claim()
				w.change(name, func() { refuse(w) }, "Remove 192.0.2.1/32 eth0")
			})
		})
	}
}

// hangingKernel lets the worker wait for what it observes.
type hangingKernel struct {
	Kernel
	hangsFor atomic.Int64
}

func (k *hangingKernel) Observe() (plan.Observed, error) {
	time.Sleep(time.Duration(k.hangsFor.Load()))
	return k.Kernel.Observe()
}

// A worker that is busy takes a claim late: not at all if the node has answered meanwhile, and otherwise only after
// it has asked the link once more.
func TestClaimOfBusyWorker(t *testing.T) {
	for name, c := range map[string]struct {
		isBack  bool
		changes []string
		probes  int
	}{
		"the node is back": {true, nil, 0},
		"it is dead":       {false, []string{"Add 192.0.2.1/32 eth0"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newClaiming(t, "")
				kernel := &hangingKernel{Kernel: w.kernel}
				w.Kernel = kernel
				w.start(true)
				w.watch()
				w.kernel.TakeCalls()
				kernel.hangsFor.Store(int64(4 * time.Second))
				pacing.Signal(w.wake)
				w.setStation("192.0.2.12", node2MAC, false, false)
				time.Sleep(2 * time.Second)
				w.setStation("192.0.2.12", node2MAC, c.isBack, c.isBack)
				time.Sleep(time.Second)
				kernel.hangsFor.Store(0)
				time.Sleep(5 * time.Second)
				w.expect("changes", c.changes, w.kernel.TakeCalls())
				w.expect("probes", c.probes, len(w.neighbours.probes))
			})
		})
	}
}

// A gateway that answers for every address keeps nobody from claiming one.
func TestClaimBehindProxy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newClaiming(t, "")
		gateway := neigh.MAC{2, 0, 0, 0, 0, 0xfe}
		w.kernel.AddGatewayMAC("eth0", gateway.String())
		w.start(true)
		w.watch()
		w.kernel.TakeCalls()
		w.setStation("192.0.2.12", node2MAC, false, false)
		w.x.set(claimed, gateway)
		time.Sleep(700 * time.Millisecond)
		w.expect("changes", []string{"Add 192.0.2.1/32 eth0"}, w.kernel.TakeCalls())
	})
}

// claimInVain lets node2 be watched, and die, while the kernel refuses its address.
func (w *claiming) claimInVain() {
	w.watch()
	w.kernel.Refuse(netip.MustParseAddr(claimed), errors.New("refused"))
	w.setStation("192.0.2.12", node2MAC, false, false)
	time.Sleep(3 * time.Second)
}

// A claim that the kernel refuses is reported.
func TestClaimFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newClaiming(t, "")
		w.start(true)
		w.claimInVain()
		w.expect("state", "192.0.2.1 Failed AddFailed", w.states("node1-standby"))
	})
}

// A claim that the kernel refuses is over when the node answers again: the address is not taken in the node's next
// pause, but once it is dead.
func TestFailedClaimEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newClaiming(t, "")
		w.start(true)
		w.claimInVain()
		w.setStation("192.0.2.12", node2MAC, true, true)
		time.Sleep(3 * time.Second)
		w.expect("state", "", w.states("node1-standby"))
		w.kernel.TakeCalls()
		w.kernel.Refuse(netip.MustParseAddr(claimed), nil)
		for _, silence := range []struct {
			lasts time.Duration
			want  []string
		}{{300 * time.Millisecond, nil}, {700 * time.Millisecond, []string{"Add 192.0.2.1/32 eth0"}}} {
			w.setStation("192.0.2.12", node2MAC, false, false)
			pacing.Signal(w.wake)
			time.Sleep(silence.lasts)
			w.expect("changes after "+silence.lasts.String(), silence.want, w.kernel.TakeCalls())
			w.setStation("192.0.2.12", node2MAC, true, true)
			time.Sleep(3 * time.Second)
		}
	})
}

// An agent that starts while the API server is away goes on with what it had claimed, watches again,
// and repeats the claim when the node answers from which it claimed the address.
func TestClaimSurvivesRestart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "agent.json")
	synctest.Test(t, func(t *testing.T) {
		w := newClaiming(t, file)
		stop := w.start(true)
		w.claim()
		time.Sleep(2 * time.Second)
		kernel := w.kernel
		stop()
		synctest.Wait()
		for _, name := range []string{"the process", "the node"} {
			isLost := name == "the node"
			next := newClaiming(t, file)
			if !isLost {
				next.kernel, next.Kernel = kernel, kernel
			}
			next.fail(errors.New("away"))
			stop = next.start(false)
			next.x.set("192.0.2.13", node3MAC)
			time.Sleep(150 * time.Second)
			calls := strings.Join(next.kernel.TakeCalls(), ", ")
			want := "Renew 192.0.2.1/32 eth0"
			if isLost {
				want = "Add 192.0.2.1/32 eth0, " + want
				next.expect("questions before it was added", [][]string{{claimed}}, next.neighbours.probes)
			}
			next.expect("changes when "+name+" has ended", want, calls)
			before := len(next.neighbours.heard())
			next.setStation("192.0.2.12", node2MAC, true, false)
			time.Sleep(300 * time.Millisecond)
			next.expect("claims when node2 answers", before+1, len(next.neighbours.heard()))
			next.setStation("192.0.2.12", node2MAC, false, false)
			if reason := next.reasonFor("node2"); reason != "Watching" && reason != "NoWitness" {
				t.Errorf("it watches again: %s", reason)
			}
			stop()
			synctest.Wait()
		}
	})
}

// A silent node that answers again hears the claim at once.
func TestClaimIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newClaiming(t, "")
		w.start(true)
		w.claim()
		time.Sleep(20 * time.Second)
		before := len(w.neighbours.heard())
		w.setStation("192.0.2.12", node2MAC, true, true)
		time.Sleep(300 * time.Millisecond)
		if got := len(w.neighbours.heard()); got == before {
			t.Error("the claim is not repeated")
		}
		time.Sleep(10 * time.Second)
		w.expect("changes", []string(nil), w.kernel.TakeCalls())
	})
}

// Of two successors that have claimed an address the one with the higher epoch keeps it.
func TestOtherSuccessorClaims(t *testing.T) {
	for name, c := range map[string]struct {
		epoch int64
		want  []string
	}{
		"a higher epoch": {5, []string{"Remove 192.0.2.1/32 eth0"}},
		"a lower epoch":  {2, nil},
	} {
		for _, isFresh := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, fresh %v", name, isFresh), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newClaiming(t, "", func(a *purelbv1.StandbyAddress) {
						a.Successors = append(a.Successors, purelbv1.Successor{NodeName: "node3", Epoch: c.epoch})
					})
					w.start(isFresh)
					w.claim()
					time.Sleep(2 * time.Second)
					w.neighbours.set(claimed, node3MAC)
					w.x.set(claimed, node3MAC)
					before := len(w.neighbours.heard())
					w.neighbours.claim(claimed, node3MAC)
					time.Sleep(2 * time.Second)
					w.expect("changes", c.want, w.kernel.TakeCalls())
					if isRepeated := len(w.neighbours.heard()) > before; isRepeated != (c.want == nil) {
						t.Errorf("it repeats the claim: %v", isRepeated)
					}
					if c.want == nil {
						return
					}
					w.expect("state", "192.0.2.1 Yielded Yielded"+node3MAC.String(), w.states("node1-standby"))
					w.setStation("192.0.2.13", node3MAC, false, false)
					w.x.set("192.0.2.13", node3MAC) // its address is gone, or another node is there
					time.Sleep(2 * time.Second)
					w.expect("changes once node3 has it no more", []string{"Add 192.0.2.1/32 eth0"}, w.kernel.TakeCalls())
				})
			})
		}
	}
}

// holding is a world whose node holds 192.0.2.1, for which node2 is a successor.
func holding(t *testing.T, edit ...func(*purelbv1.AnnouncedAddress)) *world {
	t.Helper()
	w := defended(t, append(edit, func(a *purelbv1.AnnouncedAddress) {
		a.Successors = []purelbv1.Successor{{NodeName: "node2", Epoch: 2}}
	})...)
	w.edit("node1", func(s *purelbv1.AnnouncementSpec) {
		s.Successors = []purelbv1.StandbyNode{{
			NodeName: "node2", MACs: []string{node2MAC.String()}, Addresses: []string{"192.0.2.12"},
		}}
	})
	w.freshness.noteRenewed(time.Now())
	w.settle()
	w.kernel.TakeCalls()
	return w
}

// A holder that was cut off hears that its successor has claimed the address: it yields though it is
// fresh, if the successor's kernel has the address, and claims it again when that one is silent.
func TestHolderYieldsToItsSuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := holding(t)
		w.neighbours.claim(claimed, node2MAC) // and does not answer
		time.Sleep(200 * time.Millisecond)
		w.settle()
		w.expect("changes while nobody answers", []string(nil), w.kernel.TakeCalls())
		w.neighbours.set(claimed, node2MAC)
		w.neighbours.claim(claimed, node2MAC)
		time.Sleep(200 * time.Millisecond)
		w.expect("changes", []string{"Remove 192.0.2.1/32 eth0"}, w.kernel.TakeCalls())
		w.freshness.noteRenewed(time.Now())
		w.settle()
		w.expect("state", "192.0.2.1 Yielded Yielded"+node2MAC.String(), w.states("node1"))
		w.neighbours.unset(claimed)
		for range 10 {
			w.freshness.noteRenewed(time.Now())
			time.Sleep(100 * time.Millisecond)
			w.settle()
		}
		w.expect("changes once node2 is silent", []string{"Add 192.0.2.1/32 eth0"}, w.kernel.TakeCalls())
	})
}

// The manager asks the holder to look whether another node has the address. The status follows when
// the agent knows.
func TestContestedHolder(t *testing.T) {
	yielded, removed := "192.0.2.1 Yielded Yielded"+node2MAC.String(), []string{"Remove 192.0.2.1/32 eth0"}
	for name, c := range map[string]struct {
		stations map[string]neigh.MAC
		want     string
		changes  []string
	}{
		"the other node has it":         {map[string]neigh.MAC{claimed: node2MAC}, yielded, removed},
		"the other node has it not":     {map[string]neigh.MAC{"192.0.2.12": node2MAC}, "192.0.2.1 Announced", nil},
		"the gateway answers":           {map[string]neigh.MAC{"192.0.2.254": stranger}, "192.0.2.1 Announced", nil},
		"nobody on the link answers it": {nil, yielded, removed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := holding(t)
				for address, mac := range c.stations {
					w.neighbours.set(address, mac)
				}
				w.edit("node1", func(s *purelbv1.AnnouncementSpec) {
					s.Addresses[0].ContestedBy = &purelbv1.Successor{NodeName: "node2", Epoch: 2}
				})
				generation := w.get("node1").Generation
				if _, err := w.once(); err != nil {
					t.Fatal(err)
				}
				w.expect(
					"generation of the report before the other node is asked", generation-1, w.get("node1").Status.ObservedGeneration,
				)
				for range 3 {
					time.Sleep(200 * time.Millisecond)
					w.freshness.noteRenewed(time.Now())
					w.settle()
				}
				w.expect("generation of the report", generation, w.get("node1").Status.ObservedGeneration)
				w.expect("state", c.want, w.states("node1"))
				w.expect("changes", c.changes, w.kernel.TakeCalls())
			})
		})
	}
}

// reasonFor returns how the node watches another one.
func (w *claiming) reasonFor(node string) string {
	w.watching.mu.Lock()
	defer w.watching.mu.Unlock()
	for key, watcher := range w.watching.links["eth0"].watchers {
		if key.Node == node {
			return watcher.Reason()
		}
	}
	return ""
}
