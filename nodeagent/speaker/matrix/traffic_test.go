//go:build routers

package matrix

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What the client does. A request without an answer is lost after answerTime.
const (
	flowCount       = 64
	requestInterval = 10 * time.Millisecond
	answerTime      = time.Second
	serverPort      = 9
)

// serve answers on the node to any of its addresses, from that address, with the number of the node.
func (n *node) serve(t testing.TB, number byte) {
	t.Helper()
	for _, network := range []string{"udp4", "udp6"} {
		var conn *net.UDPConn
		n.where.Call(t, func() error {
			config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
				var err error
				controlErr := raw.Control(func(fd uintptr) {
					if network == "udp4" {
						err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
					} else {
						// As with the service proxy, which translates addresses, the source need not be an address of the node.
						err = errors.Join(
							unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1),
							unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1),
						)
					}
				})
				if controlErr != nil {
					return controlErr
				}
				return err
			}}
			listening, err := config.ListenPacket(context.Background(), network, ":9")
			if err != nil {
				return err
			}
			conn = listening.(*net.UDPConn)
			return nil
		})
		t.Cleanup(func() { _ = conn.Close() })
		go n.answer(conn, number)
	}
}

// answer sends back each datagram, with the number, from the address to which it came (ip(7), IP_PKTINFO).
func (n *node) answer(conn *net.UDPConn, number byte) {
	text, control := make([]byte, 16), make([]byte, 128)
	for {
		length, controlLength, _, from, err := conn.ReadMsgUDPAddrPort(text, control)
		if err != nil {
			return
		}
		if !n.refuses.Load() {
			_, _, _ = conn.WriteMsgUDPAddrPort(append(text[:length], number), control[:controlLength], from)
		}
	}
}

// request is one datagram of the client, and what became of it.
type request struct {
	flow             int
	sent, answeredAt time.Time
	node             byte
}

// requester sends requests to one address until Stop.
type requester struct {
	stop func()

	// mu protects what follows.
	mu       sync.Mutex
	requests []request
}

// startClient begins to send to an address.
func (n *topology) startClient(t testing.TB, to netip.Addr) *requester {
	t.Helper()
	c := &requester{}
	var flows []*net.UDPConn
	n.client.Call(t, func() error {
		for range flowCount {
			network := "udp4"
			if to.Is6() {
				network = "udp6"
			}
			conn, err := net.ListenUDP(network, nil)
			if err != nil {
				return err
			}
			flows = append(flows, conn)
		}
		return nil
	})
	for _, flow := range flows {
		go c.receive(flow)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(requestInterval)
		defer ticker.Stop()
		for i := 0; ; i++ {
			c.mu.Lock()
			text := binary.BigEndian.AppendUint64(nil, uint64(len(c.requests)))
			c.requests = append(c.requests, request{flow: i % flowCount, sent: time.Now()})
			c.mu.Unlock()
			_, _ = flows[i%flowCount].WriteToUDPAddrPort(text, netip.AddrPortFrom(to, serverPort))
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
		}
	}()
	var once sync.Once
	c.stop = func() {
		once.Do(func() {
			cancel()
			<-done
			time.Sleep(answerTime)
			for _, flow := range flows {
				_ = flow.Close()
			}
		})
	}
	t.Cleanup(c.stop)
	return c
}

func (c *requester) receive(flow *net.UDPConn) {
	text := make([]byte, 16)
	for {
		length, _, err := flow.ReadFromUDPAddrPort(text)
		if err != nil {
			return
		}
		c.mu.Lock()
		if number := binary.BigEndian.Uint64(text); length == 9 && number < uint64(len(c.requests)) {
			c.requests[number].answeredAt, c.requests[number].node = time.Now(), text[8]
		}
		c.mu.Unlock()
	}
}

// hasAnswers reports whether each flow had an answer to a request since a time, and whether there were answers of so
// many nodes.
func (c *requester) hasAnswers(since time.Time, nodes int) bool {
	flows, seen := map[int]bool{}, map[byte]bool{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.requests {
		if r.sent.After(since) && r.node != 0 {
			flows[r.flow], seen[r.node] = true, true
		}
	}
	return len(flows) == flowCount && len(seen) >= nodes
}

// answers says how many requests since a time each node has answered; those of no node have no answer.
func (c *requester) answers(since time.Time) string {
	count := map[byte]int{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.requests {
		if r.sent.After(since) {
			count[r.node]++
		}
	}
	return fmt.Sprint(count)
}

// figures ends the client, and returns how many requests it made and lost, how many flows came to another node than
// before, and the longest time between two requests that were answered.
func (c *requester) figures() (made, lost, moved int, outage time.Duration) {
	c.stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	nodes, changed, last := map[int]byte{}, map[int]bool{}, time.Time{}
	for _, r := range c.requests {
		if r.node == 0 || r.answeredAt.Sub(r.sent) > answerTime {
			lost++
			continue
		}
		if before, known := nodes[r.flow]; known && before != r.node {
			changed[r.flow] = true
		}
		nodes[r.flow] = r.node
		if !last.IsZero() {
			outage = max(outage, r.sent.Sub(last))
		}
		last = r.sent
	}
	return len(c.requests), lost, len(changed), outage
}
