package controllers

import (
	"net/netip"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/partialwrite"
	"github.com/purelb/purelb-operator/controllers/placement"
	"github.com/purelb/purelb-operator/internal/pacing"
)

// placementState is what outlives one placement. All of it is lost when the process ends,
// as it does when the manager loses the leadership.
type placementState struct {
	// unseenWrites is the last write of each Announcement, by name, and of each
	// CommonAnnouncement, by commonKey, for as long as the cache may not show it. What
	// was read is the lock of each single object; only this, and that there is one leader,
	// keeps a decision on what was there before from giving an address that no node had to
	// two nodes. A new leader has written nothing that it does not see. mu guards it while
	// nodes are written in parallel.
	mu           sync.Mutex
	unseenWrites map[string]unseenWrite
	// highestRevision is the highest revision of shared entries that was seen, by
	// LBNodeAgent, for as long as the LBNodeAgent has nodes or CommonAnnouncements.
	// Without it the highest that is stored counts: it is lower only if an administrator
	// has deleted a CommonAnnouncement, and then the nodes report themselves done for a
	// moment before they are.
	highestRevision map[string]int64
	// moveStarts are the moves under way, to measure them. Without it those under way are not
	// measured.
	moveStarts map[netip.Addr]moveStart
	// clocks is for how long inputs have been as they are. Without it all deadlines begin
	// anew.
	clocks placement.Clocks
	// refusals is what the API server has refused. Without it each refused entry is tried
	// once more.
	refusals partialwrite.Refusals
	// writeRetry is when to write again what could not be written. Without it that is at
	// once.
	writeRetry pacing.Backoff
}

// unseenWrite is the version of an object that a write made.
type unseenWrite struct {
	uid        types.UID
	generation int64
	at         time.Time
}

// moveStart is a move under way.
type moveStart struct {
	kind  placement.MoveKind
	since time.Time
}

// resetState makes the state that of a process that has just started.
func (r *PlacementReconciler) resetState() {
	r.state.unseenWrites, r.state.moveStarts = map[string]unseenWrite{}, map[netip.Addr]moveStart{}
	r.state.writeRetry = pacing.Backoff{Min: batchWait, Max: maxWriteRetry}
	r.state.highestRevision = map[string]int64{}
}

// noteWrite notes the generation that the cache is to show.
func (r *PlacementReconciler) noteWrite(key string, obj client.Object) {
	r.state.mu.Lock()
	defer r.state.mu.Unlock()
	r.state.unseenWrites[key] = unseenWrite{uid: obj.GetUID(), generation: obj.GetGeneration(), at: r.Now()}
}

// isCacheBehind reports whether the cache is certain to show a newer version of an
// Announcement or CommonAnnouncement soon.
func (r *PlacementReconciler) isCacheBehind(cluster *cluster) bool {
	cached := map[string]*metav1.ObjectMeta{}
	for _, announcements := range [][]v1.Announcement{cluster.announcements, cluster.standbys, cluster.askings} {
		for i := range announcements {
			cached[announcements[i].Name] = &announcements[i].ObjectMeta
		}
	}
	for i := range cluster.commons {
		cached[commonKey(cluster.commons[i].Name)] = &cluster.commons[i].ObjectMeta
	}
	for key, w := range r.state.unseenWrites {
		obj := cached[key]
		if obj != nil && (obj.UID != w.uid || obj.Generation >= w.generation) || r.Now().Sub(w.at) > cachePatience {
			delete(r.state.unseenWrites, key)
		}
	}
	return len(r.state.unseenWrites) > 0
}

// commonKey tells a CommonAnnouncement from an Announcement of the same name, and an
// LBNodeAgent as an owner of entries from a node.
func commonKey(name string) string { return "common/" + name }
