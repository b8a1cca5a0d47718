package informer

import (
	"context"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
)

// fedServer is an API server whose watches the test feeds.
type fedServer struct {
	opened chan metav1.ListOptions
	next   chan *watch.FakeWatcher
	err    error
}

func (s *fedServer) ListWithContext(context.Context, metav1.ListOptions) (runtime.Object, error) {
	return &corev1.ServiceList{}, nil
}

func (s *fedServer) WatchWithContext(_ context.Context, options metav1.ListOptions) (watch.Interface, error) {
	s.opened <- options
	if s.err != nil {
		return nil, s.err
	}
	w := watch.NewFake()
	s.next <- w
	return w, nil
}

func service(version string, annotations map[string]string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{ResourceVersion: version, Annotations: annotations}}
}

func TestResume(t *testing.T) {
	initial := map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	for _, row := range []struct {
		name    string
		options metav1.ListOptions
		feed    func(*watch.FakeWatcher)
		events  int
		version string // from which the watch resumes; empty if it ends
	}{
		{"no event", metav1.ListOptions{ResourceVersion: "5"}, func(*watch.FakeWatcher) {}, 0, "5"},
		{"events", metav1.ListOptions{ResourceVersion: "5"}, func(w *watch.FakeWatcher) {
			w.Add(service("6", nil))
			w.Modify(service("9", nil))
		}, 2, "9"},
		{
			"a bookmark", metav1.ListOptions{ResourceVersion: "5"},
			func(w *watch.FakeWatcher) { w.Action(watch.Bookmark, service("20", nil)) }, 1, "20",
		},
		{"from any version", metav1.ListOptions{ResourceVersion: "0"}, func(*watch.FakeWatcher) {}, 0, ""},
		{
			"during the initial events", metav1.ListOptions{SendInitialEvents: ptr.To(true)},
			func(w *watch.FakeWatcher) { w.Add(service("6", nil)) }, 1, "",
		},
		{"after the initial events", metav1.ListOptions{
			SendInitialEvents: ptr.To(true), ResourceVersionMatch: "NotOlderThan",
		}, func(w *watch.FakeWatcher) {
			w.Add(service("6", nil))
			w.Action(watch.Bookmark, service("7", initial))
			w.Add(service("8", nil))
		}, 3, "8"},
		{"an error of the API server", metav1.ListOptions{ResourceVersion: "5"}, func(w *watch.FakeWatcher) {
			w.Error(&metav1.Status{Code: http.StatusGone})
		}, 1, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := &fedServer{opened: make(chan metav1.ListOptions, 10), next: make(chan *watch.FakeWatcher, 10)}
			w, err := (&persistent{lw: s}).WatchWithContext(t.Context(), row.options)
			if err != nil {
				t.Fatal(err)
			}
			<-s.opened
			go func() {
				current := <-s.next
				row.feed(current)
				current.Stop()
			}()
			for range row.events {
				if _, open := <-w.ResultChan(); !open {
					t.Fatal("an event is lost")
				}
			}
			if row.version == "" {
				if event, open := <-w.ResultChan(); open {
					t.Errorf("the watch does not end, but sends %v", event)
				}
				return
			}
			select {
			case got := <-s.opened:
				if got.ResourceVersion != row.version || got.SendInitialEvents != nil || got.ResourceVersionMatch != "" {
					t.Errorf("resumed with %+v", got)
				}
			case event, open := <-w.ResultChan():
				t.Fatalf("the watch is not resumed, but sends %v (open: %t)", event, open)
			case <-time.After(time.Minute):
				t.Fatal("the watch is neither resumed nor ended")
			}
			resumed := <-s.next
			go resumed.Add(service("30", nil))
			if event := <-w.ResultChan(); event.Type != watch.Added {
				t.Errorf("the resumed watch sends %v", event)
			}
			// The watch ends when the informer has to list again.
			s.err = apierrors.NewResourceExpired("too old")
			resumed.Stop()
			if event, open := <-w.ResultChan(); open {
				t.Errorf("after an expired version the watch sends %v", event)
			}
		})
	}
}

func TestResumeStops(t *testing.T) {
	for name, stop := range map[string]func(watch.Interface, context.CancelFunc){
		"stopped": func(w watch.Interface, _ context.CancelFunc) { w.Stop(); w.Stop() },
		"ended":   func(_ watch.Interface, cancel context.CancelFunc) { cancel() },
	} {
		s := &fedServer{opened: make(chan metav1.ListOptions, 10), next: make(chan *watch.FakeWatcher, 10)}
		ctx, cancel := context.WithCancel(t.Context())
		w, err := (&persistent{lw: s}).WatchWithContext(ctx, metav1.ListOptions{ResourceVersion: "5"})
		if err != nil {
			t.Fatal(err)
		}
		current := <-s.next
		stop(w, cancel)
		select {
		case _, open := <-w.ResultChan():
			if open {
				t.Errorf("%s: the watch sends an event", name)
			}
		case <-time.After(time.Minute):
			t.Errorf("%s: the watch does not end", name)
		}
		for deadline := time.Now().Add(time.Minute); !current.IsStopped(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: the watch of the API server is not stopped", name)
			}
		}
		cancel()
	}
}
