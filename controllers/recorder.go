package controllers

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"

	"github.com/purelb/purelb-operator/internal/textlimit"
)

// maxNote and maxAction are the longest note and action, in bytes, that the API server takes
// of an event. It refuses longer ones, and the event is lost.
const (
	maxNote   = 1024
	maxAction = 128
)

// BoundedRecorder is a recorder whose events are never longer than the API server takes.
type BoundedRecorder struct {
	events.EventRecorder
}

// Eventf records an event, with note and action cut to what the API server takes.
func (r BoundedRecorder) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) {
	r.EventRecorder.Eventf(regarding, related, kind, reason, textlimit.Shorten(action, maxAction), "%s", textlimit.Shorten(fmt.Sprintf(note, args...), maxNote))
}
