package nodeagent

import (
	"context"
	"sync"
	"time"

	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/internal/tasks"
	"github.com/purelb/purelb-operator/nodeagent/neigh"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// prober asks links which station has the addresses that the node is to claim, while the
// agent goes on with others. It remembers only answers that no sync has taken yet; what
// answers are worth, and when to ask, plan.Decide says.
type prober struct {
	neighbours Neighbours
	// wake is signalled when there are answers.
	wake  chan struct{}
	tasks tasks.Runner

	mu      sync.Mutex
	answers []plan.ProbeAnswer
}

func newProber(neighbours Neighbours, wake chan struct{}, runner tasks.Runner) *prober {
	return &prober{neighbours: neighbours, wake: wake, tasks: runner}
}

// ask asks all questions as one batch, until ctx ends, and does not wait for the answers.
func (p *prober) ask(ctx context.Context, questions []neigh.Question, settings plan.ProbeSettings) {
	if len(questions) == 0 {
		return
	}
	p.tasks.Go(func() {
		answers := p.neighbours.Probe(ctx, questions, settings.Count, settings.Interval)
		p.mu.Lock()
		for _, q := range questions {
			p.answers = append(p.answers, plan.ProbeAnswer{
				Target: plan.ProbeTarget{Interface: q.Interface, Addr: q.Addr}, State: probeOf(answers[q.Addr], p.tasks.Now()),
			})
		}
		p.mu.Unlock()
		pacing.Signal(p.wake)
	})
}

func probeOf(answer neigh.ProbeResult, now time.Time) plan.ProbeState {
	probe := plan.ProbeState{AnsweredAt: now, Err: answer.Err}
	if answer.MAC != (neigh.MAC{}) {
		probe.MAC = answer.MAC.String()
	}
	return probe
}

// takeAnswers returns the answers that have come since it was last called.
func (p *prober) takeAnswers() []plan.ProbeAnswer {
	p.mu.Lock()
	defer p.mu.Unlock()
	answers := p.answers
	p.answers = nil
	return answers
}
