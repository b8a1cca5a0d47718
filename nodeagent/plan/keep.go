package plan

import (
	"maps"
	"slices"
	"time"
)

// renewKept returns the plan that renews addresses of ours that nothing asks for, so that
// they do not fade from the kernel; what others put there the agent leaves alone. An address
// gets the lifetimes that the settings have for it, but the agent neither cuts an address
// short nor makes one permanent: the settings may be the defaults, and not those with which
// the address was added.
func renewKept(settings Settings, addresses []Address) Plan {
	var p Plan
	for _, a := range addresses {
		if !a.IsOurs || a.Valid == Forever {
			continue
		}
		target := settings.kernelAddress(&Desired{
			Addr: a.Prefix.Addr(), Prefix: a.Prefix, Interface: a.Interface,
			IsLocal: a.Interface != settings.Selection.VirtualInterface,
		})
		target.NoPrefixRoute = a.NoPrefixRoute
		if target.Valid == Forever {
			target.Valid = defaultValidLifetime
		}
		target.Valid = max(target.Valid, a.Valid)
		if target.Preferred > 0 {
			target.Preferred = min(max(target.Preferred, a.Preferred), target.Valid)
		}
		due := untilRenewal(target, a)
		if due <= 0 {
			p.Operations = append(p.Operations, Operation{Kind: Renew, Address: target})
			due = renewalInterval(target)
		}
		p.renewIn(due)
	}
	return p
}

// keepUndesired makes the plan withdraw nothing that is not desired. An address that is
// desired on another interface, or with another mask, is removed all the same.
func (p *Plan) keepUndesired(settings Settings) {
	isUndesiredRemoval := func(op Operation) bool { return op.Kind == Remove && op.Desired == nil }
	var kept []Address
	for _, op := range p.Operations {
		if isUndesiredRemoval(op) {
			kept = append(kept, op.Address)
		}
	}
	renewals := renewKept(settings, kept)
	p.Operations = append(slices.DeleteFunc(p.Operations, isUndesiredRemoval), renewals.Operations...)
	p.renewIn(renewals.RenewIn)
	p.Kept = append(p.Kept, kept...)
}

// noteMissingObjects notes which objects ask for addresses, and since when such an object has
// been missing, and returns for how long the agent is to withdraw nothing; 0 if no object is
// missing, or none has been missing for less than missingObjectPatience.
//
// The manager empties an Announcement before it deletes it, so an object that is gone while
// it asked for addresses was deleted by mistake, while the API server's policy was off: the
// manager makes it anew. The time does not count while nothing is known at all, since the
// agent then keeps everything without limit.
func (m *Memory) noteMissingObjects(in *Inputs) time.Duration {
	nonEmpty, present := nonEmptyObjects(in)
	missing := maps.Clone(m.MissingSince)
	if missing == nil {
		missing = map[ObjectID]time.Time{}
	}
	for id := range m.NonEmptyObjects {
		missing[id] = time.Time{}
	}
	maps.DeleteFunc(missing, func(id ObjectID, _ time.Time) bool { return present[id] })
	wait := time.Duration(0)
	for id, since := range missing {
		if in.isNothingKnown() {
			missing[id] = time.Time{}
			continue
		}
		if since.IsZero() {
			since = in.Now
		}
		left := since.Add(missingObjectPatience).Sub(in.Now)
		if left <= 0 || left > missingObjectPatience { // the clock was set back
			delete(missing, id)
			continue
		}
		missing[id], wait = since, max(wait, left)
	}
	m.NonEmptyObjects, m.MissingSince = nonEmpty, missing
	return wait
}

// nonEmptyObjects returns which objects are not empty, as they ask for addresses, and which are present.
func nonEmptyObjects(in *Inputs) (nonEmpty, present map[ObjectID]bool) {
	nonEmpty, present = map[ObjectID]bool{}, map[ObjectID]bool{}
	for i := range in.Announcements {
		ann := &in.Announcements[i]
		id := ObjectID{"Announcement", ann.Name, ann.UID}
		present[id] = true
		if len(ann.Spec.Addresses) > 0 || ann.Spec.IncludeCommonAnnouncements {
			nonEmpty[id] = true
		}
	}
	for i := range in.CommonAnnouncements {
		common := &in.CommonAnnouncements[i]
		id := ObjectID{"CommonAnnouncement", common.Name, common.UID}
		present[id] = true
		if len(common.Spec.Addresses) > 0 {
			nonEmpty[id] = true
		}
	}
	return nonEmpty, present
}
