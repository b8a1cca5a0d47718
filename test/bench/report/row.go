// Package report turns what was measured into rows, a table and plots. Only reading and
// writing the files is not pure.
//
// A section of measurements is a file, <section>.json. All are in one folder, also those of
// other programs, such as test/scale.
package report

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Row is what was measured in one case.
type Row struct {
	// Section names the kind of measurement and the file.
	Section string `json:"section"`
	// Case says what was measured. There is one row for each case of a section.
	Case string `json:"case"`
	// Unit is the unit of all values. It is empty if they have different ones.
	Unit string `json:"unit"`
	// N is the number of measurements.
	N int `json:"n"`
	// Values are the results, by name.
	Values map[string]float64 `json:"values"`
}

// Report is the form of all files of rows.
type Report struct {
	Rows []Row `json:"rows"`
}

// Machine describes the machine that the measurements ran on.
type Machine struct {
	CPU        string `json:"cpu"`
	Cores      int    `json:"cores"`
	MemoryMiB  int    `json:"memoryMiB"`
	Kernel     string `json:"kernel"`
	Go         string `json:"go"`
	Kubernetes string `json:"kubernetes"`
	Commit     string `json:"commit"`
	Date       string `json:"date"`
}

// The names of files that are no section.
const (
	MachineFile = "machine.json"
	AllFile     = "bench.json"
)

// Merge replaces rows by the new ones with the same section and case, and appends the
// other new ones.
func Merge(rows, more []Row) []Row {
	merged := slices.Clone(rows)
	for _, row := range more {
		i := slices.IndexFunc(merged, func(r Row) bool { return r.Section == row.Section && r.Case == row.Case })
		if i < 0 {
			merged = append(merged, row)
		} else {
			merged[i] = row
		}
	}
	return merged
}

// Add merges rows into the files of their sections.
func Add(dir string, rows ...Row) error {
	bySection := map[string][]Row{}
	for _, row := range rows {
		bySection[row.Section] = append(bySection[row.Section], row)
	}
	for section, more := range bySection {
		path := filepath.Join(dir, section+".json")
		var old Report
		if err := readJSON(path, &old); err != nil && !os.IsNotExist(err) {
			return err
		}
		if err := WriteJSON(path, Report{Merge(old.Rows, more)}); err != nil {
			return err
		}
	}
	return nil
}

// Read reads all sections of a folder, in the order of their names.
func Read(dir string) (Report, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return Report{}, fmt.Errorf("list %s: %w", dir, err)
	}
	var all Report
	for _, path := range paths {
		if name := filepath.Base(path); name == MachineFile || name == AllFile {
			continue
		}
		var one Report
		if err := readJSON(path, &one); err != nil {
			return Report{}, err
		}
		all.Rows = Merge(all.Rows, one.Rows)
	}
	return all, nil
}

func readJSON(path string, to any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err // the error names the file
	}
	if err := json.Unmarshal(text, to); err != nil {
		return fmt.Errorf("parse %s: %w", path, err)
	}
	return nil
}

// WriteJSON writes a file in the form of the results, and makes its folder.
func WriteJSON(path string, from any) error {
	text, err := json.MarshalIndent(from, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make the folder of results: %w", err)
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	return nil
}

// valueNames returns the names of all values of rows, sorted. Names that belong together are
// in their natural order: p50 before p99, and minimum, median and maximum as one (see spreads).
func valueNames(rows []Row) []string {
	var all []string
	for _, row := range rows {
		for name := range row.Values {
			all = append(all, name)
		}
	}
	slices.SortFunc(all, func(a, b string) int {
		if d := nameRank(a) - nameRank(b); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	return slices.Compact(all)
}

// nameRank returns the place of a name in the order of columns: lower ranks come first.
func nameRank(name string) int {
	for i, prefix := range []string{
		"nodes", "addresses", "p50", "p99", "outage", "silence", "duplicate", "failed", "moves",
	} {
		if strings.HasPrefix(name, prefix) {
			return i
		}
	}
	return 100
}
