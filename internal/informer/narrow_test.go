package informer

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// narrowServer lists services, and notes by which selectors it is asked. The initial events of a watch end if there is
// something to list.
type narrowServer struct {
	list     []corev1.Service
	watches  []string // selectors, with the version from which they are
	watching *watch.FakeWatcher
}

func (s *narrowServer) ListWithContext(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
	if o.FieldSelector != "wide" {
		panic("a list by " + o.FieldSelector)
	}
	return &corev1.ServiceList{ListMeta: metav1.ListMeta{ResourceVersion: "10"}, Items: slices.Clone(s.list)}, nil
}

func (s *narrowServer) WatchWithContext(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	s.watching = watch.NewFakeWithChanSize(10, false)
	version := o.ResourceVersion
	if o.SendInitialEvents != nil {
		version = "initial"
		for i := range s.list {
			s.watching.Add(&s.list[i])
		}
		if len(s.list) > 0 {
			s.watching.Action(watch.Bookmark, service("10", map[string]string{metav1.InitialEventsAnnotationKey: "true"}))
		}
	}
	s.watches = append(s.watches, o.FieldSelector+" "+version)
	return s.watching, nil
}

// one is a service that may say that it is the only one.
func one(name, version string, isSole bool) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}}
	s.Spec.AllocateLoadBalancerNodePorts = ptr.To(isSole)
	return s
}

var byName = Narrowing{Wide: "wide", Narrow: "narrow", IsSole: func(o runtime.Object) bool {
	s, isService := o.(*corev1.Service)
	return isService && s.Name == "first" && *s.Spec.AllocateLoadBalancerNodePorts
}}

// TestNarrowing drives an informer's calls through lists and watches.
func TestNarrowing(t *testing.T) {
	for name, row := range map[string]struct {
		list    []corev1.Service
		feed    func(*narrowServer)
		watches []string
		seen    []string // what the informer is told, if that matters
	}{
		"the only one":     {list: []corev1.Service{*one("first", "5", true)}, watches: []string{"narrow 10"}},
		"it does not say":  {list: []corev1.Service{*one("first", "5", false)}, watches: []string{"wide 10"}},
		"nothing is there": {watches: []string{"wide 10"}},
		"another is there, too": {
			list: []corev1.Service{*one("first", "5", true), *one("second", "6", false)}, watches: []string{"wide 10"},
		},
		"only another is there": {list: []corev1.Service{*one("second", "6", true)}, watches: []string{"wide 10"}},
		"it becomes the only one": {
			list: []corev1.Service{*one("first", "5", false), *one("second", "6", false)},
			feed: func(s *narrowServer) {
				s.watching.Delete(one("second", "11", false))
				s.watching.Modify(one("first", "12", true))
				synctest.Wait()
			},
			watches: []string{"wide 10", "narrow 12"},
		},
		"it says so too early": {
			list: []corev1.Service{*one("first", "5", false), *one("second", "6", false)},
			feed: func(s *narrowServer) {
				s.watching.Modify(one("first", "11", true))
				synctest.Wait()
				if len(s.watches) != 1 {
					panic("by its name although there is another")
				}
				s.watching.Delete(one("second", "12", false))
				synctest.Wait()
			},
			watches: []string{"wide 10", "narrow 12"},
		},
		"the watch by its name is resumed": {
			list: []corev1.Service{*one("first", "5", true)},
			feed: func(s *narrowServer) {
				s.watching.Modify(one("first", "11", true))
				s.watching.Stop()
			},
			watches: []string{"narrow 10", "narrow 11"},
		},
		"it takes it back": {
			list:    []corev1.Service{*one("first", "5", true)},
			feed:    func(s *narrowServer) { s.watching.Modify(one("first", "11", false)) },
			watches: []string{"narrow 10", "wide 11"},
		},
		"it goes": {
			list: []corev1.Service{*one("first", "5", true)},
			feed: func(s *narrowServer) {
				s.list = nil
				s.watching.Delete(one("first", "11", true))
			},
			watches: []string{"narrow 10", "wide 11"},
		},
		"another came too early": {
			list: []corev1.Service{*one("first", "5", true)},
			feed: func(s *narrowServer) {
				s.list = append(s.list, *one("second", "9", false))
				s.watching.Modify(one("first", "11", false))
			},
			watches: []string{"narrow 10", "wide 11"}, seen: []string{"first 11", "second 9", "second 11 BOOKMARK"},
		},
		"another comes after it": { // the watch has it
			list: []corev1.Service{*one("first", "5", true)},
			feed: func(s *narrowServer) {
				s.list = append(s.list, *one("second", "12", false))
				s.watching.Modify(one("first", "11", false))
			},
			watches: []string{"narrow 10", "wide 11"}, seen: []string{"first 11"},
		},
		"another is found although it was not taken back": {
			list: []corev1.Service{*one("first", "5", true)},
			feed: func(s *narrowServer) {
				s.list = append(s.list, *one("second", "9", false))
				s.watching.Stop()
			},
			watches: []string{"narrow 10", "wide 10"}, seen: []string{"second 9", "second 10 BOOKMARK"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				s := &narrowServer{list: row.list}
				lw := &persistent{lw: &narrowing{lw: s, by: byName}}
				if _, err := lw.ListWithContext(ctx, metav1.ListOptions{}); err != nil {
					t.Fatal(err)
				}
				w, err := lw.WatchWithContext(ctx, metav1.ListOptions{ResourceVersion: "10"})
				if err != nil {
					t.Fatal(err)
				}
				var seen []string
				go func() {
					for event := range w.ResultChan() {
						s, _ := event.Object.(*corev1.Service)
						text := s.Name + " " + s.ResourceVersion
						if event.Type == watch.Bookmark {
							text += " BOOKMARK"
						}
						seen = append(seen, text)
					}
				}()
				synctest.Wait()
				if row.feed != nil {
					row.feed(s)
				}
				time.Sleep(2 * retryInterval)
				synctest.Wait()
				if !slices.Equal(s.watches, row.watches) || row.seen != nil && !slices.Equal(seen, row.seen) {
					t.Errorf("watches %q, want %q; told %q, want %q", s.watches, row.watches, seen, row.seen)
				}
				w.Stop()
				synctest.Wait()
			})
		})
	}
}

// TestNarrowingOfInitialEvents has an informer that does not list, but asks for all objects as the first events of its
// watch: the one that comes first may not be the only one.
func TestNarrowingOfInitialEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &narrowServer{}
		lw := &persistent{lw: &narrowing{lw: s, by: byName}}
		w, err := lw.WatchWithContext(t.Context(), metav1.ListOptions{
			SendInitialEvents: ptr.To(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
		})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for range w.ResultChan() { //nolint:revive // until it ends
			}
		}()
		s.watching.Add(one("first", "5", true))
		time.Sleep(2 * retryInterval)
		synctest.Wait()
		if len(s.watches) != 1 {
			t.Errorf("watches %q before all initial events have come", s.watches)
		}
		s.watching.Action(watch.Bookmark, service("7", map[string]string{metav1.InitialEventsAnnotationKey: "true"}))
		time.Sleep(2 * retryInterval)
		synctest.Wait()
		if want := []string{"wide initial", "narrow 7"}; !slices.Equal(s.watches, want) {
			t.Errorf("watches %q, want %q", s.watches, want)
		}
		w.Stop()
		synctest.Wait()
	})
}

// TestNarrowingInformer has an object that was created before the first one took it back that it is the only one: the
// informer finds it.
func TestNarrowingInformer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &narrowServer{list: []corev1.Service{*one("first", "5", true)}}
		informer := NewNarrowing(withoutContext{s}, byName, &corev1.Service{}, 0, toolscache.Indexers{})
		ctx, cancel := context.WithCancel(t.Context())
		defer func() { cancel(); synctest.Wait() }()
		go informer.RunWithContext(ctx)
		settle := func() { time.Sleep(5 * time.Second); synctest.Wait() }
		settle()
		s.list = []corev1.Service{*one("second", "9", false), *one("first", "11", false)}
		s.watching.Modify(one("first", "11", false))
		settle()
		got := informer.GetStore().ListKeys()
		if want := []string{"wide initial", "narrow 10", "wide 11"}; len(got) != 2 || !slices.Equal(s.watches, want) {
			t.Errorf("it knows %v and watches %q", got, s.watches)
		}
	})
}

// withoutContext has the calls of a ListerWatcher that client-go asks for.
type withoutContext struct{ *narrowServer }

func (s withoutContext) List(o metav1.ListOptions) (runtime.Object, error) {
	return s.ListWithContext(context.Background(), o)
}

func (s withoutContext) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return s.WatchWithContext(context.Background(), o)
}
