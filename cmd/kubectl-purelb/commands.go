package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

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
	}
	root.SetIn(s.in)
	root.SetOut(s.out)
	root.SetErr(s.err)
	flags := root.PersistentFlags()
	c.config.AddFlags(flags)
	flags.StringVar(&c.managerNamespace, "purelb-namespace", "purelb-system", "namespace of PureLB's manager")
	flags.StringVarP(&c.output, "output", "o", "", "json, yaml or wide; text if empty")
	root.AddCommand(
		c.statusCommand(), c.explainCommand(), c.whereCommand(), c.poolsCommand(), c.bgpCommand(), c.planCommand(),
		c.drainCommand(), c.undrainCommand(), c.validateCommand(), c.supportBundleCommand(), c.versionCommand(),
	)
	return root
}

// printable is the result of a command.
type printable interface {
	WriteText(w io.Writer, style plugin.Style) error
}

// print prints a result as --output asks.
func (c *cli) print(result printable) error {
	switch c.output {
	case "", "wide":
		return result.WriteText(c.out, plugin.Style{Color: c.isTerminal, Wide: c.output == "wide"})
	case "json":
		encoder := json.NewEncoder(c.out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(result)
	case "yaml":
		data, err := yaml.Marshal(result)
		if err != nil {
			return err
		}
		_, err = c.out.Write(data)
		return err
	}
	return fmt.Errorf("--output is %q: it can be json, yaml or wide", c.output)
}

// client returns a client of the API server.
func (c *cli) client() (client.Client, error) {
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

// cluster reads the cluster.
func (c *cli) cluster(ctx context.Context) (*plugin.Cluster, error) { return c.read(ctx, false) }

// clusterWithAgents reads the cluster, and sees which agents are alive.
func (c *cli) clusterWithAgents(ctx context.Context) (*plugin.Cluster, error) {
	return c.read(ctx, true)
}

func (c *cli) read(ctx context.Context, seeAgents bool) (*plugin.Cluster, error) {
	api, err := c.client()
	if err != nil {
		return nil, err
	}
	objects, err := plugin.ReadObjects(ctx, api, c.managerNamespace)
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
func (c *cli) report(result printable, unread []plugin.Unread, hasProblems bool) error {
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

func (c *cli) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Say how PureLB is: one line, then what needs attention, the worst first",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cluster, err := c.cluster(cmd.Context())
			if err != nil {
				return err
			}
			status := plugin.StatusOf(cluster)
			return c.report(status, status.Unread, status.Health != plugin.Healthy)
		},
	}
}

func (c *cli) explainCommand() *cobra.Command {
	explain := &cobra.Command{Use: "explain", Short: "Explain why a Service is as it is"}
	explain.AddCommand(&cobra.Command{
		Use:     "service NAME",
		Aliases: []string{"svc"},
		Short: "Tell the story of a Service: its group, its addresses, who holds them, why no other node does, and what " +
			"it waits for",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			namespace, _, err := c.config.ToRawKubeConfigLoader().Namespace()
			if err != nil {
				return err
			}
			cluster, err := c.clusterWithAgents(cmd.Context())
			if err != nil {
				return err
			}
			explanation, err := plugin.ExplainService(cluster, namespace, args[0])
			if err != nil {
				return err
			}
			return c.report(explanation, explanation.Unread, len(explanation.Waiting) > 0)
		},
	})
	return explain
}

func (c *cli) whereCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "where ADDRESS",
		Short: "Say where an address is: its pool, its Services, and the nodes and interfaces that have it",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			address, err := netip.ParseAddr(args[0])
			if err != nil {
				return fmt.Errorf("%q is not an address", args[0])
			}
			cluster, err := c.cluster(cmd.Context())
			if err != nil {
				return err
			}
			where := plugin.WhereIs(cluster, address.Unmap())
			return c.report(where, where.Unread, false)
		},
	}
}

func (c *cli) poolsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "pools",
		Short: "List the ServiceGroups, and how many of their addresses are in use",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cluster, err := c.cluster(cmd.Context())
			if err != nil {
				return err
			}
			pools := plugin.PoolListOf(cluster)
			return c.report(pools, pools.Unread, false)
		},
	}
}

func (c *cli) bgpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "bgp",
		Short: "List the BGPPeers, and each node's sessions: those that are not up first, with the reason",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cluster, err := c.cluster(cmd.Context())
			if err != nil {
				return err
			}
			bgp := plugin.BGPOf(cluster)
			return c.report(bgp, bgp.Unread, !bgp.AreAllUp())
		},
	}
}

// planFunc makes plans from a cluster.
type planFunc func(ctx context.Context, cluster *plugin.Cluster) (*plugin.PlanList, error)

// printPlans prints plans, and says by the exit code whether one of them breaks something.
func (c *cli) printPlans(ctx context.Context, plan planFunc) error {
	cluster, err := c.clusterWithAgents(ctx)
	if err != nil {
		return err
	}
	plans, err := plan(ctx, cluster)
	if err != nil {
		return err
	}
	return c.report(plans, plans.Unread, plans.Break())
}

func (c *cli) planCommand() *cobra.Command {
	plan := &cobra.Command{
		Use:   "plan",
		Short: "Say what would move or break after a change, without making it",
		Long: `Say what would move or break after a change, without making it.

The plan is made with the manager's own code from the objects as they are now. Agents are taken to
do what they are asked to do.`,
	}
	plan.AddCommand(
		&cobra.Command{
			Use: "drain NODE", Short: "What kubectl purelb drain would move", Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				return c.printPlans(cmd.Context(), func(_ context.Context, cluster *plugin.Cluster) (*plugin.PlanList, error) {
					return plugin.OnePlan(plugin.PlanDrain(cluster, args[0]))
				})
			},
		},
		&cobra.Command{
			Use: "lose [NODE]", Short: "What would happen if a node died; without NODE, of each node: is the cluster N-1 safe?",
			Args: cobra.MaximumNArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				return c.printPlans(cmd.Context(), func(_ context.Context, cluster *plugin.Cluster) (*plugin.PlanList, error) {
					if len(args) == 0 {
						return plugin.PlanLoseAny(cluster)
					}
					return plugin.OnePlan(plugin.PlanLose(cluster, args[0]))
				})
			},
		},
		&cobra.Command{
			Use: "apply FILE…", Short: "What applying ServiceGroups, LBNodeAgents and BGPPeers would do; - is standard input",
			Args: cobra.MinimumNArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				files, err := plugin.ReadFiles(args, c.in)
				if err != nil {
					return err
				}
				return c.printPlans(cmd.Context(), func(ctx context.Context, cluster *plugin.Cluster) (*plugin.PlanList, error) {
					return plugin.OnePlan(plugin.PlanApply(ctx, cluster, files))
				})
			},
		},
	)
	return plan
}

func (c *cli) drainCommand() *cobra.Command {
	var timeout time.Duration
	drain := &cobra.Command{
		Use:   "drain NODE",
		Short: "Move all addresses away from a node, and wait until they are gone",
		Long: `Move all addresses away from a node, and wait until they are gone.

The node gets the label node.kubernetes.io/exclude-from-external-load-balancers, and its agent hands
over what it announces: no request is lost. Pods stay: for these, use kubectl drain afterwards.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			return plugin.Drain(ctx, api, c.managerNamespace, args[0], c.out)
		},
	}
	drain.Flags().DurationVar(&timeout, "timeout", 2*time.Minute, "how long to wait")
	return drain
}

func (c *cli) undrainCommand() *cobra.Command {
	var force bool
	undrain := &cobra.Command{
		Use:   "undrain NODE",
		Short: "Let a drained node take addresses again",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			return plugin.Undrain(cmd.Context(), api, args[0], force, c.out)
		},
	}
	undrain.Flags().BoolVar(&force, "force", false, "also remove a label that drain has not put there")
	return undrain
}

func (c *cli) validateCommand() *cobra.Command {
	var strict bool
	validate := &cobra.Command{
		Use:   "validate FILE…",
		Short: "Check manifests offline, as the API server and PureLB's webhooks would; - is standard input",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			files, err := plugin.ReadFiles(args, c.in)
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
			cluster, err := c.cluster(cmd.Context())
			if err != nil {
				return err
			}
			api, err := c.client()
			if err != nil {
				return err
			}
			var events corev1.EventList
			if err := api.List(cmd.Context(), &events, client.InNamespace(c.managerNamespace)); err != nil {
				cluster.Unread = append(cluster.Unread, plugin.Unread{Kind: "Events", Reason: err.Error()})
			}
			var logs kubernetes.Interface
			if withLogs {
				config, err := c.config.ToRESTConfig()
				if err != nil {
					return err
				}
				if logs, err = kubernetes.NewForConfig(config); err != nil {
					return err
				}
			}
			out, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
			if err != nil {
				return err
			}
			if err := plugin.WriteSupportBundle(cmd.Context(), out, cluster, events.Items, logs, time.Now()); err != nil {
				_ = out.Close()
				return err
			}
			if err := out.Close(); err != nil {
				return err
			}
			if _, err := fmt.Fprintln(c.out, "wrote", file); err != nil {
				return err
			}
			for _, u := range cluster.Unread {
				_, _ = fmt.Fprintf(c.err, "Not in it: %s: %s\n", u.Kind, textlimit.Line(u.Reason))
			}
			if len(cluster.Unread) > 0 {
				return errUnknown
			}
			return nil
		},
	}
	bundle.Flags().StringVarP(&file, "file", "f", "purelb-support.tar.gz", "file to write; it must not exist")
	bundle.Flags().BoolVar(&withLogs, "logs", true, "also logs of the managers and agents")
	return bundle
}

func (c *cli) versionCommand() *cobra.Command {
	var clientOnly bool
	command := &cobra.Command{
		Use:   "version",
		Short: "Print the version of the plugin, and of what runs in the cluster",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if clientOnly {
				return c.print(&plugin.Versions{Client: version})
			}
			cluster, err := c.cluster(cmd.Context())
			if err != nil {
				return err
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
