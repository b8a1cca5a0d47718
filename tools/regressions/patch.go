package main

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// steps are those of the gate.
var steps = []string{"pure", "race", "kernel", "modules", smoke}

// smoke is the step of the gate that runs in the lab. Its tests are specs, and it has one
// package of this name.
const smoke = "smoke"

// regression is a patch that breaks the product. Its file begins with a header, in which empty
// lines do not matter:
//
//	What a user would suffer, in one or more lines.
//
//	Step: race
//	Package: ./nodeagent
//	Test: TestAnnounce
type regression struct {
	name    string // of the file, without its ending
	file    string
	suffers string // what a user would suffer
	step    string // of the gate
	pkg     string // the folder of the package, as ./nodeagent or test/gitops; or smoke
	test    string // the function or, in step smoke, the full text of the spec
	// paths are the files that the patch changes.
	paths []string
}

var (
	// testName is what a test is called in Go. Subtests are not named: the gate reports them
	// under their test.
	testName = regexp.MustCompile(`^(Test|Fuzz)\w+$`)
	// changedPath finds the files that a diff changes, makes or removes.
	changedPath = regexp.MustCompile(`(?m)^(?:---|\+\+\+) [ab]/(\S+)`)
)

// parseRegression reads a patch with its header.
func parseRegression(name, content string) (regression, error) {
	r := regression{name: name}
	header, diff := content, ""
	if i := regexp.MustCompile(`(?m)^(diff --git|---) `).FindStringIndex(content); i != nil {
		header, diff = content[:i[0]], content[i[0]:]
	}
	var suffers []string
	var errs []error
	for line := range strings.Lines(header) {
		line = strings.TrimSpace(line)
		key, value, _ := strings.Cut(line, ":")
		field := map[string]*string{"Step": &r.step, "Package": &r.pkg, "Test": &r.test}[key]
		switch {
		case line == "":
		case field == nil:
			suffers = append(suffers, line)
		case *field != "":
			errs = append(errs, fmt.Errorf("has two lines %s", key))
		default:
			*field = strings.TrimSpace(value)
		}
	}
	r.suffers = strings.Join(suffers, " ")
	for _, match := range changedPath.FindAllStringSubmatch(diff, -1) {
		if !slices.Contains(r.paths, match[1]) {
			r.paths = append(r.paths, match[1])
		}
	}
	errs = append(errs, r.validate()...)
	for i, err := range errs {
		errs[i] = fmt.Errorf("test/regressions/%s.patch %w", name, err)
	}
	return r, errors.Join(errs...)
}

// validate returns what is wrong with a regression.
func (r *regression) validate() (errs []error) {
	if r.suffers == "" {
		errs = append(errs, errors.New("does not say what a user would suffer"))
	}
	if !slices.Contains(steps, r.step) {
		errs = append(errs, fmt.Errorf("needs a line Step: with one of %s", strings.Join(steps, ", ")))
	}
	if r.pkg == "" || (r.pkg == smoke) != (r.step == smoke) {
		errs = append(errs, errors.New("needs a line Package: with the folder of a package or, for Step: smoke, with smoke"))
	}
	if r.test == "" || r.step != smoke && !testName.MatchString(r.test) {
		errs = append(
			errs, errors.New("needs a line Test: with the name of a test or, for Step: smoke, with the text of a spec"),
		)
	}
	if len(r.paths) == 0 {
		errs = append(errs, errors.New("has no diff"))
	}
	for _, p := range r.paths {
		if strings.HasSuffix(p, "_test.go") || strings.HasPrefix(p, "test/") {
			errs = append(errs, fmt.Errorf("changes %s, which is no part of the product", p))
		}
	}
	return errs
}

// selection is the tests that one run of the gate is restricted to.
type selection struct {
	step, pkg string
	tests     []string
}

// String describes the selection.
func (s selection) String() string { return s.step + " " + s.pkg + " " + strings.Join(s.tests, ", ") }

// fileName is the selection's package as part of the name of a file.
func (s selection) fileName() string {
	return strings.Trim(s.step+"-"+strings.ReplaceAll(path.Clean(s.pkg), "/", "-"), "-")
}

// selection is the one test of the regression.
func (r *regression) selection() selection {
	return selection{r.step, r.pkg, []string{r.test}}
}

// selectionsOf returns the tests of all regressions, with one selection for each package of a
// step, in the order in which the regressions name them.
func selectionsOf(regressions []regression) []selection {
	var selections []selection
	for _, r := range regressions {
		i := slices.IndexFunc(selections, func(s selection) bool { return s.step == r.step && s.pkg == r.pkg })
		switch {
		case i < 0:
			selections = append(selections, r.selection())
		case !slices.Contains(selections[i].tests, r.test):
			selections[i].tests = append(selections[i].tests, r.test)
		}
	}
	return selections
}
