package httpserver

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
)

// listener accepts connections, and keeps at most a number of them open.
type listener struct {
	net.Listener
	max int

	mu sync.Mutex
	// open are the open connections: the one whose last request is the oldest comes first. A
	// connection without a request counts from when it was accepted.
	open list.List
}

// connection is an open connection of a listener.
type connection struct {
	net.Conn
	listener *listener
	// turn holds an element while a handler of OneByOne serves the connection.
	turn chan struct{}

	// Both are guarded by the listener's mu. element is nil once the connection is closed.
	element *list.Element
	onClose func()
}

// Accept waits for the next connection. If too many are open, Accept closes the first one.
func (l *listener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: accepted, listener: l, turn: make(chan struct{}, 1)}
	l.mu.Lock()
	var replaced *connection
	if l.open.Len() >= l.max {
		replaced, _ = l.open.Front().Value.(*connection)
	}
	c.element = l.open.PushBack(c)
	l.mu.Unlock()
	if replaced != nil {
		_ = replaced.Close() // whatever it says, the connection is forgotten
	}
	return c, nil
}

// Close closes the connection and ends the contexts of its requests.
func (c *connection) Close() error {
	l := c.listener
	l.mu.Lock()
	onClose := c.onClose
	if c.element != nil {
		l.open.Remove(c.element)
	}
	c.element, c.onClose = nil, nil
	l.mu.Unlock()
	if onClose != nil {
		onClose()
	}
	return c.Conn.Close()
}

// noteRequest notes that a request has just begun.
func (c *connection) noteRequest() {
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	if c.element != nil {
		c.listener.open.MoveToBack(c.element)
	}
}

// endWithConnection makes cancel be called when the connection is closed.
func (c *connection) endWithConnection(cancel func()) {
	c.listener.mu.Lock()
	isOpen := c.element != nil
	if isOpen {
		c.onClose = cancel
	}
	c.listener.mu.Unlock()
	if !isOpen {
		cancel()
	}
}

// connectionKey is the key of a request's connection in its context.
type connectionKey struct{}

// withConnection returns the context for the requests of a connection. It ends with the
// connection: a handler that waits does not outlive a connection that was replaced.
func withConnection(ctx context.Context, conn net.Conn) context.Context {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	c, ok := conn.(*connection)
	if !ok {
		return ctx
	}
	ctx, cancel := context.WithCancel(ctx)
	c.endWithConnection(cancel)
	return context.WithValue(ctx, connectionKey{}, c)
}

// connectionOf returns the connection of a request, or nil if another server serves it.
func connectionOf(r *http.Request) *connection {
	c, _ := r.Context().Value(connectionKey{}).(*connection)
	return c
}

// noteRequests passes requests to next, and notes each at its connection.
func noteRequests(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c := connectionOf(r); c != nil {
			c.noteRequest()
		}
		next.ServeHTTP(w, r)
	})
}

// OneByOne passes requests to next, of each connection one at a time: so many connections as
// there may be, so many requests at the most are in memory. A request that an HTTP/2 connection
// carries beside others waits for them, until it ends.
func OneByOne(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c := connectionOf(r); c != nil {
			select {
			case c.turn <- struct{}{}:
				defer func() { <-c.turn }()
			case <-r.Context().Done():
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}
