package dns

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

const (
	// maxQueries is how many queries are answered at once. More wait: those by UDP in
	// the socket, which drops what it cannot hold.
	maxQueries = 64
	// idleTimeout is how long a TCP connection may be silent.
	idleTimeout = 5 * time.Second
)

// Serve answers queries on all addresses, by UDP and TCP, until parent ends or Serve
// cannot go on.
func Serve(parent context.Context, addresses []netip.AddrPort, lookup Lookup) error {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	var group sync.WaitGroup
	defer group.Wait()
	slots := make(chan struct{}, maxQueries)
	for _, address := range addresses {
		packets, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(address))
		if err != nil {
			cancel(nil)
			return fmt.Errorf("listen for queries: %w", err)
		}
		context.AfterFunc(ctx, func() { _ = packets.Close() })
		listener, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(address))
		if err != nil {
			cancel(nil)
			return fmt.Errorf("listen for queries: %w", err)
		}
		context.AfterFunc(ctx, func() { _ = listener.Close() })
		group.Go(func() { cancel(serveUDP(ctx, &group, packets, slots, lookup)) })
		group.Go(func() { cancel(serveTCP(ctx, &group, listener, slots, lookup)) })
	}
	<-ctx.Done()
	if parent.Err() != nil {
		return nil
	}
	return context.Cause(ctx)
}

func serveUDP(
	ctx context.Context, group *sync.WaitGroup, socket *net.UDPConn, slots chan struct{}, lookup Lookup,
) error {
	buffer := make([]byte, maxSize)
	for {
		n, from, err := socket.ReadFromUDPAddrPort(buffer)
		if err != nil {
			return fmt.Errorf("read a query: %w", err)
		}
		query := append([]byte(nil), buffer[:n]...)
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		group.Go(func() {
			defer func() { <-slots }()
			if answer := Answer(ctx, query, 0, lookup); answer != nil {
				_, _ = socket.WriteToUDPAddrPort(answer, from) // who asked asks again
			}
		})
	}
}

func serveTCP(
	ctx context.Context, group *sync.WaitGroup, listener *net.TCPListener, slots chan struct{}, lookup Lookup,
) error {
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		connection, err := listener.Accept()
		if err != nil {
			return fmt.Errorf("accept a connection: %w", err)
		}
		group.Go(func() {
			defer func() { <-slots }()
			stop := context.AfterFunc(ctx, func() { _ = connection.Close() })
			defer stop()
			defer connection.Close()
			_ = serveConnection(ctx, connection, lookup) // it ends when the client has gone
		})
	}
}

// serveConnection answers the queries of a connection, each with its length before it
// (RFC 1035, section 4.2.2).
func serveConnection(ctx context.Context, connection net.Conn, lookup Lookup) error {
	for {
		if err := connection.SetDeadline(time.Now().Add(idleTimeout)); err != nil {
			return err
		}
		var length [2]byte
		if _, err := io.ReadFull(connection, length[:]); err != nil {
			return err
		}
		query := make([]byte, binary.BigEndian.Uint16(length[:]))
		if _, err := io.ReadFull(connection, query); err != nil {
			return err
		}
		answer := Answer(ctx, query, 1<<16-1, lookup)
		if answer == nil {
			return nil
		}
		if _, err := connection.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))),
			answer...)); err != nil {
			return err
		}
	}
}
