// Package routertest runs routers of other people in a network namespace of a test: FRRouting
// (package frr of Debian), BIRD (bird2), ExaBGP (exabgp). Nothing is installed as a service: each daemon runs
// by hand, with folders of its own.
package routertest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
)

// patience is how long daemons may take to start.
const patience = 60 * time.Second

// frrDir has FRR's daemons in Debian.
const frrDir = "/usr/lib/frr"

// FRR is zebra, bgpd and bfdd in a network namespace.
type FRR struct {
	dir       string
	where     nstest.Neighbour
	processes []*exec.Cmd
}

// StartFRR runs FRR with a configuration of bgpd and of bfdd.
func StartFRR(t testing.TB, where nstest.Neighbour, bgpd string) *FRR {
	t.Helper()
	if _, err := os.Stat(frrDir); err != nil {
		t.Fatalf("this test needs the router FRR (apt-get install frr): %v", err)
	}
	account, err := user.Lookup("frr")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "frr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	uid, _ := strconv.Atoi(account.Uid)
	gid, _ := strconv.Atoi(account.Gid)
	f := &FRR{dir: dir, where: where}
	for name, text := range map[string]string{"zebra": "", "bgpd": bgpd, "bfdd": ""} {
		if err := os.WriteFile(filepath.Join(dir, name+".conf"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(filepath.Join(dir, name+".conf"), uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(dir, uid, gid); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Stop)
	f.Start(t)
	return f
}

// Start starts the daemons, as after Stop.
func (f *FRR) Start(t testing.TB) {
	t.Helper()
	for _, name := range []string{"zebra", "bfdd", "bgpd"} {
		path := func(suffix string) string { return filepath.Join(f.dir, name+suffix) }
		cmd := exec.Command("nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", f.where.PID()), "--",
			filepath.Join(frrDir, name), "-f", path(".conf"), "-i", path(".pid"), "-z", filepath.Join(f.dir, "zserv.api"),
			"--vty_socket", f.dir, "-A", "127.0.0.1", "--log", "file:"+path(".log"))
		if name == "bfdd" {
			cmd.Args = append(cmd.Args, "--bfdctl", filepath.Join(f.dir, "bfdd.sock"))
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			t.Fatalf("start %s: %v", name, err)
		}
		f.processes = append(f.processes, cmd)
		waitFor(t, name, func() bool {
			_, err := os.Stat(path(".vty"))
			return err == nil
		})
	}
}

// Stop kills the daemons, as a router that fails.
func (f *FRR) Stop() {
	for _, cmd := range slices.Backward(f.processes) {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	f.processes = nil
	for _, name := range []string{"zebra", "bfdd", "bgpd"} {
		_ = os.Remove(filepath.Join(f.dir, name+".vty"))
	}
}

// StopDaemon kills one daemon.
func (f *FRR) StopDaemon(name string) {
	f.processes = slices.DeleteFunc(f.processes, func(cmd *exec.Cmd) bool {
		if filepath.Base(cmd.Args[3]) != name {
			return false
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return true
	})
}

// Configure runs commands of vtysh that configure FRR, one after the other.
func (f *FRR) Configure(commands ...string) string {
	args := []string{"--vty_socket", f.dir, "-c", "configure terminal"}
	for _, c := range commands {
		args = append(args, "-c", c)
	}
	out, _ := exec.Command("vtysh", args...).CombinedOutput()
	return string(out)
}

// Show runs a command of vtysh, and returns its output.
func (f *FRR) Show(command string) string {
	out, _ := exec.Command("vtysh", "--vty_socket", f.dir, "-c", command).CombinedOutput()
	return string(out)
}

// Route is one path to a prefix as FRR has it.
type Route struct {
	NextHops    []string
	ASPath      string
	Communities string
	Large       string
	MED         int
	LocalPref   int
	IsStale     bool
}

// Routes returns the paths that FRR has of one family, ipv4 or ipv6, by prefix. It has the
// details of one path of each prefix.
func (f *FRR) Routes(family string) map[string]Route {
	var table struct {
		Routes map[string][]struct {
			Valid    bool `json:"valid"`
			Stale    bool `json:"stale"`
			Nexthops []struct {
				IP string `json:"ip"`
			} `json:"nexthops"`
		} `json:"routes"`
	}
	if json.Unmarshal([]byte(f.Show("show bgp "+family+" unicast json")), &table) != nil {
		return nil
	}
	routes := map[string]Route{}
	for prefix, paths := range table.Routes {
		r := Route{}
		for _, p := range paths {
			r.IsStale = r.IsStale || p.Stale
			if len(p.Nexthops) > 0 {
				r.NextHops = append(r.NextHops, p.Nexthops[0].IP)
			}
		}
		routes[prefix] = r
	}
	return routes
}

// Session is what a router says of its session with a neighbour.
type Session struct {
	// State is that of RFC 4271, such as Established.
	State string
	// Received is how many routes of all families it has from the neighbour.
	Received int
}

// IsUp reports whether routes are exchanged.
func (s Session) IsUp() bool { return s.State == "Established" }

// Sessions returns what FRR says of its sessions, by the neighbour's address.
func (f *FRR) Sessions() map[string]Session {
	var families map[string]struct {
		Peers map[string]struct {
			State    string `json:"state"`
			Received int    `json:"pfxRcd"`
		} `json:"peers"`
	}
	if json.Unmarshal([]byte(f.Show("show bgp summary json")), &families) != nil {
		return nil
	}
	sessions := map[string]Session{}
	for _, family := range families {
		for neighbour, p := range family.Peers {
			s := sessions[neighbour]
			s.State = p.State
			s.Received += p.Received
			sessions[neighbour] = s
		}
	}
	return sessions
}

// Details returns the attributes of the path to one prefix.
func (f *FRR) Details(family, prefix string) Route {
	var route struct {
		Paths []struct {
			ASPath struct {
				String string `json:"string"`
			} `json:"aspath"`
			Community struct {
				String string `json:"string"`
			} `json:"community"`
			LargeCommunity struct {
				String string `json:"string"`
			} `json:"largeCommunity"`
			Metric    int `json:"metric"`
			LocalPref int `json:"locPrf"`
			Nexthops  []struct {
				IP    string `json:"ip"`
				Scope string `json:"scope"`
			} `json:"nexthops"`
		} `json:"paths"`
	}
	if json.Unmarshal([]byte(f.Show(fmt.Sprintf("show bgp %s unicast %s json", family, prefix))), &route) != nil ||
		len(route.Paths) == 0 {
		return Route{}
	}
	p := route.Paths[0]
	r := Route{
		ASPath: p.ASPath.String, Communities: p.Community.String, Large: p.LargeCommunity.String, MED: p.Metric,
		LocalPref: p.LocalPref,
	}
	for _, hop := range p.Nexthops {
		r.NextHops = append(r.NextHops, hop.IP)
	}
	return r
}

// Log returns the end of bgpd's log.
func (f *FRR) Log() string {
	text, _ := os.ReadFile(filepath.Join(f.dir, "bgpd.log"))
	return string(text[max(0, len(text)-8000):])
}

func waitFor(t testing.TB, what string, isSo func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !isSo(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s does not start", what)
		}
	}
}

// BIRD is BIRD in a network namespace.
type BIRD struct {
	dir string
	cmd *exec.Cmd
}

// StartBIRD runs BIRD with a configuration.
func StartBIRD(t testing.TB, where nstest.Neighbour, config string) *BIRD {
	t.Helper()
	b := &BIRD{dir: t.TempDir()}
	if err := os.WriteFile(filepath.Join(b.dir, "bird.conf"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	b.cmd = exec.Command("nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", where.PID()), "--", "bird", "-f",
		"-c", filepath.Join(b.dir, "bird.conf"), "-s", filepath.Join(b.dir, "bird.ctl"), "-P",
		filepath.Join(b.dir, "bird.pid"))
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := b.cmd.Start(); err != nil {
		t.Fatalf("this test needs the router BIRD (apt-get install bird2): %v", err)
	}
	t.Cleanup(b.Stop)
	waitFor(t, "bird", func() bool {
		_, err := os.Stat(filepath.Join(b.dir, "bird.ctl"))
		return err == nil
	})
	return b
}

// Configure gives BIRD another configuration.
func (b *BIRD) Configure(t testing.TB, config string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, "bird.conf"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := b.Show("configure"); !strings.Contains(out, "Reconfigur") {
		t.Fatalf("BIRD does not take its configuration: %s", out)
	}
}

// Stop kills BIRD, as a router that fails.
func (b *BIRD) Stop() {
	_ = b.cmd.Process.Kill()
	_ = b.cmd.Wait()
}

// Sessions returns what BIRD says of its sessions, by the neighbour's address.
func (b *BIRD) Sessions() map[string]Session {
	sessions, neighbour := map[string]Session{}, "" // the state stands before the address
	for line := range strings.Lines(b.Show("show protocols all")) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		s, fields := sessions[neighbour], strings.Fields(value)
		switch {
		case name == "BGP state":
			neighbour, s = "", Session{State: strings.Join(fields, " ")}
		case name == "Neighbor address" && len(fields) == 1:
			sessions[fields[0]] = sessions[""]
			neighbour = fields[0]
			continue
		case name == "Routes" && len(fields) > 1 && fields[1] == "imported,":
			imported, _ := strconv.Atoi(fields[0])
			s.Received += imported
		default:
			continue
		}
		sessions[neighbour] = s
	}
	delete(sessions, "")
	return sessions
}

// Show runs a command of birdc, and returns its output.
func (b *BIRD) Show(command string) string {
	out, _ := exec.Command("birdc",
		append([]string{"-s", filepath.Join(b.dir, "bird.ctl")}, strings.Fields(command)...)...).CombinedOutput()
	return string(out)
}
