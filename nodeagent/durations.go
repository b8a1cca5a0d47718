package nodeagent

import (
	"time"
)

// The durations by which the agent sends, writes and waits, each with its reason. Those by
// which it decides are in packages plan, watch and reach.
const (
	// requestTimeout bounds a request to the API server. A renewal has to fit twice into the
	// three periods after which the Lease expires.
	requestTimeout = 2 * time.Second
	// defaultPeriod is the period between renewals of the Lease while no Announcement says
	// otherwise.
	defaultPeriod = 10 * time.Second
	// renewalMargin is how much later than a period after the last renewal the next one may be, and currentTime for how
	// long a renewal shows that the manager has given no address of the node to another one: it does so three seconds
	// after the last renewal at the earliest. The agent must have known at that renewal what had been decided before.
	renewalMargin = time.Second
	currentTime   = 2 * time.Second
	// minSuspension is the shortest time of suspension that counts: the two clocks that show it are
	// not read at the same moment.
	minSuspension = 100 * time.Millisecond
	// After a sync there is none for syncRestFactor times as long as it took, up to maxSyncRest: with thousands
	// of addresses a sync takes tens of milliseconds, and what changes meanwhile is one sync. The first
	// change after a rest is served at once, as are lists that the heartbeat asks for.
	syncRestFactor = 4
	maxSyncRest    = 250 * time.Millisecond
	// cacheLag is for how long the cache may be behind after a list at the API server: several
	// times what the watches wait before they try again.
	cacheLag = 5 * time.Second
	// minBackoff and maxBackoff bound the wait after a request that failed because the API
	// server does not answer: it may be back at any time.
	minBackoff = 100 * time.Millisecond
	maxBackoff = time.Second
	// minRetry and maxRetry bound the wait after a sync that failed, or a status that the API
	// server refused: it is likely to refuse the status again.
	minRetry = 200 * time.Millisecond
	maxRetry = 5 * time.Second
	// statusCheckDelay is how long after a change of an Announcement's status the agent looks
	// whether the status is right: no shorter than plan.ReprobeInterval, so that a state that
	// changes with each look is not written more often than it was.
	statusCheckDelay = time.Second

	// After reports that took long there are none for reportRestFactor times as long, up to
	// maxReportRest: when much happens, or the API server has much to do, several changes are
	// reported as one.
	reportRestFactor = 5
	maxReportRest    = 250 * time.Millisecond

	// probingReportDelay is for how long it is not reported that the link is being asked for an address: with the
	// default of two probes 100 ms apart, and a busy machine, that is over by then.
	probingReportDelay = 500 * time.Millisecond

	// checkpointReadTimeout is how long the start waits for a disk that may hang.
	checkpointReadTimeout = 2 * time.Second
	// checkpointGap is the least time between two checkpoints, unless the agent has yielded or claimed an
	// address: with many addresses a checkpoint is large, and many may come one after the other.
	checkpointGap = time.Second
	// ownershipGap is the least time between two writes of the record of the agent's addresses: short,
	// since what is added meanwhile is unknown to the next process if this one is killed.
	ownershipGap = 20 * time.Millisecond

	// stuckAfter is for how long a sync may run, whole syncs may fail, or an item may wait for
	// the worker, before the agent counts as stuck.
	stuckAfter = 5 * time.Second
	// startTimeout is how long the first sync may take to complete: it waits for the
	// checkpoint and for one request to the API server at the most.
	startTimeout = 15 * time.Second

	// renewalBudget bounds for how long one sync renews lifetimes: of thousands of addresses on a
	// busy machine that takes minutes, and what changes meanwhile must not wait. On average no renewal
	// may take longer than 40 ms with 5,000 addresses and the default lifetimes, as renewals begin
	// when 200 s remain.
	renewalBudget = time.Second

	// proxyTimeout bounds a question to the node's service proxy: it is the same machine.
	proxyTimeout = 200 * time.Millisecond
	// proxyBudget bounds for how long one sync asks the proxy in all, so that a proxy that does
	// not answer keeps no other address waiting.
	proxyBudget = time.Second

	// For eagerFor after a carrier came back an agent asks for its addresses each
	// eagerInterval: a switch may not forward at once.
	eagerInterval = 50 * time.Millisecond
	eagerFor      = 5 * time.Second
	// relistenAfter is how long after an interface could not be listened to it is tried again.
	relistenAfter = 200 * time.Millisecond
	// rewatchAfter is how long after the kernel could not be watched it is tried again.
	rewatchAfter = time.Second
	// aloneInterval is how long a node waits for answers to each of the aloneProbes by which it finds out
	// whether it is alone on a link.
	aloneInterval = 100 * time.Millisecond
	// wakeGap is the least time between two wakes of the worker by what was heard.
	wakeGap = 100 * time.Millisecond
	// gatewayCacheTTL is for how long the MACs of the gateways are used before they are looked
	// up again, as any station may make a lot of noise.
	gatewayCacheTTL = 5 * time.Second

	// dialTimeout is short: an API server that does not answer is asked again.
	dialTimeout = 3 * time.Second
	// unacknowledgedTimeout is for how long what was sent may be on its way before the kernel
	// ends a connection (TCP_USER_TIMEOUT, tcp(7)): shorter than a renewal may take, so that
	// the connection is made again in time. An API server that is only slow acknowledges, and
	// keeps its connections: making them anew is work for it.
	unacknowledgedTimeout = 800 * time.Millisecond
	keepAliveInterval     = 10 * time.Second
)

const (
	// askRate is how many addresses an agent that is not fresh asks for in a second.
	askRate = 200
	// aloneProbes is how often a node asks whether it is alone on a link.
	aloneProbes = 3
	// maxProxyAddrs bounds at how many of the node's addresses the proxy is asked.
	maxProxyAddrs = 8
)
