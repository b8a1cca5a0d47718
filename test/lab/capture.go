package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Capture is a running packet capture.
type Capture struct {
	command *exec.Cmd
	stdout  syncBuffer
	stderr  syncBuffer
	ended   chan struct{} // closed when tcpdump has ended
	err     error         // of tcpdump; read after ended
}

// StartCapture captures packets on the eth0 of a host (of the fabric: on
// the bridge of the nodes' link) that match a filter in the language of pcap-filter(7), such as "arp
// and host 10.77.0.100". It returns when the capture has begun; it runs until
// Stop is called or ctx ends.
func (l *Lab) StartCapture(ctx context.Context, host, filter string) (*Capture, error) {
	on := link
	if host == Fabric {
		on = bridge
	}
	// Time as seconds since 1970; hardware addresses; a line at once for each.
	argv := ExecArgv(host, "tcpdump", "-n", "-tt", "-e", "-l", "--immediate-mode", "-i", on, filter)
	c := &Capture{command: exec.CommandContext(ctx, argv[0], argv[1:]...), ended: make(chan struct{})}
	c.command.Stdout, c.command.Stderr = &c.stdout, &c.stderr
	if err := c.command.Start(); err != nil {
		return nil, fmt.Errorf("capture on %s: %w", host, err)
	}
	go func() {
		c.err = c.command.Wait()
		close(c.ended)
	}()
	for !strings.Contains(c.stderr.String(), "listening on") {
		select {
		case <-c.ended:
			return nil, fmt.Errorf("capture on %s: %w: %s", host, errors.Join(c.err, ctx.Err()), c.stderr.String())
		case <-time.After(5 * time.Millisecond):
		}
	}
	return c, nil
}

// Lines returns the packets so far, a line for each, as tcpdump writes them.
func (c *Capture) Lines() []string {
	text := strings.TrimSpace(c.stdout.String())
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

// Stop ends the capture and returns all packets.
func (c *Capture) Stop() ([]string, error) {
	if err := c.command.Process.Signal(syscall.SIGINT); err != nil {
		<-c.ended
		return c.Lines(), fmt.Errorf("stop the capture: %w", errors.Join(err, c.err))
	}
	<-c.ended
	return c.Lines(), c.err
}

// syncBuffer is a buffer that one goroutine may write while another reads.
type syncBuffer struct {
	mutex  sync.Mutex
	buffer bytes.Buffer
}

var _ io.Writer = (*syncBuffer)(nil)

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.buffer.Write(p)
}

func (b *syncBuffer) String() string {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.buffer.String()
}
