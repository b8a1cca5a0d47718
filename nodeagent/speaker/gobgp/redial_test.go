package gobgp

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/purelb/purelb-operator/nodeagent/speaker/routes"
)

// TestRedial follows a neighbour whose sessions end.
func TestRedial(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r := &redialSchedule{}
	if r.takeDue(now) {
		t.Error("a session that has never been up is called again")
	}
	for i, step := range []struct {
		upFor, want time.Duration
	}{
		{time.Hour, 0},
		{time.Second, 500 * time.Millisecond},
		{time.Second, time.Second},
		{time.Second, 2 * time.Second},
		{29 * time.Second, 2 * time.Second},
		{30 * time.Second, 0},
		{0, 500 * time.Millisecond},
	} {
		r.noteUp(now)
		if now = now.Add(step.upFor); r.takeDue(now) {
			t.Errorf("session %d is up, and called again", i)
		}
		r.noteDown(now)
		if r.takeDue(now.Add(step.want - time.Millisecond)) {
			t.Errorf("session %d is called again before %s", i, step.want)
		}
		if now = now.Add(step.want); !r.takeDue(now) {
			t.Errorf("session %d is not called again after %s", i, step.want)
		}
		if r.takeDue(now.Add(time.Hour)) {
			t.Errorf("session %d is called again twice", i)
		}
	}
	r.noteDown(now)
	r.noteUp(now)
	if r.takeDue(now.Add(time.Hour)) {
		t.Error("a session that is up by itself is called again")
	}
}

// TestSourceMoves has neighbours to which the library cannot connect. A link-local one is called again if the node does
// not have the source address, each time that the library says so: the interface may have another one since.
func TestSourceMoves(t *testing.T) {
	const linkLocal, other = "fe80::1%eth0", "192.0.2.1"
	for _, row := range []struct {
		name, neighbour, failure string
		isCalled                 bool
	}{
		{"another link-local address", linkLocal, "bind: cannot assign requested address", true},
		{"no answer", linkLocal, "connect: no route to host", false},
		{"an address that is set", other, "bind: cannot assign requested address", false},
	} {
		changes := 0
		node, addr := New(logr.Discard(), func() { changes++ }), netip.MustParseAddr(row.neighbour)
		node.neighbours[addr] = neighbour{Peer: routes.Peer{Neighbour: addr}}
		node.remember(addr)
		for attempt := range 2 {
			before := changes
			node.noteConnectError(addr, explainConnect(row.failure))
			due := node.takeDueRedials()
			if isCalled := slices.Contains(due, addr); isCalled != row.isCalled {
				t.Errorf("%s: after attempt %d it is called again: %t", row.name, attempt, isCalled)
			}
			if row.isCalled && changes == before {
				t.Errorf("%s: after attempt %d nobody looks at the sessions", row.name, attempt)
			}
		}
	}
}

// TestSourceIsAway has a link-local neighbour whose session has ended, on an interface that is not there: the library
// keeps it, and it is called again as soon as the interface is there.
func TestSourceIsAway(t *testing.T) {
	node, addr := New(logr.Discard(), func() {}), netip.MustParseAddr("fe80::1%none0")
	node.neighbours[addr] = neighbour{Peer: routes.Peer{Neighbour: addr}}
	node.remember(addr)
	node.sessions[addr].redial.callAt = time.Now()
	ended := make(chan struct{})
	go func() {
		node.redialDue(t.Context()) // a library that is not started answers no request
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("the library is given the neighbour anew")
	}
	if due := node.takeDueRedials(); !slices.Contains(due, addr) {
		t.Error("the neighbour is not called again")
	}
	if !hasSource(netip.MustParseAddr("192.0.2.1")) {
		t.Error("a neighbour that is not link-local waits for an address of an interface")
	}
}
