package main

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
)

// equivalent is an entry of the file of equivalent mutants:
//
//	controllers/agents/admit.go describeNodes
//	- if len(names) > most {
//	+ if len(names) >= most {
//	= the reason why both behave alike
//
// An empty line ends an entry; a line that begins with # is a comment. One entry
// covers every mutant of that function whose line is the same before and after.
type equivalent struct {
	number                        int // of the entry's first line
	file, function, before, after string
	reason                        string
	matched                       bool
}

func readEquivalents(name string) ([]*equivalent, error) {
	content, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read the equivalent mutants: %w", err)
	}
	return parseEquivalents(name, string(content))
}

func parseEquivalents(name, content string) ([]*equivalent, error) {
	var entries []*equivalent
	var errs []error
	var e *equivalent
	end := func() {
		if e != nil && (e.before == "" || e.after == "" || e.reason == "") {
			errs = append(
				errs,
				fmt.Errorf("%s:%d: an entry needs the line before (-), the line after (+) and the reason (=)", name, e.number),
			)
		}
		e = nil
	}
	for i, line := range strings.Split(content, "\n") {
		line = strings.TrimSpace(line)
		mark, text, _ := strings.Cut(line, " ")
		switch {
		case line == "":
			end()
		case mark == "#":
		case e == nil:
			e = &equivalent{number: i + 1, file: mark, function: text}
			entries = append(entries, e)
		case mark == "-":
			e.before = text
		case mark == "+":
			e.after = text
		case mark == "=":
			e.reason = text
		case e.reason != "":
			e.reason += " " + line
		default:
			errs = append(errs, fmt.Errorf("%s:%d: a line of an entry begins with -, + or =", name, i+1))
		}
	}
	end()
	return entries, errors.Join(errs...)
}

// markEquivalents sets the entry of each mutant that has one, and returns the package's
// entries that match no mutant.
func markEquivalents(mutants []*mutant, entries []*equivalent, folder string) (stale []*equivalent) {
	for _, e := range entries {
		if path.Dir(e.file) != folder {
			continue
		}
		for _, m := range mutants {
			if m.file == e.file && m.function == e.function && m.before == e.before && m.after == e.after {
				m.equivalent, e.matched = e, true
			}
		}
		if !e.matched {
			stale = append(stale, e)
		}
	}
	return stale
}
