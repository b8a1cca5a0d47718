package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A binary is a package's compiled tests.
type binary struct {
	module string // the module's folder, from the root; . for the main module
	pkg    string // the package's folder, from the root
	step   string // the step that runs it
	race   bool   // compiled with the race detector
	test   string // the only test that the step runs; empty for all
	file   string // the path of the compiled tests
}

// binaryTimeout is when a test binary ends with the stacks of its goroutines.
const binaryTimeout = 20 * time.Minute

// endGrace is how long a program may take to clean up when the gate is interrupted.
const endGrace = time.Minute

// findBinaries lists the packages of a module that have tests, without their step.
func findBinaries(ctx context.Context, root, module string) ([]binary, error) {
	const format = `{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}`
	command := exec.CommandContext(ctx, "go", "list", "-f", format, "./...")
	command.Dir = filepath.Join(root, module)
	var errors bytes.Buffer
	command.Stderr = &errors
	text, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("list the packages of %s: %w: %s", module, err, errors.String())
	}
	var found []binary
	for folder := range strings.FieldsSeq(string(text)) {
		pkg, err := filepath.Rel(root, folder)
		if err != nil {
			return nil, err
		}
		found = append(found, binary{module: module, pkg: pkg})
	}
	return found, nil
}

// splitIntoBatches splits binaries of one module so that no two of a batch have the same name: go
// test writes all of them to one folder.
func splitIntoBatches(binaries []binary) [][]binary {
	var batches [][]binary
	for _, b := range binaries {
		i := slices.IndexFunc(batches, func(batch []binary) bool {
			return !slices.ContainsFunc(batch, func(other binary) bool { return path.Base(other.pkg) == path.Base(b.pkg) })
		})
		if i < 0 {
			batches, i = append(batches, nil), len(batches)
		}
		batches[i] = append(batches[i], b)
	}
	return batches
}

// compile compiles a batch to a folder, and sets where each binary is.
func compile(ctx context.Context, root, folder string, batch []binary) error {
	// Without symbols and debugging information linking is quicker. Stacks are the same.
	args := []string{"test", "-c", "-ldflags", "-s -w", "-o", folder + "/"}
	env := os.Environ() // as in go test, whose compiled packages are used again
	if batch[0].race {
		args, env = append(args, "-race"), append(env, "CGO_ENABLED=1")
	}
	for i := range batch {
		from, err := filepath.Rel(filepath.Join(root, batch[i].module), filepath.Join(root, batch[i].pkg))
		if err != nil {
			return err
		}
		args = append(args, "./"+from)
		batch[i].file = filepath.Join(folder, path.Base(batch[i].pkg)+".test")
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	command := exec.CommandContext(ctx, "go", args...)
	command.Dir, command.Env = filepath.Join(root, batch[0].module), env
	if text, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("compile tests of %s: %w:\n%s", batch[0].module, err, text)
	}
	return nil
}

// slowPackages are the packages whose tests take longest, with the number of parts in which they
// run, each in a process of its own. They begin first, so that no processor is idle at the end.
var slowPackages = []struct {
	pkg   string
	parts int
}{
	{"controllers", 3}, {"nodeagent", 2}, {"nodeagent/speaker/gobgp", 1}, {"webhooks", 1},
	{"controllers/ipam/netbox", 1}, {"test/sim", 2}, {"controllers/placement", 1}, {"test/gitops", 1}, {"test/scale", 1},
}

// partsOf returns in how many parts a package's tests run, and its place among those that begin.
func partsOf(pkg string) (parts, order int) {
	for i, slow := range slowPackages {
		if slow.pkg == pkg {
			return slow.parts, i
		}
	}
	return 1, len(slowPackages)
}

// A job is tests of one binary that run in one process.
type job struct {
	binary
	pattern string // the tests, a regular expression; empty for all
	part    string // names the part of the package; empty if there is one
}

// String returns what the job runs.
func (j job) String() string { return strings.TrimSpace(j.pkg + " " + j.part) }

// jobsOf returns the jobs of a step in the order in which they begin.
func (g *gate) jobsOf(ctx context.Context, step string) ([]job, error) {
	var jobs []job
	var errs []error
	for _, b := range g.binaries {
		if b.step != step || b.file == "" {
			continue
		}
		if b.test != "" {
			if asked, err := regexp.MatchString(g.run, b.test); err != nil {
				return nil, err
			} else if asked {
				jobs = append(jobs, job{b, "^" + b.test + "$", b.test})
			}
			continue
		}
		parts, _ := partsOf(b.pkg)
		if g.run != "" || parts == 1 {
			jobs = append(jobs, job{binary: b, pattern: g.run})
			continue
		}
		tests, err := g.listTests(ctx, b)
		errs = append(errs, err)
		for i, part := range deal(tests, parts) {
			jobs = append(jobs, job{b, "^(" + strings.Join(part, "|") + ")$", fmt.Sprintf("part %d of %d", i+1, parts)})
		}
	}
	slices.SortStableFunc(jobs, func(a, b job) int {
		_, first := partsOf(a.pkg)
		_, second := partsOf(b.pkg)
		return cmp.Compare(first, second)
	})
	return jobs, errors.Join(errs...)
}

// listTests lists what a binary runs without flags.
func (g *gate) listTests(ctx context.Context, b binary) ([]string, error) {
	command := newCommand(ctx, b.file, "-test.list", "^(Test|Example|Fuzz)")
	command.Dir, command.Env = filepath.Join(g.root, b.pkg), g.env
	text, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("list the tests of %s: %w", b.pkg, err)
	}
	return strings.Fields(string(text)), nil
}

// deal deals tests to so many parts, in turn: those of one file, which take about as long,
// come to different ones. No part is empty.
func deal(tests []string, parts int) [][]string {
	dealt := make([][]string, min(parts, len(tests)))
	for i, test := range tests {
		dealt[i%parts] = append(dealt[i%parts], test)
	}
	return dealt
}

// runBinaries runs binaries, so many processes at a time, and adds their outcomes. Failed tests that
// may run again do so afterwards, when waitForOthers has returned.
func (g *gate) runBinaries(ctx context.Context, step string, atOnce int, waitForOthers func()) error {
	jobs, err := g.jobsOf(ctx, step)
	errs := []error{err}
	if len(jobs) == 0 {
		errs = append(errs, errors.New("there is nothing to run"))
	}
	var wait sync.WaitGroup
	var lock sync.Mutex
	var all []outcome
	slots := make(chan struct{}, atOnce)
	for _, j := range jobs {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			begun := time.Now()
			outcomes, used, err := g.runBinary(ctx, j.binary, j.pattern, strings.ReplaceAll(j.part, " ", "-"))
			g.printf("%4.0f s, %4.0f s of a processor  %s\n", time.Since(begun).Seconds(), used.Seconds(), j)
			lock.Lock()
			defer lock.Unlock()
			all, errs = append(all, outcomes...), append(errs, err)
		})
	}
	wait.Wait()
	g.add(g.runAgain(ctx, all, waitForOthers)...)
	return errors.Join(errs...)
}

// runAgain runs each failed test that may run again once more, by itself. waitForOthers waits for the steps that run
// beside this one.
func (g *gate) runAgain(ctx context.Context, first []outcome, waitForOthers func()) []outcome {
	passed := map[[2]string]bool{} // by package and test
	repeated := testsToRepeat(first)
	if len(repeated) > 0 {
		waitForOthers()
	}
	for _, o := range repeated {
		if ctx.Err() != nil {
			break
		}
		i := slices.IndexFunc(g.binaries, func(b binary) bool { return b.step == o.step && b.pkg == o.pkg })
		g.printf("once more: %s %s, which failed: %s %s\n", o.pkg, topLevel(o.test), o.place, firstLine(o.message))
		outcomes, _, err := g.runBinary(ctx, g.binaries[i], "^"+topLevel(o.test)+"$", "again-"+topLevel(o.test))
		passed[[2]string{o.pkg, topLevel(o.test)}] = err == nil && len(outcomes) > 0 && !hasFailure(outcomes)
	}
	second := map[[2]string]bool{}
	for _, o := range first {
		second[[2]string{o.pkg, o.test}] = passed[[2]string{o.pkg, topLevel(o.test)}]
	}
	return mergeSecondRun(first, second)
}

// testsToRepeat returns the first failure of each test that failed and may run again. A test runs
// again as a whole, however many of its parts failed.
func testsToRepeat(outcomes []outcome) []outcome {
	var repeated []outcome
	for _, o := range outcomes {
		isRepeated := slices.ContainsFunc(repeated, func(other outcome) bool {
			return other.step == o.step && other.pkg == o.pkg && topLevel(other.test) == topLevel(o.test)
		})
		if !o.passed && o.again && !isRepeated {
			repeated = append(repeated, o)
		}
	}
	return repeated
}

// runBinary runs a test binary in its package's folder and keeps its output in two files: the
// events, and the text. pattern says which tests run, all if it is empty. It also returns for how long
// processors worked for the tests and for the programs that they started and waited for.
func (g *gate) runBinary(
	ctx context.Context, b binary, pattern, suffix string,
) (outcomes []outcome, used time.Duration, err error) {
	args := []string{
		"tool", "test2json", "-t", "-p", b.pkg, b.file, "-test.v=test2json", "-test.paniconexit0",
		"-test.timeout=" + binaryTimeout.String(),
	}
	if b.race && !g.long {
		args = append(args, "-test.short") // a tenth of the histories
	}
	if pattern != "" {
		args = append(args, "-test.run="+pattern)
	}
	var events, stderr bytes.Buffer
	command := newCommand(ctx, "go", args...)
	command.Dir = filepath.Join(g.root, b.pkg)
	command.Env, command.Stdout, command.Stderr = g.testEnv(), &events, &stderr
	failure := command.Run()
	if state := command.ProcessState; state != nil {
		used = state.UserTime() + state.SystemTime()
	}
	name := filepath.Join(g.folder, b.step, strings.Trim(strings.ReplaceAll(b.pkg, "/", "-")+"-"+suffix, "-"))
	errs := []error{os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name+".json", events.Bytes(), 0o644)}
	text := append(extractText(events.Bytes()), stderr.Bytes()...)
	errs = append(errs, os.WriteFile(name+".log", text, 0o644))
	outcomes, err = parseEvents(&events, b.step, b.pkg, failure == nil)
	return outcomes, used, errors.Join(append(errs, err)...)
}

// testGOGC is the GOGC of tests and of the servers that they start, which live for minutes and make much garbage:
// with Go's own, 100, those of the step race take half as long again. All of its processes together need 6 GiB.
const testGOGC = "GOGC=400"

// testEnv returns the environment of tests.
func (g *gate) testEnv() []string {
	env := g.env
	if env == nil {
		env = os.Environ()
	}
	return append(slices.Clone(env), testGOGC)
}

// newCommand returns a command that is asked to end, with all that it started, when ctx ends.
func newCommand(ctx context.Context, name string, args ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, name, args...)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGTERM) }
	command.WaitDelay = endGrace
	return command
}
