package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/purelb/purelb-operator/test/lab"
)

// flags are those of all subcommands.
type flags struct {
	stateDir, cacheDir, source string
}

func newCommand() *cobra.Command { return newCommandOf(&flags{}) }

// newCommandOf returns the command, which parses its flags into f.
func newCommandOf(f *flags) *cobra.Command {
	root := &cobra.Command{
		Use:           "lab",
		Short:         "A real three-node Kubernetes cluster in network namespaces",
		SilenceUsage:  true,
		SilenceErrors: true,
		// The flags before a command are the lab's, also before one that parses none itself.
		TraverseChildren: true,
		CompletionOptions: cobra.CompletionOptions{
			DisableDefaultCmd: true,
		},
	}
	root.PersistentFlags().StringVar(&f.stateDir, "state-dir", lab.DefaultStateDir, "folder of the running lab")
	root.PersistentFlags().StringVar(
		&f.cacheDir, "cache-dir", "", "folder of built binaries and images (default: purelb-lab in the user's cache folder)",
	)
	root.PersistentFlags().StringVar(
		&f.source, "source", "", "folder of the lab's Go module (default: found from the current folder upwards)",
	)
	root.AddCommand(
		f.up(), f.down(), f.status(), f.kubeconfig(), f.assets(), f.programs(), f.loadImage(),
		f.exec(), f.nodeExec(), f.kubectl(), f.vm(), f.debianRoot(),
		forwardCommand(), dnsCommand(), nodeStartCommand(), nodeInitCommand(),
	)
	return root
}

func (f *flags) up() *cobra.Command {
	var images []string
	var port, nodes int
	var grace time.Duration
	var kubernetes, proxy string
	c := &cobra.Command{
		Use:   "up",
		Short: "Bring the lab up, building what is needed, and print the path of the kubeconfig",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			options, err := f.options(c.ErrOrStderr())
			if err != nil {
				return err
			}
			options.Images, options.APIPort, options.NodeGracePeriod = images, port, grace
			options.Nodes = nodes
			options.Kubernetes, options.ProxyMode = kubernetes, lab.ProxyMode(proxy)
			l, err := lab.Up(c.Context(), options)
			if err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "export KUBECONFIG=%s\n", l.Kubeconfig())
			return nil
		},
	}
	c.Flags().StringArrayVar(&images, "image", nil, "tar file of an image to load into all nodes (may be repeated)")
	c.Flags().IntVar(&port, "api-port", lab.DefaultAPIPort, "port of the API server on 127.0.0.1")
	c.Flags().IntVar(&nodes, "nodes", lab.DefaultNodes, fmt.Sprintf("number of nodes, at most %d", lab.MaxNodes))
	kubernetesFlag(c, &kubernetes)
	c.Flags().StringVar(
		&proxy, "proxy-mode", string(lab.ProxyNFTables), fmt.Sprintf("mode of kube-proxy: one of %v", lab.ProxyModes()),
	)
	c.Flags().DurationVar(
		&grace, "node-grace-period", lab.DefaultNodeGracePeriod,
		"how long a kubelet may be silent before its node is NotReady (default of Kubernetes: 50s)",
	)
	return c
}

func (f *flags) down() *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Remove the lab, or what is left of it, and everything that it has made",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return lab.Down(c.Context(), f.stateDir, progress(c.ErrOrStderr()))
		},
	}
}

func (f *flags) vm() *cobra.Command {
	return &cobra.Command{
		Use:   "vm TEST-BINARY[:PATTERN]...",
		Short: "Run test binaries as root in a virtual machine with a kernel of Debian, and print what it prints",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			options, err := f.options(c.ErrOrStderr())
			if err != nil {
				return err
			}
			return lab.RunVM(c.Context(), options, c.OutOrStdout(), args...)
		},
	}
}

func (f *flags) debianRoot() *cobra.Command {
	return &cobra.Command{
		Use:   "debian-root",
		Short: "Unpack a Debian system with network programs if needed, and print its folder",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			options, err := f.options(c.ErrOrStderr())
			if err != nil {
				return err
			}
			dir, err := lab.DebianRoot(c.Context(), options)
			if err != nil {
				return err
			}
			fmt.Fprintln(c.OutOrStdout(), dir)
			return nil
		},
	}
}

func (f *flags) status() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Say whether the lab is up and works, and fail if not",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			l, err := lab.Open(f.stateDir)
			if err != nil {
				return err
			}
			if err := l.Check(c.Context()); err != nil {
				return fmt.Errorf("the lab is up but does not work: %w", err)
			}
			out := c.OutOrStdout()
			fmt.Fprintln(out, "the lab is up and works")
			for _, h := range l.Hosts() {
				fmt.Fprintf(out, "%-7s %-14s %-16s %s\n", h.Name, h.IPv4.Addr(), h.IPv6.Addr(), h.MAC)
			}
			fmt.Fprintf(out, "logs: %s\nkubeconfig: %s\n", l.Logs(), l.Kubeconfig())
			return nil
		},
	}
}

func (f *flags) kubeconfig() *cobra.Command {
	return &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print the path of the kubeconfig",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			l, err := lab.Open(f.stateDir)
			if err != nil {
				return err
			}
			fmt.Fprintln(c.OutOrStdout(), l.Kubeconfig())
			return nil
		},
	}
}

// kubernetesFlag adds the flag --kubernetes to a command.
func kubernetesFlag(c *cobra.Command, version *string) {
	c.Flags().StringVar(version, "kubernetes", "", "version of Kubernetes, such as v1.32.5 (default: that of kube/go.mod)")
}

func (f *flags) assets() *cobra.Command {
	var kubernetes string
	c := &cobra.Command{
		Use:   "assets",
		Short: "Build etcd, kube-apiserver and kubectl if needed, and print their folder (KUBEBUILDER_ASSETS)",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			options, err := f.options(c.ErrOrStderr())
			if err != nil {
				return err
			}
			options.Kubernetes = kubernetes
			dir, err := lab.Assets(c.Context(), options)
			if err != nil {
				return err
			}
			fmt.Fprintln(c.OutOrStdout(), dir)
			return nil
		},
	}
	kubernetesFlag(c, &kubernetes)
	return c
}

func (f *flags) programs() *cobra.Command {
	return &cobra.Command{
		Use:   "programs",
		Short: "Install the Debian packages of the programs that the lab and the tests of the network code run",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			options, err := f.options(c.ErrOrStderr())
			if err != nil {
				return err
			}
			return lab.EnsurePrograms(c.Context(), options)
		},
	}
}

func (f *flags) loadImage() *cobra.Command {
	return &cobra.Command{
		Use:   "load-image TAR...",
		Short: "Load images into all nodes",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			l, err := lab.Open(f.stateDir)
			if err != nil {
				return err
			}
			return l.LoadImages(c.Context(), args...)
		},
	}
}

func (f *flags) exec() *cobra.Command {
	return passThrough(&cobra.Command{
		Use:   "exec HOST COMMAND...",
		Short: "Run a command in the network namespace of a host (cp, node1, node2, node3, client, router, far, fabric)",
		Args:  cobra.MinimumNArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			if _, err := lab.Open(f.stateDir); err != nil {
				return err
			}
			return become(lab.ExecArgv(args[0], command(args[1:])...))
		},
	})
}

func (f *flags) nodeExec() *cobra.Command {
	return passThrough(&cobra.Command{
		Use:   "node-exec NODE COMMAND...",
		Short: "Run a command in all namespaces of a node, such as: ctr images ls",
		Args:  cobra.MinimumNArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			l, err := lab.Open(f.stateDir)
			if err != nil {
				return err
			}
			argv, err := l.NodeExecArgv(args[0], command(args[1:])...)
			if err != nil {
				return err
			}
			return become(argv)
		},
	})
}

func (f *flags) kubectl() *cobra.Command {
	return &cobra.Command{
		Use:   "kubectl ARGUMENTS...",
		Short: "Run kubectl as the lab's administrator; the lab's own flags come before kubectl",
		// kubectl's arguments may begin with flags.
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			l, err := lab.Open(f.stateDir)
			if err != nil {
				return err
			}
			return become(append([]string{l.Kubectl(), "--kubeconfig=" + l.Kubeconfig()}, command(args)...))
		},
	}
}

// passThrough makes a command leave the flags after its first argument alone:
// they are another program's.
func passThrough(c *cobra.Command) *cobra.Command {
	c.Flags().SetInterspersed(false)
	return c
}

// command is the command line in args, which may begin with "--".
func command(args []string) []string {
	if len(args) > 0 && args[0] == "--" {
		return args[1:]
	}
	return args
}

// options are those of bringing a lab up, from the flags.
func (f *flags) options(out io.Writer) (lab.Options, error) {
	source := f.source
	if source == "" {
		var err error
		if source, err = findSource(); err != nil {
			return lab.Options{}, err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return lab.Options{}, fmt.Errorf("find this program: %w", err)
	}
	return lab.Options{
		StateDir: f.stateDir,
		CacheDir: f.cacheDir,
		Source:   source,
		Command:  self,
		Say:      progress(out),
	}, nil
}

// progress writes lines with the time since now before them.
func progress(out io.Writer) func(string) {
	start := time.Now()
	return func(what string) {
		fmt.Fprintf(out, "[%6.1fs] %s\n", time.Since(start).Seconds(), what)
	}
}

// become replaces this process with another program, which so has its terminal
// and its exit status.
func become(argv []string) error {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return fmt.Errorf("find %s: %w", argv[0], err)
	}
	if err := syscall.Exec(path, slices.Clone(argv), os.Environ()); err != nil {
		return errors.Join(fmt.Errorf("run %s", argv[0]), err)
	}
	return nil
}
