package placement

import (
	"net/netip"
	"time"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// Deadlines.
const (
	// ReactionTime is how long an agent may take to act on an entry, besides the time that
	// its probes take. After that an elected node that has not reported counts as failed, and a
	// holder that has not observed that its entry is handed over is not waited for.
	ReactionTime = 5 * time.Second
	// LingeringTime is how long an address that no node has an entry for waits for a node
	// that reports it Announced to withdraw it.
	LingeringTime = 10 * time.Second
	// FactsPatience is how long an agent that renews its Lease, or whose node has no
	// Announcement or a new one, may take to report its node's interfaces: the time to pull an
	// image and to start.
	FactsPatience = 30 * time.Second
	// NotReadyPatience is how long a Node is NotReady before addresses that it still
	// answers for are taken over. No traffic is lost meanwhile, and the node may only
	// have been cut off the API server for a moment.
	NotReadyPatience = 10 * time.Second
	// ReplacementPatience is how long the Lease of a successor or of a witness is expired before another node is
	// named instead: the time to pull an image and to start, as each agent does on an upgrade. To name another node costs
	// a write and an epoch for each address, and meanwhile the other successor claims.
	ReplacementPatience = 30 * time.Second
	// minSuccessorWait is for how long no epochs of addresses of a node are reserved for
	// further successors after some have claimed addresses of the node, and
	// maxSuccessorWait the most that this becomes, as it doubles each time: a link that
	// makes a living node seem dead again and again moves addresses, or is asked about them,
	// only so often.
	minSuccessorWait = 10 * time.Second
	maxSuccessorWait = 5 * time.Minute
)

// Clocks says for how long inputs have been as they are. A manager that becomes the
// leader, or starts, begins with an empty one: all deadlines then begin anew, and what
// they wait for waits that much longer.
type Clocks struct {
	// entrySince is since when each entry has stood as it does.
	entrySince map[entryKey]entryVersion
	// lingeringSince is since when each node has reported an address without an entry.
	lingeringSince map[entryKey]time.Time
	// freshSince is when each agent was first seen to renew its Lease. An agent cannot
	// begin anew by falling silent.
	freshSince map[string]time.Time
	// claimSince is since when each claim has been there.
	claimSince map[epochKey]time.Time
	// successorWaits are of the nodes of which successors have claimed addresses.
	successorWaits map[string]successorWait
	// notReadySince is since when each Node has been NotReady, as far as this manager has seen:
	// the clock by which the Node says so is another one.
	notReadySince map[string]time.Time
	// expiredSince is since when the Lease of each node has been expired, while those of most nodes were not, as a fault
	// of the API server says nothing of a node, or while the Node was NotReady for long.
	expiredSince map[string]time.Time
	// sureSince is since when each node has not been in doubt.
	sureSince map[string]time.Time
	// withoutAnnouncementSince is since when each node has had no Announcement. Agents
	// cannot delete one.
	withoutAnnouncementSince map[string]time.Time
}

type entryKey struct {
	node string
	addr netip.Addr
}

type epochKey struct {
	entryKey
	epoch int64
}

// successorWait is until when no epochs are reserved for successors of a node, and how long
// that is after the last claim.
type successorWait struct {
	wait  time.Duration
	until time.Time
}

// next returns the wait after a claim that is there now.
func (w successorWait) next(now time.Time) successorWait {
	switch {
	case now.Sub(w.until) > maxSuccessorWait:
		w.wait = minSuccessorWait
	case !now.Before(w.until):
		w.wait = min(2*w.wait, maxSuccessorWait)
	}
	w.until = now.Add(w.wait)
	return w
}

// entryVersion is what counts of an entry, and since when the entry has been so.
type entryVersion struct {
	epoch         int64
	claimPolicy   v1.ClaimPolicy
	isHandingOver bool
	hasReported   bool
	since         time.Time
}

// FillDurations sets what of the inputs depends on time, and forgets what is not in the
// inputs any more.
func (c *Clocks) FillDurations(inputs *Inputs, now time.Time) {
	c.fillEntries(inputs, now)
	c.fillLingering(inputs, now)
	c.fillClaims(inputs, now)
	c.fillNodes(inputs, now)
	c.fillDoubts(inputs, now)
}

func (c *Clocks) fillEntries(inputs *Inputs, now time.Time) {
	entrySince := make(map[entryKey]entryVersion, len(inputs.Entries))
	for i := range inputs.Entries {
		e := &inputs.Entries[i]
		key := entryKey{e.Node, e.Addr}
		current := entryVersion{
			epoch: e.Spec.Epoch, claimPolicy: e.Spec.ClaimPolicy, isHandingOver: e.Spec.HandingOver,
			hasReported: e.hasReported(),
		}
		old, existed := c.entrySince[key]
		if current.since = old.since; !existed || current != old {
			current.since = now
		}
		entrySince[key] = current
		e.UnchangedFor = now.Sub(current.since)
	}
	c.entrySince = entrySince
}

func (c *Clocks) fillLingering(inputs *Inputs, now time.Time) {
	lingeringSince := map[entryKey]time.Time{}
	for addr, reports := range inputs.LingeringReports {
		for i := range reports {
			key := entryKey{reports[i].Node, addr}
			since := sinceOrNow(c.lingeringSince, key, now)
			lingeringSince[key] = since
			reports[i].Age = now.Sub(since)
		}
	}
	c.lingeringSince = lingeringSince
}

// fillClaims sets the age of claims, and for how long their holders get no further successors.
func (c *Clocks) fillClaims(inputs *Inputs, now time.Time) {
	claimSince, waits := map[epochKey]time.Time{}, map[string]successorWait{}
	for i := range inputs.SuccessorClaims {
		claim := &inputs.SuccessorClaims[i]
		key := epochKey{entryKey{claim.Node, claim.Addr}, claim.Epoch}
		claimSince[key] = sinceOrNow(c.claimSince, key, now)
		claim.Age = now.Sub(claimSince[key])
		waits[claim.Holder] = c.successorWaits[claim.Holder].next(now)
	}
	for holder, w := range c.successorWaits {
		if _, isClaimed := waits[holder]; !isClaimed && now.Sub(w.until) <= maxSuccessorWait {
			waits[holder] = w
		}
	}
	c.claimSince, c.successorWaits = claimSince, waits
	for i := range inputs.Nodes {
		inputs.Nodes[i].SuccessorWait = max(waits[inputs.Nodes[i].Name].until.Sub(now), 0)
	}
}

func (c *Clocks) fillNodes(inputs *Inputs, now time.Time) {
	freshSince, withoutAnnouncementSince := map[string]time.Time{}, map[string]time.Time{}
	notReadySince, expiredSince := map[string]time.Time{}, map[string]time.Time{}
	countsExpiries := !isMassExpiry(inputs.Nodes)
	for i := range inputs.Nodes {
		n := &inputs.Nodes[i]
		if n.IsDeleted {
			continue // another node may come by its name
		}
		if n.IsNotReady {
			notReadySince[n.Name] = sinceOrNow(c.notReadySince, n.Name, now)
			n.NotReadyFor = now.Sub(notReadySince[n.Name])
			n.IsNotReadyForLong = n.IsNotReadyForLong || n.NotReadyFor >= NotReadyPatience
		}
		if n.Liveness == Expired && (countsExpiries || n.IsNotReadyForLong) {
			expiredSince[n.Name] = sinceOrNow(c.expiredSince, n.Name, now)
			n.ExpiredFor = now.Sub(expiredSince[n.Name])
			n.IsExpiredForLong = n.ExpiredFor >= ReplacementPatience
		}
		if n.LacksAnnouncement {
			since := sinceOrNow(c.withoutAnnouncementSince, n.Name, now)
			withoutAnnouncementSince[n.Name] = since
			n.AreFactsAwaited = n.AreFactsAwaited || n.LBNodeAgent != "" && !n.IsNotReady && now.Sub(since) < FactsPatience
		}
		if _, wasFresh := c.freshSince[n.Name]; wasFresh || n.Liveness == Fresh {
			since := sinceOrNow(c.freshSince, n.Name, now)
			freshSince[n.Name] = since
			n.AreFactsOverdue = now.Sub(since) >= FactsPatience
		}
	}
	c.freshSince, c.withoutAnnouncementSince = freshSince, withoutAnnouncementSince
	c.notReadySince, c.expiredSince = notReadySince, expiredSince
}

// fillDoubts sets which nodes are in doubt, and for how long the others have not been.
func (c *Clocks) fillDoubts(inputs *Inputs, now time.Time) {
	sureSince := map[string]time.Time{}
	if inputs.SlowsLeases {
		inDoubt := inputs.nodesInDoubt()
		for i := range inputs.Nodes {
			n := &inputs.Nodes[i]
			if n.IsInDoubt = inDoubt[n.Name]; n.IsInDoubt {
				continue
			}
			sureSince[n.Name] = sinceOrNow(c.sureSince, n.Name, now)
			n.SureFor = now.Sub(sureSince[n.Name])
		}
	}
	c.sureSince = sureSince
}

func sinceOrNow[K comparable](times map[K]time.Time, key K, now time.Time) time.Time {
	if since, known := times[key]; known {
		return since
	}
	return now
}
