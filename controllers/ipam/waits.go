package ipam

import (
	"time"

	"github.com/purelb/purelb-operator/internal/pacing"
)

// Waits for a system that answers.
const (
	// syncInterval is the time between two comparisons of a group.
	syncInterval = 10 * time.Minute
	// unusedGrace is for how long a record is left that no Service holds. It is longer than
	// any request takes, and two comparisons see the record: so the manager that made it
	// for a Service has written it there, or has ended.
	unusedGrace = 10 * time.Minute
	// tokenAge is how old a token may be when it is used.
	tokenAge = time.Minute
	// SlowAfter is after how long without an answer a Service says that it waits.
	SlowAfter = 2 * time.Second
	// queuedAfter is after how long in a queue that moves it says so.
	queuedAfter = 10 * time.Second
	// checkAfter is how soon after the last comparison the next one follows if the system
	// has refused a claim: its ranges may be others by now.
	checkAfter = time.Minute
)

// Waits after a failure.
const (
	// While a Service waits, a system that is away is asked often enough for it to be
	// served within two seconds of the system's return.
	minAwayRetry   = 200 * time.Millisecond
	maxUrgentRetry = 1200 * time.Millisecond
	maxAwayRetry   = 30 * time.Second
	// A system that refuses the token has to be mended by somebody.
	refusedRetry = 10 * time.Second
	// A claim that was refused may succeed when somebody has changed something in the
	// system, of which the manager hears nothing.
	minClaimRetry = 5 * time.Second
	maxClaimRetry = 2 * time.Minute
	// retrySpread is the random part of these waits, so that several clusters do not
	// ask together.
	retrySpread = 0.2
)

func newAwayBackoff() pacing.Backoff {
	return pacing.Backoff{Min: minAwayRetry, Max: maxAwayRetry, Spread: retrySpread}
}

func newClaimBackoff() pacing.Backoff {
	return pacing.Backoff{Min: minClaimRetry, Max: maxClaimRetry, Spread: retrySpread}
}
