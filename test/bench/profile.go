package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/vishvananda/netns"

	"github.com/purelb/purelb-operator/test/measure"
)

// profileSeconds is for how long the use of processors is profiled.
const profileSeconds = 10

// pprofAddress is where serveProfiles makes the managers serve their profiles, in the
// network namespaces of their pods.
const pprofAddress = "127.0.0.1:6060"

// serveProfiles restarts the managers with the flag that makes them serve profiles.
func (b *bench) serveProfiles(ctx context.Context) error {
	patch := `[{"op":"add","path":"/spec/template/spec/containers/0/args/-","value":"--pprof-bind-address=` +
		pprofAddress + `"}]`
	if err := b.kubectl(ctx, "-n", systemNamespace, "patch", "deployment/purelb-manager", "--type=json", "-p",
		patch); err != nil {
		return err
	}
	return b.kubectl(ctx, "-n", systemNamespace, "rollout", "status", "deployment/purelb-manager", "--timeout=180s")
}

// startProfiles profiles the processors' use of the API server and of the leading
// manager for profileSeconds, and then the manager's memory, if --profile asks for it.
// The function that it returns waits until the profiles are written.
func (b *bench) startProfiles(ctx context.Context, name string) func() error {
	if !b.profile {
		return func() error { return nil }
	}
	return measure.StartAll(
		func() error {
			return b.saveProfile(ctx, name+" API server CPU", measure.CPUOfAPIServer(b.clientset.RESTClient(), profileSeconds))
		},
		func() error { return b.profileManager(ctx, name) },
	)
}

func (b *bench) profileManager(ctx context.Context, name string) error {
	programs, err := b.findPrograms(ctx)
	if err != nil {
		return err
	}
	for _, p := range programs {
		if p.role != "leader" {
			continue
		}
		web := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: p.dial}}
		if err := b.saveProfile(ctx, name+" manager CPU", measure.CPUOf(web, pprofAddress, profileSeconds)); err != nil {
			return err
		}
		return b.saveProfile(ctx, name+" manager heap", measure.HeapOf(web, pprofAddress))
	}
	return errors.New("profile the manager: no manager leads")
}

func (b *bench) saveProfile(ctx context.Context, name string, profile measure.Profiler) error {
	file := filepath.Join(b.out, strings.ReplaceAll(name, " ", "-")+".pprof")
	if err := profile.Save(ctx, file); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	b.say("wrote %s", file)
	return nil
}

// dial connects from the network namespace of the process.
func (p program) dial(ctx context.Context, network, address string) (net.Conn, error) {
	handle, err := netns.GetFromPid(p.pid)
	if err != nil {
		return nil, fmt.Errorf("open the network namespace of process %d: %w", p.pid, err)
	}
	defer handle.Close()
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		// The thread is never unlocked, so the thread ends with this goroutine, and no
		// other goroutine runs in the wrong namespace.
		runtime.LockOSThread()
		if err := netns.Set(handle); err != nil {
			done <- result{nil, fmt.Errorf("enter the network namespace of process %d: %w", p.pid, err)}
			return
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		done <- result{conn, err}
	}()
	r := <-done
	return r.conn, r.err
}
