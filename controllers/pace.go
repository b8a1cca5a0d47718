package controllers

import (
	"sync"
	"time"
)

// pace lets what is called for all the time rest for longer than it works: what
// takes long, as the cluster is large, is done less often. What is called for after
// a rest is done at once.
type pace struct {
	mu      sync.Mutex
	working bool
	ended   time.Time     // when the last run did
	took    time.Duration // and for how long it lasted
}

const (
	// together is for how long to wait for what comes with the first of several.
	together = 2 * time.Millisecond
	// Rest is that many times as long as work, up to maxRest.
	restPerWork = 3
	maxRest     = 2 * time.Second
)

// work notes that a run begins. The function that it returns notes its end.
func (p *pace) work(now func() time.Time) (done func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	begun := now()
	p.working = true
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.working, p.ended = false, now()
		p.took = p.ended.Sub(begun)
	}
}

// delay is how long to wait for more to do.
func (p *pace) delay(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	rest := min(max(batchDelay, restPerWork*p.took), maxRest)
	if p.working {
		return rest
	}
	return max(together, min(rest, p.ended.Add(rest).Sub(now)))
}
