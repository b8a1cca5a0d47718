package plan

import "slices"

// Keep renews addresses of ours that nothing says anything about, so that they
// do not fade out; what others put there it leaves alone. An address gets the
// lifetimes that the settings have for it, but is neither cut short nor made
// permanent: the settings may be the defaults, not those that it was added with.
func Keep(settings Settings, addresses []Address) Plan {
	var p Plan
	for _, a := range addresses {
		if !a.Ours || a.Valid == Forever {
			continue
		}
		target := settings.address(&Desired{
			Addr: a.Prefix.Addr(), Prefix: a.Prefix, Interface: a.Interface,
			Local: a.Interface != settings.Selection.VirtualInterface,
		})
		target.NoPrefixRoute = a.NoPrefixRoute
		if target.Valid == Forever {
			target.Valid = defaultValid
		}
		target.Valid = max(target.Valid, a.Valid)
		if target.Preferred > 0 {
			target.Preferred = min(max(target.Preferred, a.Preferred), target.Valid)
		}
		due := renewalDue(target, a)
		if due <= 0 {
			p.Operations = append(p.Operations, Operation{Kind: Renew, Address: target})
			due = interval(target)
		}
		p.renewIn(due)
	}
	return p
}

// Retain makes a plan withdraw nothing that is not desired: what is desired may
// be out of date.
func (p *Plan) Retain(settings Settings) {
	p.retain(settings, func(Operation) bool { return true })
}

// retain makes a plan keep, instead of to withdraw, those addresses that are not
// desired but picked.
func (p *Plan) retain(settings Settings, pick func(Operation) bool) {
	var addresses []Address
	p.Operations = slices.DeleteFunc(p.Operations, func(op Operation) bool {
		retained := op.Kind == Remove && op.Desired == nil && pick(op)
		if retained {
			addresses = append(addresses, op.Address)
		}
		return retained
	})
	p.Kept = append(p.Kept, addresses...)
	kept := Keep(settings, addresses)
	p.Operations = append(p.Operations, kept.Operations...)
	p.renewIn(kept.RenewIn)
}
