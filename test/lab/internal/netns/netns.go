// Package netns runs functions inside named network namespaces (those of
// "ip netns", under /run/netns).
package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// Dir is where ip-netns(8) keeps its namespaces.
const Dir = "/run/netns"

// Do calls fn in the network namespace called name and returns its error.
// Sockets that fn opens, and processes that it starts, belong to that
// namespace for good; goroutines that it starts do not.
//
// fn runs on an operating system thread of its own, which ends with it, so no
// other goroutine can ever find itself in the wrong namespace.
func Do(name string, fn func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the runtime ends the thread
		result <- func() error {
			if err := enter(name); err != nil {
				return err
			}
			return fn()
		}()
	}()
	return <-result
}

func enter(name string) error {
	file, err := os.Open(filepath.Join(Dir, name))
	if err != nil {
		return fmt.Errorf("open network namespace %s: %w", name, err)
	}
	defer file.Close()
	if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", name, err)
	}
	return nil
}

// ID identifies the network namespace called name: its inode number, as in
// /proc/PID/ns/net. It is 0 if there is no such namespace.
func ID(name string) (uint64, error) {
	id, err := inode(filepath.Join(Dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	return id, err
}

func inode(path string) (uint64, error) {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return 0, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return stat.Ino, nil
}

// OfProcess identifies the network namespace of a process, as ID does.
func OfProcess(pid int) (uint64, error) {
	return inode(fmt.Sprintf("/proc/%d/ns/net", pid))
}

// SetSysctl writes a sysctl of the namespace called name, such as
// "net.ipv4.ip_forward". Only those below net can be set: the others are the
// whole machine's.
func SetSysctl(name, key, value string) error {
	path, err := sysctlPath(key)
	if err != nil {
		return err
	}
	return Do(name, func() error {
		if err := os.WriteFile(path, []byte(value), 0); err != nil {
			return fmt.Errorf("set %s in network namespace %s: %w", key, name, err)
		}
		return nil
	})
}
