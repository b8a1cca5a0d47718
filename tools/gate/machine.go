package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// lockFile is locked by whoever uses the lab, of which there is one on a machine. The targets
// of the Makefile that use the lab lock the same file.
const lockFile = "/var/lock/purelb-lab.lock"

const (
	// idleWait is how long the gate waits at the most for the machine to be idle.
	idleWait = time.Minute
	// idlePressure is the share of time, in percent, below which the machine counts as idle:
	// the time in which something waited for a processor.
	idlePressure = 20
	// checkInterval is how often the gate looks again while it waits.
	checkInterval = time.Second
)

// lock waits until nobody else has the file locked, and locks it. The returned function unlocks it.
func lock(ctx context.Context, out io.Writer, path string) (func(), error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the lab: %w", err)
	}
	said := false
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = file.Close() }, nil // closing unlocks
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), file.Close())
		}
		if !said {
			fmt.Fprintf(out, "another command uses the lab (%s is locked): waiting for its end\n", path)
			said = true
		}
		if !pause(ctx) {
			return nil, errors.Join(ctx.Err(), file.Close())
		}
	}
}

// waitForIdle waits for a while until the machine is idle, and says what it found.
func waitForIdle(ctx context.Context, out io.Writer) {
	begun := time.Now()
	for {
		text, err := os.ReadFile("/proc/pressure/cpu")
		pressure, ok := parsePressure(string(text))
		switch {
		case err != nil || !ok:
			fmt.Fprintf(out, "this kernel does not say how busy the machine is; load %s\n", readLoad())
			return
		case pressure < idlePressure || time.Since(begun) >= idleWait:
			fmt.Fprintf(
				out, "pressure on processors %.0f %% after %.0f s of waiting, load %s\n", pressure, time.Since(begun).Seconds(),
				readLoad(),
			)
			return
		case !pause(ctx):
			return
		}
	}
}

// parsePressure returns the share of the last ten seconds, in percent, in which something
// waited for a processor, from the text of /proc/pressure/cpu.
func parsePressure(text string) (float64, bool) {
	for field := range strings.FieldsSeq(text) {
		if value, found := strings.CutPrefix(field, "avg10="); found {
			percent, err := strconv.ParseFloat(value, 64)
			return percent, err == nil
		}
	}
	return 0, false
}

// readLoad returns the load of the last minute, or "unknown".
func readLoad() string {
	text, err := os.ReadFile("/proc/loadavg")
	load, _, found := strings.Cut(string(text), " ")
	if err != nil || !found {
		return "unknown"
	}
	return load
}

// pause waits for checkInterval, and returns false if ctx ended.
func pause(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(checkInterval):
		return true
	}
}
