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
	// maxTokenAge is how old a token may be when it is used.
	maxTokenAge = time.Minute
	// maxConfirmationAge is how long ago the cluster may have been found to be of the
	// manager's installation when a system is asked.
	maxConfirmationAge = time.Minute
	// endedGroupMemory is for how long records of a ServiceGroup that is gone are released.
	endedGroupMemory = time.Hour
	// SlowAfter is after how long without an answer a Service says that it waits.
	SlowAfter = 2 * time.Second
	// queuedAfter is after how long in a queue that moves it says so.
	queuedAfter = 10 * time.Second
	// minSyncInterval is how soon after the last comparison the next one follows if the system
	// has refused a request, as its ranges may be others by now, or if the report had problems,
	// as somebody may be about to mend them.
	minSyncInterval = time.Minute
	// messageInterval is how long a Service, or an address that differs, at least says the
	// same for one reason, before it says what is wrong now: of a system whose answers
	// alternate each would be a write and an event. Of a system that is away the ServiceGroup
	// has the details, and Services wait for longer.
	messageInterval     = 2 * time.Minute
	unavailableInterval = 30 * time.Minute
	// detailInterval is how long a ServiceGroup at least says the same for one reason.
	detailInterval = time.Minute
)

// Waits after a failure.
const (
	// While a Service waits, a system that is away is asked often enough for it to be
	// served within two seconds of the system's return.
	minAwayRetry   = 200 * time.Millisecond
	maxUrgentRetry = 1200 * time.Millisecond
	maxAwayRetry   = 30 * time.Second
	// A system that refuses the token has to be mended by somebody, and so has a cluster that
	// is of another installation.
	refusedRetry = 10 * time.Second
	// trialInterval is how often a system whose status question fails is tried by a job: what
	// stands before it may keep that one question back.
	trialInterval = time.Minute
	// A job that goes unanswered may just have met a restart. One that is refused may succeed
	// when somebody has changed something in the system, of which the manager hears nothing.
	// A Service waits for a request, and a group for its ranges; nobody waits for a record to
	// be deleted or to be made again.
	minJobRetry     = time.Second
	minRefusedRetry = 5 * time.Second
	maxJobRetry     = 2 * time.Minute
	maxRecordRetry  = 10 * time.Minute
	// retrySpread is the random part of these waits, so that several clusters do not
	// ask together.
	retrySpread = 0.2
)

// unansweredJobs is how many jobs in a row, each another one, have to go unanswered, among
// them a comparison, for a system to count as away whose status is well.
const unansweredJobs = 3

func (b *Broker) newAwayBackoff() pacing.Backoff { return b.newBackoff(minAwayRetry, maxAwayRetry) }

func (b *Broker) newJobBackoff() pacing.Backoff { return b.newBackoff(minJobRetry, maxJobRetry) }

func (b *Broker) newRecordBackoff() pacing.Backoff { return b.newBackoff(minJobRetry, maxRecordRetry) }

func (b *Broker) newBackoff(shortest, longest time.Duration) pacing.Backoff {
	return pacing.Backoff{Min: shortest, Max: longest, Spread: retrySpread, Random: b.Tasks.Random}
}
