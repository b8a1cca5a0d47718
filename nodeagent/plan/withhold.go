package plan

import (
	"net/netip"
	"time"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

// patience is how long an address that nobody knew of stays reported before it
// is withdrawn. Times in status are whole seconds, cut off, so it is between one
// second and two.
const patience = 2 * time.Second

// Withhold puts off withdrawals of which the manager could not know: those of
// addresses that no status lists, while an Announcement has never been reported
// (it is new, perhaps made in place of one that somebody deleted). They are
// reported first, and kept, so that the manager can give them back. It returns
// what to report of them, and when to call again; 0 is never.
func (p *Plan) Withhold(settings Settings, announcements []purelbv1.Announcement, now time.Time) (map[netip.Addr]Result, time.Duration) {
	unreported := false
	known := map[netip.Addr]purelbv1.AddressStatus{}
	for _, ann := range announcements {
		unreported = unreported || ann.Status.ObservedGeneration == 0
		for _, s := range ann.Status.Addresses {
			if addr, err := netip.ParseAddr(s.Address); err == nil {
				known[addr] = s
			}
		}
	}

	withheld := map[netip.Addr]Result{}
	wait := time.Duration(0)
	p.retain(settings, func(op Operation) bool {
		addr := op.Address.Prefix.Addr()
		since := now.Truncate(time.Second)
		if s, ok := known[addr]; ok && s.Reason == ReasonWithdrawing {
			since = s.LastTransitionTime.Time
		} else if ok || !unreported {
			return false
		}
		left := since.Add(patience).Sub(now)
		if left <= 0 || left > patience { // the clock was set back
			return false
		}
		withheld[addr] = Result{
			State: purelbv1.StateAnnounced, Interface: op.Address.Interface, Reason: ReasonWithdrawing,
			Message: "it was here before, but is not asked for; to be withdrawn",
		}
		if wait == 0 || left < wait {
			wait = left
		}
		return true
	})
	return withheld, wait
}
