package sim_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/purelb/purelb-operator/test/sim"
)

// playCluster3 plays something in a cluster of three nodes, and returns the story.
func playCluster3(t *testing.T, seed uint64, do func(c *sim.Cluster)) string {
	t.Helper()
	var story strings.Builder
	synctest.Test(t, func(t *testing.T) {
		c, err := sim.NewCluster(sim.NewWorld(seed, &story), 3)
		if err != nil {
			t.Fatal(err)
		}
		defer c.End()
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		do(c)
	})
	return story.String()
}

// leaderOf returns the replica that leads, and the other one; nil if none leads, or both do.
func leaderOf(c *sim.Cluster) (leader, other *sim.Replica) {
	a, b := c.Replicas[0], c.Replicas[1]
	switch {
	case a.IsLeading() && !b.IsLeading():
		return a, b
	case b.IsLeading() && !a.IsLeading():
		return b, a
	}
	return nil, nil
}

// The other manager leads soon after the leader has been stopped, and within 6.2 s after it has crashed, been
// cut off or been paused. The leader of before ends, and becomes the standby.
func TestElection(t *testing.T) {
	const most = 6200 * time.Millisecond
	for what, befall := range map[string]struct {
		within     time.Duration
		begin, end func(r *sim.Replica)
	}{
		"stopped": {2 * time.Second, func(r *sim.Replica) { r.Stop() }, nil},
		"crashed": {most, func(r *sim.Replica) { r.Crash() }, nil},
		"cut off": {most, func(r *sim.Replica) { r.SetCut(true) }, func(r *sim.Replica) { r.SetCut(false) }},
		"paused":  {most, func(r *sim.Replica) { r.Pause() }, func(r *sim.Replica) { r.Resume() }},
	} {
		for seed := range uint64(10) {
			story := playCluster3(t, seed, func(c *sim.Cluster) {
				c.Run(10 * time.Second)
				leader, standby := leaderOf(c)
				if leader == nil {
					t.Fatal("there is not one leader")
				}
				program := leader.Manager
				befall.begin(leader)
				c.Run(befall.within)
				if !standby.IsLeading() {
					t.Errorf("%s: the other one does not lead after %s", what, befall.within)
				}
				if befall.end != nil {
					c.Run(10 * time.Second)
					befall.end(leader)
				}
				c.Run(10 * time.Second)
				if now, _ := leaderOf(c); now != standby || program.IsLeading() {
					t.Errorf("%s: the other one does not lead alone in the end", what)
				}
			})
			if t.Failed() {
				t.Fatalf("seed %d:\n%s", seed, story)
			}
		}
	}
}

// A leader that is cut off the API server for less than its Lease lasts goes on leading.
func TestElectionSurvivesShortCut(t *testing.T) {
	for seed := range uint64(10) {
		story := playCluster3(t, seed, func(c *sim.Cluster) {
			c.Run(10 * time.Second)
			leader, _ := leaderOf(c)
			leader.SetCut(true)
			c.Run(2 * time.Second)
			leader.SetCut(false)
			c.Run(10 * time.Second)
			if now, _ := leaderOf(c); now != leader {
				t.Error("another one leads")
			}
		})
		if t.Failed() {
			t.Fatal(fmt.Sprintf("seed %d:\n", seed) + story)
		}
	}
}
