package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

// runGate runs the gate in a copy of the tree for the selected tests alone. It returns what
// the gate prints, and whether the gate is red.
func runGate(ctx context.Context, folder string, s selection) (output string, isRed bool, err error) {
	return combinedOutput(command(ctx, folder, "make", "test", "STEPS="+s.step, "GATE_ARGS="+gateArguments(s)))
}

// gateArguments restricts the gate to the selected tests. The text has no dollar sign, which
// make would expand: \b ends the name of a test as well.
func gateArguments(s selection) string {
	if s.step == smoke {
		var texts []string
		for _, text := range s.tests {
			texts = append(texts, regexp.QuoteMeta(text))
		}
		return "-focus " + quote(strings.Join(texts, "|"))
	}
	return "-package " + quote(s.pkg) + " -run " + quote(`^(`+strings.Join(s.tests, "|")+`)\b`)
}

// quote makes one word of the shell.
func quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

// runGoTest runs the selected tests as runGate does, but by go test, and prints failures as
// the gate does. It needs what the tests need, such as KUBEBUILDER_ASSETS. It is quicker while
// somebody writes a patch.
func runGoTest(ctx context.Context, folder string, s selection) (output string, isRed bool, err error) {
	if s.step == smoke {
		return "", false, errors.New("only the gate starts the lab")
	}
	args := []string{"test", "-json", "-count=1", "-run", `^(` + strings.Join(s.tests, "|") + `)\b`}
	pkg := "./" + strings.TrimPrefix(s.pkg, "./")
	switch s.step {
	case "race":
		args = append(args, "-race", "-short")
	case "modules":
		args, pkg = append([]string{"-C", pkg}, args...), "./..."
	}
	output, isRed, err = combinedOutput(command(ctx, folder, "go", append(args, pkg)...))
	return readable(output, s), isRed, err
}

// readable turns the events of go test -json into its output, and lines of failures.
func readable(events string, s selection) string {
	var text, failures strings.Builder
	for line := range strings.Lines(events) {
		event := struct{ Action, Test, Output string }{}
		if json.Unmarshal([]byte(line), &event) != nil {
			text.WriteString(line) // what go itself says
			continue
		}
		text.WriteString(event.Output)
		if event.Action == "fail" && event.Test != "" {
			fmt.Fprintf(&failures, "FAILED %s %s %s\n", s.step, s.pkg, event.Test)
		}
	}
	return text.String() + failures.String()
}

// command is a command in a folder. The variables by which a make passes its own options on
// are left out: the gate is a make of its own.
func command(ctx context.Context, folder, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = folder
	cmd.Env = slices.DeleteFunc(os.Environ(), func(variable string) bool {
		key, _, _ := strings.Cut(variable, "=")
		return key == "MAKEFLAGS" || key == "MFLAGS" || key == "MAKELEVEL" || key == "MAKEOVERRIDES"
	})
	// The group ends with this command, also its children.
	endWithGroup(cmd)
	return cmd
}

// combinedOutput runs a command. That the command fails is no error.
func combinedOutput(cmd *exec.Cmd) (output string, hasFailed bool, err error) {
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	err = cmd.Run()
	if exit := new(exec.ExitError); errors.As(err, &exit) && exit.Exited() {
		return said.String(), true, nil
	}
	if err != nil {
		return said.String(), false, fmt.Errorf("%s: %w", cmd, err)
	}
	return said.String(), false, nil
}
