package nodeagent

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// checkpointed is a world whose agent has that checkpoint.
func checkpointed(t *testing.T, file string) *world {
	t.Helper()
	w := newWorld(
		t, settings(), announcementOf("node1", local("192.0.2.1", takeover), local("192.0.2.2"), virtual("198.51.100.1")),
	)
	w.CheckpointPath = file
	w.loadCheckpoint()
	return w
}

// An agent that starts while the API server is away does what its checkpoint says.
func TestCheckpoint(t *testing.T) {
	file := filepath.Join(t.TempDir(), "agent.json")
	away := errors.New("away")
	start := func(t *testing.T) *world { return checkpointed(t, file) }
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		w.settle()
		w.neighbours.claim("192.0.2.2", stranger) // nobody listens
		w.yieldTo("192.0.2.2", stranger)
		w.settle()
	})
	text, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(text), "192.0.2.1") {
		t.Fatalf("%s, %v", text, err)
	}

	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		w.fail(away)
		w.kernel.Put(plan.Address{
			Interface: "eth0", Prefix: netip.MustParsePrefix("192.0.2.7/32"), IsOurs: true, NoPrefixRoute: true,
			Valid: 50 * time.Second, Preferred: 50 * time.Second,
		})
		w.neighbours.set("192.0.2.2", stranger)
		w.standIn()
		time.Sleep(plan.ReprobeInterval)
		w.standIn()
		w.expect(
			"changes",
			[]string{
				"EnsureVirtual kube-lb0", "Add 198.51.100.1/32 kube-lb0", "Renew 192.0.2.7/32 eth0", "Add 192.0.2.1/32 eth0",
			},
			w.kernel.TakeCalls(),
		)
		w.expect(
			"probes, not of what was given up to a station that is not silent yet", [][]string{{"192.0.2.1"}},
			w.neighbours.probes,
		)
		w.expect("requests", []string(nil), w.made())
		// It goes on: what is stripped is back, what runs out renewed.
		w.kernel.Strip("kube-lb0", netip.MustParsePrefix("198.51.100.1/32"))
		for range 200 {
			time.Sleep(time.Second)
			w.standIn()
		}
		calls := w.kernel.TakeCalls()
		w.expect("first change", "Add 198.51.100.1/32 kube-lb0", calls[0])
		if all := strings.Join(calls, ","); !strings.Contains(all, "Renew 192.0.2.1/32 eth0") ||
			strings.Contains(all, "Remove") {
			t.Errorf("changes in 200 s: %s", all)
		}

		// The next process knows of an address that is yielded now, too.
		w.yieldTo("192.0.2.1", stranger)
		w.standIn()
		time.Sleep(plan.ReprobeInterval)
		w.standIn()
		_, _ = w.finish()
		next := start(t)
		_, yields := next.defender.heldAndYields()
		w.expect("yields that the next one knows of", 2, len(yields))

		// What the API server says counts.
		w.fail(nil)
		w.edit("node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses = s.Addresses[:1] })
		w.neighbours.unset("192.0.2.2")
		w.freshness.noteListed()
		if err := w.listAndSync(true); err != nil {
			t.Error(err)
		}
		w.kernel.TakeCalls()
		w.standIn()
		w.expect("changes by the checkpoint then", []string(nil), w.kernel.TakeCalls())
	})

	for name, content := range map[string]string{
		"garbage": "{", "another version": `{"version":99}`,
		"another node's":        `{"version":1,"nodeName":"node2","lbNodeAgent":"default"}`,
		"another LBNodeAgent's": `{"version":1,"nodeName":"node1","lbNodeAgent":"other"}`,
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				w := start(t)
				w.fail(away)
				w.standIn()
				w.expect("changes", []string(nil), w.kernel.TakeCalls())
			})
		})
	}
}

// TestContentIDOfYields checks that a checkpoint is written again when anything of it has changed that only this node
// knows: all of a YieldedAddress that it holds, and the epochs of claims.
func TestContentIDOfYields(t *testing.T) {
	addr := netip.MustParseAddr("192.0.2.1")
	idOf := func(y plan.YieldedAddress, claimEpoch int64) contentID {
		yields := map[netip.Addr]plan.YieldedAddress{addr: y}
		claims := map[netip.Addr]plan.Claim{addr: {Epoch: claimEpoch}}
		return contentIDOf(plan.Inputs{LBNodeAgent: settings()}, yields, claims)
	}
	yielded := plan.YieldedAddress{Epoch: 1, MAC: stranger.String(), YieldedAlone: true, Announcement: "a"}
	before := idOf(yielded, 1)
	changes := map[string]func(*plan.YieldedAddress){
		"epoch":        func(y *plan.YieldedAddress) { y.Epoch++ },
		"mac":          func(y *plan.YieldedAddress) { y.MAC = "02:00:00:00:00:99" },
		"isAlone":      func(y *plan.YieldedAddress) { y.YieldedAlone = false },
		"announcement": func(y *plan.YieldedAddress) { y.Announcement = "b" },
	}
	text, err := json.Marshal(yielded)
	if err != nil {
		t.Fatal(err)
	}
	held := map[string]any{}
	if err := json.Unmarshal(text, &held); err != nil {
		t.Fatal(err)
	}
	for name := range held {
		change := changes[name]
		if change == nil {
			t.Errorf("the checkpoint holds %s, which is not tried", name)
			continue
		}
		after := yielded
		change(&after)
		if got := idOf(after, 1); got.known == before.known || got.objects != before.objects {
			t.Errorf("another %s is not written", name)
		}
	}
	if got := idOf(yielded, 2); got.known == before.known {
		t.Error("another claim is not written")
	}
	heardAgain := yielded
	heardAgain.AnsweredAt, heardAgain.Unanswered = time.Now(), 1
	if idOf(heardAgain, 1) != before {
		t.Error("what the checkpoint does not hold is written")
	}
}

// An agent that was away does not take a yield of an earlier entry for one of the entry that the
// manager made meanwhile: the manager knows nothing of the yield, and waits for the node that is
// to take the address over. That the entry is the same the agent sees by its epoch and by the
// Announcement. This test shows the row "its agent is away, or cut off the API server, while a Service
// or its own Announcement is deleted and made anew" of docs/trust.md.
func TestFaultYieldOutlivesEntry(t *testing.T) {
	ofEpoch := func(uid types.UID, epoch int64) *purelbv1.Announcement {
		ann := announcementOf("node1", local("192.0.2.1", takeover, func(a *purelbv1.AnnouncedAddress) { a.Epoch = epoch }))
		ann.UID = uid
		return ann
	}
	for name, c := range map[string]struct {
		later *purelbv1.Announcement
		want  string
	}{
		"the same entry":                  {ofEpoch("first", 5), "192.0.2.1 Yielded Yielded" + stranger.String()},
		"the Service was made anew":       {ofEpoch("first", 2), "192.0.2.1 Announced"},
		"the Announcement was made anew":  {ofEpoch("second", 5), "192.0.2.1 Announced"},
		"the address was handed out anew": {ofEpoch("first", 6), "192.0.2.1 Announced"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "agent.json")
			start := func(t *testing.T, ann *purelbv1.Announcement) *world {
				w := newWorld(t, settings(), ann)
				w.CheckpointPath = file
				w.loadCheckpoint()
				if err := w.listAndSync(true); err != nil {
					t.Fatal(err)
				}
				return w
			}
			synctest.Test(t, func(t *testing.T) {
				w := start(t, ofEpoch("first", 5))
				w.yieldTo("192.0.2.1", stranger)
				w.settle()
				w.expect("state before", "192.0.2.1 Yielded Yielded"+stranger.String(), w.states("node1"))
			})
			synctest.Test(t, func(t *testing.T) {
				w := start(t, c.later)
				w.settle()
				w.expect("state", c.want, w.states("node1"))
				w.expect("epoch of the report", c.later.Spec.Addresses[0].Epoch, w.get("node1").Status.Addresses[0].Epoch)
			})
		})
	}
}

// While the API server is away, too, what is taken off is back at once.
func TestCheckpointMends(t *testing.T) {
	file := filepath.Join(t.TempDir(), "agent.json")
	synctest.Test(t, func(t *testing.T) { checkpointed(t, file).reconcileOrFail() })
	synctest.Test(t, func(t *testing.T) {
		w := checkpointed(t, file)
		w.fail(errors.New("away"))
		go func() { _ = w.watchKernel(t.Context()) }()
		go func() { _ = w.Start(t.Context()) }() // its cache is not filled
		pacing.Signal(w.wake)
		time.Sleep(time.Second / 2) // when the link has been asked
		synctest.Wait()
		w.kernel.TakeCalls()
		// In the order in which a sync adds them: the worker may begin before the second one is off.
		w.kernel.Strip("eth0", netip.MustParsePrefix("192.0.2.1/32"))
		w.kernel.Strip("kube-lb0", netip.MustParsePrefix("198.51.100.1/32"))
		synctest.Wait()
		w.expect("changes", []string{"Add 192.0.2.1/32 eth0", "Add 198.51.100.1/32 kube-lb0"}, w.kernel.TakeCalls())
	})
}

// Changes that come one after the other are written as one.
func TestCheckpointPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1", virtual("198.51.100.1")))
		w.CheckpointPath = filepath.Join(t.TempDir(), "agent.json")
		has := func(address string) bool {
			text, err := os.ReadFile(w.CheckpointPath)
			if err != nil {
				t.Fatal(err)
			}
			return strings.Contains(string(text), address)
		}
		w.reconcileOrFail()
		w.expect("has the first", true, has("198.51.100.1"))
		w.edit("node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses = append(s.Addresses, virtual("198.51.100.2")) })
		w.expect("look again in", checkpointGap, w.reconcileOrFail())
		w.expect("has the second at once", false, has("198.51.100.2"))
		time.Sleep(checkpointGap)
		w.reconcileOrFail()
		w.expect("has the second then", true, has("198.51.100.2"))
	})
}

// Where it cannot be written (a full disk, say), all else goes on.
func TestCheckpointNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1", local("192.0.2.1")))
		w.CheckpointPath = "/dev/full/agent.json"
		w.settle()
		w.expect("state", "192.0.2.1 Announced", w.states("node1"))
	})
}
