package speaker

import (
	"encoding/json"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/internal/file"
)

const (
	checkpointFile        = "speaker.json"
	checkpointVersion     = 1
	checkpointReadTimeout = 5 * time.Second
)

// checkpoint is what a speaker leaves to the next one.
type checkpoint struct {
	file.Header
	// BootID is of the boot of the node in which the speaker ran: only within one boot does
	// the kernel go on forwarding while no speaker runs.
	BootID string `json:"bootID"`
	// Spec is empty if the NodeRouting was deleted.
	Spec purelbv1.NodeRoutingSpec `json:"spec"`
}

// loadCheckpoint returns the NodeRouting that an earlier speaker of the node worked by, and
// whether that was since the node booted; nil if there is none.
func (s *Speaker) loadCheckpoint(bootID string) (routing *purelbv1.NodeRouting, isSameBoot bool, err error) {
	c := checkpoint{}
	read := func() ([]byte, error) { return s.Machine.ReadWithin(s.checkpointPath(), checkpointReadTimeout) }
	exists, err := file.LoadCheckpoint(
		read, &c, &c.Header, file.Header{Version: checkpointVersion, NodeName: s.NodeName},
	)
	if err != nil || !exists || c.Spec.NodeName == "" {
		return nil, false, err
	}
	routing = &purelbv1.NodeRouting{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.NodeName}, Spec: c.Spec,
	}
	return routing, c.BootID != "" && c.BootID == bootID, nil
}

func (s *Speaker) checkpointPath() string { return filepath.Join(s.StateDir, checkpointFile) }

// newSaver returns the saver that writes the checkpoint. It is of no use once the node has booted,
// so it need not survive that.
func newSaver(s *Speaker) *file.Saver {
	return &file.Saver{
		Tasks: s.Tasks,
		What:  "the checkpoint", Consequence: "the next speaker would not know the neighbours while the API server is away",
		Path: s.checkpointPath, Replace: s.Machine.Replace,
		Changed: make(chan struct{}, 1),
	}
}

// saveCheckpoint keeps for the next speaker the NodeRouting, or, if it is nil, that there is none: the next one
// calls none of the neighbours.
func (s *Speaker) saveCheckpoint(routing *purelbv1.NodeRouting) {
	c := s.checkpointOf(routing)
	if last := s.state.lastCheckpoint; last != nil && equality.Semantic.DeepEqual(*last, c) {
		return
	}
	s.state.lastCheckpoint = &c
	s.saver.Save(func() ([]byte, error) { return json.Marshal(c) }, false)
}

func (s *Speaker) checkpointOf(routing *purelbv1.NodeRouting) checkpoint {
	c := checkpoint{Header: file.Header{Version: checkpointVersion, NodeName: s.NodeName}, BootID: s.state.bootID}
	if routing != nil {
		c.Spec = routing.Spec
	}
	return c
}
