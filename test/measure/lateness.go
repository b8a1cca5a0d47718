package measure

import (
	"context"
	"os"
	"strconv"
	"strings"
	"time"
)

// WatchClock sleeps for interval again and again until ctx ends, and calls note with the time
// of each waking and by how much it came late. All of the time between two wakings beyond
// interval is late, also that in which the machine did not run the caller after it had woken.
func WatchClock(ctx context.Context, interval time.Duration, note func(woke time.Time, late time.Duration)) {
	timer := time.NewTimer(interval)
	defer timer.Stop()
	for before := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		woke := time.Now()
		note(woke, max(0, woke.Sub(before)-interval))
		before = woke
		timer.Reset(interval - time.Since(woke))
	}
}

// Lateness is how late the machine let a process run that slept and did nothing else.
type Lateness struct {
	// Longest is the longest time by which the process was late.
	Longest time.Duration
	// Wakings is how often the process woke.
	Wakings int
	// Pressure is the share of the time in which some process waited for a processor, from 0
	// to 1, as the kernel counts it (PSI). It is negative where the kernel does not count.
	Pressure float64
}

// latenessInterval is how long the process of a LatenessMeter sleeps. It is shorter than the
// time between two requests of the meters whose measurements it judges.
const latenessInterval = 5 * time.Millisecond

// LatenessMeter measures the Lateness from its start until Stop.
type LatenessMeter struct {
	begun   time.Time
	stalled time.Duration
	isKnown bool
	stop    context.CancelFunc
	done    chan struct{}
	found   Lateness
}

// StartLateness starts a LatenessMeter, which ends with ctx or with Stop.
func StartLateness(ctx context.Context) *LatenessMeter {
	m := &LatenessMeter{begun: time.Now(), done: make(chan struct{})}
	m.stalled, m.isKnown = readCPUPressure()
	ctx, m.stop = context.WithCancel(ctx)
	go func() {
		defer close(m.done)
		WatchClock(ctx, latenessInterval, func(_ time.Time, late time.Duration) {
			m.found.Wakings++
			m.found.Longest = max(m.found.Longest, late)
		})
	}()
	return m
}

// Stop ends the measurement and returns what it found. A process that never woke was late for
// all of the time.
func (m *LatenessMeter) Stop() Lateness {
	took := time.Since(m.begun)
	m.stop()
	<-m.done
	if m.found.Wakings == 0 {
		m.found.Longest = took
	}
	m.found.Pressure = -1
	if stalled, ok := readCPUPressure(); ok && m.isKnown {
		m.found.Pressure = min(1, float64(stalled-m.stalled)/float64(took))
	}
	return m.found
}

// readCPUPressure returns for how long some process has waited for a processor since the
// machine started, and whether the kernel says so.
func readCPUPressure() (time.Duration, bool) {
	text, err := os.ReadFile("/proc/pressure/cpu")
	if err != nil {
		return 0, false
	}
	return parsePressure(string(text))
}

// parsePressure returns the total of the line "some" of a file in /proc/pressure, which is in
// microseconds (Documentation/accounting/psi.rst of the kernel).
func parsePressure(text string) (time.Duration, bool) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "some" {
			continue
		}
		for _, field := range fields[1:] {
			if total, ok := strings.CutPrefix(field, "total="); ok {
				n, err := strconv.ParseInt(total, 10, 64)
				return time.Duration(n) * time.Microsecond, err == nil
			}
		}
	}
	return 0, false
}
