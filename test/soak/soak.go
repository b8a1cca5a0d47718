package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/features"
	"github.com/purelb/purelb-operator/test/echo"
	"github.com/purelb/purelb-operator/test/lab"
	"github.com/purelb/purelb-operator/test/proof/trial"
	"github.com/purelb/purelb-operator/test/soak/check"
	"github.com/purelb/purelb-operator/test/soak/model"
)

const (
	systemNamespace = "purelb-system"
	soakNamespace   = "soak"
	// aftermath is how long after the end of a fault its effects may last.
	aftermath = 30 * time.Second
	// restLimit is how long the cluster may take to come to rest: a Node that was cut off
	// is NotReady, its pods are evicted, and containers that were killed often wait.
	restLimit = 4 * time.Minute
	// calmTime is how long the cluster is watched at rest.
	calmTime = 5 * time.Second
)

// images of PureLB between which upgrades alternate: the same program by two names.
var images = []string{"purelb.io/purelb:dev", "purelb.io/purelb:next"}

// soak is a run.
type soak struct {
	options
	lab       *lab.Lab
	client    client.Client
	clientset *kubernetes.Clientset
	world     *model.World
	begun     time.Time
	log       io.Writer
	// mayWatch says that the feature gate WireFailover of the managers is on.
	mayWatch bool

	background sync.WaitGroup // faults that will be ended, drains and rollouts
	endFaults  chan struct{}  // closed when faults are to be ended early

	mutex sync.Mutex // guards what follows, of which watch and errors are judges
	watch *check.Watch
	logs  check.Errors
	// faults are those of nodes and of the control plane, by name; the value is when they
	// ended, or zero.
	faults map[string]faultTime
	// deaf are the nodes whose agents did not run, and when that was seen last.
	deaf map[string]time.Time
	// watched says that nothing has kept successors from claiming addresses since the last rest, and hasCut that a
	// node was cut off the link since.
	watched, hasCut bool
	// late is when the machine was too busy to run a process in time, and by how much.
	late []lateness
	// refusing are the nodes that may take no address.
	refusing map[string]bool
	// local and virtual are the addresses that Services have; the value of virtual is on
	// which nodes the address must be.
	local, owned map[string][]string
	virtual      map[string][]string
	uids         map[string]string // of Services, by name
	// calmSince is since when the cluster is at rest; zero while it is disturbed.
	calmSince time.Time
	largest   map[string]float64 // what programs had of something at rest
	upgraded  int
	refused   map[string]int // edits that admission refused, by kind
	done      map[model.Kind]int
	rounds    int
	slowest   time.Duration // until the cluster was at rest
}

type faultTime struct {
	kind  model.Kind
	node  string
	ended time.Time
}

// run makes a whole soak.
func run(ctx context.Context, o options) (err error) {
	s := &soak{options: o, world: model.New(o.seed), begun: time.Now(), faults: map[string]faultTime{},
		deaf: map[string]time.Time{}, refusing: map[string]bool{},
		uids: map[string]string{}, local: map[string][]string{}, owned: map[string][]string{}, virtual: map[string][]string{},
		refused: map[string]int{}, done: map[model.Kind]int{}, largest: map[string]float64{}}
	gates, err := features.New()
	if err == nil {
		err = gates.Set(o.gates)
	}
	if err != nil {
		return err
	}
	s.mayWatch = gates.Enabled(features.WireFailover)
	if err := os.RemoveAll(o.out); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(o.out, "logs"), 0o755); err != nil {
		return err
	}
	file, err := os.Create(filepath.Join(o.out, "actions.log"))
	if err != nil {
		return err
	}
	defer file.Close()
	s.log = io.MultiWriter(os.Stdout, file)
	s.say("seed %d, for %s; repeat with: make soak SEED=%d DURATION=%s", o.seed, o.duration, o.seed, o.duration)
	if err := s.open(ctx); err != nil {
		return err
	}
	if err := s.install(ctx); err != nil {
		return err
	}
	observers, stop := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer func() { stop(); watching.Wait() }()
	for _, observe := range []func(context.Context) error{
		s.askIPv4, s.askIPv6, s.watchKernels, s.watchAgents, s.watchClock, s.watchServices, s.followLogs,
	} {
		watching.Go(func() {
			if err := observe(observers); err != nil && observers.Err() == nil {
				s.say("OBSERVER FAILED: %s", err)
				s.mutex.Lock()
				s.logs.Line(time.Now(), "soak", "panic: an observer failed: "+err.Error(), false)
				s.mutex.Unlock()
			}
		})
	}
	err = s.rest(ctx)
	for err == nil && time.Since(s.begun) < o.duration && ctx.Err() == nil {
		err = s.round(ctx)
	}
	s.endFaultsNow()
	s.say("%s", s.summary())
	if o.results != "" {
		result := trial.Result{Experiments: []trial.Experiment{s.experiment(errors.Join(err, ctx.Err()))}}
		err = errors.Join(err, result.Save(o.results))
	}
	if err != nil {
		err = errors.Join(err, s.collect(context.WithoutCancel(ctx)))
		s.say("FAILED in round %d: %s", s.rounds, err)
		s.say("repeat with: make soak SEED=%d DURATION=%s; state and logs are in %s", o.seed, o.duration, o.out)
		return err
	}
	return ctx.Err()
}

// round disturbs the cluster, lets it come to rest and checks it.
func (s *soak) round(ctx context.Context) error {
	s.rounds++
	s.say("round %d", s.rounds)
	s.mutex.Lock()
	s.calmSince = time.Time{}
	s.mutex.Unlock()
	s.endFaults = make(chan struct{})
	for range s.actions {
		a := s.world.Next()
		s.done[a.Kind]++
		s.say("  %s", a)
		s.noteWatchers(a.Kind)
		begun := time.Now()
		if err := s.apply(ctx, a); err != nil {
			return fmt.Errorf("%s: %w", a, err)
		}
		if err := sleep(ctx, a.Pause-time.Since(begun)); err != nil {
			return err
		}
		if err := s.violation(); err != nil && !s.carryOn {
			return err
		}
	}
	s.endFaultsNow()
	s.world.Rest()
	return s.rest(ctx)
}

// noteWatchers notes whether successors can go on to claim addresses. The addresses of the first node that is cut off
// are claimed; then others are named, which may take as long as the API server is away.
func (s *soak) noteWatchers(kind model.Kind) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.watched = s.watched && (kind.LeavesWatchers() || kind.CutsNodeOff() && !s.hasCut)
	s.hasCut = s.hasCut || kind.CutsNodeOff()
}

// endFaultsNow ends all faults and waits for whatever runs beside.
func (s *soak) endFaultsNow() {
	if s.endFaults != nil {
		close(s.endFaults)
		s.endFaults = nil
	}
	s.background.Wait()
}

// violation returns what the watchers have found.
func (s *soak) violation() error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	found := append(slices.Clone(s.watch.Violations()), s.logs.Violations()...)
	if len(found) == 0 {
		return nil
	}
	return fmt.Errorf("violations:\n%s", strings.Join(found, "\n"))
}

func (s *soak) summary() string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	var b strings.Builder
	n := 0
	for _, count := range s.done {
		n += count
	}
	fmt.Fprintf(
		&b, "%d rounds, %d actions in %s; slowest rest %s\n", s.rounds, n, time.Since(s.begun).Round(time.Second),
		s.slowest.Round(100*time.Millisecond),
	)
	fmt.Fprintf(&b, "longest: %s\n", s.watch.Summary())
	fmt.Fprintf(&b, "largest at rest: %v\n", s.largest)
	fmt.Fprintf(&b, "actions: %v\nrefused by admission: %v\nerror lines:\n", s.done, s.refused)
	for _, message := range slices.Sorted(maps.Keys(s.logs.Counts)) {
		fmt.Fprintf(&b, "  %4d %s\n", s.logs.Counts[message], message)
	}
	return b.String()
}

// open attaches to the lab.
func (s *soak) open(ctx context.Context) error {
	var err error
	ctrllog.SetLogger(logr.Discard()) // clients give warnings of admission to it
	if s.lab, err = lab.Open(lab.DefaultStateDir); err != nil {
		return fmt.Errorf("%w: run make soak, or make lab-up first", err)
	}
	if err := s.lab.Check(ctx); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", s.lab.Kubeconfig())
	if err != nil {
		return err
	}
	config.QPS = -1 // no limit but the API server's
	config.Timeout = 10 * time.Second
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1.AddToScheme(scheme)); err != nil {
		return err
	}
	if s.client, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	config.Timeout = 0 // of watches
	if s.clientset, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	macs := map[string]string{}
	for _, n := range s.lab.Nodes() {
		if macs[n.MAC], err = n.Name, nil; err != nil {
			return err
		}
	}
	s.watch = check.NewWatch(macs)
	return nil
}

// reset removes what an earlier soak has left in the lab.
func (s *soak) reset(ctx context.Context) error {
	for _, args := range [][]string{
		{"delete", "services", "--all", "-n", soakNamespace},
		{"delete", "lbnodeagent", "second", "-n", systemNamespace, "--ignore-not-found"},
		{
			"delete", "servicegroups", "-n", systemNamespace, "--ignore-not-found", model.GroupNames[0], model.GroupNames[1],
			model.GroupNames[2], model.GroupNames[3],
		},
		{"label", "nodes", "--all", corev1.LabelNodeExcludeBalancers + "-", "soak/second-"},
		{"uncordon", model.Nodes[0], model.Nodes[1], model.Nodes[2]},
		{"scale", "deployment/echo", "-n", soakNamespace, "--replicas=3"},
	} {
		if err := s.kubectl(ctx, args...); err != nil {
			return err
		}
	}
	// kubectl fails where there is no such taint.
	_ = s.kubectl(ctx, "taint", "nodes", "--all", corev1.TaintNodeOutOfService+"-")
	return nil
}

// install installs PureLB, the ServiceGroups and the servers behind the Services.
func (s *soak) install(ctx context.Context) error {
	for _, n := range model.Nodes {
		if _, err := s.lab.NodeExec(ctx, n, "ctr", "images", "tag", "--force", images[0], images[1]); err != nil {
			return err
		}
	}
	if err := s.lab.StartRouting(ctx); err != nil {
		return err
	}
	if err := s.kubectl(ctx, "apply", "-k", filepath.Join(s.root, "config/default")); err != nil {
		return err
	}
	if s.gates != "" {
		const add = `[{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--feature-gates=%s"}]`
		patch := fmt.Sprintf(add, s.gates)
		if err := s.kubectl(
			ctx, "-n", systemNamespace, "patch", "deployment/purelb-manager", "--type=json", "-p", patch,
		); err != nil {
			return err
		}
	}
	for _, args := range [][]string{
		{"-n", systemNamespace, "rollout", "status", "deployment/purelb-manager", "--timeout=180s"},
		{"apply", "-k", filepath.Join(s.root, "config/samples")},
		{"apply", "-k", filepath.Join(s.root, "config/samples/pool")},
		{"-n", systemNamespace, "wait", "lbnodeagent/default", "--for=condition=Ready", "--timeout=180s"},
	} {
		if err := s.kubectl(ctx, args...); err != nil {
			return err
		}
	}
	err := s.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: soakNamespace}})
	if apierrors.IsAlreadyExists(err) {
		err = s.reset(ctx)
	}
	if err != nil {
		return err
	}
	for _, name := range model.GroupNames {
		if err := s.applyGroup(ctx, s.world.Groups[name]); err != nil {
			return err
		}
	}
	if err := client.IgnoreAlreadyExists(s.client.Create(ctx, echo.Deployment(soakNamespace, lab.EchoImage))); err != nil {
		return err
	}
	return s.kubectl(ctx, "-n", soakNamespace, "rollout", "status", "deployment/echo", "--timeout=180s")
}

// say writes a line to the log of actions.
func (s *soak) say(format string, args ...any) {
	fmt.Fprintf(s.log, "%s %s\n", time.Now().UTC().Format("15:04:05.000"), fmt.Sprintf(format, args...))
}

// kubectl runs kubectl.
func (s *soak) kubectl(ctx context.Context, args ...string) error {
	_, err := s.kubectlOutput(ctx, args...)
	return err
}

func (s *soak) kubectlOutput(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, s.lab.Kubectl(),
		append([]string{"--kubeconfig", s.lab.Kubeconfig(), "--request-timeout=60s"}, args...)...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

// sleep waits, and not if d is negative.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
