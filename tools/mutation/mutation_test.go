package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const source = `package p

func f(a, b int, s string) bool {
	switch {
	case a <= b && s != "":
		return true
	}
	return a&^b == -1 || s+"x"+s == "y" || a+b == 0
}
`

func mutantsOf(t *testing.T, mutations ...mutation) []*mutant {
	t.Helper()
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "p.go"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	mutants, err := mutantsOfFile(root, "p.go", mutations)
	if err != nil {
		t.Fatal(err)
	}
	return mutants
}

func TestMutants(t *testing.T) {
	got := mutantsOf(t,
		mutation{"INVERT_BITWISE", 8, 10}, mutation{"INVERT_LOGICAL", 5, 14},
		mutation{"CONDITIONALS_NEGATION", 5, 9}, mutation{"CONDITIONALS_BOUNDARY", 5, 9},
		// Both make a + of this -.
		mutation{"ARITHMETIC_BASE", 8, 17}, mutation{"INVERT_NEGATIVES", 8, 17},
		// Strings cannot be subtracted.
		mutation{"ARITHMETIC_BASE", 8, 24}, mutation{"ARITHMETIC_BASE", 8, 28}, mutation{"ARITHMETIC_BASE", 8, 42},
	)
	want := []string{
		`case a < b && s != "":`, `case a > b && s != "":`, `case a <= b || s != "":`,
		`return a&b == -1 || s+"x"+s == "y" || a+b == 0`, `return a&^b == +1 || s+"x"+s == "y" || a+b == 0`,
		`return a&^b == -1 || s+"x"+s == "y" || a-b == 0`,
	}
	if len(got) != len(want) {
		t.Fatalf("%d mutants, want %d", len(got), len(want))
	}
	for i, m := range got {
		if m.after != want[i] || m.function != "f" || !strings.Contains(string(m.content), m.after) {
			t.Errorf("mutant %d of %s is %q, want %q", i, m.function, m.after, want[i])
		}
	}
}

func TestSample(t *testing.T) {
	mutants := make([]*mutant, 100)
	for i := range mutants {
		mutants[i] = &mutant{line: i}
	}
	first := sample(mutants, 10, 1)
	again, other := sample(mutants, 10, 1), sample(mutants, 10, 2)
	differs := false
	for i := range first {
		if first[i] != again[i] {
			t.Error("the same seed chooses others")
		}
		if i > 0 && first[i].line <= first[i-1].line {
			t.Error("not in the code's order, or twice the same")
		}
		differs = differs || first[i] != other[i]
	}
	if !differs {
		t.Error("another seed chooses the same")
	}
	if len(sample(mutants, 0, 1)) != 100 || len(sample(mutants, 200, 1)) != 100 {
		t.Error("not all")
	}
}

func TestEquivalents(t *testing.T) {
	const entries = `# a comment
p.go f
- return a&^b == -1 || s+"x"+s == "y" || a+b == 0
+ return a&b == -1 || s+"x"+s == "y" || a+b == 0
= for a reason that
  goes on

p.go f
- return gone
+ return gone now
= the code has changed

other/p.go f
- x
+ y
= of another package
`
	list, err := parseEquivalents("list", entries)
	if err != nil || len(list) != 3 || list[0].reason != "for a reason that goes on" {
		t.Fatalf("%d entries, %v: %v", len(list), list, err)
	}
	mutants := mutantsOf(t, mutation{"INVERT_BITWISE", 8, 10}, mutation{"INVERT_LOGICAL", 5, 14})
	stale := markEquivalents(mutants, list, ".")
	if len(stale) != 1 || stale[0] != list[1] {
		t.Errorf("entries that match nothing: %v", stale)
	}
	if mutants[0].equivalent != nil || mutants[1].equivalent != list[0] {
		t.Error("the wrong mutant is equivalent")
	}
	for _, bad := range []string{"p.go f\n- a\n+ b\n", "p.go f\n- a\n= c\n", "p.go f\na\n"} {
		if _, err := parseEquivalents("list", bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestVerdict(t *testing.T) {
	mutants := func(statuses ...status) []*mutant {
		var all []*mutant
		for _, s := range statuses {
			all = append(all, &mutant{status: s})
		}
		return all
	}
	for _, row := range []struct {
		name    string
		mutants []*mutant
		stale   []*equivalent
		passes  bool
	}{
		{"all noticed", mutants(noticed, noticed), nil, true},
		{"what is equivalent or does not compile does not count", mutants(noticed, isEquivalent, doesNotBuild), nil, true},
		{"half survived", mutants(noticed, survived), nil, false},
		{"an entry that matches nothing", mutants(noticed), []*equivalent{{}}, false},
		{"an entry that a test notices", mutants(noticed, isNot), nil, false},
	} {
		var total tally
		total.add(count(row.mutants, row.stale))
		if err := total.verdict(95); (err == nil) != row.passes {
			t.Errorf("%s: %v", row.name, err)
		}
	}
}

// TestTimedOut names the mutants that only the time limit has ended: on a slow machine it may have ended
// others than those that loop.
func TestTimedOut(t *testing.T) {
	loops := &mutant{file: "p.go", line: 3, column: 7, function: "f", after: "for {", status: noticed, isTimedOut: true}
	found := count([]*mutant{{status: noticed}, loops}, nil)
	var out strings.Builder
	found.print(&out, "p")
	const want = "noticed, as tests do not end in time: p.go:3:7 f\n  + for {\np: 100.0 % noticed (2 of 2; besides, 0 " +
		"equivalent, 0 that do not compile)\n"
	if out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

func TestParseTarget(t *testing.T) {
	for arg, want := range map[string]target{
		"a/b":                {folder: "a/b"},
		"./a/b/":             {folder: "a/b"},
		"a:b.go,c.go":        {folder: "a", files: []string{"b.go", "c.go"}},
		"a:b.go:TestX,TestY": {folder: "a", files: []string{"b.go"}, tests: "^(TestX|TestY)$"},
	} {
		if got := parseTarget(arg); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", arg, got, want)
		}
	}
}

// What survives a package's own tests is tried against those of -then.
func TestThen(t *testing.T) {
	own := target{folder: "a"}
	for args, want := range map[string][]target{
		"a":                       {own},
		"-then test/sim a":        {own, {folder: "test/sim"}},
		"-then test/sim::TestX a": {own, {folder: "test/sim", tests: "^(TestX)$"}},
		"-sample 1 -then ./b/ a":  {own, {folder: "b"}},
		"-then= -sample all ./a/": {own},
	} {
		o, targets, err := parseFlags(strings.Fields(args))
		if err != nil || len(targets) != 1 {
			t.Fatalf("%s: %v, %v", args, targets, err)
		}
		if got := o.testedWith(targets[0]); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", args, got, want)
		}
	}
}
