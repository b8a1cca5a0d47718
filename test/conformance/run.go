package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/purelb/purelb-operator/test/lab"
)

// A runner runs specs in a lab.
type runner struct {
	lab                   *lab.Lab
	root, program, output string
	parallel              int
	withSlow, withProbe   bool
	say                   func(string)
}

//go:embed cluster.yaml
var clusterManifest string

const (
	purelbNamespace = "purelb-system"
	// cleanUpTime is how long a test may take to clean up after its time is over.
	cleanUpTime = 3 * time.Minute
)

// install installs PureLB as its README says, and what the tests need.
func (r *runner) install(ctx context.Context, withRouting bool) error {
	r.say("installing PureLB, a ServiceGroup for each variant, and admission policies that choose it")
	for _, step := range []struct {
		stdin string
		args  []string
	}{
		{"", []string{"apply", "-k", filepath.Join(r.root, "config/default")}},
		{"", []string{"-n", purelbNamespace, "rollout", "status", "deployment/purelb-manager", "--timeout=180s"}},
		{clusterManifest, []string{"apply", "-f", "-"}},
		{
			"",
			[]string{
				"-n", purelbNamespace, "wait", "lbnodeagent/default", "servicegroup/local", "servicegroup/allow-local",
				"servicegroup/virtual", "--for=condition=Ready", "--timeout=180s",
			},
		},
	} {
		if _, err := r.kubectl(ctx, step.stdin, step.args...); err != nil {
			return fmt.Errorf("install PureLB: %w", err)
		}
	}
	if withRouting {
		r.say("starting bird on the nodes and on the router")
		return r.lab.StartRouting(ctx)
	}
	return nil
}

func (r *runner) kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	command := exec.CommandContext(ctx, r.lab.Kubectl(),
		append([]string{"--kubeconfig=" + r.lab.Kubeconfig()}, args...)...)
	command.Stdin = strings.NewReader(stdin)
	text, err := command.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(text)))
	}
	return string(text), nil
}

// checkTable fails if Kubernetes has tests of load balancers that the table of specs does
// not have.
func (r *runner) checkTable(ctx context.Context) error {
	dir := filepath.Join(r.output, "list")
	if err := r.execute(ctx, "client", dir, "-ginkgo.dry-run",
		"-ginkgo.label-filter=Feature: containsAny LoadBalancer"); err != nil {
		return fmt.Errorf("list the tests: %w", err)
	}
	text, err := os.ReadFile(filepath.Join(dir, reportFile))
	if err != nil {
		return fmt.Errorf("list the tests: %w", err)
	}
	cases, err := parseCases(text)
	if err != nil {
		return fmt.Errorf("list the tests: %w", err)
	}
	var names []string
	for _, c := range cases {
		names = append(names, c.Name)
	}
	if len(names) == 0 {
		return errors.New("list the tests: the program has none")
	}
	if unlisted := unlistedSpecs(names); len(unlisted) > 0 {
		return fmt.Errorf("the table of specs lacks %q", unlisted)
	}
	r.say(fmt.Sprintf("the table has all %d tests of load balancers that Kubernetes has", len(names)))
	return nil
}

// runJobs runs all jobs. Those that need a router that spreads by address run first, because a
// router that begins to spread otherwise moves connections.
func (r *runner) runJobs(ctx context.Context, jobs []job) ([]result, error) {
	var results []result
	for _, byAddress := range []bool{true, false} {
		var now []job
		for _, j := range jobs {
			switch {
			case j.exception.byAddress != byAddress:
			case j.exception.isSlow && !r.withSlow:
				results = append(results, result{job: j, verdict: leftOut})
			default:
				now = append(now, j)
			}
		}
		if len(now) == 0 {
			continue
		}
		policy, how := "1", "address and port"
		if byAddress {
			policy, how = "0", "address"
		}
		r.say(fmt.Sprintf("%d specs, %d at once; the router spreads connections by %s", len(now), r.parallel, how))
		for _, family := range []string{"ipv4", "ipv6"} {
			if _, err := r.lab.Exec(ctx, lab.Router, "sysctl", "-qw",
				"net."+family+".fib_multipath_hash_policy="+policy); err != nil {
				return nil, err
			}
		}
		results = append(results, r.runAtOnce(ctx, now)...)
	}
	return results, nil
}

// runAtOnce runs jobs, some at once.
func (r *runner) runAtOnce(ctx context.Context, jobs []job) []result {
	results := make([]result, len(jobs))
	next := make(chan int)
	var group sync.WaitGroup
	for range r.parallel {
		group.Go(func() {
			for i := range next {
				results[i] = r.runJob(ctx, jobs[i])
				r.say(fmt.Sprintf("%s, %s: %s", jobs[i].column(), jobs[i].spec.name, results[i].cell()))
			}
		})
	}
	for i := range jobs {
		next <- i
	}
	close(next)
	group.Wait()
	return results
}

// reportFile is how the tests' framework calls its report.
const reportFile = "junit_01.xml"

var notInFileNames = regexp.MustCompile(`[^a-z0-9]+`)

// runJob runs one job. Its log and its report are in a folder of its own.
func (r *runner) runJob(ctx context.Context, j job) result {
	if ctx.Err() != nil {
		return result{job: j, verdict: notRun, message: ctx.Err().Error()}
	}
	dir := filepath.Join(
		r.output, j.variant.name+"-"+j.family,
		strings.Trim(notInFileNames.ReplaceAllString(strings.ToLower(j.spec.name), "-"), "-"),
	)
	ctx, cancel := context.WithTimeout(ctx, j.limit()+cleanUpTime)
	defer cancel()
	err := r.execute(ctx, j.client(), dir,
		"-ginkgo.v", "-ginkgo.focus="+regexp.QuoteMeta(j.spec.text), "-ginkgo.timeout="+j.limit().String(),
		"--namespace-label=conformance-variant="+j.variant.name,
		"--namespace-label=conformance-family="+j.family,
		fmt.Sprintf("--namespace-label=conformance-probe=%t", r.withProbe && j.spec.limit == rollingLimit))
	text, readErr := os.ReadFile(filepath.Join(dir, reportFile))
	if readErr != nil {
		return result{job: j, verdict: notRun, message: errors.Join(err, readErr).Error()}
	}
	report, parseErr := parseReport(text)
	if parseErr != nil {
		return result{job: j, verdict: notRun, message: errors.Join(err, parseErr).Error()}
	}
	log, readErr := os.ReadFile(filepath.Join(dir, logFile))
	if readErr != nil {
		return result{job: j, verdict: notRun, message: readErr.Error()}
	}
	return judge(j, report, string(log))
}

const logFile = "log.txt"

// execute runs the program of the tests in a host of the lab, with its log and its reports in
// dir. It fails also if a test fails.
func (r *runner) execute(ctx context.Context, host, dir string, args ...string) error {
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("empty the folder of reports: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the folder of reports: %w", err)
	}
	log, err := os.Create(filepath.Join(dir, logFile))
	if err != nil {
		return fmt.Errorf("write the log: %w", err)
	}
	defer log.Close()
	argv := lab.ExecArgv(host, append([]string{r.program,
		"--kubeconfig=" + r.lab.HostKubeconfig(), "--provider=skeleton", "--kubectl-path=" + r.lab.Kubectl(),
		"--report-dir=" + dir, "-ginkgo.no-color"}, args...)...)
	command := exec.CommandContext(ctx, argv[0], argv[1:]...)
	command.Dir, command.Stdout, command.Stderr = dir, log, log
	// The first signal lets the test clean up.
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGINT) }
	command.WaitDelay = cleanUpTime
	if err := command.Run(); err != nil {
		return fmt.Errorf("%w: see %s", err, log.Name())
	}
	return nil
}

// checkRest fails if the tests have left something in PureLB: an address in use, an
// announcement, or a program that has restarted.
func (r *runner) checkRest(ctx context.Context) error {
	const limit = 3 * time.Minute // namespaces end some time after their tests
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := r.findRest(ctx)
		if err == nil {
			r.say("afterwards no address is in use or announced, and no program of PureLB has failed")
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the tests have left something: %w", err)
		case <-time.After(time.Second):
		}
	}
}

// explainRestart says what is wrong with a pod of which a program has restarted. A manager
// that does not renew its Lease in time ends itself: on a machine that is busy with many
// tests at once that is no defect.
func (r *runner) explainRestart(ctx context.Context, pod restObject) string {
	log, err := r.kubectl(ctx, "", "-n", purelbNamespace, "logs", pod.Metadata.Name, "--previous", "--tail=1")
	if err == nil && strings.Contains(log, "leader election lost") {
		r.say(pod.Metadata.Name + " has restarted: it had not renewed its Lease in time")
		return ""
	}
	return fmt.Sprintf("has restarted %d times, last: %s", pod.restarts(), strings.TrimSpace(log))
}

func (r *runner) findRest(ctx context.Context) error {
	text, err := r.kubectl(
		ctx, "", "-n", purelbNamespace, "get", "servicegroups,announcements,commonannouncements,pods", "-o", "json",
	)
	if err != nil {
		return err
	}
	var list struct {
		Items []restObject
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return fmt.Errorf("parse what is left: %w", err)
	}
	var errs []error
	for _, item := range list.Items {
		problem := item.problem()
		if problem == "" && item.restarts() > 0 {
			problem = r.explainRestart(ctx, item)
		}
		if problem != "" {
			errs = append(errs, fmt.Errorf("%s %s %s", item.Kind, item.Metadata.Name, problem))
		}
	}
	return errors.Join(errs...)
}
