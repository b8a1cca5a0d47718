package routes

import (
	"net/netip"
	"slices"
	"time"
)

// lingerTime is how long a route is advertised beside the one that replaces it. The BGP library sends
// withdrawals before routes that are added at the same time, and routers take a while to install a route.
const lingerTime = time.Second

// Lingering are the routes that others replace, by when that began.
type Lingering map[netip.Prefix]time.Time

// AddTo returns what the BGP library is to hold with the routes that linger, those that linger now,
// and in how long the first of them goes; 0 is never. A route lingers when it is not desired any more
// and a route is added that has addresses of its network: at no time are neighbours without a route to
// an address whose network becomes larger or smaller. It keeps its attributes and its rules.
func (l Lingering) AddTo(held, desired Config, now time.Time) (extended Config, next Lingering, wait time.Duration) {
	isHeld, isDesired := prefixesOf(held.Paths), prefixesOf(desired.Paths)
	extended, next = desired, Lingering{}
	extended.Paths, extended.Rules = slices.Clone(desired.Paths), slices.Clone(desired.Rules)
	for _, p := range held.Paths {
		if isDesired[p.Prefix] {
			continue
		}
		since, lingers := l[p.Prefix]
		if !lingers {
			since = now
		}
		isReplaced := slices.ContainsFunc(desired.Paths, func(other Path) bool {
			return other.Prefix.Overlaps(p.Prefix) && (lingers || !isHeld[other.Prefix])
		})
		rest := lingerTime - now.Sub(since)
		if !isReplaced || rest <= 0 {
			continue
		}
		next[p.Prefix] = since
		extended.Paths = append(extended.Paths, p)
		if wait == 0 || rest < wait {
			wait = rest
		}
	}
	for _, r := range held.Rules {
		r.Prefixes = slices.DeleteFunc(slices.Clone(r.Prefixes), func(p netip.Prefix) bool {
			_, lingers := next[p]
			return !lingers
		})
		if len(r.Prefixes) > 0 {
			extended.Rules = append(extended.Rules, r)
		}
	}
	return extended, next, wait
}

func prefixesOf(paths []Path) map[netip.Prefix]bool {
	prefixes := make(map[netip.Prefix]bool, len(paths))
	for i := range paths {
		prefixes[paths[i].Prefix] = true
	}
	return prefixes
}
