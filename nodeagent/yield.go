package nodeagent

import (
	"context"
	"maps"
	"math/rand/v2"
	"net/netip"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/purelb/purelb-operator/nodeagent/neigh"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// yield gives an address up: it is gone from the interface when it returns.
func (g *guard) yield(ctx context.Context, h plan.Held, mac neigh.MAC) {
	addr, now := h.Prefix.Addr(), time.Now()
	g.yields[addr] = plan.Yielded{Epoch: h.Epoch, MAC: mac.String(), Answered: now, Wait: yieldFor + rand.N(yieldSpread)}
	delete(g.held, addr)
	delete(g.watched, addr)
	g.agent.announcer.Cancel(h.Interface, addr)
	if err := g.agent.Kernel.Remove(h.Address); err != nil {
		log.FromContext(ctx).Error(err, "An address that another station claims could not be given up")
	} else {
		log.FromContext(ctx).Info("Gave an address up to another station, which claims it", "address", addr, "interface", h.Interface, "mac", mac.String())
		g.agent.Metrics.yields.Inc()
		g.agent.Metrics.withdrawals.Inc()
	}
	signal(g.agent.wake)
}

// unlessYielded does something to an address that the node is to have, unless it
// was given up; nothing gives it up meanwhile. If it was, it is not done, and what
// to report is in results.
func (g *guard) unlessYielded(d *plan.Desired, results map[netip.Addr]plan.Result, do func() error) (done bool, err error) {
	if d == nil {
		return true, do()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if y, given := g.yields[d.Addr]; given && y.Epoch >= d.Epoch {
		results[d.Addr] = y.Result()
		return false, nil
	}
	return true, do()
}

// claiming says that a desired address was asked for: at that time mac answered, if
// it is not empty. It returns whether the address may be added, and what to report if not.
func (g *guard) claiming(d *plan.Desired, mac string, at time.Time) (plan.Result, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	y, given := g.yields[d.Addr]
	switch {
	case !given || y.Epoch < d.Epoch:
		delete(g.yields, d.Addr)
		if mac == "" {
			return plan.Result{}, true
		}
		return plan.Answered(d, mac), false
	case mac != "":
		y.MAC, y.Answered = mac, at
		g.yields[d.Addr] = y
		return y.Result(), false
	case !y.IsOver(at):
		return y.Result(), false
	}
	delete(g.yields, d.Addr)
	return plan.Result{}, true
}

// given is what was given up, of what is still desired under the same epoch; the
// rest is forgotten.
func (g *guard) given(desired []plan.Desired) map[netip.Addr]plan.Yielded {
	epochs := map[netip.Addr]int64{}
	for _, d := range desired {
		if d.Local {
			epochs[d.Addr] = d.Epoch
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	maps.DeleteFunc(g.yields, func(addr netip.Addr, y plan.Yielded) bool {
		epoch, wanted := epochs[addr]
		return !wanted || epoch > y.Epoch
	})
	return maps.Clone(g.yields)
}

// yielded is all that was given up.
func (g *guard) yielded() map[netip.Addr]plan.Yielded {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.yields)
}

// restore takes over what an earlier run of the agent had given up.
func (g *guard) restore(yields map[netip.Addr]plan.Yielded) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for addr, y := range yields {
		y.Answered = time.Now() // as far as is known
		g.yields[addr] = y
	}
}
