package nodeagent

import "testing"

func TestSources(t *testing.T) {
	var (
		started  = sources{}
		restored = sources{isCacheFilled: true}
		settled  = sources{isCacheFilled: true, isLastFromAPI: true}
	)
	with := func(s sources, change func(*sources)) sources {
		change(&s)
		return s
	}
	listing := func(s *sources) { s.isListing = true }
	behind := func(s *sources) { s.isCacheBehind = true }
	both := func(s *sources) { listing(s); behind(s) }
	for _, c := range []struct {
		name    string
		sources sources
		cause   syncCause
		want    objectSource
	}{
		{"before the cache is filled", started, causeWoken, sourceLast},
		{"before the cache is filled, while a list is under way", with(started, listing), causeWoken, sourceLast},
		{"before the cache is filled, after a list", with(started, behind), causeWoken, sourceLast},
		{"the cache is filled, and nothing was listed", restored, causeWoken, sourceCache},
		{"only the checkpoint is known, and a list is under way", with(restored, listing), causeWoken, sourceCache},
		{"a list is under way, and another one was answered", with(restored, both), causeWoken, sourceLastUntilListed},
		{"a list is under way", with(settled, listing), causeWoken, sourceLastUntilListed},
		{"the cache may be behind a list", with(settled, behind), causeWoken, sourceLastAndList},
		{"the cache may be behind a list, and one is under way", with(settled, both), causeWoken, sourceLastUntilListed},
		{"as always", settled, causeWoken, sourceCache},
		{"a list is answered", with(settled, behind), causeListed, sourceList},
		{"a list is answered before the cache is filled", started, causeListed, sourceList},
		{"a list of the worker fails", with(settled, behind), causeListFailed, sourceNone},
		{"a list of the worker fails before the cache is filled", started, causeListFailed, sourceNone},
		{"a list of the heartbeat fails", settled, causeHeartbeatListFailed, sourceNone},
		{"a list of the heartbeat fails before the cache is filled", started, causeHeartbeatListFailed, sourceLast},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.sources.choose(c.cause); got != c.want {
				t.Errorf("the source is %d, want %d", got, c.want)
			}
		})
	}
}
