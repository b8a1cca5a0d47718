package routes

import (
	"errors"
	"maps"
	"net/netip"
	"reflect"
	"slices"
)

// Changes are what to change of what the BGP library holds, in this order; routes are sent anew last.
type Changes struct {
	RemovePaths []netip.Prefix
	// Rules replace all rules, if ReplacesRules is true. ResendsRoutes sends all routes anew, because a
	// rule has changed for a route that neighbours may have already.
	ReplacesRules bool
	Rules         []Rule
	AddPaths      []Path
	ResendsRoutes bool
	// UpdatePeers have other settings for the library, with which their sessions go on: BFD is not the
	// library's. ReopenPeers have other
	// settings that a session is opened with: neighbours that support graceful restart keep the
	// routes meanwhile.
	RemovePeers, UpdatePeers, ReopenPeers, AddPeers []Peer
}

// IsEmpty reports whether there is nothing to change.
func (c *Changes) IsEmpty() bool {
	return len(c.RemovePaths)+len(c.AddPaths)+len(c.RemovePeers)+len(c.UpdatePeers)+len(c.ReopenPeers)+
		len(c.AddPeers) == 0 && !c.ReplacesRules
}

// Diff returns what to change of what the BGP library holds. Paths are removed before the
// rules change and added after, so that no route is ever sent against its rules; a peer is
// added last, so that its session begins with all routes. As long as addPeers is false, no peer is
// added.
func Diff(held, desired Config, addPeers bool) Changes {
	var c Changes
	heldPaths := map[netip.Prefix]Path{}
	for _, p := range held.Paths {
		heldPaths[p.Prefix] = p
	}
	stays := map[netip.Prefix]bool{}
	for _, p := range desired.Paths {
		before, exists := heldPaths[p.Prefix]
		stays[p.Prefix] = exists
		if !exists || !reflect.DeepEqual(before, p) {
			c.AddPaths = append(c.AddPaths, p)
		}
	}
	for _, p := range held.Paths {
		if _, wanted := stays[p.Prefix]; !wanted {
			c.RemovePaths = append(c.RemovePaths, p.Prefix)
		}
	}
	if !reflect.DeepEqual(held.Rules, desired.Rules) {
		c.ReplacesRules, c.Rules = true, desired.Rules
		c.ResendsRoutes = !reflect.DeepEqual(rulesAbout(held.Rules, stays), rulesAbout(desired.Rules, stays))
	}
	same := func(a Peer) func(Peer) bool { return func(b Peer) bool { return a.Neighbour == b.Neighbour } }
	for _, p := range held.Peers {
		if !slices.ContainsFunc(desired.Peers, same(p)) {
			c.RemovePeers = append(c.RemovePeers, p)
		}
	}
	for _, p := range desired.Peers {
		switch i := slices.IndexFunc(held.Peers, same(p)); {
		case i < 0 && addPeers:
			c.AddPeers = append(c.AddPeers, p)
		case i < 0:
		case !reflect.DeepEqual(settingsOfSession(held.Peers[i]), settingsOfSession(p)):
			c.ReopenPeers = append(c.ReopenPeers, p)
		case held.Peers[i].ConnectSeconds != p.ConnectSeconds:
			c.UpdatePeers = append(c.UpdatePeers, p)
		}
	}
	return c
}

// rulesAbout are the rules for the routes that stay; others do not matter to routes that
// neighbours have.
func rulesAbout(rules []Rule, stays map[netip.Prefix]bool) []Rule {
	var about []Rule
	for _, r := range rules {
		if len(r.Prefixes) > 0 {
			r.Prefixes = slices.DeleteFunc(slices.Clone(r.Prefixes), func(p netip.Prefix) bool { return !stays[p] })
			if len(r.Prefixes) == 0 {
				continue
			}
		}
		about = append(about, r)
	}
	return about
}

// settingsOfSession returns those settings of a neighbour that its session is opened with: the password, not where it
// comes from. Whether the speaker says that it has restarted matters to its first session only.
func settingsOfSession(p Peer) Peer {
	settings := Peer{RoutingPeer: p.SessionSettings(), Password: p.Password}
	settings.PasswordFile = ""
	return settings
}

// Refusals is what the BGP library has not taken of Changes, with the reasons.
type Refusals struct {
	// Paths were not added, or not removed.
	Paths map[netip.Prefix]error
	// Rules did not replace the others, or the routes could not be sent anew by them.
	Rules error
	// Peers were not added, or have the settings that they had.
	Peers map[netip.Addr]error
}

// Err is all reasons, or nil if everything was taken.
func (r *Refusals) Err() error {
	errs := []error{r.Rules}
	for _, prefix := range slices.SortedFunc(maps.Keys(r.Paths), netip.Prefix.Compare) {
		errs = append(errs, r.Paths[prefix])
	}
	for _, addr := range slices.SortedFunc(maps.Keys(r.Peers), netip.Addr.Compare) {
		errs = append(errs, r.Peers[addr])
	}
	return errors.Join(errs...)
}

// AfterChanges returns what the BGP library holds once the changes are made that it has not refused. What it
// has refused differs from what is desired, and is changed again.
func AfterChanges(held, desired Config, c Changes, refused Refusals) Config {
	after := Config{Networks: desired.Networks, Rules: desired.Rules, Waiting: desired.Waiting}
	if refused.Rules != nil {
		after.Rules = held.Rules
	}
	for _, p := range desired.Paths {
		if refused.Paths[p.Prefix] == nil {
			after.Paths = append(after.Paths, p)
		}
	}
	for _, p := range held.Paths {
		if refused.Paths[p.Prefix] != nil {
			after.Paths = append(after.Paths, p)
		}
	}
	isAmong := func(peers []Peer, p Peer) bool {
		return slices.ContainsFunc(peers, func(other Peer) bool { return other.Neighbour == p.Neighbour })
	}
	for _, p := range desired.Peers {
		i := slices.IndexFunc(held.Peers, func(h Peer) bool { return h.Neighbour == p.Neighbour })
		switch isRefused := refused.Peers[p.Neighbour] != nil; {
		case isRefused && isAmong(c.UpdatePeers, p):
			after.Peers = append(after.Peers, held.Peers[i])
		case isRefused:
		case i >= 0, isAmong(c.AddPeers, p):
			after.Peers = append(after.Peers, p)
		}
	}
	return after
}
