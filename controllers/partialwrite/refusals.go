package partialwrite

import (
	"maps"
	"net/netip"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

// An entry that was refused is tried again after minRefusalWait, and after twice as long
// each time, up to maxRefusalWait: an administrator mends what refuses it, in minutes.
const (
	minRefusalWait = time.Second
	maxRefusalWait = 5 * time.Minute
)

// Refusals are the entries that the API server has refused, so that each is tried again
// only now and then, and holds up no other. A manager that starts, or becomes the leader,
// begins with an empty one: it tries each once more.
type Refusals struct {
	mu sync.Mutex
	// byOwner is by owner, which is a node or an LBNodeAgent, and by address.
	byOwner map[string]map[string]refusal
}

type refusal struct {
	entry   v1.AnnouncedAddress
	why     placement.Explanation
	retry   pacing.Backoff
	retryAt time.Time
}

// isOf reports whether an entry is the one that was refused. Its epoch does not count.
func (r refusal) isOf(e v1.AnnouncedAddress) bool {
	e.Epoch = r.entry.Epoch
	return equality.Semantic.DeepEqual(r.entry, e)
}

// WithoutRefused returns the wanted entries of an owner, of which those that were refused,
// and are not to be tried again yet, are as they are stored, or missing if they are not
// stored. Refusals of entries that are not wanted any more are forgotten.
func (r *Refusals) WithoutRefused(
	owner string, wanted, stored []v1.AnnouncedAddress, now time.Time,
) []v1.AnnouncedAddress {
	r.mu.Lock()
	defer r.mu.Unlock()
	refused := r.byOwner[owner]
	if len(refused) == 0 {
		return wanted
	}
	current := map[string]refusal{}
	accepted := WithStored(wanted, stored, func(e *v1.AnnouncedAddress) bool {
		old, exists := refused[e.Address]
		isSame := exists && old.isOf(*e)
		if isSame {
			current[e.Address] = old
		}
		return isSame && now.Before(old.retryAt)
	})
	r.byOwner[owner] = current
	return accepted
}

// NoteWrite notes which of the wanted entries of an owner were refused, and why. An entry of an earlier
// refusal that was written now is forgotten, unless it is not known what became of it.
func (r *Refusals) NoteWrite(owner string, wanted []v1.AnnouncedAddress, outcome Outcome, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.byOwner[owner]
	if len(before) == 0 && len(outcome.Refused) == 0 {
		return
	}
	after := map[string]refusal{}
	maps.Copy(after, before)
	for _, e := range wanted {
		if old, exists := after[e.Address]; exists && old.isOf(e) && outcome.Err == nil {
			delete(after, e.Address)
		}
	}
	for _, e := range outcome.Refused {
		retry := pacing.Backoff{Min: minRefusalWait, Max: maxRefusalWait}
		if old, exists := before[e.Address]; exists {
			retry = old.retry
		}
		retryAfter := now.Add(retry.Next())
		after[e.Address] = refusal{entry: e, retryAt: retryAfter, retry: retry,
			why: placement.Explanation{
				Reason: v1.ReasonRefused,
				Message: "the API server refuses what is to be announced: " +
					textlimit.Shorten(outcome.Refusal.Error(), 256),
			}}
	}
	if r.byOwner == nil {
		r.byOwner = map[string]map[string]refusal{}
	}
	r.byOwner[owner] = after
}

// Prune forgets the refusals of what is not an owner any more.
func (r *Refusals) Prune(isOwner func(string) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for owner, refused := range r.byOwner {
		if len(refused) == 0 || !isOwner(owner) {
			delete(r.byOwner, owner)
		}
	}
}

// Explanations says why addresses are not announced as they are to be.
func (r *Refusals) Explanations() map[netip.Addr]placement.Explanation {
	r.mu.Lock()
	defer r.mu.Unlock()
	explanations := map[netip.Addr]placement.Explanation{}
	for _, refused := range r.byOwner {
		for address, old := range refused {
			if addr, err := netip.ParseAddr(address); err == nil {
				explanations[addr] = old.why
			}
		}
	}
	return explanations
}

// UntilRetry is in how long an entry is to be tried again; 0 is never.
func (r *Refusals) UntilRetry(now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := time.Duration(0)
	for _, refused := range r.byOwner {
		for _, old := range refused {
			if left := max(old.retryAt.Sub(now), time.Millisecond); next == 0 || left < next {
				next = left
			}
		}
	}
	return next
}
