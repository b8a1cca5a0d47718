package sim

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/sim/apiserver"
)

// What PureLB writes, for a writeCount.
const (
	writesServices      = "Services"             // creation, metadata and status
	writesAnnouncements = "Announcements"        // creation, deletion and spec
	writesReports       = "Announcements/status" // by agents
	writesShared        = "CommonAnnouncements"
	writesLeases        = "Leases" // of agents and of the leading manager
)

// writeCount is how many writes there are, by what is written.
type writeCount map[string]int

func (c writeCount) String() string {
	var texts []string
	for _, what := range slices.Sorted(maps.Keys(c)) {
		texts = append(texts, fmt.Sprintf("%d of %s", c[what], what))
	}
	return strings.Join(texts, ", ")
}

// writeCounter counts what is written to the API server of a cluster.
type writeCounter struct {
	cluster *Cluster
	cache   *apiserver.Cache
}

func newWriteCounter(c *Cluster) (*writeCounter, error) {
	cache, err := c.Server.NewCache(
		apiserver.Selection{Of: &v1.Announcement{}}, apiserver.Selection{Of: &v1.CommonAnnouncement{}},
		apiserver.Selection{Of: &corev1.Service{}}, apiserver.Selection{Of: &coordinationv1.Lease{}},
	)
	if err != nil {
		return nil, err
	}
	_, err = cache.Relist()
	return &writeCounter{c, cache}, err
}

// during counts what is written while the cluster runs for some seconds.
func (w *writeCounter) during(t *testing.T, seconds int) writeCount {
	t.Helper()
	count := writeCount{}
	for range seconds {
		w.cluster.Run(time.Second)
		for {
			change, isThere, err := w.cache.Next()
			if err != nil {
				t.Fatal(err)
			}
			if !isThere {
				break
			}
			count[writtenBy(change)]++
		}
	}
	return count
}

// writtenBy returns what a change has written.
func writtenBy(change apiserver.Change) string {
	switch object := change.Last().(type) {
	case *v1.Announcement:
		if change.Old != nil && change.New != nil && change.Old.GetGeneration() == change.New.GetGeneration() {
			return writesReports
		}
		return writesAnnouncements
	case *v1.CommonAnnouncement:
		return writesShared
	case *corev1.Service:
		return writesServices
	case *coordinationv1.Lease:
		return writesLeases
	default:
		return fmt.Sprintf("%T", object)
	}
}

// clusterSize is that of a cluster whose nodes are all on one link.
type clusterSize struct {
	nodes, addresses int // Local ones
	slowsLeases      bool
}

func (s clusterSize) String() string {
	return fmt.Sprintf("%d nodes, %d addresses, SlowLeases=%t", s.nodes, s.addresses, s.slowsLeases)
}

// TestCosts counts what PureLB writes for each kind of event in a small cluster. docs/scale.md says what follows from
// that for larger ones, of which make sim-costs counts some.
func TestCosts(t *testing.T) {
	for _, slow := range []bool{false, true} {
		checkCosts(t, clusterSize{4, 4, slow}, 1, 2)
	}
}

// checkCosts counts what is written for events in a cluster of a size, among them the death of so many nodes at once,
// and checks it.
func checkCosts(t *testing.T, size clusterSize, dead ...int) {
	t.Helper()
	t.Run(size.String(), func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c, err := NewCluster(NewWorld(1, io.Discard), size.nodes)
			if err != nil {
				t.Fatal(err)
			}
			defer c.End()
			c.SlowLeases = size.slowsLeases
			prepareCost(t, c, size.addresses, false)
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			c.Run(3 * time.Minute)
			w, err := newWriteCounter(c)
			if err != nil {
				t.Fatal(err)
			}
			w.checkServices(t, size)
			for _, count := range dead {
				w.checkDeath(t, size, c.Nodes[2:2+count]) // managers run on the first two
			}
		})
	})
}

// expect counts what is written for an event, and fails if that is more than most, or so little that most says nothing.
func (w *writeCounter) expect(t *testing.T, event string, seconds int, most writeCount) {
	t.Helper()
	count := w.during(t, seconds)
	t.Logf("%s: %s", event, count)
	for _, what := range []string{writesServices, writesAnnouncements, writesReports, writesShared, writesLeases} {
		if count[what] > most[what] || 6*count[what] < most[what] {
			t.Errorf("%s: %d writes of %s, want %d at the most, and a sixth of it", event, count[what], what, most[what])
		}
	}
}

// checkServices counts what a minute takes in which nothing changes, a Service is made, and it is deleted.
func (w *writeCounter) checkServices(t *testing.T, size clusterSize) {
	t.Helper()
	const minute = 60
	leases := 2*minute + size.nodes*minute // of the leading manager, and of agents
	ofChange, ofLocal := leases, 4
	if size.slowsLeases {
		leases = 2*minute + size.nodes*minute/10
		// The nodes of a new address are in doubt for half a minute: they begin to renew more often, and end that.
		ofChange, ofLocal = leases+minute, 6
	}
	w.expect(t, "nothing, for a minute", minute, writeCount{writesLeases: leases})
	local := Service{Name: "local", Group: GroupLocal, Families: []corev1.IPFamily{corev1.IPv4Protocol}}
	virtual := Service{Name: "virtual", Group: GroupVirtual, Families: local.Families}
	for _, e := range []struct {
		service    Service
		made, gone writeCount
	}{
		{
			local,
			writeCount{writesServices: 3, writesAnnouncements: ofLocal, writesReports: ofLocal + 2},
			writeCount{writesServices: 1, writesAnnouncements: 5, writesReports: 5},
		},
		{
			virtual,
			writeCount{writesServices: 4, writesShared: 1, writesReports: size.nodes},
			writeCount{writesServices: 1, writesShared: 1, writesReports: size.nodes},
		},
	} {
		e.made[writesLeases], e.gone[writesLeases] = ofChange, ofChange
		if _, err := w.cluster.CreateService(e.service); err != nil {
			t.Fatal(err)
		}
		if err := w.cluster.SetEndpoints(e.service, nil); err != nil {
			t.Fatal(err)
		}
		w.expect(t, "a Service of "+e.service.Group+" is made", minute, e.made)
		if err := w.cluster.DeleteService(e.service); err != nil {
			t.Fatal(err)
		}
		w.expect(t, "it is deleted", minute, e.gone)
	}
}

// checkDeath counts what it takes that nodes lose their power at once, and that they come back two minutes later.
func (w *writeCounter) checkDeath(t *testing.T, size clusterSize, dead []*Node) {
	t.Helper()
	held := 0
	for i := range size.addresses {
		addrs, err := w.cluster.Addresses(fmt.Sprint("s", i))
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(dead, func(n *Node) bool { return len(addrs) > 0 && n.Holds(addrs[0]) }) {
			held++
		}
	}
	for _, n := range dead {
		w.cluster.PowerOff(n)
	}
	const seconds = 120
	// Others get successors in place of a dead node, and its addresses new holders with new successors.
	ofDeath := 20*len(dead) + 11*held
	leases := (2 + size.nodes - len(dead)) * seconds
	if size.slowsLeases {
		ofDeath += 10 * len(dead)
	}
	event := fmt.Sprintf("%d nodes with %d addresses lose their power", len(dead), held)
	w.expect(t, event, seconds, writeCount{
		writesServices: 3 * held, writesAnnouncements: ofDeath, writesReports: ofDeath, writesLeases: leases,
	})
	for _, n := range dead {
		if err := w.cluster.PowerOn(n); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("they are back: %s", w.during(t, seconds))
}
