package controllers

import (
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/purelb/purelb-operator/internal/pacing"
)

// reminders say when a Service that waits for addresses says again why, by an event: the API server
// forgets events, by default after an hour.
//
// The process loses them when it ends: then a Service says so again reminderMin later. The zero
// value is ready for use.
type reminders struct {
	// random returns a random duration from 0 to below a longest one; nil for a source of the process.
	random func(below time.Duration) time.Duration

	mu sync.Mutex
	// services has an entry for each Service that waits.
	services map[client.ObjectKey]*reminder
}

// reminder is of one Service. It is due at a time, and about a refusal, of which it has the hash.
type reminder struct {
	pacing.Backoff
	due         time.Time
	refusalHash uint64
}

// schedule reports whether a Service that waits is to say so again, and returns in how long it has to be
// looked at for that. refusal says why the Service waits; it is empty if it does not, which ends the
// matter. Another refusal than before is a new one, of which the Service has just said that it waits.
func (r *reminders) schedule(key client.ObjectKey, refusal string, now time.Time) (isDue bool, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if refusal == "" {
		delete(r.services, key)
		return false, 0
	}
	about := xxhash.Sum64String(refusal)
	one := r.services[key]
	switch {
	case one == nil || one.refusalHash != about:
		waits := pacing.Backoff{Min: reminderMin, Max: reminderMax, Spread: reminderSpread, Random: r.random}
		one = &reminder{Backoff: waits, refusalHash: about}
		if r.services == nil {
			r.services = map[client.ObjectKey]*reminder{}
		}
		r.services[key] = one
	case now.Before(one.due):
		return false, one.due.Sub(now)
	default:
		isDue = true
	}
	wait = one.Next()
	one.due = now.Add(wait)
	return isDue, wait
}

// forget drops what is known of a Service that does not wait.
func (r *reminders) forget(key client.ObjectKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.services, key)
}
