package trial

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Result is what a command has shown: the content of a file in dist/proof. The command itself
// writes its experiments, and what runs the command writes the rest.
type Result struct {
	// Command is what to type to get the result again.
	Command string `json:"command,omitempty"`
	// Commit is the version that was tried. Its end is -dirty if files had been changed.
	Commit string `json:"commit,omitempty"`
	// Began is when the command began.
	Began time.Time `json:"began,omitzero"`
	// Experiments are in the order in which they were made.
	Experiments []Experiment `json:"experiments"`
}

// IsGreen reports whether there are experiments and all are green.
func (r Result) IsGreen() bool {
	return len(r.Experiments) > 0 &&
		!slices.ContainsFunc(r.Experiments, func(e Experiment) bool { return Judge(e).Outcome != Green })
}

// Check returns an error if something is missing that every result has.
func (r Result) Check() error {
	switch {
	case r.Command == "" || r.Commit == "" || r.Began.IsZero():
		return errors.New("the command did not end: its name, its commit or its time is missing")
	case len(r.Experiments) == 0:
		return errors.New("there are no experiments")
	}
	return nil
}

// judgedExperiment is an Experiment in a file, which also has the verdict, for its readers.
type judgedExperiment struct {
	Experiment
	Verdict *Verdict `json:"verdict"`
}

// Write writes the result as JSON, with the verdict of each experiment.
func (r Result) Write(to io.Writer) error {
	file := struct {
		Result
		Experiments []judgedExperiment `json:"experiments"`
	}{Result: r, Experiments: []judgedExperiment{}}
	for _, e := range r.Experiments {
		verdict := Judge(e)
		file.Experiments = append(file.Experiments, judgedExperiment{e, &verdict})
	}
	encoder := json.NewEncoder(to)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(file); err != nil {
		return fmt.Errorf("write a result: %w", err)
	}
	return nil
}

// Read reads what Write wrote. The verdicts are not read: they follow from the trials.
func Read(from io.Reader) (Result, error) {
	var r Result
	if err := json.NewDecoder(from).Decode(&r); err != nil {
		return Result{}, fmt.Errorf("read a result: %w", err)
	}
	return r, nil
}

// Save writes the result to a file, and makes its folder if need be.
func (r Result) Save(file string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("save a result: %w", err)
	}
	f, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("save a result: %w", err)
	}
	return errors.Join(r.Write(f), f.Close())
}

// Load reads the result in a file.
func Load(file string) (Result, error) {
	f, err := os.Open(file)
	if err != nil {
		return Result{}, fmt.Errorf("load a result: %w", err)
	}
	defer f.Close()
	return Read(f)
}
