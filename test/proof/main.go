// Command proof keeps the results of experiments.
//
//	proof run -results dist/proof/soak.json -command "make soak" -commit abc1234 -- program …
//	proof table -page docs/proof.md dist/proof/*.json
//
// With run it runs a program, which may write experiments to the file of results. It adds how
// the program ended, its command, commit and time, prints a verdict for each experiment, and
// fails unless all are green. With table it writes the results of files into the table of a
// page. The package trial judges.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/purelb/purelb-operator/test/proof/trial"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := dispatch(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "proof:", err)
		stop()
		os.Exit(1)
	}
}

func dispatch(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("want run or table")
	}
	switch args[0] {
	case "run":
		return run(ctx, args[1:], os.Stdout)
	case "table":
		return writeTable(args[1:], os.Stdout)
	}
	return fmt.Errorf("%s: want run or table", args[0])
}

// writeTable writes the results of files into the table of a page. Files that are missing or
// faulty are an error, and so are results that are not green; the others are written all the
// same.
func writeTable(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("table", flag.ContinueOnError)
	page := flags.String("page", "docs/proof.md", "the page whose table is written")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() == 0 {
		return errors.New("table: want files of results")
	}
	var results []trial.Result
	var errs []error
	for _, file := range flags.Args() {
		r, err := trial.Load(file)
		if err == nil {
			err = r.Check()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", file, err))
			continue
		}
		results = append(results, r)
		printVerdicts(out, r)
		if !r.IsGreen() {
			errs = append(errs, fmt.Errorf("%s is not green", r.Command))
		}
	}
	text, err := os.ReadFile(*page)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	updated, err := trial.UpdatePage(string(text), results)
	if err == nil && updated != string(text) {
		err = os.WriteFile(*page, []byte(updated), 0o644)
	}
	return errors.Join(append(errs, err)...)
}

// printVerdicts prints one line for each experiment.
func printVerdicts(out io.Writer, r trial.Result) {
	for _, e := range r.Experiments {
		fmt.Fprintf(out, "%s: %s: %s\n", r.Command, e.Name, trial.Judge(e))
	}
}
