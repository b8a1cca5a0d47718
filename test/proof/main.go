// Command proof keeps the results of experiments.
//
//	proof run -results dist/proof/soak.json -command "make soak" -commit abc1234 -- program …
//	proof table -page docs/proof.md dist/proof/*.json
//
// With run it runs a program, which may write experiments to the file of results. It adds how
// the program ended, its command, commit and time, prints a verdict for each experiment, and
// fails unless all are green. With table it writes the results of files into the table of a
// page, or those of make proof-routers into the tables of another one. The package trial judges.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/purelb/purelb-operator/nodeagent/speaker/matrix"
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
	gridPage := flags.String("routers", "docs/routers.md", "the page whose tables of sessions with routers are written")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() == 0 {
		return errors.New("table: want files of results")
	}
	var results, cells []trial.Result
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
		if strings.HasPrefix(r.Command, "make proof-routers ") {
			cells = append(cells, r)
		} else {
			results = append(results, r)
		}
		printVerdicts(out, r)
		if !r.IsGreen() {
			errs = append(errs, fmt.Errorf("%s is not green", r.Command))
		}
	}
	return errors.Join(append(errs,
		rewrite(*page, results, trial.UpdatePage), rewrite(*gridPage, cells, routerGrid().UpdatePage))...)
}

// rewrite writes results, if there are any, into a page.
func rewrite(page string, results []trial.Result, update func(string, []trial.Result) (string, error)) error {
	if len(results) == 0 {
		return nil
	}
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	updated, err := update(string(text), results)
	if err == nil && updated != string(text) {
		err = os.WriteFile(page, []byte(updated), 0o644)
	}
	return err
}

// routerGrid is the matrix of what happens to sessions with routers.
func routerGrid() trial.Grid {
	rows, columns := map[string]matrix.Row{}, map[string]matrix.Column{}
	g := trial.Grid{
		Cell: func(row, column string) string { return matrix.Cell(rows[row], columns[column]) },
		Reason: func(row, column string) string {
			return matrix.Reason(rows[row], columns[column])
		},
		GroupOf: func(column string) string { return columns[column].Group() },
		Shown:   []string{matrix.LostFigure, matrix.OutageFigure},
	}
	for _, row := range matrix.Rows {
		g.Rows, rows[row.Name] = append(g.Rows, row.Name), row
	}
	for _, column := range matrix.Columns() {
		g.Columns, columns[column.String()] = append(g.Columns, column.String()), column
		if !slices.Contains(g.Groups, column.Group()) {
			g.Groups = append(g.Groups, column.Group())
		}
	}
	return g
}

// printVerdicts prints one line for each experiment.
func printVerdicts(out io.Writer, r trial.Result) {
	for _, e := range r.Experiments {
		fmt.Fprintf(out, "%s: %s: %s\n", r.Command, e.Name, trial.Judge(e))
	}
}
