package nodeagent

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/nodeagent/internal/file"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// checkpointVersion is that of the file's form.
const checkpointVersion = 1

// checkpoint is what an agent needs to do its job when it starts while the API server is away:
// the objects that it last read, and the addresses that it has yielded or claimed.
type checkpoint struct {
	file.Header
	LBNodeAgentName string                             `json:"lbNodeAgent"`
	Spec            purelbv1.LBNodeAgentSpec           `json:"spec"`
	Announcements   []purelbv1.Announcement            `json:"announcements"`
	Yields          map[netip.Addr]plan.YieldedAddress `json:"yields,omitempty"`

	// CommonAnnouncements are those that the node announces.
	CommonAnnouncements []purelbv1.CommonAnnouncement `json:"commonAnnouncements,omitempty"`

	// Standbys are the node's Announcements with standby, and Claims what it has claimed as they say.
	Standbys []purelbv1.Announcement   `json:"standbys,omitempty"`
	Claims   map[netip.Addr]plan.Claim `json:"claims,omitempty"`
}

// loadCheckpoint reads the checkpoint. If the agent cannot use it, the agent logs that and
// starts without: the API server knows better.
func (a *Agent) loadCheckpoint() {
	if a.CheckpointPath == "" {
		return
	}
	c := &checkpoint{}
	read := func() ([]byte, error) { return a.Disk.ReadWithin(a.CheckpointPath, checkpointReadTimeout) }
	exists, err := file.LoadCheckpoint(read, c, &c.Header, file.Header{Version: checkpointVersion, NodeName: a.NodeName})
	if err != nil {
		log.Log.Info("The agent cannot use the checkpoint", "file", a.CheckpointPath, "error", err.Error())
	}
	if err != nil || !exists {
		return
	}
	a.defender.restoreYields(c.Yields)
	if c.LBNodeAgentName == a.LBNodeAgentName {
		agent := &purelbv1.LBNodeAgent{
			ObjectMeta: metav1.ObjectMeta{Name: c.LBNodeAgentName, Namespace: a.Namespace}, Spec: c.Spec,
		}
		a.state.objects = apiObjects{
			lbNodeAgent: agent, announcements: c.Announcements, standbys: c.Standbys, commonAnnouncements: c.CommonAnnouncements,
			isFromCheckpoint: true,
		}
		a.state.memory.Claims = c.Claims
	}
}

// newCheckpointSaver returns the saver that writes the checkpoint.
func newCheckpointSaver(a *Agent) *file.Saver {
	return &file.Saver{
		Tasks: a.Tasks,
		What:  "the checkpoint", Consequence: "a start while the API server is away would not know of the latest changes",
		Path: func() string { return a.CheckpointPath }, Replace: a.Disk.ReplaceDurably,
		Changed: make(chan struct{}, 1), Wake: a.wake, Writes: pacing.Batch{Gap: checkpointGap},
	}
}

// saveCheckpoint passes on what the checkpoint is to hold.
func (a *Agent) saveCheckpoint(in plan.Inputs) {
	if a.CheckpointPath == "" {
		return
	}
	yields := a.defender.yields()
	claims := a.state.memory.Claims
	id, lastID := contentIDOf(in, yields, claims), a.state.lastCheckpoint
	if id == lastID {
		return
	}
	a.state.lastCheckpoint = id
	c := checkpointOf(a.NodeName, in)
	c.Yields, c.Claims = yields, claims
	// What was yielded or claimed is known nowhere else.
	a.checkpointSaver.Save(func() ([]byte, error) { return json.Marshal(c) }, id.known != lastID.known)
}

func checkpointOf(nodeName string, in plan.Inputs) *checkpoint {
	c := &checkpoint{
		Header:          file.Header{Version: checkpointVersion, NodeName: nodeName},
		LBNodeAgentName: in.LBNodeAgentName, Spec: in.LBNodeAgent.Spec,
		Announcements: withoutStatuses(in.Announcements), Standbys: withoutStatuses(in.Standbys),
	}
	shared := in.IncludedCommonAnnouncements()
	for i := range shared {
		c.CommonAnnouncements = append(c.CommonAnnouncements, purelbv1.CommonAnnouncement{
			ObjectMeta: metav1.ObjectMeta{Name: shared[i].Name, Namespace: shared[i].Namespace}, Spec: shared[i].Spec,
		})
	}
	return c
}

// withoutStatuses returns what the checkpoint keeps of Announcements.
func withoutStatuses(announcements []purelbv1.Announcement) []purelbv1.Announcement {
	var kept []purelbv1.Announcement
	for i := range announcements {
		ann := &announcements[i]
		kept = append(kept, purelbv1.Announcement{
			ObjectMeta: metav1.ObjectMeta{Name: ann.Name, Namespace: ann.Namespace, UID: ann.UID, Generation: ann.Generation},
			Spec:       ann.Spec,
		})
	}
	return kept
}

// contentID tells the contents of checkpoints apart: no second one with the same is written. It
// consists of what the API server has, and of what only this node knows.
type contentID struct{ objects, known string }

func contentIDOf(
	in plan.Inputs, yields map[netip.Addr]plan.YieldedAddress, claims map[netip.Addr]plan.Claim,
) contentID {
	var objects, known strings.Builder
	add := func(obj client.Object) { fmt.Fprintln(&objects, obj.GetName(), obj.GetUID(), obj.GetGeneration()) }
	add(in.LBNodeAgent)
	for i := range in.Announcements {
		add(&in.Announcements[i])
	}
	for i := range in.Standbys {
		add(&in.Standbys[i])
	}
	shared := in.IncludedCommonAnnouncements()
	for i := range shared {
		add(&shared[i])
		fmt.Fprintln(&objects, shared[i].Spec.Revision)
	}
	for _, addr := range slices.SortedFunc(maps.Keys(yields), netip.Addr.Compare) {
		y := yields[addr]
		fmt.Fprintln(&known, "yielded", addr, y.Epoch, y.MAC, y.YieldedAlone, y.Announcement)
	}
	for _, addr := range slices.SortedFunc(maps.Keys(claims), netip.Addr.Compare) {
		fmt.Fprintln(&known, "claimed", addr, claims[addr].Epoch)
	}
	return contentID{objects.String(), known.String()}
}
