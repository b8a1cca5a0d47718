package nodeagent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	written []byte
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

// save writes the checkpoint, if it differs from what was written. That it
// cannot be written (a full disk, say) stops nothing.
func (a *Agent) save(g gathered) {
	if a.Checkpoint == "" {
		return
	}
	c := checkpoint{
		Version: checkpointVersion, NodeName: a.NodeName, LBNodeAgent: a.LBNodeAgent, Spec: g.agent.Spec, Yields: a.guard.yielded(),
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
	if err == nil && bytes.Equal(text, a.saved.written) {
		return
	}
	if err == nil {
		err = file.ReplaceDurably(a.Checkpoint, text)
	}
	if err != nil {
		if !a.saved.failing {
			log.Log.Error(err, "The checkpoint is not written: a start while the API server is away would not know of the latest changes", "file", a.Checkpoint)
		}
		a.saved.failing = true
		return
	}
	a.saved.written, a.saved.failing = text, false
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
