package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// options are what the flags say.
type options struct {
	root       string   // the project's folder
	only       []string // names of the steps to run; empty for all
	pkg        string   // the only package to test, such as ./controllers or test/gitops; empty for all
	run        string   // the only tests to run, a regular expression; empty for all
	focus      string   // the only specs of the lab to run, a regular expression; empty for all of the gate
	kubernetes string   // the version of the lab's Kubernetes; empty for the usual one
	keepLab    bool     // whether the lab stays up
	long       bool     // whether the tests play all of their random histories, not a tenth
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gate:", err)
		os.Exit(1)
	}
}

// run runs the gate, and returns an error if it is red.
func run(ctx context.Context, args []string, out io.Writer) error {
	o, err := parseFlags(args)
	if err != nil {
		return err
	}
	release, err := lock(ctx, out, lockFile)
	if err != nil {
		return err
	}
	defer release()
	g, err := newGate(ctx, o, out)
	if err != nil {
		return err
	}
	waitForIdle(ctx, out)
	begun := time.Now()
	g.runSteps(ctx, allSteps)
	verdict := judge(g.outcomes)
	fmt.Fprint(out, formatReport(g.steps, verdict, g.folder, time.Since(begun)))
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	if !verdict.green {
		return errors.New("red")
	}
	return nil
}

func parseFlags(args []string) (options, error) {
	var o options
	var steps string
	flags := flag.NewFlagSet("gate", flag.ContinueOnError)
	flags.StringVar(&o.root, "root", ".", "the project's `folder`")
	flags.StringVar(&steps, "steps", "", "the steps to run, by commas; by default all: "+strings.Join(stepNames(), ","))
	flags.StringVar(&o.pkg, "package", "", "the only package to test, such as ./controllers, or the folder of a module")
	flags.StringVar(&o.run, "run", "", "the only Go tests to run, a regular expression")
	flags.StringVar(&o.focus, "focus", "", "the only specs of the lab to run, a regular expression")
	flags.StringVar(
		&o.kubernetes, "kubernetes", "", "the lab's `version` of Kubernetes; by default that of test/lab/kube/go.mod",
	)
	flags.BoolVar(&o.long, "long", false, "play all random histories, also with the race detector")
	flags.BoolVar(&o.keepLab, "keep-lab", false, "leave the lab up")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if steps != "" {
		o.only = strings.Split(strings.ReplaceAll(steps, " ", ""), ",")
	}
	for _, name := range o.only {
		if !slices.Contains(stepNames(), name) {
			return o, fmt.Errorf("there is no step %q: the steps are %s", name, strings.Join(stepNames(), ", "))
		}
	}
	root, err := filepath.Abs(o.root)
	o.root = root
	return o, err
}

// A gate is one run.
type gate struct {
	options
	folder   string // where all output goes
	binaries []binary
	env      []string       // of the commands; nil for that of the gate
	beside   sync.WaitGroup // the steps that run beside others

	lock     sync.Mutex // of what follows
	out      io.Writer
	steps    []stepReport
	outcomes []outcome
}

// newGate makes the folder for the output, named after the commit. What an earlier run of the
// same commit left there goes.
func newGate(ctx context.Context, o options, out io.Writer) (*gate, error) {
	commit, err := exec.CommandContext(ctx, "git", "-C", o.root, "describe", "--always", "--dirty", "--exclude=*").Output()
	if err != nil {
		return nil, fmt.Errorf("name the commit: %w", err)
	}
	folder := filepath.Join(o.root, "dist", "test", strings.TrimSpace(string(commit)))
	if err := os.RemoveAll(folder); err != nil {
		return nil, err
	}
	return &gate{options: o, out: out, folder: folder}, os.MkdirAll(folder, 0o755)
}

// runSteps runs steps one after the other, except those that run beside others, and goes on
// after a failure.
func (g *gate) runSteps(ctx context.Context, steps []step) {
	defer g.beside.Wait()
	for _, s := range steps {
		if ctx.Err() != nil || !s.always && !g.wants(s.name) {
			continue
		}
		if s.beside {
			g.beside.Go(func() { g.runStep(ctx, s) })
			continue
		}
		if s.alone {
			g.beside.Wait()
		}
		g.runStep(ctx, s)
	}
}

// runStep runs one step, and reports it.
func (g *gate) runStep(ctx context.Context, s step) {
	begun := time.Now()
	g.printf("== %s: %s\n", s.name, s.title)
	if err := s.run(ctx, g); err != nil {
		g.add(outcome{step: s.name, message: err.Error()})
	}
	report := stepReport{name: s.name, took: time.Since(begun), load: readLoad()}
	g.lock.Lock()
	report.count(g.outcomes)
	g.steps = append(g.steps, report)
	g.lock.Unlock()
	g.printf("%s\n", report)
}

// add keeps outcomes, and prints failures at once.
func (g *gate) add(outcomes ...outcome) {
	g.lock.Lock()
	defer g.lock.Unlock()
	for _, o := range outcomes {
		if !o.passed {
			fmt.Fprintln(g.out, o)
		}
	}
	g.outcomes = append(g.outcomes, outcomes...)
}

// printf prints a message.
func (g *gate) printf(format string, args ...any) {
	g.lock.Lock()
	defer g.lock.Unlock()
	fmt.Fprintf(g.out, format, args...)
}
