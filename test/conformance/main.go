// Command conformance runs Kubernetes' own end-to-end tests of LoadBalancer Services
// against PureLB in the lab, and compares the results with what is expected. See README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/purelb/purelb-operator/test/lab"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	root := flag.String("root", ".", "folder of the repository")
	program := flag.String("program", "bin/conformance.test", "the program of the tests")
	output := flag.String("output", "dist/conformance", "folder of reports")
	variantList := flag.String("variants", "local,allow-local,virtual", "variants to run")
	familyList := flag.String(
		"families", "ipv4,dual", "families to run: ipv4 (as the tests ask), dual (every Service prefers both)",
	)
	focus := flag.String("focus", "", "regular expression of the specs to run, by their names in the table of results")
	parallel := flag.Int("parallel", 6, "how many specs run at once")
	slow := flag.Bool("slow", false, "run also what takes long and cannot pass")
	probe := flag.Bool(
		"probe", false, "give the pods of rolling updates a readiness probe, which Kubernetes' test does not",
	)
	flag.Parse()

	chosen, err := parseChoice(*variantList, *familyList, *focus)
	if err != nil {
		return err
	}
	jobs := chooseJobs(chosen)
	if len(jobs) == 0 {
		return errors.New("no spec is chosen")
	}
	l, err := lab.Open("")
	if err != nil {
		return err
	}
	if err := l.Check(ctx); err != nil {
		return err
	}
	start := time.Now()
	r := &runner{
		lab: l, root: *root, withSlow: *slow, withProbe: *probe, parallel: max(*parallel, 1),
		say: func(text string) { fmt.Printf("[%6.1fs] %s\n", time.Since(start).Seconds(), text) },
	}
	if r.program, err = filepath.Abs(*program); err != nil {
		return err
	}
	if r.output, err = filepath.Abs(*output); err != nil {
		return err
	}
	if err := r.install(ctx, slices.Contains(chosen.variants, variantVirtual)); err != nil {
		return err
	}
	if err := r.checkTable(ctx); err != nil {
		return err
	}
	results, err := r.runJobs(ctx, jobs)
	if err != nil {
		return err
	}
	summary := formatTable(results) + "\n" + formatNotes(results)
	fmt.Print("\n", summary)
	errs := []error{os.WriteFile(filepath.Join(r.output, "summary.md"), []byte(summary), 0o644), r.checkRest(ctx)}
	if slices.ContainsFunc(results, func(r result) bool { return r.verdict.isBad() }) {
		errs = append(errs, errors.New("results are not as expected: reports and logs are in "+r.output))
	}
	return errors.Join(errs...)
}

// parseChoice reads the flags that say what to run.
func parseChoice(variantList, familyList, focus string) (choice, error) {
	c := choice{variants: strings.Split(variantList, ","), families: strings.Split(familyList, ",")}
	var names []string
	for _, v := range variants {
		names = append(names, v.name)
	}
	for _, list := range []struct {
		what        string
		wanted, all []string
	}{{"variant", c.variants, names}, {"family", c.families, families}} {
		for _, name := range list.wanted {
			if !slices.Contains(list.all, name) {
				return c, fmt.Errorf("there is no %s %q: want some of %s", list.what, name, strings.Join(list.all, ","))
			}
		}
	}
	var err error
	if c.focus, err = regexp.Compile(focus); err != nil {
		return c, fmt.Errorf("-focus: %w", err)
	}
	return c, nil
}
