package logind

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/purelb/purelb-operator/test/lab/internal/node"
)

// startBus starts a bus of a node's kind, and returns its address.
func startBus(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("dbus-daemon"); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	socket, config := filepath.Join(dir, "socket"), filepath.Join(dir, "bus.conf")
	if err := os.WriteFile(config, []byte(node.BusConfig(socket)), 0o600); err != nil {
		t.Fatal(err)
	}
	daemon := exec.Command("dbus-daemon", "--config-file="+config, "--nofork", "--nopidfile", "--print-address")
	out, err := daemon.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = daemon.Process.Kill()
		_ = daemon.Wait()
	})
	if _, err := out.Read(make([]byte, 1)); err != nil { // it prints the address when it listens
		t.Fatal(err)
	}
	return "unix:path=" + socket
}

// connect returns the object of a manager that is started at a bus, as programs see it, and what it signals.
func connect(t *testing.T, maxDelay time.Duration) (dbus.BusObject, chan *dbus.Signal) {
	t.Helper()
	address := startBus(t)
	if err := Start(address, maxDelay); err != nil {
		t.Fatal(err)
	}
	if err := Start(address, maxDelay); err == nil {
		t.Error("a second one has the name as well")
	}
	bus, err := dbus.Connect(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bus.Close() })
	signals := make(chan *dbus.Signal, 1)
	bus.Signal(signals)
	err = bus.AddMatchSignal(dbus.WithMatchInterface(manager), dbus.WithMatchMember("PrepareForShutdown"))
	if err != nil {
		t.Fatal(err)
	}
	return bus.Object(service, path), signals
}

// inhibit takes a lock, as a kubelet does.
func inhibit(t *testing.T, object dbus.BusObject) *os.File {
	t.Helper()
	var descriptor dbus.UnixFD
	err := object.Call(manager+".Inhibit", 0, "shutdown", "a test", "to see it", "delay").Store(&descriptor)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(descriptor), "lock")
}

// TestPowerOff checks that a shutdown is announced, and waits for those who hold locks.
func TestPowerOff(t *testing.T) {
	const maxDelay = time.Hour
	object, signals := connect(t, maxDelay)
	delay, err := object.GetProperty(manager + ".InhibitDelayMaxUSec")
	if err != nil || delay.Value() != uint64(maxDelay.Microseconds()) {
		t.Errorf("the longest delay: %v, %v", delay, err)
	}
	if err := object.Call(manager+".Inhibit", 0, "shutdown", "a test", "to see it", "block").Err; err == nil {
		t.Error("a shutdown can be blocked")
	}
	first, second := inhibit(t, object), inhibit(t, object)

	off := object.Go(manager+".PowerOff", 0, make(chan *dbus.Call, 1), false)
	for s := range signals { // the bus itself signals, too
		if s.Name == manager+".PrepareForShutdown" {
			if len(s.Body) != 1 || s.Body[0] != true {
				t.Errorf("the signal says %v", s.Body)
			}
			break
		}
	}
	for _, lock := range []*os.File{first, second} {
		for range 100 { // an answer that is there already would come before these
			if _, err := object.GetProperty(manager + ".InhibitDelayMaxUSec"); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case <-off.Done:
			t.Fatal("the node is off while a program holds a lock")
		default:
		}
		if err := lock.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if call := <-off.Done; call.Err != nil {
		t.Error(call.Err)
	}
}

// TestPowerOffAtLast checks that a program that keeps its lock does not keep the node on.
func TestPowerOffAtLast(t *testing.T) {
	object, _ := connect(t, time.Microsecond)
	lock := inhibit(t, object)
	defer lock.Close()
	if err := object.Call(manager+".PowerOff", 0, false).Err; err != nil {
		t.Error(err)
	}
}
