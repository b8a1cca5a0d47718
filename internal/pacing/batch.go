package pacing

import (
	"sync"
	"time"
)

// Batch decides when to serve requests that keep coming. Its exported fields are set
// before it is used; the zero value never waits. It may be used concurrently.
type Batch struct {
	// Wait is for how long a run waits for requests that follow the first one.
	Wait time.Duration
	// Gap is the least time from the end of one run to the begin of the next.
	Gap time.Duration
	// RestPerWork makes the gap this many times as long as the last run took, up to
	// MaxGap. 0 leaves the gap as it is.
	RestPerWork int
	MaxGap      time.Duration

	mu      sync.Mutex
	running bool
	ended   time.Time
	took    time.Duration
	began   time.Time
}

// Begin notes that a run begins.
func (b *Batch) Begin(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.running, b.began = true, now
}

// End notes that the run that began last has ended.
func (b *Batch) End(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.running, b.ended, b.took = false, now, now.Sub(b.began)
}

// Note notes a run that takes no time worth counting.
func (b *Batch) Note(now time.Time) {
	b.Begin(now)
	b.End(now)
}

// Delay returns how long from now a request that comes now waits for its run: from
// Wait to the gap, which a clock that was set back does not exceed.
func (b *Batch) Delay(now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	gap := max(b.Gap, min(b.MaxGap, time.Duration(b.RestPerWork)*b.took))
	switch {
	case b.running:
		return max(b.Wait, gap)
	case b.ended.IsZero():
		return b.Wait
	}
	return max(b.Wait, min(gap, b.ended.Add(gap).Sub(now)))
}
