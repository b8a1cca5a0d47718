package nodeagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/internal/file"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// checkpointVersion is that of the file's form. A file of another is not read.
const checkpointVersion = 1

// checkpoint is what an agent needs to do its job when it starts while the API
// server is away: what it was last told, and what it has given up since.
type checkpoint struct {
	Version       int                         `json:"version"`
	NodeName      string                      `json:"nodeName"`
	LBNodeAgent   string                      `json:"lbNodeAgent"`
	Spec          purelbv1.LBNodeAgentSpec    `json:"spec"`
	Announcements []purelbv1.Announcement     `json:"announcements"`
	Yields        map[netip.Addr]plan.Yielded `json:"yields,omitempty"`

	// Commons is the CommonAnnouncements that the node announces.
	Commons []purelbv1.CommonAnnouncement `json:"commons,omitempty"`
}

// checkpointFile is what is known of the file.
type checkpointFile struct {
	// version is of what was written last, and at is when.
	version checkpointOf
	at      time.Time
	// failing is that it cannot be written: said once.
	failing bool
	// standIn is what was read when the agent started, until the API server has
	// said something; nil then.
	standIn *checkpoint
	// next is when it is looked at again.
	next time.Time
}

// load reads the checkpoint. One that cannot be used is said to be so, and no
// more: the API server knows better.
func (a *Agent) load() {
	if a.Checkpoint == "" {
		return
	}
	text, err := os.ReadFile(a.Checkpoint)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	c := &checkpoint{}
	if err == nil {
		err = json.Unmarshal(text, c)
	}
	switch {
	case err != nil:
	case c.Version != checkpointVersion:
		err = fmt.Errorf("it is of version %d, not %d", c.Version, checkpointVersion)
	case c.NodeName != a.NodeName:
		err = fmt.Errorf("it is of node %s", c.NodeName)
	}
	if err != nil {
		log.Log.Info("The checkpoint is of no use", "file", a.Checkpoint, "error", err.Error())
		return
	}
	a.guard.restore(c.Yields)
	if c.LBNodeAgent == a.LBNodeAgent {
		a.saved.standIn = c
	}
}

// savePause is for how long no checkpoint follows another: with many addresses it
// is large, and many may come one after the other.
const savePause = time.Second

// save writes the checkpoint, if it differs from what was written, and returns in
// how long it is to be called again, or 0. That it cannot be written (a full disk,
// say) stops nothing.
func (a *Agent) save(g gathered) time.Duration {
	if a.Checkpoint == "" {
		return 0
	}
	yields := a.guard.yielded()
	version := versionOf(g, yields)
	if version == a.saved.version {
		return 0
	}
	// What was given up is known nowhere else.
	if left := savePause - time.Since(a.saved.at); left > 0 && version.yields == a.saved.version.yields {
		return left
	}
	c := checkpoint{
		Version: checkpointVersion, NodeName: a.NodeName, LBNodeAgent: a.LBNodeAgent, Spec: g.agent.Spec, Yields: yields,
	}
	for _, ann := range g.announcements {
		c.Announcements = append(c.Announcements, purelbv1.Announcement{
			ObjectMeta: metav1.ObjectMeta{Name: ann.Name, Namespace: ann.Namespace, Generation: ann.Generation}, Spec: ann.Spec,
		})
	}
	for _, common := range g.joined() {
		c.Commons = append(c.Commons, purelbv1.CommonAnnouncement{
			ObjectMeta: metav1.ObjectMeta{Name: common.Name, Namespace: common.Namespace}, Spec: common.Spec,
		})
	}
	text, err := json.Marshal(c)
	if err == nil {
		err = file.ReplaceDurably(a.Checkpoint, text)
	}
	if err != nil {
		if !a.saved.failing {
			log.Log.Error(err, "The checkpoint is not written: a start while the API server is away would not know of the latest changes", "file", a.Checkpoint)
		}
		a.saved.failing = true
		return 0
	}
	a.saved.version, a.saved.at, a.saved.failing = version, time.Now(), false
	return 0
}

// checkpointOf says of what a checkpoint is: of the same, no second is written.
type checkpointOf struct{ asked, yields string }

func versionOf(g gathered, yields map[netip.Addr]plan.Yielded) checkpointOf {
	var asked, given strings.Builder
	add := func(obj client.Object) { fmt.Fprintln(&asked, obj.GetName(), obj.GetUID(), obj.GetGeneration()) }
	add(g.agent)
	for i := range g.announcements {
		add(&g.announcements[i])
	}
	commons := g.joined()
	for i := range commons {
		add(&commons[i])
		fmt.Fprintln(&asked, commons[i].Spec.Revision)
	}
	for _, addr := range slices.SortedFunc(maps.Keys(yields), netip.Addr.Compare) {
		y := yields[addr]
		fmt.Fprintln(&given, addr, y.Epoch, y.MAC, y.Wait)
	}
	return checkpointOf{asked.String(), given.String()}
}

// standIn applies the checkpoint, while the API server has not said anything
// since the agent started: at most once in a while, unless something woke it.
func (a *Agent) standIn(ctx context.Context, woken bool) {
	a.running.Lock()
	defer a.running.Unlock()
	c := a.saved.standIn
	if c == nil || !woken && time.Now().Before(a.saved.next) {
		return
	}
	a.saved.next = time.Now().Add(reprobe)
	agent := &purelbv1.LBNodeAgent{ObjectMeta: metav1.ObjectMeta{Name: c.LBNodeAgent, Namespace: a.Namespace}, Spec: c.Spec}
	if _, err := a.sync(ctx, gathered{agent: agent, announcements: c.Announcements, commons: c.Commons, offline: true}, false); err != nil {
		log.FromContext(ctx).Error(err, "Not everything could be applied")
	}
}
