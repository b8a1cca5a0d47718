// Command scale measures how far PureLB goes: a real API server, the real
// manager, and the real agents of as many nodes as are asked for, in one process,
// each with a kernel and a link in memory. docs/scale.md says what comes out.
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
	root     string // of this repository
	program  string // purelb
	pprof    string // where the manager serves its profiles; 0 for nowhere
	profiles string // folder for profiles; none if empty
	shapes   []shape
	nodes    []int
	// addresses that are Virtual, ascending, and how many are Local.
	addresses []int
	locals    int
	// How often Services are added and nodes die, and how long nothing happens.
	changes, deaths int
	idle            time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := command(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		stop()
		os.Exit(1)
	}
}

// command measures what the arguments ask for.
func command(ctx context.Context, args []string, out io.Writer) error {
	o := options{}
	var nodes, addresses, shapes, output string
	f := flag.NewFlagSet("scale", flag.ContinueOnError)
	f.StringVar(&o.root, "root", "../..", "folder of PureLB's repository")
	f.StringVar(&o.program, "program", "../../bin/purelb", "the program to measure")
	f.StringVar(&nodes, "nodes", "100,300,1000", "how many nodes, one after the other")
	f.StringVar(&addresses, "addresses", "100,1000", "how many virtual addresses, ascending")
	f.StringVar(&shapes, "shapes", "flat", "flat (one subnet), racks (one for every 50 nodes, local addresses in the first), or both")
	f.IntVar(&o.locals, "locals", 20, "how many local addresses")
	f.IntVar(&o.changes, "changes", 5, "how often to add a Service")
	f.IntVar(&o.deaths, "deaths", 3, "how often to let a node die")
	f.DurationVar(&o.idle, "idle", 30*time.Second, "for how long to measure while nothing changes")
	f.StringVar(&o.profiles, "profiles", "", "folder for profiles of the processors' use while Services are added; none if empty")
	f.StringVar(&o.pprof, "pprof", "127.0.0.1:16060", "where the manager is to serve its profiles; 0 for nowhere")
	f.StringVar(&output, "output", "../../dist/bench/scale.json", "file for the results")
	if err := f.Parse(args); err != nil {
		return err
	}
	var err1, err2 error
	o.nodes, err1 = numbers(nodes)
	o.addresses, err2 = numbers(addresses)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	for s := range strings.SplitSeq(shapes, ",") {
		if shape(s) != flat && shape(s) != racks {
			return fmt.Errorf("-shapes=%s: must be flat or racks", s)
		}
		o.shapes = append(o.shapes, shape(s))
	}
	// What the agents log is not looked at.
	ctrl.SetLogger(logr.Discard())
	rows, err := measureAll(ctx, o, out)
	if len(rows) > 0 {
		err = errors.Join(err, printTable(out, rows), write(output, rows))
	}
	return err
}

// numbers parses a list of numbers.
func numbers(list string) ([]int, error) {
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

// measureAll measures every case. After an error it returns what there is.
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

// measureNodes measures with a number of nodes, and more and more addresses. It
// leaves nothing running.
func measureNodes(ctx context.Context, o options, out io.Writer, s shape, nodes int) (rows []row, err error) {
	r, err := newRun(ctx, o, out, s, nodes)
	defer func() { err = errors.Join(err, r.close()) }()
	if err != nil {
		return nil, err
	}
	for _, addresses := range o.addresses {
		row, err := r.measure(ctx, addresses)
		if err != nil {
			return rows, errors.Join(err, r.managerSays())
		}
		rows = append(rows, row)
	}
	return rows, nil
}
