// Command soak disturbs PureLB in the lab at random and checks all the time that it keeps
// its promises.
//
//	soak --duration 30m --seed 1     # needs the lab: make soak brings it up
//
// The package model chooses what happens, from the seed alone; the package check judges what
// is seen. The first violation ends the soak: it collects the state of the cluster in its
// folder and prints how to repeat the sequence.
package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// options are the values of all flags.
type options struct {
	root, out string
	results   string
	duration  time.Duration
	seed      uint64
	actions   int
	carryOn   bool
	gates     string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := newCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use: "soak", Short: "Disturb PureLB in the lab at random, and check it", Args: cobra.NoArgs, SilenceUsage: true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.duration <= 0 || o.actions <= 0 {
				return errors.New("--duration and --actions must be more than 0")
			}
			if o.seed == 0 {
				o.seed = rand.Uint64N(1_000_000)
			}
			o.out = filepath.Join(o.out, fmt.Sprintf("seed-%d", o.seed))
			return run(cmd.Context(), o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.root, "root", "../..", "folder of the repository")
	f.StringVar(&o.out, "out", "../../dist/soak", "folder of the results")
	f.StringVar(&o.results, "results", "", "file for the soak as an experiment of make proof; none by default")
	f.DurationVar(&o.duration, "duration", 30*time.Minute, "how long to go on; the last round is finished")
	f.Uint64Var(&o.seed, "seed", 0, "what the sequence follows from; 0 for any")
	f.StringVar(&o.gates, "feature-gates", "", "feature gates of the managers, such as WireFailover=false")
	f.IntVar(&o.actions, "actions", 10, "actions in a round; after each round the cluster comes to rest and is checked")
	f.BoolVar(
		&o.carryOn, "carry-on", false,
		"go on after a violation of a single address; a cluster that does not come to rest ends the soak all the same",
	)
	return c
}
