// Command gate runs the tests that a change must pass: make test.
//
// It compiles the tests before it runs them, so that no test waits for a compiler; only the virtual
// machine, whose tests are compiled first, begins before. The steps, which steps.go lists, run one
// after the other and each to its end, whatever failed before.
// At the end it prints one line for each step with its seconds, one line for each failure
// with file and line, and the folder in which all output lies.
//
// A failed test that needs an API server or the lab is run once more, by itself. If it passes
// then, it is printed as FLAKY, and both outputs are kept. More than two of those in a run,
// or any failure that stays, make the run red. Tests without an API server or a lab, data
// races and panics have no second run: nothing but the code can be their cause.
package main
