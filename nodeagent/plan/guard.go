package plan

import (
	"net/netip"
	"slices"
	"time"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

// Held is a Local address that the node has.
type Held struct {
	Address
	Epoch   int64
	Leaving bool
	// PreviousMACs is the node that held it before.
	PreviousMACs []string
}

// HeldBy is the Local addresses of the desired that the node has as it is to.
func HeldBy(settings Settings, desired []Desired, results map[netip.Addr]Result) []Held {
	var held []Held
	for i := range desired {
		d := &desired[i]
		if d.Local && results[d.Addr].State == purelbv1.StateAnnounced {
			held = append(held, Held{Address: settings.address(d), Epoch: d.Epoch, Leaving: d.Leaving, PreviousMACs: d.PreviousMACs})
		}
	}
	return held
}

// HeldUnasked is the Local addresses of ours that nothing is known about. They are
// kept, but not defended.
func HeldUnasked(settings Settings, addresses []Address) []Held {
	var held []Held
	for _, a := range addresses {
		if a.Ours && a.Interface != settings.Selection.VirtualInterface {
			held = append(held, Held{Address: a, Leaving: true})
		}
	}
	return held
}

// Verdict is what to do about another station that has an address of ours.
type Verdict int

// Verdicts.
const (
	// Ignore it.
	Ignore Verdict = iota
	// Remember that it is there, and answers.
	Remember
	// Suspect it of having the address now: ask once more, and yield if it
	// answers again.
	Suspect
	// Yield the address to it, at once.
	Yield
	// Defend the address: claim it, once.
	Defend
)

// Judge decides about a station that claims one of the node's addresses
// (gratuitously), or else only answers for it. fresh is that the agent knows that
// the address is its own to have; known is that the station answered while the
// agent was fresh, and is not a previous holder that has been silent since.
//
// Whoever is not fresh may have lost the address to another without having been
// told: a claim says so, and an answer may say so. Whoever is fresh knows better
// (RFC 5227 section 2.4), unless it is handing the address over.
func Judge(h Held, claims, fresh, known bool) Verdict {
	switch {
	case known:
		return Ignore
	case claims && (!fresh || h.Leaving):
		return Yield
	case claims:
		return Defend
	case fresh:
		return Remember
	}
	return Suspect
}

// Yielded is an address that was given up to another station.
type Yielded struct {
	// Epoch of the entry under which it was.
	Epoch int64 `json:"epoch"`
	// MAC of that station, lower case with colons.
	MAC string `json:"mac"`
	// Answered is when a station was last known to have the address.
	Answered time.Time `json:"-"`
	// Wait is for how long nobody has to answer before it is claimed again.
	Wait time.Duration `json:"wait"`
}

// Result of an address that was given up.
func (y Yielded) Result() Result {
	return Result{
		State: purelbv1.StateYielded, Epoch: y.Epoch, MAC: y.MAC, Reason: ReasonYielded,
		Message: y.MAC + " has claimed it; it is claimed again when nobody has answered for it for a while",
	}
}

// IsOver reports whether nobody has answered for long enough, when nobody did at
// that time.
func (y Yielded) IsOver(silent time.Time) bool { return silent.Sub(y.Answered) >= y.Wait }

// Yield makes a plan respect what was given up: such an address is asked for,
// and neither taken over nor added unasked. Where it is there still, because it
// could not be removed, it is to be removed.
func (p *Plan) Yield(yields map[netip.Addr]Yielded, desired []Desired, observed Observed) {
	given := func(d *Desired) bool {
		y, ok := yields[d.Addr]
		return ok && y.Epoch >= d.Epoch
	}
	p.Operations = slices.DeleteFunc(p.Operations, func(op Operation) bool {
		return op.Kind == Renew && op.Desired != nil && given(op.Desired)
	})
	for i := range p.Operations {
		if op := &p.Operations[i]; op.Kind == Add && given(op.Desired) {
			op.Probe, op.Announce = true, true
			p.Results[op.Desired.Addr] = yields[op.Desired.Addr].Result()
		}
	}
	for i := range desired {
		d := &desired[i]
		if !given(d) || p.Results[d.Addr].State != purelbv1.StateAnnounced {
			continue
		}
		p.Results[d.Addr] = yields[d.Addr].Result()
		for _, a := range observed.Addresses {
			if a.Ours && a.Interface == d.Interface && a.Prefix.Addr() == d.Addr {
				p.Operations = slices.Insert(p.Operations, 0, Operation{Kind: Remove, Address: a, Desired: d})
			}
		}
	}
}
