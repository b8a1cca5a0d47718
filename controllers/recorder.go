package controllers

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
)

// What the API server takes of an event's note and action, in bytes. It refuses
// longer ones, and the event is lost.
const (
	maxNote   = 1024
	maxAction = 128
)

// BoundedRecorder is a recorder whose events are never too long.
type BoundedRecorder struct {
	events.EventRecorder
}

// Eventf records an event, cut to what the API server takes.
func (r BoundedRecorder) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) {
	r.EventRecorder.Eventf(regarding, related, kind, reason, shorten(action, maxAction), "%s", shorten(fmt.Sprintf(note, args...), maxNote))
}
