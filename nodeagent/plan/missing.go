package plan

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

// missingFor is how long an Announcement that somebody has deleted still counts:
// the manager makes it anew well before. The manager itself deletes only those that
// are empty.
const missingFor = 5 * time.Second

// Missing is an Announcement that was deleted, and since when it is.
type Missing struct {
	Announcement purelbv1.Announcement
	Since        time.Time
}

func (m Missing) left(now time.Time) time.Duration {
	left := m.Since.Add(missingFor).Sub(now)
	if left > missingFor { // the clock was set back
		return 0
	}
	return left
}

// StillMissing is which Announcements count although they have been deleted: of
// those that were there, the ones that are there no more, and of those that were
// missing, the ones that still are, and not for long.
func StillMissing(were []purelbv1.Announcement, missing []Missing, are []purelbv1.Announcement, now time.Time) []Missing {
	present := func(name string) bool {
		return slices.ContainsFunc(are, func(a purelbv1.Announcement) bool { return a.Name == name })
	}
	still := slices.DeleteFunc(slices.Clone(missing), func(m Missing) bool {
		return present(m.Announcement.Name) || m.left(now) <= 0
	})
	for _, ann := range were {
		if !present(ann.Name) && len(ann.Spec.Addresses) > 0 {
			still = append(still, Missing{Announcement: ann, Since: now})
		}
	}
	slices.SortFunc(still, func(a, b Missing) int { return cmp.Compare(a.Announcement.Name, b.Announcement.Name) })
	return still
}

// Hold makes a plan keep what missing Announcements ask for and no other does: a
// missing Announcement is not an empty one. It returns what to report of it, so that
// the manager can give it back, and when to call again; 0 is never.
func (p *Plan) Hold(settings Settings, missing []Missing, now time.Time) (map[netip.Addr]Result, time.Duration) {
	asked := map[netip.Addr]int64{}
	wait := time.Duration(0)
	for _, m := range missing {
		for _, entry := range m.Announcement.Spec.Addresses {
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
