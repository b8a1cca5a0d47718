package nodeagent

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/purelb/purelb-operator/internal/tasks"
	"github.com/purelb/purelb-operator/nodeagent/neigh"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// questionIgnoringGateways returns the question which station has an address that one of these stations may
// have; answers of gateways do not count. It takes the lock.
func (d *defender) questionIgnoringGateways(iface string, addr netip.Addr, previousMACs []string) neigh.Question {
	gateways := d.gateways.macsOf(iface)
	d.mu.Lock()
	defer d.mu.Unlock()
	q := d.questionCountingGatewaysLocked(iface, addr, previousMACs)
	// A node that may have the address is heard, also where it is the gateway of the others.
	q.IgnoredMACs = slices.DeleteFunc(
		slices.Clone(gateways), func(mac neigh.MAC) bool { return slices.Contains(q.NodeMACs, mac) },
	)
	return q
}

// questionCountingGatewaysLocked returns the question which station has an address that one of these stations may
// have; answers of gateways count. The caller holds the lock.
func (d *defender) questionCountingGatewaysLocked(iface string, addr netip.Addr, previousMACs []string) neigh.Question {
	return neigh.Question{
		Target: neigh.Target{Interface: iface, Addr: addr},
		Sender: d.defence.Sender(iface, addr), NodeMACs: neigh.ParseMACs(previousMACs),
	}
}

// keepAskingHeld asks links for held addresses, until ctx ends: for all while the agent is not fresh,
// and for those whose previous holder may still answer.
func (d *defender) keepAskingHeld(ctx context.Context) {
	now := d.tasks.Now()
	next, repeat := now.Add(plan.AskInterval), now.Add(plan.RepeatInterval)
	var eagerUntil time.Time
	for {
		earlier := slices.MinFunc([]time.Time{next, repeat}, time.Time.Compare)
		switch d.tasks.Wait(ctx, tasks.Until(d.tasks, earlier), d.carrierReturned) {
		case tasks.Ended:
			return
		case tasks.TimeOver:
		default: // the carrier has returned
			next = d.tasks.Now()
			eagerUntil = next.Add(eagerFor)
			d.freshness.noteCutOff()
		}
		if !d.tasks.Now().Before(next) {
			if !d.freshness.isFresh() {
				d.freshness.confirm() // the heartbeat's timer does not count the time for which the node was suspended
				d.askAll(ctx, d.pickHeld((*plan.Defence).AllHeld))
			}
			// It may be less fresh before that time is over.
			wait := min(max(plan.AskInterval, d.freshness.freshFor()), currentTime)
			if d.tasks.Now().Before(eagerUntil) {
				wait = eagerInterval
			}
			next = d.tasks.Now().Add(wait)
		}
		if !d.tasks.Now().Before(repeat) {
			at := d.tasks.Now()
			d.askAll(ctx, d.pickHeld(func(defence *plan.Defence) []plan.Held { return defence.HeldWithPreviousHolder(at) }))
			repeat = d.tasks.Now().Add(plan.RepeatInterval)
		}
	}
}

// pickHeld returns the held addresses that are picked.
func (d *defender) pickHeld(pick func(*plan.Defence) []plan.Held) []plan.Held {
	d.mu.Lock()
	defer d.mu.Unlock()
	return pick(d.defence)
}

// askAll asks for held addresses, askRate in a second.
func (d *defender) askAll(ctx context.Context, held []plan.Held) {
	slices.SortFunc(held, func(a, b plan.Held) int { return a.Prefix.Addr().Compare(b.Prefix.Addr()) })
	const atOnce = 20
	for i, h := range held {
		if i > 0 && i%atOnce == 0 && d.tasks.Wait(ctx, time.Second*atOnce/askRate) == tasks.Ended {
			return
		}
		d.askFor(ctx, h)
	}
}

// askFor asks the link for a held address.
func (d *defender) askFor(ctx context.Context, h plan.Held) {
	addr := h.Prefix.Addr()
	d.mu.Lock()
	d.defence.NoteHeldAsked(addr, d.tasks.Now())
	q := d.questionCountingGatewaysLocked(h.Interface, addr, h.PreviousMACs)
	d.mu.Unlock()
	if err := d.neighbours.Ask(q); err != nil {
		log.FromContext(ctx).V(1).Info("Cannot ask for an address", "address", addr, "error", err.Error())
	}
}

// keepAskingYielded asks the stations to which addresses were yielded whether they still have them,
// until ctx ends, and wakes the worker when a station is silent.
func (d *defender) keepAskingYielded(ctx context.Context) {
	for d.tasks.Wait(ctx, tasks.Forever, d.yielded) != tasks.Ended {
		for questions := d.beginReclaimQuestions(ctx); len(questions) > 0; questions = d.beginReclaimQuestions(ctx) {
			for _, q := range questions {
				if err := d.neighbours.AskStation(q.Question, q.station); err != nil {
					d.noteReclaimQuestionNotSent(q.Addr)
				}
			}
			if d.tasks.Wait(ctx, plan.YieldAskInterval) == tasks.Ended {
				return
			}
		}
	}
}

// stationQuestion is a question for one station.
type stationQuestion struct {
	neigh.Question
	station neigh.MAC
}

// beginReclaimQuestions returns what to ask now about yielded addresses; none if there are none.
func (d *defender) beginReclaimQuestions(ctx context.Context) []stationQuestion {
	d.mu.Lock()
	defer d.mu.Unlock()
	due, isNewlySilent := d.defence.BeginReclaimQuestions(d.isLinkUpLocked, d.tasks.Now())
	if isNewlySilent {
		d.wakeWorker(ctx)
	}
	questions := make([]stationQuestion, 0, len(due))
	for _, q := range due {
		station := neigh.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff} // all, if the checkpoint has no MAC
		if macs := neigh.ParseMACs([]string{q.MAC}); len(macs) > 0 {
			station = macs[0]
		}
		questions = append(questions, stationQuestion{d.questionCountingGatewaysLocked(q.Interface, q.Addr, nil), station})
	}
	return questions
}

func (d *defender) noteReclaimQuestionNotSent(addr netip.Addr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.defence.NoteReclaimQuestionNotSent(addr)
}
