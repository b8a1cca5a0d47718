package lab

import (
	"bufio"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// RouteWatch notes when routes of a host change.
type RouteWatch struct {
	stop  context.CancelFunc
	ended chan struct{}

	mu      sync.Mutex
	changes []time.Time
}

// WatchRoutes notes when the kernel of a host changes routes, until Stop.
func (l *Lab) WatchRoutes(ctx context.Context, host string) (*RouteWatch, error) {
	ctx, stop := context.WithCancel(ctx)
	argv := ExecArgv(host, "ip", "-ts", "monitor", "route")
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		stop()
		return nil, fmt.Errorf("watch routes of %s: %w", host, err)
	}
	w := &RouteWatch{stop: stop, ended: make(chan struct{})}
	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			w.note(lines.Text())
		}
		_ = cmd.Wait() // it is killed
		close(w.ended)
	}()
	return w, nil
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
	w.stop()
	<-w.ended
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changes
}
