package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
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
	args := []string{"test", "-c", "-o", folder + "/"}
	env := os.Environ() // as in go test, whose compiled packages are used again
	if batch[0].race {
		args, env = append(args, "-race"), append(env, "CGO_ENABLED=1")
	}
	for i := range batch {
		// Tests find files of the project by their own path, so it stays in the binary.
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

// runBinaries runs binaries, so many at a time, and adds their outcomes. Failed tests that
// may run again do so afterwards, when nothing else runs.
func (g *gate) runBinaries(ctx context.Context, step string, atOnce int) error {
	var wait sync.WaitGroup
	var lock sync.Mutex
	var errs []error
	var all []outcome
	slots := make(chan struct{}, atOnce)
	ran := false
	for _, b := range g.binaries {
		if b.step != step || b.file == "" {
			continue
		}
		ran = true
		wait.Add(1)
		slots <- struct{}{}
		go func() {
			defer func() { <-slots; wait.Done() }()
			begun := time.Now()
			outcomes, err := g.runBinary(ctx, b, g.run, "")
			lock.Lock()
			defer lock.Unlock()
			fmt.Fprintf(g.out, "%4.0f s  %s\n", time.Since(begun).Seconds(), b.pkg)
			all, errs = append(all, outcomes...), append(errs, err)
		}()
	}
	wait.Wait()
	if !ran {
		errs = append(errs, errors.New("there is nothing to run"))
	}
	g.add(g.runAgain(ctx, all)...)
	return errors.Join(errs...)
}

// runAgain runs each failed test that may run again once more, alone.
func (g *gate) runAgain(ctx context.Context, first []outcome) []outcome {
	passed := map[[2]string]bool{} // by package and test
	for _, o := range testsToRepeat(first) {
		if ctx.Err() != nil {
			break
		}
		i := slices.IndexFunc(g.binaries, func(b binary) bool { return b.step == o.step && b.pkg == o.pkg })
		fmt.Fprintf(g.out, "once more, alone: %s %s, which failed: %s %s\n", o.pkg, topLevel(o.test), o.place, firstLine(o.message))
		outcomes, err := g.runBinary(ctx, g.binaries[i], "^"+topLevel(o.test)+"$", "-again-"+topLevel(o.test))
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
// events, and the text. pattern says which tests run, all if it is empty.
func (g *gate) runBinary(ctx context.Context, b binary, pattern, suffix string) ([]outcome, error) {
	args := []string{"tool", "test2json", "-t", "-p", b.pkg, b.file, "-test.v=test2json", "-test.paniconexit0", "-test.timeout=" + binaryTimeout.String()}
	if b.race && !g.long {
		args = append(args, "-test.short") // a tenth of the histories
	}
	if pattern != "" {
		args = append(args, "-test.run="+pattern)
	}
	var events, stderr bytes.Buffer
	command := newCommand(ctx, "go", args...)
	command.Dir = filepath.Join(g.root, b.pkg)
	command.Env, command.Stdout, command.Stderr = g.env, &events, &stderr
	failure := command.Run()
	name := filepath.Join(g.folder, b.step, strings.ReplaceAll(b.pkg, "/", "-")+suffix)
	errs := []error{os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name+".json", events.Bytes(), 0o644)}
	text := append(extractText(events.Bytes()), stderr.Bytes()...)
	errs = append(errs, os.WriteFile(name+".log", text, 0o644))
	outcomes, err := parseEvents(&events, b.step, b.pkg, failure == nil)
	return outcomes, errors.Join(append(errs, err)...)
}

// newCommand returns a command that is asked to end, with all that it started, when ctx ends.
func newCommand(ctx context.Context, name string, args ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, name, args...)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGTERM) }
	command.WaitDelay = endGrace
	return command
}
