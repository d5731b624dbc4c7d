package relay

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

const (
	// firstRead bounds what of the program's bytes goes out with the open.
	firstRead = 16 << 10
	// writePiece is how much is written before it counts as consumed.
	writePiece = 64 << 10
	// drainTime is how long a program has to read the rest of a connection that
	// the host is done with: less than a host waits for the end.
	drainTime = 15 * time.Second
	// closeTime is how long it then has to close its end. Unread data from it
	// would make the kernel reset the connection.
	closeTime = time.Second
)

// connection is an accepted connection.
type connection struct {
	*socket
	local, remote netip.AddrPort
}

func accept(listener int) (connection, error) {
	fd, from, err := unix.Accept4(listener, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	if err != nil {
		return connection{}, err
	}
	to, err := unix.Getsockname(fd)
	if err == nil {
		err = errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1), boundBuffers(fd)) // gVisor's connections inherit nothing
	}
	if err != nil {
		_ = unix.Close(fd)
		return connection{}, err
	}
	s, err := newSocket(fd, "connection")
	return connection{socket: s, local: addrPort(to), remote: addrPort(from)}, err
}

// hasEnded reports whether the program has ended its direction, or the
// connection.
func (c connection) hasEnded() bool {
	n := 0
	_ = c.raw.Control(func(fd uintptr) {
		n, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}, 0)
	})
	return n > 0
}

// relay moves one connection.
type relay struct {
	s    *Server
	id   uint32
	conn connection
	in   *wire.Queue  // from the host
	out  *wire.Credit // to the host
	// reset reports that the socket must be reset, ended that the program has
	// ended its direction.
	reset, ended atomic.Bool
	answered     chan struct{} // closed at the host's end

	mu       sync.Mutex
	sent     bool // the program has everything from the host
	draining bool // the host is done
}

// runRelay moves a connection from its open to the host's end, once its owner
// may have a relay.
func (s *Server) runRelay(c connection) {
	request := wire.Accept{Local: c.local}
	s.slots.Do(func() { request.UID = s.owners.find(c.local, c.remote) })
	o := ownerOf(request)
	s.shares.take(o)
	defer s.shares.put(o)
	r := &relay{s: s, conn: c, in: wire.NewRelayQueue(), out: wire.NewRelayCredit(), answered: make(chan struct{})}
	var first [firstRead]byte
	n := 0
	if int(c.local.Port()) == s.l.ports[0] { // programs speak first to the proxy
		_ = c.file.SetReadDeadline(time.Now().Add(headTime))
		n = s.readSome(c.socket, first[:])
		if s.serveLocal(c, first[:max(n, 0)]) {
			return
		}
		_ = c.file.SetReadDeadline(time.Time{})
	} else {
		s.slots.Do(func() {
			_ = c.raw.Control(func(fd uintptr) { n, _ = unix.Read(int(fd), first[:]) })
		})
	}
	if n > 0 {
		r.out.Take(n, nil)
	}
	s.open(wire.Open{Accept: &request}, func(id uint32) stream {
		r.id = id
		return r
	}, first[:max(n, 0)])
	var both sync.WaitGroup
	both.Go(r.sendToHost)
	both.Go(r.sendToProgram)
	both.Wait()
	r.close()
	end, err := wire.JSON(r.id, wire.TypeEnd, wire.RelayEnd{Reset: r.reset.Load() || !r.ended.Load()})
	if err == nil {
		_ = s.writer.Send(end)
	}
	<-r.answered
}

func (r *relay) close() {
	if r.reset.Load() {
		_ = r.conn.raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		})
	}
	_ = r.conn.file.Close()
}

// fail ends both directions and resets the connection.
func (r *relay) fail() {
	r.reset.Store(true)
	r.out.Close()
	r.in.Break()
	_ = r.conn.file.SetDeadline(time.Unix(1, 0))
}

// sendToHost moves what the program sends, until its end or the relay's. It
// drops what the host no longer wants.
func (r *relay) sendToHost() {
	granted, moved := 0, 0
	for {
		r.s.pause.wait(moved)
		if granted == 0 {
			granted = r.out.Take(blockSize, nil)
		}
		dropped := granted == 0
		n, err := r.moveBlock(granted)
		moved += n
		switch {
		case errors.Is(err, io.EOF):
			r.ended.Store(true)
			_ = r.s.writer.Send(wire.Frame{Stream: r.id, Type: wire.TypeEOF, Channel: wire.Stdout})
			return
		case err != nil:
			if !r.isDraining() {
				r.fail()
			}
			return
		case !dropped:
			granted -= n
		}
	}
}

// moveBlock waits for bytes of the program, reads at most granted of them, and
// sends them to the host. With 0 it drops them.
func (r *relay) moveBlock(granted int) (n int, err error) {
	var block *wire.Block
	waited := r.conn.raw.Read(func(fd uintptr) bool {
		r.s.blocks <- struct{}{}
		block = r.s.pool.Get().(*wire.Block)
		most := blockSize
		if granted > 0 {
			most = granted
		}
		pieces := block.Pieces(most)
		r.s.slots.Do(func() {
			for n, err = unix.Readv(int(fd), pieces); err == unix.EINTR; n, err = unix.Readv(int(fd), pieces) {
			}
		})
		if err != unix.EAGAIN {
			return true
		}
		r.putBlock(block)
		return false
	})
	if waited != nil {
		return 0, waited
	}
	defer r.putBlock(block)
	switch {
	case err != nil:
		return 0, err
	case n == 0:
		return 0, io.EOF
	case granted > 0:
		return n, r.s.writer.SendBlock(r.id, wire.Stdout, block, 0, n)
	}
	return n, nil
}

func (r *relay) putBlock(b *wire.Block) {
	r.s.pool.Put(b)
	<-r.s.blocks
}

// sendToProgram moves what the host sends.
func (r *relay) sendToProgram() {
	moved := 0
	for b := r.in.Next(); b != nil; b = r.in.Next() {
		for len(b) > 0 {
			r.s.pause.wait(moved)
			piece := b[:min(len(b), writePiece)]
			b = b[len(piece):]
			if err := r.s.slots.WriteAll(r.conn.raw, piece); err != nil {
				r.fail()
				return
			}
			moved += len(piece)
			if n := r.in.Done(len(piece)); n > 0 {
				_ = r.s.writer.SendCredit(r.id, wire.Stdin, n)
			}
		}
	}
	if _, ended := r.in.Total(); !ended || r.reset.Load() {
		return
	}
	_ = r.conn.raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_WR) })
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent = true
	if r.draining {
		_ = r.conn.file.SetReadDeadline(time.Now().Add(closeTime))
	}
}

func (r *relay) isDraining() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.draining
}

func (r *relay) takeFrame(f wire.Frame) error {
	switch {
	case f.Type == wire.TypeData && f.Channel == wire.Stdin:
		return r.in.Push(f.Payload)
	case f.Type == wire.TypeEOF && f.Channel == wire.Stdin:
		return r.in.End()
	case f.Type == wire.TypeCredit && f.Channel == wire.Stdout:
		return r.out.Grant(wire.CreditOf(f))
	case f.Type == wire.TypeCancel:
		var request wire.Cancel
		if err := wire.Decode(f.Payload, &request); err != nil {
			return err
		}
		r.cancel(request.Kill)
		return nil
	case f.Type == wire.TypeEnd:
		r.s.remove(r.id)
		close(r.answered) // once: the stream is no longer open
		return nil
	}
	return fmt.Errorf("%w: a host doesn't send this for a connection", wire.ErrProtocol)
}

// cancel ends the connection: at once, or when the program has read the rest.
func (r *relay) cancel(kill bool) {
	if kill {
		r.fail()
		return
	}
	r.out.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.draining = true
	wait := drainTime
	if r.sent {
		wait = closeTime
	}
	_ = r.conn.file.SetDeadline(time.Now().Add(wait))
}
