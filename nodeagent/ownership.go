package nodeagent

import (
	"context"

	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/nodeagent/internal/file"
)

// Ownership records which addresses the agent has added, where the kernel keeps no mark of that.
type Ownership interface {
	// Path returns the name of the file that is to contain the record.
	Path() string
	// Content returns what the file is to contain now.
	Content() ([]byte, error)
	// OnChange sets the function that is called after each change of the record. The function
	// must not wait, nor use the Ownership.
	OnChange(changed func())
}

// newOwnershipSaver returns the saver that writes the record when it has changed. The record is
// of no use once the machine has booted, so it need not survive that.
func newOwnershipSaver(a *Agent) *file.Saver {
	s := &file.Saver{
		Tasks:       a.Tasks,
		What:        "the record of the agent's addresses",
		Consequence: "the next process would not recognise the addresses that were added meanwhile",
		Path:        a.Ownership.Path, Replace: file.Replace,
		BeforeFinalWrite: a.endSyncs, Changed: make(chan struct{}, 1), Wake: a.wake, Writes: pacing.Batch{Gap: ownershipGap},
	}
	a.Ownership.OnChange(func() { s.Save(a.Ownership.Content, false) })
	return s
}

// endSyncs waits until the worker, which is stopping, has ended, since its last sync may add addresses:
// for file.FinalWriteTimeout at the most.
func (a *Agent) endSyncs() {
	a.Tasks.Wait(context.Background(), file.FinalWriteTimeout, a.workerEnded) // a sync that hangs goes with the process
}
