package nodeagent

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing/synctest"
	"time"
)

// invariants are what holds at all times of a history. Each returns what is wrong, or nothing.
var invariants = []struct {
	name   string
	breach func(*history) []string
}{
	{"no address of others is removed", (*history).lostForeign},
	{"no address is withdrawn that has been asked for all the while", (*history).withdrawn},
	{"an agent that does nothing renews no Lease", (*history).renewedIdly},
	{"an agent that does nothing does not look alive", (*history).looksAlive},
	{"an agent that can work looks alive", (*history).looksStuck},
	{"an agent that can work renews its Lease", (*history).renewedTooLate},
}

// turns is how much later than it could be something is that takes turns with others.
const turns = 1500 * time.Millisecond

// check fails if something is wrong that is never to be.
func (h *history) check() {
	h.t.Helper()
	synctest.Wait()
	for _, invariant := range invariants {
		for _, breach := range invariant.breach(h) {
			h.t.Errorf("%s: not true any more that %s: %s", time.Now().Format("04:05.000"), invariant.name, breach)
		}
	}
}

func (h *history) lostForeign() (breaches []string) {
	o, _ := h.kernel.Observe()
	for a := range h.foreign {
		if !slices.Contains(o.Addresses, a) {
			breaches = append(breaches, fmt.Sprintf("%s is gone", a.Prefix))
		}
	}
	return breaches
}

func (h *history) withdrawn() (breaches []string) {
	for _, call := range h.kernel.TakeCalls() {
		words := strings.Fields(call)
		if words[0] != "Remove" {
			continue
		}
		address := netip.MustParsePrefix(words[1]).Addr().String()
		if since, is := h.since[address]; is && time.Since(since) > 10*time.Second && !h.isForeign(address) {
			breaches = append(breaches, fmt.Sprintf("%s has been asked for since %s", address, since.Format("04:05.000")))
		}
	}
	return breaches
}

// stuckSince is since when nothing has been done, if that is for so long that the agent counts as stuck; zero if not.
func (h *history) stuckSince() time.Time {
	if failing := h.faulty.failingSince(); !failing.IsZero() && time.Since(failing) > stuckAfter+turns {
		return failing
	}
	return time.Time{}
}

func (h *history) renewedIdly() []string {
	stuck := h.stuckSince()
	if since := h.sinceBeat(); !stuck.IsZero() && since >= 0 && since < time.Since(stuck)-stuckAfter-turns {
		return []string{
			fmt.Sprintf("renewed %s ago, and nothing has been done since %s", since, stuck.Format("04:05.000")),
		}
	}
	return nil
}

func (h *history) looksAlive() []string {
	if stuck := h.stuckSince(); !stuck.IsZero() && h.mend[kernelHangs] != nil && h.Healthy(nil) == nil {
		return []string{"nothing has been done since " + stuck.Format("04:05.000")}
	}
	return nil
}

func (h *history) looksStuck() []string {
	if isWell(h.kernelWell, maxRetry) {
		if err := h.Healthy(nil); err != nil {
			return []string{err.Error()}
		}
	}
	return nil
}

func (h *history) renewedTooLate() []string {
	since := h.sinceBeat()
	if isWell(h.allWell, maxRetry+2*time.Second) && (since < 0 || since > time.Second+turns) {
		return []string{fmt.Sprintf("last renewed %s ago", since)}
	}
	return nil
}

// isWell reports whether something has had no fault for so long, and some turns, that the agent has noticed.
func isWell(since time.Time, reaction time.Duration) bool {
	return !since.IsZero() && time.Since(since) > reaction+turns
}

func (h *history) isForeign(address string) bool {
	for a := range h.foreign {
		if a.Prefix.Addr().String() == address {
			return true
		}
	}
	return false
}
