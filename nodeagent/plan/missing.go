package plan

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

// missingFor is how long an Announcement that somebody has deleted still counts:
// the manager makes it anew well before, also if another has to take its place
// first. The manager itself deletes only those that are empty.
const missingFor = 15 * time.Second

// Asking is an Announcement or a CommonAnnouncement, and what it asks for.
type Asking struct {
	// Name tells it from all others, of both kinds.
	Name      string
	Addresses []purelbv1.AnnouncedAddress
	// Common is that it asks for what is common, too.
	Common bool
}

// Asked lists what asks for something.
func Asked(announcements []purelbv1.Announcement, commons []purelbv1.CommonAnnouncement) []Asking {
	var all []Asking
	for i := range announcements {
		all = append(all, Asking{Name: announcements[i].Name, Addresses: announcements[i].Spec.Addresses, Common: announcements[i].Spec.Common})
	}
	for i := range commons {
		all = append(all, Asking{Name: "common/" + commons[i].Name, Addresses: commons[i].Spec.Addresses})
	}
	return all
}

// Missing is an Announcement or CommonAnnouncement that was deleted, and since when
// it is.
type Missing struct {
	Asking
	Since time.Time
}

func (m Missing) left(now time.Time) time.Duration {
	left := m.Since.Add(missingFor).Sub(now)
	if left > missingFor { // the clock was set back
		return 0
	}
	return left
}

// StillMissing is which Announcements and CommonAnnouncements count although they have been deleted: of
// those that were there, the ones that are there no more, and of those that were
// missing, the ones that still are, and not for long.
func StillMissing(were []Asking, missing []Missing, are []Asking, now time.Time) []Missing {
	present := func(name string) bool {
		return slices.ContainsFunc(are, func(a Asking) bool { return a.Name == name })
	}
	still := slices.DeleteFunc(slices.Clone(missing), func(m Missing) bool {
		return present(m.Name) || m.left(now) <= 0
	})
	for _, asking := range were {
		if !present(asking.Name) && (len(asking.Addresses) > 0 || asking.Common) {
			still = append(still, Missing{Asking: asking, Since: now})
		}
	}
	slices.SortFunc(still, func(a, b Missing) int { return cmp.Compare(a.Name, b.Name) })
	return still
}

// Hold makes a plan keep what missing Announcements ask for and no other does: a
// missing Announcement is not an empty one. It returns what to report of it, so that
// the manager can give it back, and when to call again; 0 is never.
func (p *Plan) Hold(settings Settings, missing []Missing, now time.Time) (map[netip.Addr]Result, time.Duration) {
	asked := map[netip.Addr]int64{}
	wait := time.Duration(0)
	for _, m := range missing {
		for _, entry := range m.Addresses {
			if addr, err := netip.ParseAddr(entry.Address); err == nil && m.left(now) > 0 {
				asked[addr] = entry.Epoch
			}
		}
		if left := m.left(now); left > 0 && (wait == 0 || left < wait) {
			wait = left
		}
	}
	held := map[netip.Addr]Result{}
	p.retain(settings, func(op Operation) bool {
		addr := op.Address.Prefix.Addr()
		epoch, ok := asked[addr]
		if ok {
			held[addr] = Result{
				State: purelbv1.StateAnnounced, Epoch: epoch, Interface: op.Address.Interface, Reason: ReasonWithdrawing,
				Message: "the Announcement that asked for it was deleted",
			}
		}
		return ok
	})
	return held, wait
}
