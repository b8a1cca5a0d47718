package neigh

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// receiveBuffer is the size in bytes of a socket's receive queue: some thousands of
// frames, because a station that has many addresses answers for all of them at once.
const receiveBuffer = 8 << 20

// maxLateReads bounds how many frames are read after the deadline. It exceeds what fits into the
// queue, for which the kernel takes twice receiveBuffer, and of that at least 768 bytes for each
// frame, so only frames remain that came after the deadline.
const maxLateReads = 1 << 15

// noDeadline makes readMessages read until its context ends.
var noDeadline time.Time

// openPacketSocket opens a packet socket on an interface that receives frames of one EtherType
// that a filter lets pass. It can send, too.
func openPacketSocket(nic *net.Interface, etherType uint16, filter []unix.SockFilter) (*os.File, error) {
	// With protocol 0 the socket receives nothing before Bind.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open packet socket: %w", err)
	}
	// With CAP_NET_ADMIN the buffer can exceed the machine's limit (net.core.rmem_max).
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]} //nolint:gosec // some tens of instructions
	err = cmp.Or(err, unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program))
	err = cmp.Or(err, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: etherType<<8 | etherType>>8, Ifindex: nic.Index}))
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("set up packet socket: %w", err)
	}
	return os.NewFile(uintptr(fd), "packet:"+nic.Name), nil
}

// readMessages calls handle with each message that the socket receives, until handle
// returns false or the deadline passes. It handles every frame that came before the
// deadline, however late it reads that frame: on a node that is short of processor time an
// unread answer must not count as silence.
func readMessages(ctx context.Context, socket *os.File, deadline time.Time, handle func(Message) (more bool)) error {
	if err := socket.SetReadDeadline(deadline); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = socket.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buffer := make([]byte, 2048)
	late, lateReads := false, 0
	for lateReads <= maxLateReads {
		read := socket.Read
		if late {
			lateReads++
			read = func(b []byte) (int, error) { return readQueuedFrame(socket, b) }
		}
		n, err := read(buffer)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, os.ErrDeadlineExceeded):
			late = true
			continue
		case late && errors.Is(err, unix.EAGAIN):
			return nil
		case err != nil:
			return err
		}
		if m, err := ParseMessage(buffer[:n]); err == nil && !handle(m) {
			return nil
		}
	}
	return nil
}

// readQueuedFrame reads a frame from the socket's queue, whatever the deadline. It returns
// EAGAIN if the queue is empty.
func readQueuedFrame(socket *os.File, buffer []byte) (int, error) {
	return withDescriptor(socket, func(fd int) (int, error) { return unix.Read(fd, buffer) })
}

// writeNow sends a frame without waiting. It returns EAGAIN or ENOBUFS if the interface's
// queue has no room for the frame.
func writeNow(socket *os.File, frame []byte) error {
	_, err := withDescriptor(socket, func(fd int) (int, error) { return unix.Write(fd, frame) })
	if err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

// withDescriptor calls a system call with the socket's file descriptor.
func withDescriptor(socket *os.File, call func(fd int) (int, error)) (n int, err error) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return 0, err
	}
	if controlErr := raw.Control(func(fd uintptr) { n, err = call(int(fd)) }); controlErr != nil {
		return 0, controlErr
	}
	return n, err
}

// takeDropped returns how many frames the kernel has dropped since the last call because
// the socket's queue had no room for them.
func takeDropped(socket *os.File) (dropped int, err error) {
	dropped, err = withDescriptor(socket, func(fd int) (int, error) {
		stats, err := unix.GetsockoptTpacketStats(fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
		if err != nil {
			return 0, err
		}
		return int(stats.Drops), nil
	})
	if err != nil {
		return 0, fmt.Errorf("count dropped frames: %w", err)
	}
	return dropped, nil
}

func closeAll(sockets []*os.File) error {
	var errs []error
	for _, s := range sockets {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}
