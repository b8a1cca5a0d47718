package controllers_test

import (
	"context"
	"strings"
	"testing"
	"unicode"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	eventsv1client "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers"
)

// TestEventsOfEndingNamespace writes events where no event can be: that is no error. What
// the API server refuses for another reason is one.
func TestEventsOfEndingNamespace(t *testing.T) {
	g := begin(t)
	ctx := context.Background()
	// The API server of the tests has no controller that would end the deletion.
	ending := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ending"}}
	g.Expect(client.IgnoreAlreadyExists(api.Create(ctx, ending))).To(Succeed())
	if err := api.Delete(ctx, ending); !apierrors.IsConflict(err) { // it is being deleted already
		g.Expect(err).NotTo(HaveOccurred())
	}
	eventsClient, err := eventsv1client.NewForConfig(serverConfig)
	g.Expect(err).NotTo(HaveOccurred())
	plain := &events.EventSinkImpl{Interface: eventsClient}
	event := func(namespace, reason string) *eventsv1.Event {
		return &eventsv1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "a"}, EventTime: metav1.NowMicro(),
			Type: corev1.EventTypeNormal, Reason: reason,
			Action: "Release", ReportingController: "purelb-allocator", ReportingInstance: "a",
			Regarding: corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: namespace, Name: "a"},
		}
	}
	for _, row := range []struct {
		name, namespace, reason string
		plainSays, says         func(error) bool
	}{
		{"of a namespace", user, v1.EventAddressReleased, nil, nil},
		{"of one that is being deleted", "ending", v1.EventAddressReleased, apierrors.IsForbidden, nil},
		{"of one that is gone", "gone", v1.EventAddressReleased, apierrors.IsNotFound, nil},
		{"that is not valid", user, "", apierrors.IsInvalid, apierrors.IsInvalid},
	} {
		t.Run(row.name, func(t *testing.T) {
			g := NewWithT(t)
			expect := func(err error, says func(error) bool) {
				if says == nil {
					g.Expect(err).NotTo(HaveOccurred())
				} else {
					g.Expect(says(err)).To(BeTrue(), "%v", err)
				}
			}
			_, err := plain.Create(ctx, event(row.namespace, row.reason))
			expect(err, row.plainSays)
			_, err = controllers.EventSink{EventSink: plain}.Create(ctx, event(row.namespace, row.reason))
			expect(err, row.says)
		})
	}
}

// TestEventsAreWritten records an event as the manager does.
func TestEventsAreWritten(t *testing.T) {
	g := begin(t)
	httpClient, err := rest.HTTPClientFor(serverConfig)
	g.Expect(err).NotTo(HaveOccurred())
	recorded, err := controllers.StartEvents(t.Context(), logr.Discard(), serverConfig, httpClient, scheme.Scheme)
	g.Expect(err).NotTo(HaveOccurred())
	defer recorded.Stop()
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: user, Name: "reported"}}
	create(t, cm)
	recorded.Recorder("purelb-test").Eventf(cm, nil, corev1.EventTypeNormal, "Tested", "Test", "%d", 1)
	g.Eventually(eventsOf(cm, "Tested")).Should(Equal([]string{"purelb-test: 1"}))
}

// TestAttackUnprintableEvent records what others have written: the event has what is printable of
// it, in one line and no longer than the API server takes.
func TestAttackUnprintableEvent(t *testing.T) {
	g := NewWithT(t)
	recorder := events.NewFakeRecorder(1)
	controllers.BoundedRecorder{EventRecorder: recorder}.Eventf(&corev1.Service{}, nil, corev1.EventTypeWarning, "Reason",
		"Action", "node %s: %s",
		"n1", "down\x1b[2J\x07\u202e\r\nNormal   Announced"+strings.Repeat(" long", 500))
	var event string
	g.Expect(recorder.Events).To(Receive(&event))
	g.Expect(event).To(HavePrefix("Warning Reason node n1: down?[2J?? Normal Announced long"))
	g.Expect(len(event)).To(BeNumerically("<", 1100))
	g.Expect(strings.ContainsFunc(event, func(r rune) bool { return !unicode.IsPrint(r) })).To(BeFalse(), "%q", event)
}
