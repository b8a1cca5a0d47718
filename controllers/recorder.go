package controllers

import (
	"context"
	"fmt"
	"net/http"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	eventsv1client "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"

	"github.com/purelb/purelb-operator/internal/textlimit"
)

// maxNote and maxAction are the longest note and action, in bytes, that the API server takes
// of an event. It refuses longer ones, and the event is lost.
const (
	maxNote   = 1024
	maxAction = 128
)

// BoundedRecorder is a recorder whose events are printable, and never longer than the API server
// takes.
type BoundedRecorder struct {
	events.EventRecorder
}

// Eventf records an event, with note and action in printable letters, and cut to what the API
// server takes.
func (r BoundedRecorder) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) {
	r.EventRecorder.Eventf(
		regarding, related, kind, reason, textlimit.Shorten(action, maxAction), "%s",
		textlimit.Shorten(fmt.Sprintf(note, args...), maxNote),
	)
}

// Events writes the events that the manager's controllers record.
//
// controller-runtime's own recorders would do, but that they log an error for each event
// about an object whose namespace is being deleted. Services go with their namespaces every
// day, and what their events say then is of interest to nobody.
type Events struct {
	broadcaster events.EventBroadcaster
	scheme      *runtime.Scheme
	stopWriting context.CancelFunc
}

// StartEvents starts to write events to the API server of config. The caller stops the
// Events when no controller runs any more: the end of ctx does not, as controllers still
// record events when they end.
func StartEvents(
	ctx context.Context, logger logr.Logger, config *rest.Config, httpClient *http.Client, scheme *runtime.Scheme,
) (*Events, error) {
	eventsClient, err := eventsv1client.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, fmt.Errorf("make a client for events: %w", err)
	}
	ctx, cancel := context.WithCancel(logr.NewContext(context.WithoutCancel(ctx), logger))
	e := &Events{
		broadcaster: events.NewBroadcaster(EventSink{&events.EventSinkImpl{Interface: eventsClient}}), scheme: scheme,
		stopWriting: cancel,
	}
	if err := e.broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		e.Stop()
		return nil, fmt.Errorf("start to write events: %w", err)
	}
	if _, err := e.broadcaster.StartLogging(logger.V(1)); err != nil {
		e.Stop()
		return nil, fmt.Errorf("start to log events: %w", err)
	}
	return e, nil
}

// Recorder returns a recorder whose events are reported by name.
func (e *Events) Recorder(name string) events.EventRecorder {
	return BoundedRecorder{e.broadcaster.NewRecorder(e.scheme, name)}
}

// Stop passes on the events that were recorded, and stops writing.
func (e *Events) Stop() {
	e.broadcaster.Shutdown()
	e.stopWriting()
}

// EventSink is a sink that says nothing of events that the API server refuses because their
// namespace is being deleted, or is gone.
type EventSink struct {
	events.EventSink
}

// Create writes a new event.
func (s EventSink) Create(ctx context.Context, event *eventsv1.Event) (*eventsv1.Event, error) {
	stored, err := s.EventSink.Create(ctx, event)
	if isNamespaceEnding(err) {
		return event, nil
	}
	return stored, err
}

// isNamespaceEnding reports whether the API server refuses to create an object because its
// namespace is being deleted, or is gone.
func isNamespaceEnding(err error) bool {
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return true
	}
	status, ok := err.(apierrors.APIStatus) //nolint:errorlint // the client returns it as it is
	return ok && apierrors.IsNotFound(err) && status.Status().Details != nil &&
		status.Status().Details.Kind == "namespaces"
}
