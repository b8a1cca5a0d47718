package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/purelb/purelb-operator/test/lab/internal/cgroup"
	"github.com/purelb/purelb-operator/test/lab/internal/netns"
	"github.com/purelb/purelb-operator/test/lab/internal/process"
)

// removeTimeout is how long Down waits until the kernel has removed everything.
const removeTimeout = 30 * time.Second

// Down removes the lab whose state is in stateDir (DefaultStateDir if empty) and
// everything that the lab has made on this machine. Down may be called when nothing or
// only a part of a lab is there. It calls say, if that is not nil, with what it does.
//
// Down ends every process in the lab's network namespaces, also those that others have
// started there.
func Down(ctx context.Context, stateDir string, say func(string)) error {
	if stateDir == "" {
		stateDir = DefaultStateDir
	}
	if say == nil {
		say = func(string) {}
	}
	if os.Geteuid() != 0 {
		return errors.New("take the lab down: only root can")
	}
	stateDir, err := filepath.Abs(stateDir)
	if err != nil {
		return fmt.Errorf("make %s absolute: %w", stateDir, err)
	}
	unlock, err := lock(ctx, stateDir)
	if err != nil {
		return err
	}
	defer unlock()
	if err := removeLab(ctx, stateDir, say); err != nil {
		return err
	}
	if err := os.Remove(stateDir); err != nil {
		return fmt.Errorf("remove the state folder: %w", err)
	}
	return nil
}

// removeLab removes everything but the state folder itself, which serves as the lock.
func removeLab(ctx context.Context, stateDir string, say func(string)) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	madeNetnsDir := false
	if l, err := openState(stateDir); err == nil {
		madeNetnsDir = l.state.MadeNetnsDir
	}
	if err := cgroup.ThawAll(ctx); err != nil { // frozen processes cannot be killed
		return err
	}
	killed, err := killProcesses(ctx, stateDir)
	if err != nil {
		return err
	}
	if killed > 0 {
		say(fmt.Sprintf("ended %d processes", killed))
	}
	if err := removeNetwork(ctx); err != nil {
		return err
	}
	if madeNetnsDir {
		if err := removeNetnsDir(); err != nil {
			return err
		}
	}
	if err := removeCgroups(ctx); err != nil {
		return err
	}
	return emptyStateDir(stateDir)
}

// killProcesses ends the lab's processes: those of the pid files, those whose program is
// in the state folder, and those in the lab's network namespaces, among them any that was
// started but whose pid file was not yet written. With process 1 of a node the kernel
// ends all processes of the node.
func killProcesses(ctx context.Context, stateDir string) (int, error) {
	labNamespaces := map[uint64]bool{}
	for _, name := range plan(MaxNodes).namespaces() {
		id, err := netns.ID(name)
		if err != nil {
			return 0, err
		}
		if id != 0 {
			labNamespaces[id] = true
		}
	}
	pidFiles, err := filepath.Glob(filepath.Join(stateDir, "pids", "*.json"))
	if err != nil {
		return 0, fmt.Errorf("list the pid files: %w", err)
	}
	recorded := map[process.Record]bool{}
	for _, file := range pidFiles {
		if r, err := process.Read(file); err == nil { // otherwise the file is half-written
			recorded[r] = true
		}
	}
	belongsToLab := func(pid int) bool {
		if r, err := process.RecordOf(pid); err == nil && recorded[r] {
			return true
		}
		if argv := process.Argv(pid); len(argv) > 0 && argv[0] == filepath.Join(stateDir, "bin", "lab") {
			return true
		}
		id, err := netns.OfProcess(pid)
		return err == nil && labNamespaces[id]
	}
	killed := 0
	for {
		found, err := process.Find(belongsToLab)
		if err != nil || len(found) == 0 {
			return killed, err
		}
		for _, r := range found {
			if err := r.Kill(ctx); err != nil {
				return killed, err
			}
		}
		killed += len(found)
	}
}

// removeCgroups removes the nodes' control groups. A group stays busy for a moment after
// its last process has ended.
func removeCgroups(ctx context.Context) error {
	for {
		err := cgroup.Remove()
		if err == nil || !cgroup.IsBusy(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// emptyStateDir removes what is in the state folder. Nodes mount things in namespaces of
// their own, so nothing should be mounted there. If something is, it is unmounted and not
// emptied.
func emptyStateDir(dir string) error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("read mounts: %w", err)
	}
	below := mountsBelow(dir, string(mounts))
	slices.Reverse(below) // the last mounted first
	for _, at := range below {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", at, err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("list the state folder: %w", err)
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
			return fmt.Errorf("empty the state folder: %w", err)
		}
	}
	return nil
}

// mountsBelow lists what is mounted below a folder, in the order of
// proc_pid_mountinfo(5).
func mountsBelow(dir, mountinfo string) []string {
	var found []string
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line)
		if len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			found = append(found, fields[4])
		}
	}
	return found
}
