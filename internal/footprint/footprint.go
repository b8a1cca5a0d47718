// Package footprint keeps a program's resident memory to what it uses.
//
// A program that is linked with the Kubernetes API touches most of itself when it
// starts: each kind of each version registers itself, and the kernel maps the
// pages around each one that is touched. Nearly all of that is never used again,
// but stays mapped, and counted, for as long as the program runs.
package footprint

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Trimmer gives back once what only the start needed. It is a Runnable of
// controller-runtime's manager.
type Trimmer struct {
	// After is how long the start takes.
	After time.Duration
	// Failed is told when the program's pages could not be given back, which
	// harms nothing.
	Failed func(error)
}

// NeedLeaderElection is false: each process has its own memory.
func (t Trimmer) NeedLeaderElection() bool { return false }

// Start trims after a while.
func (t Trimmer) Start(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-time.After(t.After):
		if err := Trim(); err != nil {
			t.Failed(err)
		}
	}
	return nil
}

// Trim gives the heap's free pages back to the kernel, and unmaps the program's
// own code and constants. What is used of these is mapped again at once, from the
// page cache (madvise(2), MADV_DONTNEED of a private mapping of a file).
func Trim() error {
	debug.FreeOSMemory()
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("find the program's file: %w", err)
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return fmt.Errorf("list the program's memory: %w", err)
	}
	defer maps.Close()
	regions, err := constant(maps, program)
	if err != nil {
		return fmt.Errorf("list the program's memory: %w", err)
	}
	for _, r := range regions {
		if err := r.advise(unix.MADV_DONTNEED); err != nil {
			return fmt.Errorf("unmap the program's pages: %w", err)
		}
	}
	return nil
}

// region of the address space.
type region struct{ from, to uintptr }

// constant lists the regions that hold the program's file and that nobody can
// write to, from a proc_pid_maps(5). A page that was written to would be lost.
func constant(maps io.Reader, program string) ([]region, error) {
	var regions []region
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		// from-to permissions offset device inode path
		fields := strings.SplitN(strings.Join(strings.Fields(lines.Text()), " "), " ", 6)
		if len(fields) < 6 || fields[5] != program || fields[1] != "r-xp" && fields[1] != "r--p" {
			continue
		}
		low, high, _ := strings.Cut(fields[0], "-")
		from, err := strconv.ParseUint(low, 16, 64)
		if err != nil {
			return nil, err
		}
		to, err := strconv.ParseUint(high, 16, 64)
		if err != nil {
			return nil, err
		}
		regions = append(regions, region{uintptr(from), uintptr(to)})
	}
	return regions, lines.Err()
}

// advise is madvise(2) of memory that Go has not allocated.
func (r region) advise(advice int) error {
	if _, _, errno := unix.Syscall(unix.SYS_MADVISE, r.from, r.to-r.from, uintptr(advice)); errno != 0 {
		return errno
	}
	return nil
}
