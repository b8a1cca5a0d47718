package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/vishvananda/netns"
)

// profileSeconds is for how long processors are watched.
const profileSeconds = 10

// pprofAddress is where a manager serves profiles that is told to.
const pprofAddress = "127.0.0.1:6060"

// profiled starts the managers once more, so that they serve profiles.
func (b *bench) profiled(ctx context.Context) error {
	patch := `[{"op":"add","path":"/spec/template/spec/containers/0/args/-","value":"--pprof-bind-address=` + pprofAddress + `"}]`
	if err := b.kubectl(ctx, "-n", system, "patch", "deployment/purelb-manager", "--type=json", "-p", patch); err != nil {
		return err
	}
	return b.kubectl(ctx, "-n", system, "rollout", "status", "deployment/purelb-manager", "--timeout=180s")
}

// startProfiles writes what the API server and the leading manager are busy with while
// something goes on, and what memory the manager has after, if --profile asks for
// it. The function that it returns waits until it is written.
func (b *bench) startProfiles(ctx context.Context, name string) func() error {
	if !b.profile {
		return func() error { return nil }
	}
	done := make(chan error, 2)
	cpu := "/debug/pprof/profile?seconds=" + strconv.Itoa(profileSeconds)
	go func() {
		text, err := b.clientset.RESTClient().Get().RequestURI(cpu).DoRaw(ctx)
		if err == nil {
			err = b.writeProfile(name+" API server CPU", text)
		}
		done <- err
	}()
	go func() { done <- b.profileManager(ctx, name, cpu) }()
	return func() error { return errors.Join(<-done, <-done) }
}

func (b *bench) profileManager(ctx context.Context, name, cpu string) error {
	programs, err := b.programs(ctx)
	if err != nil {
		return err
	}
	for _, p := range programs {
		if p.role != "leader" {
			continue
		}
		for kind, path := range map[string]string{"CPU": cpu, "heap": "/debug/pprof/heap"} {
			text, err := p.get(ctx, path)
			if err != nil {
				return fmt.Errorf("profile the manager: %w", err)
			}
			if err := b.writeProfile(name+" manager "+kind, text); err != nil {
				return err
			}
		}
		return nil
	}
	return errors.New("profile the manager: there is none that leads")
}

func (b *bench) writeProfile(name string, text []byte) error {
	path := filepath.Join(b.out, strings.ReplaceAll(name, " ", "-")+".pprof")
	b.say("writing %s", path)
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return fmt.Errorf("write a profile: %w", err)
	}
	return nil
}

// get asks a process, in its own network namespace, for a profile.
func (p program) get(ctx context.Context, path string) ([]byte, error) {
	web := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: p.dial}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+pprofAddress+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := web.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, text)
	}
	return text, err
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
		// The thread is never unlocked, so it ends with this goroutine and nobody gets
		// it in the wrong namespace.
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
