package lab

import (
	"bufio"
	"context"
	"fmt"
	"os/exec"
)

// monitor runs ip(8), which prints what changes in the kernel of a host.
type monitor struct {
	stop  context.CancelFunc
	ended chan struct{}
}

// startMonitor calls note with each line that "ip ARGUMENTS" prints on a host, until close.
func startMonitor(ctx context.Context, host string, note func(line string), args ...string) (*monitor, error) {
	ctx, stop := context.WithCancel(ctx)
	argv := ExecArgv(host, append([]string{"ip"}, args...)...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		stop()
		return nil, fmt.Errorf("watch the kernel of %s: %w", host, err)
	}
	m := &monitor{stop: stop, ended: make(chan struct{})}
	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			note(lines.Text())
		}
		_ = cmd.Wait() // it is killed
		close(m.ended)
	}()
	return m, nil
}

// close ends the program. When it returns, note has been called with all lines.
func (m *monitor) close() {
	m.stop()
	<-m.ended
}
