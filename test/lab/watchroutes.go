package lab

import (
	"context"
	"strings"
	"sync"
	"time"
)

// RouteWatch notes when routes of a host change.
type RouteWatch struct {
	monitor *monitor

	mu      sync.Mutex
	changes []time.Time
}

// WatchRoutes notes when the kernel of a host changes routes, until Stop.
func (l *Lab) WatchRoutes(ctx context.Context, host string) (*RouteWatch, error) {
	w := &RouteWatch{}
	var err error
	w.monitor, err = startMonitor(ctx, host, w.note, "-ts", "monitor", "route")
	return w, err
}

// note takes one line of the output; only the first of a change has the time.
func (w *RouteWatch) note(line string) {
	text, _, found := strings.Cut(strings.TrimPrefix(line, "["), "]")
	at, err := time.ParseInLocation("2006-01-02T15:04:05.000000", text, time.Local)
	if !found || err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changes = append(w.changes, at)
}

// Stop ends the watch, and returns when routes changed.
func (w *RouteWatch) Stop() []time.Time {
	w.monitor.close()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changes
}
