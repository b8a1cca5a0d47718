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

// DefaultAPIPort is where the API server is reached on 127.0.0.1 unless told
// otherwise.
const DefaultAPIPort = 16443

// readyTimeout is how long Up waits for the cluster: ten times what it takes.
const readyTimeout = 3 * time.Minute

// DefaultNodeGracePeriod is half of what it is in Kubernetes, and twice a
// kubelet's heartbeat: tests wait for it.
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
	// NodeGracePeriod is after what time without a word from its kubelet a node is
	// not ready; DefaultNodeGracePeriod if 0.
	NodeGracePeriod time.Duration
	// Images are tar files of images to load into every node.
	Images []string
	// Say is told what happens; nil to be silent.
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

// DefaultCacheDir is the user's cache folder's purelb-lab.
func DefaultCacheDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache folder: %w", err)
	}
	return filepath.Join(dir, "purelb-lab"), nil
}

// Assets builds the kube binary if it is not in the cache and returns the
// folder that holds it as etcd, kube-apiserver and kubectl: what envtest takes
// as KUBEBUILDER_ASSETS. It needs no root. Of the options it looks at CacheDir,
// Source and Say.
func Assets(ctx context.Context, options Options) (string, error) {
	if err := options.setDefaults(); err != nil {
		return "", err
	}
	return cache(options).Kube(ctx)
}

func cache(options Options) assets.Cache {
	return assets.Cache{Dir: options.CacheDir, Source: options.Source, Say: options.Say}
}

// Up brings a lab up and returns when all nodes are Ready. If it is up already
// and well, Up only loads the images. What is left of a lab that is not well is
// removed first.
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
		if problem == nil {
			options.Say("the lab is up already")
			return l, l.LoadImages(ctx, options.Images...)
		}
		options.Say("the lab is up but not well: " + problem.Error())
	}
	if err := clean(ctx, options.StateDir, options.Say); err != nil {
		return nil, err
	}
	l, err := create(options, kubeDir)
	if err != nil {
		return nil, err
	}
	if err := l.start(ctx, options, append(images, options.Images...)); err != nil {
		return nil, fmt.Errorf("%w (logs are in %s)", err, l.Logs())
	}
	return l, nil
}

// create makes the state folder's contents.
func create(options Options, kubeDir string) (*Lab, error) {
	l := &Lab{dir: options.StateDir, state: state{KubeDir: kubeDir, MadeNetnsDir: !netnsDirExists()}}
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
	// "go run" removes its binary when it ends; the lab lives on.
	binary, err := os.ReadFile(options.Command)
	if err != nil {
		return nil, fmt.Errorf("copy the lab command: %w", err)
	}
	if err := os.WriteFile(l.command(), binary, 0o755); err != nil {
		return nil, fmt.Errorf("copy the lab command: %w", err)
	}
	return l, nil
}

// command is the lab command's copy, which stays as long as the lab does.
func (l *Lab) command() string { return l.path("bin", "lab") }

// kube is the kube binary.
func (l *Lab) kube() string { return filepath.Join(l.state.KubeDir, "kube") }

// start starts everything in a fresh state folder.
func (l *Lab) start(ctx context.Context, options Options, images []string) error {
	authority, err := pki.NewAuthority("purelb-lab")
	if err != nil {
		return err
	}
	if err := l.writeControlPlane(authority, options); err != nil {
		return err
	}
	if err := buildNetwork(ctx); err != nil {
		return err
	}
	options.Say("the network is there")

	if err := l.startControlPlane(); err != nil {
		return err
	}
	if err := process.Start(l.pidFile(forwardProcess), l.logFile(forwardProcess), l.command(),
		"forward", "127.0.0.1:"+strconv.Itoa(options.APIPort), Namespace(ControlPlane), apiServer().String()); err != nil {
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
	if err := l.waitFor(ctx, "the API server", client.Ready); err != nil {
		return err
	}
	options.Say("the API server is ready")
	for _, n := range plannedNodes() {
		var cidrs []string
		for _, cidr := range n.PodCIDRs {
			cidrs = append(cidrs, cidr.String())
		}
		if err := client.EnsureNode(ctx, n.Name, cidrs); err != nil {
			return fmt.Errorf("make the node %s: %w", n.Name, err)
		}
	}
	if err := l.waitFor(ctx, "the nodes", l.Check); err != nil {
		return err
	}
	if err := l.waitFor(ctx, "the service account of pods", client.CanRunPods); err != nil {
		return err
	}
	options.Say("all nodes are Ready")
	if err := os.WriteFile(l.path("ready"), nil, 0o644); err != nil {
		return fmt.Errorf("write the state: %w", err)
	}
	return nil
}

// startNodes starts all nodes at once. Their Kubernetes parts wait for the API
// server by themselves.
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
	nodes := plannedNodes()
	errs := make([]error, len(nodes))
	for i, n := range nodes {
		file, err := node.Prepare(node.Config{
			Name:         n.Name,
			Namespace:    Namespace(n.Name),
			Dir:          l.path("nodes", n.Name),
			Logs:         l.Logs(),
			PIDFile:      l.pidFile(n.Name),
			Kube:         l.kube(),
			CNIPlugins:   plugins,
			Images:       images,
			PauseImage:   assets.PauseImage,
			APIServer:    apiServer(),
			Addresses:    n.addresses(),
			PodCIDRs:     n.PodCIDRs,
			ClusterCIDRs: clusterCIDRs(),
			Hierarchies:  hierarchies,
		}, authority)
		if err != nil {
			return err
		}
		group.Go(func() {
			_, errs[i] = output(exec.CommandContext(ctx, l.command(), "node-start", file))
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// waitFor tries until try returns nil, ctx ends, or a process of the lab does.
func (l *Lab) waitFor(ctx context.Context, what string, try func(context.Context) error) error {
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		for _, name := range processNames() {
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
