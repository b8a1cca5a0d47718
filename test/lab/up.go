package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/purelb/purelb-operator/test/lab/internal/api"
	"github.com/purelb/purelb-operator/test/lab/internal/assets"
	"github.com/purelb/purelb-operator/test/lab/internal/cgroup"
	"github.com/purelb/purelb-operator/test/lab/internal/debian"
	"github.com/purelb/purelb-operator/test/lab/internal/node"
	"github.com/purelb/purelb-operator/test/lab/internal/pki"
	"github.com/purelb/purelb-operator/test/lab/internal/process"
)

// DefaultAPIPort is the port of the API server on 127.0.0.1 unless Options say otherwise.
const DefaultAPIPort = 16443

// readyTimeout is how long Up waits for the cluster: ten times as long as it usually takes.
const readyTimeout = 3 * time.Minute

// DefaultNodeGracePeriod is half of Kubernetes' default, because tests wait for it, and
// twice a kubelet's heartbeat.
const DefaultNodeGracePeriod = 20 * time.Second

// Options say how to bring a lab up.
type Options struct {
	// StateDir is where its state goes; DefaultStateDir if empty.
	StateDir string
	// CacheDir is where built things are kept; DefaultCacheDir if empty.
	CacheDir string
	// Source is the folder of this Go module.
	Source string
	// Command is the lab command (see cmd/lab), which runs the parts of the
	// lab that are processes of their own.
	Command string
	// APIPort is the port on 127.0.0.1; DefaultAPIPort if 0.
	APIPort int
	// Kubernetes is the version of Kubernetes, such as v1.32.5; that of the go.mod of the
	// module kube if empty.
	Kubernetes string
	// ProxyMode is the mode of kube-proxy; ProxyNFTables if empty.
	ProxyMode ProxyMode
	// Nodes is how many nodes there are, DefaultNodes if 0, at most MaxNodes.
	Nodes int
	// NodeGracePeriod is how long a kubelet may be silent before its node is NotReady;
	// DefaultNodeGracePeriod if 0.
	NodeGracePeriod time.Duration
	// Images are tar files of images to load into every node.
	Images []string
	// Say is called with each step; nil to be silent.
	Say func(string)
}

func (o *Options) setDefaults() error {
	if o.StateDir == "" {
		o.StateDir = DefaultStateDir
	}
	if o.CacheDir == "" {
		dir, err := DefaultCacheDir()
		if err != nil {
			return err
		}
		o.CacheDir = dir
	}
	if o.APIPort == 0 {
		o.APIPort = DefaultAPIPort
	}
	if o.NodeGracePeriod == 0 {
		o.NodeGracePeriod = DefaultNodeGracePeriod
	}
	if o.Nodes == 0 {
		o.Nodes = DefaultNodes
	}
	if o.Nodes < 1 || o.Nodes > MaxNodes {
		return fmt.Errorf("a lab of %d nodes: want 1 to %d", o.Nodes, MaxNodes)
	}
	if o.ProxyMode == "" {
		o.ProxyMode = ProxyNFTables
	}
	if err := o.ProxyMode.validate(); err != nil {
		return err
	}
	if o.Say == nil {
		o.Say = func(string) {}
	}
	for _, path := range []*string{&o.StateDir, &o.CacheDir, &o.Source, &o.Command} {
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return fmt.Errorf("make %s absolute: %w", *path, err)
		}
		*path = absolute
	}
	return nil
}

// DefaultCacheDir returns the folder purelb-lab in the user's cache folder.
func DefaultCacheDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache folder: %w", err)
	}
	return filepath.Join(dir, "purelb-lab"), nil
}

// Assets builds the kube binary if it is not in the cache. It returns the folder that
// holds the binary as etcd, kube-apiserver and kubectl, which envtest takes as
// KUBEBUILDER_ASSETS. It needs no root, and uses the options CacheDir, Source, Kubernetes
// and Say only.
func Assets(ctx context.Context, options Options) (string, error) {
	if err := options.setDefaults(); err != nil {
		return "", err
	}
	return cache(options).Kube(ctx)
}

// EnsurePrograms installs the Debian packages of the programs that the lab runs, as far as they are
// missing. It uses the option Say only.
func EnsurePrograms(ctx context.Context, options Options) error {
	if err := options.setDefaults(); err != nil {
		return err
	}
	return debian.Ensure(ctx, options.Say)
}

func cache(options Options) assets.Cache {
	return assets.Cache{Dir: options.CacheDir, Source: options.Source, Kubernetes: options.Kubernetes, Say: options.Say}
}

// Up brings a lab up and returns when all nodes are Ready. If a lab is up, with the same
// programs in the same modes, and passes Check, Up only loads the images. Otherwise Up
// removes first what is there.
func Up(ctx context.Context, options Options) (*Lab, error) {
	if err := options.setDefaults(); err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("bring the lab up: only root can make network namespaces")
	}
	if err := debian.Ensure(ctx, options.Say); err != nil {
		return nil, err
	}
	if options.ProxyMode.isIPVS() {
		if err := debian.EnsureIPVS(ctx, options.Say); err != nil {
			return nil, err
		}
		if err := checkIPVS(); err != nil {
			return nil, err
		}
	}
	kubeDir, err := cache(options).Kube(ctx)
	if err != nil {
		return nil, err
	}
	images, err := cache(options).Images(ctx)
	if err != nil {
		return nil, err
	}

	unlock, err := lock(ctx, options.StateDir)
	if err != nil {
		return nil, err
	}
	defer unlock()

	if l, err := Open(options.StateDir); err == nil {
		problem := l.Check(ctx)
		switch {
		case problem != nil:
			options.Say("the lab is up but does not work: " + problem.Error())
		case l.state.KubeDir != kubeDir || l.state.ProxyMode != options.ProxyMode || l.state.Nodes != options.Nodes:
			options.Say("the lab is up with other programs, kube-proxy in another mode, or another number of nodes")
		default:
			options.Say("the lab is up already")
			return l, l.LoadImages(ctx, options.Images...)
		}
	}
	if err := removeLab(ctx, options.StateDir, options.Say); err != nil {
		return nil, err
	}
	l, err := createState(options, kubeDir)
	if err != nil {
		return nil, err
	}
	if err := l.startCluster(ctx, options, append(images, options.Images...)); err != nil {
		return nil, fmt.Errorf("%w (logs are in %s)", err, l.Logs())
	}
	return l, nil
}

// createState creates the contents of the state folder.
func createState(options Options, kubeDir string) (*Lab, error) {
	l := &Lab{
		dir: options.StateDir, state: state{
			KubeDir: kubeDir, ProxyMode: options.ProxyMode, Nodes: options.Nodes, MadeNetnsDir: !netnsDirExists(),
		},
	}
	for _, dir := range []string{"bin", "logs", "pids", "pki", "nodes", "control-plane"} {
		if err := os.MkdirAll(l.path(dir), 0o755); err != nil {
			return nil, fmt.Errorf("make the state folder: %w", err)
		}
	}
	text, err := json.MarshalIndent(l.state, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode the state: %w", err)
	}
	if err := os.WriteFile(l.path("lab.json"), append(text, '\n'), 0o644); err != nil {
		return nil, fmt.Errorf("write the state: %w", err)
	}
	// "go run" removes its binary when it ends, and the lab's processes need the binary
	// for longer.
	binary, err := os.ReadFile(options.Command)
	if err != nil {
		return nil, fmt.Errorf("copy the lab command: %w", err)
	}
	if err := os.WriteFile(l.command(), binary, 0o755); err != nil {
		return nil, fmt.Errorf("copy the lab command: %w", err)
	}
	return l, nil
}

// command returns the path of the lab command's copy, which stays as long as the lab.
func (l *Lab) command() string { return l.path("bin", "lab") }

// kube returns the path of the kube binary.
func (l *Lab) kube() string { return filepath.Join(l.state.KubeDir, "kube") }

// startCluster starts everything, with the state folder that createState has filled.
func (l *Lab) startCluster(ctx context.Context, options Options, images []string) error {
	authority, err := pki.NewAuthority("purelb-lab")
	if err != nil {
		return err
	}
	if err := l.writeControlPlane(authority, options); err != nil {
		return err
	}
	if err := l.plan().buildNetwork(ctx); err != nil {
		return err
	}
	options.Say("the network is built")

	if err := l.startControlPlane(); err != nil {
		return err
	}
	if err := process.Start(l.pidFile(forwardProcess), l.logFile(forwardProcess), l.command(),
		"forward", "127.0.0.1:"+strconv.Itoa(options.APIPort), Namespace(ControlPlane), apiServer().String()); err != nil {
		return err
	}
	if err := l.startDNS(); err != nil {
		return err
	}
	if err := l.startNodes(ctx, authority, images); err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	client, err := api.Open(l.Kubeconfig())
	if err != nil {
		return err
	}
	if err := l.waitFor(ctx, "the API server", l.processNames(), client.Ready); err != nil {
		return err
	}
	options.Say("the API server is ready")
	for _, n := range l.plan().nodes() {
		var cidrs []string
		for _, cidr := range n.PodCIDRs {
			cidrs = append(cidrs, cidr.String())
		}
		if err := client.EnsureNode(ctx, n.Name, cidrs); err != nil {
			return fmt.Errorf("create the node %s: %w", n.Name, err)
		}
	}
	if err := l.waitFor(ctx, "the nodes", l.processNames(), l.Check); err != nil {
		return err
	}
	if err := l.waitFor(ctx, "the service account of pods", l.processNames(), client.CanRunPods); err != nil {
		return err
	}
	options.Say("all nodes are Ready")
	if err := os.WriteFile(l.path("ready"), nil, 0o644); err != nil {
		return fmt.Errorf("write the state: %w", err)
	}
	return nil
}

// startNodes starts all nodes at once. Their kubelets wait for the API server by
// themselves.
func (l *Lab) startNodes(ctx context.Context, authority *pki.Authority, images []string) error {
	hierarchies, err := cgroup.Current()
	if err != nil {
		return err
	}
	plugins, err := debian.CNIPlugins()
	if err != nil {
		return err
	}
	for i, path := range images {
		if images[i], err = filepath.Abs(path); err != nil {
			return fmt.Errorf("make %s absolute: %w", path, err)
		}
	}
	var group sync.WaitGroup
	nodes := l.plan().nodes()
	errs := make([]error, len(nodes))
	for i, n := range nodes {
		file, err := node.Prepare(node.Config{
			Name:         n.Name,
			Namespace:    Namespace(n.Name),
			Dir:          l.path("nodes", n.Name),
			Logs:         l.Logs(),
			PIDFile:      l.pidFile(n.Name),
			Kube:         l.kube(),
			ProxyFlags:   l.state.ProxyMode.flags(),
			CNIPlugins:   plugins,
			Images:       images,
			PauseImage:   assets.PauseImage,
			APIServer:    apiServer(),
			NameServers:  nameServers(),
			Addresses:    n.addresses(),
			PodCIDRs:     n.PodCIDRs,
			ClusterCIDRs: clusterCIDRs(),
			Hierarchies:  hierarchies,
		}, authority)
		if err != nil {
			return err
		}
		group.Go(func() {
			_, errs[i] = runCommand(exec.CommandContext(ctx, l.command(), "node-start", file))
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// waitFor calls check until it returns nil, ctx ends, or one of the processes that it needs ends.
func (l *Lab) waitFor(
	ctx context.Context, what string, processes []string, check func(context.Context) error,
) error {
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		for _, name := range processes {
			if !process.Alive(l.pidFile(name)) {
				return fmt.Errorf("wait for %s: %s has ended: %s", what, name, lastLine(l.logFile(name)))
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w; last: %w", what, ctx.Err(), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
