// Package logind stands in for systemd-logind in a node. It has as much of the D-Bus interface
// org.freedesktop.login1.Manager as a kubelet needs to delay a shutdown:
// https://www.freedesktop.org/wiki/Software/systemd/inhibit/
package logind

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"
)

const (
	service = "org.freedesktop.login1"
	path    = dbus.ObjectPath("/org/freedesktop/login1")
	manager = service + ".Manager"
)

// login delays shutdowns for programs that hold locks.
type login struct {
	bus      *dbus.Conn
	maxDelay time.Duration

	mu    sync.Mutex
	locks []lock
}

// lock is a pipe of which a program has the writing end: closing it releases the lock.
type lock struct{ held, release *os.File }

// Start connects to the bus at a D-Bus address, and serves there until the process ends. A shutdown is delayed
// by maxDelay at most.
func Start(address string, maxDelay time.Duration) error {
	bus, err := dbus.Connect(address)
	if err != nil {
		return fmt.Errorf("connect to the bus: %w", err)
	}
	m := &login{bus: bus, maxDelay: maxDelay}
	if err := m.serve(); err != nil {
		_ = bus.Close()
		return err
	}
	return nil
}

func (m *login) serve() error {
	for name, methods := range map[string]map[string]any{
		manager:                           {"Inhibit": m.inhibit, "PowerOff": m.powerOff},
		"org.freedesktop.DBus.Properties": {"Get": m.property},
	} {
		if err := m.bus.ExportMethodTable(methods, path, name); err != nil {
			return fmt.Errorf("serve %s: %w", name, err)
		}
	}
	reply, err := m.bus.RequestName(service, dbus.NameFlagDoNotQueue)
	if err != nil {
		return fmt.Errorf("take the name %s: %w", service, err)
	}
	if reply != dbus.RequestNameReplyPrimaryOwner {
		return fmt.Errorf("take the name %s: another program has it", service)
	}
	return nil
}

func (m *login) property(_, name string) (dbus.Variant, *dbus.Error) {
	if name != "InhibitDelayMaxUSec" {
		return dbus.Variant{}, dbus.MakeFailedError(fmt.Errorf("no property %s", name))
	}
	return dbus.MakeVariant(uint64(m.maxDelay.Microseconds())), nil //nolint:gosec // it is not negative
}

// inhibit gives a program a lock. Only shutdowns are delayed, and never blocked.
func (m *login) inhibit(what, _, _, mode string) (dbus.UnixFD, *dbus.Error) {
	if what != "shutdown" || mode != "delay" {
		return 0, dbus.MakeFailedError(fmt.Errorf("no lock of mode %s for %s", mode, what))
	}
	held, release, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.locks = append(m.locks, lock{held, release})
	return dbus.UnixFD(release.Fd()), nil //nolint:gosec // descriptors are small
}

// powerOff says that the node shuts down, and returns when all locks are released, or after maxDelay. Who calls
// it then ends the node. The locks are gone.
func (m *login) powerOff(bool) *dbus.Error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.bus.Emit(path, manager+".PrepareForShutdown", true); err != nil {
		return dbus.MakeFailedError(err)
	}
	deadline := time.Now().Add(m.maxDelay)
	for _, l := range m.locks {
		_ = l.release.Close() // the program's own copy counts
		_ = l.held.SetReadDeadline(deadline)
		_, _ = io.Copy(io.Discard, l.held) // returns at the deadline, too
		_ = l.held.Close()
	}
	m.locks = nil
	return nil
}
