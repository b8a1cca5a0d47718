package controllers_test

import (
	"context"
	"sync"
	"time"

	"github.com/purelb/purelb-operator/controllers"
)

// simulatedClock is the manager's clock. It advances only when every agent that runs has had a
// turn, and the manager has seen what the turn renewed. So no Lease expires, and no agent is
// passed over, because the machine is slow: a test stops or pauses the agent whose time is to
// run out. Without agents the clock keeps up with the machine's.
type simulatedClock struct {
	mu    sync.Mutex
	now   time.Time
	steps int64
	// agents have had their last turn in the step that is noted.
	agents map[*agent]turn
}

// turn is what an agent has done last.
type turn struct {
	// step is the one in which the turn began.
	step int64
	// hasRenewed says that the agent has a Lease, and has renewed it.
	hasRenewed bool
}

// longestStep bounds a step, so that no agent is late by one: Leases last 3 s at the least.
const longestStep = 200 * time.Millisecond

func newSimulatedClock() *simulatedClock {
	return &simulatedClock{now: time.Now(), agents: map[*agent]turn{}}
}

// Now returns the time.
func (c *simulatedClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// add makes the clock wait for an agent.
func (c *simulatedClock) add(a *agent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.agents[a] = turn{step: -1}
}

// remove makes the clock wait no longer for an agent.
func (c *simulatedClock) remove(a *agent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.agents, a)
}

// step returns the number of the present step.
func (c *simulatedClock) step() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.steps
}

// note notes a turn of an agent, which the clock may wait for no longer.
func (c *simulatedClock) note(a *agent, t turn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, runs := c.agents[a]; runs {
		c.agents[a] = t
	}
}

// run advances the clock until ctx ends.
func (c *simulatedClock) run(ctx context.Context, live *controllers.LivenessTracker) {
	last := time.Now()
	for tick := time.NewTicker(10 * time.Millisecond); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
		}
		if c.isAwaitingAgents(live) {
			continue
		}
		now := time.Now()
		c.mu.Lock()
		c.now, c.steps = c.now.Add(min(now.Sub(last), longestStep)), c.steps+1
		c.mu.Unlock()
		last = now
	}
}

// isAwaitingAgents reports whether an agent has not had its turn, or the manager has not seen it.
func (c *simulatedClock) isAwaitingAgents(live *controllers.LivenessTracker) bool {
	c.mu.Lock()
	var renewed []string
	for a, last := range c.agents {
		if last.step != c.steps {
			c.mu.Unlock()
			return true
		}
		if last.hasRenewed {
			renewed = append(renewed, a.node)
		}
	}
	c.mu.Unlock() // live reads the clock
	for _, node := range renewed {
		if live.SilentFor(node) > 0 {
			return true
		}
	}
	return false
}
