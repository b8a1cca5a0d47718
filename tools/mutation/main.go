// Command mutation measures whether the unit tests of pure packages notice when the
// code is wrong. Gremlins (github.com/go-gremlins/gremlins) says which operators of a
// package can be changed, and how. This command changes one at a time (a mutant), runs
// the package's own tests, and prints the mutants that no test noticed (survivors).
// It fails if the tests notice fewer than -threshold percent.
//
// This command runs the mutants itself, and Gremlins only lists them, for three
// reasons. Gremlins takes the conditions of a switch for code that no test runs, since
// Go's coverage counts only what follows a case. It counts a mutant that does not
// compile as noticed. And it can run all mutants only, not a sample.
//
// With -then, what survives a package's own tests is tried against those of another package, which use it: it
// counts as noticed if these fail.
//
// A survivor that behaves as the original does (an equivalent mutant) is listed with the
// reason in -equivalent, and not counted. An entry of that file that matches no mutant,
// or that a test notices, is an error.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

type options struct {
	root       string // the module's folder
	gremlins   string // the program
	equivalent string // the file of equivalent mutants
	then       target // whose tests are tried on what survives a package's own; the zero target for none
	sample     int    // how many mutants of each package to run; 0 for all
	seed       uint64 // chooses the sample
	threshold  float64
	workers    int
	timeout    time.Duration // of one mutant's build and tests; 0 for one that fits the package
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "mutation:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	o, packages, err := parseFlags(args)
	if err != nil {
		return err
	}
	entries, err := readEquivalents(o.equivalent)
	if err != nil {
		return err
	}
	var total tally
	for _, target := range packages {
		mutants, err := listMutants(ctx, o, target)
		if err != nil {
			return err
		}
		stale := markEquivalents(mutants, entries, target.folder)
		chosen := sample(mutants, o.sample, o.seed)
		fmt.Fprintf(out, "== %s: %d of %d mutants, seed %d\n", target.folder, len(chosen), len(mutants), o.seed)
		err = testMutants(ctx, o, target, chosen)
		t := count(chosen, stale)
		t.print(out, target.folder)
		if err != nil {
			return err // what ran until then was printed
		}
		total.add(t)
	}
	if len(packages) > 1 {
		total.print(out, "all packages")
	}
	return total.verdict(o.threshold)
}

func parseFlags(args []string) (options, []target, error) {
	var o options
	var sampleSize, then string
	flags := flag.NewFlagSet("mutation", flag.ContinueOnError)
	flags.StringVar(&o.root, "root", ".", "folder of the module")
	flags.StringVar(&o.gremlins, "gremlins", "bin/gremlins", "Gremlins' program")
	flags.StringVar(
		&o.equivalent, "equivalent", "tools/mutation/equivalent.txt",
		"file that lists equivalent mutants, with the reason for each",
	)
	flags.StringVar(
		&then, "then", "",
		"a package, as FOLDER or FOLDER::TEST,TEST, whose tests are tried on what survives a package's own",
	)
	flags.StringVar(&sampleSize, "sample", "50", "how many mutants of each package to run, or all")
	flags.Uint64Var(&o.seed, "seed", 1, "chooses the sample")
	flags.Float64Var(&o.threshold, "threshold", 95, "percentage of mutants that tests have to notice")
	flags.IntVar(&o.workers, "workers", runtime.NumCPU(), "how many mutants to run at a time")
	flags.DurationVar(
		&o.timeout, "timeout", 0,
		"of a mutant's build and tests, after which it counts as noticed; 0 for 30 s more than five times what the "+
			"original takes",
	)
	if err := flags.Parse(args); err != nil {
		return o, nil, err
	}
	if sampleSize != "all" {
		n, err := strconv.Atoi(sampleSize)
		if err != nil || n < 1 {
			return o, nil, fmt.Errorf("-sample is %q: want a number above 0, or all", sampleSize)
		}
		o.sample = n
	}
	o.then = parseTarget(then)
	if flags.NArg() == 0 {
		return o, nil, errors.New("name at least one package, as FOLDER or FOLDER:FILE,FILE:TEST,TEST")
	}
	var targets []target
	for _, arg := range flags.Args() {
		targets = append(targets, parseTarget(arg))
	}
	return o, targets, nil
}

// target is a package to mutate.
type target struct {
	folder string   // below the module's root, with slashes
	files  []string // the files to mutate; none for all
	tests  string   // a regular expression of the tests to run; empty for all
}

// parseTarget reads FOLDER[:FILE,FILE…[:TEST,TEST…]].
func parseTarget(arg string) target {
	folder, rest, _ := strings.Cut(arg, ":")
	files, tests, _ := strings.Cut(rest, ":")
	t := target{folder: strings.Trim(strings.TrimPrefix(folder, "./"), "/")}
	if files != "" {
		t.files = strings.Split(files, ",")
	}
	if tests != "" {
		t.tests = "^(" + strings.ReplaceAll(tests, ",", "|") + ")$"
	}
	return t
}

// testedWith returns the packages whose tests are run with a mutant of a package, in their order.
func (o *options) testedWith(t target) []target {
	if o.then.folder == "" {
		return []target{t}
	}
	return []target{t, o.then}
}

// sample returns size mutants, chosen by the seed, in their order in the code; all of
// them if size is 0. The choice depends on nothing but the package's code and the seed.
func sample(mutants []*mutant, size int, seed uint64) []*mutant {
	if size == 0 || size >= len(mutants) {
		return mutants
	}
	chosen := rand.New(rand.NewPCG(seed, 0)).Perm(len(mutants))[:size]
	slices.Sort(chosen)
	sampled := make([]*mutant, size)
	for i, number := range chosen {
		sampled[i] = mutants[number]
	}
	return sampled
}

// testMutants sets the status of each mutant.
func testMutants(ctx context.Context, o options, t target, mutants []*mutant) error {
	begun := time.Now()
	for _, tested := range o.testedWith(t) {
		if err := testOriginal(ctx, o, tested); err != nil {
			return err
		}
	}
	if o.timeout == 0 {
		o.timeout = 30*time.Second + 5*time.Since(begun)
	}
	folder, err := os.MkdirTemp("", "mutation-")
	if err != nil {
		return fmt.Errorf("make a folder for mutants: %w", err)
	}
	defer func() { _ = os.RemoveAll(folder) }()
	queue, errs := make(chan *mutant), make([]error, o.workers)
	var workers sync.WaitGroup
	for worker := range o.workers {
		workers.Go(func() {
			for m := range queue {
				if errs[worker] == nil {
					errs[worker] = m.test(ctx, o, t, folder)
				}
			}
		})
	}
	for _, m := range mutants {
		queue <- m
	}
	close(queue)
	workers.Wait()
	return errors.Join(errs...)
}
