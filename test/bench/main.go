// Command bench measures PureLB in the lab and reports it.
//
//	bench run --sections latency,burst   # needs the lab: make bench brings it up
//	bench report                         # all results, as a table and as plots
//
// Results go to dist/bench: see the package report.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/purelb/purelb-operator/test/bench/report"
)

// options are the values of all flags.
type options struct {
	root, out, docs string
	sections        []string
	cases           string
	count, trials   int
	idle, burst     []int
	idleSeconds     int
	services        int
	kubernetes      string
	profile         bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := newCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	var o options
	root := &cobra.Command{Use: "bench", Short: "Measure PureLB in the lab", SilenceUsage: true, SilenceErrors: true}
	f := root.PersistentFlags()
	f.StringVar(&o.root, "root", "../..", "folder of the repository")
	f.StringVar(&o.out, "out", "../../dist/bench", "folder of the results")
	run := &cobra.Command{
		Use: "run", Short: "Measure", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runSections(cmd.Context(), o) },
	}
	f = run.Flags()
	f.StringSliceVar(
		&o.sections, "sections", []string{"latency", "availability", "idle", "burst", "go"}, "what to measure",
	)
	f.StringVar(
		&o.cases, "cases", "", "regular expression: of latency, availability, idle and burst only the cases that it matches",
	)
	f.IntVar(&o.count, "count", 50, "Services for each case of latency")
	f.IntVar(&o.trials, "trials", 10, "trials of each disturbance")
	f.IntSliceVar(&o.idle, "idle", []int{0, 500, 1000}, "for idle: how many Services there are")
	f.IntVar(&o.idleSeconds, "idle-seconds", 60, "for idle: how long to look")
	f.IntSliceVar(&o.burst, "burst", []int{500, 1000}, "for burst: how many Services at once")
	f.IntVar(&o.services, "services", 1000, "for go: Services in the benchmark of the allocator's controller")
	f.StringVar(&o.kubernetes, "assets", "", "for go: folder of etcd and kube-apiserver (KUBEBUILDER_ASSETS)")
	f.BoolVar(
		&o.profile, "profile", false,
		"for idle and burst: write profiles of the API server and the leading manager beside the results",
	)
	merge := &cobra.Command{
		Use: "report", Short: "Print all results as a table, and write bench.json and the plots", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return writeReport(o) },
	}
	merge.Flags().StringVar(&o.docs, "docs", "", "folder for a copy of the plots")
	root.AddCommand(run, merge)
	return root
}

// runSections measures one section after the other. When one fails, the results of those
// before stay.
func runSections(ctx context.Context, o options) error {
	cases, err := regexp.Compile(o.cases)
	if err != nil {
		return fmt.Errorf("--cases: %w", err)
	}
	b := &bench{options: o, cases: cases}
	sections := map[string]func(context.Context) error{
		"latency": b.latency, "availability": b.availability, "idle": b.idle, "burst": b.burst, "go": b.goBenchmarks,
	}
	for _, section := range o.sections {
		if sections[section] == nil {
			return fmt.Errorf("--sections: there is no %q", section)
		}
	}
	for _, section := range o.sections {
		if section != "go" && b.lab == nil {
			if err := b.open(ctx); err != nil {
				return err
			}
		}
		b.say("section %s", section)
		if err := sections[section](ctx); err != nil {
			return fmt.Errorf("%s: %w", section, err)
		}
	}
	return report.WriteJSON(filepath.Join(o.out, report.MachineFile), b.machine(ctx))
}

// writeReport writes the results of all sections as a table and as plots.
func writeReport(o options) error {
	all, err := report.Read(o.out)
	if err != nil {
		return err
	}
	if len(all.Rows) == 0 {
		return fmt.Errorf("there are no results in %s: run make bench", o.out)
	}
	if err := report.WriteJSON(filepath.Join(o.out, report.AllFile), all); err != nil {
		return err
	}
	plots := map[string]report.Plot{
		"performance-outage.svg": report.OutagePlot(all.Rows),
		"performance-scale.svg": report.ScalePlot(
			all.Rows, "changeMs", "One Service more, by the size of the cluster", "ms until every node has its address",
		),
	}
	for name, plot := range plots {
		if len(plot.Bars) == 0 {
			continue
		}
		for _, dir := range []string{o.out, o.docs} {
			if dir == "" {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, name), []byte(plot.SVG()), 0o644); err != nil {
				return fmt.Errorf("write a plot: %w", err)
			}
		}
	}
	fmt.Print(report.Table(all.Rows))
	return nil
}
