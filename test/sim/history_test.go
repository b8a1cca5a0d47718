package sim_test

import (
	"bufio"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/purelb/purelb-operator/test/sim"
)

// gates are the feature gates that are on.
type gates struct{ wireFailover, slowLeases bool }

// watching is WireFailover alone.
var watching = gates{wireFailover: true}

// kindsOfHistory are what histories are like, with how each is named.
var kindsOfHistory = []struct {
	name    string
	gates   gates
	profile sim.Profile
	// seeds is how many the gate plays.
	seeds      uint64
	newCluster func(w *sim.World) (*sim.Cluster, error)
}{
	{"leases", gates{}, sim.Profile{MaxTroubles: 3, While: time.Minute}, 60, newCluster},
	{"watching", watching, sim.Profile{MaxTroubles: 3, While: time.Minute}, 60, newCluster},
	{"one-at-a-time", watching, sim.Profile{MaxTroubles: 1, While: 3 * time.Minute}, 25, newCluster},
	{"two-links", watching, sim.Profile{MaxTroubles: 1, While: 2 * time.Minute}, 5, sim.NewTwoLinkCluster},
	{"clocks", watching, sim.Profile{MaxTroubles: 1, While: 2 * time.Minute}, 5, sim.NewClocksCluster},
	{"routers", watching, sim.Profile{MaxTroubles: 3, While: time.Minute, HasRouters: true}, 10, newRouterCluster},
	{
		"routers-one-at-a-time", watching, sim.Profile{MaxTroubles: 1, While: 3 * time.Minute, HasRouters: true}, 5,
		newRouterCluster,
	},
	{"slow-leases", gates{true, true}, sim.Profile{MaxTroubles: 3, While: 2 * time.Minute}, 20, newCluster},
	{"slow-leases-one-at-a-time", gates{true, true}, sim.Profile{MaxTroubles: 1, While: 4 * time.Minute}, 5, newCluster},
	{"netbox", watching, sim.Profile{MaxTroubles: 3, While: 2 * time.Minute}, 5, sim.NewNetBoxCluster},
}

// newCluster returns a cluster of three nodes on one link.
func newCluster(w *sim.World) (*sim.Cluster, error) { return sim.NewCluster(w, 3) }

// newRouterCluster returns such a cluster with routers.
func newRouterCluster(w *sim.World) (*sim.Cluster, error) { return sim.NewClusterWithRouters(w, 3) }

// playHistory plays a history of a kind, of which steps are left out, and returns how it broke laws.
func playHistory(t *testing.T, kind int, seed uint64, skips func(int) bool, story io.Writer) []string {
	t.Helper()
	var violations []string
	synctest.Test(t, func(t *testing.T) {
		c, err := kindsOfHistory[kind].newCluster(sim.NewWorld(seed, story))
		if err != nil {
			t.Fatal(err)
		}
		defer c.End()
		c.WireFailover, c.SlowLeases = kindsOfHistory[kind].gates.wireFailover, kindsOfHistory[kind].gates.slowLeases
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		profile := kindsOfHistory[kind].profile
		profile.Skips = skips
		if violations, err = sim.PlayHistory(c, profile); err != nil {
			t.Error(err)
		}
	})
	return violations
}

// explain makes a history that broke a law short, and tells it.
func explain(t *testing.T, kind int, seed uint64, violation string) {
	t.Helper()
	const maxSteps = 256
	skipped := map[int]bool{}
	isBroken := func() bool {
		return len(playHistory(t, kind, seed, func(step int) bool { return skipped[step] }, io.Discard)) > 0
	}
	for size := maxSteps / 2; size > 0; size /= 2 {
		for from := 0; from < maxSteps; from += size {
			var tried []int
			for step := from; step < from+size; step++ {
				if !skipped[step] {
					skipped[step] = true
					tried = append(tried, step)
				}
			}
			if len(tried) > 0 && !isBroken() {
				for _, step := range tried {
					delete(skipped, step)
				}
			}
		}
	}
	var story strings.Builder
	violations := playHistory(t, kind, seed, func(step int) bool { return skipped[step] }, &story)
	t.Errorf(
		"seed %d of kind %s: %s\nWith less going wrong: %q:\n%s",
		seed, kindsOfHistory[kind].name, violation, violations, story.String(),
	)
}

// check plays a history and explains how it broke a law. It returns the story.
func check(t *testing.T, kind int, seed uint64) string {
	t.Helper()
	var story strings.Builder
	if violations := playHistory(t, kind, seed, nil, &story); len(violations) > 0 {
		explain(t, kind, seed, violations[0])
	}
	return story.String()
}

// Histories of users, nodes, a link and the control plane, at random, break none of the laws of laws.go. The same seed
// tells the same story, byte for byte: the first seeds of each kind are played twice.
// This test shows the row "any of this, in any order" of docs/trust.md.
func TestFaultHistories(t *testing.T) {
	for kind := range kindsOfHistory {
		t.Run(kindsOfHistory[kind].name, func(t *testing.T) {
			t.Parallel()
			seeds := kindsOfHistory[kind].seeds
			for seed := range seeds {
				story := check(t, kind, seed)
				if seed > seeds/20 {
					continue
				}
				var again strings.Builder
				playHistory(t, kind, seed, nil, &again)
				if again.String() != story {
					t.Errorf("seed %d tells\n%sand\n%s", seed, story, &again)
				}
				if strings.Count(story, "\n") < 10 {
					t.Errorf("a short story:\n%s", story)
				}
			}
		})
	}
}

// Seeds that once broke a law break none.
func TestFormerlyBroken(t *testing.T) {
	file, err := os.Open("testdata/broken.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	lines := bufio.NewScanner(file)
	count := 0
	for lines.Scan() {
		text, _, _ := strings.Cut(lines.Text(), "#")
		fields := strings.Fields(text)
		if len(fields) == 0 {
			continue
		}
		seed, err := strconv.ParseUint(fields[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		for kind := range kindsOfHistory {
			if kindsOfHistory[kind].name == fields[0] {
				check(t, kind, seed)
				count++
			}
		}
	}
	if count == 0 {
		t.Error("there are none")
	}
}
