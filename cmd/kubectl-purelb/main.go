// Command kubectl-purelb is a plugin of kubectl: with the program in the PATH, `kubectl purelb`
// shows the state of PureLB, explains what the manager decided, and predicts what a change would do.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"golang.org/x/term"

	"github.com/purelb/purelb-operator/internal/textlimit"
)

// version is the version of the program; the linker sets it.
var version = "dev"

// Exit codes, besides 0.
const (
	exitError    = 1 // the command could not be carried out
	exitProblems = 2 // it was, and found problems: something is wrong, or would be
	exitUnknown  = 3 // what the answer depends on could not be read
)

// Errors that end a command which has printed its answer.
var (
	errProblems = errors.New("problems found")
	errUnknown  = errors.New("not all could be read")
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], streams{in: os.Stdin, out: os.Stdout, err: os.Stderr,
		hasColors: term.IsTerminal(int(os.Stdout.Fd())) && os.Getenv("NO_COLOR") == ""}))
}

// streams are where a command reads and writes.
type streams struct {
	in       io.Reader
	out, err io.Writer
	// hasColors allows colours.
	hasColors bool
}

// messageOf returns the message of an error, each of its lines in printable letters: it may quote
// what others have written into the cluster.
func messageOf(err error) string {
	var lines []string
	for line := range strings.Lines(err.Error()) {
		lines = append(lines, textlimit.Line(line))
	}
	return strings.Join(lines, "\n")
}

// run carries out a command, and returns the exit code.
func run(ctx context.Context, args []string, s streams) int {
	command := newRootCommand(s) //nolint:contextcheck // cobra hands the context to each command
	command.SetArgs(args)
	switch err := command.ExecuteContext(ctx); {
	case err == nil:
		return 0
	case errors.Is(err, errProblems):
		return exitProblems
	case errors.Is(err, errUnknown):
		return exitUnknown
	default:
		_, _ = fmt.Fprintln(s.err, "Error:", messageOf(err))
		return exitError
	}
}
