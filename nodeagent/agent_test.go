package nodeagent

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

func TestAnnounce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(
			t, settings(), announcementOf("node1", local("192.0.2.1"), local("192.0.2.2", takeover), virtual("198.51.100.1")),
		)
		w.freshness.noteRenewed(time.Now())
		go func() { _ = w.announcer.Start(t.Context()) }()

		again, err := w.reconcile()
		if err != nil || again != 100*time.Second {
			t.Errorf("again in %v, %v", again, err)
		}
		// Takeover does not wait for the probe of another address.
		w.expect("changes", []string{
			"EnsureVirtual kube-lb0", "Add 192.0.2.2/32 eth0", "Add 198.51.100.1/32 kube-lb0", "Add 192.0.2.1/32 eth0",
		}, w.kernel.TakeCalls())
		w.expect("probes", [][]string{{"192.0.2.1"}}, w.neighbours.probes)
		w.expect("states", "192.0.2.1 Announced, 192.0.2.2 Announced, 198.51.100.1 Announced", w.states("node1"))
		status := w.get("node1").Status
		w.expect("facts", []purelbv1.NodeInterface{{
			Name: "eth0", MAC: "02:00:00:00:00:0a", Subnets: []string{"192.0.2.11/24"},
			DefaultRoute: []purelbv1.IPFamily{"IPv4"}, Gateways: []string{"192.0.2.254"},
		}}, status.Interfaces)
		w.expect("Ready", metav1.ConditionTrue, status.Conditions[0].Status)

		time.Sleep(10 * time.Second)
		w.expect("announcements", []string{
			"192.0.2.2 eth0 0s", "192.0.2.1 eth0 200ms", "192.0.2.2 eth0 500ms", "192.0.2.1 eth0 700ms", "192.0.2.2 eth0 1s",
			"192.0.2.1 eth0 1.2s",
		}, w.neighbours.heard())

		// Once it is done nothing is done, nor written.
		w.made()
		if again, err = w.reconcile(); err != nil || again != 90*time.Second {
			t.Errorf("again in %v, %v", again, err)
		}
		w.expect("changes once done", []string(nil), w.kernel.TakeCalls())
		w.expect("requests once done", []string(nil), w.made())

		// Renewing is neither claimed nor announced.
		time.Sleep(again)
		if _, err = w.reconcile(); err != nil {
			t.Error(err)
		}
		w.expect("renewals", []string{"Renew 192.0.2.1/32 eth0", "Renew 192.0.2.2/32 eth0"}, w.kernel.TakeCalls())
		time.Sleep(10 * time.Second)
		w.expect("announcements after renewal", 6, len(w.neighbours.heard()))
		w.expect("requests after renewal", []string(nil), w.made())
	})
}

func TestAdopt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1", local("192.0.2.1"), virtual("198.51.100.1")))
		if _, err := w.reconcile(); err != nil {
			t.Fatal(err)
		}
		w.kernel.TakeCalls()

		// Another process, the same kernel.
		next := newWorld(t, settings(), announcementOf("node1", local("192.0.2.1", takeover), virtual("198.51.100.1")))
		next.Kernel = w.kernel
		go func() { _ = next.announcer.Start(t.Context()) }()
		if _, err := next.reconcile(); err != nil {
			t.Error(err)
		}
		time.Sleep(10 * time.Second)
		w.expect("changes", []string(nil), w.kernel.TakeCalls())
		w.expect("probes", [][]string(nil), next.neighbours.probes)
		w.expect("announcements", []string(nil), next.neighbours.heard())
		w.expect("states", "192.0.2.1 Announced, 198.51.100.1 Announced", next.states("node1"))
	})
}

// An empty Announcement withdraws everything.
func TestWithdraw(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(
			t, settings(), announcementOf("node1", local("192.0.2.1")), announcementOf("node1-b", virtual("198.51.100.1")),
		)
		go func() { _ = w.announcer.Start(t.Context()) }()
		if _, err := w.reconcile(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // announced, once
		w.kernel.TakeCalls()
		for _, name := range []string{"node1", "node1-b"} {
			w.edit(name, func(s *purelbv1.AnnouncementSpec) { s.Addresses = nil })
		}
		if _, err := w.reconcile(); err != nil {
			t.Error(err)
		}
		w.expect("changes", []string{"Remove 192.0.2.1/32 eth0", "Remove 198.51.100.1/32 kube-lb0"}, w.kernel.TakeCalls())
		w.expect("states", "", w.states("node1")+w.states("node1-b"))
		time.Sleep(10 * time.Second)
		w.expect("announcements", 1, len(w.neighbours.heard())) // the first, before the withdrawal
	})
}

// An address that is handed over right after it was added is not announced again: the other node may have announced it
// meanwhile.
func TestHandedOverIsNotAnnouncedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1", local("192.0.2.1"), local("192.0.2.2")))
		go func() { _ = w.announcer.Start(t.Context()) }()
		w.reconcileOrFail()
		synctest.Wait() // announced, once each
		w.edit("node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses[0].HandingOver = true })
		w.reconcileOrFail()
		time.Sleep(10 * time.Second)
		w.expect("announcements", []string{
			"192.0.2.1 eth0 200ms", "192.0.2.2 eth0 200ms", "192.0.2.2 eth0 700ms", "192.0.2.2 eth0 1.2s",
		}, w.neighbours.heard())
	})
}

// While nothing is known the agent renews the lifetimes of its addresses, and does no more.
func TestKeepWhileNothingIsKnown(t *testing.T) {
	for name, objects := range map[string][]client.Object{
		"no Announcement": {settings()},
		"another node's Announcement": {
			settings(),
			&purelbv1.Announcement{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "node2"},
				Spec:       purelbv1.AnnouncementSpec{NodeName: "node2"},
			},
		},
		"an Announcement, but no LBNodeAgent": {announcementOf("node1")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, objects...)
				put := func(iface, prefix string, lifetime time.Duration, ours bool) {
					w.kernel.Put(plan.Address{
						Interface: iface, Prefix: netip.MustParsePrefix(prefix), IsOurs: ours, Valid: lifetime, Preferred: lifetime,
					})
				}
				put("eth0", "192.0.2.1/32", 250*time.Second, true)
				put("eth0", "192.0.2.2/32", 200*time.Second, false)
				put("eth0", "192.0.2.3/32", plan.Forever, true)

				again, err := w.reconcile()
				if err != nil || again != 50*time.Second {
					t.Errorf("again in %v, %v", again, err)
				}
				w.expect("changes", []string(nil), w.kernel.TakeCalls())
				for range 10 {
					time.Sleep(again)
					if again, err = w.reconcile(); err != nil || again != 100*time.Second {
						t.Errorf("again in %v, %v", again, err)
					}
					w.expect("renewals", []string{"Renew 192.0.2.1/32 eth0"}, w.kernel.TakeCalls())
				}
				w.expect("requests", []string(nil), w.made())
				w.expect("probes", [][]string(nil), w.neighbours.probes)
				w.expect("announcements", []string(nil), w.neighbours.heard())

				w.kernel.Refuse(netip.MustParseAddr("192.0.2.1"), errors.New("refused"))
				time.Sleep(again)
				if _, err = w.reconcile(); err == nil {
					t.Error("a renewal that failed is not tried again")
				}
			})
		})
	}
}

func TestAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1", local("192.0.2.1"), local("192.0.2.2"), local("192.0.2.3")))
		w.neighbours.set("192.0.2.1", oldHolder)
		w.neighbours.set("192.0.2.2", stranger)
		again, err := w.reconcile()
		if err != nil || again != time.Second {
			t.Errorf("again in %v, %v", again, err)
		}
		w.expect("changes", []string{"Add 192.0.2.3/32 eth0"}, w.kernel.TakeCalls())
		w.expect(
			"states",
			"192.0.2.1 Waiting PreviousHolder02:00:00:00:00:01, 192.0.2.2 Conflict Answered02:00:00:00:00:02, 192.0.2.3 "+
				"Announced",
			w.states("node1"),
		)

		// As long as nothing changes nothing is written.
		w.made()
		probes := len(w.neighbours.probes)
		for range 10 {
			time.Sleep(again)
			if again, err = w.reconcile(); err != nil || again != time.Second {
				t.Errorf("again in %v, %v", again, err)
			}
		}
		w.expect("requests", []string(nil), w.made())
		w.expect("probes", 10, len(w.neighbours.probes)-probes)

		// Silence is claimed.
		w.neighbours.unset("192.0.2.1")
		time.Sleep(again)
		if _, err = w.reconcile(); err != nil {
			t.Error(err)
		}
		w.expect("changes on silence", []string{"Add 192.0.2.1/32 eth0"}, w.kernel.TakeCalls())

		// A takeover does not wait.
		w.edit("node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses[1].ClaimPolicy = purelbv1.ClaimTakeover })
		w.freshness.noteRenewed(time.Now())
		if _, err = w.reconcile(); err != nil {
			t.Error(err)
		}
		w.expect("changes on takeover", []string{"Add 192.0.2.2/32 eth0"}, w.kernel.TakeCalls())
		w.expect("states in the end", "192.0.2.1 Announced, 192.0.2.2 Announced, 192.0.2.3 Announced", w.states("node1"))

		// The takeover counts once: the node loses the address with the link, asks for it like for
		// any other when the link is back, and a station that answers keeps it, however often the
		// node asks.
		w.kernel.SetLinkUp("eth0", false)
		w.kernel.Strip("eth0", netip.MustParsePrefix("192.0.2.2/32"))
		if _, err = w.reconcile(); err != nil {
			t.Error(err)
		}
		w.kernel.SetLinkUp("eth0", true)
		for range 3 {
			if _, err = w.reconcile(); err != nil {
				t.Error(err)
			}
			time.Sleep(plan.ReprobeInterval)
		}
		w.expect("changes after it was lost", []string(nil), w.kernel.TakeCalls())
		w.expect(
			"states after it was lost", "192.0.2.1 Announced, 192.0.2.2 Conflict Lost02:00:00:00:00:02, 192.0.2.3 Announced",
			w.states("node1"),
		)
	})
}

// An agent that is not fresh takes nothing over.
func TestTakeoverWhileNotFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1", local("192.0.2.1", takeover)))
		w.neighbours.set("192.0.2.1", oldHolder)
		w.freshness.noteRenewed(time.Now())
		w.freshness.setPeriod(w.list())
		time.Sleep(2*time.Second + time.Millisecond)
		if _, err := w.reconcile(); err != nil {
			t.Error(err)
		}
		w.expect("states", "192.0.2.1 Waiting PreviousHolder02:00:00:00:00:01", w.states("node1"))
	})
}

// What fails with one address does not stop the others, and is retried.
func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1",
			local("192.0.2.1"), local("192.0.2.2"), local("192.0.2.3", takeover), virtual("198.51.100.1")))
		w.freshness.noteRenewed(time.Now())
		go func() { _ = w.announcer.Start(t.Context()) }()
		refused := errors.New("refused")
		w.kernel.Refuse(netip.MustParseAddr("192.0.2.3"), refused)
		w.neighbours.broken["192.0.2.1"] = refused
		if _, err := w.reconcile(); !errors.Is(err, refused) {
			t.Errorf("not retried: %v", err)
		}
		w.expect(
			"states", "192.0.2.1 Failed ProbeFailed, 192.0.2.2 Announced, 192.0.2.3 Failed AddFailed, 198.51.100.1 Announced",
			w.states("node1"),
		)
		time.Sleep(10 * time.Second)
		w.expect(
			"announcements", []string{"192.0.2.2 eth0 200ms", "192.0.2.2 eth0 700ms", "192.0.2.2 eth0 1.2s"},
			w.neighbours.heard(),
		)

		// What cannot be withdrawn is not reported as withdrawn.
		w.kernel.Refuse(netip.MustParseAddr("192.0.2.2"), refused)
		w.edit("node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses = s.Addresses[3:] })
		if _, err := w.reconcile(); !errors.Is(err, refused) {
			t.Errorf("not retried: %v", err)
		}
		w.expect(
			"states after a withdrawal failed", "192.0.2.2 Announced WithdrawFailed, 198.51.100.1 Announced", w.states("node1"),
		)
		w.kernel.Refuse(netip.MustParseAddr("192.0.2.2"), nil)
		if _, err := w.reconcile(); err != nil {
			t.Error(err)
		}
		w.expect("states in the end", "198.51.100.1 Announced", w.states("node1"))
	})
}

// The agent puts a stripped address back at once, whether or not it is fresh: it was listening all
// the time. For an address that it did not hold until now it asks the link.
func TestStripped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1", local("192.0.2.1"), virtual("198.51.100.1")))
		w.reconcileOrFail()
		w.kernel.TakeCalls()
		strip := func() {
			w.kernel.Strip("eth0", netip.MustParsePrefix("192.0.2.1/32"))
			w.kernel.Strip("kube-lb0", netip.MustParsePrefix("198.51.100.1/32"))
		}
		strip()
		start := time.Now()
		w.reconcileOrFail()
		w.expect("time", time.Duration(0), time.Since(start))
		w.expect("changes", []string{"Add 192.0.2.1/32 eth0", "Add 198.51.100.1/32 kube-lb0"}, w.kernel.TakeCalls())
		w.expect("probes", 1, len(w.neighbours.probes))

		// A claim of a new epoch is one of an address that it did not have.
		strip()
		w.edit("node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses[0].Epoch = 2 })
		w.reconcileOrFail()
		w.expect("probes of the next epoch", 2, len(w.neighbours.probes))
		// So is one after a restart.
		strip()
		next := newWorld(t, settings(), announcementOf("node1", local("192.0.2.1")))
		next.Kernel = w.kernel
		next.reconcileOrFail()
		w.expect("probes after a restart", [][]string{{"192.0.2.1"}}, next.neighbours.probes)
	})
}

// The agent is stopped for longer than its addresses last, and has another go at its work as if nothing
// had happened: it asks the link for what the kernel has removed meanwhile, as another node may have
// it. This test shows the row "its agent is stopped for longer than its addresses last" of
// docs/trust.md.
func TestFaultStoppedForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1", local("192.0.2.1")))
		w.reconcileOrFail()
		w.kernel.TakeCalls()
		time.Sleep(plan.SettingsOf(settings()).Local.Valid + time.Second)
		w.reconcileOrFail()
		w.expect("probes", [][]string{{"192.0.2.1"}, {"192.0.2.1"}}, w.neighbours.probes)
	})
}

// A program on the node removes the addresses whenever it sees them, for ten seconds: the agent
// neither works nor reports each time, and the addresses are back when the program has ended.
func TestFaultStrippedWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1", local("192.0.2.1"), virtual("198.51.100.1")))
		w.reconcileOrFail()
		w.kernel.TakeCalls()
		w.made()
		var wait time.Duration
		for range 400 {
			w.kernel.Strip("eth0", netip.MustParsePrefix("192.0.2.1/32"))
			w.kernel.Strip("kube-lb0", netip.MustParsePrefix("198.51.100.1/32"))
			wait = w.reconcileOrFail()
			time.Sleep(25 * time.Millisecond)
		}
		added := map[string]int{}
		for _, call := range w.kernel.TakeCalls() {
			added[call]++
		}
		w.expect("changes", map[string]int{"Add 192.0.2.1/32 eth0": 12, "Add 198.51.100.1/32 kube-lb0": 12}, added)
		w.expect("requests", []string{"apply status"}, w.made())
		w.expect(
			"states", "192.0.2.1 Announced RepeatedlyRemoved, 198.51.100.1 Announced RepeatedlyRemoved", w.states("node1"),
		)
		w.expect("probes", 1, len(w.neighbours.probes))
		time.Sleep(wait)
		w.reconcileOrFail()
		w.expect(
			"changes in the end", []string{"Add 192.0.2.1/32 eth0", "Add 198.51.100.1/32 kube-lb0"}, w.kernel.TakeCalls(),
		)
	})
}

// An Announcement that asks for addresses is deleted, while another is there: nothing is
// withdrawn until the manager has made it anew, for 15 s at the most.
func TestFaultMissingAnnouncement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1", local("192.0.2.1")),
			announcementOf("node1-b", local("192.0.2.2"), local("192.0.2.3"), virtual("198.51.100.1")))
		w.reconcileOrFail()
		w.kernel.TakeCalls()
		if err := w.Client.Delete(t.Context(), announcementOf("node1-b")); err != nil {
			t.Fatal(err)
		}
		w.expect("decides again in", 15*time.Second, w.reconcileOrFail())
		w.expect("changes", []string(nil), w.kernel.TakeCalls())
		w.expect("is not defended", true, w.held(netip.MustParseAddr("192.0.2.2")).IsUndefended)

		// However often it syncs meanwhile; then what was not given back is withdrawn.
		w.edit("node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses = append(s.Addresses, local("192.0.2.2")) })
		time.Sleep(13 * time.Second)
		w.reconcileOrFail()
		w.expect("changes meanwhile", []string(nil), w.kernel.TakeCalls())
		w.expect("states meanwhile", "192.0.2.1 Announced, 192.0.2.2 Announced", w.states("node1"))
		time.Sleep(2 * time.Second)
		w.reconcileOrFail()
		w.expect(
			"changes in the end", []string{"Remove 192.0.2.3/32 eth0", "Remove 198.51.100.1/32 kube-lb0"}, w.kernel.TakeCalls(),
		)
		w.expect("states in the end", "192.0.2.1 Announced, 192.0.2.2 Announced", w.states("node1"))
	})
}

// While no Announcement is there at all, nothing is withdrawn; nor for 15 s after the manager has
// made an empty one.
func TestFaultAllAnnouncementsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1", virtual("198.51.100.1")))
		w.reconcileOrFail()
		w.kernel.TakeCalls()
		if err := w.Client.Delete(t.Context(), announcementOf("node1")); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			w.reconcileOrFail()
			time.Sleep(time.Minute)
		}
		anew := announcementOf("node1")
		anew.UID = "another"
		if err := w.Client.Create(t.Context(), anew); err != nil {
			t.Fatal(err)
		}
		w.expect("decides again in", 15*time.Second, w.reconcileOrFail())
		w.expect("changes", []string(nil), w.kernel.TakeCalls())
		time.Sleep(15 * time.Second)
		w.reconcileOrFail()
		w.expect("changes in the end", []string{"Remove 198.51.100.1/32 kube-lb0"}, w.kernel.TakeCalls())
	})
}

// The Announcement is deleted that says that the node announces the shared entries: nothing of
// them is withdrawn for a while.
func TestFaultMissingSharedEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := announcementOf("node1")
		first.Spec.IncludeCommonAnnouncements = true
		w := newWorld(
			t, settings(), first, announcementOf("node1-b", local("192.0.2.1")),
			commonAnnouncementOf("default", 3, virtual("198.51.100.1")),
		)
		w.reconcileOrFail()
		w.kernel.TakeCalls()
		if err := w.Client.Delete(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		w.expect("decides again in", 15*time.Second, w.reconcileOrFail())
		time.Sleep(14 * time.Second)
		w.reconcileOrFail()
		w.expect("changes", []string(nil), w.kernel.TakeCalls())
		anew := announcementOf("node1")
		anew.Spec.IncludeCommonAnnouncements = true
		if err := w.Client.Create(t.Context(), anew); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		w.reconcileOrFail()
		w.expect("changes when it is back", []string(nil), w.kernel.TakeCalls())
		w.expect("revision when it is back", "3, 1 of 1", w.realisedRevision("node1"))
		if err := w.Client.Delete(t.Context(), anew); err != nil {
			t.Fatal(err)
		}
		w.reconcileOrFail()
		time.Sleep(15 * time.Second)
		w.reconcileOrFail()
		w.expect("changes in the end", []string{"Remove 198.51.100.1/32 kube-lb0"}, w.kernel.TakeCalls())
	})
}

// The agent repairs what the kernel has while the API server is away.
func TestRepairWhileAPIServerIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1", local("192.0.2.1")))
		if _, err := w.reconcile(); err != nil {
			t.Fatal(err)
		}
		w.kernel.TakeCalls()
		w.fail(errors.New("away"))
		w.kernel.Strip("eth0", netip.MustParsePrefix("192.0.2.1/32"))
		if _, err := w.reconcile(); err != nil { // its state did not change: no status to write
			t.Error(err)
		}
		w.expect("changes", []string{"Add 192.0.2.1/32 eth0"}, w.kernel.TakeCalls())
	})
}

// A link that is down is not reported, so that another node gets its addresses;
// until the manager says so they stay.
func TestLinkDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1", local("192.0.2.1")))
		if _, err := w.reconcile(); err != nil {
			t.Fatal(err)
		}
		facts := w.get("node1").Status.Interfaces
		w.expect("facts", 1, len(facts))
		w.kernel.TakeCalls()

		w.kernel.SetLinkUp("eth0", false)
		w.fail(errors.New("away")) // by the only link
		if _, err := w.reconcile(); err == nil {
			t.Error("what could not be reported is not tried again")
		}
		w.fail(nil)
		time.Sleep(maxBackoff)
		if _, err := w.reconcile(); err != nil {
			t.Error(err)
		}
		down := facts[0]
		down.Down = true
		w.expect("facts while down", []purelbv1.NodeInterface{down}, w.get("node1").Status.Interfaces)
		w.expect("states while down", "192.0.2.1 Announced", w.states("node1"))
		w.made()
		if _, err := w.reconcile(); err != nil {
			t.Error(err)
		}
		w.expect("requests while down", []string(nil), w.made())

		w.kernel.SetLinkUp("eth0", true)
		if _, err := w.reconcile(); err != nil {
			t.Error(err)
		}
		w.expect("facts when up again", facts, w.get("node1").Status.Interfaces)
		w.expect("changes", []string(nil), w.kernel.TakeCalls())
	})
}

// An agent that is about to go removes the virtual interface, but not before it
// has nothing to announce.
func TestVirtualInterfaceOfLeavingNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1", virtual("198.51.100.1")), announcementOf("node1-b"))
		w.edit("node1-b", func(s *purelbv1.AnnouncementSpec) { s.AgentLeaving = true })
		for step, want := range [][]string{
			{"EnsureVirtual kube-lb0", "Add 198.51.100.1/32 kube-lb0"},
			nil,
			{"Remove 198.51.100.1/32 kube-lb0", "RemoveVirtual kube-lb0"},
			nil,
		} {
			w.edit("node1", func(s *purelbv1.AnnouncementSpec) {
				s.AgentLeaving = step > 0
				if step > 1 {
					s.Addresses = nil
				}
			})
			if _, err := w.reconcile(); err != nil {
				t.Error(err)
			}
			w.expect(fmt.Sprintf("changes in step %d", step), want, w.kernel.TakeCalls())
		}
		w.expect("states", "", w.states("node1"))
	})
}

// Another virtual interface takes the first one's place.
func TestVirtualInterfaceChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1", virtual("198.51.100.1")))
		w.reconcileOrFail()
		w.kernel.TakeCalls()
		agent := settings()
		if err := w.Client.Get(t.Context(), client.ObjectKeyFromObject(agent), agent); err != nil {
			t.Fatal(err)
		}
		agent.Spec.Local = &purelbv1.LBNodeAgentLocal{DummyInterface: "kube-lb1"}
		if err := w.Client.Update(t.Context(), agent); err != nil {
			t.Fatal(err)
		}
		w.reconcileOrFail()
		w.expect("changes while the first is in use", []string(nil), w.kernel.TakeCalls())
		w.edit("node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses[0].Interface = "kube-lb1" })
		w.reconcileOrFail()
		w.expect("changes", []string{
			"EnsureVirtual kube-lb1", "Remove 198.51.100.1/32 kube-lb0", "Add 198.51.100.1/32 kube-lb1",
			"RemoveVirtual kube-lb0",
		}, w.kernel.TakeCalls())
		w.expect("states", "198.51.100.1 Announced", w.states("node1"))
	})
}

// The agent does nothing about an Announcement for the agent of another LBNodeAgent.
func TestAnnouncementOfAnotherLBNodeAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1", local("192.0.2.1")))
		if _, err := w.reconcile(); err != nil {
			t.Fatal(err)
		}
		w.kernel.TakeCalls()
		w.made()
		w.edit("node1", func(s *purelbv1.AnnouncementSpec) {
			s.LBNodeAgent, s.Addresses = "another", []purelbv1.AnnouncedAddress{virtual("198.51.100.1")}
		})
		if _, err := w.reconcile(); err != nil {
			t.Error(err)
		}
		w.expect("changes", []string(nil), w.kernel.TakeCalls())
		w.expect("requests", []string(nil), w.made())
	})
}

func commonAnnouncementOf(
	name string, revision int64, addresses ...purelbv1.AnnouncedAddress,
) *purelbv1.CommonAnnouncement {
	for i := range addresses {
		addresses[i].Epoch = revision
	}
	return &purelbv1.CommonAnnouncement{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Generation: 1},
		Spec:       purelbv1.CommonAnnouncementSpec{LBNodeAgent: "default", Revision: revision, Addresses: addresses},
	}
}

// realisedRevision returns up to which revision a node reports the shared entries as realised, and
// how many of the desired addresses as announced.
func (w *world) realisedRevision(name string) string {
	w.t.Helper()
	status := w.get(name).Status
	if status.CommonAnnouncementsRevision == nil {
		return fmt.Sprintf("none, %d of %d", status.Announced, status.Desired)
	}
	return fmt.Sprintf("%d, %d of %d", *status.CommonAnnouncementsRevision, status.Announced, status.Desired)
}

// The node announces the shared entries while its Announcement says so, and its status lists only
// those that are not announced.
func TestSharedEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		another := commonAnnouncementOf("another", 9, virtual("198.51.100.9"))
		another.Spec.LBNodeAgent = "another"
		w := newWorld(t, settings(), announcementOf("node1", local("192.0.2.1")), another,
			commonAnnouncementOf("default", 3, virtual("198.51.100.1"), virtual("198.51.100.2")),
			commonAnnouncementOf("default-b", 4, virtual("198.51.100.3")))
		w.reconcileOrFail()
		w.expect("changes while it does not announce them", []string{"Add 192.0.2.1/32 eth0"}, w.kernel.TakeCalls())
		w.expect("revision", "none, 1 of 1", w.realisedRevision("node1"))

		w.edit("node1", func(s *purelbv1.AnnouncementSpec) { s.IncludeCommonAnnouncements = true })
		refuse := func(address string, err error) { w.kernel.Refuse(netip.MustParseAddr(address), err) }
		refuse("198.51.100.2", errors.New("no"))
		_, _ = w.reconcile()
		refuse("198.51.100.2", nil)
		w.expect("states", "192.0.2.1 Announced, 198.51.100.2 Failed AddFailed", w.states("node1"))
		w.expect("revision", "4, 3 of 4", w.realisedRevision("node1"))
		time.Sleep(time.Second)
		w.reconcileOrFail()
		w.expect("states when all are there", "192.0.2.1 Announced", w.states("node1"))
		w.expect("revision when all are there", "4, 4 of 4", w.realisedRevision("node1"))
		w.expect(
			"columns", "198.51.100.1,198.51.100.2,198.51.100.3 test/far,test/kuard",
			w.get("node1").Status.VirtualAddresses+" "+w.get("node1").Status.Services,
		)
		w.kernel.TakeCalls()

		// A CommonAnnouncement is deleted: its addresses stay until the manager has made it anew.
		if err := w.Client.Delete(t.Context(), commonAnnouncementOf("default-b", 4)); err != nil {
			t.Fatal(err)
		}
		w.reconcileOrFail()
		w.expect("changes when one was deleted", []string(nil), w.kernel.TakeCalls())
		if err := w.Client.Create(t.Context(), commonAnnouncementOf("default-b", 5, virtual("198.51.100.3"))); err != nil {
			t.Fatal(err)
		}
		time.Sleep(6 * time.Second)
		w.reconcileOrFail()
		w.expect("changes when it is back", []string(nil), w.kernel.TakeCalls())
		w.expect("revision when it is back", "5, 4 of 4", w.realisedRevision("node1"))

		// The node is not to announce them any more: one address cannot be withdrawn at first.
		w.edit("node1", func(s *purelbv1.AnnouncementSpec) { s.IncludeCommonAnnouncements = false })
		refuse("198.51.100.1", errors.New("busy"))
		_, _ = w.reconcile()
		refuse("198.51.100.1", nil)
		w.expect(
			"states when one cannot be withdrawn", "192.0.2.1 Announced, 198.51.100.1 Announced WithdrawFailed",
			w.states("node1"),
		)
		time.Sleep(time.Second)
		w.reconcileOrFail()
		w.expect("states in the end", "192.0.2.1 Announced", w.states("node1"))
		w.expect("revision in the end", "none, 1 of 1", w.realisedRevision("node1"))
	})
}

// Where there are many nodes they do not all report the shared entries at once; a node reports its
// own entries at once.
func TestReportSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ann, common := announcementOf("node1"), commonAnnouncementOf("default", 1, virtual("198.51.100.1"))
		ann.Spec.IncludeCommonAnnouncements, common.Spec.ReportSpreadSeconds = true, 5
		w := newWorld(t, settings(), ann, common)
		w.reconcileOrFail()
		w.expect("revision first reported", "1, 1 of 1", w.realisedRevision("node1"))
		change := func(revision int64, addresses ...purelbv1.AnnouncedAddress) {
			next := commonAnnouncementOf("default", revision, addresses...)
			next.Spec.ReportSpreadSeconds = 5
			if err := w.Client.Get(t.Context(), client.ObjectKeyFromObject(next), common); err != nil {
				t.Fatal(err)
			}
			next.ResourceVersion = common.ResourceVersion
			if err := w.Client.Update(t.Context(), next); err != nil {
				t.Fatal(err)
			}
		}
		change(2, virtual("198.51.100.1"), virtual("198.51.100.2"))
		wait := w.reconcileOrFail()
		w.expect("revision at once", "1, 1 of 1", w.realisedRevision("node1"))
		w.expect("waits for up to 5 s", true, wait > 0 && wait <= 5*time.Second)
		time.Sleep(wait / 2)
		change(3, virtual("198.51.100.1"), virtual("198.51.100.2"), virtual("198.51.100.3"))
		w.expect("waits no longer for the next", wait-wait/2, w.reconcileOrFail())
		time.Sleep(wait - wait/2)
		w.reconcileOrFail()
		w.expect("revision then", "3, 3 of 3", w.realisedRevision("node1"))

		change(4, virtual("198.51.100.1"))
		w.reconcileOrFail()
		w.edit("node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses = append(s.Addresses, local("192.0.2.1")) })
		w.reconcileOrFail()
		w.expect("revision with what is its own", "4, 2 of 2", w.realisedRevision("node1"))
	})
}

// If more shared entries fail than a status can list, the node reports that no revision is realised.
func TestSharedEntriesNotRealised(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var many []purelbv1.AnnouncedAddress
		for i := range 101 {
			many = append(many, virtual(fmt.Sprintf("198.51.100.%d", i)))
		}
		ann := announcementOf("node1")
		ann.Spec.IncludeCommonAnnouncements = true
		w := newWorld(
			t, settings(), ann, commonAnnouncementOf("default", 7, many[:50]...),
			commonAnnouncementOf("default-b", 8, many[50:]...),
		)
		for _, a := range many {
			w.kernel.Refuse(netip.MustParseAddr(a.Address), errors.New("no"))
		}
		_, _ = w.reconcile()
		w.expect("revision", "0, 0 of 101", w.realisedRevision("node1"))
		w.expect("states listed", 100, len(w.get("node1").Status.Addresses))
		for _, a := range many {
			w.kernel.Refuse(netip.MustParseAddr(a.Address), nil)
		}
		time.Sleep(time.Second)
		w.reconcileOrFail()
		w.expect("revision in the end", "8, 101 of 101", w.realisedRevision("node1"))
		w.expect("states in the end", "", w.states("node1"))
	})
}
