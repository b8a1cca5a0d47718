package nodeagent

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/purelb/purelb-operator/nodeagent/neigh"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// silenceFor is for how long the silence of a link proves that nobody has an
// address: long enough for an agent that waits for the API server meanwhile.
const silenceFor = 2 * requestTimeout

// prober asks links who has the addresses that the node is to claim, while the
// agent goes on with others. What it knows may be lost: then it asks again.
type prober struct {
	neighbours Neighbours
	// wake is signalled when there are answers.
	wake chan struct{}

	mu        sync.Mutex
	inquiries map[neigh.Target]inquiry
}

// inquiry is what is known of one address on one link.
type inquiry struct {
	// asking is that the link is being asked, now.
	asking bool
	// answered is when the last answer came, or silence; zero for never.
	answered time.Time
	answer   neigh.Answer
}

// isDue reports whether the link is to be asked, for the first time or again.
func (q inquiry) isDue(now time.Time) bool {
	lasts := reprobe
	if q.answer == (neigh.Answer{}) {
		lasts = silenceFor
	}
	return !q.asking && (q.answered.IsZero() || now.Sub(q.answered) >= lasts)
}

func newProber(neighbours Neighbours, wake chan struct{}) *prober {
	return &prober{neighbours: neighbours, wake: wake, inquiries: map[neigh.Target]inquiry{}}
}

// look returns what is known of the targets, and asks for those for which it is
// time to, all as one batch, until ctx ends. What it knows of others it forgets.
func (p *prober) look(ctx context.Context, targets []neigh.Target, settings plan.ProbeSettings) map[neigh.Target]inquiry {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	known := map[neigh.Target]inquiry{}
	var due []neigh.Target
	for _, t := range targets {
		q := p.inquiries[t]
		if q.isDue(now) {
			q.asking = true // until then the last answer stands
			due = append(due, t)
		}
		known[t] = q
	}
	for t, q := range p.inquiries {
		if _, wanted := known[t]; !wanted && q.asking { // the answer is awaited, for nothing
			known[t] = q
		}
	}
	p.inquiries = known
	if len(due) > 0 {
		go p.ask(ctx, due, settings)
	}
	return maps.Clone(known)
}

func (p *prober) ask(ctx context.Context, targets []neigh.Target, settings plan.ProbeSettings) {
	answers := p.neighbours.Probe(ctx, targets, settings.Count, settings.Interval)
	p.mu.Lock()
	for _, t := range targets {
		p.inquiries[t] = inquiry{answered: time.Now(), answer: answers[t.Addr]}
	}
	p.mu.Unlock()
	signal(p.wake)
}

// forget makes the link be asked again before the address is claimed again.
func (p *prober) forget(t neigh.Target) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.inquiries, t)
}
