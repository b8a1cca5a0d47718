package nodeagent

import (
	"sync"
	"time"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

const (
	// defaultPeriod between renewals, while no Announcement says otherwise.
	defaultPeriod = 10 * time.Second
	// catchUp is how long the cache may be behind after the API server was away:
	// several times what the watches wait before they try again.
	catchUp = 5 * time.Second
)

// pulse is how far the agent can trust what it knows: when it last renewed its
// Lease, and when it last listed.
type pulse struct {
	mu      sync.Mutex
	period  time.Duration
	renewed time.Time
	list    time.Time
	// changed says that the period has changed.
	changed chan struct{}
}

// newPulse returns that of an agent that has not started.
func newPulse() *pulse {
	return &pulse{period: defaultPeriod, changed: make(chan struct{}, 1)}
}

// fresh is whether the last successful renewal started no more than two periods
// ago.
func (p *pulse) fresh() bool { return p.freshFor() >= 0 }

// freshFor is how long that is true if no other renewal succeeds; negative if it is
// not.
func (p *pulse) freshFor() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Until(p.renewed.Add(2 * p.period)) // of no renewal, that is long ago
}

// interval between renewals.
func (p *pulse) interval() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.period
}

// setPeriod takes the shortest period that an Announcement asks for.
func (p *pulse) setPeriod(announcements []purelbv1.Announcement) {
	period := time.Duration(0)
	for _, ann := range announcements {
		if s := time.Duration(ann.Spec.HeartbeatSeconds) * time.Second; s > 0 {
			period = earliest(period, s)
		}
	}
	if period == 0 {
		period = defaultPeriod
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.period == period {
		return
	}
	p.period = period
	signal(p.changed)
}

func (p *pulse) renewedAt(start time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.renewed = start
}

func (p *pulse) listed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.list = time.Now()
}

// listedLately is whether the agent has listed at the API server so recently
// that the cache may be behind.
func (p *pulse) listedLately() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.list.IsZero() && time.Since(p.list) < catchUp
}
