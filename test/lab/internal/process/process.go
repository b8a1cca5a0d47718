// Package process starts long-lived processes, remembers them in pid files and
// finds and ends them again, without ever mistaking another process for them.
package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Record is what a pid file holds. A pid alone is not enough: the kernel gives
// it to another process later. With the start time and the boot it is unique.
type Record struct {
	PID       int    `json:"pid"`
	StartTime uint64 `json:"startTime"` // clock ticks since boot, field 22 of proc_pid_stat(5)
	Boot      string `json:"boot"`      // /proc/sys/kernel/random/boot_id
}

// RecordOf returns the record of the running process pid.
func RecordOf(pid int) (Record, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Record{}, fmt.Errorf("identify this boot: %w", err)
	}
	stat, err := readStat(pid)
	if err != nil {
		return Record{}, err
	}
	return Record{PID: pid, StartTime: stat.startTime, Boot: strings.TrimSpace(string(boot))}, nil
}

// Alive says whether the very process of the record still runs. One that has
// ended and waits for its parent to notice (a zombie) does not.
func (r Record) Alive() bool {
	now, err := RecordOf(r.PID)
	if err != nil || now != r {
		return false
	}
	stat, err := readStat(r.PID)
	if err != nil {
		return false
	}
	if stat.state != 'Z' && stat.state != 'X' {
		return true
	}
	// The first thread has ended; while others are ending the process still
	// holds its sockets and files.
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", r.PID))
	return err == nil && len(threads) > 1
}

// Write writes the record to a pid file.
func (r Record) Write(pidFile string) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	temporary := pidFile + ".new"
	if err := os.WriteFile(temporary, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("write the pid file: %w", err)
	}
	if err := os.Rename(temporary, pidFile); err != nil {
		return fmt.Errorf("write the pid file: %w", err)
	}
	return nil
}

// Read reads a pid file.
func Read(pidFile string) (Record, error) {
	var r Record
	text, err := os.ReadFile(pidFile)
	if err != nil {
		return r, fmt.Errorf("read the pid file: %w", err)
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("parse %s: %w", pidFile, err)
	}
	return r, nil
}

// Alive says whether the process of a pid file still runs.
func Alive(pidFile string) bool {
	r, err := Read(pidFile)
	return err == nil && r.Alive()
}

// Start starts argv in a session of its own, so that it outlives the caller
// and its terminal, with its output going to the end of logFile, and writes
// its pid file.
func Start(pidFile, logFile string, argv ...string) error {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	defer log.Close()

	command := exec.Command(argv[0], argv[1:]...)
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := command.Start(); err != nil {
		return fmt.Errorf("start %s: %w", filepath.Base(argv[0]), err)
	}
	r, err := RecordOf(command.Process.Pid)
	if err == nil {
		err = r.Write(pidFile)
	}
	if err != nil {
		_ = command.Process.Kill()
		_ = command.Wait()
		return err
	}
	go func() { _ = command.Wait() }() // if it ends before we do, leave no zombie
	return nil
}

// Kill ends the process of a pid file with SIGKILL, waits until it is gone and
// removes the file. It does nothing if that process is gone already.
func Kill(ctx context.Context, pidFile string) error {
	r, err := Read(pidFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := r.Kill(ctx); err != nil {
		return err
	}
	return os.Remove(pidFile)
}

// Kill ends the process of the record with SIGKILL and waits until it is gone.
func (r Record) Kill(ctx context.Context) error {
	// A handle on the process (a pidfd), so that the one that is looked at is
	// the one that is killed, whatever happens to its number in between.
	handle, err := os.FindProcess(r.PID)
	if err != nil {
		return nil // gone
	}
	defer func() { _ = handle.Release() }()
	if !r.Alive() {
		return nil
	}
	if err := handle.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill process %d: %w", r.PID, err)
	}
	for r.Alive() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for process %d to end: %w", r.PID, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

// Find returns the running processes for which match is true. Processes that
// end meanwhile are left out.
func Find(match func(pid int) bool) ([]Record, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []Record
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		r, err := RecordOf(pid)
		if err != nil || !match(pid) || !r.Alive() {
			continue
		}
		found = append(found, r)
	}
	return found, nil
}

// Argv is the command line of a process; empty if it has none.
func Argv(pid int) []string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || len(text) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
}
