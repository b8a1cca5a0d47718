package routing_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/purelb/purelb-operator/controllers/routing"
)

func TestConcernedServices(t *testing.T) {
	down := func(node string) routing.SessionChange {
		return routing.SessionChange{Peer: "p", Node: node, Neighbor: "192.0.2.1", Cause: "the hold time is over"}
	}
	var services []routing.ConcernedService
	for _, one := range []struct {
		node string
		keys []string
	}{{"n1", []string{"a/b", "c/d"}}, {"n2", []string{"a/a", "a/b"}}, {"n3", nil}, {"n4", []string{"a/b"}}} {
		services = routing.AddConcerned(services, down(one.node), one.keys)
	}
	want := []routing.ConcernedService{{"a/a", down("n2")}, {"a/b", down("n1")}, {"c/d", down("n1")}}
	if diff := cmp.Diff(want, services); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	const note = "The session of node n2 with 192.0.2.1 is down: the hold time is over"
	for _, row := range []struct {
		sessions, unnamed int
		want              string
	}{
		{0, 0, note},
		{2, 0, note + "; and 2 more sessions are"},
		{2, 7, note + "; and 2 more sessions are. It concerns 7 more Services, at which there is no event"},
		{0, 7, note + ". It concerns 7 more Services, at which there is no event"},
	} {
		if got := services[0].Note(row.sessions, row.unnamed); got != row.want {
			t.Errorf("%q, want %q", got, row.want)
		}
	}
}
