package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

// A step is a part of the gate.
type step struct {
	name, title string
	always      bool // runs whatever steps were asked for
	beside      bool // runs beside the steps that follow it, up to one that runs alone
	alone       bool // runs when no other step does
	run         func(ctx context.Context, g *gate) error
}

// The names of the steps that run Go tests.
const (
	stepPure    = "pure"
	stepRace    = "race"
	stepKernel  = "kernel"
	stepModules = "modules"
	stepVM      = "vm"
	stepSmoke   = "smoke"
)

// allSteps are the steps in the order in which they begin. The virtual machine has one processor, and its tests wait
// for their own clock: it leaves room for others. Many tests of the steps modules and race wait for a clock.
var allSteps = []step{
	{name: "build", title: "programs, images and the virtual machine's tests", always: true, run: build},
	{name: stepVM, title: "the network code in a virtual machine with a kernel of Debian", beside: true, run: runVM},
	{name: "compile", title: "all other tests", always: true, run: compileTests},
	{name: stepModules, title: "the other modules", beside: true, run: runTestsBeside(stepModules, 2)},
	{name: stepPure, title: "packages that decide, without the race detector", run: runTests(stepPure, 2)},
	{name: stepRace, title: "packages whose code runs in goroutines, with the race detector", run: runTests(stepRace, 5)},
	{
		name: stepKernel, title: "packages that talk to the kernel, one at a time, with the race detector", alone: true,
		run: runTests(stepKernel, 1),
	},
	{name: stepSmoke, title: "the end-to-end specs of the gate, in the lab", alone: true, run: runSmoke},
}

// purePackages decide, and start no goroutine.
var purePackages = []string{
	"cmd/kubectl-purelb", "cmd/kubectl-purelb/plugin", "config/policy", "controllers/agents", "controllers/allocation",
	"controllers/announced", "controllers/placement", "controllers/routing", "docs", "internal/textlimit",
	"internal/writeerror",
	"nodeagent/plan", "nodeagent/reach", "nodeagent/speaker/bfd", "nodeagent/speaker/routes", "nodeagent/watch",
	"test/measure", "test/sim",
}

// historyTest plays random histories. In a package of the step race it plays a tenth of them there,
// so the step pure plays all of those of historyPackages.
const historyTest = "TestHistories"

var historyPackages = []string{"nodeagent"}

// kernelPackages make network namespaces and measure what the kernel sends.
var kernelPackages = []string{"nodeagent/link", "nodeagent/neigh"}

// otherModules are the modules beside the main one whose tests need no lab.
var otherModules = []string{
	"test/scale", "test/gitops", "test/lab", "test/conformance", "test/bench", "test/soak", "tools", "tools/scan",
	"tools/bundle",
}

const (
	e2eModule = "test/e2e"
	// smokeLabel selects the specs of the gate.
	smokeLabel = "smoke"
	// labLogs is where the lab keeps the logs of what it runs.
	labLogs = "/var/lib/purelb-lab/logs"
	// suiteTimeout is when Ginkgo ends the suite, with a report and cleanup, and againTimeout the
	// same for one spec that runs once more. processGrace later Go's own limit ends the process.
	suiteTimeout, againTimeout, processGrace = 30 * time.Minute, 10 * time.Minute, 10 * time.Minute
)

// vmTests are the packages that run in the virtual machine, with the tests that do.
var vmTests = []struct{ pkg, binary, tests string }{
	{"./nodeagent", "nodeagent.test", "^TestWire(Quiet|Defend)|^TestLink"},
	{"./nodeagent/link", "link.test", ""},
	{"./nodeagent/neigh", "neigh.test", ""},
}

func stepNames() []string {
	var names []string
	for _, s := range allSteps {
		if !s.always {
			names = append(names, s.name)
		}
	}
	return names
}

// wants reports whether a step is to run.
func (o options) wants(step string) bool { return len(o.only) == 0 || slices.Contains(o.only, step) }

// runTests runs the tests of a step, so many packages at a time, and those that are to run once more alone.
func runTests(name string, atOnce int) func(context.Context, *gate) error {
	return func(ctx context.Context, g *gate) error { return g.runBinaries(ctx, name, atOnce, g.beside.Wait) }
}

// runTestsBeside does so for a step that runs beside others, which would wait for itself: what runs once more runs
// beside others, too.
func runTestsBeside(name string, atOnce int) func(context.Context, *gate) error {
	return func(ctx context.Context, g *gate) error { return g.runBinaries(ctx, name, atOnce, func() {}) }
}

// stepOf returns the step that runs a package's tests, and whether with the race detector.
func stepOf(module, pkg string) (step string, race bool) {
	switch {
	case module == e2eModule:
		return stepSmoke, false
	case module != ".":
		return stepModules, false
	case slices.Contains(purePackages, pkg):
		return stepPure, false
	case slices.Contains(kernelPackages, pkg):
		return stepKernel, true
	}
	return stepRace, true
}

// binariesOf returns what is compiled of a package: a binary for each step that runs tests of it.
func binariesOf(module, pkg string) []binary {
	b := binary{module: module, pkg: pkg}
	b.step, b.race = stepOf(module, pkg)
	if module == "." && slices.Contains(historyPackages, pkg) {
		return []binary{b, {module: module, pkg: pkg, step: stepPure, test: historyTest}}
	}
	return []binary{b}
}

// build builds the programs that the steps run and the tests of the virtual machine, and sets the
// environment that tests find the programs by.
func build(ctx context.Context, g *gate) error {
	targets := []string{"build", "bin/kustomize", "bin/lab"}
	if g.wants(stepSmoke) {
		targets = append(targets, "image", "kubectl-purelb")
	}
	if err := g.command(ctx, "build/make", "make",
		append([]string{"-C", g.root, "--no-print-directory"}, targets...)...); err != nil {
		return err
	}
	assets := []string{"assets"}
	if g.kubernetes != "" {
		assets = append(assets, "--kubernetes", g.kubernetes)
	}
	if err := g.command(ctx, "build/programs", g.lab(), "programs"); err != nil {
		return err
	}
	if err := g.command(ctx, "build/assets", g.lab(), assets...); err != nil {
		return err
	}
	folder, err := os.ReadFile(filepath.Join(g.folder, "build", "assets.out"))
	if err != nil {
		return err
	}
	g.env = append(os.Environ(), "KUBEBUILDER_ASSETS="+strings.TrimSpace(string(folder)),
		"PURELB="+filepath.Join(g.root, "bin/purelb"), "KUSTOMIZE="+filepath.Join(g.root, "bin/kustomize"))
	if g.wants(stepVM) {
		return g.compileVMTests(ctx)
	}
	return nil
}

// compileTests compiles the tests of all modules whose steps run, so that none of them waits for a
// compiler. It goes on after an error.
func compileTests(ctx context.Context, g *gate) error {
	var errs []error
	for _, module := range slices.Concat([]string{"."}, otherModules, []string{e2eModule}) {
		found, err := findBinaries(ctx, g.root, module)
		errs = append(errs, err)
		byRace := map[bool][]binary{}
		for _, f := range found {
			for _, b := range binariesOf(f.module, f.pkg) {
				if g.wants(b.step) && (g.pkg == "" || filepath.Clean(g.pkg) == b.pkg || filepath.Clean(g.pkg) == b.module) {
					byRace[b.race] = append(byRace[b.race], b)
				}
			}
		}
		for _, race := range []bool{false, true} {
			for i, batch := range splitIntoBatches(byRace[race]) {
				folder := filepath.Join(g.folder, "build", strings.ReplaceAll(module, "/", "-"), fmt.Sprintf("race-%t-%d", race, i))
				errs = append(errs, compile(ctx, g.root, folder, batch))
				g.binaries = append(g.binaries, batch...)
			}
		}
	}
	return errors.Join(errs...)
}

// compileVMTests compiles static binaries for the virtual machine.
func (g *gate) compileVMTests(ctx context.Context) error {
	var errs []error
	for _, t := range vmTests {
		command := newCommand(
			ctx, "go", "test", "-c", "-tags", "stacks", "-ldflags", "-s -w", "-o", g.vmBinary(t.binary), t.pkg,
		)
		command.Dir, command.Env = g.root, append(os.Environ(), "CGO_ENABLED=0")
		if text, err := command.CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("compile tests of %s for the virtual machine: %w: %s", t.pkg, err, text))
		}
	}
	return errors.Join(errs...)
}

func (g *gate) vmBinary(name string) string { return filepath.Join(g.folder, "build", "vm", name) }

func (g *gate) lab() string { return filepath.Join(g.root, "bin", "lab") }

// runVM runs tests in the virtual machine.
func runVM(ctx context.Context, g *gate) error {
	args := []string{"vm"}
	for _, t := range vmTests {
		binary := g.vmBinary(t.binary)
		if t.tests != "" {
			binary += ":" + t.tests
		}
		args = append(args, binary)
	}
	failure := g.command(ctx, "vm/vm", g.lab(), args...)
	text, err := os.ReadFile(filepath.Join(g.folder, "vm", "vm.out"))
	if err != nil {
		return err
	}
	outcomes := parsePlain(string(text), stepVM)
	g.add(outcomes...)
	switch {
	case hasFailure(outcomes): // they say more than the error
		return nil
	case failure == nil && len(outcomes) == 0:
		return errors.New("the virtual machine has printed no test")
	}
	return failure
}

// runSmoke starts the lab, runs the gate's end-to-end specs in it, those that failed once more,
// alone, and removes the lab.
func runSmoke(ctx context.Context, g *gate) (err error) {
	i := slices.IndexFunc(g.binaries, func(b binary) bool { return b.step == stepSmoke })
	if i < 0 {
		return errors.New("the end-to-end tests were not compiled")
	}
	up := []string{"up", "--image", filepath.Join(g.root, "dist", "purelb-"+runtime.GOARCH+".tar")}
	if g.kubernetes != "" {
		up = append(up, "--kubernetes", g.kubernetes)
	}
	if err := g.command(ctx, "smoke/lab-down", g.lab(), "down"); err != nil {
		return err
	}
	if !g.keepLab {
		defer func() {
			err = errors.Join(err, g.command(context.WithoutCancel(ctx), "smoke/lab-down", g.lab(), "down"))
		}()
	}
	if err := g.command(ctx, "smoke/lab-up", g.lab(), up...); err != nil {
		return errors.Join(err, os.CopyFS(filepath.Join(g.folder, "smoke", "lab-logs"), os.DirFS(labLogs)))
	}
	first, err := g.runSpecs(ctx, g.binaries[i], g.focus, "specs", suiteTimeout)
	if err != nil {
		return errors.Join(err, os.CopyFS(filepath.Join(g.folder, "smoke", "lab-logs"), os.DirFS(labLogs)))
	}
	second := map[[2]string]bool{}
	for n, o := range first {
		if o.passed || !o.again || ctx.Err() != nil {
			continue
		}
		g.printf("once more, alone: %s, which failed: %s %s\n", o.test, o.place, firstLine(o.message))
		outcomes, err := g.runSpecs(
			ctx, g.binaries[i], "^"+regexp.QuoteMeta(o.test)+"$", fmt.Sprintf("again-%d", n), againTimeout,
		)
		second[[2]string{o.pkg, o.test}] = err == nil && len(outcomes) == 1 && outcomes[0].passed
	}
	g.add(mergeSecondRun(first, second)...)
	return nil
}

// runSpecs runs specs of the gate in the lab. focus is a regular expression of their texts, all if
// it is empty. name is that of the files for output.
func (g *gate) runSpecs(ctx context.Context, b binary, focus, name string, timeout time.Duration) ([]outcome, error) {
	report := filepath.Join(g.folder, stepSmoke, name+".json")
	args := []string{
		"-test.v", "-test.timeout=" + (timeout + processGrace).String(), "-ginkgo.v", "-ginkgo.no-color",
		"-ginkgo.label-filter=" + smokeLabel, "-ginkgo.json-report=" + report, "-ginkgo.timeout=" + timeout.String(),
		"-evidence=" + filepath.Join(g.folder, stepSmoke, name),
	}
	if focus != "" {
		args = append(args, "-ginkgo.focus="+focus)
	}
	failure := g.commandIn(ctx, filepath.Join(g.root, e2eModule), filepath.Join(stepSmoke, name), b.file, args...)
	data, err := os.ReadFile(report)
	if err != nil {
		return nil, errors.Join(failure, err)
	}
	return parseSpecs(data, stepSmoke, e2eModule)
}

// command runs a command in the project's folder. Its output goes to the file NAME.out, what it
// says on standard error to NAME.err as well.
func (g *gate) command(ctx context.Context, name, program string, args ...string) error {
	return g.commandIn(ctx, g.root, name, program, args...)
}

func (g *gate) commandIn(ctx context.Context, folder, name, program string, args ...string) (err error) {
	base := filepath.Join(g.folder, name)
	if err := os.MkdirAll(filepath.Dir(base), 0o755); err != nil {
		return err
	}
	out, err := os.OpenFile(base+".out", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	var stderr bytes.Buffer
	command := newCommand(ctx, program, args...)
	command.Dir, command.Env, command.Stdout, command.Stderr = folder, g.env, out, &stderr
	failure := command.Run()
	if err := os.WriteFile(base+".err", stderr.Bytes(), 0o644); err != nil {
		return err
	}
	if failure != nil {
		return fmt.Errorf("%s %s: %w: %s", filepath.Base(program), args[0], failure, lastLines(stderr.String(), 5))
	}
	return nil
}

// lastLines returns the last lines of a text, so many.
func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
