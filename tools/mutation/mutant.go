package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// status says what became of a mutant.
type status string

const (
	noticed      status = "noticed"          // a test failed, or did not end in time
	survived     status = "survived"         // all tests passed
	doesNotBuild status = "does not compile" // the compiler noticed: not counted
	isEquivalent status = "equivalent"       // survived, and listed as equivalent: not counted
	isNot        status = "not equivalent"   // listed as equivalent, and a test noticed it
)

// mutant is one changed operator.
type mutant struct {
	file       string // below the module's root, with slashes
	function   string // that holds it; empty at package level
	line       int
	column     int // in bytes, from 1
	before     string
	after      string // of the line, without surrounding space
	content    []byte // the file with the change
	equivalent *equivalent
	status     status
	isTimedOut bool // noticed because the tests did not end in time
}

// replacements are the operators of each kind of mutant that Gremlins lists, and what
// they become. They are those of Gremlins' documentation.
var replacements = map[string]map[string]string{
	"ARITHMETIC_BASE":       {"+": "-", "-": "+", "*": "/", "/": "*", "%": "*"},
	"CONDITIONALS_BOUNDARY": {"<": "<=", "<=": "<", ">": ">=", ">=": ">"},
	"CONDITIONALS_NEGATION": {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"},
	"INCREMENT_DECREMENT":   {"++": "--", "--": "++"},
	"INVERT_ASSIGNMENTS":    {"+=": "-=", "-=": "+=", "*=": "/=", "/=": "*="},
	"INVERT_BITWISE":        {"&": "|", "|": "&", "^": "&", "<<": ">>", ">>": "<<", "&^": "&"},
	"INVERT_BWASSIGN":       {"&=": "|=", "|=": "&=", "^=": "&=", "<<=": ">>=", ">>=": "<<=", "&^=": "&="},
	"INVERT_LOGICAL":        {"&&": "||", "||": "&&"},
	"INVERT_LOOPCTRL":       {"break": "continue", "continue": "break"},
	"INVERT_NEGATIVES":      {"-": "+"},
}

// listMutants returns the mutants of a package, in their order in the code.
func listMutants(ctx context.Context, o options, t target) ([]*mutant, error) {
	listed, err := askGremlins(ctx, o, t)
	if err != nil {
		return nil, err
	}
	var mutants []*mutant
	for _, file := range listed {
		// Gremlins goes into folders below, whose packages have tests of their own.
		name := path.Base(file.Name)
		if file.Name != name && file.Name != path.Join(t.folder, name) ||
			len(t.files) > 0 && !slices.Contains(t.files, name) {
			continue
		}
		ofFile, err := mutantsOfFile(o.root, path.Join(t.folder, name), file.Mutations)
		if err != nil {
			return nil, err
		}
		mutants = append(mutants, ofFile...)
	}
	if len(mutants) == 0 {
		return nil, fmt.Errorf("%s has nothing to mutate", t.folder)
	}
	return mutants, nil
}

// listedFile is a file of Gremlins' report.
type listedFile struct {
	Name      string     `json:"file_name"`
	Mutations []mutation `json:"mutations"`
}

type mutation struct {
	Type   string `json:"type"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
}

func askGremlins(ctx context.Context, o options, t target) ([]listedFile, error) {
	report, err := os.CreateTemp("", "mutants-*.json")
	if err != nil {
		return nil, fmt.Errorf("make a file for Gremlins' report: %w", err)
	}
	defer func() { _ = os.Remove(report.Name()) }()
	if err := report.Close(); err != nil {
		return nil, err
	}
	program, err := filepath.Abs(o.gremlins)
	if err != nil {
		return nil, err
	}
	args := []string{"unleash", "--dry-run", "--output", report.Name()}
	for kind := range replacements {
		args = append(args, "--"+strings.ReplaceAll(strings.ToLower(kind), "_", "-"))
	}
	cmd := exec.CommandContext(ctx, program, append(args, "./"+t.folder)...)
	cmd.Dir = o.root
	// Gremlins measures coverage, which needs no test to run here.
	cmd.Env = append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -run=^$")
	if said, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("let Gremlins list the mutants of %s: %w\n%s", t.folder, err, said)
	}
	content, err := os.ReadFile(report.Name())
	if err != nil {
		return nil, fmt.Errorf("read Gremlins' report: %w", err)
	}
	var parsed struct {
		Files []listedFile `json:"files"`
	}
	if err := json.Unmarshal(content, &parsed); err != nil {
		return nil, fmt.Errorf("parse Gremlins' report: %w", err)
	}
	slices.SortFunc(parsed.Files, func(a, b listedFile) int { return strings.Compare(a.Name, b.Name) })
	return parsed.Files, nil
}

// mutantsOfFile makes the mutants of a file. Two kinds that change an operator alike
// are one mutant.
func mutantsOfFile(root, name string, mutations []mutation) ([]*mutant, error) {
	source, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		return nil, fmt.Errorf("read what to mutate: %w", err)
	}
	positions := token.NewFileSet()
	parsed, err := parser.ParseFile(positions, name, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("parse what to mutate: %w", err)
	}
	slices.SortFunc(mutations, func(a, b mutation) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		if a.Column != b.Column {
			return a.Column - b.Column
		}
		return strings.Compare(a.Type, b.Type)
	})
	lines := bytes.SplitAfter(source, []byte("\n"))
	concatenations := findConcatenations(positions, parsed)
	var mutants []*mutant
	for _, change := range mutations {
		if concatenations[place{change.Line, change.Column}] {
			continue
		}
		m, err := newMutant(name, lines, change)
		if err != nil {
			return nil, err
		}
		m.function = functionAt(positions, parsed, m.line)
		if !slices.ContainsFunc(mutants, func(other *mutant) bool { return bytes.Equal(other.content, m.content) }) {
			mutants = append(mutants, m)
		}
	}
	return mutants, nil
}

// place is a position in a file.
type place struct{ line, column int }

// findConcatenations returns where the file joins strings, of which one is a literal. A
// mutant of such a + does not compile.
func findConcatenations(positions *token.FileSet, file *ast.File) map[place]bool {
	found := map[place]bool{}
	hasString := func(e ast.Expr) bool {
		for {
			switch operand := e.(type) {
			case *ast.BasicLit:
				return operand.Kind == token.STRING
			case *ast.BinaryExpr:
				p := positions.Position(operand.OpPos)
				return found[place{p.Line, p.Column}]
			case *ast.ParenExpr:
				e = operand.X
			default:
				return false
			}
		}
	}
	// visit looks at the operands of an expression before the expression.
	var visit func(ast.Node)
	visit = func(n ast.Node) {
		ast.Inspect(n, func(child ast.Node) bool {
			b, isBinary := child.(*ast.BinaryExpr)
			if !isBinary {
				return true
			}
			visit(b.X)
			visit(b.Y)
			if b.Op == token.ADD && (hasString(b.X) || hasString(b.Y)) {
				p := positions.Position(b.OpPos)
				found[place{p.Line, p.Column}] = true
			}
			return false
		})
	}
	visit(file)
	return found
}

func newMutant(name string, lines [][]byte, change mutation) (*mutant, error) {
	line := string(lines[change.Line-1])
	head, tail := line[:change.Column-1], line[change.Column-1:]
	// Of two operators that fit, such as & and &^, the longer stands there.
	operator := ""
	for candidate := range replacements[change.Type] {
		if strings.HasPrefix(tail, candidate) && len(candidate) > len(operator) {
			operator = candidate
		}
	}
	if operator == "" {
		return nil, fmt.Errorf(
			"%s:%d:%d: Gremlins lists a mutant of kind %s, and no such operator is there", name, change.Line, change.Column,
			change.Type,
		)
	}
	changed := head + replacements[change.Type][operator] + tail[len(operator):]
	content := slices.Concat(
		slices.Concat(lines[:change.Line-1]...), []byte(changed), slices.Concat(lines[change.Line:]...),
	)
	return &mutant{
		file: name, line: change.Line, column: change.Column,
		before: strings.TrimSpace(line), after: strings.TrimSpace(changed), content: content,
	}, nil
}

// functionAt returns the name of the function or method that holds a line.
func functionAt(positions *token.FileSet, file *ast.File, line int) string {
	for _, declaration := range file.Decls {
		f, ok := declaration.(*ast.FuncDecl)
		if ok && positions.Position(f.Pos()).Line <= line && line <= positions.Position(f.End()).Line {
			return f.Name.Name
		}
	}
	return ""
}

// testOriginal checks that the tests pass before anything is changed.
func testOriginal(ctx context.Context, o options, t target) error {
	if out, err := goTest(ctx, o, t, "-count=1").CombinedOutput(); err != nil {
		return fmt.Errorf("the tests of %s fail without any mutant: %w\n%s", t.folder, err, out)
	}
	return nil
}

// test runs the package's tests with the mutant instead of the original file, and then those of options.then if no
// test has failed.
func (m *mutant) test(ctx context.Context, o options, t target, folder string) error {
	place, err := os.MkdirTemp(folder, "mutant-")
	if err != nil {
		return fmt.Errorf("make a folder for a mutant: %w", err)
	}
	original, err := filepath.Abs(filepath.Join(o.root, m.file))
	if err != nil {
		return err
	}
	changed, overlay := filepath.Join(place, "mutant.go"), filepath.Join(place, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {original: changed}})
	if err != nil {
		return err
	}
	if err := errors.Join(os.WriteFile(changed, m.content, 0o600), os.WriteFile(overlay, replace, 0o600)); err != nil {
		return fmt.Errorf("write a mutant: %w", err)
	}
	timed, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	var out []byte
	for _, tested := range o.testedWith(t) {
		if out, err = goTest(timed, o, tested, "-overlay="+overlay).CombinedOutput(); err != nil {
			break
		}
	}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil && m.equivalent != nil:
		m.status = isEquivalent
	case err == nil:
		m.status = survived
	case !errors.As(err, &exit):
		return fmt.Errorf("run go test: %w", err)
	case bytes.Contains(out, []byte("[build failed]")) || bytes.Contains(out, []byte("[setup failed]")):
		m.status = doesNotBuild
	case m.equivalent != nil:
		m.status = isNot
	default:
		m.status, m.isTimedOut = noticed, timed.Err() != nil
	}
	return errors.Join(os.RemoveAll(place))
}

// goTest runs the tests of a package, without vet (which would notice mutants that no
// test does) and without symbols (which the linker takes long to write).
func goTest(ctx context.Context, o options, t target, flag string) *exec.Cmd {
	args := []string{"test", "-short", "-failfast", "-vet=off", "-ldflags=-s -w", flag}
	if t.tests != "" {
		args = append(args, "-run="+t.tests)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./"+t.folder)...)
	cmd.Dir = o.root
	// go test starts the tests' program: a mutant that does not end dies with both.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}
