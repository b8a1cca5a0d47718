package watch

import (
	"cmp"
	"time"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// Settings of a Watcher, from the LBNodeAgent.
type Settings struct {
	// IsDisabled means that the node watches nobody.
	IsDisabled bool
	// Interval of rounds, and how many misses in a row make a node count as dead: at least 3.
	Interval time.Duration
	Misses   int
	// TrustsEchoOnly means that only answers to echoes are answers of the watched node's
	// kernel: the fabric answers ARP requests and neighbour solicitations for the dead.
	TrustsEchoOnly bool
}

// SettingsOf fills the gaps of an LBNodeAgent with the defaults that its CRD documents.
func SettingsOf(agent *v1.LBNodeAgent) Settings {
	s := Settings{Interval: DefaultInterval, Misses: DefaultMisses}
	if agent == nil || agent.Spec.Local == nil || agent.Spec.Local.Failover == nil {
		return s
	}
	f := agent.Spec.Local.Failover
	s.IsDisabled = f.Enabled != nil && !*f.Enabled
	if f.Interval != nil {
		s.Interval = cmp.Or(f.Interval.Duration, s.Interval)
	}
	if f.Misses != nil {
		s.Misses = max(int(*f.Misses), quietRounds+1)
	}
	s.TrustsEchoOnly = f.Trust == v1.TrustEcho
	return s
}

// secondRankRounds returns how many more misses the second successor waits for.
func (s Settings) secondRankRounds() int {
	return int((secondRankDelay + s.Interval - 1) / s.Interval)
}
