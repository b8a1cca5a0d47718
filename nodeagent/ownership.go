package nodeagent

import (
	"time"

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
func newOwnershipSaver(a *Agent) *saver {
	s := &saver{
		what: "the record of the agent's addresses", consequence: "the next process would not recognise the addresses that were added meanwhile",
		path: a.Ownership.Path, replaceFile: file.Replace,
		beforeLast: a.endSyncs, changed: make(chan struct{}, 1), wake: a.wake, writes: pacing.Batch{Gap: recordGap},
	}
	a.Ownership.OnChange(func() { s.save(a.Ownership.Content, false) })
	return s
}

// endSyncs waits until the worker, which is stopping, has ended, since its last sync may add addresses:
// for lastSaveTimeout at the most.
func (a *Agent) endSyncs() {
	select {
	case <-a.ended:
	case <-time.After(lastSaveTimeout): // a sync that hangs goes with the process
	}
}
