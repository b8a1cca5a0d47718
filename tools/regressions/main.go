// Command regressions shows that the gate is red when the product is wrong. Each file of
// test/regressions is a small patch that breaks the product, and names the test that has to
// fail for it. This command applies one patch at a time to a copy of the working tree, runs
// the gate there for the named test alone, and fails if the gate is green, or red for another
// reason. Before that it runs the same tests without any patch: those must be green.
//
// The copy is a clone in -folder, with the changes that are not committed and a copy of
// kustomize. The working tree is never changed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

type options struct {
	root     string // of the working tree
	folder   string // for the copy and the gate's output
	patches  []string
	isDirect bool // run the tests by go test, and not by the gate
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "regressions:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	o, err := parseFlags(args)
	if err != nil {
		return err
	}
	regressions, err := readRegressions(o)
	if err != nil {
		return err
	}
	t, err := newTree(ctx, o.root, o.folder)
	if err != nil {
		return err
	}
	r := runner{tree: t, folder: o.folder, out: out, runTests: runGate}
	if o.isDirect {
		r.runTests = runGoTest
	}
	return r.run(ctx, regressions)
}

func parseFlags(args []string) (options, error) {
	o := options{}
	f := flag.NewFlagSet("regressions", flag.ContinueOnError)
	f.StringVar(&o.root, "root", ".", "folder of the working tree")
	f.StringVar(
		&o.folder, "folder", "dist/regressions", "folder for the copy of the tree and for the gate's output, below the root",
	)
	f.BoolVar(&o.isDirect, "direct", false, "run the tests by go test, without the gate: for those who write a patch")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	root, err := filepath.Abs(o.root)
	if err != nil {
		return o, fmt.Errorf("find the working tree: %w", err)
	}
	o.root, o.folder, o.patches = root, filepath.Join(root, o.folder), f.Args()
	return o, nil
}

// readRegressions reads the patches that the options name: all, if they name none.
func readRegressions(o options) ([]regression, error) {
	files, err := filepath.Glob(filepath.Join(o.root, "test", "regressions", "*.patch"))
	if err != nil {
		return nil, fmt.Errorf("list the patches: %w", err)
	}
	var regressions []regression
	var errs []error
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".patch")
		isNamed, err := matches(o.patches, name)
		if err != nil {
			return nil, err
		}
		if !isNamed {
			continue
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read a patch: %w", err)
		}
		one, err := parseRegression(name, string(content))
		one.file = file
		regressions, errs = append(regressions, one), append(errs, err)
	}
	for _, pattern := range o.patches {
		isMatch := func(r regression) bool { found, _ := matches([]string{pattern}, r.name); return found }
		if !slices.ContainsFunc(regressions, isMatch) {
			errs = append(errs, fmt.Errorf("no patch in test/regressions has the name %s", pattern))
		}
	}
	if len(regressions) == 0 {
		errs = append(errs, errors.New("there is no patch in test/regressions"))
	}
	return regressions, errors.Join(errs...)
}

// matches reports whether a name is one of the patterns, or there are none. A pattern may have
// the ending of the file.
func matches(patterns []string, name string) (bool, error) {
	for _, pattern := range patterns {
		found, err := path.Match(strings.TrimSuffix(path.Base(pattern), ".patch"), name)
		if err != nil {
			return false, fmt.Errorf("%s: %w", pattern, err)
		}
		if found {
			return true, nil
		}
	}
	return len(patterns) == 0, nil
}

// runner tries regressions in a copy of the tree.
type runner struct {
	tree   *tree
	folder string // for the gate's output
	out    io.Writer
	// runTests runs tests in the copy, as runGate does.
	runTests func(ctx context.Context, folder string, s selection) (output string, isRed bool, err error)
}

// run tries the tests without a patch, and then each regression. It returns an error that
// names the regressions that the gate does not catch.
func (r *runner) run(ctx context.Context, regressions []regression) error {
	begun, failed := time.Now(), 0
	for _, s := range selectionsOf(regressions) {
		problem, err := r.tryUnpatched(ctx, s)
		if err != nil {
			return err
		}
		if problem != "" {
			failed++
		}
	}
	if failed > 0 {
		return fmt.Errorf("without any patch the gate is red for %d of the selections: no patch was tried", failed)
	}
	for _, one := range regressions {
		problem, err := r.try(ctx, one)
		if err != nil {
			return err
		}
		if problem != "" {
			failed++
		}
	}
	if failed > 0 {
		return fmt.Errorf(
			"the gate does not catch %d of %d regressions; the output is in %s", failed, len(regressions), r.folder,
		)
	}
	fmt.Fprintf(
		r.out, "make test-regressions: the gate catches all %d regressions, in %.0f s\n", len(regressions),
		time.Since(begun).Seconds(),
	)
	return nil
}

// tryUnpatched runs tests in the copy as it is, and says what is wrong if they are not green.
func (r *runner) tryUnpatched(ctx context.Context, s selection) (problem string, err error) {
	begun := time.Now()
	output, isRed, err := r.runTests(ctx, r.tree.folder, s)
	if err != nil {
		return "", err
	}
	if isRed {
		problem = "is red without a patch: " + describeFailures(failuresIn(output))
	}
	return problem, r.note("unpatched-"+s.fileName(), "green", s, problem, output, begun)
}

// try applies one regression to the copy, runs its test there, and takes the patch out again.
// It says what is wrong if the gate does not catch the regression.
func (r *runner) try(ctx context.Context, one regression) (problem string, err error) {
	begun, output := time.Now(), ""
	err = r.tree.withPatch(ctx, one.file, func() error {
		if output, err = r.tree.compile(ctx, one.paths); err != nil {
			return err
		}
		if output != "" {
			problem = "does not compile"
			return nil
		}
		isRed := false
		if output, isRed, err = r.runTests(ctx, r.tree.folder, one.selection()); err != nil {
			return err
		}
		problem = judge(one, output, isRed)
		return nil
	})
	if doesNotApply := new(applyError); errors.As(err, &doesNotApply) {
		problem, output, err = "does not apply any more", doesNotApply.output, nil
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", one.name, err)
	}
	return problem, r.note(one.name, "red", one.selection(), problem, output, begun)
}

// note prints one line, and keeps the output.
func (r *runner) note(name, good string, s selection, problem, output string, begun time.Time) error {
	verdict := good
	if problem != "" {
		verdict = "WRONG"
	}
	fmt.Fprintf(r.out, "%-6s %4.0f s  %-36s %s", verdict, time.Since(begun).Seconds(), name, s)
	if problem != "" {
		fmt.Fprintf(r.out, ": %s", problem)
	}
	fmt.Fprintln(r.out)
	if err := os.WriteFile(filepath.Join(r.folder, name+".log"), []byte(output), 0o644); err != nil {
		return fmt.Errorf("keep the output: %w", err)
	}
	return nil
}
