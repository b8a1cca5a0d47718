package nodeagent

// syncCause is what makes the worker look for objects by which to sync.
type syncCause int

const (
	// causeWoken: an object in the cache has changed, the kernel has, or the time has come.
	causeWoken syncCause = iota
	// causeListed: the API server has answered a list.
	causeListed
	// causeListFailed: it has not answered a list that the worker began by itself.
	causeListFailed
	// causeHeartbeatListFailed: it has not answered a list that the heartbeat asked for.
	causeHeartbeatListFailed
)

// objectSource is where the worker takes objects from, for a sync.
type objectSource int

const (
	// sourceNone: the worker does not sync.
	sourceNone objectSource = iota
	// sourceLast: what it took last; since the agent started that may be only the checkpoint.
	sourceLast
	// sourceLastUntilListed: as before, and the worker is woken again when the list that is under way has ended.
	sourceLastUntilListed
	// sourceLastAndList: as before, and the worker begins a list.
	sourceLastAndList
	// sourceCache: the cache.
	sourceCache
	// sourceList: the list that was answered.
	sourceList
)

// sources says what objects the worker could sync by.
type sources struct {
	// isCacheFilled means that the cache has been filled since the agent started.
	isCacheFilled bool
	// isCacheBehind means that a list of the heartbeat was answered so recently that the cache may be older.
	isCacheBehind bool
	// isListing means that a list is under way, whose answer may be newer than the cache.
	isListing bool
	// isLastFromAPI means that the last objects are not those of the checkpoint, so that they do until the list is
	// answered.
	isLastFromAPI bool
}

// choose returns the source for a sync. It never goes back to older objects than the worker has synced by: a cache
// that may be behind a list is not read. Before the cache is filled the heartbeat lists, so the worker need not.
func (s sources) choose(cause syncCause) objectSource {
	switch {
	case cause == causeListed:
		return sourceList
	case cause == causeListFailed: // the worker tries again a little later
		return sourceNone
	case cause == causeHeartbeatListFailed && s.isCacheFilled: // changes in the cache wake the worker
		return sourceNone
	case !s.isCacheFilled:
		return sourceLast
	case s.isListing && (s.isLastFromAPI || s.isCacheBehind):
		return sourceLastUntilListed
	case s.isCacheBehind:
		return sourceLastAndList
	default:
		return sourceCache
	}
}

// knownSources returns what objects the worker could sync by now.
func (a *Agent) knownSources() sources {
	return sources{
		isCacheFilled: a.isCacheFilled.Load(), isCacheBehind: a.freshness.hasJustListed(), isListing: a.state.isListing,
		isLastFromAPI: a.state.objects.lbNodeAgent != nil && !a.state.objects.isFromCheckpoint,
	}
}
