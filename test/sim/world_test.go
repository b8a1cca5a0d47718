package sim_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/purelb/purelb-operator/nodeagent/neigh"
	"github.com/purelb/purelb-operator/test/sim"
)

// play plays something in a world of a seed, and returns its story.
func play(t *testing.T, seed uint64, do func(w *sim.World)) string {
	t.Helper()
	var story strings.Builder
	synctest.Test(t, func(*testing.T) { do(sim.NewWorld(seed, &story)) })
	return story.String()
}

// What happens does so at its time, in the order of times, and not if it is cancelled.
func TestOrder(t *testing.T) {
	story := play(t, 1, func(w *sim.World) {
		w.After(2*time.Second, func() { w.Tell("b", "second") })
		cancelled := w.After(time.Second, func() { w.Tell("c", "cancelled") })
		w.After(time.Second, func() {
			w.Tell("a", "first, of %d", 2)
			w.After(0, func() { w.Tell("a", "at once") })
			cancelled.Cancel()
		})
		w.After(4*time.Second, func() { w.Tell("d", "not reached") })
		cancelled.Cancel()
		w.Run(3 * time.Second)
		w.Tell("end", "")
	})
	want := "    1.000000  a          first, of 2\n    1.000000  a          at once\n    2.000000  b          second\n  " +
		"  3.000000  end        \n"
	if story != want {
		t.Errorf("got\n%swant\n%s", story, want)
	}
}

// babble has stations that send to each other, by way of a link that loses and delays.
func babble(w *sim.World) {
	link := w.NewLink()
	link.Loss = 0.1
	var ports []*sim.Port
	for i := range 4 {
		mac := neigh.MAC{2, 0, 0, 0, 0, byte(i + 1)}
		var port *sim.Port
		port = link.Connect(fmt.Sprint("station", i), func(frame []byte) {
			w.Tell(fmt.Sprint("station", i), "hears %x", frame)
			if w.Chance(0.5) {
				port.Send(slices.Concat(frame[6:12], mac[:], []byte{byte(w.Pick(256))}))
			}
		})
		ports = append(ports, port)
	}
	for i, port := range ports {
		port.Send([]byte{255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, byte(i + 1)})
	}
	w.Run(time.Second)
}

// The same seed tells the same story, and another seed another one.
func TestSameSeedSameStory(t *testing.T) {
	first := play(t, 7, babble)
	for range 20 {
		if again := play(t, 7, babble); again != first {
			t.Fatalf("one seed tells\n%sand\n%s", first, again)
		}
	}
	if other := play(t, 8, babble); other == first {
		t.Error("another seed tells the same")
	}
	if strings.Count(first, "\n") < 10 {
		t.Errorf("a short story:\n%s", first)
	}
}

// Every order of what happens at one moment comes about.
func TestOrderOfOneMoment(t *testing.T) {
	orders := map[string]int{}
	for seed := range uint64(300) {
		orders[play(t, seed, func(w *sim.World) {
			for _, who := range []string{"a", "b", "c"} {
				w.After(time.Second, func() { w.Tell(who, "") })
			}
			w.Run(time.Second)
		})]++
	}
	if len(orders) != 6 {
		t.Errorf("%d orders: %v", len(orders), orders)
	}
}

// A switch sends to the one port behind which a station is, once it has heard of it, and to all before.
func TestLink(t *testing.T) {
	play(t, 1, func(w *sim.World) {
		link := w.NewLink()
		var ports []*sim.Port
		var heard []string
		for _, name := range []string{"a", "b", "c"} {
			ports = append(ports, link.Connect(name, func([]byte) { heard = append(heard, name) }))
		}
		frame := func(to, from byte) []byte { return []byte{2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from} }
		expect := func(what, want string) {
			t.Helper()
			w.Run(time.Second)
			slices.Sort(heard)
			if got := strings.Join(heard, ""); got != want {
				t.Errorf("%s: heard by %q, want %q", what, got, want)
			}
			heard = nil
		}
		ports[0].Send(frame(2, 1))
		expect("nobody has been heard of", "bc")
		ports[1].Send(frame(1, 2))
		expect("a was heard of", "a")
		ports[0].Send(frame(2, 1))
		expect("b was heard of", "b")
		link.Forget()
		ports[0].Send(frame(2, 1))
		expect("the switch has forgotten", "bc")
		ports[2].Send(frame(1, 2))
		expect("b has moved to c's port", "a")
		ports[0].Send(frame(2, 1))
		expect("and is heard there", "c")
		link.Cut(ports[0], ports[2], true)
		ports[0].Send([]byte{255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 1})
		expect("cut one way", "b")
		ports[2].Send(frame(1, 2))
		expect("and not the other", "a")
		link.Cut(ports[0], ports[2], false)
		link.Split(ports[:1], true)
		ports[0].Send([]byte{255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 1})
		ports[1].Send([]byte{255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 3})
		expect("split", "c")
		link.Split(ports[:1], false)
		ports[1].IsDown = true
		ports[0].Send([]byte{255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 1})
		ports[1].Send([]byte{255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 3})
		expect("down", "c")
	})
}

// What a station answers to a frame that all hear gets to none before that frame.
func TestLinkKeepsOrder(t *testing.T) {
	for seed := range uint64(100) {
		play(t, seed, func(w *sim.World) {
			link := w.NewLink()
			var heard []byte
			link.Connect("client", func(frame []byte) { heard = append(heard, frame[11]) })
			asker := link.Connect("asker", func([]byte) {})
			var owner *sim.Port
			toAll := []byte{255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0}
			owner = link.Connect("owner", func([]byte) { owner.Send(append(slices.Clone(toAll), 2)) })
			asker.Send(append(slices.Clone(toAll), 1))
			w.Run(time.Second)
			if !slices.Equal(heard, []byte{1, 2}) {
				t.Errorf("seed %d: the client hears of %v", seed, heard)
			}
		})
	}
}

// Real frames of the product cross the link.
func TestFramesOfTheProduct(t *testing.T) {
	play(t, 1, func(w *sim.World) {
		link := w.NewLink()
		var got []neigh.Message
		link.Connect("b", func(frame []byte) {
			message, err := neigh.ParseMessage(frame)
			if err != nil {
				t.Error(err)
			}
			got = append(got, message)
		})
		a := neigh.MAC{2, 0, 0, 0, 0, 1}
		frame, err := neigh.GratuitousARP(a, netip.MustParseAddr("192.0.2.1"))
		if err != nil {
			t.Fatal(err)
		}
		link.Connect("a", func([]byte) {}).Send(frame)
		w.Run(time.Second)
		if len(got) != 1 || got[0].MAC != a || !got[0].IsGratuitous {
			t.Errorf("heard %v", got)
		}
	})
}
