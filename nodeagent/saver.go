package nodeagent

import (
	"context"
	"errors"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/purelb/purelb-operator/internal/pacing"
)

// saver writes a file, by itself: a disk that hangs or is full delays the file and nothing else.
// It writes the latest content that there is.
//
// What it remembers is lost with the process. The next one writes the checkpoint anew; of the
// node's addresses on a kernel that does not mark them it recognises those that were written.
type saver struct {
	// what names the content, and consequence says what a start without it would lack.
	what, consequence string
	// path returns the name of the file.
	path func() string
	// replaceFile writes a file.
	replaceFile func(path string, text []byte) error
	// beforeLast, if set, is called when the agent stops: when it returns, the content is the last.
	beforeLast func()
	// changed is signalled when there is something to write, and wake when what problemNote
	// returns has changed.
	changed, wake chan struct{}

	mu sync.Mutex
	// pending makes the content to be written; nil if what was written is the latest.
	pending func() ([]byte, error)
	// writes keeps a gap between writes.
	writes pacing.Batch
	// notBefore is when the pending content is to be written.
	notBefore time.Time
	// problem says why the file is not written; empty if it is.
	problem string
}

// NeedLeaderElection is false: every node has its files.
func (s *saver) NeedLeaderElection() bool { return false }

// save says how to make the content that the file is to have; at once, if it is urgent. It waits
// for nothing.
func (s *saver) save(makeContent func() ([]byte, error), isUrgent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	switch {
	case s.problem != "": // the next attempt has its time
	case isUrgent:
		s.notBefore = now
	case s.pending == nil:
		s.notBefore = now.Add(s.writes.Delay(now))
	}
	s.pending = makeContent
	signal(s.changed)
}

// problemNote returns why the file is not written; empty if all is well.
func (s *saver) problemNote() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.problem
}

// takeDue returns how to make what is to be written now, nil for nothing, and in how long there
// is something; 0 is when something changes.
func (s *saver) takeDue() (func() ([]byte, error), time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending == nil {
		return nil, 0
	}
	if wait := time.Until(s.notBefore); wait > 0 {
		return nil, wait
	}
	makeContent := s.pending
	s.pending = nil
	return makeContent, 0
}

// Start writes the file when there is something to write, until ctx ends. A write
// that hangs then cannot be ended: it goes with the process.
func (s *saver) Start(ctx context.Context) error {
	for {
		makeContent, wait := s.takeDue()
		if makeContent != nil {
			if !s.write(ctx, makeContent) {
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
	if s.beforeLast != nil {
		s.beforeLast()
	}
	s.mu.Lock()
	s.notBefore = time.Time{}
	s.mu.Unlock()
	if makeContent, _ := s.takeDue(); makeContent != nil {
		s.write(ctx, makeContent)
	}
}

// write writes the file, and reports whether the write has ended: it waits for
// lastSaveTimeout at the most after ctx has ended.
func (s *saver) write(ctx context.Context, makeContent func() ([]byte, error)) bool {
	written := make(chan error, 1)
	go func() {
		text, err := makeContent()
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
			s.noteWritten(makeContent, err)
			return true
		case <-hung.C:
			s.noteProblem(errors.New("the disk does not answer"))
		case <-stopped:
			stopped, lastChance = nil, time.After(lastSaveTimeout)
		case <-lastChance:
			return false
		}
	}
}

// noteWritten notes what became of a write.
func (s *saver) noteWritten(makeContent func() ([]byte, error), err error) {
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
			s.pending = makeContent
		}
	}
	s.mu.Unlock()
	s.noteProblem(err)
}

// noteProblem notes why the file is not written, nil if it is, and logs that once.
func (s *saver) noteProblem(err error) {
	problem := ""
	if err != nil {
		problem = s.what + " is not written: " + err.Error()
	}
	s.mu.Lock()
	before := s.problem
	s.problem = problem
	s.mu.Unlock()
	switch {
	case problem == before:
		return
	case before == "":
		log.Log.Error(err, "A file is not written: "+s.consequence, "content", s.what, "file", s.path())
	case problem == "":
		log.Log.Info("The file is written again", "content", s.what, "file", s.path())
	}
	signal(s.wake)
}
