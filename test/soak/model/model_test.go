package model

import (
	"slices"
	"testing"
	"time"
)

func lines(seed uint64, n int) []string {
	w := New(seed)
	var all []string
	for i := range n {
		all = append(all, w.Next().String())
		if i%10 == 9 {
			w.Rest()
		}
	}
	return all
}

func TestSeedRepeatsTheSequence(t *testing.T) {
	if !slices.Equal(lines(1, 500), lines(1, 500)) {
		t.Error("the same seed made two sequences")
	}
	if slices.Equal(lines(1, 500), lines(2, 500)) {
		t.Error("two seeds made the same sequence")
	}
}

func TestAllKindsAreChosen(t *testing.T) {
	seen := map[Kind]bool{}
	w := New(3)
	for i := range 3000 {
		seen[w.Next().Kind] = true
		if i%10 == 9 {
			w.Rest()
		}
	}
	for _, kind := range []Kind{
		CutLink, UnplugPort, CutAPI, PowerOff, StopAPI, FreezeAgent, FreezeManager, FreezeKubelet, ReadOnlyDisk, Load,
		KillAgent, KillManager, KillLeader,
		KillKubelet, KillContainerd, StripAddress, DeleteDummy, CreateService, DeleteService, UpdateService, RecreateService,
		ResizeGroup, MoveGroup,
		EditAgent, SecondAgent, NoSecondAgent, SelectSecond, Exclude, Include, Cordon, Uncordon, OutOfService, InService,
		ScalePods, RollPods, RollAgents,
		RollManagers, DeleteAgentPod, DeleteManagerPod, Upgrade, DeleteAnnouncement,
	} {
		if !seen[kind] {
			t.Errorf("%s was not chosen in 3000 actions", kind)
		}
	}
}

// At most one node at a time is cut off, in the model's time, and faults and marks stay
// within their bounds.
func TestBounds(t *testing.T) {
	w := New(4)
	var now time.Duration
	cut := map[string]time.Duration{}
	for range 3000 {
		a := w.Next()
		if slices.Contains(nodeFaults, a.Kind) {
			for node, end := range cut {
				if end > now {
					t.Fatalf("%s at %s, while %s is cut off until %s", a, now, node, end)
				}
			}
			cut[a.Node] = now + a.Hold
		}
		if a.Pause < 100*time.Millisecond || a.Pause > 20*time.Second || a.Hold < 0 || a.Hold > time.Minute {
			t.Errorf("%s: pause %s, hold %s", a, a.Pause, a.Hold)
		}
		now += a.Pause
		if len(w.Services) > ServiceLimit || len(w.Excluded) > 2 || len(w.Cordoned) > 1 || len(w.OutOfService) > 1 {
			t.Fatalf("beyond the bounds after %s: %d Services, %d excluded", a, len(w.Services), len(w.Excluded))
		}
	}
}

func TestAreasDoNotOverlap(t *testing.T) {
	seen := map[string]string{}
	for _, name := range GroupNames {
		for i := range areas[name].size {
			for _, v6 := range []bool{false, true} {
				address := addressOf(name, i, v6)
				if seen[address] != "" {
					t.Errorf("%s is of %s and of %s", address, seen[address], name)
				}
				seen[address] = name
			}
		}
	}
}
