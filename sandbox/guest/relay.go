package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// errCommandOver ends the connections of a command.
var errCommandOver = errors.New("the command is over")

// relay is a connection that a program made to a listener of the guest. It
// implements sandbox.EgressConn.
type relay struct {
	c       *Conn
	id      uint32
	accept  wire.Accept
	process *process // whose address was used; may be nil
	ctx     context.Context
	cancel  context.CancelCauseFunc
	in      *wire.Queue  // from the program
	out     *wire.Credit // to the program
	ended   chan struct{}

	reading sync.Mutex // held by Read; guards rest
	rest    []byte
	writing sync.Mutex // held while bytes are sent
	ending  sync.Mutex // held while the guest is asked to close the connection

	mu     sync.Mutex
	err    error // of Read and Write once the relay is over
	eof    bool  // CloseWrite was called
	closed bool
	over   bool // ended is closed
	watch  *time.Timer
}

var _ sandbox.EgressConn = (*relay)(nil)

func newRelay(c *Conn, id uint32, accept wire.Accept) *relay {
	r := &relay{c: c, id: id, accept: accept, in: wire.NewRelayQueue(), out: wire.NewRelayCredit(), ended: make(chan struct{})}
	r.ctx, r.cancel = context.WithCancelCause(c.life)
	return r
}

// serve is the relay's goroutine. The guest counts the connection until it gets
// the last frame.
func (r *relay) serve(h sandbox.EgressHandler) {
	if h != nil {
		h.ServeEgress(r.ctx, r)
	}
	_ = r.Close()
	<-r.ended
	r.cancel(net.ErrClosed)
	r.ending.Lock() // the end is the last frame: wait for another goroutine's request
	defer r.ending.Unlock()
	r.c.endStream(r.id, wire.RelayEnd{}, func() { delete(r.c.egress.relays, r) })
}

// LocalAddr returns the address that the program connected to.
func (r *relay) LocalAddr() netip.AddrPort { return r.accept.Local }

// Command returns the number of the command whose address was used; see
// sandbox.EgressConn.
func (r *relay) Command() int {
	if r.process == nil {
		return 0
	}
	return r.process.number
}

// UID returns the user of the connecting socket.
func (r *relay) UID() (uid int, known bool) {
	if r.accept.UID == nil {
		return 0, false
	}
	return int(*r.accept.UID), true
}

func (r *relay) Read(p []byte) (int, error) {
	r.reading.Lock()
	defer r.reading.Unlock()
	if len(p) == 0 {
		return 0, nil
	}
	if len(r.rest) == 0 {
		if r.rest = r.in.Next(); r.rest == nil {
			return 0, r.readError()
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	r.c.grantCredit(r.id, wire.Stdout, r.in.Done(n))
	return n, nil
}

func (r *relay) readError() error {
	if _, ended := r.in.Total(); ended {
		return io.EOF
	}
	return r.overError()
}

func (r *relay) overError() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return r.err
	}
	return net.ErrClosed
}

func (r *relay) Write(p []byte) (n int, err error) {
	r.writing.Lock()
	defer r.writing.Unlock()
	for n < len(p) {
		taken := r.out.Take(min(len(p)-n, wire.MaxData), nil)
		if taken == 0 {
			return n, r.overError()
		}
		r.c.send(wire.Frame{Stream: r.id, Type: wire.TypeData, Channel: wire.Stdin, Payload: p[n : n+taken]})
		n += taken
	}
	return n, nil
}

// CloseWrite ends the bytes to the program.
func (r *relay) CloseWrite() error {
	r.writing.Lock()
	defer r.writing.Unlock()
	r.mu.Lock()
	done, err := r.eof || r.closed || r.over, r.err
	r.eof = true
	r.mu.Unlock()
	if done {
		return err
	}
	r.out.Close()
	r.c.send(wire.Frame{Stream: r.id, Type: wire.TypeEOF, Channel: wire.Stdin})
	return nil
}

// Close closes the connection. The program still gets everything written before
// CloseWrite.
func (r *relay) Close() error {
	r.end(net.ErrClosed)
	return nil
}

// abort resets the connection and ends its handler's context.
func (r *relay) abort(cause error) {
	r.cancel(cause)
	r.end(fmt.Errorf("connection of a program: %w", cause))
}

// end asks the guest to close the connection, once.
func (r *relay) end(err error) {
	r.ending.Lock()
	defer r.ending.Unlock()
	r.mu.Lock()
	if r.closed || r.over {
		r.mu.Unlock()
		return
	}
	r.closed, r.err = true, err
	kill := !r.eof
	r.watch = time.AfterFunc(r.c.o.AnswerTime, func() {
		r.c.lose(fmt.Errorf("no end of a connection within %v", r.c.o.AnswerTime))
	})
	r.mu.Unlock()
	r.out.Close()
	r.in.Break()
	if err := r.c.writer.SendJSON(r.id, wire.TypeCancel, wire.Cancel{Kill: kill}); err != nil {
		r.c.lose(err)
	}
}

func (r *relay) takeFrame(f wire.Frame) (last bool, err error) {
	switch {
	case f.Type == wire.TypeCredit && f.Channel == wire.Stdin:
		return false, r.out.Grant(wire.CreditOf(f))
	case f.Type == wire.TypeData && f.Channel == wire.Stdout:
		return false, r.in.Push(f.Payload)
	case f.Type == wire.TypeEOF && f.Channel == wire.Stdout:
		return false, r.in.End()
	case f.Type == wire.TypeEnd:
		var end wire.RelayEnd
		if err := wire.Decode(f.Payload, &end); err != nil {
			return false, err
		}
		if _, ended := r.in.Total(); !ended && !end.Reset {
			return false, fmt.Errorf("%w: a connection that has not ended", wire.ErrProtocol)
		}
		r.conclude(fmt.Errorf("connection of a program: %w", syscall.ECONNRESET))
		return true, nil
	}
	return false, fmt.Errorf("%w: a guest doesn't send this for a connection", wire.ErrProtocol)
}

func (r *relay) connectionLost(err error) { r.conclude(err) }

// conclude ends the relay: no more frames follow.
func (r *relay) conclude(err error) {
	r.mu.Lock()
	if r.over {
		r.mu.Unlock()
		return
	}
	r.over = true
	if r.err == nil {
		r.err = err
	}
	if r.watch != nil {
		r.watch.Stop()
	}
	r.mu.Unlock()
	r.out.Close()
	r.in.Break()
	r.cancel(err)
	close(r.ended)
}
