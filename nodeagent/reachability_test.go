package nodeagent

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/neigh"
)

// askingFor is an Announcement that asks node1 to find out about an address of node2, in turns
// with node3.
func askingFor(epoch int64) *purelbv1.Announcement {
	ann := announcementOf("node1-asking")
	ann.Spec.NodeName = "node1"
	ann.Spec.Asking = &purelbv1.Asking{
		Holder: purelbv1.StandbyNode{
			NodeName: "node2", Addresses: []string{"192.0.2.12"}, MACs: []string{oldHolder.String()},
		},
		Interface: "eth0",
		Askers: []purelbv1.StandbyNode{
			{NodeName: "node1", Addresses: []string{"192.0.2.11"}},
			{NodeName: "node3", Addresses: []string{"192.0.2.13"}, MACs: []string{stranger.String()}},
		},
		Addresses: []purelbv1.AskedAddress{{Address: "192.0.2.1", Epoch: epoch, Services: []string{"test/web"}}},
	}
	return ann
}

func (w *world) reachabilityOf(name string) string {
	found := w.get(name).Status.Reachability
	if len(found) != 1 {
		return ""
	}
	return string(found[0].Reachable) + " " + found[0].Reason
}

func TestReachability(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1"), askingFor(3))
		w.prepare()
		go func() { _ = w.reachability.Start(t.Context()) }()
		expect := func(what string, after time.Duration, want string) {
			t.Helper()
			time.Sleep(after)
			if _, err := w.reconcile(); err != nil {
				t.Fatal(err)
			}
			if got := w.reachabilityOf("node1-asking"); got != want {
				t.Fatalf("%s: %s, want %s", what, got, want)
			}
		}
		for address, mac := range map[string]neigh.MAC{
			"192.0.2.1": oldHolder, "192.0.2.12": oldHolder, "192.0.2.13": stranger,
		} {
			w.neighbours.set(address, mac)
		}
		expect("at first", 0, "Unknown NotAsked")
		if got := w.readyOf("node1-asking"); got != "True Asking" {
			t.Errorf("Ready is %s", got)
		}
		expect("node2 answers", 2*time.Second, "True Answered")
		w.made()
		for range 30 {
			time.Sleep(10 * time.Second)
			if _, err := w.reconcile(); err != nil {
				t.Fatal(err)
			}
		}
		w.expect("requests while all is well, in five minutes", []string(nil), w.made())

		w.neighbours.unset("192.0.2.1")
		expect("the address is not answered for", 5*time.Minute, "False NoAnswer")
		w.neighbours.unset("192.0.2.12")
		expect("node2 is silent", 5*time.Minute, "False HolderSilent")
		w.neighbours.unset("192.0.2.13")
		expect("everything is silent", 5*time.Minute, "Unknown NoWitness")
		w.neighbours.mu.Lock()
		w.neighbours.broken = map[string]error{"192.0.2.1": errors.New("no carrier")}
		w.neighbours.mu.Unlock()
		expect("there is no carrier", 5*time.Minute, "Unknown NotAsked")
		w.neighbours.set("192.0.2.1", oldHolder)
		expect("node2 answers again", 5*time.Minute, "True Answered")

		if probes := w.neighbours.probes; len(probes) == 0 {
			t.Error("nothing was asked")
		}
		if heard := w.neighbours.heard(); len(heard) > 0 {
			t.Errorf("who only asks announces %v", heard)
		}
	})
}

// Without an Announcement with asking the agent asks for no address of another node.
func TestReachabilityOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1"))
		w.prepare()
		go func() { _ = w.reachability.Start(t.Context()) }()
		for range 10 {
			if _, err := w.reconcile(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
		}
		if probes := w.neighbours.probes; len(probes) > 0 {
			t.Errorf("asks %v", probes)
		}
	})
}
