package nodeagent

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/nodeagent/internal/file"
)

// saver writes the checkpoint, by itself: a disk that hangs or is full delays the checkpoint and
// nothing else. It writes the latest content that there is.
//
// What it remembers is lost with the process, and the next one writes the checkpoint anew.
type saver struct {
	// path returns the name of the file; empty for none.
	path func() string
	// replaceFile writes a file.
	replaceFile func(path string, text []byte) error
	// changed is signalled when there is something to write, and wake when what problemNote
	// returns has changed.
	changed, wake chan struct{}

	mu sync.Mutex
	// pending is the content to be written; nil if what was written is the latest.
	pending *checkpoint
	// lastID is of the content that is pending or was written last.
	lastID contentID
	// writes keeps a gap between checkpoints.
	writes pacing.Batch
	// notBefore is when the pending content is to be written.
	notBefore time.Time
	// problem says why the checkpoint is not written; empty if it is.
	problem string
}

func newSaver(path func() string, wake chan struct{}) *saver {
	return &saver{
		path: path, replaceFile: file.ReplaceDurably, changed: make(chan struct{}, 1), wake: wake,
		writes: pacing.Batch{Gap: saveGap},
	}
}

// NeedLeaderElection is false: every node has a checkpoint.
func (s *saver) NeedLeaderElection() bool { return false }

// save says which content the checkpoint is to have, and how to make it.
func (s *saver) save(id contentID, makeContent func() *checkpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id == s.lastID {
		return
	}
	now := time.Now()
	switch {
	case s.problem != "": // the next attempt has its time
	case id.yields != s.lastID.yields: // what was yielded is known nowhere else
		s.notBefore = now
	case s.pending == nil:
		s.notBefore = now.Add(s.writes.Delay(now))
	}
	s.pending, s.lastID = makeContent(), id
	signal(s.changed)
}

// problemNote returns why the checkpoint is not written; empty if all is well.
func (s *saver) problemNote() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.problem
}

// takeDue returns what is to be written now, nil for nothing, and in how long there is
// something; 0 is when something changes.
func (s *saver) takeDue() (*checkpoint, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending == nil {
		return nil, 0
	}
	if wait := time.Until(s.notBefore); wait > 0 {
		return nil, wait
	}
	c := s.pending
	s.pending = nil
	return c, 0
}

// Start writes the checkpoint when there is something to write, until ctx ends. A write
// that hangs then cannot be ended: it goes with the process.
func (s *saver) Start(ctx context.Context) error {
	for {
		c, wait := s.takeDue()
		if c != nil {
			if !s.write(ctx, c) {
				return nil
			}
			continue
		}
		var due <-chan time.Time
		if wait > 0 {
			due = time.After(wait)
		}
		select {
		case <-ctx.Done():
			s.flush(ctx)
			return nil
		case <-s.changed:
		case <-due:
		}
	}
}

// flush writes what is pending, however soon after the last time, when ctx has ended.
func (s *saver) flush(ctx context.Context) {
	s.mu.Lock()
	s.notBefore = time.Time{}
	s.mu.Unlock()
	if c, _ := s.takeDue(); c != nil {
		s.write(ctx, c)
	}
}

// write writes the checkpoint, and reports whether the write has ended: it waits for
// lastSaveTimeout at the most after ctx has ended.
func (s *saver) write(ctx context.Context, c *checkpoint) bool {
	written := make(chan error, 1)
	go func() {
		text, err := json.Marshal(c)
		if err == nil {
			err = s.replaceFile(s.path(), text)
		}
		written <- err
	}()
	hung := time.NewTimer(saveHungAfter)
	defer hung.Stop()
	stopped := ctx.Done()
	var lastChance <-chan time.Time
	for {
		select {
		case err := <-written:
			s.noteWritten(c, err)
			return true
		case <-hung.C:
			s.noteProblem("the checkpoint is not written: the disk does not answer", errors.New("the disk does not answer"))
		case <-stopped:
			stopped, lastChance = nil, time.After(lastSaveTimeout)
		case <-lastChance:
			return false
		}
	}
}

// noteWritten notes what became of a checkpoint.
func (s *saver) noteWritten(c *checkpoint, err error) {
	s.mu.Lock()
	now := time.Now()
	if err == nil {
		s.writes.Note(now)
		if s.pending != nil {
			s.notBefore = now.Add(s.writes.Delay(now))
		}
	} else {
		s.notBefore = now.Add(saveRetry)
		if s.pending == nil {
			s.pending = c
		}
	}
	s.mu.Unlock()
	if err != nil {
		s.noteProblem("the checkpoint is not written: "+err.Error(), err)
	} else {
		s.noteProblem("", nil)
	}
}

// noteProblem notes why the checkpoint is not written, and logs that once.
func (s *saver) noteProblem(problem string, err error) {
	s.mu.Lock()
	before := s.problem
	s.problem = problem
	s.mu.Unlock()
	switch {
	case problem == before:
		return
	case before == "":
		log.Log.Error(err, "The checkpoint is not written: a start while the API server is away would not know of the latest changes", "file", s.path())
	case problem == "":
		log.Log.Info("The checkpoint is written again", "file", s.path())
	}
	signal(s.wake)
}
