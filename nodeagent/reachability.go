package nodeagent

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/order"
	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/internal/tasks"
	"github.com/purelb/purelb-operator/nodeagent/neigh"
	"github.com/purelb/purelb-operator/nodeagent/reach"
)

// reachability asks links for Local addresses of other nodes, as the Announcements with asking ask.
// When to ask, and what the answers mean, package reach decides; what that remembers is lost with
// the process, and found out again.
type reachability struct {
	nodeName   string
	neighbours Stations
	defender   *defender
	tasks      tasks.Runner
	// wake is signalled when the worker has something to report.
	wake chan<- struct{}
	// changed is signalled when something else is asked for.
	changed chan struct{}

	mu    sync.Mutex
	asker *reach.Asker
}

// A round sends each question reachProbes times, if need be, and waits for an answer for
// reachInterval each time.
const (
	reachProbes   = 2
	reachInterval = 250 * time.Millisecond
)

var errCannotAsk = errors.New("the node has no address of its own to ask from")

func newReachability(a *Agent) *reachability {
	return &reachability{
		nodeName: a.NodeName, neighbours: a.Neighbours, defender: a.defender, tasks: a.Tasks, wake: a.wake,
		changed: make(chan struct{}, 1), asker: reach.New(),
	}
}

// NeedLeaderElection is false: every node may ask for addresses of others.
func (r *reachability) NeedLeaderElection() bool { return false }

// Start asks until ctx ends.
func (r *reachability) Start(ctx context.Context) error {
	last := time.Time{}
	for {
		wait := tasks.Forever
		r.mu.Lock()
		if at, isAny := r.asker.NextRoundAt(); isAny {
			wait = max(0, tasks.Until(r.tasks, at), tasks.Until(r.tasks, last.Add(reach.RoundGap)))
		}
		r.mu.Unlock()
		switch r.tasks.Wait(ctx, wait, r.changed) {
		case tasks.Ended:
			return nil
		case tasks.TimeOver:
			last = r.tasks.Now()
			r.runRound(ctx)
		}
	}
}

// setAskings replaces what is asked for.
func (r *reachability) setAskings(askings []purelbv1.Announcement) {
	targets := reach.Targets(askings, r.nodeName, r.defender.hasSenderFor)
	r.mu.Lock()
	r.asker.SetTargets(targets, r.tasks.Now())
	r.mu.Unlock()
	pacing.Signal(r.changed)
}

// runRound asks for what is due, and wakes the worker if there is something to report.
func (r *reachability) runRound(ctx context.Context) {
	r.mu.Lock()
	due, questions := r.asker.BeginRound(r.tasks.Now())
	r.mu.Unlock()
	answers := map[reach.Key]reach.Answer{}
	byLink := map[string][]neigh.Question{} // an address may be asked for on several links
	for _, q := range questions {
		if !r.defender.hasSenderFor(q.Interface, q.Addr) {
			answers[q.Key] = reach.Answer{Err: errCannotAsk}
			continue
		}
		question := r.defender.questionIgnoringGateways(q.Interface, q.Addr, q.MACs)
		question.IsAddressResolution = true
		byLink[q.Interface] = append(byLink[q.Interface], question)
	}
	for iface, questions := range order.ByKey(byLink, strings.Compare) {
		answered := r.neighbours.Probe(ctx, questions, reachProbes, reachInterval)
		for _, q := range questions {
			answers[reach.Key{Interface: iface, Addr: q.Addr}] = reachAnswerOf(answered[q.Addr])
		}
	}
	if ctx.Err() != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asker.EndRound(due, answers, r.tasks.Now()) {
		pacing.Signal(r.wake)
	}
}

func reachAnswerOf(answer neigh.ProbeResult) reach.Answer {
	if answer.MAC == (neigh.MAC{}) {
		return reach.Answer{Err: answer.Err}
	}
	return reach.Answer{MAC: answer.MAC.String()}
}

// askingStatuses returns the statuses of the Announcements with asking.
func (r *reachability) askingStatuses(askings []purelbv1.Announcement, now time.Time) []purelbv1.AnnouncementStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	statuses := make([]purelbv1.AnnouncementStatus, 0, len(askings))
	for i := range askings {
		statuses = append(statuses, r.asker.Status(&askings[i], metav1.NewTime(now.Truncate(time.Second))))
	}
	return statuses
}
