package plan

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

// kernelAddress returns how a desired address is put on its interface: with the lifetimes of the settings, which are
// defaultValidLifetime of a Local address unless local.addressConfig says otherwise.
func (s Settings) kernelAddress(d *Desired) Address {
	lifetimes := s.Virtual
	if d.IsLocal {
		lifetimes = s.Local
	}
	a := Address{
		Interface: d.Interface, Prefix: d.Prefix, IsOurs: true,
		Valid: lifetimes.Valid, Preferred: lifetimes.Preferred, NoPrefixRoute: lifetimes.NoPrefixRoute,
	}
	switch {
	case d.IsLocal && d.Addr.Is6():
		// Else the node would choose it as a source address (RFC 6724 rule 3).
		a.Preferred = 0
	case d.Addr.Is4() && a.Valid == Forever:
		// The kernel lists an IPv4 address that does not expire as preferred forever, whatever it was told: the agent would
		// renew the address with each sync, and the kernel's notification of that would wake it for the next one.
		a.Preferred = Forever
	}
	return a
}

// renewalInterval returns how long after a renewal an address with these lifetimes is
// renewed again; 0 is never.
func renewalInterval(target Address) time.Duration {
	shortest := target.Valid
	if target.Preferred > 0 {
		shortest = min(shortest, target.Preferred)
	}
	if shortest == Forever {
		return 0
	}
	return shortest / 3
}

// untilRenewal returns in how long an address is to be renewed: when less than two thirds of
// a lifetime remain. An address that has more left than the target is to be renewed at once
// (0 or less), since the settings have changed. Forever means never.
func untilRenewal(target, current Address) time.Duration {
	due := Forever
	for _, lifetime := range []struct{ target, current time.Duration }{
		{target.Valid, current.Valid},
		{target.Preferred, current.Preferred},
	} {
		switch {
		case lifetime.current == lifetime.target && (lifetime.target == Forever || lifetime.target == 0):
		case lifetime.current > lifetime.target:
			return 0
		default:
			// The kernel counts whole seconds and rounds up.
			due = min(due, lifetime.current-lifetime.target*2/3)
		}
	}
	return due
}

// renewLast puts renewals after all other operations, and in the order in which the lifetimes end. The
// agent leaves the last ones for the next decision if they take it too long.
func (d *decisionBuilder) renewLast() {
	var others, renewals []Operation
	for _, op := range d.plan.Operations {
		if op.Kind == Renew {
			renewals = append(renewals, op)
		} else {
			others = append(others, op)
		}
	}
	if len(renewals) == 0 {
		return
	}
	type place struct {
		iface  string
		prefix netip.Prefix
	}
	validFor := make(map[place]time.Duration, len(d.in.Observed.Addresses))
	for _, a := range d.in.Observed.Addresses {
		validFor[place{a.Interface, a.Prefix}] = a.Valid
	}
	slices.SortStableFunc(renewals, func(a, b Operation) int {
		return cmp.Compare(
			validFor[place{a.Address.Interface, a.Address.Prefix}], validFor[place{b.Address.Interface, b.Address.Prefix}],
		)
	})
	d.plan.Operations = append(others, renewals...)
}

// noteValidUntil notes until when the kernel keeps the agent's Local addresses: those that it had before the
// operations, and those that these added or renewed. A desired address that a program has taken off
// keeps the time that was noted for it, since paceRepairs may make the agent put it back later.
func (m *Memory) noteValidUntil(
	observed []Address, decision *Decision, resultOf func(netip.Addr) Result, now time.Time,
) {
	before := m.ValidUntil
	m.ValidUntil = make(map[netip.Addr]time.Time, len(before))
	for i := range decision.desired {
		addr := decision.desired[i].Addr
		if until, isKnown := before[addr]; isKnown && decision.desired[i].IsLocal {
			m.ValidUntil[addr] = until
		}
	}
	for i := range observed {
		if a := &observed[i]; a.IsOurs && a.Interface != decision.Settings.Selection.VirtualInterface {
			m.ValidUntil[a.Prefix.Addr()] = now.Add(a.Valid)
		}
	}
	for i := range decision.Operations {
		op := &decision.Operations[i]
		addr := op.Address.Prefix.Addr()
		if op.Desired != nil && op.Desired.IsLocal && op.Kind != Remove && resultOf(addr).State == purelbv1.StateAnnounced {
			m.ValidUntil[addr] = now.Add(op.Address.Valid)
		}
	}
}
