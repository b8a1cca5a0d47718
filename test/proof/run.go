package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/purelb/purelb-operator/test/measure"
	"github.com/purelb/purelb-operator/test/proof/trial"
)

// What a program has to show beside that it succeeds.
const (
	wantsExperiments = "experiments" // it writes experiments to the file of results
	wantsTests       = "tests"       // it runs Go tests with -v, or Ginkgo, and prints how they ended
)

// wholeRun is the name of the experiment that is the whole run of the program.
const wholeRun = "the whole command"

// endTime is how long a program has to clean up when it is interrupted.
const endTime = 5 * time.Minute

// run runs a program, copies what it prints to out and to a log beside the file of results,
// and completes that file.
func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	file := flags.String("results", "", "file of results, in which the program may write experiments")
	command := flags.String("command", "", "what to type to get the results again")
	commit := flags.String("commit", "", "the commit that is tried")
	wants := flags.String(
		"wants", "", "what the program has to show beside that it succeeds: tests, experiments or nothing",
	)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *file == "" || *command == "" || *commit == "" || flags.NArg() == 0 {
		return errors.New("run: want -results, -command, -commit and a program")
	}
	// What an earlier run has shown must not pass for what this one shows.
	if err := os.Remove(*file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(*file), 0o755); err != nil {
		return err
	}
	log, err := os.Create(strings.TrimSuffix(*file, filepath.Ext(*file)) + ".log")
	if err != nil {
		return err
	}
	defer log.Close()

	counter := &testCounter{}
	began := time.Now()
	lateness := measure.StartLateness(ctx)
	failure := runProgram(ctx, flags.Args(), io.MultiWriter(out, log, counter))
	late := lateness.Stop()
	whole := trial.Trial{
		Figures: map[string]float64{"took, s": time.Since(began).Round(time.Second).Seconds()},
		LateMS:  trial.Milliseconds(late.Longest), Pressure: late.Pressure,
	}
	result, err := trial.Load(*file)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	for _, e := range []error{failure, err, shownError(*wants, result, counter)} {
		if e != nil {
			whole.Broken = append(whole.Broken, e.Error())
		}
	}
	if counter.passed+counter.failed > 0 {
		whole.Figures["tests passed"], whole.Figures["tests failed"] = float64(counter.passed), float64(counter.failed)
	}
	result.Command, result.Commit, result.Began = *command, *commit, began
	result.Experiments = append(
		result.Experiments, trial.Experiment{Name: wholeRun, Wanted: 1, AnyMachine: true, Trials: []trial.Trial{whole}},
	)
	if err := result.Save(*file); err != nil {
		return err
	}
	printVerdicts(out, result)
	if !result.IsGreen() {
		return fmt.Errorf("%s is not green: %s", *command, *file)
	}
	return nil
}

// runProgram runs a program. When ctx ends, the program is told to end, too.
func runProgram(ctx context.Context, args []string, out io.Writer) error {
	program := exec.CommandContext(ctx, args[0], args[1:]...)
	program.Stdout, program.Stderr = out, out
	program.Cancel = func() error { return program.Process.Signal(syscall.SIGTERM) }
	program.WaitDelay = endTime
	if err := program.Run(); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// shownError returns an error if a program has not shown what it has to.
func shownError(wants string, r trial.Result, c *testCounter) error {
	switch {
	case wants == "":
		return nil
	case wants == wantsExperiments && len(r.Experiments) == 0:
		return errors.New("no experiment was made")
	case wants == wantsTests && c.passed == 0:
		return errors.New("no test has passed")
	case wants == wantsTests && c.failed > 0:
		return fmt.Errorf("%d tests have failed", c.failed)
	case wants != wantsExperiments && wants != wantsTests:
		return fmt.Errorf("-wants %s: there is no such thing", wants)
	}
	return nil
}
