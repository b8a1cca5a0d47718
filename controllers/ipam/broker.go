package ipam

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/internal/order"
	"github.com/purelb/purelb-operator/internal/tasks"
)

// Cluster is what a Broker has to know of the cluster.
type Cluster interface {
	// EnsureInstallation returns the id of the installation, which all marks have, and records it
	// in the cluster if none is recorded. The id is the same while the process runs. An error of
	// type *Error says that what the cluster holds is of another installation: no system is asked
	// for anything. After other errors an id that was returned before is still good.
	EnsureInstallation(ctx context.Context) (types.UID, error)
	// Token reads the token for an external system from the Secret that its configuration names. An
	// error of type *Error says that there is none for it: the token read before is used no more.
	// After other errors it is.
	Token(ctx context.Context, config *allocation.Netbox) (string, error)
	// Holders returns the addresses that Services hold of a ServiceGroup, with their
	// owners, the one that is to be recorded first.
	Holders(ctx context.Context, group string) (map[netip.Addr][]Owner, error)
	// IsInUse reports whether any Service has an address, or is about to.
	IsInUse(a netip.Addr) bool
	// Objection returns a function that says why an owner cannot have an address of a
	// group, or returns an empty text.
	Objection(ctx context.Context, owner Owner, group string) (func(netip.Addr) string, error)
}

// Options of a Broker.
type Options struct {
	Cluster Cluster
	// NewSystem returns the System of a ServiceGroup. It sends nothing.
	NewSystem func(group string, config *allocation.Netbox, token string, installationID types.UID) (System, error)
	Now       func() time.Time
	// Tasks runs the queues; as goroutines, if it is nil.
	Tasks tasks.Runner
	// OnAnswersChanged is called when the answers to a Service's requests have changed, and
	// OnObservationChanged when the observation of a ServiceGroup has. They must not block.
	OnAnswersChanged     func(types.NamespacedName)
	OnObservationChanged func(group string)
	// OnDifference is called for each address of which a system has another record than
	// it ought to, once for each text. It must not block.
	OnDifference func(group string, owner Owner, text string)
}

// Observation is what a Broker knows of the system of a ServiceGroup.
type Observation struct {
	// Reason is v1.ReasonReachable, or why the system does not answer or, if it answers, why the
	// last comparison has failed. It is empty while the system has not been asked.
	Reason, Message string
	// Report is the last one, or nil if there is none yet, and SyncedAt its time.
	Report   *Report
	SyncedAt time.Time
	// Differences are what differs between the system's records and what Services hold,
	// by address. UnusedNotReleased is how many records that no Service holds are due and not
	// released, because they are suspiciously many; otherwise it is 0.
	Differences       map[netip.Addr]string
	UnusedNotReleased int
	// RequestsWithoutAddress is how many requests have no address.
	RequestsWithoutAddress int
}

// Broker asks external systems for the addresses that Services request.
//
// All that it remembers may be lost at any time. Requests come again with the next look at
// each Service, and the systems remember what was recorded for them. A release that is
// lost is found by a comparison.
type Broker struct {
	Options

	mu sync.Mutex
	// ctx is set while the Broker runs.
	ctx context.Context
	// installationID is the id that all marks have. The cluster was last found to be of that
	// installation at confirmedAt, which is zero if it is not.
	installationID types.UID
	confirmedAt    time.Time
	groups         map[string]*groupState
	// ended are ServiceGroups that are gone, by name, while records of theirs are being released, at
	// most for endedGroupMemory.
	ended    map[string]*groupState
	queues   map[endpoint]*queue
	requests map[requestKey]*requestState
	// releases are addresses to release, and repairs addresses to record.
	releases map[recordKey]*pendingRelease
	repairs  map[recordKey]*pendingRepair
	// namespaceAskedAt is when a request of each namespace was asked for last: the namespaces of
	// those that wait take turns, so that none keeps the others waiting by many requests.
	namespaceAskedAt map[string]time.Time
}

// endpoint is a system as it is reached with one token.
type endpoint struct{ url, secret, key, caBundle string }

func endpointOf(c *allocation.Netbox) endpoint {
	return endpoint{c.URL, c.TokenSecret, c.TokenKey, c.CABundle}
}

// groupState is of a ServiceGroup with an external system.
type groupState struct {
	config   *allocation.Netbox
	endpoint endpoint
	// system is nil until a token is known; token is the one that it has.
	system System
	token  string
	// comparisonSchedule is when to compare next, and comparisonFailure why the last comparison has
	// failed, or nil.
	comparisonSchedule schedule
	comparisonFailure  *Error
	// inspection is under way for the next comparison, by inspectedSystem, or nil.
	inspection      Inspection
	inspectedSystem System
	// pauses are when to ask again for what the requests of a family have in common: a free
	// address, or a permission.
	pauses map[allocation.Family]*schedule
	// unusedSince is since when each unused record was seen.
	unusedSince map[netip.Addr]time.Time
	observation Observation
	// observedAt is when the reason or message of the observation changed.
	observedAt time.Time
	// endedAt is when the group was gone.
	endedAt time.Time
}

func (b *Broker) newGroupState(config *allocation.Netbox, now time.Time) *groupState {
	return &groupState{
		config: config, endpoint: endpointOf(config), comparisonSchedule: newSchedule(now, b.newJobBackoff()),
		pauses: map[allocation.Family]*schedule{}, unusedSince: map[netip.Addr]time.Time{},
	}
}

// pauseOf returns the pause of a family of a group. It is over if there has been none.
func (b *Broker) pauseOf(g *groupState, family allocation.Family) *schedule {
	if g.pauses[family] == nil {
		g.pauses[family] = &schedule{backoff: b.newJobBackoff()}
	}
	return g.pauses[family]
}

type requestKey struct {
	uid     types.UID
	request allocation.IPAMRequest
}

// compareRequestKeys orders the keys of requests.
func compareRequestKeys(a, b requestKey) int {
	return cmp.Or(
		cmp.Compare(a.uid, b.uid), cmp.Compare(a.request.Group, b.request.Group),
		cmp.Compare(a.request.Family, b.request.Family), a.request.Address.Compare(b.request.Address),
		order.TrueFirst(a.request.IsShown, b.request.IsShown),
	)
}

// requestState is a request of a Service.
type requestState struct {
	owner Owner
	since time.Time
	// A request with an offer is asked for no more. One with a pause waits for the end of
	// that, together with others.
	schedule
	pause *schedule
	// offer is the last answer, zero until isAnswered, and answeredAt is when it changed.
	offer      allocation.Offer
	isAnswered bool
	answeredAt time.Time
	// isOfEndpoint says that the answer is why the system is away.
	isOfEndpoint bool
}

func (b *Broker) newRequestState(owner Owner, now time.Time) *requestState {
	return &requestState{owner: owner, since: now, schedule: newSchedule(now, b.newJobBackoff())}
}

func (s *requestState) hasAddress() bool { return s.isAnswered && s.offer.Reason == "" }

type recordKey struct {
	group   string
	address netip.Addr
}

// recordChange is what is still to be done to the record of one address, and when.
type recordChange struct {
	schedule
	// reportedFor is the reason for which it was reported last that this failed, or empty.
	reportedFor string
	reportedAt  time.Time
}

func (b *Broker) newRecordChange(now time.Time) recordChange {
	return recordChange{schedule: newSchedule(now, b.newRecordBackoff())}
}

// pendingRelease is an address to release.
type pendingRelease struct {
	recordChange
	// isAskedAgain says that it was asked for once more since it was last looked at: meanwhile
	// a Service may have given the address up that had it a moment before.
	isAskedAgain bool
}

// pendingRepair is an address that is to be recorded.
type pendingRepair struct {
	recordChange
	missing Missing
}

// NewBroker makes a Broker, which asks for nothing until it is started.
func NewBroker(o Options) *Broker {
	if o.Tasks == nil {
		o.Tasks = tasks.Goroutines{}
	}
	return &Broker{
		Options: o, groups: map[string]*groupState{}, ended: map[string]*groupState{}, queues: map[endpoint]*queue{},
		requests: map[requestKey]*requestState{}, releases: map[recordKey]*pendingRelease{},
		repairs: map[recordKey]*pendingRepair{}, namespaceAskedAt: map[string]time.Time{},
	}
}

// Start lets the Broker ask, until the context ends.
func (b *Broker) Start(ctx context.Context) error {
	b.mu.Lock()
	b.ctx = ctx
	for e := range b.queues {
		b.startQueue(e) //nolint:contextcheck // it is b.ctx
	}
	b.mu.Unlock()
	b.Tasks.Wait(ctx, tasks.Forever)
	return nil
}

// NeedLeaderElection says that only the leading manager asks.
func (b *Broker) NeedLeaderElection() bool { return true }

// Configure says how a ServiceGroup takes its addresses from a system; nil if it does not.
func (b *Broker) Configure(group string, config *allocation.Netbox) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.groups[group]
	switch {
	case config == nil && g == nil || g != nil && config != nil && reflect.DeepEqual(g.config, config):
		return
	case config == nil:
		delete(b.groups, group)
		b.dropRepairs(group)
		g.endedAt, b.ended[group] = b.Now(), g
		b.withdrawOffers(group, true)
		b.forgetEnded(b.Now())
		b.stopIdleQueues()
		return
	}
	now := b.Now()
	b.dropRepairs(group) // the next comparison finds them
	delete(b.ended, group)
	b.groups[group] = b.newGroupState(config, now)
	for key, r := range b.releases {
		if key.group == group {
			r.recordChange = b.newRecordChange(now)
		}
	}
	e := endpointOf(config)
	if b.queues[e] == nil {
		b.queues[e] = newQueue()
		b.startQueue(e)
	}
	b.queues[e].restart(b.newHealth())
	for key, requested := range b.requests {
		if key.request.Group == group {
			requested.pause = nil
			requested.restart(now)
		}
	}
	b.withdrawOffers(
		group, g != nil && g.config.URL == config.URL && g.config.IsByTenant() == config.IsByTenant(),
	)
	b.stopIdleQueues()
}

// withdrawOffers forgets the addresses that requests were offered by a configuration that a group has no more: each
// request is asked for again, and finds its record if the group still has the address. canRelease is that the system
// can release records of the earlier configuration; it releases the address, unless that is offered again.
func (b *Broker) withdrawOffers(group string, canRelease bool) {
	now := b.Now()
	for key, requested := range b.requests {
		if key.request.Group != group || !requested.hasAddress() {
			continue
		}
		a := requested.offer.Address
		requested.isAnswered, requested.offer, requested.since = false, allocation.Offer{}, now
		if canRelease {
			b.addRelease(recordKey{group, a}, now)
		}
	}
}

// stateOfRecords returns the state by which records of a group are released, or nil if there is none.
func (b *Broker) stateOfRecords(group string) *groupState {
	if g := b.groups[group]; g != nil {
		return g
	}
	return b.ended[group]
}

// forgetEnded forgets groups that are gone and of which nothing is to be released any more, or for so long that it
// is given up. What is being asked for of a group is not cut off.
func (b *Broker) forgetEnded(now time.Time) {
	isReleasing := map[string]bool{}
	for key := range b.releases {
		isReleasing[key.group] = true
	}
	for group, g := range b.ended {
		q := b.queues[g.endpoint]
		isBusy := q != nil && !q.busySince.IsZero()
		if now.Sub(g.endedAt) < endedGroupMemory && (isReleasing[group] || isBusy) {
			continue
		}
		delete(b.ended, group)
		maps.DeleteFunc(b.releases, func(k recordKey, _ *pendingRelease) bool { return k.group == group })
	}
}

func (b *Broker) dropRepairs(group string) {
	maps.DeleteFunc(b.repairs, func(k recordKey, _ *pendingRepair) bool { return k.group == group })
}

// SetRequests says which requests a Service has, instead of those that it had. What was offered
// to others that it had is released.
func (b *Broker) SetRequests(owner Owner, requests []allocation.IPAMRequest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.Now()
	for key, requested := range b.requests {
		if key.uid == owner.UID && !slices.Contains(requests, key.request) {
			b.dropRequest(key, requested, now)
		}
	}
	for _, request := range requests {
		key := requestKey{owner.UID, request}
		if b.requests[key] == nil {
			b.requests[key] = b.newRequestState(owner, now)
			b.wake(request.Group)
		}
	}
}

// DropRequests drops the requests of the Services of a name, apart from those with a UID. What
// was offered to them is released.
func (b *Broker) DropRequests(name types.NamespacedName, except types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for key, requested := range b.requests {
		if requested.owner.Namespace == name.Namespace && requested.owner.Name == name.Name && key.uid != except {
			b.dropRequest(key, requested, b.Now())
		}
	}
}

// dropRequest forgets a request, and asks for the release of the address that was the answer to it.
func (b *Broker) dropRequest(key requestKey, requested *requestState, now time.Time) {
	delete(b.requests, key)
	if requested.hasAddress() {
		b.addRelease(recordKey{key.request.Group, requested.offer.Address}, now)
	}
}

// QueueRelease says that a Service of a group has given an address up. The Broker releases it,
// some time later, unless another Service has it.
func (b *Broker) QueueRelease(group string, a netip.Addr) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addRelease(recordKey{group, a}, b.Now())
}

// addRelease queues the release of an address, and wakes the group's queue.
func (b *Broker) addRelease(key recordKey, at time.Time) {
	if b.stateOfRecords(key.group) == nil {
		return
	}
	if r := b.releases[key]; r != nil {
		r.isAskedAgain = true
	} else {
		b.releases[key] = &pendingRelease{recordChange: b.newRecordChange(at)}
	}
	b.wake(key.group)
}

// Offers returns the answers to the requests of a Service.
func (b *Broker) Offers(uid types.UID) map[allocation.IPAMRequest]allocation.Offer {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.Now()
	offers := map[allocation.IPAMRequest]allocation.Offer{}
	for key, requested := range b.requests {
		if key.uid != uid {
			continue
		}
		if requested.isAnswered {
			offers[key.request] = requested.offer
		} else if offer, isLate := b.lateAnswer(key.request.Group, now.Sub(requested.since)); isLate {
			offers[key.request] = offer
		}
	}
	return offers
}

// lateAnswer is what a Service says whose request has not been answered for some time.
func (b *Broker) lateAnswer(group string, waited time.Duration) (allocation.Offer, bool) {
	g := b.groups[group]
	switch {
	case waited < SlowAfter:
		return allocation.Offer{}, false
	case g == nil:
		return waitingOffer(v1.ReasonWaitingForIPAM, "ServiceGroup "+group+" has not been looked at yet"), true
	case b.queues[g.endpoint].isSlow(b.Now()):
		return waitingOffer(
			v1.ReasonIPAMUnavailable, g.config.SystemName()+" is slow to answer: the Service goes on waiting",
		), true
	case waited >= queuedAfter:
		return waitingOffer(
			v1.ReasonWaitingForIPAM,
			"others are asking "+g.config.SystemName()+" for addresses, too: the Service waits for its turn",
		), true
	}
	return allocation.Offer{}, false
}

// waitingOffer returns an Offer without an address, to a request that has not been answered yet.
func waitingOffer(reason, message string) allocation.Offer {
	return allocation.Offer{Reason: reason, Message: message, IsWaiting: true}
}

// Observation returns what is known of the system of a group, or nil if it has none.
func (b *Broker) Observation(group string) *Observation {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.groups[group]
	if g == nil {
		return nil
	}
	o := g.observation
	o.Differences = maps.Clone(o.Differences)
	for key, requested := range b.requests {
		if key.request.Group == group && !requested.hasAddress() {
			o.RequestsWithoutAddress++
		}
	}
	return &o
}
