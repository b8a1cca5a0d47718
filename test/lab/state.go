package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/purelb/purelb-operator/test/lab/internal/api"
	"github.com/purelb/purelb-operator/test/lab/internal/process"
)

// DefaultStateDir is where a lab keeps its state unless Options say otherwise.
const DefaultStateDir = "/var/lib/purelb-lab"

// state is the content of lab.json in the state folder. Up writes it before it does
// anything else, so that Down knows what to remove.
type state struct {
	// KubeDir is the folder of the kube binary.
	KubeDir string `json:"kubeDir"`
	// ProxyMode is the mode of kube-proxy.
	ProxyMode ProxyMode `json:"proxyMode"`
	// Nodes is how many nodes there are.
	Nodes int `json:"nodes"`
	// MadeNetnsDir is true if there was no /run/netns before.
	MadeNetnsDir bool `json:"madeNetnsDir"`
}

// Lab is a lab that is up.
type Lab struct {
	dir   string
	state state
}

// ErrDown is the error of Open when there is no lab.
var ErrDown = errors.New("the lab is not up")

// Open attaches to the lab whose state is in stateDir, or in DefaultStateDir if
// that is empty. It returns an error that wraps ErrDown if there is no lab, or none that
// was brought up completely. It does not check whether the lab works: see [Lab.Check].
func Open(stateDir string) (*Lab, error) {
	l, err := openState(stateDir)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(l.path("ready")); err != nil {
		return nil, fmt.Errorf("open the lab in %s: %w completely", l.dir, ErrDown)
	}
	return l, nil
}

func openState(stateDir string) (*Lab, error) {
	l := &Lab{dir: stateDir}
	if l.dir == "" {
		l.dir = DefaultStateDir
	}
	text, err := os.ReadFile(l.path("lab.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open the lab in %s: %w", l.dir, ErrDown)
	}
	if err != nil {
		return nil, fmt.Errorf("open the lab: %w", err)
	}
	if err := json.Unmarshal(text, &l.state); err != nil {
		return nil, fmt.Errorf("open the lab in %s: %w", l.dir, err)
	}
	return l, nil
}

// plan is what the lab consists of.
func (l *Lab) plan() plan { return plan(l.state.Nodes) }

// path is a path in the state folder.
func (l *Lab) path(elem ...string) string {
	return filepath.Join(append([]string{l.dir}, elem...)...)
}

func (l *Lab) pidFile(name string) string { return l.path("pids", name+".json") }
func (l *Lab) logFile(name string) string { return l.path("logs", name+".log") }

// Kubeconfig is the path of a kubeconfig of an administrator, for use outside
// of the namespaces.
func (l *Lab) Kubeconfig() string { return l.path("kubeconfig") }

// HostKubeconfig is the path of a kubeconfig of an administrator, for use in the
// namespaces of the hosts.
func (l *Lab) HostKubeconfig() string { return l.path("control-plane", "admin.kubeconfig") }

// Logs is the folder of all logs.
func (l *Lab) Logs() string { return l.path("logs") }

// Kubectl is the path of kubectl.
func (l *Lab) Kubectl() string { return filepath.Join(l.state.KubeDir, "kubectl") }

// Nodes are the Kubernetes nodes, in order.
func (l *Lab) Nodes() []Node { return l.plan().nodes() }

// Hosts are all machines that have addresses, the nodes among them.
func (l *Lab) Hosts() []Host { return l.plan().hosts() }

// Names of the lab's long-lived processes, beside one for each node.
const (
	controlPlaneProcess = "control-plane"
	forwardProcess      = "forward"
	dnsProcess          = "dns"
)

func (l *Lab) processNames() []string {
	names := []string{controlPlaneProcess, forwardProcess, dnsProcess}
	for _, node := range l.plan().nodes() {
		names = append(names, node.Name)
	}
	return names
}

// Check returns nil if all processes run, and the API server and all nodes are ready.
func (l *Lab) Check(ctx context.Context) error {
	for _, name := range l.processNames() {
		if !process.Alive(l.pidFile(name)) {
			return fmt.Errorf("%s does not run: see %s", name, l.logFile(name))
		}
	}
	client, err := api.Open(l.Kubeconfig())
	if err != nil {
		return err
	}
	if err := client.Ready(ctx); err != nil {
		return err
	}
	ready, err := client.ReadyNodes(ctx)
	if err != nil {
		return err
	}
	for _, node := range l.plan().nodes() {
		if !slices.Contains(ready, node.Name) {
			return fmt.Errorf("%s is not Ready: see %s", node.Name, l.logFile(node.Name+"-kubelet"))
		}
	}
	return nil
}

// lock keeps other processes from bringing the same lab up or down until unlock is
// called. It creates the state folder.
func lock(ctx context.Context, dir string) (unlock func(), err error) {
	for {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("make the state folder: %w", err)
		}
		file, err := os.Open(dir)
		if err != nil {
			return nil, fmt.Errorf("open the state folder: %w", err)
		}
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil && sameFile(file, dir) {
			return func() { _ = file.Close() }, nil
		}
		_ = file.Close()
		if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock the state folder: %w", err)
		}
		// Another process has the lock, or had it and has removed the folder.
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for another process that brings the lab up or down: %w", ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func sameFile(file *os.File, path string) bool {
	a, err := file.Stat()
	if err != nil {
		return false
	}
	b, err := os.Stat(path)
	return err == nil && os.SameFile(a, b)
}
