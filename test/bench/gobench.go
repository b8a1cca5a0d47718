package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/purelb/purelb-operator/test/bench/report"
)

// goBenchmarks runs the benchmarks of single packages.
func (b *bench) goBenchmarks(ctx context.Context) error {
	if b.kubernetes == "" {
		return errors.New("--assets is needed: the folder that bin/lab assets prints")
	}
	for _, args := range [][]string{
		{"./controllers/allocation", "./controllers/placement"},
		{"-benchtime", strconv.Itoa(b.services) + "x", "-timeout", "30m", "./controllers"},
	} {
		command := exec.CommandContext(ctx, "go", append([]string{"test", "-run", "^$", "-bench", "."}, args...)...)
		command.Dir = b.root
		command.Env = append(os.Environ(), "KUBEBUILDER_ASSETS="+b.kubernetes)
		command.Stderr = os.Stderr
		out, err := command.Output()
		if err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(command.Args, " "), err, out)
		}
		if err := b.addRows(parseBenchmarks(string(out))...); err != nil {
			return err
		}
	}
	return nil
}

// parseBenchmarks makes rows of what "go test -bench" prints:
//
//	BenchmarkPlace/100_nodes-2    120    9876543 ns/op    12.5 writes/service
func parseBenchmarks(text string) []report.Row {
	var rows []report.Row
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		n, err := strconv.Atoi(fields[1])
		if err != nil {
			continue // a line of the log
		}
		values := map[string]float64{}
		for i := 2; i+1 < len(fields); i += 2 {
			value, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				continue
			}
			if fields[i+1] == "ns/op" {
				values["µs/op"] = value / 1000
			} else {
				values[fields[i+1]] = value
			}
		}
		rows = append(rows, report.Row{Section: "go", Case: benchmarkName(fields[0]), N: n, Values: values})
	}
	return rows
}

// benchmarkName returns the name without "Benchmark" and the number of processors.
func benchmarkName(text string) string {
	name := strings.TrimPrefix(text, "Benchmark")
	if i := strings.LastIndexByte(name, '-'); i > 0 {
		if _, err := strconv.Atoi(name[i+1:]); err == nil {
			name = name[:i]
		}
	}
	return name
}
