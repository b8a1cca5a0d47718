package file

import (
	"context"
	"errors"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/internal/tasks"
)

const (
	// RetryInterval is how long after a file could not be written it is tried again.
	RetryInterval = 10 * time.Second
	// hungAfter is how long a file may take to be written before the disk counts as one that hangs.
	hungAfter = 5 * time.Second
	// FinalWriteTimeout is how long a program that stops waits for a file to be written.
	FinalWriteTimeout = time.Second
)

// Saver writes a file, by itself: a disk that hangs or is full delays the file and nothing else.
// It writes the latest content that there is.
//
// What it remembers is lost with the process. The next one writes a checkpoint anew; of the
// node's addresses on a kernel that does not mark them it recognises those that were written.
type Saver struct {
	// Tasks runs the Saver.
	Tasks tasks.Runner
	// What names the content, and Consequence says what a start without it would lack.
	What, Consequence string
	// Path returns the name of the file.
	Path func() string
	// Replace writes a file.
	Replace func(path string, text []byte) error
	// BeforeFinalWrite, if set, is called when the program stops: when it returns, the content is the last.
	BeforeFinalWrite func()
	// Changed is signalled when there is something to write, and Wake, if set, when what Problem
	// returns has changed.
	Changed, Wake chan struct{}
	// Writes keeps a gap between writes.
	Writes pacing.Batch

	mu sync.Mutex
	// pending makes the content to be written; nil if what was written is the latest.
	pending func() ([]byte, error)
	// notBefore is when the pending content is to be written.
	notBefore time.Time
	// problem says why the file is not written; empty if it is.
	problem string
}

// NeedLeaderElection is false: every node has its files.
func (s *Saver) NeedLeaderElection() bool { return false }

// Save says how to make the content that the file is to have; at once, if it is urgent. It waits
// for nothing.
func (s *Saver) Save(makeContent func() ([]byte, error), isUrgent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.Tasks.Now()
	switch {
	case s.problem != "": // the next attempt has its time
	case isUrgent:
		s.notBefore = now
	case s.pending == nil:
		s.notBefore = now.Add(s.Writes.Delay(now))
	}
	s.pending = makeContent
	pacing.Signal(s.Changed)
}

// Problem returns why the file is not written; empty if all is well.
func (s *Saver) Problem() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.problem
}

// takeDue returns how to make what is to be written now, nil for nothing, and in how long there
// is something; 0 is when something changes.
func (s *Saver) takeDue() (func() ([]byte, error), time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending == nil {
		return nil, 0
	}
	if wait := tasks.Until(s.Tasks, s.notBefore); wait > 0 {
		return nil, wait
	}
	makeContent := s.pending
	s.pending = nil
	return makeContent, 0
}

// Start writes the file when there is something to write, until ctx ends. A write
// that hangs then cannot be ended: it goes with the process.
func (s *Saver) Start(ctx context.Context) error {
	for {
		wait, haveEnded := s.WriteDue(ctx)
		if !haveEnded {
			return nil
		}
		if s.Tasks.Wait(ctx, tasks.OrForever(wait), s.Changed) == tasks.Ended {
			s.flush(ctx)
			return nil
		}
	}
}

// WriteDue writes the file while there is something to write now. It returns in how long there is
// something, 0 for when something changes, and whether all writes have ended.
func (s *Saver) WriteDue(ctx context.Context) (wait time.Duration, haveEnded bool) {
	for {
		makeContent, wait := s.takeDue()
		if makeContent == nil {
			return wait, true
		}
		if !s.write(ctx, makeContent) {
			return 0, false
		}
	}
}

// flush writes what is pending, however soon after the last time, when ctx has ended.
func (s *Saver) flush(ctx context.Context) {
	if s.BeforeFinalWrite != nil {
		s.BeforeFinalWrite()
	}
	s.mu.Lock()
	s.notBefore = time.Time{}
	s.mu.Unlock()
	_, _ = s.WriteDue(ctx)
}

// write writes the file, and reports whether the write has ended: it waits for
// FinalWriteTimeout at the most after ctx has ended.
func (s *Saver) write(ctx context.Context, makeContent func() ([]byte, error)) bool {
	written := make(chan struct{}, 1)
	var err error
	s.Tasks.Go(func() {
		var text []byte
		if text, err = makeContent(); err == nil {
			err = s.Replace(s.Path(), text)
		}
		written <- struct{}{}
	})
	outcome := s.Tasks.Wait(ctx, hungAfter, written)
	if outcome == tasks.TimeOver {
		s.noteProblem(errors.New("the disk does not answer"))
		outcome = s.Tasks.Wait(ctx, tasks.Forever, written)
	}
	if outcome == tasks.Ended {
		outcome = s.Tasks.Wait(context.WithoutCancel(ctx), FinalWriteTimeout, written)
	}
	if outcome != 0 {
		return false
	}
	s.noteWritten(makeContent, err)
	return true
}

// noteWritten notes what became of a write.
func (s *Saver) noteWritten(makeContent func() ([]byte, error), err error) {
	s.mu.Lock()
	now := s.Tasks.Now()
	if err == nil {
		s.Writes.Note(now)
		if s.pending != nil {
			s.notBefore = now.Add(s.Writes.Delay(now))
		}
	} else {
		s.notBefore = now.Add(RetryInterval)
		if s.pending == nil {
			s.pending = makeContent
		}
	}
	s.mu.Unlock()
	s.noteProblem(err)
}

// noteProblem notes why the file is not written, nil if it is, and logs that once.
func (s *Saver) noteProblem(err error) {
	problem := ""
	if err != nil {
		problem = s.What + " is not written: " + err.Error()
	}
	s.mu.Lock()
	before := s.problem
	s.problem = problem
	s.mu.Unlock()
	switch {
	case problem == before:
		return
	case before == "":
		log.Log.Error(err, "A file is not written: "+s.Consequence, "content", s.What, "file", s.Path())
	case problem == "":
		log.Log.Info("The file is written again", "content", s.What, "file", s.Path())
	}
	pacing.Signal(s.Wake)
}
