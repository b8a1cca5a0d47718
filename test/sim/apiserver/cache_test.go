package apiserver_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/sim/apiserver"
)

// newServer returns an API server in memory.
func newServer(t *testing.T) *apiserver.Server {
	t.Helper()
	server, err := apiserver.NewCluster()
	if err != nil {
		t.Fatal(err)
	}
	return server
}

// cacheOf returns a cache of the Announcements of node1, and of Services.
func cacheOf(t *testing.T, server *apiserver.Server) *apiserver.Cache {
	t.Helper()
	ofNode1 := func(obj client.Object) bool { return obj.(*v1.Announcement).Spec.NodeName == "node1" }
	cache, err := server.NewCache(
		apiserver.Selection{Of: &v1.Announcement{}, Selects: ofNode1}, apiserver.Selection{Of: &corev1.Service{}},
	)
	if err != nil {
		t.Fatal(err)
	}
	return cache
}

// describe says what happened, such as "+a" of an object that was made.
func describe(c apiserver.Change) string {
	switch {
	case c.Old == nil:
		return "+" + c.New.GetName()
	case c.New == nil:
		return "-" + c.Old.GetName()
	}
	return "~" + c.New.GetName()
}

// all learns of all changes.
func all(t *testing.T, cache *apiserver.Cache) string {
	t.Helper()
	var words []string
	for {
		change, isChange, err := cache.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !isChange {
			return strings.Join(words, " ")
		}
		words = append(words, describe(change))
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// A cache learns of what happened in order, one change at a time, and answers from what it has learnt.
func TestCacheFollows(t *testing.T) {
	server := newServer(t)
	c, cache := server.NewClient(nil, nil), cacheOf(t, server)
	late := server.NewClient(nil, cache)
	a, b := announcement("a"), announcement("b")
	b.Spec.NodeName = "node2"
	must(t, c.Create(t.Context(), a), c.Create(t.Context(), b), c.Create(t.Context(), service("s")))
	if err := late.Get(t.Context(), client.ObjectKeyFromObject(a), a.DeepCopy()); !apierrors.IsNotFound(err) {
		t.Errorf("the cache knows what it has not learnt: %v", err)
	}
	if change, _, err := cache.Next(); err != nil || describe(change) != "+a" {
		t.Errorf("%v, %v", change, err)
	}
	must(t, late.Get(t.Context(), client.ObjectKeyFromObject(a), a.DeepCopy()))
	if got := all(t, cache); got != "+s" {
		t.Errorf("then %q", got)
	}
	// An object that is moved into what is selected is new, and one that is moved out of it is gone.
	moved := b.DeepCopy()
	moved.Spec.NodeName = "node1"
	must(t, c.Update(t.Context(), moved))
	a.Spec.NodeName = "node2"
	must(t, c.Update(t.Context(), a))
	moved.Spec.HeartbeatSeconds = 2
	must(t, c.Update(t.Context(), moved), c.Delete(t.Context(), a), c.Delete(t.Context(), moved))
	if got := all(t, cache); got != "+b -a ~b -b" {
		t.Errorf("at last %q", got)
	}
}

// A cache that lists learns what changed by that, and not what happened in between.
func TestCacheRelists(t *testing.T) {
	server := newServer(t)
	c, cache := server.NewClient(nil, nil), cacheOf(t, server)
	for _, name := range []string{"c", "a", "b"} {
		must(t, c.Create(t.Context(), announcement(name)))
	}
	if got := all(t, cache); got != "+c +a +b" {
		t.Errorf("learns %q", got)
	}
	must(
		t, c.Delete(t.Context(), announcement("a")), c.Create(t.Context(), announcement("d")),
		c.Create(t.Context(), announcement("e")), c.Delete(t.Context(), announcement("e")),
	)
	b := announcement("b")
	must(t, c.Get(t.Context(), client.ObjectKeyFromObject(b), b))
	b.Spec.HeartbeatSeconds = 2
	must(t, c.Update(t.Context(), b))
	var words []string
	changes, err := cache.Relist()
	must(t, err)
	for _, change := range changes {
		words = append(words, describe(change))
	}
	if diff := cmp.Diff([]string{"-a", "~b", "+d"}, words); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := all(t, cache); got != "" {
		t.Errorf("then learns %q", got)
	}
}

// Changes that are long past cannot be learnt of.
func TestCacheIsTooFarBehind(t *testing.T) {
	server := newServer(t)
	c, cache := server.NewClient(nil, nil), cacheOf(t, server)
	a := announcement("a")
	must(t, c.Create(t.Context(), a))
	all(t, cache)
	for i := range 10_001 {
		a.Spec.HeartbeatSeconds = int32(1 + i%2)
		must(t, c.Update(t.Context(), a))
	}
	if _, _, err := cache.Next(); !apierrors.IsResourceExpired(err) {
		t.Fatalf("error %v", err)
	}
	if changes, err := cache.Relist(); err != nil || len(changes) != 1 {
		t.Errorf("%d changes, %v", len(changes), err)
	}
	if got := all(t, cache); got != "" {
		t.Errorf("then learns %q", got)
	}
}

func TestCacheIndex(t *testing.T) {
	server := newServer(t)
	c, cache := server.NewClient(nil, nil), cacheOf(t, server)
	must(t, cache.AddIndex(&corev1.Service{}, "port", func(obj client.Object) []string {
		var ports []string
		for _, p := range obj.(*corev1.Service).Spec.Ports {
			ports = append(ports, fmt.Sprint(p.Port))
		}
		return ports
	}))
	one, two := service("one"), service("two")
	two.Spec.Ports[0].Port = 81
	must(t, c.Create(t.Context(), one), c.Create(t.Context(), two))
	named := func(port string) []string {
		var list corev1.ServiceList
		must(t, server.NewClient(nil, cache).List(t.Context(), &list, client.MatchingFields{"port": port}))
		names := []string{}
		for _, s := range list.Items {
			names = append(names, s.Name)
		}
		return names
	}
	all(t, cache)
	if !slices.Equal(named("80"), []string{"one"}) || !slices.Equal(named("81"), []string{"two"}) {
		t.Errorf("by 80 %v, by 81 %v", named("80"), named("81"))
	}
	one.Spec.Ports[0].Port = 81
	must(t, c.Update(t.Context(), one), c.Delete(t.Context(), two))
	all(t, cache)
	if len(named("80")) > 0 || !slices.Equal(named("81"), []string{"one"}) {
		t.Errorf("then by 80 %v, by 81 %v", named("80"), named("81"))
	}
	var list corev1.ServiceList
	if err := server.NewClient(nil, cache).List(t.Context(), &list, client.MatchingFields{"other": "x"}); err == nil {
		t.Error("no error without an index")
	}
}

// What a client is given and gives is its own: changes of it are no changes of what is stored.
func TestObjectsAreNotShared(t *testing.T) {
	server := newServer(t)
	c := server.NewClient(nil, nil)
	a := announcement("a")
	must(t, c.Create(t.Context(), a))
	a.Labels["changed"] = "y"
	got := announcement("a")
	must(t, c.Get(t.Context(), client.ObjectKeyFromObject(a), got))
	if len(got.Labels) != 1 {
		t.Errorf("labels %v", got.Labels)
	}
	got.Labels["changed"] = "y"
	var list v1.AnnouncementList
	must(t, c.List(t.Context(), &list))
	if len(list.Items[0].Labels) != 1 {
		t.Errorf("labels %v", list.Items[0].Labels)
	}
}

// A request can be refused before the API server has it, or its answer be lost.
func TestIntercept(t *testing.T) {
	server := newServer(t)
	lost := errors.New("lost")
	var asked []string
	c := server.NewClient(func(_ context.Context, r apiserver.Request, do func() error) error {
		asked = append(asked, r.Verb+" "+r.Subresource+" "+r.Kind.Kind+" "+r.Key.String())
		if r.Verb == "delete" {
			return lost
		}
		return errors.Join(do(), lost)
	}, nil)
	a := announcement("a")
	for name, err := range map[string]error{"create": c.Create(t.Context(), a), "delete": c.Delete(t.Context(), a)} {
		if !errors.Is(err, lost) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if diff := cmp.Diff([]string{"create  Announcement default/a", "delete  Announcement default/a"}, asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
	must(t, server.NewClient(nil, nil).Get(t.Context(), client.ObjectKeyFromObject(a), a))
	ended, end := context.WithCancel(t.Context())
	end()
	if err := server.NewClient(nil, nil).Get(ended, client.ObjectKeyFromObject(a), a); !errors.Is(err, context.Canceled) {
		t.Errorf("after the context's end: %v", err)
	}
}

// What a cache keeps of an object is what it answers, and what its indexes are of.
func TestCacheTransforms(t *testing.T) {
	server := newServer(t)
	cache, err := server.NewCache(apiserver.Selection{Of: &corev1.Service{}, Transform: func(obj any) (any, error) {
		svc := obj.(*corev1.Service)
		return &corev1.Service{ObjectMeta: svc.ObjectMeta}, nil
	}})
	must(t, err, server.NewClient(nil, nil).Create(t.Context(), service("a")))
	all(t, cache)
	got := service("a")
	must(t, server.NewClient(nil, cache).Get(t.Context(), client.ObjectKeyFromObject(got), got))
	if got.Name != "a" || len(got.Spec.Ports) > 0 {
		t.Errorf("got %v", got)
	}
	if changes, err := cache.Relist(); err != nil || len(changes) > 0 {
		t.Errorf("the list changes %d, %v", len(changes), err)
	}
}
