package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/cmd/kubectl-purelb/plugin"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

// cli are the flags of all commands.
type cli struct {
	streams
	config *genericclioptions.ConfigFlags
	// managerNamespace is where PureLB is installed.
	managerNamespace string
	output           string
}

func newRootCommand(s streams) *cobra.Command {
	c := &cli{streams: s, config: genericclioptions.NewConfigFlags(true)}
	root := &cobra.Command{
		Use:   "kubectl-purelb",
		Short: "Show the state of PureLB, explain what it decided, and predict what a change would do",
		Long: `Show the state of PureLB, explain what it decided, and predict what a change would do.

The exit code is 0 if all is well, 1 if the command could not be carried out, 2 if it found problems:
something is wrong, or would be after the change; and 3 if it is not known, because the user may not
read what the answer depends on.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl purelb"},
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if !slices.Contains(outputs, c.output) {
				return fmt.Errorf("--output is %q: it can be json, yaml or wide", c.output)
			}
			return nil
		},
	}
	root.SetIn(s.in)
	root.SetOut(s.out)
	root.SetErr(s.err)
	flags := root.PersistentFlags()
	c.config.AddFlags(flags)
	flags.StringVar(&c.managerNamespace, "purelb-namespace", "purelb-system", "namespace of PureLB's manager")
	flags.StringVarP(&c.output, "output", "o", "", "json, yaml or wide; text if empty")
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(outputs[1:], cobra.ShellCompDirectiveNoFileComp))
	root.AddCommand(
		c.statusCommand(), c.explainCommand(), c.whereCommand(), c.poolsCommand(), c.bgpCommand(), c.planCommand(),
		c.drainCommand(), c.undrainCommand(), c.rebalanceCommand(), c.validateCommand(), c.supportBundleCommand(),
		c.versionCommand(),
	)
	root.InitDefaultCompletionCmd()
	for _, command := range root.Commands() {
		if command.Name() == "completion" {
			withSubcommands(command) // of shells, of which one has to be named
		}
	}
	return root
}

// outputs are what --output can be.
var outputs = []string{"", "json", "yaml", "wide"}

// withSubcommands makes a command of commands, of which one has to be named.
func withSubcommands(command *cobra.Command, commands ...*cobra.Command) *cobra.Command {
	command.AddCommand(commands...)
	command.SuggestionsMinimumDistance = 2
	command.RunE = func(cmd *cobra.Command, args []string) error {
		var names []string
		for _, c := range command.Commands() {
			names = append(names, c.Name())
		}
		slices.Sort(names)
		all := strings.Join(names, ", ")
		if len(args) == 0 {
			return fmt.Errorf("%s needs a command: %s", cmd.CommandPath(), all)
		}
		text := fmt.Sprintf("unknown command %q for %q: ", args[0], cmd.CommandPath())
		if guesses := cmd.SuggestionsFor(args[0]); len(guesses) > 0 {
			text += fmt.Sprintf("did you mean %s?", strings.Join(guesses, " or "))
		} else {
			text += "it has " + all
		}
		return errors.New(text)
	}
	return command
}

// textResult is the result of a command.
type textResult interface {
	WriteText(w io.Writer, style plugin.Style) error
}

// print prints a result as --output asks.
func (c *cli) print(result textResult) error {
	if c.isForPeople() {
		return result.WriteText(c.out, plugin.Style{Color: c.hasColors, Wide: c.output == "wide"})
	}
	return c.printData(result)
}

// isForPeople reports whether --output asks for text.
func (c *cli) isForPeople() bool { return c.output == "" || c.output == "wide" }

// printData prints a result for programs; --output was checked before.
func (c *cli) printData(result any) error {
	if c.output == "yaml" {
		data, err := yaml.Marshal(result)
		if err != nil {
			return err
		}
		_, err = c.out.Write(data)
		return err
	}
	encoder := json.NewEncoder(c.out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(result)
}

// progressWriter is where a command that takes its time says what it does. Where the result is for programs, that
// is not where the result goes.
func (c *cli) progressWriter() io.Writer {
	if c.isForPeople() {
		return c.out
	}
	return c.err
}

// printOutcome prints for programs what came of a command, which people have read as its progress. A command
// that could not begin has none.
func printOutcome[T any](c *cli, outcome *T, err error) error {
	if outcome == nil || c.isForPeople() {
		return err
	}
	return errors.Join(err, c.printData(outcome))
}

// needs makes the error of a command that is not given what it needs say what that is.
func needs(usage string, check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if check(cmd, args) == nil {
			return nil
		}
		return fmt.Errorf("%s needs %s: see %s --help", cmd.CommandPath(), usage, cmd.CommandPath())
	}
}

// newClient returns a client of the API server.
func (c *cli) newClient() (client.Client, error) {
	config, err := c.config.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	scheme, err := plugin.NewScheme()
	if err != nil {
		return nil, err
	}
	return client.New(config, client.Options{Scheme: scheme})
}

// readCluster reads the cluster.
func (c *cli) readCluster(ctx context.Context) (*plugin.Cluster, error) { return c.read(ctx, false) }

// readClusterAndLeases reads the cluster, and watches for about a second which agents renew their Leases.
func (c *cli) readClusterAndLeases(ctx context.Context) (*plugin.Cluster, error) {
	return c.read(ctx, true)
}

func (c *cli) read(ctx context.Context, seeAgents bool) (*plugin.Cluster, error) {
	api, err := c.newClient()
	if err != nil {
		return nil, err
	}
	own, _, err := c.config.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, err
	}
	objects, err := plugin.ReadObjects(ctx, api, c.managerNamespace, own)
	if err != nil {
		return nil, err
	}
	if seeAgents {
		if err := objects.ObserveLeases(ctx, api, c.managerNamespace); err != nil {
			return nil, err
		}
	}
	return plugin.NewCluster(ctx, objects, c.managerNamespace)
}

// report prints a result. It returns errUnknown if kinds that the result depends on could not be read,
// else errProblems if the result shows problems, else nil.
func (c *cli) report(result textResult, unread []plugin.Unread, hasProblems bool) error {
	if err := c.print(result); err != nil {
		return err
	}
	switch {
	case len(unread) > 0:
		return errUnknown
	case hasProblems:
		return errProblems
	}
	return nil
}

// onCluster makes a command one without arguments that reports on the cluster.
func (c *cli) onCluster(command *cobra.Command, report func(*plugin.Cluster) error) *cobra.Command {
	command.Args = cobra.NoArgs
	command.RunE = func(cmd *cobra.Command, _ []string) error {
		cluster, err := c.readCluster(cmd.Context())
		if err != nil {
			return err
		}
		return report(cluster)
	}
	return command
}

func (c *cli) statusCommand() *cobra.Command {
	return c.onCluster(&cobra.Command{
		Use:   "status",
		Short: "Say how PureLB is: one line, then what needs attention, the worst first",
	}, func(cluster *plugin.Cluster) error {
		status := plugin.StatusOf(cluster)
		return c.report(status, status.Unread, status.Health != plugin.Healthy)
	})
}

func (c *cli) explainCommand() *cobra.Command {
	explainService := func(cmd *cobra.Command, name string) error {
		namespace, _, err := c.config.ToRawKubeConfigLoader().Namespace()
		if err != nil {
			return err
		}
		cluster, err := c.readClusterAndLeases(cmd.Context())
		if err != nil {
			return err
		}
		explanation, err := plugin.ExplainService(cluster, namespace, name)
		if err != nil {
			return err
		}
		return c.report(explanation, explanation.Unread, len(explanation.WaitsFor) > 0)
	}
	explain := withSubcommands(&cobra.Command{
		Use: "explain service NAME", Short: "Explain why a Service is as it is", Example: "  kubectl purelb explain svc/web",
	}, &cobra.Command{
		Use:     "service NAME",
		Aliases: serviceWords[1:],
		Short: "Tell the story of a Service: its group, its addresses, who holds them, why no other node does, and what " +
			"it waits for",
		Args:              needs("the NAME of one Service", cobra.ExactArgs(1)),
		ValidArgsFunction: c.completeServices,
		RunE: func(cmd *cobra.Command, args []string) error {
			name, isService := serviceName(args[0])
			switch {
			case isService:
				return explainService(cmd, name)
			case strings.Contains(args[0], "/"):
				return fmt.Errorf("%q is no name of a Service: the namespace is a flag, -n", args[0])
			}
			return explainService(cmd, args[0])
		},
	})
	unknown := explain.RunE
	explain.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 {
			if name, isService := serviceName(args[0]); isService {
				return explainService(cmd, name)
			}
		}
		return unknown(cmd, args)
	}
	return explain
}

// serviceWords are what kubectl calls Services.
var serviceWords = []string{"service", "services", "svc"}

// serviceName returns the name in a text such as svc/web, if it is one.
func serviceName(text string) (name string, isService bool) {
	kind, name, _ := strings.Cut(text, "/")
	return name, name != "" && !strings.Contains(name, "/") && slices.Contains(serviceWords, kind)
}

func (c *cli) whereCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "where ADDRESS",
		Short: "Say where an address is: its pool, its Services, and the nodes and interfaces that have it",
		Args:  needs("one ADDRESS", cobra.ExactArgs(1)), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			address, err := netip.ParseAddr(args[0])
			if err != nil {
				return fmt.Errorf("%q is not an address", args[0])
			}
			cluster, err := c.readCluster(cmd.Context())
			if err != nil {
				return err
			}
			where := plugin.LocateAddress(cluster, address.Unmap())
			return c.report(where, where.Unread, false)
		},
	}
}

func (c *cli) poolsCommand() *cobra.Command {
	return c.onCluster(&cobra.Command{
		Use:   "pools",
		Short: "List the ServiceGroups, and how many of their addresses are in use",
	}, func(cluster *plugin.Cluster) error {
		pools := plugin.PoolListOf(cluster)
		return c.report(pools, pools.Unread, false)
	})
}

func (c *cli) bgpCommand() *cobra.Command {
	return c.onCluster(&cobra.Command{
		Use:   "bgp",
		Short: "List the BGPPeers, and each node's sessions: those that are not up first, with the reason",
	}, func(cluster *plugin.Cluster) error {
		bgp := plugin.BGPStateOf(cluster)
		return c.report(bgp, bgp.Unread, !bgp.AreAllUp())
	})
}

// planFunc makes plans from a cluster.
type planFunc func(ctx context.Context, cluster *plugin.Cluster) (*plugin.PlanList, error)

// printPlans prints plans, and says by the exit code whether one of them breaks something.
func (c *cli) printPlans(ctx context.Context, plan planFunc) error {
	cluster, err := c.readClusterAndLeases(ctx)
	if err != nil {
		return err
	}
	plans, err := plan(ctx, cluster)
	if err != nil {
		return err
	}
	return c.report(plans, plans.Unread, plans.BreaksAny())
}

func (c *cli) planCommand() *cobra.Command {
	var isRecursive bool
	apply := &cobra.Command{
		Use: "apply FILE…", Short: "What applying ServiceGroups, LBNodeAgents and BGPPeers would do; - is standard input",
		Args: needs("a FILE, a folder, or -", cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			files, err := c.readFiles(args, isRecursive)
			if err != nil {
				return err
			}
			return c.printPlans(cmd.Context(), func(ctx context.Context, cluster *plugin.Cluster) (*plugin.PlanList, error) {
				return plugin.OnePlan(plugin.PlanApply(ctx, cluster, files))
			})
		},
	}
	addRecursiveFlag(apply, &isRecursive)
	return withSubcommands(&cobra.Command{
		Use:   "plan",
		Short: "Say what would move or break after a change, without making it",
		Long: `Say what would move or break after a change, without making it.

The plan is made with the manager's own code from the objects as they are now. Agents are taken to
do what they are asked to do.`,
	},
		&cobra.Command{
			Use: "drain NODE", Short: "What kubectl purelb drain would move",
			Args:              needs("one NODE", cobra.ExactArgs(1)),
			ValidArgsFunction: c.completeNodes,
			RunE: func(cmd *cobra.Command, args []string) error {
				return c.printPlans(cmd.Context(), func(_ context.Context, cluster *plugin.Cluster) (*plugin.PlanList, error) {
					return plugin.OnePlan(plugin.PlanDrain(cluster, args[0]))
				})
			},
		},
		&cobra.Command{
			Use: "lose [NODE]", Short: "What would happen if a node died; without NODE, of each node: is the cluster N-1 safe?",
			Args:              needs("one NODE at most", cobra.MaximumNArgs(1)),
			ValidArgsFunction: c.completeNodes,
			RunE: func(cmd *cobra.Command, args []string) error {
				return c.printPlans(cmd.Context(), func(_ context.Context, cluster *plugin.Cluster) (*plugin.PlanList, error) {
					if len(args) == 0 {
						return plugin.PlanLoseEach(cluster)
					}
					return plugin.OnePlan(plugin.PlanLose(cluster, args[0]))
				})
			},
		},
		apply,
	)
}

// addRecursiveFlag adds the flag of commands that read files.
func addRecursiveFlag(command *cobra.Command, isRecursive *bool) {
	command.Flags().BoolVarP(isRecursive, "recursive", "R", false, "also read the folders in folders")
}

// readFiles reads manifests, and says which folders it did not look into.
func (c *cli) readFiles(paths []string, isRecursive bool) (*plugin.Files, error) {
	files, err := plugin.ReadFiles(paths, c.in, isRecursive)
	if err != nil {
		return nil, err
	}
	for _, folder := range files.SkippedFolders {
		_, _ = fmt.Fprintf(c.err, "Not read: folder %s: use --recursive\n", textlimit.Line(folder))
	}
	return files, nil
}

func (c *cli) drainCommand() *cobra.Command {
	var timeout time.Duration
	drain := &cobra.Command{
		Use:               "drain NODE",
		ValidArgsFunction: c.completeNodes,
		Short:             "Move all addresses away from a node, and wait until they are gone",
		Long: `Move all addresses away from a node, and wait until they are gone.

The node gets the label node.kubernetes.io/exclude-from-external-load-balancers, and its agent hands
over what it announces: no request is lost. Pods stay: for these, use kubectl drain afterwards.`,
		Args: needs("one NODE", cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.newClient()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			drained, err := plugin.Drain(ctx, api, c.managerNamespace, args[0], c.progressWriter())
			return printOutcome(c, drained, err)
		},
	}
	drain.Flags().DurationVar(&timeout, "timeout", 2*time.Minute, "how long to wait")
	return drain
}

func (c *cli) undrainCommand() *cobra.Command {
	var force bool
	undrain := &cobra.Command{
		Use:               "undrain NODE",
		ValidArgsFunction: c.completeNodes,
		Short:             "Let a drained node take addresses again",
		Args:              needs("one NODE", cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.newClient()
			if err != nil {
				return err
			}
			undrained, err := plugin.Undrain(cmd.Context(), api, args[0], force, c.progressWriter())
			return printOutcome(c, undrained, err)
		},
	}
	undrain.Flags().BoolVar(&force, "force", false, "also remove a label that drain has not put there")
	return undrain
}

func (c *cli) rebalanceCommand() *cobra.Command {
	var isDryRun bool
	var timeout time.Duration
	rebalance := &cobra.Command{
		Use:   "rebalance",
		Short: "Spread Local addresses over the nodes again, by one handover after the other",
		Long: `Spread Local addresses over the nodes again, by one handover after the other.

A node that was away takes nothing back by itself: after all nodes were rebooted in turn, the last one has
no Local address. This moves addresses from the nodes with the most to those with the fewest, until of each
family no node has two more than another one that may take one of them. The holder's Node gets the annotation
` + v1.AnnotationHandover + ` meanwhile. A handover loses no request; connections that are open break.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if isDryRun {
				cluster, err := c.readClusterAndLeases(cmd.Context())
				if err != nil {
					return err
				}
				plan := plugin.PlanRebalance(cluster)
				return c.report(plan, plan.Unread, false)
			}
			api, err := c.newClient()
			if err != nil {
				return err
			}
			rebalanced, err := plugin.Rebalance(
				cmd.Context(), api, c.managerNamespace, c.readClusterAndLeases, timeout, c.progressWriter(),
			)
			return printOutcome(c, rebalanced, err)
		},
	}
	rebalance.Flags().BoolVar(&isDryRun, "dry-run", false, "print what would move, and move nothing")
	rebalance.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait for each address")
	return rebalance
}

func (c *cli) validateCommand() *cobra.Command {
	var strict, isRecursive bool
	validate := &cobra.Command{
		Use:   "validate FILE…",
		Short: "Check manifests offline, as the API server and PureLB's webhooks would; - is standard input",
		Args:  needs("a FILE, a folder, or -", cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			files, err := c.readFiles(args, isRecursive)
			if err != nil {
				return err
			}
			validation, err := plugin.Validate(cmd.Context(), files, c.managerNamespace)
			if err != nil {
				return err
			}
			return c.report(validation, nil, validation.Errors > 0 || strict && validation.Warnings > 0)
		},
	}
	addRecursiveFlag(validate, &isRecursive)
	validate.Flags().BoolVar(&strict, "strict", false, "warnings are problems, too")
	return validate
}

func (c *cli) supportBundleCommand() *cobra.Command {
	var file string
	var withLogs bool
	bundle := &cobra.Command{
		Use:   "support-bundle",
		Short: "Write PureLB's objects, events and logs to a file, without Secrets",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
			switch {
			case errors.Is(err, fs.ErrExist):
				return fmt.Errorf("%s is there already: say by --file what else to write", file)
			case err != nil:
				return err
			}
			unread, err := c.writeSupportBundle(cmd.Context(), out, withLogs)
			if err = errors.Join(err, out.Close()); err != nil {
				return errors.Join(err, os.Remove(file))
			}
			if _, err := fmt.Fprintln(c.progressWriter(), "wrote", file); err != nil {
				return err
			}
			for _, u := range unread {
				_, _ = fmt.Fprintf(c.err, "Not in it: %s: %s\n", u.Kind, textlimit.Line(u.Reason))
			}
			if len(unread) > 0 {
				err = errUnknown
			}
			return printOutcome(c, &plugin.BundleOutcome{File: file, Unread: unread}, err)
		},
	}
	bundle.Flags().StringVarP(&file, "file", "f", "purelb-support.tar.gz", "file to write; it must not exist")
	bundle.Flags().BoolVar(&withLogs, "logs", true, "also logs of the managers and agents")
	return bundle
}

// writeSupportBundle writes a support bundle, and returns what is not in it.
func (c *cli) writeSupportBundle(ctx context.Context, out io.Writer, withLogs bool) ([]plugin.Unread, error) {
	cluster, err := c.readCluster(ctx)
	if err != nil {
		return nil, err
	}
	api, err := c.newClient()
	if err != nil {
		return nil, err
	}
	var events corev1.EventList
	if err := api.List(ctx, &events, client.InNamespace(c.managerNamespace)); err != nil {
		cluster.Unread = append(cluster.Unread, plugin.Unread{Kind: "Events", Reason: err.Error()})
	}
	var logs kubernetes.Interface
	if withLogs {
		config, err := c.config.ToRESTConfig()
		if err != nil {
			return nil, err
		}
		if logs, err = kubernetes.NewForConfig(config); err != nil {
			return nil, err
		}
	}
	return cluster.Unread, plugin.WriteSupportBundle(ctx, out, cluster, events.Items, logs, time.Now())
}

func (c *cli) versionCommand() *cobra.Command {
	var clientOnly bool
	command := &cobra.Command{
		Use:   "version",
		Short: "Print the version of the plugin, and of what runs in the cluster",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if clientOnly {
				return c.print(&plugin.Versions{Client: version, IsClientOnly: true})
			}
			cluster, err := c.readCluster(cmd.Context())
			if err != nil {
				return errors.Join(err, c.print(&plugin.Versions{Client: version, IsClientOnly: true}))
			}
			versions := plugin.VersionsOf(cluster, version)
			return c.report(versions, versions.Unread, false)
		},
	}
	command.Flags().BoolVar(
		&clientOnly, "client", false, "print the version of the plugin alone, without asking the API server",
	)
	return command
}
