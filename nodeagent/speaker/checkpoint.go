package speaker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/internal/file"
)

const (
	checkpointFile        = "speaker.json"
	checkpointVersion     = 1
	checkpointReadTimeout = 5 * time.Second
	bootIDFile            = "/proc/sys/kernel/random/boot_id"
)

// checkpoint is what a speaker leaves to the next one.
type checkpoint struct {
	Version  int    `json:"version"`
	NodeName string `json:"nodeName"`
	// BootID is of the boot of the node in which the speaker ran: only within one boot does
	// the kernel go on forwarding while no speaker runs.
	BootID     string                   `json:"bootID"`
	Generation int64                    `json:"generation"`
	Spec       purelbv1.NodeRoutingSpec `json:"spec"`
}

// readBootID returns what tells this boot of the node apart from others.
func readBootID() (string, error) {
	text, err := os.ReadFile(bootIDFile)
	if err != nil {
		return "", fmt.Errorf("find out which boot of the node this is: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// loadCheckpoint returns the NodeRouting that an earlier speaker of the node worked by, and
// whether that was since the node booted; nil if there is none.
func loadCheckpoint(dir, nodeName, namespace, bootID string) (routing *purelbv1.NodeRouting, isSameBoot bool, err error) {
	text, err := file.ReadWithin(filepath.Join(dir, checkpointFile), checkpointReadTimeout)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	c := checkpoint{}
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	switch {
	case err != nil:
		return nil, false, fmt.Errorf("read the checkpoint: %w", err)
	case c.Version != checkpointVersion:
		return nil, false, fmt.Errorf("read the checkpoint: it is of version %d, not %d", c.Version, checkpointVersion)
	case c.NodeName != nodeName:
		return nil, false, fmt.Errorf("read the checkpoint: it is of node %s", c.NodeName)
	}
	routing = &purelbv1.NodeRouting{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: nodeName, Generation: c.Generation}, Spec: c.Spec}
	return routing, c.BootID != "" && c.BootID == bootID, nil
}

// saveCheckpoint writes the checkpoint for the next speaker.
func saveCheckpoint(dir, bootID string, routing *purelbv1.NodeRouting) error {
	text, err := json.Marshal(checkpoint{
		Version: checkpointVersion, NodeName: routing.Spec.NodeName, BootID: bootID, Generation: routing.Generation, Spec: routing.Spec,
	})
	if err != nil {
		return fmt.Errorf("write the checkpoint: %w", err)
	}
	return file.Replace(filepath.Join(dir, checkpointFile), text)
}
