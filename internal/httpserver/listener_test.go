package httpserver

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

// pipes is a listener whose connections the test makes.
type pipes struct {
	net.Listener
	next net.Conn
}

func (p *pipes) Accept() (net.Conn, error) { return p.next, nil }

// TestReplaced checks which connection a further one replaces, and that the contexts of its
// requests end.
func TestReplaced(t *testing.T) {
	l := &listener{Listener: &pipes{}, max: 2}
	accept := func() (*connection, context.Context) {
		t.Helper()
		ours, theirs := net.Pipe()
		t.Cleanup(func() { ours.Close(); theirs.Close() })
		l.Listener = &pipes{next: ours}
		accepted, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		c, _ := accepted.(*connection)
		return c, withConnection(t.Context(), accepted)
	}
	isOpen := func(c *connection) bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return c.element != nil
	}
	first, firstContext := accept()
	second, secondContext := accept()
	request := httptest.NewRequestWithContext(firstContext, http.MethodGet, "/", nil)
	noteRequests(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), request)
	third, thirdContext := accept()
	if !isOpen(first) || isOpen(second) || !isOpen(third) {
		t.Errorf(
			"open: %t, %t, %t; the second one has no request and came before the third", isOpen(first), isOpen(second),
			isOpen(third),
		)
	}
	if firstContext.Err() != nil || secondContext.Err() == nil || thirdContext.Err() != nil {
		t.Errorf("contexts: %v, %v, %v", firstContext.Err(), secondContext.Err(), thirdContext.Err())
	}
	if withConnection(t.Context(), second).Err() == nil {
		t.Error("a connection that is closed already has a context that does not end")
	}
	for range 2 { // net/http closes more than once
		if err := third.Close(); err != nil {
			t.Error(err)
		}
	}
	if l.open.Len() != 1 {
		t.Errorf("%d connections are open", l.open.Len())
	}
}
