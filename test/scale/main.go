// Command scale measures PureLB with many nodes. It starts a real API server, the real
// manager, and the real agents of as many nodes as -nodes says. The agents run in this
// process; each has a kernel and a link in memory. docs/scale.md shows the results.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"
)

// options are those of one measurement.
type options struct {
	root      string // folder of this repository
	program   string // path of purelb
	pprof     string // address at which the manager serves its profiles; 0 for none
	profiles  string // folder for profiles; empty for none
	shapes    []shape
	nodes     []int         // numbers of nodes, one cluster for each
	addresses []int         // numbers of Virtual addresses, ascending
	locals    int           // number of Local addresses
	changes   int           // how often a Service is added
	deaths    int           // how often a node dies
	idle      time.Duration // for how long nothing changes
	// managerArgs and managerEnv are further arguments and environment variables of the manager.
	managerArgs, managerEnv []string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := runCommand(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		stop()
		os.Exit(1)
	}
}

// runCommand measures what the arguments ask for.
func runCommand(ctx context.Context, args []string, out io.Writer) error {
	o := options{}
	var nodes, addresses, shapes, output string
	f := flag.NewFlagSet("scale", flag.ContinueOnError)
	f.StringVar(&o.root, "root", "../..", "folder of PureLB's repository")
	f.StringVar(&o.program, "program", "../../bin/purelb", "the program to measure")
	f.StringVar(&nodes, "nodes", "100,300,1000", "how many nodes, one after the other")
	f.StringVar(&addresses, "addresses", "100,1000", "how many virtual addresses, ascending")
	f.StringVar(
		&shapes, "shapes", "flat", "flat (one subnet), racks (one for every 50 nodes, local addresses in the first), or both",
	)
	f.IntVar(&o.locals, "locals", 20, "how many local addresses")
	f.IntVar(&o.changes, "changes", 5, "how often to add a Service")
	f.IntVar(&o.deaths, "deaths", 3, "how often to let a node die")
	f.DurationVar(&o.idle, "idle", 30*time.Second, "for how long to measure while nothing changes")
	f.StringVar(
		&o.profiles, "profiles", "", "folder for profiles of the processors' use while Services are added; none if empty",
	)
	f.StringVar(&o.pprof, "pprof", "127.0.0.1:16060", "where the manager is to serve its profiles; 0 for nowhere")
	f.StringVar(&output, "output", "../../dist/bench/scale.json", "file for the results")
	if err := f.Parse(args); err != nil {
		return err
	}
	var err1, err2 error
	o.nodes, err1 = parseNumbers(nodes)
	o.addresses, err2 = parseNumbers(addresses)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	for s := range strings.SplitSeq(shapes, ",") {
		if shape(s) != flat && shape(s) != racks {
			return fmt.Errorf("-shapes=%s: must be flat or racks", s)
		}
		o.shapes = append(o.shapes, shape(s))
	}
	// Nothing reads what the agents log.
	ctrl.SetLogger(logr.Discard())
	rows, err := measureAll(ctx, o, out)
	if len(rows) > 0 {
		err = errors.Join(err, printTable(out, rows), writeRows(output, rows))
	}
	return err
}

// parseNumbers parses a list of numbers above 0, separated by commas.
func parseNumbers(list string) ([]int, error) {
	var all []int
	for s := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is no list of numbers", list)
		}
		all = append(all, n)
	}
	return all, nil
}

// measureAll measures every case. After an error it returns the rows measured so far.
func measureAll(ctx context.Context, o options, out io.Writer) ([]row, error) {
	var rows []row
	for _, s := range o.shapes {
		for _, nodes := range o.nodes {
			more, err := measureNodes(ctx, o, out, s, nodes)
			rows = append(rows, more...)
			if err != nil {
				return rows, fmt.Errorf("%d nodes, %s: %w", nodes, s, err)
			}
		}
	}
	return rows, nil
}

// measureNodes measures a cluster with a number of nodes, and more and more addresses.
// It leaves nothing running.
func measureNodes(ctx context.Context, o options, out io.Writer, s shape, nodes int) (rows []row, err error) {
	r, err := newRun(ctx, o, out, s, nodes)
	defer func() { err = errors.Join(err, r.close()) }()
	if err != nil {
		return nil, err
	}
	for _, addresses := range o.addresses {
		row, err := r.measure(ctx, addresses)
		if err != nil {
			return rows, errors.Join(err, r.manager.logTail())
		}
		rows = append(rows, row)
	}
	return rows, nil
}
